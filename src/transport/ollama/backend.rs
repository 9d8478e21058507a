//! One exchange with an Ollama server. Never repeats anything; dropping the future closes the connection, which ends the server's work
//! (and the loading of a model that nobody else waits for).

use std::{sync::Arc, time::Duration};

use reqwest::Method;
use serde_json::Value;

use crate::{
    model::{
        facts::Ending,
        loose_json,
        reply::{AttemptFailure, Reply},
    },
    runtime::{
        ports::{Asked, AttemptRequest, Backend, BoxFuture, ColdStart, Progress, TokenEstimate, WarmUp},
        relay::RelayKind,
        tally::AnswerForm,
    },
    transport::{
        client::{Answer, ProviderClient},
        error_body::{AnswerHead, ErrorPointers},
        ndjson::{JsonObject, NdjsonDecoder, NdjsonError},
        openai::{completion::Completion, estimate, output, request::headers, settings::InvalidOpenAi},
        outgoing::{Ears, Outgoing},
        reading::{AnswerReader as _, read_stream},
        stream::StreamClock,
    },
};

use super::{
    failure::corrected,
    relay::{embeddings, exchange},
    request,
    server::{LoadedModel, OllamaServer},
    settings::{CheckedOllama, KeepAlive, OllamaSettings},
    stream_reader::StreamReader,
};

/// A load that took so long was one from disk.
const LOAD_TIME_MIN: Duration = Duration::from_secs(1);

/// An agent whose work is done by a model behind an Ollama server.
#[derive(Debug)]
pub struct OllamaAgent {
    client: Arc<ProviderClient>,
    agent: CheckedOllama,
}

impl OllamaAgent {
    /// An agent at `client`'s provider.
    pub fn try_new(client: Arc<ProviderClient>, settings: OllamaSettings) -> Result<Self, InvalidOpenAi> {
        Ok(Self { client, agent: CheckedOllama::try_new(settings)? })
    }

    /// The models that the server has in memory, and until when. Bounded in time.
    pub async fn loaded(&self) -> Result<Vec<LoadedModel>, AttemptFailure> {
        OllamaServer::new(&self.client).loaded().await
    }

    /// Has this agent's model loaded as this agent uses it, unless it stands in memory so already. Has no timeout of its own: who calls
    /// it knows how long a load may take. Dropping the future can end the load.
    pub async fn load(&self) -> Result<WarmUp, AttemptFailure> {
        let server = OllamaServer::new(&self.client);
        // A server too old for the question is asked for the model all the same.
        let loaded = server.loaded().await.unwrap_or_default();
        let as_ours = |model: &LoadedModel| {
            model.is(self.agent.model()) && model.num_ctx.is_none_or(|tokens| tokens == self.agent.num_ctx)
        };
        if loaded.iter().any(as_ours) {
            return Ok(WarmUp::WasLoaded);
        }
        server.load(&self.agent).await?;
        Ok(WarmUp::Loaded)
    }

    async fn exchange(&self, request: &AttemptRequest, progress: &Progress) -> Result<Reply, AttemptFailure> {
        let wanted = request::wanted(&self.agent, progress.is_watched());
        let chat = request::chat(&self.agent, request, wanted).await?;
        let prompt_tokens = progress.tally().prompt_or(|| chat.prompt_tokens);
        let outgoing = Outgoing {
            method: Method::POST,
            path: request::CHAT_PATH.to_owned(),
            headers: headers(request, wanted)?,
            body: Some(chat.body),
        };
        let clock = StreamClock::start(request.timeouts);
        let no_pointers = ErrorPointers::default();
        let ears = Ears::of(request, progress, wanted);
        let sent = self.client.send_heard(outgoing, &no_pointers, ears);
        let answer = match wanted {
            AnswerForm::Whole => sent.await,
            AnswerForm::Stream => clock.within(sent).await?,
        }
        .map_err(corrected)?;
        let status = answer.head.status;
        let completion = if answer.is_plain_json {
            read_whole(answer, progress, prompt_tokens).await?
        } else {
            let head = answer.head;
            let mut reader = StreamReader::new(Arc::clone(progress.tally()));
            read_stream::<NdjsonDecoder, _>(answer, clock, progress, prompt_tokens, &mut reader).await?;
            tell_of_load(reader.load_time(), progress);
            reader.finish(head, prompt_tokens)?
        };
        output::reply(completion, self.agent.asked.promise(), (progress.tally(), prompt_tokens), status)
    }
}

