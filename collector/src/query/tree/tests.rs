use super::*;
use proptest::prelude::*;

/// Functions whose number is their name, and three markers.
struct Numbers;

/// Numbers of the markers.
const MARKERS: [(u32, &str); 3] =
    [(90, "[truncated]"), (91, "[unwind: no unwind info]"), (92, "[python frames: names to come]")];

impl FunctionNames for Numbers {
    fn info(&self, function: u32) -> FunctionInfo {
        let marker = MARKERS.into_iter().find(|(number, _)| *number == function);
        FunctionInfo {
            name: marker.map_or_else(|| format!("f{function}"), |(_, name)| name.to_owned()).into(),
            file: "".into(),
            line: 0,
            kind: if marker.is_some() { FrameKind::Marker } else { FrameKind::Native },
            module: "".into(),
            named: true,
        }
    }

    fn identity(&self, function: u32) -> u128 {
        function.into()
    }
}

/// A tree from rows of (parent, function, self).
fn tree(rows: &[(u32, u32, i64)]) -> MergedTree {
    let mut tree = MergedTree {
        parent: vec![0],
        function: vec![0],
        self_value: vec![0],
        inlined: vec![false],
    };
    for &(parent, function, value) in rows {
        tree.parent.push(parent);
        tree.function.push(function);
        tree.self_value.push(value);
        tree.inlined.push(false);
    }
    tree
}

/// `depth name total/self hidden`, one node a line.
fn text(answer: &FlameTree) -> Vec<String> {
    let line = |node: usize| {
        format!(
            "{}{} {}/{} {}",
            " ".repeat(answer.node_depth[node] as usize),
            answer.functions[answer.node_function[node] as usize].name,
            answer.node_total[node],
            answer.node_self[node],
            answer.node_hidden[node],
        )
    };
    (0..answer.node_total.len()).map(line).collect()
}

fn shape(tree: &MergedTree, nodes_max: usize, keep_self_top: usize) -> FlameTree {
    tree.shape(&Numbers, ShapeOptions { nodes_max, keep_self_top }).unwrap()
}

#[test]
fn children_stand_under_their_parent_heaviest_first() {
    let source = tree(&[(0, 1, 1), (1, 2, 5), (0, 3, 9), (1, 4, 7)]);
    let lines = ["total 22/0 0", " f1 13/1 0", "  f4 7/7 0", "  f2 5/5 0", " f3 9/9 0"];
    assert_eq!(text(&shape(&source, 100, 0)), lines);
}

#[test]
fn what_was_cut_is_summed_by_marker_whatever_is_pruned() {
    let source =
        tree(&[(0, 1, 50), (1, 90, 0), (2, 3, 4), (0, 91, 1), (4, 90, 0), (0, 91, 7), (0, 92, 9)]);
    let cut = [("[unwind: no unwind info]", 8), ("[truncated]", 4)];
    for nodes_max in [1, 100] {
        let answer = shape(&source, nodes_max, 0);
        assert_eq!(answer.cut.iter().map(|(name, sum)| (&**name, *sum)).collect::<Vec<_>>(), cut);
    }
}

#[test]
fn pruning_keeps_the_heaviest_and_says_what_it_hides() {
    let source = tree(&[(0, 1, 1), (1, 2, 5), (0, 3, 9), (1, 4, 7)]);
    let lines = ["total 22/0 0", " f1 13/1 12", " f3 9/9 0"];
    assert_eq!(text(&shape(&source, 3, 0)), lines);
    assert_eq!(shape(&source, 3, 0).hidden_nodes, 2);
}

#[test]
fn a_hot_leaf_below_cold_callers_survives_with_them() {
    // f9 has the largest self value in sum, spread over two nodes that are each lighter than f1 and f2.
    let source = tree(&[(0, 1, 50), (0, 2, 50), (0, 3, 0), (3, 9, 40), (0, 4, 0), (5, 9, 45)]);
    assert_eq!(text(&shape(&source, 3, 0)), ["total 185/0 85", " f1 50/50 0", " f2 50/50 0"]);
    assert_eq!(text(&shape(&source, 3, 1)), ["total 185/0 140", " f4 45/0 0", "  f9 45/45 0"]);
}

#[test]
fn only_the_root_survives_a_budget_of_nothing() {
    assert_eq!(text(&shape(&tree(&[(0, 1, 3)]), 0, 9)), ["total 3/0 3"]);
    assert_eq!(text(&shape(&tree(&[]), 9, 9)), ["total 0/0 0"]);
}

