//! Compartments: what a call needs of several counts of slots at once, and the line of those who lack one.

pub mod counted;
pub mod directory;
pub mod known_tenants;
pub mod line;
pub mod needs;
pub mod pool;
pub mod renewal;
#[cfg(test)]
mod renewal_tests;
pub mod settings;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin_tests;
