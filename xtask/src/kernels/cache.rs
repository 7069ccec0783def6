//! Debian's kernels, in the cache by the digest of their package: `kernels/<sha256>/vmlinuz`, and beside it one of
//! its modules. Which is the
//! newest of a branch is asked once a week; old ones vanish from the mirrors, so what was had stays.

use super::branch::{BRANCHES, Branch};
use crate::command::{command, run, say};
use crate::setup::{self, PackageVersion, PrivateApt};
use crate::workspace::cache;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A kernel that can be booted.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) package: PackageVersion,
    pub(crate) image: PathBuf,
    /// [`MODULE`], if the mirror has it.
    pub(crate) module: Option<PathBuf>,
}

/// Every kernel of [`BRANCHES`] has it as a module, it needs no other one, and it works while it is loaded.
const MODULE: &str = "raid6_pq.ko";

/// Where Debian keeps kernels, oldest first.
const SUITES: [&str; 9] = [
    "bullseye",
    "bullseye-security",
    "bookworm",
    "bookworm-security",
    "trixie",
    "trixie-security",
    "trixie-backports",
    "sid",
    "experimental",
];

/// How long an answer to "which is the newest" holds.
const NEWEST_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// Packages of a branch that are tried: the newest may have gone from the mirror since the lists were made.
const PACKAGES_TRIED: usize = 3;

/// The kernels of all branches, each with the reason if it could not be had.
pub(crate) fn kernels() -> Result<Vec<(Branch, Result<Kernel>)>> {
    let folder = cache("kernels")?;
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let index = folder.join("newest.tsv");
    let known = known(&folder, &index);
    let is_whole = |kernel: &Kernel| kernel.module.is_some();
    let have_all = known.iter().all(|(_, kernel)| kernel.as_ref().is_some_and(is_whole));
    if have_all && is_fresh(&index) {
        return Ok(known.into_iter().filter_map(|(branch, it)| Some((branch, Ok(it?)))).collect());
    }
    say("looking for Debian's kernels (once a week)");
    let apt = PrivateApt::new(&folder.join("apt"), &SUITES)?;
    if let Err(error) = apt.update() {
        say(&format!("not every list of packages could be had: {error:#}"));
    }
    let mut names = apt.names("linux-image-")?;
    names.extend(apt.names("linux-binary-")?);
    let kernels: Vec<(Branch, Result<Kernel>)> = known
        .into_iter()
        .map(|(branch, old)| {
            let newest = newest(&apt, &folder, branch, &names);
            let kernel = match (newest, old) {
                (Err(error), Some(old)) => {
                    say(&format!("{branch}: {error:#}; taking {} again", old.package.version));
                    Ok(old)
                }
                (newest, _) => newest,
            };
            (branch, kernel)
        })
        .collect();
    remember(&index, &kernels)?;
    Ok(kernels)
}

/// What the index says, as far as the files are there.
fn known(folder: &Path, index: &Path) -> Vec<(Branch, Option<Kernel>)> {
    let text = std::fs::read_to_string(index).unwrap_or_default();
    let of = |branch: Branch| {
        let branch = branch.to_string();
        let fields = |line: &str| line.split('\t').map(str::to_owned).collect::<Vec<_>>();
        let line = text.lines().map(fields).find(|fields| fields[0] == branch)?;
        let [_, name, version, sha256] = <[String; 4]>::try_from(line).ok()?;
        let own = folder.join(&sha256);
        let [image, module] = [IMAGE_FILE, MODULE].map(|name| own.join(name));
        let package = PackageVersion { name, version, sha256 };
        let module = module.is_file().then_some(module);
        image.is_file().then_some(Kernel { package, image, module })
    };
    BRANCHES.iter().map(|&branch| (branch, of(branch))).collect()
}

fn is_fresh(index: &Path) -> bool {
    let modified = std::fs::metadata(index).and_then(|metadata| metadata.modified());
    modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age < NEWEST_FOR))
}

fn remember(index: &Path, kernels: &[(Branch, Result<Kernel>)]) -> Result<()> {
    let line = |(branch, kernel): &(Branch, Result<Kernel>)| {
        let PackageVersion { name, version, sha256 } = &kernel.as_ref().ok()?.package;
        Some(format!("{branch}\t{name}\t{version}\t{sha256}\n"))
    };
    let text: String = kernels.iter().filter_map(line).collect();
    // Another run may read it at this moment.
    let new = index.with_extension("new");
    std::fs::write(&new, text).with_context(|| format!("write {}", new.display()))?;
    std::fs::rename(&new, index).with_context(|| format!("write {}", index.display()))
}

