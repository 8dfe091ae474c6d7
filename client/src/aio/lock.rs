//! A lock on one server.

use super::hold::{Held, Keeper};
use super::link::{Link, Sluice, read};
use crate::command::Words;
use crate::error::{Error, from_server};
use crate::lease::{Lease, Loss, Renewal};
use crate::options::{Kind, Options};
use crate::random::{fraction, retry_delay, token};
use crate::time::{Patience, later, left};
use redis::aio::MultiplexedConnection;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// A lock that can be acquired: a key, and how it is to be held. A clone is the same lock; for
/// [`Kind::Reentrant`] also the same owner, while another `Lock` for the same key is another owner.
#[derive(Clone)]
pub struct Lock {
    sluice: Sluice,
    key: Vec<u8>,
    options: Options,
    /// What a reentrant lock is held by already.
    nest: Arc<Mutex<Weak<Inner>>>,
}

impl Lock {
    pub(super) fn new(sluice: Sluice, key: Vec<u8>, options: Options) -> Self {
        Self { sluice, key, options, nest: Arc::default() }
    }

    /// Acquires the lock if it is free; `None` if another holds it.
    ///
    /// This future, as the others here, may be dropped at any time: what the server may grant it yet is released again, in the
    /// background.
    ///
    /// # Errors
    /// What went wrong. Then nothing is held; if the answer was lost, the lock is released again as far as the server can be
    /// reached, and runs out after one ttl where it cannot.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.ask(Patience::None).await
    }

    /// Acquires the lock, and waits for it in the server's queue for at most `timeout`; `None` if that was not enough.
    ///
    /// The call waits over a connection of its own, and takes at most the response timeout longer. The place in the queue is kept
    /// also when the call is asked anew over a fresh connection. It is lost in two cases, after which the wait goes on at the
    /// end of the queue: the connection broke; or the server answered before the time was up (`CLIENT UNBLOCK`, or
    /// something in between that does not let calls block), and then the lock is asked for every 20 to 100 ms.
    ///
    /// # Errors
    /// As [`Self::try_acquire`].
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Option<Guard>, Error> {
        self.ask(Patience::lasting(Instant::now(), timeout)).await
    }

    /// Acquires the lock, and waits for it without end, as [`Self::acquire_timeout`] does.
    ///
    /// # Errors
    /// As [`Self::try_acquire`].
    pub async fn acquire(&self) -> Result<Guard, Error> {
        loop {
            if let Some(guard) = self.ask(Patience::Endless).await? {
                return Ok(guard);
            }
        }
    }

    async fn ask(&self, patience: Patience) -> Result<Option<Guard>, Error> {
        self.options.check()?;
        if self.options.kind != Kind::Reentrant {
            return Ok(self.ask_server(patience).await?.map(|inner| Guard { inner: Arc::new(inner) }));
        }
        let Some(mut nest) = self.nest(patience).await else {
            return Ok(None);
        };
        if let Some(inner) = nest.upgrade() {
            return match inner.held.loss() {
                None => Ok(Some(Guard { inner })),
                Some(loss) => Err(Error::Lost(loss)),
            };
        }
        let inner = self.ask_server(patience).await?.map(Arc::new);
        *nest = inner.as_ref().map(Arc::downgrade).unwrap_or_default();
        Ok(inner.map(|inner| Guard { inner }))
    }

    /// `None` if a clone is about to acquire it for longer than we wait.
    async fn nest(&self, patience: Patience) -> Option<MutexGuard<'_, Weak<Inner>>> {
        match patience {
            Patience::None => self.nest.try_lock().ok(),
            Patience::Endless => Some(self.nest.lock().await),
            Patience::Until(deadline) => timeout(left(Instant::now(), deadline), self.nest.lock()).await.ok(),
        }
    }

    async fn ask_server(&self, patience: Patience) -> Result<Option<Inner>, Error> {
        let words = Words { key: self.key.clone(), token: token()?, kind: self.options.kind };
        let link = Link::new(self.sluice.clone());
        let mut asker = Asker { link: Some(link), waits: None, aside: None, words, options: &self.options };
        let granted = asker.run(patience).await;
        match granted {
            Ok(Some((fence, sent))) => Ok(asker.into_inner(fence, sent)),
            Ok(None) => {
                asker.link = None;
                Ok(None)
            }
            Err(error) => {
                if !error.outcome_is_unknown() {
                    asker.link = None;
                }
                Err(error)
            }
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &self.key.escape_ascii().to_string())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// One token on its way to the lock. Dropped before it is known what came of it, it releases what may have been granted.
struct Asker<'l> {
    /// Gone when there is nothing to release.
    link: Option<Link>,
    /// The connection that waits.
    waits: Option<MultiplexedConnection>,
    /// The one that waited before; open until the next one has its answer, for the place in the queue goes with it.
    aside: Option<MultiplexedConnection>,
    words: Words,
    options: &'l Options,
}

