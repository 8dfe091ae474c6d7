//! Rate limits, blocking and with tokio, and the tower layer, on real servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

#[path = "../../tests/rig/mod.rs"]
mod rig;
mod support;

use http::{Request, Response, StatusCode};
use rig::{SOON, Server, ms};
use sluice_client::tower::RateLimitLayer;
use sluice_client::{Error, Limit, Policy, aio, blocking};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};
use support::{Proxy, SLACK, Watch, calls, open, open_aio, url};
use tower_layer::Layer;
use tower_service::Service;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn each_limit_decides_as_its_command_does() {
    let server = Server::start();
    let sluice = open(&server);
    for (name, limit) in
        [("fixed", Limit::fixed(3, HOUR)), ("sliding", Limit::sliding(3, HOUR)), ("bucket", Limit::bucket(3, 1, HOUR))]
    {
        let limiter = sluice.limiter(limit);
        assert!(limiter.peek(name, 3).unwrap().allowed);
        let first = limiter.hit(name).unwrap();
        assert!(first.allowed && first.limit == 3 && first.remaining == 2, "{first:?}");
        assert_eq!(first.retry_after, Some(Duration::ZERO));
        let refused = limiter.hit_many(name, 3).unwrap();
        assert!(!refused.allowed && refused.remaining == 2, "{refused:?}");
        assert!(refused.retry_after.unwrap() > HOUR / 2 && refused.reset_after > HOUR / 2);
        assert_eq!(limiter.hit_many(name, 4).unwrap().retry_after, None, "never");
        let other = limiter.hit_many("other", 0).unwrap();
        assert!(other.allowed && other.remaining == 3 && other.reset_after.is_zero());
        assert_eq!(limiter.limit(), limit);
    }
    assert!(matches!(sluice.limiter(Limit::fixed(0, HOUR)).hit("k"), Err(Error::Server { code, .. }) if code == "ERR"));
    assert!(matches!(sluice.limiter(Limit::sliding(1, HOUR)).hit("fixed"), Err(Error::WrongType(_))));
}

#[test]
fn who_waits_is_admitted_when_there_is_room_and_refused_when_there_is_no_time() {
    let server = Server::start();
    let limiter = open(&server).limiter(Limit::bucket(1, 1, ms(200))).spread(ms(20));
    let (watch, start) = (Watch::start(), Instant::now());
    for _ in 0..3 {
        assert!(limiter.admit("k", 1, SOON).unwrap().allowed);
    }
    let (all, net) = (start.elapsed(), watch.net());
    assert!(all >= ms(399) && net < ms(800) + SLACK, "{all:?}, {net:?}");
    let slow = open(&server).limiter(Limit::fixed(1, HOUR));
    assert!(slow.admit("slow", 1, ms(0)).unwrap().allowed);
    let (watch, before) = (Watch::start(), calls(&server, "rl.fixed"));
    let refused = slow.admit("slow", 1, ms(5000)).unwrap();
    assert!(!refused.allowed && refused.retry_after.unwrap() > HOUR / 2);
    assert!(watch.net() < SLACK, "it does not wait for what cannot be");
    assert!(!slow.admit("slow", 2, SOON).unwrap().allowed, "never");
    assert_eq!(calls(&server, "rl.fixed") - before, 2);
}

#[test]
fn the_refused_do_not_storm() {
    let server = Server::start();
    let limiter = open(&server).limiter(Limit::bucket(5, 20, ms(1000)));
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert!(limiter.admit("k", 1, SOON).unwrap().allowed));
        }
    });
    assert!(start.elapsed() >= ms(740), "the limit holds");
    let calls = calls(&server, "rl.bucket");
    assert!((20..200).contains(&calls), "{calls} calls for 20 admissions");
}

#[test]
fn a_hit_is_not_sent_twice_by_itself() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    // Long enough for a slow machine: the other two must be answered in time.
    let limiter =
        blocking::Sluice::open(&proxy.url()).unwrap().response_timeout(ms(4000)).limiter(Limit::fixed(9, HOUR));
    limiter.hit("k").unwrap();
    proxy.swallow(true);
    assert!(matches!(limiter.hit("k"), Err(Error::Timeout)));
    proxy.swallow(false);
    assert_eq!(limiter.hit("k").unwrap().remaining, 6);
    assert_eq!(calls(&server, "rl.fixed"), 3);
}

