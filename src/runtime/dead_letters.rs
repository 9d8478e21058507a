//! Calls that kill: the second time a call of the same idempotency key kills its agent's actor, or panics the task of its attempt, it is
//! put aside and made no more, until an operator forgives it; also after a restart, once it is told of the letters that were kept. A
//! first kill is remembered by this process only. Calls without a key cannot be told again, so nothing is remembered of them.
//! It never judges an agent: deaths count in the restart ledger, whatever becomes of the letter.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

use super::{
    call::CallRequest,
    core::{AgentCore, Shared, lock},
    engine::Runtime,
    journal::{DeadCause, DeadLetter, RunOwner},
    metric,
    ports::AttemptRequest,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use crate::model::clock::Timestamp;

/// Letters that are kept in memory, each refusing its call; the oldest is let go of beyond it.
pub const DEAD_LETTERS_MAX: usize = 1_000;
/// Calls that have killed once and are remembered; the oldest is forgotten beyond it.
pub const SUSPECTS_MAX: usize = 1_000;
/// So long a first kill is remembered.
pub const SUSPECT_AGE_MAX: Duration = Duration::from_secs(3_600);
/// A call that is put aside has killed so often.
const KILLS_MAX: u32 = 2;

/// Where letters go beside the memory of the runtime and its journal.
pub trait DeadLetterBox: Send + Sync + 'static {
    /// Takes a letter. Called on a worker thread, so it must not block.
    fn put_aside(&self, letter: DeadLetter);
}

/// What became of a call that killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Killed {
    /// Not, or not so often: it may be made again.
    Once,
    /// It was put aside.
    Twice,
}

/// A call as it can be told again, at whichever of its agent's targets. One tenant's keys are no other's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    agent: usize,
    tenant: Option<String>,
    key: String,
}

#[derive(Default)]
struct Known {
    /// Kills of each, in the order of their first one.
    suspects: VecDeque<(Key, Timestamp, u32)>,
    dead: HashMap<Key, DeadLetter>,
    order: VecDeque<Key>,
}

/// The letters of one runtime. Written by attempts and agents' actors; outlives both.
#[derive(Default)]
pub(crate) struct DeadLetters {
    known: Mutex<Known>,
    /// How many are dead: a call asks no further while there are none.
    count: AtomicUsize,
    outside: Option<Arc<dyn DeadLetterBox>>,
    /// The ids of those that somebody acts on.
    claimed: Mutex<HashSet<String>>,
}

/// A letter that its holder alone acts on, until this is dropped.
pub struct LetterClaim {
    shared: Arc<Shared>,
    id: String,
}

impl std::fmt::Debug for LetterClaim {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("LetterClaim").field(&self.id).finish()
    }
}

impl Drop for LetterClaim {
    fn drop(&mut self) {
        lock(&self.shared.dead_letters.claimed).remove(&self.id);
    }
}

/// What is known of a call that killed.
pub(crate) struct Killer<'a> {
    pub(crate) key: &'a str,
    pub(crate) run_id: Option<&'a str>,
    pub(crate) owner: RunOwner,
    pub(crate) input: &'a Value,
    pub(crate) message: &'a str,
}

impl<'a> Killer<'a> {
    /// A call that an actor had in hand; `None` if it has no key.
    pub(crate) fn of_call(request: &'a CallRequest, message: &'a str) -> Option<Self> {
        let context = &request.context;
        let owner = RunOwner {
            tenant: context.tenant.clone(),
            feature: context.feature.clone(),
            priority: context.priority.clone(),
            traceparent: context.traceparent.clone(),
            ..RunOwner::default()
        };
        let key = context.idempotency_key.as_deref()?;
        Some(Self { key, run_id: context.run_id.as_deref(), owner, input: &request.input, message })
    }

    /// A call whose attempt panicked; `None` if its key was made up for it.
    pub(crate) fn of_attempt(request: &'a AttemptRequest, message: &'a str) -> Option<Self> {
        let owner = RunOwner {
            tenant: request.tenant.clone(),
            feature: request.feature.clone(),
            priority: request.priority.clone(),
            traceparent: request.traceparent.clone(),
            ..RunOwner::default()
        };
        let key = Some(request.idempotency_key.as_str()).filter(|key| *key != request.call_id)?;
        Some(Self { key, run_id: request.run_id.as_deref(), owner, input: &request.input, message })
    }

