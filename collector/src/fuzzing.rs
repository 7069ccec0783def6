//! Doors for the fuzz targets of tests/fuzz, with what must hold of their answers whatever the bytes are.
//! Compiled with `--cfg fuzzing` alone. A panic is a finding.

use crate::ingest::otlp::Reception;
use crate::ingest::pprof::{self, Push};
use crate::profile::{BatchError, ProjectName};
use crate::store::Retention;
use std::sync::Arc;

/// A pprof profile: refused with a reason, or a batch that a store takes, whose rows add up to what is said.
pub fn pprof(bytes: &[u8]) {
    let reception = Reception {
        project: ProjectName(Arc::from("default")),
        now_ms: 1_795_982_400_000,
        retention: Retention::default(),
    };
    let push = Push { profile_type: Some(Arc::from("cpu")), ..Push::default() };
    let received = match pprof::receive(bytes, &push, &reception) {
        Ok(received) => received,
        Err(fault) => {
            assert!(!fault.to_string().is_empty() && !fault.reason().is_empty());
            return;
        }
    };
    match received.batch.check() {
        Ok(()) | Err(BatchError::Limit { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    assert_eq!(received.types.len(), received.batch.profiles.len());
    assert!(received.view < received.types.len());
    for (profile, said) in received.batch.profiles.iter().zip(&received.types) {
        let sum: i128 = profile.samples.iter().map(|sample| i128::from(sample.value)).sum();
        assert_eq!((profile.samples.len(), sum), (said.samples, i128::from(said.total)));
    }
}
