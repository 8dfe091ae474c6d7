//! RL.SLIDING on a real server, case by case.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::models::Log;
use cases::{
    Timed, ask, expires_at, refused_until_its_time_and_allowed_from_then_on, short, timed, verdict, wait_until_gone,
    wait_until_ms,
};
use rig::{Client, SOON, Server, ValueExt, args, wait_until};

fn start() -> (Server, Client) {
    let server = Server::start();
    let client = server.client();
    (server, client)
}

#[test]
fn r14_a_hit_leaves_exactly_one_window_after_it_came() {
    let (_server, mut client) = start();
    let call = args!["RL.SLIDING", "k", 1, "150ms"];
    assert!(ask(&mut client, &call).allowed);
    refused_until_its_time_and_allowed_from_then_on(&mut client, &call);
    // And that one counts as well.
    refused_until_its_time_and_allowed_from_then_on(&mut client, &call);
}

#[test]
fn r15_hits_in_the_same_millisecond_all_count() {
    let (_server, mut client) = start();
    let allowed: Vec<bool> =
        client.pipeline(&vec![args!["RL.SLIDING", "k", 5, "1h"]; 6]).iter().map(|one| verdict(one).allowed).collect();
    assert_eq!(allowed, [true, true, true, true, true, false]);
}

#[test]
fn r11_five_just_before_and_five_just_after_an_edge_are_five_in_any_window() {
    let (server, mut client) = start();
    let call = args!["RL.SLIDING", "k", 5, "200ms"];
    let mut log = Log::new(5, 200);
    let start = server.now_ms();
    wait_until_ms(&server, start + 170);
    for _ in 0..5 {
        log.check(&timed(&mut client, &call), 1);
    }
    wait_until_ms(&server, start + 205);
    for _ in 0..5 {
        log.check(&timed(&mut client, &call), 1);
    }
    assert!(log.admitted.len() >= 5);
}

#[test]
fn r16_refused_calls_do_not_count_however_many_there_are() {
    let (server, mut client) = start();
    let call = args!["RL.SLIDING", "k", 10, "100ms"];
    let (mut log, mut refused) = (Log::new(10, 100), 0);
    let until = server.now_ms() + 700;
    loop {
        let asked = timed(&mut client, &call);
        log.check(&asked, 1);
        refused += u32::from(!asked.verdict().allowed);
        if asked.earliest_ms() > until && refused > 10 && log.admitted.len() > 20 {
            break;
        }
        let admitted = log.admitted.len();
        assert!(asked.earliest_ms() < until + 60_000, "{refused} refused, {admitted} admitted");
    }
}

#[test]
fn r16_mixed_costs_at_random_times_are_counted_exactly() {
    use rand::RngExt;
    let (_, mut random) = cases::seeded();
    let (server, mut client) = start();
    let mut log = Log::new(50, 60);
    let until = server.now_ms() + 600;
    let mut next = server.now_ms();
    while next < until || log.admitted.len() <= 10 {
        let cost = random.random_range(1..25);
        let asked = timed(&mut client, &args!["RL.SLIDING", "k", 50, "60ms", "COST", cost]);
        log.check(&asked, cost);
        next += random.random_range(0..8);
        wait_until_ms(&server, next);
        assert!(next < until + 60_000, "{} admitted", log.admitted.len());
    }
}

#[test]
fn r17_a_full_window_is_new_again_one_window_later() {
    let (_server, mut client) = start();
    let call = args!["RL.SLIDING", "k", 4, "60ms"];
    wait_until(SOON, "a refusal", || !ask(&mut client, &call).allowed);
    let peek = args!["RL.SLIDING", "k", 4, "60ms", "PEEK"];
    wait_until(SOON, "it is as new", || ask(&mut client, &peek).reset_after == 0);
    assert_eq!(short(&mut client, &call), (true, 3, 0));
}

#[test]
fn r19_retry_after_is_told_by_the_hit_that_has_to_leave() {
    let (server, mut client) = start();
    let call = args!["RL.SLIDING", "k", 2, "60s"];
    let first = timed(&mut client, &call);
    wait_until_ms(&server, first.latest_ms() + 25);
    let second = timed(&mut client, &call);
    wait_until_ms(&server, second.latest_ms() + 25);
    let third = timed(&mut client, &call);
    assert!(first.verdict().allowed && second.verdict().allowed && !third.verdict().allowed);
    let leaves =
        |hit: &Timed| hit.earliest_ms() + 60_000 - third.latest_ms()..=hit.latest_ms() + 60_000 - third.earliest_ms();
    assert!(leaves(&first).contains(&third.verdict().retry_after), "{third:?}");
    assert!(leaves(&second).contains(&third.verdict().reset_after), "{third:?}");
    // Two units take both to leave.
    let both = timed(&mut client, &args!["RL.SLIDING", "k", 2, "60s", "COST", 2]);
    let leaves = second.earliest_ms() + 60_000 - both.latest_ms()..=second.latest_ms() + 60_000 - both.earliest_ms();
    assert!(leaves.contains(&both.verdict().retry_after), "{both:?}");
}