impl Asker<'_> {
    /// The fence, and when what proves the lease was sent.
    async fn run(&mut self, patience: Patience) -> Result<Option<(u64, Instant)>, Error> {
        let Some(link) = &mut self.link else { return Ok(None) };
        let sluice = link.sluice().clone();
        let ttl = self.options.terms(sluice.timeout()).first_ttl();
        let call = self.words.acquire(ttl, None);
        let sent = Instant::now();
        let fence = call.number(&link.ask_again(&call, sluice.timeout()).await?)?;
        if fence > 0 {
            return Ok(Some((fence, sent)));
        }
        let mut failed = false;
        loop {
            let now = Instant::now();
            let Some(block) = patience.block(now) else {
                return Ok(None);
            };
            let call = self.words.acquire(ttl, Some(block));
            let longest = patience.left(now).saturating_add(sluice.timeout());
            let mut connection = sluice.fresh(sluice.timeout()).await.map_err(Error::Connection)?;
            self.waits = Some(connection.clone());
            match timeout(longest.min(self.options.ask_anew), read(&mut connection, &call)).await {
                Ok(Ok(answer)) => {
                    self.aside = None;
                    let fence = call.number(&answer)?;
                    if fence > 0 {
                        // It is not known when in all that time the lease began.
                        let (sent, renew) = (Instant::now(), self.words.renew(ttl));
                        if renew.yes(&link.ask_again(&renew, sluice.timeout()).await?)? {
                            return Ok(Some((fence, sent)));
                        }
                        continue;
                    }
                    let rest = patience.left(Instant::now());
                    if rest.is_zero() {
                        return Ok(None);
                    }
                    let slice = retry_delay(Duration::from_millis(20), Duration::from_millis(100), fraction());
                    sleep(slice.min(rest)).await;
                }
                Ok(Err(error)) if from_server(&error) => return Err(Error::of(error, call.name)),
                Ok(Err(error)) => {
                    // The place is lost; a server that is there takes the token in again. One that hangs up time and again
                    // is not waited for.
                    if failed && now.elapsed() < Duration::from_millis(500) {
                        return Err(Error::of(error, call.name));
                    }
                    failed = true;
                }
                Err(_) if longest <= self.options.ask_anew => return Err(Error::Timeout),
                Err(_) => self.aside = self.waits.take(),
            }
        }
    }

    fn into_inner(mut self, fence: u64, sent: Instant) -> Option<Inner> {
        let link = self.link.take()?;
        let terms = self.options.terms(link.sluice().timeout());
        let lease = Lease::granted(terms, sent, terms.first_ttl());
        let token = self.words.token.clone();
        let keeper = Single { link, words: self.words.clone() };
        Some(Inner { held: Held::new(lease, keeper, self.options.on_loss.clone()), fence, token })
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        let (Some(mut link), Ok(runtime)) = (self.link.take(), tokio::runtime::Handle::try_current()) else { return };
        if !link.has_sent() {
            return;
        }
        let waiting = [self.waits.take(), self.aside.take()];
        let call = self.words.release();
        runtime.spawn(async move {
            let within = link.sluice().timeout();
            for mut connection in waiting.into_iter().flatten() {
                // Carried out behind the wait, should that end in a grant; the connection then goes, and with it the wait.
                let _ = timeout(within, read(&mut connection, &call)).await;
            }
            link.behind(&call, within).await;
        });
    }
}

