//! A published gate: what the supervisor says of one breaker, in one atomic word that every caller reads in its own task.
//!
//! Picture a door with a number on it (the generation) and a row of tickets (the trials). A caller takes a ticket by compare-and-swap
//! on door, number and row together, so exactly as many pass as there were tickets, whatever the threads; a ticket that comes back
//! to a door with another number is void.
//!
//! Runs that are parked before the door are counted on it. When it turns half-open, as many tickets are kept for them: others take only
//! what is beyond, until the orchestrator has offered the tickets to those runs, or for [`PARKED_FIRST_MAX`] at most. What is kept is
//! part of the word, so it ends with the door's number like everything else.

use std::time::Duration;

use super::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use crate::{
    model::clock::Timestamp,
    policy::breaker::state::{GateView, PassKind, Reason, Refusal},
};

/// Trials that are kept for parked runs are open to everybody after this, counted from the first caller who was sent away because of
/// them: an orchestrator that is dead or far behind keeps nobody waiting. Not longer than what such a caller is told to wait.
pub(crate) const PARKED_FIRST_MAX: Duration = Duration::from_secs(1);
/// The most trials that are kept: what the word has room for.
const KEPT_MAX: u16 = (1 << 13) - 1;

/// The gate of one breaker. The supervisor is the only one who changes its state; callers only take and return trials, and the first
/// caller after the open time may turn an open gate half-open.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Generation (32 bits), free trials (16), those of them that are kept for parked runs (13), timed (1), state (2).
    word: AtomicU64,
    /// When a refusing gate can change by itself, in nanoseconds; [`Timestamp::NEVER`] if it cannot.
    until: AtomicU64,
    reason: AtomicU8,
    /// How many a half-open state begins with.
    trials: AtomicU16,
    /// How many the half-open state of a generation began with: generation (32 bits), trials (16).
    began_with: AtomicU64,
    /// Runs that are parked before this gate; written by the orchestrator.
    parked: AtomicU32,
    /// When the first caller was sent away because of kept trials, in nanoseconds; [`Timestamp::NEVER`] if none was.
    sent_away: AtomicU64,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// Anybody: gets what is not kept for others.
    Anyone,
    /// A run that is counted as parked before this gate.
    ParkedRun,
}

/// What a caller got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) generation: u32,
    pub(crate) kind: PassKind,
    /// This caller turned the gate from open to half-open.
    pub(crate) opened_it: bool,
}

/// A gate that let nobody pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shut {
    pub(crate) refusal: Refusal,
    /// This caller turned the gate half-open, in this generation, but every trial is kept for others: the supervisor must hear of it.
    pub(crate) opened: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Admit,
    Probe,
    Refuse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    state: State,
    timed: bool,
    free: u16,
    /// Never more than `free`.
    kept: u16,
    generation: u32,
}

impl Word {
    fn pack(self) -> u64 {
        let state = match self.state {
            State::Admit => 0,
            State::Probe => 1,
            State::Refuse => 2,
        };
        let kept = u64::from(self.kept.min(KEPT_MAX));
        u64::from(self.generation) << 32 | u64::from(self.free) << 16 | kept << 3 | u64::from(self.timed) << 2 | state
    }

    fn unpack(word: u64) -> Self {
        let state = match word & 0b11 {
            0 => State::Admit,
            1 => State::Probe,
            _ => State::Refuse,
        };
        // The casts cut out exactly the bits of each field.
        #[allow(clippy::cast_possible_truncation)]
        let (free, kept, generation) = ((word >> 16) as u16, (word >> 3) as u16 & KEPT_MAX, (word >> 32) as u32);
        Self { state, timed: word & 0b100 != 0, free, kept, generation }
    }

    /// The same with one trial less, taken by `asker`; `None` if none is there for it.
    fn taken_by(self, asker: Asker) -> Option<Self> {
        let kept = match asker {
            Asker::ParkedRun => self.kept.saturating_sub(1),
            Asker::Anyone => self.kept,
        };
        let free = self.free.checked_sub(1).filter(|free| *free >= kept)?;
        Some(Self { free, kept, ..self })
    }
}

