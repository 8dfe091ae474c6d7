//! When the server takes no writes, or stops being the one who may: those who wait stay, and nobody is granted a lock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod rig;

use rig::line::{Waiter, acquire, enter, hold, holder, line_up, queue, release, waiters, words};
use rig::noise::{Noise, took, within};
use rig::{SOON, Server, Value, ValueExt, args, dump_all, in_time, ms, replica, wait_for, wait_for_sync, wait_until};
use std::time::{Duration, Instant};

/// The contract's bound once a gate is open again.
const SERVED: Duration = ms(150);
/// What is left of a lease when the gate is shut, and a while after which it has ended.
const LEFT: &str = "300ms";
const PAST: Duration = ms(500);

/// A primary with an AOF and a replica: what makes a write in a pause an assertion.
fn primary_and_replica() -> (Server, Server) {
    let primary = Server::builder().args(&["--appendonly", "yes"]).start();
    let follower = replica(&primary, false);
    (primary, follower)
}

fn same_everywhere(mut primary: Server, follower: &Server) {
    wait_for_sync(&primary, follower);
    assert_eq!(dump_all(follower), dump_all(&primary));
    assert!(primary.is_alive());
    assert_eq!(primary.info_int("sluice", "sluice_internal_errors"), 0);
}

/// Shuts the gate in one write with a renewal, so that the lease of tA ends behind it, however slow the machine is. Gives the
/// replies of what shut it.
#[track_caller]
fn shut_before_the_end_of(server: &Server, key: &str, shut: &[Vec<Vec<u8>>]) -> Vec<Value> {
    let mut replies = server.client().pipeline(&[&[args!["LOCK.RENEW", key, "tA", LEFT]], shut].concat());
    assert_eq!(replies.remove(0).int(), 1, "renewed before the gate is shut");
    assert!(replies.iter().all(|reply| reply.error().is_none()), "{replies:?}");
    replies
}

/// Nobody is granted anything for `long`, which passes.
#[track_caller]
fn nobody_is_granted_within(long: Duration, waiting: &mut [&mut Waiter]) {
    let share = long / u32::try_from(waiting.len()).unwrap();
    for waiter in waiting {
        assert!(waiter.client.is_silent(share), "answered while the server takes no writes");
    }
}

#[test]
fn a_lease_that_ends_in_a_pause_is_handed_over_right_after_it() {
    for kind in ["WRITE", "ALL"] {
        let (primary, follower) = primary_and_replica();
        within(ms(900) + SERVED, "the grant after a pause", |round| {
            let key = format!("k{round}");
            hold(&primary, &key, "tA", "1m");
            let mut b = line_up(&primary, &key, "tB", "1m", "0");
            // In a pause of all commands the server itself has no reply.
            let noise = Noise::of(if kind == "ALL" { &follower } else { &primary });
            let paused = Instant::now();
            shut_before_the_end_of(&primary, &key, &[args!["CLIENT", "PAUSE", 900, kind]]);
            b.fence();
            let took = took(paused, noise);
            assert!(paused.elapsed() >= ms(899), "{kind}: granted within the pause");
            assert_eq!(holder(&primary, &key), "tB");
            took
        });
        same_everywhere(primary, &follower);
    }
}

#[test]
fn an_unpause_serves_those_who_wait() {
    let (primary, follower) = primary_and_replica();
    within(SERVED, "the grant after CLIENT UNPAUSE", |round| {
        let key = format!("k{round}");
        hold(&primary, &key, "tA", "1m");
        let mut b = line_up(&primary, &key, "tB", "1m", "0");
        shut_before_the_end_of(&primary, &key, &[words("CLIENT PAUSE 600000 WRITE")]);
        nobody_is_granted_within(PAST, &mut [&mut b]);
        b.still_waits(&primary, &key);
        let noise = Noise::of(&primary);
        let opened = Instant::now();
        primary.call(&["CLIENT", "UNPAUSE"]);
        b.fence();
        took(opened, noise)
    });
    same_everywhere(primary, &follower);
}

