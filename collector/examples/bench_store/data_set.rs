//! A week of a fleet: 100 services (zipf 0.9), 4,954 series, stacks that share their callers (each step follows an
//! earlier stack or, the deeper the likelier, leaves it), popularity of stacks zipf 1.05, mean depth 30. One stack for each
//! hundred samples. The same seed gives the same samples.

use crate::random::{Random, Zipf, truncated};
use std::collections::HashSet;

pub(crate) const HOUR_MS: i64 = 3_600_000;
/// A Monday: 2026-01-05T00:00:00Z.
pub(crate) const START_MS: i64 = 1_767_571_200_000;
/// A week.
pub(crate) const SPAN_MS: i64 = 7 * 24 * HOUR_MS;
/// Functions that all services share (kernel, C library).
pub(crate) const SHARED_FUNCTIONS: u32 = 4_000;
/// CPU time of a sample: 19 Hz.
pub(crate) const PERIOD_NS: i64 = 52_631_578;

const SERVICES: usize = 100;
/// Functions of all services, of which each has half by its share.
const FUNCTIONS: f64 = 196_000.0;
/// Series of all services, of which four fifths go by share, and each service has ten more.
const SERIES: f64 = 5_000.0;
const SAMPLES_PER_STACK: usize = 100;
/// How far a sample lies from its place in the order, milliseconds.
const JITTER_MS: u32 = 2_000;

/// What a series measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Cpu,
    OffCpu,
    Alloc,
}

/// The set, without its samples: these are made as they are asked for.
pub(crate) struct DataSet {
    pub(crate) samples: usize,
    pub(crate) seed: u64,
    pub(crate) services: Vec<Service>,
    pub(crate) series: Vec<Series>,
    /// Functions of all services.
    pub(crate) functions: u32,
    /// Shares of the services, added up.
    shares: Vec<f64>,
}

/// A service.
pub(crate) struct Service {
    pub(crate) name: String,
    /// All stacks of it begin here.
    pub(crate) root: u32,
    /// Number of its first stack among those of all services.
    pub(crate) first_stack: u32,
    stacks: Stacks,
    popularity: Zipf,
    first_series: u32,
    series: u32,
}

/// Functions of each stack, leaf first, the most popular stack first.
#[derive(Default)]
struct Stacks {
    functions: Vec<u32>,
    /// Where each stack ends there.
    ends: Vec<u32>,
}

/// A series: one of its service's pods, and a type.
pub(crate) struct Series {
    pub(crate) service: usize,
    pub(crate) kind: Kind,
    /// Its number among those of the service.
    pub(crate) number: u32,
}

/// A sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) time_ms: i64,
    pub(crate) series: u32,
    /// Among those of the series' service.
    pub(crate) stack: u32,
    pub(crate) value: i64,
}

impl DataSet {
    pub(crate) fn new(samples: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let weights: Vec<f64> =
            (1..=SERVICES).map(|rank| 1.0 / crate::float(rank).powf(0.9)).collect();
        let sum: f64 = weights.iter().sum();
        let (mut services, mut series, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        let (mut root, mut first_stack, mut added) = (SHARED_FUNCTIONS, 0, 0.0);
        let each = 1.0 / crate::float(SERVICES);
        for (number, weight) in weights.iter().enumerate() {
            let share = weight / sum;
            added += share;
            shares.push(added);
            let wanted = crate::float(samples / SAMPLES_PER_STACK) * (0.7 * share + 0.3 * each);
            let functions = truncated(FUNCTIONS * (0.5 * share + 0.5 * each));
            let stacks = grow(&mut random, (truncated(wanted) as usize).max(1), (root, functions));
            let own = truncated(SERIES * 0.8 * share + 10.0);
            let (first_series, count) = (length(series.len()), length(stacks.ends.len()));
            let popularity = Zipf::new(stacks.ends.len());
            let kind = |number| match number % 10 {
                0..7 => Kind::Cpu,
                7..9 => Kind::OffCpu,
                _ => Kind::Alloc,
            };
            let of_service = |at| Series { service: number, kind: kind(at), number: at };
            series.extend((0..own).map(of_service));
            let name = format!("service-{number}");
            services.push(Service {
                name,
                root,
                first_stack,
                stacks,
                popularity,
                first_series,
                series: own,
            });
            root += functions;
            first_stack += count;
        }
        Self { samples, seed, services, series, functions: root, shares }
    }

    pub(crate) fn stacks(&self) -> u32 {
        self.services.iter().map(|service| length(service.stacks.ends.len())).sum()
    }

    /// The service of a number between 0 and 1.
    pub(crate) fn service_at(&self, share: f64) -> usize {
        self.shares.partition_point(|&added| added < share).min(SERVICES - 1)
    }

    /// The samples, hour by hour.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        let mut random = Random::new(self.seed ^ 0x005a_3713);
        (0..self.samples).map(move |at| {
            let at_ms = i64::try_from(at as u64 * SPAN_MS.unsigned_abs() / self.samples as u64);
            let at_ms = at_ms.unwrap_or(0);
            let hour_end_ms = (at_ms / HOUR_MS + 1) * HOUR_MS;
            let time_ms = (at_ms + i64::from(random.below(JITTER_MS))).min(hour_end_ms - 1);
            let service = &self.services[self.service_at(random.float())];
            let series = service.first_series + random.below(service.series);
            let stack = service.popular(&mut random);
            let value = match self.series[series as usize].kind {
                Kind::Cpu => PERIOD_NS,
                Kind::OffCpu => truncated(10_f64.powf(3.0 + random.float() * 4.0)).into(),
                Kind::Alloc => i64::from(512 * (1 + random.below(63))),
            };
            Row { time_ms: START_MS + time_ms, series, stack, value }
        })
    }
}

