//! Writes sealed windows as OTLP Profiles requests. Not their transport.
//!
//! One `ResourceProfiles` for each process instance, its samples with one timestamp for each
//! observation and no values (each timestamp counts 1); sample type `samples`/`count`, period type
//! `cpu`/`nanoseconds`.
//!
//! Every window has one more profile, without samples, under the agent's own resource
//! (`service.name` = `vesta-agent`): it says that the window was observed, also if it is empty, and
//! carries the account of the window as profile attributes (integers; see [`crate::aggregate::Ledger`],
//! which says how the figures add up; one that is not there is 0):
//!
//! | attribute | meaning |
//! |---|---|
//! | `vesta.ledger.cpus` | CPUs that were sampled |
//! | `vesta.ledger.ticks_expected` | ticks that the clock owed |
//! | `vesta.ledger.runs` | runs of the BPF program |
//! | `vesta.ledger.asleep` | ticks that came due while the CPU slept, and did not wake it |
//! | `vesta.ledger.missed` | ticks lost while the CPU worked: `ticks_expected` - `runs` - `asleep` |
//! | `vesta.ledger.idle` | runs that met the idle task |
//! | `vesta.ledger.filtered` | runs of processes that were not asked for |
//! | `vesta.ledger.shipped` | samples that entered the ring buffer |
//! | `vesta.ledger.lost_in_ring` | samples that the full ring buffer refused |
//! | `vesta.ledger.carried_in`, `.carried_over` | samples shipped and not received when the window began, and ended |
//! | `vesta.ledger.received` | samples that came out of the ring buffer and were wanted |
//! | `vesta.ledger.unwanted` | samples that came out and were not: of processes that were not asked for |
//! | `vesta.ledger.malformed` | records that came out and could not be decoded |
//! | `vesta.ledger.dropped` | samples that the agent dropped, malformed ones included |
//! | `vesta.ledger.sent` | observations in the profiles of this window |
//! | `vesta.ledger.frames`, `.frames_unnamed` | frames of code in these observations, and those without a name |
//! | `vesta.ledger.program_run_ns` | nanoseconds the BPF programs ran |
//! | `vesta.ledger.outcome.<name>` | received samples with this outcome (`_` for spaces), if not 0 |
//! | `vesta.ledger.dropped.<reason>` | received samples dropped for this reason, if not 0 |
//! | `vesta.ledger.unnamed.<reason>` | frames without a name for this reason, if not 0 |
//!
//! Waits of threads are profiles of their own, where there are any: `off_cpu` in `nanoseconds` and in `count` (with
//! the attribute `off_cpu.reason`), `off_cpu_preempted` in `nanoseconds`, and of the waits for locks `lock` in
//! `nanoseconds` and `lock_contentions` in `count` (with `lock.kind`, `lock.address`). Each of their samples has
//! one value and no times. Their account is in `vesta.ledger.waits.*` ([`crate::aggregate::WaitLedger`]).
//!
//! The first profile of a process in a window carries what went wrong with its samples, and nothing if
//! nothing did (a process all of whose samples were dropped has a profile without samples):
//! `vesta.process_ledger.outcome.<name>` for walks that stopped before the root,
//! `vesta.process_ledger.dropped.<reason>`, `vesta.process_ledger.unnamed.<reason>`.
//!
//! `profile_id` is 8 random bytes of this start of the agent and a big-endian sequence number, one for
//! each profile: the collector sees a profile that comes twice, and one that never came.
//!
//! Samples carry `thread.id` and `thread.name`. The CPU is not sent: it would split equal samples, and a
//! sample's identity is what the wire is made small by.
//!
//! Times are rounded down to a multiple of [`crate::limits::EXPORT_TIME_STEP_NS`], 66 microseconds, but not
//! to before the window: the low bits of a nanosecond are noise that compression cannot take out, 2 bytes
//! of each sample.
//!
//! Kernel locations carry names and no addresses: the addresses differ with every boot, no receiver can
//! use them, and they would give away the kernel's random base.

mod encoder;
mod kind;
mod ledger;
mod locations;
mod order;
mod request;
mod resource;

#[cfg(test)]
mod tests;

pub use encoder::{Encoder, EncoderSettings, Request};
pub use resource::HostIdentity;

/// Name of the instrumentation scope: the collector knows Vesta's windows by it.
pub const SCOPE_NAME: &str = "vesta-agent";