impl Gate {
    /// A gate that shows `view`.
    pub(crate) fn new(view: GateView, generation: u32, trials: u32) -> Self {
        let vacant = Word { state: State::Admit, timed: false, free: 0, kept: 0, generation };
        let gate = Self {
            word: AtomicU64::new(vacant.pack()),
            until: AtomicU64::new(Timestamp::NEVER.nanoseconds()),
            reason: AtomicU8::new(0),
            trials: AtomicU16::new(u16::try_from(trials).unwrap_or(u16::MAX)),
            began_with: AtomicU64::new(u64::from(generation) << 32),
            parked: AtomicU32::new(0),
            sent_away: AtomicU64::new(Timestamp::NEVER.nanoseconds()),
        };
        gate.publish(view, generation);
        gate
    }

    /// Shows another state. Only the supervisor calls this. A generation that is over changes nothing.
    pub(crate) fn publish(&self, view: GateView, generation: u32) {
        let (state, free, reason, until) = match view {
            GateView::Admit => (State::Admit, 0, None, None),
            GateView::Probe { free, reason } => {
                (State::Probe, u16::try_from(free).unwrap_or(u16::MAX), Some(reason), None)
            }
            GateView::Refuse(refusal) => (State::Refuse, 0, Some(refusal.reason), refusal.until),
        };
        let timed = reason.is_some_and(is_timed) && until.is_some();
        let word = Word { state, timed, free, kept: self.kept_of(free), generation };
        let mut seen = self.word.load(Ordering::Acquire);
        loop {
            let present = Word::unpack(seen);
            if is_later(present.generation, generation) {
                // A caller has turned it half-open; the supervisor will hear of it and follow.
                return;
            }
            if state == State::Probe && present.state == State::Probe && present.generation == generation {
                // The first caller was quicker than the timer: its count of trials is the true one.
                return;
            }
            // A generation begins with all of its trials.
            self.begin_with(generation, free);
            self.reason.store(reason.map_or(0, reason_code), Ordering::Release);
            self.until.store(until.unwrap_or(Timestamp::NEVER).nanoseconds(), Ordering::Release);
            self.sent_away.store(Timestamp::NEVER.nanoseconds(), Ordering::Release);
            // A swap, not a store: the first caller may be taking its trial at this very moment.
            match self.word.compare_exchange_weak(seen, word.pack(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// The generation it shows: ahead of its breaker's from the first caller's opening until the supervisor hears of it.
    pub(crate) fn generation(&self) -> u32 {
        Word::unpack(self.word.load(Ordering::Acquire)).generation
    }

    /// Passes the gate at `now`, or is refused. Never waits.
    pub(crate) fn pass(&self, now: Timestamp, asker: Asker) -> Result<Passed, Shut> {
        loop {
            let seen = self.word.load(Ordering::Acquire);
            let word = Word::unpack(seen);
            let (half_open, opened_it) = match word.state {
                State::Admit => {
                    return Ok(Passed { generation: word.generation, kind: PassKind::Plain, opened_it: false });
                }
                State::Probe => (self.with_kept_in_time(word, asker, now), false),
                State::Refuse if word.timed && self.until() <= now && self.trials() > 0 => {
                    (self.half_opened(word), true)
                }
                State::Refuse => return Err(Shut { refusal: self.refusal(word), opened: None }),
            };
            let taken = half_open.taken_by(asker);
            if taken.is_none() && !opened_it {
                return Err(Shut { refusal: self.refusal(word), opened: None });
            }
            let next = taken.unwrap_or(half_open);
            if self.word.compare_exchange_weak(seen, next.pack(), Ordering::AcqRel, Ordering::Acquire).is_err() {
                continue;
            }
            let generation = next.generation;
            return match taken {
                Some(_) => Ok(Passed { generation, kind: PassKind::Trial, opened_it }),
                None => Err(Shut { refusal: self.refusal(next), opened: Some(generation) }),
            };
        }
    }

    /// What the first caller after the open time turns an open gate into.
    fn half_opened(&self, word: Word) -> Word {
        // Before the swap, so that nobody meets an earlier half-open state's time.
        self.sent_away.store(Timestamp::NEVER.nanoseconds(), Ordering::Release);
        let generation = word.generation.wrapping_add(1);
        let free = self.trials();
        self.begin_with(generation, free);
        let kept = self.kept_of(free);
        Word { state: State::Probe, timed: false, free, kept, generation }
    }

    /// Notes how many trials `generation` begins with. A late word of an earlier one does not undo what the first caller noted: its trial
    /// could not come back.
    fn begin_with(&self, generation: u32, trials: u16) {
        let _ = self.began_with.fetch_update(Ordering::AcqRel, Ordering::Acquire, |noted| {
            let (noted_of, _) = noted_parts(noted);
            (!is_later(noted_of, generation)).then(|| u64::from(generation) << 32 | u64::from(trials))
        });
    }

    /// How many trials `generation` began with, if it is the present one.
    fn began_with(&self, generation: u32) -> u16 {
        let (noted_of, trials) = noted_parts(self.began_with.load(Ordering::Acquire));
        if noted_of == generation { trials } else { 0 }
    }

    /// How many of `free` trials are kept for the runs that are parked now.
    fn kept_of(&self, free: u16) -> u16 {
        let parked = u16::try_from(self.parked.load(Ordering::Acquire)).unwrap_or(u16::MAX);
        free.min(parked).min(KEPT_MAX)
    }

    /// The word without what was kept for too long. Whoever finds all that is left kept for others begins to count that time.
    fn with_kept_in_time(&self, word: Word, asker: Asker, now: Timestamp) -> Word {
        if asker == Asker::ParkedRun || word.free > word.kept || word.kept == 0 {
            return word;
        }
        let (never, at) = (Timestamp::NEVER.nanoseconds(), now.nanoseconds());
        let began = self.sent_away.compare_exchange(never, at, Ordering::AcqRel, Ordering::Acquire);
        let began = Timestamp::from_nanoseconds(began.map_or_else(|earlier| earlier, |_| at));
        if began.after(PARKED_FIRST_MAX) <= now { Word { kept: 0, ..word } } else { word }
    }

    /// The parked runs have been offered the trials of `generation`: what they left is everybody's.
    pub(crate) fn offered(&self, generation: u32) {
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |seen| {
            let word = Word::unpack(seen);
            (word.generation == generation && word.kept > 0).then(|| Word { kept: 0, ..word }.pack())
        });
    }

    /// One more run is parked before this gate.
    pub(crate) fn run_parked(&self) {
        self.parked.fetch_add(1, Ordering::AcqRel);
    }

    /// A run that was counted is not parked here any longer.
    pub(crate) fn run_left(&self) {
        self.parked.fetch_sub(1, Ordering::AcqRel);
    }

    /// Passes at `now` without a trial while the breaker above is not closed. An open gate still refuses, until its time is over:
    /// else a gate that only a caller can turn half-open would keep the trials of the breaker above from ever passing.
    pub(crate) fn pass_below(&self, now: Timestamp) -> Result<Passed, Refusal> {
        let word = Word::unpack(self.word.load(Ordering::Acquire));
        match word.state {
            State::Refuse if !word.timed || self.until() > now => Err(self.refusal(word)),
            State::Admit | State::Probe | State::Refuse => {
                Ok(Passed { generation: word.generation, kind: PassKind::Plain, opened_it: false })
            }
        }
    }

    /// Gives a trial of `generation` back. A gate of another generation stays as it is.
    pub(crate) fn give_back(&self, generation: u32) {
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |seen| {
            let word = Word::unpack(seen);
            let takes =
                word.state == State::Probe && word.generation == generation && word.free < self.began_with(generation);
            takes.then(|| Word { free: word.free + 1, ..word }.pack())
        });
    }

    /// What the gate shows, without passing.
    pub(crate) fn look(&self) -> GateView {
        let word = Word::unpack(self.word.load(Ordering::Acquire));
        match word.state {
            State::Admit => GateView::Admit,
            State::Probe => GateView::Probe { free: u32::from(word.free), reason: self.reason() },
            State::Refuse => GateView::Refuse(self.refusal(word)),
        }
    }

    /// Half-open states begin with so many from now on; one that is under way keeps what it has.
    pub(crate) fn set_trials(&self, trials: u32) {
        self.trials.store(u16::try_from(trials).unwrap_or(u16::MAX), Ordering::Release);
    }

    fn trials(&self) -> u16 {
        self.trials.load(Ordering::Acquire)
    }

    fn refusal(&self, word: Word) -> Refusal {
        let until = Some(self.until()).filter(|until| word.state == State::Refuse && *until != Timestamp::NEVER);
        Refusal { reason: self.reason(), until }
    }

    fn until(&self) -> Timestamp {
        Timestamp::from_nanoseconds(self.until.load(Ordering::Acquire))
    }

    fn reason(&self) -> Reason {
        reason_of(self.reason.load(Ordering::Acquire))
    }
}

/// Generation and trials of what [`Gate::began_with`] holds.
#[allow(clippy::cast_possible_truncation, reason = "the casts cut out exactly the bits of each")]
fn noted_parts(noted: u64) -> (u32, u16) {
    ((noted >> 32) as u32, noted as u16)
}

/// Whether `generation` began after `than`. Generations wrap around; two that are compared are never half the circle apart.
fn is_later(generation: u32, than: u32) -> bool {
    let ahead = generation.wrapping_sub(than);
    ahead != 0 && ahead < u32::MAX / 2
}

/// Whether a refusal of this reason ends by its time alone. What an operator or a ledger shut, only they open.
fn is_timed(reason: Reason) -> bool {
    !matches!(reason, Reason::Forced | Reason::CrashLoop | Reason::KeyRejected)
}

const REASONS: [Reason; 12] = [
    Reason::Forced,
    Reason::FailureShare,
    Reason::SlowShare,
    Reason::Consecutive,
    Reason::CrashLoop,
    Reason::KeyRejected,
    Reason::QuotaSpent,
    Reason::OpenElapsed,
    Reason::FirstCall,
    Reason::TrialsPassed,
    Reason::HalfOpenMax,
    Reason::Reset,
];

fn reason_code(reason: Reason) -> u8 {
    let index = REASONS.iter().position(|known| *known == reason);
    index.and_then(|index| u8::try_from(index).ok()).unwrap_or(0)
}

fn reason_of(code: u8) -> Reason {
    REASONS.get(usize::from(code)).copied().unwrap_or(Reason::Forced)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    fn open(until_ms: u64) -> GateView {
        let refusal = Refusal { reason: Reason::FailureShare, until: Some(Timestamp::from_millis(until_ms)) };
        GateView::Refuse(refusal)
    }

    #[test]
    fn every_reason_survives_its_code() {
        for reason in REASONS {
            assert_eq!(reason_of(reason_code(reason)), reason);
        }
    }

    #[test]
    fn exactly_five_of_a_thousand_callers_on_eight_threads_pass_half_open() {
        for round in 0..300_u32 {
            let gate = Arc::new(Gate::new(open(1_000), round, 5));
            let start = Arc::new(Barrier::new(8));
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    let (gate, start) = (Arc::clone(&gate), Arc::clone(&start));
                    std::thread::spawn(move || {
                        start.wait();
                        let mut passed = 0;
                        for _ in 0..125 {
                            match gate.pass(Timestamp::from_millis(1_000), Asker::Anyone) {
                                Ok(pass) => {
                                    assert_eq!((pass.generation, pass.kind), (round + 1, PassKind::Trial));
                                    passed += 1;
                                }
                                Err(shut) => assert_eq!(shut.refusal.reason, Reason::FailureShare),
                            }
                        }
                        passed
                    })
                })
                .collect();
            let passed: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            assert_eq!(passed, 5, "round {round}");
        }
    }

