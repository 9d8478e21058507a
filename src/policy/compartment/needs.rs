//! What one call needs: a slot in each of several counts. It decides nothing.

use crate::policy::bulkhead::Member;

/// The most counts that one call needs a slot of: agent, provider, feature, tenant, cell.
pub const SEATS_MAX: usize = 5;

/// One count of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CountId(pub(super) u32);

/// A slot of one count, as a certain member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// The count.
    pub count: CountId,
    /// Who asks, as far as its shares go.
    pub member: Member,
}

/// Everything that one call needs, in the fixed order in which it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    seats: [Option<Seat>; SEATS_MAX],
}

impl Needs {
    /// A call that needs these; those beyond [`SEATS_MAX`] are left out.
    pub fn of(seats: impl IntoIterator<Item = Seat>) -> Self {
        let mut needs = Self::default();
        for (place, seat) in needs.seats.iter_mut().zip(seats) {
            *place = Some(seat);
        }
        needs
    }

    /// The same and what `other` needs.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::of(self.iter().chain(other.iter()))
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = Seat> + '_ {
        self.seats.iter().flatten().copied()
    }

    /// Whether nothing is needed.
    pub fn is_empty(&self) -> bool {
        self.seats.iter().all(Option::is_none)
    }
}
