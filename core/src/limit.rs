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
