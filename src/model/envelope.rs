//! The one shape of every error. Codes, their outward status and whether a later call can succeed stand in one table here;
//! nothing else in the program invents a code.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::language::Language;

macro_rules! error_codes {
    ($($variant:ident $text:literal $status:literal $retryable:literal $english:literal $korean:literal;)*) => {
        /// What went wrong, as a stable code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[allow(missing_docs, reason = "each code has its own page in docs/errors")]
        pub enum ErrorCode {
            $(#[serde(rename = $text)] $variant,)*
        }

        impl ErrorCode {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The code as it stands on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The HTTP status that the code goes out with unless the case says otherwise.
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// Whether a later call can succeed, unless the case says otherwise.
            pub const fn retryable(self) -> bool {
                match self { $(Self::$variant => $retryable,)* }
            }

            /// A sentence for a screen.
            pub const fn user_message(self, language: Language) -> &'static str {
                match (self, language) {
                    $((Self::$variant, Language::En) => $english, (Self::$variant, Language::Ko) => $korean,)*
                }
            }
        }
    };
}

error_codes! {
    AgentNetworkError "AGENT_NETWORK_ERROR" 502 true "The service could not be reached. Please try again." "서비스에 연결할 수 없습니다. 다시 시도해 주세요.";
    AgentTimeout "AGENT_TIMEOUT" 504 true "The service took too long. Please try again." "응답이 너무 오래 걸립니다. 다시 시도해 주세요.";
    AgentBadReply "AGENT_BAD_REPLY" 502 true "The answer could not be read. Please try again." "응답을 읽을 수 없습니다. 다시 시도해 주세요.";
    AgentError "AGENT_ERROR" 502 false "The request could not be handled." "요청을 처리할 수 없습니다.";
    AgentCircuitOpen "AGENT_CIRCUIT_OPEN" 503 true "This part of the service is resting. Please try again later." "이 기능이 쉬고 있습니다. 나중에 다시 시도해 주세요.";
    AgentBulkheadFull "AGENT_BULKHEAD_FULL" 503 true "Many requests at once. Please try again in a moment." "요청이 많습니다. 잠시 후 다시 시도해 주세요.";
    AgentWarming "AGENT_WARMING" 503 true "The model is being loaded. Please wait a moment." "모델을 불러오는 중입니다. 잠시만 기다려 주세요.";
    AgentRestarted "AGENT_RESTARTED" 503 true "The service restarted. Please try again." "서비스가 다시 시작되었습니다. 다시 시도해 주세요.";
    RateLimited "RATE_LIMITED" 429 true "Too many requests. Please wait a moment." "요청이 너무 잦습니다. 잠시 기다려 주세요.";
    TokenBudgetExhausted "TOKEN_BUDGET_EXHAUSTED" 429 true "This minute's allowance is used up. Please wait a moment." "이번 분의 사용량을 모두 썼습니다. 잠시 기다려 주세요.";
    TokenRequestTooLarge "TOKEN_REQUEST_TOO_LARGE" 413 false "The request is too large. Please shorten it." "요청이 너무 큽니다. 줄여 주세요.";
    QuotaSpent "QUOTA_SPENT" 402 false "The allowance is used up." "사용 한도를 모두 썼습니다.";
    LoadShed "LOAD_SHED" 503 true "The service is busy. Please try again later." "서비스가 바쁩니다. 나중에 다시 시도해 주세요.";
    CallVolumeExceeded "CALL_VOLUME_EXCEEDED" 429 true "Too many calls in a short time." "짧은 시간에 호출이 너무 많습니다.";
    ContentFiltered "CONTENT_FILTERED" 422 false "The content was refused by review." "콘텐츠 검토에서 거절되었습니다.";
    DeadlineExceeded "DEADLINE_EXCEEDED" 504 false "It was not finished in the time allowed." "정해진 시간 안에 끝나지 못했습니다.";
    Cancelled "CANCELLED" 499 false "Cancelled." "취소되었습니다.";
    ShuttingDown "SHUTTING_DOWN" 503 true "The service is restarting. Please try again." "서비스를 다시 시작하고 있습니다. 다시 시도해 주세요.";
    InvalidRequest "INVALID_REQUEST" 400 false "The request is not valid." "요청이 올바르지 않습니다.";
    NotFound "NOT_FOUND" 404 false "Not found." "찾을 수 없습니다.";
    Unauthorized "UNAUTHORIZED" 401 false "Please sign in." "로그인이 필요합니다.";
    Forbidden "FORBIDDEN" 403 false "Not allowed." "허용되지 않습니다.";
    Conflict "CONFLICT" 409 false "This was changed meanwhile." "그사이 변경되었습니다.";
    Internal "INTERNAL" 500 false "Something went wrong on our side." "내부 오류가 발생했습니다.";
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// An error as it goes out. Serialised alone it is the inner object; [`Envelope::to_wire`] adds the outer `error`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// Stable code.
    pub error_code: ErrorCode,
    /// For developers.
    pub message: String,
    /// For a screen.
    pub user_message: String,
    /// The agent that was called, if one was.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub agent: Option<String>,
    /// The status that this error has over HTTP.
    pub http_status: u16,
    /// Whether a later call can succeed.
    pub retryable: bool,
    /// Seconds until a later call makes sense; at least 1 when present.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry_after: Option<f64>,
    /// The run it happened in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub run_id: Option<String>,
    /// For finding it in traces and logs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trace_id: Option<String>,
    /// Facts beside the code: `attempts`, `breaker`, `reason`, `compartment`, `upstream_code`, ...
    #[serde(skip_serializing_if = "Map::is_empty", default)]
    pub details: Map<String, Value>,
}

