//! `[agents.X.ladder]` and `[features.F.ladder]`: what a refused or failed call tries next. Reads them; who a lighter target is, is
//! settled once all agents and providers are read (`lighter`).

use std::sync::Arc;

use serde_json::Value as Json;

use super::{
    node::{Node, Table, Value, key_path},
    problem::{Origin, Problem},
    reader::Reader,
    report::Report,
};
use crate::{
    model::{name::Name, run::Cause},
    policy::ladder::{Rung, RungRule},
    runtime::{
        ladders::{LadderSettings, Notice},
        settings::SLOTS_MAX,
    },
};

/// The most lighter targets of an agent.
pub const LIGHTER_MAX: usize = 8;
/// The longest notice, in bytes.
pub const NOTICE_BYTES_MAX: usize = 2 * 1024;
/// The largest default, in bytes of its JSON.
pub const DEFAULT_BYTES_MAX: usize = 64 * 1024;
/// The largest window of a model, in tokens.
const CONTEXT_TOKENS_MAX: u64 = 100_000_000;
/// What an entry of `rungs` may say.
const RUNG_KEYS: [&str; 2] = ["rung", "causes"];
/// What an entry of `lighter` may say.
const LIGHTER_KEYS: [&str; 3] = ["target", "context_tokens", "slots"];

/// A ladder as configured.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReadLadder {
    /// All but who takes a call over.
    pub settings: LadderSettings,
    /// Who takes a call over.
    pub(super) lighter: Vec<ReadLighter>,
    /// Where the table stands; `None` = there is none.
    pub(super) place: Option<Origin>,
}

/// A lighter target as configured.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReadLighter {
    pub(super) key: String,
    pub(super) origin: Origin,
    pub(super) text: String,
    pub(super) context_tokens: Option<u64>,
    pub(super) slots: Option<u32>,
}

/// Whose ladder it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LadderOf {
    Agent,
    Feature,
}

/// Reads a ladder's table.
pub(super) fn read_ladder(mut reader: Reader<'_, '_>, of: LadderOf, given: bool) -> ReadLadder {
    if !given {
        return ReadLadder::default();
    }
    let rungs = read_rungs(&mut reader);
    let lighter = match of {
        LadderOf::Agent => read_lighter(&mut reader),
        LadderOf::Feature => {
            let rule = "is each agent's own: set agents.X.ladder.lighter";
            reader.unfit(&["lighter", "context_tokens", "slots"], rule);
            Vec::new()
        }
    };
    let default = read_default(&mut reader);
    let notice = read_notice(&mut reader);
    let has = |rung: Rung| rungs.iter().any(|rule| rule.rung == rung);
    if of == LadderOf::Agent {
        if has(Rung::Lighter) && lighter.is_empty() && !reader.is_given("lighter") {
            reader.refuse_without(
                &["lighter"],
                "rungs",
                "has \"lighter\", but no lighter target is set (lighter = \"provider/model\")",
            );
        }
        if has(Rung::Default) && default.is_none() && !reader.is_given("default") {
            reader.refuse_without(&["default"], "rungs", "has \"default\", but no default is set");
        }
    }
    let place = Some(reader.place.clone());
    reader.finish(&[]);
    ReadLadder { settings: LadderSettings { rungs, lighter: Vec::new(), default, notice }, lighter, place }
}

