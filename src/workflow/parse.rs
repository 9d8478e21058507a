//! A workflow's TOML into its definition. Types and keys are judged here, meaning is not (that is `check`).
//! It never stops at the first fault: what cannot be read is left out and noted.

use crate::model::nearest::hint;
use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::{
    definition::{
        DEADLINE_DEFAULT, Definition, Effects, FILE_BYTES_MAX, InputDefinition, InputKind, Join, MapDefinition,
        OnCause, Presence, ReviseDefinition, SCORE_DEFAULT, STEPS_MAX, Shape, StepDefinition,
    },
    problem::{Findings, InvalidWorkflow, KeyPath, nameless, quoted},
    toml_error::{REST_UNSEEN, said_of},
    toml_reader::{Fields, Reader},
};
use crate::model::{duration, run::Cause};

const ROOT_KEYS: [&str; 3] = ["workflow", "inputs", "step"];
const WORKFLOW_KEYS: [&str; 3] = ["name", "deadline", "output"];
const STEP_KEYS: [&str; 13] = [
    "id", "agent", "in", "needs", "when", "optional", "timeout", "on", "default", "map", "revise", "effects",
    "workflow",
];
const MAP_KEYS: [&str; 4] = ["over", "as", "parallel", "join"];
const REVISE_KEYS: [&str; 4] = ["step", "until", "max", "score"];

/// The definition as far as it could be read, and what was wrong. An error if it is no TOML at all.
pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<(Definition, Findings), InvalidWorkflow> {
    if bytes.len() > FILE_BYTES_MAX {
        let mut findings = Findings::of_file(file);
        let rule = format!("must be at most {FILE_BYTES_MAX} bytes");
        findings.add_at(Some(1), "file".to_owned(), &format!("{} bytes", bytes.len()), rule);
        return Err(findings.into_refusal());
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let mut findings = Findings::of_file(file);
            let line = 1 + bytes.iter().take(error.valid_up_to()).filter(|byte| **byte == b'\n').count();
            findings.add_at(Some(line), "file".to_owned(), "", "must be UTF-8");
            return Err(findings.into_refusal());
        }
    };
    let mut reader = Reader::new(file, text);
    let (root, errors) = DeTable::parse_recoverable(text);
    for (at, error) in errors.iter().enumerate() {
        let line = error.span().map_or(1, |span| reader.line(span.start));
        let rest = if at + 1 == errors.len() { REST_UNSEEN } else { "" };
        reader.findings.add_at(Some(line), "TOML".to_owned(), "", format!("{}{rest}", said_of(error, text)));
    }
    if !errors.is_empty() {
        return Err(reader.findings.into_refusal());
    }
    let definition = definition(&mut reader, root.get_ref());
    reader.findings.close_stage();
    Ok((definition, reader.findings))
}

fn definition(reader: &mut Reader<'_>, root: &DeTable<'_>) -> Definition {
    let root = reader.fields(root, KeyPath::of_workflow(""), &ROOT_KEYS);
    for key in ["workflow", "step"] {
        if !root.has(key) {
            reader.missing(&root, key);
        }
    }
    if root.is_misspelt("step") {
        // Some of the steps are there, and others perhaps under that name.
        reader.findings.doubt(root.path("step"));
    }
    let mut definition = Definition {
        name: String::new(),
        deadline: DEADLINE_DEFAULT,
        output: Shape::default(),
        inputs: BTreeMap::new(),
        steps: Vec::new(),
    };
    if let Some(workflow) = reader.table(&root, "workflow", &WORKFLOW_KEYS) {
        definition.name = reader.required_text(&workflow, "name").unwrap_or_default();
        definition.deadline = reader.duration(&workflow, "deadline").unwrap_or(DEADLINE_DEFAULT);
        if !workflow.has("output") {
            reader.missing(&workflow, "output");
        }
        definition.output = shape(reader, &workflow, "output").unwrap_or_default();
    }
    if let Some(inputs) = reader.table(&root, "inputs", &[]) {
        for name in inputs.keys() {
            // An input of an unreadable type is still there: references to it are not dangling.
            let input = input(reader, &inputs, &name)
                .unwrap_or(InputDefinition { kind: InputKind::Json, presence: Presence::Optional });
            definition.inputs.insert(name, input);
        }
    }
    let steps = reader.table_list(&root, "step");
    for (at, (line, table)) in steps.into_iter().enumerate().take(STEPS_MAX + 1) {
        definition.steps.push(step(reader, at, line, table));
    }
    definition
}

fn input(reader: &mut Reader<'_>, inputs: &Fields<'_, '_>, name: &str) -> Option<InputDefinition> {
    let text = reader.text(inputs, name)?;
    let (kind, presence) = match text.strip_suffix('?') {
        Some(kind) => (kind, Presence::Optional),
        None => (text.as_str(), Presence::Required),
    };
    let kind = [InputKind::Files, InputKind::Text, InputKind::Json].into_iter().find(|known| known.as_str() == kind);
    if kind.is_none() {
        reader.wrong_type(
            inputs,
            name,
            "must be \"files\", \"text\" or \"json\", with ? at the end where it may be missing",
        );
    }
    Some(InputDefinition { kind: kind?, presence })
}

