//! A batch as the writer takes it. What needs no order was done before, beside the writer: stacks that the store
//! knows already became their nodes, and what only describes those is gone. A batch of an hour's middle has a few
//! new stacks among many known ones, so little is left to write to the log, to learn and to free.
//!
//! Ids are given once and never taken back, so what was found stays right however long the batch waits. They are
//! no names for a log, though: after a crash a batch that was never acknowledged may stand in it and take a number.
//! There a known stack is a hash of its locations' identities; its node is only where to look first.

use super::batch;
use super::codec::{Malformed, Reader, Writer};
use super::engine::{Engine, Project};
use super::symbols::Symbols;
use super::trie::stack_hash;
use crate::profile::identity::{BatchIdentities, LineQuality};
use crate::profile::{
    FunctionDef, LocationDef, MappingDef, NewNames, ProfileDef, WriteBatch, gather,
};

/// Stands for the id of a location, the node of a stack or a place in a table that is not known.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// Marks numbers of known stacks until it is known how many others there are.
const KNOWN_BIT: u32 = 1 << 31;

/// A stack that a service's trie holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownStack {
    /// Of the identities of its locations.
    pub(super) hash: u128,
    /// Its node.
    pub(super) node: u32,
}

/// The batch, and what is known of it.
#[derive(Debug)]
pub(super) struct Prepared {
    /// With the new stacks alone, and what describes them. Numbers of stacks from their count on mean `known`.
    pub(super) batch: WriteBatch,
    /// Of the batch's locations.
    pub(super) identities: BatchIdentities,
    /// Id of each location, or [`UNKNOWN`].
    pub(super) locations: Vec<u32>,
    /// Each stack once for each service that it occurs in.
    pub(super) known: Vec<KnownStack>,
}

impl Prepared {
    /// Looks up what is known now. The batch must have passed its check.
    pub(super) fn new(engine: &Engine, batch: WriteBatch) -> Self {
        let mut this = Self::whole(batch, Vec::new());
        if let Some(project) = engine.project(&this.batch.project) {
            let own = this.find(&project);
            this.shrink(&own);
        }
        // It may wait long, and few of many texts are left.
        let functions = this.batch.functions.iter_mut();
        gather(functions.flat_map(|it| [&mut it.name, &mut it.system_name, &mut it.file]));
        this
    }

    /// A batch of the log: its known stacks were found already.
    pub(super) fn whole(batch: WriteBatch, known: Vec<KnownStack>) -> Self {
        let identities = BatchIdentities::of(&batch);
        let locations = vec![UNKNOWN; batch.locations.len()];
        Self { batch, identities, locations, known }
    }

    /// Names alone.
    pub(super) fn of_names(names: NewNames) -> Self {
        let identities = names.identities();
        let batch = names.into_batch();
        let locations = vec![UNKNOWN; batch.locations.len()];
        Self { batch, identities, locations, known: Vec::new() }
    }

    /// Takes a change of the batch's tables into account.
    pub(super) fn describe(&mut self) {
        self.identities = BatchIdentities::of(&self.batch);
        self.locations = vec![UNKNOWN; self.batch.locations.len()];
    }

    /// Memory of what was found, beside the batch.
    pub(super) fn found_bytes(&self) -> usize {
        let location = size_of::<u128>() + size_of::<LineQuality>() + size_of::<u32>();
        self.known.len() * size_of::<KnownStack>() + self.locations.len() * location
    }

    /// The bytes of the batch for the log.
    pub(super) fn encode(&self) -> std::io::Result<Vec<u8>> {
        let mut writer = Writer::default();
        encode_known(&self.known, &mut writer);
        writer.raw(&batch::encode(&self.batch)?);
        Ok(writer.bytes)
    }

    /// Finds locations and stacks, and has samples refer to known ones; answers which others are needed.
    fn find(&mut self, project: &Project) -> Vec<u32> {
        let symbols = project.symbols();
        let BatchIdentities { locations, qualities } = &self.identities;
        for ((id, identity), quality) in self.locations.iter_mut().zip(locations).zip(qualities) {
            *id = symbols.known_location(*identity, quality).unwrap_or(UNKNOWN);
        }
        let own = self.find_stacks(&symbols);
        drop(symbols);
        self.known.shrink_to_fit();
        let own_count = u32::try_from(own.len()).unwrap_or(UNKNOWN);
        let profiles = self.batch.profiles.iter_mut();
        for sample in profiles.flat_map(|profile| &mut profile.samples) {
            if sample.stack & KNOWN_BIT != 0 {
                sample.stack = own_count + (sample.stack & !KNOWN_BIT);
            }
        }
        own
    }

