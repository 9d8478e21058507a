//! x
#[derive(Default)]
pub(crate) struct RunTable;
