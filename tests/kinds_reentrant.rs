//! REENTRANT locks, conversions between the kinds, and what every kind refuses to touch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod kinds;
mod rig;

use kinds::{
    Ears, LONG, counter, expires_at, granted, holders, int, is_error, line_up, no_internal_error, pair, queue, traces,
    wait_past, words,
};
use rig::{Client, Server, Value, ValueExt, args};

fn start() -> (Server, Client) {
    let server = Server::start();
    let client = server.client();
    (server, client)
}

fn holds(client: &mut Client, token: &str) -> i64 {
    client.call(&["HGET", "k", token]).text().parse().unwrap()
}

// ---- Holds.

#[test]
fn l15_a_retried_acquire_is_granted_and_one_release_frees_but_reentrant_counts_twice() {
    let (server, mut client) = start();
    for (acquire, release, frees_at) in [
        ("LOCK.ACQUIRE k tA 5m", "LOCK.RELEASE k tA", 1),
        ("LOCK.ACQUIRE k tA 5m SHARED", "LOCK.RELEASE k tA", 1),
        ("SEM.ACQUIRE k tA 5m 3", "SEM.RELEASE k tA", 1),
        ("LOCK.ACQUIRE k tA 5m REENTRANT", "LOCK.RELEASE k tA", 2),
    ] {
        let first = granted(&mut client, acquire);
        let second = granted(&mut server.client(), acquire);
        assert!(second > first, "{acquire}: use the newest fence");
        for release_number in 1..=frees_at {
            assert_eq!(client.call(&["EXISTS", "k"]).int(), 1, "{acquire}");
            assert_eq!(int(&mut client, release), 1, "{acquire}, release {release_number}");
        }
        assert_eq!(client.call(&["EXISTS", "k"]).int(), 0, "{acquire}");
        assert_eq!(int(&mut client, release), 0, "{acquire}: once more");
    }
}

#[test]
fn l16_a_reacquire_never_shortens_a_lease_of_any_kind() {
    let (server, mut client) = start();
    for (first, again) in [
        ("LOCK.ACQUIRE k tA 60m", "LOCK.ACQUIRE k tA 1s"),
        ("LOCK.ACQUIRE k tA 60m", "LOCK.ACQUIRE k tA 1s REENTRANT"),
        ("LOCK.ACQUIRE k tA 60m", "LOCK.ACQUIRE k tA 1s SHARED"),
        ("LOCK.ACQUIRE k tA 60m REENTRANT", "LOCK.ACQUIRE k tA 1s"),
        ("LOCK.ACQUIRE k tA 60m REENTRANT", "LOCK.ACQUIRE k tA 1s REENTRANT"),
        ("LOCK.ACQUIRE k tA 60m REENTRANT", "LOCK.ACQUIRE k tA 1s SHARED"),
        ("LOCK.ACQUIRE k tA 60m SHARED", "LOCK.ACQUIRE k tA 1s"),
        ("LOCK.ACQUIRE k tA 60m SHARED", "LOCK.ACQUIRE k tA 1s REENTRANT"),
        ("LOCK.ACQUIRE k tA 60m SHARED", "LOCK.ACQUIRE k tA 1s SHARED"),
        ("SEM.ACQUIRE k tA 60m 2", "SEM.ACQUIRE k tA 1s 2"),
    ] {
        granted(&mut client, first);
        let before = expires_at(&server, "k");
        granted(&mut client, again);
        assert_eq!(expires_at(&server, "k"), before, "{first}; {again}");
        client.call(&["DEL", "k"]);
    }
}

#[test]
fn a_reacquire_with_a_longer_ttl_prolongs_a_lease_of_any_kind() {
    let (server, mut client) = start();
    for (first, again) in [
        ("LOCK.ACQUIRE k tA 1m", "LOCK.ACQUIRE k tA 60m REENTRANT"),
        ("LOCK.ACQUIRE k tA 1m", "LOCK.ACQUIRE k tA 60m SHARED"),
        ("LOCK.ACQUIRE k tA 1m REENTRANT", "LOCK.ACQUIRE k tA 60m"),
        ("LOCK.ACQUIRE k tA 1m REENTRANT", "LOCK.ACQUIRE k tA 60m REENTRANT"),
        ("LOCK.ACQUIRE k tA 1m REENTRANT", "LOCK.ACQUIRE k tA 60m SHARED"),
        ("LOCK.ACQUIRE k tA 1m SHARED", "LOCK.ACQUIRE k tA 60m"),
        ("LOCK.ACQUIRE k tA 1m SHARED", "LOCK.ACQUIRE k tA 60m REENTRANT"),
        ("LOCK.ACQUIRE k tA 1m SHARED", "LOCK.ACQUIRE k tA 60m SHARED"),
        ("SEM.ACQUIRE k tA 1m 2", "SEM.ACQUIRE k tA 60m 2"),
    ] {
        granted(&mut client, first);
        let before = expires_at(&server, "k");
        granted(&mut client, again);
        assert!(expires_at(&server, "k") >= before + 59 * 60_000, "{first}; {again}");
        client.call(&["DEL", "k"]);
    }
}

