//! A `tower` layer that puts an agent's guards around any client: breaker, slots and judge, zero wait, typed refusals.
//!
//! ```text
//!   caller ── GuardLayer ── your client ── the net
//!                │ refused: GuardError::Refused, at once, the client is not asked
//!                └ answered or failed: judged by what `classify` says of it
//! ```

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

use super::{
    call::{CallContext, CallError},
    handle::AgentHandle,
};
use crate::model::facts::Ending;

/// Puts an agent's guards around a service. `classify` says how a response or error of the service ended, as facts.
pub struct GuardLayer<C> {
    handle: AgentHandle,
    classify: Arc<C>,
    context: Arc<CallContext>,
}

impl<C> GuardLayer<C> {
    /// The guards of `handle`'s agent, which may well be one that does no work of its own
    /// ([`super::outside::OutsideBackend`]).
    pub fn new(handle: AgentHandle, classify: C) -> Self {
        Self { handle, classify: Arc::new(classify), context: Arc::new(CallContext::own()) }
    }

    /// Whose calls these are: without it they are the program's own, of no feature and no tenant.
    #[must_use]
    pub fn on_behalf_of(self, context: CallContext) -> Self {
        Self { context: Arc::new(context), ..self }
    }
}

impl<C> Clone for GuardLayer<C> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone(), classify: Arc::clone(&self.classify), context: Arc::clone(&self.context) }
    }
}

impl<C> std::fmt::Debug for GuardLayer<C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("GuardLayer").field(&self.handle).finish()
    }
}

impl<S, C> Layer<S> for GuardLayer<C> {
    type Service = Guarded<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        let Self { handle, classify, context } = self.clone();
        Guarded { inner, handle, classify, context }
    }
}

/// A guarded service.
pub struct Guarded<S, C> {
    inner: S,
    handle: AgentHandle,
    classify: Arc<C>,
    context: Arc<CallContext>,
}

impl<S: Clone, C> Clone for Guarded<S, C> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            handle: self.handle.clone(),
            classify: Arc::clone(&self.classify),
            context: Arc::clone(&self.context),
        }
    }
}

impl<S, C> std::fmt::Debug for Guarded<S, C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Guarded").field(&self.handle).finish()
    }
}

/// How a guarded call failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GuardError<E> {
    /// A guard refused it; the service was not asked.
    #[error(transparent)]
    Refused(CallError),
    /// The service's own error.
    #[error("{0}")]
    Inner(E),
}

impl<S, C, Request> Service<Request> for Guarded<S, C>
where
    S: Service<Request> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    C: Fn(&Result<S::Response, S::Error>) -> Ending + Send + Sync + 'static,
    Request: Send + 'static,
{
    type Response = S::Response;
    type Error = GuardError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, GuardError<S::Error>>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(GuardError::Inner)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let mut admission = match self.handle.enter(&self.context) {
            Ok(admission) => admission,
            Err(error) => return Box::pin(std::future::ready(Err(GuardError::Refused(error)))),
        };
        // The service that was polled ready is the one that is called.
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone);
        let classify = Arc::clone(&self.classify);
        let slow_call = self.handle.slow_call();
        Box::pin(async move {
            let work = ready.call(request);
            tokio::pin!(work);
            let result = if let Ok(result) = tokio::time::timeout(slow_call, &mut work).await {
                result
            } else {
                // Exactly the threshold is not slow yet.
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                admission.grow_old();
                work.await
            };
            admission.finish(classify(&result));
            result.map_err(GuardError::Inner)
        })
    }
}
