//! Expressions of a workflow: strict minijinja, compiled once. What is undefined is an error, never a silent blank; work is
//! bounded by fuel; there is no clock, chance, file or template to reach. It evaluates; it does not know what a step is.

use std::{collections::BTreeSet, sync::LazyLock};

use minijinja::{
    Environment, UndefinedBehavior,
    value::{Serde, Value, ValueKind},
};
use serde_json::Value as Json;

use super::{definition::EXPRESSION_BYTES_MAX, template_rules::check_expression_bounds};
use crate::model::depth::VALUE_DEPTH_MAX;

/// Work that one evaluation may do: about so many operations, or 64 bytes of new data each.
const FUEL: u64 = 1_000_000;
/// The most values inside the value that an expression makes.
const VALUES_MAX: usize = 1_000_000;
/// Functions that would show a workflow's inside or change it.
const REMOVED_FUNCTIONS: [&str; 2] = ["debug", "namespace"];

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    for name in REMOVED_FUNCTIONS {
        environment.remove_global(name);
    }
    environment
});

/// A compiled expression that knows where it was written.
pub struct Expression {
    source: String,
    place: String,
    compiled: minijinja::Expression<'static, 'static>,
}

/// An expression that could not be evaluated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place} = {source_text:?}: {message}")]
pub struct ExpressionError {
    place: String,
    source_text: String,
    message: String,
}

impl ExpressionError {
    /// Where the expression was written: `file:line: key`, or the key alone.
    pub fn place(&self) -> &str {
        &self.place
    }
}

impl std::fmt::Debug for Expression {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Expression({} = {:?})", self.place, self.source)
    }
}

impl Expression {
    /// Compiles an expression that was written at `place`. The error is a rule, as a sentence's end.
    pub(super) fn compile(source: &str, place: String) -> Result<Self, String> {
        if source.len() > EXPRESSION_BYTES_MAX {
            return Err(format!("must be at most {EXPRESSION_BYTES_MAX} bytes"));
        }
        if source.trim().is_empty() {
            return Err("must not be empty".to_owned());
        }
        check_expression_bounds(source)?;
        let compiled = ENVIRONMENT.compile_expression_owned(source.to_owned()).map_err(|error| reason(&error))?;
        if let Some(unknown) = unknown_word(source) {
            return Err(unknown);
        }
        Ok(Self { source: source.to_owned(), place, compiled })
    }

    /// The expression as it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The names it takes from its context, each with the fields that follow: `["steps", "draft", "output"]`. In order.
    pub(super) fn references(&self) -> Vec<Vec<String>> {
        let names: BTreeSet<String> = self.compiled.undeclared_variables(true).into_iter().collect();
        names
            .into_iter()
            .filter(|name| !is_function(name))
            .map(|name| name.split('.').map(str::to_owned).collect())
            .collect()
    }

    /// Its value as JSON.
    pub(super) fn evaluate(&self, context: &Value) -> Result<Json, ExpressionError> {
        let value = self.value(context)?;
        let mut values_left = VALUES_MAX;
        to_json(&value, VALUE_DEPTH_MAX, &mut values_left).map_err(|message| self.error(message))
    }

    /// Whether it holds, by the rules of `if`.
    pub(super) fn holds(&self, context: &Value) -> Result<bool, ExpressionError> {
        self.value(context).map(|value| value.is_true())
    }

    fn value(&self, context: &Value) -> Result<Value, ExpressionError> {
        let value = self.compiled.eval(context.clone()).map_err(|error| self.error(reason(&error)))?;
        if value.is_undefined() {
            return Err(self.error("there is no such value".to_owned()));
        }
        Ok(value)
    }

    fn error(&self, message: String) -> ExpressionError {
        ExpressionError { place: self.place.clone(), source_text: self.source.clone(), message }
    }
}

/// A JSON value for use in a context.
pub(super) fn from_json(json: &Json) -> Value {
    Value::from(Serde(json))
}

/// True for a name that the language itself brings.
pub(super) fn is_function(name: &str) -> bool {
    ENVIRONMENT.globals().any(|(known, _)| known == name)
}

