//! Locks of every kind across restarts, on replicas and after promotion, with the module there and without.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod kinds;
mod rig;

use kinds::{granted, holders, int, line_up, no_internal_error, now_ms, wait_past, words};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rig::{Client, SOON, Server, ValueExt, args, dump_all, replica, wait_for, wait_for_sync, wait_until};
use std::collections::BTreeMap;

/// One lock of every kind, and what made it; gives the largest fence.
#[track_caller]
fn every_kind(client: &mut Client) -> i64 {
    let mut fence = 0;
    for command in [
        "LOCK.ACQUIRE exclusive tA 270m",
        "LOCK.ACQUIRE once tA 270m REENTRANT",
        "LOCK.ACQUIRE twice tA 270m REENTRANT",
        "LOCK.ACQUIRE twice tA 271m REENTRANT",
        "LOCK.ACQUIRE shared tA 270m SHARED",
        "LOCK.ACQUIRE shared tB 271m SHARED",
        "LOCK.ACQUIRE shared dead 1ms SHARED",
        "SEM.ACQUIRE permits tA 270m 3",
        "SEM.ACQUIRE permits tB 271m 3",
        "SEM.ACQUIRE permits dead 1ms 3",
        // Converted ones.
        "LOCK.ACQUIRE upgraded tA 270m SHARED",
        "LOCK.ACQUIRE upgraded tA 270m",
        "LOCK.ACQUIRE downgraded tA 270m REENTRANT",
        "LOCK.ACQUIRE downgraded tA 270m SHARED",
        "LOCK.ACQUIRE entered tA 270m SHARED",
        "LOCK.ACQUIRE entered tA 270m REENTRANT",
    ] {
        let next = granted(client, command);
        assert!(next > fence, "{command}");
        fence = next;
    }
    // A token too long for a small hash or sorted set.
    let long = "x".repeat(300);
    granted(client, &format!("LOCK.ACQUIRE long {long} 270m REENTRANT"));
    granted(client, &format!("LOCK.ACQUIRE longs {long} 270m SHARED"));
    granted(client, "LOCK.ACQUIRE longs tA 271m SHARED");
    fence = granted(client, &format!("SEM.ACQUIRE longp {long} 270m 2"));
    // The dead are dead.
    let now = now_ms(client);
    wait_for(SOON, "the clock goes on", || now_ms(client), |later| *later > now + 1);
    fence
}

/// The holder's commands work on every kind, nobody else gets in, and every fence is larger than before.
#[track_caller]
fn goes_on(client: &mut Client, fence: i64) {
    for (command, reply) in [
        ("LOCK.ACQUIRE exclusive tB 1m", 0),
        ("LOCK.ACQUIRE once tB 1m REENTRANT", 0),
        ("LOCK.ACQUIRE twice tB 1m", 0),
        ("LOCK.ACQUIRE shared tB 1m", 0),
        ("SEM.ACQUIRE permits tC 1m 2", 0),
        ("LOCK.RELEASE shared dead", 0),
        ("SEM.RENEW permits dead 1m", 0),
        ("LOCK.RENEW exclusive tA 60m", 1),
        ("LOCK.RENEW once tA 60m", 1),
        ("LOCK.RENEW shared tA 60m", 1),
        ("SEM.RENEW permits tA 60m", 1),
    ] {
        assert_eq!(int(client, command), reply, "{command}");
    }
    for command in [
        "LOCK.ACQUIRE once tA 1m REENTRANT",
        "LOCK.ACQUIRE shared tA 1m SHARED",
        "SEM.ACQUIRE permits tC 1m 3",
        "LOCK.ACQUIRE new tA 1m",
    ] {
        assert!(granted(client, command) > fence, "{command}: the fence grows");
    }
    for release in [
        "LOCK.RELEASE exclusive tA",
        "LOCK.RELEASE once tA",
        "LOCK.RELEASE once tA",
        "LOCK.RELEASE twice tA",
        "LOCK.RELEASE twice tA",
        "LOCK.RELEASE shared tA",
        "LOCK.RELEASE shared tB",
        "SEM.RELEASE permits tA",
        "SEM.RELEASE permits tB",
        "SEM.RELEASE permits tC",
        "LOCK.RELEASE upgraded tA",
        "LOCK.RELEASE downgraded tA",
        "LOCK.RELEASE entered tA",
        "LOCK.RELEASE entered tA",
        "LOCK.RELEASE new tA",
    ] {
        assert_eq!(int(client, release), 1, "{release}");
    }
    let left = client.call(&["KEYS", "*"]).array().len();
    assert_eq!(left, 3, "only the locks of long tokens are left");
}

