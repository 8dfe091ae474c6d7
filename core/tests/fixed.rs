//! RL.FIXED with a fake clock: the reported cases, a naive model, and what must hold for any bytes at any time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod support;

use proptest::prelude::*;
use sluice_core::fixed::{Decision, Effect, Found, decide};
use sluice_core::limit::{Refusal, Request, Verdict};
use support::*;

/// One key and the calls on it. With `lazy`, the server never gets round to deleting what expired.
#[derive(Clone, Default)]
struct Fixed {
    key: Store,
    lazy: bool,
}

impl Fixed {
    fn decide(&mut self, now: i64, request: &Request) -> Decision {
        if !self.lazy {
            self.key.expire(now);
        }
        let expires_at = self.key.expires_at;
        let found = self.key.value.as_deref().map(|value| Found { value, expires_at });
        let decision = decide(found, now, request).unwrap();
        check_shape(&decision.verdict, request);
        decision
    }

    fn call(&mut self, now: i64, request: &Request) -> Verdict {
        let Decision { verdict, effect } = self.decide(now, request);
        match effect {
            Effect::Nothing => {}
            Effect::Start { count, end } => self.key.set(count.to_string().as_bytes(), end),
            Effect::Add { count, by, end } => {
                assert_eq!(self.key.incr_by(by), i64::try_from(count).unwrap());
                if let Some(end) = end {
                    self.key.expire_at(end);
                }
            }
            Effect::MoveEnd { end } => self.key.expire_at(end),
        }
        if request.peek || request.cost == 0 {
            assert_eq!(effect, Effect::Nothing);
        }
        verdict
    }
}

fn found(value: &[u8], expires_at: Option<i64>) -> Fixed {
    Fixed { key: Store { value: Some(value.to_vec()), expires_at }, lazy: false }
}

#[test]
fn r1_what_is_no_count_is_foreign_to_every_kind_of_call() {
    let foreign: [&[u8]; 14] = [
        b"",
        b"abc",
        b"-1",
        b"+1",
        b" 1",
        b"1 ",
        b"01",
        b"00",
        b"1.0",
        b"1e3",
        b"9223372036854775808",
        b"99999999999999999999",
        b"\xf5",
        b"\xf6\x31",
    ];
    for value in foreign {
        for request in [hit(10, 1000), cost(hit(10, 1000), 0), peek(hit(10, 1000)), cost(hit(10, 1000), 11)] {
            for expires_at in [None, Some(5), Some(50)] {
                assert_eq!(decide(Some(Found { value, expires_at }), 10, &request), Err(Refusal::Foreign));
            }
        }
    }
    for value in ["0", "7", "10", "9223372036854775807"] {
        assert!(decide(Some(Found { value: value.as_bytes(), expires_at: None }), 10, &hit(10, 1000)).is_ok());
    }
}

#[test]
fn r5_the_largest_count_is_full_and_never_wraps() {
    let mut k = found(b"9223372036854775807", Some(1000));
    assert!(refused(k.call(0, &hit(1_000_000_000_000, 1000)), 1000));
    assert_eq!(k.call(0, &cost(hit(10, 1000), 0)).remaining, 0);
    assert_eq!(k.key.value.as_deref(), Some(&b"9223372036854775807"[..]));
}

#[test]
fn r6_a_counter_that_lost_its_ttl_ends_one_window_after_the_next_charged_call() {
    let mut k = found(b"10", None);
    for quiet in [peek(hit(10, 1000)), cost(hit(10, 1000), 0)] {
        let v = k.call(500, &quiet);
        assert_eq!((v.remaining, v.reset_after), (0, 1000));
        assert_eq!(k.key.expires_at, None);
    }
    assert!(refused(k.call(500, &hit(10, 1000)), 1000));
    assert_eq!(k.key.expires_at, Some(1500), "the refusal wrote the end");
    assert!(refused(k.call(1499, &hit(10, 1000)), 1));
    assert!(allowed(k.call(1500, &hit(10, 1000)), 9));

    let mut k = found(b"10", None);
    assert!(refused(k.call(500, &cost(hit(10, 1000), 11)), -1));
    assert_eq!(k.key.expires_at, Some(1500), "so does one that can never pass");

    let mut k = found(b"3", None);
    assert!(allowed(k.call(500, &hit(10, 1000)), 6));
    assert_eq!(k.key.expires_at, Some(1500));
}

