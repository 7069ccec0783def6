//! Packages of other Debian releases, by apt with lists in a folder of its own: no source and no state of
//! the machine is changed, and root is not needed. The mirrors are those that the machine itself uses.

use crate::command::{command, output, run};
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Signs every release since bullseye. Where it is missing, apt's own trusted keys must do.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An apt of its own.
#[derive(Debug)]
pub(crate) struct PrivateApt {
    folder: PathBuf,
}

/// One version of a package, as the lists know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackageVersion {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Of the package's file, in hexadecimal digits.
    pub(crate) sha256: String,
}

impl PrivateApt {
    /// Lists of `suites`, empty until [`Self::update`]; a name that ends in `-security` is looked for where
    /// the machine has its own security updates.
    pub(crate) fn new(folder: &Path, suites: &[&str]) -> Result<Self> {
        for part in ["lists/partial", "archives/partial"] {
            let part = folder.join(part);
            std::fs::create_dir_all(&part).with_context(|| format!("create {}", part.display()))?;
        }
        let mirrors = Mirrors::of_this_machine()?;
        let signed = if Path::new(KEYRING).is_file() {
            format!("[signed-by={KEYRING}] ")
        } else {
            String::new()
        };
        let lines = suites.iter().filter_map(|suite| {
            let mirror = if suite.ends_with("-security") {
                mirrors.security.as_ref()?
            } else {
                &mirrors.main
            };
            Some(format!("deb {signed}{mirror} {suite} main\n"))
        });
        std::fs::write(folder.join("sources.list"), lines.collect::<String>())?;
        // Nothing counts as installed.
        std::fs::write(folder.join("status"), "")?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Fetches the lists. An error may concern one suite alone: the others are there then.
    pub(crate) fn update(&self) -> Result<()> {
        run(self.apt("apt-get").arg("update"))
    }

    /// Names of all packages that begin like this.
    pub(crate) fn names(&self, beginning: &str) -> Result<Vec<String>> {
        let names = output(self.apt("apt-cache").args(["pkgnames", beginning]))?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// The versions of a package, newest first.
    pub(crate) fn versions(&self, name: &str) -> Result<Vec<PackageVersion>> {
        let records = output(self.apt("apt-cache").args(["show", name]))?;
        Ok(records.split("\n\n").filter_map(package_version).collect())
    }

    /// Fetches one version; apt holds it against the signed lists. Gives the file.
    pub(crate) fn download(&self, package: &PackageVersion) -> Result<PathBuf> {
        let PackageVersion { name, version, .. } = package;
        let folder = self.folder.join("downloads");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder)?;
        let mut download = self.apt("apt-get");
        run(download.args(["download", &format!("{name}={version}")]).current_dir(&folder))?;
        let file = std::fs::read_dir(&folder)?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .find(|path| path.extension().is_some_and(|ending| ending == "deb"));
        file.context("apt-get download left no package")
    }

    fn apt(&self, program: &str) -> Command {
        let mut apt = command(program);
        let folder = self.folder.display();
        for option in [
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::Etc::SourceList={folder}/sources.list"),
            format!("Dir::State::Lists={folder}/lists"),
            format!("Dir::State::Status={folder}/status"),
            format!("Dir::Cache={folder}"),
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ] {
            apt.args(["-o", &option]);
        }
        if program == "apt-get" {
            apt.arg("--quiet=2");
        }
        apt.current_dir(&self.folder);
        apt
    }
}

/// One paragraph of `apt-cache show`.
fn package_version(record: &str) -> Option<PackageVersion> {
    let field = |name: &str| {
        let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(": ")?.to_owned());
        record.lines().find_map(value)
    };
    let [name, version, sha256] = ["Package", "Version", "SHA256"].map(field);
    let package = PackageVersion { name: name?, version: version?, sha256: sha256? };
    let is_digest = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_digest(&package.sha256).then_some(package)
}

/// Where this machine gets Debian from.
#[derive(Debug)]
struct Mirrors {
    main: String,
    security: Option<String>,
}

impl Mirrors {
    fn of_this_machine() -> Result<Self> {
        let targets = || {
            output(command("apt-get").args([
                "indextargets",
                "--format",
                "$(ORIGIN) $(RELEASE) $(REPO_URI)",
                "Created-By: Packages",
            ]))
        };
        if let Some(mirrors) = Self::of(&targets()?) {
            return Ok(mirrors);
        }
        // The origin is in the lists, and a machine can be so new that it has none.
        let cure = "apt knows no Debian mirror; cure: apt-get update";
        run(command("apt-get").args(["--quiet=2", "update"])).context(cure)?;
        Self::of(&targets()?).context(cure)
    }

    fn of(targets: &str) -> Option<Self> {
        let debian = || {
            let lines = targets.lines().filter_map(|line| line.strip_prefix("Debian "));
            lines.filter_map(|line| line.split_once(' '))
        };
        let mirror = |wanted: fn(&str) -> bool| {
            debian().find(|(release, _)| wanted(release)).map(|(_, uri)| uri.to_owned())
        };
        Some(Self {
            main: mirror(|release| !release.contains('-'))?,
            security: mirror(|release| release.ends_with("-security")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Mirrors, package_version};

    #[test]
    fn mirrors_are_the_machines_own() {
        let targets = "NodeSource nodistro http://node/x/\n\
            Debian bookworm http://mirror/debian/\n\
            Debian bookworm-updates http://mirror/debian/\n\
            Debian bookworm-security http://mirror/security/\n";
        let mirrors = Mirrors::of(targets).unwrap();
        assert_eq!(mirrors.main, "http://mirror/debian/");
        assert_eq!(mirrors.security.as_deref(), Some("http://mirror/security/"));
        let targets = "Debian trixie http://mirror/debian/\n";
        assert_eq!(Mirrors::of(targets).unwrap().security, None);
        assert!(Mirrors::of("").is_none());
    }

    #[test]
    fn records_of_packages() {
        let digest = "0".repeat(64);
        let record = format!("Package: a\nVersion: 1:2-3\nDescription: x\nSHA256: {digest}");
        let package = package_version(&record).unwrap();
        assert_eq!((package.name.as_str(), package.version.as_str()), ("a", "1:2-3"));
        assert_eq!(package.sha256, digest);
        assert_eq!(package_version("Package: a\nVersion: 1\nSHA256: ../../etc"), None);
        assert_eq!(package_version("Package: a\nVersion: 1"), None);
    }
}
