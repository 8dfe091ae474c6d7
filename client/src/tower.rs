//! A [`tower`](https://docs.rs/tower) layer for HTTP: it asks a limiter before each request, answers 429 for those who are refused, and
//! writes the header fields.

use crate::aio::Limiter;
use crate::error::Error;
use crate::limit::{Decision, Policy};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// Which limiter a request counts for; `None`: it is not limited.
type KeyOf<B> = Arc<dyn Fn(&Request<B>) -> Option<Vec<u8>> + Send + Sync>;

/// A layer that limits requests.
///
/// A refused request is answered with 429, `Retry-After`, `RateLimit` and `RateLimit-Policy`, and does not reach the service. An admitted
/// one gets the latter two with its response. If the limiter cannot be asked, the answer is 503, unless
/// [`Self::fail_open`] says otherwise.
///
/// ```no_run
/// use sluice_client::{Limit, Policy, aio::Sluice, tower::RateLimitLayer};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), sluice_client::Error> {
/// let limit = Limit::bucket(100, 20, Duration::from_secs(1));
/// let limiter = Sluice::open("redis://127.0.0.1/")?.limiter(limit);
/// let layer = RateLimitLayer::new(limiter, Policy::new("per-user", limit)?, |request: &http::Request<String>| {
///     let user = request.headers().get("x-user")?;
///     Some([b"api:", user.as_bytes()].concat())
/// });
/// # Ok(())
/// # }
/// ```
pub struct RateLimitLayer<B> {
    rule: Rule<B>,
}

struct Rule<B> {
    limiter: Limiter,
    policy: Policy,
    key_of: KeyOf<B>,
    fail_open: bool,
}

impl<B> Clone for Rule<B> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            policy: self.policy.clone(),
            key_of: Arc::clone(&self.key_of),
            fail_open: self.fail_open,
        }
    }
}

impl<B> RateLimitLayer<B> {
    /// A layer that counts each request for the key that `key_of` makes of it; `None` lets it pass uncounted.
    pub fn new(
        limiter: Limiter,
        policy: Policy,
        key_of: impl Fn(&Request<B>) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        Self { rule: Rule { limiter, policy, key_of: Arc::new(key_of), fail_open: false } }
    }

    /// Whether requests pass, uncounted, while the limiter cannot be asked; no unless said otherwise.
    #[must_use]
    pub fn fail_open(mut self, yes: bool) -> Self {
        self.rule.fail_open = yes;
        self
    }
}

impl<B> Clone for RateLimitLayer<B> {
    fn clone(&self) -> Self {
        Self { rule: self.rule.clone() }
    }
}

impl<B> fmt::Debug for RateLimitLayer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limiter", &self.rule.limiter)
            .field("policy", &self.rule.policy)
            .field("fail_open", &self.rule.fail_open)
            .finish_non_exhaustive()
    }
}

impl<S, B> Layer<S> for RateLimitLayer<B> {
    type Service = RateLimit<S, B>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, rule: self.rule.clone() }
    }
}

/// The service that [`RateLimitLayer`] makes of another.
pub struct RateLimit<S, B> {
    inner: S,
    rule: Rule<B>,
}

impl<S: Clone, B> Clone for RateLimit<S, B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), rule: self.rule.clone() }
    }
}

impl<S: fmt::Debug, B> fmt::Debug for RateLimit<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: Default + Send,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready is used; the other stays for the next call.
        let inner = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, inner);
        let Some(key) = (self.rule.key_of)(&request) else {
            return Box::pin(inner.call(request));
        };
        let rule = self.rule.clone();
        Box::pin(async move {
            match rule.limiter.hit(&key).await {
                Ok(decision) if decision.allowed => {
                    let mut response = inner.call(request).await?;
                    write(response.headers_mut(), &decision, &rule.policy);
                    Ok(response)
                }
                Ok(decision) => {
                    let mut response = Response::new(R::default());
                    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                    write(response.headers_mut(), &decision, &rule.policy);
                    Ok(response)
                }
                Err(_) if rule.fail_open => inner.call(request).await,
                Err(error) => Ok(unavailable(error)),
            }
        })
    }
}

/// What a client gets when the limiter cannot be asked. The error goes along for the layers outside, in the extensions.
fn unavailable<R: Default>(error: Error) -> Response<R> {
    let mut response = Response::new(R::default());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.extensions_mut().insert(Arc::new(error));
    response
}

/// Writes the header fields of a decision. Fields that are there already stay: a service may be limited more than once.
fn write(headers: &mut HeaderMap, decision: &Decision, policy: &Policy) {
    let mut append = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.append(name, value);
        }
    };
    append("ratelimit-policy", policy.value());
    append("ratelimit", decision.ratelimit_value(policy));
    if let Some(seconds) = decision.retry_after_value() {
        append("retry-after", seconds);
    }
}
