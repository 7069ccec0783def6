//! The oracle's answers: walk every sample.

use super::names::{Names, Numbered};
use super::{Profile, Project, Sample};
use crate::query::{
    Buckets, Coverage, FlameTree, FunctionInfo, FunctionNames, FunctionRow, HostValues, LabelKind,
    LabelName, LabelValue, Leaves, MergeQuery, MergedTree, Overflow, Selection, ServiceRow,
    ShapeOptions, Timeline, TimelineBuilder, TimelineQuery, rows_by_self, share,
};
use crate::store::StoreError;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// A tree of one service: all of its samples' paths, values of the selected ones.
struct Tree {
    nodes: Vec<Node>,
    children: HashMap<(usize, u128), usize>,
}

struct Node {
    parent: usize,
    function: u128,
    inlined: bool,
    selected: bool,
    value: i128,
}

impl Default for Tree {
    /// The root alone.
    fn default() -> Self {
        let root = Node { parent: 0, function: 0, inlined: false, selected: false, value: 0 };
        Self { nodes: vec![root], children: HashMap::new() }
    }
}

impl Tree {
    fn child(&mut self, parent: usize, function: u128, inlined: bool) -> usize {
        let nodes = &mut self.nodes;
        let node = *self.children.entry((parent, function)).or_insert_with(|| {
            nodes.push(Node { parent, function, inlined: true, selected: false, value: 0 });
            nodes.len() - 1
        });
        self.nodes[node].inlined &= inlined;
        node
    }

    /// The node where a stack ends.
    fn walk(&mut self, project: &Project, stack: &[u128]) -> usize {
        let mut node = 0;
        for &location in stack.iter().rev() {
            let chain = project.names.functions(location).iter().rev();
            for (depth, &function) in chain.enumerate() {
                node = self.child(node, function, depth > 0);
            }
        }
        node
    }

    fn select(&mut self, mut node: usize) {
        while !self.nodes[node].selected {
            self.nodes[node].selected = true;
            node = self.nodes[node].parent;
        }
    }
}

/// Functions numbered for one answer, and values of a label among them.
struct Leafy<'a> {
    label: Arc<str>,
    values: BTreeMap<u128, Arc<str>>,
    functions: Vec<u128>,
    names: &'a Names,
}

impl FunctionNames for Leafy<'_> {
    fn info(&self, function: u32) -> FunctionInfo {
        let identity = self.identity(function);
        match self.values.get(&identity) {
            Some(value) => Leaves::info(&self.label, value),
            None => self.names.info(identity).clone(),
        }
    }

    fn identity(&self, function: u32) -> u128 {
        self.functions[function as usize]
    }
}

