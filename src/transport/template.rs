//! Texts with places to fill from an agent's input: prompts, and requests of mapped services. Strict (a missing value is an error,
//! never an empty text) and bounded (a template can neither run for ever nor grow without end).

use minijinja::{AutoEscape, Environment, UndefinedBehavior, context, value::Serde};
use serde_json::Value;

/// Steps a template may take.
pub const TEMPLATE_FUEL: u64 = 2_000_000;
/// The most bytes of a filled text.
pub const TEMPLATE_BYTES_MAX: usize = 8 * 1024 * 1024;

const NAME: &str = "template";

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

impl Template {
    /// Compiles `source`.
    pub fn try_new(source: &str, filling: Filling) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(TEMPLATE_FUEL));
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
            .map_err(|error| TemplateError::new(&error))?;
        String::from_utf8(text.0).map_err(|_| TemplateError { text: "the filled text is no UTF-8".to_owned() })
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

    #[test]
    fn refused() {
        let error = Template::try_new("fine\n{{ input.", Filling::Text).unwrap_err();
        assert!(error.to_string().starts_with("line 2: "), "{error}");
        let large = json!({"text": "x".repeat(TEMPLATE_BYTES_MAX / 2)});
        let error =
            Template::try_new("{{ input.text }}{{ input.text }}{{ input.text }}", Filling::Text).unwrap().fill(&large);
        assert!(error.is_err());
    }
}