impl Envelope {
    /// An envelope with the code's own status, retryability and screen text.
    pub fn new(error_code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            error_code,
            message: message.into(),
            user_message: error_code.user_message(Language::En).to_owned(),
            agent: None,
            http_status: error_code.http_status(),
            retryable: error_code.retryable(),
            retry_after: None,
            run_id: None,
            trace_id: None,
            details: Map::new(),
        }
    }

    /// The same with the screen text in `language`, unless an agent sent a text of its own.
    #[must_use]
    pub fn in_language(mut self, language: Language) -> Self {
        let ours = [Language::En, Language::Ko].map(|known| self.error_code.user_message(known));
        if ours.contains(&self.user_message.as_str()) {
            self.error_code.user_message(language).clone_into(&mut self.user_message);
        }
        // What an operator wrote for people comes before both.
        let key = match language {
            Language::En => "en",
            Language::Ko => "ko",
        };
        let notice = self.details.get("notice").and_then(|notice| notice.get(key)).and_then(Value::as_str);
        if let Some(text) = notice.map(str::to_owned) {
            self.user_message = text;
        }
        self
    }

    /// Whether a client that waits and tries again does any good. Not where a later call cannot succeed, nor at a gate that is shut until
    /// somebody acts: nobody knows when, and it says no time.
    pub fn helps_to_wait(&self) -> bool {
        self.retryable && (self.error_code != ErrorCode::AgentCircuitOpen || self.retry_after.is_some())
    }

    /// The same for the agent of this name.
    #[must_use]
    pub fn with_agent(mut self, agent: &str) -> Self {
        self.agent = Some(agent.to_owned());
        self
    }

    /// The same with seconds until a later call makes sense, lifted to 1 where less.
    #[must_use]
    pub fn with_retry_after(mut self, seconds: f64) -> Self {
        self.retry_after = seconds.is_finite().then(|| (seconds.max(1.0) * 1_000.0).round() / 1_000.0);
        self
    }

    /// The same with one more fact in `details`.
    #[must_use]
    pub fn with_detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// `{"error": {...}}`.
    pub fn to_wire(&self) -> Value {
        serde_json::json!({ "error": self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_helps_with_what_passes_by_itself() {
        let plain = |code| Envelope::new(code, "no");
        for (envelope, helps) in [
            (plain(ErrorCode::AgentCircuitOpen).with_retry_after(3.0), true),
            (plain(ErrorCode::AgentCircuitOpen), false),
            (plain(ErrorCode::AgentNetworkError), true),
            (plain(ErrorCode::QuotaSpent).with_retry_after(3.0), false),
        ] {
            assert_eq!(envelope.helps_to_wait(), helps, "{envelope:?}");
        }
    }

    #[test]
    fn retry_after_is_at_least_one_and_finite() {
        let plain = Envelope::new(ErrorCode::AgentCircuitOpen, "x");
        assert_eq!(plain.clone().with_retry_after(0.0).retry_after, Some(1.0));
        assert_eq!(plain.clone().with_retry_after(21.4).retry_after, Some(21.4));
        assert_eq!(plain.with_retry_after(f64::NAN).retry_after, None);
    }

    #[test]
    fn codes_survive_the_wire() {
        for code in ErrorCode::ALL {
            let text = serde_json::to_string(code).unwrap();
            assert_eq!(text, format!("{:?}", code.as_str()));
            assert_eq!(serde_json::from_str::<ErrorCode>(&text).unwrap(), *code);
            assert!((400..600).contains(&code.http_status()));
        }
    }

    #[test]
    fn an_agents_own_screen_text_stays() {
        let mut own = Envelope::new(ErrorCode::AgentError, "x");
        own.user_message = "사진이 너무 큽니다".into();
        assert_eq!(own.clone().in_language(Language::Ko).user_message, "사진이 너무 큽니다");
        let notice = serde_json::json!({ "ko": "점검 중입니다", "en": "Under repair" });
        let told = own.clone().with_detail("notice", notice);
        assert_eq!(told.clone().in_language(Language::En).user_message, "Under repair");
        assert_eq!(told.in_language(Language::Ko).user_message, "점검 중입니다");
        let ours = Envelope::new(ErrorCode::AgentTimeout, "x").in_language(Language::Ko);
        assert_eq!(ours.user_message, ErrorCode::AgentTimeout.user_message(Language::Ko));
    }
}
