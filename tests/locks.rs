//! The exclusive lock, case by case: who holds, for how long, and what an argument may be.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod cases;
mod rig;

use cases::{LONG, assert_error, expires_at, module_path, timed, value_and_expiry, wait_until_gone};
use rig::{Client, Server, Value, ValueExt, args};

fn start() -> (Server, Client, Client) {
    let server = Server::start();
    let (a, b) = (server.client(), server.client());
    (server, a, b)
}

/// The compare-and-delete script that every lock library ships.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

#[test]
fn l1_a_late_release_of_an_expired_lease_is_refused() {
    let (_server, mut a, mut b) = start();
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", "40ms"]).int() > 0);
    wait_until_gone(&mut b, "k");
    assert!(b.call(&["LOCK.ACQUIRE", "k", "tB", LONG]).int() > 0);
    let deadline = expires_at(&mut b, "k");
    assert_eq!(a.call(&["LOCK.RELEASE", "k", "tA"]).int(), 0);
    assert_eq!(b.call(&["GET", "k"]).text(), "tB");
    assert_eq!(expires_at(&mut b, "k"), deadline);
}

#[test]
fn l2_an_expired_lease_cannot_be_renewed() {
    let (_server, mut a, _) = start();
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", "40ms"]).int() > 0);
    wait_until_gone(&mut a, "k");
    assert_eq!(a.call(&["LOCK.RENEW", "k", "tA", "5s"]).int(), 0);
    assert_eq!(a.call(&["EXISTS", "k"]).int(), 0);
}

#[test]
fn l2_a_lease_that_ends_while_the_server_is_busy_is_over_for_renew_and_release() {
    let (_server, mut a, mut b) = start();
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", "30ms"]).int() > 0);
    // The server sleeps beyond the deadline, and the renewal is the first thing it reads when it wakes.
    let replies = a.pipeline(&[args!["DEBUG", "SLEEP", "0.06"], args!["LOCK.RENEW", "k", "tA", "5s"]]);
    assert_eq!(replies[1].int(), 0);
    assert_eq!(a.call(&["LOCK.RELEASE", "k", "tA"]).int(), 0);
    assert!(b.call(&["LOCK.ACQUIRE", "k", "tB", LONG]).int() > 0);
}

#[test]
fn l3_a_renewal_after_the_release_revives_nothing() {
    let (_server, mut a, mut b) = start();
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", LONG]).int() > 0);
    assert_eq!(a.call(&["LOCK.RELEASE", "k", "tA"]).int(), 1);
    assert_eq!(a.call(&["LOCK.RENEW", "k", "tA", "5s"]).int(), 0);
    assert_eq!(a.call(&["EXISTS", "k"]).int(), 0);
    // If B took it meanwhile, it is B's alone.
    assert!(b.call(&["LOCK.ACQUIRE", "k", "tB", LONG]).int() > 0);
    let before = value_and_expiry(&mut b, "k");
    assert_eq!(a.call(&["LOCK.RENEW", "k", "tA", "5s"]).int(), 0);
    assert_eq!(value_and_expiry(&mut b, "k"), before);
}

#[test]
fn l4_a_renewal_with_a_wrong_ttl_is_an_error_and_changes_nothing() {
    let (_server, mut a, _) = start();
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", LONG]).int() > 0);
    let before = value_and_expiry(&mut a, "k");
    for ttl in ["0", "-1", "1.5", "", "abc", "0s", "9223372036854775807", "1e3", "3661d", " 5"] {
        let line = assert_error(&a.call(&["LOCK.RENEW", "k", "tA", ttl]), "ERR");
        assert!(line.contains("ttl"), "{ttl:?}: {line}");
        assert_eq!(value_and_expiry(&mut a, "k"), before, "{ttl:?}");
    }
}

