//! Container, pod and unit of a process, from the text of `/proc/PID/cgroup`. Reading that file is not
//! done here.
//!
//! Rules: every line is looked at and the most specific one wins, version 2 first among equals; in a
//! path the last component that matches counts, because a nested host (kind, docker-in-docker) puts
//! its own id first; `/..` at the front (another cgroup namespace) and ` (deleted)` mean nothing.

/// Who made the container, as far as the path says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerRuntime {
    /// containerd, through the Kubernetes runtime interface or nerdctl.
    Containerd,
    /// CRI-O.
    Crio,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// Amazon ECS.
    Ecs,
}

/// What a cgroup path says of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CgroupIdentity {
    /// `container.id`.
    pub container_id: Option<String>,
    /// Kubernetes pod uid, with dashes (static pods: 32 hex digits without).
    pub pod_uid: Option<String>,
    /// Which runtime the path names.
    pub runtime: Option<ContainerRuntime>,
    /// Name of a system container (LXC, systemd-nspawn) that has no id.
    pub container_name: Option<String>,
    /// systemd service unit without `.service`, inside the container if there is one.
    pub unit: Option<String>,
}

/// Prefixes that runtimes put before the id of a container, longest of a family first.
const PREFIXES: [(&str, ContainerRuntime); 5] = [
    ("cri-containerd-", ContainerRuntime::Containerd),
    ("nerdctl-", ContainerRuntime::Containerd),
    ("crio-", ContainerRuntime::Crio),
    ("docker-", ContainerRuntime::Docker),
    ("libpod-", ContainerRuntime::Podman),
];

impl CgroupIdentity {
    /// Reads the text of `/proc/PID/cgroup`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut best = Self::default();
        let mut best_rank = (0, false);
        for line in text.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(hierarchy), Some(_controllers), Some(path)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let found = Self::of_path(path);
            let rank = (found.specificity(), hierarchy == "0");
            if rank > best_rank {
                best_rank = rank;
                best = found;
            }
        }
        best
    }

    /// Reads one cgroup path.
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let mut found = Self::default();
        let mut previous = "";
        for component in path.split('/').filter(|part| !part.is_empty() && *part != "..") {
            found.take_component(component, previous);
            previous = component;
        }
        found
    }

    fn specificity(&self) -> u32 {
        u32::from(self.container_id.is_some()) * 4
            + u32::from(self.pod_uid.is_some()) * 2
            + u32::from(self.unit.is_some() || self.container_name.is_some())
    }

    fn take_component(&mut self, component: &str, previous: &str) {
        if let Some(uid) = pod_uid(component) {
            self.pod_uid = Some(uid);
        }
        if let Some((id, runtime)) = container_id(component, previous) {
            self.container_id = Some(id.to_owned());
            self.runtime = runtime;
            // What was before is the host of this container, not its inside.
            self.unit = None;
            self.container_name = None;
        } else if let Some(name) = system_container(component) {
            self.container_name = Some(name.to_owned());
            self.unit = None;
        } else if let Some(unit) = component.strip_suffix(".service")
            && !unit.is_empty()
            && !unit.starts_with("user@")
        {
            self.unit = Some(unit.to_owned());
        }
    }
}

/// The container id in one component, with the runtime if it is named.
fn container_id<'a>(
    component: &'a str,
    previous: &str,
) -> Option<(&'a str, Option<ContainerRuntime>)> {
    if is_hex(component, 64) {
        let runtime = match previous {
            "docker" => Some(ContainerRuntime::Docker),
            _ => None,
        };
        return Some((component, runtime));
    }
    // The driver mismatch of the kubelet: `…slice:cri-containerd:ID`.
    if let Some((front, id)) = component.rsplit_once(':')
        && is_hex(id, 64)
    {
        let runtime = front.ends_with("cri-containerd").then_some(ContainerRuntime::Containerd);
        return Some((id, runtime));
    }
    let name = component.strip_suffix(".scope").unwrap_or(component);
    for (prefix, runtime) in PREFIXES {
        if let Some(id) = name.strip_prefix(prefix)
            && is_hex(id, 64)
        {
            return Some((id, Some(runtime)));
        }
    }
    // Fargate: /ecs/TASK/TASK-1234567890, where TASK has 32 hex digits.
    let (task, number) = component.split_once('-')?;
    let fargate = task == previous
        && is_hex(task, 32)
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit());
    fargate.then_some((component, Some(ContainerRuntime::Ecs)))
}

/// The pod uid in one component: `podU`, `kubepods-burstable-podU.slice`, with `-` or `_` in U.
fn pod_uid(component: &str) -> Option<String> {
    let name = match component.split_once(".slice") {
        Some((name, rest)) if rest.is_empty() || rest.starts_with(':') => name,
        Some(_) => return None,
        None => component,
    };
    let at = name.rfind("pod").filter(|&at| at == 0 || name.as_bytes()[at - 1] == b'-')?;
    let uid = name[at + 3..].replace('_', "-");
    let dashed = uid.len() == 36
        && uid.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
    (dashed || is_hex(&uid, 32)).then_some(uid)
}

/// The name in `lxc.payload.NAME` and `systemd-nspawn@NAME.service`.
fn system_container(component: &str) -> Option<&str> {
    let lxc = component.strip_prefix("lxc.payload.");
    let nspawn =
        || component.strip_prefix("systemd-nspawn@").and_then(|rest| rest.strip_suffix(".service"));
    lxc.or_else(nspawn).filter(|name| !name.is_empty())
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests;
