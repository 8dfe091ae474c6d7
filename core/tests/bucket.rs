//! RL.BUCKET with a fake clock: the reported cases, exact rationals, and what must hold for any bytes at any time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod support;

use num_bigint::BigInt;
use proptest::prelude::*;
use sluice_core::bucket::{Decision, Effect, SIZE, decide};
use sluice_core::limit::{Refusal, Request, Verdict};
use support::*;

const MAX_UNITS: u64 = 1_000_000_000_000;
const MAX_PERIOD: u64 = 316_224_000_000;
const MS: i64 = 1000;
const S: i64 = 1_000_000;

fn bucket(limit: u64, refill: u64, window: u64) -> Request {
    Request { limit, refill, window, cost: 1, peek: false }
}

/// One key and the calls on it. With `lazy`, the server never gets round to deleting what expired.
#[derive(Clone, Default)]
struct Bucket {
    key: Store,
    lazy: bool,
}

impl Bucket {
    fn call(&mut self, now: i64, request: &Request) -> Verdict {
        let now_ms = now.div_euclid(1000);
        if !self.lazy {
            self.key.expire(now_ms);
        }
        let Decision { verdict, effect } = decide(self.key.value.as_deref(), now, request).unwrap();
        check_shape(&verdict, request);
        let charged = verdict.allowed && request.cost > 0 && !request.peek;
        assert_eq!(charged, effect != Effect::Nothing);
        if let Effect::Store { value, expiry, moves } = effect {
            assert!(expiry.keeps(Some(expiry.set_to)) && !expiry.keeps(None));
            assert!(!expiry.keeps(Some(expiry.earliest - 1)) && !expiry.keeps(Some(expiry.latest + 1)));
            if verdict.reset_after < 1 << 53 {
                let left = |at: i64| at * 1000 - now;
                let fill = verdict.reset_after;
                assert!(left(expiry.earliest) > (fill - 1) * 1000, "not before it is full");
                assert!(left(expiry.earliest) < (fill + 1) * 1000, "and not a ms later than needed");
                assert!(expiry.latest - expiry.earliest <= fill / 8, "at most an eighth later");
                assert!(request.limit >= 16 || expiry.latest == expiry.earliest, "exact below 16");
            }
            if !moves && expiry.keeps(self.key.expires_at) {
                self.key.set_range(0, &value);
            } else {
                self.key.set(&value, expiry.set_to);
            }
            assert_eq!(self.key.value.as_deref(), Some(&value[..]));
        }
        verdict
    }
}

proptest! {
    #[test]
    fn a_deadline_that_is_said_to_stay_keeps_its_key_or_comes_too_early(
        (limit, refill, window) in (1u64..2000, 1u64..50, 1u64..5000),
        pauses in prop::collection::vec(0i64..20_000, 1..60),
    ) {
        let (r, mut k, mut now) = (bucket(limit, refill, window), Bucket::default(), 1 << 50);
        for pause in pauses {
            now += pause;
            k.key.expire(now / 1000);
            let deadline = k.key.expires_at;
            if let Effect::Store { expiry, moves: false, .. } = decide(k.key.value.as_deref(), now, &r).unwrap().effect
                && let Some(deadline) = deadline
            {
                // Too early where the distance of the round numbers has changed: then it is set.
                prop_assert!(expiry.keeps(Some(deadline)) || deadline < expiry.earliest);
            }
            k.call(now, &r);
        }
    }
}

#[test]
fn a_deadline_that_moves_is_told_from_the_state_alone_and_moves_seldom() {
    // The same calls in every run, as how often a guess holds is no rule for every history.
    let (mut known, mut moved, mut hits) = (0, 0, 0);
    for seed in 0..rounds(300) {
        let mut dice = Dice(seed);
        let r = bucket(dice.below(2000) + 16, dice.below(50) + 1, dice.below(5000) + 1);
        let (mut k, mut now) = (Bucket::default(), 1 << 50);
        for _ in 0..60 {
            now += dice.below(20_000) as i64;
            k.key.expire(now / 1000);
            if let Effect::Store { expiry, moves, .. } = decide(k.key.value.as_deref(), now, &r).unwrap().effect
                && let Some(deadline) = k.key.expires_at
            {
                hits += 1;
                known += u64::from(moves == (deadline != expiry.set_to));
                moved += u64::from(moves);
            }
            k.call(now, &r);
        }
    }
    assert!(known * 10 > hits * 9, "{known} of {hits}");
    assert!(moved * 4 < hits * 3, "{moved} of {hits}");
}

