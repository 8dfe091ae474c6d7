//! All that the module does, once, in a few seconds, from load to unload: the short form of the server's tests that
//! `make memcheck` runs under valgrind. With SLUICE_BASELINE=1 it does as much with the server's own commands, and no module.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod cases;
mod rig;

use cases::module_path;
use rig::line::{enter, hold, line_up, release, waiters};
use rig::{Client, SOON, Server, ValueExt, args, wait_for, wait_until};

fn is_baseline() -> bool {
    std::env::var_os("SLUICE_BASELINE").is_some()
}

/// Every command, in every mode, right and wrong.
fn commands(client: &mut Client) {
    let lines = "\
        LOCK.ACQUIRE k t 10m|LOCK.ACQUIRE k t 20m|LOCK.ACQUIRE k u 1m|LOCK.RENEW k t 5m|LOCK.RENEW k u 5m|LOCK.INFO k|\
        LOCK.ACQUIRE k t 1m REENTRANT|LOCK.ACQUIRE k t 1m REENTRANT|LOCK.INFO k|LOCK.RELEASE k t|LOCK.RELEASE k t|\
        LOCK.ACQUIRE k t 1m SHARED|LOCK.INFO k|LOCK.RELEASE k u|LOCK.RELEASE k t|LOCK.RELEASE k t|\
        LOCK.ACQUIRE s a 1m SHARED|LOCK.ACQUIRE s b 1m SHARED|LOCK.ACQUIRE s a 1m|LOCK.ACQUIRE s a 1m BLOCK 1m|\
        LOCK.RENEW s b 2m|LOCK.INFO s|LOCK.RELEASE s b|LOCK.ACQUIRE s a 1m|LOCK.RELEASE s a|LOCK.INFO s|\
        SEM.ACQUIRE p a 1m 2|SEM.ACQUIRE p b 1m 2|SEM.ACQUIRE p c 1m 2|SEM.RENEW p a 2m|SEM.INFO p|SEM.RELEASE p a|\
        SEM.RELEASE p a|SEM.RELEASE p b|SEM.INFO p|\
        RL.FIXED f 3 1m|RL.FIXED f 3 1m COST 2|RL.FIXED f 3 1m|RL.FIXED f 3 1m PEEK|RL.FIXED f 3 1s|RL.FIXED f 3 1m COST 9|\
        RL.SLIDING l 5 1m|RL.SLIDING l 5 1m COST 3|RL.SLIDING l 5 1m COST 3|RL.SLIDING l 5 1m PEEK|RL.SLIDING l 50 2h|\
        RL.BUCKET b 5 1 1m|RL.BUCKET b 5 1 1m COST 4|RL.BUCKET b 5 1 1m|RL.BUCKET b 5 1 1m PEEK|RL.BUCKET b 50 3 1h|\
        RPUSH list x|LOCK.ACQUIRE list t 1m|SEM.ACQUIRE list t 1m 1|RL.FIXED list 3 1m|RL.SLIDING list 3 1m|RL.BUCKET list 3 1 1m|\
        LOCK.RELEASE list t|LOCK.INFO list|SET text hello|RL.FIXED text 3 1m|RL.SLIDING text 3 1m|RL.BUCKET text 3 1 1m|\
        LOCK.ACQUIRE|LOCK.ACQUIRE k|LOCK.ACQUIRE k t 0|LOCK.ACQUIRE k t 1m WHAT|LOCK.ACQUIRE k t 1m BLOCK|SEM.ACQUIRE k t 1m 0|\
        RL.FIXED f 0 1m|RL.SLIDING f 1 1x|RL.BUCKET f 1 1 1m COST|CONFIG GET sluice.*|CONFIG SET sluice.max-waiters 100|\
        CONFIG SET sluice.max-waiters no|INFO sluice|COMMAND DOCS LOCK.ACQUIRE|COMMAND INFO RL.BUCKET|\
        ZADD z 1.25 a|LOCK.ACQUIRE z t 1m SHARED|ZADD y 1 a|LOCK.ACQUIRE y t 1m SHARED|HSET h t x|LOCK.ACQUIRE h t 1m REENTRANT";
    for line in lines.split('|') {
        client.call(&line.split_whitespace().collect::<Vec<_>>());
    }
    // A log that grows, comes round and is rewritten; bytes that are no log and no bucket.
    for n in 0..120 {
        client.call(&args!["RL.SLIDING", "grows", 40, "30ms", "COST", n % 3]);
        client.call(&args!["RL.BUCKET", "grows2", 40, 40, "30ms"]);
    }
    for length in 0..40_usize {
        for first in [0xf5_u8, 0xf6] {
            let mut state = vec![0x11; length];
            if let Some(magic) = state.first_mut() {
                *magic = first;
            }
            client.call(&args!["SET", "damaged", &state]);
            client.call(&["RL.SLIDING", "damaged", "5", "1m"]);
            client.call(&["RL.BUCKET", "damaged", "5", "1", "1m"]);
        }
    }
    for call in
        [args!["LOCK.ACQUIRE", "", "t", "1m"], args!["LOCK.ACQUIRE", b"\0\xff%n".as_slice(), vec![7_u8; 512], "1m"]]
    {
        assert!(client.call(&call).int() > 0);
        assert_eq!(client.call(&[args!["LOCK.RELEASE"], call[1..3].to_vec()].concat()).int(), 1);
    }
    // In a transaction and in a script.
    for line in ["MULTI", "LOCK.ACQUIRE m t 1m BLOCK 1m", "LOCK.ACQUIRE m u 1m BLOCK 1m", "LOCK.RELEASE m t", "EXEC"] {
        client.call(&line.split_whitespace().collect::<Vec<_>>());
    }
    client.call(&["EVAL", "return redis.call('LOCK.ACQUIRE', KEYS[1], 't', '1m', 'BLOCK', '1m')", "1", "k"]);
    client.call(&["EVAL", "return redis.pcall('LOCK.INFO', KEYS[1])", "1", "k"]);
    client.call(&["LOCK.RELEASE", "k", "t"]);
}

