//! A server, and the connections to it.

use super::{Limiter, Lock};
use crate::client;
use crate::command::Call;
use crate::error::{Error, from_server, interrupted};
use crate::limit::Limit;
use crate::options::Options;
use crate::time::{later, left};
use redis::{Client, Connection, ConnectionLike, RedisError, Value};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many idle connections are kept.
const KEPT: usize = 16;

/// A server with the module. It keeps connections that are idle; a clone shares them.
///
/// No command is ever sent by itself a second time where that counts twice: a call to a limiter, that is. Lock commands are safe to
/// send again, and are, once, when the connection turns out to be closed.
#[derive(Clone)]
pub struct Sluice {
    client: Client,
    response_timeout: Duration,
    idle: Arc<Mutex<Vec<Connection>>>,
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
        Self { client, response_timeout: Duration::from_secs(1), idle: Arc::default() }
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

    /// The idle connections, those that are closed left out.
    fn idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let connection = idle.pop()?;
            if connection.is_open() {
                return Some(connection);
            }
        }
    }

    fn fresh(&self, within: Duration) -> Result<Connection, RedisError> {
        self.client.get_connection_with_timeout(within.max(Duration::from_millis(1)))
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(connection);
        }
    }

    /// One has failed: those that were idle have very likely failed too.
    fn forget(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl fmt::Debug for Sluice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sluice").field("response_timeout", &self.response_timeout).finish_non_exhaustive()
    }
}

/// One connection after another, for one holder or one call at a time.
pub(super) struct Link {
    sluice: Sluice,
    connection: Option<Connection>,
    /// The last call over the connection was not answered in time, or a signal came first. Another one is still carried out
    /// behind it, in that order.
    behind: bool,
    /// Something was sent at some time.
    sent: bool,
}

impl Link {
    pub(super) const fn new(sluice: Sluice) -> Self {
        Self { sluice, connection: None, behind: false, sent: false }
    }

    pub(super) const fn sluice(&self) -> &Sluice {
        &self.sluice
    }

    /// Sends a call and reads its answer. After [`Error::Timeout`], and after a signal, the connection is kept, for
    /// [`Self::behind`] only.
    pub(super) fn ask(&mut self, call: &Call, within: Duration) -> Result<Value, Error> {
        self.send(call, within, false)
    }

    /// The same for a call that may be carried out twice: it is sent again, once, if the connection turns out to be closed, and as
    /// long as there is time if a signal interrupts it.
    pub(super) fn ask_again(&mut self, call: &Call, within: Duration) -> Result<Value, Error> {
        self.send(call, within, true)
    }

    fn send(&mut self, call: &Call, within: Duration, again: bool) -> Result<Value, Error> {
        if std::mem::take(&mut self.behind) {
            self.connection = None;
        }
        let deadline = later(Instant::now(), within);
        let mut once_more = again;
        loop {
            let mut connection = match self.connection.take().or_else(|| self.sluice.idle()) {
                Some(connection) => connection,
                None => {
                    self.sluice.fresh(left(Instant::now(), deadline).min(self.sluice.response_timeout)).map_err(
                        |error| {
                            self.sluice.forget();
                            // Also if it took too long: Timeout is about what was sent.
                            Error::Connection(error)
                        },
                    )?
                }
            };
            self.sent = true;
            let error = match read(&mut connection, call, left(Instant::now(), deadline)) {
                Ok(answer) => {
                    self.connection = Some(connection);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if from_server(&error) {
                self.connection = Some(connection);
            } else if interrupted(&error) && again && Instant::now() < deadline {
                // Over a fresh connection: on this one the answer may still come, and not to be told from the next.
                continue;
            } else if error.is_timeout() || interrupted(&error) {
                self.connection = Some(connection);
                self.behind = true;
                self.sluice.forget();
            } else {
                self.sluice.forget();
                if std::mem::take(&mut once_more) {
                    continue;
                }
            }
            return Err(Error::of(error, call.name));
        }
    }

    /// Sends a call so that it is carried out after the one before, though that has not been answered. What it answers is
    /// not of interest, and nothing is known if it fails.
    pub(super) fn behind(&mut self, call: &Call, within: Duration) {
        self.behind = false;
        if let Some(mut connection) = self.connection.take()
            && connection.is_open()
        {
            match read(&mut connection, call, within) {
                Ok(_) => return self.sluice.keep(connection),
                // Sent, and as long as this host and the server's live it will be read.
                Err(error) if error.is_timeout() => return,
                Err(_) => {}
            }
        }
        let _ = self.ask(call, within);
    }

    /// Whether anything was sent at all.
    pub(super) const fn has_sent(&self) -> bool {
        self.sent
    }

    /// Sees to a connection, so that the time of the next call is that call's alone.
    pub(super) fn connect(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.behind) {
            self.connection = None;
        }
        if self.connection.is_none() {
            let fresh = self.sluice.fresh(self.sluice.response_timeout);
            self.connection = Some(fresh.map_err(Error::Connection)?);
        }
        Ok(())
    }

    /// Takes the connection away, to be kept open while another call goes over a fresh one.
    pub(super) fn put_aside(&mut self) -> Option<Connection> {
        self.behind = false;
        self.connection.take()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take()
            && !self.behind
            && connection.is_open()
        {
            self.sluice.keep(connection);
        }
    }
}

fn read(connection: &mut Connection, call: &Call, within: Duration) -> Result<Value, RedisError> {
    let within = Some(within.max(Duration::from_millis(1)));
    connection.set_write_timeout(within)?;
    connection.set_read_timeout(within)?;
    connection.req_command(&call.cmd)?.extract_error()
}
