"""Answers SQL with chdb: one request a line on standard input, its times and its text one line on standard output."""

import json
import sys
import time

from chdb import session

store = session.Session(sys.argv[1])
for line in sys.stdin:
    request = json.loads(line)
    milliseconds = []
    for _ in range(request["runs"]):
        start = time.perf_counter()
        answer = store.query(request["sql"], request["format"])
        milliseconds.append((time.perf_counter() - start) * 1e3)
    text = bytes(answer.bytes()).decode() if request["format"] == "TabSeparated" else ""
    print(json.dumps({"ms": milliseconds, "text": text}), flush=True)