#[test]
fn l17_one_release_of_two_holds_keeps_the_lock_and_its_ttl() {
    let (server, mut client) = start();
    granted(&mut client, "LOCK.ACQUIRE k tA 10m REENTRANT");
    let first = expires_at(&server, "k");
    wait_past(&server, first - 600_000 + 50);
    granted(&mut client, "LOCK.ACQUIRE k tA 10m REENTRANT");
    let second = expires_at(&server, "k");
    assert!(second > first + 50);
    assert_eq!(int(&mut client, "LOCK.RELEASE k tA"), 1);
    assert_eq!((expires_at(&server, "k"), holds(&mut client, "tA")), (second, 1));
    assert_eq!(int(&mut client, "LOCK.ACQUIRE k tB 1s"), 0);
    assert_eq!(int(&mut client, "LOCK.RELEASE k tA"), 1);
    assert_eq!(client.call(&["EXISTS", "k"]).int(), 0);
}

#[test]
fn l21_a_foreign_token_never_gets_into_a_reentrant_lock() {
    let (server, mut client) = start();
    granted(&mut client, "LOCK.ACQUIRE k tA 270m REENTRANT");
    granted(&mut client, "LOCK.ACQUIRE k tA 270m REENTRANT");
    let before = (client.call(&["DUMP", "k"]), expires_at(&server, "k"));
    for words in [
        "LOCK.ACQUIRE k tB 1s REENTRANT",
        "LOCK.ACQUIRE k tB 1s",
        "LOCK.ACQUIRE k tB 1s SHARED",
        "LOCK.RELEASE k tB",
        "LOCK.RENEW k tB 5s",
        "LOCK.ACQUIRE k tA\0 1s REENTRANT",
        "LOCK.RELEASE k ta",
        "LOCK.RELEASE k tAA",
        "LOCK.RELEASE k t",
    ] {
        assert_eq!(int(&mut client, words), 0, "{words}");
    }
    assert_eq!(client.call(&["HLEN", "k"]).int(), 1);
    assert_eq!((client.call(&["DUMP", "k"]), expires_at(&server, "k")), before);
}

#[test]
fn a_reentrant_lock_is_a_hash_of_one_field_that_counts_the_holds() {
    let (_server, mut client) = start();
    for n in 1..=3 {
        granted(&mut client, "LOCK.ACQUIRE k tA 270m REENTRANT");
        assert_eq!(client.call(&["TYPE", "k"]).text(), "hash");
        let fields: Vec<String> = client.call(&["HGETALL", "k"]).array().iter().map(ValueExt::text).collect();
        assert_eq!(fields, ["tA".to_owned(), n.to_string()]);
    }
    // A plain retry adds none, and the lock stays reentrant.
    granted(&mut client, "LOCK.ACQUIRE k tA 270m");
    assert_eq!(holds(&mut client, "tA"), 3);
    // RENEW leaves the holds alone, and may set an earlier deadline.
    assert_eq!(int(&mut client, "LOCK.RENEW k tA 60s"), 1);
    assert_eq!(holds(&mut client, "tA"), 3);
    let left = client.call(&["PTTL", "k"]).int();
    assert!((1..=60_000).contains(&left), "{left}");
}

#[test]
fn the_last_release_hands_over_and_no_other_does() {
    let (server, mut client) = start();
    let first = granted(&mut client, "LOCK.ACQUIRE k tA 270m REENTRANT");
    granted(&mut client, "LOCK.ACQUIRE k tA 270m REENTRANT");
    let mut b = line_up(&server, "LOCK.ACQUIRE k tB 270m REENTRANT BLOCK 0");
    let mut c = line_up(&server, "LOCK.ACQUIRE k tC 270m BLOCK 0");
    assert_eq!(int(&mut client, "LOCK.RELEASE k tA"), 1);
    assert_eq!((holders(&server, "k"), queue(&server, "k")), (vec!["tA".into()], vec!["tB".into(), "tC".into()]));
    assert_eq!(int(&mut client, "LOCK.RELEASE k tA"), 1);
    let second = b.fence();
    assert!(second > first);
    assert_eq!(client.call(&["HGETALL", "k"]).array().len(), 2);
    assert_eq!(holds(&mut client, "tB"), 1);
    assert_eq!(int(&mut client, "LOCK.RELEASE k tB"), 1);
    assert!(c.fence() > second);
    assert_eq!(client.call(&["GET", "k"]).text(), "tC");
    no_internal_error(&server);
}

