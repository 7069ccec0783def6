//! Debian's kernels, in the cache by the digest of their package: `kernels/<sha256>/vmlinuz`. Which is the
//! newest of a branch is asked once a week; old ones vanish from the mirrors, so what was had stays.

use super::branch::{BRANCHES, Branch};
use crate::command::{command, run, say};
use crate::setup::{PackageVersion, PrivateApt};
use crate::workspace::cache;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A kernel that can be booted.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) package: PackageVersion,
    pub(crate) image: PathBuf,
}

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
    let have_all = known.iter().all(|(_, kernel)| kernel.is_some());
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
        let image = folder.join(&sha256).join("vmlinuz");
        let package = PackageVersion { name, version, sha256 };
        image.is_file().then_some(Kernel { package, image })
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

/// A package's kernel, from the cache if it is there.
fn fetched(apt: &PrivateApt, folder: &Path, name: &str) -> Result<Kernel> {
    let package = apt.versions(name)?.into_iter().next().context("the lists have no version")?;
    let own = folder.join(&package.sha256);
    let image = own.join("vmlinuz");
    if !image.is_file() {
        say(&format!("fetching {name} {} (once)", package.version));
        let file = apt.download(&package)?;
        let unpacked = folder.join("apt/unpacked");
        if unpacked.exists() {
            std::fs::remove_dir_all(&unpacked)?;
        }
        run(command("dpkg-deb").arg("--extract").arg(&file).arg(&unpacked))?;
        let found = image_in(&unpacked).context("the package holds no vmlinuz")?;
        std::fs::create_dir_all(&own)?;
        // By a name that nobody looks for, until it is whole.
        let partial = own.join("vmlinuz.new");
        std::fs::copy(&found, &partial)?;
        std::fs::rename(&partial, &image)?;
        std::fs::remove_dir_all(&unpacked)?;
        std::fs::remove_file(file)?;
    }
    Ok(Kernel { package, image })
}

/// `boot/vmlinuz-*`, or since 6.19 `usr/lib/modules/*/vmlinuz`.
fn image_in(unpacked: &Path) -> Option<PathBuf> {
    let entries = |folder: &Path| {
        let entries = std::fs::read_dir(folder).ok();
        entries.into_iter().flatten().filter_map(|entry| entry.ok().map(|entry| entry.path()))
    };
    let in_boot = entries(&unpacked.join("boot")).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
    });
    in_boot.or_else(|| {
        let modules = entries(&unpacked.join("usr/lib/modules"));
        modules.map(|folder| folder.join("vmlinuz")).find(|image| image.is_file())
    })
}