#[test]
fn r3_two_thousand_a_second_into_a_bucket_of_one() {
    let b = bucket(1, 2000, 1000);
    let mut k = Bucket::default();
    assert!(allowed(k.call(0, &b), 0));
    assert!(refused(k.call(0, &b), 1));
    assert!(refused(k.call(499, &b), 1));
    let ms = rounds(1000) as i64;
    let passed = (0..=ms * MS).step_by(50).filter(|now| k.call(*now, &b).allowed).count();
    assert_eq!(passed as i64, 2 * ms, "2001 in a second, with the first");
}

#[test]
fn r5_the_largest_of_everything_neither_wraps_nor_panics() {
    let all = Request { cost: MAX_UNITS, ..bucket(MAX_UNITS, 1, MAX_PERIOD) };
    let mut k = Bucket::default();
    let v = k.call(0, &all);
    assert_eq!((v.allowed, v.remaining, v.reset_after), (true, 0, i64::MAX));
    assert_eq!(k.key.expires_at, Some(1 << 53));
    assert!(refused(k.call(0, &all), i64::MAX));
    // What an i64 holds is exact: 10^6 tokens at one per 3660 days.
    let million = Request { cost: 1_000_000, ..bucket(1_000_000, 1, MAX_PERIOD) };
    let mut k = Bucket::default();
    assert_eq!(k.call(0, &million).reset_after, 316_224_000_000_000_000);
    assert!(refused(k.call(0, &million), 316_224_000_000_000_000));
}

#[test]
fn r9_the_key_lives_until_the_bucket_is_full_and_an_eighth_longer_at_most() {
    let b = bucket(10, 10, 60_000);
    let mut k = Bucket::default();
    k.call(0, &b);
    assert_eq!(k.key.expires_at, Some(6_000), "exact for a small capacity");
    let b = bucket(100, 100, 60_000);
    let mut k = Bucket::default();
    k.call(0, &Request { cost: 80, ..b });
    assert_eq!(k.key.expires_at, Some(49_152), "the next multiple of 2^12, an eighth being 6,000");
    let before = k.key.clone();
    k.call(S, &Request { cost: 1, ..b });
    assert_eq!(k.key.expires_at, before.expires_at, "a deadline that is late enough stays");
    k.call(S, &Request { cost: 19, ..b });
    assert_eq!(k.key.expires_at, Some(61_440));
}

#[test]
fn r9_from_a_capacity_of_16_on_the_key_may_outlive_its_refill() {
    for (capacity, deadline) in [(15, 15_000), (16, 16_384)] {
        let mut k = Bucket::default();
        k.call(0, &cost(bucket(capacity, 1, 1000), capacity));
        assert_eq!(k.key.expires_at, Some(deadline));
    }
}

#[test]
fn a_state_with_nothing_used_is_as_new_whatever_its_time() {
    let mut bytes = [0; SIZE];
    bytes[0] = 0xf5;
    bytes[1..8].copy_from_slice(&(10 * S).to_le_bytes()[..7]);
    bytes[20] = 100;
    let mut k = Bucket { lazy: true, ..Bucket::default() };
    k.key.set(&bytes, 20_000);
    let b = bucket(5, 5, 20_000);
    let v = k.call(5 * S, &b);
    assert_eq!((v.remaining, v.reset_after), (4, 4_000), "not from the time it names");
}

#[test]
fn r21_a_cost_above_the_capacity_is_never_and_changes_nothing() {
    let b = bucket(10, 1, 1000);
    let mut k = Bucket::default();
    let v = k.call(0, &cost(b, 11));
    assert_eq!((v.retry_after, v.remaining, v.reset_after), (-1, 10, 0));
    k.call(0, &cost(b, 4));
    let before = k.key.clone();
    let v = k.call(500 * MS, &cost(b, 11));
    assert_eq!((v.retry_after, v.remaining, v.reset_after), (-1, 6, 3500));
    assert_eq!(k.key, before);
}

