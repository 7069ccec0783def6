"""Sums OTLP requests with the official Python protobufs; prints one JSON object.
Usage: read_otlp.py FILE..."""
import collections
import json
import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)



def known(*messages):
    """Fails on a field that the official messages do not have."""
    for message in messages:
        assert len(UnknownFieldSet(message)) == 0, f"unknown fields in {message.DESCRIPTOR.name}"


observations = 0
leaves = collections.Counter()
pids = collections.Counter()
for path in sys.argv[1:]:
    request = ExportProfilesServiceRequest()
    with open(path, "rb") as file:
        request.ParseFromString(file.read())
    tables = request.dictionary
    known(request, tables, *tables.location_table, *tables.mapping_table, *tables.stack_table)
    for resource in request.resource_profiles:
        by_resource = {a.key: a.value for a in resource.resource.attributes}
        for scope in resource.scope_profiles:
            for profile in scope.profiles:
                known(scope, profile, *profile.samples)
                for sample in profile.samples:
                    count = len(sample.timestamps_unix_nano)
                    if count == 0:
                        continue  # waits, which are sums without times
                    observations += count
                    stack = tables.stack_table[sample.stack_index].location_indices
                    location = tables.location_table[stack[0]] if stack else None
                    name = ""
                    if location is not None and location.lines:
                        function = tables.function_table[location.lines[0].function_index]
                        name = tables.string_table[function.name_strindex]
                    leaves[name] += count
                    pid = by_resource.get("process.pid")
                    for index in sample.attribute_indices:
                        attribute = tables.attribute_table[index]
                        if tables.string_table[attribute.key_strindex] == "process.pid":
                            pid = attribute.value
                    pids[pid.int_value if pid is not None else 0] += count
print(json.dumps({"observations": observations, "leaves": leaves, "pids": pids}))
