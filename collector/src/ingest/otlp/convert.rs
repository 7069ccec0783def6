//! Profiles of a decoded request to the domain model. Each is checked as a whole before anything of it is
//! copied into the batch.

use super::dictionary::{Copies, Dictionary};
use super::fault::{Fault, cap};
use super::resource::{self, Origin};
use super::sizes::{Measure, Sizes, wire_set};
use super::{AGENT_SCOPE, Account, Received, Reception, Rejections, account};
use crate::ingest::times::{NS_PER_MS, YEAR_1971_NS, outside};
use crate::ingest::units::{self, Stored};
use crate::limits::{
    LABEL_BYTES_MAX, OBSERVATIONS_MAX, PROFILE_DURATION_MS_MAX, SAMPLE_ATTRIBUTES_MAX,
};
use crate::profile::{
    Attribute, AttributeValue, ProfileDef, ProfileId, SampleDef, SeriesLabels, ValueType,
    WriteBatch,
};
use crate::query::TimeRange;
use hashbrown::{HashMap, HashSet};
use proto::opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::opentelemetry_proto::tonic::profiles::v1development as otlp;
use std::ops::Range;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

pub(super) fn convert(
    request: &ExportProfilesServiceRequest,
    mixed_profiles: &[(usize, Range<usize>)],
    reception: &Reception,
) -> Received {
    let unset = otlp::ProfilesDictionary::default();
    let dictionary = Dictionary::check(request.dictionary.as_ref().unwrap_or(&unset));
    let mut converter = Converter {
        dictionary: &dictionary,
        copies: Copies::new(&dictionary),
        reception,
        batch: empty_batch(reception),
        observations: 0,
        sets: HashMap::new(),
        sets_bytes: 0,
        accounts: Vec::new(),
    };
    let is_mixed = |position| mixed_profiles.binary_search_by_key(&position, |(at, _)| *at).is_ok();
    let mut rejections = Rejections::default();
    let mut position = 0;
    for resource_profiles in &request.resource_profiles {
        let origin = resource::read(dictionary.strings(), resource_profiles.resource.as_ref());
        for scope_profiles in &resource_profiles.scope_profiles {
            let is_agent =
                scope_profiles.scope.as_ref().is_some_and(|scope| scope.name == AGENT_SCOPE);
            let twins = cpu_twins(&dictionary, &scope_profiles.profiles);
            let mut sets = HashMap::new();
            for profile in &scope_profiles.profiles {
                let outcome = match &origin {
                    _ if is_mixed(position) => Err(Fault::MixedLayouts),
                    Ok(origin) => {
                        let scope = Scope { origin, is_agent, twins: &twins };
                        converter.profile(profile, &scope, &mut sets)
                    }
                    Err(fault) => Err(fault.clone()),
                };
                if let Err(fault) = outcome {
                    rejections.add(position, &fault);
                }
                position += 1;
            }
        }
    }
    let truncated = dictionary.strings().truncated.get();
    let Converter { batch, accounts, .. } = converter;
    Received { batch, rejections, old_layout: 0, truncated, accounts }
}

fn empty_batch(reception: &Reception) -> WriteBatch {
    WriteBatch {
        project: reception.project.clone(),
        mappings: Vec::new(),
        functions: Vec::new(),
        locations: Vec::new(),
        stacks: Vec::new(),
        attribute_sets: Vec::new(),
        profiles: Vec::new(),
    }
}

/// Start times of profiles that are CPU nanoseconds. A pprof file with both types travels as two profiles
/// of equal time.
fn cpu_twins(dictionary: &Dictionary<'_>, profiles: &[otlp::Profile]) -> HashSet<u64> {
    let is_cpu = |profile: &&otlp::Profile| {
        value_type(dictionary, profile.sample_type.as_ref())
            .is_ok_and(|value_type| units::is_cpu_nanoseconds(&value_type))
    };
    profiles.iter().filter(is_cpu).map(|profile| profile.time_unix_nano).collect()
}

fn check_timestamps(sample: &otlp::Sample, accepted: TimeRange) -> Result<(), Fault> {
    let known = sample.timestamps_unix_nano.iter().filter(|&&time| time >= YEAR_1971_NS);
    let (mut first, mut last) = (u64::MAX, u64::MIN);
    known.for_each(|&time| (first, last) = (first.min(time), last.max(time)));
    if last == u64::MIN {
        return Ok(());
    }
    check_time("timestamps_unix_nano", ms(first), accepted)?;
    check_time("timestamps_unix_nano", ms(last), accepted)
}