#[test]
fn sums_beyond_64_bits_are_refused_and_those_that_return_are_not() {
    let (max, options) = (i64::MAX, ShapeOptions { nodes_max: 10, keep_self_top: 0 });
    let over = tree(&[(0, 1, max), (0, 2, max)]);
    assert_eq!(over.shape(&Numbers, options), Err(Overflow("the flame graph")));
    let back = tree(&[(0, 1, max), (0, 2, max), (0, 3, -max)]);
    assert_eq!(shape(&back, 10, 0).node_total[0], max);
}

/// A random tree: each node's parent is any earlier node, siblings of one function merged.
fn trees() -> impl Strategy<Value = MergedTree> {
    prop::collection::vec((any::<prop::sample::Index>(), 0_u32..6, -3_i64..20), 0..60).prop_map(
        |rows| {
            let mut known = std::collections::BTreeMap::new();
            let mut source = tree(&[]);
            for (parent, function, value) in rows {
                let parent = u32::try_from(parent.index(source.len())).unwrap();
                let node = *known.entry((parent, function)).or_insert_with(|| {
                    source.parent.push(parent);
                    source.function.push(function);
                    source.self_value.push(0);
                    source.inlined.push(false);
                    source.len() - 1
                });
                source.self_value[node] += value;
            }
            source
        },
    )
}

proptest! {
    #[test]
    fn every_answer_adds_up(source in trees(), nodes_max in 0_usize..70, top in 0_usize..5) {
        let answer = shape(&source, nodes_max, top);
        let count = answer.node_total.len();
        prop_assert_eq!(count, nodes_max.clamp(1, source.len()));
        prop_assert_eq!(answer.hidden_nodes, (source.len() - count) as u64);
        prop_assert_eq!(answer.node_total[0], source.self_value.iter().sum::<i64>());
        for node in 0..count {
            let depth = answer.node_depth[node];
            let below = (node + 1..count).take_while(|&at| answer.node_depth[at] > depth);
            let children = below.filter(|&at| answer.node_depth[at] == depth + 1);
            let sum: i64 = children.map(|at| answer.node_total[at]).sum();
            let expected = answer.node_self[node] + sum + answer.node_hidden[node];
            prop_assert_eq!(answer.node_total[node], expected);
        }
    }
}

/// The heaviest nodes, of equally heavy ones the shallower first, then by path: as the rule says it.
fn heaviest(source: &MergedTree, count: usize) -> Vec<bool> {
    let weights = source.weights();
    let (mut depth, mut hash) = (vec![0_u32; source.len()], vec![0_u64; source.len()]);
    for node in 1..source.len() {
        let parent = source.parent[node] as usize;
        depth[node] = depth[parent] + 1;
        let identity = Numbers.identity(source.function[node]).to_le_bytes();
        hash[node] = xxhash_rust::xxh3::xxh3_64_with_seed(&identity, hash[parent]);
    }
    let mut order: Vec<usize> = (1..source.len()).collect();
    order.sort_by_key(|&node| (std::cmp::Reverse(weights[node]), depth[node], hash[node]));
    let mut kept = vec![false; source.len()];
    kept[0] = true;
    order.iter().take(count).for_each(|&node| kept[node] = true);
    kept
}

proptest! {
    #[test]
    fn the_heaviest_are_kept(source in trees(), nodes_max in 1_usize..60, factor in 1_i64..2_000) {
        let mut source = source;
        source.self_value.iter_mut().for_each(|value| *value *= factor);
        let options = ShapeOptions { nodes_max, keep_self_top: 0 };
        let kept = pruning::kept(&source, &source.totals().unwrap(), &Numbers, options);
        prop_assert_eq!(kept, heaviest(&source, nodes_max - 1));
    }

    #[test]
    fn without_negative_values_too(source in trees(), nodes_max in 1_usize..60, most in 1_i64..20) {
        let mut source = source;
        source.self_value.iter_mut().for_each(|value| *value = (*value).clamp(0, most));
        let options = ShapeOptions { nodes_max, keep_self_top: 0 };
        let kept = pruning::kept(&source, &source.totals().unwrap(), &Numbers, options);
        prop_assert_eq!(kept, heaviest(&source, nodes_max - 1));
    }
}
