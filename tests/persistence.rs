//! What a restart, a crash and a server without the module make of our keys.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::{ask, expires_at, random_traffic, seeded, short, timed, wait_until_ms};
use rig::{Builder, Server, ValueExt, args, dump_all, in_time, wait_until};
use std::path::Path;

fn with_aof() -> Builder {
    Server::builder().args(&["--appendonly", "yes", "--appendfsync", "always"])
}

/// One of everything, and then some.
fn populate(server: &Server) {
    let mut client = server.client();
    let (_, mut random) = seeded();
    for chunk in random_traffic(&mut random, 3000).chunks(500) {
        for reply in client.pipeline(chunk) {
            assert!(reply.error().is_none(), "{reply:?}");
        }
    }
    for _ in 0..5 {
        client.pipeline(&[
            args!["LOCK.ACQUIRE", "lock", b"\0\xff\r\n", "1h"],
            args!["LOCK.ACQUIRE", "number", 12345, "2h"],
            args!["RL.FIXED", "fixed", 100, "1h"],
            args!["RL.SLIDING", "sliding", 100, "1h"],
            args!["RL.BUCKET", "bucket", 100, 1, "1h"],
        ]);
    }
    client.pipeline(&[
        args!["SELECT", 3],
        args!["LOCK.ACQUIRE", "in db 3", "t", "1h"],
        args!["RL.SLIDING", "also in db 3", 5, "1h"],
    ]);
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        if entry.path().is_dir() {
            copy_dir(&entry.path(), &to.join(entry.file_name()));
        } else if entry.file_name() != "server.log" {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// A server without the module on a copy of another's files.
fn stock_server_on(files: &Path, args: &[&str]) -> (Server, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    copy_dir(files, dir.path());
    (Server::builder().module(false).args(args).dir(dir.path()).start(), dir)
}

#[test]
fn r36_an_rdb_file_brings_all_back_exactly_with_and_without_the_module() {
    let mut server = Server::start();
    populate(&server);
    let all = dump_all(&server);
    assert!(all.len() > 15);
    server.shutdown_save();
    let (stock, _dir) = stock_server_on(server.dir(), &[]);
    assert_eq!(dump_all(&stock), all);
    server.restart();
    assert_eq!(dump_all(&server), all);
}

#[test]
fn an_aof_brings_all_back_after_kill_9_with_and_without_the_module() {
    let mut server = with_aof().start();
    populate(&server);
    let all = dump_all(&server);
    server.kill9();
    let (stock, _dir) = stock_server_on(server.dir(), &["--appendonly", "yes"]);
    assert_eq!(dump_all(&stock), all);
    server.restart();
    assert_eq!(dump_all(&server), all);
}

#[test]
fn a_rewritten_aof_and_what_comes_after_it_bring_all_back_with_and_without_the_module() {
    for preamble in ["yes", "no"] {
        let mut server = with_aof().args(&["--aof-use-rdb-preamble", preamble]).start();
        populate(&server);
        server.call(&["BGREWRITEAOF"]);
        // Some of it arrives while the rewriting goes on.
        populate(&server);
        wait_until(rig::SOON, "the file is rewritten", || {
            let info = server.info("persistence");
            info["aof_rewrite_in_progress"] == "0" && info["aof_rewrite_scheduled"] == "0"
        });
        assert_eq!(server.info("persistence")["aof_last_bgrewrite_status"], "ok");
        populate(&server);
        let all = dump_all(&server);
        server.kill9();
        let (stock, _dir) = stock_server_on(server.dir(), &["--appendonly", "yes"]);
        assert_eq!(dump_all(&stock), all, "preamble {preamble}");
        server.restart();
        assert_eq!(dump_all(&server), all, "preamble {preamble}");
    }
}

#[test]
fn the_aof_holds_only_the_servers_own_commands_with_absolute_times() {
    let mut server = with_aof().start();
    let mut client = server.client();
    client.pipeline(&[
        args!["LOCK.ACQUIRE", "lock", "t", "1h"],
        args!["LOCK.ACQUIRE", "lock", "t", "2h"],
        args!["LOCK.RENEW", "lock", "t", "3h"],
        args!["LOCK.RELEASE", "lock", "t"],
        args!["RL.FIXED", "fixed", 10, "1h"],
        args!["RL.FIXED", "fixed", 10, "1h", "COST", 3],
        args!["PERSIST", "fixed"],
        args!["RL.FIXED", "fixed", 10, "1h", "COST", 10],
        args!["RL.SLIDING", "sliding", 10, "1h"],
        args!["RL.SLIDING", "sliding", 10, "1h"],
        args!["RL.BUCKET", "bucket", 10, 10, "1h"],
        args!["RL.BUCKET", "bucket", 10, 10, "1h"],
    ]);
    server.kill9();
    let mut text = Vec::new();
    for entry in std::fs::read_dir(server.dir().join("appendonlydir")).unwrap().flatten() {
        text.extend(std::fs::read(entry.path()).unwrap());
    }
    let text = String::from_utf8_lossy(&text).to_uppercase();
    // Where a command begins: the bytes of a state may be any.
    for word in ["\r\nLOCK.", "\r\nRL.", "\r\nPX\r\n", "\r\nEX\r\n", "\r\nPEXPIRE\r\n", "\r\nEXPIRE\r\n"] {
        assert!(!text.contains(word), "{word:?} in {text}");
    }
    for word in ["\r\nSET\r\n", "\r\nPXAT\r\n", "\r\nDEL\r\n", "\r\nPEXPIREAT\r\n", "\r\nINCRBY\r\n"] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
}

#[test]
fn l43_a_lease_goes_on_over_a_restart_from_the_aof() {
    lease_goes_on(with_aof().start(), Server::restart);
}

#[test]
fn l43_a_lease_goes_on_over_a_restart_from_the_rdb_file() {
    lease_goes_on(Server::start(), |server| {
        server.shutdown_save();
        server.restart();
    });
}

fn lease_goes_on(mut server: Server, restart: impl Fn(&mut Server)) {
    let fence = server.call(&["LOCK.ACQUIRE", "k", "tA", "10m"]).int();
    let deadline = expires_at(&mut server.client(), "k");
    let until = server.now_ms() + 300;
    wait_until_ms(&server, until);
    restart(&mut server);
    let mut client = server.client();
    assert_eq!(expires_at(&mut client, "k"), deadline);
    assert_eq!(client.call(&["LOCK.ACQUIRE", "k", "tB", "10m"]).int(), 0);
    assert_eq!(client.call(&["LOCK.RENEW", "k", "tA", "20m"]).int(), 1);
    assert_eq!(client.call(&["LOCK.RELEASE", "k", "tA"]).int(), 1);
    assert!(client.call(&["LOCK.ACQUIRE", "k", "tB", "10m"]).int() > fence);
}

#[test]
fn l43_a_lease_that_ended_while_the_server_was_down_is_over() {
    // It reads the same clock.
    let clock = Server::builder().module(false).start();
    let (mut server, deadline) = in_time(300, |lease| {
        let mut server = with_aof().start();
        let mut client = server.client();
        let replies = client.pipeline(&[args!["LOCK.ACQUIRE", "k", "tA", lease], args!["PEXPIRETIME", "k"]]);
        assert!(replies[0].int() > 0, "{replies:?}");
        server.kill9();
        let deadline = replies[1].int();
        (clock.now_ms() <= deadline).then_some((server, deadline))
    });
    wait_until_ms(&clock, deadline + 1);
    server.restart();
    let mut client = server.client();
    assert_eq!(client.call(&["LOCK.RENEW", "k", "tA", "1h"]).int(), 0);
    assert_eq!(client.call(&["LOCK.RELEASE", "k", "tA"]).int(), 0);
    assert!(client.call(&["LOCK.ACQUIRE", "k", "tB", "1h"]).int() > 0);
}

#[test]
fn r35_a_limit_is_new_after_a_window_that_passed_while_the_server_was_dead() {
    // It reads the same clock.
    let clock = Server::builder().module(false).start();
    let (mut server, calls, over) = in_time(400, |window| {
        let mut server = with_aof().start();
        let mut client = server.client();
        let length = i64::try_from(window).unwrap();
        let calls = [
            args!["RL.FIXED", "f", 5, window],
            args!["RL.SLIDING", "s", 5, window],
            args!["RL.BUCKET", "b", 5, 5, window],
        ];
        let all = calls.clone().map(|call| timed(&mut client, &[call, args!["COST", 5]].concat()));
        assert!(all.iter().all(|asked| asked.verdict().allowed), "{all:?}");
        server.kill9();
        let [first, .., last] = &all;
        let in_time = clock.now_ms() < first.earliest_ms() + length;
        in_time.then_some((server, calls, last.latest_ms() + length + 1))
    });
    wait_until_ms(&clock, over);
    server.restart();
    let mut client = server.client();
    for call in &calls {
        assert_eq!(short(&mut client, &[call.clone(), args!["COST", 5]].concat()), (true, 0, 0));
    }
}

#[test]
fn r35_what_was_used_just_before_the_crash_is_used_after_it() {
    let mut server = with_aof().start();
    let mut client = server.client();
    let calls =
        [args!["RL.FIXED", "f", 5, "1h"], args!["RL.SLIDING", "s", 5, "1h"], args!["RL.BUCKET", "b", 5, 1, "1h"]];
    for call in &calls {
        for _ in 0..4 {
            assert!(ask(&mut client, call).allowed);
        }
    }
    server.kill9();
    server.restart();
    let mut client = server.client();
    for call in &calls {
        assert_eq!(short(&mut client, call), (true, 0, 0));
        assert!(!ask(&mut client, call).allowed);
    }
}

#[test]
fn r36_an_admitted_call_and_a_grant_count_as_changes() {
    let server = Server::start();
    let mut client = server.client();
    for call in [
        args!["LOCK.ACQUIRE", "k", "t", "1h"],
        args!["LOCK.ACQUIRE", "k", "t", "2h"],
        args!["LOCK.RENEW", "k", "t", "3h"],
        args!["LOCK.RELEASE", "k", "t"],
        args!["RL.FIXED", "f", 5, "1h"],
        args!["RL.FIXED", "f", 5, "1h"],
        args!["RL.SLIDING", "s", 5, "1h"],
        args!["RL.SLIDING", "s", 5, "1h"],
        args!["RL.BUCKET", "b", 5, 5, "1h"],
        args!["RL.BUCKET", "b", 5, 5, "1h"],
    ] {
        let before = server.info_int("persistence", "rdb_changes_since_last_save");
        client.call(&call);
        assert!(server.info_int("persistence", "rdb_changes_since_last_save") > before, "{call:?}");
    }
}

#[test]
fn dump_and_restore_carry_a_limiters_state_as_any_key() {
    let (server, other) = (Server::start(), Server::start());
    let (mut here, mut there) = (server.client(), other.client());
    for call in
        [args!["RL.FIXED", "f", 9, "1h"], args!["RL.SLIDING", "s", 9, "1h"], args!["RL.BUCKET", "b", 9, 1, "1h"]]
    {
        for _ in 0..5 {
            ask(&mut here, &call);
        }
        let key = String::from_utf8(call[1].clone()).unwrap();
        let (dump, at) = (here.call(&["DUMP", &key]).bytes(), expires_at(&mut here, &key));
        assert_eq!(there.call(&args!["RESTORE", &key, at, dump, "ABSTTL"]).text(), "OK");
        assert_eq!(short(&mut there, &call), (true, 3, 0));
    }
}
