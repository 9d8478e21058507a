//! Texts with places to fill from an agent's input: prompts, and requests of mapped services. Strict (a missing value is an error,
//! never an empty text) and bounded (a template can neither run for ever nor grow without end). One that a caller gives is held to a small
//! language, filled from an input of bounded size, and compiled and filled on a thread of its own.

use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, context, value::Serde};
use serde_json::Value;
use tokio::sync::{Semaphore, oneshot};

use crate::{
    model::nearest::hint,
    workflow::{
        template_names::check_names,
        template_rules::{BrokenRule, check_bounds, check_strange},
    },
};

/// Steps a template may take.
pub const TEMPLATE_FUEL: u64 = 2_000_000;
/// The most bytes of a filled text.
pub const TEMPLATE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Steps that a caller's template may take. A step costs at most one look at its whole input, and pays for 64 bytes of new text.
pub const STRANGE_FUEL: u64 = 200_000;
/// The most bytes of an input that a caller's template is filled from, pictures apart.
pub const STRANGE_INPUT_BYTES_MAX: usize = 2 * 1024 * 1024;
/// So many callers' templates are filled at once; others wait as long as their attempts may.
const STRANGE_AT_ONCE_MAX: usize = 2;
/// Compiling and filling one goes no deeper than this allows, by far.
const STRANGE_STACK_BYTES: usize = 32 * 1024 * 1024;

static STRANGE_PLACES: Semaphore = Semaphore::const_new(STRANGE_AT_ONCE_MAX);

const NAME: &str = "template";
/// What a template is filled from.
const ROOT: &str = "input";
/// A longer line is shown by its beginning.
const LINE_CHARS_SHOWN_MAX: usize = 80;

/// How values are written into the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filling {
    /// As they are.
    Text,
    /// As JSON, so that no value can break out of its place.
    Json,
}

/// A template that was compiled once.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
}

/// A template that does not compile, or cannot be filled from this input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct TemplateError {
    text: String,
}

impl TemplateError {
    fn new(error: &minijinja::Error) -> Self {
        let place = error.line().map_or_else(String::new, |line| format!("line {line}: "));
        let detail = error.detail().map_or_else(String::new, |detail| format!(": {detail}"));
        Self { text: format!("{place}{}{detail}", error.kind()) }
    }
}

impl From<BrokenRule> for TemplateError {
    fn from(broken: BrokenRule) -> Self {
        Self { text: broken.to_string() }
    }
}

impl Template {
    /// Compiles `source`.
    pub fn try_new(source: &str, filling: Filling) -> Result<Self, TemplateError> {
        check_bounds(source)?;
        Self::compile(source, filling, TEMPLATE_FUEL)
    }

    fn compile(source: &str, filling: Filling, fuel: u64) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(fuel));
        environment.set_auto_escape_callback(move |_| match filling {
            Filling::Text => AutoEscape::None,
            Filling::Json => AutoEscape::Json,
        });
        environment.add_template_owned(NAME, source.to_owned()).map_err(|error| TemplateError::new(&error))?;
        Ok(Self { environment })
    }

    /// The text, filled from `input`.
    pub fn fill(&self, input: &Value) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(|error| TemplateError::new(&error))?;
        let mut text = Bounded(Vec::new());
        template
            .render_captured_to(context! { input => minijinja::Value::from(Serde(input)) }, &mut text)
            .map_err(|error| self.unfilled(&error, input))?;
        String::from_utf8(text.0).map_err(|_| TemplateError { text: "the filled text is no UTF-8".to_owned() })
    }

    /// The engine's words, and of a value that is not there its name, or the line that asks for it.
    fn unfilled(&self, error: &minijinja::Error, input: &Value) -> TemplateError {
        let mut said = TemplateError::new(error);
        let Ok(template) = self.environment.get_template(NAME) else { return said };
        if error.kind() != ErrorKind::UndefinedError {
            return said;
        }
        let line = error.line().and_then(|line| template.source().lines().nth(line.saturating_sub(1)));
        let line = line.unwrap_or_default().trim();
        let mut paths: Vec<String> = template.undeclared_variables(true).into_iter().collect();
        paths.sort_unstable();
        let is_asked = |path: &&String| path.rsplit('.').next().is_some_and(|name| line.contains(name));
        let missing = paths.iter().filter(is_asked).find_map(|path| missing_in(input, path));
        let shown: String = line.chars().take(LINE_CHARS_SHOWN_MAX).collect();
        said.text.push_str(&missing.map_or_else(|| format!(" in `{shown}`"), |missing| format!(": {missing}")));
        said
    }
}