#[test]
fn l5_an_acquire_with_a_wrong_ttl_is_an_error_and_leaves_no_key_and_nobody_waiting() {
    let (server, mut a, _) = start();
    let wrong = [
        "0",
        "-5",
        "1.5",
        "1e3",
        "",
        "abc",
        "9223372036854775807",
        "99999999999999999999",
        "+10",
        " 10",
        "10x",
        "10S",
        "10 ",
        "010",
        "0x10",
        "ms",
        "10sm",
        "10M",
        "1h30m",
        "3661d",
        "316224000001",
        "18446744073709551617",
    ];
    for ttl in wrong {
        for command in [args!["LOCK.ACQUIRE", "k", "t", ttl], args!["LOCK.ACQUIRE", "k", "t", ttl, "BLOCK", "10s"]] {
            let line = assert_error(&a.call(&command), "ERR");
            assert!(line.contains("ttl"), "{ttl:?}: {line}");
        }
    }
    assert_eq!(a.call(&["DBSIZE"]).int(), 0);
    assert_eq!(server.blocked_clients(), 0);
    // The edges on the right side.
    for (ttl, ms) in [("1", 1), ("3660d", 316_224_000_000), ("316224000000", 316_224_000_000), ("2m", 120_000)] {
        a.call(&["DEL", "k"]);
        let acquired = timed(&mut a, &args!["LOCK.ACQUIRE", "k", "t", ttl]);
        assert!(acquired.reply.int() > 0, "{ttl}");
        if ms > 1 {
            let deadline = expires_at(&mut a, "k");
            assert!((acquired.earliest_ms() + ms..=acquired.latest_ms() + ms).contains(&deadline), "{ttl}: {deadline}");
        }
    }
}

#[test]
fn l6_a_wrong_option_is_an_error_and_leaves_the_holders_lock_as_it_is() {
    let (server, mut a, mut b) = start();
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", LONG]).int() > 0);
    let before = value_and_expiry(&mut a, "k");
    for rest in [
        args!["notanumber"],
        args![10, "BLOCK", "x"],
        args![10, "BLOCK"],
        args![10, "BLOCK", "-1"],
        args![10, "BLOCK", "1.5"],
        args![10, "BLOCK", "10", "BLOCK", "10"],
        args![10, "NOSUCHOPT"],
        args![10, ""],
        args![10, "SHARED", "SHARED"],
        args![10, "SHARED", "REENTRANT"],
        args![10, "REENTRANT", "REENTRANT"],
        args![10, "SHARED", "BLOCK"],
        args![10, "10"],
    ] {
        for token in ["tA", "tB"] {
            let command = [args!["LOCK.ACQUIRE", "k", token], rest.clone()].concat();
            assert_error(&b.call(&command), "ERR");
            assert_eq!(value_and_expiry(&mut a, "k"), before);
        }
    }
    assert_eq!(server.blocked_clients(), 0);
    assert_eq!(a.call(&["LOCK.RELEASE", "k", "tA"]).int(), 1);
}

#[test]
fn l7_a_token_is_any_bytes_and_is_compared_exactly() {
    let (_server, mut a, mut b) = start();
    let every_byte: Vec<u8> = (1..=255).collect();
    let tokens: Vec<Vec<u8>> = args![
        "mode",
        "__write__",
        "0",
        "-1",
        "1",
        "9223372036854775807",
        &every_byte[..],
        b"a\0b",
        b"\0",
        "\r\n",
        "%s%n",
        b"\xff\xfe\xc3\x28",
        " ",
        "NX",
        &[b'x'; 512][..],
        &[0; 512][..],
    ];
    for token in &tokens {
        assert!(a.call(&args!["LOCK.ACQUIRE", "k", token, LONG]).int() > 0);
        assert_eq!(&a.call(&["GET", "k"]).bytes(), token);
        let before = value_and_expiry(&mut a, "k");
        let mut others: Vec<Vec<u8>> = vec![
            [token, &b"\0"[..]].concat(),
            [&b" "[..], token].concat(),
            token[..token.len() - 1].to_vec(),
            token.iter().map(|byte| byte ^ 0x20).collect(),
        ];
        others.retain(|other| (1..=512).contains(&other.len()));
        for other in &others {
            assert_eq!(b.call(&args!["LOCK.ACQUIRE", "k", other, "1s"]).int(), 0, "{}", other.escape_ascii());
            assert_eq!(b.call(&args!["LOCK.RELEASE", "k", other]).int(), 0, "{}", other.escape_ascii());
            assert_eq!(b.call(&args!["LOCK.RENEW", "k", other, "1s"]).int(), 0, "{}", other.escape_ascii());
        }
        assert_eq!(value_and_expiry(&mut a, "k"), before);
        assert!(a.call(&args!["LOCK.ACQUIRE", "k", token, "1s"]).int() > 0);
        assert_eq!(a.call(&args!["LOCK.RENEW", "k", token, LONG]).int(), 1);
        let info = a.call(&["LOCK.INFO", "k"]).map();
        assert_eq!(&info["holders"].array()[0].map()["token"].bytes(), token);
        assert_eq!(a.call(&args!["LOCK.RELEASE", "k", token]).int(), 1);
    }
    for token in [&b""[..], &[b'x'; 513]] {
        for command in [
            args!["LOCK.ACQUIRE", "k", token, "1s"],
            args!["LOCK.RELEASE", "k", token],
            args!["LOCK.RENEW", "k", token, "1s"],
        ] {
            let line = assert_error(&a.call(&command), "ERR");
            assert!(line.contains("token"), "{line}");
        }
    }
    assert_eq!(a.call(&["DBSIZE"]).int(), 0);
}

