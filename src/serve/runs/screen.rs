//! A run's texts for a screen in the language of whoever reads them. What is written down stays as it is, and so does what an agent
//! said itself.

use serde_json::Value;

use crate::model::{envelope::ErrorCode, event::Event, language::Language, run::RunRecord};

/// The record as a screen of this language shows it.
pub fn record_in(mut record: RunRecord, language: Language) -> RunRecord {
    let steps = record.steps.iter_mut().map(|step| &mut step.error);
    for error in steps.chain([&mut record.error]) {
        *error = error.take().map(|error| error.in_language(language));
    }
    record
}

/// The event as a screen of this language shows it.
pub fn event_in(mut event: Event, language: Language) -> Event {
    if let Some(error) = event.data.get_mut("error") {
        translate(error, language);
    }
    event
}

fn translate(error: &mut Value, language: Language) {
    let code = error.get("error_code").and_then(|code| serde_json::from_value::<ErrorCode>(code.clone()).ok());
    let Some((code, text)) = code.zip(error.get_mut("user_message")) else { return };
    if [Language::En, Language::Ko].iter().any(|known| text.as_str() == Some(code.user_message(*known))) {
        *text = Value::from(code.user_message(language));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::event::EventType;

    #[test]
    fn our_own_texts_are_translated_and_others_are_not() {
        let ours = ErrorCode::AgentTimeout.user_message(Language::En);
        for (text, language, want) in [
            (ours, Language::Ko, ErrorCode::AgentTimeout.user_message(Language::Ko)),
            (ours, Language::En, ours),
            ("out of ink", Language::Ko, "out of ink"),
        ] {
            let data = json!({ "error": { "error_code": "AGENT_TIMEOUT", "user_message": text }, "index": 1 });
            let (run_id, step) = ("r".to_owned(), Some("a".to_owned()));
            let event = Event { id: 1, ts_ms: 0, kind: EventType::StepFinished, run_id, step, data };
            let told = event_in(event, language);
            assert_eq!((&told.data["error"]["user_message"], &told.data["index"]), (&json!(want), &json!(1)));
        }
    }
}