#[test]
fn a_reentrant_lock_of_a_dead_holder_is_the_next_ones_whatever_its_holds() {
    let (server, mut client) = start();
    // The server's own expiry is off: only the module's timer can do it.
    client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    kinds::late_by_at_most(20, "the grant after a dead holder", || {
        client.call(&["DEL", "k"]);
        for _ in 0..3 {
            granted(&mut client, "LOCK.ACQUIRE k tA 100ms REENTRANT");
        }
        let ends = expires_at(&server, "k");
        kinds::send_up(&server, "LOCK.ACQUIRE k tB 270m REENTRANT BLOCK 0").fence();
        assert_eq!(holds(&mut client, "tB"), 1);
        let at = expires_at(&server, "k") - 270 * 60_000;
        assert!(at > ends, "before the lease's end");
        at - ends
    });
}

#[test]
fn the_usual_hash_and_counter_script_and_the_commands_see_the_same_lock() {
    let (server, mut client) = start();
    client.call(&words("HSET k tA 2"));
    client.call(&args!["PEXPIRE", "k", 16_000_000]);
    assert_eq!(int(&mut client, "LOCK.ACQUIRE k tB 1s REENTRANT"), 0);
    granted(&mut client, "LOCK.ACQUIRE k tA 1s REENTRANT");
    assert_eq!(client.call(&words("HINCRBY k tA -1")).int(), 2);
    assert_eq!(int(&mut client, "LOCK.RELEASE k tA"), 1);
    assert_eq!(int(&mut client, "LOCK.RELEASE k tA"), 1);
    assert_eq!(client.call(&["EXISTS", "k"]).int(), 0);
    // The script's DEL wakes who waits.
    granted(&mut client, "LOCK.ACQUIRE k tA 270m REENTRANT");
    let mut b = line_up(&server, "LOCK.ACQUIRE k tB 270m REENTRANT BLOCK 0");
    let script = "if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) < 1 then redis.call('DEL', KEYS[1]) end return 1";
    assert_eq!(client.call(&args!["EVAL", script, 1, "k", "tA"]).int(), 1);
    b.fence();
}

#[test]
fn the_largest_count_of_holds_stays_a_lock() {
    let (_server, mut client) = start();
    client.call(&args!["HSET", "k", "tA", i64::MAX]);
    client.call(&args!["PEXPIRE", "k", 16_000_000]);
    granted(&mut client, "LOCK.ACQUIRE k tA 1s REENTRANT");
    assert_eq!(int(&mut client, "LOCK.ACQUIRE k tB 1s"), 0, "held, and still a lock");
    assert_eq!(int(&mut client, "LOCK.RELEASE k tA"), 1);
    assert_eq!(holds(&mut client, "tA"), i64::MAX - 1);
}

// ---- A lock without a TTL.

#[test]
fn a_lock_without_a_ttl_keeps_none_until_it_is_renewed_or_shared() {
    let (server, mut client) = start();
    client.call(&["SET", "k", "tA"]);
    assert_eq!(int(&mut client, "LOCK.ACQUIRE k tB 1s REENTRANT"), 0);
    granted(&mut client, "LOCK.ACQUIRE k tA 1s REENTRANT");
    assert_eq!((expires_at(&server, "k"), holds(&mut client, "tA")), (-1, 2));
    granted(&mut client, "LOCK.ACQUIRE k tA 1s REENTRANT");
    assert_eq!((expires_at(&server, "k"), holds(&mut client, "tA")), (-1, 3));
    let info = client.call(&["LOCK.INFO", "k"]).map();
    assert_eq!((info["mode"].text(), info["ttl"].int()), ("reentrant".into(), -1));
    assert_eq!(info["holders"].array()[0].map()["ttl"].int(), -1);
    assert_eq!(int(&mut client, "LOCK.RENEW k tA 60m"), 1);
    assert!(expires_at(&server, "k") > 0);
    assert_eq!(holds(&mut client, "tA"), 3);
    // Who shares has a deadline, always.
    client.call(&["SET", "k", "tA"]);
    granted(&mut client, "LOCK.ACQUIRE k tA 60m SHARED");
    assert_eq!(expires_at(&server, "k"), kinds::ends_at(&server, "k", "tA"));
}

// ---- Conversions, each way, with and without a queue.

struct Conversion {
    /// How tA holds it, and who else.
    held: &'static [&'static str],
    asks: &'static str,
    /// What it is then: TYPE and holds. `None`: refused, and DEADLOCK with BLOCK.
    then: Option<(&'static str, i64)>,
}

