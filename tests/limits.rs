//! What all three limiters have in common, case by case.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::{
    ask, assert_error, expires_at, refused_until_its_time_and_allowed_from_then_on, short, timed, value_and_expiry,
    verdict,
};
use rig::{Client, SOON, Server, ValueExt, args, wait_until};

/// Each limiter with that limit and a window in which nothing comes back while a test runs: `key` and the options follow.
fn each(key: &str, limit: i64) -> [Vec<Vec<u8>>; 3] {
    [
        args!["RL.FIXED", format!("{key}f"), limit, "3000d"],
        args!["RL.SLIDING", format!("{key}s"), limit, "3000d"],
        args!["RL.BUCKET", format!("{key}b"), limit, 1, "3000d"],
    ]
}

/// The same, with a window in which all of it comes back.
fn each_in(key: &str, limit: i64, window: &str) -> [Vec<Vec<u8>>; 3] {
    [
        args!["RL.FIXED", format!("{key}f"), limit, window],
        args!["RL.SLIDING", format!("{key}s"), limit, window],
        args!["RL.BUCKET", format!("{key}b"), limit, limit, window],
    ]
}

fn with(call: &[Vec<u8>], rest: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    [call.to_vec(), rest].concat()
}

fn key_of(call: &[Vec<u8>]) -> String {
    String::from_utf8(call[1].clone()).unwrap()
}

fn start() -> (Server, Client) {
    let server = Server::start();
    let client = server.client();
    (server, client)
}

#[test]
fn r1_a_foreign_value_is_wrongtype_and_stays_and_the_server_lives() {
    let (mut server, mut client) = start();
    let strings: [&[u8]; 12] = [
        b"abc",
        b"",
        b"-1",
        b"007",
        b"1.5",
        b" 1",
        b"9223372036854775808",
        b"99999999999999999999999999999999",
        b"\xff\xfe\xfd",
        b"\xf5",
        b"\xf6",
        &[0; 25],
    ];
    for text in strings {
        for call in each("k", 10) {
            let key = key_of(&call);
            client.call(&args!["SET", &key, text, "PX", 60_000]);
            let before = value_and_expiry(&mut client, &key);
            for rest in [vec![], args!["COST", 0], args!["PEEK"], args!["COST", 11]] {
                assert_error(&client.call(&with(&call, rest)), "WRONGTYPE");
            }
            assert_eq!(value_and_expiry(&mut client, &key), before, "{}", text.escape_ascii());
        }
    }
    for call in each("other", 10) {
        let key = key_of(&call);
        for make in [
            args!["RPUSH", &key, "x"],
            args!["HSET", &key, "f", 1],
            args!["ZADD", &key, 1, "m"],
            args!["SADD", &key, 1],
            args!["XADD", &key, "1-1", "f", 1],
        ] {
            client.pipeline(&[args!["DEL", &key], make]);
            let before = value_and_expiry(&mut client, &key);
            assert_error(&client.call(&call), "WRONGTYPE");
            assert_error(&client.call(&with(&call, args!["PEEK"])), "WRONGTYPE");
            assert_eq!(value_and_expiry(&mut client, &key), before);
        }
    }
    assert!(server.is_alive());
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
}

#[test]
fn r1_a_number_is_no_state_of_a_sliding_window_or_bucket_and_the_limiters_do_not_take_each_others_state() {
    let (_server, mut client) = start();
    let calls = each("k", 10);
    for call in &calls {
        client.call(call);
    }
    for call in &calls {
        for other in &calls {
            if call[0] == other[0] {
                continue;
            }
            let crossed = [vec![call[0].clone(), other[1].clone()], call[2..].to_vec()].concat();
            let before = value_and_expiry(&mut client, &key_of(other));
            assert_error(&client.call(&crossed), "WRONGTYPE");
            assert_eq!(value_and_expiry(&mut client, &key_of(other)), before);
        }
    }
    // Nor a lock's token, though a lock takes any string: that is somebody else's.
    client.call(&["LOCK.ACQUIRE", "lock", "token", "1h"]);
    for command in ["RL.FIXED", "RL.SLIDING"] {
        assert_error(&client.call(&[command, "lock", "10", "1s"]), "WRONGTYPE");
    }
    assert_eq!(client.call(&["LOCK.ACQUIRE", "kf", "token", "1h"]).int(), 0);
    client.call(&["DEL", "kb"]);
    assert!(client.call(&["LOCK.ACQUIRE", "kb", "token", "1h"]).int() > 0);
    assert_error(&client.call(&["RL.BUCKET", "kb", "1", "1", "1s"]), "WRONGTYPE");
}

