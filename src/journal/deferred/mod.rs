//! Calls that are made later, in the file: what a row is (`row`), the queue as the runtime's port wants it (`queue`), who has how much of it in hand
//! (`in_hand`), telling somebody of an end (`push`), and what is asked of it beside that (`look`).

pub mod look;

mod in_hand;
mod push;
pub(super) mod queue;
pub(super) mod row;
