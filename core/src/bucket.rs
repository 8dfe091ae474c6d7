//! RL.BUCKET: a bucket of `capacity` tokens that starts full and gains `refill` tokens a period, exactly.
//!
//! What is stored is not the level but what was *used* of it at the last admitted hit, as a fraction whose denominator is
//! the period: `used = numerator / period`. In that unit (token × µs) both a cost and what accrues are whole numbers,
//!
//! ```text
//! cost    -> cost × period
//! accrued -> elapsed × refill
//! level    = capacity - max(0, min(used, capacity) - elapsed × refill / period)
//! ```
//!
//! so nothing is ever rounded but the reply, and no rate drifts. This is the token bucket of ITU-T I.371 / RFC 2697 with
//! the subtraction the other way round. Used units are capped *before* time accrues: then a refusal, which writes
//! nothing, cannot change what a later call sees, and whatever is stored, a token is there within one period.

use crate::args::{LARGEST_UNITS, LONGEST_MS};
use crate::limit::{self, Expiry, NEVER, Refusal, Request, Verdict};

/// Bytes of a stored state: magic 1, time 7 (µs), numerator 12 (token × µs), period 5 (ms), each little-endian.
///
/// A numerator is at most 10^12 × 3660 d = 3.17 × 10^26 < 2^89.
pub const SIZE: usize = 25;

/// Bounds of the clock in µs, since a time is a signed 7-byte number: the years 829 to 3111. Beyond, time stands still.
const FIRST: i64 = -(1 << 55);
const LAST: i64 = (1 << 55) - 1;
/// From this capacity on a key may outlive its refill by an eighth.
const COARSE: u64 = 16;
/// The furthest expiry from now: 2^53 ms, 285,000 years. Servers take any positive 64-bit time, but add up the TTLs of
/// their keys in 64 bits for an average, and many a client reads integers as doubles.
const FAR_US: u64 = 1000 << 53;

/// What to do to the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: not a byte, not an event.
    Nothing,
    /// `SET key value KEEPTTL` where the key's TTL may stay, else `SET key value PXAT expiry.set_to`.
    Store {
        /// The new state.
        value: [u8; SIZE],
        /// Not before the bucket is full again (rounded up to ms), at most an eighth of the time to fill later; exact
        /// for a capacity below 16.
        expiry: Expiry,
        /// The key's deadline is another one, as far as what was stored tells: to set it takes no asking then.
        moves: bool,
    },
}

/// The answer of RL.BUCKET and what to write for it.
pub type Decision = limit::Decision<Effect>;

/// Decides one call at `now_us`, absolute microseconds, on what is stored.
///
/// `retry_after` and `reset_after` are whole milliseconds, rounded up: a call at `now_us + retry_after × 1000` passes
/// and one a millisecond earlier does not. Both saturate at `i64::MAX`.
///
/// # Errors
///
/// [`Refusal::Foreign`] if the value cannot be a state of a bucket.
pub fn decide(stored: Option<&[u8]>, now_us: i64, request: &Request) -> Result<Decision, Refusal> {
    match stored.and_then(|bytes| decide_usual(bytes, now_us, request)) {
        Some(decision) => Ok(decision),
        None => decide_otherwise(stored, now_us, request),
    }
}

/// The same for nearly every call on a key that exists; `None` for the rest.
#[inline(always)] // so that none of its numbers need ever be in memory
#[must_use]
pub fn decide_usual(stored: &[u8], now_us: i64, request: &Request) -> Option<Decision> {
    let now = now_us.clamp(FIRST, LAST);
    let level = usual(stored, now, request)?;
    Some(decided(&level, now, now, request, true))
}

/// The level where the state is not from the future, was stored with the period asked with, and all numbers fit into 64 bits;
/// `None` otherwise.
#[inline(always)]
fn usual(bytes: &[u8], now: i64, request: &Request) -> Option<Level> {
    let fields = Fields::split(bytes)?;
    let period = request.window.saturating_mul(1000);
    let elapsed = u64::try_from(now.wrapping_sub(fields.time)).ok()?;
    let is_usual = fields.magic == limit::BUCKET
        && fields.period == request.window
        && fields.high == 0
        && (1..=LARGEST_UNITS.saturating_mul(period)).contains(&fields.low);
    if !is_usual {
        return None;
    }
    reckon_small(fields.low, elapsed, period, request)
}