#[test]
fn r7_a_call_at_exactly_the_end_opens_a_new_window() {
    let mut k = Fixed { lazy: true, ..Fixed::default() };
    assert!(allowed(k.call(0, &hit(10, 1000)), 9));
    assert!(allowed(k.call(999, &hit(10, 1000)), 8));
    let v = k.call(1000, &hit(10, 1000));
    assert!(allowed(v, 9));
    assert_eq!((v.reset_after, k.key.expires_at), (1000, Some(2000)));
}

#[test]
fn r8_later_hits_leave_the_end_where_the_first_put_it() {
    let mut k = Fixed::default();
    for i in 0..20 {
        let v = k.call(i * 10_000, &hit(10, 60_000));
        assert!(v.allowed, "{i}");
        assert_eq!(k.key.expires_at, Some((i / 6) * 60_000 + 60_000));
    }
}

#[test]
fn r10_a_window_of_250_ms_is_right_to_the_ms() {
    let mut k = Fixed::default();
    assert!(allowed(k.call(7, &hit(2, 250)), 1));
    assert!(allowed(k.call(100, &hit(2, 250)), 0));
    assert!(refused(k.call(100, &hit(2, 250)), 157));
    assert!(refused(k.call(256, &hit(2, 250)), 1));
    assert!(allowed(k.call(257, &hit(2, 250)), 1));
}

#[test]
fn r11_both_sides_of_an_edge_pass_by_nature() {
    let mut k = Fixed::default();
    k.call(0, &hit(5, 1000));
    assert!((0..4).all(|_| k.call(999, &hit(5, 1000)).allowed));
    assert!((0..5).all(|_| k.call(1000, &hit(5, 1000)).allowed));
    assert!(!k.call(1000, &hit(5, 1000)).allowed);
}

#[test]
fn r12_reset_after_is_the_ttl() {
    let mut k = Fixed::default();
    for now in [3, 50, 700] {
        let v = k.call(now, &hit(5, 1000));
        assert_eq!(v.reset_after, k.key.expires_at.unwrap() - now);
    }
    assert_eq!(k.call(800, &peek(hit(5, 1000))).reset_after, 203);
}

#[test]
fn r13_a_plain_incr_counter_is_continued() {
    let mut k = Fixed::default();
    k.key.incr_by(1);
    k.key.expire_at(5000);
    assert!(allowed(k.call(0, &hit(3, 5000)), 1));
    assert_eq!((k.key.value.as_deref(), k.key.expires_at), (Some(&b"2"[..]), Some(5000)));
}

#[test]
fn r20_costs_add_up() {
    let mut k = Fixed::default();
    assert!(allowed(k.call(0, &cost(hit(10, 60_000), 8)), 2));
    assert!(allowed(k.call(0, &cost(hit(10, 60_000), 2)), 0));
    assert!(refused(k.call(0, &hit(10, 60_000)), 60_000));
}

#[test]
fn r21_a_cost_above_the_limit_is_never_and_changes_nothing() {
    let mut k = Fixed::default();
    let v = k.call(0, &cost(hit(10, 1000), 11));
    assert!(refused(v, -1));
    assert_eq!((v.remaining, v.reset_after, k.key.value.is_none()), (10, 0, true));
    k.call(0, &cost(hit(10, 1000), 4));
    let before = k.key.clone();
    let v = k.call(100, &cost(hit(10, 1000), 11));
    assert!(refused(v, -1));
    assert_eq!((v.remaining, v.reset_after), (6, 900));
    assert_eq!(k.key, before);
}

