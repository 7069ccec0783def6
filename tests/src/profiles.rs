//! Profiles made by a test, for a collector: small, valid, with a total that is known.

use crate::raw::Raw;
use prost::Message as _;
use proto::otlp::collector::ExportProfilesServiceRequest;
use proto::otlp::collector::profiles_service_client::ProfilesServiceClient;
use proto::otlp::common::any_value::Value;
use proto::otlp::common::{AnyValue, InstrumentationScope, KeyValue};
use proto::otlp::profiles::{
    Function, Line, Location, Mapping, Profile, ProfilesDictionary, ResourceProfiles, Sample,
    ScopeProfiles, Stack, ValueType,
};
use proto::otlp::resource::Resource;
use std::net::SocketAddr;

/// The period of [`request`]'s profiles.
pub const PERIOD_NS: i64 = 1_000_000;

/// Who sends.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// `service.name`.
    pub service: &'static str,
    /// Name of the scope: `vesta-agent` for a window of Vesta's agent.
    pub scope: &'static str,
}

/// A request with one profile of `samples` observations now, all on one stack of two functions.
#[must_use]
pub fn request(
    sender: Sender,
    profile_id: [u8; 16],
    samples: usize,
) -> ExportProfilesServiceRequest {
    let now = now_ns();
    let strings = ["", "samples", "count", "cpu", "nanoseconds", "main", "work", "program"];
    let dictionary = ProfilesDictionary {
        mapping_table: vec![
            Mapping::default(),
            Mapping { filename_strindex: 7, ..Mapping::default() },
        ],
        location_table: vec![Location::default(), location(1), location(2)],
        function_table: vec![Function::default(), function(6), function(5)],
        link_table: vec![proto::otlp::profiles::Link::default()],
        string_table: strings.map(str::to_owned).to_vec(),
        attribute_table: vec![proto::otlp::profiles::KeyValueAndUnit::default()],
        stack_table: vec![Stack::default(), Stack { location_indices: vec![1, 2] }],
    };
    let sample =
        Sample { stack_index: 1, timestamps_unix_nano: vec![now; samples], ..Sample::default() };
    let profile = Profile {
        sample_type: Some(ValueType { type_strindex: 1, unit_strindex: 2 }),
        samples: vec![sample],
        time_unix_nano: now - 1_000_000_000,
        duration_nano: 1_000_000_000,
        period_type: Some(ValueType { type_strindex: 3, unit_strindex: 4 }),
        period: PERIOD_NS,
        profile_id: profile_id.to_vec(),
        ..Profile::default()
    };
    let scope =
        InstrumentationScope { name: sender.scope.to_owned(), ..InstrumentationScope::default() };
    ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(Resource {
                attributes: vec![
                    text("service.name", sender.service),
                    text("host.name", "test-host"),
                ],
                ..Resource::default()
            }),
            scope_profiles: vec![ScopeProfiles {
                scope: Some(scope),
                profiles: vec![profile],
                ..ScopeProfiles::default()
            }],
            ..ResourceProfiles::default()
        }],
        dictionary: Some(dictionary),
    }
}

/// The request as bytes.
#[must_use]
pub fn bytes(request: &ExportProfilesServiceRequest) -> Vec<u8> {
    request.encode_to_vec()
}

/// An OTLP/gRPC client on a runtime of its own.
#[derive(Debug)]
pub struct Client {
    runtime: tokio::runtime::Runtime,
    inner: ProfilesServiceClient<tonic::transport::Channel>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// If nobody listens.
    pub fn connect(address: SocketAddr) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let connected =
            runtime.block_on(ProfilesServiceClient::connect(format!("http://{address}")));
        let inner =
            connected.map_err(|error| error.to_string())?.max_encoding_message_size(128 << 20);
        Ok(Self { runtime, inner })
    }

    /// Sends one request; `Ok` holds the number of rejected profiles.
    ///
    /// # Errors
    /// What the receiver answers.
    pub fn send(&mut self, request: &ExportProfilesServiceRequest) -> Result<i64, tonic::Status> {
        let answer = self.runtime.block_on(self.inner.export(request.clone()))?.into_inner();
        Ok(answer.partial_success.map_or(0, |partial| partial.rejected_profiles))
    }
}

/// Unix nanoseconds.
///
/// # Panics
/// If the clock is before 1970.
#[must_use]
pub fn now_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(now.expect("the clock is after 1970").as_nanos()).expect("before the year 2554")
}

fn location(function_index: i32) -> Location {
    let address = 0x1000 + u64::from(function_index.unsigned_abs());
    let lines = vec![Line { function_index, ..Line::default() }];
    Location { mapping_index: 1, address, lines, ..Location::default() }
}

fn function(name_strindex: i32) -> Function {
    Function { name_strindex, ..Function::default() }
}

fn text(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(Value::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

/// Sends bytes that need not be a request, as an OTLP/gRPC client would.
///
/// # Errors
/// What the receiver answers.
///
/// # Panics
/// If nobody listens.
pub fn send_bytes(address: SocketAddr, body: &[u8]) -> Result<i64, tonic::Status> {
    send_bytes_on(&mut connect_bytes(address), body)
}

/// A connection for [`send_bytes_on`].
#[derive(Debug)]
pub struct BytesSender {
    runtime: tokio::runtime::Runtime,
    grpc: tonic::client::Grpc<tonic::transport::Channel>,
}

/// Connects.
///
/// # Panics
/// If nobody listens.
#[must_use]
pub fn connect_bytes(address: SocketAddr) -> BytesSender {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
    let channel = runtime.block_on(endpoint.expect("an address").connect());
    let grpc = tonic::client::Grpc::new(channel.expect("the collector listens"));
    BytesSender { runtime, grpc: grpc.max_encoding_message_size(128 << 20) }
}

/// Sends one request of bytes; `Ok` holds the number of rejected profiles.
///
/// # Errors
/// What the receiver answers.
///
/// # Panics
/// If the connection is gone.
pub fn send_bytes_on(sender: &mut BytesSender, body: &[u8]) -> Result<i64, tonic::Status> {
    let BytesSender { runtime, grpc } = sender;
    let body = body.to_vec();
    runtime.block_on(async move {
        grpc.ready().await.expect("a channel");
        let path = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
        let answer = grpc.unary(tonic::Request::new(body), path, Raw).await?.into_inner();
        let answer = proto::otlp::collector::ExportProfilesServiceResponse::decode(&answer[..])
            .map_err(|error| tonic::Status::internal(error.to_string()))?;
        Ok(answer.partial_success.map_or(0, |partial| partial.rejected_profiles))
    })
}
