//! Broken requests over both transports. Goal: each is refused with the answer that its kind has, nothing
//! of it is stored, and the collector neither panics nor ends. Method: one collector takes all of them, then a
//! good request, and must hold exactly that one.

mod pprof;

use prost::Message as _;
use proto::otlp::collector::ExportProfilesServiceRequest;
use proto::otlp::common::any_value::Value;
use proto::otlp::common::{AnyValue, ArrayValue};
use std::time::Duration;
use tests::http::{Response, request};
use tests::profiles::{Client, PERIOD_NS, Sender, bytes};
use tests::{Collector, eventually, need, profiles, seed};

const SENDER: Sender = Sender { service: "broken", scope: "test" };

/// Samples of the good request.
const GOOD: usize = 7;

/// The value of the sample in the layout before 1.10.
const OLD_VALUE: u8 = 42;

/// What the collector must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The bytes are no request: 400, `INVALID_ARGUMENT`.
    Undecodable,
    /// The request is too large: 413, `RESOURCE_EXHAUSTED` (or `OUT_OF_RANGE`).
    TooLarge,
    /// The request is OTLP, its one profile cannot be stored: accepted with one rejected profile.
    Rejected,
}

#[test]
fn every_kind_over_both_transports() {
    let mut collector = Collector::start();
    for (name, body, expected) in cases() {
        over_http(&collector, name, &body, expected);
        over_grpc(&collector, name, &body, expected);
    }
    random_bytes(&collector);
    let good = profiles::request(SENDER, [9; 16], GOOD);
    let mut client = Client::connect(collector.otlp_grpc()).expect("it still listens");
    assert_eq!(client.send(&good).expect("a good request"), 0);
    let graph =
        collector.api("flamegraph", &[("from", "now-1h"), ("to", "now+1m"), ("type", "cpu")]);
    assert_eq!(graph["samples"], GOOD, "only the good request is stored: {graph}");
    assert_eq!(graph["total"], i64::try_from(GOOD).expect("small") * PERIOD_NS);
    assert!(collector.process().is_running());
    let said = collector.stop();
    assert!(!said.contains("panicked"), "{said}");
}

fn cases() -> Vec<(&'static str, Vec<u8>, Expected)> {
    let good = || profiles::request(SENDER, [1; 16], 3);
    let changed = |change: fn(&mut ExportProfilesServiceRequest)| {
        let mut request = good();
        change(&mut request);
        bytes(&request)
    };
    let whole = bytes(&good());
    vec![
        ("truncated", whole[..whole.len() - 5].to_vec(), Expected::Undecodable),
        ("text", b"profiles, please".to_vec(), Expected::Undecodable),
        ("65 MiB", changed(too_large), Expected::TooLarge),
        ("deeply nested value", deeply_nested(good(), 100_000), Expected::Undecodable),
        ("stack index out of range", changed(|it| sample(it).stack_index = 99), Expected::Rejected),
        ("negative stack index", changed(|it| sample(it).stack_index = -1), Expected::Rejected),
        (
            "attribute index out of range",
            changed(|it| sample(it).attribute_indices = vec![50]),
            Expected::Rejected,
        ),
        (
            "location index out of range",
            changed(|it| tables(it).stack_table[1].location_indices[0] = 77),
            Expected::Rejected,
        ),
        (
            "function index out of range",
            changed(|it| tables(it).location_table[1].lines[0].function_index = 1 << 30),
            Expected::Rejected,
        ),
        (
            "mapping index out of range",
            changed(|it| tables(it).location_table[1].mapping_index = 5),
            Expected::Rejected,
        ),
        (
            "string index out of range",
            changed(|it| tables(it).function_table[1].name_strindex = i32::MAX),
            Expected::Rejected,
        ),
        ("type index out of range", changed(type_out_of_range), Expected::Rejected),
        (
            "values and times that do not fit",
            changed(|it| sample(it).values = vec![1, 2]),
            Expected::Rejected,
        ),
        ("a time of the year 2200", changed(far_future), Expected::Rejected),
        ("samples of two layouts", old_layout(true), Expected::Rejected),
        ("no dictionary", changed(|it| it.dictionary = None), Expected::Rejected),
    ]
}

fn tables(
    request: &mut ExportProfilesServiceRequest,
) -> &mut proto::otlp::profiles::ProfilesDictionary {
    request.dictionary.as_mut().expect("made above")
}