#[test]
fn r23_a_limit_of_one_passes_the_first_call_only() {
    let mut k = Fixed::default();
    assert!(allowed(k.call(0, &hit(1, 1)), 0));
    assert!(refused(k.call(0, &hit(1, 1)), 1));
    assert!(allowed(k.call(1, &hit(1, 1)), 0));
}

#[test]
fn r34_peek_answers_as_the_call_would_and_shows_what_stands_now() {
    let mut k = Fixed::default();
    let v = k.call(0, &peek(cost(hit(10, 1000), 3)));
    assert_eq!((v.allowed, v.remaining, v.reset_after), (true, 10, 0));
    k.call(0, &cost(hit(10, 1000), 8));
    let v = k.call(400, &peek(cost(hit(10, 1000), 3)));
    assert_eq!((v.allowed, v.remaining, v.retry_after, v.reset_after), (false, 2, 600, 600));
}

#[test]
fn r39_a_clock_step_locks_nobody_out_beyond_one_window() {
    let hour = 3_600_000;
    let mut k = Fixed::default();
    for _ in 0..5 {
        k.call(hour, &hit(5, 60_000));
    }
    assert!(refused(k.call(0, &hit(5, 60_000)), 60_000));
    assert_eq!(k.key.expires_at, Some(60_000));
    assert!(refused(k.call(59_999, &hit(5, 60_000)), 1));
    assert!(allowed(k.call(60_000, &hit(5, 60_000)), 4));
    assert!(allowed(k.call(hour * 2, &hit(5, 60_000)), 4));
}

#[test]
fn a_longer_window_keeps_the_end_and_a_shorter_one_draws_it_in() {
    let mut k = Fixed::default();
    k.call(0, &hit(5, 10_000));
    assert_eq!(k.call(0, &hit(5, 60_000)).reset_after, 10_000);
    assert_eq!(k.call(0, &peek(hit(5, 2_000))).reset_after, 2_000);
    assert_eq!(k.key.expires_at, Some(10_000));
    assert!(allowed(k.call(0, &hit(5, 2_000)), 2));
    assert_eq!(k.key.expires_at, Some(2_000));
}

#[test]
fn a_lower_limit_leaves_nothing_and_a_higher_one_the_difference() {
    let mut k = Fixed::default();
    k.call(0, &cost(hit(10, 1000), 8));
    let v = k.call(0, &hit(5, 1000));
    assert_eq!((v.allowed, v.remaining, v.retry_after), (false, 0, 1000));
    assert!(allowed(k.call(0, &hit(20, 1000)), 11));
}

/// The rule as one would tell it: a count and an end.
#[derive(Default)]
struct Naive {
    running: Option<(u64, i64)>,
}

impl Naive {
    fn call(&mut self, now: i64, r: &Request) -> Verdict {
        let window = r.window as i64;
        let charged = !r.peek && r.cost > 0;
        let (mut used, mut end) = self.running.filter(|(_, end)| *end > now).unwrap_or((0, now));
        end = end.min(now + window);
        let allowed = r.cost == 0 || used + r.cost <= r.limit;
        let retry_after = if allowed {
            0
        } else if r.cost > r.limit {
            -1
        } else {
            end - now
        };
        if charged && allowed {
            if end == now {
                end = now + window;
            }
            used += r.cost;
        }
        if charged && end > now {
            self.running = Some((used, end));
        }
        let remaining = r.limit.saturating_sub(used);
        Verdict { allowed, limit: r.limit, remaining, retry_after, reset_after: end - now }
    }
}

fn request(dice: &mut Dice) -> Request {
    Request {
        limit: dice.between(1, 12),
        refill: 1,
        window: dice.pick(&[1, 7, 100, 100, 100, 250]),
        cost: dice.pick(&[0, 1, 1, 1, 1, 2, 3, 13]),
        peek: dice.one_in(6),
    }
}

