//! The one thread that writes: it takes what waits, writes it to the WAL with one sync, adds it to the
//! memtable and answers. Everything between two syncs is one group; it becomes durable together.

use super::codec::Writer as Bytes;
use super::deletions::Numbered;
use super::engine::Engine;
use super::flushes::Flushes;
use super::prepared::Prepared;
use super::recall;
use super::replay::{self, RECORD_DELETION, RECORD_NAMES, RECORD_PREPARED, Record, Step};
use super::seen::Seen;
use super::wal::{self, Replayed, Wal};
use crate::limits;
use crate::profile::{ProfileId, ProjectName};
use crate::store::{Ack, Deletion, StoreError};
use hashbrown::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How often the writer looks whether an hour is over.
const TICK: Duration = Duration::from_millis(500);

/// A batch that waits to be written.
pub(super) struct Append {
    pub(super) prepared: Prepared,
    pub(super) encoded: Vec<u8>,
    /// Its share of the queue.
    pub(super) queue_bytes: u64,
    pub(super) reply: oneshot::Sender<Result<Stored, StoreError>>,
}

/// Names that wait to be written.
pub(super) struct Naming {
    pub(super) prepared: Prepared,
    pub(super) encoded: Vec<u8>,
    /// Their share of the queue.
    pub(super) queue_bytes: u64,
    pub(super) reply: oneshot::Sender<Result<(), StoreError>>,
}

/// A batch is stored.
pub(super) struct Stored {
    pub(super) ack: Ack,
    /// What is left of it. To free a thousand texts takes longer than to store the batch: whoever waits for the
    /// answer does it, not the writer.
    pub(super) left: (Prepared, Vec<u8>),
}

/// What the writer is asked to do.
pub(super) enum Command {
    Append(Box<Append>),
    /// Hide what is stored so far.
    Delete(Box<Deletion>, oneshot::Sender<Result<(), StoreError>>),
    /// Learn names.
    Name(Box<Naming>),
    /// Write everything out.
    Flush(oneshot::Sender<Result<(), StoreError>>),
}

/// The thread's state.
pub(super) struct Writer {
    pub(super) engine: Arc<Engine>,
    pub(super) wal: Wal,
    pub(super) seen: Seen,
    pub(super) queue_bytes: Arc<AtomicU64>,
    pub(super) flushes: Flushes,
    /// The last number that a deletion was given here, whether or not it was written.
    pub(super) deletion_number: u64,
}

/// A batch of the group: what of it is new, and whom to tell.
struct Staged {
    append: Box<Append>,
    dropped: Vec<bool>,
    ack: Ack,
    now_ms: i64,
}

impl Writer {
    /// Serves until every sender is gone, then writes everything out.
    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        loop {
            let mut next = match commands.recv_timeout(TICK) {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            while let Some(command) = next.take() {
                match command {
                    Command::Flush(reply) => {
                        let result = self.flush();
                        // Nobody listens if the caller gave up; the flush happened all the same.
                        drop(reply.send(result));
                    }
                    Command::Delete(deletion, reply) => {
                        let result = self.delete(*deletion);
                        // Nobody listens if the caller gave up; it is deleted all the same.
                        drop(reply.send(result));
                    }
                    Command::Name(naming) => self.name(*naming),
                    Command::Append(first) => next = self.group(first, commands),
                }
            }
            self.flushes.poll(&mut self.wal, &mut self.seen);
        }
        if let Err(error) = self.flush() {
            tracing::error!(%error, "cannot write segments at the end; the WAL has everything");
        }
    }