impl Project {
    pub(super) fn selected<'a>(
        &'a self,
        selection: &'a Selection,
    ) -> impl Iterator<Item = (&'a Profile, &'a Sample)> {
        let wanted =
            selection.resolve_type(self.profiles.iter().map(|profile| &profile.sample_type));
        self.profiles
            .iter()
            .filter(move |profile| Some(&profile.sample_type) == wanted)
            .filter(|profile| selection.matches_series(&profile.labels))
            .flat_map(|profile| profile.samples.iter().map(move |sample| (profile, sample)))
            .filter(|(_, sample)| !sample.is_deleted)
            .filter(|(_, sample)| selection.range.contains(sample.time_ms))
            .filter(|(_, sample)| selection.matches_attributes(&sample.attributes))
    }

    pub(super) fn reported(&self, selection: &Selection) -> HostValues {
        let mut hosts = HostValues::default();
        let wanted =
            selection.resolve_type(self.profiles.iter().map(|profile| &profile.sample_type));
        let Some(wanted) = wanted else { return hosts };
        for profile in self.profiles.iter().filter(|profile| profile.sample_type.reports(wanted)) {
            if selection.matches_host(&profile.labels.host) {
                let (start_ms, end_ms) = profile.reported;
                hosts.report(&profile.labels.host, start_ms, end_ms);
            }
        }
        hosts
    }

    /// The tree of the selection over all services, and the values of `leaf` by identity.
    fn tree(&self, selection: &Selection, leaf: Option<&str>) -> (Tree, BTreeMap<u128, Arc<str>>) {
        let mut leaves = BTreeMap::new();
        let mut services: BTreeMap<Arc<str>, Tree> = BTreeMap::new();
        for (profile, _) in self.selected(selection) {
            services.entry(Arc::clone(&profile.labels.service)).or_default();
        }
        // Whether a node is inlined is known from all samples of a service, selected or not.
        for profile in &self.profiles {
            if let Some(tree) = services.get_mut(&profile.labels.service) {
                for sample in &profile.samples {
                    tree.walk(self, &sample.stack);
                }
            }
        }
        for (profile, sample) in self.selected(selection) {
            if let Some(tree) = services.get_mut(&profile.labels.service) {
                let mut node = tree.walk(self, &sample.stack);
                if let Some(label) = leaf {
                    let value = Arc::<str>::from(value_of(profile, sample, label));
                    let identity = Leaves::identity(label, &value);
                    node = tree.child(node, identity, false);
                    leaves.insert(identity, value);
                }
                tree.nodes[node].value += i128::from(sample.value);
                tree.select(node);
            }
        }
        let mut merged = Tree::default();
        for tree in services.values() {
            let mut at = vec![0; tree.nodes.len()];
            for (index, node) in tree.nodes.iter().enumerate().filter(|(_, node)| node.selected) {
                if index > 0 {
                    at[index] = merged.child(at[node.parent], node.function, node.inlined);
                }
                merged.nodes[at[index]].value += node.value;
            }
        }
        (merged, leaves)
    }

    pub(super) fn merge(&self, query: &MergeQuery) -> Result<FlameTree, StoreError> {
        let (tree, values) = self.tree(&query.selection, query.leaf.as_deref());
        let label = Arc::<str>::from(query.leaf.as_deref().unwrap_or_default());
        let mut names = Leafy { label, values, functions: vec![], names: &self.names };
        let mut numbers: HashMap<u128, u32> = HashMap::new();
        let mut merged = MergedTree::default();
        for (index, node) in tree.nodes.iter().enumerate() {
            let function = *numbers.entry(node.function).or_insert_with(|| {
                names.functions.push(node.function);
                u32::try_from(names.functions.len() - 1).unwrap_or(u32::MAX)
            });
            let value = Overflow::check(node.value, "the flame graph")?;
            merged.parent.push(u32::try_from(node.parent).unwrap_or(u32::MAX));
            merged.function.push(function);
            merged.self_value.push(value);
            merged.inlined.push(index > 0 && node.inlined);
        }
        let options =
            ShapeOptions { nodes_max: query.nodes_max, keep_self_top: query.keep_self_top };
        let mut answer = merged.shape(&names, options)?;
        let mut periods = BTreeSet::new();
        for (profile, _) in self.selected(&query.selection) {
            answer.samples += 1;
            periods.insert(profile.period_ns);
        }
        answer.period_ns = match (periods.len(), periods.first()) {
            (1, Some(&period)) => period,
            _ => 0,
        };
        let known = self.profiles.iter().map(|profile| &profile.sample_type);
        if let Some(found) = query.selection.resolve_type(known) {
            found.unit.as_ref().clone_into(&mut answer.unit);
        }
        Ok(answer)
    }

    pub(super) fn functions(
        &self,
        selection: &Selection,
        limit: usize,
    ) -> Result<Vec<FunctionRow>, StoreError> {
        let mut sums: BTreeMap<u128, (i128, i128)> = BTreeMap::new();
        for (_, sample) in self.selected(selection) {
            let functions = self.names.of_stack(&sample.stack);
            for function in functions.iter().collect::<HashSet<_>>() {
                sums.entry(*function).or_default().1 += i128::from(sample.value);
            }
            if let Some(leaf) = functions.first() {
                sums.entry(*leaf).or_default().0 += i128::from(sample.value);
            }
        }
        let numbered = Numbered { names: &self.names, identities: sums.keys().copied().collect() };
        let values = (0..).zip(sums.values()).map(|(number, &(own, total))| (number, own, total));
        Ok(rows_by_self(values, &numbered, limit)?)
    }

    pub(super) fn timeline(&self, query: &TimelineQuery) -> Result<Timeline, StoreError> {
        let selection = &query.selection;
        let mut builder = TimelineBuilder::new(Buckets::by_step(selection.range, query.step_ms)?);
        for (profile, sample) in self.selected(selection) {
            let key =
                query.by.as_deref().map_or_else(String::new, |by| value_of(profile, sample, by));
            let bucket = builder.buckets().index(sample.time_ms);
            builder.row(&key, &profile.labels.host)?[bucket] += i128::from(sample.value);
        }
        Ok(builder.finish(query, &self.reported(selection))?)
    }

    pub(super) fn services(
        &self,
        selection: &Selection,
        buckets: Buckets,
    ) -> Result<Vec<ServiceRow>, StoreError> {
        let reported = self.reported(selection);
        let mut trend = TimelineBuilder::new(buckets);
        let mut services: BTreeMap<Arc<str>, Vec<(&Profile, &Sample)>> = BTreeMap::new();
        for (profile, sample) in self.selected(selection) {
            let service = &profile.labels.service;
            let bucket = buckets.index(sample.time_ms);
            trend.row(service, &profile.labels.host)?[bucket] += i128::from(sample.value);
            services.entry(Arc::clone(service)).or_default().push((profile, sample));
        }
        let mut rows = Vec::new();
        for (service, samples) in services {
            let (trend, trend_cores) = trend.line(&service, &reported)?;
            let total: i128 = samples.iter().map(|(_, sample)| i128::from(sample.value)).sum();
            let mut by_host: BTreeMap<Arc<str>, i128> = BTreeMap::new();
            let mut named = 0_i128;
            for (profile, sample) in &samples {
                *by_host.entry(Arc::clone(&profile.labels.host)).or_default() +=
                    i128::from(sample.value);
                let leaf = sample.stack.first().and_then(|&at| self.names.functions(at).first());
                if leaf.is_some_and(|&function| self.names.is_named(function)) {
                    named += i128::from(sample.value);
                }
            }
            let distinct = |value: fn(&Profile) -> &Arc<str>| {
                let values = samples.iter().map(|(profile, _)| value(profile));
                values.filter(|value| !value.is_empty()).collect::<HashSet<_>>().len() as u64
            };
            rows.push(ServiceRow {
                total: Overflow::check(total, "a service")?,
                samples: samples.len() as u64,
                cores: reported
                    .cores(by_host.iter().map(|(host, &sum)| (host, sum)), selection.range),
                trend,
                trend_cores,
                hosts: distinct(|profile| &profile.labels.host),
                containers: distinct(|profile| &profile.labels.container),
                named_share: share(named, total),
                service: service.to_string(),
            });
        }
        rows.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.service.cmp(&b.service)));
        Ok(rows)
    }

    pub(super) fn label_names(&self, selection: &Selection) -> Vec<LabelName> {
        let mut names: BTreeMap<&str, HashSet<String>> = BTreeMap::new();
        for (profile, sample) in self.selected(selection) {
            for (name, value) in profile.labels.each().into_iter().filter(|(_, v)| !v.is_empty()) {
                names.entry(name).or_default().insert(value.to_string());
            }
            for attribute in sample.attributes.iter() {
                if LabelKind::of(&attribute.key) == LabelKind::Attribute {
                    let values = names.entry(&attribute.key).or_default();
                    values.insert(attribute.value.text().into_owned());
                }
            }
        }
        let row = |(name, values): (&str, HashSet<String>)| LabelName {
            name: name.to_owned(),
            values: values.len() as u64,
        };
        names.into_iter().map(row).collect()
    }

    pub(super) fn label_values(
        &self,
        selection: &Selection,
        label: &str,
        prefix: &str,
        limit: usize,
    ) -> Vec<LabelValue> {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for (profile, sample) in self.selected(selection) {
            let value = value_of(profile, sample, label);
            if !value.is_empty() && value.starts_with(prefix) {
                *counts.entry(value).or_default() += 1;
            }
        }
        let mut rows: Vec<LabelValue> =
            counts.into_iter().map(|(value, samples)| LabelValue { value, samples }).collect();
        rows.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.value.cmp(&b.value)));
        rows.truncate(limit);
        rows
    }

    pub(super) fn coverage(&self, selection: &Selection) -> Coverage {
        let mut hosts = self.reported(selection);
        for (profile, sample) in self.selected(selection) {
            hosts.add(&profile.labels.host, sample.value.into());
        }
        hosts.coverage(selection.range)
    }
}

/// The value of a label or attribute; empty if the sample has none.
fn value_of(profile: &Profile, sample: &Sample, name: &str) -> String {
    if let Some(value) = profile.labels.get(name) {
        return value.to_string();
    }
    let found = sample.attributes.iter().find(|attribute| *attribute.key == *name);
    found.map_or_else(String::new, |attribute| attribute.value.text().into_owned())
}