#[test]
fn r25_polling_an_empty_bucket_loses_no_refill() {
    let b = bucket(3, 3, 6_000);
    let mut k = Bucket::default();
    k.call(0, &cost(b, 3));
    let passed: Vec<i64> = (1..=40).map(|i| i * 500).filter(|now| k.call(now * MS, &b).allowed).collect();
    assert_eq!(passed, (1..=10).map(|i| i * 2000).collect::<Vec<_>>());
}

#[test]
fn r26_a_refusal_takes_nothing_and_leaves_the_ttl() {
    let b = bucket(10, 1, 3_600_000);
    let mut k = Bucket::default();
    assert!(allowed(k.call(0, &cost(b, 8)), 2));
    let before = k.key.clone();
    let v = k.call(0, &cost(b, 5));
    assert_eq!((v.allowed, v.remaining), (false, 2));
    assert_eq!(k.key, before);
    assert!(allowed(k.call(0, &b), 1));
}

#[test]
fn r28_retry_after_counts_from_the_last_hit() {
    let b = bucket(1, 1, 1000);
    let mut k = Bucket::default();
    assert!(allowed(k.call(0, &b), 0));
    assert!(refused(k.call(200 * MS, &b), 800));
    assert!(refused(k.call(999 * MS + 999, &b), 1));
    assert!(allowed(k.call(S, &b), 0));
}

#[test]
fn r29_refill_is_gradual_and_never_above_the_capacity() {
    let b = bucket(10, 10, 10_000);
    let mut k = Bucket::default();
    k.call(0, &cost(b, 10));
    for second in 0..30 {
        let v = k.call(second * S, &peek(b));
        assert_eq!(v.remaining, u64::try_from(second.min(10)).unwrap());
    }
}

#[test]
fn r30_used_units_stay_used_when_the_capacity_shrinks() {
    let mut k = Bucket::default();
    k.call(0, &cost(bucket(100, 1, 1000), 10));
    assert_eq!(k.call(0, &peek(bucket(50, 1, 1000))).remaining, 40);
    let v = k.call(0, &bucket(5, 1, 1000));
    assert_eq!((v.remaining, v.retry_after), (0, 1000), "capped: one period away, not six");
    assert!(allowed(k.call(S, &bucket(5, 1, 1000)), 0));
}

#[test]
fn r32_one_of_thirty_a_minute_is_back_in_two_seconds() {
    let v = Bucket::default().call(0, &bucket(30, 30, 60_000));
    assert_eq!((v.remaining, v.reset_after), (29, 2000));
}

#[test]
fn r34_peek_answers_as_the_call_would_and_shows_what_stands_now() {
    let b = bucket(10, 1, 1000);
    let mut k = Bucket::default();
    let v = k.call(0, &peek(cost(b, 3)));
    assert_eq!((v.allowed, v.remaining, v.reset_after, k.key.value.is_none()), (true, 10, 0, true));
    k.call(0, &cost(b, 8));
    let v = k.call(0, &peek(cost(b, 3)));
    assert_eq!((v.allowed, v.remaining, v.retry_after, v.reset_after), (false, 2, 1000, 8000));
    assert_eq!(k.call(500 * MS, &cost(b, 0)).remaining, 2);
}

#[test]
fn r39_a_clock_set_back_accrues_nothing_until_then_or_starts_afresh() {
    let b = bucket(3, 3, 6_000);
    let mut k = Bucket::default();
    k.call(100 * S, &cost(b, 2));
    assert!(refused(k.clone().call(97 * S, &cost(b, 3)), 3_000 + 4_000));
    let v = k.clone().call(97 * S, &b);
    assert_eq!((v.allowed, v.remaining, v.reset_after), (true, 0, 9_000));
    let mut spent = k.clone();
    spent.call(97 * S, &b);
    assert!(refused(spent.call(100 * S, &b), 2_000), "what accrued until then did not accrue twice");
    assert!(allowed(k.clone().call(94 * S - 1, &b), 2), "more than a period ahead: full");
    assert!(allowed(k.call(94 * S, &b), 0), "a period ahead: not");
}

