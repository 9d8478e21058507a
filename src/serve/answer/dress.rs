//! The outermost layer of every answer: gives errors their trace id, their language and the shape of their surface. Decides nothing
//! about content.

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};

use super::{
    failure::{ErrorShape, Failure},
    trace::RequestFacts,
};
use crate::serve::state::AppState;

/// Lets a request through and dresses its answer.
pub async fn dress(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    // The listener has read them for its own refusals; without one they are read here.
    let facts = match request.extensions().get::<RequestFacts>() {
        Some(facts) => facts.clone(),
        None => RequestFacts::of(request.headers(), state.language),
    };
    request.extensions_mut().insert(facts.clone());
    dressed(next.run(request).await, &facts)
}

fn dressed(mut answer: Response, facts: &RequestFacts) -> Response {
    let Some(mut failure) = answer.extensions_mut().remove::<Failure>() else { return answer };
    let shape = answer.extensions_mut().remove::<ErrorShape>();
    *failure.envelope = facts.dressed(*failure.envelope);
    let mut written = failure.to_response(shape.as_ref());
    // What the way out added (CORS, Allow, our own headers) stays.
    for (name, value) in answer.headers() {
        if !written.headers().contains_key(name) && name != axum::http::header::CONTENT_LENGTH {
            written.headers_mut().append(name, value.clone());
        }
    }
    written
}
