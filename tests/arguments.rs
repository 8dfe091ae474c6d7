//! Whatever is sent: an error is one line that names the argument at fault, carries nothing of the caller, and changes nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::assert_error;
use rig::{Server, ValueExt, args, dump_all};

/// What a number or a duration must never be taken from. `mark` is looked for in the error.
fn hostile() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = args![
        "",
        " ",
        "+5",
        " 5",
        "5 ",
        "05",
        "00",
        "5.0",
        "1e3",
        "0x5",
        "-5",
        "- 5",
        "5_000",
        "5,000",
        "5'000",
        "nan",
        "inf",
        "-inf",
        "NULL",
        "true",
        "zebra",
        "5zebra",
        "zebra\r\n+OK\r\n",
        "%s%s%s%n",
        b"5\0",
        b"\x005",
        b"\xff\xfe",
        "５",
        "٥",
        "5s5s",
        "5 s",
        "5S",
        "5Ms",
        "s",
        "ms",
        "9223372036854775808",
        "18446744073709551616",
        "18446744073709551617",
        "340282366920938463463374607431768211457",
        "99999999999999999999999999999999999999999999999999",
        "-9223372036854775809",
        "1\n",
        "1\t",
        "'1'",
        "\"1\"",
    ];
    all.push(vec![b'9'; 100_000]);
    all.push(vec![b'z'; 100_000]);
    all
}

