//! The words of the domain: plain values that every floor above may name. Serde only; nothing here decides anything.

pub mod call_log;
pub mod clock;
pub mod contract;
pub mod cost;
pub mod depth;
pub mod duration;
pub mod ended;
pub mod envelope;
pub mod event;
pub mod exact_json;
pub mod exact_numbers;
pub mod facts;
pub mod file_id;
pub mod hex;
pub mod json_walk;
pub mod language;
pub mod loose_json;
pub mod name;
pub mod nearest;
pub mod raw_object;
pub mod reply;
pub mod run;
pub mod weight;
pub mod written_json;
