//! From what a model said to the agent's output: plain text, or JSON of the promised shape. Only whitespace and a JSON fence around
//! the JSON are forgiven; nothing is repaired.

use serde_json::{Value, json};

use crate::{
    model::{
        exact_json::{self, Inexact},
        facts::Ending,
        reply::{AttemptFailure, Reply},
    },
    runtime::tally::Tally,
    transport::error_body::{MESSAGE_CHARS_MAX, cut},
};

use super::{
    completion::{Completion, is_no_draft, no_draft},
    settings::{Promise, Shape},
};

/// So many of the faults of an output are told.
const FAULTS_MAX: usize = 3;

/// The agent's reply. For servers that tell no usage the tally has counted, and the prompt is taken for so many tokens if nobody has
/// reserved for it.
pub(in crate::transport) fn reply(
    completion: Completion,
    promise: Promise<'_>,
    (tally, prompt_tokens): (&Tally, u64),
    status: u16,
) -> Result<Reply, AttemptFailure> {
    if completion.text.is_empty() && is_no_draft(Some(&completion.finish_reason)) {
        return Err(no_draft(status));
    }
    let usage = completion.usage_or_estimate(tally, prompt_tokens);
    let output = match promise {
        Promise::Text(None) => Ok(json!({ "text": plain_text(&completion) })),
        Promise::Text(Some(_)) if completion.text.trim().is_empty() && is_refusal(&completion) => {
            Err(refused(&completion))
        }
        Promise::Text(Some(shape)) => checked(json!({ "text": plain_text(&completion) }), shape),
        Promise::Json(shape) => shaped(&completion, shape),
    };
    match output {
        Ok(output) => Ok(Reply {
            output,
            usage: Some(usage),
            finish_reason: Some(completion.finish_reason),
            status: Some(status),
        }),
        Err((ending, message)) => Err(AttemptFailure {
            status: Some(status),
            usage: Some(usage),
            ..AttemptFailure::new(ending, cut(&message, MESSAGE_CHARS_MAX))
        }),
    }
}

fn plain_text(completion: &Completion) -> &str {
    match &completion.refusal {
        Some(refusal) if completion.text.is_empty() => refusal,
        _ => &completion.text,
    }
}

fn shaped(completion: &Completion, shape: &Shape) -> Result<Value, (Ending, String)> {
    let value = match exact_json::read(without_fence(&completion.text)) {
        Ok(value) => value,
        Err(error @ (Inexact::Changed(_) | Inexact::Member(_))) => {
            return Err((Ending::BadReply, format!("the answer cannot be kept as it is: {error}")));
        }
        Err(_) if is_refusal(completion) => return Err(refused(completion)),
        Err(error) => {
            let why = match completion.finish_reason.as_str() {
                "length" => "the answer was cut at its longest allowed length and is no JSON",
                _ => "the answer is no JSON",
            };
            return Err((Ending::BadReply, format!("{why}: {error}")));
        }
    };
    checked(value, shape)
}

fn checked(value: Value, shape: &Shape) -> Result<Value, (Ending, String)> {
    let faults: Vec<String> = shape
        .validator
        .iter_errors(&value)
        .take(FAULTS_MAX)
        .map(|error| format!("{}: {}", error.instance_path(), error.masked()))
        .collect();
    if faults.is_empty() {
        return Ok(value);
    }
    Err((Ending::BadReply, format!("the answer is not of the promised shape: {}", faults.join("; "))))
}

fn is_refusal(completion: &Completion) -> bool {
    completion.finish_reason == "content_filter" || completion.refusal.is_some()
}

/// A model that declines says nothing of the promised shape; another attempt would only pay for the same.
fn refused(completion: &Completion) -> (Ending, String) {
    let ending = Ending::Status {
        status: 422,
        retryable: Some(false),
        content_filter: true,
        context_too_long: false,
        quota_spent: None,
    };
    (ending, completion.refusal.clone().unwrap_or_else(|| "the answer was withheld by content review".to_owned()))
}

