//! The outermost layer of every answer: checks a request's head against its bounds, and gives errors their trace id, their language and
//! the shape of their surface. Decides nothing about content.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Uri},
    middleware::Next,
    response::Response,
};

use super::{
    failure::{ErrorShape, Failure},
    trace::RequestFacts,
};
use crate::{model::envelope::ErrorCode, serve::state::AppState, settings::serve::ServeSettings};

/// Bytes of a request's path and query.
pub const URI_BYTES_MAX: usize = 8 * 1024;

/// Lets a request through and dresses its answer.
pub async fn dress(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let facts = RequestFacts::of(request.headers(), state.language);
    let answer = match check_head(request.uri(), request.headers(), &state.settings) {
        Ok(()) => {
            request.extensions_mut().insert(facts.clone());
            next.run(request).await
        }
        Err(failure) => axum::response::IntoResponse::into_response(failure),
    };
    dressed(answer, &facts)
}

fn dressed(mut answer: Response, facts: &RequestFacts) -> Response {
    let Some(mut failure) = answer.extensions_mut().remove::<Failure>() else { return answer };
    let shape = answer.extensions_mut().remove::<ErrorShape>();
    let mut envelope = failure.envelope.in_language(facts.language);
    envelope.trace_id.get_or_insert_with(|| facts.trace_id.clone());
    *failure.envelope = envelope;
    let mut written = failure.to_response(shape.as_ref());
    // What the way out added (CORS, Allow, our own headers) stays.
    for (name, value) in answer.headers() {
        if !written.headers().contains_key(name) && name != axum::http::header::CONTENT_LENGTH {
            written.headers_mut().append(name, value.clone());
        }
    }
    written
}

fn check_head(uri: &Uri, headers: &HeaderMap, settings: &ServeSettings) -> Result<(), Failure> {
    let refuse = |status, message: String| Err(Failure::with_status(ErrorCode::InvalidRequest, status, message));
    let length = uri.path_and_query().map_or(0, |path| path.as_str().len());
    if length > URI_BYTES_MAX {
        let message = format!("path and query have {length} bytes, at most {URI_BYTES_MAX} are allowed");
        return refuse(StatusCode::URI_TOO_LONG, message);
    }
    let max = settings.headers_max as usize;
    if headers.len() > max {
        let message = format!("there are {} headers, at most {max} are allowed", headers.len());
        return refuse(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message);
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let max = settings.header_bytes_max as usize;
    if bytes > max {
        let message = format!("the headers have {bytes} bytes, at most {max} are allowed");
        return refuse(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message);
    }
    Ok(())
}