/// The first field that `path` names and that is not there, with what could have been meant.
fn missing_in(input: &Value, path: &str) -> Option<String> {
    let mut names = path.split('.');
    let mut place = names.next().filter(|root| *root == ROOT)?.to_owned();
    let mut value = input;
    for name in names {
        // What stands in a list, or is worked out, is not looked for.
        let Value::Object(fields) = value else { return None };
        place = format!("{place}.{name}");
        let Some(found) = fields.get(name) else {
            return Some(format!("there is no `{place}`{}", hint(name, fields.keys().map(String::as_str))));
        };
        value = found;
    }
    None
}

/// Whether a prompt that a caller gives can be used.
pub async fn check_callers_prompt(source: &str) -> Result<(), TemplateError> {
    check_strange(source)?;
    check_names(source, &[ROOT])?;
    strange(source.to_owned(), |_| Ok(())).await
}

/// The text of a prompt that a caller gave, filled from `input`.
pub async fn fill_callers_prompt(source: &str, input: &Value) -> Result<String, TemplateError> {
    let mut left = STRANGE_INPUT_BYTES_MAX;
    if !fits(input, &mut left) {
        let text = format!("a caller's prompt is filled from at most {STRANGE_INPUT_BYTES_MAX} bytes of input");
        return Err(TemplateError { text });
    }
    let input = input.clone();
    strange(source.to_owned(), move |template| template.fill(&input)).await
}

/// Compiles a caller's template and does something with it where it holds up no worker, and with a stack of its own. Whoever asked may
/// leave; the thread ends by itself.
async fn strange<T: Send + 'static>(
    source: String,
    act: impl FnOnce(&Template) -> Result<T, TemplateError> + Send + 'static,
) -> Result<T, TemplateError> {
    check_strange(&source)?;
    let failed = |text: String| TemplateError { text };
    let place = STRANGE_PLACES.acquire().await.map_err(|error| failed(error.to_string()))?;
    let (tell, told) = oneshot::channel();
    let work = move || {
        let _held = place;
        let made = Template::compile(&source, Filling::Text, STRANGE_FUEL).and_then(|template| act(&template));
        // Nobody may be waiting any more.
        let _ = tell.send(made);
    };
    let thread = std::thread::Builder::new().name("prompt".to_owned()).stack_size(STRANGE_STACK_BYTES);
    thread.spawn(work).map_err(|error| failed(format!("no thread to fill it: {error}")))?;
    told.await.unwrap_or_else(|_| Err(failed("it broke while it was filled".to_owned())))
}

/// Takes the bytes of all texts and values out of what is `left`.
fn fits(value: &Value, left: &mut usize) -> bool {
    let own = match value {
        Value::String(text) => text.len(),
        Value::Object(fields) => fields.keys().map(String::len).sum(),
        _ => 0,
    };
    // Each value takes something beside its text.
    let Some(rest) = left.checked_sub(own + size_of::<Value>()) else { return false };
    *left = rest;
    match value {
        Value::Array(items) => items.iter().all(|item| fits(item, left)),
        Value::Object(fields) => fields.values().all(|field| fits(field, left)),
        _ => true,
    }
}

