//! RL.FIXED on a real server, case by case.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::{
    Verdict, ask, assert_error, expires_at, refused_until_its_time_and_allowed_from_then_on, short, timed,
    value_and_expiry, verdict, wait_until_gone, wait_until_ms,
};
use rig::{Client, SOON, Server, ValueExt, args, in_time, wait_until};

fn start() -> (Server, Client) {
    let server = Server::start();
    let client = server.client();
    (server, client)
}

#[test]
fn r7_after_the_window_a_call_starts_a_new_one_with_a_full_ttl() {
    let (_server, mut client) = start();
    let call = args!["RL.FIXED", "k", 2, "120ms"];
    wait_until(SOON, "the window is full", || !ask(&mut client, &call).allowed);
    let end = expires_at(&mut client, "k");
    let first = loop {
        let asked = timed(&mut client, &call);
        if asked.verdict().allowed {
            break asked;
        }
        assert!(asked.earliest_ms() < end, "still shut {} ms after the end", asked.earliest_ms() - end);
    };
    assert!(first.latest_ms() >= end, "open before the end");
    assert_eq!((first.verdict().remaining, first.verdict().reset_after), (1, 120));
    let new_end = expires_at(&mut client, "k");
    assert!((first.earliest_ms() + 120..=first.latest_ms() + 120).contains(&new_end) || new_end == -2, "{new_end}");
}

#[test]
fn r8_the_end_of_the_window_stays_where_the_first_hit_put_it() {
    let (server, mut client) = start();
    let (call, window) = (args!["RL.FIXED", "k", 10, "150ms"], 150);
    // A hit every seventh of a window, as long as three windows take; each window sees at most eight.
    // A window began somewhere within the bracket of its first hit, so its end is known as a bracket as well.
    let (mut end, mut windows) = ((0, 0), 0);
    while windows < 4 {
        let hit = timed(&mut client, &call);
        let Verdict { allowed, remaining, reset_after, .. } = hit.verdict();
        assert!(allowed, "{hit:?}");
        if remaining == 9 {
            assert!(hit.latest_ms() >= end.0, "a new window before the end of the last: {hit:?}, {end:?}");
            assert_eq!(reset_after, window);
            end = (hit.earliest_ms() + window, hit.latest_ms() + window);
            windows += 1;
        } else {
            assert!(hit.earliest_ms() + reset_after <= end.1, "the end has moved: {hit:?}, {end:?}");
            assert!(hit.latest_ms() + reset_after >= end.0, "the end has moved: {hit:?}, {end:?}");
        }
        wait_until_ms(&server, hit.latest_ms() + window / 7);
    }
}

#[test]
fn r8_no_later_hit_moves_the_ttl() {
    let (_server, mut client) = start();
    client.call(&["RL.FIXED", "k", "100", "1h"]);
    let end = expires_at(&mut client, "k");
    for n in 1..=120 {
        assert_eq!(ask(&mut client, &args!["RL.FIXED", "k", 100, "1h"]).allowed, n < 100);
        assert_eq!(expires_at(&mut client, "k"), end);
    }
    // Nor does a longer window, for the one that runs keeps its end.
    client.call(&["RL.FIXED", "k", "1000", "2h"]);
    assert_eq!(expires_at(&mut client, "k"), end);
    assert_eq!(client.call(&["GET", "k"]).text(), "101");
}

#[test]
fn r10_a_window_of_250_ms_is_right_to_the_ms() {
    let (_server, mut client) = start();
    let call = args!["RL.FIXED", "k", 2, "250ms"];
    refused_until_its_time_and_allowed_from_then_on(&mut client, &call);
}

