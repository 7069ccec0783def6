//! Which kernels the agent runs on, and why it refuses the others. What a kernel can do beyond that is
//! found by trying, in `bpf` and `doctor`.

use crate::limits::{CPU_INFO_BYTES_MAX, KERNEL_CONFIG_BYTES_MAX};
use std::fmt;
use std::io::Read;
use std::path::Path;

/// Oldest kernel: ring buffers for BPF (5.8) and the program forms that were tested on 5.10.
pub const OLDEST: KernelVersion = KernelVersion { major: 5, minor: 10, patch: 0 };

/// The flag that overrides [`Refusal::LocksUp`], as it is told to a person.
pub const OVERRIDE_FLAG: &str = "--allow-kernel";

/// A kernel version without its distributor's suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    /// `6` of `6.1.36`.
    pub major: u32,
    /// `1` of `6.1.36`.
    pub minor: u32,
    /// `36` of `6.1.36`.
    pub patch: u32,
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl KernelVersion {
    /// Reads the front of a text like `6.18.44-fc-v595` or `6.1-rc3`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let mut numbers = text.get(..end)?.split('.');
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        let patch = numbers.next().and_then(|patch| patch.parse().ok()).unwrap_or(0);
        Some(Self { major, minor, patch })
    }

    /// The version of the sources. Distributors freeze the patch number in the release (Debian's 6.1.192
    /// calls itself `6.1.0-49-amd64`) and state the true one elsewhere: Debian in the build line
    /// (`uname -v`), Ubuntu in `/proc/version_signature`.
    #[must_use]
    pub fn of_sources(release: &str, build: &str, signature: &str) -> Option<Self> {
        let stated = Self::parse(release)?;
        let debian = build.split_once("Debian ").and_then(|(_, rest)| Self::parse(rest));
        let ubuntu = signature.split_whitespace().last().and_then(Self::parse);
        let same_series =
            |version: &Self| (version.major, version.minor) == (stated.major, stated.minor);
        [debian, ubuntu].into_iter().flatten().filter(same_series).chain([stated]).max()
    }

    /// True for kernels on which a read of user memory in the interrupt of a perf event may wait for a
    /// lock that the interrupted code holds (`vmap_area_lock`, taken by the hardened user copy checks
    /// since 5.19; fixed in 6.1.36, 6.3.10 and 6.4). The whole machine stands still.
    #[must_use]
    pub const fn locks_up_on_user_reads(self) -> bool {
        match (self.major, self.minor) {
            (5, 19) | (6, 0 | 2) => true,
            (6, 1) => self.patch < 36,
            (6, 3) => self.patch < 10,
            _ => false,
        }
    }

    /// True for kernels on which one link takes a program of probes to many places of a file, and away from them at one time
    /// (`BPF_TRACE_UPROBE_MULTI`). There are such links since 6.6, but two changes came with 6.12: before, a link that found
    /// no descriptor left its probes in freed memory (`bpf_uprobe_multi_link_attach`, commit 5fe6e308abae), and now a link
    /// waits once for all its places (`uprobe_unregister_sync`, commit 04b01625da13). Distributions have either or not. How
    /// long a link of 6.6 to 6.11 takes to go was not measured.
    #[must_use]
    pub const fn links_probes(self) -> bool {
        self.major > 6 || self.major == 6 && self.minor >= 12
    }

    /// Of the kernel that runs, as it calls itself.
    #[must_use]
    pub fn running() -> Option<Self> {
        Self::parse(&rustix::system::uname().release().to_string_lossy())
    }
}

/// What the decision needs to know of the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// `uname -m`.
    pub machine: String,
    /// `uname -r`.
    pub release: String,
    /// Version of the sources, if it could be read.
    pub version: Option<KernelVersion>,
    /// Whether copies from user space are checked (`CONFIG_HARDENED_USERCOPY`); `None` if the
    /// configuration cannot be read, which counts as yes.
    pub hardened_usercopy: Option<bool>,
}

/// Why C libraries are not probed where programs may use shadow stacks. The kernel carries out a call that is probed by
/// itself, and from 6.6 to the fix of August 2025 pushes the return address on the normal stack alone
/// (`arch/x86/kernel/uprobes.c`, `emulate_push_stack`): the return then kills the program. Kernels of distributions have the
/// fix or not, whatever they call themselves, so none is trusted.
pub const SHADOW_STACKS: &str = "programs may use shadow stacks here (user_shstk in /proc/cpuinfo, or it \
    cannot be read), which kernels without a fix of August 2025 forget at a call that is probed";

/// Why C libraries are not probed by default where each place is attached by itself: see [`KernelVersion::links_probes`].
pub const NO_LINKS: &str = "the kernel has no link to all places of a file, which Linux 6.12 has, and \
    takes each place away by itself when the agent ends (--lock-probes waiting probes them all the same)";

