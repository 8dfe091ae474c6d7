//! A lock on several independent servers.

use super::hold::{Held, Keeper};
use super::link::{Link, Sluice};
use crate::command::Words;
use crate::error::Error;
use crate::lease::{Lease, Loss, Renewal};
use crate::options::{Options, Rounds};
use crate::quorum::{Tally, Verdict, Vote, quorum, validity};
use crate::random::{fraction, retry_delay, token};
use crate::time::{Patience, later, left};
use std::fmt;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

/// A lock on several servers that know nothing of each other: held by who has more than half of them.
///
/// Read the page `docs/redlock.md` before using it: one server with
/// fencing tokens is often the better choice.
#[derive(Clone, Debug)]
pub struct Redlock {
    servers: Vec<Sluice>,
    rounds: Rounds,
    key: Vec<u8>,
    options: Options,
}

impl Redlock {
    /// A lock on these servers, which must be independent: no replicas of each other.
    #[must_use]
    pub fn new(servers: impl IntoIterator<Item = Sluice>, key: impl AsRef<[u8]>, options: Options) -> Self {
        let rounds = Rounds::for_ttl(options.ttl);
        Self { servers: servers.into_iter().collect(), rounds, key: key.as_ref().to_vec(), options }
    }

    /// How long one server may take to answer: a twentieth of the ttl, from 5 to 500 ms, unless said otherwise. It has to be
    /// small against the ttl, for it comes off the time for which the lock is valid.
    #[must_use]
    pub const fn node_timeout(mut self, timeout: Duration) -> Self {
        self.rounds.node_timeout = timeout;
        self
    }

    /// How long to wait, at random from `least` to `most`, before the servers are asked again: 20 to 200 ms, or less with a
    /// short ttl, unless said otherwise.
    #[must_use]
    pub const fn retry_delay(mut self, least: Duration, most: Duration) -> Self {
        self.rounds.retry = (least, most);
        self
    }

    /// Asks all servers once; `None` if another holds the lock, or several ask at once and nobody gets it.
    ///
    /// # Errors
    /// [`Error::NoQuorum`] if too few servers answered in time.
    pub async fn try_acquire(&self) -> Result<Option<RedlockGuard>, Error> {
        self.options.check_for_many(self.servers.len(), self.rounds.node_timeout)?;
        let start = Instant::now();
        let terms = self.options.terms_of_many(self.rounds.node_timeout);
        let ttl = terms.first_ttl();
        let token = token()?;
        let mut many = Many::ask(self, &token, ttl);
        let tally = many.collect(0, self.rounds.node_timeout).await;
        if tally.verdict() == Verdict::Carried {
            if validity(ttl, start.elapsed()).is_some() {
                let lease = Lease::granted(terms, start, ttl);
                return Ok(Some(RedlockGuard { held: Held::new(lease, many, self.options.on_loss.clone()), token }));
            }
            return Ok(None);
        }
        // `many` goes, and with it what the servers may have granted.
        let (servers, quorum) = (self.servers.len(), quorum(self.servers.len()));
        match tally.too_few() {
            None => Ok(None),
            Some(failed) => Err(many.reason.take().unwrap_or(Error::NoQuorum { failed, servers, quorum })),
        }
    }

    /// Asks until the lock is acquired, with random delays in between; `None` if `timeout` was not enough. There is no queue:
    /// who waits longest does not come first.
    ///
    /// # Errors
    /// [`Error::NoQuorum`] if the last time too few servers answered.
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Option<RedlockGuard>, Error> {
        let patience = Patience::lasting(Instant::now(), timeout);
        loop {
            let tried = self.try_acquire().await;
            if !matches!(tried, Ok(None) | Err(Error::NoQuorum { .. })) {
                return tried;
            }
            let delay = retry_delay(self.rounds.retry.0, self.rounds.retry.1, fraction());
            let rest = patience.left(Instant::now());
            if rest <= delay {
                return tried;
            }
            tokio::time::sleep(delay).await;
        }
    }
}

/// What the lock's holder tells the task of one server.
enum Order {
    Renew { round: u64, ttl: Duration, deadline: Instant },
}

/// What the task of one server answers, and to which round.
type Answer = (u64, Vote, Option<Error>);

/// A lock asked for on several servers, by a task for each. A task that is told no more releases and ends.
struct Many {
    orders: Vec<UnboundedSender<Order>>,
    answers: UnboundedReceiver<Answer>,
    tasks: Vec<JoinHandle<bool>>,
    round: u64,
    /// What a server gave as its reason not to grant, other than silence.
    reason: Option<Error>,
}

impl Many {
    fn ask(lock: &Redlock, token: &str, ttl: Duration) -> Self {
        let (answer, answers) = unbounded_channel();
        let (mut orders, mut tasks) = (Vec::new(), Vec::new());
        for server in &lock.servers {
            let (order, told) = unbounded_channel();
            let words = Words { key: lock.key.clone(), token: token.to_owned(), kind: lock.options.kind };
            let node = Node { link: Link::new(server.clone()), words, timeout: lock.rounds.node_timeout };
            tasks.push(tokio::spawn(node.run(ttl, told, answer.clone())));
            orders.push(order);
        }
        Self { orders, answers, tasks, round: 0, reason: None }
    }