#[test]
fn a_longer_period_keeps_what_is_used_and_rounds_it_up() {
    let mut k = Bucket::default();
    k.call(0, &bucket(2, 1, 3));
    // A third of a token accrued in 1 ms; of the remaining used one, two thirds, nothing is given away at 10 ms.
    assert_eq!(k.call(MS, &peek(bucket(2, 1, 3))).reset_after, 2);
    assert_eq!(k.call(MS, &peek(bucket(2, 1, 10))).reset_after, 9, "all time since the hit accrues at the new rate");
    k.call(MS, &bucket(2, 1, 7));
    let v = k.call(MS, &peek(bucket(2, 1, 7)));
    assert_eq!((v.remaining, v.reset_after), (0, 13));
}

/// What was used, as a fraction, and when: the rule in rationals, its answers checked rather than computed.
struct Exact {
    time: i64,
    used: (BigInt, BigInt),
}

impl Exact {
    /// Used units at `now`, times the period in µs.
    fn used_at(&self, now: i64, r: &Request) -> BigInt {
        let period: BigInt = BigInt::from(r.window) * 1000;
        let (numerator, denominator) = &self.used;
        let mut used: BigInt = (numerator * &period + denominator - 1) / denominator;
        used = used.min(BigInt::from(r.limit) * &period);
        let since = BigInt::from(now) - self.time;
        if since < -&period {
            return BigInt::ZERO;
        }
        (used - since.max(BigInt::ZERO) * r.refill).max(BigInt::ZERO)
    }

    fn passes(&self, now: i64, r: &Request) -> bool {
        let period: BigInt = BigInt::from(r.window) * 1000;
        self.used_at(now, r) + r.cost * &period <= r.limit * period
    }

    /// Checks a verdict against the rule, and takes over the charge.
    fn check(&mut self, now: i64, r: &Request, v: &Verdict) {
        let period: BigInt = BigInt::from(r.window) * 1000;
        let used = self.used_at(now, r);
        let passes = r.cost == 0 || &used + r.cost * &period <= r.limit * &period;
        assert_eq!(v.allowed, passes);
        if !passes && r.cost <= r.limit && v.retry_after < i64::MAX / 2000 {
            assert!(!self.passes(now + (v.retry_after - 1) * 1000, r), "refused a ms earlier");
            assert!(self.passes(now + v.retry_after * 1000, r), "allowed at retry_after");
        }
        if passes && r.cost > 0 && !r.peek {
            let ahead = self.time > now && self.time - now <= r.window as i64 * 1000 && used > BigInt::ZERO;
            *self =
                Exact { time: if ahead { self.time } else { now }, used: (used + r.cost * &period, period.clone()) };
        }
        let used = self.used_at(now, r);
        let level = r.limit * &period - &used;
        assert_eq!(BigInt::from(v.remaining), level / &period);
        if v.reset_after == 0 {
            assert_eq!(used, BigInt::ZERO);
        } else if v.reset_after < i64::MAX / 2000 {
            assert!(self.used_at(now + (v.reset_after - 1) * 1000, r) > BigInt::ZERO);
            assert_eq!(self.used_at(now + v.reset_after * 1000, r), BigInt::ZERO);
        }
    }
}

/// Parameters of every size; a limiter changes its own now and then.
fn request(dice: &mut Dice) -> Request {
    let (units, period) = dice.pick(&[(5, 10), (20, 3_000), (1000, 86_400_000), (MAX_UNITS, MAX_PERIOD)]);
    bucket(dice.magnitude(units), dice.magnitude(units), dice.magnitude(period))
}