fn profile(request: &mut ExportProfilesServiceRequest) -> &mut proto::otlp::profiles::Profile {
    &mut request.resource_profiles[0].scope_profiles[0].profiles[0]
}

fn sample(request: &mut ExportProfilesServiceRequest) -> &mut proto::otlp::profiles::Sample {
    &mut profile(request).samples[0]
}

fn too_large(request: &mut ExportProfilesServiceRequest) {
    tables(request).string_table.push("x".repeat(65 << 20));
}

fn type_out_of_range(request: &mut ExportProfilesServiceRequest) {
    profile(request).sample_type.as_mut().expect("made above").type_strindex = 1000;
}

fn far_future(request: &mut ExportProfilesServiceRequest) {
    let year_2200 = 7_258_118_400_000_000_000;
    profile(request).time_unix_nano = year_2200;
    sample(request).timestamps_unix_nano = vec![year_2200];
}

/// A resource attribute that holds a list in a list in a list.
fn deeply_nested(mut request: ExportProfilesServiceRequest, depth: usize) -> Vec<u8> {
    // Wrapped as bytes: a value of this depth cannot be dropped, cloned or encoded as a tree.
    let mut value = AnyValue { value: Some(Value::IntValue(1)) }.encode_to_vec();
    let mut layers: Vec<Vec<u8>> = Vec::new();
    let mut length = value.len();
    for _ in 0..depth {
        // ArrayValue.values = 1, then AnyValue.array_value = 5.
        let inner = head(1, length);
        let outer = head(5, length + inner.len());
        length += inner.len() + outer.len();
        layers.push([outer, inner].concat());
    }
    let mut nested: Vec<u8> = layers.into_iter().rev().flatten().collect();
    nested.append(&mut value);
    let attribute =
        &mut request.resource_profiles[0].resource.as_mut().expect("made above").attributes[0];
    attribute.value = None;
    let key = attribute.encode_to_vec();
    // KeyValue { key, value }, Resource.attributes = 1, ResourceProfiles.resource = 1, resource_profiles = 1.
    let mut field = [key, head(2, nested.len()), nested].concat();
    for _ in 0..3 {
        field = [head(1, field.len()), field].concat();
    }
    [field, request.encode_to_vec()].concat()
}

/// Tag and length of a protobuf field of bytes.
fn head(number: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encoding::encode_varint(length as u64, &mut bytes);
    bytes
}

/// A sample as protocol 1.8 and 1.9 wrote it: values packed in field 2, attributes in 3, link in 4. Mixed
/// with one of 1.10, a reader cannot know what is meant.
fn old_layout(mixed: bool) -> Vec<u8> {
    let mut request = profiles::request(SENDER, [1; 16], 1);
    if mixed {
        sample(&mut request).attribute_indices = vec![0];
        sample(&mut request).values = vec![1];
    } else {
        profile(&mut request).samples.clear();
    }
    let mut sample = vec![1 << 3, 1]; // stack_index = 1
    sample.extend([2 << 3 | 2, 1, OLD_VALUE]); // values
    sample.extend([3 << 3 | 2, 1, 0]); // attribute_indices = [0], where 1.10 has a varint
    let old = [head(2, sample.len()), sample].concat();
    // Appended to the profile's own bytes, level by level.
    let profile = [profile(&mut request).encode_to_vec(), old].concat();
    let scope = [head(2, profile.len()), profile].concat();
    let resource = [head(2, scope.len()), scope].concat();
    let dictionary = request.dictionary.take();
    let rest = ExportProfilesServiceRequest { resource_profiles: Vec::new(), dictionary };
    [head(1, resource.len()), resource, rest.encode_to_vec()].concat()
}

fn post(collector: &Collector, body: &[u8]) -> Response {
    let headers = [("Content-Type", "application/x-protobuf")];
    request(collector.otlp_http(), "POST", "/v1development/profiles", &headers, body)
        .expect("an answer")
}