/// The newest kernel of a branch that the mirror still has.
fn newest(apt: &PrivateApt, folder: &Path, branch: Branch, names: &[String]) -> Result<Kernel> {
    let mut reason = format!("no suite has a kernel of {branch}");
    for name in branch.packages(names).iter().take(PACKAGES_TRIED) {
        match fetched(apt, folder, name) {
            Ok(kernel) => return Ok(kernel),
            Err(error) => reason = format!("{name}: {error:#}"),
        }
    }
    bail!(reason)
}

/// Names in the cache.
const IMAGE_FILE: &str = "vmlinuz";

/// A package's kernel, from the cache if it is there.
fn fetched(apt: &PrivateApt, folder: &Path, name: &str) -> Result<Kernel> {
    let package = newest_version(apt, name)?;
    let own = folder.join(&package.sha256);
    let [image, module] = [IMAGE_FILE, MODULE].map(|name| own.join(name));
    std::fs::create_dir_all(&own)?;
    if !image.is_file() {
        let unpacked = unpacked(apt, folder, &package)?;
        let found = image_in(&unpacked).context("the package holds no vmlinuz")?;
        keep(&std::fs::read(found)?, &image)?;
        keep_module(&unpacked, &module)?;
        std::fs::remove_dir_all(&unpacked)?;
    }
    if !module.is_file() {
        // Since 6.19 modules have a package of their own.
        let name = name.replace("linux-binary-", "linux-modules-");
        let kept = newest_version(apt, &name)
            .and_then(|package| unpacked(apt, folder, &package))
            .and_then(|unpacked| keep_module(&unpacked, &module));
        if let Err(error) = kept {
            say(&format!("{name}: no module: {error:#}"));
        }
    }
    let module = module.is_file().then_some(module);
    Ok(Kernel { package, image, module })
}

fn newest_version(apt: &PrivateApt, name: &str) -> Result<PackageVersion> {
    apt.versions(name)?.into_iter().next().context("the lists have no version")
}

/// What a package holds. The next one takes its place.
fn unpacked(apt: &PrivateApt, folder: &Path, package: &PackageVersion) -> Result<PathBuf> {
    say(&format!("fetching {} {} (once)", package.name, package.version));
    let file = apt.download(package)?;
    let unpacked = folder.join("apt/unpacked");
    if unpacked.exists() {
        std::fs::remove_dir_all(&unpacked)?;
    }
    run(command("dpkg-deb").arg("--extract").arg(&file).arg(&unpacked))?;
    std::fs::remove_file(file)?;
    Ok(unpacked)
}

/// Writes a file by a name that nobody looks for, until it is whole.
fn keep(contents: &[u8], place: &Path) -> Result<()> {
    let partial = place.with_extension("new");
    std::fs::write(&partial, contents)?;
    std::fs::rename(&partial, place)?;
    Ok(())
}

/// Keeps [`MODULE`] as the kernel loads it, if the package has it.
fn keep_module(unpacked: &Path, place: &Path) -> Result<()> {
    let Some(file) = module_in(unpacked) else { return Ok(()) };
    if file.extension().is_some_and(|extension| extension == "xz") {
        let xz = setup::program("xz", "xz-utils", "a module of a kernel")?;
        run(command(&xz).arg("--decompress").arg(&file))?;
    }
    keep(&std::fs::read(file.with_file_name(MODULE))?, place)
}

/// The module or its compressed form: kernels have it in different folders.
fn module_in(folder: &Path) -> Option<PathBuf> {
    entries(folder).find_map(|entry| {
        let name = entry.file_name()?.to_string_lossy();
        if entry.is_dir() && !entry.is_symlink() {
            module_in(&entry)
        } else {
            (name == MODULE || name == format!("{MODULE}.xz")).then_some(entry)
        }
    })
}

/// What a folder holds; nothing if it cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(folder).ok();
    entries.into_iter().flatten().filter_map(|entry| entry.ok().map(|entry| entry.path()))
}

/// `boot/vmlinuz-*`, or since 6.19 `usr/lib/modules/*/vmlinuz`.
fn image_in(unpacked: &Path) -> Option<PathBuf> {
    let in_boot = entries(&unpacked.join("boot")).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
    });
    in_boot.or_else(|| {
        let modules = entries(&unpacked.join("usr/lib/modules"));
        modules.map(|folder| folder.join("vmlinuz")).find(|image| image.is_file())
    })
}
