//! The callers of a runtime: the runaway guard of each, and its requests a minute. Idle ones are forgotten when there are too many. Who has
//! no guard and no rate is not remembered at all. It counts admissions, never what became of them.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use arc_swap::ArcSwap;

use super::{
    core::lock,
    engine::{NoSuch, Runtime},
    journal::{Journal, JournalError, ShutCaller},
    metric,
    ports::Clock,
    rates::Rate,
    sync::Mutex,
};
use crate::{
    model::clock::Timestamp,
    policy::{
        crowd::{CALLERS_MAX, CallerName, CallerScope, Crowd, Standing},
        volume::{Shut, ShutMemory, VolumeGuard, VolumeSettings, VolumeView},
    },
};

/// What is asked of each caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallerSettings {
    /// The runaway guard; `None` = there is none.
    pub volume: Option<VolumeSettings>,
    /// Whose calls are counted together.
    pub scope: CallerScope,
}

impl Default for CallerSettings {
    fn default() -> Self {
        Self { volume: None, scope: CallerScope::Caller }
    }
}

/// The callers.
pub(crate) struct Callers {
    settings: ArcSwap<CallerSettings>,
    /// Written by admissions.
    crowd: Mutex<Crowd<Arc<CallerState>>>,
    clock: Arc<dyn Clock>,
    /// Where it stands who is shut, so that a restart does not open a guard.
    journal: Option<Arc<dyn Journal>>,
}

/// What is kept of one caller.
#[derive(Default)]
pub(crate) struct CallerState {
    guard: Mutex<VolumeGuard>,
    /// Its requests a minute, and by which book it has them.
    rate: Mutex<Option<(u64, Arc<Rate>)>>,
    /// Where it is written that the guard is shut. Taken after the guard's lock.
    written: Mutex<Option<Written>>,
}

/// A line in the journal that says that a guard is shut.
struct Written {
    journal: Arc<dyn Journal>,
    name: String,
}

impl CallerState {
    /// Its requests a minute, if the book of this number gave it them.
    pub(crate) fn rate(&self, book: u64) -> Option<Arc<Rate>> {
        lock(&self.rate).as_ref().filter(|(of, _)| *of == book).map(|(_, rate)| Arc::clone(rate))
    }

    /// The guard is open: nothing is written of it any more.
    fn forget(&self) {
        if let Some(Written { journal, name }) = lock(&self.written).take() {
            journal.forget_shut(&name);
        }
    }
}

/// A call that its caller's guard has counted.
pub(crate) struct Volume {
    state: Arc<CallerState>,
    settings: VolumeSettings,
    at: Timestamp,
}

/// A caller as people see it: the items of `GET /v1/callers`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerView {
    /// `key:NAME`, `tenant:NAME` or `local`.
    pub name: String,
    /// What its guard shows.
    pub volume: VolumeView,
    /// The guard's limit.
    pub calls_per_hour: u32,
}

impl Callers {
    pub(crate) fn new(settings: CallerSettings, clock: Arc<dyn Clock>, journal: Option<Arc<dyn Journal>>) -> Self {
        let (settings, crowd) = (ArcSwap::from_pointee(settings), Mutex::new(Crowd::of_at_most(CALLERS_MAX)));
        Self { settings, crowd, clock, journal }
    }

    /// Other settings; what was counted stays counted.
    pub(crate) fn change(&self, settings: CallerSettings) {
        self.settings.store(Arc::new(settings));
    }

    /// What is kept of this caller, if it has called before; it is seen now.
    pub(crate) fn seen(&self, who: CallerName<'_>, now: Timestamp) -> Option<Arc<CallerState>> {
        lock(&self.crowd).seen(who, now).map(Arc::clone)
    }