    fn find_stacks(&mut self, symbols: &Symbols) -> Vec<u32> {
        let Self { batch, identities, known, .. } = self;
        let count = batch.stacks.len();
        let (mut own, mut own_numbers) = (Vec::new(), vec![UNKNOWN; count]);
        let mut places = Places::new(count);
        let mut bytes = Vec::new();
        let mut profiles: Vec<(Option<u32>, &mut ProfileDef)> = batch
            .profiles
            .iter_mut()
            .map(|profile| (symbols.service(&profile.labels.service), profile))
            .collect();
        profiles.sort_by_key(|(service, _)| *service);
        for (service, profile) in profiles {
            places.turn_to(service);
            let trie = service.map(|service| symbols.services[service as usize].trie());
            for sample in &mut profile.samples {
                let stack = sample.stack as usize;
                if places.of[stack] == UNKNOWN {
                    let frames = &batch.stacks[stack];
                    let find = |trie: &super::trie::Trie| {
                        let hash = stack_hash(frames, &identities.locations, &mut bytes);
                        trie.find(hash).map(|node| KnownStack { hash, node })
                    };
                    let place = match trie.as_deref().and_then(find) {
                        Some(found) => number_of(known, found) | KNOWN_BIT,
                        None if own_numbers[stack] == UNKNOWN => {
                            own_numbers[stack] = number_of(&mut own, sample.stack);
                            own_numbers[stack]
                        }
                        None => own_numbers[stack],
                    };
                    places.set(stack, place);
                }
                sample.stack = places.of[stack];
            }
        }
        own
    }

    /// Takes out what describes nothing but known stacks.
    fn shrink(&mut self, own: &[u32]) {
        let Self { batch, identities, locations, .. } = self;
        // A location that is new, or has other names than before, is learnt whether or not a stack is.
        let mut kept = Kept::new(locations.iter().map(|&id| id == UNKNOWN));
        let mut stacks: Vec<Vec<u32>> =
            own.iter().map(|&at| std::mem::take(&mut batch.stacks[at as usize])).collect();
        stacks.iter().flatten().for_each(|&at| kept.keep(at));
        kept.number();
        stacks.iter_mut().flatten().for_each(|at| *at = kept.place(*at));
        kept.retain(&mut identities.locations);
        kept.retain(&mut identities.qualities);
        kept.retain(locations);
        kept.retain::<LocationDef>(&mut batch.locations);
        batch.stacks = stacks;
        let mut functions = Kept::new(batch.functions.iter().map(|_| false));
        let mut mappings = Kept::new(batch.mappings.iter().map(|_| false));
        for location in &batch.locations {
            location.lines.iter().for_each(|line| functions.keep(line.function));
            location.mapping.into_iter().for_each(|at| mappings.keep(at));
        }
        functions.number();
        mappings.number();
        for location in &mut batch.locations {
            let lines = location.lines.iter_mut();
            lines.for_each(|line| line.function = functions.place(line.function));
            location.mapping = location.mapping.map(|at| mappings.place(at));
        }
        functions.retain::<FunctionDef>(&mut batch.functions);
        mappings.retain::<MappingDef>(&mut batch.mappings);
    }
}

/// Where the stacks of a batch are, for one service after the other: a table of all stacks for each of a thousand services
/// would be hundreds of megabytes.
#[derive(Debug)]
pub(super) struct Places {
    /// [`UNKNOWN`] until it is set.
    pub(super) of: Vec<u32>,
    set: Vec<usize>,
    service: Option<u32>,
}

impl Places {
    pub(super) fn new(stacks: usize) -> Self {
        Self { of: vec![UNKNOWN; stacks], set: Vec::new(), service: None }
    }

    /// Forgets what was set for another service.
    pub(super) fn turn_to(&mut self, service: Option<u32>) {
        if self.service != service {
            self.set.drain(..).for_each(|stack| self.of[stack] = UNKNOWN);
            self.service = service;
        }
    }

    pub(super) fn set(&mut self, stack: usize, place: u32) {
        self.of[stack] = place;
        self.set.push(stack);
    }
}

/// Adds to a table; answers its number there.
fn number_of<T>(table: &mut Vec<T>, entry: T) -> u32 {
    table.push(entry);
    u32::try_from(table.len() - 1).unwrap_or(UNKNOWN)
}

/// Which entries of a table are kept, and where they stand then.
struct Kept(Vec<u32>);

impl Kept {
    fn new(kept: impl Iterator<Item = bool>) -> Self {
        Self(kept.map(|kept| if kept { 0 } else { UNKNOWN }).collect())
    }

    fn keep(&mut self, at: u32) {
        self.0[at as usize] = 0;
    }

    fn number(&mut self) {
        let kept = self.0.iter_mut().filter(|place| **place != UNKNOWN);
        (0..).zip(kept).for_each(|(number, place)| *place = number);
    }

    fn place(&self, at: u32) -> u32 {
        self.0[at as usize]
    }

    fn retain<T>(&self, table: &mut Vec<T>) {
        let mut places = self.0.iter();
        table.retain(|_| places.next().is_some_and(|&place| place != UNKNOWN));
        // It may wait long, and few of many entries are left.
        table.shrink_to_fit();
    }
}

/// The batch and its known stacks in the bytes that [`Prepared::encode`] made.
pub(super) fn decode(bytes: &[u8]) -> Result<(WriteBatch, Vec<KnownStack>), Malformed> {
    let mut reader = Reader::new(bytes);
    let known = decode_known(&mut reader)?;
    Ok((batch::decode(reader.rest(), known.len())?, known))
}

fn encode_known(known: &[KnownStack], writer: &mut Writer) {
    writer.length(known.len());
    for stack in known {
        writer.wide(stack.hash);
        writer.number(stack.node.into());
    }
}

fn decode_known(reader: &mut Reader<'_>) -> Result<Vec<KnownStack>, Malformed> {
    let count = reader.count(17)?;
    (0..count).map(|_| Ok(KnownStack { hash: reader.wide()?, node: reader.small()? })).collect()
}
