//! A lock on one server.

use super::hold::{Held, Keeper};
use super::link::{Link, Sluice};
use crate::command::Words;
use crate::error::{Error, interrupted};
use crate::lease::{Lease, Loss, Renewal};
use crate::options::{Kind, Options};
use crate::random::{fraction, retry_delay, token};
use crate::time::{Patience, later, left};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A lock that can be acquired: a key, and how it is to be held. A clone is the same lock; for
/// [`Kind::Reentrant`] also the same owner, while another `Lock` for the same key is another owner.
#[derive(Clone)]
pub struct Lock {
    sluice: Sluice,
    key: Vec<u8>,
    options: Options,
    nest: Arc<Nest>,
}

/// What a reentrant lock is held by already.
#[derive(Default)]
struct Nest {
    state: Mutex<Nested>,
    changed: Condvar,
}

#[derive(Default)]
enum Nested {
    #[default]
    Free,
    /// A clone is about to acquire it.
    Asking,
    Held(Weak<Inner>),
}

impl Nest {
    fn state(&self) -> MutexGuard<'_, Nested> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends [`Nested::Asking`], whatever comes of it.
struct Asking<'l> {
    nest: &'l Nest,
    becomes: Nested,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        *self.nest.state() = std::mem::take(&mut self.becomes);
        self.nest.changed.notify_all();
    }
}

impl Lock {
    pub(super) fn new(sluice: Sluice, key: Vec<u8>, options: Options) -> Self {
        Self { sluice, key, options, nest: Arc::default() }
    }

    /// Acquires the lock if it is free; `None` if another holds it.
    ///
    /// # Errors
    /// What went wrong. Then nothing is held; if the answer was lost, the lock was released again as far as the server can be
    /// reached, and runs out after one ttl where it cannot.
    pub fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.ask(Patience::None)
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
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Option<Guard>, Error> {
        self.ask(Patience::lasting(Instant::now(), timeout))
    }

    /// Acquires the lock, and waits for it without end, as [`Self::acquire_timeout`] does.
    ///
    /// # Errors
    /// As [`Self::try_acquire`].
    pub fn acquire(&self) -> Result<Guard, Error> {
        loop {
            if let Some(guard) = self.ask(Patience::Endless)? {
                return Ok(guard);
            }
        }
    }