/// Waiting, in all ways in which it ends.
fn waiting(server: &Server) {
    let control = || server.client();
    hold(server, "w", "holder", "10m");
    let mut first = line_up(server, "w", "first", "10m", "10m");
    let mut replaced = line_up(server, "w", "twice", "10m", "10m");
    let mut twice = line_up(server, "w", "twice", "10m", "10m");
    assert_eq!(replaced.reply().int(), 0);
    let killed = line_up(server, "w", "killed", "10m", "10m");
    let closes = line_up(server, "w", "closes", "10m", "10m");
    let mut unblocked = line_up(server, "w", "unblocked", "10m", "10m");
    let mut fails = line_up(server, "w", "fails", "10m", "10m");
    let mut leaves = line_up(server, "w", "leaves", "10m", "10m");
    let mut late = enter(server, "w", "late", "10m", "80ms");
    control().call(&["LOCK.INFO", "w"]);
    control().resp3().call(&["LOCK.INFO", "w"]);
    control().call(&args!["CLIENT", "KILL", "ID", killed.id]);
    closes.client.close();
    control().call(&args!["CLIENT", "UNBLOCK", unblocked.id]);
    assert_eq!(unblocked.reply().int(), 0);
    control().call(&args!["CLIENT", "UNBLOCK", fails.id, "ERROR"]);
    assert!(fails.reply().is_error("UNBLOCKED "));
    assert_eq!(release(server, "w", "leaves"), 0);
    assert_eq!(leaves.reply().int(), 0);
    assert_eq!(late.reply().int(), 0);
    // A release, a foreign DEL, the end of a lease, FLUSHALL.
    assert_eq!(release(server, "w", "holder"), 1);
    first.fence();
    control().call(&["DEL", "w"]);
    twice.fence();
    hold(server, "e", "dies", "60ms");
    let mut next = enter(server, "e", "next", "10m", "10m");
    next.fence();
    let mut flushed = line_up(server, "e", "flushed", "10m", "10m");
    control().call(&["FLUSHALL"]);
    flushed.fence();
    // A grant on its way to one who is killed.
    let mut doomed = line_up(server, "e", "doomed", "10m", "10m");
    let mut heir = line_up(server, "e", "heir", "10m", "10m");
    control().pipeline(&[args!["LOCK.RELEASE", "e", "flushed"], args!["CLIENT", "KILL", "ID", doomed.id]]);
    let _ = doomed.client.read(SOON);
    heir.fence();
    // Readers let in together, permits, a pause, a full queue.
    hold(server, "r", "writer", "10m");
    let mut readers: Vec<Client> = (0..3)
        .map(|n| {
            let mut client = control();
            client.send(&args!["LOCK.ACQUIRE", "r", format!("r{n}"), "10m", "SHARED", "BLOCK", "10m"]);
            client
        })
        .collect();
    wait_for(SOON, "they wait", || waiters(server), |waiting| *waiting == 3);
    control().call(&["CONFIG", "SET", "sluice.max-waiters", "3"]);
    assert!(control().call(&["LOCK.ACQUIRE", "r", "more", "1m", "BLOCK", "1m"]).is_error("QUEUEFULL "));
    control().call(&["CONFIG", "SET", "sluice.max-waiters", "100"]);
    assert_eq!(release(server, "r", "writer"), 1);
    for reader in &mut readers {
        assert!(reader.read(SOON).unwrap().int() > 0);
    }
    control().call(&["SEM.ACQUIRE", "p", "a", "100ms", "1"]);
    let mut permit = control();
    permit.send(&["SEM.ACQUIRE", "p", "b", "10m", "1", "BLOCK", "10m"]);
    assert!(permit.read(SOON).unwrap().int() > 0);
    hold(server, "x", "dies", "100ms");
    let mut paused = enter(server, "x", "paused", "10m", "10m");
    control().call(&["CLIENT", "PAUSE", "300", "WRITE"]);
    paused.fence();
    // Another database, and the databases swapped.
    let mut other = control();
    other.call(&["SELECT", "1"]);
    assert!(other.call(&["LOCK.ACQUIRE", "d", "t", "10m"]).int() > 0);
    other.send(&["LOCK.ACQUIRE", "d", "u", "10m", "BLOCK", "10m"]);
    wait_for(SOON, "it waits", || waiters(server), |waiting| *waiting == 1);
    control().call(&["SWAPDB", "1", "2"]);
    assert!(other.read(SOON).unwrap().int() > 0);
    // Ends with the server's role.
    hold(server, "role", "holder", "10m");
    let mut ended = line_up(server, "role", "w", "10m", "10m");
    control().call(&["REPLICAOF", "127.0.0.1", "1"]);
    assert!(ended.reply().is_error("UNBLOCKED "));
    assert!(control().call(&["LOCK.ACQUIRE", "role", "t", "1m"]).is_error("READONLY "));
    control().call(&["REPLICAOF", "NO", "ONE"]);
    wait_for(SOON, "nobody waits", || (waiters(server), server.blocked_clients()), |left| *left == (0, 0));
}

