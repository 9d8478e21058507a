//! Abuse over raw sockets: whatever comes, a clear answer, bounded memory, and the service goes on.

mod answers;
mod bodies;
mod connections;
mod requests;
mod support;