#[test]
fn timeouts_deaths_and_unblocks_go_on_in_a_pause() {
    let (primary, follower) = primary_and_replica();
    within(ms(20), "a timeout in a pause", |round| {
        let (key, patience, noise, mut b, [c, mut d, mut e]) = in_time(700, |patience| {
            let (key, noise) = (format!("k{round}:{patience}"), Noise::of(&primary));
            hold(&primary, &key, "tA", "5m");
            let b = enter(&primary, &key, "tB", "1m", &format!("{patience}ms"));
            let others = ["tC", "tD", "tE"].map(|token| line_up(&primary, &key, token, "1m", "0"));
            shut_before_the_end_of(&primary, &key, &[words("CLIENT PAUSE 600000 WRITE")]);
            let in_time = b.sent.elapsed() < ms(patience);
            if !in_time {
                primary.ok(&["CLIENT", "UNPAUSE"]);
            }
            in_time.then_some((key, patience, noise, b, others))
        });
        assert_eq!(b.reply().int(), 0);
        let took = took(b.sent, noise);
        c.client.close();
        assert_eq!(primary.call(&args!["CLIENT", "UNBLOCK", d.id, "ERROR"]).int(), 1);
        assert!(d.reply().is_error("UNBLOCKED "));
        wait_for(SOON, "one is left", || queue(&primary, &key), |left| left == &["tE"]);
        e.still_waits(&primary, &key);
        primary.call(&["CLIENT", "UNPAUSE"]);
        e.fence();
        took.saturating_sub(ms(patience))
    });
    same_everywhere(primary, &follower);
}

#[test]
fn a_pause_within_a_transaction_holds_the_next_grant_but_not_the_transactions_own() {
    let (primary, follower) = primary_and_replica();
    within(SERVED, "what was due in the pause", |round| {
        let (key, key2) = (format!("k{round}"), format!("k{round}:2"));
        hold(&primary, &key, "tA", "1m");
        hold(&primary, &key2, "tA", "1m");
        let mut b = line_up(&primary, &key, "tB", "1m", "0");
        let mut c = line_up(&primary, &key, "tC", "1m", "0");
        let mut of_2 = line_up(&primary, &key2, "tB", "1m", "0");
        // The release is a command of a client's that the server has let in. The grantee dies and a key goes in the pause.
        let replies = primary.client().pipeline(&[
            words("MULTI"),
            words("CLIENT PAUSE 600000 WRITE"),
            args!["LOCK.RELEASE", &key, "tA"],
            args!["CLIENT", "KILL", "ID", b.id],
            args!["DEL", &key2],
            words("EXEC"),
        ]);
        assert_eq!(replies[5].array()[1].int(), 1);
        assert!(b.client.read(SOON).is_err(), "killed");
        nobody_is_granted_within(ms(200), &mut [&mut c, &mut of_2]);
        assert_eq!(holder(&primary, &key), "tB", "the dead one's grant stays until it can be passed on");
        let noise = Noise::of(&primary);
        let opened = Instant::now();
        primary.call(&["CLIENT", "UNPAUSE"]);
        c.fence();
        of_2.fence();
        let took = took(opened, noise);
        assert_eq!((holder(&primary, &key), holder(&primary, &key2)), ("tC".to_owned(), "tB".to_owned()));
        took
    });
    same_everywhere(primary, &follower);
}

#[test]
fn a_lock_that_expired_in_a_pause_can_be_taken_in_a_transaction_that_pauses() {
    let (primary, follower) = primary_and_replica();
    hold(&primary, "k", "tA", "1m");
    let mut b = line_up(&primary, "k", "tB", "1m", "0");
    let replies = primary.client().pipeline(&[
        words("LOCK.RENEW k tA 30"),
        words("DEBUG SLEEP 0.05"),
        words("MULTI"),
        words("CLIENT PAUSE 300 WRITE"),
        words("LOCK.RELEASE k tA"),
        words("LOCK.ACQUIRE k tX 1000"),
        words("EXEC"),
    ]);
    // The key is past its end but, in a pause, still there.
    let results = replies[6].array();
    assert_eq!((replies[0].int(), results[1].int(), results[2].int()), (1, 0, 0), "{results:?}");
    assert_eq!(holder(&primary, "k"), "tB");
    b.fence();
    same_everywhere(primary, &follower);
}