/// Every key's DUMP, which is the same on two servers if they hold the same in the same form.
fn dumps(server: &Server) -> BTreeMap<Vec<u8>, (Vec<u8>, i64)> {
    let mut client = server.client();
    let mut all = BTreeMap::new();
    for key in client.call(&["KEYS", "*"]).array().iter().map(ValueExt::bytes) {
        let dump = client.call(&args!["DUMP", &key]);
        if !dump.is_nil() {
            let at = client.call(&args!["PEXPIRETIME", &key]).int();
            all.insert(key, (dump.bytes(), at));
        }
    }
    all
}

#[test]
fn an_rdb_brings_every_kind_back_with_and_without_the_module() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::builder().dir(dir.path()).start();
    let fence = every_kind(&mut server.client());
    let before = dump_all(&server);
    assert_eq!(before.len(), 11);
    server.shutdown_save();
    let mut stock = Server::builder().module(false).dir(dir.path()).start();
    assert_eq!(dump_all(&stock), before, "a server without the module");
    assert_eq!(stock.call(&["HGET", "twice", "tA"]).text(), "2");
    assert_eq!(stock.call(&["ZCARD", "shared"]).int(), 3);
    stock.shutdown_save();
    let server = Server::builder().dir(dir.path()).start();
    assert_eq!(dump_all(&server), before);
    assert_eq!(holders(&server, "shared"), ["tA", "tB"], "the dead one is stored, and no holder");
    goes_on(&mut server.client(), fence);
    no_internal_error(&server);
}

#[test]
fn an_aof_brings_every_kind_back_after_a_kill_rewritten_or_not_with_and_without_the_module() {
    for (preamble, rewritten) in [("yes", false), ("yes", true), ("no", true)] {
        let dir = tempfile::tempdir().unwrap();
        let aof = ["--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", preamble];
        let mut server = Server::builder().dir(dir.path()).args(&aof).start();
        let mut client = server.client();
        let mut fence = every_kind(&mut client);
        if rewritten {
            client.call(&["BGREWRITEAOF"]);
            wait_until(SOON, "the AOF is rewritten", || {
                let info = server.info("persistence");
                info["aof_rewrite_in_progress"] == "0"
                    && info["aof_rewrite_scheduled"] == "0"
                    && info["aof_last_bgrewrite_status"] == "ok"
            });
            // And something behind the rewritten part.
            fence = granted(&mut client, "LOCK.ACQUIRE twice tA 270m REENTRANT");
            assert_eq!(int(&mut client, "LOCK.RELEASE twice tA"), 1);
        }
        let before = dump_all(&server);
        server.kill9();
        let mut stock = Server::builder().module(false).dir(dir.path()).args(&aof).start();
        assert_eq!(dump_all(&stock), before, "without the module; preamble {preamble}, rewritten {rewritten}");
        stock.kill9();
        let server = Server::builder().dir(dir.path()).args(&aof).start();
        assert_eq!(dump_all(&server), before, "preamble {preamble}, rewritten {rewritten}");
        goes_on(&mut server.client(), fence);
        no_internal_error(&server);
    }
}