#[test]
fn r1_a_key_name_of_any_bytes_works_and_del_resets() {
    let (_server, mut client) = start();
    for name in [&b""[..], b"\0", b"\xff\xfe\xc3", b"a\r\nb", b"%s%n%d", &[b'k'; 3000]] {
        for call in each("", 3) {
            let call = [vec![call[0].clone(), name.to_vec()], call[2..].to_vec()].concat();
            assert_eq!(short(&mut client, &call), (true, 2, 0));
            assert_eq!(short(&mut client, &call), (true, 1, 0));
            assert_eq!(client.call(&args!["DEL", name]).int(), 1);
            assert_eq!(short(&mut client, &call), (true, 2, 0));
            client.call(&args!["DEL", name]);
        }
    }
}

#[test]
fn r2_zero_and_negative_parameters_are_errors_and_never_without_limit() {
    let (_server, mut client) = start();
    for wrong in ["0", "-1", "-0", "-9223372036854775808", "0s", "-1s"] {
        for (call, at, name) in [
            (args!["RL.FIXED", "k", wrong, "1s"], 2, "limit"),
            (args!["RL.FIXED", "k", 1, wrong], 3, "window"),
            (args!["RL.SLIDING", "k", wrong, "1s"], 2, "limit"),
            (args!["RL.SLIDING", "k", 1, wrong], 3, "window"),
            (args!["RL.BUCKET", "k", wrong, 1, "1s"], 2, "capacity"),
            (args!["RL.BUCKET", "k", 1, wrong, "1s"], 3, "refill"),
            (args!["RL.BUCKET", "k", 1, 1, wrong], 4, "period"),
        ] {
            let line = assert_error(&client.call(&call), "ERR");
            assert!(line.contains(name), "argument {at} is {wrong:?}: {line}");
        }
    }
    assert_eq!(client.call(&["DBSIZE"]).int(), 0);
}

#[test]
fn r4_a_window_beyond_the_bounds_is_an_error_before_any_change() {
    let (_server, mut client) = start();
    for call in each("k", 10) {
        client.call(&call);
        let (key, last) = (key_of(&call), call.len() - 1);
        let before = value_and_expiry(&mut client, &key);
        for window in ["9223372036854775807", "1000000000000000000", "3661d", "316224000001", "18446744073709551616d"] {
            let mut call = call.clone();
            call[last] = window.into();
            assert_error(&client.call(&call), "ERR");
            assert_eq!(value_and_expiry(&mut client, &key), before);
        }
    }
    assert_eq!(client.call(&["DBSIZE"]).int(), 3);
}