#[test]
fn a_failover_that_is_given_up_serves_those_who_wait() {
    let (primary, follower) = primary_and_replica();
    within(SERVED, "the grant after a failover that was given up", |round| {
        let key = format!("k{round}");
        hold(&primary, &key, "tA", "1m");
        let mut b = line_up(&primary, &key, "tB", "1m", "0");
        // A replica that is frozen cannot catch up, so the primary waits for it with all writes paused.
        follower.stop();
        let from = Instant::now();
        let failover = [words("FAILOVER TIMEOUT 1000"), words("INFO replication")];
        let replies = shut_before_the_end_of(&primary, &key, &failover);
        assert!(replies[1].text().contains("master_failover_state:waiting-for-sync"), "{replies:?}");
        let ended = || primary.info("replication")["master_failover_state"] == "no-failover";
        let mut silent = true;
        while !ended() {
            silent &= b.client.is_silent(ms(1)) || ended();
        }
        let noise = Noise::of(&primary);
        let opened = Instant::now();
        assert!(silent, "granted while the failover was under way");
        assert!(from.elapsed() > ms(500));
        if holder(&primary, &key) != "tB" {
            b.fence();
        }
        let took = took(opened, noise);
        assert_eq!(holder(&primary, &key), "tB");
        follower.cont();
        wait_for_sync(&primary, &follower);
        took
    });
    same_everywhere(primary, &follower);
}

#[test]
fn a_failover_ends_the_waits_with_unblocked_and_the_new_primary_grants() {
    let (mut primary, follower) = primary_and_replica();
    let second = replica(&primary, true);
    hold(&primary, "k", "tA", "1m");
    let mut b = line_up(&primary, "k", "tB", "1m", "0");
    let mut c = line_up(&primary, "k", "tC", "1m", "0");
    wait_for_sync(&primary, &second);
    let to = second.port().to_string();
    assert_eq!(primary.call(&["FAILOVER", "TO", "127.0.0.1", &to]).text(), "OK");
    for waiter in [&mut b, &mut c] {
        let reply = waiter.reply();
        assert!(reply.is_error("UNBLOCKED "), "{reply:?}");
    }
    wait_until(SOON, "it is a replica", || primary.info("replication")["role"] == "slave");
    assert_eq!((waiters(&primary), primary.blocked_clients()), (0, 0));
    wait_until(SOON, "the other is the primary", || second.info("replication")["role"] == "master");
    assert_eq!(holder(&second, "k"), "tA", "nobody was granted it");
    let mut again = line_up(&second, "k", "tB", "1m", "0");
    assert_eq!(release(&second, "k", "tA"), 1);
    again.fence();
    assert!(primary.is_alive());
    drop(follower);
}

#[test]
fn l31_a_server_that_becomes_a_replica_ends_its_waits_and_grants_nothing() {
    let other = Server::builder().module(false).start();
    let mut server = Server::builder().args(&["--appendonly", "yes"]).start();
    hold(&server, "k", "tA", "1m");
    hold(&server, "k2", "tA", "5m");
    let mut line: Vec<_> = ["tB", "tC"].map(|token| line_up(&server, "k", token, "1m", "0")).into();
    line.push(line_up(&server, "k2", "tB", "1m", "2m"));
    // It never reaches the primary's data, so that what it holds stays to be seen.
    other.stop();
    shut_before_the_end_of(&server, "k", &[args!["REPLICAOF", "127.0.0.1", other.port()]]);
    for mut waiter in line {
        let reply = waiter.reply();
        assert!(reply.is_error("UNBLOCKED "), "{reply:?}");
        // Redis closes the connection besides.
        waiter.client.send(&["PING"]);
        let next = waiter.client.read(SOON);
        assert!(next.as_ref().is_ok_and(|reply| reply.text() == "PONG") || next.is_err(), "{next:?}");
    }
    assert_eq!((waiters(&server), server.blocked_clients()), (0, 0));
    assert!(server.call(&words("LOCK.ACQUIRE k tD 1000 BLOCK 0")).is_error("READONLY "));
    assert!(server.call(&words("LOCK.RELEASE k2 tA")).is_error("READONLY "));
    wait_for(SOON, "the lease ends", || holder(&server, "k"), |who| who == "nobody");
    assert_eq!(server.info_int("sluice", "sluice_lock_handovers"), 0);
    assert_eq!(server.info_int("sluice", "sluice_lock_expired_handovers"), 0);
    // A primary again, it waits and grants as before.
    server.call(&["REPLICAOF", "NO", "ONE"]);
    let mut b = line_up(&server, "k2", "tB", "1m", "0");
    assert_eq!(release(&server, "k2", "tA"), 1);
    b.fence();
    assert!(server.is_alive());
    other.cont();
}

