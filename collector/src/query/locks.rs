//! Lock waits by lock: which lock a sample speaks of, which samples tell what, and how sums become an answer.
//! What is told by attributes is written by whoever sends: any text, of any type, or nothing at all, names
//! some lock and breaks nothing.

use super::{FunctionInfo, FunctionNames, HostValues, Overflow, Selection};
use crate::limits;
use crate::profile::{Attribute, SeriesLabels};
use hashbrown::HashMap;
use proto::otlp::attribute::PROCESS_START_TIME_NS;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// Time that threads were blocked, whatever for.
pub const OFF_CPU_TYPE: &str = "off_cpu";
/// What of it, and of goroutines' waits, was for locks.
pub const LOCK_TYPE: &str = "lock";

/// What a sample tells of a lock, by the type of its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// How long it was waited for, nanoseconds.
    Wait,
    /// How often.
    Contentions,
    /// Who held it while somebody waited.
    Holders,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Wait, Self::Contentions, Self::Holders];

    /// The type of its profiles; units are said, because values of others must not be added.
    #[must_use]
    pub fn profile_type(self) -> &'static str {
        match self {
            Self::Wait => "lock:nanoseconds",
            Self::Contentions => "lock_contentions:count",
            Self::Holders => "lock_holders:count",
        }
    }
}

/// A question about locks. The selection's type does not matter.
#[derive(Clone, Debug)]
pub struct LocksQuery {
    /// Which samples.
    pub selection: Selection,
    /// Rows at most: the locks with the longest waits.
    pub rows_max: usize,
    /// Waiters and holders of a lock at most, each.
    pub callers_max: usize,
    /// Locks that are told apart at most.
    pub locks_max: usize,
    /// Stacks of the rows that are told apart at most.
    pub stacks_max: usize,
}

impl LocksQuery {
    /// The question within the limits of the house.
    #[must_use]
    pub fn new(selection: Selection, rows_max: usize, callers_max: usize) -> Self {
        let (locks_max, stacks_max) = (limits::LOCKS_MAX, limits::LOCK_STACKS_MAX);
        Self { selection, rows_max, callers_max, locks_max, stacks_max }
    }

    /// The selection of one measure.
    #[must_use]
    pub fn selection_of(&self, measure: Measure) -> Selection {
        let profile_type = measure.profile_type().to_owned();
        Selection { profile_type, ..self.selection.clone() }
    }
}

/// Which lock: what samples must have in common to speak of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockKey {
    /// A lock in a file's data: the same one in every process of the executable.
    Static {
        /// The label `executable`.
        executable: Arc<str>,
        /// `lock.name`: symbol or file, and what lies between.
        name: Arc<str>,
    },
    /// Any other: an address of one process.
    Address {
        /// The label `host`.
        host: Arc<str>,
        /// The label `executable`.
        executable: Arc<str>,
        /// `process.pid`.
        pid: Arc<str>,
        /// `vesta.process.start_time_ns`: numbers of processes come again. Empty if it was not told.
        start: Arc<str>,
        /// `lock.address`; empty if it was not told.
        address: Arc<str>,
    },
}

impl LockKey {
    /// The lock of a sample.
    #[must_use]
    pub fn of(labels: &SeriesLabels, attributes: &[Attribute]) -> Self {
        let executable = Arc::clone(&labels.executable);
        let name = text_of(attributes, "lock.name");
        if !name.is_empty() {
            return Self::Static { executable, name: Arc::from(name) };
        }
        let text = |name| Arc::from(text_of(attributes, name));
        let (pid, start) = (text("process.pid"), text(PROCESS_START_TIME_NS));
        let (host, address) = (Arc::clone(&labels.host), text("lock.address"));
        Self::Address { host, executable, pid, start, address }
    }

    /// A number for it: 16 bytes where the texts may have kilobytes. Also the last tie-break of every order.
    #[must_use]
    pub fn identity(&self) -> u128 {
        let (place, parts): (u8, [&str; 5]) = match self {
            Self::Static { executable, name } => (b's', [executable, name, "", "", ""]),
            Self::Address { host, executable, pid, start, address } => {
                (b'a', [executable, address, pid, start, host])
            }
        };
        let mut bytes = vec![place];
        for part in parts {
            bytes.extend_from_slice(&part.len().to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        xxh3_128(&bytes)
    }

    /// A selector that chooses its samples.
    #[must_use]
    pub fn selector(&self) -> String {
        let rows: &[(&str, &str)] = match self {
            Self::Static { executable, name } => {
                &[("executable", executable), ("\"lock.name\"", name)]
            }
            Self::Address { host, executable, pid, start, address } => &[
                ("host", host),
                ("executable", executable),
                ("\"process.pid\"", pid),
                ("\"vesta.process.start_time_ns\"", start),
                ("\"lock.address\"", address),
                ("\"lock.name\"", ""),
            ],
        };
        let matcher = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", quoted(value));
        format!("{{{}}}", rows.iter().map(matcher).collect::<Vec<_>>().join(","))
    }
}

fn text_of<'a>(attributes: &'a [Attribute], name: &str) -> Cow<'a, str> {
    let found = attributes.iter().find(|attribute| *attribute.key == *name);
    found.map_or(Cow::Borrowed(""), |attribute| attribute.value.text())
}