/// Mostly small steps forward, now and then a long gap, and a step back.
fn tick(dice: &mut Dice, now: i64, back: bool) -> i64 {
    let step = match dice.below(24) {
        0 => dice.below(1000) as i64,
        1 if back => -(dice.below(1000) as i64),
        2..8 => 0,
        _ => dice.below(25) as i64,
    };
    now + step
}

#[test]
fn a_random_walk_agrees_with_the_naive_model_field_by_field() {
    for seed in 0..steps(300, 30_000) {
        let mut dice = Dice(seed);
        let mut k = Fixed { lazy: dice.one_in(2), ..Fixed::default() };
        let mut model = Naive::default();
        let mut now = dice.below(1000) as i64;
        for _ in 0..300 {
            // An eager server deletes for good, a model with a clock set back would see the key again.
            now = tick(&mut dice, now, k.lazy);
            let r = request(&mut dice);
            assert_eq!(k.call(now, &r), model.call(now, &r), "seed {seed} at {now}: {r:?}");
        }
    }
}

#[test]
fn retry_after_is_tight_after_any_history() {
    let mut seen = 0;
    for seed in 0..rounds(200) {
        let mut dice = Dice(seed);
        let mut k = Fixed::default();
        let mut now = 5000;
        for _ in 0..200 {
            now = tick(&mut dice, now, true);
            let r = request(&mut dice);
            let v = k.call(now, &r);
            if v.retry_after > 0 && !r.peek {
                seen += 1;
                assert!(refused(k.clone().call(now + v.retry_after - 1, &r), 1) || v.retry_after == 1);
                assert!(k.clone().call(now + v.retry_after, &r).allowed, "seed {seed}");
            }
        }
    }
    assert!(seen > rounds(2000), "{seen}");
}

#[test]
fn each_step_of_the_clock_gives_at_most_one_extra_quota() {
    for seed in 0..rounds(300) {
        let mut dice = Dice(seed);
        let (limit, window) = (5, 100);
        let mut k = Fixed::default();
        // `real` never steps; two quotas fit a window by nature, each step may add one.
        let (mut real, mut skew, mut hits, mut steps) = (0i64, 10_000i64, vec![], vec![]);
        for _ in 0..600 {
            real += dice.below(12) as i64;
            if dice.one_in(60) {
                skew += dice.below(400) as i64 - 200;
                steps.push(real);
            }
            if k.call(real + skew, &hit(limit, window)).allowed {
                hits.push(real);
            }
        }
        for &start in &hits {
            let inside = |t: &&i64| **t >= start && **t < start + window as i64;
            let quota = limit * (2 + steps.iter().filter(inside).count() as u64);
            assert!(hits.iter().filter(inside).count() as u64 <= quota, "seed {seed}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases(2000)) })]

    #[test]
    fn any_bytes_at_any_time_are_answered_or_foreign(
        value in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..24),
            "[0-9]{0,21}".prop_map(String::into_bytes),
        ],
        expires_at in any::<Option<i64>>(),
        now in prop_oneof![any::<i64>(), Just(i64::MIN), Just(i64::MAX), 0i64..1_000_000],
        limit in 1u64..=1_000_000_000_000,
        window in 1u64..=316_224_000_000,
        cost in 0u64..=1_000_000_000_000,
        peek: bool,
    ) {
        let r = Request { limit, refill: 1, window, cost, peek };
        let text = String::from_utf8_lossy(&value);
        let count = text.parse::<i64>().ok().filter(|c| *c >= 0 && c.to_string() == text);
        match decide(Some(Found { value: &value, expires_at }), now, &r) {
            Err(refusal) => prop_assert!(refusal == Refusal::Foreign && count.is_none()),
            Ok(d) => {
                prop_assert!(count.is_some());
                check_shape(&d.verdict, &r);
                prop_assert!(d.verdict.retry_after <= window as i64);
                if let Effect::Add { count: total, by, .. } = d.effect {
                    prop_assert_eq!(total, count.unwrap() as u64 + by);
                    prop_assert!(total <= limit);
                }
            }
        }
    }
}