#[test]
fn a_grant_under_way_when_the_server_becomes_a_replica_is_not_followed_by_another() {
    let other = Server::builder().module(false).start();
    let mut server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    let mut c = line_up(&server, "k", "tC", "1m", "0");
    other.stop();
    let replicaof = args!["REPLICAOF", "127.0.0.1", other.port()];
    server.client().pipeline(&[words("LOCK.RELEASE k tA"), replicaof]);
    // The server may have ended B's wait by itself, over the grant; C has none in any case.
    let reply = b.reply();
    assert!(reply.is_error("UNBLOCKED ") || reply.int() > 0, "{reply:?}");
    assert!(c.reply().is_error("UNBLOCKED "));
    assert_ne!(holder(&server, "k"), "tC");
    assert_eq!(waiters(&server), 0);
    assert!(server.is_alive());
    other.cont();
}

/// A lease ends, and another key goes away by its TTL, while the gate is shut; and nobody is served before it opens.
fn shut_and_opened(server: &Server, what: &str, code: &str, shut: impl Fn(), open: impl Fn()) {
    within(SERVED, what, |round| {
        let (key, [mut b, mut c, mut short]) = in_time(1500, |lease| {
            let (key, held) = (format!("k{round}:{lease}"), Instant::now());
            hold(server, &key, "tA", &format!("{lease}ms"));
            let line = [("tB", "0".to_owned()), ("tC", "0".to_owned()), ("tS", format!("{}ms", lease + 200))]
                .map(|(token, patience)| enter(server, &key, token, "1m", &patience));
            shut();
            let refused = server.call(&words("LOCK.ACQUIRE free tX 1000"));
            assert!(refused.is_error(code), "{refused:?}");
            let in_time = held.elapsed() < ms(lease);
            if !in_time {
                open();
            }
            in_time.then_some((key, line))
        });
        assert_eq!(short.reply().int(), 0, "{what}: timeouts go on");
        nobody_is_granted_within(ms(200), &mut [&mut b, &mut c]);
        assert_eq!(queue(server, &key), ["tB", "tC"], "{what}: in their order");
        assert_eq!(holder(server, &key), "nobody", "{what}");
        let noise = Noise::of(server);
        open();
        let opened = Instant::now();
        b.fence();
        let took = took(opened, noise);
        assert_eq!(holder(server, &key), "tB");
        assert_eq!(release(server, &key, "tB"), 1);
        c.fence();
        took
    });
}

#[test]
fn nobody_is_granted_a_lock_while_too_few_replicas_are_there() {
    let server = Server::start();
    let set = |least: &str| assert_eq!(server.call(&["CONFIG", "SET", "min-replicas-to-write", least]).text(), "OK");
    shut_and_opened(&server, "after NOREPLICAS", "NOREPLICAS ", || set("1"), || set("0"));
    // By a replica that comes, too.
    hold(&server, "k2", "tA", "1m");
    let mut b = line_up(&server, "k2", "tB", "5m", "0");
    shut_before_the_end_of(&server, "k2", &[words("CONFIG SET min-replicas-to-write 1")]);
    nobody_is_granted_within(PAST, &mut [&mut b]);
    let follower = replica(&server, false);
    b.fence();
    wait_for_sync(&server, &follower);
    assert_eq!(holder(&follower, "k2"), "tB");
}