#[test]
fn a_replica_with_the_module_is_promoted_and_goes_on() {
    let primary = Server::start();
    let replica = replica(&primary, true);
    let fence = every_kind(&mut primary.client());
    wait_for_sync(&primary, &replica);
    assert_eq!(dumps(&replica), dumps(&primary));
    // INFO works there, and writes do not.
    let mut client = replica.client();
    assert_eq!(client.call(&["LOCK.INFO", "shared"]).map()["held"].int(), 2);
    assert_eq!(client.call(&["SEM.INFO", "permits"]).map()["held"].int(), 2);
    for write in [
        "LOCK.ACQUIRE once tA 1m REENTRANT",
        "LOCK.ACQUIRE shared tC 1m SHARED BLOCK 0",
        "SEM.ACQUIRE permits tC 1m 3",
        "SEM.RELEASE permits tA",
        "SEM.RENEW permits tA 1m",
    ] {
        assert!(client.call(&words(write)).is_error("READONLY"), "{write}");
    }
    assert_eq!(client.call(&["REPLICAOF", "NO", "ONE"]).text(), "OK");
    goes_on(&mut client, fence);
    no_internal_error(&replica);
}

#[test]
fn a_stock_replica_is_promoted_and_the_locks_are_there_for_plain_commands() {
    let primary = Server::start();
    let replica = replica(&primary, false);
    every_kind(&mut primary.client());
    wait_for_sync(&primary, &replica);
    let mut client = replica.client();
    client.call(&["REPLICAOF", "NO", "ONE"]);
    assert!(client.call(&words("SET exclusive tB NX PX 1000")).is_nil());
    assert_eq!(client.call(&words("HINCRBY twice tA -1")).int(), 1);
    assert_eq!(client.call(&words("ZREM shared tA tB dead")).int(), 3);
    assert_eq!(client.call(&["EXISTS", "shared"]).int(), 0);
    let dead = client.call(&args!["ZCOUNT", "permits", format!("({}", replica.now_ms()), "+inf"]).int();
    assert_eq!(dead, 2);
}

#[test]
fn a_replica_that_is_late_gets_absolute_deadlines() {
    let primary = Server::start();
    let replica = replica(&primary, false);
    replica.stop();
    every_kind(&mut primary.client());
    let now = primary.now_ms();
    wait_past(&primary, now + 700);
    replica.cont();
    wait_for_sync(&primary, &replica);
    assert_eq!(dumps(&replica), dumps(&primary));
}

