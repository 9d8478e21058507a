//! A workflow's version as text and back, so that a run keeps its version whatever becomes of the file. The text is the canonical
//! JSON that is hashed; it holds the definition, never what was compiled of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::Deserialize;
use serde_json::Value;

use super::{
    check::{Agents, check_for},
    checked::Workflow,
    definition::{
        Definition, Effects, InputDefinition, InputKind, Join, MapDefinition, OnCause, Presence, ReviseDefinition,
        Shape, StepDefinition,
    },
    hash::{FORM, canonical_json, hash, hash_text},
    problem::InvalidWorkflow,
};
use crate::model::{name::Name, run::Cause};

/// Why a stored text is no workflow.
#[derive(Debug, thiserror::Error)]
pub enum InvalidStored {
    /// It is no canonical JSON of a definition.
    #[error("not the text of a workflow: {0}")]
    Text(String),
    /// It was written by another version of this program.
    #[error("written in the form {found:?}; this program reads {FORM:?}")]
    Form {
        /// The form that it names.
        found: String,
    },
    /// It does not have the hash that its text has: something of it was not understood.
    #[error("its hash is {found}, not {expected}")]
    Hash {
        /// That of what was read.
        found: String,
        /// That of the text.
        expected: String,
    },
    /// It breaks a rule.
    #[error(transparent)]
    Rule(#[from] InvalidWorkflow),
}

/// The text of a workflow: the same for the same hash, however it was made.
pub fn to_text(workflow: &Workflow) -> String {
    canonical_json(workflow.definition())
}

/// The workflow of a text, for agents that are all here.
pub fn from_text(text: &str, known_agents: &BTreeSet<Name>) -> Result<Workflow, InvalidStored> {
    from_text_for(text, Agents::Known(known_agents))
}

/// The workflow of a text. A run that was accepted needs [`Agents::Any`]: a call to an agent that is gone fails by itself.
pub fn from_text_for(text: &str, agents: Agents<'_>) -> Result<Workflow, InvalidStored> {
    let stored: StoredWorkflow = serde_json::from_str(text).map_err(|error| InvalidStored::Text(error.to_string()))?;
    if stored.form != FORM {
        return Err(InvalidStored::Form { found: stored.form });
    }
    let definition = stored.definition()?;
    let workflow = check_for(definition, agents)?;
    let again = canonical_json(workflow.definition());
    if again != text {
        let expected = hash_text(text);
        return Err(InvalidStored::Hash { found: hash(workflow.definition()), expected });
    }
    Ok(workflow)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredWorkflow {
    form: String,
    name: String,
    deadline: String,
    output: StoredShape,
    inputs: BTreeMap<String, StoredInput>,
    steps: Vec<StoredStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredInput {
    kind: String,
    optional: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum StoredShape {
    Value(String),
    Table(BTreeMap<String, String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredStep {
    id: String,
    agent: String,
    #[serde(rename = "in")]
    input: StoredShape,
    needs: Vec<String>,
    when: Option<String>,
    optional: bool,
    timeout: Option<String>,
    on: BTreeMap<Cause, String>,
    default: Option<StoredDefault>,
    map: Option<StoredMap>,
    revise: Option<StoredRevise>,
    effects: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredDefault {
    value: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredMap {
    over: String,
    #[serde(rename = "as")]
    item: String,
    parallel: Option<u32>,
    join: StoredJoin,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredJoin {
    All,
    BestEffort(String),
    Quorum(u32),
    FirstGood,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRevise {
    step: String,
    until: String,
    max: u32,
    score: String,
}

impl StoredWorkflow {
    fn definition(self) -> Result<Definition, InvalidStored> {
        let inputs = self.inputs.into_iter().map(|(name, input)| Ok((name, input.definition()?)));
        Ok(Definition {
            name: self.name,
            deadline: duration(&self.deadline)?,
            output: self.output.shape(),
            inputs: inputs.collect::<Result<_, InvalidStored>>()?,
            steps: self.steps.into_iter().map(StoredStep::definition).collect::<Result<_, _>>()?,
        })
    }
}

impl StoredInput {
    fn definition(self) -> Result<InputDefinition, InvalidStored> {
        let kinds = [InputKind::Files, InputKind::Text, InputKind::Json];
        let kind = one_of(&kinds, InputKind::as_str, &self.kind)?;
        Ok(InputDefinition { kind, presence: presence(self.optional) })
    }
}

impl StoredShape {
    fn shape(self) -> Shape {
        match self {
            Self::Value(expression) => Shape::Value(expression),
            Self::Table(fields) => Shape::Table(fields),
        }
    }
}

impl StoredStep {
    fn definition(self) -> Result<StepDefinition, InvalidStored> {
        let on = self.on.into_iter().map(|(cause, word)| Ok((cause, one_of(&OnCause::ALL, OnCause::as_str, &word)?)));
        Ok(StepDefinition {
            id: self.id,
            agent: self.agent,
            input: self.input.shape(),
            needs: self.needs,
            when: self.when,
            presence: presence(self.optional),
            timeout: self.timeout.as_deref().map(duration).transpose()?,
            on: on.collect::<Result<_, InvalidStored>>()?,
            default: self.default.map(|default| default.value),
            map: self.map.map(StoredMap::definition).transpose()?,
            revise: self.revise.map(|revise| ReviseDefinition {
                step: revise.step,
                until: revise.until,
                revisions_max: revise.max,
                score: revise.score,
            }),
            effects: one_of(&[Effects::Repeatable, Effects::Once], Effects::as_str, &self.effects)?,
        })
    }
}

impl StoredMap {
    fn definition(self) -> Result<MapDefinition, InvalidStored> {
        let join = match self.join {
            StoredJoin::All => Join::All,
            StoredJoin::BestEffort(time) => Join::BestEffort(duration(&time)?),
            StoredJoin::Quorum(items) => Join::Quorum(items),
            StoredJoin::FirstGood => Join::FirstGood,
        };
        Ok(MapDefinition { over: self.over, item: self.item, parallel: self.parallel, join })
    }
}

fn presence(optional: bool) -> Presence {
    if optional { Presence::Optional } else { Presence::Required }
}

fn duration(nanoseconds: &str) -> Result<Duration, InvalidStored> {
    let nanoseconds: u64 =
        nanoseconds.parse().map_err(|_| InvalidStored::Text(format!("{nanoseconds:?} is no time in nanoseconds")))?;
    Ok(Duration::from_nanos(nanoseconds))
}

fn one_of<T: Copy>(known: &[T], name: impl Fn(T) -> &'static str, word: &str) -> Result<T, InvalidStored> {
    let found = known.iter().copied().find(|known| name(*known) == word);
    found.ok_or_else(|| InvalidStored::Text(format!("{word:?} is not known here")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workflow::{
        builder::{StepBuilder, WorkflowBuilder},
        check::load,
    };

    fn agents() -> BTreeSet<Name> {
        ["a", "b"].iter().map(|name| Name::try_new(name).unwrap()).collect()
    }

    const TEXT: &str = r#"
[workflow]
name = "w"
deadline = "90s"
output = { all = "steps.map.output", last = "steps.judge.output" }
[inputs]
photos = "files"
notes = "text?"
extra = "json?"
[[step]]
id = "map"
agent = "a"
in = "photo"
when = "input.notes"
optional = true
timeout = "1500ms"
map = { over = "input.photos", as = "photo", parallel = 3, join = "JOIN" }
[[step]]
id = "draft"
agent = "a"
in = { photos = "steps.map.output", said = "revision.feedback" }
on = { circuit_open = "wait", error = "default" }
default = { deep = [0.1, 1e300, 0.30000000000000004, "\u0001", -5] }
effects = "once"
[[step]]
id = "judge"
agent = "b"
in = { draft = "steps.draft.output" }
needs = ["map"]
revise = { step = "draft", until = "output.score >= 80", max = 3 }
"#;

    #[test]
    fn a_workflow_comes_back_from_its_text_with_the_same_hash() {
        for join in ["all", "best_effort:20s", "quorum:2", "first_good"] {
            let workflow = load("w.toml", TEXT.replace("JOIN", join).as_bytes(), &agents()).unwrap();
            let text = to_text(&workflow);
            let back = from_text(&text, &agents()).unwrap();
            assert_eq!((back.hash(), back.definition()), (workflow.hash(), workflow.definition()), "{join}");
            assert_eq!(to_text(&back), text);
        }
    }

    #[test]
    fn so_does_one_that_was_built() {
        let step = StepBuilder::new("one", "a").default_output(json!(null)).on(Cause::Error, OnCause::Default);
        let workflow = WorkflowBuilder::new("w").step(step).output("steps.one.output").build(&agents()).unwrap();
        let back = from_text(&to_text(&workflow), &agents()).unwrap();
        assert_eq!((back.hash(), back.definition()), (workflow.hash(), workflow.definition()));
    }

    #[test]
    fn an_agent_that_is_gone_does_not_take_the_version_along() {
        let text = to_text(&load("w.toml", TEXT.replace("JOIN", "all").as_bytes(), &agents()).unwrap());
        let none = BTreeSet::new();
        assert!(matches!(from_text(&text, &none), Err(InvalidStored::Rule(_))));
        assert_eq!(from_text_for(&text, Agents::Any).unwrap().steps().len(), 3);
    }

    #[test]
    fn what_is_no_text_of_ours_is_refused_with_its_reason() {
        let text = to_text(&load("w.toml", TEXT.replace("JOIN", "all").as_bytes(), &agents()).unwrap());
        for (from, to, want) in [
            ("{", "[", "not the text of a workflow"),
            ("workflow 1", "workflow 9", "written in the form"),
            ("\"once\"", "\"twice\"", "\"twice\" is not known here"),
            ("\"90000000000\"", "\"soon\"", "no time in nanoseconds"),
            ("\"name\":\"w\"", "\"name\":\"w\",\"more\":1", "unknown field"),
            ("\"name\":\"w\"", "\"name\": \"w\"", "its hash is"),
            ("steps.draft.output", "steps.gone.output", "gone"),
        ] {
            let broken = text.replacen(from, to, 1);
            let error = from_text(&broken, &agents()).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(want), "{from} -> {to}: {error}");
        }
    }
}