/// Why the agent does not start on this kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The programs are for another processor.
    #[error("no programs for {machine} yet: this version samples x86_64 only")]
    Architecture {
        /// `uname -m`.
        machine: String,
    },
    /// The version has no meaning.
    #[error("cannot read the kernel version from {release:?}")]
    VersionUnknown {
        /// `uname -r`.
        release: String,
    },
    /// Older than [`OLDEST`].
    #[error("Linux {version} is too old: {OLDEST} or newer is needed")]
    TooOld {
        /// The kernel.
        version: KernelVersion,
    },
    /// A kernel that may stand still when it is sampled.
    #[error(
        "Linux {version} can lock up the whole machine when user stacks are read (hardened usercopy, \
         fixed in 6.1.36, 6.3.10 and 6.4): update it, or accept the risk with {OVERRIDE_FLAG}"
    )]
    LocksUp {
        /// The kernel.
        version: KernelVersion,
    },
}

impl KernelFacts {
    /// Asks the running kernel; `proc_root` is where the host's procfs is mounted.
    #[must_use]
    pub fn read(proc_root: &Path) -> Self {
        let name = rustix::system::uname();
        let release = name.release().to_string_lossy().into_owned();
        let build = name.version().to_string_lossy();
        let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let version = KernelVersion::of_sources(
            &release,
            &build,
            &text(&proc_root.join("version_signature")),
        );
        let off = hardening_off_at_boot(&text(&proc_root.join("cmdline")));
        let configured = configuration(proc_root, &release)
            .map(|text| text.lines().any(|line| line == "CONFIG_HARDENED_USERCOPY=y"));
        Self {
            machine: name.machine().to_string_lossy().into_owned(),
            hardened_usercopy: if off { Some(false) } else { configured },
            release,
            version,
        }
    }

    /// Decides whether sampling may start.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check(&self, ignore_defects: bool) -> Result<KernelVersion, Refusal> {
        if self.machine != "x86_64" {
            return Err(Refusal::Architecture { machine: self.machine.clone() });
        }
        let version = self
            .version
            .ok_or_else(|| Refusal::VersionUnknown { release: self.release.clone() })?;
        if version < OLDEST {
            return Err(Refusal::TooOld { version });
        }
        let hardened = self.hardened_usercopy.unwrap_or(true);
        if version.locks_up_on_user_reads() && hardened && !ignore_defects {
            return Err(Refusal::LocksUp { version });
        }
        Ok(version)
    }
}

/// `hardened_usercopy=off` among the boot parameters (admin-guide/kernel-parameters).
fn hardening_off_at_boot(cmdline: &str) -> bool {
    let value = |word: &str| word.strip_prefix("hardened_usercopy=").map(str::to_owned);
    let last = cmdline.split_whitespace().filter_map(value).next_back();
    last.is_some_and(|value| matches!(value.as_str(), "off" | "0" | "n" | "N"))
}

/// True if C libraries may be probed, see [`SHADOW_STACKS`]: programs may use shadow stacks where CPU and kernel have them,
/// since 6.6, and no `nousershstk` was given at boot; what cannot be read counts as yes.
#[must_use]
pub fn allows_libc_probes(proc_root: &Path) -> bool {
    let cpus = std::fs::File::open(proc_root.join("cpuinfo"));
    let cpus = cpus.and_then(|file| bounded(file, CPU_INFO_BYTES_MAX)).ok();
    cpus.and_then(|text| offers_shadow_stacks(&text)) == Some(false)
}

/// What the flags of the first CPU say: the kernel shows them for all that it uses.
fn offers_shadow_stacks(cpuinfo: &str) -> Option<bool> {
    let flags = cpuinfo.lines().find_map(|line| {
        let (name, flags) = line.split_once(':')?;
        (name.trim_end() == "flags").then_some(flags)
    })?;
    Some(flags.split_whitespace().any(|flag| flag == "user_shstk"))
}

/// The configuration that the kernel was built with, from `/proc/config.gz` or `/boot`.
fn configuration(proc_root: &Path, release: &str) -> Option<String> {
    let packed = std::fs::File::open(proc_root.join("config.gz"));
    if let Ok(text) =
        packed.and_then(|file| bounded(flate2::read::GzDecoder::new(file), KERNEL_CONFIG_BYTES_MAX))
    {
        return Some(text);
    }
    let plain = std::fs::File::open(Path::new("/boot").join(format!("config-{release}")));
    plain.and_then(|file| bounded(file, KERNEL_CONFIG_BYTES_MAX)).ok()
}

