//! Which call takes the process with it. A process that dies takes every call with it, and most deaths are nobody's doing: so a call
//! that was under way at several deaths is a suspect, and suspects are tried one at a time. After a death in a trial the process has to
//! live a multiple of that time without it before it is tried again; a death meanwhile shows that it was not the call, and takes all
//! blame back. Pure: it is told what was seen, and never looks at a clock.

use std::time::Duration;

use crate::model::clock::Timestamp;

/// A call that was begun and under way at so many deaths is a suspect.
pub const SUSPECT_DEATHS: u32 = 3;
/// A call that is blamed so often is put aside.
pub const BLAMES_MAX: u32 = 4;
/// A call that was under way at so many deaths is put aside, blamed or not: the last resort against one that kills slowly.
pub const DEATHS_MAX: u32 = 60;
/// A call that has run alone for longer is no longer on trial: what takes that long to kill cannot be told from what is killed.
pub const TRIAL_MAX: Duration = Duration::from_secs(20);
/// Before a blamed call is tried again, the process has to live so many times as long as it did in the last trial. A process that is
/// killed at random dies in the next trial, and not before it, once in so many times and one.
pub const QUIET_FACTOR: u32 = 15;
/// While a call is on trial the process says this often that it lives: so well is the moment of a death known.
pub const BEAT: Duration = Duration::from_millis(250);

/// What is known of a call that was under way when the process died, and was not over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// How often it was begun without coming to an end.
    pub deaths: u32,
    /// How often it was blamed before this death.
    pub blamed: u32,
    /// How long the process had to live without it before it was to be tried.
    pub quiet: Duration,
    /// How long it had been on trial at this death, if it was; [`Duration::MAX`] if that is not known.
    pub tried: Option<Duration>,
}

/// What becomes of such a call after the restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sentence {
    /// It is begun again at once.
    #[default]
    Free,
    /// It is begun again alone among suspects.
    Try {
        /// How often it was blamed.
        blamed: u32,
        /// So long the process has to live without a trial before.
        quiet: Duration,
    },
    /// It is not begun again by itself.
    PutAside(Guilt),
}

/// Why a call is put aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guilt {
    /// It was blamed [`BLAMES_MAX`] times.
    Blamed,
    /// It was under way at [`DEATHS_MAX`] deaths.
    Deaths,
}

/// What becomes of all calls that were under way at one death, in their order.
pub fn sentences(seen: &[Seen]) -> Vec<Sentence> {
    let on_trial = |call: &Seen| call.tried.is_some_and(|tried| tried <= TRIAL_MAX);
    let trials = seen.iter().filter(|call| on_trial(call)).count();
    let sentence = |call: &Seen| {
        let (blamed, quiet) = match call.tried {
            _ if call.blamed >= BLAMES_MAX => (call.blamed, call.quiet),
            Some(tried) if on_trial(call) && trials == 1 => (call.blamed + 1, tried.saturating_mul(QUIET_FACTOR)),
            // Nobody was on trial, and the process died all the same.
            None if trials == 0 => (0, Duration::ZERO),
            // It ran for long, or it is not known who it was: neither for nor against it.
            Some(_) | None => (call.blamed, call.quiet),
        };
        if blamed >= BLAMES_MAX {
            return Sentence::PutAside(Guilt::Blamed);
        }
        match call.deaths {
            DEATHS_MAX.. => Sentence::PutAside(Guilt::Deaths),
            SUSPECT_DEATHS.. => Sentence::Try { blamed, quiet },
            _ => Sentence::Free,
        }
    };
    seen.iter().map(sentence).collect()
}

/// The suspects of one life of a process, and whose turn it is: the least blamed first, so that whoever is innocent is soon out of it.
#[derive(Debug)]
pub struct Trials<Id> {
    /// The next one last.
    waiting: Vec<(Id, Duration)>,
    on_trial: Option<(Id, Timestamp)>,
    quiet_since: Timestamp,
}

/// What to do for the trials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<Id> {
    /// Begin this call.
    Begin(Id),
    /// This call is on trial: say when it is over, and ask again at this moment.
    Watch(Id, Timestamp),
    /// Nobody is on trial: ask again at this moment.
    Quiet(Timestamp),
    /// There are no more suspects.
    Done,
}

impl<Id: Clone> Trials<Id> {
    /// Trials of these calls, each with its blame and its quiet time; in this order where they are blamed alike.
    pub fn new(mut suspects: Vec<(Id, u32, Duration)>, now: Timestamp) -> Self {
        suspects.sort_by_key(|(_, blamed, _)| *blamed);
        let waiting = suspects.into_iter().rev().map(|(id, _, quiet)| (id, quiet)).collect();
        Self { waiting, on_trial: None, quiet_since: now }
    }

    /// What is to be done now.
    pub fn next(&mut self, now: Timestamp) -> Next<Id> {
        if let Some((id, since)) = &self.on_trial {
            let until = since.after(TRIAL_MAX);
            if now <= until {
                return Next::Watch(id.clone(), until.after(BEAT));
            }
            self.over(now);
        }
        let Some((_, quiet)) = self.waiting.last() else { return Next::Done };
        let from = self.quiet_since.after(*quiet);
        if now < from {
            return Next::Quiet(from);
        }
        let Some((id, _)) = self.waiting.pop() else { return Next::Done };
        self.on_trial = Some((id.clone(), now));
        Next::Begin(id)
    }

    /// The call that is on trial is over, whatever became of it.
    pub fn over(&mut self, now: Timestamp) {
        (self.on_trial, self.quiet_since) = (None, now);
    }
}

#[cfg(test)]
mod tests;