/// The inside of a quoted value of a selector.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            other => out.push(other),
        }
    }
    out
}

/// What kind of lock it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockKind {
    /// `mutex`.
    Mutex,
    /// `rwlock`.
    Rwlock,
    /// `monitor`.
    Monitor,
    /// Not told, or by a word that is none of these.
    #[default]
    Unknown,
}

impl LockKind {
    /// The word in attributes and answers.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Rwlock => "rwlock",
            Self::Monitor => "monitor",
            Self::Unknown => "unknown",
        }
    }

    /// What the attributes of a sample say.
    #[must_use]
    pub fn of(attributes: &[Attribute]) -> Self {
        let text = text_of(attributes, "lock.kind");
        let known = [Self::Mutex, Self::Rwlock, Self::Monitor];
        known.into_iter().find(|kind| text == kind.as_str()).unwrap_or_default()
    }
}

/// Sums while they grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockSums {
    /// Of [`Measure::Wait`], nanoseconds.
    pub wait_ns: i128,
    /// Of [`Measure::Contentions`].
    pub contentions: i128,
    /// Of [`Measure::Holders`], samples.
    pub held: i128,
}

impl LockSums {
    /// Adds a value.
    pub fn add(&mut self, measure: Measure, value: i64) {
        let sum = match measure {
            Measure::Wait => &mut self.wait_ns,
            Measure::Contentions => &mut self.contentions,
            Measure::Holders => &mut self.held,
        };
        *sum += i128::from(value);
    }

    /// Adds other sums.
    pub fn merge(&mut self, other: Self) {
        self.wait_ns += other.wait_ns;
        self.contentions += other.contentions;
        self.held += other.held;
    }

    fn without(self, part: Self) -> Self {
        Self {
            wait_ns: self.wait_ns - part.wait_ns,
            contentions: self.contentions - part.contentions,
            held: self.held - part.held,
        }
    }

    fn check(self) -> Result<LockFigures, Overflow> {
        Ok(LockFigures {
            wait_ns: Overflow::check(self.wait_ns, "lock waits")?,
            contentions: Overflow::check(self.contentions, "lock contentions")?,
            held: Overflow::check(self.held, "samples of lock holders")?,
        })
    }
}

/// Sums in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockFigures {
    /// How long threads waited, nanoseconds.
    pub wait_ns: i64,
    /// How often they did.
    pub contentions: i64,
    /// Samples of threads that held a lock while others waited for it.
    pub held: i64,
}

/// A function that waits for a lock, or holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockCaller {
    /// The innermost function outside the lock's own library.
    pub function: FunctionInfo,
    /// Sums of its stacks; of a holder: `held` alone.
    pub figures: LockFigures,
    /// Names of the frames of its heaviest stack, itself first, at most [`limits::LOCK_STACK_FRAMES_MAX`].
    pub stack: Vec<Arc<str>>,
}

/// One lock.
#[derive(Clone, Debug, PartialEq)]
pub struct LockRow {
    /// Which one.
    pub key: LockKey,
    /// What kind.
    pub kind: LockKind,
    /// The service with the longest wait for it.
    pub service: Arc<str>,
    /// Services whose samples speak of it.
    pub services: u64,
    /// Its sums.
    pub figures: LockFigures,
    /// Threads that waited on average: over hosts, wait / time that this host reported.
    pub threads: f64,
    /// Who waits, longest first.
    pub waiters: Vec<LockCaller>,
    /// Who holds, most samples first.
    pub holders: Vec<LockCaller>,
    /// What is in `figures` and of no caller above: further ones, and samples without a stack.
    pub others: LockFigures,
}