#[test]
fn r5_every_parameter_at_every_edge_is_taken_exactly_or_an_error() {
    let (server, mut client) = start();
    let edges: [i128; 16] = [
        -1,
        0,
        1,
        2,
        1 << 31,
        (1 << 31) - 1,
        1_000_000_000,
        1_000_000_001,
        1_000_000_000_000,
        1_000_000_000_001,
        316_224_000_000,
        316_224_000_001,
        1 << 53,
        (1 << 63) - 1,
        1 << 63,
        1 << 64,
    ];
    let (most, most_counted, longest) = (1_000_000_000_000, 1_000_000_000, 316_224_000_000);
    for limit in edges {
        for window in edges {
            for (cost, given) in edges.iter().map(|cost| (*cost, true)).chain([(1, false)]) {
                let rest = if given { args!["COST", cost.to_string()] } else { vec![] };
                let rest = || rest.clone();
                let (limit_text, window_text) = (limit.to_string(), window.to_string());
                let calls = [
                    (with(&args!["RL.FIXED", "f", &limit_text, &window_text], rest()), most),
                    (with(&args!["RL.SLIDING", "s", &limit_text, &window_text], rest()), most_counted),
                    (with(&args!["RL.BUCKET", "b", &limit_text, &limit_text, &window_text], rest()), most),
                    (with(&args!["RL.BUCKET", "c", &limit_text, 1, &window_text], rest()), most),
                ];
                let mut batch: Vec<_> = calls.iter().map(|(call, _)| call.clone()).collect();
                batch.push(args!["FLUSHALL"]);
                let replies = client.pipeline(&batch);
                for ((call, largest), reply) in calls.iter().zip(&replies) {
                    let shown = call.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ");
                    let good = (1..=*largest).contains(&limit)
                        && (1..=longest).contains(&window)
                        && (0..=most).contains(&cost);
                    if !good {
                        assert!(reply.is_error("ERR "), "{shown}: {reply:?}");
                        continue;
                    }
                    // The key is fresh, so the answer is known but for the time to the end.
                    let verdict = verdict(reply);
                    let allowed = cost <= limit;
                    assert_eq!(verdict.allowed, allowed, "{shown}");
                    assert_eq!(i128::from(verdict.limit), limit, "{shown}");
                    let left = if allowed { limit - cost } else { limit };
                    assert_eq!(i128::from(verdict.remaining), left, "{shown}");
                    assert_eq!(verdict.retry_after, if allowed { 0 } else { -1 }, "{shown}");
                    if !allowed || cost == 0 {
                        assert_eq!(verdict.reset_after, 0, "{shown}");
                    } else if call[0] != b"RL.BUCKET" {
                        assert_eq!(i128::from(verdict.reset_after), window, "{shown}");
                    } else {
                        let refill = if call[1] == b"c" { 1 } else { limit };
                        let exact = (cost * window + refill - 1) / refill;
                        assert_eq!(i128::from(verdict.reset_after), exact.min((1 << 63) - 1), "{shown}");
                    }
                }
            }
        }
    }
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
}

#[test]
fn r6_after_every_write_the_key_expires() {
    let (_server, mut client) = start();
    for call in each_in("k", 5, "60s") {
        for _ in 0..7 {
            let asked = timed(&mut client, &call);
            let deadline = expires_at(&mut client, &key_of(&call));
            assert!(
                deadline > asked.latest_ms() && deadline <= asked.latest_ms() + 60_000 + 60_000 / 8 + 1,
                "{deadline}"
            );
        }
    }
    assert!(client.call(&["KEYS", "*"]).array().iter().all(|key| client.call(&["PTTL", &key.text()]).int() > 0));
}

#[test]
fn r6_a_limiter_that_somebody_persisted_still_ends() {
    let (_server, mut client) = start();
    for call in each_in("k", 2, "80ms") {
        let key = key_of(&call);
        // (Done again should the machine have slept for a window in between.)
        wait_until(SOON, "the limiter is full and its key has no TTL", || {
            client.call(&["DEL", &key]);
            client.pipeline(&[call.clone(), call.clone()]);
            client.call(&["PERSIST", &key]).int() == 1
        });
        // FIXED has its end back with the next charged call, though that one is refused.
        let next = timed(&mut client, &call);
        if call[0] == b"RL.FIXED" && !next.verdict().allowed {
            let end = next.verdict().reset_after;
            assert_eq!((next.verdict().retry_after, end), (80, 80), "a window from now on");
        }
        wait_until(SOON, "it lets a call pass again", || ask(&mut client, &call).allowed);
        // Whoever was let in has used one or more of two units, and within a window all is as new.
        let deadline = timed(&mut client, &with(&call, args!["PEEK"])).latest_ms() + 81;
        wait_until(SOON, "it is as new", || {
            let peek = timed(&mut client, &with(&call, args!["PEEK"]));
            let is_new = peek.verdict().remaining == 2 && peek.verdict().reset_after == 0;
            assert!(is_new || peek.earliest_ms() <= deadline, "not as new: {peek:?}");
            is_new
        });
    }
}

