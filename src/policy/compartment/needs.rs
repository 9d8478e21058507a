//! What one call needs: a slot in each of several counts. It decides nothing.

use crate::policy::bulkhead::{Member, NO_MEMBER, SlotOf};

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
    /// Which slot it was given; before that it means nothing.
    pub slot: SlotOf,
}

impl Seat {
    /// One that is asked for.
    pub const fn of(count: CountId, member: Member) -> Self {
        Self { count, member, slot: SlotOf::Common }
    }
}

/// Nobody has a slot of it.
const NO_SEAT: Seat = Seat::of(CountId(u32::MAX), Member { agent: NO_MEMBER, feature: NO_MEMBER, class: NO_MEMBER });

/// Everything that one call needs, in the fixed order in which it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// The first `length` of them; the others are [`NO_SEAT`].
    seats: [Seat; SEATS_MAX],
    length: u32,
}

impl Default for Needs {
    fn default() -> Self {
        Self { seats: [NO_SEAT; SEATS_MAX], length: 0 }
    }
}

impl Needs {
    /// A call that needs these; those beyond [`SEATS_MAX`] are left out.
    pub fn of(seats: impl IntoIterator<Item = Seat>) -> Self {
        let mut needs = Self::default();
        for seat in seats {
            needs.push(seat);
        }
        needs
    }

    /// Needs this too, after the others; nothing where there are [`SEATS_MAX`] already.
    pub fn push(&mut self, seat: Seat) {
        if let Some(place) = self.seats.get_mut(self.length as usize) {
            *place = seat;
            self.length += 1;
        }
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = Seat> + '_ {
        self.seats.iter().take(self.length as usize).copied()
    }

    /// The same, to be told which slot each was given.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Seat> {
        self.seats.iter_mut().take(self.length as usize)
    }

    /// Whether nothing is needed.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}