    fn letter(&self, agent: &AgentCore, shared: &Shared) -> DeadLetter {
        let now = shared.now();
        let within_run = |run: &str| self.key.strip_prefix(run)?.strip_prefix('/').map(str::to_owned);
        DeadLetter {
            id: shared.call_id(now),
            at_ms: shared.clock.unix_ms(now),
            cause: DeadCause::KilledTwice,
            agent: agent.settings.name.to_string(),
            run_id: self.run_id.map(str::to_owned),
            step: self.run_id.and_then(within_run),
            owner: self.owner.clone(),
            idempotency_key: Some(self.key.to_owned()),
            input: self.input.clone(),
            message: self.message.to_owned(),
        }
    }
}

impl DeadLetters {
    /// Letters that go to `outside` too, if there is such a place.
    pub(crate) fn with(outside: Option<Arc<dyn DeadLetterBox>>) -> Self {
        Self { outside, ..Self::default() }
    }

    /// Whether a call of this key was put aside.
    pub(crate) fn holds(&self, agent: &AgentCore, tenant: Option<&str>, key: Option<&str>) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let Some(key) = key else { return false };
        let key = Key { agent: agent.first, tenant: tenant.map(str::to_owned), key: key.to_owned() };
        lock(&self.known).dead.contains_key(&key)
    }

    /// A call killed its agent's actor or the task of its attempt.
    pub(crate) fn killed(&self, killer: &Killer<'_>, agent: &AgentCore, shared: &Shared) -> Killed {
        let key = Key { agent: agent.first, tenant: killer.owner.tenant.clone(), key: killer.key.to_owned() };
        let letter = {
            let mut known = lock(&self.known);
            if known.count_kill(&key, shared.now()) < KILLS_MAX {
                return Killed::Once;
            }
            let letter = killer.letter(agent, shared);
            known.bury(key, letter.clone());
            self.count.store(known.dead.len(), Ordering::Release);
            letter
        };
        tracing::error!(agent = letter.agent, run = letter.run_id, step = letter.step, "put aside: it killed twice");
        let labels = vec![metrics::Label::new("agent", letter.agent.clone())];
        metric::count(metric::DEAD_LETTERS, labels, 1);
        if let Some(journal) = &shared.journal {
            journal.put_aside(letter.clone());
        }
        if let Some(outside) = &self.outside {
            outside.put_aside(letter);
        }
        Killed::Twice
    }

    fn all(&self) -> Vec<DeadLetter> {
        let known = lock(&self.known);
        known.order.iter().filter_map(|key| known.dead.get(key)).cloned().collect()
    }

    fn forgive(&self, is_meant: impl Fn(&Key) -> bool) -> usize {
        let mut known = lock(&self.known);
        let before = known.dead.len();
        known.suspects.retain(|(suspect, _, _)| !is_meant(suspect));
        known.dead.retain(|dead, _| !is_meant(dead));
        known.order.retain(|dead| !is_meant(dead));
        self.count.store(known.dead.len(), Ordering::Release);
        before - known.dead.len()
    }

    fn remember(&self, key: Key, letter: DeadLetter) -> bool {
        let mut known = lock(&self.known);
        if known.dead.contains_key(&key) {
            return false;
        }
        known.bury(key, letter);
        self.count.store(known.dead.len(), Ordering::Release);
        true
    }
}

impl Known {
    /// How often it has killed by now.
    fn count_kill(&mut self, key: &Key, now: Timestamp) -> u32 {
        self.suspects.retain(|(_, since, _)| now.since(*since) <= SUSPECT_AGE_MAX);
        if let Some((_, _, kills)) = self.suspects.iter_mut().find(|(suspect, _, _)| suspect == key) {
            *kills += 1;
            return *kills;
        }
        if self.suspects.len() >= SUSPECTS_MAX {
            self.suspects.pop_front();
        }
        self.suspects.push_back((key.clone(), now, 1));
        1
    }

