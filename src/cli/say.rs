//! What the program says beside its results: lines on standard error. A reader that left (`2>&1 | head`) is no error.

use std::io::Write as _;

/// Prints one line.
pub(super) fn say(line: &str) {
    // Nowhere is left where a failure of this could be told.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