/// The first filter or test that does not exist. minijinja would only say so when it gets there, in the middle of a run.
fn unknown_word(source: &str) -> Option<String> {
    let mut quote = None;
    let mut before = ' ';
    for (at, letter) in source.char_indices() {
        if let Some(open) = quote {
            quote = (letter != open || before == '\\').then_some(open);
        } else if letter == '"' || letter == '\'' {
            quote = Some(letter);
        } else if letter == '|' {
            let (name, _) = first_word(&source[at + 1..]);
            if !is_known(name, "filter") {
                return Some(format!("there is no filter {name:?}"));
            }
        } else if letter == 'i'
            && !is_of_word(before)
            && before != '.'
            && let Some(name) = asked_test(&source[at..])
            && !is_known(name, "test")
        {
            return Some(format!("there is no test {name:?}"));
        }
        // A backslash that is itself escaped does not escape what follows.
        before = if before == '\\' && letter == '\\' { ' ' } else { letter };
    }
    None
}

/// The name behind `is` or `is not`, where `text` begins with that. Signs (`is ==`) and what is no test at all are the compiler's.
fn asked_test(text: &str) -> Option<&str> {
    let ("is", rest) = first_word(text) else { return None };
    let (name, rest) = first_word(rest);
    let name = if name == "not" { first_word(rest).0 } else { name };
    (!name.is_empty()).then_some(name)
}

/// The word that `text` begins with, blanks aside, and what follows it.
fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_at(text.find(|letter| !is_of_word(letter)).unwrap_or(text.len()))
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Whether `name` is a known `kind`: a filter or a test.
pub(super) fn is_known(name: &str, kind: &str) -> bool {
    let asked = ENVIRONMENT.compile_expression_owned(format!("{name:?} is {kind}"));
    asked.and_then(|asked| asked.eval(())).is_ok_and(|known| known.is_true())
}

/// minijinja's own words without its pointer into a one-line text.
fn reason(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn to_json(value: &Value, depth_left: usize, values_left: &mut usize) -> Result<Json, String> {
    let Some(left) = values_left.checked_sub(1) else {
        return Err(format!("the value has more than {VALUES_MAX} parts"));
    };
    *values_left = left;
    let Some(depth_left) = depth_left.checked_sub(1) else {
        return Err(format!("the value is nested deeper than {VALUE_DEPTH_MAX}"));
    };
    match value.kind() {
        ValueKind::None => Ok(Json::Null),
        ValueKind::Bool => Ok(Json::Bool(value.is_true())),
        ValueKind::Number => number(value),
        ValueKind::String => Ok(Json::String(value.as_str().unwrap_or_default().to_owned())),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter().map_err(|error| reason(&error))?;
            items.map(|item| to_json(&item, depth_left, values_left)).collect::<Result<Vec<_>, _>>().map(Json::Array)
        }
        ValueKind::Map => object(value, depth_left, values_left),
        ValueKind::Undefined => Err("a part of the value does not exist".to_owned()),
        other => Err(format!("the value holds a {other}, which JSON cannot")),
    }
}

fn number(value: &Value) -> Result<Json, String> {
    match serde_json::to_value(value) {
        Ok(json @ Json::Number(_)) => Ok(json),
        _ => Err("the number is too large, infinite or undefined".to_owned()),
    }
}