    #[test]
    fn the_timer_after_the_first_caller_gives_no_trial_anew() {
        let gate = Gate::new(open(1_000), 3, 5);
        assert!(gate.pass(Timestamp::from_millis(999), Asker::Anyone).is_err());
        assert!(gate.pass(Timestamp::from_millis(1_000), Asker::Anyone).unwrap().opened_it);
        gate.publish(GateView::Probe { free: 5, reason: Reason::FailureShare }, 4);
        assert_eq!(gate.look(), GateView::Probe { free: 4, reason: Reason::FailureShare });
    }

    #[test]
    fn a_trial_comes_back_only_to_its_own_generation() {
        let gate = Gate::new(open(0), 1, 2);
        for _ in 0..2 {
            gate.pass(Timestamp::ZERO, Asker::Anyone).unwrap();
        }
        assert!(gate.pass(Timestamp::ZERO, Asker::Anyone).is_err());
        gate.give_back(1);
        assert!(gate.pass(Timestamp::ZERO, Asker::Anyone).is_err(), "an earlier generation");
        gate.give_back(2);
        assert!(gate.pass(Timestamp::ZERO, Asker::Anyone).is_ok());
        gate.give_back(2);
        gate.give_back(2);
        gate.give_back(2);
        assert_eq!(gate.look(), GateView::Probe { free: 2, reason: Reason::FailureShare }, "never more than there are");
    }

