//! pprof: sample types `samples`/`count` and `cpu`/`nanoseconds`, the latter the default and the last but for those
//! of waits: `off_cpu_count`/`count` and `off_cpu`/`nanoseconds`, `lock_contentions`/`count` and `lock`/`nanoseconds`,
//! `off_cpu_preempted`/`nanoseconds`, `lock_holders`/`count`. A type is a name here, so no two may have one.

use super::Contents;
use crate::address::Tid;
use crate::aggregate::{Code, FoldedWait, Location, LockPlace, NamedWindow, StackIndex};
use crate::elf::SourceLine;
use crate::normalize::MappedFile;
use crate::waits::{LockWait, WaitReason};
use hashbrown::HashMap;
use prost::Message as _;
use proto::otlp::attribute;
use proto::pprof::{Label, Mapping, Profile, ProfileBuilder, Sample};
use std::io::Write;

/// Writes a window as a gzip-compressed pprof profile.
///
/// # Errors
/// If writing fails.
pub fn write_pprof(
    window: &NamedWindow,
    contents: Contents,
    output: &mut impl Write,
) -> std::io::Result<()> {
    let mut gzip = flate2::write::GzEncoder::new(output, flate2::Compression::default());
    gzip.write_all(&pprof_profile(window, contents).encode_to_vec())?;
    gzip.finish().map(drop)
}

/// A window as a pprof profile. Samples carry the labels `process`, `pid`, `thread` and `tid`.
#[must_use]
pub fn pprof_profile(window: &NamedWindow, contents: Contents) -> Profile {
    let mut writer = Writer {
        window,
        contents,
        builder: ProfileBuilder::new(),
        mappings: HashMap::new(),
        locations: vec![None; window.locations.len()],
    };
    writer.header();
    writer.main_mapping_first();
    for process in &window.processes {
        let name = writer.builder.string(&process.process.executable_name);
        let process_labels =
            [writer.text_label("process", name), writer.number_label("pid", process.process.pid.0)];
        for sample in &process.samples {
            let count = signed(sample.times.len() as u64);
            let value = vec![count, count.saturating_mul(signed(window.period_ns))];
            let labels = writer.labels(&process_labels, &sample.thread_name, sample.tid);
            writer.sample(sample.stack, value, labels);
        }
        for wait in process.waits.iter().filter(|_| contents == Contents::Both) {
            let value = [&[0, 0], &values(wait)[..]].concat();
            if value.iter().all(|value| *value == 0) {
                continue; // a goroutine that waits for no lock is neither
            }
            let mut labels = writer.labels(&process_labels, &wait.thread_name, wait.tid);
            let reason = wait.told.reason.name();
            labels.push(writer.label(attribute::OFF_CPU_REASON, reason));
            if let Some(lock) = wait.told.lock {
                labels.extend(writer.lock_labels(lock, wait.place));
                let owner = lock.owner.map(|owner| owner.0);
                labels.extend(owner.map(|tid| writer.number_label(attribute::LOCK_OWNER_TID, tid)));
            }
            writer.sample(wait.stack, value, labels);
        }
        for holder in process.holders.iter().filter(|_| contents == Contents::Both) {
            let mut labels = writer.labels(&process_labels, &holder.thread_name, holder.tid);
            labels.extend(writer.lock_labels(holder.lock, holder.place));
            let value = [&[0; 2 + WAIT_TYPES.len() - 1][..], &[signed(holder.ticks)]].concat();
            writer.sample(holder.stack, value, labels);
        }
    }
    writer.builder.finish()
}

/// Types and units of waits.
const WAIT_TYPES: [(&str, &str); 6] = [
    ("off_cpu_count", "count"),
    ("off_cpu", "nanoseconds"),
    ("lock_contentions", "count"),
    ("lock", "nanoseconds"),
    ("off_cpu_preempted", "nanoseconds"),
    ("lock_holders", "count"),
];