fn check_time(field: &'static str, time_ms: i64, accepted: TimeRange) -> Result<(), Fault> {
    let Some([time, from, to]) = outside(time_ms, accepted) else { return Ok(()) };
    Err(Fault::Time { field, time, from, to })
}

fn value_type(
    dictionary: &Dictionary<'_>,
    value_type: Option<&otlp::ValueType>,
) -> Result<ValueType, Fault> {
    let unset = otlp::ValueType::default();
    let value_type = value_type.unwrap_or(&unset);
    let kind = dictionary.string(value_type.type_strindex, "type_strindex")?;
    let unit = dictionary.string(value_type.unit_strindex, "unit_strindex")?;
    cap("the name of a type, in bytes,", kind.len().max(unit.len()), LABEL_BYTES_MAX)?;
    Ok(ValueType { kind: Arc::from(kind), unit: Arc::from(unit) })
}

/// What the profiles of one scope share.
struct Scope<'a> {
    origin: &'a Origin,
    is_agent: bool,
    twins: &'a HashSet<u64>,
}

/// What the wire says of a sample's attributes: those of the profile and of the sample, and the link.
pub(super) type WireSet<'a> = (&'a [i32], &'a [i32], i32);

/// Attribute sets of one scope's samples by what the wire says.
pub(super) type WireSets<'a> = HashMap<WireSet<'a>, u32>;

struct Converter<'a> {
    dictionary: &'a Dictionary<'a>,
    copies: Copies<'a>,
    reception: &'a Reception,
    batch: WriteBatch,
    observations: usize,
    sets: HashMap<Vec<Attribute>, u32>,
    sets_bytes: usize,
    accounts: Vec<Account>,
}

/// What the check of a profile found out for its conversion.
struct Checked {
    stored: Stored,
    period_type: ValueType,
    time_ms: i64,
    duration_ms: i64,
    observations: usize,
}

impl<'a> Converter<'a> {
    fn profile(
        &mut self,
        profile: &'a otlp::Profile,
        scope: &Scope<'_>,
        sets: &mut WireSets<'a>,
    ) -> Result<(), Fault> {
        let checked = self.check(profile, scope)?;
        self.check_sizes(profile, scope, sets)?;
        self.observations += checked.observations;
        let mut labels = scope.origin.labels.clone();
        if labels.service.is_empty() {
            labels.service = self.service_name(&labels, profile);
        }
        let mut samples = Vec::with_capacity(checked.observations);
        for sample in &profile.samples {
            let stack = self.copies.stack(&mut self.batch, sample.stack_index);
            let key = wire_set(profile, sample);
            let attributes = match sets.get(&key) {
                Some(&set) => set,
                None => {
                    let set = self.attribute_set(scope.origin, key);
                    sets.insert(key, set);
                    set
                }
            };
            observe(sample, &checked, |time_ms, value| {
                samples.push(SampleDef { stack, attributes, time_ms, value });
            });
        }
        let id = profile_id(profile, scope.is_agent, &labels, &checked.stored.sample_type);
        let converted = ProfileDef {
            id,
            labels,
            sample_type: checked.stored.sample_type,
            period_type: checked.period_type,
            period: profile.period,
            time_ms: checked.time_ms,
            duration_ms: checked.duration_ms,
            samples,
        };
        if scope.is_agent {
            self.account(&converted, &profile.attribute_indices);
        }
        self.batch.profiles.push(converted);
        Ok(())
    }

    /// Takes the agent's account of a window.
    fn account(&mut self, window: &ProfileDef, indices: &[i32]) {
        let figures = account::figures(self.dictionary, indices);
        if figures.is_empty() {
            return;
        }
        let attributes = self.set(Vec::new());
        let profile = account::profile(&mut self.batch, window, &figures, attributes);
        self.batch.profiles.extend(profile);
        // The window itself comes next.
        let (profile, host) = (self.batch.profiles.len(), Arc::clone(&window.labels.host));
        self.accounts.push(Account { profile, host, figures });
    }

