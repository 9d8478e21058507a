//! The program as people run it: real processes, real sockets, real files. Nothing here waits without a bound, and every process ends
//! with its test.

#![allow(unreachable_pub, reason = "modules of one test program")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails loudly")]

mod process;
mod project;
mod service;

mod bad_input;
mod check;
mod deferred;
mod five_agents;
mod foreign;
mod import;
mod init;
mod interrupt;
mod isolation;
mod main_job;
mod model;
mod ollama;
mod photos;
mod pipes;
mod reload;
mod reload_acts;
mod reload_reach;
mod reload_secrets;
mod rerun;
mod serve_end;
mod serve_handover;
