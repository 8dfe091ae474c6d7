//! How a lock is to be held.

use crate::error::Error;
use crate::lease::{Loss, Terms};
use crate::quorum::drift;
use crate::time::{divided, whole_ms};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The longest ttl the module takes.
const LONGEST: Duration = Duration::from_secs(3660 * 24 * 60 * 60);

/// What kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Kind {
    /// One holder.
    #[default]
    Exclusive,
    /// One holder, who may acquire again while holding it: through the same `Lock` value, or a clone of it.
    ///
    /// The nesting is counted here, not by the server: however often it is acquired, the server knows of one hold, and is
    /// told to release when the last guard goes. So a command that is sent twice after a lost reply counts for nothing.
    Reentrant,
    /// Any number of holders, and no exclusive one beside them.
    Shared,
    /// At most this many holders. All clients should say the same number.
    Semaphore(u64),
}

/// What is called when a hold is lost.
pub(crate) type OnLoss = Arc<dyn Fn(Loss) + Send + Sync>;

/// How a lock is to be held.
///
/// ```
/// use sluice_client::{Kind, Options};
/// use std::time::Duration;
///
/// let options = Options::new(Duration::from_secs(30))
///     .kind(Kind::Shared)
///     .max_hold(Duration::from_secs(600))
///     .on_loss(|why| eprintln!("stop working: {why}"));
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) ttl: Duration,
    pub(crate) kind: Kind,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) renews: bool,
    pub(crate) on_loss: Option<OnLoss>,
    pub(crate) ask_anew: Duration,
}

impl Options {
    /// Exclusive, with a lease of `ttl` that is renewed after each third of it, for as long as the guard lives.
    ///
    /// Choose the ttl by how long others may have to wait after a crash, and well above the longest pause (garbage
    /// collection, a network that stalls) that is to be survived. The module counts whole milliseconds, from 1 ms to 3660 d.
    #[must_use]
    pub fn new(ttl: Duration) -> Self {
        let ttl = whole_ms(ttl);
        Self {
            ttl,
            kind: Kind::Exclusive,
            max_hold: None,
            renews: true,
            on_loss: None,
            ask_anew: Duration::from_secs(30),
        }
    }

    /// What kind of lock.
    #[must_use]
    pub const fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// How long a guard may hold the lock in all. The last renewals are for what is left of it, so that the lease ends then, on
    /// the server too. Without this, a holder that hangs keeps the lock for as long as its process runs.
    #[must_use]
    pub const fn max_hold(mut self, most: Duration) -> Self {
        self.max_hold = Some(most);
        self
    }

    /// Whether a watchdog renews the lease; yes unless said otherwise. Without it the hold lasts for one ttl.
    #[must_use]
    pub const fn renew(mut self, yes: bool) -> Self {
        self.renews = yes;
        self
    }

    /// What to call, once, when the hold is lost: by the watchdog, from its own thread or task, so keep it short.
    #[must_use]
    pub fn on_loss(mut self, tell: impl Fn(Loss) + Send + Sync + 'static) -> Self {
        self.on_loss = Some(Arc::new(tell));
        self
    }

    /// How long one call waits in the server before it is asked anew over a fresh connection, with the same token and so in the
    /// same place of the queue; 30 s unless said otherwise. It is what notices that the server, or the way to it, has died
    /// meanwhile: make it shorter than the time after which a proxy on the way cuts silent connections.
    #[must_use]
    pub const fn ask_anew(mut self, every: Duration) -> Self {
        self.ask_anew = every;
        self
    }