    /// Writes one group; answers the command that ended it, if one did.
    fn group(&mut self, first: Box<Append>, commands: &Receiver<Command>) -> Option<Command> {
        let mut records = Vec::new();
        let mut staged: Vec<Staged> = Vec::new();
        let mut fresh = HashSet::new();
        let mut next = Some(first);
        let mut after = None;
        while let Some(append) = next.take() {
            self.queue_bytes.fetch_sub(append.queue_bytes, Ordering::Relaxed);
            match self.stage(&append, &mut fresh, &mut records) {
                Ok((dropped, ack, now_ms)) => {
                    staged.push(Staged { append, dropped, ack, now_ms });
                }
                Err(error) => drop(append.reply.send(Err(error))),
            }
            if records.len() >= limits::WAL_GROUP_BYTES_MAX {
                break;
            }
            match commands.try_recv() {
                Ok(Command::Append(append)) => next = Some(append),
                Ok(command) => after = Some(command),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
        }
        let written = if records.is_empty() { Ok(()) } else { self.wal.write(&records) };
        match written {
            Ok(()) => {
                self.engine.counters.wal_bytes.fetch_add(records.len() as u64, Ordering::Relaxed);
                staged.into_iter().for_each(|staged| self.commit(staged));
            }
            Err(error) => {
                tracing::error!(%error, batches = staged.len(), "cannot write the WAL");
                for staged in staged {
                    let copy = std::io::Error::new(error.kind(), error.to_string());
                    let error = StoreError::io("writing the WAL in", &self.engine.dir, copy);
                    drop(staged.append.reply.send(Err(error)));
                }
            }
        }
        after
    }

    /// Makes a deletion durable, then hides what it takes.
    fn delete(&mut self, deletion: Deletion) -> Result<(), StoreError> {
        let known = Arc::clone(&self.engine.view().deletions);
        if known.get(deletion.id).is_some() {
            return Ok(());
        }
        if known.pending().count() >= limits::DELETIONS_PENDING_MAX {
            return Err(StoreError::Busy("too many deletions are under way".to_owned()));
        }
        // A record that could not be cut after a failed write may be found again: its number is never another one's.
        self.deletion_number = self.deletion_number.max(known.number()) + 1;
        let one = Numbered { number: self.deletion_number, deletion, is_erased: false };
        let mut payload = Bytes::default();
        one.encode(&mut payload);
        self.log(RECORD_DELETION, &payload.bytes)?;
        self.engine.hide(one);
        Ok(())
    }

    /// Makes names durable, then learns them and answers.
    fn name(&mut self, naming: Naming) {
        let Naming { mut prepared, encoded, queue_bytes, reply } = naming;
        self.queue_bytes.fetch_sub(queue_bytes, Ordering::Relaxed);
        let room = self.engine.check_room(&prepared.batch);
        let result = room.and_then(|()| self.log(RECORD_NAMES, &encoded));
        if result.is_ok() {
            self.engine.name(&mut prepared);
        }
        // Nobody listens if the caller gave up; the names are learnt all the same.
        drop(reply.send(result));
    }

    /// Makes one record durable.
    fn log(&mut self, kind: u8, payload: &[u8]) -> Result<(), StoreError> {
        let mut record = Vec::new();
        self.wal.frame(kind, payload, &mut record)?;
        let written = self.wal.write(&record);
        written.map_err(|error| StoreError::io("writing the WAL in", &self.engine.dir, error))?;
        self.engine.counters.wal_bytes.fetch_add(record.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Decides what of a batch is new and frames its record.
    fn stage(
        &self,
        append: &Append,
        fresh: &mut HashSet<(ProjectName, ProfileId)>,
        records: &mut Vec<u8>,
    ) -> Result<(Vec<bool>, Ack, i64), StoreError> {
        let batch = &append.prepared.batch;
        self.engine.check_room(batch)?;
        let project = &batch.project;
        let mut ack = Ack::default();
        let mut dropped = Vec::with_capacity(batch.profiles.len());
        let mut added = Vec::new();
        for (at, profile) in batch.profiles.iter().enumerate() {
            let is_new = profile.id == ProfileId::None
                || !self.seen.contains(project, &profile.id)
                    && fresh.insert((project.clone(), profile.id));
            if is_new {
                ack.stored += 1;
                added.push(profile.id);
            } else {
                ack.repeated.push(at);
            }
            dropped.push(!is_new);
        }
        let now_ms = self.engine.clock.now_ms();
        if ack.stored > 0 {
            let payload = encode_record(now_ms, &dropped, &append.encoded);
            if let Err(error) = self.wal.frame(RECORD_PREPARED, &payload, records) {
                for id in added {
                    fresh.remove(&(project.clone(), id));
                }
                return Err(error);
            }
        }
        Ok((dropped, ack, now_ms))
    }

    /// Adds a durable batch to the memtable and answers.
    fn commit(&mut self, staged: Staged) {
        let Staged { append, dropped, ack, now_ms } = staged;
        let Append { mut prepared, encoded, reply, .. } = *append;
        self.take(&mut prepared, &dropped, now_ms);
        self.engine.counters.profiles_duplicate.fetch_add(ack.duplicates(), Ordering::Relaxed);
        // Nobody listens if the connection is gone; the batch is stored all the same.
        drop(reply.send(Ok(Stored { ack, left: (prepared, encoded) })));
    }

    fn take(&mut self, prepared: &mut Prepared, dropped: &[bool], now_ms: i64) {
        let batch = &prepared.batch;
        for (profile, _) in batch.profiles.iter().zip(dropped).filter(|&(_, &dropped)| !dropped) {
            self.seen.mark(&batch.project, &profile.id, now_ms);
        }
        self.engine.apply(prepared, dropped);
    }

    /// Takes all records of the WAL at the start; writes segments between two files where that is due.
    pub(super) fn replay_all(&mut self, dir: &Path, floor: u64) -> Result<(), StoreError> {
        let files = Arc::clone(&self.engine.files);
        let mut lost_stacks = 0;
        let paths = wal::list(&*files, dir, floor)?;
        let replayed = replay::run(&*files, &paths, |step| match step {
            Step::Records(records) => {
                records.into_iter().for_each(|record| lost_stacks += self.replay(record));
                Ok(())
            }
            Step::FileEnd(sequence) => {
                self.wal = Wal::new(Arc::clone(&files), dir.to_owned(), sequence + 1);
                let is_due = self.engine.view().active.bytes() >= limits::MEMTABLE_FREEZE_BYTES;
                if is_due { self.flush() } else { Ok(()) }
            }
        })?;
        let Replayed { records, torn_bytes, damaged } = replayed;
        tracing::info!(records, torn_bytes, damaged, lost_stacks, "replayed the WAL");
        self.engine.counters.wal_bytes.store(wal::bytes(dir), Ordering::Relaxed);
        Ok(())
    }

    /// Takes a record of the WAL at the start; answers how many of its stacks are lost.
    fn replay(&mut self, record: Record) -> u64 {
        let (mut prepared, dropped, now_ms) = match record {
            Record::Deletion(one) => {
                self.engine.hide(*one);
                return 0;
            }
            Record::Names(mut prepared) => {
                self.engine.name(&mut prepared);
                return 0;
            }
            Record::Batch { prepared, dropped, now_ms } => (prepared, dropped, now_ms),
        };
        // A batch whose acknowledgement failed may stand in the log before its retry.
        let mut fresh = HashSet::new();
        let mut twice = dropped;
        let batch = &prepared.batch;
        for (profile, dropped) in batch.profiles.iter().zip(&mut twice) {
            let known = self.seen.contains(&batch.project, &profile.id)
                || profile.id != ProfileId::None && !fresh.insert(profile.id);
            *dropped = *dropped || known;
        }
        let lost_stacks = recall::find(&self.engine, &mut prepared);
        self.take(&mut prepared, &twice, now_ms);
        lost_stacks
    }

    /// Writes everything out and waits for it.
    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        self.flushes.flush_all(&mut self.wal, &mut self.seen)
    }
}

fn encode_record(now_ms: i64, dropped: &[bool], encoded: &[u8]) -> Vec<u8> {
    let mut bytes = Bytes::default();
    bytes.signed(now_ms);
    bytes.length(dropped.len());
    let positions = dropped.iter().enumerate().filter_map(|(at, &dropped)| dropped.then_some(at));
    let positions: Vec<usize> = positions.collect();
    bytes.length(positions.len());
    positions.into_iter().for_each(|at| bytes.length(at));
    bytes.raw(encoded);
    bytes.bytes
}
