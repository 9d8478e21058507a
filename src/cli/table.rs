//! Tables that line up, also with Korean text in them.

use comfy_table::{ContentArrangement, Table, presets::NOTHING};

/// A plain table with a head.
pub(super) fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(head.to_vec());
    for row in rows {
        table.add_row(row);
    }
    // Each column is padded on both sides; the first needs no margin.
    let unpadded = |line: &str| line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned();
    let lines: Vec<String> = table.to_string().lines().map(unpadded).collect();
    lines.join("\n") + "\n"
}
