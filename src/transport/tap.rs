//! Placeholder until merged.
#![allow(missing_docs)]
#[derive(Clone)]
pub struct Tap;
pub struct Exchange {
    pub request: String,
    pub answer: String,
}
impl Tap {
    pub fn new() -> Self {
        Tap
    }
    pub fn take(&self) -> Option<Exchange> {
        None
    }
}
impl super::client::ProviderClient {
    pub fn attach(&self, _: &Tap) {}
}