#[test]
fn l7_a_key_is_any_bytes() {
    let (server, mut a, _) = start();
    for key in [&b""[..], b"\0", b"\xff\xfe", b"a\r\nb", b"%s%n", &[b'k'; 5000]] {
        assert!(a.call(&args!["LOCK.ACQUIRE", key, "t", LONG]).int() > 0);
        assert_eq!(a.call(&args!["GET", key]).text(), "t");
        assert_eq!(a.call(&args!["LOCK.RELEASE", key, "t"]).int(), 1);
    }
    assert_eq!(a.call(&["DBSIZE"]).int(), 0);
    assert!(!server.log().contains("internal error"));
}

#[test]
fn l8_locks_of_one_connection_know_nothing_of_each_other() {
    let (_server, mut a, _) = start();
    assert!(a.call(&["LOCK.ACQUIRE", "k1", "t1", LONG]).int() > 0);
    assert!(a.call(&["LOCK.ACQUIRE", "k2", "t2", LONG]).int() > 0);
    assert_eq!(a.call(&["LOCK.RELEASE", "k1", "t2"]).int(), 0);
    assert_eq!(a.call(&["LOCK.RELEASE", "k1", "t1"]).int(), 1);
    assert_eq!(a.call(&["GET", "k2"]).text(), "t2");
    // Nor do databases.
    assert_eq!(a.pipeline(&[args!["SELECT", 1], args!["LOCK.RELEASE", "k2", "t2"]])[1].int(), 0);
}

#[test]
fn l9_a_key_of_another_type_is_wrongtype_at_once_and_stays_as_it_is() {
    let (server, mut a, _) = start();
    a.pipeline(&[
        args!["LPUSH", "list", "x"],
        args!["SADD", "set", "t"],
        args!["HSET", "hash", "t", "1", "u", "1"],
        args!["ZADD", "zset", "1", "t"],
        args!["XADD", "stream", "1-1", "t", "1"],
    ]);
    for key in ["list", "set", "hash", "zset", "stream"] {
        let before = value_and_expiry(&mut a, key);
        for command in [
            args!["LOCK.ACQUIRE", key, "t", "5s"],
            args!["LOCK.ACQUIRE", key, "t", "5s", "BLOCK", "10s"],
            args!["LOCK.RELEASE", key, "t"],
            args!["LOCK.RENEW", key, "t", "5s"],
            args!["LOCK.INFO", key],
        ] {
            assert_error(&a.call(&command), "WRONGTYPE");
        }
        assert_eq!(value_and_expiry(&mut a, key), before, "{key}");
    }
    assert_eq!(server.blocked_clients(), 0);
}

