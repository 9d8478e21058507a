//! Which ended runs stay in memory: the latest ones, within a number, and those that a journal has too within bytes as well. What is let
//! go of is handed back, to be freed where nobody waits for a lock. Knows nothing of what a run is.

use std::collections::{HashMap, VecDeque};

/// The runs, by id.
pub(crate) struct KeptRuns<T> {
    by_id: HashMap<String, Kept<T>>,
    order: VecDeque<String>,
    /// Of those that a journal has too.
    durable_bytes: usize,
}

struct Kept<T> {
    run: T,
    /// `None` where this is the only place that has it.
    durable_bytes: Option<usize>,
}

impl<T> Default for KeptRuns<T> {
    fn default() -> Self {
        Self { by_id: HashMap::new(), order: VecDeque::new(), durable_bytes: 0 }
    }
}

impl<T> KeptRuns<T> {
    /// Keeps one more; `durable_bytes` are what it takes, if a journal has it too. Ids are given once.
    pub(crate) fn add(&mut self, id: String, run: T, durable_bytes: Option<usize>) {
        self.durable_bytes = self.durable_bytes.saturating_add(durable_bytes.unwrap_or(0));
        self.order.push_back(id.clone());
        self.by_id.insert(id, Kept { run, durable_bytes });
    }

    pub(crate) fn find(&self, id: &str) -> Option<&T> {
        self.by_id.get(id).map(|kept| &kept.run)
    }

    pub(crate) fn remove(&mut self, id: &str) -> Option<T> {
        let run = self.take(id)?;
        self.order.retain(|kept| kept != id);
        Some(run)
    }

    /// Takes out the oldest until `max` are left.
    pub(crate) fn forget_beyond(&mut self, max: usize) -> Vec<T> {
        let excess = self.order.len().saturating_sub(max);
        let oldest: Vec<String> = self.order.drain(..excess).collect();
        oldest.iter().filter_map(|id| self.take(id)).collect()
    }

    /// Takes out the oldest of those that a journal has too until these take no more than `max` bytes: all of them, if the last one
    /// alone takes more.
    pub(crate) fn forget_beyond_bytes(&mut self, max: usize) -> Vec<T> {
        let mut forgotten = Vec::new();
        let mut place = 0;
        while self.durable_bytes > max && place < self.order.len() {
            let is_durable = self.by_id.get(&self.order[place]).is_some_and(|kept| kept.durable_bytes.is_some());
            if !is_durable {
                place += 1;
            } else if let Some(id) = self.order.remove(place) {
                forgotten.extend(self.take(&id));
            }
        }
        forgotten
    }

    fn take(&mut self, id: &str) -> Option<T> {
        let Kept { run, durable_bytes } = self.by_id.remove(id)?;
        self.durable_bytes = self.durable_bytes.saturating_sub(durable_bytes.unwrap_or(0));
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(runs: &[(&str, Option<usize>)]) -> KeptRuns<String> {
        let mut kept = KeptRuns::default();
        for (id, bytes) in runs {
            kept.add((*id).to_owned(), (*id).to_owned(), *bytes);
        }
        kept
    }

    #[test]
    fn the_oldest_go_first_by_number_and_by_bytes() {
        let runs = [("a", Some(40)), ("only", None), ("b", Some(40)), ("c", Some(40))];
        for (bytes_max, want) in [
            (120, vec![]),
            (119, vec!["a"]),
            (80, vec!["a"]),
            (79, vec!["a", "b"]),
            (39, vec!["a", "b", "c"]),
            (0, vec!["a", "b", "c"]),
        ] {
            let mut kept = kept(&runs);
            assert_eq!(kept.forget_beyond_bytes(bytes_max), want, "{bytes_max}");
            assert!(kept.find("only").is_some(), "what nobody else has stays");
            for (id, _) in runs {
                assert_eq!(kept.find(id).is_none(), want.contains(&id), "{id} {bytes_max}");
            }
        }
        let mut kept = kept(&runs);
        assert_eq!(kept.forget_beyond(3), ["a"]);
        assert_eq!(kept.forget_beyond(1), ["only", "b"]);
        assert_eq!(kept.durable_bytes, 40);
    }

    #[test]
    fn what_is_removed_takes_no_room() {
        let mut kept = kept(&[("a", Some(70)), ("b", Some(70))]);
        assert_eq!(kept.remove("a").as_deref(), Some("a"));
        assert_eq!(kept.remove("a"), None);
        assert!(kept.forget_beyond_bytes(70).is_empty());
        assert_eq!(kept.forget_beyond_bytes(69), ["b"]);
        assert_eq!((kept.durable_bytes, kept.order.len(), kept.by_id.len()), (0, 0, 0));
    }
}