/// Makes up to `calls` calls, fewer if the clock runs away; returns how many.
fn walk(seed: u64, calls: u64) -> u64 {
    let mut dice = Dice(seed);
    // A clock near zero may well go below it.
    let mut now = dice.magnitude(1 << 50) as i64;
    let mut base = request(&mut dice);
    let mut k = Bucket { lazy: dice.one_in(2), ..Bucket::default() };
    let mut exact = Exact { time: now, used: (BigInt::ZERO, BigInt::from(1)) };
    let mut retry = 1;
    for made in 0..calls {
        if dice.one_in(50) {
            base = match dice.below(4) {
                0 => request(&mut dice),
                1 => Request { limit: dice.magnitude(base.limit.saturating_mul(2).min(MAX_UNITS)), ..base },
                2 => Request { window: dice.magnitude((base.window * 2).min(MAX_PERIOD)), ..base },
                _ => Request { refill: dice.magnitude(MAX_UNITS), ..base },
            };
        }
        let token = (base.window * 1000 / base.refill).max(1);
        now += match dice.below(20) {
            0..8 => dice.below(token.saturating_mul(2)) as i64,
            8..12 => 0,
            12 | 13 => dice.below(2000) as i64,
            14 => retry,
            15 => (retry - 1).max(0),
            16 => dice.below(base.window * 1000) as i64,
            17 if k.lazy => -(dice.below(base.window * 2000).min(1 << 50) as i64),
            18 => dice.below(token.saturating_mul(base.limit).min(1 << 40)) as i64,
            _ => dice.below(token) as i64,
        };
        if !(-(1 << 54)..1 << 54).contains(&now) {
            return made;
        }
        let cost = match dice.below(8) {
            0..4 => 1,
            4 => 0,
            5 => base.limit + dice.below(2),
            _ => dice.magnitude(base.limit),
        };
        let r = Request { cost, peek: dice.one_in(8), ..base };
        if !k.lazy {
            k.key.expire(now.div_euclid(1000));
        }
        if k.key.value.is_none() {
            // Full at the rates asked with so far; a slower one asked with later has nothing left to count.
            exact.used.0 = BigInt::ZERO;
        }
        let v = k.call(now, &r);
        exact.check(now, &r, &v);
        if v.retry_after > 0 {
            retry = v.retry_after.saturating_mul(1000).min(1 << 45);
        }
    }
    calls
}

#[test]
fn r27_a_million_random_calls_never_differ_from_exact_rationals() {
    let (mut made, mut seed) = (0, 0);
    while made < steps(1_000_000, 10_000_000) {
        made += walk(seed, if cfg!(miri) { 50 } else { 500 });
        seed += 1;
    }
}

#[test]
fn r27_three_a_second_drifts_by_nothing() {
    let b = bucket(5, 3, 1000);
    let mut k = Bucket { lazy: true, ..Bucket::default() };
    let mut dice = Dice(3);
    let (mut now, mut passed) = (0, 0);
    // Asked more often than it refills, so after the first few it is never full and every token that accrues is handed out.
    for _ in 0..steps(100_000, 10_000_000).max(500) {
        now += dice.below(200_000) as i64;
        passed += i64::from(k.call(now, &b).allowed);
    }
    let v = k.call(now, &peek(b));
    assert_eq!(passed + v.remaining as i64, 5 + now * 3 / S);
}

#[test]
fn in_any_period_at_most_the_capacity_and_one_refill_pass() {
    for seed in 0..rounds(100) {
        let mut dice = Dice(seed);
        let b = bucket(dice.between(1, 8), dice.between(1, 8), dice.between(1, 50));
        let mut k = Bucket::default();
        let (mut now, mut passed) = (0, vec![]);
        for _ in 0..500 {
            now += dice.below(b.window * 2000 / (b.refill + b.limit)) as i64;
            if k.call(now, &b).allowed {
                passed.push(now);
            }
        }
        for &from in &passed {
            let inside = passed.iter().filter(|t| **t >= from && **t < from + b.window as i64 * 1000).count();
            assert!(inside as u64 <= b.limit + b.refill, "seed {seed}");
        }
    }
}

#[test]
fn each_step_of_the_clock_costs_at_most_a_period_and_gives_at_most_a_quota() {
    for seed in 0..rounds(300) {
        let mut dice = Dice(seed);
        let b = bucket(5, 2, 100);
        let mut k = Bucket { lazy: dice.one_in(2), ..Bucket::default() };
        let (mut real, mut skew, mut passed, mut stepped, mut last_step) = (0i64, 10 * S, 0u64, 0u64, 0i64);
        for _ in 0..500 {
            real += dice.below(40_000) as i64;
            if dice.one_in(60) {
                skew += dice.below(400_000) as i64 - 200_000;
                stepped += 1;
                last_step = real;
            }
            let v = k.call(real + skew, &b);
            passed += u64::from(v.allowed);
            // A token takes half a period; a step adds at most one period to that.
            let stuck = 50 + if real - last_step < 200_000 { 100 } else { 0 };
            assert!(v.retry_after <= stuck, "seed {seed}: {v:?}");
        }
        assert!(passed <= (1 + stepped) * b.limit + b.refill * (real as u64) / 100_000 + 1, "seed {seed}");
    }
}

