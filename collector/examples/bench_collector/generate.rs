//! A set of profiles like those of a fleet: few services with most of the load (zipf 0.9), stacks that share
//! their callers (each step follows an earlier stack or, the deeper the likelier, leaves it), popularity of
//! stacks zipf 1.05, mean depth 30. Samples come as windows of one host and one minute.

use std::collections::{BTreeMap, HashSet};

/// Functions that all services share (kernel, C library).
const SHARED_FUNCTIONS: u32 = 4_000;
/// Functions of one service at least; the large ones have more.
const SERVICE_FUNCTIONS: u32 = 400;
/// Threads of a service on a host.
const THREADS: u64 = 8;
const MINUTE_MS: i64 = 60_000;
/// Popularity of ranks: zipf with the exponent 1 + this.
const ZIPF_EXCESS: f64 = 0.05;

/// Sizes of a set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) samples: usize,
    pub(crate) services: usize,
    /// Distinct stacks, roughly.
    pub(crate) stacks: usize,
    pub(crate) hosts: usize,
    /// Unix milliseconds.
    pub(crate) start_ms: i64,
    pub(crate) end_ms: i64,
}

/// The set.
pub(crate) struct Set {
    shape: Shape,
    random: Random,
    services: Vec<Service>,
    /// Shares of the services, added up.
    shares: Vec<f64>,
    next_window: usize,
}

struct Service {
    name: String,
    /// Functions of each stack, leaf first, the most popular stack first.
    stacks: Vec<Vec<u32>>,
}

/// What one host saw in one minute.
pub(crate) struct Window {
    pub(crate) host: usize,
    pub(crate) start_ms: i64,
    pub(crate) sequence: u64,
    /// By service: stack, thread and time of each sample, Unix milliseconds.
    pub(crate) services: BTreeMap<usize, Vec<(usize, u64, i64)>>,
}

impl Window {
    pub(crate) fn samples(&self) -> usize {
        self.services.values().map(Vec::len).sum()
    }
}

impl Set {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let mut random = Random { state: seed };
        let weights: Vec<f64> =
            (1..=shape.services).map(|rank| 1.0 / crate::float(rank).powf(0.9)).collect();
        let sum: f64 = weights.iter().sum();
        let mut services = Vec::new();
        let mut first_function = SHARED_FUNCTIONS;
        for (number, weight) in weights.iter().enumerate() {
            let share = weight / sum;
            let wanted =
                crate::float(shape.stacks) * (0.7 * share + 0.3 / crate::float(shape.services));
            let functions = SERVICE_FUNCTIONS + truncated(20_000.0 * share);
            let stacks = grow(&mut random, truncated(wanted) as usize, first_function, functions);
            first_function += functions;
            services.push(Service { name: format!("service-{number}"), stacks });
        }
        let mut added = 0.0;
        let shares = weights.iter().map(|weight| {
            added += weight / sum;
            added
        });
        let shares = shares.collect();
        Self { shape, random, services, shares, next_window: 0 }
    }

    pub(crate) fn stacks(&self) -> usize {
        self.services.iter().map(|service| service.stacks.len()).sum()
    }

    pub(crate) fn service_name(&self, service: usize) -> &str {
        &self.services[service].name
    }

    pub(crate) fn stack(&self, service: usize, stack: usize) -> &[u32] {
        &self.services[service].stacks[stack]
    }

    /// The next window, minute by minute.
    pub(crate) fn next_window(&mut self) -> Option<Window> {
        let Shape { hosts, start_ms, end_ms, samples, .. } = self.shape;
        let minutes = usize::try_from((end_ms - start_ms) / MINUTE_MS).ok()?;
        let windows = minutes * hosts;
        if self.next_window >= windows {
            return None;
        }
        let number = self.next_window;
        self.next_window += 1;
        let count = samples * (number + 1) / windows - samples * number / windows;
        let minute = i64::try_from(number / hosts).ok()?;
        let window_ms = start_ms + minute * MINUTE_MS;
        let mut services: BTreeMap<usize, Vec<(usize, u64, i64)>> = BTreeMap::new();
        for _ in 0..count {
            let share = self.random.float();
            let service = self.shares.partition_point(|&added| added < share);
            let service = service.min(self.services.len() - 1);
            let stack = self.random.zipf(self.services[service].stacks.len());
            let time_ms = window_ms + i64::from(self.random.below(60_000));
            let thread = u64::from(self.random.below(1 << 16)) % THREADS;
            services.entry(service).or_default().push((stack, thread, time_ms));
        }
        Some(Window {
            host: number % hosts,
            start_ms: window_ms,
            sequence: number as u64,
            services,
        })
    }
}

