//! A service's answer on its way out, byte for byte, with everything that is held until it has ended. What ends it before its time (our own
//! limits, a node that stops) is told where its form can tell it, and is an answer that breaks off elsewhere: nobody takes a part for the
//! whole. Decides nothing about requests.

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use crate::{
    model::{contract, envelope::Envelope, facts::Ending, name::Name},
    policy::verdict::Keyed,
    runtime::{
        outside::{Admission, Part},
        refusal::failure_envelope,
    },
    serve::{
        answer::{failure::Failure, sse, trace::RequestFacts},
        caps::Place,
    },
    transport::{pass_on::PassedOn, wire::ERROR_BODY_BYTES_MAX},
};

use super::{pass::without_hop_by_hop, pass_tokens::UsageReader};

/// No line end is longer than half of this: enough to see whether a stream stands between two events.
const TAIL_BYTES: usize = 4;

/// What is ours to say: which pages read our answers, and how a call went. A service's own word on it would be taken for ours.
const OUR_WORDS: [&str; 2] = ["access-control-", "x-watertight-"];

/// An answer that is being passed on.
pub(super) struct Passing {
    passed: PassedOn,
    /// `None` once it was judged.
    admission: Option<Admission>,
    /// Bytes that are still to come, where its head tells: after the last of them nobody asks for more.
    left: Option<u64>,
    /// As much of it as says how it ended.
    kept: Vec<u8>,
    /// As much of it as says what it used; `None` where that cannot be read.
    usage: Option<UsageReader>,
    /// Which part is waited for next.
    part: Part,
    /// Where a stream of events stands; `None` = its form has no place for a word of ours.
    events: Option<Tail>,
    agent: Name,
    /// This node stops, and grace is nearly over.
    last_words: CancellationToken,
    facts: RequestFacts,
    #[allow(dead_code, reason = "held for its drop")]
    place: Place,
}

