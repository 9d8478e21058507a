//! How many calls a provider gets at once, learnt from how they end: one more a round trip while the limit is really used, a fifth less
//! once a round trip under pressure. Pure; knows nothing of slots.

pub mod baseline;
pub mod limit;
pub mod settings;
#[cfg(test)]
mod tests;
