//! One row per naming that a runtime is known to use. `ID`, `OUTER`, `U-`, `U_`, `T32` stand for values
//! of the right shape.

use super::{CgroupIdentity, ContainerRuntime};

const ID: &str = "4ca2b8b5a1d3c4f6e7089a1b2c3d4e5f60718293a4b5c6d7e8f9000112233445";
const OUTER: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";
const UID: &str = "01234567-89ab-cdef-0123-456789abcdef";
const STATIC_UID: &str = "0123456789abcdef0123456789abcdef";
const TASK: &str = "89abcdef0123456789abcdef01234567";

fn expand(text: &str) -> String {
    text.replace("OUTER", OUTER)
        .replace("ID", ID)
        .replace("U-", UID)
        .replace("U_", &UID.replace('-', "_"))
        .replace("T32", TASK)
}

#[track_caller]
fn check(text: &str, runtime: Option<ContainerRuntime>, pod: &str, container: &str, unit: &str) {
    let found = CgroupIdentity::parse(&expand(text));
    let option = |value: &str| (!value.is_empty()).then(|| expand(value));
    assert_eq!(found.container_id, option(container), "container of {text}");
    assert_eq!(found.pod_uid, option(pod), "pod of {text}");
    assert_eq!(found.unit, option(unit), "unit of {text}");
    assert_eq!(found.runtime, runtime, "runtime of {text}");
}

use ContainerRuntime::{Containerd, Crio, Docker, Ecs, Podman};

#[test]
fn kubernetes_with_the_cgroupfs_driver() {
    check("0::/kubepods/burstable/podU-/ID", None, "U-", "ID", "");
    check("0::/kubepods/besteffort/podU-/ID", None, "U-", "ID", "");
    check("0::/kubepods/podU-/ID", None, "U-", "ID", "");
    check("8:memory:/kubepods/burstable/podU-/ID", None, "U-", "ID", "");
    // Talos.
    check("0::/podruntime/kubelet", None, "", "", "");
    check("0::/system/apid", None, "", "", "");
}

#[test]
fn kubernetes_with_the_systemd_driver() {
    let slice = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_.slice";
    let rows = [
        (format!("{slice}/cri-containerd-ID.scope"), Some(Containerd), "U-", "ID"),
        (
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_.slice/cri-containerd-ID.scope".into(),
            Some(Containerd),
            "U-",
            "ID",
        ),
        (
            "0::/kubepods.slice/kubepods-podU_.slice/cri-containerd-ID.scope".into(),
            Some(Containerd),
            "U-",
            "ID",
        ),
        (format!("{slice}/crio-ID.scope"), Some(Crio), "U-", "ID"),
        (format!("{slice}/crio-ID.scope/container"), Some(Crio), "U-", "ID"),
        (format!("{slice}/crio-conmon-ID.scope"), None, "U-", ""),
        (
            "1:cpu,cpuacct:/kubepods.slice/kubepods-podU_.slice/docker-ID.scope".into(),
            Some(Docker),
            "U-",
            "ID",
        ),
    ];
    for (text, runtime, pod, container) in rows {
        check(&text, runtime, pod, container, "");
    }
}

#[test]
fn kubernetes_oddities() {
    check(
        "0::/system.slice/containerd.service/kubepods-besteffort-podU_.slice:cri-containerd:ID",
        Some(Containerd),
        "U-",
        "ID",
        "",
    );
    check(
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0123456789abcdef0123456789abcdef.slice/cri-containerd-ID.scope",
        Some(Containerd),
        STATIC_UID,
        "ID",
        "",
    );
}

#[test]
fn nested_hosts_put_their_own_id_first() {
    check(
        "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-podU_.slice/cri-containerd-ID.scope",
        Some(Containerd),
        "U-",
        "ID",
        "",
    );
    check("0::/kubelet/kubepods/burstable/podU-/ID", None, "U-", "ID", "");
    check(
        "0::/system.slice/docker-OUTER.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_.slice/cri-containerd-ID.scope",
        Some(Containerd),
        "U-",
        "ID",
        "",
    );
    check("0::/docker/OUTER/kubelet/kubepods/podU-/ID", None, "U-", "ID", "");
}

