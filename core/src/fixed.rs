//! RL.FIXED: at most `limit` units in [start, start + window), the window starting at its first charged hit.
//!
//! Stored as any `INCR` + `EXPIRE` counter is: the count as canonical decimal text, the end of the window as the TTL.

use crate::args;
use crate::limit::{self, NEVER, Refusal, Request, Verdict};

/// The key as the server shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The string stored there.
    pub value: &'a [u8],
    /// When it expires, in absolute milliseconds; `None` without a TTL.
    pub expires_at: Option<i64>,
}

/// What to do to the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: not a byte, not an event.
    Nothing,
    /// A new window: `SET key count PXAT end`.
    Start {
        /// Units used by this call.
        count: u64,
        /// End of the window, absolute milliseconds.
        end: i64,
    },
    /// One more hit in the running window: `INCRBY key by`, then `PEXPIREAT key end` where the end moves.
    Add {
        /// Units used, this call's included.
        count: u64,
        /// Units of this call.
        by: u64,
        /// The end of the window, absolute milliseconds, if it has to move.
        end: Option<i64>,
    },
    /// Refused, but the window had no end or one too far away: `PEXPIREAT key end`.
    MoveEnd {
        /// End of the window, absolute milliseconds.
        end: i64,
    },
}

/// The answer of RL.FIXED and what to write for it.
pub type Decision = limit::Decision<Effect>;

/// Decides one call at `now_ms`, absolute milliseconds, on what is stored.
///
/// A window that has ended is over even if the server still shows the key. One without an end, or whose end lies beyond
/// `now_ms + window` (a longer window asked before, a clock set back), ends at `now_ms + window` and keeps its count; a
/// charged call writes that even when it is refused, or the key of a caller who never lets up would stay shut for ever.
///
/// # Errors
///
/// [`Refusal::Foreign`] if the value is no count from 0 to 2^63 - 1 as `INCR` writes it.
#[inline]
pub fn decide(found: Option<Found<'_>>, now_ms: i64, request: &Request) -> Result<Decision, Refusal> {
    let window = i64::try_from(request.window).unwrap_or(i64::MAX);
    // Time stands still where a window no longer fits before the end of the clock.
    let now_ms = now_ms.min(i64::MAX.saturating_sub(window));
    let horizon = now_ms.saturating_add(window);
    let running = match found {
        None => None,
        Some(found) => {
            let count = count(found.value).ok_or(Refusal::Foreign)?;
            match found.expires_at {
                Some(end) if end <= now_ms => None,
                Some(end) if end <= horizon => Some((count, end, None)),
                _ => Some((count, horizon, Some(horizon))),
            }
        }
    };

    let used = running.map_or(0, |(count, ..)| count);
    let free = request.limit.saturating_sub(used);
    let left = running.map_or(0, |(_, end, _)| end.saturating_sub(now_ms));
    let allowed = request.cost <= free || request.cost == 0;
    let retry_after = match allowed {
        true => 0,
        false if request.cost > request.limit => NEVER,
        false => left,
    };
    let as_it_stands = Verdict { allowed, limit: request.limit, remaining: free, retry_after, reset_after: left };
    if request.peek || request.cost == 0 {
        return Ok(Decision { verdict: as_it_stands, effect: Effect::Nothing });
    }

    let charged = Verdict { remaining: free.saturating_sub(request.cost), ..as_it_stands };
    Ok(match running {
        None if allowed => Decision {
            verdict: Verdict { reset_after: horizon.saturating_sub(now_ms), ..charged },
            effect: Effect::Start { count: request.cost, end: horizon },
        },
        Some((count, _, moved)) if allowed => Decision {
            verdict: charged,
            effect: Effect::Add { count: count.saturating_add(request.cost), by: request.cost, end: moved },
        },
        Some((_, _, Some(end))) => Decision { verdict: as_it_stands, effect: Effect::MoveEnd { end } },
        _ => Decision { verdict: as_it_stands, effect: Effect::Nothing },
    })
}

/// The count a value stands for: decimal digits as the server itself writes them, no sign, no leading zero.
#[inline]
fn count(value: &[u8]) -> Option<u64> {
    args::integer(value).filter(|&count| count <= i64::MAX.cast_unsigned())
}