/// The objects of an answer that came as a whole: one, or lines of them under another name.
pub(super) fn objects_of(head: AnswerHead, body: &[u8]) -> Result<Vec<JsonObject>, AttemptFailure> {
    if let Ok(Value::Object(object)) = loose_json::read(body) {
        return Ok(vec![object]);
    }
    let mut decoder = NdjsonDecoder::new();
    decoder.push(body);
    decoder.finish();
    let mut objects = Vec::new();
    let bad = |error: NdjsonError| AttemptFailure {
        status: Some(head.status),
        ..AttemptFailure::new(Ending::BadReply, error.to_string())
    };
    while let Some(object) = decoder.pop().map_err(bad)? {
        objects.push(object);
    }
    Ok(objects)
}

/// A model that had to be loaded first has not been slow. What a warm one takes to be found again is no load.
pub(super) fn tell_of_load(load_time: Duration, progress: &Progress) {
    if load_time >= LOAD_TIME_MIN {
        progress.model_loads();
    }
}

async fn read_whole(answer: Answer, progress: &Progress, prompt_tokens: u64) -> Result<Completion, AttemptFailure> {
    let head = answer.head;
    let body = answer.into_body().await?;
    let mut reader = StreamReader::new(Arc::clone(progress.tally()));
    for object in objects_of(head, &body)? {
        reader.read(head, object)?;
    }
    tell_of_load(reader.load_time(), progress);
    reader.finish(head, prompt_tokens)
}

impl Backend for OllamaAgent {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async move {
            progress.tally().prepares();
            let done = match &request.relay {
                None => self.exchange(request, progress).await,
                Some(relay) => match relay.kind {
                    RelayKind::Chat => exchange::chat(&self.client, &self.agent, request, relay, progress).await,
                    RelayKind::Embeddings => {
                        embeddings::embed(&self.client, &self.agent, request, relay, progress).await
                    }
                },
            };
            done.map_err(|failure| self.client.scrub(failure))
        })
    }

    fn relays(&self) -> bool {
        true
    }

    fn stands_at(&self) -> Option<Arc<str>> {
        Some(self.client.stands_at())
    }

    fn loads_as(&self) -> Option<Arc<str>> {
        Some(format!("ollama, {} tokens, kept {:?}", self.agent.num_ctx, self.agent.keep_alive).into())
    }

    fn cold_start(&self) -> ColdStart {
        let keeps_for = match self.agent.keep_alive {
            KeepAlive::For(time) => Some(time),
            KeepAlive::Forever => None,
        };
        ColdStart::OnDemand { keeps_for }
    }

    fn refuses<'a>(&'a self, request: &'a AttemptRequest) -> BoxFuture<'a, Option<AttemptFailure>> {
        Box::pin(async move {
            let prepared = match &request.relay {
                None => request::chat(&self.agent, request, AnswerForm::Stream).await.map(|_| ()),
                Some(relay) => match relay.kind {
                    RelayKind::Chat => exchange::check(&self.agent, relay).await,
                    RelayKind::Embeddings => embeddings::check(&self.agent, relay).await,
                },
            };
            prepared.err().map(|failure| self.client.scrub(failure))
        })
    }

    fn warm_up(&self) -> BoxFuture<'_, Result<WarmUp, AttemptFailure>> {
        Box::pin(self.load())
    }

    fn health(&self) -> Option<BoxFuture<'_, Result<(), AttemptFailure>>> {
        Some(Box::pin(async { OllamaServer::new(&self.client).version().await.map(|_| ()) }))
    }

    fn estimate(&self, asked: &Asked, prompt: Option<&str>) -> Option<TokenEstimate> {
        let mut estimate = estimate::of_asked(&self.agent.asked, asked, prompt)?;
        estimate.output_max = self.output_max(asked);
        Some(estimate)
    }

    fn output_max(&self, asked: &Asked) -> Option<u64> {
        // Somebody else's request without a cap of its own goes out with the agent's.
        estimate::output_max_of(&self.agent.asked, asked).or(self.agent.asked.settings.max_output_tokens)
    }
}

#[cfg(test)]
mod tests;
