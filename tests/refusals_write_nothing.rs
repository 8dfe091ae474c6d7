//! A refusal is free: it leaves nothing behind anywhere, and nobody hears of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::Events;
use rig::{Builder, Client, Server, Value, ValueExt, args, dump_all, replica, wait_for_sync};

/// A server on which nothing but a write moves the offset or the append-only file.
fn quiet() -> Builder {
    Server::builder().args(&["--appendonly", "yes", "--repl-ping-replica-period", "3600"])
}

/// Locks that are held, limits that are full.
fn set_up(client: &mut Client) {
    client.pipeline(&[
        args!["LOCK.ACQUIRE", "held", "tA", "1h"],
        args!["SET", "held by a number", 12345, "PX", 3_600_000],
        args!["SET", "held without a ttl", "tA"],
        args!["RL.FIXED", "fixed", 3, "1h", "COST", 3],
        args!["RL.FIXED", "half", 3, "1h", "COST", 2],
        args!["SET", "no end", 1],
        args!["RL.SLIDING", "sliding", 3, "1h", "COST", 2],
        args!["RL.SLIDING", "sliding", 3, "1h"],
        args!["RL.BUCKET", "bucket", 3, 1, "1d", "COST", 3],
        args!["RPUSH", "list", "x"],
    ]);
}

/// Calls that change nothing, with what they must answer: an integer, the first of five, or an error's code.
fn refusals() -> Vec<(Vec<Vec<u8>>, &'static str)> {
    vec![
        (args!["LOCK.ACQUIRE", "held", "tB", "2h"], "0"),
        (args!["LOCK.ACQUIRE", "held without a ttl", "tB", "2h"], "0"),
        (args!["LOCK.ACQUIRE", "held by a number", "1234", "2h"], "0"),
        (args!["LOCK.RELEASE", "held", "tB"], "0"),
        (args!["LOCK.RELEASE", "held by a number", "123456"], "0"),
        (args!["LOCK.RELEASE", "nobody's", "tB"], "0"),
        (args!["LOCK.RENEW", "held", "tB", "2h"], "0"),
        (args!["LOCK.RENEW", "nobody's", "tB", "2h"], "0"),
        (args!["LOCK.ACQUIRE", "held", "tA", "0"], "ERR"),
        (args!["LOCK.RENEW", "held", "tA", "x"], "ERR"),
        (args!["LOCK.ACQUIRE", "list", "tA", "1s"], "WRONGTYPE"),
        (args!["LOCK.RELEASE", "list", "tA"], "WRONGTYPE"),
        (args!["RL.FIXED", "fixed", 3, "1h"], "0"),
        (args!["RL.FIXED", "fixed", 3, "1h", "PEEK"], "0"),
        (args!["RL.FIXED", "fixed", 3, "1h", "COST", 0], "1"),
        (args!["RL.FIXED", "fixed", 3, "1h", "COST", 4], "0"),
        (args!["RL.FIXED", "half", 3, "1h", "PEEK"], "1"),
        (args!["RL.FIXED", "half", 3, "1h", "COST", 2], "0"),
        (args!["RL.FIXED", "new", 3, "1h", "PEEK"], "1"),
        (args!["RL.FIXED", "new", 3, "1h", "COST", 4], "0"),
        (args!["RL.FIXED", "new", 3, "1h", "COST", 0], "1"),
        (args!["RL.FIXED", "no end", 3, "1h", "PEEK"], "1"),
        (args!["RL.FIXED", "no end", 3, "1h", "COST", 0], "1"),
        (args!["RL.FIXED", "fixed", 3, "1s", "COST", 0, "PEEK"], "1"),
        (args!["RL.FIXED", "held", 3, "1h"], "WRONGTYPE"),
        (args!["RL.FIXED", "fixed", 0, "1h"], "ERR"),
        (args!["RL.SLIDING", "sliding", 3, "1h"], "0"),
        (args!["RL.SLIDING", "sliding", 3, "1h", "COST", 4], "0"),
        (args!["RL.SLIDING", "sliding", 4, "1h", "PEEK"], "1"),
        (args!["RL.SLIDING", "sliding", 4, "1h", "COST", 2], "0"),
        (args!["RL.SLIDING", "sliding", 3, "1h", "COST", 0], "1"),
        (args!["RL.SLIDING", "new", 3, "1h", "PEEK"], "1"),
        (args!["RL.SLIDING", "new", 3, "1h", "COST", 0], "1"),
        (args!["RL.SLIDING", "new", 3, "1h", "COST", 4], "0"),
        (args!["RL.SLIDING", "bucket", 3, "1h"], "WRONGTYPE"),
        (args!["RL.BUCKET", "bucket", 3, 1, "1d"], "0"),
        (args!["RL.BUCKET", "bucket", 3, 1, "1d", "PEEK"], "0"),
        (args!["RL.BUCKET", "bucket", 3, 1, "1d", "COST", 0], "1"),
        (args!["RL.BUCKET", "bucket", 3, 1, "1d", "COST", 4], "0"),
        (args!["RL.BUCKET", "bucket", 2, 1, "2d"], "0"),
        (args!["RL.BUCKET", "new", 3, 1, "1d", "PEEK"], "1"),
        (args!["RL.BUCKET", "new", 3, 1, "1d", "COST", 0], "1"),
        (args!["RL.BUCKET", "new", 3, 1, "1d", "COST", 4], "0"),
        (args!["RL.BUCKET", "sliding", 3, 1, "1d"], "WRONGTYPE"),
        (args!["LOCK.INFO", "held"], "*"),
        (args!["LOCK.INFO", "nobody's"], "*"),
    ]
}