    fn bury(&mut self, key: Key, letter: DeadLetter) {
        self.suspects.retain(|(suspect, _, _)| *suspect != key);
        if self.dead.insert(key.clone(), letter).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > DEAD_LETTERS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.dead.remove(&oldest);
        }
    }
}

impl Runtime {
    /// The calls that were put aside and not forgiven, the oldest first; at most [`DEAD_LETTERS_MAX`].
    pub fn dead_letters(&self) -> Vec<DeadLetter> {
        self.shared.dead_letters.all()
    }

    /// Lets calls of this idempotency key be made again, as if they had never killed: before an operator replays one, or because what
    /// was wrong is mended. How many letters are gone by it.
    pub fn forgive(&self, idempotency_key: &str) -> usize {
        self.shared.dead_letters.forgive(|known| known.key == idempotency_key)
    }

    /// The same for the call of one letter; another tenant's calls of the same key are left alone. False if it was not put aside here.
    pub fn forgive_letter(&self, letter: &DeadLetter) -> bool {
        self.letter_key(letter).is_some_and(|key| self.shared.dead_letters.forgive(|known| *known == key) > 0)
    }

    /// Refuses the call of a letter that was kept elsewhere, as if it had been put aside here: after a restart, or because it was forgiven
    /// in vain. False if there is nothing to refuse: it killed nobody, its agent is not here, or its call is refused already.
    pub fn remember_letter(&self, letter: &DeadLetter) -> bool {
        let key = self.letter_key(letter);
        key.is_some_and(|key| self.shared.dead_letters.remember(key, letter.clone()))
    }

    /// Lets its holder alone act on the letter of this id. `None` while somebody else does.
    pub fn claim_letter(&self, id: &str) -> Option<LetterClaim> {
        let is_first = lock(&self.shared.dead_letters.claimed).insert(id.to_owned());
        is_first.then(|| LetterClaim { shared: Arc::clone(&self.shared), id: id.to_owned() })
    }

    fn letter_key(&self, letter: &DeadLetter) -> Option<Key> {
        let agent = self.shared.agent(&letter.agent).filter(|_| letter.cause == DeadCause::KilledTwice)?;
        let key = letter.idempotency_key.clone()?;
        Some(Key { agent: agent.first, tenant: letter.owner.tenant.clone(), key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key { agent: 0, tenant: None, key: format!("key-{number}") }
    }

    fn letter(number: usize) -> DeadLetter {
        DeadLetter {
            id: number.to_string(),
            at_ms: 0,
            cause: DeadCause::KilledTwice,
            agent: "draft".into(),
            run_id: None,
            step: None,
            owner: RunOwner::default(),
            idempotency_key: Some(format!("key-{number}")),
            input: Value::Null,
            message: String::new(),
        }
    }

    #[test]
    fn kills_are_counted_by_key_and_forgotten_with_age() {
        let mut known = Known::default();
        let at = |seconds| Timestamp::ZERO.after(Duration::from_secs(seconds));
        let other_tenant = Key { tenant: Some("b".into()), ..key(1) };
        let other_agent = Key { agent: 1, ..key(1) };
        for (of, seconds, want) in [
            (&key(1), 0, 1),
            (&other_tenant, 0, 1),
            (&other_agent, 0, 1),
            (&key(2), 10, 1),
            (&key(1), 3_600, 2),
            // An hour after the first kill it is forgotten.
            (&key(1), 3_601, 1),
            (&key(2), 3_601, 2),
        ] {
            assert_eq!(known.count_kill(of, at(seconds)), want, "{of:?} at {seconds} s");
        }
    }

    #[test]
    fn nothing_grows_without_bound() {
        let mut known = Known::default();
        for number in 0..3 * SUSPECTS_MAX {
            known.count_kill(&key(number), Timestamp::ZERO);
        }
        assert_eq!(known.suspects.len(), SUSPECTS_MAX);
        for number in 0..DEAD_LETTERS_MAX + 5 {
            known.bury(key(number), letter(number));
        }
        assert_eq!((known.dead.len(), known.order.len()), (DEAD_LETTERS_MAX, DEAD_LETTERS_MAX));
        assert!(!known.dead.contains_key(&key(4)) && known.dead.contains_key(&key(5)), "the oldest go first");
    }
}