#[tokio::test]
async fn with_tokio_it_is_the_same() {
    let server = Server::start();
    let sluice = open_aio(&server);
    let slow = sluice.limiter(Limit::bucket(1, 1, HOUR));
    assert!(slow.hit("slow").await.unwrap().allowed);
    assert!(!slow.peek("slow", 1).await.unwrap().allowed);
    let limiter = sluice.limiter(Limit::bucket(1, 1, ms(200)));
    assert!(limiter.hit("k").await.unwrap().allowed);
    let watch = Watch::start();
    assert!(limiter.admit("k", 1, SOON).await.unwrap().allowed);
    assert!(watch.net() < ms(600) + SLACK);
    assert_eq!(limiter.hit_many("k", 2).await.unwrap().retry_after, None);
    assert!(!sluice.limiter(Limit::fixed(1, HOUR)).admit("f", 2, SOON).await.unwrap().allowed);
}

/// A service that counts its calls.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Service<Request<String>> for Counting {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        self.0.fetch_add(1, Ordering::SeqCst);
        ready(Ok(Response::new(request.into_body())))
    }
}

fn layer(url: &str, limit: Limit) -> RateLimitLayer<String> {
    let limiter = aio::Sluice::open(url).unwrap().response_timeout(SOON).limiter(limit);
    RateLimitLayer::new(limiter, Policy::new("per-user", limit).unwrap(), |request: &Request<String>| {
        request.headers().get("x-user").map(|user| user.as_bytes().to_vec())
    })
}

fn request(user: Option<&str>) -> Request<String> {
    let request = Request::builder().uri("/");
    let request = if let Some(user) = user { request.header("x-user", user) } else { request };
    request.body("hello".to_owned()).unwrap()
}

fn field(response: &Response<String>, name: &str) -> Option<String> {
    response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
}

#[tokio::test]
async fn the_layer_admits_refuses_and_says_so_in_the_headers() {
    let server = Server::start();
    let counting = Counting::default();
    let mut service = layer(&url(&server), Limit::fixed(2, HOUR)).layer(counting.clone());
    for left in [1, 0] {
        let response = service.call(request(Some("alice"))).await.unwrap();
        assert_eq!((response.status(), response.body().as_str()), (StatusCode::OK, "hello"));
        assert_eq!(field(&response, "ratelimit-policy").unwrap(), "\"per-user\";q=2;w=3600");
        let said = field(&response, "ratelimit").unwrap();
        let seconds: u64 = said.strip_prefix(&format!("\"per-user\";r={left};t=")).unwrap().parse().unwrap();
        assert!((3500..=3600).contains(&seconds), "{said}");
        assert_eq!(field(&response, "retry-after"), None);
    }
    let response = service.call(request(Some("alice"))).await.unwrap();
    assert_eq!((response.status(), response.body().as_str()), (StatusCode::TOO_MANY_REQUESTS, ""));
    let seconds: u64 = field(&response, "retry-after").unwrap().parse().unwrap();
    assert!((3500..=3600).contains(&seconds));
    assert_eq!(field(&response, "ratelimit").unwrap(), format!("\"per-user\";r=0;t={seconds}"));
    assert_eq!(counting.0.load(Ordering::SeqCst), 2, "the service was not asked");
    assert_eq!(service.call(request(Some("bob"))).await.unwrap().status(), StatusCode::OK);
    let response = service.call(request(None)).await.unwrap();
    assert_eq!((response.status(), field(&response, "ratelimit")), (StatusCode::OK, None));
}

#[tokio::test]
async fn a_layer_that_cannot_ask_answers_503_or_lets_pass_as_it_was_told() {
    let plain = Server::builder().module(false).start();
    let counting = Counting::default();
    let closed = layer(&url(&plain), Limit::fixed(2, HOUR));
    let response = closed.layer(counting.clone()).call(request(Some("alice"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let error = response.extensions().get::<Arc<Error>>().unwrap();
    assert!(matches!(**error, Error::ModuleMissing { command: "RL.FIXED" }));
    assert_eq!(counting.0.load(Ordering::SeqCst), 0);
    let open = closed.fail_open(true);
    let response = open.layer(counting.clone()).call(request(Some("alice"))).await.unwrap();
    assert_eq!((response.status(), counting.0.load(Ordering::SeqCst)), (StatusCode::OK, 1));
}