    #[test]
    fn what_an_operator_shut_no_caller_opens() {
        for reason in [Reason::Forced, Reason::CrashLoop, Reason::KeyRejected] {
            let refusal = Refusal { reason, until: Some(Timestamp::from_millis(5)) };
            let gate = Gate::new(GateView::Refuse(refusal), 1, 5);
            assert_eq!(gate.pass(Timestamp::from_millis(9_999), Asker::Anyone), Err(Shut { refusal, opened: None }));
        }
    }

    #[test]
    fn a_late_word_of_an_earlier_generation_does_not_shut_what_a_caller_opened() {
        let gate = Gate::new(open(1_000), u32::MAX, 5);
        let first = gate.pass(Timestamp::from_millis(1_000), Asker::Anyone).unwrap();
        assert_eq!((first.generation, gate.generation()), (0, 0), "generations wrap around");
        gate.publish(open(5_000), u32::MAX);
        assert_eq!(gate.look(), GateView::Probe { free: 4, reason: Reason::FailureShare });
        gate.publish(open(9_000), 1);
        assert_eq!(gate.look(), open(9_000), "a later one does");
    }

    #[test]
    fn below_a_gate_on_trial_no_trial_is_taken_and_an_open_one_still_refuses() {
        let gate = Gate::new(open(1_000), 1, 5);
        assert!(gate.pass_below(Timestamp::from_millis(999)).is_err());
        let over = gate.pass_below(Timestamp::from_millis(1_000)).unwrap();
        assert_eq!((over.kind, gate.look()), (PassKind::Plain, open(1_000)));
        gate.publish(GateView::Probe { free: 5, reason: Reason::FailureShare }, 2);
        assert_eq!(gate.pass_below(Timestamp::ZERO).unwrap().kind, PassKind::Plain);
        assert_eq!(gate.look(), GateView::Probe { free: 5, reason: Reason::FailureShare });
        let forced = Refusal { reason: Reason::Forced, until: None };
        gate.publish(GateView::Refuse(forced), 3);
        assert_eq!(gate.pass_below(Timestamp::NEVER), Err(forced));
    }