const CONVERSIONS: [Conversion; 15] = [
    Conversion { held: &[""], asks: "", then: Some(("string", 1)) },
    Conversion { held: &[""], asks: "REENTRANT", then: Some(("hash", 2)) },
    Conversion { held: &[""], asks: "SHARED", then: Some(("zset", 1)) },
    Conversion { held: &["REENTRANT"], asks: "", then: Some(("hash", 1)) },
    Conversion { held: &["REENTRANT"], asks: "REENTRANT", then: Some(("hash", 2)) },
    Conversion { held: &["REENTRANT"], asks: "SHARED", then: Some(("zset", 1)) },
    Conversion { held: &["REENTRANT", "REENTRANT"], asks: "", then: Some(("hash", 2)) },
    Conversion { held: &["REENTRANT", "REENTRANT"], asks: "REENTRANT", then: Some(("hash", 3)) },
    Conversion { held: &["REENTRANT", "REENTRANT"], asks: "SHARED", then: None },
    Conversion { held: &["SHARED"], asks: "", then: Some(("string", 1)) },
    Conversion { held: &["SHARED"], asks: "REENTRANT", then: Some(("hash", 2)) },
    Conversion { held: &["SHARED"], asks: "SHARED", then: Some(("zset", 1)) },
    Conversion { held: &["SHARED", "other"], asks: "SHARED", then: Some(("zset", 1)) },
    Conversion { held: &["SHARED", "other"], asks: "", then: None },
    Conversion { held: &["SHARED", "other"], asks: "REENTRANT", then: None },
];

#[test]
fn l38_a_holder_converts_at_once_and_past_any_queue_and_is_told_where_it_would_wait_for_itself() {
    let server = Server::start();
    for (number, conversion) in CONVERSIONS.iter().enumerate() {
        for queued in [false, true] {
            let (mut client, key) = (server.client(), format!("k{number}{queued}"));
            for mode in conversion.held {
                let (token, mode) = if *mode == "other" { ("tO", "SHARED") } else { ("tA", *mode) };
                granted(&mut client, &format!("LOCK.ACQUIRE {key} {token} {LONG} {mode}"));
            }
            // A writer in front, so that nothing joins a lock that is now shared.
            let waiter = queued.then(|| line_up(&server, &format!("LOCK.ACQUIRE {key} tW {LONG} BLOCK 0")));
            let what = format!("held {:?}, asks {:?}, queued {queued}", conversion.held, conversion.asks);
            let ask = format!("LOCK.ACQUIRE {key} tA {LONG} {}", conversion.asks);
            let before = client.call(&["DUMP", &key]);
            match conversion.then {
                Some((kind, holds)) => {
                    granted(&mut client, &ask);
                    assert_eq!(client.call(&["TYPE", &key]).text(), kind, "{what}");
                    let holders = client.call(&["LOCK.INFO", &key]).map()["holders"].array();
                    let mine = holders.iter().map(ValueExt::map).find(|holder| holder["token"].text() == "tA").unwrap();
                    assert_eq!(mine["holds"].int(), holds, "{what}");
                    // With BLOCK it is the same, at once.
                    granted(&mut client, &format!("{ask} BLOCK 0"));
                }
                None => {
                    assert_eq!(int(&mut client, &ask), 0, "{what}");
                    is_error(&mut client, &format!("{ask} BLOCK 0"), "DEADLOCK");
                    is_error(&mut client, &format!("{ask} BLOCK 10m"), "DEADLOCK");
                    assert_eq!(client.call(&["DUMP", &key]), before, "{what}");
                    // Where blocking is denied, BLOCK is ignored.
                    let replies = client.pipeline(&[args!["MULTI"], words(&format!("{ask} BLOCK 0")), args!["EXEC"]]);
                    assert_eq!(replies[2].ints(), [0], "{what}");
                }
            }
            assert_eq!(queue(&server, &key).len(), usize::from(queued), "{what}");
            if let Some(mut waiter) = waiter {
                client.call(&["DEL", &key]);
                waiter.fence();
            }
        }
    }
    no_internal_error(&server);
}

#[test]
fn a_downgrade_lets_the_run_of_readers_at_the_head_of_the_queue_in() {
    let (server, mut client) = start();
    for mode in ["", "REENTRANT"] {
        client.call(&["DEL", "k"]);
        granted(&mut client, &format!("LOCK.ACQUIRE k tA 270m {mode}"));
        let mut readers: Vec<_> =
            ["tB", "tC"].map(|token| line_up(&server, &format!("LOCK.ACQUIRE k {token} 270m SHARED BLOCK 0"))).into();
        let mut writer = line_up(&server, "LOCK.ACQUIRE k tW 270m BLOCK 0");
        let mut late = line_up(&server, "LOCK.ACQUIRE k tD 270m SHARED BLOCK 0");
        granted(&mut client, "LOCK.ACQUIRE k tA 270m SHARED");
        for reader in &mut readers {
            reader.fence();
        }
        assert_eq!(holders(&server, "k"), ["tA", "tB", "tC"]);
        assert_eq!(queue(&server, "k"), ["tW", "tD"]);
        // Now it is one among others.
        is_error(&mut client, "LOCK.ACQUIRE k tA 270m BLOCK 0", "DEADLOCK");
        for token in ["tA", "tB", "tC"] {
            assert_eq!(int(&mut client, &format!("LOCK.RELEASE k {token}")), 1);
        }
        writer.fence();
        assert_eq!(int(&mut client, "LOCK.RELEASE k tW"), 1);
        late.fence();
    }
    no_internal_error(&server);
}