#[test]
fn l10_a_lock_that_a_plain_client_holds_is_respected_until_it_ends() {
    let (_server, mut a, mut b) = start();
    let replies = a.pipeline(&[args!["SET", "k", "other", "NX", "PX", 60], args!["PEXPIRETIME", "k"]]);
    assert_eq!(replies[0].text(), "OK");
    let deadline = replies[1].int();
    loop {
        let asked = timed(&mut b, &args!["LOCK.ACQUIRE", "k", "tB", LONG]);
        if asked.reply.int() > 0 {
            assert!(asked.latest_ms() >= deadline, "granted {} ms early", deadline - asked.latest_ms());
            break;
        }
        assert!(asked.earliest_ms() <= deadline, "refused {} ms after the end", asked.earliest_ms() - deadline);
    }
    assert_eq!(a.call(&["GET", "k"]).text(), "tB");
}

#[test]
fn l11_plain_clients_see_our_locks_and_we_see_theirs() {
    let (_server, mut a, mut outsider) = start();
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", LONG]).int() > 0);
    assert!(outsider.call(&["SET", "k", "x", "NX", "PX", "1000"]).is_nil());
    assert_eq!(outsider.call(&["EVAL", COMPARE_AND_DELETE, "1", "k", "tB"]).int(), 0);
    assert_eq!(outsider.call(&["EVAL", COMPARE_AND_DELETE, "1", "k", "tA"]).int(), 1);
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tB", LONG]).int() > 0);
    a.call(&["DEL", "k"]);

    assert_eq!(outsider.call(&["SET", "k", "x", "NX", "PX", "10000"]).text(), "OK");
    assert_eq!(a.call(&["LOCK.RENEW", "k", "tA", LONG]).int(), 0);
    assert_eq!(a.call(&["LOCK.RENEW", "k", "x", LONG]).int(), 1);
    assert!(outsider.call(&["PTTL", "k"]).int() > 10_000);
    assert_eq!(a.call(&["LOCK.RELEASE", "k", "x"]).int(), 1);
    assert_eq!(outsider.call(&["SET", "k", "y", "NX", "PX", "10000"]).text(), "OK");
}

#[test]
fn l11_a_token_that_the_server_stores_as_a_number_is_compared_as_its_bytes() {
    let (_server, mut a, mut outsider) = start();
    for token in ["7", "10000", "-12", "9223372036854775807"] {
        assert_eq!(outsider.call(&["SET", "k", token, "NX", "PX", "60000"]).text(), "OK");
        assert_eq!(a.call(&["LOCK.RELEASE", "k", "70"]).int(), 0);
        assert!(a.call(&["LOCK.ACQUIRE", "k", token, "1s"]).int() > 0);
        assert_eq!(a.call(&["LOCK.RENEW", "k", token, "60s"]).int(), 1);
        assert_eq!(outsider.call(&["GET", "k"]).text(), token);
        assert_eq!(a.call(&["LOCK.RELEASE", "k", token]).int(), 1);
    }
    // The server shares small numbers between keys: a lock must not reach into another key's value.
    outsider.pipeline(&[args!["SET", "k", "7"], args!["SET", "other", "7"]]);
    a.pipeline(&[args!["LOCK.RELEASE", "k", "7"], args!["LOCK.ACQUIRE", "k", "8", LONG]]);
    assert_eq!(outsider.call(&["GET", "other"]).text(), "7");
}

#[test]
fn l12_a_bare_number_is_milliseconds() {
    let (_server, mut a, _) = start();
    assert!(a.call(&["LOCK.ACQUIRE", "k", "t", "250"]).int() > 0);
    // Read in the same breath: should the machine sleep in between, it is gone, which is right too.
    let left = a.call(&["PTTL", "k"]).int();
    assert!(left <= 250 && (left >= 0 || left == -2), "{left}");
    for (ttl, ms) in [("250", 250), ("250ms", 250), ("2s", 2000), ("3m", 180_000), ("4h", 14_400_000)] {
        a.call(&["DEL", "k"]);
        let acquired = timed(&mut a, &args!["LOCK.ACQUIRE", "k", "t", ttl]);
        let deadline = expires_at(&mut a, "k");
        assert!(
            (acquired.earliest_ms() + ms..=acquired.latest_ms() + ms).contains(&deadline) || deadline == -2,
            "{ttl}: {deadline} after {acquired:?}"
        );
    }
}