#[test]
fn r9_a_key_lives_at_least_until_it_is_as_new_and_hardly_longer() {
    let (_server, mut client) = start();
    for (limit, window) in [(5, 60_000), (1000, 60_000), (1000, 700)] {
        for call in each_in(&format!("{limit}:{window}:"), limit, &window.to_string()) {
            for _ in 0..5 {
                let asked = timed(&mut client, &call);
                let reset = asked.verdict().reset_after;
                let deadline = expires_at(&mut client, &key_of(&call));
                let slack = match &call[0][..] {
                    b"RL.FIXED" => 0,
                    b"RL.SLIDING" => window / 8 + 1,
                    // In µs, rounded up; latest_ms() is rounded down.
                    _ if limit < 16 => 1,
                    _ => reset / 8 + 1,
                };
                if deadline == -2 {
                    continue; // the machine slept until it was gone
                }
                // (reset_after is rounded up from µs, so the end may lie in the millisecond before.)
                assert!(deadline >= asked.earliest_ms() + reset - 1, "too early: {deadline}, {asked:?}");
                assert!(deadline <= asked.latest_ms() + reset + slack, "too late: {deadline}, {asked:?}, {call:?}");
            }
        }
    }
}

#[test]
fn r21_a_cost_above_the_limit_never_passes_and_changes_nothing() {
    let (server, mut client) = start();
    for call in each("k", 10) {
        let dirty = server.info_int("persistence", "rdb_changes_since_last_save");
        let too_much = with(&call, args!["COST", 11]);
        assert_eq!(short(&mut client, &too_much), (false, 10, -1));
        assert_eq!(client.call(&["EXISTS", &key_of(&call)]).int(), 0);
        assert_eq!(server.info_int("persistence", "rdb_changes_since_last_save"), dirty);
        client.call(&with(&call, args!["COST", 3]));
        let before = value_and_expiry(&mut client, &key_of(&call));
        assert_eq!(short(&mut client, &too_much), (false, 7, -1));
        assert_eq!(short(&mut client, &with(&call, args!["COST", "1000000000000"])), (false, 7, -1));
        assert_eq!(short(&mut client, &with(&call, args!["COST", 11, "PEEK"])), (false, 7, -1));
        assert_eq!(value_and_expiry(&mut client, &key_of(&call)), before);
    }
}

#[test]
fn r22_sixty_connections_at_once_get_exactly_the_limit() {
    let (server, _) = start();
    for call in each("k", 30) {
        let mut clients: Vec<Client> = (0..60).map(|_| server.client()).collect();
        for client in &mut clients {
            client.send(&call);
        }
        let passed =
            clients.iter_mut().map(|client| client.read(SOON).unwrap()).filter(|reply| verdict(reply).allowed).count();
        assert_eq!(passed, 30);
    }
}

#[test]
fn r23_the_first_call_of_a_limit_of_1_passes_and_a_limit_of_n_never_lets_one_more_in() {
    let (_server, mut client) = start();
    for limit in [1, 2, 3, 16, 17, 100, 1000] {
        for call in each(&format!("{limit}:"), limit) {
            let batch = vec![call; usize::try_from(limit).unwrap() + 20];
            let allowed: Vec<bool> = client.pipeline(&batch).iter().map(|reply| verdict(reply).allowed).collect();
            let limit = usize::try_from(limit).unwrap();
            assert!(allowed[..limit].iter().all(|it| *it), "{limit}: refused too early");
            assert!(!allowed[limit..].iter().any(|it| *it), "{limit}: one too many");
        }
    }
}