fn shape(reader: &mut Reader<'_>, fields: &Fields<'_, '_>, key: &str) -> Option<Shape> {
    if Reader::is_table(fields, key) {
        let table = reader.table(fields, key, &[])?;
        return Some(Shape::Table(reader.text_table(&table)));
    }
    reader.text(fields, key).map(Shape::Value)
}

fn step(reader: &mut Reader<'_>, at: usize, line: usize, table: &DeTable<'_>) -> StepDefinition {
    let path = KeyPath::of_step(at, "");
    reader.findings.stands(path.clone(), line);
    let id_as_written = table.get("id").and_then(|id| match id.get_ref() {
        DeValue::String(id) => Some(id.to_string()),
        _ => None,
    });
    if let Some(id) = &id_as_written {
        reader.findings.step_is_called(at, id);
    }
    let fields = reader.fields(table, path, &STEP_KEYS);
    if fields.has("workflow") {
        reader.wrong_type(&fields, "workflow", "sub-workflows are not built yet");
    }
    // A step without a readable id keeps a place of its own that no reference can name.
    let id = reader.required_text(&fields, "id").unwrap_or_else(|| nameless(at));
    let agent = reader.required_text(&fields, "agent").unwrap_or_default();
    let presence =
        if reader.boolean(&fields, "optional") == Some(true) { Presence::Optional } else { Presence::Required };
    StepDefinition {
        input: shape(reader, &fields, "in").unwrap_or_default(),
        needs: reader.texts(&fields, "needs").unwrap_or_default(),
        when: reader.text(&fields, "when"),
        presence,
        timeout: reader.duration(&fields, "timeout"),
        on: on(reader, &fields),
        default: reader.json(&fields, "default"),
        map: map(reader, &fields),
        revise: revise(reader, &fields),
        effects: effects(reader, &fields),
        ..StepDefinition::new(id, agent)
    }
}

fn on(reader: &mut Reader<'_>, step: &Fields<'_, '_>) -> BTreeMap<Cause, OnCause> {
    let mut on = BTreeMap::new();
    let Some(table) = reader.table(step, "on", &Cause::ALL.map(Cause::as_str)) else { return on };
    for cause in Cause::ALL {
        let Some(word) = reader.text(&table, cause.as_str()) else { continue };
        if let Some(action) = OnCause::ALL.into_iter().find(|action| action.as_str() == word) {
            on.insert(cause, action);
        } else {
            let words = OnCause::ALL.map(OnCause::as_str);
            let rule = format!("must be one of {}{}", words.join(", "), hint(&word, words));
            reader.wrong_type(&table, cause.as_str(), &rule);
        }
    }
    on
}

fn map(reader: &mut Reader<'_>, step: &Fields<'_, '_>) -> Option<MapDefinition> {
    let table = reader.table(step, "map", &MAP_KEYS)?;
    let over = reader.required_text(&table, "over");
    let item = reader.required_text(&table, "as");
    Some(MapDefinition {
        over: over.unwrap_or_default(),
        item: item.unwrap_or_default(),
        parallel: reader.whole_number(&table, "parallel"),
        join: join(reader, &table).unwrap_or(Join::All),
    })
}

fn join(reader: &mut Reader<'_>, map: &Fields<'_, '_>) -> Option<Join> {
    let text = reader.text(map, "join")?;
    match text.split_once(':') {
        None if text == "all" => return Some(Join::All),
        None if text == "first_good" => return Some(Join::FirstGood),
        Some(("quorum", items)) => match items.parse() {
            Ok(items) => return Some(Join::Quorum(items)),
            Err(_) => reader.wrong_type(map, "join", "must name a whole number of items, as in \"quorum:2\""),
        },
        Some(("best_effort", time)) => match duration::parse(time) {
            Ok(time) => return Some(Join::BestEffort(time)),
            Err(error) => reader.wrong_type(map, "join", &format!("{} {}", quoted(time), error.rule())),
        },
        _ => reader.wrong_type(
            map,
            "join",
            "must be \"all\", \"first_good\", \"quorum:\" and a number or \"best_effort:\" and a duration, as in \"best_effort:20s\"",
        ),
    }
    None
}

fn revise(reader: &mut Reader<'_>, step: &Fields<'_, '_>) -> Option<ReviseDefinition> {
    let table = reader.table(step, "revise", &REVISE_KEYS)?;
    if !table.has("max") {
        reader.missing(&table, "max");
    }
    let target = reader.required_text(&table, "step");
    let until = reader.required_text(&table, "until");
    let score = reader.text(&table, "score");
    Some(ReviseDefinition {
        step: target.unwrap_or_default(),
        until: until.unwrap_or_default(),
        revisions_max: reader.whole_number(&table, "max").unwrap_or(1),
        score: score.unwrap_or_else(|| SCORE_DEFAULT.to_owned()),
    })
}

fn effects(reader: &mut Reader<'_>, step: &Fields<'_, '_>) -> Effects {
    match reader.text(step, "effects").as_deref() {
        None | Some("repeatable") => Effects::Repeatable,
        Some("once") => Effects::Once,
        Some(_) => {
            reader.wrong_type(step, "effects", "must be \"repeatable\" or \"once\"");
            Effects::Repeatable
        }
    }
}