#[test]
fn l13_a_renewal_by_another_token_changes_nothing() {
    let (_server, mut a, mut b) = start();
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", "60s"]).int() > 0);
    let before = value_and_expiry(&mut a, "k");
    assert_eq!(b.call(&["LOCK.RENEW", "k", "tB", "1h"]).int(), 0);
    assert_eq!(value_and_expiry(&mut a, "k"), before);
}

#[test]
fn l13_a_renewal_by_the_holder_sets_the_deadline_also_to_an_earlier_one() {
    let (_server, mut a, _) = start();
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", "60s"]).int() > 0);
    for (ttl, ms) in [("1h", 3_600_000), ("10s", 10_000), ("20s", 20_000)] {
        let renewed = timed(&mut a, &args!["LOCK.RENEW", "k", "tA", ttl]);
        assert_eq!(renewed.reply.int(), 1);
        let deadline = expires_at(&mut a, "k");
        assert!((renewed.earliest_ms() + ms..=renewed.latest_ms() + ms).contains(&deadline), "{ttl}: {deadline}");
    }
}

#[test]
fn l15_an_acquire_whose_reply_was_lost_can_be_sent_again_and_one_release_frees() {
    let (server, mut a, mut b) = start();
    a.send(&["LOCK.ACQUIRE", "k", "tA", "60s"]);
    rig::wait_until(rig::SOON, "the server has run it", || b.call(&["EXISTS", "k"]).int() == 1);
    a.close(); // unread
    let mut again = server.client();
    assert!(again.call(&["LOCK.ACQUIRE", "k", "tA", "60s"]).int() > 0);
    assert_eq!(again.call(&["LOCK.RELEASE", "k", "tA"]).int(), 1);
    assert!(b.call(&["LOCK.ACQUIRE", "k", "tB", "60s"]).int() > 0);
}

#[test]
fn l16_a_reacquire_never_shortens_a_lease_and_may_lengthen_it() {
    let (_server, mut a, _) = start();
    let first = a.call(&["LOCK.ACQUIRE", "k", "tA", "60s"]).int();
    let deadline = expires_at(&mut a, "k");
    let second = a.call(&["LOCK.ACQUIRE", "k", "tA", "1s"]).int();
    assert!(second > first, "the fence grows with a re-acquire as well: {first}, {second}");
    assert_eq!(expires_at(&mut a, "k"), deadline);
    let third = timed(&mut a, &args!["LOCK.ACQUIRE", "k", "tA", "90s"]);
    assert!(third.reply.int() > second);
    let later = expires_at(&mut a, "k");
    assert!((third.earliest_ms() + 90_000..=third.latest_ms() + 90_000).contains(&later), "{later}");
}

#[test]
fn l16_a_lock_without_a_ttl_is_respected_and_keeps_none_until_it_is_renewed() {
    let (_server, mut a, mut b) = start();
    a.call(&["SET", "k", "tA"]);
    assert_eq!(b.call(&["LOCK.ACQUIRE", "k", "tB", "1s"]).int(), 0);
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", "1s"]).int() > 0);
    assert_eq!(expires_at(&mut a, "k"), -1);
    assert_eq!(a.call(&["LOCK.INFO", "k"]).map()["ttl"].int(), -1);
    assert_eq!(a.call(&["LOCK.RENEW", "k", "tA", "60s"]).int(), 1);
    assert!(expires_at(&mut a, "k") > 0);
}