/// A node of the call tree that stacks grow on.
#[derive(Default)]
struct Node {
    /// Child and how often it was taken.
    children: Vec<(usize, u32)>,
    taken: u32,
    function: u32,
}

/// Distinct stacks, leaf first, in random order.
fn grow(random: &mut Random, wanted: usize, first: u32, functions: u32) -> Vec<Vec<u32>> {
    let mut nodes = vec![Node { function: first, ..Node::default() }];
    let mut ends = HashSet::new();
    let mut stacks = Vec::new();
    for _ in 0..wanted * 4 {
        if stacks.len() >= wanted {
            break;
        }
        let depth = 20 + truncated(random.float() * random.float() * 40.0);
        let (mut node, mut stack) = (0, vec![nodes[0].function]);
        for level in 1..depth {
            node = step(random, &mut nodes, node, level, depth, (first, functions));
            stack.push(nodes[node].function);
        }
        if ends.insert(node) {
            stack.reverse();
            stacks.push(stack);
        }
    }
    // The order of growth says something about length; popularity must not.
    for at in (1..stacks.len()).rev() {
        let other = random.below(u32::try_from(at + 1).unwrap_or(u32::MAX)) as usize;
        stacks.swap(at, other);
    }
    stacks
}

/// Follows an earlier stack, or leaves it.
fn step(
    random: &mut Random,
    nodes: &mut Vec<Node>,
    node: usize,
    level: u32,
    depth: u32,
    (first, functions): (u32, u32),
) -> usize {
    let leave = match level {
        0..8 => 0.02,
        8..16 => 0.5,
        _ => 1.2,
    };
    let taken = f64::from(nodes[node].taken);
    if nodes[node].children.is_empty() || random.float() < leave / (leave + taken) {
        let is_library = level + 4 > depth && random.float() < 0.5;
        let function = if is_library {
            truncated(random.float().powi(3) * f64::from(SHARED_FUNCTIONS))
        } else {
            first + truncated(random.float().powf(1.7) * f64::from(functions))
        };
        let known =
            nodes[node].children.iter().find(|&&(child, _)| nodes[child].function == function);
        let next = known.map_or(nodes.len(), |&(child, _)| child);
        if next == nodes.len() {
            nodes.push(Node { function, ..Node::default() });
            nodes[node].children.push((next, 0));
        }
        take(&mut nodes[node], next);
        return next;
    }
    let mut left = random.below(nodes[node].taken.max(1));
    let mut next = nodes[node].children[0].0;
    for &(child, count) in &nodes[node].children {
        next = child;
        if left < count {
            break;
        }
        left -= count;
    }
    take(&mut nodes[node], next);
    next
}

fn take(node: &mut Node, next: usize) {
    node.taken += 1;
    if let Some((_, count)) = node.children.iter_mut().find(|(child, _)| *child == next) {
        *count += 1;
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small positive floats become counts"
)]
fn truncated(value: f64) -> u32 {
    value as u32
}

/// `SplitMix64`: small, seeded, the same everywhere.
struct Random {
    state: u64,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// 0 to 1, without 1.
    fn float(&mut self) -> f64 {
        crate::precise(self.next() >> 11) / crate::precise(1 << 53)
    }

    fn below(&mut self, bound: u32) -> u32 {
        truncated(self.float() * f64::from(bound))
    }

    /// A rank by popularity.
    fn zipf(&mut self, ranks: usize) -> usize {
        let mass = 1.0 - self.float() * (1.0 - crate::float(ranks).powf(-ZIPF_EXCESS));
        let rank = mass.powf(-1.0 / ZIPF_EXCESS) - 1.0;
        (truncated(rank) as usize).min(ranks - 1)
    }
}
