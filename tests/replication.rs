//! Replicas: equal to the primary to the millisecond, without the module, and good to take over with it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::{ask, expires_at, random_traffic, seeded, short, wait_until_ms};
use rig::{SOON, Server, ValueExt, args, dump_all, in_time, replica, wait_for_sync, wait_until};

#[test]
fn l44_a_stock_replica_is_equal_byte_for_byte_and_to_the_millisecond() {
    let primary = Server::start();
    let stock = replica(&primary, false);
    let with_module = replica(&primary, true);
    let (_, mut random) = seeded();
    let mut client = primary.client();
    for db in [0, 5] {
        client.call(&args!["SELECT", db]);
        for chunk in random_traffic(&mut random, 6000).chunks(1000) {
            client.pipeline(chunk);
        }
    }
    let all = dump_all(&primary);
    assert!(all.len() > 30);
    for replica in [&stock, &with_module] {
        wait_for_sync(&primary, replica);
        assert_eq!(dump_all(replica), all);
    }
    assert_eq!(dump_all(&primary), all);
}

#[test]
fn l44_short_windows_and_leases_that_come_and_go_leave_a_stock_replica_equal() {
    let primary = Server::start();
    let stock = replica(&primary, false);
    let mut client = primary.client();
    let until = primary.now_ms() + 500;
    let mut rounds = 0;
    while primary.now_ms() < until || rounds < 20 {
        rounds += 1;
        client.pipeline(&[
            args!["LOCK.ACQUIRE", "lock", "a", "7ms"],
            args!["LOCK.RENEW", "lock", "a", "9ms"],
            args!["LOCK.ACQUIRE", "lock", "b", "5ms"],
            args!["RL.FIXED", "f", 20, "15ms"],
            args!["RL.SLIDING", "s", 20, "40ms"],
            args!["RL.SLIDING", "grows", 100_000, "1h"],
            args!["RL.BUCKET", "b", 20, 20, "20ms"],
            args!["RL.BUCKET", "c", 20, 1, "1h", "COST", 1],
            args!["RL.FIXED", "g", 100_000, "1h"],
        ]);
    }
    wait_until(SOON, "all that is short has ended", || client.call(&["DBSIZE"]).int() == 3);
    wait_for_sync(&primary, &stock);
    let all = dump_all(&primary);
    assert_eq!((all.len(), dump_all(&stock)), (3, all));
}

#[test]
fn l44_a_replica_that_stood_still_for_three_seconds_has_the_same_deadlines() {
    let primary = Server::start();
    let stock = replica(&primary, false);
    let mut client = primary.client();
    client.call(&["LOCK.ACQUIRE", "renewed", "tA", "1h"]);
    wait_for_sync(&primary, &stock);
    stock.stop();
    client.pipeline(&[
        args!["LOCK.ACQUIRE", "k", "tA", "1h"],
        args!["LOCK.RENEW", "renewed", "tA", "2h"],
        args!["RL.FIXED", "f", 10, "1h"],
        args!["RL.SLIDING", "s", 10, "1h"],
        args!["RL.BUCKET", "b", 10, 1, "1h"],
    ]);
    let until = primary.now_ms() + 3000;
    wait_until_ms(&primary, until);
    stock.cont();
    wait_for_sync(&primary, &stock);
    let all = dump_all(&primary);
    assert_eq!((all.len(), dump_all(&stock)), (5, all));
}

#[test]
fn l44_and_r38_a_promoted_replica_goes_on_where_the_primary_was() {
    let mut primary = Server::start();
    let promoted = replica(&primary, true);
    let mut client = primary.client();
    let mut fence = client.call(&["LOCK.ACQUIRE", "k", "tA", "1h"]).int();
    let calls =
        [args!["RL.FIXED", "f", 9, "1h"], args!["RL.SLIDING", "s", 9, "1h"], args!["RL.BUCKET", "b", 9, 1, "1h"]];
    for call in &calls {
        for _ in 0..6 {
            ask(&mut client, call);
        }
    }
    for n in 0..500 {
        fence = fence.max(client.call(&args!["LOCK.ACQUIRE", format!("other:{n}"), "t", "1h"]).int());
    }
    let deadline = expires_at(&mut client, "k");
    wait_for_sync(&primary, &promoted);
    primary.kill9();

    let mut client = promoted.client();
    assert_eq!(client.call(&["REPLICAOF", "NO", "ONE"]).text(), "OK");
    assert_eq!(expires_at(&mut client, "k"), deadline);
    for call in &calls {
        assert_eq!(short(&mut client, call), (true, 2, 0));
    }
    assert_eq!(client.call(&["LOCK.ACQUIRE", "k", "tB", "1h"]).int(), 0);
    assert_eq!(client.call(&["LOCK.RENEW", "k", "tA", "2h"]).int(), 1);
    assert_eq!(client.call(&["LOCK.RELEASE", "k", "tA"]).int(), 1);
    assert!(client.call(&["LOCK.ACQUIRE", "k", "tB", "1h"]).int() > fence);
}

