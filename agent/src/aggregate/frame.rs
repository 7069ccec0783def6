//! How a location is called where a reader sees it: its kind, the text of what is no function, the
//! segment and the build id of its file.

use super::named::{Code, Location};
use crate::address::ElfAddr;
use crate::elf::{ExecutableSegment, Runtime};
use crate::normalize::{MappedFile, Marker};
use crate::path::file_name;
use agent_ebpf::Outcome;
use proto::FrameKind;
use std::borrow::Cow;
use std::sync::Arc;

/// Stands for code that no file backs and that nothing names yet.
pub const ANONYMOUS_CODE: &str = "[anonymous code]";
/// Stands for kernel code that kallsyms does not name (or hides: `kptr_restrict`).
pub const UNNAMED_KERNEL_CODE: &str = "[unnamed kernel code]";

/// The text of a marker frame.
#[must_use]
pub fn marker_text(marker: Marker) -> Cow<'static, str> {
    match marker {
        Marker::Stopped(Outcome::DepthLimit | Outcome::TimeLimit) => "[truncated]".into(),
        Marker::Stopped(outcome) => format!("[unwind: {}]", outcome.name()).into(),
        Marker::Interpreter(Runtime::Python) => "[python frames: names to come]".into(),
        Marker::Interpreter(Runtime::Node) => "[node frames: names to come]".into(),
        Marker::Interpreter(Runtime::Java) => "[java frames: names to come]".into(),
        Marker::Interpreter(Runtime::Go) => "[go frames: names to come]".into(),
        Marker::Interpreter(Runtime::Native) => "[native frames: names to come]".into(),
    }
}

impl Location {
    /// What runs here; `files` are those of the window.
    #[must_use]
    pub fn kind(&self, files: &[Arc<MappedFile>]) -> FrameKind {
        match self.code {
            Code::Native { file, .. } => {
                let facts = files.get(file as usize).and_then(|file| file.facts.as_ref());
                match facts.map(|facts| facts.runtime) {
                    Some(Runtime::Go) => FrameKind::Go,
                    _ => FrameKind::Native,
                }
            }
            Code::Anonymous { .. } if self.lines.is_empty() => FrameKind::Native,
            Code::Anonymous { runtime, .. } => match runtime {
                Runtime::Python => FrameKind::Python,
                Runtime::Node => FrameKind::V8,
                Runtime::Java => FrameKind::Jvm,
                Runtime::Native | Runtime::Go => FrameKind::Jit,
            },
            Code::Unplaced { .. } => FrameKind::Native,
            Code::Kernel { .. } => FrameKind::Kernel,
            Code::Marker(_) => FrameKind::Marker,
        }
    }

    /// The text that stands for the location where it has no lines; `None` for code of a file with a
    /// known address. `files` are those of the window.
    #[must_use]
    pub fn stand_in(&self, files: &[Arc<MappedFile>]) -> Option<Cow<'static, str>> {
        match self.code {
            Code::Native { .. } => None,
            Code::Unplaced { file, .. } => {
                let path = files.get(file as usize).map_or("", |file| file.path.as_str());
                Some(format!("[{}]", file_name(path)).into())
            }
            Code::Kernel { .. } => Some(UNNAMED_KERNEL_CODE.into()),
            Code::Anonymous { .. } => Some(ANONYMOUS_CODE.into()),
            Code::Marker(marker) => Some(marker_text(marker)),
        }
    }

    /// How the mapping of kernel code is called: `[kernel]`, `[bpf]` or the module's name; `None`
    /// elsewhere.
    #[must_use]
    pub fn kernel_mapping(&self) -> Option<&str> {
        matches!(self.code, Code::Kernel { .. }).then_some(match self.module.as_deref() {
            None | Some("vmlinux") => "[kernel]",
            Some("bpf") => "[bpf]",
            Some(module) => module,
        })
    }
}

impl MappedFile {
    /// The executable segment that holds an address.
    #[must_use]
    pub fn segment_of(&self, address: ElfAddr) -> Option<ExecutableSegment> {
        let holds = |segment: &&ExecutableSegment| {
            let offset = address.0.checked_sub(segment.address.0);
            offset.is_some_and(|offset| offset < segment.size)
        };
        self.facts.as_ref()?.segments.iter().find(holds).copied()
    }

    /// GNU build id: the file's own, else the kernel's.
    #[must_use]
    pub fn gnu_build_id(&self) -> Option<&proto::BuildId> {
        let own = self.facts.as_ref().and_then(|facts| facts.gnu_build_id.as_ref());
        own.or(self.kernel_build_id.as_ref())
    }

    /// The build id for formats that have room for one: GNU, else Go, else htlhash.
    #[must_use]
    pub fn best_build_id(&self) -> Option<String> {
        let facts = self.facts.as_ref();
        let gnu = self.gnu_build_id().map(ToString::to_string);
        let go = || facts.and_then(|facts| facts.go_build_id.clone());
        gnu.or_else(go).or_else(|| facts.map(|facts| facts.htlhash.to_string()))
    }
}