    /// The answers to a round, until they decide it or the time is up. What then is missing has failed.
    async fn collect(&mut self, round: u64, within: Duration) -> Tally {
        let mut tally = Tally::new(self.orders.len());
        let deadline = later(Instant::now(), within);
        while tally.verdict() == Verdict::Open {
            match timeout_at(deadline.into(), self.answers.recv()).await {
                Ok(Some((to, vote, reason))) if to == round => {
                    tally.count(vote);
                    self.reason = self.reason.take().or(reason);
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        tally
    }
}

impl Keeper for Many {
    async fn renew(&mut self, ttl: Duration, within: Duration) -> Renewal {
        self.round = self.round.saturating_add(1);
        let deadline = later(Instant::now(), within);
        for order in &self.orders {
            let _ = order.send(Order::Renew { round: self.round, ttl, deadline });
        }
        match self.collect(self.round, within).await.verdict() {
            Verdict::Carried => Renewal::Yes,
            Verdict::Denied => Renewal::No,
            Verdict::Open | Verdict::Failed => Renewal::Failed,
        }
    }

    async fn release(mut self) -> Result<bool, Error> {
        let needed = quorum(self.orders.len());
        self.orders.clear();
        let mut released: usize = 0;
        for task in self.tasks {
            if task.await.unwrap_or(false) {
                released = released.saturating_add(1);
            }
        }
        Ok(released >= needed)
    }
}

/// One server, asked for one token: in this order whatever is lost on the way, for a RELEASE goes over the connection that the ACQUIRE
/// went over.
struct Node {
    link: Link,
    words: Words,
    timeout: Duration,
}

impl Node {
    /// Says at last whether it released the lock there.
    async fn run(
        mut self,
        ttl: Duration,
        mut orders: UnboundedReceiver<Order>,
        answers: UnboundedSender<Answer>,
    ) -> bool {
        let call = self.words.acquire(ttl, None);
        let granted = self.link.ask_again(&call, self.timeout).await.and_then(|answer| call.number(&answer));
        let vote = match &granted {
            Ok(0) => Vote::No,
            Ok(_) => Vote::Yes,
            Err(_) => Vote::Failed,
        };
        let may_hold = match &granted {
            Ok(fence) => *fence > 0,
            Err(error) => error.outcome_is_unknown() && self.link.has_sent(),
        };
        let late = matches!(granted, Err(Error::Timeout));
        let _ = answers.send((0, vote, granted.err().filter(|error| !error.outcome_is_unknown())));
        if late {
            // Told to give it back at once, behind what is still unanswered: it never counts for this holder.
            self.link.behind(&self.words.release(), self.timeout).await;
        }
        let mut holds = vote == Vote::Yes;
        while let Some(Order::Renew { round, ttl, deadline }) = orders.recv().await {
            let within = left(Instant::now(), deadline);
            let vote = if !holds {
                Vote::No
            } else if within.is_zero() {
                Vote::Failed
            } else {
                self.renew(ttl, within).await
            };
            holds &= vote != Vote::No;
            let _ = answers.send((round, vote, None));
        }
        if !may_hold {
            return false;
        }
        let call = self.words.release();
        let released = self.link.ask_again(&call, self.timeout).await.and_then(|answer| call.yes(&answer));
        released.unwrap_or(false)
    }

    async fn renew(&mut self, ttl: Duration, within: Duration) -> Vote {
        let call = self.words.renew(ttl);
        match self.link.ask_again(&call, within).await.and_then(|answer| call.yes(&answer)) {
            Ok(true) => Vote::Yes,
            Ok(false) => Vote::No,
            Err(error) if error.says_gone() => Vote::No,
            Err(_) => Vote::Failed,
        }
    }
}

/// A lock in hand on more than half of the servers. It is renewed while this value lives; see [`Guard`](super::Guard) for how
/// it is released.
///
/// It has no fencing token. Each server gives numbers of its own, from its own clock, and the quorum of one holder is not that
/// of the next: no number made of them is sure to be larger than the one before.
#[must_use = "the lock is released when the guard goes"]
pub struct RedlockGuard {
    held: Held,
    token: String,
}

impl RedlockGuard {
    /// The token that holds the lock on each server.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// For how long the lock is valid, if nothing comes any more: ttl - what the asking took - drift.
    #[must_use]
    pub fn validity(&self) -> Duration {
        self.held.left()
    }

    /// Whether the lock is lost, or can no longer be proved to be held; see [`Guard::is_lost`](super::Guard::is_lost).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Why the lock is lost, if it is.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.held.loss()
    }

    /// Waits until the lock is lost.
    pub async fn lost(&self) -> Loss {
        self.held.lost().await
    }

    /// A token that is cancelled when the lock is lost.
    #[must_use]
    pub fn cancellation(&self) -> CancellationToken {
        self.held.cancellation()
    }

    /// Goes on only while the lock is held.
    ///
    /// # Errors
    /// [`Error::Lost`] if it is lost.
    pub fn check(&self) -> Result<(), Error> {
        self.loss().map_or(Ok(()), |loss| Err(Error::Lost(loss)))
    }

    /// Releases the lock everywhere, and says whether a quorum still had it.
    ///
    /// # Errors
    /// None at present: what cannot be reached runs out by itself.
    pub async fn release(self) -> Result<bool, Error> {
        let held_until_now = !self.is_lost();
        self.held.release().await.map(|released| released && held_until_now)
    }
}

impl fmt::Debug for RedlockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockGuard").field("loss", &self.loss()).finish_non_exhaustive()
    }
}