#[test]
fn docker_podman_and_containerd_alone() {
    check("0::/docker/ID", Some(Docker), "", "ID", "");
    check("13:pids:/docker/ID", Some(Docker), "", "ID", "");
    check("0::/system.slice/docker-ID.scope", Some(Docker), "", "ID", "");
    let user = "0::/user.slice/user-1000.slice/user@1000.service/user.slice";
    check(&format!("{user}/docker-ID.scope"), Some(Docker), "", "ID", "");
    check("0::/libpod_parent/libpod-ID", Some(Podman), "", "ID", "");
    check("0::/machine.slice/libpod-ID.scope/container", Some(Podman), "", "ID", "");
    check(
        "0::/machine.slice/machine-libpod_pod_OUTER.slice/libpod-ID.scope",
        Some(Podman),
        "",
        "ID",
        "",
    );
    check(&format!("{user}/libpod-ID.scope/container"), Some(Podman), "", "ID", "");
    check("0::/machine.slice/libpod-conmon-ID.scope", None, "", "", "");
    check("0::/k8s.io/plain1", None, "", "", "");
    check("0::/default/redis", None, "", "", "");
    check("0::/system.slice/nerdctl-ID.scope", Some(Containerd), "", "ID", "");
}

#[test]
fn other_orchestrators() {
    check("0::/ecs/T32/ID", None, "", "ID", "");
    check("0::/ecstasks.slice/ecstasks-T32.slice/docker-ID.scope", Some(Docker), "", "ID", "");
    check("0::/ecs/T32/T32-1234567890", Some(Ecs), "", "T32-1234567890", "");
    check("0::/nomad.slice/share.slice/T32.web.scope", None, "", "", "");
    for (text, name) in [
        ("0::/lxc.payload.web1/system.slice/nginx.service", "web1"),
        ("0::/machine.slice/systemd-nspawn@web2.service/payload", "web2"),
    ] {
        assert_eq!(CgroupIdentity::parse(text).container_name.as_deref(), Some(name), "{text}");
    }
    check("0::/lxc.payload.web1/system.slice/nginx.service", None, "", "", "nginx");
}

#[test]
fn units_and_sessions() {
    check("0::/system.slice/nginx.service", None, "", "", "nginx");
    check("0::/user.slice/user-1000.slice/session-1.scope", None, "", "", "");
    check("0::/user.slice/user-1000.slice/user@1000.service/init.scope", None, "", "", "");
    check(
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-thing.service",
        None,
        "",
        "",
        "app-thing",
    );
    check("0::/system.slice/docker-ID.scope/init.scope", Some(Docker), "", "ID", "");
    check("0::/system.slice/docker-ID.scope/system.slice/a.service", Some(Docker), "", "ID", "a");
    check("0::/system.slice/var-lib-docker-overlay2-ID-merged.mount", None, "", "", "");
}

#[test]
fn views_from_elsewhere() {
    check("0::/", None, "", "", "");
    check("0::/../../../kubepods/besteffort/podU-/ID", None, "U-", "ID", "");
    check("9:pids:/\n8:memory:/\n0::/kubepods/podU-/ID", None, "U-", "ID", "");
    check("0::/kubepods/burstable/podU-/ID (deleted)", None, "U-", "ID", "");
    check("0::/system.slice/docker.service\n4:memory:/docker/ID", Some(Docker), "", "ID", "");
    check("4:memory:/docker/OUTER\n0::/docker/ID", Some(Docker), "", "ID", "");
}

#[test]
fn nonsense_is_nobody() {
    for text in ["", "0", "0:", "0::", ":::::", "0::////", "x:y:pod", "0::/.slice/pod.slice"] {
        assert_eq!(CgroupIdentity::parse(text), CgroupIdentity::default(), "{text}");
    }
}
