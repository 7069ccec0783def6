//! Which nodes of a merged tree an answer keeps. A tree may have ten million nodes and an answer twenty thousand, so a
//! pass over all nodes does little for each; what only decides between equal ones is computed for those alone.

use super::{ByFunction, MergedTree, NodeId, ShapeOptions};
use crate::query::FunctionNames;
use std::cmp::Reverse;

/// Weights fall into so many classes for each power of two: then one class at most is ordered.
const CLASSES_BITS: u32 = 4;
const CLASSES: usize = 64 << CLASSES_BITS;

/// Which nodes survive, by node.
pub(super) fn kept(
    tree: &MergedTree,
    totals: &[i64],
    names: &dyn FunctionNames,
    options: ShapeOptions,
) -> Vec<bool> {
    let budget = options.nodes_max.max(1);
    if tree.len() <= budget {
        return vec![true; tree.len()];
    }
    let mut kept = vec![false; tree.len()];
    kept[0] = true;
    let mut left = budget - 1;
    for node in heaviest_nodes(tree, names, options.keep_self_top) {
        left = keep_with_ancestors(tree, &mut kept, node, left);
    }
    if tree.self_value.iter().all(|&value| value >= 0) {
        fill(tree, names, &mut kept, left, |node| totals[node].unsigned_abs());
    } else {
        let weights = tree.weights();
        fill(tree, names, &mut kept, left, |node| weights[node]);
    }
    kept
}

/// Keeps a node and its ancestors if all of them fit into what is left; answers what is left then.
fn keep_with_ancestors(tree: &MergedTree, kept: &mut [bool], node: NodeId, left: usize) -> usize {
    let mut missing = Vec::new();
    let mut at = node as usize;
    while !kept[at] {
        missing.push(at);
        at = tree.parent[at] as usize;
    }
    if missing.len() > left {
        return left;
    }
    let count = missing.len();
    missing.into_iter().for_each(|index| kept[index] = true);
    left - count
}

/// For each of the functions with the largest self values, the largest first: its node with the largest.
fn heaviest_nodes(tree: &MergedTree, names: &dyn FunctionNames, count: usize) -> Vec<NodeId> {
    if count == 0 {
        return Vec::new();
    }
    let mut functions: ByFunction<(i128, u64)> = ByFunction::default();
    let hot = || (0_u32..).zip(&tree.self_value).skip(1).filter(|&(_, &value)| value != 0);
    for (node, &value) in hot() {
        let (sum, largest) = functions.get_or_make(tree.function[node as usize], Default::default);
        *sum += i128::from(value);
        *largest = (*largest).max(value.unsigned_abs());
    }
    let mut ranked: Vec<(u128, u32)> =
        functions.iter().map(|(function, (sum, _))| (sum.unsigned_abs(), function)).collect();
    if count < ranked.len() {
        let (_, &mut (least, _), _) =
            ranked.select_nth_unstable_by_key(count - 1, |it| Reverse(it.0));
        ranked.retain(|&(sum, _)| sum >= least);
    }
    ranked.sort_by_cached_key(|&(sum, function)| Reverse((sum, names.identity(function))));
    ranked.truncate(count);
    let mut best: ByFunction<Option<(u64, NodeId)>> = ByFunction::default();
    ranked.iter().for_each(|&(_, function)| *best.get_or_make(function, || None) = None);
    let mut largest_nodes = Vec::new();
    for (node, &value) in hot() {
        let function = tree.function[node as usize];
        let largest = functions.get_mut(function).map(|&mut (_, largest)| largest);
        if largest == Some(value.unsigned_abs()) && best.get_mut(function).is_some() {
            largest_nodes.push(node);
        }
    }
    for (hash, node) in path_hashes(tree, names, largest_nodes) {
        if let Some(best) = best.get_mut(tree.function[node as usize])
            && best.is_none_or(|(other, _)| hash > other)
        {
            *best = Some((hash, node));
        }
    }
    let best = ranked.iter().filter_map(|&(_, function)| best.get_mut(function).copied().flatten());
    best.map(|(_, node)| node).collect()
}

/// Fills up with the heaviest nodes; of equally heavy ones the shallower first, then by path.
fn fill(
    tree: &MergedTree,
    names: &dyn FunctionNames,
    kept: &mut [bool],
    left: usize,
    weight: impl Fn(usize) -> u64,
) {
    let mut counts = vec![0_usize; CLASSES];
    for node in (0..kept.len()).filter(|&node| !kept[node]) {
        counts[class(weight(node))] += 1;
    }
    let (mut left, mut last) = (left, CLASSES - 1);
    while last > 0 && counts[last] <= left {
        left -= counts[last];
        last -= 1;
    }
    let mut tied: Vec<(u64, NodeId)> = Vec::with_capacity(counts[last]);
    for (node, kept) in (0_u32..).zip(kept.iter_mut()).filter(|(_, kept)| !**kept) {
        let weight = weight(node as usize);
        match class(weight).cmp(&last) {
            std::cmp::Ordering::Greater => *kept = true,
            std::cmp::Ordering::Equal => tied.push((weight, node)),
            std::cmp::Ordering::Less => {}
        }
    }
    let tied = settle(kept, tied, &mut left, |weight| Reverse(*weight));
    let depths = depths(tree, tied);
    let tied = settle(kept, depths, &mut left, |depth| *depth);
    let mut tied = path_hashes(tree, names, tied);
    tied.sort_unstable();
    tied.iter().take(left).for_each(|&(_, node)| kept[node as usize] = true);
}