#[test]
fn r20_costs_add_up() {
    let (_server, mut client) = start();
    let mut hit = |cost: i64| short(&mut client, &args!["RL.SLIDING", "k", 10, "1h", "COST", cost]);
    assert_eq!(hit(8), (true, 2, 0));
    assert_eq!(hit(2), (true, 0, 0));
    let (allowed, remaining, retry_after) = hit(1);
    assert!(!allowed && remaining == 0 && (1..=3_600_000).contains(&retry_after));
}

#[test]
fn a_longer_window_counts_what_the_log_still_has_and_a_shorter_one_less() {
    let (server, mut client) = start();
    let first = timed(&mut client, &args!["RL.SLIDING", "k", 100, "1h", "COST", 10]);
    wait_until_ms(&server, first.latest_ms() + 30);
    assert_eq!(short(&mut client, &args!["RL.SLIDING", "k", 100, "2h", "COST", 5]), (true, 85, 0));
    assert_eq!(short(&mut client, &args!["RL.SLIDING", "k", 50, "1h", "PEEK"]), (true, 35, 0));
    let over = ask(&mut client, &args!["RL.SLIDING", "k", 5, "1h"]);
    assert_eq!((over.allowed, over.remaining), (false, 0));
    // Within 20 ms lies the second hit at most.
    assert!(ask(&mut client, &args!["RL.SLIDING", "k", 100, "20ms", "PEEK"]).remaining >= 95);
}

#[test]
fn the_key_is_gone_soon_after_the_newest_hit_has_left() {
    let (_server, mut client) = start();
    for window in [1, 20, 80] {
        for _ in 0..3 {
            client.call(&args!["RL.SLIDING", "k", 1000, window]);
        }
        let last = timed(&mut client, &args!["RL.SLIDING", "k", 1000, window]);
        let deadline = expires_at(&mut client, "k");
        let right = last.earliest_ms() + window..=last.latest_ms() + window + window / 8 + 1;
        assert!(deadline == -2 || right.contains(&deadline), "{deadline} not in {right:?}");
        wait_until_gone(&mut client, "k");
    }
}

#[test]
fn r24_a_call_on_a_full_log_of_many_thousand_hits_costs_hardly_more_than_on_a_short_one() {
    let (server, mut client) = start();
    // Each hit is 2 units on an entry of its own where the milliseconds allow; the log is as long as they make it.
    let filled = std::time::Instant::now();
    wait_until(SOON, "it is long", || {
        client.pipeline(&vec![args!["RL.SLIDING", "long", 70_000, "1h"]; 20]);
        let entries = client.call(&["STRLEN", "long"]).int() / 8;
        entries > 100 && filled.elapsed() > rig::ms(700)
    });
    wait_until(SOON, "it is full", || {
        let left = ask(&mut client, &args!["RL.SLIDING", "long", 70_000, "1h", "PEEK"]).remaining;
        let all = args!["RL.SLIDING", "long", 70_000, "1h", "COST", left];
        left == 0 || ask(&mut client, &all).remaining == 0
    });
    for _ in 0..2 {
        client.call(&["RL.SLIDING", "short", "2", "1h"]);
    }
    // The server's own measure of the time inside the command, over many calls.
    let mut cost = |key: &str, limit: i64| {
        client.call(&["CONFIG", "RESETSTAT"]);
        client.pipeline(&vec![args!["RL.SLIDING", key, limit, "1h"]; 2000]);
        let stats = server.info("commandstats");
        let (_, line) = stats.iter().find(|(name, _)| name.eq_ignore_ascii_case("cmdstat_rl.sliding")).unwrap();
        line.split(',').find_map(|f| f.strip_prefix("usec=")).unwrap().parse::<u64>().unwrap()
    };
    let short = (0..5).map(|_| cost("short", 2)).min().unwrap();
    // What else runs on the machine makes some rounds dearer and none cheaper: the best of up to fifty.
    let mut long = Vec::new();
    while !long.iter().any(|long| *long <= short * 4 + 2000) {
        assert!(long.len() < 50, "2000 calls took {long:?} µs on the long log, {short} µs on the short one");
        long.push(cost("long", 70_000));
    }
}