/// The values of a wait in the order of [`WAIT_TYPES`].
fn values(wait: &FoldedWait) -> [i64; WAIT_TYPES.len()] {
    let (ns, count) = (signed(wait.sum.ns), signed(wait.sum.count));
    match (wait.told.reason, wait.goroutine) {
        (WaitReason::Preempted, _) => [0, 0, 0, 0, ns, 0],
        (WaitReason::Lock, false) => [count, ns, count, ns, 0, 0],
        (WaitReason::Lock, true) => [0, 0, count, ns, 0, 0],
        (_, true) => [0; WAIT_TYPES.len()],
        (_, false) => [count, ns, 0, 0, 0, 0],
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// What was lost belongs to what was kept: `go tool pprof -comments` shows it.
fn comment(window: &NamedWindow) -> String {
    let ledger = &window.ledger;
    format!(
        "vesta-agent {}: {} samples, {} lost, {} ticks missed, {} of {} stacks complete",
        env!("CARGO_PKG_VERSION"),
        window.observations(),
        ledger.lost(),
        ledger.missed(),
        ledger.complete(),
        ledger.outcomes.iter().sum::<u64>(),
    )
}

struct Writer<'a> {
    window: &'a NamedWindow,
    contents: Contents,
    builder: ProfileBuilder,
    /// By file and start of the segment, or by the name of kernel code.
    mappings: HashMap<MappingKey, u64>,
    locations: Vec<Option<u64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum MappingKey {
    Segment(u32, Option<u64>),
    Kernel(String),
}

impl Writer<'_> {
    fn header(&mut self) {
        let samples = self.builder.value_type("samples", "count");
        let cpu = self.builder.value_type("cpu", "nanoseconds");
        let mut types = vec![samples, cpu];
        if self.contents == Contents::Both {
            types.extend(WAIT_TYPES.map(|(kind, unit)| self.builder.value_type(kind, unit)));
        }
        let window = self.window;
        let profile = self.builder.profile_mut();
        profile.sample_type = types;
        profile.default_sample_type = cpu.r#type;
        profile.period_type = Some(cpu);
        profile.period = signed(window.period_ns);
        profile.time_nanos = signed(window.start.0);
        profile.duration_nanos = signed(window.duration_ns);
        let comment = comment(window);
        let comment = self.builder.string(&comment);
        self.builder.profile_mut().comment = vec![comment];
    }

    /// Readers take the first mapping for the program: that of the process with most samples.
    fn main_mapping_first(&mut self) {
        let window = self.window;
        let weight = |process: &&crate::aggregate::ProcessSamples| {
            process.samples.iter().map(|sample| sample.times.len()).sum::<usize>()
        };
        let Some(main) = window.processes.iter().max_by_key(weight) else { return };
        let path = &main.process.executable_path;
        let is_main = |location: &&Location| match location.code {
            Code::Native { file, .. } => window.files[file as usize].path == *path,
            _ => false,
        };
        if let Some(location) = window.locations.iter().find(is_main) {
            self.mapping(location);
        }
    }

    fn labels(&mut self, process: &[Label], thread_name: &str, tid: Tid) -> Vec<Label> {
        let thread = self.builder.string(thread_name);
        let thread = [self.text_label("thread", thread), self.number_label("tid", tid.0)];
        [process, &thread[..]].concat()
    }

    /// Adds a sample; types behind its values are 0.
    fn sample(&mut self, stack: StackIndex, mut value: Vec<i64>, label: Vec<Label>) {
        let location_id = self.stack(stack);
        value.resize(self.builder.profile_mut().sample_type.len(), 0);
        self.builder.sample(Sample { location_id, value, label });
    }

    fn stack(&mut self, index: StackIndex) -> Vec<u64> {
        let window = self.window;
        let mut ids = Vec::with_capacity(window.stack(index).len());
        for location in window.stack(index) {
            let position = location.0 as usize;
            let id = match self.locations[position] {
                Some(id) => id,
                None => self.location(&window.locations[position]),
            };
            self.locations[position] = Some(id);
            ids.push(id);
        }
        ids
    }

    fn location(&mut self, location: &Location) -> u64 {
        let mapping = self.mapping(location);
        let address = match location.code {
            Code::Native { address, .. } => address.0,
            // Not an address of the ELF file, or of no use on another host.
            Code::Unplaced { .. }
            | Code::Kernel { .. }
            | Code::Anonymous { .. }
            | Code::Marker(_) => 0,
        };
        let mut lines = Vec::with_capacity(location.lines.len());
        match location.stand_in(&self.window.files) {
            Some(text) if location.lines.is_empty() => {
                lines.push((self.builder.function(&text, &text, ""), 0));
            }
            _ => {
                for SourceLine { function, system_name, file, line } in &location.lines {
                    let system_name = if system_name.is_empty() { function } else { system_name };
                    let function = self.builder.function(function, system_name, file);
                    lines.push((function, i64::from(*line)));
                }
            }
        }
        if let Some(mapping) = self.builder.mapping_mut(mapping) {
            mapping.has_functions |= !lines.is_empty();
            mapping.has_inline_frames |= lines.len() > 1;
            mapping.has_filenames |= location.lines.iter().any(|line| !line.file.is_empty());
            mapping.has_line_numbers |= location.lines.iter().any(|line| line.line > 0);
        }
        self.builder.location(mapping, address, lines)
    }

    /// Id of the mapping of a location, 0 for none.
    fn mapping(&mut self, location: &Location) -> u64 {
        let (key, file) = match location.code {
            Code::Native { file, address } => {
                let segment = self.window.files[file as usize].segment_of(address);
                (
                    MappingKey::Segment(file, segment.map(|segment| segment.address.0)),
                    Some((file, segment)),
                )
            }
            Code::Unplaced { file, .. } => (MappingKey::Segment(file, None), Some((file, None))),
            Code::Kernel { .. } => {
                let name = location.kernel_mapping().unwrap_or("[kernel]");
                (MappingKey::Kernel(name.to_owned()), None)
            }
            Code::Anonymous { .. } | Code::Marker(_) => return 0,
        };
        if let Some(&id) = self.mappings.get(&key) {
            return id;
        }
        let mut mapping = Mapping::default();
        match (&key, file) {
            (MappingKey::Kernel(name), _) => mapping.filename = self.builder.string(name),
            (_, Some((file, segment))) => {
                let file: &MappedFile = &self.window.files[file as usize];
                mapping.filename = self.builder.string(&file.path);
                mapping.build_id = self.builder.string(&file.best_build_id().unwrap_or_default());
                if let Some(segment) = segment {
                    mapping.memory_start = segment.address.0;
                    mapping.memory_limit = segment.address.0.saturating_add(segment.size);
                    mapping.file_offset = segment.file_offset.0;
                }
            }
            (MappingKey::Segment(..), None) => {}
        }
        let id = self.builder.mapping(mapping);
        self.mappings.insert(key, id);
        id
    }

    /// The labels of a lock, as its attributes are called elsewhere.
    fn lock_labels(
        &mut self,
        lock: LockWait,
        place: Option<LockPlace>,
    ) -> impl Iterator<Item = Label> + use<> {
        let kind = self.label(attribute::LOCK_KIND, lock.kind.name());
        let address =
            lock.address.map(|it| self.label(attribute::LOCK_ADDRESS, &format!("{:#x}", it.0)));
        let window = self.window;
        let name = place.map(|place| self.label(attribute::LOCK_NAME, &window.lock_name(place)));
        [Some(kind), address, name].into_iter().flatten()
    }

    fn label(&mut self, key: &str, text: &str) -> Label {
        let text = self.builder.string(text);
        self.text_label(key, text)
    }

    fn text_label(&mut self, key: &str, str: i64) -> Label {
        Label { key: self.builder.string(key), str, num: 0, num_unit: 0 }
    }

    fn number_label(&mut self, key: &str, number: u32) -> Label {
        Label { key: self.builder.string(key), str: 0, num: i64::from(number), num_unit: 0 }
    }
}
