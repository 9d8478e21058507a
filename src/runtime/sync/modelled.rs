//! What the runtime's locks, atomics and timers are in the model: inside an execution of the scheduler each use of them is a point at which
//! it may let another thread go on; outside of one (other tests of the same build) they are the standard library's. No test stands here.

use std::{
    collections::VecDeque,
    ops::{Deref, DerefMut},
    sync::{LockResult, PoisonError, TryLockError, TryLockResult},
    time::Duration,
};

use shuttle::{
    current::try_get_current_task,
    future::yield_now,
    rand::{Rng, thread_rng},
};

use crate::runtime::core::lock;

/// A wait at least this long is longer than any execution: it does not end.
const WAIT_FOREVER: Duration = Duration::from_secs(24 * 3_600);
/// A shorter wait ends after so many turns of the scheduler at most, whatever its length: before, between or after anything else.
const TURNS_MAX: u32 = 12;

/// [`std::sync::Mutex`].
#[derive(Debug)]
pub(crate) enum Mutex<T> {
    Plain(std::sync::Mutex<T>),
    Scheduled(shuttle::sync::Mutex<T>),
}

/// [`std::sync::MutexGuard`].
#[derive(Debug)]
pub(crate) enum MutexGuard<'a, T> {
    Plain(std::sync::MutexGuard<'a, T>),
    Scheduled(shuttle::sync::MutexGuard<'a, T>),
}

fn is_scheduled() -> bool {
    try_get_current_task().is_some()
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        if is_scheduled() {
            Self::Scheduled(shuttle::sync::Mutex::new(value))
        } else {
            Self::Plain(std::sync::Mutex::new(value))
        }
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        match self {
            Self::Plain(mutex) => wrapped(mutex.lock(), MutexGuard::Plain),
            Self::Scheduled(mutex) => wrapped(mutex.lock(), MutexGuard::Scheduled),
        }
    }

    pub(crate) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        match self {
            Self::Plain(mutex) => {
                mutex.try_lock().map(MutexGuard::Plain).map_err(|failed| wrapped_failure(failed, MutexGuard::Plain))
            }
            Self::Scheduled(mutex) => mutex
                .try_lock()
                .map(MutexGuard::Scheduled)
                .map_err(|failed| wrapped_failure(failed, MutexGuard::Scheduled)),
        }
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        match self {
            Self::Plain(mutex) => mutex.is_poisoned(),
            Self::Scheduled(mutex) => mutex.lock().is_err(),
        }
    }

    pub(crate) fn clear_poison(&self) {
        match self {
            Self::Plain(mutex) => mutex.clear_poison(),
            Self::Scheduled(mutex) => mutex.clear_poison(),
        }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

fn wrapped<Guard, Wrapped>(locked: LockResult<Guard>, wrap: impl Fn(Guard) -> Wrapped) -> LockResult<Wrapped> {
    match locked {
        Ok(guard) => Ok(wrap(guard)),
        Err(poisoned) => Err(PoisonError::new(wrap(poisoned.into_inner()))),
    }
}

fn wrapped_failure<Guard, Wrapped>(
    failed: TryLockError<Guard>,
    wrap: impl Fn(Guard) -> Wrapped,
) -> TryLockError<Wrapped> {
    match failed {
        TryLockError::Poisoned(poisoned) => TryLockError::Poisoned(PoisonError::new(wrap(poisoned.into_inner()))),
        TryLockError::WouldBlock => TryLockError::WouldBlock,
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Plain(guard) => guard,
            Self::Scheduled(guard) => guard,
        }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Self::Plain(guard) => guard,
            Self::Scheduled(guard) => guard,
        }
    }
}

/// Messages to an actor that nobody has taken yet, in their order. Outside of an execution nothing is kept.
pub(crate) struct Unheard<M>(Mutex<VecDeque<M>>);

impl<M> Unheard<M> {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Keeps a message; gives it back where nobody will take it.
    pub(crate) fn keep(&self, message: M) -> Option<M> {
        match &self.0 {
            Mutex::Plain(_) => Some(message),
            Mutex::Scheduled(_) => {
                lock(&self.0).push_back(message);
                None
            }
        }
    }

