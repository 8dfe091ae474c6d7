//! A server, and the connections to it.

use super::{Limiter, Lock};
use crate::client;
use crate::command::Call;
use crate::error::{Error, from_server};
use crate::limit::Limit;
use crate::options::Options;
use crate::time::{later, left};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, RedisError, Value};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// A server with the module. Its locks and limiters share one connection, and a clone shares it too; a call that waits in the
/// server has a connection of its own for as long.
///
/// No command is ever sent by itself a second time where that counts twice: a call to a limiter, that is. Lock commands are safe to
/// send again, and are, once, when the connection turns out to be closed.
#[derive(Clone)]
pub struct Sluice {
    client: Client,
    response_timeout: Duration,
    shared: Arc<Mutex<Shared>>,
}

/// The connection that all share, and which one it is since the first.
#[derive(Default)]
struct Shared {
    connection: Option<MultiplexedConnection>,
    number: u64,
}

impl Sluice {
    /// A server by its URL, such as `redis://127.0.0.1/`. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Connection`] if this is no URL of a server.
    pub fn open(url: &str) -> Result<Self, Error> {
        client(url).map(Self::new)
    }

    /// A server as the redis crate knows it: with a password, TLS, a Unix socket …
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, response_timeout: Duration::from_secs(1), shared: Arc::default() }
    }

    /// How long the server may take to accept a connection, and to answer; 1 s unless said otherwise. Where a call waits in
    /// the server, this is on top of the wait.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// A lock.
    #[must_use]
    pub fn lock(&self, key: impl AsRef<[u8]>, options: Options) -> Lock {
        Lock::new(self.clone(), key.as_ref().to_vec(), options)
    }

    /// A rate limit.
    #[must_use]
    pub fn limiter(&self, limit: Limit) -> Limiter {
        Limiter::new(self.clone(), limit)
    }

    pub(super) const fn timeout(&self) -> Duration {
        self.response_timeout
    }

    pub(super) async fn fresh(&self, within: Duration) -> Result<MultiplexedConnection, RedisError> {
        let within = within.min(self.response_timeout).max(Duration::from_millis(1));
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(within)).set_response_timeout(None);
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    async fn shared(&self, within: Duration) -> Result<Numbered, Error> {
        let take = async {
            let mut shared = self.shared.lock().await;
            if let Some(connection) = &shared.connection {
                return Ok(Numbered { connection: connection.clone(), number: shared.number });
            }
            let connection = self.fresh(within).await?;
            shared.connection = Some(connection.clone());
            shared.number = shared.number.wrapping_add(1);
            Ok(Numbered { connection, number: shared.number })
        };
        match timeout(within, take).await {
            Ok(taken) => taken.map_err(Error::Connection),
            Err(_) => Err(Error::Connection(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut)))),
        }
    }

    /// One has failed: others take another.
    async fn forget(&self, number: u64) {
        let mut shared = self.shared.lock().await;
        if shared.number == number {
            shared.connection = None;
        }
    }
}

impl fmt::Debug for Sluice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sluice").field("response_timeout", &self.response_timeout).finish_non_exhaustive()
    }
}

struct Numbered {
    connection: MultiplexedConnection,
    number: u64,
}

/// The connection that one holder uses, which is the shared one as long as that is good.
pub(super) struct Link {
    sluice: Sluice,
    connection: Option<Numbered>,
    /// The last call over the connection was not answered in time. Another one is still carried out behind it, in that order.
    behind: bool,
    /// Something was sent.
    sent: bool,
}

impl Link {
    pub(super) const fn new(sluice: Sluice) -> Self {
        Self { sluice, connection: None, behind: false, sent: false }
    }

    pub(super) const fn sluice(&self) -> &Sluice {
        &self.sluice
    }

    /// Sends a call and reads its answer. After [`Error::Timeout`] the connection is kept, for [`Self::behind`] only.
    pub(super) async fn ask(&mut self, call: &Call, within: Duration) -> Result<Value, Error> {
        self.send(call, within, false).await
    }

    /// The same for a call that may be carried out twice: it is sent again, once, if the connection turns out to be closed.
    pub(super) async fn ask_again(&mut self, call: &Call, within: Duration) -> Result<Value, Error> {
        self.send(call, within, true).await
    }

    async fn send(&mut self, call: &Call, within: Duration, again: bool) -> Result<Value, Error> {
        if std::mem::take(&mut self.behind) {
            self.connection = None;
        }
        let deadline = later(Instant::now(), within);
        let mut again = again;
        loop {
            let using = match self.connection.take() {
                Some(using) => using,
                None => self.sluice.shared(left(Instant::now(), deadline)).await?,
            };
            let (mut connection, number) = (using.connection.clone(), using.number);
            // Kept also if this future is dropped: what is to be carried out behind it goes over the same connection.
            self.connection = Some(using);
            self.behind = true;
            self.sent = true;
            let error = match timeout(left(Instant::now(), deadline), read(&mut connection, call)).await {
                Err(_) => {
                    self.sluice.forget(number).await;
                    return Err(Error::Timeout);
                }
                Ok(Ok(answer)) => {
                    self.behind = false;
                    return Ok(answer);
                }
                Ok(Err(error)) => error,
            };
            self.behind = false;
            if !from_server(&error) {
                self.connection = None;
                self.sluice.forget(number).await;
                if std::mem::take(&mut again) {
                    continue;
                }
            }
            return Err(Error::of(error, call.name));
        }
    }

    /// Sends a call so that it is carried out after the one before, though that has not been answered. What it answers is
    /// not of interest, and nothing is known if it fails.
    pub(super) async fn behind(&mut self, call: &Call, within: Duration) {
        self.behind = false;
        if let Some(mut using) = self.connection.take() {
            match timeout(within, read(&mut using.connection, call)).await {
                // Answered; or sent, and as long as this host and the server's live it will be read.
                Ok(Ok(_)) | Err(_) => return,
                Ok(Err(_)) => {}
            }
        }
        let _ = self.ask(call, within).await;
    }

    /// Whether anything was sent at all.
    pub(super) const fn has_sent(&self) -> bool {
        self.sent
    }
}

/// Sends a call over a connection, and reads its answer for as long as it takes.
pub(super) async fn read(connection: &mut MultiplexedConnection, call: &Call) -> Result<Value, RedisError> {
    connection.req_packed_command(&call.cmd).await?.extract_error()
}
