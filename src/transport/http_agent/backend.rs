//! One exchange with an `http` agent. Never repeats anything; dropping the future closes the connection.

use std::sync::Arc;

use crate::{
    model::{
        facts::Ending,
        loose_json::LooseFrames,
        reply::{AttemptFailure, Reply},
    },
    runtime::{
        large_work,
        ports::{AttemptRequest, Backend, BoxFuture, Progress},
        tally::AnswerForm,
    },
    transport::{
        client::{Answer, ProviderClient},
        outgoing::{Ears, Outgoing},
        secret,
        stream::{EventStream, StreamClock},
    },
};

use super::{
    mapping::{CheckedMapping, HttpMapping, InvalidMapping},
    reading::{self, Frame},
    request,
};

/// An agent that is a service of the user's.
#[derive(Debug)]
pub struct HttpAgent {
    client: Arc<ProviderClient>,
    mapping: Arc<CheckedMapping>,
}

impl HttpAgent {
    /// An agent at `client`'s provider, called as `mapping` says.
    pub fn try_new(client: Arc<ProviderClient>, mapping: &HttpMapping) -> Result<Self, InvalidMapping> {
        Ok(Self { client, mapping: Arc::new(CheckedMapping::try_new(mapping)?) })
    }

    async fn exchange(&self, request: &AttemptRequest, progress: &Progress) -> Result<Reply, AttemptFailure> {
        progress.tally().prepares();
        let wanted = if progress.is_watched() { AnswerForm::Stream } else { AnswerForm::Whole };
        let mut headers = request::contract_headers(request, wanted)?;
        for (name, value) in &self.mapping.headers {
            headers.insert(name.clone(), value.clone());
        }
        let outgoing = Outgoing {
            method: self.mapping.method.clone(),
            path: self.mapping.path.clone(),
            headers,
            body: Some(request::body(&request.input, &self.mapping).await?),
        };
        let clock = StreamClock::start(request.timeouts);
        let sent = self.client.send_heard(outgoing, &self.mapping.errors, Ears::of(request, progress, wanted));
        let answer = match wanted {
            AnswerForm::Whole => sent.await?,
            AnswerForm::Stream => clock.within(sent).await??,
        };
        if answer.is_event_stream {
            return self.read_stream(answer, clock, progress).await;
        }
        let head = answer.head;
        let (body, mapping) = (answer.into_body().await?, Arc::clone(&self.mapping));
        large_work::work(body.len(), move || reading::whole(head, &body, &mapping)).await
    }

    async fn read_stream(
        &self,
        answer: Answer,
        clock: StreamClock,
        progress: &Progress,
    ) -> Result<Reply, AttemptFailure> {
        let head = answer.head;
        let mut events = EventStream::new(head.status, answer.into_pieces(), clock);
        let mut frames = LooseFrames::default();
        while let Some(event) = events.next().await? {
            match reading::frame(head, &event, (&mut frames, &self.mapping))? {
                Frame::Delta(text) if !text.is_empty() => {
                    progress.content(&text).await;
                    events.clock.content();
                }
                Frame::Reply(reply) => return Ok(reply),
                Frame::Delta(_) | Frame::Nothing => {}
            }
        }
        let cut = AttemptFailure::new(Ending::StreamCut, "the stream ended without an output");
        Err(AttemptFailure { status: Some(head.status), ..cut })
    }
}

impl Backend for HttpAgent {
    fn stands_at(&self) -> Option<Arc<str>> {
        Some(self.client.stands_at())
    }

    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async move {
            self.exchange(request, progress)
                .await
                .map_err(|failure| secret::scrub_failure(self.client.scrub(failure), &self.mapping.secrets))
        })
    }
}

#[cfg(test)]
mod tests;
