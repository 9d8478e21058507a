//! Messages in OpenAI's shape as Ollama takes them: one text each, pictures as bytes beside it, arguments of tools as objects. What
//! cannot be said there is refused with its place, never left out.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::transport::openai::images::base64_of;

/// The messages, or what is wrong with them.
pub(super) fn messages(given: &Value) -> Result<Vec<Value>, String> {
    let Some(list) = given.as_array() else { return Err("messages: must be a list".to_owned()) };
    // Ollama names the tool that answers; OpenAI only the call.
    let mut called = HashMap::new();
    let mut messages = Vec::with_capacity(list.len());
    for (place, message) in list.iter().enumerate() {
        let read = one(message, &mut called).map_err(|wrong| format!("messages[{place}]{wrong}"))?;
        messages.push(read);
    }
    Ok(messages)
}

/// Whether anybody but the system says something.
pub(super) fn asks_something(messages: &[Value]) -> bool {
    messages.iter().any(|message| message["role"] != "system")
}

fn one(message: &Value, called: &mut HashMap<String, String>) -> Result<Value, String> {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    let role = match role {
        "system" | "developer" => "system",
        "user" | "assistant" => role,
        "tool" | "function" => "tool",
        _ => return Err(".role: must be system, developer, user, assistant or tool".to_owned()),
    };
    let mut read = Map::from_iter([("role".to_owned(), json!(role))]);
    let (text, images) = content(message.get("content"))?;
    read.insert("content".to_owned(), json!(text));
    if !images.is_empty() {
        read.insert("images".to_owned(), json!(images));
    }
    let thought = ["reasoning_content", "reasoning"].iter().filter_map(|key| message.get(*key)).find_map(Value::as_str);
    read.extend(thought.map(|thought| ("thinking".to_owned(), json!(thought))));
    if let Some(calls) = message.get("tool_calls").and_then(Value::as_array).filter(|calls| !calls.is_empty()) {
        let calls: Result<Vec<Value>, String> = calls
            .iter()
            .enumerate()
            .map(|(place, call)| tool_call(call, called).map_err(|wrong| format!(".tool_calls[{place}]{wrong}")))
            .collect();
        read.insert("tool_calls".to_owned(), Value::from(calls?));
    }
    if role == "tool" {
        let id = message.get("tool_call_id").and_then(Value::as_str);
        let name = message.get("name").and_then(Value::as_str).map(str::to_owned);
        let name = name.or_else(|| id.and_then(|id| called.get(id).cloned()));
        read.extend(name.map(|name| ("tool_name".to_owned(), json!(name))));
        read.extend(id.map(|id| ("tool_call_id".to_owned(), json!(id))));
    }
    Ok(Value::Object(read))
}

/// A content's text, and its pictures as base64.
fn content(content: Option<&Value>) -> Result<(String, Vec<&str>), String> {
    let parts = match content {
        None | Some(Value::Null) => return Ok((String::new(), Vec::new())),
        Some(Value::String(text)) => return Ok((text.clone(), Vec::new())),
        Some(Value::Array(parts)) => parts,
        Some(_) => return Err(".content: must be a text or a list of parts".to_owned()),
    };
    let (mut texts, mut images) = (Vec::new(), Vec::new());
    for (place, part) in parts.iter().enumerate() {
        let wrong = |rule: &str| format!(".content[{place}]: {rule}");
        match part.get("type").and_then(Value::as_str) {
            Some("text" | "refusal") => {
                let text = part.get("text").or_else(|| part.get("refusal")).and_then(Value::as_str);
                texts.push(text.ok_or_else(|| wrong("must hold a text"))?);
            }
            Some("image_url") => {
                let url = part.pointer("/image_url/url").or_else(|| part.get("image_url")).and_then(Value::as_str);
                let bytes = url.and_then(base64_of);
                let rule = "a picture must come as a data URL in base64: this server fetches none";
                images.push(bytes.ok_or_else(|| wrong(rule))?);
            }
            Some(kind) => return Err(wrong(&format!("this server takes texts and pictures, no {kind}"))),
            None => return Err(wrong("must have a type")),
        }
    }
    Ok((texts.join("\n"), images))
}

