//! Hard failures in a row, and whether the last of them can be one agent's own illness.

use std::collections::VecDeque;

/// The longest streak that is counted; further failures only move on who the last ones came from.
const STREAK_MAX: u32 = 1_000_000;

/// Hard failures without a success between.
#[derive(Debug, Clone, Default)]
pub(super) struct Streak {
    len: u32,
    /// The last failures, as many as open the breaker, oldest first. Only these speak for whose illness it is: what one agent did on its
    /// own long before must not hide that the place is dead now.
    last: VecDeque<Failure>,
}

#[derive(Debug, Clone, Copy)]
struct Failure {
    agent: u16,
    connected: bool,
}

impl Streak {
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.last.clear();
    }

    /// Takes in a failure of `agent`; `limit` of them open the breaker.
    pub(super) fn count(&mut self, agent: u16, connected: bool, limit: u32) {
        self.len = (self.len + 1).min(STREAK_MAX);
        self.last.push_back(Failure { agent, connected });
        while self.last.len() > limit as usize {
            self.last.pop_front();
        }
    }

    /// Whether they come from at least two agents, or none of them got a connection.
    pub(super) fn is_shared(&self) -> bool {
        let first = self.last.front().map(|failure| failure.agent);
        let of_several = self.last.iter().any(|failure| Some(failure.agent) != first);
        of_several || self.last.iter().all(|failure| !failure.connected)
    }
}
