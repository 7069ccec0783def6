//! Every BPF program and map of the host, by the kernel's own list: after the agent is gone, there must be
//! none that was not there before.

use crate::report::{Report, Verdict};
use aya::maps::loaded_maps;
use aya::programs::{ProgramInfo, loaded_programs};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The kernel frees maps behind grace periods, in a thread of its own: five emulated machines on two busy CPUs have
/// taken more than ten seconds for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Ids of what is loaded.
#[derive(Debug)]
pub(crate) struct Loaded {
    programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
}

impl Loaded {
    pub(crate) fn now() -> Self {
        let programs = loaded_programs().flatten().map(|program| program.id());
        let maps = loaded_maps().flatten().map(|map| map.id());
        Self { programs: programs.collect(), maps: maps.collect() }
    }

    /// The programs that are loaded now and were not then.
    pub(crate) fn programs_since(&self) -> Vec<ProgramInfo> {
        let programs = loaded_programs().flatten();
        programs.filter(|program| !self.programs.contains(&program.id())).collect()
    }
}

/// Waits until nothing is left, and reports.
pub(crate) fn check(report: Report, before: &Loaded) {
    let start = Instant::now();
    loop {
        let now = Loaded::now();
        let programs = now.programs.difference(&before.programs).count();
        let maps = now.maps.difference(&before.maps).count();
        let gone = programs + maps == 0;
        let elapsed = start.elapsed();
        if gone || elapsed > PATIENCE {
            let ms = elapsed.as_millis();
            let fields: [(&str, &dyn std::fmt::Display); 3] =
                [("programs", &programs), ("maps", &maps), ("ms", &ms)];
            report.line("nothing_left", Verdict::of(gone), &fields);
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