    /// What cannot be.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.ttl.is_zero() || self.ttl > LONGEST {
            return Err(Error::Invalid("the ttl is not from 1 ms to 3660 d"));
        }
        if self.max_hold.is_some_and(|most| whole_ms(most).is_zero()) {
            return Err(Error::Invalid("the longest hold is less than 1 ms"));
        }
        if let Kind::Semaphore(limit) = self.kind
            && !(1..=1_000_000_000).contains(&limit)
        {
            return Err(Error::Invalid("the limit of the semaphore is not from 1 to 10^9"));
        }
        if self.ask_anew < Duration::from_millis(10) {
            return Err(Error::Invalid("it would ask anew more often than each 10 ms"));
        }
        Ok(())
    }

    pub(crate) fn terms(&self, response_timeout: Duration) -> Terms {
        Terms {
            ttl: self.ttl,
            max_hold: self.max_hold,
            renews: self.renews,
            response_timeout,
            margin: |_| Duration::ZERO,
        }
    }

    /// The terms of a Redlock.
    pub(crate) fn terms_of_many(&self, node_timeout: Duration) -> Terms {
        Terms { margin: drift, ..self.terms(node_timeout) }
    }

    /// What cannot be with several servers.
    pub(crate) fn check_for_many(&self, servers: usize, node_timeout: Duration) -> Result<(), Error> {
        self.check()?;
        if self.kind != Kind::Exclusive {
            return Err(Error::Invalid("a Redlock is exclusive"));
        }
        if servers == 0 {
            return Err(Error::Invalid("a Redlock needs a server"));
        }
        if node_timeout.is_zero() || node_timeout > divided(self.ttl, 4) {
            return Err(Error::Invalid(
                "the timeout of one server is not small against the ttl: at most a quarter of it",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("ttl", &self.ttl)
            .field("kind", &self.kind)
            .field("max_hold", &self.max_hold)
            .field("renews", &self.renews)
            .field("on_loss", &self.on_loss.is_some())
            .field("ask_anew", &self.ask_anew)
            .finish()
    }
}

/// How a Redlock goes about its servers, besides [`Options`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounds {
    /// How long one server may take.
    pub node_timeout: Duration,
    /// The delay before another try.
    pub retry: (Duration, Duration),
}

impl Rounds {
    /// A twentieth of the ttl, from 5 to 500 ms, for a server; then 20 to 200 ms of delay, less for a short ttl.
    pub(crate) fn for_ttl(ttl: Duration) -> Self {
        let most = Duration::from_millis(200).min(divided(ttl, 2));
        Self {
            node_timeout: divided(ttl, 20).clamp(Duration::from_millis(5), Duration::from_millis(500)),
            retry: (divided(most, 10), most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_said_before_anything_is_sent() {
        let ms = Duration::from_millis;
        let wrong = |options: Options| matches!(options.check(), Err(Error::Invalid(_)));
        assert!(wrong(Options::new(Duration::ZERO)));
        assert!(wrong(Options::new(Duration::from_micros(999))));
        assert!(wrong(Options::new(Duration::MAX)));
        assert!(wrong(Options::new(ms(10)).max_hold(Duration::from_micros(10))));
        assert!(wrong(Options::new(ms(10)).kind(Kind::Semaphore(0))));
        assert!(wrong(Options::new(ms(10)).kind(Kind::Semaphore(1_000_000_001))));
        assert!(wrong(Options::new(ms(10)).ask_anew(ms(1))));
        assert!(Options::new(ms(1)).kind(Kind::Semaphore(1)).check().is_ok());
        let many = |kind, timeout| Options::new(ms(1000)).kind(kind).check_for_many(5, timeout);
        assert!(many(Kind::Exclusive, ms(50)).is_ok());
        assert!(many(Kind::Shared, ms(50)).is_err());
        assert!(many(Kind::Exclusive, ms(251)).is_err());
        assert!(Options::new(ms(1000)).check_for_many(0, ms(50)).is_err());
    }

    #[test]
    fn the_rounds_of_a_redlock_suit_its_ttl() {
        for ttl in [20, 100, 1000, 10_000, 1_000_000] {
            let ttl = Duration::from_millis(ttl);
            let rounds = Rounds::for_ttl(ttl);
            assert!(Options::new(ttl).check_for_many(5, rounds.node_timeout).is_ok());
            assert!(rounds.retry.0 < rounds.retry.1 && rounds.retry.1 < ttl);
        }
    }
}