fn object(value: &Value, depth_left: usize, values_left: &mut usize) -> Result<Json, String> {
    let mut fields = serde_json::Map::new();
    for key in value.try_iter().map_err(|error| reason(&error))? {
        let Some(name) = key.as_str() else {
            return Err(format!("the key {key} is no text"));
        };
        let field = value.get_item(&key).map_err(|error| reason(&error))?;
        fields.insert(name.to_owned(), to_json(&field, depth_left, values_left)?);
    }
    Ok(Json::Object(fields))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn evaluate(source: &str, context: &Json) -> Result<Json, String> {
        let expression = Expression::compile(source, "w.toml:3: step.a.in".to_owned())?;
        expression.evaluate(&from_json(context)).map_err(|error| error.to_string())
    }

    #[test]
    fn values() {
        let context = json!({ "input": { "notes": null, "n": 3, "list": [1, { "place": "Arezzo" }] }, "item": "사진" });
        for (source, want) in [
            ("input.n", json!(3)),
            ("input.n + 0.5", json!(3.5)),
            ("input.notes", json!(null)),
            ("input.notes or \"none given\"", json!("none given")),
            ("input.list[1].place", json!("Arezzo")),
            ("input.list", json!([1, { "place": "Arezzo" }])),
            ("item ~ \"!\"", json!("사진!")),
            ("{ \"b\": 1, \"a\": [item] }", json!({ "b": 1, "a": ["사진"] })),
            ("input.list | length", json!(2)),
            ("\"yes\" if input.n > 2 else \"no\"", json!("yes")),
            ("range(3)", json!([0, 1, 2])),
        ] {
            assert_eq!(evaluate(source, &context), Ok(want), "{source}");
        }
    }

    #[test]
    fn what_is_not_there_is_an_error_with_its_place() {
        let context = json!({ "input": { "notes": null } });
        for source in [
            "input.nota",
            "input.notes.text",
            "nothing",
            "[input.nota]",
            "{ \"a\": input.nota }",
            "input.nota ~ \"x\"",
            "input.nota or 1",
            "1 if false",
        ] {
            let error = evaluate(source, &context).unwrap_err();
            assert!(error.starts_with("w.toml:3: step.a.in = "), "{source}: {error}");
        }
    }

    #[test]
    fn work_and_size_are_bounded() {
        let context = json!({ "input": { "text": "x".repeat(1_000) } });
        for source in [
            "\"x\" * 100000000000",
            "input.text * 10000000",
            "range(100000000000)",
            "[range(99999) | list] * 1000",
            "2 ** 100000",
            "debug()",
            "namespace(a=1)",
        ] {
            assert!(evaluate(source, &context).is_err(), "{source}");
        }
        let deep = format!("{}1{}", "[".repeat(2_000), "]".repeat(2_000));
        assert!(evaluate(&deep, &context).is_err());
        assert!(Expression::compile(&"1+".repeat(EXPRESSION_BYTES_MAX), String::new()).is_err());
        assert!(Expression::compile("  ", String::new()).is_err());
        assert!(Expression::compile("{% include 'x' %}", String::new()).is_err());
    }

    #[test]
    fn references() {
        let expression = Expression::compile(
            "steps.draft.output.text ~ steps.photos.output[input.n].place ~ range(3) ~ item.a ~ input[\"x\"]",
            String::new(),
        )
        .unwrap();
        let references: Vec<String> = expression.references().iter().map(|path| path.join(".")).collect();
        assert_eq!(references, ["input", "input.n", "item.a", "steps.draft.output.text", "steps.photos.output"]);
    }

    #[test]
    fn filters_and_tests_are_known_before_a_run() {
        for (source, want) in [
            ("a | upper", None),
            ("a|length + b | default('x|y') | join(\"|\")", None),
            ("a | shout", Some("filter \"shout\"")),
            ("a | upper | shout(1)", Some("filter \"shout\"")),
            ("'\\'|x' ~ a | upper", None),
            ("'\\\\' | shout", Some("filter \"shout\"")),
            ("a is none and b is not string", None),
            ("a is divisibleby(2) or a is\n not odd", None),
            ("a is ==(1)", None),
            ("a is shouty", Some("test \"shouty\"")),
            ("a is not shouty", Some("test \"shouty\"")),
            ("[a]is shouty", Some("test \"shouty\"")),
            ("(a is none) is shouty(1)", Some("test \"shouty\"")),
            ("'it is shouty' ~ a", None),
            ("a.is ~ this ~ basis ~ island", None),
        ] {
            let want = want.map(|what| format!("there is no {what}"));
            assert_eq!(unknown_word(source), want, "{source}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(source in ".{0,60}") {
            let _ = evaluate(&source, &json!({ "input": {} }));
        }

        #[test]
        fn no_text_of_the_right_letters_panics(source in r#"[a-c0-9\[\]\(\)\{\}.,:|+*/%~<>=!"' -]{0,40}"#) {
            let _ = evaluate(&source, &json!({ "a": 1, "b": [1, 2], "c": { "a": "x" } }));
        }

        #[test]
        fn json_survives(text in ".{0,20}", number: i64, share in -1.0e9..1.0e9_f64) {
            let value = json!({ "text": text, "list": [number, share, null, true, {}, []] });
            let context = json!({ "v": value });
            prop_assert_eq!(evaluate("v", &context), Ok(value));
        }
    }
}