#[test]
fn r31_every_refusal_names_the_moment_from_which_the_call_passes() {
    let (server, _) = start();
    // All at once, each on a connection of its own.
    std::thread::scope(|scope| {
        for (at, cost) in [1, 2, 3].into_iter().enumerate() {
            for call in each_in(&format!("{at}:"), 3, "240ms") {
                let mut client = server.client();
                scope.spawn(move || {
                    let call = with(&call, args!["COST", cost]);
                    refused_until_its_time_and_allowed_from_then_on(&mut client, &call);
                });
            }
        }
    });
}

#[test]
fn r33_remaining_is_from_0_to_the_limit_whatever_is_asked() {
    use rand::RngExt;
    let (_, mut random) = cases::seeded();
    let (_server, mut client) = start();
    for _ in 0..60 {
        let batch: Vec<Vec<Vec<u8>>> = (0..50)
            .flat_map(|_| {
                let limit = random.random_range(1..20);
                let window = random.random_range(1..20);
                let mut rest = args!["COST", random.random_range(0..25)];
                if random.random_bool(0.2) {
                    rest.extend(args!["PEEK"]);
                }
                each_in("k", limit, &window.to_string()).map(|call| with(&call, rest.clone()))
            })
            .collect();
        for reply in client.pipeline(&batch) {
            verdict(&reply); // which asserts it, and the shape
        }
    }
}

#[test]
fn peek_says_what_the_call_would_answer_and_how_it_stands() {
    let (_server, mut client) = start();
    for call in each("k", 10) {
        let peek = with(&call, args!["PEEK"]);
        assert_eq!(short(&mut client, &peek), (true, 10, 0));
        assert_eq!(short(&mut client, &with(&call, args!["peek", "Cost", 11])), (false, 10, -1));
        assert_eq!(client.call(&["EXISTS", &key_of(&call)]).int(), 0);
        assert_eq!(short(&mut client, &with(&call, args!["COST", 8])), (true, 2, 0));
        assert_eq!(short(&mut client, &peek), (true, 2, 0));
        assert_eq!(short(&mut client, &with(&call, args!["COST", 2, "PEEK"])), (true, 2, 0));
        let (allowed, remaining, retry_after) = short(&mut client, &with(&call, args!["PEEK", "COST", 3]));
        assert_eq!((allowed, remaining), (false, 2));
        let refused = ask(&mut client, &with(&call, args!["COST", 3]));
        assert!((retry_after - refused.retry_after).abs() <= 20_000, "{retry_after}, {refused:?}");
        // Cost 0 is a status read and always passes, also when nothing is left.
        client.call(&with(&call, args!["COST", 2]));
        assert_eq!(short(&mut client, &with(&call, args!["COST", 0])), (true, 0, 0));
    }
}

#[test]
fn the_replies_are_five_integers_in_resp2_and_resp3_and_through_redis_cli() {
    let server = Server::start();
    let mut clients = [server.client(), server.client().resp3()];
    for (at, call) in each("k", 2).into_iter().enumerate() {
        for client in &mut clients {
            client.call(&["DEL", &key_of(&call)]);
            assert_eq!(short(client, &call), (true, 1, 0));
            assert_eq!(short(client, &call), (true, 0, 0));
            assert!(!ask(client, &call).allowed);
        }
        let words: Vec<String> = call.iter().map(|word| String::from_utf8(word.clone()).unwrap()).collect();
        let shown = server.cli_raw(&words);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!((lines.len(), &lines[..3]), (5, &["0", "2", "0"][..]), "limiter {at}");
        assert_eq!(server.cli_resp3(&words).lines().count(), 5);
    }
}

#[test]
fn deciding_goes_on_by_the_clock_while_the_server_was_busy() {
    let (_server, mut client) = start();
    for call in each_in("k", 1, "50ms") {
        let replies = client.pipeline(&[call.clone(), args!["DEBUG", "SLEEP", "0.08"], call.clone()]);
        assert!(verdict(&replies[0]).allowed && verdict(&replies[2]).allowed);
    }
}
