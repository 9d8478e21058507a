//! What is kept of each caller: by its key, else its tenant, else for all who say neither. Their number is bounded, whatever names come:
//! who is idle leaves first, then who was away longest; who is kept leaves only when nobody else is left. It never decides about a call.

use std::{collections::HashMap, fmt};

use crate::model::{clock::Timestamp, name::NameHasher};

/// The most callers that are remembered at once.
pub const CALLERS_MAX: usize = 100_000;
/// A full crowd lets this share of itself go at once, so that a flood of new names costs each of them little.
const LEAVING_SHARE: usize = 64;

/// How a caller is told from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallerKind {
    /// By the name of its key.
    Key,
    /// By its tenant.
    Tenant,
    /// Not at all: the program's own calls, and those of a service without keys and tenants.
    Local,
}

/// Whose calls are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerScope {
    /// The key's, else the tenant's.
    Caller,
    /// The tenant's, whichever of its keys is shown; else the key's.
    Tenant,
}

/// A caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallerName<'a> {
    kind: CallerKind,
    name: &'a str,
}

impl<'a> CallerName<'a> {
    /// Who calls with this key for this tenant.
    pub fn of(scope: CallerScope, key: Option<&'a str>, tenant: Option<&'a str>) -> Self {
        let (key, tenant) = (key.map(|name| (CallerKind::Key, name)), tenant.map(|name| (CallerKind::Tenant, name)));
        let found = match scope {
            CallerScope::Caller => key.or(tenant),
            CallerScope::Tenant => tenant.or(key),
        };
        let (kind, name) = found.unwrap_or((CallerKind::Local, ""));
        Self { kind, name }
    }

    /// Who is written so: `key:NAME`, `tenant:NAME` or `local`.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (kind, name) = match text.split_once(':') {
            Some(("key", name)) => (CallerKind::Key, name),
            Some(("tenant", name)) => (CallerKind::Tenant, name),
            None if text == "local" => (CallerKind::Local, ""),
            _ => return None,
        };
        Some(Self { kind, name })
    }

    /// How it is told from others.
    pub fn kind(self) -> CallerKind {
        self.kind
    }
}

impl fmt::Display for CallerName<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            CallerKind::Key => write!(formatter, "key:{}", self.name),
            CallerKind::Tenant => write!(formatter, "tenant:{}", self.name),
            CallerKind::Local => formatter.write_str("local"),
        }
    }
}

/// Whether a caller may be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing would be lost.
    Idle,
    /// Its counts would be lost: only when it must be.
    Present,
    /// It is refused just now; whoever forgets it lets it go.
    Kept,
}

/// Bounded, by name.
#[derive(Debug, Clone)]
pub struct Crowd<T> {
    keys: HashMap<Box<str>, Member<T>, NameHasher>,
    tenants: HashMap<Box<str>, Member<T>, NameHasher>,
    local: Option<Member<T>>,
    most: usize,
}

#[derive(Debug, Clone)]
struct Member<T> {
    state: T,
    seen: Timestamp,
}

