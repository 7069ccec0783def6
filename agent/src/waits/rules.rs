//! Finds the rule that a stack meets. The rules are data: `rules.tsv`, where the way they work together is said too.

use super::owner::OwnerPlace;
use super::system_call::Futex;
use super::{LockKind, WaitFrame, WaitReason};
use crate::address::AbsAddr;
use crate::limits::WAIT_FRAMES_MAX;
use agent_ebpf::LockForm;
use hashbrown::HashMap;
use std::sync::LazyLock;

/// The data.
pub(super) const TEXT: &str = include_str!("rules.tsv");

static RULES: LazyLock<Rules> = LazyLock::new(|| {
    let rules = parse(TEXT).expect("a test parses the same text");
    Rules::index(&rules)
});

/// One line of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule<'t> {
    pub(super) library: &'t str,
    pub(super) function: &'t str,
    /// `None` for a function that only leads to the wait.
    pub(super) told: Option<Told>,
    pub(super) proof: &'t str,
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) reason: WaitReason,
    /// For [`WaitReason::Lock`].
    pub(super) lock: Option<RuleLock>,
}

/// What a rule says of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleLock {
    pub(super) kind: LockKind,
    pub(super) word: Word,
    /// Where it keeps its holder, if it does.
    pub(super) owner: Option<OwnerPlace>,
}

impl RuleLock {
    /// What is known of a lock of that form, without a rule.
    pub(super) const fn of(form: LockForm) -> Self {
        let (kind, word, owner) = match form {
            LockForm::GlibcMutex => (LockKind::Mutex, Word::At(0), Some(OwnerPlace::GlibcMutex)),
            LockForm::GlibcRwLock => {
                (LockKind::RwLock, Word::GlibcRwLock, Some(OwnerPlace::GlibcWriter))
            }
            LockForm::MuslMutex => (LockKind::Mutex, Word::At(4), Some(OwnerPlace::Word)),
            LockForm::MuslRwLock => (LockKind::RwLock, Word::At(0), None),
        };
        Self { kind, word, owner }
    }
}

/// Where the futex word lies in the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// So many bytes from the start.
    At(u64),
    /// In a rwlock of glibc.
    GlibcRwLock,
    /// Somewhere else.
    Apart,
}

impl Word {
    /// Where the lock begins.
    pub(super) fn start(self, futex: Futex) -> Option<AbsAddr> {
        let before = match self {
            Self::At(offset) => offset,
            Self::GlibcRwLock => glibc_rwlock_word(futex),
            Self::Apart => return None,
        };
        futex.word.0.checked_sub(before).map(AbsAddr)
    }
}

/// `struct __pthread_rwlock_arch_t` begins with `__readers`, `__writers`, `__wrphase_futex`, `__writers_futex`, aligned
/// to 8 bytes. The two last hold 0, 1 or 3; readers are waited for on the first one only where writers are preferred, and
/// it then counts readers in units of 8 (`nptl/pthread_rwlock_common.c`).
pub(super) fn glibc_rwlock_word(futex: Futex) -> u64 {
    const PHASE: u64 = 8;
    const WRITERS: u64 = 12;
    const READER: u32 = 8;
    if !futex.word.0.is_multiple_of(8) {
        WRITERS
    } else if futex.expected >= READER {
        0
    } else {
        PHASE
    }
}

/// Rules by the names of functions.
struct Rules {
    /// Whole names.
    exact: HashMap<&'static str, Vec<Rule<'static>>>,
    /// Names with `*`.
    patterns: Vec<Rule<'static>>,
}

impl Rules {
    fn index(rules: &[Rule<'static>]) -> Self {
        let mut exact: HashMap<_, Vec<_>> = HashMap::new();
        let (patterns, names): (Vec<_>, Vec<_>) =
            rules.iter().copied().partition(|rule| rule.function.contains('*'));
        for rule in names {
            exact.entry(rule.function).or_default().push(rule);
        }
        Self { exact, patterns }
    }

    /// The rule of a function; `musl`: of those two libraries have, that of musl.
    fn find(&self, function: &str, musl: bool) -> Option<&Rule<'static>> {
        let function = function.split('@').next().unwrap_or(function);
        let fits = |rule: &&Rule<'_>| match rule.library {
            "c" => !musl,
            // Those that are the innermost of musl have names of their own, underscores included.
            "musl" => musl || rule.function.starts_with('_'),
            _ => true,
        };
        let name = plain(function);
        let exact = [function, name].into_iter().filter_map(|name| self.exact.get(name)).flatten();
        let patterns = self.patterns.iter().filter(|rule| is_of(rule, function));
        exact.chain(patterns).find(fits)
    }
}