fn any_request() -> impl Strategy<Value = Request> {
    (
        prop_oneof![1u64..50, 1u64..=MAX_UNITS],
        prop_oneof![1u64..50, 1u64..=MAX_UNITS],
        prop_oneof![1u64..5000, 1u64..=MAX_PERIOD],
        prop_oneof![0u64..50, 0u64..=MAX_UNITS],
        any::<bool>(),
    )
        .prop_map(|(limit, refill, window, cost, peek)| Request { limit, refill, window, cost, peek })
}

fn any_time() -> impl Strategy<Value = i64> {
    prop_oneof![any::<i64>(), Just(i64::MIN), Just(i64::MAX), 0i64..1 << 55]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases(4000)) })]

    #[test]
    fn any_bytes_at_any_time_are_answered_or_foreign(
        value in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            prop::collection::vec(any::<u8>(), SIZE).prop_map(|mut v| { v[0] = 0xf5; v }),
            // Small enough to be within bounds.
            (prop::collection::vec(any::<u8>(), SIZE), any::<u8>()).prop_map(|(mut v, zeros)| {
                v[0] = 0xf5;
                v[24] = 0;
                v[20 - usize::from(zeros) % 12..20].fill(0);
                v
            }),
        ],
        now in any_time(),
        r in any_request(),
    ) {
        match decide(Some(&value), now, &r) {
            Err(refusal) => prop_assert_eq!(refusal, Refusal::Foreign),
            Ok(d) => {
                check_shape(&d.verdict, &r);
                prop_assert_eq!((value.len(), value[0]), (SIZE, 0xf5));
                if let Effect::Store { value, expiry, .. } = d.effect {
                    prop_assert!(decide(Some(&value), now, &r).is_ok());
                    prop_assert!(expiry.earliest <= expiry.set_to && expiry.set_to <= expiry.latest);
                    prop_assert!(now < 0 || expiry.latest > 0);
                }
                // Nobody waits for a single token longer than until the state's own time and one period more.
                let one = Request { cost: 1, peek: false, ..r };
                let wait = decide(Some(&value), now, &one).unwrap().verdict.retry_after;
                prop_assert!(wait <= 2 * r.window as i64);
            }
        }
    }

    #[test]
    fn a_damaged_state_is_foreign_or_answers_and_never_locks(
        first in any_request(),
        at in 0i64..1 << 52,
        flips in prop::collection::vec(0usize..SIZE * 8, 1..4),
        cut in 0usize..SIZE,
        later in prop_oneof![-(1i64 << 40)..1 << 40, any::<i64>()],
        then in any_request(),
    ) {
        let charge = Request { cost: first.cost.clamp(1, first.limit), peek: false, ..first };
        let Effect::Store { value, .. } = decide(None, at, &charge).unwrap().effect else { panic!() };
        prop_assert_eq!(decide(Some(&value[..cut]), at, &then), Err(Refusal::Foreign));
        let mut bad = value;
        for flip in flips {
            bad[flip / 8] ^= 1 << (flip % 8);
        }
        let now = at.saturating_add(later);
        if let Ok(d) = decide(Some(&bad), now, &then) {
            check_shape(&d.verdict, &then);
            let v = decide(Some(&bad), now, &Request { cost: 1, peek: false, ..then }).unwrap().verdict;
            prop_assert!(v.retry_after <= 2 * then.window as i64);
        }
    }

    #[test]
    fn times_without_an_end_are_taken_as_the_last_a_state_can_name(r in any_request(), now in any_time()) {
        let v = decide(None, now, &r).unwrap();
        prop_assert_eq!(v, decide(None, now.clamp(-(1 << 55), (1 << 55) - 1), &r).unwrap());
    }
}
