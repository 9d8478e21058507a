//! The agent `photos`: facts of each photo, and the stops along the way.

mod image_size;
mod one_photo;
mod stops;
mod twin;

pub(super) use twin::compute;
