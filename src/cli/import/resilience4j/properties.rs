//! Spring's way with property files: dotted keys, relaxed names, several documents, profiles. What a profile would change is told and
//! left out unless that profile was asked for. It knows nothing of Resilience4j beyond the name of its tree.

use std::collections::{BTreeMap, BTreeSet};

use crate::cli::import::{
    finding::{Finding, Outcome, shown},
    scalar::text,
    yaml::{Node, Value},
};

/// The tree that is looked at.
const ROOT: &str = "resilience4j";

/// One property: a value with the path to it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Property {
    /// The parts of its key as written.
    pub(super) path: Vec<String>,
    pub(super) line: u64,
    pub(super) node: Node,
}

impl Property {
    /// Its key as written.
    pub(super) fn key(&self) -> String {
        self.path.join(".")
    }

    fn finding(&self, outcome: Outcome, said: String) -> Finding {
        let last = self.path.last().map_or("", String::as_str);
        Finding { line: Some(self.line), key: self.key(), value: shown(last, &self.node), outcome, said }
    }
}

/// A key without what relaxed binding does not look at: case, dashes, underscores.
pub(super) fn relaxed(key: &str) -> String {
    key.chars().filter(|letter| !matches!(letter, '-' | '_')).flat_map(char::to_lowercase).collect()
}

/// The properties below `resilience4j` that hold, in the file's order, and what became of the others.
pub(super) fn hold(documents: &[Node], profiles: &[String]) -> (Vec<Property>, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut holding: Vec<Property> = Vec::new();
    let mut by_path: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for document in documents {
        let mut properties = Vec::new();
        flatten(&[], document, &mut properties);
        let condition = condition_of(&properties);
        let (ours, others): (Vec<Property>, Vec<Property>) =
            properties.into_iter().partition(|property| relaxed(&property.path[0]) == ROOT);
        findings.extend(other_trees(&others));
        if let Some(reason) = condition.and_then(|condition| condition.inactive(profiles)) {
            findings.extend(ours.iter().map(|property| property.finding(Outcome::NotTaken, reason.clone())));
            continue;
        }
        for property in ours {
            match by_path.insert(identity(&property.path), holding.len()) {
                None => {}
                // Within one document two spellings of one name are as good as twice the same key: the later one holds.
                Some(earlier) => {
                    let said = format!("overridden by line {}", property.line);
                    findings.push(holding[earlier].finding(Outcome::NotTaken, said));
                }
            }
            holding.push(property);
        }
    }
    let last: BTreeSet<usize> = by_path.into_values().collect();
    let holding = holding.into_iter().enumerate().filter(|(index, _)| last.contains(index));
    (holding.map(|(_, property)| property).collect(), findings)
}

/// What makes two properties one: relaxed names, but the user's own names (`instances.<name>`) as they are.
fn identity(path: &[String]) -> Vec<String> {
    path.iter().enumerate().map(|(depth, part)| if depth == 3 { part.clone() } else { relaxed(part) }).collect()
}

/// Every leaf below `node`. Lists are leaves: Spring replaces them as a whole.
fn flatten(path: &[String], node: &Node, properties: &mut Vec<Property>) {
    for entry in node.entries() {
        let path: Vec<String> = path.iter().cloned().chain(parts(&entry.key)).collect();
        if path.is_empty() {
            continue;
        }
        match &entry.node.value {
            Value::Table(entries) if !entries.is_empty() => flatten(&path, &entry.node, properties),
            _ => properties.push(Property { path, line: entry.line, node: entry.node.clone() }),
        }
    }
}

/// The parts of a key: dots divide, what stands in brackets is one part as it is.
fn parts(key: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut bracketed = false;
    for letter in key.chars() {
        match letter {
            '.' if !bracketed => parts.push(std::mem::take(&mut part)),
            '[' if !bracketed => {
                bracketed = true;
                parts.push(std::mem::take(&mut part));
            }
            ']' if bracketed => bracketed = false,
            plain => part.push(plain),
        }
    }
    parts.push(part);
    parts.retain(|part| !part.is_empty());
    parts
}

/// When a document holds.
struct Condition {
    line: u64,
    /// Profiles of which one must be active; empty = something other than a profile is asked for.
    profiles: Vec<String>,
    written: String,
}

fn condition_of(properties: &[Property]) -> Option<Condition> {
    properties.iter().find_map(|property| {
        let path: Vec<String> = property.path.iter().map(|part| relaxed(part)).collect();
        let path = path.join(".");
        let by_profile = path == "spring.config.activate.onprofile" || path == "spring.profiles";
        if !by_profile && path != "spring.config.activate.oncloudplatform" {
            return None;
        }
        let names = match &property.node.value {
            Value::List(list) => list.iter().filter_map(|node| text(node).ok()).collect::<Vec<String>>().join(","),
            _ => text(&property.node).unwrap_or_default(),
        };
        let written = format!("{} = {names}", property.key());
        let names = names.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
        Some(Condition { line: property.line, profiles: names.filter(|_| by_profile).collect(), written })
    })
}