/// About as many calls of the server's own.
fn baseline(server: &Server) {
    let mut client = server.client();
    for n in 0..400 {
        for line in [
            "SET k t NX PX 60000",
            "GET k",
            "PEXPIRE k 5000",
            "DEL k",
            "INCR f",
            "ZADD z 1.25 a",
            "HINCRBY h f 1",
            "SETRANGE s 3 x",
            "WHAT is this",
            "FLUSHALL",
        ] {
            client.call(&line.split_whitespace().collect::<Vec<_>>());
        }
        if n % 40 == 0 {
            let mut blocked = server.client();
            blocked.send(&["BLPOP", "list", if n % 80 == 0 { "0.05" } else { "0" }]);
            wait_until(SOON, "it waits", || server.blocked_clients() == 1);
            if n % 80 == 0 {
                assert!(blocked.read(SOON).unwrap().is_nil());
            }
            blocked.close();
            wait_until(SOON, "it waits no more", || server.blocked_clients() == 0);
        }
    }
    client.call(&["EVAL", "return redis.call('SET', KEYS[1], 't')", "1", "k"]);
    client.call(&["BGREWRITEAOF"]);
}

#[test]
fn all_that_the_module_does_from_load_to_unload() {
    let mut server = Server::builder().module(!is_baseline()).args(&["--appendonly", "yes"]).start();
    if is_baseline() {
        baseline(&server);
    } else {
        commands(&mut server.client());
        commands(&mut server.client().resp3());
        waiting(&server);
        let path = module_path(&mut server.client());
        for _ in 0..2 {
            assert_eq!(server.call(&["MODULE", "UNLOAD", "sluice"]).text(), "OK");
            assert!(server.call(&["LOCK.INFO", "k"]).error().is_some());
            let bad = server.call(&["MODULE", "LOADEX", &path, "ARGS", "max-waiters", "0"]);
            assert!(bad.error().is_some(), "{bad:?}");
            let good = server.call(&["MODULE", "LOADEX", &path, "CONFIG", "sluice.max-waiters", "50"]);
            assert_eq!(good.text(), "OK");
            hold(&server, "again", "t", "10m");
            enter(&server, "again", "u", "10m", "30ms").reply();
            assert_eq!(release(&server, "again", "t"), 1);
            wait_for(SOON, "nobody waits", || (waiters(&server), server.blocked_clients()), |left| *left == (0, 0));
        }
        assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
        assert_eq!(server.call(&["MODULE", "UNLOAD", "sluice"]).text(), "OK");
    }
    // An end in good order: what is reachable then is told from what is lost.
    server.shutdown_save();
}