    /// Gives a caller a limit of requests a minute, by the book of this number.
    pub(crate) fn limit(
        &self,
        who: CallerName<'_>,
        (book, per_minute): (u64, NonZeroU32),
        now: Timestamp,
    ) -> (Arc<CallerState>, Arc<Rate>) {
        let state = self.enter(who, now);
        let rate = {
            let mut known = lock(&state.rate);
            let new = || Arc::new(Rate::new(Arc::from("caller"), per_minute, Arc::clone(&self.clock)));
            let rate = known.take().map_or_else(new, |(_, rate)| rate);
            rate.change_limit(per_minute);
            *known = Some((book, Arc::clone(&rate)));
            rate
        };
        (state, rate)
    }

    /// Counts a call of a caller in `counted`, or refuses it; nothing where there is no guard. `seen` is what is kept of its tenant, where
    /// that was looked up before.
    pub(crate) fn admit(
        &self,
        (key, tenant): (Option<&str>, Option<&str>),
        (seen, now): (Option<Arc<CallerState>>, Timestamp),
        counted: &mut Option<Volume>,
    ) -> Result<(), Shut> {
        let CallerSettings { volume, scope } = **self.settings.load();
        let Some(settings) = volume else { return Ok(()) };
        let who = CallerName::of(scope, key, tenant);
        let is_of_tenant = who == CallerName::of(CallerScope::Tenant, key, tenant);
        let state = seen.filter(|_| is_of_tenant).unwrap_or_else(|| self.enter(who, now));
        let admitted = {
            let mut guard = lock(&state.guard);
            let admitted = guard.admit(&settings, now);
            if admitted.is_err_and(|shut| shut.is_first) {
                self.write_down(who, &state, &guard);
            }
            admitted
        };
        match admitted {
            Ok(()) => {
                *counted = Some(Volume { state, settings, at: now });
                Ok(())
            }
            Err(shut) => {
                if shut.is_first {
                    metric::count(metric::CALLERS_SHUT, Vec::new(), 1);
                    tracing::warn!(
                        caller = %who,
                        calls_per_hour = settings.calls_per_hour,
                        opens_in_s = shut.retry_after.as_secs_f64(),
                        "a caller's volume guard is shut: it calls as a loop does that nobody stops"
                    );
                }
                Err(shut)
            }
        }
    }

    /// Opens a caller's guard and counts its hour anew; `None` if there is no such caller, else whether it was shut.
    pub(crate) fn lift(&self, who: CallerName<'_>) -> Option<bool> {
        let state = lock(&self.crowd).find(who).map(Arc::clone)?;
        let mut guard = lock(&state.guard);
        state.forget();
        Some(guard.lift())
    }

    /// Writes down that a guard is shut: a loop is not let go by a restart.
    fn write_down(&self, who: CallerName<'_>, state: &CallerState, guard: &VolumeGuard) {
        let (Some(journal), Some(memory)) = (&self.journal, guard.memory()) else { return };
        let name = who.to_string();
        let unix_ms = |at| self.clock.unix_ms(at);
        let seconds = memory.seconds.iter().map(|(at, calls)| (unix_ms(*at), *calls)).collect();
        journal.keep_shut(ShutCaller { name: name.clone(), since_ms: unix_ms(memory.since), seconds });
        *lock(&state.written) = Some(Written { journal: Arc::clone(journal), name });
    }

