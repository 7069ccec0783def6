//! Times: those that are none, and those that are too old.

use super::*;
use crate::store::TypeRetention;

#[test]
fn what_is_older_than_its_type_is_kept_is_refused() {
    let request = request();
    let stored = accepted(&request);
    let age_ms = NOW_MS - stored.time_ms;
    let of = |kind: &Arc<str>, kept_ms| {
        let short = TypeRetention { kind: Arc::clone(kind), kept_ms };
        let retention = Retention::new(400 * DAY_MS).with_type(short).unwrap();
        let reception = Reception { retention, ..reception() };
        let received = receive(&request.encode_to_vec(), &reception).unwrap();
        received.rejections.by_reason.keys().copied().collect::<Vec<_>>()
    };
    let kind = &stored.sample_type.kind;
    assert_eq!(of(kind, age_ms), [""; 0]);
    assert_eq!(of(&Arc::from("other"), age_ms - 1), [""; 0]);
    assert_eq!(of(kind, age_ms - 1), ["time"]);
}

#[test]
fn times_that_are_no_wall_clock_become_the_time_of_receipt() {
    for time_ns in [0, 1, 86_400_000_000_000] {
        let mut request = request();
        let changed = profile(&mut request);
        changed.time_unix_nano = time_ns;
        changed.samples[0].timestamps_unix_nano = vec![time_ns; 3];
        let profile = accepted(&request);
        assert_eq!(profile.time_ms, NOW_MS - 5_000);
        assert_eq!(profile.samples[0].time_ms, NOW_MS - 5_000);
    }
}