    /// The next message.
    pub(crate) fn take(&self) -> Option<M> {
        lock(&self.0).pop_front()
    }
}

/// Ends at a moment that the scheduler chooses; one that is [`WAIT_FOREVER`] does not. Outside of an execution it is tokio's.
pub(crate) async fn sleep(wait: Duration) {
    if !is_scheduled() {
        return tokio::time::sleep(wait).await;
    }
    if wait >= WAIT_FOREVER {
        return std::future::pending().await;
    }
    for _ in 0..thread_rng().gen_range(0..=TURNS_MAX) {
        yield_now().await;
    }
}

/// [`std::sync::atomic`].
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::Ordering;

    macro_rules! atomics {
        ($($name:ident: $value:ty,)*) => { $(
            #[doc = concat!("[`std::sync::atomic::", stringify!($name), "`].")]
            #[derive(Debug)]
            pub(crate) enum $name {
                Plain(std::sync::atomic::$name),
                Scheduled(shuttle::sync::atomic::$name),
            }

            #[allow(dead_code, reason = "each type has what any of them needs")]
            impl $name {
                pub(crate) fn new(value: $value) -> Self {
                    if super::is_scheduled() {
                        Self::Scheduled(shuttle::sync::atomic::$name::new(value))
                    } else {
                        Self::Plain(std::sync::atomic::$name::new(value))
                    }
                }

                pub(crate) fn load(&self, order: Ordering) -> $value {
                    match self {
                        Self::Plain(atomic) => atomic.load(order),
                        Self::Scheduled(atomic) => atomic.load(order),
                    }
                }

                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    match self {
                        Self::Plain(atomic) => atomic.store(value, order),
                        Self::Scheduled(atomic) => atomic.store(value, order),
                    }
                }

                pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                    match self {
                        Self::Plain(atomic) => atomic.swap(value, order),
                        Self::Scheduled(atomic) => atomic.swap(value, order),
                    }
                }

                pub(crate) fn compare_exchange(
                    &self,
                    present: $value,
                    next: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    match self {
                        Self::Plain(atomic) => atomic.compare_exchange(present, next, success, failure),
                        Self::Scheduled(atomic) => atomic.compare_exchange(present, next, success, failure),
                    }
                }

                pub(crate) fn compare_exchange_weak(
                    &self,
                    present: $value,
                    next: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.compare_exchange(present, next, success, failure)
                }

                pub(crate) fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    update: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    match self {
                        Self::Plain(atomic) => atomic.fetch_update(set, fetch, update),
                        Self::Scheduled(atomic) => atomic.fetch_update(set, fetch, update),
                    }
                }
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::new(<$value>::default())
                }
            }
        )* };
    }

    macro_rules! numbers {
        ($($name:ident: $value:ty,)*) => {
            atomics! { $($name: $value,)* }
            $(
                #[allow(dead_code, reason = "each type has what any of them needs")]
                impl $name {
                    pub(crate) fn fetch_add(&self, more: $value, order: Ordering) -> $value {
                        match self {
                            Self::Plain(atomic) => atomic.fetch_add(more, order),
                            Self::Scheduled(atomic) => atomic.fetch_add(more, order),
                        }
                    }

                    pub(crate) fn fetch_max(&self, other: $value, order: Ordering) -> $value {
                        match self {
                            Self::Plain(atomic) => atomic.fetch_max(other, order),
                            Self::Scheduled(atomic) => atomic.fetch_max(other, order),
                        }
                    }

                    pub(crate) fn fetch_sub(&self, less: $value, order: Ordering) -> $value {
                        match self {
                            Self::Plain(atomic) => atomic.fetch_sub(less, order),
                            Self::Scheduled(atomic) => atomic.fetch_sub(less, order),
                        }
                    }
                }
            )*
        };
    }

    atomics! { AtomicBool: bool, }
    numbers! { AtomicU8: u8, AtomicU16: u16, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize, }
}