/// The same for any call, also one that [`decide_usual`] would answer.
///
/// # Errors
///
/// As [`decide`].
#[inline(never)]
pub fn decide_otherwise(stored: Option<&[u8]>, now_us: i64, request: &Request) -> Result<Decision, Refusal> {
    let now = now_us.clamp(FIRST, LAST);
    let period = request.window.saturating_mul(1000);
    let mut state = State { time: now, numerator: 0, period: request.window };
    if let Some(bytes) = stored {
        state = State::decode(bytes).ok_or(Refusal::Foreign)?;
    }
    let mut ahead = state.time.saturating_sub(now);
    // From further ahead than a period (a clock set back, damage), or nothing used: as new.
    if ahead > period.cast_signed() || state.numerator == 0 {
        state = State { time: now, numerator: 0, period: request.window };
        ahead = 0;
    }
    let span = Span { elapsed: ahead.min(0).unsigned_abs(), wait: ahead.max(0).unsigned_abs() };
    let level = reckon_large(&state, span, period, request);
    // A state from the future keeps its time, or what accrues until then would accrue twice.
    Ok(decided(&level, state.time.max(now), now, request, false))
}

#[inline(always)]
fn decided(level: &Level, time: i64, now: i64, request: &Request, is_usual: bool) -> Decision {
    let retry_after = match level.allowed {
        true => 0,
        false if request.cost > request.limit => NEVER,
        false => level.retry_after,
    };
    let verdict = Verdict {
        allowed: level.allowed,
        limit: request.limit,
        remaining: level.remaining,
        retry_after,
        reset_after: level.reset_after,
    };
    let effect = match level.after {
        None => Effect::Nothing,
        Some(numerator) => {
            let (expiry, step) = expiry(now, level.full_in, request.limit);
            // Where the bucket was not full, its time to be full moves by what this call's cost takes to accrue: past the
            // last round number, if it is less than that beyond it.
            let beyond = (expiry.earliest.wrapping_sub(1) & step.wrapping_sub(1)).cast_unsigned();
            let cost = request.cost.saturating_mul(request.window.saturating_mul(1000));
            let passes = beyond.saturating_mul(1000).saturating_mul(request.refill) < cost;
            let moves = is_usual && (level.was_full || passes);
            Effect::Store { value: State { time, numerator, period: request.window }.encode(), expiry, moves }
        }
    };
    Decision { verdict, effect }
}

/// What 25 bytes say, whether or not it makes sense.
struct Fields {
    magic: u8,
    time: i64,
    /// The numerator's lower 64 bits, and the rest.
    low: u64,
    high: u32,
    period: u64,
}

impl Fields {
    #[inline(always)]
    fn split(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SIZE] = bytes.try_into().ok()?;
        let (head, rest) = bytes.split_first_chunk::<8>()?;
        let (low, rest) = rest.split_first_chunk::<8>()?;
        let (high, _) = rest.split_first_chunk::<4>()?;
        let (_, tail) = bytes.split_last_chunk::<8>()?;
        let head = u64::from_le_bytes(*head);
        Some(Fields {
            magic: head as u8,
            time: head.cast_signed().wrapping_shr(8),
            low: u64::from_le_bytes(*low),
            high: u32::from_le_bytes(*high),
            period: u64::from_le_bytes(*tail).wrapping_shr(24),
        })
    }
}

/// A stored state, within its bounds.
#[derive(Clone, Copy, Debug)]
struct State {
    /// µs, of the last admitted hit.
    time: i64,
    /// Used units × period in µs.
    numerator: u128,
    /// ms; that of the call that stored this.
    period: u64,
}

impl State {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let fields = Fields::split(bytes)?;
        let numerator = u128::from(fields.high).wrapping_shl(64) | u128::from(fields.low);
        let sound = fields.magic == limit::BUCKET
            && (1..=LONGEST_MS).contains(&fields.period)
            && numerator <= units(LARGEST_UNITS, fields.period.saturating_mul(1000));
        sound.then_some(State { time: fields.time, numerator, period: fields.period })
    }

    #[inline]
    fn encode(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        if let ([head, low, rest], [last]) = bytes.as_chunks_mut() {
            *head = (self.time.cast_unsigned().wrapping_shl(8) | u64::from(limit::BUCKET)).to_le_bytes();
            *low = (self.numerator as u64).to_le_bytes();
            let high = u64::from(self.numerator.wrapping_shr(64) as u32);
            *rest = (high | self.period.wrapping_shl(32)).to_le_bytes();
            *last = self.period.wrapping_shr(32) as u8;
        }
        bytes
    }
}

