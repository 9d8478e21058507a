//! An agent's promise: its output is of the shape that its schema says, whatever backend made it. What breaks it is a bad reply.

use std::sync::Arc;

use serde_json::Value;

use super::ports::{AttemptRequest, Backend, BoxFuture, Progress};
use crate::model::{
    depth::{VALUE_DEPTH_MAX, is_deeper},
    facts::Ending,
    reply::{AttemptFailure, Reply},
};

/// A schema that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the output schema is no JSON Schema: {0}")]
pub struct InvalidSchema(String);

/// A backend whose outputs are checked.
pub struct Promised {
    inner: Arc<dyn Backend>,
    validator: jsonschema::Validator,
}

impl Promised {
    /// Checks the outputs of `inner` against `schema`.
    pub fn try_new(inner: Arc<dyn Backend>, schema: &Value) -> Result<Self, InvalidSchema> {
        let validator = jsonschema::validator_for(schema).map_err(|error| InvalidSchema(error.to_string()))?;
        Ok(Self { inner, validator })
    }
}

impl std::fmt::Debug for Promised {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Promised")
    }
}

impl Backend for Promised {
    fn inner(&self) -> Option<&dyn Backend> {
        Some(&*self.inner)
    }

    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        if request.relay.is_some() {
            // Its shape is a matter between the caller and the model.
            return self.inner.attempt(request, progress);
        }
        Box::pin(async move {
            let reply = self.inner.attempt(request, progress).await?;
            let Some(error) = self.validator.iter_errors(&reply.output).next() else { return Ok(reply) };
            // The value itself may hold what no log should: only where and which rule.
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { "/".to_owned() } else { place };
            let rule = error.schema_path().to_string();
            let mut failure = AttemptFailure::new(
                Ending::BadReply,
                format!("the output is not of the promised shape: {place} breaks {rule}"),
            );
            failure.status = reply.status;
            failure.usage = reply.usage;
            Err(failure)
        })
    }
}

/// What every agent promises: an output that can be written down, read again and used. One that is nested deeper than values may be is
/// none, whoever made it.
pub(super) fn within_depth(reply: Reply) -> Result<Reply, AttemptFailure> {
    if !is_deeper(&reply.output, VALUE_DEPTH_MAX) {
        return Ok(reply);
    }
    let message = format!("the output is nested deeper than {VALUE_DEPTH_MAX}");
    let mut failure = AttemptFailure::new(Ending::BadReply, message);
    failure.status = reply.status;
    failure.usage = reply.usage;
    Err(failure)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::reply::Usage;

    #[test]
    fn an_output_that_could_not_be_read_again_is_a_bad_reply() {
        let deep = |depth: usize| (1..depth).fold(json!(1), |inner, _| json!({ "in": inner }));
        let reply = |output: Value| Reply {
            status: Some(200),
            usage: Some(Usage { prompt_tokens: 3, ..Usage::default() }),
            ..Reply::of(output)
        };
        assert!(within_depth(reply(deep(VALUE_DEPTH_MAX))).is_ok());
        let failure = within_depth(reply(deep(VALUE_DEPTH_MAX + 1))).unwrap_err();
        assert_eq!((&failure.ending, failure.status), (&Ending::BadReply, Some(200)));
        assert_eq!(failure.usage.map(|usage| usage.prompt_tokens), Some(3), "it is paid all the same");
    }
}
