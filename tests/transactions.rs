//! Our commands inside MULTI/EXEC, scripts and functions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::{assert_error, expires_at, verdict};
use rig::{Client, Server, Value, ValueExt, args, dump_all, ms, replica, wait_for_sync};

/// Whether the server offers a module the time that stands still in a transaction: it says so when the module is loaded.
fn time_stands_still(server: &Server) -> bool {
    server.log().contains("stands still in a transaction yes")
}

fn transaction(client: &mut Client, commands: &[Vec<Vec<u8>>]) -> Vec<Value> {
    let all = [&[args!["MULTI"]], commands, &[args!["EXEC"]]].concat();
    client.pipeline(&all).pop().unwrap().array()
}

/// Every command as a function of a library; a function's name may not have a dot.
const LIBRARY: &str = "#!lua name=of_ours
local function of(command)
  return function(keys, args) return redis.call(command, keys[1], unpack(args)) end
end
redis.register_function('acquire', of('LOCK.ACQUIRE'))
redis.register_function('release', of('LOCK.RELEASE'))
redis.register_function('renew', of('LOCK.RENEW'))
redis.register_function('info', of('LOCK.INFO'))
redis.register_function('fixed', of('RL.FIXED'))
redis.register_function('sliding', of('RL.SLIDING'))
redis.register_function('bucket', of('RL.BUCKET'))";

/// The script that calls whatever command it is given.
const ANY: &str = "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))";

fn by_script(call: &[Vec<u8>]) -> Vec<Vec<u8>> {
    [&args!["EVAL", ANY, 1, &call[1], &call[0]][..], &call[2..]].concat()
}

fn by_function(call: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let name = String::from_utf8(call[0].clone()).unwrap().to_lowercase();
    let name = name.split_once('.').unwrap().1.to_owned();
    [&args!["FCALL", name, 1, &call[1]][..], &call[2..]].concat()
}

#[test]
fn r40_a_transaction_holds_all_our_commands_and_answers_each() {
    let server = Server::start();
    let mut client = server.client();
    let replies = transaction(
        &mut client,
        &[
            args!["LOCK.ACQUIRE", "k", "t", "1h"],
            args!["LOCK.ACQUIRE", "k", "u", "1h"],
            args!["LOCK.RENEW", "k", "t", "2h"],
            args!["LOCK.INFO", "k"],
            args!["RL.FIXED", "f", 1, "1h"],
            args!["RL.FIXED", "f", 1, "1h"],
            args!["RL.SLIDING", "s", 1, "1h"],
            args!["RL.SLIDING", "s", 1, "1h"],
            args!["RL.BUCKET", "b", 1, 1, "1h"],
            args!["RL.BUCKET", "b", 1, 1, "1h"],
            args!["RL.BUCKET", "b", 0, 1, "1h"],
            args!["RL.SLIDING", "f", 1, "1h"],
            args!["LOCK.RELEASE", "k", "t"],
            args!["SET", "x", 1],
        ],
    );
    assert!(replies[0].int() > 0);
    assert_eq!((replies[1].int(), replies[2].int(), replies[12].int()), (0, 1, 1));
    assert_eq!(replies[3].map()["held"].int(), 1);
    for pair in replies[4..10].chunks(2) {
        assert!(verdict(&pair[0]).allowed && !verdict(&pair[1]).allowed);
    }
    assert_error(&replies[10], "ERR");
    assert_error(&replies[11], "WRONGTYPE");
    assert_eq!(replies[13].text(), "OK");
    assert_eq!(client.call(&["EXISTS", "k"]).int(), 0);
}

