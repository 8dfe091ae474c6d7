//! A rate limit.

use super::link::{Link, Sluice};
use crate::error::Error;
use crate::limit::{Decision, Limit};
use crate::random::{admission_delay, fraction};
use crate::time::{later, left};
use std::time::{Duration, Instant};

/// A rate limit on a server. Each key is a limiter of its own.
#[derive(Clone, Debug)]
pub struct Limiter {
    sluice: Sluice,
    limit: Limit,
    spread: Duration,
}

impl Limiter {
    pub(super) const fn new(sluice: Sluice, limit: Limit) -> Self {
        Self { sluice, limit, spread: Duration::from_millis(50) }
    }

    /// How far those who were refused at once are spread when they come back, at first; 50 ms unless said otherwise.
    #[must_use]
    pub const fn spread(mut self, spread: Duration) -> Self {
        self.spread = spread;
        self
    }

    /// The limit.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// Takes one unit.
    ///
    /// # Errors
    /// What went wrong. If the answer was lost, the unit may be taken; it is not asked for again by itself.
    pub async fn hit(&self, key: impl AsRef<[u8]>) -> Result<Decision, Error> {
        self.ask(key.as_ref(), 1, false, self.sluice.timeout()).await
    }

    /// Takes `cost` units, all or none.
    ///
    /// # Errors
    /// As [`Self::hit`].
    pub async fn hit_many(&self, key: impl AsRef<[u8]>, cost: u64) -> Result<Decision, Error> {
        self.ask(key.as_ref(), cost, false, self.sluice.timeout()).await
    }

    /// What [`Self::hit_many`] would answer; takes nothing.
    ///
    /// # Errors
    /// As [`Self::hit`].
    pub async fn peek(&self, key: impl AsRef<[u8]>, cost: u64) -> Result<Decision, Error> {
        self.ask(key.as_ref(), cost, true, self.sluice.timeout()).await
    }

    /// Takes `cost` units, and waits for them for at most `timeout`. The answer is the last decision: it is a refusal if the time
    /// is not enough, and then comes as soon as that is known.
    ///
    /// After a refusal it waits for as long as the server says, and a random time more. Who waits has no place in a
    /// queue: under steady demand some wait longer than others.
    ///
    /// # Errors
    /// As [`Self::hit`].
    pub async fn admit(&self, key: impl AsRef<[u8]>, cost: u64, timeout: Duration) -> Result<Decision, Error> {
        let deadline = later(Instant::now(), timeout);
        let mut refusals: u32 = 0;
        loop {
            let decision = self.ask(key.as_ref(), cost, false, self.sluice.timeout()).await?;
            let (false, Some(retry_after)) = (decision.allowed, decision.retry_after) else {
                return Ok(decision);
            };
            let left = left(Instant::now(), deadline);
            match admission_delay(retry_after, refusals, left, self.spread, fraction()) {
                Some(delay) => tokio::time::sleep(delay).await,
                None => return Ok(decision),
            }
            refusals = refusals.saturating_add(1);
        }
    }

    async fn ask(&self, key: &[u8], cost: u64, peek: bool, within: Duration) -> Result<Decision, Error> {
        let call = self.limit.call(key, cost, peek);
        let mut link = Link::new(self.sluice.clone());
        let answer = if peek { link.ask_again(&call, within).await } else { link.ask(&call, within).await }?;
        Decision::read(&call, &answer)
    }
}