/// The answer: rows and what they leave out add up to the total.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Locks {
    /// The longest waits first.
    pub rows: Vec<LockRow>,
    /// Locks in the selection; at least so many if there are more than can be told apart.
    pub locks: u64,
    /// Sums of all.
    pub total: LockFigures,
    /// Sums of the locks that are no row.
    pub others: LockFigures,
    /// Things the reader should know.
    pub warnings: Vec<String>,
}

/// How two locks are ordered: the longer wait first, then more contentions, then more samples of holders.
fn lock_rank(sums: LockSums, identity: u128) -> impl Ord + use<> {
    (Reverse(sums), identity)
}

/// The sums of all locks: which of them become rows.
#[derive(Debug, Default)]
pub struct LockRanking {
    locks: HashMap<u128, LockSums>,
    /// True if there were more than can be told apart.
    pub full: bool,
}

impl LockRanking {
    /// Adds a value; a lock beyond `max` is not told apart.
    pub fn add(&mut self, max: usize, identity: u128, measure: Measure, value: i64) {
        if let Some(sums) = self.locks.get_mut(&identity) {
            sums.add(measure, value);
        } else if self.locks.len() < max {
            self.locks.entry(identity).or_default().add(measure, value);
        } else {
            self.full = true;
        }
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// The first `max`, the longest wait first, each with its place among them.
    #[must_use]
    pub fn top(&self, max: usize) -> HashMap<u128, usize> {
        let mut ranked: Vec<(LockSums, u128)> =
            self.locks.iter().map(|(&identity, &sums)| (sums, identity)).collect();
        let rank = |&(sums, identity): &(LockSums, u128)| lock_rank(sums, identity);
        if max < ranked.len() {
            ranked.select_nth_unstable_by_key(max, rank);
            ranked.truncate(max);
        }
        ranked.sort_unstable_by_key(rank);
        ranked.into_iter().zip(0..).map(|((_, identity), place)| (identity, place)).collect()
    }
}

/// One chosen lock while its samples are added up.
#[derive(Debug, Default)]
pub struct LockDetail {
    key: Option<LockKey>,
    sums: LockSums,
    /// Waits by kind that was told, in the order of [`LockKind`].
    kinds: BTreeMap<LockKind, i128>,
    by_service: BTreeMap<Arc<str>, i128>,
    by_host: BTreeMap<Arc<str>, i128>,
    /// Sums by stack, in numbers of functions, the caller first.
    stacks: HashMap<Box<[u32]>, LockSums>,
}

/// What the samples of one attribute set in one series have in common.
#[derive(Debug)]
pub struct LockSample<'a> {
    /// Which lock.
    pub key: &'a LockKey,
    /// What kind it is told to be.
    pub kind: LockKind,
    /// Whose samples.
    pub labels: &'a SeriesLabels,
}

impl LockDetail {
    /// Adds a value, without its stack.
    pub fn add(&mut self, sample: &LockSample<'_>, measure: Measure, value: i64) {
        let LockSample { key, kind, labels } = *sample;
        self.key.get_or_insert_with(|| key.clone());
        self.sums.add(measure, value);
        let wait = if measure == Measure::Wait { i128::from(value) } else { 0 };
        *self.kinds.entry(kind).or_default() += wait;
        add_to(&mut self.by_service, &labels.service, wait);
        add_to(&mut self.by_host, &labels.host, wait);
    }

    /// Adds what belongs to a stack: numbers of functions, the caller first.
    pub fn add_stack(&mut self, stack: &[u32], sums: LockSums) {
        match self.stacks.get_mut(stack) {
            Some(known) => known.merge(sums),
            None => drop(self.stacks.insert(Box::from(stack), sums)),
        }
    }

    /// The row; nothing if no sample was added.
    ///
    /// # Errors
    /// If a sum leaves 64 bits.
    pub fn row(
        self,
        query: &LocksQuery,
        names: &dyn FunctionNames,
        reported: &HostValues,
    ) -> Result<Option<LockRow>, Overflow> {
        let Self { key, sums, kinds, by_service, by_host, stacks } = self;
        let Some(key) = key else { return Ok(None) };
        let told = kinds.iter().filter(|(kind, _)| **kind != LockKind::Unknown);
        let kind = told.min_by_key(|&(kind, wait)| (Reverse(*wait), *kind));
        let service = by_service.iter().min_by_key(|&(service, wait)| (Reverse(*wait), service));
        let hosts = by_host.iter().map(|(host, &wait)| (host, wait));
        let callers = Callers::of(&stacks, names);
        let (waiters, waited) = callers.waiters(query.callers_max)?;
        let (holders, held) = callers.holders(query.callers_max)?;
        let shown = LockSums { held: held.held, ..waited };
        Ok(Some(LockRow {
            key,
            kind: kind.map(|(kind, _)| *kind).unwrap_or_default(),
            service: service.map(|(service, _)| Arc::clone(service)).unwrap_or_default(),
            services: by_service.len() as u64,
            figures: sums.check()?,
            threads: reported.cores(hosts, query.selection.range),
            waiters,
            holders,
            others: sums.without(shown).check()?,
        }))
    }
}