// ---- What is seen of a lock.

#[test]
fn l48_info_tells_who_holds_and_who_waits_in_order_for_every_kind() {
    let (server, mut client) = start();
    granted(&mut client, "LOCK.ACQUIRE r tA 270m REENTRANT");
    granted(&mut client, "LOCK.ACQUIRE r tA 270m REENTRANT");
    granted(&mut client, "LOCK.ACQUIRE s tA 270m SHARED");
    granted(&mut client, "LOCK.ACQUIRE s tB 271m SHARED");
    granted(&mut client, "LOCK.ACQUIRE x tA 270m");
    granted(&mut client, "SEM.ACQUIRE p tA 270m 2");
    granted(&mut client, "SEM.ACQUIRE p tB 271m 2");
    let mut waiters = vec![];
    for key in ["r", "s", "x"] {
        for (token, mode) in [("w1", ""), ("w2", "SHARED"), ("w3", "REENTRANT")] {
            waiters.push(line_up(&server, &format!("LOCK.ACQUIRE {key} {token} 1m {mode} BLOCK 0")));
        }
    }
    waiters.push(line_up(&server, "SEM.ACQUIRE p w1 1m 2 BLOCK 0"));
    let fields = ["held", "holders", "mode", "queue", "ttl", "waiters"];
    let one = |token: &str, holds: i64| (token.to_owned(), holds);
    for (command, mode, holders) in [
        (["LOCK.INFO", "r"], "reentrant", vec![one("tA", 2)]),
        (["LOCK.INFO", "s"], "shared", vec![one("tA", 1), one("tB", 1)]),
        (["LOCK.INFO", "x"], "exclusive", vec![one("tA", 1)]),
        (["SEM.INFO", "p"], "semaphore", vec![one("tA", 1), one("tB", 1)]),
    ] {
        // The same in RESP2 and RESP3, and in this order.
        let flat: Vec<Value> = client.call(&command).array();
        let names: Vec<String> = flat.iter().step_by(2).map(ValueExt::text).collect();
        assert_eq!(names, ["mode", "ttl", "held", "waiters", "holders", "queue"]);
        let info = server.client().resp3().call(&command);
        assert!(matches!(info, Value::Map(_)));
        let info = info.map();
        assert_eq!(info.keys().collect::<Vec<_>>(), fields);
        assert_eq!(info["mode"].text(), mode);
        let seen: Vec<(String, i64)> = info["holders"]
            .array()
            .iter()
            .map(|holder| {
                let holder = holder.map();
                assert_eq!(holder.keys().collect::<Vec<_>>(), ["holds", "token", "ttl"]);
                assert!((269 * 60_000..=271 * 60_000).contains(&holder["ttl"].int()));
                (holder["token"].text(), holder["holds"].int())
            })
            .collect();
        assert_eq!(seen, holders, "{mode}");
        assert_eq!(info["held"].int(), i64::try_from(holders.len()).unwrap());
        let last = info["holders"].array().iter().map(|holder| holder.map()["ttl"].int()).max();
        assert_eq!(info["ttl"].int(), last.unwrap(), "the key lives as long as its last holder");
        let queue: Vec<(String, String)> =
            info["queue"].array().iter().map(|w| (w.map()["token"].text(), w.map()["mode"].text())).collect();
        let pairs =
            |of: &[(&str, &str)]| of.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<_>>();
        let wanted = match mode {
            "semaphore" => pairs(&[("w1", "semaphore")]),
            _ => pairs(&[("w1", "exclusive"), ("w2", "shared"), ("w3", "reentrant")]),
        };
        assert_eq!(queue, wanted);
        assert_eq!(info["waiters"].int(), i64::try_from(wanted.len()).unwrap());
    }
    assert_eq!(client.call(&["SEM.INFO", "nothing"]).map()["mode"].text(), "free");
    assert_eq!(client.call(&["LOCK.INFO", "nothing"]).map()["ttl"].int(), 0);
}

#[test]
fn info_lists_100_holders_and_counts_them_all() {
    let (_server, mut client) = start();
    let grants: Vec<_> = (0..250).map(|n| words(&format!("LOCK.ACQUIRE s t{n} 270m SHARED"))).collect();
    client.pipeline(&grants);
    let grants: Vec<_> = (0..250).map(|n| words(&format!("SEM.ACQUIRE p t{n} 270m 1000"))).collect();
    client.pipeline(&grants);
    for command in [["LOCK.INFO", "s"], ["SEM.INFO", "p"]] {
        let info = client.call(&command).map();
        assert_eq!((info["held"].int(), info["holders"].array().len()), (250, 100));
    }
}