#[test]
fn l18_fences_grow_across_keys_and_holders_and_after_del_flushall_and_restart() {
    let (mut server, mut a, mut b) = start();
    let mut fences = vec![a.call(&["LOCK.ACQUIRE", "k", "tA", LONG]).int()];
    assert_eq!(a.call(&["LOCK.RELEASE", "k", "tA"]).int(), 1);
    fences.push(b.call(&["LOCK.ACQUIRE", "k", "tB", LONG]).int());
    fences.push(b.call(&["LOCK.ACQUIRE", "other", "tB", LONG]).int());
    b.call(&["DEL", "k"]);
    fences.push(a.call(&["LOCK.ACQUIRE", "k", "tA", LONG]).int());
    b.call(&["FLUSHALL"]);
    fences.push(a.call(&["LOCK.ACQUIRE", "k", "tA", LONG]).int());
    // Many in one write: far more than one a microsecond must not be needed for them to differ.
    let many: Vec<_> = (0..2000).map(|n| args!["LOCK.ACQUIRE", format!("many:{n}"), "t", LONG]).collect();
    fences.extend(a.pipeline(&many).iter().map(ValueExt::int));
    // And in a transaction, in which the clock may stand still.
    a.call(&["MULTI"]);
    a.pipeline(&(0..100).map(|n| args!["LOCK.ACQUIRE", format!("more:{n}"), "t", LONG]).collect::<Vec<_>>());
    fences.extend(a.call(&["EXEC"]).ints());
    // Nothing of it is saved, and yet it goes on growing.
    server.restart();
    let mut a = server.client();
    assert_eq!(a.call(&["DBSIZE"]).int(), 0);
    fences.push(a.call(&["LOCK.ACQUIRE", "k", "tA", LONG]).int());
    assert!(fences[0] > 0);
    assert!(fences.is_sorted_by(|before, after| before < after));
    assert!(fences.iter().all(|fence| *fence < 1 << 53), "JavaScript keeps them exact");
}

#[test]
fn l18_fences_grow_after_module_unload_and_load() {
    let (_server, mut a, _) = start();
    let path = module_path(&mut a);
    let before = a.call(&["LOCK.ACQUIRE", "k", "tA", LONG]).int();
    assert_eq!(a.call(&["MODULE", "UNLOAD", "sluice"]).text(), "OK");
    assert_eq!(a.call(&["MODULE", "LOAD", &path]).text(), "OK");
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", LONG]).int() > before);
}

#[test]
fn l19_a_release_sent_twice_answers_1_and_0_and_harms_nobody() {
    let (_server, mut a, mut b) = start();
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", LONG]).int() > 0);
    let replies = a.pipeline(&[args!["LOCK.RELEASE", "k", "tA"], args!["LOCK.RELEASE", "k", "tA"]]);
    assert_eq!((replies[0].int(), replies[1].int()), (1, 0));

    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", LONG]).int() > 0);
    assert_eq!(a.call(&["LOCK.RELEASE", "k", "tA"]).int(), 1);
    assert!(b.call(&["LOCK.ACQUIRE", "k", "tB", LONG]).int() > 0);
    let before = value_and_expiry(&mut b, "k");
    assert_eq!(a.call(&["LOCK.RELEASE", "k", "tA"]).int(), 0);
    assert_eq!(value_and_expiry(&mut b, "k"), before);
}

#[test]
fn l20_an_acquire_after_the_own_lease_has_expired_is_a_new_grant() {
    let (_server, mut a, _) = start();
    let first = a.call(&["LOCK.ACQUIRE", "k", "tA", "40ms"]).int();
    wait_until_gone(&mut a, "k");
    let again = timed(&mut a, &args!["LOCK.ACQUIRE", "k", "tA", "10s"]);
    assert!(again.reply.int() > first);
    let deadline = expires_at(&mut a, "k");
    assert!((again.earliest_ms() + 10_000..=again.latest_ms() + 10_000).contains(&deadline));
}

#[test]
fn l48_info_tells_who_holds_and_for_how_long_with_its_fields_in_order() {
    let (_server, mut a, mut b) = start();
    let fields = |reply: &Value| -> Vec<String> { reply.array().iter().step_by(2).map(ValueExt::text).collect() };
    let expected = ["mode", "ttl", "held", "waiters", "holders", "queue"];

    let free = a.call(&["LOCK.INFO", "k"]);
    assert_eq!(fields(&free), expected);
    let free = free.map();
    assert_eq!((free["mode"].text().as_str(), free["ttl"].int(), free["held"].int()), ("free", 0, 0));
    assert!(free["holders"].array().is_empty() && free["queue"].array().is_empty());

    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", "60s"]).int() > 0);
    let deadline = expires_at(&mut a, "k");
    for client in [&mut a, &mut b] {
        let held = timed(client, &args!["LOCK.INFO", "k"]);
        assert_eq!(fields(&held.reply), expected);
        let info = held.reply.map();
        assert_eq!((info["mode"].text().as_str(), info["held"].int(), info["waiters"].int()), ("exclusive", 1, 0));
        let left = deadline - held.latest_ms()..=deadline - held.earliest_ms();
        assert!(left.contains(&info["ttl"].int()));
        let holders = info["holders"].array();
        assert_eq!(holders.len(), 1);
        assert_eq!(fields(&holders[0]), ["token", "holds", "ttl"]);
        let holder = holders[0].map();
        assert_eq!((holder["token"].text().as_str(), holder["holds"].int()), ("tA", 1));
        assert!(left.contains(&holder["ttl"].int()));
    }
}

