//! What a wait is for: what is known of it, put before `waits`.

use super::named::{Code, Location};
use crate::address::AbsAddr;
use crate::normalize::MappedFile;
use crate::path::file_name;
use crate::waits::{self, Owners, SystemCall, Wait, WaitFrame, WaitReason};
use agent_ebpf::{LockForm, WaitClass, WaitFacts};
use std::sync::Arc;

/// Says what a wait is for; `stack` is leaf first. Without facts, where no stack was taken, its class says it.
pub(super) fn tell<'a>(
    class: WaitClass,
    facts: Option<(WaitFacts, Owners)>,
    stack: impl Iterator<Item = &'a Location>,
    files: &'a [Arc<MappedFile>],
) -> Wait {
    let Some((facts, owners)) = facts else { return of_class(class) };
    if class == WaitClass::Goroutine {
        let (_, user) = functions(stack, files);
        let lock = waits::lock_of(&user, AbsAddr(facts.arguments[0]));
        let reason = if lock.is_some() { WaitReason::Lock } else { WaitReason::Park };
        return Wait { reason, lock };
    }
    if class == WaitClass::Other && waits::class_of_system_call(facts.syscall) != class {
        // A number of another machine's, or a thread that a debugger stopped.
        return Wait { reason: WaitReason::Other, lock: None };
    }
    let (kernel, user) = functions(stack, files);
    waits::tell(&waits::WaitFacts {
        system_call: (facts.syscall != u64::MAX).then(|| SystemCall::from(&facts)),
        preempted: class == WaitClass::Preempted,
        kernel: &kernel,
        user: &user,
        owners,
        form: LockForm::from_number(facts.form),
    })
}

/// The functions of the kernel and of the user, leaf first.
fn functions<'a>(
    stack: impl Iterator<Item = &'a Location>,
    files: &'a [Arc<MappedFile>],
) -> (Vec<&'a str>, Vec<WaitFrame<'a>>) {
    let (mut kernel, mut user) = (Vec::new(), Vec::new());
    for location in stack {
        let functions = location.lines.iter().map(|line| line.function.as_str());
        match location.code {
            Code::Kernel { .. } => kernel.extend(functions),
            Code::Native { file, .. } => {
                let file = files.get(file as usize).map_or("", |file| file_name(&file.path));
                if location.lines.is_empty() {
                    user.push(WaitFrame { function: "", file });
                }
                user.extend(functions.map(|function| WaitFrame { function, file }));
            }
            Code::Anonymous { .. } | Code::Unplaced { .. } => {
                user.extend(functions.map(|function| WaitFrame { function, file: "" }));
            }
            Code::Marker(_) => {}
        }
    }
    (kernel, user)
}

const fn of_class(class: WaitClass) -> Wait {
    let reason = match class {
        WaitClass::Other => WaitReason::Other,
        WaitClass::Sleep => WaitReason::Sleep,
        WaitClass::Io => WaitReason::Io,
        WaitClass::Poll => WaitReason::Poll,
        WaitClass::Futex | WaitClass::Goroutine => WaitReason::Futex,
        WaitClass::PageFault => WaitReason::PageFault,
        WaitClass::Preempted => WaitReason::Preempted,
        WaitClass::Lock => return Wait::of_some_lock(),
    };
    Wait { reason, lock: None }
}
