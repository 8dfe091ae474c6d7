//! What the three limiters share: the question, the answer, and the ways a stored value can be refused.

/// One call of a limiter, already parsed and within its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// `limit` or `capacity`: units, from 1 to 10^12 (SLIDING: 10^9).
    pub limit: u64,
    /// BUCKET's tokens per period, from 1 to 10^12; 1 and unused elsewhere.
    pub refill: u64,
    /// `window` or `period` in milliseconds, from 1 to 3660 days.
    pub window: u64,
    /// Units asked for, from 0 to 10^12.
    pub cost: u64,
    /// Only look: nothing may be written.
    pub peek: bool,
}

/// The five integers of a limiter's reply, in the order of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Does the call pass?
    pub allowed: bool,
    /// The limit or capacity asked with.
    pub limit: u64,
    /// Whole units left after this call (PEEK and COST 0: as they stand), 0 to `limit`.
    pub remaining: u64,
    /// Milliseconds until this same call would pass; 0 if it does, [`NEVER`] if it cannot.
    pub retry_after: i64,
    /// Milliseconds until the key is as new; 0 if it is.
    pub reset_after: i64,
}

/// `retry_after` of a call that asks for more than the limit.
pub const NEVER: i64 = -1;

/// Why a call cannot be answered by a verdict. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The stored value cannot be a state of this limiter: `WRONGTYPE`.
    Foreign,
    /// RL.SLIDING's log has no room for one more entry: `ERR log full …`.
    LogFull,
}

/// What a limiter answers, and what its caller has to do to the key for the answer to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<E> {
    /// The reply.
    pub verdict: Verdict,
    /// The one change to make, an outcome and never the call: replaying it later gives the same state.
    pub effect: E,
}

/// The deadlines, in absolute milliseconds, a key may have after a write.
///
/// Moving a TTL costs two look-ups in the server and an argument in the AOF, so a key is given more time than it needs
/// and keeps its deadline until that runs short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The key must live until then: what it says still matters.
    pub earliest: i64,
    /// The deadline to set where the present one may not stay.
    pub set_to: i64,
    /// The key must be gone by then.
    pub latest: i64,
}

impl Expiry {
    /// May a key that expires at `current` (`None` = never) keep its deadline?
    #[inline]
    #[must_use]
    pub fn keeps(&self, current: Option<i64>) -> bool {
        current.is_some_and(|at| self.earliest <= at && at <= self.latest)
    }
}

/// First byte of a BUCKET state. Like [`SLIDING`] it occurs in no UTF-8 text and in no decimal number, so a limiter
/// takes neither another's state nor a counter nor a text token for its own. FIXED stores bare decimals and needs none.
pub(crate) const BUCKET: u8 = 0xf5;
/// First byte of a SLIDING log.
pub(crate) const SLIDING: u8 = 0xf6;
