//! Which kernels are tried, and which of Debian's packages has the newest of each.

use std::fmt;

/// A line of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Branch {
    /// All that begin with these two numbers.
    Series(u32, u32),
    /// Whatever is newest.
    Newest,
}

/// The oldest that the agent takes; Debian 12's and 13's; the newest that lives long; what comes next.
pub(crate) const BRANCHES: [Branch; 5] = [
    Branch::Series(5, 10),
    Branch::Series(6, 1),
    Branch::Series(6, 12),
    Branch::Series(6, 18),
    Branch::Newest,
];

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Series(major, minor) => write!(f, "{major}.{minor}"),
            Self::Newest => f.write_str("newest"),
        }
    }
}

/// From 6.19 on `linux-image-*` is empty and `linux-binary-*` has the kernel.
const BINARY_PACKAGES_SINCE: [u32; 2] = [6, 19];

/// The numbers in the name of a package that holds a kernel for virtual machines: `[6, 12, 118, 13]` of
/// `linux-image-6.12.118+deb13-cloud-amd64`.
fn numbers(package: &str) -> Option<Vec<u32>> {
    let (rest, in_binary) = match package.strip_prefix("linux-image-") {
        Some(rest) => (rest, false),
        None => (package.strip_prefix("linux-binary-")?, true),
    };
    let version = rest.strip_suffix("-cloud-amd64")?;
    if version.contains("rc") || !version.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let parts = version.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    let numbers: Vec<u32> = parts.map(|part| part.parse().ok()).collect::<Option<_>>()?;
    // `linux-image-6.1-cloud-amd64` names whatever is the newest.
    let is_kernel = if in_binary { numbers.len() >= 2 } else { numbers.len() >= 3 };
    let belongs = (*numbers.first_chunk()? >= BINARY_PACKAGES_SINCE) == in_binary;
    (is_kernel && belongs).then_some(numbers)
}

impl Branch {
    /// The packages of this branch among `names`, newest first. `Newest` has none of the other branches.
    pub(crate) fn packages(self, names: &[String]) -> Vec<String> {
        let belongs = |numbers: &[u32]| match self {
            Self::Series(major, minor) => numbers.starts_with(&[major, minor]),
            Self::Newest => {
                let newest_series = BRANCHES.iter().filter_map(|branch| match branch {
                    Self::Series(major, minor) => Some([*major, *minor]),
                    Self::Newest => None,
                });
                newest_series.max().is_some_and(|series| numbers > &series[..])
                    && !BRANCHES.iter().any(|branch| match branch {
                        Self::Series(major, minor) => numbers.starts_with(&[*major, *minor]),
                        Self::Newest => false,
                    })
            }
        };
        let mut found: Vec<(Vec<u32>, &String)> = names
            .iter()
            .filter_map(|name| Some((numbers(name)?, name)))
            .filter(|(numbers, _)| belongs(numbers))
            .collect();
        found.sort_unstable();
        found.into_iter().rev().map(|(_, name)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{BRANCHES, numbers};

    #[test]
    fn the_newest_package_of_each_branch() {
        let names = [
            "linux-image-5.10.0-9-cloud-amd64",
            "linux-image-5.10.0-46-cloud-amd64",
            "linux-image-5.10.0-46-cloud-amd64-dbg",
            "linux-image-6.1-cloud-amd64",
            "linux-image-6.1.0-0.deb11.52-cloud-amd64",
            "linux-image-6.1.0-57-cloud-amd64",
            "linux-image-6.12.118+deb13-cloud-amd64",
            "linux-image-6.12.94+deb13-cloud-amd64",
            "linux-image-6.17.13+deb13-cloud-amd64",
            "linux-image-6.18.15+deb13-cloud-amd64",
            "linux-image-7.3.4+deb13-cloud-amd64",
            "linux-binary-7.3-cloud-amd64",
            "linux-binary-7.3.4+deb13-cloud-amd64",
            "linux-binary-unsigned-7.3.9+deb13-cloud-amd64",
            "linux-binary-7.4-rc1-cloud-amd64",
            "linux-image-cloud-amd64",
        ]
        .map(str::to_owned);
        let newest = BRANCHES.map(|branch| branch.packages(&names).first().cloned());
        let expected = [
            "linux-image-5.10.0-46-cloud-amd64",
            "linux-image-6.1.0-57-cloud-amd64",
            "linux-image-6.12.118+deb13-cloud-amd64",
            "linux-image-6.18.15+deb13-cloud-amd64",
            "linux-binary-7.3.4+deb13-cloud-amd64",
        ];
        assert_eq!(newest, expected.map(|name| Some(name.to_owned())));
        assert!(BRANCHES.iter().all(|branch| branch.packages(&[]).is_empty()));
    }

    #[test]
    fn names_of_packages() {
        let check = |name: &str, expected: Option<&[u32]>| {
            assert_eq!(numbers(name).as_deref(), expected, "{name}");
        };
        check("linux-image-6.12.118+deb13.1-cloud-amd64", Some(&[6, 12, 118, 13, 1]));
        check("linux-binary-7.3-cloud-amd64", Some(&[7, 3]));
        check("linux-image-7.3.4+deb13-cloud-amd64", None);
        check("linux-image-6.1.0-57-amd64", None);
        check("linux-image-99999999999.1.2-cloud-amd64", None);
    }
}