    fn check(&self, profile: &otlp::Profile, scope: &Scope<'_>) -> Result<Checked, Fault> {
        let sample_type = value_type(self.dictionary, profile.sample_type.as_ref())?;
        if sample_type.kind.is_empty() {
            return Err(Fault::NoSampleType);
        }
        let period_type = value_type(self.dictionary, profile.period_type.as_ref())?;
        let has_twin = scope.twins.contains(&profile.time_unix_nano);
        let stored = units::stored(sample_type, &period_type, profile.period, has_twin);
        let accepted = self.reception.accepted_of(&stored.sample_type.kind);
        let (time_ms, duration_ms) = self.check_times(profile, accepted)?;
        self.dictionary
            .check_attributes(&profile.attribute_indices, "profile.attribute_indices")?;
        let mut observations = 0usize;
        for (position, sample) in profile.samples.iter().enumerate() {
            self.dictionary.check_stack_index(sample.stack_index)?;
            self.dictionary
                .check_attributes(&sample.attribute_indices, "sample.attribute_indices")?;
            self.dictionary.check_link(sample.link_index)?;
            let attributes = sample.attribute_indices.len() + profile.attribute_indices.len();
            let attributes = attributes + scope.origin.attributes.len();
            cap("the number of attributes of a sample", attributes, SAMPLE_ATTRIBUTES_MAX)?;
            observations =
                observations.saturating_add(check_values(position, sample, stored.factor)?);
            check_timestamps(sample, accepted)?;
        }
        let all = self.observations.saturating_add(observations);
        cap("the number of observations in the request", all, OBSERVATIONS_MAX)?;
        Ok(Checked { stored, period_type, time_ms, duration_ms, observations })
    }

    fn check_sizes(
        &self,
        profile: &'a otlp::Profile,
        scope: &Scope<'_>,
        sets: &WireSets<'a>,
    ) -> Result<(), Fault> {
        let origin_bytes = scope.origin.attributes.iter().map(Attribute::bytes).sum();
        let sizes = Sizes { frames: self.copies.frames(), sets_bytes: self.sets_bytes };
        let (dictionary, copies) = (self.dictionary, &self.copies);
        Measure { dictionary, copies, sets, origin_bytes, sizes }.check(profile)
    }

    fn check_times(
        &self,
        profile: &otlp::Profile,
        accepted: TimeRange,
    ) -> Result<(i64, i64), Fault> {
        let duration_ms = ms(profile.duration_nano);
        let duration = usize::try_from(duration_ms).unwrap_or(usize::MAX);
        let duration_max = usize::try_from(PROFILE_DURATION_MS_MAX).unwrap_or(usize::MAX);
        cap("duration_nano, in milliseconds,", duration, duration_max)?;
        if profile.time_unix_nano < YEAR_1971_NS {
            return Ok((self.reception.now_ms - duration_ms, duration_ms));
        }
        let time_ms = ms(profile.time_unix_nano);
        let end_ms = time_ms.saturating_add(duration_ms);
        check_time("time_unix_nano", time_ms, accepted)?;
        check_time("time_unix_nano + duration_nano", end_ms, accepted)?;
        Ok((time_ms, duration_ms))
    }

    /// Without a `service.name`: the executable, else `kernel` where no stack leaves the kernel (kernel
    /// threads have no executable), else what OpenTelemetry's SDKs say.
    fn service_name(&self, labels: &SeriesLabels, profile: &otlp::Profile) -> Arc<str> {
        if !labels.executable.is_empty() {
            return Arc::clone(&labels.executable);
        }
        let stacks: HashSet<i32> =
            profile.samples.iter().map(|sample| sample.stack_index).collect();
        let is_kernel = !stacks.is_empty()
            && stacks.iter().all(|&stack| self.dictionary.is_kernel_stack(stack));
        Arc::from(if is_kernel { "kernel" } else { "unknown_service" })
    }