fn tool_call(call: &Value, called: &mut HashMap<String, String>) -> Result<Value, String> {
    let name = call.pointer("/function/name").and_then(Value::as_str);
    let name = name.ok_or_else(|| ".function.name: must be a text".to_owned())?;
    let arguments = match call.pointer("/function/arguments") {
        None | Some(Value::Null) => json!({}),
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        Some(Value::String(text)) => serde_json::from_str(text)
            .ok()
            .filter(Value::is_object)
            .ok_or_else(|| ".function.arguments: must be the JSON text of an object".to_owned())?,
        Some(object) if object.is_object() => object.clone(),
        Some(_) => return Err(".function.arguments: must be the JSON text of an object".to_owned()),
    };
    let mut read = Map::new();
    if let Some(id) = call.get("id").and_then(Value::as_str) {
        called.insert(id.to_owned(), name.to_owned());
        read.insert("id".to_owned(), json!(id));
    }
    read.insert("function".to_owned(), json!({ "name": name, "arguments": arguments }));
    Ok(Value::Object(read))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_conversation_with_pictures_and_tools() {
        let given = json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD", "detail": "low"}},
                {"type": "text", "text": "And where?"},
            ]},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": 1}"}},
                {"id": "c2", "type": "function", "function": {"name": "go", "arguments": ""}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "a crab"},
            {"role": "tool", "tool_call_id": "unknown", "content": "?"},
        ]);
        let want = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is this?\nAnd where?", "images": ["QUJD"]},
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
                {"id": "c1", "function": {"name": "look", "arguments": {"at": 1}}},
                {"id": "c2", "function": {"name": "go", "arguments": {}}},
            ]},
            {"role": "tool", "content": "a crab", "tool_name": "look", "tool_call_id": "c1"},
            {"role": "tool", "content": "?", "tool_call_id": "unknown"},
        ]);
        assert_eq!(Value::from(messages(&given).unwrap()), want);
    }

    #[test]
    fn what_cannot_be_said_is_refused_with_its_place() {
        let user = |content: Value| json!([{"role": "user", "content": content}]);
        let called = |arguments: Value| json!([{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": arguments}}]}]);
        let url = |url: &str| json!([{"type": "image_url", "image_url": {"url": url}}]);
        for (given, want) in [
            (json!("x"), "messages: must be a list"),
            (json!([{"role": "robot", "content": "x"}]), "messages[0].role: must be"),
            (json!([{"role": "user", "content": "x"}, {}]), "messages[1].role: must be"),
            (user(json!(7)), "messages[0].content: must be a text or a list of parts"),
            (user(json!([{"text": "x"}])), "messages[0].content[0]: must have a type"),
            (user(json!([{"type": "text"}])), "messages[0].content[0]: must hold a text"),
            (
                user(json!([{"type": "input_audio"}])),
                "messages[0].content[0]: this server takes texts and pictures, no input_audio",
            ),
            (user(url("https://h.example/a.png")), "messages[0].content[0]: a picture must come as a data URL"),
            (called(json!("{")), "messages[0].tool_calls[0].function.arguments: must be the JSON text of an object"),
            (called(json!("[1]")), "messages[0].tool_calls[0].function.arguments: must be"),
            (called(json!(7)), "messages[0].tool_calls[0].function.arguments: must be"),
        ] {
            let wrong = messages(&given).unwrap_err();
            assert!(wrong.starts_with(want), "{given}: {wrong}");
        }
    }

    #[test]
    fn b34_only_the_system_asks_nothing() {
        for (given, asks) in [
            (json!([]), false),
            (json!([{"role": "system", "content": "style guide"}]), false),
            (json!([{"role": "developer", "content": "style guide"}]), false),
            (json!([{"role": "system", "content": "s"}, {"role": "user", "content": "사진 3장"}]), true),
            (json!([{"role": "tool", "content": "x"}]), true),
        ] {
            assert_eq!(asks_something(&messages(&given).unwrap()), asks, "{given}");
        }
    }

    proptest! {
        #[test]
        fn no_message_panics(
            role in "system|user|assistant|tool|x",
            content in r#"null|1|"x"|\[\]|\[1\]|\[\{"type":("text"|"image_url"|1)\}\]"#,
            calls in r#"null|1|\[\]|\[1\]|\[\{"id":1,"function":(1|\{"name":("a"|1),"arguments":("\{"|\{\}|1)\})\}\]"#,
        ) {
            let text = format!("[{{\"role\":\"{role}\",\"content\":{content},\"tool_calls\":{calls}}}]");
            if let Ok(given) = serde_json::from_str::<Value>(&text) {
                let _ = messages(&given);
            }
        }
    }
}
