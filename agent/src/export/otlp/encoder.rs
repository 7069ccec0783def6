//! From a sealed window to encoded requests: order, splitting, identities.

use super::kind::ProfileKind;
use super::ledger;
use super::locations::location_bytes_max;
use super::order::WritingOrder;
use super::request::{RequestBuilder, sample_bytes_max};
use super::resource::{HostIdentity, of_agent, of_process};
use crate::aggregate::{FoldedSample, NamedWindow, ProcessSamples, StackIndex};
use crate::clock::UnixNs;
use crate::limits;
use prost::bytes::Bytes;

/// Bytes that opening a profile and the attributes of one sample take, at most: a resource has six texts
/// of up to `limits::EXPORT_STRING_BYTES_MAX`.
const OPEN_BYTES_MAX: usize = 8 * limits::EXPORT_STRING_BYTES_MAX;

/// What an encoder needs to know.
#[derive(Clone, Debug)]
pub struct EncoderSettings {
    /// The host that the samples come from.
    pub host: HostIdentity,
    /// Source files and lines of native code travel too, as far as this host knows them.
    pub source_lines: bool,
    /// Uncompressed bytes of one request, at most.
    pub request_bytes_max: usize,
}

/// One encoded request. Its bytes never change again.
#[derive(Clone, Debug)]
pub struct Request {
    /// An `ExportProfilesServiceRequest`.
    pub bytes: Bytes,
    /// Profiles in it.
    pub profiles: u64,
    /// Observations in it.
    pub observations: u64,
}

/// Encodes windows. One for each start of the agent: it gives out the profile ids.
#[derive(Debug)]
pub struct Encoder {
    pub(super) settings: EncoderSettings,
    boot_id: [u8; 8],
    sequence: u64,
}

impl Encoder {
    /// An encoder with a boot id of its own.
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    pub fn new(settings: EncoderSettings) -> std::io::Result<Self> {
        use std::io::Read as _;
        let mut boot_id = [0; 8];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut boot_id)?;
        Ok(Self { settings, boot_id, sequence: 0 })
    }

    /// The 8 bytes that begin each profile id of this encoder.
    #[must_use]
    pub const fn boot_id(&self) -> [u8; 8] {
        self.boot_id
    }

    /// Encodes one window: at least one request, more where it is larger than a receiver accepts.
    pub fn encode(&mut self, window: &NamedWindow) -> Vec<Request> {
        let mut request = RequestBuilder::new(window, self.settings.source_lines);
        let attributes = ledger::of_window(window, &mut request.dictionary);
        let (agent, id) = (of_agent(&self.settings.host), self.next_id());
        request.open_profile(ProfileKind::Cpu, agent, id, attributes);
        if window.ledger.waits.switches > 0 {
            // Empty: it says that waits were watched.
            let (agent, id) = (of_agent(&self.settings.host), self.next_id());
            request.open_profile(ProfileKind::OffCpu, agent, id, Vec::new());
        }
        let location_bytes = location_bytes_max(window);
        let order = WritingOrder::of(window);
        let all = location_bytes.iter().fold(0_usize, |sum, bytes| sum.saturating_add(*bytes));
        if request.encoded_bytes_max().saturating_add(all) <= self.settings.request_bytes_max / 2 {
            request.add_locations(window, &order.locations);
        }
        let mut writing =
            Writing { encoder: self, window, location_bytes, request, requests: Vec::new() };
        for process in &window.processes {
            writing.samples(process, &order);
            for kind in ProfileKind::OF_WAITS {
                writing.waits(kind, process);
            }
            writing.holders(process);
        }
        let Writing { request, mut requests, .. } = writing;
        requests.push(request.finish());
        requests
    }

    fn next_id(&mut self) -> [u8; 16] {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.boot_id);
        id[8..].copy_from_slice(&self.sequence.to_be_bytes());
        self.sequence = self.sequence.wrapping_add(1);
        id
    }
}

/// A window on its way into requests.
struct Writing<'a> {
    encoder: &'a mut Encoder,
    window: &'a NamedWindow,
    location_bytes: Vec<usize>,
    request: RequestBuilder,
    requests: Vec<Request>,
}

impl Writing<'_> {
    /// The samples of a process, and its account.
    fn samples(&mut self, process: &ProcessSamples, order: &WritingOrder) {
        let account = ledger::of_process(&process.ledger, &mut self.request.dictionary);
        let mut open = !account.is_empty();
        if open {
            self.open(ProfileKind::Cpu, process, account);
        }
        for (sample, times) in order.samples(self.window, process).into_iter().flat_map(chunks) {
            let names = self.make_room(sample.stack, times.len(), &mut open);
            if !open {
                self.open(ProfileKind::Cpu, process, Vec::new());
                open = true;
            }
            self.request.add_sample(self.window, sample, times, names);
        }
    }

    /// The waits of a process that belong into profiles of this kind.
    fn waits(&mut self, kind: ProfileKind, process: &ProcessSamples) {
        let mut open = false;
        for wait in process.waits.iter().filter(|wait| kind.value(wait) > 0) {
            let names = self.make_room(wait.stack, 0, &mut open);
            if !open {
                self.open(kind, process, Vec::new());
                open = true;
            }
            self.request.add_wait(kind, self.window, wait, names);
        }
    }

    /// What threads of a process did while others waited for what they held.
    fn holders(&mut self, process: &ProcessSamples) {
        let mut open = false;
        for holder in &process.holders {
            let names = self.make_room(holder.stack, 0, &mut open);
            if !open {
                self.open(ProfileKind::LockHolders, process, Vec::new());
                open = true;
            }
            self.request.add_holder(self.window, holder, names);
        }
    }

    fn open(&mut self, kind: ProfileKind, process: &ProcessSamples, attributes: Vec<i32>) {
        let resource = of_process(&self.encoder.settings.host, &process.process);
        self.request.open_profile(kind, resource, self.encoder.next_id(), attributes);
    }

    /// Begins another request if a sample does not fit into this one: then no profile is open. False if its
    /// names fit into none: a single stack whose names are larger than a request travels by its addresses.
    fn make_room(&mut self, stack: StackIndex, timestamps: usize, open: &mut bool) -> bool {
        let bytes = sample_bound(self.window, stack, timestamps, &self.location_bytes);
        let EncoderSettings { request_bytes_max, source_lines, .. } = self.encoder.settings;
        if self.request.encoded_bytes_max() + bytes > request_bytes_max
            && self.request.has_samples()
        {
            let next = RequestBuilder::new(self.window, source_lines);
            self.requests.push(std::mem::replace(&mut self.request, next).finish());
            *open = false;
        }
        bytes <= request_bytes_max
    }
}

/// An upper bound of what a sample adds to a request, bytes, if nothing of it is there yet.
fn sample_bound(
    window: &NamedWindow,
    stack: StackIndex,
    timestamps: usize,
    location_bytes: &[usize],
) -> usize {
    let stack = window.stack(stack);
    let locations: usize = stack.iter().map(|at| location_bytes[at.0 as usize]).sum();
    locations + sample_bytes_max(timestamps) + OPEN_BYTES_MAX
}

/// The observations of a sample in pieces that fit into a request.
fn chunks(sample: &FoldedSample) -> impl Iterator<Item = (&FoldedSample, &[UnixNs])> {
    sample.times.chunks(limits::EXPORT_TIMESTAMPS_PER_SAMPLE_MAX).map(move |times| (sample, times))
}
