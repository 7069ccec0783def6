//! The programs of the locks of C libraries: loads them and attaches them to files. Where a file is to be probed,
//! `probes` says; what they leave, the programs of waits find.

use super::BpfError;
use super::user_probe::{self, Attached, ProbeKind};
use crate::probes::libc::WaitingCall;
use agent_ebpf::LockForm;
use aya::Ebpf;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Attaches the programs. Clones share them.
#[derive(Clone, Debug)]
pub struct LibcProbes {
    /// By form.
    programs: Arc<[OwnedFd; LockForm::ALL.len()]>,
    kind: ProbeKind,
}

impl LibcProbes {
    /// Loads the programs. A kernel that refuses them costs this feature alone.
    pub(super) fn load(ebpf: &mut Ebpf) -> Result<Self, BpfError> {
        let mut load = |form| {
            let name = match form {
                LockForm::GlibcMutex => "glibc_mutex_wait",
                LockForm::GlibcRwLock => "glibc_rwlock_wait",
                LockForm::MuslMutex => "musl_mutex_wait",
                LockForm::MuslRwLock => "musl_rwlock_wait",
            };
            user_probe::load_program(ebpf, name)
        };
        let [first, second, third, fourth] = LockForm::ALL;
        let programs = [load(first)?, load(second)?, load(third)?, load(fourth)?];
        Ok(Self { programs: Arc::new(programs), kind: ProbeKind::read()? })
    }

    /// Probes a call in `file` in every process that maps it, now and later, as long as `to` is there.
    ///
    /// # Errors
    /// If the kernel refuses the place.
    pub fn attach(
        &self,
        file: BorrowedFd<'_>,
        call: WaitingCall,
        to: &mut Attached,
    ) -> Result<(), BpfError> {
        let program = &self.programs[call.form as usize - 1];
        to.events.push(self.kind.attach(file, call.place, program)?);
        Ok(())
    }
}