    fn ask(&self, patience: Patience) -> Result<Option<Guard>, Error> {
        self.options.check()?;
        if self.options.kind != Kind::Reentrant {
            return Ok(self.ask_server(patience)?.map(|inner| Guard { inner: Arc::new(inner) }));
        }
        let mut state = self.nest.state();
        loop {
            match &*state {
                Nested::Free => break,
                Nested::Held(held) => match held.upgrade() {
                    None => break,
                    Some(inner) => {
                        drop(state);
                        return match inner.held.loss() {
                            None => Ok(Some(Guard { inner })),
                            Some(loss) => Err(Error::Lost(loss)),
                        };
                    }
                },
                Nested::Asking => {
                    let wait = patience.left(Instant::now());
                    if wait.is_zero() {
                        return Ok(None);
                    }
                    let wait = wait.min(Duration::from_secs(3600));
                    state = self.nest.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
        *state = Nested::Asking;
        drop(state);
        let mut asking = Asking { nest: &self.nest, becomes: Nested::Free };
        let inner = self.ask_server(patience)?.map(Arc::new);
        asking.becomes = inner.as_ref().map_or(Nested::Free, |inner| Nested::Held(Arc::downgrade(inner)));
        Ok(inner.map(|inner| Guard { inner }))
    }

    fn ask_server(&self, patience: Patience) -> Result<Option<Inner>, Error> {
        let words = Words { key: self.key.clone(), token: token()?, kind: self.options.kind };
        let mut asker = Asker { link: Link::new(self.sluice.clone()), aside: None, words, options: &self.options };
        let granted = asker.run(patience);
        match granted {
            Ok(Some((fence, sent))) => asker.into_inner(fence, sent).map(Some),
            Ok(None) => Ok(None),
            Err(error) => {
                if error.outcome_is_unknown() && asker.link.has_sent() {
                    asker.link.behind(&asker.words.release(), self.sluice.timeout());
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

/// One token on its way to the lock.
struct Asker<'l> {
    link: Link,
    /// The connection that waited before; open until the next one has its answer, for the place in the queue goes with it.
    aside: Option<redis::Connection>,
    words: Words,
    options: &'l Options,
}

impl Asker<'_> {
    /// The fence, and when what proves the lease was sent.
    fn run(&mut self, patience: Patience) -> Result<Option<(u64, Instant)>, Error> {
        let timeout = self.link.sluice().timeout();
        let ttl = self.options.terms(timeout).first_ttl();
        let call = self.words.acquire(ttl, None);
        let sent = Instant::now();
        let fence = call.number(&self.link.ask_again(&call, timeout)?)?;
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
            let longest = patience.left(now).saturating_add(timeout);
            self.link.connect()?;
            match self.link.ask(&call, longest.min(self.options.ask_anew)) {
                Ok(answer) => {
                    self.aside = None;
                    let fence = call.number(&answer)?;
                    if fence > 0 {
                        // It is not known when in all that time the lease began.
                        let (sent, renew) = (Instant::now(), self.words.renew(ttl));
                        if renew.yes(&self.link.ask_again(&renew, timeout)?)? {
                            return Ok(Some((fence, sent)));
                        }
                        continue;
                    }
                    let rest = patience.left(Instant::now());
                    if rest.is_zero() {
                        return Ok(None);
                    }
                    let slice = retry_delay(Duration::from_millis(20), Duration::from_millis(100), fraction());
                    std::thread::sleep(slice.min(rest));
                }
                Err(Error::Timeout) => {
                    if longest <= self.options.ask_anew {
                        return Err(Error::Timeout);
                    }
                    self.aside = self.link.put_aside();
                }
                // The server knows nothing of it: the place is kept, as above.
                Err(Error::Connection(error)) if interrupted(&error) => self.aside = self.link.put_aside(),
                Err(error @ Error::Connection(_)) => {
                    // The place is lost; a server that is there takes the token in again. One that hangs up time and again
                    // is not waited for.
                    if failed && now.elapsed() < Duration::from_millis(500) {
                        return Err(error);
                    }
                    failed = true;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn into_inner(self, fence: u64, sent: Instant) -> Result<Inner, Error> {
        let terms = self.options.terms(self.link.sluice().timeout());
        let lease = Lease::granted(terms, sent, terms.first_ttl());
        let token = self.words.token.clone();
        let keeper = Single { link: self.link, words: self.words };
        let held = Held::new(lease, keeper, terms.renews, self.options.on_loss.clone())?;
        Ok(Inner { held, fence, token })
    }
}

/// The keeper of a lock on one server.
struct Single {
    link: Link,
    words: Words,
}

impl Keeper for Single {
    fn renew(&mut self, ttl: Duration, within: Duration) -> Renewal {
        let call = self.words.renew(ttl);
        match self.link.ask_again(&call, within).and_then(|answer| call.yes(&answer)) {
            Ok(true) => Renewal::Yes,
            Ok(false) => Renewal::No,
            Err(error) if error.says_gone() => Renewal::No,
            Err(_) => Renewal::Failed,
        }
    }

    fn release(&mut self) -> Result<bool, Error> {
        let call = self.words.release();
        let timeout = self.link.sluice().timeout();
        let deadline = later(Instant::now(), timeout);
        let mut was_ours = false;
        for _ in 0..self.words.releases() {
            match self.link.ask_again(&call, left(Instant::now(), deadline)).and_then(|answer| call.yes(&answer)) {
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
    held: Held<Single>,
    fence: u64,
    token: String,
}

/// A lock in hand. It is renewed while this value lives, and released when it goes, also by a panic.
///
/// A release waits for the server, for one response timeout at most, and as long for a renewal that is under way.
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
    pub fn release(self) -> Result<bool, Error> {
        let held_until_now = !self.is_lost();
        match Arc::into_inner(self.inner) {
            Some(inner) => inner.held.release().map(|released| released && held_until_now),
            None => Ok(held_until_now),
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("fence", &self.inner.fence).field("loss", &self.loss()).finish_non_exhaustive()
    }
}
