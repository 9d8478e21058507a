//! What a request in OpenAI's shape says that concerns us: model, form of the answer, who it is for. Everything else is not looked at.

use std::sync::Arc;

use crate::{
    model::{envelope::ErrorCode, raw_object::RawObject},
    runtime::relay::{RelayForm, RelayKind, StreamUsage},
    serve::{
        access::caller::{Caller, Named},
        answer::failure::Failure,
    },
    settings::keys::OpenAiNames,
};

use super::shape::PARAM;

/// What a request says.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) body: Arc<RawObject>,
    pub(super) model: String,
    pub(super) form: RelayForm,
    /// Whom it says it is for.
    named: Named,
    /// What of that is no name: it is not passed over where it should name somebody.
    odd: Option<&'static str>,
    /// The user that `metadata` names where `user` names another one.
    other_user: Option<String>,
}

impl Asked {
    /// Reads a body.
    pub(super) fn read(kind: RelayKind, bytes: &[u8]) -> Result<Self, Failure> {
        // Some programs put a mark of the byte order before their JSON; elsewhere it is taken too.
        let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        let body = RawObject::try_new(bytes.to_vec()).map_err(|error| Failure::invalid(error.to_string()))?;
        let wrong = |key: &str, rule: &str| Failure::invalid(format!("`{key}` {rule}")).with_detail(PARAM, key);
        let model = match body.get("model") {
            None => return Err(wrong("model", "is missing")),
            Some(_) => body.text("model").ok_or_else(|| wrong("model", "must be a text"))?,
        };
        let content = match kind {
            RelayKind::Chat => "messages",
            RelayKind::Embeddings => "input",
        };
        if body.get(content).is_none() {
            return Err(wrong(content, "is missing"));
        }
        let streams = match body.get("stream") {
            None | Some("null" | "false") => false,
            Some("true") if kind == RelayKind::Chat => true,
            Some("true") => return Err(wrong("stream", "is not for embeddings")),
            Some(_) => return Err(wrong("stream", "must be true or false")),
        };
        let form = if streams { RelayForm::Stream { usage: usage_of(&body) } } else { RelayForm::Whole };
        let (named, odd) = (named_in(&body), odd_in(&body));
        let other_user = user_in_metadata(&body).filter(|user| !user.is_empty() && named.user.as_ref() != Some(user));
        Ok(Self { body: Arc::new(body), model, form, named, odd, other_user })
    }

    /// The caller for whom it is. With a key `user` and `metadata` say it as our headers do, and are refused where the key may not name
    /// that, unless its settings leave them to the model server. Without keys they are the model server's too.
    pub(super) fn caller(&self, caller: Caller) -> Result<Caller, Failure> {
        let are_taken = caller.key.as_ref().is_some_and(|key| key.openai_names == OpenAiNames::Taken);
        let Named { tenant, feature, priority, user } = self.named.clone();
        let caller = caller.naming(Named { priority, ..Named::default() })?;
        if !are_taken {
            return Ok(caller);
        }
        if let Some(key) = self.odd {
            return Err(
                Failure::invalid(format!("`{key}` names nobody: it is of another type")).with_detail(PARAM, key)
            );
        }
        // Like a header and a body that differ: who names two is nobody in particular.
        if let (Some(user), Some(other)) = (&user, &self.other_user) {
            let message = format!("`user` names {user:?}, `metadata.user` names {other:?}");
            return Err(Failure::invalid(message).with_detail(PARAM, "user"));
        }
        caller.naming(Named { tenant, feature, priority: None, user }).map_err(leaving_it_to_the_server)
    }
}

/// What else a key can say of these members is no secret of its holder's.
fn leaving_it_to_the_server(mut failure: Failure) -> Failure {
    if failure.envelope.error_code == ErrorCode::Forbidden {
        failure.envelope.message.push_str(
            "; `openai_names = \"passed_on\"` in the key's settings leaves `user` and `metadata` to the model server",
        );
    }
    failure
}

fn named_in(body: &RawObject) -> Named {
    let metadata = inner(body, "metadata");
    let of = |key: &str| metadata.as_ref().and_then(|metadata| metadata.text(key));
    let user = body.text("user").filter(|user| !user.is_empty()).or_else(|| user_in_metadata(body));
    // A number is what some servers take themselves; only a word can be one of our classes.
    Named { tenant: of("tenant"), feature: of("feature"), priority: body.text("priority"), user }
}

