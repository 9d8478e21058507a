//! Streams by their shape, the cases of record and the recorded streams of a real server, each cut in several ways.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    model::reply::Usage,
    transport::{cuts, shared_cases, sse::SseDecoder},
};

const HEAD: AnswerHead = AnswerHead { status: 200, retry_after: None, should_retry: None };

/// Reads a stream that comes in these pieces; also the text that was there when it failed.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (String, Result<Completion, Ending>) {
    let (events, cut) = cuts::decode::<SseDecoder>(pieces);
    let mut reader = StreamReader::default();
    let failed = events.into_iter().find_map(|event| reader.read(HEAD, event).err());
    let text = reader.read.text.clone();
    match failed.map(|failure| failure.ending).or(cut.map(Ending::from)) {
        Some(ending) => (text, Err(ending)),
        None => (text, reader.finish(HEAD, 0).map_err(|failure| failure.ending)),
    }
}

fn read_whole(stream: &[u8]) -> (String, Result<Completion, Ending>) {
    let whole = read([stream]);
    assert_eq!(read(stream.chunks(1)), whole, "byte by byte gives the same");
    assert_eq!(read(stream.chunks(7)), whole, "seven bytes at a time gives the same");
    whole
}

fn frames(frames: &[Value]) -> Vec<u8> {
    frames.iter().map(|frame| format!("data: {frame}\n\n")).collect::<Vec<_>>().concat().into_bytes()
}

fn content(text: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]})
}

/// Frames with these members of a delta, as they are written, and an end.
fn raw(deltas: &[&str]) -> Vec<u8> {
    let frame = |delta: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{{delta}}}}}]}}\n\n");
    let stop = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    deltas.iter().map(|delta| frame(delta)).chain([stop.to_owned()]).collect::<String>().into_bytes()
}