fn without_fence(text: &str) -> &str {
    let text = text.trim();
    let inside = text.strip_prefix("```json").and_then(|rest| rest.strip_suffix("```"));
    inside.map_or(text, str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::reply::{CountedBy, Usage},
        transport::openai::settings::{CheckedSettings, OpenAiSettings},
    };

    fn shape() -> Shape {
        let schema = json!({"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]});
        shape_of(schema)
    }

    fn shape_of(schema: Value) -> Shape {
        let settings = OpenAiSettings { model: "m".to_owned(), schema: Some(schema), ..OpenAiSettings::default() };
        CheckedSettings::try_new(settings).unwrap().shape.unwrap()
    }

    fn completion(text: &str, finish_reason: &str) -> Completion {
        Completion { text: text.to_owned(), finish_reason: finish_reason.to_owned(), ..Completion::default() }
    }

    #[test]
    fn outputs_of_a_promised_shape() {
        let filtered = Ending::Status {
            status: 422,
            retryable: Some(false),
            content_filter: true,
            context_too_long: false,
            quota_spent: None,
        };
        for (text, finish, want) in [
            (r#"{"score": 80}"#, "stop", Ok(())),
            (" \n{\"score\": 80}\n ", "length", Ok(())),
            ("```json\n{\"score\": 80}\n```", "stop", Ok(())),
            ("\n```json {\"score\": 80} ```\n", "stop", Ok(())),
            ("```\n{\"score\": 80}\n```", "stop", Err(Ending::BadReply)),
            ("Here you are: {\"score\": 80}", "stop", Err(Ending::BadReply)),
            ("{\"score\": 80} Anything else?", "stop", Err(Ending::BadReply)),
            (r#"{"score": 80,}"#, "stop", Err(Ending::BadReply)),
            (r#"{"score": "80"}"#, "stop", Err(Ending::BadReply)),
            (r#"{"score": 80, "score": 80}"#, "stop", Err(Ending::BadReply)),
            (r#"{"score": -0}"#, "stop", Err(Ending::BadReply)),
            ("[]", "stop", Err(Ending::BadReply)),
            (r#"{"score": 8"#, "length", Err(Ending::BadReply)),
            ("", "stop", Err(Ending::BadReply)),
            ("", "content_filter", Err(filtered)),
        ] {
            let got = reply(completion(text, finish), Promise::Json(&shape()), (&Tally::default(), 5), 200);
            let got = got.map(|reply| assert_eq!(reply.output, json!({"score": 80}))).map_err(|failure| {
                assert_eq!((failure.status, failure.usage.map(|usage| usage.prompt_tokens)), (Some(200), Some(5)));
                failure.ending
            });
            assert_eq!(got, want, "{text:?}");
        }
    }

    #[test]
    fn messages_say_what_is_wrong() {
        for (text, finish, part) in [
            (r#"{"score": 8"#, "length", "longest allowed length"),
            (r#"{"score": "a secret text"}"#, "stop", "/score: "),
            ("no", "stop", "is no JSON"),
            (r#"{"score": 12345678901234567890123}"#, "stop", "score: 12345678901234567890123 would be changed"),
            (r#"{"score": 1, "score": 2}"#, "content_filter", "the member \"score\" stands twice"),
        ] {
            let failure =
                reply(completion(text, finish), Promise::Json(&shape()), (&Tally::default(), 5), 200).unwrap_err();
            assert!(failure.message.contains(part) && !failure.message.contains("secret"), "{}", failure.message);
        }
    }

    #[test]
    fn plain_text_and_its_usage() {
        let refusal = Completion { refusal: Some("I cannot".to_owned()), ..completion("", "stop") };
        let told = Usage { prompt_tokens: 9, output_tokens: 8, estimated: false, ..Usage::default() };
        let counted_by = Some(CountedBy::Letters);
        let counted = |prompt_tokens, output_tokens| Usage {
            prompt_tokens,
            output_tokens,
            estimated: true,
            counted_by,
            ..Usage::default()
        };
        for (given, text, usage) in [
            (completion("좋은 글", "stop"), "좋은 글", counted(5, 3)),
            (Completion { pieces: 7, ..completion("좋은 글", "length") }, "좋은 글", counted(5, 7)),
            (Completion { usage: Some(told), pieces: 1, pieces_told: 1, ..completion("a", "stop") }, "a", told),
            (Completion { total_tokens: Some(40), ..completion("", "content_filter") }, "", counted(40, 0)),
            (refusal, "I cannot", counted(5, 0)),
        ] {
            let tally = Tally::default();
            tally.heard(&given.text);
            let reply = reply(given, Promise::Text(None), (&tally, 5), 200).unwrap();
            assert_eq!((reply.output, reply.usage), (json!({ "text": text }), Some(usage)));
        }
    }

    #[test]
    fn a_text_is_wrapped_and_its_promise_still_checked() {
        let promise = shape_of(json!({"type": "object", "properties": {"text": {"type": "string", "minLength": 3}}}));
        for (text, finish, good) in
            [("# A post", "stop", true), ("cut off in the mid", "length", true), ("x", "stop", false)]
        {
            let got = reply(completion(text, finish), Promise::Text(Some(&promise)), (&Tally::default(), 5), 200);
            assert_eq!(got.as_ref().ok().map(|reply| reply.output.clone()), good.then(|| json!({ "text": text })));
            assert_eq!(got.err().map(|failure| failure.ending), (!good).then_some(Ending::BadReply));
        }
        let withheld =
            reply(completion("", "content_filter"), Promise::Text(Some(&promise)), (&Tally::default(), 5), 200)
                .unwrap_err();
        assert!(matches!(withheld.ending, Ending::Status { content_filter: true, .. }));
    }
}
