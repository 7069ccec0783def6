//! Idle time of each CPU by the kernel's own account, which tells ticks that a sleeping CPU never made from those
//! that were missed while it worked. Where a virtual CPU idles, its host may wake it for a clock late or never: 3 of
//! 291 ticks were seen.

use agent_ebpf::Counters;
use hashbrown::HashMap;

/// Nanoseconds of a unit of `/proc/stat` (`USER_HZ`, `proc_stat(5)`).
const UNIT_NS: u64 = 10_000_000;

/// Idle time of CPUs, nanoseconds since the host started.
pub(super) type Idle = HashMap<u32, u64>;

/// What of the idle time was told so far.
#[derive(Debug, Default)]
pub(super) struct IdleTime {
    at_start: Option<Idle>,
    asleep: HashMap<u32, u64>,
}

impl IdleTime {
    /// Idle time counts from the first call on.
    pub(super) fn start(&mut self) {
        self.at_start.get_or_insert_with(read);
    }

    /// Idle time of a CPU that was not there at the start counts from now on.
    pub(super) fn begin(&mut self, cpu: u32) {
        let now = read();
        let at_start = self.at_start.get_or_insert_with(Idle::new);
        at_start.entry(cpu).or_insert(now.get(&cpu).copied().unwrap_or_default());
    }

    /// Ticks of a CPU that came due while it slept: of those without a run as many as idle time holds beyond the
    /// ticks that met the idle task. Ticks sample the idle time, so a few missed ones of a CPU that also idled
    /// may be among them. Never falls while the clock goes on. The programs do not count what they slept through:
    /// they would have to ask the clock in every run, and a CPU that sleeps on does not run them.
    pub(super) fn asleep(
        &mut self,
        cpu: u32,
        now: &Idle,
        period_ns: u64,
        (ticks_expected, counters): (u64, &Counters),
    ) -> u64 {
        let Counters { runs, idle, .. } = *counters;
        let before = self.at_start.as_ref().and_then(|idle| idle.get(&cpu)).copied();
        let now = now.get(&cpu).copied();
        let idle_ns = now.zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        let slept = (idle_ns / period_ns.max(1)).saturating_sub(idle);
        let known = self.asleep.entry(cpu).or_default();
        *known = slept.max(*known).min(ticks_expected.saturating_sub(runs));
        *known
    }
}

/// The kernel's account; empty if it does not say.
pub(super) fn read() -> Idle {
    parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// The fourth and fifth figure of each line `cpuN`: idle, and idle while a disk is waited for.
fn parse(text: &str) -> Idle {
    let lines = text.lines().skip(1).map_while(|line| line.strip_prefix("cpu"));
    let idle = |line: &str| {
        let mut figures = line.split_ascii_whitespace();
        let cpu = figures.next()?.parse().ok()?;
        let units = figures.skip(3).take(2).map(|figure| figure.parse().unwrap_or(0));
        let units = units.fold(0_u64, u64::saturating_add);
        Some((cpu, units.saturating_mul(UNIT_NS)))
    };
    lines.filter_map(idle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_read_for_each_cpu() {
        let text = "cpu  1 2 3 40 5 6 7 8 0 0\ncpu0 1 2 3 30 4 6 7 8 0 0\ncpu2 0 0 0 10 1\nintr 5\ncpu3 0 0 0 9 9\n";
        assert_eq!(parse(text), Idle::from([(0, 34 * UNIT_NS), (2, 11 * UNIT_NS)]));
        assert_eq!(parse(""), Idle::new());
        assert_eq!(parse("cpu 1\ncpux 1 2 3 4 5\ncpu1"), Idle::from([(1, 0)]));
    }

    /// Idle time in ticks; ticks expected, runs, idle runs; what is told.
    #[test]
    fn idle_time_explains_ticks_without_a_run() {
        let rows = [
            (288, [291, 1, 0], 288),
            (288, [291, 3, 2], 286),
            (291, [291, 291, 290], 0),
            (0, [291, 200, 0], 0),
            (400, [291, 5, 0], 286),
        ];
        for (idle_ticks, [expected, runs, idle], told) in rows {
            let mut time = IdleTime { at_start: Some(Idle::from([(7, 5)])), ..IdleTime::default() };
            let now = Idle::from([(7, 5 + idle_ticks * 1_000)]);
            let counters = Counters { runs, idle, ..Counters::default() };
            assert_eq!(time.asleep(7, &now, 1_000, (expected, &counters)), told, "{idle_ticks}");
            assert_eq!(time.asleep(7, &Idle::new(), 1_000, (expected, &counters)), told, "falls");
        }
    }
}
