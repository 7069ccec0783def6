//! Samples of the set as batches, the way a receiver hands them to the store.

use crate::data_set::{DataSet, Kind, PERIOD_NS, Row, SHARED_FUNCTIONS, length};
use collector::profile::{
    FunctionDef, LineDef, Lines, LocationDef, MappingDef, ProfileDef, ProfileId, ProjectName,
    SampleDef, SeriesLabels, ValueType, WriteBatch,
};
use proto::{BuildId, FrameKind};
use std::sync::Arc;

/// Makes batches; everything that has a name has it once.
pub(crate) struct Batches<'a> {
    set: &'a DataSet,
    empty: Arc<str>,
    names: Vec<Arc<str>>,
    mappings: Vec<MappingDef>,
    labels: Vec<SeriesLabels>,
    types: [ValueType; 3],
    /// Place of each function and stack in the batch that is made.
    functions: Places,
    stacks: Places,
}

/// Numbers in order of first use.
struct Places {
    of: Vec<u32>,
    used: Vec<u32>,
}

impl Places {
    const NONE: u32 = u32::MAX;

    fn new(count: u32) -> Self {
        Self { of: vec![Self::NONE; count as usize], used: Vec::new() }
    }

    fn place(&mut self, number: u32) -> u32 {
        let place = &mut self.of[number as usize];
        if *place == Self::NONE {
            *place = length(self.used.len());
            self.used.push(number);
        }
        *place
    }

    /// What was used; the next numbers begin anew.
    fn take(&mut self) -> Vec<u32> {
        self.used.iter().for_each(|&number| self.of[number as usize] = Self::NONE);
        std::mem::take(&mut self.used)
    }
}

pub(crate) fn function_name(function: u32) -> String {
    format!("namespace::module::function_{function}")
}

pub(crate) fn pod_name(number: u32) -> String {
    format!("pod-{number}")
}

impl<'a> Batches<'a> {
    pub(crate) fn new(set: &'a DataSet) -> Self {
        let file = |path: String, number: usize| {
            let id = u64::try_from(number + 1).unwrap_or(0).to_be_bytes().repeat(3);
            MappingDef { filename: path.into(), build_id: BuildId::new(&id[..20]) }
        };
        let shared = file("/usr/lib/libshared.so".to_owned(), 0);
        let own = set.services.iter().zip(1..);
        let own = own.map(|(service, number)| file(format!("/usr/bin/{}", service.name), number));
        let names: Vec<Arc<str>> =
            set.services.iter().map(|service| service.name.as_str().into()).collect();
        let empty: Arc<str> = "".into();
        let labels = set.series.iter().map(|series| SeriesLabels {
            service: Arc::clone(&names[series.service]),
            host: format!("host-{}", series.number / 10).into(),
            container: Arc::clone(&empty),
            pod: pod_name(series.number).into(),
            executable: Arc::clone(&empty),
        });
        let value_type =
            |kind: &str, unit: &str| ValueType { kind: kind.into(), unit: unit.into() };
        Self {
            set,
            names: (0..set.functions).map(|number| function_name(number).into()).collect(),
            mappings: std::iter::once(shared).chain(own).collect(),
            labels: labels.collect(),
            types: [
                value_type("cpu", "nanoseconds"),
                value_type("off_cpu", "nanoseconds"),
                value_type("alloc_space", "bytes"),
            ],
            functions: Places::new(set.functions),
            stacks: Places::new(set.stacks()),
            empty,
        }
    }

    /// Samples in order of time become a batch; by its number its profiles are known again.
    pub(crate) fn batch(&mut self, mut rows: Vec<Row>, number: u64) -> WriteBatch {
        rows.sort_by_key(|row| row.series);
        let mut profiles = Vec::new();
        for (rows, sequence) in rows.chunk_by(|a, b| a.series == b.series).zip(1..) {
            profiles.push(self.profile(rows, ProfileId::Agent { boot: number, sequence }));
        }
        let mut stacks = Vec::new();
        let mut service = 0;
        for number in self.stacks.take() {
            // Profiles come in the order of services, and so do their stacks.
            while self.set.services.get(service + 1).is_some_and(|next| next.first_stack <= number)
            {
                service += 1;
            }
            let of = &self.set.services[service];
            let frames = of.stack(number - of.first_stack).iter();
            stacks.push(frames.map(|&function| self.functions.place(function)).collect());
        }
        let functions = self.functions.take();
        let locations = (0..).zip(&functions).map(|(at, &function)| self.location(at, function));
        let locations = locations.collect();
        let function = |number: u32| FunctionDef {
            name: Arc::clone(&self.names[number as usize]).into(),
            system_name: Arc::clone(&self.empty).into(),
            file: Arc::clone(&self.empty).into(),
            start_line: 0,
        };
        WriteBatch {
            project: ProjectName(crate::PROJECT.into()),
            mappings: self.mappings.clone(),
            functions: functions.into_iter().map(function).collect(),
            locations,
            stacks,
            attribute_sets: vec![Vec::new()],
            profiles,
        }
    }

    /// Samples of one series.
    fn profile(&mut self, rows: &[Row], id: ProfileId) -> ProfileDef {
        let series = &self.set.series[rows[0].series as usize];
        let first_stack = self.set.services[series.service].first_stack;
        let times = || rows.iter().map(|row| row.time_ms);
        let (start_ms, end_ms) = (times().min().unwrap_or(0), times().max().unwrap_or(0) + 1);
        let sample = |row: &Row| SampleDef {
            stack: self.stacks.place(first_stack + row.stack),
            attributes: 0,
            time_ms: row.time_ms,
            value: row.value,
        };
        let samples = rows.iter().map(sample).collect();
        ProfileDef {
            id,
            labels: self.labels[rows[0].series as usize].clone(),
            sample_type: self.types[series.kind as usize].clone(),
            period_type: self.types[Kind::Cpu as usize].clone(),
            period: if series.kind == Kind::Cpu { PERIOD_NS } else { 0 },
            time_ms: start_ms,
            duration_ms: end_ms - start_ms,
            samples,
        }
    }

    fn location(&self, at: u32, function: u32) -> LocationDef {
        let is_behind = |service: &crate::data_set::Service| service.root <= function;
        let mapping = match function {
            0..SHARED_FUNCTIONS => 0,
            _ => self.set.services.partition_point(is_behind),
        };
        LocationDef {
            mapping: Some(length(mapping)),
            address: 0x1000 + u64::from(function) * 64,
            kind: FrameKind::Native,
            lines: Lines::from(LineDef { function: at, line: 1 }),
        }
    }
}