/// Where now lies from the time of the state, in µs; one of the two is 0.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// Now is so much later.
    elapsed: u64,
    /// Now is so much earlier: nothing accrues for so long.
    wait: u64,
}

/// What a call finds, or leaves where it is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    allowed: bool,
    remaining: u64,
    /// ms
    retry_after: i64,
    /// ms
    reset_after: i64,
    /// µs, at most [`FAR_US`].
    full_in: u64,
    /// Was the bucket full?
    was_full: bool,
    /// The numerator to store, if the call is charged.
    after: Option<u128>,
}

/// The rule in 64 bits, for a state `elapsed` µs old. `None` where a number might not fit.
#[inline(always)]
fn reckon_small(used: u64, elapsed: u64, period: u64, request: &Request) -> Option<Level> {
    let capacity = request.limit.checked_mul(period).filter(|capacity| *capacity <= FAR_US)?;
    let refill = request.refill.max(1);
    // Too much accrued for 64 bits is more than can be used.
    let used = used.min(capacity).saturating_sub(elapsed.saturating_mul(refill));
    let cost = request.cost.saturating_mul(period);
    let (free, was_full) = (capacity.wrapping_sub(used), used == 0);
    // What is used never exceeds the capacity, nor what is left of it the limit.
    let left = |used: u64| request.limit.wrapping_sub(used.div_ceil(period.max(1)));
    let ms = |us: u64| (us.wrapping_add(999) / 1000).cast_signed();
    if cost > 0 && cost <= free && !request.peek {
        let used = used.wrapping_add(cost);
        let full_in = used.div_ceil(refill);
        return Some(Level {
            allowed: true,
            remaining: left(used),
            retry_after: 0,
            reset_after: ms(full_in),
            full_in,
            was_full,
            after: Some(u128::from(used)),
        });
    }
    let (allowed, full_in) = (cost <= free, used.div_ceil(refill));
    let retry_after = match allowed || request.cost > request.limit {
        true => 0,
        false => cost.wrapping_sub(free).div_ceil(refill).div_ceil(1000).cast_signed(),
    };
    let reset_after = ms(full_in);
    Some(Level { allowed, remaining: left(used), retry_after, reset_after, full_in, was_full, after: None })
}

/// The same rule in 128 bits, for any numbers within a request's bounds and a state stored with another period.
///
/// The largest product is numerator × period: 10^12 × (3660 d in µs) × (3660 d in ms) = 1.00 × 10^38 < 2^127.
#[cold]
fn reckon_large(state: &State, span: Span, period: u64, request: &Request) -> Level {
    let capacity = units(request.limit, period);
    let refill = u128::from(request.refill.max(1));
    let used = match state.period == request.window {
        true => state.numerator,
        // Into the unit of the period asked with, a fraction of it rounded up as used.
        false => state.numerator.saturating_mul(u128::from(request.window)).div_ceil(u128::from(state.period.max(1))),
    };
    let used = used.min(capacity).saturating_sub(u128::from(span.elapsed).saturating_mul(refill));
    let cost = units(request.cost, period);
    let free = capacity.saturating_sub(used);
    let allowed = cost <= free || cost == 0;
    let charged = allowed && cost > 0 && !request.peek;

    let now_used = if charged { used.saturating_add(cost) } else { used };
    let left = now_used.div_ceil(u128::from(period.max(1)));
    let wait = u128::from(span.wait);
    let full_in = match now_used {
        0 => 0,
        used => used.div_ceil(refill).saturating_add(wait),
    };
    let retry_after = match allowed || request.cost > request.limit {
        true => 0,
        false => whole_ms(cost.saturating_sub(free).div_ceil(refill).saturating_add(wait)),
    };
    Level {
        allowed,
        remaining: request.limit.saturating_sub(u64::try_from(left).unwrap_or(u64::MAX)),
        retry_after,
        reset_after: whole_ms(full_in),
        full_in: u64::try_from(full_in).unwrap_or(u64::MAX).min(FAR_US),
        was_full: used == 0,
        after: charged.then_some(now_used),
    }
}

/// `count` units as a numerator over `period` µs.
#[inline]
fn units(count: u64, period: u64) -> u128 {
    u128::from(count).saturating_mul(u128::from(period))
}

/// µs in whole ms, rounded up.
#[inline]
fn whole_ms(us: u128) -> i64 {
    match u64::try_from(us) {
        Ok(us) => us.div_ceil(1000).cast_signed(),
        Err(_) => i64::try_from(us.div_ceil(1000)).unwrap_or(i64::MAX),
    }
}