/// Half a character at the very end has nothing to wait for.
#[test]
fn a_lone_half_at_the_end_is_told() {
    let (_, completion) = read_whole(&raw(&[r#""content":"a\ud83d""#]));
    assert_eq!(completion.unwrap().text, "a\u{fffd}");
    let beside = raw(&[r#""content":"a""#, r#""reasoning_content":"\ud83d""#]);
    assert_eq!(read_whole(&beside).1.unwrap().text, "a");
    let typed = b"data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"a\\ud83d\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n";
    assert_eq!(read_whole(typed).1.unwrap().text, "a\u{fffd}");
}

#[test]
fn ends_of_a_stream() {
    let stop = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}});
    let both = json!({"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "length"}]});
    let done = b"data: [DONE]\n\n".to_vec();
    for (stream, text, want) in [
        (frames(&[content("a"), stop.clone()]), "a", Ok("stop")),
        ([frames(&[content("a"), stop, usage.clone()]), done.clone()].concat(), "a", Ok("stop")),
        ([frames(&[content("a"), usage]), done.clone()].concat(), "a", Ok("unknown")),
        (frames(&[content("a"), both]), "ab", Ok("length")),
        (done, "", Ok("unknown")),
        (frames(&[content("a")]), "a", Err(Ending::StreamCut)),
        (vec![], "", Err(Ending::StreamCut)),
        (frames(&[content("a"), json!({"error": {"code": 429}})]), "a", Err(Ending::status(429))),
        (frames(&[content("a"), json!({"choices": [], "error": {"message": "x"}})]), "a", Err(Ending::status(502))),
        (
            frames(&[content("a"), json!({"object": "error", "message": "x", "code": 400})]),
            "a",
            Err(Ending::status(400)),
        ),
        (frames(&[content("a"), json!({"detail": "x"})]), "a", Err(Ending::status(502))),
        (
            frames(&[content("a"), json!({"choices": [{"finish_reason": "error", "error": {"code": 429}}]})]),
            "a",
            Err(Ending::status(429)),
        ),
        (frames(&[content("a"), json!({"choices": [{"finish_reason": "error"}]})]), "a", Err(Ending::status(502))),
        ([frames(&[content("a")]), b"error: {\"code\":500}\n\n".to_vec()].concat(), "a", Err(Ending::status(500))),
        ([frames(&[content("a")]), b"event: error\ndata: boom\n\n".to_vec()].concat(), "a", Err(Ending::status(502))),
        ([frames(&[content("a")]), b"event: error\ndata: {\"x".to_vec()].concat(), "a", Err(Ending::StreamCut)),
        // Halves of a character in two frames are one; a number that no value can hold is nobody's business.
        (raw(&[r#""content":"a\ud83d""#, r#""role":"x""#, r#""content":"\ude00""#]), "a😀", Ok("stop")),
        (raw(&[r#""content":"\ud83d""#, r#""content":"b","x":1e999"#]), "\u{fffd}b", Ok("stop")),
        (b"data: oops\n\n".to_vec(), "", Err(Ending::BadReply)),
        (b"data: {\"choices\": [{\"delta\": {\"content\": \"a\"".to_vec(), "", Err(Ending::StreamCut)),
    ] {
        let (got_text, got) = read_whole(&stream);
        let got = got.map(|completion| completion.finish_reason);
        assert_eq!((got_text.as_str(), got), (text, want.map(str::to_owned)), "{}", String::from_utf8_lossy(&stream));
    }
}

#[test]
fn what_is_heard() {
    let choice = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]});
    for (frame, want) in [
        (choice(json!({"role": "assistant", "content": null})), Heard::Nothing),
        (choice(json!({"content": ""})), Heard::Nothing),
        (choice(json!({"content": "a"})), Heard::Content("a".to_owned())),
        (choice(json!({"reasoning_content": "hm"})), Heard::AtWork),
        (choice(json!({"tool_calls": [{"index": 0}]})), Heard::AtWork),
        (json!({"choices": [{"index": 1, "delta": {"content": "second"}}]}), Heard::Nothing),
        (json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}), Heard::Nothing),
        (json!({"choices": [], "usage": null}), Heard::Nothing),
        (json!({"type": "ping"}), Heard::Nothing),
        (json!({"type": "message_stop"}), Heard::Nothing),
        (json!({}), Heard::Nothing),
        (json!([]), Heard::Nothing),
    ] {
        let event = SseEvent { data: frame.to_string(), closed: true, ..SseEvent::default() };
        assert_eq!(StreamReader::default().read(HEAD, event).unwrap(), want, "{frame}");
    }
}

#[test]
fn usage_is_a_total_so_far() {
    let told = |prompt: u64, output: u64| json!({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}});
    let stream = [frames(&[told(25, 1), told(25, 10), told(25, 15)]), b"data: [DONE]\n\n".to_vec()].concat();
    let usage = read_whole(&stream).1.unwrap().usage;
    assert_eq!(usage, Some(Usage { prompt_tokens: 25, output_tokens: 15, estimated: false, ..Usage::default() }));
}

fn shared_stream(path: &str) -> Option<(String, Result<Completion, Ending>)> {
    shared_cases::bytes(path).map(|bytes| read_whole(&bytes))
}

#[test]
fn the_case_of_streams_without_usage() {
    let Some((text, ended)) = shared_stream("cases/B20/stream.sse") else { return };
    let usage = ended.unwrap().usage_or_estimate(&Tally::default(), 1_200);
    assert_eq!(text, "안녕하세요, 사진 초안");
    assert!(usage.estimated && (1_205..=3_000).contains(&(usage.prompt_tokens + usage.output_tokens)), "{usage:?}");
}

#[test]
fn the_case_of_running_totals() {
    let Some((text, ended)) = shared_stream("cases/B21/stream.sse") else { return };
    let completion = ended.unwrap();
    assert_eq!((text.as_str(), completion.finish_reason.as_str()), ("초안", "end_turn"));
    assert_eq!(
        completion.usage,
        Some(Usage { prompt_tokens: 25, output_tokens: 15, estimated: false, ..Usage::default() })
    );
}

#[test]
fn the_case_of_cut_characters() {
    let Some(stream) = shared_cases::bytes("cases/B26/stream.bin") else { return };
    let sizes: Vec<usize> = serde_json::from_str(&shared_cases::text("cases/B26/read_sizes.json").unwrap()).unwrap();
    let pieces = cuts::in_sizes(&stream, &sizes);
    for (text, ended) in [read(pieces), read_whole(&stream)] {
        assert_eq!((text.as_str(), ended.unwrap().finish_reason.as_str()), ("안녕하세요 🦀 끝", "stop"));
    }
    let (text, ended) = shared_stream("cases/B26/truncated.bin").unwrap();
    assert_eq!((text.as_str(), ended), ("", Err(Ending::StreamCut)));
}

#[test]
fn the_case_of_error_frames() {
    for (file, text, want) in [
        ("e1", "부분", Err(Ending::status(429))),
        ("e2", "", Err(Ending::status(503))),
        ("e3", "", Err(Ending::status(400))),
        ("e4", "", Err(Ending::status(502))),
        ("e5", "error: none", Ok("stop".to_owned())),
    ] {
        let Some((got_text, ended)) = shared_stream(&format!("cases/B29/{file}.sse")) else { return };
        assert_eq!((got_text.as_str(), ended.map(|completion| completion.finish_reason)), (text, want), "{file}");
    }
}

#[test]
fn the_case_of_ends() {
    let Some(expected) = shared_cases::text("cases/B30/expected.json") else { return };
    let expected: Value = serde_json::from_str(&expected).unwrap();
    for case in expected["assert"].as_array().unwrap() {
        let file = case["file"].as_str().unwrap();
        let (text, ended) = shared_stream(&format!("cases/B30/{file}")).unwrap();
        assert_eq!(text, "Hel", "{file}");
        if case["outcome"] == "failure" {
            assert_eq!(ended, Err(Ending::StreamCut), "{file}");
            continue;
        }
        let completion = ended.unwrap();
        assert_eq!(Some(completion.finish_reason.as_str()), case["finish_reason"].as_str(), "{file}");
        if let Some(total) = case["total_tokens"].as_u64() {
            let usage = completion.usage.unwrap();
            assert_eq!(usage.prompt_tokens + usage.output_tokens, total, "{file}");
        }
    }
}

/// Streams and whole answers that were recorded from a real server.
#[test]
fn recorded_answers() {
    for (name, file) in shared_cases::json_files("llm_fixtures") {
        let response = &file["response"];
        if let Some(chunks) = response["chunks"].as_array() {
            let stream: String =
                chunks.iter().map(|chunk| chunk["chunk"].as_str().or(chunk.as_str()).unwrap_or_default()).collect();
            let (text, ended) = read_whole(stream.as_bytes());
            assert!(!text.is_empty(), "{name}");
            if response["terminated"] == false {
                assert_eq!(ended, Err(Ending::StreamCut), "{name}");
                continue;
            }
            let completion = ended.unwrap();
            assert!(["stop", "length"].contains(&completion.finish_reason.as_str()), "{name}: {completion:?}");
            assert_eq!(completion.usage.is_some(), name.contains("with_usage"), "{name}");
            assert!(completion.pieces > 1, "{name}");
        } else if response["status"] == 200 && response["body_json"].get("choices").is_some() {
            let body = response["body_text"].as_str().unwrap();
            let completion = Completion::read(HEAD, body.as_bytes(), &Tally::default()).unwrap();
            let message = &response["body_json"]["choices"][0];
            assert_eq!(Some(completion.text.as_str()), message["message"]["content"].as_str(), "{name}");
            assert_eq!(Some(completion.finish_reason.as_str()), message["finish_reason"].as_str(), "{name}");
            assert!(completion.usage.unwrap().prompt_tokens > 0, "{name}");
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_frames_never_panic(texts in prop::collection::vec("[ -~가]{0,30}", 0..6)) {
        let stream = texts.iter().map(|text| format!("data: {text}\n\n")).collect::<Vec<_>>().concat();
        let _ = read([stream.as_bytes()]);
    }

    #[test]
    fn cuts_change_no_text(texts in prop::collection::vec("[a-z가-힣🦀\"\\\\ ]{1,12}", 1..8), size in 1_usize..40) {
        let whole: String = texts.concat();
        let sent: Vec<Value> = texts.iter().map(|text| content(text)).collect();
        let stream = [frames(&sent), b"data: [DONE]".to_vec()].concat();
        let (text, ended) = read(stream.chunks(size));
        prop_assert_eq!(text, whole);
        prop_assert_eq!(ended.unwrap().pieces, texts.len() as u64);
    }
}
