//! Messages of protocol 1.8 and 1.9 beside those of 1.10, and malformed bytes.

use super::super::{Reception, receive};
use super::*;
use crate::ingest::testing::{NOW_MS, profile, request};
use crate::profile::ProjectName;
use crate::store::Retention;
use prost::Message as _;
use std::sync::Arc;

/// `Sample` of protocol 1.8 and 1.9.
#[derive(Clone, PartialEq, prost::Message)]
struct OldSample {
    #[prost(int32, tag = "1")]
    stack_index: i32,
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
    #[prost(int32, repeated, tag = "3")]
    attribute_indices: Vec<i32>,
    #[prost(int32, tag = "4")]
    link_index: i32,
    #[prost(fixed64, repeated, tag = "5")]
    timestamps_unix_nano: Vec<u64>,
}

/// `Profile` of protocol 1.9, samples as bytes.
#[derive(Clone, PartialEq, prost::Message)]
struct Profile19 {
    #[prost(message, optional, tag = "1")]
    sample_type: Option<otlp::profiles::v1development::ValueType>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    samples: Vec<Vec<u8>>,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(uint64, tag = "4")]
    duration_nano: u64,
    #[prost(message, optional, tag = "5")]
    period_type: Option<otlp::profiles::v1development::ValueType>,
    #[prost(int64, tag = "6")]
    period: i64,
    #[prost(bytes = "vec", tag = "7")]
    profile_id: Vec<u8>,
    #[prost(int32, repeated, tag = "11")]
    attribute_indices: Vec<i32>,
}

/// `Profile` of protocol 1.8: comments in 7, what follows one number higher.
#[derive(Clone, PartialEq, prost::Message)]
struct Profile18 {
    #[prost(message, optional, tag = "1")]
    sample_type: Option<otlp::profiles::v1development::ValueType>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    samples: Vec<Vec<u8>>,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(uint64, tag = "4")]
    duration_nano: u64,
    #[prost(message, optional, tag = "5")]
    period_type: Option<otlp::profiles::v1development::ValueType>,
    #[prost(int64, tag = "6")]
    period: i64,
    #[prost(int32, repeated, tag = "7")]
    comments: Vec<i32>,
    #[prost(bytes = "vec", tag = "8")]
    profile_id: Vec<u8>,
    #[prost(string, tag = "10")]
    original_payload_format: String,
}