#[test]
fn r11_the_edge_of_two_windows_lets_twice_the_limit_through_by_nature() {
    let (server, mut client) = start();
    // On a machine that stood still meanwhile the hits were not where they had to be.
    let hits = in_time(200, |window| {
        let call = args!["RL.FIXED", format!("k{window}"), 5, window];
        let opened = client.pipeline(&[call.clone(), args!["PEXPIRETIME", format!("k{window}")]]);
        assert!(verdict(&opened[0]).allowed);
        let (end, window) = (opened[1].int(), window as i64);
        wait_until_ms(&server, end - window / 6);
        let before: Vec<_> = (0..4).map(|_| timed(&mut client, &call)).collect();
        wait_until_ms(&server, end + 1);
        let after: Vec<_> = (0..5).map(|_| timed(&mut client, &call)).collect();
        (before[3].latest_ms() < end && after[4].latest_ms() < end + window).then(|| [before, after].concat())
    });
    for hit in hits {
        assert!(hit.verdict().allowed, "{hit:?}");
    }
}

#[test]
fn r12_reset_after_and_pttl_agree_to_the_ms() {
    let (_server, mut client) = start();
    for call in [args!["RL.FIXED", "k", 1, "60s"], args!["RL.FIXED", "k", 1, "60s", "PEEK"]] {
        for _ in 0..3 {
            let asked = timed(&mut client, &call);
            let end = expires_at(&mut client, "k");
            let reset = asked.verdict().reset_after;
            assert!(
                (end - asked.latest_ms()..=end - asked.earliest_ms()).contains(&reset),
                "{reset}, {end}, {asked:?}"
            );
        }
    }
}

#[test]
fn r13_a_counter_made_by_incr_and_expire_is_continued_and_get_shows_the_count() {
    let (_server, mut client) = start();
    client.pipeline(&[args!["INCR", "k"], args!["PEXPIRE", "k", 50_000]]);
    let end = expires_at(&mut client, "k");
    let call = args!["RL.FIXED", "k", 4, "50s"];
    assert_eq!(short(&mut client, &call), (true, 2, 0));
    assert_eq!(client.call(&["GET", "k"]).text(), "2");
    assert_eq!(client.call(&["INCR", "k"]).int(), 3);
    assert_eq!(short(&mut client, &call), (true, 0, 0));
    assert!(!ask(&mut client, &call).allowed);
    assert_eq!(client.call(&["GET", "k"]).text(), "4");
    assert_eq!(client.call(&["INCRBY", "k", "10"]).int(), 14);
    let over = ask(&mut client, &call);
    assert!(!over.allowed && over.remaining == 0);
    assert_eq!(client.call(&["DECRBY", "k", "11"]).int(), 3);
    assert_eq!(short(&mut client, &call), (true, 0, 0));
    assert_eq!(expires_at(&mut client, "k"), end);
}

#[test]
fn r13_a_count_above_the_limit_is_full_up_to_the_largest_integer_and_above_that_foreign() {
    let (_server, mut client) = start();
    for count in ["4", "5", "1000000000001", "9223372036854775806", "9223372036854775807"] {
        client.call(&["SET", "k", count, "PX", "50000"]);
        let before = value_and_expiry(&mut client, "k");
        let over = ask(&mut client, &args!["RL.FIXED", "k", 4, "50s"]);
        assert_eq!((over.allowed, over.remaining), (false, 0), "{count}");
        assert_eq!(value_and_expiry(&mut client, "k"), before);
    }
    for count in ["9223372036854775808", "18446744073709551615", "04", "-0", "4 "] {
        client.call(&["SET", "k", count, "PX", "50000"]);
        assert_error(&client.call(&["RL.FIXED", "k", "4", "50s"]), "WRONGTYPE");
        assert_eq!(client.call(&["GET", "k"]).text(), count);
    }
    client.call(&["SET", "k", "0", "PX", "50000"]);
    assert_eq!(short(&mut client, &args!["RL.FIXED", "k", 4, "50s"]), (true, 3, 0));
}

#[test]
fn r13_counters_that_the_server_shares_between_keys_are_counted_apart() {
    let (_server, mut client) = start();
    let make = |key: &str| args!["SET", key, 5, "PX", 50_000];
    client.pipeline(&[make("a"), make("b"), args!["SET", "c", 5]]);
    client.call(&["RL.FIXED", "a", "100", "50s"]);
    client.call(&["RL.FIXED", "b", "100", "50s", "COST", "10"]);
    let counts: Vec<String> = ["a", "b", "c"].iter().map(|key| client.call(&["GET", key]).text()).collect();
    assert_eq!(counts, ["6", "15", "5"]);
}