    /// Attributes of the sample win over those of its profile, and these over those of its resource.
    fn attribute_set(&mut self, origin: &Origin, key: WireSet<'_>) -> u32 {
        let (of_profile, of_sample, link) = key;
        let mut set: Vec<Attribute> = Vec::new();
        let text = |name: &str, bytes: &[u8]| {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            Attribute { key: Arc::from(name), value: AttributeValue::Text(Arc::from(hex)) }
        };
        if let Some(link) = self.dictionary.link(link) {
            set.push(text("span_id", &link.span_id));
            set.push(text("trace_id", &link.trace_id));
        }
        let indices = of_sample.iter().chain(of_profile);
        set.extend(indices.filter_map(|&index| self.dictionary.attribute(index)).cloned());
        let prefixes = [account::PREFIX, account::PROCESS_PREFIX];
        set.retain(|attribute| !prefixes.iter().any(|prefix| attribute.key.starts_with(prefix)));
        set.extend(origin.attributes.iter().cloned());
        set.sort_by(|a, b| a.key.cmp(&b.key)); // stable: the first of equal names wins below
        set.dedup_by(|later, first| later.key == first.key);
        self.set(set)
    }

    fn set(&mut self, set: Vec<Attribute>) -> u32 {
        if let Some(&known) = self.sets.get(&set) {
            return known;
        }
        let index = u32::try_from(self.batch.attribute_sets.len())
            .expect("OBSERVATIONS_MAX keeps attribute sets below 2^32");
        self.sets_bytes += set.iter().map(Attribute::bytes).sum::<usize>();
        self.batch.attribute_sets.push(set.clone());
        self.sets.insert(set, index);
        index
    }
}

/// Checks values and timestamps of one sample; answers how many observations they are.
fn check_values(position: usize, sample: &otlp::Sample, factor: i64) -> Result<usize, Fault> {
    let (values, timestamps) = (sample.values.len(), sample.timestamps_unix_nano.len());
    if values == 0 && timestamps == 0 {
        return Err(Fault::EmptySample { sample: position });
    }
    if values != 0 && timestamps != 0 && values != timestamps {
        return Err(Fault::Lengths { sample: position, values, timestamps });
    }
    if sample.values.iter().any(|value| value.checked_mul(factor).is_none()) {
        return Err(Fault::Overflow { sample: position, period: factor });
    }
    Ok(values.max(timestamps))
}

/// Calls `each` with time and stored value of every observation of a checked sample.
fn observe(sample: &otlp::Sample, checked: &Checked, mut each: impl FnMut(i64, i64)) {
    let factor = checked.stored.factor;
    let time_ms = |position: usize| match sample.timestamps_unix_nano.get(position) {
        Some(&time) if time >= YEAR_1971_NS => ms(time),
        _ => checked.time_ms,
    };
    if sample.values.is_empty() {
        // Each timestamp is one observation.
        (0..sample.timestamps_unix_nano.len()).for_each(|at| each(time_ms(at), factor));
    }
    for (at, value) in sample.values.iter().enumerate() {
        each(time_ms(at), value.saturating_mul(factor));
    }
}

fn ms(ns: u64) -> i64 {
    i64::try_from(ns / NS_PER_MS).unwrap_or(i64::MAX)
}

/// The identity of a profile. Our agent's ids are unique by construction. Of other senders' ids that is not
/// known (some give one id to all types of a file, a broken one could give it to everything), so theirs is
/// taken together with what else tells two profiles apart; a retry has all of it equal.
fn profile_id(
    profile: &otlp::Profile,
    is_agent: bool,
    labels: &SeriesLabels,
    sample_type: &ValueType,
) -> ProfileId {
    let id = &*profile.profile_id;
    if id.iter().all(|&byte| byte == 0) {
        return ProfileId::None;
    }
    if is_agent && let Ok(id) = <[u8; 16]>::try_from(id) {
        let id = u128::from_be_bytes(id);
        let halves = [id >> 64, id & u128::from(u64::MAX)];
        let [boot, sequence] = halves.map(|half| u64::try_from(half).unwrap_or_default());
        return ProfileId::Agent { boot, sequence };
    }
    let mut hash = Xxh3::new();
    let SeriesLabels { service, host, container, pod, executable } = labels;
    let texts = [service, host, container, pod, executable, &sample_type.kind, &sample_type.unit];
    for part in texts.map(|text| text.as_bytes()).into_iter().chain([id]) {
        hash.update(&part.len().to_le_bytes());
        hash.update(part);
    }
    hash.update(&profile.time_unix_nano.to_le_bytes());
    hash.update(&profile.duration_nano.to_le_bytes());
    hash.update(&profile.samples.len().to_le_bytes());
    ProfileId::Foreign(hash.digest128().to_le_bytes())
}