/// Keeps those nodes of which it is certain that they are among the first by a key; answers those that are tied for what
/// is left.
fn settle<K: Copy, O: Ord>(
    kept: &mut [bool],
    mut nodes: Vec<(K, NodeId)>,
    left: &mut usize,
    order: impl Fn(&K) -> O,
) -> Vec<NodeId> {
    if *left == 0 {
        return Vec::new();
    }
    if *left < nodes.len() {
        let (_, &mut (last, _), _) =
            nodes.select_nth_unstable_by_key(*left - 1, |(key, _)| order(key));
        let last = order(&last);
        nodes.retain(|(key, _)| order(key) <= last);
        let (first, tied): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|(key, _)| order(key) < last);
        first.iter().for_each(|&(_, node)| kept[node as usize] = true);
        *left -= first.len();
        return tied.into_iter().map(|(_, node)| node).collect();
    }
    nodes.iter().for_each(|&(_, node)| kept[node as usize] = true);
    *left -= nodes.len();
    Vec::new()
}

/// The class of a weight: no heavier weight has a smaller one.
fn class(weight: u64) -> usize {
    let exponent = weight.checked_ilog2().unwrap_or(0);
    match exponent.checked_sub(CLASSES_BITS) {
        None => usize::try_from(weight).unwrap_or(0),
        Some(shift) => {
            let mantissa = (weight >> shift) - (1 << CLASSES_BITS);
            ((shift as usize + 1) << CLASSES_BITS) + usize::try_from(mantissa).unwrap_or(0)
        }
    }
}

/// The depths of some nodes.
fn depths(tree: &MergedTree, nodes: Vec<NodeId>) -> Vec<(u32, NodeId)> {
    along_ways(tree, nodes, |depth, _| depth + 1)
}

/// For some nodes, what grows along the way from the root to them, where it is 0. Each way is walked by itself as long as
/// all together have fewer steps than the tree has nodes; else one pass over these does it.
fn along_ways<T: Copy + Default>(
    tree: &MergedTree,
    nodes: Vec<NodeId>,
    grow: impl Fn(T, NodeId) -> T,
) -> Vec<(T, NodeId)> {
    let mut steps_left = tree.len();
    let mut found = Vec::with_capacity(nodes.len());
    let mut steps: Vec<NodeId> = Vec::new();
    for &node in &nodes {
        steps.clear();
        steps.extend(way(tree, node).take(steps_left));
        steps_left -= steps.len();
        if steps_left == 0 {
            break;
        }
        let value = steps.iter().rev().fold(T::default(), |value, &step| grow(value, step));
        found.push((value, node));
    }
    if found.len() == nodes.len() {
        return found;
    }
    let mut all = vec![T::default(); tree.len()];
    for node in (0_u32..).take(tree.len()).skip(1) {
        all[node as usize] = grow(all[tree.parent[node as usize] as usize], node);
    }
    nodes.into_iter().map(|node| (all[node as usize], node)).collect()
}

/// A node and its ancestors but the root.
fn way(tree: &MergedTree, node: NodeId) -> impl Iterator<Item = NodeId> {
    let parent = |&node: &NodeId| Some(tree.parent[node as usize]);
    std::iter::successors(Some(node), parent).take_while(|&node| node != 0)
}

/// Hashes of the functions on the ways from the root to some nodes: the same in every engine.
fn path_hashes(
    tree: &MergedTree,
    names: &dyn FunctionNames,
    nodes: Vec<NodeId>,
) -> Vec<(u64, NodeId)> {
    along_ways(tree, nodes, |hash, node| {
        let identity = names.identity(tree.function[node as usize]).to_le_bytes();
        xxhash_rust::xxh3::xxh3_64_with_seed(&identity, hash)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_weights() {
        let mut weights: Vec<u64> =
            (0..64).flat_map(|bit| [0, 1, 3].map(|low| (1 << bit) | low)).collect();
        weights.extend(0..200);
        weights.push(u64::MAX);
        weights.sort_unstable();
        for pair in weights.windows(2) {
            assert!(class(pair[0]) <= class(pair[1]), "{pair:?}");
        }
        assert!((0..16).all(|weight| class(weight) == usize::try_from(weight).unwrap()));
        assert!(class(u64::MAX) < CLASSES);
    }
}
