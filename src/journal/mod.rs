//! The journal in an embedded database: runs, their files, usage, dead letters.