#[test]
fn nobody_is_granted_a_lock_while_the_data_cannot_be_saved() {
    let server = Server::builder().args(&["--enable-protected-configs", "yes"]).start();
    let in_the_way = server.dir().join("in-the-way");
    let status = |wanted: &'static str| {
        server.call(&["BGSAVE"]);
        let look = || {
            let info = server.info("persistence");
            (info["rdb_bgsave_in_progress"].clone(), info["rdb_last_bgsave_status"].clone())
        };
        wait_for(SOON, "the save has ended", look, |(busy, status)| busy == "0" && status == wanted);
    };
    // A folder of the file's name, with something in it, cannot be replaced by the file.
    let shut = || {
        std::fs::create_dir_all(&in_the_way).unwrap();
        std::fs::write(in_the_way.join("x"), "x").unwrap();
        server.call(&["CONFIG", "SET", "save", "3600 1000000"]);
        assert_eq!(server.call(&["CONFIG", "SET", "dbfilename", "in-the-way"]).text(), "OK");
        status("err");
    };
    let open = || {
        server.call(&["CONFIG", "SET", "dbfilename", "dump.rdb"]);
        status("ok");
    };
    shut_and_opened(&server, "after MISCONF", "MISCONF ", shut, open);
}

#[test]
fn full_memory_does_not_stop_a_hand_over() {
    let server = Server::start();
    within(ms(30), "three hand-overs with no memory left", |round| {
        server.ok(&["CONFIG", "SET", "maxmemory", "0"]);
        let keys = ["released", "ended", "deleted"].map(|key| format!("{key}{round}"));
        for key in &keys {
            hold(&server, key, "tA", "1m");
        }
        let mut line = keys.each_ref().map(|key| line_up(&server, key, "tB", "1m", "0"));
        server.ok(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(server.call(&words("LOCK.ACQUIRE free tX 1000")).is_error("OOM "));
        let [released, ended, deleted] = &keys;
        let noise = Noise::of(&server);
        let at = Instant::now();
        assert_eq!(release(&server, released, "tA"), 1);
        server.call(&["DEL", deleted]);
        server.call(&["PEXPIRE", ended, "1"]);
        line.iter_mut().for_each(|waiter| assert!(waiter.fence() > 0));
        took(at, noise)
    });
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
}

#[test]
fn whoever_asks_for_a_lock_whose_lease_ended_behind_a_shut_gate_comes_last() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    shut_before_the_end_of(&server, "k", &[words("CONFIG SET min-replicas-to-write 1")]);
    nobody_is_granted_within(PAST, &mut [&mut b]);
    let replies = server.client().pipeline(&[
        words("CONFIG SET min-replicas-to-write 0"),
        words("LOCK.ACQUIRE k tX 1000"),
        words("GET k"),
    ]);
    assert_eq!((replies[1].int(), replies[2].text()), (0, "tB".to_owned()));
    b.fence();
}

#[test]
fn an_orderly_end_with_waiters_and_a_lease_that_ends_in_its_pause_is_clean() {
    let (mut primary, follower) = primary_and_replica();
    hold(&primary, "k", "tA", "1m");
    let mut b = line_up(&primary, "k", "tB", "1m", "0");
    // A replica that lags makes the server wait, writes paused, before it ends.
    follower.stop();
    primary.call(&["CONFIG", "SET", "shutdown-timeout", "1"]);
    // In one write, so that the lease has not ended before: the server hears of its end from the pause on.
    let mut shutting = primary.client();
    shutting.send_all(&[args!["LOCK.RENEW", "k", "tA", LEFT], words("SHUTDOWN NOSAVE")]);
    let error = b.client.read(SOON).expect_err("it ends without a grant");
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    wait_until(SOON, "it has ended", || !primary.is_alive());
    let log = primary.log();
    assert!(log.contains("bye bye") && !log.contains("ASSERTION FAILED") && !log.contains("crashed"), "{log}");
    follower.cont();
}