/// Calls that change something, on the same keys: to show that what is looked at does see a change.
fn changes() -> Vec<Vec<Vec<u8>>> {
    vec![
        args!["LOCK.ACQUIRE", "held", "tA", "2h"],
        args!["LOCK.RENEW", "held", "tA", "3h"],
        args!["LOCK.RENEW", "held without a ttl", "tA", "3h"],
        args!["LOCK.RELEASE", "held", "tA"],
        args!["LOCK.ACQUIRE", "nobody's", "tA", "2h"],
        args!["RL.FIXED", "half", 3, "1h"],
        args!["RL.FIXED", "no end", 1, "1h"],
        args!["RL.SLIDING", "sliding", 4, "1h"],
        args!["RL.BUCKET", "bucket", 4, 1, "1d"],
        args!["RL.FIXED", "new", 3, "1h"],
    ]
}

#[track_caller]
fn run_refusals(client: &mut Client, times: usize) {
    for (call, expected) in refusals() {
        for reply in client.pipeline(&vec![call.clone(); times]) {
            let shown = match &reply {
                Value::Int(n) => n.to_string(),
                Value::ServerError(error) => error.code().to_owned(),
                Value::Array(items) if matches!(items[0], Value::Int(_)) => items[0].int().to_string(),
                _ => "*".to_owned(),
            };
            let words: Vec<_> = call.iter().map(|word| String::from_utf8_lossy(word)).collect();
            assert_eq!(shown, expected, "{words:?}: {reply:?}");
        }
    }
}

/// What a change would move.
fn traces(server: &Server) -> (i64, i64, i64) {
    let dirty = server.info_int("persistence", "rdb_changes_since_last_save");
    (dirty, server.offset(), server.aof_size())
}

#[test]
fn r34_and_r37_refusals_and_looks_leave_no_byte_in_keys_replication_or_aof() {
    let primary = quiet().start();
    let stock = replica(&primary, false);
    let mut client = primary.client();
    set_up(&mut client);
    // Whatever is done once and never again (a number that is unpacked) is over after this.
    wait_for_sync(&primary, &stock);
    let (all, before) = (dump_all(&primary), traces(&primary));
    let dumps =
        |client: &mut Client| -> Vec<Value> { all.keys().map(|(_, key)| client.call(&["DUMP", key])).collect() };
    let dumped = dumps(&mut client);
    run_refusals(&mut client, 100);
    assert_eq!(traces(&primary), before, "changes since the last save, replication offset, AOF size");
    assert_eq!(dump_all(&primary), all);
    assert_eq!(dumps(&mut client), dumped);
    wait_for_sync(&primary, &stock);
    assert_eq!(dump_all(&stock), all);

    for call in changes() {
        let before = traces(&primary);
        assert!(client.call(&call).error().is_none());
        let after = traces(&primary);
        assert!(after.0 > before.0 && after.1 > before.1 && after.2 > before.2, "{call:?}: {before:?}, {after:?}");
    }
    wait_for_sync(&primary, &stock);
    assert_eq!(dump_all(&stock), dump_all(&primary));
}