#[test]
fn counters_tell_locks_of_every_kind_from_semaphores() {
    let (server, mut client) = start();
    let all = ["grants", "refused", "handovers", "expired_handovers", "timeouts", "waiters"];
    let read = |side: &str| all.map(|name| counter(&server, &format!("{side}_{name}")));
    granted(&mut client, "LOCK.ACQUIRE r tA 270m REENTRANT"); // 1
    granted(&mut client, "LOCK.ACQUIRE r tA 270m REENTRANT"); // 2
    granted(&mut client, "LOCK.ACQUIRE s tA 270m SHARED"); // 3
    granted(&mut client, "LOCK.ACQUIRE s tB 270m SHARED"); // 4
    assert_eq!(int(&mut client, "LOCK.ACQUIRE s tA 270m"), 0);
    assert_eq!(int(&mut client, "LOCK.ACQUIRE r tB 270m SHARED BLOCK 1ms"), 0);
    is_error(&mut client, "LOCK.ACQUIRE s tA 270m BLOCK 0", "DEADLOCK");
    let mut b = line_up(&server, "LOCK.ACQUIRE r tB 270m SHARED BLOCK 0");
    let mut c = line_up(&server, "LOCK.ACQUIRE r tC 270m SHARED BLOCK 0");
    assert_eq!(read("lock"), [4, 1, 0, 0, 1, 2]);
    assert_eq!(read("sem"), [0; 6]);
    client.call(&words("LOCK.RELEASE r tA"));
    client.call(&words("LOCK.RELEASE r tA"));
    b.fence();
    c.fence();
    assert_eq!(read("lock"), [6, 1, 2, 0, 1, 0], "each of the readers let in is a hand-over");
    granted(&mut client, "SEM.ACQUIRE p tA 270m 1");
    assert_eq!(int(&mut client, "SEM.ACQUIRE p tB 270m 1"), 0);
    assert_eq!(int(&mut client, "SEM.ACQUIRE p tB 270m 1 BLOCK 1ms"), 0);
    let mut b = line_up(&server, "SEM.ACQUIRE p tB 100ms 1 BLOCK 0");
    assert_eq!(read("sem"), [1, 1, 0, 0, 1, 1]);
    client.call(&words("SEM.RELEASE p tA"));
    b.fence();
    kinds::send_up(&server, "SEM.ACQUIRE p tC 270m 1 BLOCK 0").fence();
    let [grants, refused, handovers, expired, timeouts, waiters] = read("sem");
    assert_eq!((grants, refused, timeouts, waiters), (3, 1, 1, 0));
    assert!(handovers + expired <= 2 && handovers >= 1, "{handovers} {expired}");
    assert_eq!(read("lock"), [6, 1, 2, 0, 1, 0]);
    assert!(counter(&server, "lock_wait_ms_max") >= 0 && counter(&server, "sem_wait_ms_max") >= 0);
}

#[test]
fn events_of_reentrant_locks_and_conversions_are_those_of_the_plain_commands() {
    let (server, mut client) = start();
    let mut ears = Ears::on(&server, "k");
    for (command, events) in [
        ("LOCK.ACQUIRE k tA 270m REENTRANT", &["hincrby", "expire"][..]),
        ("LOCK.ACQUIRE k tA 1m REENTRANT", &["hincrby", "expire"]),
        ("LOCK.ACQUIRE k tA 271m REENTRANT", &["hincrby", "expire"]),
        ("LOCK.ACQUIRE k tA 1m", &[]),
        ("LOCK.ACQUIRE k tA 272m", &["expire"]),
        ("LOCK.ACQUIRE k tB 1m REENTRANT", &[]),
        ("LOCK.RENEW k tA 270m", &["expire"]),
        ("LOCK.RENEW k tB 270m", &[]),
        ("LOCK.INFO k", &[]),
        ("LOCK.RELEASE k tB", &[]),
        ("LOCK.RELEASE k tA", &["hincrby"]),
        ("LOCK.RELEASE k tA", &["hincrby"]),
        ("LOCK.RELEASE k tA", &["del"]),
        ("LOCK.ACQUIRE k tA 270m", &["set", "expire"]),
        ("LOCK.ACQUIRE k tA 270m REENTRANT", &["hincrby", "expire"]),
        ("LOCK.RELEASE k tA", &["hincrby"]),
        ("LOCK.ACQUIRE k tA 270m SHARED", &["zadd", "expire"]),
        ("LOCK.ACQUIRE k tA 270m", &["set", "expire"]),
        ("LOCK.RELEASE k tA", &["del"]),
    ] {
        let reply = client.call(&words(command));
        assert!(reply.error().is_none(), "{command}: {reply:?}");
        assert_eq!(ears.heard(&mut client), events, "{command}");
    }
}

// ---- What they refuse to touch.