#[test]
fn a_restart_leaves_no_waiters_and_the_lock_as_it_was() {
    let mut server = Server::builder().args(&["--appendonly", "yes", "--appendfsync", "always"]).start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    assert_eq!(release(&server, "k", "tA"), 1);
    let fence = b.fence();
    let mut c = line_up(&server, "k", "tC", "1m", "0");
    server.restart();
    assert!(c.client.read(SOON).is_err());
    assert_eq!((holder(&server, "k"), waiters(&server)), ("tB".to_owned(), 0));
    let again = acquire(&server, "k", "tB", "1m");
    assert!(again > fence);
    assert_eq!(release(&server, "k", "tB"), 1);
}

#[test]
fn a_waiter_whom_acl_would_refuse_is_refused_before_it_waits() {
    let server = Server::start();
    server.call(&words("ACL SETUSER u on nopass ~mine* +@all"));
    hold(&server, "k", "tA", "1m");
    hold(&server, "mine", "tA", "1m");
    let mut client = server.client();
    client.call(&["AUTH", "u", "x"]);
    assert!(client.call(&words("LOCK.ACQUIRE k tB 1000 BLOCK 0")).is_error("NOPERM "));
    assert_eq!(waiters(&server), 0);
    client.call(&["PING"]);
    client.send(&words("LOCK.ACQUIRE mine tB 60000 BLOCK 0"));
    wait_for(SOON, "it waits", || queue(&server, "mine"), |line| line == &["tB"]);
    assert_eq!(release(&server, "mine", "tA"), 1);
    assert!(client.read(SOON).unwrap().int() > 0);
    // Its user gone, a client is cut off, and does not wait any more.
    client.send(&words("LOCK.ACQUIRE mine tC 60000 BLOCK 0"));
    wait_for(SOON, "it waits", || queue(&server, "mine"), |line| line == &["tC"]);
    server.call(&["ACL", "DELUSER", "u"]);
    wait_for(SOON, "it is gone", || waiters(&server), |n| *n == 0);
}

#[test]
fn many_gates_in_a_row_lose_nobody() {
    let (primary, follower) = primary_and_replica();
    let mut line = Vec::new();
    for number in 0..20 {
        let key = format!("k{number}");
        hold(&primary, &key, "tA", &format!("{}ms", 40 + number * 20));
        line.push((key.clone(), enter(&primary, &key, "tB", "1m", "0")));
    }
    for round in 0..8 {
        let kind = if round % 2 == 0 { "WRITE" } else { "ALL" };
        primary.call(&["CLIENT", "PAUSE", "40", kind]);
        primary.call(&["PING"]);
        primary.call(&["CONFIG", "SET", "min-replicas-to-write", if round % 2 == 0 { "5" } else { "0" }]);
    }
    for (key, waiter) in &mut line {
        assert!(waiter.fence() > 0);
        assert_eq!(holder(&primary, key), "tB");
    }
    assert_eq!(waiters(&primary), 0);
    same_everywhere(primary, &follower);
}

#[test]
fn commands_that_a_servers_people_have_renamed_starve_nobody() {
    for renamed in [&["SETRANGE"][..], &["SETRANGE", "ZREMRANGEBYRANK", "ZCOUNT", "DEL", "CLUSTER"]] {
        let renames: Vec<&str> = renamed.iter().flat_map(|name| ["--rename-command", name, ""]).collect();
        let server = Server::builder().args(&renames).start();
        hold(&server, "k", "tA", "100ms");
        let mut b = enter(&server, "k", "tB", "1m", "0");
        assert!(b.fence() > 0, "the lease ended, {renamed:?} renamed");
        let mut c = line_up(&server, "k", "tC", "1m", "0");
        server.call(&["UNLINK", "k"]);
        assert!(c.fence() > 0);

        let mut client = server.client();
        for (token, ttl) in [("s1", "50ms"), ("s2", "1m")] {
            assert!(client.call(&["SEM.ACQUIRE", "s", token, ttl, "2"]).int() > 0);
        }
        wait_until(SOON, "a permit is free again", || client.call(&["SEM.ACQUIRE", "s", "s3", "1m", "2"]).int() > 0);
        assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
    }
}