#[test]
fn r34_refusals_and_looks_fire_no_keyspace_event() {
    let server = Server::start();
    let mut client = server.client();
    set_up(&mut client);
    let mut events = Events::of(&server);
    run_refusals(&mut client, 3);
    // A look at a key that is not there tells of that, as any read would; such an event is no change.
    let seen: Vec<_> = events.seen().into_iter().filter(|event| !event.starts_with("keymiss ")).collect();
    assert_eq!(seen, Vec::<String>::new());
    for call in changes() {
        client.call(&call);
        assert_ne!(events.seen(), Vec::<String>::new(), "{call:?}");
    }
}

#[test]
fn r34_a_watched_transaction_still_runs_after_refusals_and_looks() {
    let server = Server::start();
    let (mut client, mut watcher) = (server.client(), server.client());
    set_up(&mut client);
    let mut keys: Vec<Vec<u8>> = refusals().into_iter().map(|(call, _)| call[1].clone()).collect();
    keys.sort();
    keys.dedup();
    let watch = [args!["WATCH"], keys].concat();
    watcher.call(&watch);
    run_refusals(&mut client, 3);
    let done = watcher.pipeline(&[args!["MULTI"], args!["PING"], args!["EXEC"]]);
    assert!(!done[2].is_nil(), "the transaction was given up");
    for call in changes() {
        watcher.call(&watch);
        client.call(&call);
        let done = watcher.pipeline(&[args!["MULTI"], args!["PING"], args!["EXEC"]]);
        assert!(done[2].is_nil(), "a watcher does not hear of {call:?}");
    }
}

#[test]
fn r34_client_side_caches_stay_valid_after_refusals_and_looks() {
    let server = Server::start();
    let (mut client, mut cache) = (server.client(), server.client().resp3());
    set_up(&mut client);
    cache.call(&["CLIENT", "TRACKING", "ON"]);
    let strings = ["held", "held by a number", "held without a ttl", "fixed", "half", "no end", "sliding", "bucket"];
    let fill = |cache: &mut Client| {
        for key in strings.iter().chain(&["new", "nobody's"]) {
            cache.call(&["GET", key]);
        }
    };
    fill(&mut cache);
    run_refusals(&mut client, 3);
    // What was invalidated would come before this.
    assert_eq!(cache.call(&["PING"]).text(), "PONG");
    for call in changes() {
        client.call(&call);
        let heard = cache.call(&["PING"]);
        assert!(matches!(heard, Value::Push { .. }), "a cache does not hear of {call:?}: {heard:?}");
        assert_eq!(heard.array()[0].array()[0].bytes(), call[1]);
        while !matches!(cache.read(rig::SOON).unwrap(), Value::SimpleString(_)) {}
        fill(&mut cache);
    }
}

#[test]
fn a_renewal_or_reacquire_that_would_move_nothing_moves_nothing() {
    let server = Server::start();
    let mut client = server.client();
    client.call(&["LOCK.ACQUIRE", "k", "t", "2h"]);
    let mut events = Events::of(&server);
    let before = server.info_int("persistence", "rdb_changes_since_last_save");
    assert!(client.call(&["LOCK.ACQUIRE", "k", "t", "1h"]).int() > 0);
    assert_eq!(events.seen(), Vec::<String>::new());
    assert_eq!(server.info_int("persistence", "rdb_changes_since_last_save"), before);
}

#[test]
fn an_expired_key_that_is_asked_for_is_deleted_by_the_server_and_by_nothing_else() {
    let primary = quiet().start();
    let stock = replica(&primary, false);
    let mut client = primary.client();
    client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    client.call(&["LOCK.ACQUIRE", "k", "t", "20ms"]);
    let deadline = cases::expires_at(&mut client, "k");
    cases::wait_until_ms(&primary, deadline + 2);
    assert_eq!(client.call(&["LOCK.RENEW", "k", "t", "1h"]).int(), 0);
    assert_eq!(client.call(&["LOCK.RELEASE", "k", "t"]).int(), 0);
    wait_for_sync(&primary, &stock);
    assert_eq!(stock.call(&["DBSIZE"]).int(), 0);
    let before = traces(&primary);
    assert_eq!(client.call(&["LOCK.RENEW", "k", "t", "1h"]).int(), 0);
    assert_eq!(traces(&primary), before);
}