#[test]
fn r40_a_transaction_sees_one_time_where_the_server_offers_that() {
    let server = Server::start();
    let mut client = server.client();
    // Windows of a few ms, and the server is busy for longer in between.
    let busy = args!["DEBUG", "SLEEP", "0.02"];
    let calls =
        [args!["RL.FIXED", "f", 1, "5ms"], args!["RL.SLIDING", "s", 1, "5ms"], args!["RL.BUCKET", "b", 1, 1, "5ms"]];
    let replies = transaction(&mut client, &[&calls[..], &[busy], &calls].concat());
    if time_stands_still(&server) {
        for (first, second) in replies[..3].iter().zip(&replies[4..]) {
            assert!(verdict(first).allowed && !verdict(second).allowed, "{first:?}, {second:?}");
        }
    } else {
        println!("this server has no time that stands still: each command reads the clock");
        for (first, second) in replies[..3].iter().zip(&replies[4..]) {
            assert!(verdict(first).allowed && verdict(second).allowed, "{first:?}, {second:?}");
        }
    }
}

#[test]
fn r40_scripts_and_functions_call_all_our_commands_in_resp2_and_resp3() {
    let server = Server::start();
    for mut client in [server.client(), server.client().resp3()] {
        client.call(&["FLUSHALL"]);
        client.call(&["FUNCTION", "FLUSH"]);
        assert_eq!(client.call(&["FUNCTION", "LOAD", LIBRARY]).text(), "of_ours");
        for way in [by_script as fn(&[Vec<u8>]) -> Vec<Vec<u8>>, by_function] {
            client.call(&["FLUSHALL"]);
            let mut call = |call: Vec<Vec<u8>>| client.call(&way(&call));
            assert!(call(args!["LOCK.ACQUIRE", "k", b"\0\xff", "1h"]).int() > 0);
            assert_eq!(call(args!["LOCK.ACQUIRE", "k", "u", "1h"]).int(), 0);
            assert_eq!(call(args!["LOCK.RENEW", "k", b"\0\xff", "2h"]).int(), 1);
            let info = call(args!["LOCK.INFO", "k"]);
            assert!(info.map()["held"].int() == 1, "{info:?}");
            assert_eq!(call(args!["LOCK.RELEASE", "k", b"\0\xff"]).int(), 1);
            for limiter in [
                args!["RL.FIXED", "f", 2, "1h"],
                args!["RL.SLIDING", "s", 2, "1h"],
                args!["RL.BUCKET", "b", 2, 1, "1h"],
            ] {
                assert_eq!(verdict(&call(limiter.clone())).remaining, 1);
                assert_eq!(verdict(&call(limiter.clone())).remaining, 0);
                assert!(!verdict(&call(limiter)).allowed);
            }
            let wrong = call(args!["RL.FIXED", "f", 0, "1h"]).error().unwrap();
            assert!(wrong.contains("invalid limit"), "{wrong}");
        }
    }
}

#[test]
fn r40_what_a_transaction_script_or_function_did_is_replicated_and_logged_as_its_effects() {
    let mut primary = Server::builder().args(&["--appendonly", "yes", "--appendfsync", "always"]).start();
    let stock = replica(&primary, false);
    let mut client = primary.client();
    assert_eq!(client.call(&["FUNCTION", "LOAD", LIBRARY]).text(), "of_ours");
    let calls = |n: usize| {
        vec![
            args!["LOCK.ACQUIRE", format!("k{n}"), "t", "1h"],
            args!["LOCK.RENEW", format!("k{n}"), "t", "2h"],
            args!["LOCK.ACQUIRE", "released", "t", "1h"],
            args!["LOCK.RELEASE", "released", "t"],
            args!["RL.FIXED", "f", 100, "1h", "COST", 3],
            args!["RL.FIXED", "f", 100, "1h"],
            args!["RL.SLIDING", "s", 100, "1h", "COST", 2],
            args!["RL.SLIDING", "s", 100, "1h"],
            args!["RL.BUCKET", "b", 100, 1, "1h", "COST", 2],
            args!["RL.BUCKET", "b", 100, 1, "1h"],
            args!["RL.BUCKET", "b", 100, 1, "1h", "PEEK"],
            args!["RL.FIXED", "f", 100, "1h", "COST", 1000],
        ]
    };
    transaction(&mut client, &calls(1));
    for call in calls(2) {
        assert!(client.call(&by_script(&call)).error().is_none());
        assert!(client.call(&by_function(&call)).error().is_none());
    }
    let several = "for i = 1, 5 do redis.call('RL.SLIDING', KEYS[1], '100', '1h') redis.call('RL.FIXED', KEYS[2], '100', '1h') end
        return redis.call('LOCK.ACQUIRE', KEYS[3], 't', '1h')";
    assert!(client.call(&["EVAL", several, "3", "s", "f", "k3"]).int() > 0);
    let in_transaction: Vec<_> = calls(4).iter().map(|call| by_script(call)).collect();
    transaction(&mut client, &in_transaction);

    let all = dump_all(&primary);
    assert_eq!(all.len(), 7);
    wait_for_sync(&primary, &stock);
    assert_eq!(dump_all(&stock), all);
    primary.restart();
    assert_eq!(dump_all(&primary), all);
}

