//! What a person reads when the kernel refuses.

use crate::bpf::{BpfError, Options, Sampler};

#[test]
fn options_out_of_range_are_refused_with_the_range() {
    let rows = [
        (Options { frequency_hz: 0, ..Options::default() }, "1 to 999"),
        (Options { frequency_hz: 1000, ..Options::default() }, "1 to 999"),
        (Options { ring_bytes: Some(5000), ..Options::default() }, "power of two"),
        (Options { ring_bytes: Some(2048), ..Options::default() }, "4096"),
    ];
    for (options, expected) in rows {
        let error = Sampler::load(&options).expect_err("out of range").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn missing_rights_are_named_with_their_cure() {
    let denied_map = aya::maps::MapError::CreateError {
        name: "NOTES".to_owned(),
        io_error: std::io::Error::from_raw_os_error(libc::EPERM),
    };
    let denied_map = BpfError::Object { source: Box::new(aya::EbpfError::MapError(denied_map)) };
    let denied = std::io::Error::from_raw_os_error(libc::EACCES);
    let rows = [
        (BpfError::Perf { what: "the sampling clock", cpu: 3, source: denied }, "CAP_PERFMON"),
        (
            BpfError::Refused { errno: Some(libc::EPERM), attempts: vec![] },
            "it needs root, or CAP_BPF and CAP_PERFMON",
        ),
        (denied_map, "`NOTES`: Operation not permitted (os error 1) (it needs root"),
        (BpfError::NotBuilt, "build it again"),
    ];
    for (error, expected) in rows {
        let text = error.to_string();
        assert!(text.contains(expected) && !text.contains('\n'), "{text}");
    }
}
