//! RL.BUCKET on a real server, case by case.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::models::Level;
use cases::{
    ask, expires_at, refused_until_its_time_and_allowed_from_then_on, short, timed, value_and_expiry, verdict,
    wait_until_ms,
};
use rig::{Client, SOON, Server, ValueExt, args, wait_until};

fn start() -> (Server, Client) {
    let server = Server::start();
    let client = server.client();
    (server, client)
}

#[test]
fn r3_a_rate_of_two_tokens_a_millisecond_is_neither_rounded_to_none_nor_to_more() {
    let (server, mut client) = start();
    let call = args!["RL.BUCKET", "k", 1, 2000, "1s"];
    let mut level = Level::full(1, 2000, 1000);
    let (mut passed, mut refused, until) = (0, 0, server.now_ms() + 200);
    loop {
        let asked = timed(&mut client, &call);
        level.check(&asked, 1);
        if asked.verdict().allowed {
            passed += 1;
        } else {
            assert_eq!(asked.verdict().retry_after, 1);
            refused += 1;
        }
        if asked.earliest_ms() > until && refused > 0 && passed > 10 {
            break;
        }
        assert!(asked.earliest_ms() < until + 60_000, "{passed} passed, {refused} refused");
    }
}

#[test]
fn r25_refill_is_not_lost_by_polling() {
    let (server, mut client) = start();
    let call = args!["RL.BUCKET", "k", 3, 3, "300ms"];
    let mut level = Level::full(3, 3, 300);
    let (mut passed, mut refused, until) = (0, 0, server.now_ms() + 700);
    loop {
        let asked = timed(&mut client, &call);
        level.check(&asked, 1);
        passed += i64::from(asked.verdict().allowed);
        refused += i64::from(!asked.verdict().allowed);
        if asked.earliest_ms() > until && refused > 3 && passed > 3 {
            break;
        }
        assert!(asked.earliest_ms() < until + 60_000, "{passed} passed, {refused} refused");
        wait_until_ms(&server, asked.latest_ms() + 4);
    }
}

#[test]
fn r25_random_costs_at_random_times_find_the_level_that_the_rate_says() {
    use rand::RngExt;
    let (_, mut random) = cases::seeded();
    let (server, mut client) = start();
    for (key, capacity, refill, period) in [("a", 20, 7, 30), ("b", 100, 1000, 700), ("c", 5, 3, 11)] {
        let mut level = Level::full(capacity, refill, period);
        let until = server.now_ms() + 250;
        let mut next = server.now_ms();
        while next < until {
            let cost = random.random_range(1..=capacity);
            let asked = timed(&mut client, &args!["RL.BUCKET", key, capacity, refill, period, "COST", cost]);
            level.check(&asked, cost);
            next += random.random_range(0..6);
            wait_until_ms(&server, next);
        }
    }
}

#[test]
fn r26_costs_are_taken_whole_or_not_at_all_and_a_refusal_leaves_the_key_alone() {
    let (_server, mut client) = start();
    let call = |cost: i64| args!["RL.BUCKET", "k", 10, 1, "1d", "COST", cost];
    assert_eq!(short(&mut client, &call(8)), (true, 2, 0));
    let before = value_and_expiry(&mut client, "k");
    let refused = ask(&mut client, &call(5));
    assert_eq!((refused.allowed, refused.remaining), (false, 2));
    assert!((3 * 86_400_000 - 60_000..=3 * 86_400_000).contains(&refused.retry_after), "{refused:?}");
    assert_eq!(value_and_expiry(&mut client, "k"), before);
    assert_eq!(short(&mut client, &call(1)), (true, 1, 0));
    assert_ne!(expires_at(&mut client, "k"), before.1, "one more to fill, so exact for so small a bucket");
}

#[test]
fn r28_retry_after_is_what_is_left_of_the_token() {
    let (server, mut client) = start();
    let call = args!["RL.BUCKET", "k", 1, 1, "1h"];
    let first = timed(&mut client, &call);
    assert!(first.verdict().allowed);
    wait_until_ms(&server, first.latest_ms() + 30);
    let second = timed(&mut client, &call);
    let retry = second.verdict().retry_after * 1000;
    let full = 3_600_000_000;
    assert!(retry >= full - (second.after - first.before), "{first:?}, {second:?}");
    assert!(retry < full - (second.before - first.after) + 1000, "{first:?}, {second:?}");
    assert_eq!(second.verdict().reset_after * 1000, retry);
}

#[test]
fn r28_a_bucket_of_one_is_tight() {
    let (_server, mut client) = start();
    let call = args!["RL.BUCKET", "k", 1, 1, "150ms"];
    refused_until_its_time_and_allowed_from_then_on(&mut client, &call);
}

#[test]
fn r29_it_refills_bit_by_bit_and_never_above_the_capacity() {
    let (_server, mut client) = start();
    let mut level = Level::full(8, 8, 240);
    level.check(&timed(&mut client, &args!["RL.BUCKET", "k", 8, 8, "240ms", "COST", 8]), 8);
    let peek = args!["RL.BUCKET", "k", 8, 8, "240ms", "PEEK"];
    let mut full_since = None;
    wait_until(SOON, "it has been full for a while", || {
        let now = timed(&mut client, &peek);
        level.check_peek(&now);
        if now.verdict().reset_after == 0 {
            full_since.get_or_insert(now.earliest_ms());
        }
        full_since.is_some_and(|since| now.earliest_ms() > since + 60)
    });
}

#[test]
fn r30_a_smaller_capacity_keeps_what_was_used() {
    let (_server, mut client) = start();
    assert_eq!(short(&mut client, &args!["RL.BUCKET", "k", 100, 1, "1d", "COST", 10]), (true, 90, 0));
    assert_eq!(short(&mut client, &args!["RL.BUCKET", "k", 50, 1, "1d", "PEEK"]), (true, 40, 0));
    let shut = timed(&mut client, &args!["RL.BUCKET", "k", 5, 1, "1d"]);
    let day = 86_400_000;
    assert_eq!((shut.verdict().allowed, shut.verdict().remaining), (false, 0));
    assert!((day - 60_000..=day).contains(&shut.verdict().retry_after), "used is capped at 5, so one a day: {shut:?}");
    assert_eq!(short(&mut client, &args!["RL.BUCKET", "k", 100, 1, "1d"]), (true, 89, 0));
}

#[test]
fn r32_one_of_thirty_a_minute_is_full_again_two_seconds_later() {
    let (_server, mut client) = start();
    let used = ask(&mut client, &args!["RL.BUCKET", "k", 30, 30, "60s"]);
    assert_eq!((used.remaining, used.reset_after), (29, 2000));
}

#[test]
fn the_state_is_small_and_plain_and_gone_when_the_bucket_is_full() {
    let (_server, mut client) = start();
    // Full again after 50 ms. In a transaction the server's time stands still, so the key is there for both looks.
    let replies = client.pipeline(&[
        args!["MULTI"],
        args!["RL.BUCKET", "k", "1000000000000", "1000000000000", "1s", "COST", "50000000000"],
        args!["TYPE", "k"],
        args!["STRLEN", "k"],
        args!["EXEC"],
    ]);
    let [hit, kind, len] = &replies[4].array()[..] else { panic!("{replies:?}") };
    assert!(verdict(hit).allowed);
    assert_eq!(kind.text(), "string");
    assert!((1..=32).contains(&len.int()), "{len:?}");
    cases::wait_until_gone(&mut client, "k");
}
