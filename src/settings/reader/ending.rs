//! The end of a table's reading: what nobody asked for, what ought to be there and is not, values that do not go together. What only follows
//! from something said already is not said.

use super::{Missing, Reader};
use crate::{
    model::nearest::nearest,
    policy::setting::InvalidSetting,
    settings::{
        layers::leaves,
        node::{Node, key_path},
        problem::Problem,
    },
};

/// Of a table that is not built yet, so many keys are named.
const NOT_BUILT_SHOWN_MAX: usize = 20;

impl Reader<'_, '_> {
    /// Refuses settings that break rules, each at its own key: at another one's that the rule is about as well where its own was left at
    /// its default. A rule between a wrong value and a right one is not asked: what it finds may only follow.
    pub(in crate::settings) fn refuse_broken(&mut self, broken: &[InvalidSetting]) {
        let is_wrong_itself = |key: &str| broken.iter().any(|other| other.key() == key && other.others().is_empty());
        for invalid in broken {
            let key = invalid.key();
            let follows = invalid.others().iter().any(|other| !self.is_sound(other) || is_wrong_itself(other));
            let is_told = !self.is_sound(key) || (!invalid.others().is_empty() && is_wrong_itself(key));
            if follows || is_told {
                continue;
            }
            if self.is_given(key) {
                self.refuse(key, invalid.rule());
                continue;
            }
            match invalid.others().iter().find(|other| self.is_given(other)) {
                Some(other) => {
                    let rule = format!("does not fit {key} = {} (default), which {}", invalid.value(), invalid.rule());
                    self.refuse(other, rule);
                }
                None => self.refuse(key, format!("{} (default {})", invalid.rule(), invalid.value())),
            }
        }
    }

    /// Ends the reading: what was not asked for is refused, those of `later` as not built yet; then what is missing.
    pub(in crate::settings) fn finish(mut self, later: &[&str]) {
        self.explain_rest();
        let missing = std::mem::take(&mut self.missing);
        for (key, node) in self.table {
            if self.known.contains(&key.as_str()) {
                continue;
            }
            if later.contains(&key.as_str()) {
                self.refuse_later(key, node);
                continue;
            }
            let rule = match nearest(key, self.known.iter().copied()) {
                Some(suggestion) => {
                    if !self.table.contains_key(suggestion) {
                        self.report.doubt(key_path(&self.path, suggestion));
                    }
                    format!("unknown key, did you mean `{suggestion}`?")
                }
                None => "unknown key".to_owned(),
            };
            let problem = self.problem(key, rule);
            self.report.tell(problem);
        }
        for Missing { keys, problem } in missing {
            if keys.iter().all(|key| self.is_sound(key)) {
                self.report.tell(problem);
            }
            for key in keys {
                self.report.doubt(key_path(&self.path, key));
            }
        }
    }

    /// What was given, and not noted by whoever read it, is noted as it stands: no value in force is kept from anybody.
    fn explain_rest(&mut self) {
        let known = std::mem::take(&mut self.known);
        for key in known.iter().copied() {
            let path = key_path(&self.path, key);
            if let Some(node) = self.table.get(key).filter(|node| node.as_table().is_none())
                && !self.report.is_explained(&path)
            {
                self.report.explain(path, node.shown_whole(key), node.origin.clone());
            }
            #[cfg(test)]
            self.report.asked.insert(key_path(&self.path, key));
        }
        self.known = known;
    }

    fn refuse_later(&mut self, key: &str, node: &Node) {
        let mut found = Vec::new();
        leaves(&self.full_key(key), node, NOT_BUILT_SHOWN_MAX, &mut found);
        self.report.tell_all(found.into_iter().map(|(full_key, leaf)| Problem {
            origin: leaf.origin.clone(),
            value: Some(leaf.shown(key)),
            key: full_key,
            rule: super::NOT_BUILT.to_owned(),
        }));
    }
}
