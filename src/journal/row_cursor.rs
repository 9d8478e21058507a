//! Where a page of a list ended: a place among rows, as a text that is opaque for whoever holds it. It stays a place though the row that
//! stood there is gone. It tells nothing of the row and lets nobody see what they may not.

/// The lists that are read page by page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// Runs.
    Runs,
    /// Calls that were put off.
    Deferred,
    /// Dead letters.
    DeadLetters,
}

/// A place in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCursor {
    list: List,
    row: i64,
}

impl List {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Runs => "r1-",
            Self::Deferred => "d1-",
            Self::DeadLetters => "l1-",
        }
    }
}

impl RowCursor {
    pub(super) const fn after(list: List, row: i64) -> Self {
        Self { list, row }
    }

    /// Reads one that was handed out for this list; `None` if it never was.
    pub fn parse(list: List, text: &str) -> Option<Self> {
        let digits = text.strip_prefix(list.prefix())?;
        let row = i64::from_str_radix(digits, 16).ok()?;
        (row > 0 && format!("{row:x}") == digits).then_some(Self { list, row })
    }

    /// Rows before this one come next; all of them without one.
    pub(super) fn row_before(cursor: Option<Self>) -> i64 {
        cursor.map_or(i64::MAX, |cursor| cursor.row)
    }
}

impl std::fmt::Display for RowCursor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}{:x}", self.list.prefix(), self.row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_handed_out_is_a_place() {
        for list in [List::Runs, List::Deferred, List::DeadLetters] {
            for row in [1, 17, i64::MAX] {
                let cursor = RowCursor::after(list, row);
                assert_eq!(RowCursor::parse(list, &cursor.to_string()), Some(cursor));
            }
        }
        for text in [
            "",
            "zz",
            "d1-",
            "d1-0",
            "d1--1",
            "d1-01",
            "d1-A",
            "d1-+1",
            "l1-1",
            "r1-1",
            "d1-1 ",
            "d1-fffffffffffffffff",
        ] {
            assert_eq!(RowCursor::parse(List::Deferred, text), None, "{text:?}");
        }
    }
}