/// A good call, and the words that may be put in each place of it: `(place, name the error has to say)`.
type Row = (Vec<Vec<u8>>, Vec<(usize, &'static str)>);

fn table() -> Vec<Row> {
    vec![
        (args!["LOCK.ACQUIRE", "k", "t", "1h"], vec![(3, "ttl")]),
        (args!["LOCK.ACQUIRE", "k", "t", "1h", "BLOCK", "1h"], vec![(3, "ttl"), (4, "option"), (5, "timeout")]),
        (args!["LOCK.ACQUIRE", "k", "t", "1h", "SHARED"], vec![(4, "option")]),
        (args!["LOCK.RENEW", "k", "t", "1h"], vec![(3, "ttl")]),
        (
            args!["RL.FIXED", "f", 5, "1h", "COST", 1, "PEEK"],
            vec![(2, "limit"), (3, "window"), (4, "option"), (5, "cost"), (6, "option")],
        ),
        (
            args!["RL.SLIDING", "s", 5, "1h", "PEEK", "COST", 1],
            vec![(2, "limit"), (3, "window"), (4, "option"), (5, "option"), (6, "cost")],
        ),
        (
            args!["RL.BUCKET", "b", 5, 1, "1h", "COST", 1],
            vec![(2, "capacity"), (3, "refill"), (4, "period"), (5, "option"), (6, "cost")],
        ),
    ]
}

#[test]
fn every_hostile_word_in_every_place_is_an_error_that_names_the_place_and_carries_none_of_it() {
    let server = Server::start();
    let mut client = server.client();
    client.pipeline(&[
        args!["LOCK.ACQUIRE", "k", "t", "1h"],
        args!["RL.FIXED", "f", 5, "1h"],
        args!["RL.SLIDING", "s", 5, "1h"],
        args!["RL.BUCKET", "b", 5, 1, "1h"],
    ]);
    let all = dump_all(&server);
    let mut tried = 0;
    for (call, places) in table() {
        for (place, name) in places {
            for word in hostile() {
                let mut call = call.clone();
                call[place] = word.clone();
                let line = assert_error(&client.call(&call), "ERR");
                let shown = word[..word.len().min(60)].escape_ascii();
                assert!(line.to_lowercase().contains(name), "{shown} as {name}: {line}");
                assert!(line.len() < 200, "{line}");
                let word = String::from_utf8_lossy(&word).into_owned();
                for part in ["zebra", "zz", "99", "%", "nan", "inf", "NULL", "true"] {
                    // (`inf` may not come in by a word of our own such as `info`.)
                    assert!(!word.contains(part) || !line.contains(part), "{line} carries {shown}");
                }
                tried += 1;
            }
        }
    }
    assert!(tried > 800);
    assert_eq!(dump_all(&server), all, "nothing has changed");
    assert_eq!(server.blocked_clients(), 0);
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
}

#[test]
fn a_hostile_token_is_one_of_no_byte_or_of_more_than_512() {
    let server = Server::start();
    for token in [vec![], vec![b'z'; 513], vec![0; 513], vec![b'z'; 1_000_000]] {
        for call in [
            args!["LOCK.ACQUIRE", "k", &token[..], "1h"],
            args!["LOCK.ACQUIRE", "k", &token[..], "1h", "BLOCK", 0],
            args!["LOCK.RELEASE", "k", &token[..]],
            args!["LOCK.RENEW", "k", &token[..], "1h"],
        ] {
            let line = assert_error(&server.call(&call), "ERR");
            assert!(line.contains("token") && !line.contains("zz"), "{line}");
        }
    }
    assert_eq!(server.call(&["DBSIZE"]).int(), 0);
}

#[test]
fn options_are_words_in_any_case_and_order_and_each_at_most_once() {
    let server = Server::start();
    let mut client = server.client();
    for good in [
        args!["RL.FIXED", "f", 5, "1h", "cost", 1, "Peek"],
        args!["RL.FIXED", "f", 5, "1h", "pEEK", "COST", 0],
        args!["rl.sliding", "s", 5, "1h", "CoSt", 2],
        args!["Rl.Bucket", "b", 5, 1, "1h", "peek"],
    ] {
        assert_eq!(client.call(&good).array().len(), 5);
    }
    assert!(client.call(&["lock.acquire", "k", "t", "1h", "block", "0"]).int() > 0);
    for (bad, name) in [
        (args!["RL.FIXED", "f", 5, "1h", "COST"], "COST"),
        (args!["RL.SLIDING", "s", 5, "1h", "PEEK", "COST"], "COST"),
        (args!["RL.BUCKET", "b", 5, 1, "1h", "COST"], "COST"),
        (args!["RL.FIXED", "f", 5, "1h", "COST", 1, "COST", 1], "COST"),
        (args!["RL.FIXED", "f", 5, "1h", "PEEK", "PEEK"], "PEEK"),
        (args!["RL.FIXED", "f", 5, "1h", "COST", "PEEK"], "cost"),
        (args!["RL.FIXED", "f", 5, "1h", "SHARED"], "option"),
        (args!["RL.FIXED", "f", 5, "1h", "BLOCK", 1], "option"),
        (args!["LOCK.ACQUIRE", "k", "t", "1h", "COST", 1], "option"),
        (args!["LOCK.ACQUIRE", "k", "t", "1h", "BLOCK"], "BLOCK"),
        (args!["LOCK.ACQUIRE", "k", "t", "1h", "BLOCK", 1, "block", 1], "BLOCK"),
        (args!["LOCK.ACQUIRE", "k", "t", "1h", "SHARED", "shared"], "SHARED"),
        (args!["LOCK.ACQUIRE", "k", "t", "1h", "REENTRANT", "SHARED"], "SHARED"),
    ] {
        let line = assert_error(&client.call(&bad), "ERR");
        assert!(line.contains(name), "{name}: {line}");
    }
}

#[test]
fn a_wrong_number_of_arguments_is_the_servers_own_error() {
    let server = Server::start();
    for call in [
        &["LOCK.ACQUIRE"][..],
        &["LOCK.ACQUIRE", "k"],
        &["LOCK.ACQUIRE", "k", "t"],
        &["LOCK.RELEASE"],
        &["LOCK.RELEASE", "k"],
        &["LOCK.RELEASE", "k", "t", "x"],
        &["LOCK.RENEW", "k", "t"],
        &["LOCK.RENEW", "k", "t", "1s", "x"],
        &["LOCK.INFO"],
        &["LOCK.INFO", "k", "x"],
        &["RL.FIXED"],
        &["RL.FIXED", "k", "1"],
        &["RL.SLIDING", "k", "1"],
        &["RL.BUCKET", "k", "1", "1"],
    ] {
        let line = assert_error(&server.call(call), "ERR");
        assert!(line.starts_with("ERR wrong number of arguments for '"), "{call:?}: {line}");
    }
    assert_eq!(server.call(&["DBSIZE"]).int(), 0);
}

#[test]
fn a_call_of_very_many_words_is_an_error_and_the_server_lives() {
    let mut server = Server::start();
    let many: Vec<Vec<u8>> = (0..100_000).map(|_| b"COST".to_vec()).collect();
    for start in [args!["RL.FIXED", "k", 1, "1s"], args!["LOCK.ACQUIRE", "k", "t", "1s"]] {
        assert_error(&server.call(&[start, many.clone()].concat()), "ERR");
    }
    assert!(server.is_alive());
    assert_eq!(server.call(&["DBSIZE"]).int(), 0);
}
