//! One request under construction: resources, profiles and the dictionary they share, kept below the
//! size that receivers accept.

use super::kind::ProfileKind;
use super::locations::LocationIndices;
use super::{Request, SCOPE_NAME};
use crate::address::Tid;
use crate::aggregate::{
    FoldedHolder, FoldedSample, FoldedWait, LocationIndex, LockPlace, NamedWindow,
};
use crate::clock::UnixNs;
use crate::limits;
use crate::waits::LockWait;
use hashbrown::HashMap;
use prost::Message as _;
use proto::otlp::collector::ExportProfilesServiceRequest;
use proto::otlp::common::InstrumentationScope;
use proto::otlp::profiles::{Profile, ResourceProfiles, Sample, ScopeProfiles, ValueType};
use proto::otlp::resource::Resource;
use proto::otlp::{AttributeValue, DictionaryBuilder, attribute};

/// Bytes of a sample besides its timestamps, at most: tags, lengths, a value, seven indices.
const SAMPLE_BYTES_MAX: usize = 64;
/// Bytes of a profile besides its samples, attributes and resource, at most.
const PROFILE_BYTES_MAX: usize = 256;

/// What every profile of a window says of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowHeader {
    pub(super) start: UnixNs,
    pub(super) duration_ns: u64,
    pub(super) period_ns: u64,
}

impl WindowHeader {
    pub(super) const fn of(window: &NamedWindow) -> Self {
        Self { start: window.start, duration_ns: window.duration_ns, period_ns: window.period_ns }
    }
}

/// A request that is being filled.
#[derive(Debug)]
pub(super) struct RequestBuilder {
    header: WindowHeader,
    pub(super) dictionary: DictionaryBuilder,
    pub(super) indices: LocationIndices,
    resource_profiles: Vec<ResourceProfiles>,
    bytes_max: usize,
    profiles: u64,
    observations: u64,
    waits: u64,
    /// Samples of the last profile by (stack, attributes): two stacks of the window may become one here, and
    /// a sample's identity should not repeat.
    positions: HashMap<(i32, Vec<i32>), usize>,
}

impl RequestBuilder {
    pub(super) fn new(window: &NamedWindow, source_lines: bool) -> Self {
        Self {
            header: WindowHeader::of(window),
            dictionary: DictionaryBuilder::new(),
            indices: LocationIndices::new(window, source_lines),
            resource_profiles: Vec::new(),
            bytes_max: 0,
            profiles: 0,
            observations: 0,
            waits: 0,
            positions: HashMap::new(),
        }
    }

    /// An upper bound of the encoded size, bytes.
    pub(super) const fn encoded_bytes_max(&self) -> usize {
        self.bytes_max + self.dictionary.encoded_bytes_max()
    }

    /// True if it holds more than the account of the window.
    pub(super) const fn has_samples(&self) -> bool {
        self.observations > 0 || self.waits > 0
    }

    /// Adds locations before the stacks that need them, in this order.
    pub(super) fn add_locations(&mut self, window: &NamedWindow, order: &[LocationIndex]) {
        for index in order {
            self.indices.location(window, *index, true, &mut self.dictionary);
        }
    }