#[test]
fn l45_wait_after_a_grant_counts_the_grant() {
    let primary = Server::start();
    let stock = replica(&primary, false);
    let mut client = primary.client();
    let replies = client.pipeline(&[args!["LOCK.ACQUIRE", "k", "tA", "1h"], args!["WAIT", 1, 10_000]]);
    assert!(replies[0].int() > 0);
    assert_eq!(replies[1].int(), 1);
    stock.stop();
    let replies = client.pipeline(&[args!["LOCK.ACQUIRE", "other", "tA", "1h"], args!["WAIT", 1, 50]]);
    assert!(replies[0].int() > 0);
    assert_eq!(replies[1].int(), 0);
    client.send(&args!["WAIT", 1, 20_000]);
    stock.cont();
    assert_eq!(client.read(SOON).unwrap().int(), 1);
    assert_eq!(stock.call(&["GET", "other"]).text(), "tA");
}

#[test]
fn l46_no_script_cache_stands_between_a_failover_and_the_release() {
    let mut primary = Server::start();
    let promoted = replica(&primary, true);
    assert!(primary.call(&["LOCK.ACQUIRE", "k", "tA", "1h"]).int() > 0);
    primary.call(&["SCRIPT", "FLUSH"]);
    wait_for_sync(&primary, &promoted);
    primary.kill9();
    promoted.call(&["SCRIPT", "FLUSH"]);
    promoted.call(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(promoted.call(&["LOCK.RELEASE", "k", "tA"]).int(), 1);
}

#[test]
fn l47_a_replica_refuses_every_write_and_shows_a_lock() {
    let primary = Server::start();
    let second = replica(&primary, true);
    primary.call(&["LOCK.ACQUIRE", "k", "tA", "1h"]);
    primary.call(&["RL.FIXED", "f", "10", "1h"]);
    wait_for_sync(&primary, &second);
    let all = dump_all(&second);
    let mut client = second.client();
    for call in [
        args!["LOCK.ACQUIRE", "k", "tA", "1h"],
        args!["LOCK.ACQUIRE", "new", "tA", "1h"],
        args!["LOCK.RELEASE", "k", "tA"],
        args!["LOCK.RENEW", "k", "tA", "1h"],
        args!["RL.FIXED", "f", 10, "1h"],
        args!["RL.FIXED", "f", 10, "1h", "PEEK"],
        args!["RL.SLIDING", "s", 10, "1h"],
        args!["RL.BUCKET", "b", 10, 10, "1h", "COST", 0],
    ] {
        assert!(client.call(&call).is_error("READONLY "), "{call:?}");
    }
    assert_eq!(dump_all(&second), all);
    let info = client.call(&["LOCK.INFO", "k"]).map();
    assert_eq!((info["mode"].text().as_str(), info["held"].int(), info["waiters"].int()), ("exclusive", 1, 0));
    assert!(info["ttl"].int() > 0 && info["queue"].array().is_empty());
}

#[test]
fn l48_info_on_a_replica_does_not_show_a_lease_that_has_ended_though_the_primary_is_silent() {
    let primary = Server::start();
    let second = replica(&primary, true);
    in_time(300, |lease| {
        primary.call(&args!["LOCK.ACQUIRE", "k", "tA", lease]);
        wait_for_sync(&primary, &second);
        primary.stop();
        let mut client = second.client();
        let mode = |reply: rig::Value| reply.map()["mode"].text();
        wait_until(SOON, "the lease is over", || mode(client.call(&["LOCK.INFO", "k"])) == "free");
        let info = client.call(&["LOCK.INFO", "k"]).map();
        // What is over is there for as long as the primary has not said that it goes, which it may have done before it
        // stopped.
        let is_there = client.call(&["DBSIZE"]).int() == 1;
        primary.cont();
        assert_eq!((info["ttl"].int(), info["held"].int(), info["holders"].array().len()), (0, 0, 0));
        is_there.then_some(())
    });
}
