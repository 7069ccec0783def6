//! Loads the programs of probes: for one link to all places of a file where the kernel has such links, else for one place
//! each. What a program is for, the kernel wants to know when it is loaded, and aya 0.14 does not tell it: so the object is
//! read once more, and its instructions are handed over here.

use super::loader::{self, in_short};
use super::user_probe::{self, ProbeKind, ProbeProgram};
use super::{BpfError, object, raw};
use crate::kernel::KernelVersion;
use aya::Ebpf;
use aya::programs::{ProgramError, UProbe};
use aya_obj::Object;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

/// Bytes of the verifier's log of one program: of a longer one the kernel keeps the end.
const VERIFIER_LOG_BYTES: usize = 16 << 20;

/// The programs of probes of an object.
pub(super) struct ProbePrograms {
    /// `None` where each place is attached by itself.
    linkable: Option<Linkable>,
    /// Where a program for links is refused, the verifier's log is wanted.
    verifier_log: bool,
}

impl ProbePrograms {
    /// Before any map is taken out of the object: the programs name them.
    pub(super) fn of(ebpf: &Ebpf, verifier_log: bool) -> Self {
        let known = KernelVersion::running().is_some_and(KernelVersion::links_probes);
        let linkable = known.then(|| Linkable::of(ebpf)).and_then(|linkable| {
            linkable.inspect_err(|error| tracing::debug!(%error, "probes have no links")).ok()
        });
        Self { linkable, verifier_log }
    }

    /// Loads one.
    pub(super) fn load(
        &self,
        ebpf: &mut Ebpf,
        name: &'static str,
    ) -> Result<ProbeProgram, BpfError> {
        if let Some(linkable) = &self.linkable {
            match linkable.load(name) {
                Ok(program) => return Ok(ProbeProgram::Linked(program)),
                Err(error) => tracing::debug!(%error, name, "the program has no links"),
            }
            if self.verifier_log {
                tracing::info!(name, "the verifier says: {}", linkable.verifier_log(name));
            }
        }
        Ok(ProbeProgram::Single(load_single(ebpf, name)?, ProbeKind::read()?))
    }
}

/// An object whose instructions name the maps of the one that is loaded.
struct Linkable {
    object: Object,
    /// Its types: the kernel wants to know those of functions that are called back.
    btf: OwnedFd,
}

impl Linkable {
    fn of(ebpf: &Ebpf) -> Result<Self, BpfError> {
        let failed = |what, detail| BpfError::Attach { what, detail, errno: None };
        let bytes = object::OBJECT.ok_or(BpfError::NotBuilt)?;
        let mut object =
            Object::parse(bytes).map_err(|error| failed("the object", error.to_string()))?;
        let features = aya::features().btf().ok_or_else(|| failed("types", "none".to_owned()))?;
        let types = object.fixup_and_sanitize_btf(features);
        let types = types.map_err(|error| failed("types", error.to_string()))?;
        let types = types.ok_or_else(|| failed("types", "the object has none".to_owned()))?;
        let btf = raw::load_btf(&types.to_bytes())?;
        let described = std::mem::take(&mut object.maps);
        let maps = described.iter().filter_map(|(name, map)| {
            let fd = loader::map_fd(ebpf.map(name)?).as_raw_fd();
            Some((name.as_str(), fd, map))
        });
        let sections = object.functions.keys().map(|(section, _)| *section).collect();
        let relocated = object.relocate_maps(maps, &sections);
        let relocated = relocated.and_then(|()| object.relocate_calls(&sections));
        relocated.map_err(|error| failed("the object", error.to_string()))?;
        Ok(Self { object, btf })
    }

    /// Loads a program, and makes sure that the kernel has links for it.
    fn load(&self, name: &'static str) -> Result<OwnedFd, BpfError> {
        let program = self.load_with_log(name, &mut [])?;
        user_probe::has_links(&program)?;
        Ok(program)
    }

    /// What the verifier says of a program; it is loaded once more for that. Empty if it is not the verifier that refuses
    /// it.
    fn verifier_log(&self, name: &'static str) -> String {
        let mut log = vec![0; VERIFIER_LOG_BYTES];
        // A log that finds no room is a failure to the kernel, too.
        let _refused_again = self.load_with_log(name, &mut log);
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        String::from_utf8_lossy(&log[..end]).into_owned()
    }

    fn load_with_log(&self, name: &'static str, log: &mut [u8]) -> Result<OwnedFd, BpfError> {
        let missing = BpfError::Missing { kind: "program", name };
        let found = self.object.programs.get(name);
        let found = found.and_then(|it| Some((it, self.object.functions.get(&it.function_key())?)));
        let Some((program, function)) = found else { return Err(missing) };
        raw::load_linkable(name, (program, function), self.btf.as_fd(), log)
    }
}

/// Loads a program for one place each.
fn load_single(ebpf: &mut Ebpf, name: &'static str) -> Result<OwnedFd, BpfError> {
    let program = ebpf.program_mut(name).ok_or(BpfError::Missing { kind: "program", name })?;
    let mut load = || -> Result<OwnedFd, ProgramError> {
        let program: &mut UProbe = program.try_into()?;
        program.load()?;
        let fd = program.fd()?.try_clone()?;
        fd.as_fd().try_clone_to_owned().map_err(ProgramError::IOError)
    };
    load().map_err(|error| BpfError::Attach {
        what: name,
        detail: in_short(&error),
        errno: super::error::source_errno(&error),
    })
}