/// A writer that refuses to grow over the limit.
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > TEMPLATE_BYTES_MAX {
            return Err(std::io::Error::other("the filled text is too large"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn filled() {
        let input =
            json!({"notes": "바다 \"and\" sun", "photos": [{"file": "a.jpg"}, {"file": "b.jpg"}], "none": null});
        for (source, filling, want) in [
            ("Notes: {{ input.notes }}", Filling::Text, Some("Notes: 바다 \"and\" sun")),
            ("{% for photo in input.photos %}{{ photo.file }};{% endfor %}", Filling::Text, Some("a.jpg;b.jpg;")),
            ("{{ input.photos | length }}", Filling::Text, Some("2")),
            (r#"{"q": {{ input.notes }}}"#, Filling::Json, Some(r#"{"q": "바다 \"and\" sun"}"#)),
            (r#"{"q": {{ input.notes | tojson }}}"#, Filling::Json, Some(r#"{"q": "바다 \"and\" sun"}"#)),
            (
                r#"{"all": {{ input.photos }}, "n": {{ input.none }}}"#,
                Filling::Json,
                Some(r#"{"all": [{"file":"a.jpg"},{"file":"b.jpg"}], "n": null}"#),
            ),
            ("{{ input.absent }}", Filling::Text, None),
            ("{{ input.absent.deeper }}", Filling::Text, None),
            ("{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}", Filling::Text, None),
            ("{% include 'other' %}", Filling::Text, None),
        ] {
            let filled = Template::try_new(source, filling).unwrap().fill(&input);
            match want {
                Some(want) => assert_eq!(filled.unwrap().replace(", \"file\"", ",\"file\""), want, "{source}"),
                None => assert!(filled.is_err(), "{source}: {filled:?}"),
            }
        }
    }

    /// Of a value that is not there its name is told, with the near one; where it stands in a list, the line.
    #[test]
    fn what_is_not_there_is_named() {
        let input = json!({"notes": "x", "style": {"voice": "calm"}, "photos": [{"file": "a.jpg"}]});
        for (source, want) in [
            ("One\n{{ input.nots }}", "line 2: undefined value: there is no `input.nots`; did you mean \"notes\"?"),
            (
                "{{ input.notes }} {{ input.style.voise }}",
                "line 1: undefined value: there is no `input.style.voise`; did you mean \"voice\"?",
            ),
            ("{{ input.place.name }}", "line 1: undefined value: there is no `input.place`"),
            (
                "{% for photo in input.photos %}\n  {{ photo.fiel }}\n{% endfor %}",
                "line 2: undefined value in `{{ photo.fiel }}`",
            ),
        ] {
            let error = Template::try_new(source, Filling::Text).unwrap().fill(&input).unwrap_err().to_string();
            assert_eq!(error, want, "{source}");
        }
    }

    #[test]
    fn refused() {
        let error = Template::try_new("fine\n{{ input.", Filling::Text).unwrap_err();
        assert!(error.to_string().starts_with("line 2: "), "{error}");
        let large = json!({"text": "x".repeat(TEMPLATE_BYTES_MAX / 2)});
        let error =
            Template::try_new("{{ input.text }}{{ input.text }}{{ input.text }}", Filling::Text).unwrap().fill(&large);
        assert!(error.is_err());
    }
    /// One thread fills, so what is not let through must not be tried.
    #[tokio::test]
    async fn a_callers_prompt_is_held_to_its_language_and_size() {
        let input = json!({"notes": "바다", "list": [{"a": 1}, {"a": 2}], "big": "x".repeat(100_000)});
        let good = "{{ input.notes }}: {% for item in input.list %}{{ item.a + 1 }} {% endfor %}";
        assert_eq!(fill_callers_prompt(good, &input).await.unwrap(), "바다: 2 3 ");
        assert_eq!(check_callers_prompt(good).await, Ok(()));
        for prompt in [
            "{{ input.absent }}".to_owned(),
            // What took gigabytes, and what took the process with it.
            "{% set a = \"x\"*100000 %}{% set l=[a]*5000 %}{{ l|join(\"\")|length }}".to_owned(),
            "{% set ns=namespace() %}{% set ns.a=[] %}{% for i in range(100000) %}{% set ns.a=[ns.a] %}{% endfor %}{{ ns.a|string|length }}".to_owned(),
            format!("{{{{ {}1 }}}}", "-".repeat(20_000)),
            format!("{{{{ 1{} }}}}", "+1".repeat(80_000)),
            // Within the language: more than it may write, work without end.
            "{% set a = input.big ~ input.big %}".repeat(1_000) + "x",
            "{% for a in range(9999) %}{% for b in range(9999) %}{% if input.big == input.big %}{% endif %}{% endfor %}{% endfor %}".to_owned(),
            "{% set a %}{% for a in range(9999) %}{{ input.big }}{% endfor %}{% endset %}{{ a|length }}".to_owned(),
            "{{ range(9999)|join(input.big)|length }}".to_owned(),
        ] {
            let filled = fill_callers_prompt(&prompt, &input).await;
            assert!(filled.is_err(), "{prompt:.200}: {:?}", filled.map(|text| text.len()));
        }
        let large = json!({"big": "x".repeat(STRANGE_INPUT_BYTES_MAX)});
        let error = fill_callers_prompt("{{ input.big }}", &large).await.unwrap_err();
        assert!(error.to_string().contains("bytes of input"), "{error}");
    }

    #[test]
    fn a_template_of_the_configuration_is_bounded_too() {
        let error = Template::try_new(&format!("{{{{ {}1 }}}}", "-".repeat(20_000)), Filling::Text).unwrap_err();
        assert!(error.to_string().contains("words and signs"), "{error}");
    }
}
