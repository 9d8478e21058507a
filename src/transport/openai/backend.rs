//! One exchange with an OpenAI-compatible server. Never repeats anything; dropping the future closes the connection.

use std::sync::Arc;

use reqwest::Method;

use crate::{
    model::reply::{AttemptFailure, Reply},
    policy::tokens::told::VendorBudget,
    runtime::{
        ports::{Asked, AttemptRequest, Backend, BoxFuture, ColdStart, Progress, TokenEstimate, WarmUp},
        relay::{Relay, RelayKind},
        tally::AnswerForm,
    },
    transport::{
        client::ProviderClient,
        error_body::ErrorPointers,
        outgoing::{Ears, Outgoing},
        reading::{AnswerReader as _, read_stream},
        sse::SseDecoder,
        stream::StreamClock,
        vendor_budget::VendorWord,
    },
};

use super::{
    completion::Completion,
    estimate,
    failure::corrected,
    output,
    probe::probe_models,
    relay::exchange::{self, Destination},
    request,
    settings::{CheckedSettings, InvalidOpenAi, OpenAiSettings},
    stream_reader::StreamReader,
    warm_up,
};

/// An agent whose work is done by a model behind an OpenAI-compatible server.
#[derive(Debug)]
pub struct OpenAiAgent {
    client: Arc<ProviderClient>,
    /// What the vendor says of its own budget for the model.
    vendor: Arc<VendorWord>,
    agent: CheckedSettings,
}

impl OpenAiAgent {
    /// An agent at `client`'s provider.
    pub fn try_new(client: Arc<ProviderClient>, settings: OpenAiSettings) -> Result<Self, InvalidOpenAi> {
        let agent = CheckedSettings::try_new(settings)?;
        let vendor = client.vendor_word(&agent.settings.model);
        Ok(Self { client, vendor, agent })
    }

    async fn relay(
        &self,
        request: &AttemptRequest,
        relay: &Relay,
        progress: &Progress,
    ) -> Result<Reply, AttemptFailure> {
        let settings = &self.agent.settings;
        let path = match relay.kind {
            RelayKind::Chat => &settings.paths.chat,
            RelayKind::Embeddings => &settings.paths.embeddings,
        };
        let to = Destination {
            client: &self.client,
            path: &path.for_model(&settings.model),
            model: &settings.model,
            stream_upstream: settings.stream_upstream,
            vendor: &self.vendor,
        };
        exchange::exchange(to, request, relay, progress).await
    }

    async fn exchange(&self, request: &AttemptRequest, progress: &Progress) -> Result<Reply, AttemptFailure> {
        progress.tally().prepares();
        let wanted = request::wanted(&self.agent, progress.is_watched());
        let chat = request::chat(&self.agent, request, wanted).await?;
        let prompt_tokens = progress.tally().prompt_or(|| chat.prompt_tokens);
        let outgoing = Outgoing {
            method: Method::POST,
            path: self.agent.settings.paths.chat.for_model(&self.agent.settings.model),
            headers: request::headers(request, wanted)?,
            body: Some(chat.body),
        };
        let clock = StreamClock::start(request.timeouts);
        let no_pointers = ErrorPointers::default();
        let ears = Ears::of(request, progress, wanted).with_vendor(&self.vendor);
        let sent = self.client.send_heard(outgoing, &no_pointers, ears);
        let answer = match wanted {
            AnswerForm::Whole => sent.await?,
            AnswerForm::Stream => clock.within(sent).await??,
        };
        let head = answer.head;
        let completion = if answer.is_event_stream {
            let mut reader = StreamReader::new(Arc::clone(progress.tally()));
            read_stream::<SseDecoder, _>(answer, clock, progress, prompt_tokens, &mut reader).await?;
            reader.finish(head, prompt_tokens)?
        } else {
            Completion::read(head, &answer.into_body().await?, progress.tally())?
        };
        output::reply(completion, self.agent.promise(), (progress.tally(), prompt_tokens), head.status)
    }
}

impl Backend for OpenAiAgent {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async move {
            let done = match &request.relay {
                Some(relay) => self.relay(request, relay, progress).await,
                None => self.exchange(request, progress).await,
            };
            done.map_err(|failure| self.client.scrub(warm_up::or_loading(corrected(failure))))
        })
    }

    fn relays(&self) -> bool {
        true
    }

    fn estimate(&self, asked: &Asked, prompt: Option<&str>) -> Option<TokenEstimate> {
        estimate::of_asked(&self.agent, asked, prompt)
    }

    fn output_max(&self, asked: &Asked) -> Option<u64> {
        estimate::output_max_of(&self.agent, asked)
    }

    fn vendor_budget(&self) -> Option<VendorBudget> {
        self.vendor.take()
    }

    fn stands_at(&self) -> Option<Arc<str>> {
        Some(self.client.stands_at())
    }

    fn loads_as(&self) -> Option<Arc<str>> {
        Some("openai".into())
    }

    /// Which servers load models, nobody can know beforehand; those that do say so.
    fn cold_start(&self) -> ColdStart {
        ColdStart::Told
    }

    fn warm_up(&self) -> BoxFuture<'_, Result<WarmUp, AttemptFailure>> {
        Box::pin(async {
            let settings = &self.agent.settings;
            let path = settings.paths.chat.for_model(&settings.model);
            let done = warm_up::warm_up(&self.client, path, &settings.model).await;
            done.map_err(|failure| self.client.scrub(failure))
        })
    }

    fn health(&self) -> Option<BoxFuture<'_, Result<(), AttemptFailure>>> {
        Some(Box::pin(async {
            let settings = &self.agent.settings;
            let path = settings.paths.models.for_model(&settings.model);
            probe_models(&self.client, &path).await.map(drop).map_err(warm_up::or_loading)
        }))
    }
}

#[cfg(test)]
mod tests;