/// Every command, the read-only ones last.
const COMMANDS: [&str; 17] = [
    "LOCK.ACQUIRE k tA 1m",
    "LOCK.ACQUIRE k tA 1m REENTRANT",
    "LOCK.ACQUIRE k tA 1m SHARED",
    "LOCK.ACQUIRE k tB 1m",
    "LOCK.ACQUIRE k tB 1m REENTRANT BLOCK 0",
    "LOCK.ACQUIRE k tB 1m SHARED BLOCK 0",
    "LOCK.ACQUIRE k tB 1m BLOCK 0",
    "LOCK.RELEASE k tA",
    "LOCK.RENEW k tA 1m",
    "LOCK.RENEW k tB 1m",
    "LOCK.INFO k",
    "SEM.ACQUIRE k tA 1m 5",
    "SEM.ACQUIRE k tB 1m 5 BLOCK 0",
    "SEM.RELEASE k tA",
    "SEM.RENEW k tA 1m",
    "SEM.RENEW k tB 1m",
    "SEM.INFO k",
];

#[test]
fn what_is_no_lock_is_left_alone_by_every_command() {
    let pair = pair();
    let mut client = pair.primary.client();
    let future = "99999999999";
    let table = [
        ("a list", "RPUSH k tA".to_owned()),
        ("a set", "SADD k tA".to_owned()),
        ("a stream", "XADD k 1-1 tA 1".to_owned()),
        ("a sorted set of scores without a fraction", format!("ZADD k {future}99 tA")),
        ("a sorted set of other fractions", format!("ZADD k {future}99.75 tA")),
        ("a sorted set of negative scores", "ZADD k -5.25 tA".to_owned()),
        ("a sorted set of endless scores", "ZADD k inf tA".to_owned()),
        ("a sorted set of scores beyond all time", "ZADD k 4e15 tA".to_owned()),
        ("a sorted set of both families", format!("ZADD k {future}99.25 tA {future}99.5 tB")),
        ("ours first, another last", format!("ZADD k {future}98.25 tA {future}99 tB")),
        ("another first, ours last", format!("ZADD k 1 tB {future}99.5 tA")),
        ("a hash of two fields", "HSET k tA 1 tB 1".to_owned()),
        ("a hash of zero holds", "HSET k tA 0".to_owned()),
        ("a hash of negative holds", "HSET k tA -1".to_owned()),
        ("a hash of a fraction", "HSET k tA 1.5".to_owned()),
        ("a hash of text", "HSET k tA one".to_owned()),
        ("a hash of a padded number", "HSET k tA 01".to_owned()),
        ("a hash of a signed number", "HSET k tA +1".to_owned()),
        ("a hash of more than 2^63 holds", "HSET k tA 9223372036854775808".to_owned()),
        ("a hash of more than 2^64 holds", "HSET k tA 18446744073709551617".to_owned()),
    ];
    for (what, make) in table {
        client.call(&["DEL", "k"]);
        let made = client.call(&words(&make));
        assert!(made.error().is_none(), "{what}: {made:?}");
        client.call(&["PEXPIRE", "k", "16000000"]);
        rig::wait_for_sync(&pair.primary, &pair.replica);
        let before = traces(&pair.primary, "k");
        for command in COMMANDS {
            let reply = client.call(&words(command));
            assert!(reply.is_error("WRONGTYPE "), "{what}: {command}: {reply:?}");
        }
        assert_eq!(traces(&pair.primary, "k"), before, "{what}");
    }
    no_internal_error(&pair.primary);
}

#[test]
fn a_lock_is_no_semaphore_and_a_semaphore_no_lock() {
    let pair = pair();
    let mut client = pair.primary.client();
    for (make, foreign) in [
        ("LOCK.ACQUIRE k tA 270m", "SEM."),
        ("LOCK.ACQUIRE k tA 270m REENTRANT", "SEM."),
        ("LOCK.ACQUIRE k tA 270m SHARED", "SEM."),
        ("SEM.ACQUIRE k tA 270m 5", "LOCK."),
    ] {
        client.call(&["DEL", "k"]);
        granted(&mut client, make);
        rig::wait_for_sync(&pair.primary, &pair.replica);
        let before = traces(&pair.primary, "k");
        for command in COMMANDS.iter().filter(|command| command.starts_with(foreign)) {
            let reply = client.call(&words(command));
            assert!(reply.is_error("WRONGTYPE "), "{make}: {command}: {reply:?}");
        }
        assert_eq!(traces(&pair.primary, "k"), before, "{make}");
    }
    no_internal_error(&pair.primary);
}