    /// Begins a profile; `attributes` are dictionary indices. Profiles of one resource that follow each other say
    /// it once.
    pub(super) fn open_profile(
        &mut self,
        kind: ProfileKind,
        resource: Resource,
        profile_id: [u8; 16],
        attributes: Vec<i32>,
    ) {
        let mut value_type = |(kind, unit)| ValueType {
            type_strindex: self.dictionary.string(kind),
            unit_strindex: self.dictionary.string(unit),
        };
        let clock = kind == ProfileKind::Cpu;
        let period_ns = i64::try_from(self.header.period_ns).unwrap_or(i64::MAX);
        let profile = Profile {
            sample_type: Some(value_type(kind.sample_type())),
            period_type: clock.then(|| value_type(("cpu", "nanoseconds"))),
            period: if clock { period_ns } else { 0 },
            time_unix_nano: self.header.start.0,
            duration_nano: self.header.duration_ns,
            profile_id: profile_id.to_vec(),
            attribute_indices: attributes,
            ..Profile::default()
        };
        self.positions.clear();
        self.profiles += 1;
        self.bytes_max += PROFILE_BYTES_MAX + profile.encoded_len();
        if let Some(last) = self.resource_profiles.last_mut()
            && last.resource.as_ref() == Some(&resource)
            && let Some(scope) = last.scope_profiles.last_mut()
        {
            scope.profiles.push(profile);
            return;
        }
        self.bytes_max += resource.encoded_len();
        let scope = InstrumentationScope {
            name: SCOPE_NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        self.resource_profiles.push(ResourceProfiles {
            resource: Some(resource),
            scope_profiles: vec![ScopeProfiles {
                scope: Some(scope),
                profiles: vec![profile],
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        });
    }

    /// Adds observations of one folded sample to the profile that was opened last.
    pub(super) fn add_sample(
        &mut self,
        window: &NamedWindow,
        sample: &FoldedSample,
        times: &[UnixNs],
        names: bool,
    ) {
        let stack = self.indices.stack(window, sample.stack, names, &mut self.dictionary);
        let attributes = self.thread(sample.tid, &sample.thread_name).to_vec();
        self.bytes_max += sample_bytes_max(times.len());
        self.observations += times.len() as u64;
        let start = self.header.start.0;
        let Some(sample) = self.sample(stack, attributes) else { return };
        let timestamps = &mut sample.timestamps_unix_nano;
        let step = limits::EXPORT_TIME_STEP_NS;
        timestamps.extend(times.iter().map(|time| (time.0 / step * step).max(start.min(time.0))));
        if !timestamps.is_sorted() {
            timestamps.sort_unstable();
        }
    }

    /// Adds a wait to the profile that was opened last, which is of `kind`.
    pub(super) fn add_wait(
        &mut self,
        kind: ProfileKind,
        window: &NamedWindow,
        wait: &FoldedWait,
        names: bool,
    ) {
        let stack = self.indices.stack(window, wait.stack, names, &mut self.dictionary);
        let mut attributes = self.thread(wait.tid, &wait.thread_name).to_vec();
        if kind.says_reason() {
            let reason = AttributeValue::Text(wait.told.reason.name());
            attributes.push(self.dictionary.attribute(attribute::OFF_CPU_REASON, &reason));
        } else if let Some(lock) = wait.told.lock {
            attributes.extend(self.lock(window, lock, wait.place));
            let owner = lock.owner.map(|owner| AttributeValue::Int(i64::from(owner.0)));
            attributes.extend(
                owner.map(|owner| self.dictionary.attribute(attribute::LOCK_OWNER_TID, &owner)),
            );
        }
        self.add_value(stack, attributes, kind.value(wait));
    }

    /// Adds what the holder of a lock did to the profile that was opened last.
    pub(super) fn add_holder(&mut self, window: &NamedWindow, holder: &FoldedHolder, names: bool) {
        let stack = self.indices.stack(window, holder.stack, names, &mut self.dictionary);
        let mut attributes = self.thread(holder.tid, &holder.thread_name).to_vec();
        attributes.extend(self.lock(window, holder.lock, holder.place));
        self.add_value(stack, attributes, holder.ticks);
    }

    /// The attributes of a lock.
    fn lock(
        &mut self,
        window: &NamedWindow,
        lock: LockWait,
        place: Option<LockPlace>,
    ) -> impl Iterator<Item = i32> + use<> {
        let mut text =
            |key, value: &str| self.dictionary.attribute(key, &AttributeValue::Text(value));
        let kind = text(attribute::LOCK_KIND, lock.kind.name());
        let address = lock.address.map(|it| text(attribute::LOCK_ADDRESS, &format!("{:#x}", it.0)));
        let name = place.map(|place| text(attribute::LOCK_NAME, &window.lock_name(place)));
        [Some(kind), address, name].into_iter().flatten()
    }

    /// Adds to the sample of the last profile with this stack and these attributes.
    fn add_value(&mut self, stack: i32, attributes: Vec<i32>, value: u64) {
        self.bytes_max += SAMPLE_BYTES_MAX;
        self.waits += 1;
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        let Some(sample) = self.sample(stack, attributes) else { return };
        match sample.values.first_mut() {
            Some(sum) => *sum = sum.saturating_add(value),
            None => sample.values.push(value),
        }
    }

    /// The attributes of a thread.
    fn thread(&mut self, tid: Tid, name: &str) -> [i32; 2] {
        let tid = AttributeValue::Int(i64::from(tid.0));
        let tid = self.dictionary.attribute(attribute::THREAD_ID, &tid);
        [tid, self.dictionary.attribute(attribute::THREAD_NAME, &AttributeValue::Text(name))]
    }

    /// The sample of the last profile with this stack and these attributes.
    fn sample(&mut self, stack: i32, attributes: Vec<i32>) -> Option<&mut Sample> {
        let Some(samples) = self.resource_profiles.last_mut().and_then(last_samples) else {
            debug_assert!(false, "a profile is opened before its samples");
            return None;
        };
        let next = samples.len();
        let position = *self.positions.entry((stack, attributes)).or_insert_with_key(|key| {
            samples.push(Sample {
                stack_index: stack,
                attribute_indices: key.1.clone(),
                ..Sample::default()
            });
            next
        });
        samples.get_mut(position)
    }

    /// The encoded request.
    pub(super) fn finish(self) -> Request {
        let message = ExportProfilesServiceRequest {
            resource_profiles: self.resource_profiles,
            dictionary: Some(self.dictionary.finish()),
        };
        Request {
            bytes: message.encode_to_vec().into(),
            profiles: self.profiles,
            observations: self.observations,
        }
    }
}

/// An upper bound of what a sample with so many timestamps adds to a request, bytes.
pub(super) const fn sample_bytes_max(timestamps: usize) -> usize {
    SAMPLE_BYTES_MAX + 8 * timestamps
}

fn last_samples(resource: &mut ResourceProfiles) -> Option<&mut Vec<Sample>> {
    let profile = resource.scope_profiles.last_mut()?.profiles.last_mut()?;
    Some(&mut profile.samples)
}
