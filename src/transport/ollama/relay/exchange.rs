//! One relayed exchange: a request in OpenAI's shape out in Ollama's, its lines back as chunks or as one answer.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
    vec,
};

use reqwest::Method;
use serde_json::Value;

use crate::{
    model::{
        facts::Ending,
        reply::{AttemptFailure, Reply, Usage},
    },
    runtime::{
        ports::{AttemptRequest, Progress},
        relay::{Relay, RelayForm},
        tally::AnswerForm,
        tally::Tally,
    },
    transport::{
        client::ProviderClient,
        error_body::{AnswerHead, ErrorPointers},
        ndjson::JsonObject,
        ollama::{
            backend::{objects_of, tell_of_load},
            failure::corrected,
            line::{Line, usage},
            request::CHAT_PATH,
            settings::CheckedOllama,
            stream_reader::read_line,
        },
        openai::{
            completion::{is_no_draft, no_draft},
            relay::{
                frame::Meaning,
                way_out::{Frames, Gathering, Way, paid, reply},
            },
            request::headers,
            settings::StreamUpstream,
        },
        outgoing::{Ears, Outgoing},
        sse::SseEvent,
        stream::{LineStream, StreamClock},
    },
};

use super::{
    chunks::{Chunks, finish_reason},
    request,
};

/// What a chat completion would be refused for before it is sent.
pub(in crate::transport::ollama) async fn check(agent: &CheckedOllama, relay: &Relay) -> Result<(), AttemptFailure> {
    request::chat(agent, &relay.body, AnswerForm::Stream).await.map(|_| ())
}

/// Asks for a chat completion.
pub(in crate::transport::ollama) async fn chat(
    client: &ProviderClient,
    agent: &CheckedOllama,
    attempt: &AttemptRequest,
    relay: &Relay,
    progress: &Progress,
) -> Result<Reply, AttemptFailure> {
    let always = agent.asked.settings.stream_upstream == StreamUpstream::Always;
    let wanted = if always || relay.form != RelayForm::Whole { AnswerForm::Stream } else { AnswerForm::Whole };
    let asked = request::chat(agent, &relay.body, wanted).await?;
    let outgoing = Outgoing {
        method: Method::POST,
        path: CHAT_PATH.to_owned(),
        headers: headers(attempt, wanted)?,
        body: Some(asked.body),
    };
    let clock = StreamClock::start(attempt.timeouts);
    let no_pointers = ErrorPointers::default();
    let sent = client.send_heard(outgoing, &no_pointers, Ears::of(attempt, progress, wanted));
    let answer = match wanted {
        AnswerForm::Whole => sent.await,
        AnswerForm::Stream => clock.within(sent).await?,
    }
    .map_err(corrected)?;
    let head = answer.head;
    let lines = if answer.is_plain_json {
        Lines::Whole(objects_of(head, &answer.into_body().await?)?.into_iter())
    } else {
        Lines::Stream(Box::new(LineStream::new(head.status, answer.into_pieces(), clock)))
    };
    let chunks = Chunks::new(&attempt.call_id, unix_s(), agent.model());
    let tally = Arc::clone(progress.tally());
    let heard = Heard { prompt_counted: tally.prompt_or(|| asked.prompt_tokens), tally, ..Heard::default() };
    let reading = Reading { head, lines, chunks, heard, progress };
    match relay.form {
        RelayForm::Stream { usage } => reading.into_frames(Way::new(attempt, relay, progress, usage)).await,
        RelayForm::Whole => reading.into_frames(Gathering::new(relay, progress, head)).await,
    }
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Lines as they come, or those of an answer that came whole.
enum Lines {
    Stream(Box<LineStream>),
    Whole(vec::IntoIter<JsonObject>),
}

impl Lines {
    async fn next(&mut self) -> Result<Option<JsonObject>, AttemptFailure> {
        match self {
            Self::Stream(lines) => lines.next().await,
            Self::Whole(lines) => Ok(lines.next()),
        }
    }

    /// Output came, and was handed on.
    fn content(&mut self) {
        if let Self::Stream(lines) = self {
            lines.clock.content();
        }
    }

    async fn drain(self) {
        if let Self::Stream(lines) = self {
            lines.drain().await;
        }
    }
}

/// What was heard so far.
#[derive(Debug, Default)]
struct Heard {
    tally: Arc<Tally>,
    prompt_counted: u64,
    prompt_told: Option<u64>,
    output_told: Option<u64>,
    pieces: u64,
    tool_calls: usize,
    done: Option<String>,
}

impl Heard {
    fn take(&mut self, line: &Line) {
        self.prompt_told = line.prompt_tokens.or(self.prompt_told);
        self.output_told = line.output_tokens.or(self.output_told);
        self.pieces += u64::from(line.says_something());
        self.tool_calls += line.tool_calls.len();
        line.heard_by(&self.tally);
        self.done.clone_from(&line.done);
    }

    fn usage(&self) -> Usage {
        usage(self.prompt_told, self.output_told, &self.tally, (self.prompt_counted, self.pieces))
    }

    /// What an answer that breaks off here has used; `None` while there is nothing to pay for.
    fn used(&self) -> Option<Usage> {
        (self.pieces > 0).then(|| self.usage())
    }
}

/// An answer that is being read.
struct Reading<'a> {
    head: AnswerHead,
    lines: Lines,
    chunks: Chunks,
    heard: Heard,
    progress: &'a Progress,
}

impl Reading<'_> {
    async fn into_frames(mut self, mut frames: impl Frames) -> Result<Reply, AttemptFailure> {
        while self.heard.done.is_none() {
            let next = self.lines.next().await.map_err(|failure| paid(failure, self.heard.used()))?;
            let Some(object) = next else { break };
            let line = read_line(self.head, object).map_err(|failure| paid(failure, self.heard.used()))?;
            self.heard.take(&line);
            tell_of_load(line.load_time, self.progress);
            if let Some(chunk) = self.chunks.said(&line) {
                let meaning = if line.says_something() { Meaning::Output } else { Meaning::Other };
                frames.take(event(&chunk), meaning).await.map_err(|failure| paid(failure, self.heard.used()))?;
            }
            if line.says_something() {
                self.lines.content();
            }
        }
        let Some(reason) = self.heard.done.take() else {
            let cut = AttemptFailure::new(Ending::StreamCut, "the stream ended without a line that says it is done");
            return Err(paid(AttemptFailure { status: Some(self.head.status), ..cut }, self.heard.used()));
        };
        if self.heard.pieces == 0 && is_no_draft(Some(&reason)) {
            return Err(no_draft(self.head.status));
        }
        let usage = self.heard.usage();
        let last = [(self.chunks.finished(&reason), Meaning::Other), (self.chunks.usage(usage), Meaning::Usage)];
        for (chunk, meaning) in last {
            frames.take(event(&chunk), meaning).await.map_err(|failure| paid(failure, Some(usage)))?;
        }
        frames.finish().await.map_err(|failure| paid(failure, Some(usage)))?;
        // A connection that has nothing more to say can be used again.
        self.lines.drain().await;
        let reason = finish_reason(&reason, self.heard.tool_calls > 0);
        Ok(reply(self.head, Some(usage), Some(reason.to_owned())))
    }
}

fn event(chunk: &Value) -> SseEvent {
    SseEvent { data: chunk.to_string(), closed: true, ..SseEvent::default() }
}

#[cfg(test)]
mod tests;