#[test]
fn l48_info_is_a_map_in_resp3_and_flat_in_resp2_and_the_other_replies_are_the_same_in_both() {
    let server = Server::start();
    let (mut two, mut three) = (server.client(), server.client().resp3());
    for client in [&mut two, &mut three] {
        assert!(matches!(client.call(&["LOCK.ACQUIRE", "k", "t", LONG]), Value::Int(fence) if fence > 0));
        assert!(matches!(client.call(&["LOCK.ACQUIRE", "k", "other", LONG]), Value::Int(0)));
        assert!(matches!(client.call(&["LOCK.RENEW", "k", "t", LONG]), Value::Int(1)));
        assert!(matches!(client.call(&["LOCK.RENEW", "k", "other", LONG]), Value::Int(0)));
        assert!(matches!(client.call(&["LOCK.RELEASE", "k", "other"]), Value::Int(0)));
        let info = client.call(&["LOCK.INFO", "k"]);
        assert_eq!(info.map()["holders"].array()[0].map()["token"].text(), "t");
        assert!(matches!(client.call(&["LOCK.RELEASE", "k", "t"]), Value::Int(1)));
    }
    two.call(&["LOCK.ACQUIRE", "k", "t", LONG]);
    assert!(matches!(two.call(&["LOCK.INFO", "k"]), Value::Array(flat) if flat.len() == 12));
    let Value::Map(pairs) = three.call(&["LOCK.INFO", "k"]) else { panic!("not a map in RESP3") };
    assert_eq!(pairs.len(), 6);
    assert!(
        matches!(&pairs[4].1, Value::Array(holders) if matches!(&holders[0], Value::Map(fields) if fields.len() == 3))
    );
}

#[test]
fn the_whole_life_of_a_lock_through_redis_cli() {
    let server = Server::start();
    let fence = server.cli(&["LOCK.ACQUIRE", "k", "t", "30s"]);
    assert!(fence.strip_prefix("(integer) ").is_some_and(|n| n.parse::<u64>().is_ok_and(|n| n > 0)), "{fence}");
    assert_eq!(server.cli(&["LOCK.ACQUIRE", "k", "u", "30s"]), "(integer) 0");
    assert_eq!(server.cli(&["GET", "k"]), "\"t\"");
    assert_eq!(server.cli(&["LOCK.RENEW", "k", "t", "1m"]), "(integer) 1");
    assert!(server.cli(&["LOCK.INFO", "k"]).contains("\"exclusive\""));
    assert!(server.cli_resp3(&["LOCK.INFO", "k"]).contains("\"mode\" => \"exclusive\""));
    assert_eq!(server.cli_stdin(&["LOCK.RELEASE", "k"], b"\xff\0"), "(integer) 0");
    assert_eq!(server.cli(&["LOCK.RELEASE", "k", "t"]), "(integer) 1");
    assert_eq!(server.cli(&["lock.release", "k", "t"]), "(integer) 0");
    assert_eq!(
        server.cli(&["LOCK.ACQUIRE", "k", "t", "0"]),
        "(error) ERR invalid ttl: expected 1ms to 3660d, as milliseconds or with a unit (ms, s, m, h, d)"
    );
    assert!(server.cli(&["LOCK.ACQUIRE", "k"]).starts_with("(error) ERR wrong number of arguments"));
}