#[test]
fn r6_a_counter_without_an_end_gets_one_by_the_next_charged_call_also_a_refused_one() {
    let (_server, mut client) = start();
    for (count, allowed, left) in [("1", true, "2"), ("3", false, "3"), ("7", false, "7")] {
        client.call(&["SET", "k", count]);
        // To look changes nothing, and answers as if it had been written.
        for look in [args!["RL.FIXED", "k", 3, "40s", "PEEK"], args!["RL.FIXED", "k", 3, "40s", "COST", 0]] {
            let seen = ask(&mut client, &look);
            assert_eq!(seen.reset_after, 40_000);
            assert_eq!(expires_at(&mut client, "k"), -1);
        }
        let charged = timed(&mut client, &args!["RL.FIXED", "k", 3, "40s"]);
        let verdict = charged.verdict();
        assert_eq!((verdict.allowed, verdict.reset_after), (allowed, 40_000));
        assert_eq!(verdict.retry_after, if allowed { 0 } else { 40_000 });
        assert_eq!(client.call(&["GET", "k"]).text(), left);
        let end = expires_at(&mut client, "k");
        assert!((charged.earliest_ms() + 40_000..=charged.latest_ms() + 40_000).contains(&end), "{end}");
    }
}

#[test]
fn an_end_beyond_one_window_from_now_is_drawn_in_and_the_count_stays() {
    let (_server, mut client) = start();
    for (count, allowed) in [("1", true), ("3", false)] {
        client.call(&["SET", "k", count, "PX", "3600000"]);
        let far = expires_at(&mut client, "k");
        assert_eq!(ask(&mut client, &args!["RL.FIXED", "k", 3, "40s", "PEEK"]).reset_after, 40_000);
        assert_eq!(expires_at(&mut client, "k"), far);
        let charged = timed(&mut client, &args!["RL.FIXED", "k", 3, "40s"]);
        assert_eq!((charged.verdict().allowed, charged.verdict().reset_after), (allowed, 40_000));
        let end = expires_at(&mut client, "k");
        assert!((charged.earliest_ms() + 40_000..=charged.latest_ms() + 40_000).contains(&end), "{end}");
    }
}

#[test]
fn parameters_changed_on_a_live_key_leave_the_used_units_used() {
    let (_server, mut client) = start();
    assert_eq!(short(&mut client, &args!["RL.FIXED", "k", 100, "1h", "COST", 10]), (true, 90, 0));
    assert_eq!(short(&mut client, &args!["RL.FIXED", "k", 50, "1h", "PEEK"]), (true, 40, 0));
    let over = ask(&mut client, &args!["RL.FIXED", "k", 5, "1h"]);
    assert_eq!((over.allowed, over.remaining), (false, 0));
    assert_eq!(short(&mut client, &args!["RL.FIXED", "k", 20, "2h", "COST", 10]), (true, 0, 0));
}

#[test]
fn a_count_that_grows_by_a_digit_is_still_what_get_shows() {
    let (_server, mut client) = start();
    let mut used = 0_i64;
    for cost in [9_i64, 1, 89, 1, 899, 1, 999_999_000, 1_000_000_000] {
        used += cost;
        assert!(ask(&mut client, &args!["RL.FIXED", "k", "1000000000000", "1h", "COST", cost]).allowed);
        assert_eq!(client.call(&["GET", "k"]).text(), used.to_string());
        assert_eq!(client.call(&["STRLEN", "k"]).int(), i64::try_from(used.to_string().len()).unwrap());
    }
    assert_eq!(client.call(&["INCR", "k"]).int(), used + 1);
}

#[test]
fn a_window_that_has_expired_leaves_no_key() {
    let (_server, mut client) = start();
    client.call(&["RL.FIXED", "k", "5", "20ms"]);
    wait_until_gone(&mut client, "k");
    assert_eq!(short(&mut client, &args!["RL.FIXED", "k", 5, "20ms", "PEEK"]), (true, 5, 0));
}
