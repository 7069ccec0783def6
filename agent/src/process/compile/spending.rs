//! CPU time that unwind tables cost, by who owns the files. Whoever makes files can ask for a table of each, as often
//! as he likes: beyond what he may spend they wait.

use crate::clock::MonotonicNs;
use crate::limits::{
    COMPILE_OWNERS_MAX, COMPILE_ROOT_NS_MAX, COMPILE_ROOT_PERCENT, COMPILE_USER_NS_MAX,
    COMPILE_USER_PERCENT, COMPILE_USERS_NS_MAX, COMPILE_USERS_PERCENT,
};
use hashbrown::HashMap;
use std::os::fd::OwnedFd;

/// Whose a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// Root's, which is also that of most files in containers, or the agent's own user's.
    Root,
    User(u32),
    /// One of so many others that they share what one may spend.
    Others,
}

impl Owner {
    pub(super) fn of(file: &OwnedFd) -> Self {
        let own = rustix::process::geteuid().as_raw();
        match rustix::fs::fstat(file) {
            Ok(stat) if [0, own].contains(&stat.st_uid) => Self::Root,
            Ok(stat) => Self::User(stat.st_uid),
            Err(_unknown) => Self::Others,
        }
    }
}

/// What is left to spend: it grows with time up to a maximum, and may fall below 0 by what one file costs.
#[derive(Clone, Copy, Debug)]
struct Purse {
    left_ns: i64,
    at: MonotonicNs,
    max_ns: i64,
    /// CPU time that comes in, in percent of one CPU.
    percent: i64,
}

impl Purse {
    const fn full(max_ns: i64, percent: i64, now: MonotonicNs) -> Self {
        Self { left_ns: max_ns, at: now, max_ns, percent }
    }

    fn fill(&mut self, now: MonotonicNs) {
        let passed = i64::try_from(now.since(self.at)).unwrap_or(i64::MAX);
        let more = (passed / 100).saturating_mul(self.percent);
        self.left_ns = self.left_ns.saturating_add(more).min(self.max_ns);
        self.at = self.at.max(now);
    }

    /// Nanoseconds until there is something left.
    fn empty_ns(&self) -> u64 {
        u64::try_from(self.left_ns.saturating_neg() / self.percent * 100).unwrap_or(0)
    }
}

/// What everybody may spend.
#[derive(Debug, Default)]
pub(super) struct Spending {
    purses: HashMap<Owner, Purse>,
    /// Of all users but root, together.
    users: Option<Purse>,
}

impl Spending {
    /// When an owner's next file may be compiled, if that is not now.
    pub(super) fn wait_until(&mut self, owner: Owner, now: MonotonicNs) -> Option<MonotonicNs> {
        let purses = self.purses_of(owner, now);
        let empty_ns = purses.into_iter().flatten().map(|purse| purse.empty_ns()).max();
        empty_ns.filter(|&ns| ns > 0).map(|ns| now.plus(ns))
    }

    /// A file cost so much CPU time, nanoseconds.
    pub(super) fn spent(&mut self, owner: Owner, ns: u64, now: MonotonicNs) {
        let ns = i64::try_from(ns).unwrap_or(i64::MAX);
        for purse in self.purses_of(owner, now).into_iter().flatten() {
            purse.left_ns = purse.left_ns.saturating_sub(ns);
        }
    }

    fn purses_of(&mut self, owner: Owner, now: MonotonicNs) -> [Option<&mut Purse>; 2] {
        if self.purses.len() >= COMPILE_OWNERS_MAX && !self.purses.contains_key(&owner) {
            // A full purse says no more than none.
            self.purses.retain(|_, purse| {
                purse.fill(now);
                purse.left_ns < purse.max_ns
            });
        }
        let known = self.purses.len() < COMPILE_OWNERS_MAX || self.purses.contains_key(&owner);
        let owner = if known || owner == Owner::Root { owner } else { Owner::Others };
        let (max_ns, percent) = match owner {
            Owner::Root => (COMPILE_ROOT_NS_MAX, COMPILE_ROOT_PERCENT),
            _ => (COMPILE_USER_NS_MAX, COMPILE_USER_PERCENT),
        };
        let all = Purse::full(COMPILE_USERS_NS_MAX, COMPILE_USERS_PERCENT, now);
        let of_users = match owner {
            Owner::Root => None,
            _ => Some(self.users.get_or_insert(all)),
        };
        let own = self.purses.entry(owner).or_insert(Purse::full(max_ns, percent, now));
        let mut purses = [Some(own), of_users];
        purses.iter_mut().flatten().for_each(|purse| purse.fill(now));
        purses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn an_owner_spends_what_he_has_and_waits_for_more() {
        let mut spending = Spending::default();
        let begin = MonotonicNs(100 * SECOND);
        let max = COMPILE_USER_NS_MAX.unsigned_abs();
        let (one, other) = (Owner::User(1000), Owner::User(1001));
        spending.spent(one, max - 1, begin);
        assert_eq!(spending.wait_until(one, begin), None, "something is left");
        spending.spent(one, SECOND + 1, begin);
        let wait = SECOND / COMPILE_USER_PERCENT.unsigned_abs() * 100;
        assert_eq!(spending.wait_until(one, begin), Some(begin.plus(wait)));
        assert_eq!(spending.wait_until(one, begin.plus(wait)), None);
        assert_eq!(spending.wait_until(other, begin), None, "each has his own");
        assert_eq!(spending.wait_until(Owner::Root, begin), None);
    }

    #[test]
    fn all_users_together_spend_no_more_than_their_share() {
        let mut spending = Spending::default();
        let begin = MonotonicNs(100 * SECOND);
        for user in 0..2 * u32::try_from(COMPILE_OWNERS_MAX).unwrap() {
            let each = COMPILE_USERS_NS_MAX.unsigned_abs() / COMPILE_OWNERS_MAX as u64;
            spending.spent(Owner::User(user), each, begin);
        }
        assert!(spending.wait_until(Owner::User(7), begin) > Some(begin));
        assert_eq!(spending.wait_until(Owner::Root, begin), None);
        assert!(spending.purses.len() <= COMPILE_OWNERS_MAX + 2);
    }

    #[test]
    fn who_has_all_again_makes_room_for_others() {
        let mut spending = Spending::default();
        let begin = MonotonicNs(100 * SECOND);
        let owners = u32::try_from(COMPILE_OWNERS_MAX).unwrap();
        (0..owners).for_each(|user| spending.spent(Owner::User(user), SECOND / 100, begin));
        let later = begin.plus(3600 * SECOND);
        spending.spent(Owner::User(owners), SECOND / 100, later);
        assert!(spending.purses.contains_key(&Owner::User(owners)));
        assert_eq!(spending.purses.len(), 1);
    }
}