#[test]
fn r40_a_transaction_of_refusals_replicates_nothing_at_all() {
    let primary = Server::builder().args(&["--repl-ping-replica-period", "3600"]).start();
    let stock = replica(&primary, false);
    let mut client = primary.client();
    client.pipeline(&[args!["LOCK.ACQUIRE", "k", "t", "1h"], args!["RL.FIXED", "f", 1, "1h"]]);
    wait_for_sync(&primary, &stock);
    let before = primary.offset();
    let refusals =
        [args!["LOCK.ACQUIRE", "k", "u", "1h"], args!["RL.FIXED", "f", 1, "1h"], args!["LOCK.RELEASE", "k", "u"]];
    transaction(&mut client, &refusals);
    for call in &refusals {
        client.call(&by_script(call));
    }
    assert_eq!(primary.offset(), before);
}

#[test]
fn r40_a_read_only_script_may_look_at_a_lock_and_nothing_else() {
    let server = Server::start();
    let mut client = server.client();
    let read_only = |call: &[Vec<u8>]| [&args!["EVAL_RO"][..], &by_script(call)[1..]].concat();
    assert_eq!(client.call(&read_only(&args!["LOCK.INFO", "k"])).map()["held"].int(), 0);
    for call in [args!["LOCK.ACQUIRE", "k", "t", "1h"], args!["RL.FIXED", "f", 1, "1h", "PEEK"]] {
        assert!(client.call(&read_only(&call)).error().is_some());
    }
    assert_eq!(client.call(&["DBSIZE"]).int(), 0);
}

#[test]
fn l28_where_blocking_is_denied_block_is_ignored_and_no_stray_reply_comes() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    assert!(a.call(&["LOCK.ACQUIRE", "k", "tA", "1h"]).int() > 0);
    let waiting = args!["LOCK.ACQUIRE", "k", "tB", "1s", "BLOCK", "5s"];
    let done = transaction(&mut b, &[waiting.clone(), args!["SET", "x", 1]]);
    assert_eq!((done[0].int(), done[1].text().as_str()), (0, "OK"));
    b.call(&["FUNCTION", "LOAD", LIBRARY]);
    assert_eq!(b.call(&by_script(&waiting)).int(), 0);
    assert_eq!(b.call(&by_function(&waiting)).int(), 0);
    assert_eq!(server.blocked_clients(), 0);
    let info = a.call(&["LOCK.INFO", "k"]).map();
    assert_eq!((info["waiters"].int(), info["queue"].array().len()), (0, 0));
    assert_eq!(a.call(&["LOCK.RELEASE", "k", "tA"]).int(), 1);
    assert_eq!(b.call(&["PING"]).text(), "PONG");
    assert!(b.is_silent(ms(20)));
    assert_eq!(a.call(&["EXISTS", "k"]).int(), 0);
    // And a free lock is taken.
    assert!(transaction(&mut b, &[waiting])[0].int() > 0);
}

#[test]
fn a_watched_transaction_that_would_act_on_a_changed_lock_is_given_up() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    a.call(&["LOCK.ACQUIRE", "k", "tA", "1h"]);
    b.call(&["WATCH", "k"]);
    a.call(&["LOCK.RELEASE", "k", "tA"]);
    let done = b.pipeline(&[args!["MULTI"], args!["SET", "x", 1], args!["EXEC"]]);
    assert!(done[2].is_nil());
    assert_eq!(expires_at(&mut b, "x"), -2);
}