/// The keeper of a lock on one server.
struct Single {
    link: Link,
    words: Words,
}

impl Keeper for Single {
    async fn renew(&mut self, ttl: Duration, within: Duration) -> Renewal {
        let call = self.words.renew(ttl);
        match self.link.ask_again(&call, within).await.and_then(|answer| call.yes(&answer)) {
            Ok(true) => Renewal::Yes,
            Ok(false) => Renewal::No,
            Err(error) if error.says_gone() => Renewal::No,
            Err(_) => Renewal::Failed,
        }
    }

    async fn release(mut self) -> Result<bool, Error> {
        let call = self.words.release();
        let deadline = later(Instant::now(), self.link.sluice().timeout());
        let mut was_ours = false;
        for _ in 0..self.words.releases() {
            let answer = self.link.ask_again(&call, left(Instant::now(), deadline)).await;
            match answer.and_then(|answer| call.yes(&answer)) {
                Ok(true) => was_ours = true,
                Ok(false) => break,
                Err(error) if error.says_gone() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(was_ours)
    }
}

struct Inner {
    held: Held,
    fence: u64,
    token: String,
}

/// A lock in hand. It is renewed while this value lives.
///
/// Say `release().await` at the end: it waits until the lock is free. A guard that is merely dropped, also by a panic or
/// because its future was, leaves that to the watchdog's task, which does it as soon as the runtime lets it; if the runtime ends
/// before, the lease runs out.
#[must_use = "the lock is released when the guard goes"]
pub struct Guard {
    inner: Arc<Inner>,
}

impl Guard {
    /// The fencing token: larger than that of each earlier grant. Pass it along with every write, and let what is written to
    /// refuse a smaller one than it has seen.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.inner.fence
    }

    /// The token that holds the lock, as LOCK.INFO shows it.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.inner.token
    }

    /// Whether the lock is lost, or can no longer be proved to be held. By the clock, so that it is right also in a process
    /// that has just been paused for longer than the lease. Once it is, it stays.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Why the lock is lost, if it is.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.inner.held.loss()
    }

    /// Waits until the lock is lost: for a `select!` beside the work.
    pub async fn lost(&self) -> Loss {
        self.inner.held.lost().await
    }

    /// A token that is cancelled when the lock is lost, to be handed to the work.
    #[must_use]
    pub fn cancellation(&self) -> CancellationToken {
        self.inner.held.cancellation()
    }

    /// For how long it is proved that the lock is held, if nothing comes any more.
    #[must_use]
    pub fn proved_for(&self) -> Duration {
        self.inner.held.left()
    }

    /// Goes on only while the lock is held: for a `?` between two steps of the work.
    ///
    /// # Errors
    /// [`Error::Lost`] if it is lost.
    pub fn check(&self) -> Result<(), Error> {
        self.loss().map_or(Ok(()), |loss| Err(Error::Lost(loss)))
    }

    /// Releases the lock, and says whether it was held until then. `false` means that somebody else may have had it meanwhile.
    ///
    /// An inner guard of [`Kind::Reentrant`] only says whether the lock is held.
    ///
    /// # Errors
    /// What went wrong; the lease runs out by itself.
    pub async fn release(self) -> Result<bool, Error> {
        let held_until_now = !self.is_lost();
        match Arc::into_inner(self.inner) {
            Some(inner) => inner.held.release().await.map(|released| released && held_until_now),
            None => Ok(held_until_now),
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("fence", &self.inner.fence).field("loss", &self.loss()).finish_non_exhaustive()
    }
}