/// The request's envelope, profiles as bytes.
#[derive(Clone, PartialEq, prost::Message)]
struct Envelope {
    #[prost(message, repeated, tag = "1")]
    resource_profiles: Vec<ResourceEnvelope>,
    #[prost(message, optional, tag = "2")]
    dictionary: Option<otlp::profiles::v1development::ProfilesDictionary>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResourceEnvelope {
    #[prost(message, repeated, tag = "2")]
    scope_profiles: Vec<ScopeEnvelope>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ScopeEnvelope {
    #[prost(bytes = "vec", repeated, tag = "2")]
    profiles: Vec<Vec<u8>>,
}

fn envelope(profiles: Vec<Vec<u8>>) -> Vec<u8> {
    let scope_profiles = vec![ScopeEnvelope { profiles }];
    Envelope {
        resource_profiles: vec![ResourceEnvelope { scope_profiles }],
        dictionary: request().dictionary,
    }
    .encode_to_vec()
}

fn old(stack: i32, values: &[i64], attributes: &[i32], link: i32, times: usize) -> Vec<u8> {
    let time_ns = u64::try_from(NOW_MS).unwrap() * 1_000_000;
    OldSample {
        stack_index: stack,
        values: values.to_vec(),
        attribute_indices: attributes.to_vec(),
        link_index: link,
        timestamps_unix_nano: vec![time_ns; times],
    }
    .encode_to_vec()
}

fn profile_1_9(samples: Vec<Vec<u8>>) -> Vec<u8> {
    let mut new = request();
    let new = profile(&mut new).clone();
    Profile19 {
        sample_type: new.sample_type,
        samples,
        time_unix_nano: new.time_unix_nano,
        duration_nano: new.duration_nano,
        period_type: new.period_type,
        period: 1,
        profile_id: vec![9; 16],
        attribute_indices: Vec::new(),
    }
    .encode_to_vec()
}

fn values_of(bytes: &[u8]) -> Result<Vec<Vec<i64>>, String> {
    let reception = Reception {
        project: ProjectName(Arc::from("default")),
        now_ms: NOW_MS,
        retention: Retention::default(),
    };
    let received = receive(bytes, &reception).map_err(|error| error.to_string())?;
    if received.rejections.profiles > 0 {
        return Err(received.rejections.message());
    }
    let values =
        |it: &crate::profile::ProfileDef| it.samples.iter().map(|sample| sample.value).collect();
    Ok(received.batch.profiles.iter().map(values).collect())
}

#[test]
fn samples_of_1_9_keep_their_values() {
    let rows: [(Vec<Vec<u8>>, &[i64]); 7] = [
        (vec![old(1, &[7, 8], &[1], 1, 2)], &[7, 8]),
        (vec![old(1, &[7], &[1], 0, 0)], &[7]),
        (vec![old(1, &[7], &[], 1, 0)], &[7]),
        // Nothing but values: in the new layout an empty sample with attributes.
        (vec![old(1, &[300, 1], &[], 0, 0)], &[300, 1]),
        // The second sample alone says nothing, the first one decides.
        (vec![old(1, &[7], &[1], 0, 0), old(2, &[9], &[], 0, 1)], &[7, 9]),
        // Only timestamps.
        (vec![old(1, &[], &[1], 0, 2)], &[1, 1]),
        (vec![old(2, &[-5, 0], &[1], 0, 0)], &[-5, 0]),
    ];
    for (samples, expected) in rows {
        let bytes = envelope(vec![profile_1_9(samples)]);
        assert_eq!(values_of(&bytes), Ok(vec![expected.to_vec()]));
    }
}

#[test]
fn a_profile_without_evidence_follows_the_others_of_its_request() {
    let sure = profile_1_9(vec![old(1, &[7], &[1], 0, 0)]);
    let unsure = profile_1_9(vec![old(1, &[1, 1, 1], &[], 0, 3)]);
    assert_eq!(values_of(&envelope(vec![sure, unsure.clone()])), Ok(vec![vec![7], vec![1, 1, 1]]));
    // Alone it is read as 1.10: three attributes, and each timestamp counts one. The total is the same.
    assert_eq!(values_of(&envelope(vec![unsure])), Ok(vec![vec![1, 1, 1]]));
}

#[test]
fn profiles_of_1_8_keep_their_id_and_values() {
    let new = profile(&mut request()).clone();
    let old_profile = Profile18 {
        sample_type: new.sample_type,
        samples: vec![old(1, &[5], &[1], 0, 0)],
        time_unix_nano: new.time_unix_nano,
        duration_nano: new.duration_nano,
        period_type: new.period_type,
        period: 1,
        comments: vec![1, 2],
        profile_id: vec![3; 16],
        original_payload_format: "pprof".to_owned(),
    };
    let mut bytes = envelope(vec![old_profile.encode_to_vec()]);
    assert_eq!(values_of(&bytes), Ok(vec![vec![5]]));
    let findings = look(&bytes).unwrap();
    renumber(&mut bytes, &findings).unwrap();
    let renumbered =
        otlp::collector::profiles::v1development::ExportProfilesServiceRequest::decode(&*bytes)
            .unwrap();
    let profile = &renumbered.resource_profiles[0].scope_profiles[0].profiles[0];
    assert_eq!(profile.profile_id, vec![3; 16]);
    assert_eq!(profile.original_payload_format, "pprof");
    assert!(profile.attribute_indices.is_empty());
}

#[test]
fn profiles_that_mix_the_layouts_are_refused() {
    let new = otlp::profiles::v1development::Sample {
        stack_index: 1,
        values: vec![1],
        attribute_indices: vec![1],
        ..Default::default()
    };
    let bytes = envelope(vec![profile_1_9(vec![old(1, &[7], &[1], 0, 0), new.encode_to_vec()])]);
    let message = values_of(&bytes).unwrap_err();
    assert!(message.starts_with("1 profile was not stored"), "{message}");
    assert!(message.contains("mix the layouts of protocol 1.9 and 1.10"), "{message}");
}

#[test]
fn requests_of_1_10_are_left_alone() {
    let bytes = request().encode_to_vec();
    assert_eq!(look(&bytes), Ok(Findings::default()));
}

#[test]
fn malformed_bytes() {
    let rows: [(&[u8], WireError); 9] = [
        (&[0x0a], WireError::Truncated(1)),
        (&[0x0a, 0x05, 0x00], WireError::Truncated(3)),
        (
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            WireError::Truncated(11),
        ),
        (&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], WireError::Varint(1)),
        (&[0x00], WireError::Tag(0)),
        (&[0x0b], WireError::Tag(0)), // a group, which proto3 does not have
        (&[0x0e], WireError::Tag(0)),
        (&[0x09, 1, 2, 3], WireError::Truncated(4)),
        (b"<html><body>not found</body></html>", WireError::Tag(0)),
    ];
    for (bytes, expected) in rows {
        assert_eq!(look(bytes), Err(expected), "{bytes:02x?}");
    }
}

/// Two bytes on the wire, 72 in memory: a body within its limit that would take gigabytes.
#[test]
fn what_decoding_would_take_is_bounded() {
    let mut dictionary = Vec::new();
    let entries = [0x12, 0x00].repeat(4 << 20);
    prost::encoding::encode_key(2, prost::encoding::WireType::LengthDelimited, &mut dictionary);
    prost::encoding::encode_varint(entries.len() as u64, &mut dictionary);
    dictionary.extend(entries);
    assert_eq!(look(&dictionary), Err(WireError::Memory));
}
