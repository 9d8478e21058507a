//! Lines as answers: the cases of the traps, endings, errors under a good status.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    model::reply::CountedBy,
    policy::verdict::{Keyed, Verdict, judge},
    transport::{cuts, ndjson::NdjsonDecoder, shared_cases},
};

fn head() -> AnswerHead {
    AnswerHead::read(200, &[], 0)
}

/// What was delivered before the end, and the end.
fn read(text: &[u8]) -> (String, Result<Completion, AttemptFailure>) {
    let (objects, cut) = cuts::decode::<NdjsonDecoder>([text]);
    assert_eq!(cut, None);
    let mut reader = StreamReader::default();
    let mut delivered = String::new();
    for object in objects {
        match reader.read(head(), object) {
            Ok(Heard::Content(text)) => delivered.push_str(&text),
            Ok(_) => {}
            Err(failure) => return (delivered, Err(failure)),
        }
    }
    (delivered, reader.finish(head(), 7))
}

fn said(text: &str) -> String {
    format!("{{\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"}},\"done\":false}}\n")
}

#[test]
fn b33_an_error_line_is_a_failure_and_what_was_said_stays() {
    let Some(bytes) = shared_cases::bytes("cases/B33/error_line.bin") else { return };
    let (delivered, end) = read(&bytes);
    let failure = end.unwrap_err();
    assert_eq!(delivered, "초");
    assert_eq!((failure.ending, failure.status), (Ending::status(502), Some(200)));
    let Some(bytes) = shared_cases::bytes("cases/B33/stream.bin") else { return };
    let (delivered, end) = read(&bytes);
    let completion = end.unwrap();
    assert_eq!((delivered.as_str(), completion.text.as_str()), ("초안 끝", "초안 끝"));
    let told = Usage { prompt_tokens: 26, output_tokens: 3, estimated: false, ..Usage::default() };
    assert_eq!((completion.usage, completion.finish_reason.as_str()), (Some(told), "stop"));
}

#[test]
fn b34_a_model_that_was_only_loaded_or_put_away_has_not_answered() {
    for file in ["answer_chat.json", "answer_unload.json"] {
        let Some(text) = shared_cases::text(&format!("cases/B34/{file}")) else { return };
        let mut reader = StreamReader::default();
        reader.read(head(), serde_json::from_str(&text).unwrap()).unwrap();
        let failure = reader.finish(head(), 7).unwrap_err();
        assert_eq!((&failure.ending, failure.usage), (&Ending::NoDraft, Some(Usage::default())), "{file}");
        let judged = judge(&failure.ending, Keyed::No);
        assert_eq!((judged.target, judged.provider), (Verdict::Ignored, Verdict::Ignored));
    }
    // Whoever said something has answered, whatever it is called.
    let (_, end) = read(format!("{}{{\"done\":true,\"done_reason\":\"load\"}}\n", said("a")).as_bytes());
    assert_eq!(end.unwrap().text, "a");
}

/// The seven endings of TRAPS B30, in lines.
#[test]
fn only_done_ends_an_answer() {
    let usage = |prompt_tokens, output_tokens, estimated: bool| {
        let counted_by = estimated.then_some(CountedBy::Letters);
        Some(Usage { prompt_tokens, output_tokens, estimated, counted_by, ..Usage::default() })
    };
    let done = |rest: &str| format!("{{\"message\":{{\"content\":\"\"}},\"done\":true{rest}}}");
    for (text, want, want_usage) in [
        (said("Hel"), Err(Ending::StreamCut), usage(7, 1, true)),
        (String::new(), Err(Ending::StreamCut), None),
        (said(""), Err(Ending::StreamCut), None),
        (said("Hel") + "{\"done\":false,\"done_reason\":\"stop\"}", Err(Ending::StreamCut), usage(7, 1, true)),
        (said("Hel") + &done(""), Ok(("Hel", "unknown")), usage(7, 1, true)),
        (
            said("Hel") + &done(",\"done_reason\":\"length\",\"eval_count\":9") + "\n",
            Ok(("Hel", "length")),
            usage(7, 9, true),
        ),
        (
            said("Hel")
                + &done(",\"done_reason\":\"stop\",\"prompt_eval_count\":5,\"eval_count\":2")
                + "\n"
                + &said("more"),
            Ok(("Hel", "stop")),
            usage(5, 2, false),
        ),
        (
            done(",\"done_reason\":\"stop\",\"prompt_eval_count\":5,\"eval_count\":0"),
            Ok(("", "stop")),
            usage(5, 0, false),
        ),
    ] {
        let (_, end) = read(text.as_bytes());
        let got_usage = end.as_ref().map_or_else(|failure| failure.usage, |completion| completion.usage);
        let got = end.as_ref().map(|end| (end.text.as_str(), end.finish_reason.as_str()));
        assert_eq!((got.map_err(|failure| failure.ending.clone()), got_usage), (want, want_usage), "{text}");
    }
}

/// The five streams of TRAPS B29, in lines.
#[test]
fn errors_under_a_good_status() {
    let filtered = Ending::Status {
        status: 400,
        retryable: Some(false),
        content_filter: false,
        context_too_long: true,
        quota_spent: None,
    };
    for (text, delivered, want) in [
        (
            said("부분") + r#"{"error":"an error was encountered while running the model"}"#,
            "부분",
            Some(Ending::status(502)),
        ),
        (r#"{"error":"llama runner process has terminated"}"#.to_owned(), "", Some(Ending::status(502))),
        (r#"{"error":"the input length exceeds the context length"}"#.to_owned(), "", Some(filtered)),
        (r#"{"error":{"message":"overloaded","type":"overloaded_error"}}"#.to_owned(), "", Some(Ending::status(503))),
        (r#"{"error":"slow down","status":429}"#.to_owned(), "", Some(Ending::status(429))),
        (said("error: none") + r#"{"error":null,"done":true}"#, "error: none", None),
    ] {
        let (got, end) = read(text.as_bytes());
        assert_eq!((got.as_str(), end.err().map(|failure| failure.ending)), (delivered, want), "{text}");
    }
}

#[test]
fn thoughts_and_tool_calls_are_work_but_no_text() {
    let mut reader = StreamReader::default();
    for (line, want) in [
        (json!({"message": {"content": "", "thinking": "흠"}}), Heard::AtWork),
        (json!({"message": {"tool_calls": [{"function": {"name": "a", "arguments": {}}}]}}), Heard::AtWork),
        (json!({"message": {"content": "가", "thinking": "흠"}}), Heard::Content("가".to_owned())),
        (json!({"message": {"content": ""}, "done": true}), Heard::Nothing),
        (json!({"message": {"content": "after"}}), Heard::Nothing),
    ] {
        assert_eq!(reader.read(head(), line.as_object().unwrap().clone()).unwrap(), want, "{line}");
    }
    assert_eq!(reader.finish(head(), 1).unwrap().text, "가");
}

proptest! {
    #[test]
    fn what_is_delivered_is_the_text_of_a_complete_answer(pieces in prop::collection::vec("[ a-z가-힣🦀]{0,6}", 0..12)) {
        let mut text: String = pieces.iter().map(|piece| said(piece)).collect();
        let (_, cut) = read(text.as_bytes());
        prop_assert_eq!(cut.unwrap_err().ending, Ending::StreamCut);
        text.push_str("{\"done\":true,\"done_reason\":\"stop\"}");
        let (delivered, end) = read(text.as_bytes());
        prop_assert_eq!(Ok(&delivered), end.as_ref().map(|end| &end.text));
        prop_assert_eq!(delivered, pieces.concat());
    }
}