impl Service {
    /// A stack by its popularity.
    pub(crate) fn popular(&self, random: &mut Random) -> u32 {
        random.zipf(self.popularity)
    }

    /// The functions of a stack, leaf first.
    pub(crate) fn stack(&self, stack: u32) -> &[u32] {
        let Stacks { functions, ends } = &self.stacks;
        let start = stack.checked_sub(1).map_or(0, |before| ends[before as usize]);
        &functions[start as usize..ends[stack as usize] as usize]
    }
}

/// A node of the call tree that stacks grow on.
#[derive(Default)]
struct Node {
    /// Child and how often it was taken.
    children: Vec<(u32, u32)>,
    taken: u32,
    function: u32,
    parent: u32,
}

/// Distinct stacks in random order.
fn grow(random: &mut Random, wanted: usize, (root, functions): (u32, u32)) -> Stacks {
    let mut nodes = vec![Node { function: root, ..Node::default() }];
    let (mut known, mut ends) = (HashSet::new(), Vec::new());
    for _ in 0..wanted * 4 {
        if ends.len() >= wanted {
            break;
        }
        let depth = 20 + truncated(random.float() * random.float() * 40.0);
        let mut node = 0;
        for level in 1..depth {
            node = step(random, &mut nodes, node, (level, depth), (root, functions));
        }
        if known.insert(node) {
            ends.push(node);
        }
    }
    // The order of growth says something about length; popularity must not.
    for at in (1..ends.len()).rev() {
        ends.swap(at, random.below(length(at + 1)) as usize);
    }
    let mut stacks = Stacks::default();
    for end in ends {
        let mut at = end;
        while at != 0 {
            let Node { function, parent, .. } = nodes[at as usize];
            stacks.functions.push(function);
            at = parent;
        }
        stacks.functions.push(root);
        stacks.ends.push(length(stacks.functions.len()));
    }
    stacks
}

/// Follows an earlier stack, or leaves it.
fn step(
    random: &mut Random,
    nodes: &mut Vec<Node>,
    node: u32,
    (level, depth): (u32, u32),
    (root, functions): (u32, u32),
) -> u32 {
    let leave = match level {
        0..8 => 0.02,
        8..16 => 0.5,
        _ => 1.2,
    };
    let from = &nodes[node as usize];
    let at = if from.children.is_empty() || random.float() < leave / (leave + f64::from(from.taken))
    {
        let is_library = level + 4 > depth && random.float() < 0.5;
        let function = if is_library {
            truncated(random.float().powi(3) * f64::from(SHARED_FUNCTIONS))
        } else {
            root + truncated(random.float().powf(1.7) * f64::from(functions))
        };
        let known =
            from.children.iter().position(|&(child, _)| nodes[child as usize].function == function);
        known.unwrap_or_else(|| {
            let child = length(nodes.len());
            nodes.push(Node { function, parent: node, ..Node::default() });
            let children = &mut nodes[node as usize].children;
            children.push((child, 0));
            children.len() - 1
        })
    } else {
        let mut left = random.below(from.taken.max(1));
        let found = from.children.iter().position(|&(_, count)| {
            let is_it = left < count;
            left = left.saturating_sub(count);
            is_it
        });
        found.unwrap_or(from.children.len() - 1)
    };
    let from = &mut nodes[node as usize];
    from.taken += 1;
    from.children[at].1 += 1;
    from.children[at].0
}

/// Tables of the set are small.
pub(crate) fn length(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