    /// Shuts the guard of a caller that was shut when the process before this one ended, unless its time has come since. Who has called
    /// here already keeps what was counted here. Whether it is shut.
    fn restore(&self, kept: &ShutCaller, journal: &Arc<dyn Journal>) -> bool {
        let now = self.clock.now();
        let unix_now = self.clock.unix_ms(now);
        // A clock that was set back since makes nobody wait for longer than as if it had just been shut.
        let moment = |unix_ms: u64| now.before(Duration::from_millis(unix_now.saturating_sub(unix_ms)));
        let seconds = kept.seconds.iter().map(|(at, calls)| (moment(*at), *calls)).collect();
        let memory = ShutMemory { since: moment(kept.since_ms), seconds };
        let volume = self.settings.load().volume;
        let found = CallerName::parse(&kept.name);
        if let (Some(who), Some(settings)) = (found, volume) {
            let state = self.enter(who, now);
            let mut guard = lock(&state.guard);
            if guard.view(&settings, now).admitted == 0 && !guard.is_shut() {
                *guard = VolumeGuard::remembering(&memory);
            }
            if guard.view(&settings, now).shut.is_some() {
                *lock(&state.written) = Some(Written { journal: Arc::clone(journal), name: kept.name.clone() });
                return true;
            }
        }
        // Without a guard nobody is shut; should there be one again, its hour begins anew.
        journal.forget_shut(&kept.name);
        false
    }

    /// Those that have called within the hour or are shut, shut ones first, then by name.
    pub(crate) fn views(&self, now: Timestamp) -> Vec<CallerView> {
        let Some(settings) = self.settings.load().volume else { return Vec::new() };
        let all: Vec<(String, Arc<CallerState>)> =
            lock(&self.crowd).all().map(|(who, state)| (who.to_string(), Arc::clone(state))).collect();
        let view = |(name, state): (String, Arc<CallerState>)| {
            let volume = lock(&state.guard).view(&settings, now);
            CallerView { name, volume, calls_per_hour: settings.calls_per_hour }
        };
        let mut views: Vec<CallerView> = all.into_iter().map(view).collect();
        views.retain(|view| view.volume.admitted > 0 || view.volume.shut.is_some());
        views.sort_by(|left, right| {
            (left.volume.shut.is_none(), &left.name).cmp(&(right.volume.shut.is_none(), &right.name))
        });
        views
    }

    fn enter(&self, who: CallerName<'_>, now: Timestamp) -> Arc<CallerState> {
        let volume = self.settings.load().volume;
        let standing = |state: &Arc<CallerState>| {
            let is_unused = lock(&state.rate).as_ref().is_none_or(|(_, rate)| rate.is_unused());
            let mut guard = lock(&state.guard);
            match volume {
                Some(_) if guard.is_shut() => Standing::Kept,
                Some(settings) if !guard.is_idle(&settings, now) => Standing::Present,
                _ if is_unused => Standing::Idle,
                _ => Standing::Present,
            }
        };
        lock(&self.crowd).enter(who, now, Arc::default, standing)
    }
}

impl Volume {
    /// Takes the call out of its guard again: it was refused further in.
    pub(crate) fn undo(self) {
        let mut guard = lock(&self.state.guard);
        let was_shut = guard.is_shut();
        guard.undo(&self.settings, self.at);
        if was_shut && !guard.is_shut() {
            self.state.forget();
        }
    }
}

impl Runtime {
    /// Callers that have called within the hour or are shut, shut ones first, then by name. None where there is no volume guard.
    pub fn callers(&self) -> Vec<CallerView> {
        self.shared.callers.views(self.shared.now())
    }

    /// Shuts the volume guards that were shut when the process before this one ended, as its journal has them, each until the time at which
    /// it would have opened, or later where this runtime's clock began after they were shut. To be asked for before the first call. How many
    /// there are.
    pub async fn restore_callers(&self) -> Result<usize, JournalError> {
        let Some(journal) = &self.shared.journal else { return Ok(0) };
        let kept = journal.shut_callers().await?;
        Ok(kept.iter().filter(|caller| self.shared.callers.restore(caller, journal)).count())
    }

    /// Opens the volume guard of a caller (`key:NAME`, `tenant:NAME` or `local`) and counts its hour anew; says whether it was shut.
    pub fn lift_caller(&self, name: &str) -> Result<bool, NoSuch> {
        let lifted = CallerName::parse(name).and_then(|who| self.shared.callers.lift(who));
        lifted.ok_or_else(|| NoSuch(format!("caller {name:?}")))
    }
}
