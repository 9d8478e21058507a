//! Frames by their shape, and the cases of record.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    model::reply::CountedBy,
    transport::{cuts, shared_cases, sse::SseDecoder},
};

const HEAD: AnswerHead = AnswerHead { status: 200, retry_after: None, should_retry: None };

fn event(data: &str) -> SseEvent {
    SseEvent { data: data.to_owned(), closed: true, ..SseEvent::default() }
}

/// Reads a whole stream: its meanings, and how it ended.
fn read(stream: &[u8]) -> (Vec<Meaning>, FrameReader, Option<Ending>) {
    let (mut reader, mut meanings) = (FrameReader::default(), Vec::new());
    for event in cuts::decode::<SseDecoder>([stream]).0 {
        match reader.read(HEAD, &event) {
            Ok(meaning) => meanings.push(meaning),
            Err(failure) => return (meanings, reader, Some(failure.ending)),
        }
    }
    let cut = reader.cut(HEAD).map(|failure| failure.ending);
    (meanings, reader, cut)
}

#[test]
fn what_frames_mean() {
    use Meaning::{Other, Output, Usage};
    let choice = |delta: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
    for (frame, want) in [
        (choice(json!({"role": "assistant"})), Other),
        (choice(json!({"role": "assistant", "content": "", "refusal": null, "tool_calls": []})), Other),
        (choice(json!({"content": null})), Other),
        (choice(json!({"content": "a"})), Output),
        (choice(json!({"content": " "})), Output),
        (choice(json!({"refusal": "no"})), Output),
        (choice(json!({"reasoning_content": "hm"})), Output),
        (choice(json!({"reasoning": "hm"})), Output),
        (choice(json!({"tool_calls": [{"index": 0}]})), Output),
        (choice(json!({"function_call": {"name": "f"}})), Output),
        (choice(json!({"audio": {"data": "AA"}})), Output),
        (choice(json!({"content": [{"type": "text", "text": "a"}]})), Output),
        (choice(json!({"vendor": "x"})), Other),
        (json!({"choices": [{"index": 1, "delta": {"content": "b"}}]}), Output),
        (json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}), Other),
        (json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}), Usage),
        (json!({"choices": [], "usage": null}), Other),
        (json!({"choices": [], "prompt_filter_results": []}), Other),
        (json!({"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 1}}), Output),
        (json!({"type": "content_block_delta", "delta": {"text": "a"}}), Output),
        (json!({"choices": [{"delta": {"content": "error: none"}}], "error": null}), Output),
        (json!({"choices": [{"delta": {"content": "a"}}], "type": "chunk"}), Output),
        (json!({}), Other),
        // What errors are made of stands beside an answer.
        (
            json!({"choices": [{"delta": {"content": "a"}}], "detail": "x", "message": "x", "code": 400, "object": "x"}),
            Output,
        ),
        (json!({"choices": [{"delta": {"content": "a"}, "error": null, "detail": "x"}]}), Output),
        (json!({"choices": [], "message": "x", "code": 200}), Other),
    ] {
        assert_eq!(FrameReader::default().read(HEAD, &event(&frame.to_string())).unwrap(), want, "{frame}");
    }
}

#[test]
fn errors_inside_frames() {
    for (data, want) in [
        (r#"{"error":{"message":"x","code":429}}"#, Ending::status(429)),
        (r#"{"choices":[],"error":{"code":502,"message":"x"}}"#, Ending::status(502)),
        (r#"{"choices":[{"delta":{"content":"a"}}],"error":{"type":"overloaded_error"}}"#, Ending::status(503)),
        (r#"{"type":"error","error":{"type":"overloaded_error"}}"#, Ending::status(503)),
        (r#"{"error_code":"X","http_status":500}"#, Ending::status(500)),
        (r#"{"object":"error","message":"x","type":"BadRequestError","code":400}"#, Ending::status(400)),
        (r#"{"choices":[],"object":"error","message":"x","code":400}"#, Ending::status(400)),
        (r#"{"choices":null,"title":"x","status":413}"#, Ending::status(413)),
        (r#"{"detail":"x"}"#, Ending::status(502)),
        (r#"[{"error":{"code":429}}]"#, Ending::status(429)),
        (
            r#"{"choices":[{"delta":{},"finish_reason":"error","error":{"code":429,"message":"x"}}]}"#,
            Ending::status(429),
        ),
        (r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"error"}]}"#, Ending::status(502)),
        (r#"{"choices":[{"delta":{"content":"a"}},{"index":1,"error":{"code":503}}]}"#, Ending::status(503)),
        ("oops", Ending::BadReply),
    ] {
        let failure = FrameReader::default().read(HEAD, &event(data)).unwrap_err();
        assert_eq!(failure.ending, want, "{data}");
    }
    let cut = SseEvent { closed: false, ..event("{\"choices\": [") };
    assert_eq!(FrameReader::default().read(HEAD, &cut).unwrap_err().ending, Ending::StreamCut);
}

#[test]
fn ends() {
    let said = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    let stop = |index: u32| {
        format!("data: {{\"choices\":[{{\"index\":{index},\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\n")
    };
    let load = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":\"load\"}]}\n\n";
    for (stream, want) in [
        (said.to_owned(), Some(Ending::StreamCut)),
        (String::new(), Some(Ending::StreamCut)),
        (format!("{said}{}", stop(0)), None),
        (format!("{said}data: [DONE]\n\n"), None),
        (format!("{said}data: [DONE]"), None),
        (format!("{said}{}{}", stop(0).replace("\"index\":0", "\"index\":1"), ""), Some(Ending::StreamCut)),
        (format!("{said}{}{}", stop(1), stop(0)), None),
        ("data: [DONE]\n\n".to_owned(), Some(Ending::BadReply)),
        (
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3}}\n\ndata: [DONE]\n\n".to_owned(),
            Some(Ending::BadReply),
        ),
        (format!("{}data: [DONE]\n\n", said.replace("\"a\"", "\"\"")), None),
        (load.to_owned(), Some(Ending::NoDraft)),
        (format!("{said}{load}"), None),
        (format!("{said}error: {{\"code\":500,\"message\":\"x\"}}\n\ndata: [DONE]\n\n"), Some(Ending::status(500))),
        (format!("{said}error: no memory\n\ndata: [DONE]\n\n"), Some(Ending::status(502))),
        (format!("{said}error: {{\"mess"), Some(Ending::StreamCut)),
        (format!("{said}error: null\n\ndata: [DONE]\n\n"), None),
        (format!("{said}event: error\ndata: {{\"message\":\"x\",\"code\":503}}\n\n"), Some(Ending::status(503))),
    ] {
        assert_eq!(read(stream.as_bytes()).2, want, "{stream}");
    }
}

#[test]
fn usage_told_and_counted() {
    let frame = |data: Value| format!("data: {data}\n\n");
    let text = |text: &str| frame(json!({"choices": [{"index": 0, "delta": {"content": text}}]}));
    let told = |prompt: u64, output: u64| {
        frame(json!({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}))
    };
    let usage = |prompt_tokens, output_tokens, estimated: bool| {
        let counted_by = estimated.then_some(CountedBy::Letters);
        Some(Usage { prompt_tokens, output_tokens, estimated, counted_by, ..Usage::default() })
    };
    let sum = |total: u64| frame(json!({"choices": [], "usage": {"total_tokens": total}}));
    let call = |name: &str, arguments: &str| {
        let function = json!({"name": name, "arguments": arguments});
        let delta =
            json!({"tool_calls": [{"index": 0, "id": "call_0123456789", "type": "function", "function": function}]});
        frame(json!({"choices": [{"index": 0, "delta": delta}]}))
    };
    let escaped = "data: {\"choices\":[{\"delta\":{\"content\":\"\\uc548\\ub155\\ud558\\uc138\"}}]}\n\n".to_owned();
    for (stream, want) in [
        (format!("{}{}{}{}", text("a"), told(25, 1), told(25, 10), told(25, 15)), usage(25, 15, false)),
        (format!("{}{}data: [DONE]\n\n", text("안녕하세요"), text("b")), usage(7, 4, true)),
        (escaped, usage(7, 2, true)),
        (String::new(), None),
        ("data: [DONE]\n\n".to_owned(), usage(7, 0, true)),
        // A first number that nothing follows but the answer is none.
        (format!("{}{}data: [DONE]\n\n", told(25, 1), text("ok ").repeat(9)), usage(25, 9, true)),
        (format!("{}{}data: [DONE]\n\n", text("ok ").repeat(9), told(0, 0)), usage(7, 9, true)),
        (format!("{}{}data: [DONE]\n\n", text("ok ").repeat(9), told(25, 0)), usage(25, 9, true)),
        (format!("{}{}data: [DONE]\n\n", text("ok ").repeat(9), sum(40)), usage(31, 9, true)),
        // Of a tool's call the model wrote name and arguments, however much the server puts around them.
        (format!("{}data: [DONE]\n\n", call("look", &"{\"at\":1}".repeat(9))), usage(7, 19, true)),
    ] {
        assert_eq!(read(stream.as_bytes()).1.usage(|| 7), want, "{stream}");
    }
}

#[test]
fn frames_go_on_as_they_came() {
    for (given, want) in [
        ("data: {\"a\":  1.0}\n\n", "data: {\"a\":  1.0}\n\n"),
        ("data:{\"a\":1}\r\n\r\n", "data: {\"a\":1}\n\n"),
        ("event: x\nid: 7\ndata: a\ndata: b\n\n", "event: x\nid: 7\ndata: a\ndata: b\n\n"),
        (": comment\n\ndata: 사진\n\n", "data: 사진\n\n"),
    ] {
        let mut decoder = SseDecoder::new();
        decoder.push(given.as_bytes());
        let event = decoder.pop().unwrap().unwrap();
        assert_eq!(bytes_of(&event), want.as_bytes(), "{given:?}");
    }
}

/// B29 and B30: errors under a good status, and seven endings.
#[test]
fn cases_of_record() {
    for (path, output, want) in [
        ("cases/B29/e1.sse", 1, Some(Ending::status(429))),
        ("cases/B29/e2.sse", 0, Some(Ending::status(503))),
        ("cases/B29/e3.sse", 0, Some(Ending::status(400))),
        ("cases/B29/e4.sse", 0, Some(Ending::status(502))),
        ("cases/B29/e5.sse", 1, None),
        ("cases/B30/v1_eof.sse", 1, Some(Ending::StreamCut)),
        ("cases/B30/v2_done_no_finish.sse", 1, None),
        ("cases/B30/v3_null_finish_done.sse", 1, None),
        ("cases/B30/v5_clean.sse", 1, None),
        ("cases/B30/v6_finish_no_done.sse", 1, None),
        ("cases/B30/v7_done_no_blank_line.sse", 1, None),
    ] {
        let Some(bytes) = shared_cases::bytes(path) else { return };
        let (meanings, _, ended) = read(&bytes);
        let seen = meanings.iter().filter(|meaning| **meaning == Meaning::Output).count();
        assert_eq!((seen.min(1), ended), (output, want), "{path}");
    }
}

/// B20 and B21: a stream without usage is estimated, one with running totals is not added up.
#[test]
fn what_streams_of_record_cost() {
    let Some(bytes) = shared_cases::bytes("cases/B20/stream.sse") else { return };
    let usage = read(&bytes).1.usage(|| 1_200).unwrap();
    assert!(usage.estimated && (1_205..=3_000).contains(&(usage.prompt_tokens + usage.output_tokens)), "{usage:?}");
    let Some(bytes) = shared_cases::bytes("cases/B21/stream.sse") else { return };
    let want = Usage { prompt_tokens: 25, output_tokens: 15, estimated: false, ..Usage::default() };
    assert_eq!(read(&bytes).1.usage(|| 0), Some(want));
}

proptest! {
    #[test]
    fn the_quick_look_agrees_with_the_full_one(
        content in "[a-z가-힣\"\\\\\\n]{0,6}",
        reason in prop::option::of("stop|length"),
        error in prop::option::of(prop_oneof![Just(json!(null)), Just(json!({"code": 500})), Just(json!("x"))]),
    ) {
        let mut frame = json!({"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": reason}]});
        if let Some(error) = error {
            frame["error"] = error;
        }
        let event = event(&frame.to_string());
        let (mut quick, mut full) = (FrameReader::default(), StreamReader::default());
        let (quick_said, full_said) = (quick.read(HEAD, &event), full.read_event(HEAD, &event));
        prop_assert_eq!(quick_said.is_err(), full_said.is_err());
        if let (Ok(quick_said), Ok(full_said)) = (quick_said, full_said) {
            prop_assert_eq!(quick_said == Meaning::Output, matches!(full_said, Heard::Content(_)));
            prop_assert_eq!(quick.is_complete(), full.stage() != Stage::Begun);
        }
    }

    #[test]
    fn no_frame_panics(data in ".{0,120}") {
        let _ = FrameReader::default().read(HEAD, &event(&data));
    }
}