#[test]
fn a_refusal_of_any_kind_and_info_change_nothing() {
    let pair = pair();
    let mut client = pair.primary.client();
    for (make, refused) in [
        (
            &["LOCK.ACQUIRE k tA 270m REENTRANT", "LOCK.ACQUIRE k tA 270m REENTRANT"][..],
            &[
                "LOCK.ACQUIRE k tB 1m",
                "LOCK.ACQUIRE k tB 1m REENTRANT",
                "LOCK.ACQUIRE k tA 1m SHARED",
                "LOCK.ACQUIRE k tB 1m SHARED BLOCK 1ms",
                "LOCK.RELEASE k tB",
                "LOCK.RENEW k tB 1m",
                "LOCK.INFO k",
            ][..],
        ),
        (
            &["LOCK.ACQUIRE k tA 270m SHARED", "LOCK.ACQUIRE k tB 271m SHARED", "LOCK.ACQUIRE k tD 1ms SHARED"],
            &[
                "LOCK.ACQUIRE k tC 1m",
                "LOCK.ACQUIRE k tC 1m REENTRANT",
                "LOCK.ACQUIRE k tA 1m",
                "LOCK.ACQUIRE k tA 1m REENTRANT",
                "LOCK.ACQUIRE k tC 1m BLOCK 1ms",
                "LOCK.RELEASE k tC",
                "LOCK.RENEW k tC 1m",
                "LOCK.RENEW k tD 1m",
                "LOCK.RELEASE k tD",
                "LOCK.INFO k",
                // Granted, and yet nothing to write: the lease is longer already.
                "LOCK.ACQUIRE k tA 1m SHARED",
            ],
        ),
        (
            &["SEM.ACQUIRE k tA 270m 3", "SEM.ACQUIRE k tB 271m 3", "SEM.ACQUIRE k tD 1ms 3"],
            &[
                "SEM.ACQUIRE k tC 1m 2",
                "SEM.ACQUIRE k tC 1m 1",
                "SEM.ACQUIRE k tC 1m 2 BLOCK 1ms",
                "SEM.RELEASE k tC",
                "SEM.RENEW k tC 1m",
                "SEM.RENEW k tD 1m",
                "SEM.RELEASE k tD",
                "SEM.INFO k",
                "SEM.ACQUIRE k tA 1m 1",
            ],
        ),
    ] {
        client.call(&["DEL", "k"]);
        for command in make {
            granted(&mut client, command);
        }
        // The dead member stays where it is: a refusal does not prune.
        let now = pair.primary.now_ms();
        wait_past(&pair.primary, now + 5);
        rig::wait_for_sync(&pair.primary, &pair.replica);
        let before = traces(&pair.primary, "k");
        for command in refused {
            let reply = client.call(&words(command));
            assert!(reply.error().is_none(), "{command}: {reply:?}");
            if let Value::Int(n) = reply {
                assert!(n == 0 || command.contains("tA 1m SHARED") || command.ends_with("tA 1m 1"), "{command}: {n}");
            }
            assert_eq!(traces(&pair.primary, "k"), before, "{command}");
        }
    }
    no_internal_error(&pair.primary);
}

#[test]
fn tokens_are_any_bytes_in_every_kind() {
    let (server, mut client) = start();
    let long = vec![b'x'; 512];
    let all: Vec<u8> = (0..=255).collect();
    let tokens: [&[u8]; 12] = [
        b"0",
        b"-1",
        b"mode",
        b"a\0b",
        b"a\0",
        b"\r\n",
        b"%s%n",
        b"\xff\xfe",
        b"12345678901234567890",
        b"1.5",
        &all,
        &long,
    ];
    for token in tokens {
        for (acquire, release, renew) in [
            (args!["LOCK.ACQUIRE", "k", token, "270m", "REENTRANT"], "LOCK.RELEASE", "LOCK.RENEW"),
            (args!["LOCK.ACQUIRE", "k", token, "270m", "SHARED"], "LOCK.RELEASE", "LOCK.RENEW"),
            (args!["SEM.ACQUIRE", "k", token, "270m", 3], "SEM.RELEASE", "SEM.RENEW"),
        ] {
            assert!(client.call(&acquire).int() > 0);
            assert!(client.call(&acquire).int() > 0);
            let info = if acquire[0].starts_with(b"SEM") { "SEM.INFO" } else { "LOCK.INFO" };
            let shown = client.call(&[info, "k"]).map()["holders"].array();
            assert_eq!((shown.len(), shown[0].map()["token"].bytes()), (1, token.to_vec()));
            assert_eq!(client.call(&args![renew, "k", token, "5m"]).int(), 1);
            let mut longer = token.to_vec();
            longer.truncate(511);
            longer.push(0);
            assert_eq!(client.call(&args![release, "k", &longer]).int(), 0);
            while client.call(&args![release, "k", token]).int() == 1 {}
            assert_eq!(client.call(&["EXISTS", "k"]).int(), 0);
        }
    }
    for token in [&b""[..], &[b'x'; 513]] {
        for command in [
            args!["LOCK.ACQUIRE", "k", token, "1m", "REENTRANT"],
            args!["LOCK.ACQUIRE", "k", token, "1m", "SHARED", "BLOCK", 0],
            args!["SEM.ACQUIRE", "k", token, "1m", 1, "BLOCK", 0],
            args!["SEM.RELEASE", "k", token],
            args!["SEM.RENEW", "k", token, "1m"],
        ] {
            assert!(client.call(&command).is_error("ERR invalid token"));
        }
    }
    no_internal_error(&server);
}