#[test]
fn after_any_traffic_a_stock_replica_and_the_aof_are_equal_to_the_primary_byte_for_byte() {
    let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("SEED={seed} replays it");
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    let aof = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut primary = Server::builder().dir(dir.path()).args(&aof).start();
    let stock = replica(&primary, false);
    let mut client = primary.client();
    // Whatever the choices below come to, some of every kind is left.
    every_kind(&mut client);
    // Some wait now and then, so that there are hand-overs of every kind.
    let mut waiters: Vec<Client> = (0..6).map(|_| primary.client()).collect();
    for round in 0..60 {
        let mut batch = vec![];
        for _ in 0..40 {
            let n = rng.random_range(0..8);
            let token = format!("t{}", rng.random_range(0..4));
            let ttl = ["1ms", "15ms", "200m", "270m"][rng.random_range(0..4)];
            let mode = ["", "REENTRANT", "SHARED", "SHARED"][rng.random_range(0..4)];
            batch.push(words(&match rng.random_range(0..14) {
                0..5 => format!("LOCK.ACQUIRE lock{n} {token} {ttl} {mode}"),
                5 => format!("LOCK.RENEW lock{n} {token} {ttl}"),
                6..8 => format!("LOCK.RELEASE lock{n} {token}"),
                8..10 => format!("SEM.ACQUIRE sem{n} {token} {ttl} {}", rng.random_range(1..4)),
                10 => format!("SEM.RENEW sem{n} {token} {ttl}"),
                11 => format!("SEM.RELEASE sem{n} {token}"),
                12 => format!("PEXPIRE lock{n} 5"),
                _ => format!("DEL sem{n}"),
            }));
        }
        for (at, waiter) in waiters.iter_mut().enumerate() {
            // Those who were answered ask again; patience is short.
            let (n, mode) = (rng.random_range(0..8), ["", "REENTRANT", "SHARED"][rng.random_range(0..3)]);
            waiter.send(&words(&match at % 2 {
                0 => format!("LOCK.ACQUIRE lock{n} w{at} 10ms {mode} BLOCK 20ms"),
                _ => format!("SEM.ACQUIRE sem{n} w{at} 10ms 2 BLOCK 20ms"),
            }));
        }
        for reply in client.pipeline(&batch) {
            assert!(reply.error().is_none_or(|error| !error.starts_with("ERR")), "{reply:?}");
        }
        for waiter in &mut waiters {
            let reply = waiter.read(SOON).expect("one reply each");
            // Who still shares from a round before may not wait for itself.
            assert!(reply.error().is_none() || reply.is_error("DEADLOCK "), "{reply:?}");
        }
        if round == 30 {
            client.call(&["BGREWRITEAOF"]);
        }
    }
    // Whatever has a short lease ends, so that both sides have seen its end.
    let now = primary.now_ms();
    wait_past(&primary, now + 40);
    for key in client.call(&["KEYS", "*"]).array() {
        client.call(&args!["EXISTS", key.bytes()]);
    }
    wait_until(SOON, "the AOF is rewritten", || {
        let info = primary.info("persistence");
        info["aof_rewrite_in_progress"] == "0" && info["aof_rewrite_scheduled"] == "0"
    });
    wait_for_sync(&primary, &stock);
    let here = dumps(&primary);
    assert!(here.len() >= 11);
    assert_eq!(dumps(&stock), here);
    let all = dump_all(&primary);
    no_internal_error(&primary);
    primary.kill9();
    let loaded = Server::builder().module(false).dir(dir.path()).args(&aof).start();
    let soon = loaded.now_ms() + 1000;
    let alive = |all: BTreeMap<(u32, String), rig::Entry>| -> BTreeMap<_, _> {
        all.into_iter().filter(|(_, entry)| entry.expires_at > soon).collect()
    };
    assert_eq!(alive(dump_all(&loaded)), alive(all));
}

#[test]
fn hand_overs_of_every_kind_reach_a_stock_replica() {
    let primary = Server::start();
    let stock = replica(&primary, false);
    let mut client = primary.client();
    let kinds = ["", "REENTRANT", "SHARED"];
    for (from, held) in kinds.iter().enumerate() {
        for (to, wanted) in kinds.iter().enumerate() {
            if held == wanted && *held == "SHARED" {
                continue; // they are together
            }
            for how in ["release", "del", "expiry"] {
                let key = format!("{from}{to}{how}");
                let ttl = if how == "expiry" { "120ms" } else { "270m" };
                granted(&mut client, &format!("LOCK.ACQUIRE {key} tA {ttl} {held}"));
                let mut waiter = kinds::send_up(&primary, &format!("LOCK.ACQUIRE {key} tB 270m {wanted} BLOCK 0"));
                match how {
                    "release" => {
                        wait_until(SOON, "it waits", || kinds::queue(&primary, &key) == ["tB"]);
                        assert_eq!(int(&mut client, &format!("LOCK.RELEASE {key} tA")), 1);
                    }
                    "del" => {
                        wait_until(SOON, "it waits", || kinds::queue(&primary, &key) == ["tB"]);
                        client.call(&["DEL", &key]);
                    }
                    _ => {}
                }
                waiter.fence();
                wait_for_sync(&primary, &stock);
                assert_eq!(dumps(&stock), dumps(&primary), "{held} to {wanted} by {how}");
                client.call(&["DEL", &key]);
            }
        }
    }
    granted(&mut client, "SEM.ACQUIRE p tA 270m 1");
    let mut waiter = line_up(&primary, "SEM.ACQUIRE p tB 270m 1 BLOCK 0");
    assert_eq!(int(&mut client, "SEM.RELEASE p tA"), 1);
    waiter.fence();
    wait_for_sync(&primary, &stock);
    assert_eq!(dumps(&stock), dumps(&primary));
    no_internal_error(&primary);
}