    /// Timer and first callers in the same moment, at many gates one after the other and a little later each time: whoever is first,
    /// five pass.
    #[test]
    fn the_timer_races_the_first_callers() {
        const GATES: usize = 40_000;
        let gates: Vec<Gate> = (0..GATES).map(|_| Gate::new(open(1_000), 1, 5)).collect();
        let passed: Vec<AtomicU8> = (0..GATES).map(|_| AtomicU8::new(0)).collect();
        let due = AtomicU64::new(0);
        let pass = |index: usize, tries: usize| {
            let passes =
                (0..tries).filter(|_| gates[index].pass(Timestamp::from_millis(1_000), Asker::Anyone).is_ok()).count();
            passed[index].fetch_add(u8::try_from(passes).unwrap(), Ordering::SeqCst);
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for index in 0..GATES {
                        while due.load(Ordering::Acquire) <= index as u64 {
                            std::thread::yield_now();
                        }
                        pass(index, 2);
                    }
                });
            }
            for (index, gate) in gates.iter().enumerate() {
                due.store(index as u64 + 1, Ordering::Release);
                for _ in 0..index % 200 {
                    std::hint::spin_loop();
                }
                gate.publish(GateView::Probe { free: 5, reason: Reason::FailureShare }, 2);
            }
        });
        for (index, passed) in passed.iter().enumerate() {
            pass(index, 9);
            assert_eq!(passed.load(Ordering::SeqCst), 5, "gate {index}");
        }
    }

    /// A gate whose open time is over, with so many runs parked before it.
    fn with_parked(runs: u32) -> Gate {
        let gate = Gate::new(open(1_000), 1, 5);
        (0..runs).for_each(|_| gate.run_parked());
        gate
    }

    fn takes(gate: &Gate, asker: Asker, at_ms: u64) -> usize {
        (0..20).filter(|_| gate.pass(Timestamp::from_millis(at_ms), asker).is_ok()).count()
    }

    #[test]
    fn what_is_kept_for_parked_runs_nobody_else_takes() {
        for (runs, for_anyone) in [(0, 5), (1, 4), (2, 3), (5, 0), (900, 0)] {
            for by_timer in [true, false] {
                let gate = with_parked(runs);
                if by_timer {
                    gate.publish(GateView::Probe { free: 5, reason: Reason::FailureShare }, 2);
                }
                assert_eq!(takes(&gate, Asker::Anyone, 1_000), for_anyone, "{runs} parked");
                assert_eq!(takes(&gate, Asker::ParkedRun, 1_000), 5 - for_anyone, "{runs} parked");
                assert_eq!(takes(&gate, Asker::Anyone, 99_000), 0, "five in all");
            }
        }
    }

    #[test]
    fn whoever_opens_the_gate_for_others_says_so_once() {
        let gate = with_parked(7);
        let first = gate.pass(Timestamp::from_millis(1_000), Asker::Anyone).unwrap_err();
        assert_eq!((first.opened, first.refusal.until), (Some(2), None), "half-open: nobody knows until when");
        assert_eq!(gate.pass(Timestamp::from_millis(1_000), Asker::Anyone).unwrap_err().opened, None);
        assert_eq!(gate.look(), GateView::Probe { free: 5, reason: Reason::FailureShare });
        let own = with_parked(7).pass(Timestamp::from_millis(1_000), Asker::ParkedRun).unwrap();
        assert!(own.opened_it);
    }

    #[test]
    fn what_the_parked_runs_leave_is_everybodys() {
        let gate = with_parked(5);
        assert_eq!(takes(&gate, Asker::Anyone, 1_000), 0);
        assert!(gate.pass(Timestamp::from_millis(1_001), Asker::ParkedRun).is_ok());
        gate.offered(1);
        assert_eq!(takes(&gate, Asker::Anyone, 1_002), 0, "that was another generation");
        gate.offered(2);
        assert_eq!(takes(&gate, Asker::Anyone, 1_003), 4);
        // One that comes back is everybody's too.
        gate.give_back(2);
        assert_eq!(takes(&gate, Asker::Anyone, 1_004), 1);
    }

    #[test]
    fn a_trial_that_a_parked_run_gives_back_is_kept_for_nobody() {
        let gate = with_parked(5);
        assert!(gate.pass(Timestamp::from_millis(1_000), Asker::ParkedRun).is_ok());
        gate.give_back(2);
        assert_eq!(takes(&gate, Asker::Anyone, 1_000), 1);
        assert_eq!(takes(&gate, Asker::ParkedRun, 1_000), 4);
    }

    #[test]
    fn nobody_stands_back_for_longer_than_the_bound() {
        let bound = u64::try_from(PARKED_FIRST_MAX.as_millis()).unwrap();
        for round in 0..3_u32 {
            let gate = with_parked(5);
            // However long it is half-open before anybody comes: the time of whoever comes first counts.
            let came = 1_000 + u64::from(round) * 77_000;
            if round > 0 {
                gate.publish(GateView::Probe { free: 5, reason: Reason::FailureShare }, 2);
            }
            assert_eq!(takes(&gate, Asker::Anyone, came), 0);
            assert_eq!(takes(&gate, Asker::Anyone, came + bound - 1), 0);
            assert_eq!(takes(&gate, Asker::Anyone, came + bound), 5, "round {round}");
        }
    }

    #[test]
    fn what_was_kept_ends_with_its_generation() {
        let forced = Refusal { reason: Reason::Forced, until: None };
        let gate = with_parked(5);
        assert_eq!(takes(&gate, Asker::Anyone, 1_000), 0);
        gate.publish(GateView::Refuse(forced), 3);
        for asker in [Asker::Anyone, Asker::ParkedRun] {
            assert_eq!(gate.pass(Timestamp::from_millis(9_000), asker).unwrap_err().refusal, forced);
        }
        // The next half-open state keeps as many as are parked then, and counts its own time.
        (0..4).for_each(|_| gate.run_left());
        gate.publish(GateView::Probe { free: 5, reason: Reason::Forced }, 4);
        assert_eq!(takes(&gate, Asker::Anyone, 9_000), 4);
        assert_eq!(takes(&gate, Asker::Anyone, 9_100), 0);
        gate.publish(GateView::Admit, 5);
        assert_eq!(takes(&gate, Asker::Anyone, 9_200), 20);
    }

    #[test]
    fn every_word_survives_its_packing() {
        for state in [State::Admit, State::Probe, State::Refuse] {
            for (free, kept) in [(0, 0), (5, 5), (u16::MAX, KEPT_MAX), (u16::MAX, 0), (1, 1)] {
                for (timed, generation) in [(true, 0), (false, u32::MAX), (true, 7)] {
                    let word = Word { state, timed, free, kept, generation };
                    assert_eq!(Word::unpack(word.pack()), word);
                }
            }
        }
    }

    /// B02 with parked runs, and everything that may happen to what is kept in the same moment: exactly five pass.
    #[test]
    fn five_pass_whatever_becomes_of_the_kept_ones() {
        for round in 0..400_u32 {
            let gate = Gate::new(open(1_000), round, 5);
            let parked = round % 8;
            (0..parked).for_each(|_| gate.run_parked());
            let (start, passed) = (Barrier::new(9), AtomicU64::new(0));
            let pass = |asker, at_ms| {
                let found = gate.pass(Timestamp::from_millis(at_ms), asker);
                if let Ok(found) = found {
                    assert_eq!((found.generation, found.kind), (round + 1, PassKind::Trial));
                    passed.fetch_add(1, Ordering::SeqCst);
                }
            };
            std::thread::scope(|scope| {
                for thread in 0..8_u64 {
                    let (pass, start, gate) = (&pass, &start, &gate);
                    scope.spawn(move || {
                        let asker = if thread < 2 { Asker::ParkedRun } else { Asker::Anyone };
                        start.wait();
                        for turn in 0..125 {
                            // Some see the bound pass.
                            pass(asker, 1_000 + turn * thread * 4);
                            if thread == 7 && turn == 60 {
                                gate.offered(round + 1);
                            }
                        }
                    });
                }
                start.wait();
                gate.publish(GateView::Probe { free: 5, reason: Reason::FailureShare }, round.wrapping_add(1));
            });
            pass(Asker::ParkedRun, 9_000);
            pass(Asker::Anyone, 9_000);
            assert_eq!(passed.load(Ordering::SeqCst), 5, "round {round}, {parked} parked");
        }
    }
}
