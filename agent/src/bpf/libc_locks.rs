//! The programs of the locks of C libraries: loads them and attaches them to files. Where a file is to be probed,
//! `probes` says; what they leave, the programs of waits find.

use super::BpfError;
use super::probe_programs::ProbePrograms;
use super::user_probe::{Attached, ProbeProgram};
use crate::probes::libc::WaitingCall;
use agent_ebpf::LockForm;
use aya::Ebpf;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Attaches the programs. Clones share them.
#[derive(Clone, Debug)]
pub struct LibcProbes {
    /// By form.
    programs: Arc<[ProbeProgram; LockForm::ALL.len()]>,
}

impl LibcProbes {
    /// Loads the programs. A kernel that refuses them costs this feature alone.
    pub(super) fn load(ebpf: &mut Ebpf, programs: &ProbePrograms) -> Result<Self, BpfError> {
        let mut load = |form| {
            let name = match form {
                LockForm::GlibcMutex => "glibc_mutex_wait",
                LockForm::GlibcRwLock => "glibc_rwlock_wait",
                LockForm::MuslMutex => "musl_mutex_wait",
                LockForm::MuslRwLock => "musl_rwlock_wait",
            };
            programs.load(ebpf, name)
        };
        let [first, second, third, fourth] = LockForm::ALL;
        let programs = [load(first)?, load(second)?, load(third)?, load(fourth)?];
        Ok(Self { programs: Arc::new(programs) })
    }

    /// True if all places of a file cost no more than one.
    #[must_use]
    pub fn are_linked(&self) -> bool {
        self.programs.iter().all(ProbeProgram::is_linked)
    }

    /// Probes the next of these calls in `file`, in every process that maps it, now and later, as long as `to` is there: all
    /// of one form, or one call where the kernel takes each by itself. They are taken out of `calls`.
    ///
    /// # Errors
    /// If the kernel refuses a place.
    pub fn attach_next(
        &self,
        file: BorrowedFd<'_>,
        calls: &mut Vec<WaitingCall>,
        to: &mut Attached,
    ) -> Result<(), BpfError> {
        let Some(last) = calls.pop() else { return Ok(()) };
        let program = &self.programs[last.form as usize - 1];
        let mut places = vec![last.place];
        if program.is_linked() {
            let others = calls.extract_if(.., |call| call.form == last.form);
            places.extend(others.map(|call| call.place));
        }
        program.attach(file, &places, to)
    }
}
