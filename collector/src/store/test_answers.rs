//! What tests of engines share: all answers as text, and small profiles with known answers.

use super::sample_data::{self, START_MS};
use super::{FileAddresses, ProfileStore, StoreError};
use crate::profile::{
    FunctionDef, LineDef, LocationDef, MappingDef, ProfileDef, ProfileId, SampleDef, SeriesLabels,
    ValueType, WriteBatch,
};
use crate::query::{FlameTree, LocksQuery, MergeQuery, Selection, TimeRange, TimelineQuery};
use proto::{BuildId, FrameKind};

/// All answers to one selection, as text: what differs is then seen at once.
async fn answers(
    store: &dyn ProfileStore,
    selection: &Selection,
    sizes: (usize, usize),
) -> Vec<String> {
    let (nodes_max, limit) = sizes;
    let merge =
        MergeQuery { selection: selection.clone(), nodes_max, keep_self_top: limit, leaf: None };
    let whole = MergeQuery {
        selection: selection.clone(),
        nodes_max: 10_000,
        keep_self_top: 0,
        leaf: None,
    };
    let mut lines = vec![
        format!("{:?}", store.merge(merge.clone()).await),
        format!("{:?}", store.merge(whole).await),
        format!("{:?}", store.functions(selection.clone(), limit).await),
        format!("{:?}", store.services(selection.clone(), limit).await),
        format!("{:?}", store.label_names(selection.clone()).await),
        format!("{:?}", store.profile_types(selection.project.clone()).await),
        format!("{:?}", store.coverage(selection.clone()).await),
    ];
    for id in 1..3 {
        let (project, build_id) = (selection.project.clone(), BuildId::new(&[id; 20]).unwrap());
        let file =
            FileAddresses { project, build_id, after: Some((0x1000, FrameKind::Native)), limit };
        lines.push(format!("{:?}", store.unnamed(file).await));
    }
    for leaf in ["service", "lock.kind", "process.pid"] {
        let leaf = Some(leaf.to_owned());
        lines.push(format!("{:?}", store.merge(MergeQuery { leaf, ..merge.clone() }).await));
    }
    for callers_max in [limit, 10_000] {
        let query = LocksQuery::new(selection.clone(), nodes_max, callers_max);
        lines.push(format!("{:?}", store.locks(query).await));
    }
    for by in [None, Some("service"), Some("host"), Some("thread.name"), Some("lock.kind")] {
        let query = TimelineQuery {
            selection: selection.clone(),
            by: by.map(str::to_owned),
            step_ms: 600_000,
            series_max: limit,
        };
        lines.push(format!("{by:?} {:?}", store.timeline(query).await));
        if let Some(by) = by {
            let label = by.to_owned();
            let values = store.label_values(selection.clone(), label, "".to_owned(), limit).await;
            lines.push(format!("{by} {values:?}"));
        }
    }
    lines
}

pub(crate) async fn check_same(
    store: &dyn ProfileStore,
    oracle: &dyn ProfileStore,
    selections: &[Selection],
    sizes: (usize, usize),
) {
    for selection in selections {
        let (ours, right) =
            (answers(store, selection, sizes).await, answers(oracle, selection, sizes).await);
        for (ours, right) in ours.iter().zip(&right) {
            assert_eq!(ours, right, "{selection:?}");
        }
    }
}

fn value_type(kind: &str, unit: &str) -> ValueType {
    ValueType { kind: kind.into(), unit: unit.into() }
}

/// A batch of one `cpu` profile of 10 s, from rows of (stack of function names, root first; value).
pub(crate) fn one_profile(service: &str, id: ProfileId, rows: &[(&[&str], i64)]) -> WriteBatch {
    let mut batch = WriteBatch {
        project: sample_data::project(),
        mappings: vec![MappingDef { filename: "/bin/app".into(), build_id: None }],
        functions: vec![],
        locations: vec![],
        stacks: vec![],
        attribute_sets: vec![vec![]],
        profiles: vec![],
    };
    let mut samples = vec![];
    for (stack, value) in rows {
        let mut indices = vec![];
        for name in stack.iter().rev() {
            let known = batch.functions.iter().position(|function| *function.name == **name);
            let index = known.unwrap_or_else(|| {
                batch.functions.push(FunctionDef {
                    name: (*name).into(),
                    system_name: "".into(),
                    file: "app.c".into(),
                    start_line: 1,
                });
                let index = batch.functions.len() - 1;
                batch.locations.push(LocationDef {
                    mapping: Some(0),
                    address: 0x1000 + index as u64,
                    kind: FrameKind::Native,
                    lines: LineDef { function: u32::try_from(index).unwrap(), line: 2 }.into(),
                });
                index
            });
            indices.push(u32::try_from(index).unwrap());
        }
        batch.stacks.push(indices);
        let stack = u32::try_from(batch.stacks.len() - 1).unwrap();
        samples.push(SampleDef { stack, attributes: 0, time_ms: START_MS + 500, value: *value });
    }
    let labels =
        SeriesLabels { service: service.into(), host: "h1".into(), ..SeriesLabels::default() };
    batch.profiles.push(ProfileDef {
        id,
        labels,
        sample_type: value_type("cpu", "nanoseconds"),
        period_type: value_type("cpu", "nanoseconds"),
        period: 10_000_000,
        time_ms: START_MS,
        duration_ms: 10_000,
        samples,
    });
    batch
}

pub(crate) fn everything(profile_type: &str) -> Selection {
    Selection {
        project: sample_data::project(),
        profile_type: profile_type.to_owned(),
        range: TimeRange { from_ms: START_MS, to_ms: START_MS + 60_000 },
        matchers: vec![],
    }
}

pub(crate) async fn merged(store: &dyn ProfileStore) -> Result<FlameTree, StoreError> {
    store
        .merge(MergeQuery {
            selection: everything("cpu"),
            nodes_max: 100,
            keep_self_top: 10,
            leaf: None,
        })
        .await
}
