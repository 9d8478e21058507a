//! Room for answers that were built whole and are not read yet: for all together, and for one asker's, so that whoever does not read what
//! it asks for shuts out itself first. Answers of calls have a room of their own: they were paid for and go out in any case.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{
    answer::failure::Failure,
    caps::{BodyRoom, Counted, Counts, block_semaphore},
};
use crate::settings::serve::ServeSettings;

/// What of answers is bounded.
const ANSWERS: &str = "bytes of answers that are not read yet";
const ANSWERS_OF_ASKER: &str = "bytes of answers that this tenant has not read yet";

/// The rooms.
#[derive(Debug)]
pub struct AnswerRooms {
    of_questions: AnswerRoom,
    of_acts: AnswerRoom,
}

#[derive(Debug)]
struct AnswerRoom {
    blocks: Arc<Semaphore>,
    bytes_max: usize,
    askers: Arc<Counts<String>>,
    asker_bytes_max: u64,
}

/// What one answer holds of its room, until it is dropped.
#[derive(Debug)]
pub struct AnswerPlace {
    #[allow(dead_code, reason = "held for its drop")]
    room: BodyRoom,
    #[allow(dead_code, reason = "held for its drop")]
    of_asker: Option<Counted<String>>,
}

impl AnswerRooms {
    /// Rooms as configured.
    pub fn new(settings: &ServeSettings) -> Self {
        let room = || AnswerRoom {
            blocks: block_semaphore(settings.answers_bytes_max),
            bytes_max: usize::try_from(settings.answers_bytes_max).unwrap_or(usize::MAX),
            askers: Arc::default(),
            asker_bytes_max: settings.answers_tenant_bytes_max.min(settings.answers_bytes_max),
        };
        Self { of_questions: room(), of_acts: room() }
    }

    /// Whether a call may begin for this asker: none does while answers that were paid for already fill their room, since none of those
    /// can be refused.
    pub fn may_call(&self, asker: Option<&str>) -> Result<(), Failure> {
        let room = &self.of_acts;
        if room.blocks.available_permits() == 0 {
            return Err(Failure::busy(ANSWERS));
        }
        match asker {
            Some(asker) if Counts::of(&room.askers, asker) >= room.asker_bytes_max => {
                Err(Failure::busy(ANSWERS_OF_ASKER))
            }
            _ => Ok(()),
        }
    }

    /// Room for an answer that is on its way out and can be asked for again. One that is larger than all the room goes out alone, and so
    /// does one that is larger than its asker's part among that asker's.
    pub fn question(&self, asker: Option<&str>, bytes: usize) -> Result<AnswerPlace, Failure> {
        let room = &self.of_questions;
        let of_asker = asker.map(|asker| {
            let bytes = (bytes as u64).min(room.asker_bytes_max);
            let taken = Counts::take(&room.askers, asker.to_owned(), bytes, room.asker_bytes_max);
            taken.ok_or_else(|| Failure::busy(ANSWERS_OF_ASKER))
        });
        let of_asker = of_asker.transpose()?;
        let mut place = AnswerPlace { room: BodyRoom::within(&room.blocks, ANSWERS), of_asker };
        place.room.grow(bytes.min(room.bytes_max))?;
        Ok(place)
    }

    /// The same for the answer of an act that was paid for: it takes what room there is and goes out in any case.
    pub fn act(&self, asker: Option<&str>, bytes: usize) -> AnswerPlace {
        let room = &self.of_acts;
        let of_asker = asker.and_then(|asker| Counts::take(&room.askers, asker.to_owned(), bytes as u64, u64::MAX));
        let mut held = BodyRoom::within(&room.blocks, ANSWERS);
        held.grow_as_far_as_there_is(bytes);
        AnswerPlace { room: held, of_asker }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms() -> AnswerRooms {
        let settings = ServeSettings {
            answers_bytes_max: 100 * 1024,
            answers_tenant_bytes_max: 40 * 1024,
            ..ServeSettings::default()
        };
        AnswerRooms::new(&settings)
    }

    #[test]
    fn one_askers_unread_answers_leave_room_to_others() {
        let rooms = rooms();
        let slow = [rooms.question(Some("slow"), 20 * 1024).unwrap(), rooms.question(Some("slow"), 20 * 1024).unwrap()];
        let refused = rooms.question(Some("slow"), 1).unwrap_err().envelope;
        assert_eq!((refused.http_status, refused.retry_after), (503, Some(1.0)));
        let other = rooms.question(Some("other"), 40 * 1024).unwrap();
        drop(other);
        drop(slow);
        let alone = rooms.question(Some("slow"), 90 * 1024).unwrap();
        assert!(rooms.question(Some("slow"), 1).is_err(), "what is larger than its part goes out alone");
        assert!(rooms.question(None, 20 * 1024).is_err(), "all together are bounded too");
        drop(alone);
        assert!(rooms.question(None, 500 * 1024).is_ok(), "one asker who is the only one has all of it");
        assert_eq!(Counts::of(&rooms.of_questions.askers, "slow"), 0);
    }

    #[test]
    fn what_was_paid_for_goes_out_and_then_keeps_its_asker_from_calling() {
        let rooms = rooms();
        let unread = rooms.act(Some("slow"), 50 * 1024);
        assert!(rooms.may_call(Some("slow")).is_err());
        assert!(rooms.may_call(Some("other")).is_ok() && rooms.may_call(None).is_ok());
        let more = [rooms.act(Some("slow"), 40 * 1024), rooms.act(Some("other"), 40 * 1024)];
        assert!(rooms.may_call(None).is_err(), "the room is full");
        drop((unread, more));
        assert!(rooms.may_call(Some("slow")).is_ok());
    }
}