fn user_in_metadata(body: &RawObject) -> Option<String> {
    inner(body, "metadata")?.text("user")
}

/// The first member that should name somebody and is of another type.
fn odd_in(body: &RawObject) -> Option<&'static str> {
    let is_odd =
        |object: &RawObject, key: &str| !matches!(object.get(key), None | Some("null")) && object.text(key).is_none();
    if is_odd(body, "user") {
        return Some("user");
    }
    if matches!(body.get("metadata"), None | Some("null")) {
        return None;
    }
    let Some(metadata) = inner(body, "metadata") else { return Some("metadata") };
    let keys = [("tenant", "metadata.tenant"), ("feature", "metadata.feature"), ("user", "metadata.user")];
    keys.into_iter().find(|(key, _)| is_odd(&metadata, key)).map(|(_, path)| path)
}

/// A member that is an object, whose members nobody asks for stay text.
fn inner(body: &RawObject, key: &str) -> Option<RawObject> {
    RawObject::try_new(body.get(key)?.as_bytes().to_vec()).ok()
}

fn usage_of(body: &RawObject) -> StreamUsage {
    let options = inner(body, "stream_options");
    if options.as_ref().and_then(|options| options.get("include_usage")) == Some("true") {
        StreamUsage::Wanted
    } else {
        StreamUsage::Unwanted
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_should_name_somebody_is_typed() {
        for (said, want) in [
            (r#""user":5"#, Some("user")),
            (r#""metadata":[]"#, Some("metadata")),
            (r#""metadata":"x""#, Some("metadata")),
            (r#""metadata":{"tenant":5}"#, Some("metadata.tenant")),
            (r#""metadata":{"tenant":"a","feature":["a"]}"#, Some("metadata.feature")),
            (r#""metadata":{"user":{}}"#, Some("metadata.user")),
            (r#""user":null,"metadata":null"#, None),
            (r#""user":"u","metadata":{"tenant":null,"feature":"chat","other":5}"#, None),
        ] {
            let body = format!(r#"{{"model":"m","messages":[],{said}}}"#);
            assert_eq!(Asked::read(RelayKind::Chat, body.as_bytes()).unwrap().odd, want, "{said}");
        }
    }

    #[test]
    fn what_requests_say() {
        let stream = |usage| Ok(RelayForm::Stream { usage });
        for (kind, body, want) in [
            (RelayKind::Chat, r#"{"model":"m","messages":[]}"#, Ok(RelayForm::Whole)),
            (RelayKind::Chat, "\u{feff}{\"model\":\"m\",\"messages\":[]}", Ok(RelayForm::Whole)),
            (RelayKind::Chat, r#"{"model":"m","messages":[],"stream":null}"#, Ok(RelayForm::Whole)),
            (RelayKind::Chat, r#"{"model":"m","messages":[],"stream":true}"#, stream(StreamUsage::Unwanted)),
            (
                RelayKind::Chat,
                r#"{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}"#,
                stream(StreamUsage::Wanted),
            ),
            (RelayKind::Chat, r#"{"model":"m","messages":[],"stream":"yes"}"#, Err("stream")),
            (RelayKind::Chat, r#"{"messages":[]}"#, Err("model")),
            (RelayKind::Chat, r#"{"model":7,"messages":[]}"#, Err("model")),
            (RelayKind::Chat, r#"{"model":"m"}"#, Err("messages")),
            (RelayKind::Embeddings, r#"{"model":"m","input":["a"]}"#, Ok(RelayForm::Whole)),
            (RelayKind::Embeddings, r#"{"model":"m","input":"a","stream":true}"#, Err("stream")),
            (RelayKind::Embeddings, r#"{"model":"m"}"#, Err("input")),
            (RelayKind::Chat, "[]", Err("")),
            (RelayKind::Chat, r#"{"model":"m","model":"n","messages":[]}"#, Err("")),
        ] {
            let asked = Asked::read(kind, body.as_bytes()).map(|asked| asked.form).map_err(|failure| {
                assert_eq!(failure.envelope.http_status, 400);
                failure.envelope.details.get(PARAM).and_then(Value::as_str).unwrap_or_default().to_owned()
            });
            assert_eq!(asked, want.map_err(str::to_owned), "{body}");
        }
    }
}