fn bounded(reader: impl Read, max: u64) -> std::io::Result<String> {
    let mut text = String::new();
    reader.take(max).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{
        KernelFacts, KernelVersion, allows_libc_probes, hardening_off_at_boot, offers_shadow_stacks,
    };
    use std::path::Path;

    #[test]
    fn which_kernels_link_probes() {
        let links = |text| KernelVersion::parse(text).unwrap().links_probes();
        assert!(
            ["6.12.0", "6.12.0-124.8.1.el10_1.x86_64", "6.18.44", "7.0.1"].into_iter().all(links)
        );
        assert!(!["5.14.0-427.13.1.el9_4.x86_64", "6.1.192", "6.11.9"].into_iter().any(links));
    }

    #[test]
    fn versions_of_sources() {
        for (release, build, signature, expected) in [
            ("6.18.44-fc-v595", "#1 SMP PREEMPT_DYNAMIC @0", "", "6.18.44"),
            (
                "6.1.0-49-amd64",
                "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-1 (2026-10-01)",
                "",
                "6.1.192",
            ),
            ("6.1.0-9-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.27-1 (2023-05-08)", "", "6.1.27"),
            (
                "6.2.0-39-generic",
                "#40~22.04.1-Ubuntu SMP",
                "Ubuntu 6.2.0-39.40~22.04.1-generic 6.2.16\n",
                "6.2.16",
            ),
            ("5.14.0-427.13.1.el9_4.x86_64", "#1 SMP", "", "5.14.0"),
            ("6.1-rc3", "", "", "6.1.0"),
            ("7.3.4+deb14-amd64", "#1 SMP Debian 6.1.192-1", "", "7.3.4"),
        ] {
            let found = KernelVersion::of_sources(release, build, signature);
            assert_eq!(found.unwrap().to_string(), expected, "{release}");
        }
        for nonsense in ["", "x", "6", "6.", ".1", "99999999999.1"] {
            assert_eq!(KernelVersion::parse(nonsense), None, "{nonsense}");
        }
    }

    #[track_caller]
    fn check(version: &str, hardened: Option<bool>, ignore: bool, expected: &str) {
        let facts = KernelFacts {
            machine: "x86_64".into(),
            release: version.into(),
            version: KernelVersion::parse(version),
            hardened_usercopy: hardened,
        };
        let found = match facts.check(ignore) {
            Ok(_) => String::new(),
            Err(refusal) => refusal.to_string(),
        };
        assert!(
            found.contains(expected) && (expected.is_empty() == found.is_empty()),
            "{version}: {found}"
        );
        assert!(!found.contains('\n'), "one line: {found}");
    }

    #[test]
    fn kernels_that_lock_up_are_refused() {
        let locks_up = "can lock up the whole machine";
        for version in ["5.19.0", "5.19.17", "6.0.19", "6.1.35", "6.2.16", "6.3.9"] {
            check(version, Some(true), false, locks_up);
            check(version, None, false, locks_up);
            check(version, Some(false), false, "");
            check(version, Some(true), true, "");
        }
        for version in
            ["5.10.0", "5.15.100", "5.18.19", "6.1.36", "6.3.10", "6.4.0", "6.18.44", "7.3.4"]
        {
            check(version, Some(true), false, "");
        }
    }

    #[test]
    fn kernels_not_built_for_are_refused() {
        check("5.9.16", None, false, "too old");
        check("5.4.290", None, true, "too old");
        check("4.19.0", None, false, "too old");
        check("nonsense", None, false, "cannot read");
        let arm = KernelFacts {
            machine: "aarch64".into(),
            release: "6.12.1".into(),
            version: KernelVersion::parse("6.12.1"),
            hardened_usercopy: None,
        };
        assert!(arm.check(true).unwrap_err().to_string().contains("aarch64"));
    }

    #[test]
    fn boot_parameters() {
        assert!(hardening_off_at_boot("quiet hardened_usercopy=off ro"));
        assert!(!hardening_off_at_boot("hardened_usercopy=off hardened_usercopy=on"));
        assert!(!hardening_off_at_boot("xhardened_usercopy=off"));
    }

    #[test]
    fn this_kernel_is_read() {
        let facts = KernelFacts::read(Path::new("/proc"));
        assert!(facts.version.is_some(), "{facts:?}");
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        assert!(offers_shadow_stacks(&cpus).is_some(), "{cpus}");
    }

    #[test]
    fn c_libraries_are_probed_where_no_program_has_a_shadow_stack() {
        let cpu = |flags: &str| format!("processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: x\n\n");
        for (text, shadow_stacks, allowed) in [
            (cpu("fpu sse2 avx512_bf16 user_shstk"), Some(true), false),
            (cpu("user_shstk fpu"), Some(true), false),
            // What virtual machines are told of, and names that are like it.
            (cpu("fpu user_shstk_not no_user_shstk shstk ibt"), Some(false), true),
            (cpu(""), Some(false), true),
            (cpu("fpu") + "vmx flags\t: user_shstk\n", Some(false), true),
            ("processor\t: 0\nFeatures\t: fp asimd\n".to_owned(), None, false),
            (String::new(), None, false),
        ] {
            assert_eq!(offers_shadow_stacks(&text), shadow_stacks, "{text}");
            let proc_root = tempfile::tempdir().unwrap();
            std::fs::write(proc_root.path().join("cpuinfo"), &text).unwrap();
            assert_eq!(allows_libc_probes(proc_root.path()), allowed, "{text}");
        }
        assert!(!allows_libc_probes(Path::new("/dev/null")));
    }
}
