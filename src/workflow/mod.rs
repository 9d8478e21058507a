//! Workflows as data and the pure plan of a run: what to do next, never doing it.