fn without_our_words(headers: &HeaderMap) -> HeaderMap {
    let is_ours = |name: &HeaderName| OUR_WORDS.iter().any(|begin| name.as_str().starts_with(begin));
    headers.iter().filter(|(name, _)| !is_ours(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

impl Passing {
    pub(super) fn begin(
        passed: PassedOn,
        mut admission: Admission,
        agent: &Name,
        last_words: CancellationToken,
        facts: RequestFacts,
        place: Place,
    ) -> Self {
        admission.answered(passed.status());
        let events = takes_events(&passed.headers).then(Tail::default);
        let (left, admission, agent) = (passed.bytes(), Some(admission), agent.clone());
        let (kept, usage) = (Vec::new(), UsageReader::of(&passed.headers));
        Self { passed, admission, left, kept, usage, part: Part::Head, events, agent, last_words, facts, place }
    }

    pub(super) fn into_answer(mut self) -> Response {
        if self.left == Some(0) {
            self.is_whole();
        }
        let status = StatusCode::from_u16(self.passed.status()).unwrap_or(StatusCode::BAD_GATEWAY);
        let mut headers = without_our_words(&without_hop_by_hop(&self.passed.headers));
        if let Ok(value) = HeaderValue::from_str(self.agent.as_str()) {
            headers.insert(HeaderName::from_static(contract::AGENT), value);
        }
        let body = stream::unfold(self, |mut passing| async move {
            let piece = passing.next().await?;
            Some((piece, passing))
        });
        let mut answer = Response::new(Body::from_stream(body));
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        answer
    }

    /// The next piece. The answer is judged when its last one is out, or when it breaks; the time in which the client does not take what
    /// is there is nobody's.
    async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        let admission = self.admission.as_mut()?;
        let waited = tokio::select! {
            biased;
            () = self.last_words.cancelled() => None,
            waited = admission.wait_for(self.part, self.passed.piece()) => Some(waited),
        };
        let Some(waited) = waited else {
            // Judged as if its caller had left.
            self.admission = None;
            return Some(self.cut_short(*Failure::shutting_down().envelope));
        };
        match waited {
            Ok(Some(piece)) => {
                admission.content();
                self.part = Part::Piece;
                self.keep(&piece);
                self.left = self.left.map(|left| left.saturating_sub(piece.len() as u64));
                if self.left == Some(0) {
                    self.is_whole();
                }
                Some(Ok(piece))
            }
            Ok(None) => {
                self.is_whole();
                None
            }
            Err(failure) => {
                self.admission.take()?.fail(&failure);
                let is_ours = matches!(failure.ending, Ending::Timeout { .. } | Ending::DeadlineCut);
                let told = is_ours.then(|| failure_envelope(&failure, self.agent.as_str(), Keyed::No, 1));
                Some(match told {
                    Some(envelope) => self.cut_short(envelope),
                    None => Err(std::io::Error::other("the service's answer broke off")),
                })
            }
        }
    }

    /// All of it came: it is judged by its status and by what an error in it says.
    fn is_whole(&mut self) {
        let failure = self.passed.failure(&self.kept);
        let told = self.usage.as_ref().and_then(UsageReader::usage);
        let Some(mut admission) = self.admission.take() else { return };
        if let Some(usage) = told {
            admission.used(usage);
        }
        match failure {
            Some(failure) => admission.fail(&failure),
            None => admission.finish(Ending::Success),
        }
    }

    fn keep(&mut self, piece: &[u8]) {
        if let Some(reader) = &mut self.usage {
            reader.push(piece);
            if let Some(admission) = &mut self.admission {
                admission.heard(reader.events());
            }
        }
        if self.passed.is_telling() {
            let room = ERROR_BODY_BYTES_MAX.saturating_sub(self.kept.len());
            self.kept.extend_from_slice(piece.get(..room).unwrap_or(piece));
        }
        if let Some(tail) = &mut self.events {
            tail.push(piece);
        }
    }

    /// The last that a client gets of an answer that we end ourselves: a word of it, or no end at all.
    fn cut_short(&self, envelope: Envelope) -> Result<Bytes, std::io::Error> {
        let (agent, trace_id, code) = (self.agent.as_str(), &*self.facts.trace_id, envelope.error_code.as_str());
        if self.last_words.is_cancelled() {
            tracing::warn!(agent, trace_id, code, "grace is over: an answer is ended before its end");
        } else {
            tracing::debug!(agent, trace_id, code, "an answer is ended before its end");
        }
        match &self.events {
            Some(tail) if tail.is_between_events() => {
                Ok(Bytes::from(sse::named("error", &self.facts.dressed(envelope).to_wire())))
            }
            _ => Err(std::io::Error::other("the answer is ended before its end")),
        }
    }
}

/// Whether an answer is a stream of events that one of ours can be added to.
fn takes_events(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
        && !headers.contains_key(header::CONTENT_LENGTH)
        && !headers.contains_key(header::CONTENT_ENCODING)
}

/// The last bytes of a stream of events.
#[derive(Debug, Default)]
struct Tail(Vec<u8>);

impl Tail {
    fn push(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(piece.get(piece.len().saturating_sub(TAIL_BYTES)..).unwrap_or(piece));
        self.0.drain(..self.0.len().saturating_sub(TAIL_BYTES));
    }

    /// Whether an event may begin here: nothing was sent, or an empty line is the last.
    fn is_between_events(&self) -> bool {
        let tail = self.0.as_slice();
        let line = tail.strip_suffix(b"\r\n").or_else(|| tail.strip_suffix(b"\n")).or_else(|| tail.strip_suffix(b"\r"));
        tail.is_empty() || line.is_some_and(|line| line.ends_with(b"\n") || line.ends_with(b"\r"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_ours_never_falls_into_another_one() {
        for (pieces, is_between) in [
            (&[][..], true),
            (&["data: a\n\n"], true),
            (&["data: a\r\n\r\n"], true),
            (&["data: a\r\r"], true),
            (&["data: a\n", "\n"], true),
            (&["data: a\r\n", "\r", "\n"], true),
            (&["data: a\n\r\n"], true),
            (&["data: a"], false),
            (&["data: a\n"], false),
            (&["data: a\r\n"], false),
            (&["data: a\n\nd"], false),
            (&["data: a\n\n", "data: b"], false),
        ] {
            let mut tail = Tail::default();
            for piece in pieces {
                tail.push(piece.as_bytes());
            }
            assert_eq!(tail.is_between_events(), is_between, "{pieces:?}");
        }
    }

    #[test]
    fn which_answers_take_an_event() {
        let of = |headers: &[(&str, &str)]| {
            let pairs = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            takes_events(&pairs.collect::<HeaderMap>())
        };
        assert!(of(&[("content-type", "Text/Event-Stream; charset=utf-8")]));
        for other in [
            &[][..],
            &[("content-type", "application/json")],
            &[("content-type", "text/event-stream"), ("content-length", "9")],
            &[("content-type", "text/event-stream"), ("content-encoding", "gzip")],
        ] {
            assert!(!of(other), "{other:?}");
        }
    }
}
