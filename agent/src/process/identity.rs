//! Who a process is: executable, service, container. Asked once for each program that it runs, from
//! `/proc` while it lives, else from what its records, its sample and its parent tell.

use super::cgroup::CgroupIdentity;
use super::host::{Host, Task};
use super::instance::Instance;
use super::looks;
use super::service::KERNEL_SERVICE;
use crate::address::Pid;
use crate::bpf::RawSample;
use crate::clock::monotonic_now;
use crate::limits::{CGROUPS_MAX, IDENTITY_SETTLED_NS, PATH_BYTES_MAX, START_TOLERANCE_NS};
use crate::normalize::ProcessIdentity;
use crate::path::file_name;
use hashbrown::HashMap;
use std::sync::Arc;

/// What the table knows of a program.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) task: Task,
    start_time_ns: u64,
    /// The program is so new that its environment may not be in place yet.
    young: bool,
    comm: String,
    pub(super) executable: Option<String>,
    /// The executable was read just now, of whoever has the pid.
    pub(super) executable_unproven: bool,
    pub(super) kernel_thread: bool,
    forked_from: Option<Arc<ProcessIdentity>>,
}

impl Known {
    /// The program at place `program` of an instance.
    pub(super) fn of(pid: Pid, instance: &Instance, program: usize) -> Self {
        let image = instance.images.get(program);
        let age_ns = image.map_or(0, |image| monotonic_now().since(image.since));
        Self {
            task: Task { pid, tid: instance.living },
            start_time_ns: instance.start_time_ns,
            young: age_ns < IDENTITY_SETTLED_NS,
            comm: image.map(|image| image.comm.clone()).unwrap_or_default(),
            executable: image.and_then(|image| image.executable.clone()),
            executable_unproven: false,
            kernel_thread: instance.kernel_thread,
            forked_from: image.and_then(|image| image.forked_from.clone()),
        }
    }
}

/// What is known of the surroundings of a program.
#[derive(Debug)]
pub(super) enum Surroundings {
    /// What `/proc` said.
    Told(looks::Surroundings),
    /// It has not answered yet.
    Late,
    /// `/proc` does not speak of this program any more.
    Gone,
}

/// Makes identities; remembers the containers of cgroups for processes that are gone.
#[derive(Debug)]
pub(super) struct Identifier {
    host: Arc<dyn Host>,
    cgroups: HashMap<u64, CgroupIdentity>,
}

impl Identifier {
    pub(super) fn new(host: Arc<dyn Host>) -> Self {
        Self { host, cgroups: HashMap::new() }
    }

    /// Who `known` is, and whether that is final. An executable that was read of another program is taken out of
    /// `known`.
    pub(super) fn identify(
        &mut self,
        known: &mut Known,
        parent: Option<&ProcessIdentity>,
        sample: Option<&RawSample>,
        surroundings: Surroundings,
    ) -> (Arc<ProcessIdentity>, bool) {
        let Task { pid, .. } = known.task;
        if known.kernel_thread {
            return (Arc::new(kernel_thread(pid, known.start_time_ns)), true);
        }
        // A fork runs its parent's program with its parent's environment.
        if let Some(from) = &known.forked_from {
            let start_time_ns = known.start_time_ns;
            let own = ProcessIdentity { pid, start_time_ns, ..from.as_ref().clone() };
            return (Arc::new(own), true);
        }
        let (mut service, mut cgroup, mut settled) = (None, None, true);
        if let Surroundings::Told(told) = surroundings {
            // In the middle of an exec the environment is empty, and the executable may not be mapped.
            settled = !known.young || (told.service.is_ok() && known.executable.is_some());
            (service, cgroup) = (told.service.ok().flatten(), told.cgroup);
            // What was just read is of this process only if the pid is still its own.
            let same = self.host.status(pid).is_ok_and(|status| {
                status.start_time_ns.abs_diff(known.start_time_ns) < START_TOLERANCE_NS
            });
            if !same {
                (service, cgroup, settled) = (None, None, true);
                if known.executable_unproven {
                    known.executable = None;
                }
            }
        } else if matches!(surroundings, Surroundings::Late) {
            settled = false;
        }
        // On version 1 every process has the root's id.
        let cgroup_id = sample.map(|sample| sample.cgroup_id).filter(|&id| id > 1);
        match (&cgroup, cgroup_id) {
            (Some(found), Some(id)) => self.remember(id, found),
            (None, Some(id)) => cgroup = self.cgroups.get(&id).cloned(),
            _ => {}
        }
        let comm = if known.comm.is_empty() { sample_comm(sample) } else { known.comm.clone() };
        let executable_path = bounded(known.executable.clone().unwrap_or_default());
        let executable_name = match file_name(&executable_path) {
            "" => comm,
            name => name.to_owned(),
        };
        let container_id = match &cgroup {
            Some(cgroup) => cgroup.container_id.clone(),
            None => parent.and_then(|parent| parent.container_id.clone()),
        };
        let group = cgroup.and_then(|cgroup| cgroup.unit.or(cgroup.container_name));
        let identity = ProcessIdentity {
            pid,
            start_time_ns: known.start_time_ns,
            service_name: service.or(group).unwrap_or_else(|| executable_name.clone()),
            executable_name,
            executable_path,
            container_id,
            kernel_thread: false,
        };
        (Arc::new(identity), settled)
    }

    fn remember(&mut self, id: u64, cgroup: &CgroupIdentity) {
        if self.cgroups.len() >= CGROUPS_MAX {
            self.cgroups.clear(); // Cheap to learn again: the next sample of a living process does it.
        }
        self.cgroups.insert(id, cgroup.clone());
    }
}

fn kernel_thread(pid: Pid, start_time_ns: u64) -> ProcessIdentity {
    ProcessIdentity {
        pid,
        start_time_ns,
        // One name for all: their own names (`kworker/3:1-events`) change as they work, and travel as
        // thread names.
        executable_name: KERNEL_SERVICE.to_owned(),
        executable_path: String::new(),
        service_name: KERNEL_SERVICE.to_owned(),
        container_id: None,
        kernel_thread: true,
    }
}

fn sample_comm(sample: Option<&RawSample>) -> String {
    sample.map(|sample| String::from_utf8_lossy(&sample.comm).into_owned()).unwrap_or_default()
}

fn bounded(path: String) -> String {
    match path.len() {
        0..=PATH_BYTES_MAX => path,
        _ => path.chars().take(PATH_BYTES_MAX / 4).collect(),
    }
}
