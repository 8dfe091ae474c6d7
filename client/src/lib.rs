#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(feature = "tokio")]
pub mod aio;
pub mod blocking;
mod command;
mod error;
mod lease;
mod limit;
mod options;
mod quorum;
mod random;
mod time;
#[cfg(feature = "tower")]
pub mod tower;

pub use error::Error;
pub use lease::Loss;
pub use limit::{Decision, Limit, Policy};
pub use options::{Kind, Options};
pub use quorum::{drift, quorum, validity};
pub use random::{admission_delay, retry_delay};
/// The crate whose `Client` says how a server is reached.
pub use redis;

/// A server by its URL, with small packets sent at once.
fn client(url: &str) -> Result<redis::Client, Error> {
    let info = redis::IntoConnectionInfo::into_connection_info(url).map_err(Error::Connection)?;
    let settings = info.tcp_settings().clone().set_nodelay(true);
    redis::Client::open(info.set_tcp_settings(settings)).map_err(Error::Connection)
}

/// The examples of the pages are compiled with the tests.
#[cfg(all(doctest, feature = "tower"))]
mod pages {
    #[doc = include_str!("../../docs/client.md")]
    struct Client;
    #[doc = include_str!("../../docs/redlock.md")]
    struct Redlock;
}
