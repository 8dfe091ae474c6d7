//! The rig itself, on plain commands and without the module.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod rig;

use rig::{SOON, Server, Value, ValueExt, args, dump_all, ms, replica, wait_for, wait_until};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn plain() -> Server {
    Server::builder().module(false).start()
}

/// What the server calls this run of its own, unlike its process id no other's.
fn run_of(server: &Server) -> String {
    server.info("server")["run_id"].clone()
}

/// The message that `f` panics with.
fn panic_of(f: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("it panics");
    payload.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn a_started_server_answers_and_its_folder_and_process_go_with_it() {
    let server = plain();
    assert_eq!(server.cli(&["PING"]), "PONG");
    assert!(server.log().contains("Ready to accept connections"));
    let (dir, port, run) = (server.dir().to_owned(), server.port(), run_of(&server));
    assert!(dir.exists());
    drop(server);
    assert!(!dir.exists());
    // Who listens there now, if anybody does, is a server of somebody else's.
    if let Ok(mut other) = rig::Client::connect(port) {
        let answer = if other.send_if_open(&["INFO", "server"]) { other.read(SOON).ok() } else { None };
        assert!(answer.is_none_or(|info| !info.text().contains(&run)));
    }
}

#[test]
fn the_server_that_runs_is_the_program_that_was_given() {
    let program = rig::server_program();
    let said = std::process::Command::new(&program).arg("--version").output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let info = plain().info("server");
    let (name, version) = match info.get("valkey_version") {
        Some(version) => ("Valkey ", version),
        None => ("Redis ", &info["redis_version"]),
    };
    assert!(said.starts_with(name) && said.contains(&format!(" v={version} ")), "{}: {said}", program.display());
}

#[test]
fn several_servers_run_side_by_side() {
    let (a, b) = (plain(), plain());
    a.cli(&["SET", "k", "of a"]);
    assert_eq!(b.cli(&["GET", "k"]), "(nil)");
    assert_ne!(a.pid(), b.pid());
}

#[test]
fn a_server_that_cannot_start_shows_why() {
    let dir = tempfile::tempdir().unwrap();
    let said = panic_of(|| {
        Server::builder().dir(dir.path()).module(false).args(&["--no-such-option", "1"]).start();
    });
    assert!(said.contains("did not start") && said.contains("no-such-option"), "{said}");
}

#[test]
fn redis_cli_prints_for_people_for_scripts_and_in_resp3() {
    let server = plain();
    assert_eq!(server.cli(&["SET", "k", "two words"]), "OK");
    assert_eq!(server.cli(&["GET", "k"]), "\"two words\"");
    assert_eq!(server.cli_raw(&["GET", "k"]), "two words");
    assert_eq!(server.cli(&["INCR", "n"]), "(integer) 1");
    assert!(server.cli(&["INCR", "k"]).starts_with("(error) ERR "));
    server.cli(&["HSET", "h", "f", "v"]);
    assert_eq!(server.cli_resp3(&["HGETALL", "h"]), "1# \"f\" => \"v\"");
    assert_eq!(server.cli_stdin(&["SET", "k"], b"nul \0 and \xff\n"), "OK");
    assert_eq!(server.call(&["GET", "k"]).bytes(), b"nul \0 and \xff\n");
}

#[test]
fn a_client_sends_any_bytes_and_gets_errors_as_values() {
    let server = plain();
    let mut client = server.client();
    assert_eq!(client.call(&args!["SET", b"k\r\n\0\xff", "v", "PX", 60_000]), Value::Okay);
    assert_eq!(client.call(&args!["GET", b"k\r\n\0\xff"]).text(), "v");
    assert!(client.call(&["GET", "nothing"]).is_nil());
    assert!(client.call(&args!["LPUSH", b"k\r\n\0\xff", 1]).is_error("WRONGTYPE "));
    assert!(client.call(&["NONSENSE"]).error().unwrap().starts_with("ERR unknown command 'NONSENSE'"));
    assert_eq!(client.id(), client.id());
}

#[test]
fn a_pipeline_and_a_transaction_answer_in_order() {
    let mut client = plain_client();
    let replies = client.1.pipeline(&[
        args!["MULTI"],
        args!["INCRBY", "n", 5],
        args!["RPUSH", "l", "a", "b"],
        args!["EXEC"],
        args!["LRANGE", "l", 0, -1],
    ]);
    assert_eq!(replies[3].ints(), [5, 2]);
    assert_eq!(replies[4].array().iter().map(ValueExt::text).collect::<Vec<_>>(), ["a", "b"]);
}

fn plain_client() -> (Server, rig::Client) {
    let server = plain();
    let client = server.client();
    (server, client)
}

#[test]
fn resp3_shows_maps_and_resp2_the_same_flat() {
    let server = plain();
    server.call(&["HSET", "h", "f", "v"]);
    let three = server.client().resp3().call(&["HGETALL", "h"]);
    let two = server.client().call(&["HGETALL", "h"]);
    assert!(matches!(three, Value::Map(_)) && matches!(two, Value::Array(_)));
    assert_eq!(three.map(), two.map());
}

#[test]
fn a_late_reply_is_read_whole_after_a_read_that_ended_early() {
    let (server, mut waiting) = plain_client();
    waiting.send(&["BLPOP", "l", "0"]);
    wait_for(SOON, "it waits", || server.blocked_clients(), |n| *n == 1);
    assert!(waiting.is_silent(ms(5)));
    assert_eq!(waiting.read(ms(5)).unwrap_err().kind(), ErrorKind::TimedOut);
    let big = vec![b'x'; 1_000_000];
    server.call(&args!["RPUSH", "l", &big]);
    assert_eq!(waiting.read(SOON).unwrap().array()[1].bytes(), big);
}

#[test]
fn a_closed_connection_is_seen_by_both_sides() {
    let (server, mut killed) = plain_client();
    let id = killed.id();
    assert_eq!(server.call(&args!["CLIENT", "KILL", "ID", id]).int(), 1);
    assert_eq!(killed.read(SOON).unwrap_err().kind(), ErrorKind::UnexpectedEof);

    let mut closed = server.client();
    closed.send(&["BLPOP", "l", "0"]);
    wait_for(SOON, "it waits", || server.blocked_clients(), |n| *n == 1);
    closed.close();
    wait_for(SOON, "it is gone", || server.blocked_clients(), |n| *n == 0);
}

#[test]
fn a_wait_that_ends_in_vain_tells_what_it_saw_last() {
    let said = panic_of(|| {
        wait_for(ms(5), "the moon is full", || 41, |n| *n == 42);
    });
    assert!(said.contains("the moon is full") && said.ends_with("last seen: 41"), "{said}");
    wait_until(SOON, "now", || true);
}

#[test]
fn what_the_aof_has_survives_a_kill() {
    let mut server = Server::builder().module(false).args(&["--appendonly", "yes"]).start();
    assert_eq!(server.cli_raw(&["CONFIG", "GET", "appendfsync"]), "appendfsync\nno");
    let before = server.aof_size();
    server.call(&["SET", "k", "v"]);
    assert!(server.aof_size() > before);
    let run = run_of(&server);
    server.kill9();
    assert!(!server.is_alive());
    server.restart();
    assert_ne!(run_of(&server), run);
    assert_eq!(server.cli(&["GET", "k"]), "\"v\"");
}

#[test]
fn what_an_rdb_has_survives_an_orderly_end() {
    let mut server = plain();
    server.call(&["SET", "k", "v"]);
    server.shutdown_save();
    server.restart();
    assert_eq!(server.cli(&["GET", "k"]), "\"v\"");
    server.restart();
    assert_eq!(server.cli(&["GET", "k"]), "\"v\"");
}

#[test]
fn a_replica_that_has_caught_up_holds_the_same_to_the_millisecond() {
    let primary = plain();
    let replica = replica(&primary, false);
    let mut client = primary.client();
    client.pipeline(&[
        args!["SET", "s", b"\0\xff", "PX", 60_000],
        args!["HSET", "h", "a", 1, "b", 2],
        args!["ZADD", "z", "1.25", "m"],
        args!["SADD", "set", "x", "y"],
        args!["RPUSH", "l", "1", "2"],
        args!["XADD", "stream", "1-1", "f", "v"],
        args!["SELECT", 3],
        args!["SET", "k", "in db 3"],
    ]);
    rig::wait_for_sync(&primary, &replica);
    let all = dump_all(&primary);
    assert_eq!(all.len(), 7);
    assert_eq!(all[&(0, "h".to_owned())].value, ["a => 1", "b => 2"]);
    assert_eq!(all[&(0, "s".to_owned())].value, ["\\x00\\xff"]);
    assert_eq!(all[&(3, "k".to_owned())].expires_at, -1);
    assert_eq!(dump_all(&replica), all);
    assert!(replica.cli(&["SET", "k", "v"]).starts_with("(error) READONLY"));
}

#[test]
fn a_stopped_server_is_silent_until_it_goes_on() {
    let (server, mut client) = plain_client();
    server.stop();
    client.send(&["PING"]);
    assert!(client.is_silent(ms(50)));
    server.cont();
    assert_eq!(client.read(SOON).unwrap().text(), "PONG");
    server.stop(); // a server that is stopped can be killed all the same
}

#[test]
fn the_servers_clock_is_in_whole_milliseconds() {
    let server = plain();
    let (first, second) = (server.now_ms(), server.now_ms());
    assert!(first > 1_700_000_000_000 && second >= first);
}