/// The agents that other agents' ladders name: they are there though nothing else asks for them.
pub(super) fn named_in_ladders(agents: &Table) -> Vec<String> {
    fn texts(node: &Node, found: &mut Vec<String>) {
        match &node.value {
            Value::Text(text) => found.extend(text.strip_prefix("agent:").map(str::to_owned)),
            Value::List(list) => list.iter().for_each(|entry| texts(entry, found)),
            Value::Table(table) => table.get("target").into_iter().for_each(|target| texts(target, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    let ladders = agents.values().filter_map(|agent| agent.as_table()?.get("ladder")?.as_table());
    for lighter in ladders.filter_map(|ladder| ladder.get("lighter")) {
        texts(lighter, &mut found);
    }
    found
}

/// Reads the ladders of features, where the file has any; the rest of a feature is read elsewhere.
pub(super) fn read_feature_ladders(root: &Table, report: &mut Report) -> Vec<(Name, ReadLadder)> {
    let features = root.get("features").and_then(Node::as_table);
    let mut found = Vec::new();
    for (name, node) in features.into_iter().flatten() {
        let (Ok(name), Some(table)) = (Name::try_new(name), node.as_table()) else { continue };
        let path = key_path("features", name.as_str());
        let mut reader = Reader::new(table, node.origin.clone(), &path, "", report);
        let given = reader.is_given("ladder");
        if given {
            let ladder = read_ladder(reader.table("ladder"), LadderOf::Feature, given);
            found.push((name, ladder));
        }
    }
    found
}

fn read_rungs(reader: &mut Reader<'_, '_>) -> Vec<RungRule> {
    let Some(node) = reader.node("rungs") else {
        reader.refuse_without(&["rungs"], "rungs", "must be set: a list of lighter, deferred, default, notice");
        return Vec::new();
    };
    let Value::List(entries) = &node.value else {
        reader.refuse("rungs", "must be a list, as in [\"lighter\", \"deferred\", \"notice\"]");
        return Vec::new();
    };
    let path = reader.full_key("rungs");
    let mut rules: Vec<RungRule> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let key = format!("{path}[{index}]");
        let problem = |rule: String| Problem {
            origin: entry.origin.clone(),
            key: key.clone(),
            value: Some(entry.shown(&key)),
            rule,
        };
        match rung_of(entry) {
            Ok(rule) if rules.iter().any(|known| known.rung == rule.rung) => {
                reader.report.tell(problem("stands there twice".to_owned()));
            }
            Ok(rule) => rules.push(rule),
            Err(rule) => reader.report.tell(problem(rule)),
        }
    }
    let words: Vec<String> = rules.iter().map(shown_rung).collect();
    reader.explain("rungs", words.join(", "));
    rules
}

fn shown_rung(rule: &RungRule) -> String {
    let causes = rule.causes.iter().flatten().map(|cause| cause.as_str()).collect::<Vec<_>>().join(", ");
    if causes.is_empty() { rule.rung.as_str().to_owned() } else { format!("{} ({causes})", rule.rung.as_str()) }
}

fn rung_of(entry: &Node) -> Result<RungRule, String> {
    let words = Rung::ALL.map(Rung::as_str).join(", ");
    let word_of = |node: &Node| match &node.value {
        Value::Text(text) => Rung::ALL.into_iter().find(|rung| rung.as_str() == text),
        _ => None,
    };
    let Some(table) = entry.as_table() else {
        return word_of(entry).map(RungRule::of).ok_or_else(|| format!("must be one of {words}"));
    };
    if let Some(strange) = table.keys().find(|key| !RUNG_KEYS.contains(&key.as_str())) {
        return Err(format!("has the unknown key `{strange}`; it knows rung and causes"));
    }
    let rung = table.get("rung").and_then(word_of).ok_or_else(|| format!("must have rung = one of {words}"))?;
    let Some(causes) = table.get("causes") else { return Ok(RungRule::of(rung)) };
    let Value::List(list) = &causes.value else { return Err("must have causes = a list of words".to_owned()) };
    let mut found = Vec::new();
    for cause in list {
        let known = |word: &str| Cause::ALL.into_iter().find(|cause| cause.as_str() == word);
        let cause = match &cause.value {
            Value::Text(word) => known(word),
            _ => None,
        };
        let known = Cause::ALL.map(Cause::as_str).join(", ");
        let cause = cause.ok_or_else(|| format!("must have causes of {known}"))?;
        if !rung.can_answer(cause) {
            return Err(format!("cannot answer the cause {}", cause.as_str()));
        }
        found.push(cause);
    }
    if found.is_empty() {
        return Err("must have at least one cause, or none named for all".to_owned());
    }
    Ok(RungRule { rung, causes: Some(found) })
}

fn read_lighter(reader: &mut Reader<'_, '_>) -> Vec<ReadLighter> {
    let context_tokens = reader.whole("context_tokens", 1, CONTEXT_TOKENS_MAX);
    let slots = reader.whole("slots", 1, u64::from(SLOTS_MAX)).and_then(|slots| u32::try_from(slots).ok());
    let Some(node) = reader.node("lighter") else {
        reader.unfit(&["context_tokens", "slots"], "is only used with lighter");
        return Vec::new();
    };
    let path = reader.full_key("lighter");
    let several = |key: &str, list: &[Node]| list.iter().enumerate().map(|(at, _)| format!("{key}[{at}]")).collect();
    let (keys, entries): (Vec<String>, &[Node]) = match &node.value {
        Value::List(list) => (several(&path, list), list),
        _ => (vec![path.clone()], std::slice::from_ref(node)),
    };
    if entries.is_empty() || entries.len() > LIGHTER_MAX {
        reader.refuse("lighter", format!("must be 1 to {LIGHTER_MAX} targets"));
        return Vec::new();
    }
    let mut found = Vec::new();
    for (key, entry) in keys.into_iter().zip(entries) {
        match lighter_of(&key, entry) {
            Ok(read) => found.push(ReadLighter {
                context_tokens: read.context_tokens.or(context_tokens),
                slots: read.slots.or(slots),
                ..read
            }),
            Err(rule) => {
                let value = Some(entry.shown(&key));
                reader.report.tell(Problem { origin: entry.origin.clone(), key, value, rule });
            }
        }
    }
    let texts: Vec<String> = found.iter().map(shown_lighter).collect();
    reader.explain("lighter", texts.join(", "));
    found
}

/// With what holds for it, also where that is said once for all.
fn shown_lighter(read: &ReadLighter) -> String {
    let numbers = [("context_tokens", read.context_tokens), ("slots", read.slots.map(u64::from))];
    let said: Vec<String> = numbers.iter().filter_map(|(key, number)| Some(format!("{key} {}", (*number)?))).collect();
    if said.is_empty() { read.text.clone() } else { format!("{} ({})", read.text, said.join(", ")) }
}

fn lighter_of(key: &str, entry: &Node) -> Result<ReadLighter, String> {
    let shape = || "must be \"provider/model\", \"agent:NAME\" or { target, context_tokens, slots }".to_owned();
    let text_of = |node: &Node| match &node.value {
        Value::Text(text) if !text.is_empty() => Some(text.clone()),
        _ => None,
    };
    let read = |text, context_tokens, slots| ReadLighter {
        key: key.to_owned(),
        origin: entry.origin.clone(),
        text,
        context_tokens,
        slots,
    };
    let Some(table) = entry.as_table() else {
        return text_of(entry).map(|text| read(text, None, None)).ok_or_else(shape);
    };
    if table.keys().any(|known| !LIGHTER_KEYS.contains(&known.as_str())) {
        return Err(shape());
    }
    let number = |key: &str, max: u64| match table.get(key).map(|node| &node.value) {
        None => Ok(None),
        Some(Value::Integer(number)) => match u64::try_from(*number) {
            Ok(number) if (1..=max).contains(&number) => Ok(Some(number)),
            _ => Err(format!("must have {key} from 1 to {max}")),
        },
        Some(_) => Err(format!("must have {key} from 1 to {max}")),
    };
    let text = table.get("target").and_then(text_of).ok_or_else(shape)?;
    let slots = number("slots", u64::from(SLOTS_MAX))?.and_then(|slots| u32::try_from(slots).ok());
    Ok(read(text, number("context_tokens", CONTEXT_TOKENS_MAX)?, slots))
}

fn read_default(reader: &mut Reader<'_, '_>) -> Option<Arc<Json>> {
    let node = reader.node("default")?;
    let Some(value) = json_of(node) else {
        reader.refuse("default", "must be a value that JSON has: no dates, no endless numbers");
        return None;
    };
    let bytes = value.to_string().len();
    if bytes > DEFAULT_BYTES_MAX {
        reader.refuse("default", format!("has {bytes} bytes of JSON, at most {DEFAULT_BYTES_MAX} are allowed"));
        return None;
    }
    reader.explain("default", value.to_string());
    Some(Arc::new(value))
}

fn json_of(node: &Node) -> Option<Json> {
    Some(match &node.value {
        Value::Text(text) => Json::from(text.as_str()),
        Value::Integer(number) => Json::from(*number),
        Value::Number(number) => Json::Number(serde_json::Number::from_f64(*number)?),
        Value::Boolean(truth) => Json::from(*truth),
        Value::List(list) => Json::Array(list.iter().map(json_of).collect::<Option<_>>()?),
        Value::Table(table) => {
            let field = |(key, node): (&String, &Node)| Some((key.clone(), json_of(node)?));
            Json::Object(table.iter().map(field).collect::<Option<_>>()?)
        }
        Value::Other(_) => return None,
    })
}

fn read_notice(reader: &mut Reader<'_, '_>) -> Option<Arc<Notice>> {
    let node = reader.node("notice")?;
    let text = |node: &Node| match &node.value {
        Value::Text(text) if (1..=NOTICE_BYTES_MAX).contains(&text.trim().len()) => Some(text.clone()),
        _ => None,
    };
    let notice = match node.as_table() {
        None => text(node).map(|text| Notice { ko: None, en: Some(text) }),
        Some(table) if !table.is_empty() && table.keys().all(|key| key == "ko" || key == "en") => {
            let (ko, en) = (table.get("ko").map(text), table.get("en").map(text));
            match (ko, en) {
                (Some(None), _) | (_, Some(None)) => None,
                (ko, en) => Some(Notice { ko: ko.flatten(), en: en.flatten() }),
            }
        }
        Some(_) => None,
    };
    if let Some(notice) = &notice {
        let texts = [("en", &notice.en), ("ko", &notice.ko)];
        let said: Vec<String> =
            texts.iter().filter_map(|(language, text)| Some(format!("{language}: {}", text.as_ref()?))).collect();
        reader.explain("notice", said.join("; "));
    } else {
        let rule =
            format!("must be a text, or {{ ko = \"...\", en = \"...\" }}, of 1 to {NOTICE_BYTES_MAX} bytes each");
        reader.refuse("notice", rule);
    }
    notice.map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::ladder::Effect,
        settings::{load::Settings, tests::Given},
    };

    const PLACES: &str = "[providers.big]\nkind = 'openai'\nbase_url = 'http://127.0.0.1:1/v1'\n[providers.small]\nkind = 'openai'\n\
        base_url = 'http://127.0.0.1:2/v1'\n[agents.meta]\nprovider = 'small'\nmodel = 'm'\n\
        [agents.draft]\nprovider = 'big'\nmodel = 'x'\nslots = 7\n";

    fn load(text: &str) -> Result<Settings, String> {
        Given::config(&format!("{PLACES}{text}\n")).load().map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_ladder_is_read_and_its_lighter_targets_are_agents() {
        let text = "[agents.draft.ladder]\nrungs = ['lighter', { rung = 'deferred', causes = ['budget'] }, 'default', 'notice']\n\
            lighter = ['small/tiny/1', { target = 'agent:meta', context_tokens = 10 }]\ncontext_tokens = 4096\nslots = 2\n\
            default = { text = 'none', list = [1, 2.5, true] }\nnotice = { ko = '잠시', en = 'Soon' }\n\
            [features.batch]\n[features.batch.ladder]\nrungs = ['deferred']\n";
        let settings = load(text).unwrap();
        let ladder = &settings.ladders.agents["draft"];
        let rungs: Vec<_> = ladder.rungs.iter().map(|rule| rule.rung.as_str()).collect();
        assert_eq!(rungs, ["lighter", "deferred", "default", "notice"]);
        assert_eq!(ladder.rungs[1].causes, Some(vec![Cause::Budget]));
        let lighter: Vec<_> =
            ladder.lighter.iter().map(|target| (target.agent.as_str(), target.context_tokens, target.effect)).collect();
        assert_eq!(lighter, [("draft.lighter", Some(4_096), Effect::None), ("meta", Some(10), Effect::None)]);
        assert_eq!(**ladder.default.as_ref().unwrap(), serde_json::json!({ "text": "none", "list": [1, 2.5, true] }));
        let stand_in = settings.agent("draft.lighter").unwrap();
        assert_eq!((stand_in.settings.provider.as_str(), stand_in.settings.slots), ("small", 2));
        assert_eq!(stand_in.settings.model.as_deref(), Some("tiny/1"));
        assert_eq!(stand_in.stands_in_for.as_ref().unwrap().as_str(), "draft");
        assert_eq!(settings.ladders.features["batch"].rungs, [RungRule::of(Rung::Deferred)]);
    }

    /// Whoever says how many models a server keeps says whether a lighter one there pushes the main one out.
    #[test]
    fn a_server_that_keeps_one_model_has_no_room_for_a_lighter_one() {
        for (kind, models_max, lighter, want) in [
            ("ollama", "models_max = 1", "home/small", Effect::Evicts),
            ("ollama", "models_max = 2", "home/small", Effect::None),
            ("ollama", "", "home/small", Effect::None),
            ("ollama", "models_max = 1", "small/tiny", Effect::None),
            ("ollama", "models_max = 1", "agent:other", Effect::Evicts),
            ("ollama", "models_max = 1", "agent:meta", Effect::None),
            ("openai", "models_max = 1", "home/small", Effect::Evicts),
            ("openai", "flavor = 'llama_cpp'", "home/small", Effect::Evicts),
        ] {
            let text = format!(
                "[providers.home]\nkind = '{kind}'\nbase_url = 'http://127.0.0.1:3'\n{models_max}\n\
                 [providers.beside]\nkind = '{kind}'\nbase_url = 'http://127.0.0.1:4'\n\
                 [agents.other]\nprovider = 'home'\nmodel = 'small'\n\
                 [agents.plan]\nprovider = 'home'\nmodel = 'large'\n[agents.plan.ladder]\nrungs = ['lighter']\nlighter = '{}'\n",
                lighter.replace("small/", "beside/")
            );
            let settings = load(&text).unwrap();
            let case = format!("{kind} {models_max} {lighter}");
            assert_eq!(settings.ladders.agents["plan"].lighter[0].effect, want, "{case}");
            let warned = settings.warnings.iter().any(|warning| warning.to_string().contains("is never asked"));
            assert_eq!(warned, want == Effect::Evicts, "{case}");
        }
    }

    #[test]
    fn mistakes_are_named_with_file_line_and_key() {
        for (text, wanted) in [
            (
                "rungs = []\nlighters = 'x'",
                "agents.draft.ladder.lighters = \"x\": unknown key, did you mean `lighter`?",
            ),
            ("rungs = ['lighter']", "has \"lighter\", but no lighter target is set"),
            ("rungs = ['default']", "has \"default\", but no default is set"),
            ("rungs = ['notice', 'notice']", "agents.draft.ladder.rungs[1] = \"notice\": stands there twice"),
            ("rungs = ['later']", "agents.draft.ladder.rungs[0] = \"later\": must be one of lighter, deferred,"),
            ("rungs = [{ rung = 'lighter', causes = ['deadline'] }]", "cannot answer the cause deadline"),
            ("rungs = ['lighter']\nlighter = 'smal/tiny'", "there is no such provider, did you mean `small`?"),
            ("rungs = ['lighter']\nlighter = 'big/x'", "is a target of the agent already"),
            (
                "rungs = ['lighter']\nlighter = ['agent:same']\n[agents.same]\nprovider = 'big'\nmodel = 'x'",
                "agents.draft.ladder.lighter[0] = \"agent:same\": asks big/x, which is a target of the agent already",
            ),
            (
                "rungs = ['lighter']\nlighter = ['agent:meta', 'agent:more']\n[agents.more]\n\
                 targets = [{ provider = 'small', model = 'n' }, { provider = 'small', model = 'm' }]",
                "agents.draft.ladder.lighter[1] = \"agent:more\": asks small/m, which is named before",
            ),
            (
                "rungs = ['lighter']\nlighter = ['small/s1', 'small/s2', 'small/s1']",
                "agents.draft.ladder.lighter[2] = \"small/s1\": is named before: it would be asked twice",
            ),
            ("rungs = ['lighter']\nlighter = ['agent:meta', 'agent:meta']", "is named before: it would be asked twice"),
            ("rungs = ['lighter']\nlighter = 'agent:meda'", "there is no agent \"meda\"; did you mean \"meta\"?"),
            ("rungs = ['lighter']\nlighter = 'agent:draft'", "leads back to where it began"),
            ("rungs = ['notice']\nnotice = ''", "must be a text, or { ko = "),
            ("rungs = ['default']\ndefault = 2020-01-01", "must be a value that JSON has"),
        ] {
            let found = load(&format!("[agents.draft.ladder]\n{text}")).unwrap_err();
            assert!(found.contains(wanted) && found.starts_with("w.toml:"), "{text}: {found}");
        }
        let both = "[agents.draft.ladder]\nrungs = ['lighter']\nlighter = 'agent:meta'\n[agents.meta.ladder]\n\
            rungs = ['lighter']\nlighter = 'agent:draft'\n";
        let found = load(both).unwrap_err();
        assert!(found.contains("draft -> meta -> draft"), "{found}");
        let feature = "[features.chat]\n[features.chat.ladder]\nrungs = ['lighter']\nlighter = 'small/x'\n";
        assert!(load(feature).unwrap_err().contains("is each agent's own"), "{feature}");
    }
}