impl Condition {
    /// Why the document does not hold, if it does not.
    fn inactive(&self, asked: &[String]) -> Option<String> {
        if self.profiles.iter().any(|profile| asked.contains(profile)) {
            return None;
        }
        let plain = |name: &String| name.chars().all(|letter| letter.is_alphanumeric() || "-_.".contains(letter));
        Some(match self.profiles.iter().find(|name| plain(name)) {
            Some(name) => {
                format!("only with {} (line {}); --profile {name} takes it over the rest", self.written, self.line)
            }
            None => format!("only with {} (line {}), which is not looked at", self.written, self.line),
        })
    }
}

/// One line for each tree that is not Resilience4j's: how much was passed over, without its values.
fn other_trees(others: &[Property]) -> Vec<Finding> {
    let mut trees: Vec<(&str, u64, usize)> = Vec::new();
    for property in others {
        match trees.iter_mut().find(|(name, ..)| *name == property.path[0]) {
            Some((_, _, count)) => *count += 1,
            None => trees.push((&property.path[0], property.line, 1)),
        }
    }
    let finding = |(name, line, count): (&str, u64, usize)| Finding {
        line: Some(line),
        key: name.to_owned(),
        value: None,
        outcome: Outcome::NotSupported,
        said: format!("not Resilience4j's: {count} properties from here on were not looked at"),
    };
    trees.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::import::yaml::parse;

    fn held(text: &str, profiles: &[&str]) -> (Vec<String>, Vec<String>) {
        let profiles: Vec<String> = profiles.iter().map(|name| (*name).to_owned()).collect();
        let (properties, findings) = hold(&parse("a.yml", text.as_bytes()).unwrap(), &profiles);
        let properties = properties.iter().map(|property| format!("{}@{}", property.key(), property.line)).collect();
        let findings = findings.iter().map(|finding| format!("{}@{:?}: {}", finding.key, finding.line, finding.said));
        (properties, findings.collect())
    }

    #[test]
    fn keys_may_be_dotted_bracketed_and_relaxed() {
        let text = "resilience4j.circuitbreaker:\n  instances:\n    '[my.agent]':\n      sliding-window-size: 5\n  instances.b.slidingWindowSize: 6\nResilience4J:\n  retry: {}\n";
        let (properties, findings) = held(text, &[]);
        assert_eq!(
            properties,
            [
                "resilience4j.circuitbreaker.instances.my.agent.sliding-window-size@4",
                "resilience4j.circuitbreaker.instances.b.slidingWindowSize@5",
                "Resilience4J.retry@7"
            ]
        );
        assert!(findings.is_empty(), "{findings:?}");
        let names = |key: &str| parts(key);
        assert_eq!(names("a[b.c].d[0]"), ["a", "b.c", "d", "0"]);
        assert!(names("..").is_empty() && names("[]").is_empty());
    }

    #[test]
    fn the_later_spelling_holds_and_the_earlier_is_told() {
        let text = "resilience4j.retry.instances.a.max-attempts: 1\n---\nresilience4j.retry.instances.a.maxAttempts: 2\nresilience4j.retry.instances.A.maxAttempts: 3\n";
        let (properties, findings) = held(text, &[]);
        assert_eq!(
            properties,
            ["resilience4j.retry.instances.a.maxAttempts@3", "resilience4j.retry.instances.A.maxAttempts@4"]
        );
        assert_eq!(findings, ["resilience4j.retry.instances.a.max-attempts@Some(1): overridden by line 3"]);
    }

    #[test]
    fn profiles_are_named_and_never_merged_in_silence() {
        let text = "resilience4j.retry.instances.a.maxAttempts: 1\n---\nspring.config.activate.on-profile: prod\nresilience4j.retry.instances.a.maxAttempts: 2\n---\nspring:\n  profiles: [dev, test]\nresilience4j.retry.instances.a.maxAttempts: 3\n---\nspring.config.activate.on-profile: '!prod & eu'\nresilience4j.retry.instances.a.maxAttempts: 4\n---\nspring.config.activate.on-cloud-platform: kubernetes\nresilience4j.retry.instances.a.maxAttempts: 5\nserver: {port: 1, ssl: {key-store-password: x}}\n";
        for (profiles, holds, told) in [
            (vec![], 1, "on-profile = prod (line 3); --profile prod takes it"),
            (vec!["prod"], 4, "only with spring.profiles = dev,test (line 7); --profile dev"),
            (vec!["test"], 8, "on-profile = !prod & eu (line 10), which is not looked at"),
            (vec!["kubernetes"], 1, "on-cloud-platform = kubernetes (line 13), which is not looked at"),
        ] {
            let (properties, findings) = held(text, &profiles);
            assert_eq!(properties, [format!("resilience4j.retry.instances.a.maxAttempts@{holds}")], "{profiles:?}");
            assert!(findings.iter().any(|finding| finding.contains(told)), "{told}: {findings:#?}");
            assert!(findings.iter().any(|finding| finding.contains("2 properties from here on")), "{findings:#?}");
        }
    }
}