fn add_to(sums: &mut BTreeMap<Arc<str>, i128>, key: &Arc<str>, value: i128) {
    match sums.get_mut(key) {
        Some(sum) => *sum += value,
        None => drop(sums.insert(Arc::clone(key), value)),
    }
}

/// Sums by calling function, each with its heaviest stacks.
struct Callers<'a> {
    names: &'a dyn FunctionNames,
    rows: Vec<CallerSums<'a>>,
}

struct CallerSums<'a> {
    function: u32,
    sums: LockSums,
    stacks: Vec<(LockSums, &'a [u32])>,
}

impl<'a> Callers<'a> {
    fn of(stacks: &'a HashMap<Box<[u32]>, LockSums>, names: &'a dyn FunctionNames) -> Self {
        let mut callers: HashMap<u32, CallerSums<'a>> = HashMap::new();
        for (stack, &sums) in stacks {
            let Some(&function) = stack.first() else { continue };
            let new = || CallerSums { function, sums: LockSums::default(), stacks: vec![] };
            let caller = callers.entry(function).or_insert_with(new);
            caller.sums.merge(sums);
            caller.stacks.push((sums, stack));
        }
        Self { names, rows: callers.into_values().collect() }
    }

    /// The longest waits first, and their sums.
    fn waiters(&self, max: usize) -> Result<(Vec<LockCaller>, LockSums), Overflow> {
        let part = |sums: LockSums| LockSums { held: 0, ..sums };
        self.top(max, part)
    }

    /// Most samples of holders first, and their sums.
    fn holders(&self, max: usize) -> Result<(Vec<LockCaller>, LockSums), Overflow> {
        let part = |sums: LockSums| LockSums { held: sums.held, ..LockSums::default() };
        self.top(max, part)
    }

    fn top(
        &self,
        max: usize,
        part: impl Fn(LockSums) -> LockSums,
    ) -> Result<(Vec<LockCaller>, LockSums), Overflow> {
        let names = self.names;
        let known = |row: &&CallerSums<'_>| part(row.sums) != LockSums::default();
        let mut rows: Vec<&CallerSums<'_>> = self.rows.iter().filter(known).collect();
        rows.sort_by_cached_key(|row| {
            let function = row.function;
            (Reverse(part(row.sums)), names.info(function), names.identity(function))
        });
        rows.truncate(max);
        let mut shown = LockSums::default();
        let mut callers = Vec::with_capacity(rows.len());
        for row in rows {
            shown.merge(part(row.sums));
            let named = |stack: &[u32]| -> Vec<Arc<str>> {
                stack.iter().map(|&function| names.info(function).name).collect()
            };
            // A stack of holders says nothing about who waits.
            let parts = row.stacks.iter().map(|&(sums, _)| part(sums));
            let heaviest = parts.filter(|&part| part != LockSums::default()).max();
            let alike = row.stacks.iter().filter(|&&(sums, _)| Some(part(sums)) == heaviest);
            callers.push(LockCaller {
                function: names.info(row.function),
                figures: part(row.sums).check()?,
                stack: alike.map(|(_, stack)| named(stack)).min().unwrap_or_default(),
            });
        }
        Ok((callers, shown))
    }
}

/// Puts an answer together from the sums of everything, and rows in the order that [`LockRanking`] chose. Rows
/// come in their order again, because samples may have arrived since.
///
/// # Errors
/// If a sum leaves 64 bits.
pub fn finish_locks(
    mut rows: Vec<LockRow>,
    locks: usize,
    total: LockSums,
    warnings: Vec<String>,
) -> Result<Locks, Overflow> {
    let sums_of = |row: &LockRow| LockSums {
        wait_ns: row.figures.wait_ns.into(),
        contentions: row.figures.contentions.into(),
        held: row.figures.held.into(),
    };
    rows.sort_by_cached_key(|row| lock_rank(sums_of(row), row.key.identity()));
    let mut shown = LockSums::default();
    rows.iter().for_each(|row| shown.merge(sums_of(row)));
    Ok(Locks {
        locks: locks as u64,
        total: total.check()?,
        others: total.without(shown).check()?,
        rows,
        warnings,
    })
}