/// True if the rule is about this function.
pub(super) fn is_of(rule: &Rule<'_>, function: &str) -> bool {
    let underscored = rule.function.starts_with('_');
    matches(rule.function, if underscored { function } else { plain(function) })
}

/// A name without underscores in front and without the prefix of glibc's own aliases.
fn plain(function: &str) -> &str {
    function.strip_prefix("__GI_").unwrap_or(function).trim_start_matches('_')
}

/// True if `*` in the pattern can stand for what is in the name.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut rest = rest;
    while let Some((part, behind)) = rest.split_once('*') {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
        rest = behind;
    }
    name.ends_with(rest)
}

/// The rule that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) told: Told,
    /// The C library is musl.
    pub(super) musl: bool,
}

/// The innermost rule, or that of a library around it.
pub(super) fn find(user: &[WaitFrame<'_>]) -> Option<Found> {
    let mut decides: Option<Told> = None;
    let mut libraries: Vec<&str> = Vec::new();
    let mut musl = false;
    for frame in user.iter().take(WAIT_FRAMES_MAX) {
        musl |= frame.file.starts_with("ld-musl-");
        let Some(rule) = RULES.find(frame.function, musl) else {
            // Functions that the C library does not export have no name in a stripped one.
            let inside = decides.is_none() && frame.function.is_empty();
            if inside && (musl || is_glibc(frame.file)) {
                continue;
            }
            break;
        };
        musl |= rule.library == "musl";
        let Some(told) = rule.told else { continue };
        if !libraries.contains(&rule.library) {
            libraries.push(rule.library);
            decides = Some(told);
        } else if libraries.last() == Some(&rule.library)
            && let Some(lock) = decides.as_mut().and_then(|told| told.lock.as_mut())
        {
            lock.owner = lock.owner.or(told.lock.and_then(|lock| lock.owner));
        }
    }
    decides.map(|told| Found { told, musl })
}

/// True for the base name of glibc's library, and of the one that held its threads until 2.33.
pub(crate) fn is_glibc(file: &str) -> bool {
    ["libc.so", "libc-2.", "libpthread"].iter().any(|prefix| file.starts_with(prefix))
}

/// Reads the rules; the error says which line is wrong.
pub(super) fn parse(text: &str) -> Result<Vec<Rule<'_>>, String> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| parse_line(line).ok_or_else(|| line.to_owned())).collect()
}

fn parse_line(line: &str) -> Option<Rule<'_>> {
    let mut columns = line.split('\t');
    let mut next = || columns.next().filter(|column| !column.is_empty());
    let (library, function, reason, kind, word, owner, proof) =
        (next()?, next()?, next()?, next()?, next()?, next()?, next()?);
    let lock = match (kind, word, owner) {
        ("-", "-", "-") => None,
        _ => Some(RuleLock { kind: kind_of(kind)?, word: word_of(word)?, owner: owner_of(owner)? }),
    };
    let told = match reason {
        "-" if lock.is_none() => None,
        "-" => return None,
        _ => {
            let reason = WaitReason::ALL.into_iter().find(|known| known.name() == reason)?;
            if (reason == WaitReason::Lock) != lock.is_some() {
                return None;
            }
            Some(Told { reason, lock })
        }
    };
    columns.next().is_none().then_some(Rule { library, function, told, proof })
}

fn kind_of(kind: &str) -> Option<LockKind> {
    LockKind::ALL.into_iter().find(|known| known.name() == kind)
}

/// Answers what the column says, if it is to be understood.
fn owner_of(owner: &str) -> Option<Option<OwnerPlace>> {
    match owner {
        "-" => Some(None),
        "word" => Some(Some(OwnerPlace::Word)),
        "mutex" => Some(Some(OwnerPlace::GlibcMutex)),
        "writer" => Some(Some(OwnerPlace::GlibcWriter)),
        _ => None,
    }
}

fn word_of(word: &str) -> Option<Word> {
    match word {
        "apart" => Some(Word::Apart),
        "rwlock" => Some(Word::GlibcRwLock),
        _ => word.strip_prefix('+')?.parse().ok().map(Word::At),
    }
}