fn over_http(collector: &Collector, name: &str, body: &[u8], expected: Expected) {
    let answer = post(collector, body);
    let status = match expected {
        Expected::Undecodable => 400,
        Expected::TooLarge => 413,
        Expected::Rejected => 200,
    };
    assert_eq!(answer.status, status, "{name} over HTTP: {}", answer.text());
    if expected == Expected::Rejected {
        let answer =
            proto::otlp::collector::ExportProfilesServiceResponse::decode(&answer.body[..]);
        let partial = answer.expect("OTLP").partial_success;
        let partial = partial.unwrap_or_else(|| panic!("{name} over HTTP was accepted"));
        assert_eq!(partial.rejected_profiles, 1, "{name} over HTTP: {partial:?}");
        assert!(!partial.error_message.is_empty(), "{name} over HTTP says why");
    }
}

fn over_grpc(collector: &Collector, name: &str, body: &[u8], expected: Expected) {
    use tonic::Code;
    let answer = tests::profiles::send_bytes(collector.otlp_grpc(), body);
    match (expected, answer) {
        (Expected::Rejected, Ok(rejected)) => assert_eq!(rejected, 1, "{name} over gRPC"),
        // tonic answers bytes that prost cannot decode with INTERNAL before our code sees them.
        (Expected::Undecodable, Err(status)) => {
            let codes = [Code::InvalidArgument, Code::Internal];
            assert!(codes.contains(&status.code()), "{name} over gRPC: {status}");
        }
        (Expected::TooLarge, Err(status)) => {
            let codes = [Code::ResourceExhausted, Code::OutOfRange];
            assert!(codes.contains(&status.code()), "{name} over gRPC: {status}");
        }
        (_, answer) => panic!("{name} over gRPC: {answer:?}"),
    }
}

/// Noise, and good requests with noise in them: whatever the answer is, the collector lives.
fn random_bytes(collector: &Collector) {
    let mut state = seed() | 1;
    need::figure(&format!("random bytes from seed {state}"));
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // Far outside the accepted times, so that even an accepted one adds nothing to the test's range.
    let mut request = profiles::request(SENDER, [2; 16], 3);
    far_future(&mut request);
    let good = bytes(&request);
    for round in 0..200 {
        let body: Vec<u8> = if round % 2 == 0 {
            (0..random() % 2000).map(|_| random().to_le_bytes()[0]).collect()
        } else {
            let mut body = good.clone();
            for _ in 0..=random() % 8 {
                let at = usize::try_from(random()).expect("64 bits") % body.len();
                body[at] = random().to_le_bytes()[0];
            }
            body
        };
        let status = post(collector, &body).status;
        assert!([200, 400, 413, 429, 503].contains(&status), "random bytes: {status}");
    }
    eventually("the collector is well", Duration::from_secs(5), || {
        let answer =
            tests::http::get(collector.address(), "/healthz").map_err(|it| it.to_string())?;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    });
}

/// Senders of protocol 1.8 and 1.9 are understood: read as 1.10, their samples would be silently empty.
#[test]
fn the_layout_before_1_10_is_stored() {
    let collector = Collector::start();
    let answer = post(&collector, &old_layout(false));
    assert_eq!((answer.status, answer.body.len()), (200, 0), "{}", answer.text());
    let query = [("from", "now-1h"), ("to", "now+1m"), ("type", "cpu")];
    let graph = collector.api("flamegraph", &query);
    assert_eq!(graph["total"], i64::from(OLD_VALUE) * PERIOD_NS, "{graph}");
}

/// A value that is nested as deep as is allowed is no reason to refuse.
#[test]
fn a_nested_value_of_ordinary_depth_is_stored() {
    let collector = Collector::start();
    let mut request = profiles::request(SENDER, [3; 16], GOOD);
    let mut value = AnyValue { value: Some(Value::IntValue(1)) };
    for _ in 0..8 {
        value = AnyValue { value: Some(Value::ArrayValue(ArrayValue { values: vec![value] })) };
    }
    let resource = request.resource_profiles[0].resource.as_mut().expect("made above");
    resource.attributes.push(proto::otlp::common::KeyValue {
        key: "nested".to_owned(),
        value: Some(value),
        ..Default::default()
    });
    let mut client = Client::connect(collector.otlp_grpc()).expect("it listens");
    assert_eq!(client.send(&request).expect("a good request"), 0);
    let graph =
        collector.api("flamegraph", &[("from", "now-1h"), ("to", "now+1m"), ("type", "cpu")]);
    assert_eq!(graph["samples"], GOOD, "{graph}");
}
