//! Writes sealed windows as OTLP Profiles requests. Not their transport.
//!
//! One `ResourceProfiles` for each process instance, its samples with one timestamp for each
//! observation and no values (each timestamp counts 1); sample type `samples`/`count`, period type
//! `cpu`/`nanoseconds`.
//!
//! Every window has one more profile, without samples, under the agent's own resource
//! (`service.name` = `vesta-agent`): it says that the window was observed, also if it is empty, and
//! carries the account of the window as profile attributes (integers; see [`crate::aggregate::Ledger`]):
//!
//! | attribute | meaning |
//! |---|---|
//! | `vesta.ledger.cpus` | CPUs that were sampled |
//! | `vesta.ledger.ticks_expected` | ticks that the clock owed |
//! | `vesta.ledger.runs` | runs of the BPF program |
//! | `vesta.ledger.missed` | ticks without a run: `ticks_expected` - `runs` |
//! | `vesta.ledger.idle` | runs that met the idle task |
//! | `vesta.ledger.filtered` | runs of processes that were not asked for |
//! | `vesta.ledger.shipped` | samples that entered the ring buffer |
//! | `vesta.ledger.lost_in_ring` | samples that the full ring buffer refused |
//! | `vesta.ledger.received` | samples that came out of the ring buffer and were wanted |
//! | `vesta.ledger.unwanted` | samples that came out of it and whose process was not asked for |
//! | `vesta.ledger.dropped` | samples that the agent dropped for a limit of its own |
//! | `vesta.ledger.sent` | observations in the profiles of this window |
//! | `vesta.ledger.program_run_ns` | nanoseconds the BPF programs ran |
//! | `vesta.ledger.outcome.<name>` | received samples with this outcome (`_` for spaces), if not 0 |
//!
//! `profile_id` is 8 random bytes of this start of the agent and a big-endian sequence number, one for
//! each profile: the collector sees a profile that comes twice, and one that never came.
//!
//! Samples carry `thread.id` and `thread.name`. The CPU is not sent: it would split equal samples, and a
//! sample's identity is what the wire is made small by.
//!
//! Kernel locations carry names and no addresses: the addresses differ with every boot, no receiver can
//! use them, and they would give away the kernel's random base.

mod encoder;
mod ledger;
mod locations;
mod request;
mod resource;

#[cfg(test)]
mod tests;

pub use encoder::{Encoder, EncoderSettings, Request};
pub use resource::HostIdentity;

/// Name of the instrumentation scope: the collector knows Vesta's windows by it.
pub const SCOPE_NAME: &str = "vesta-agent";