/// The deadlines of a key whose bucket is full in `full_in` µs from `now`, both µs, and how far apart those are of which one
/// is set.
///
/// They are round numbers, so a deadline moves seldom, keys share it, and a state tells when it moves.
#[inline]
fn expiry(now: i64, full_in: u64, capacity: u64) -> (Expiry, i64) {
    let slack = if capacity < COARSE { 0 } else { full_in / 8000 };
    // So many ms on top put every time of the clock above 0, where a division is cheap; no sum comes near 2^64.
    const UP: i64 = 1 << 46;
    let full_at = now.wrapping_add(UP * 1000).cast_unsigned().wrapping_add(full_in);
    let earliest = (full_at.wrapping_add(999) / 1000).cast_signed().wrapping_sub(UP);
    // The largest power of two that is no longer than the slack.
    let step = 1i64.wrapping_shl((slack | 1).ilog2());
    let set_to = earliest.wrapping_add(step.wrapping_sub(1)) & step.wrapping_neg();
    (Expiry { earliest, set_to, latest: earliest.saturating_add_unsigned(slack) }, step)
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 10 } else { 20_000 }))]

        #[test]
        fn both_widths_reckon_alike_wherever_the_small_one_answers(
            used in prop_oneof![0u64..1 << 20, any::<u64>()],
            elapsed in prop_oneof![Just(0u64), 0u64..1 << 20, 0u64..1 << 56],
            limit in prop_oneof![1u64..100, 1u64..=LARGEST_UNITS],
            refill in prop_oneof![1u64..100, 1u64..=LARGEST_UNITS],
            window in prop_oneof![1u64..5000, 1u64..=LONGEST_MS],
            cost in prop_oneof![0u64..100, 0u64..=LARGEST_UNITS],
            peek: bool,
        ) {
            let request = Request { limit, refill, window, cost, peek };
            let period = window * 1000;
            let state = State { time: 0, numerator: u128::from(used), period: window };
            let small = reckon_small(used, elapsed, period, &request);
            if let Some(level) = small {
                prop_assert_eq!(level, reckon_large(&state, Span { elapsed, wait: 0 }, period, &request));
            }
        }

        #[test]
        fn the_usual_way_and_the_other_decide_alike(
            numerator in prop_oneof![0u128..1 << 40, 0u128..1 << 90],
            away in prop_oneof![-5000i64..1, -(1i64 << 40)..1i64 << 40],
            stored_with in 1u64..4000,
            same: bool,
            (limit, refill) in (1u64..2000, 1u64..2000),
            cost in 0u64..50,
            peek: bool,
        ) {
            let request = Request { limit, refill, window: if same { stored_with } else { 2000 }, cost, peek };
            let now = 1i64 << 50;
            let bytes = State { time: now + away, numerator, period: stored_with }.encode();
            let forgetful = |decision: Result<Decision, Refusal>| {
                decision.map(|mut decision| {
                    if let Effect::Store { moves, .. } = &mut decision.effect {
                        *moves = false;
                    }
                    decision
                })
            };
            let usual = forgetful(decide(Some(&bytes), now, &request));
            prop_assert_eq!(usual, decide_otherwise(Some(&bytes), now, &request));
        }

        #[test]
        fn a_state_reads_back_as_it_was_written(
            time in -(1i64 << 55)..1 << 55,
            period in 1u64..=LONGEST_MS,
            share in 0u128..=1 << 20,
        ) {
            let numerator = units(LARGEST_UNITS, period * 1000) / (1 << 20) * share;
            let state = State { time, numerator, period };
            let back = State::decode(&state.encode()).unwrap();
            prop_assert_eq!((back.time, back.numerator, back.period), (time, numerator, period));
        }
    }

    #[test]
    fn the_largest_state_fits_and_one_more_is_foreign() {
        let numerator = units(LARGEST_UNITS, LONGEST_MS * 1000);
        let largest = State { time: LAST, numerator, period: LONGEST_MS };
        assert_eq!(State::decode(&largest.encode()).unwrap().numerator, numerator);
        for beyond in [
            State { numerator: numerator + 1, ..largest },
            State { period: LONGEST_MS + 1, ..largest },
            State { period: 0, numerator: 0, ..largest },
        ] {
            assert!(State::decode(&beyond.encode()).is_none());
        }
    }
}