impl<T> Crowd<T> {
    /// At most `most` keys and tenants together, at least one.
    pub fn of_at_most(most: usize) -> Self {
        Self { keys: HashMap::default(), tenants: HashMap::default(), local: None, most: most.max(1) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.keys.len() + self.tenants.len() + usize::from(self.local.is_some())
    }

    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is kept of `who`, if anything.
    pub fn find(&self, who: CallerName<'_>) -> Option<&T> {
        let member = match who.kind {
            CallerKind::Key => self.keys.get(who.name),
            CallerKind::Tenant => self.tenants.get(who.name),
            CallerKind::Local => self.local.as_ref(),
        };
        member.map(|member| &member.state)
    }

    /// What is kept of `who`, who calls at `now`, if anything.
    pub fn seen(&mut self, who: CallerName<'_>, now: Timestamp) -> Option<&T> {
        let member = match who.kind {
            CallerKind::Key => self.keys.get_mut(who.name),
            CallerKind::Tenant => self.tenants.get_mut(who.name),
            CallerKind::Local => self.local.as_mut(),
        }?;
        member.seen = member.seen.max(now);
        Some(&member.state)
    }

    /// What is kept of `who`, who calls at `now`; made by `make` where it is the first time. `standing` is asked only when there are
    /// too many.
    pub fn enter(
        &mut self,
        who: CallerName<'_>,
        now: Timestamp,
        make: impl FnOnce() -> T,
        standing: impl Fn(&T) -> Standing,
    ) -> T
    where
        T: Clone,
    {
        if let Some(state) = self.seen(who, now) {
            return state.clone();
        }
        if self.len() >= self.most {
            self.make_room(standing);
        }
        let member = Member { state: make(), seen: now };
        let state = member.state.clone();
        match who.kind {
            CallerKind::Key => _ = self.keys.insert(who.name.into(), member),
            CallerKind::Tenant => _ = self.tenants.insert(who.name.into(), member),
            CallerKind::Local => self.local = Some(member),
        }
        state
    }

    /// Everybody, in no order.
    pub fn all(&self) -> impl Iterator<Item = (CallerName<'_>, &T)> {
        let keys = self.keys.iter().map(|(name, member)| (CallerKind::Key, &**name, member));
        let tenants = self.tenants.iter().map(|(name, member)| (CallerKind::Tenant, &**name, member));
        let local = self.local.iter().map(|member| (CallerKind::Local, "", member));
        keys.chain(tenants).chain(local).map(|(kind, name, member)| (CallerName { kind, name }, &member.state))
    }

    /// Lets the idle go; if there are none, those who were away longest.
    fn make_room(&mut self, standing: impl Fn(&T) -> Standing) {
        for members in [&mut self.keys, &mut self.tenants] {
            members.retain(|_, member| standing(&member.state) != Standing::Idle);
        }
        let leaving = (self.most / LEAVING_SHARE).max(1);
        if self.most - self.len().min(self.most) >= leaving {
            return;
        }
        let rank = |member: &Member<T>| (standing(&member.state) == Standing::Kept, member.seen);
        let mut ranks: Vec<(bool, Timestamp)> = self.keys.values().chain(self.tenants.values()).map(rank).collect();
        let place = leaving.min(ranks.len());
        if place == 0 {
            return;
        }
        let (_, last, _) = ranks.select_nth_unstable(place - 1);
        let last = *last;
        let mut left = place;
        for members in [&mut self.keys, &mut self.tenants] {
            members.retain(|_, member| {
                let leaves = left > 0 && (standing(&member.state) == Standing::Kept, member.seen) <= last;
                left -= usize::from(leaves);
                !leaves
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> CallerName<'_> {
        CallerName { kind: CallerKind::Key, name }
    }

    #[test]
    fn who_calls() {
        use CallerScope::{Caller, Tenant};
        for (scope, key, tenant, want) in [
            (Caller, Some("k"), Some("t"), "key:k"),
            (Caller, None, Some("t"), "tenant:t"),
            (Caller, None, None, "local"),
            (Tenant, Some("k"), Some("t"), "tenant:t"),
            (Tenant, Some("k"), None, "key:k"),
            (Tenant, None, None, "local"),
        ] {
            let who = CallerName::of(scope, key, tenant);
            assert_eq!(who.to_string(), want);
            assert_eq!(CallerName::parse(want), Some(who), "{want}");
        }
        assert_eq!(CallerName::parse("local:x"), None);
        assert_eq!(CallerName::parse("nobody"), None);
        assert_ne!(CallerName::parse("key:local"), CallerName::parse("local"), "a key of that name is another caller");
    }

    #[test]
    fn the_idle_leave_first_then_who_was_away_longest_and_the_kept_last() {
        let mut crowd = Crowd::of_at_most(4);
        let standing = |state: &u32| match state {
            0 => Standing::Idle,
            9 => Standing::Kept,
            _ => Standing::Present,
        };
        for (at, (name, state)) in [("kept", 9), ("idle", 0), ("old", 1), ("new", 2)].into_iter().enumerate() {
            crowd.enter(key(name), Timestamp::from_millis(at as u64), || state, standing);
        }
        let there = |crowd: &Crowd<u32>| {
            let mut names: Vec<String> = crowd.all().map(|(who, _)| who.to_string()).collect();
            names.sort();
            names.join(" ")
        };
        crowd.enter(key("a"), Timestamp::from_millis(10), || 3, standing);
        assert_eq!(there(&crowd), "key:a key:kept key:new key:old");
        crowd.enter(key("b"), Timestamp::from_millis(11), || 9, standing);
        assert_eq!(there(&crowd), "key:a key:b key:kept key:new");
        for (at, name) in ["c", "d"].into_iter().enumerate() {
            crowd.enter(key(name), Timestamp::from_millis(12 + at as u64), || 9, standing);
        }
        assert_eq!(there(&crowd), "key:b key:c key:d key:kept");
        crowd.enter(key("e"), Timestamp::from_millis(14), || 1, standing);
        assert_eq!(there(&crowd), "key:b key:c key:d key:e", "all are kept: then the oldest of them");
    }

    proptest! {
        #[test]
        fn it_is_bounded_and_keeps_those_who_call(
            most in 1_usize..200,
            calls in prop::collection::vec((0_u16..400, 0_u8..3), 1..800),
        ) {
            let mut crowd = Crowd::of_at_most(most);
            let mut next = 0_u32;
            for (at, (name, kind)) in calls.into_iter().enumerate() {
                let name = name.to_string();
                let (key, tenant) = match kind { 0 => (Some(name.as_str()), None), 1 => (None, Some(name.as_str())), _ => (None, None) };
                let who = CallerName::of(CallerScope::Caller, key, tenant);
                let before = crowd.find(who).copied();
                next += 1;
                let got = crowd.enter(who, Timestamp::from_millis(at as u64), || next, |_| Standing::Present);
                prop_assert_eq!(got, before.unwrap_or(next));
                prop_assert_eq!(crowd.find(who).copied(), Some(got), "whoever calls is there");
                prop_assert!(crowd.len() <= most + 1, "one more for local calls at most");
            }
        }
    }
}
