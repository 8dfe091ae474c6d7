//! What a server is left with when the module goes, while clients and users still speak of its commands.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod rig;

use rig::line::version;
use rig::{Client, SOON, Server, ValueExt, args, wait_for};
use std::io::ErrorKind;

/// A command of every sort, each of which a client may have sent last.
fn ours() -> Vec<Vec<Vec<u8>>> {
    vec![
        args!["LOCK.ACQUIRE", "k", "t", "1h"],
        args!["LOCK.INFO", "k"],
        args!["SEM.ACQUIRE", "s", "t", "1h", 2],
        args!["rl.fixed", "f", 5, "1h"],
        args!["RL.Sliding", "l", 5, "1h"],
    ]
}

/// Whether a client remembered by its last command is closed at an unload: where the server would run that command again.
fn remembers(server: &Server) -> bool {
    let (valkey, version) = version(server);
    !valkey && version >= [8, 0, 0]
}

/// What a client gets for a command that is no more: an error, or the end of its connection.
#[track_caller]
fn is_over(client: &mut Client, command: &[Vec<u8>], closed: bool) {
    if closed {
        client.send_if_open(command);
        assert_eq!(client.read(SOON).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    } else {
        let said = client.call(command).error().expect("it is no more");
        assert!(said.starts_with("ERR unknown command"), "{said}");
    }
}

#[test]
fn no_client_has_the_server_run_a_command_that_is_no_more() {
    let server = Server::start();
    let (mut admin, mut other) = (server.client(), server.client());
    other.call(&["SET", "plain", "x"]);
    for round in 0..3 {
        let mut last: Vec<(Client, Vec<Vec<u8>>)> = ours().into_iter().map(|call| (server.client(), call)).collect();
        for (client, call) in &mut last {
            assert!(client.call(call).error().is_none());
        }
        let mut open: Vec<Client> = ours().iter().map(|call| in_transaction(&server, call)).collect();
        // One that has only begun has nothing of ours, nor has one that is over.
        let mut begun = server.client();
        assert_eq!(begun.call(&["MULTI"]).text(), "OK");
        let mut done = in_transaction(&server, &ours()[0]);
        assert!(done.call(&["EXEC"]).error().is_none());

        // The one who asks has sent such a command as well.
        assert!(admin.call(&ours()[0]).error().is_none());
        assert_eq!(admin.call(&["MODULE", "UNLOAD", "sluice"]).text(), "OK");
        // Memory that was given back is in use again.
        for n in 0..200 {
            admin.call(&args!["SET", format!("filler:{n}"), "x".repeat(n)]);
        }
        for (client, call) in &mut last {
            is_over(client, call, remembers(&server));
        }
        for client in &mut open {
            is_over(client, &args!["EXEC"], true);
        }
        assert_eq!(begun.call(&["GET", "plain"]).text(), "QUEUED");
        assert_eq!(begun.call(&["EXEC"]).array()[0].text(), "x");
        assert_eq!(done.call(&["GET", "plain"]).text(), "x");
        assert_eq!(other.call(&["GET", "plain"]).text(), "x");
        assert!(server.call(&["LOCK.ACQUIRE", "k", "t", "1h"]).error().is_some(), "round {round}");
        assert_eq!(admin.call(&["MODULE", "LOAD", &rig::module_file().to_string_lossy()]).text(), "OK");
        assert!(admin.call(&ours()[0]).int() > 0);
    }
}

/// A client in the middle of a transaction, its last command a plain one.
fn in_transaction(server: &Server, call: &[Vec<u8>]) -> Client {
    let mut client = server.client();
    let replies = client.pipeline(&[args!["MULTI"], call.to_vec(), args!["GET", "plain"]]);
    assert_eq!(replies[2].text(), "QUEUED");
    client
}

#[test]
fn a_transaction_may_unload_the_module_and_others_are_closed() {
    let server = Server::start();
    let mut open = in_transaction(&server, &ours()[0]);
    let replies = server.client().pipeline(&[
        args!["MULTI"],
        args!["SET", "a", 1],
        args!["MODULE", "UNLOAD", "sluice"],
        args!["GET", "a"],
        args!["EXEC"],
    ]);
    let replies = replies[4].array();
    assert_eq!((replies[1].text(), replies[2].text()), ("OK".into(), "1".into()));
    is_over(&mut open, &args!["EXEC"], true);
    assert_eq!(server.call(&["PING"]).text(), "PONG");
}

#[test]
fn what_a_pause_holds_back_is_not_run_after_an_unload() {
    let server = Server::start();
    let (mut admin, mut plain) = (server.client(), server.client());
    let mut open = in_transaction(&server, &ours()[0]);
    assert_eq!(admin.call(&["CLIENT", "PAUSE", "60000", "WRITE"]).text(), "OK");
    let mut held: Vec<Client> = ours().iter().map(|_| server.client()).collect();
    for (client, call) in held.iter_mut().zip(ours()) {
        client.send(&call);
    }
    open.send(&["EXEC"]);
    plain.send(&["SET", "plain", "x"]);
    // INFO does not write, so it is answered.
    let paused = ours().len() as i64 + 1;
    wait_for(SOON, "they are held back", || server.blocked_clients(), |blocked| *blocked == paused);
    assert_eq!(admin.call(&["MODULE", "UNLOAD", "sluice"]).text(), "OK");
    assert_eq!(admin.call(&["CLIENT", "UNPAUSE"]).text(), "OK");
    assert_eq!(plain.read(SOON).unwrap().text(), "OK");
    assert_eq!(open.read(SOON).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    for client in &mut held {
        // The one that was answered may have been closed since, where the server remembers.
        match client.read(SOON) {
            Ok(reply) => assert!(!reply.is_error("ERR "), "{reply:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::UnexpectedEof),
        }
    }
    assert_eq!(admin.call(&["GET", "plain"]).text(), "x");
    assert!(admin.call(&["EXISTS", "k"]).int() == 0, "nothing of it has run");
}

#[test]
fn a_rule_that_names_a_command_is_a_reason_to_stay() {
    let server = Server::start();
    for rule in [&["+lock.acquire"][..], &["+@all", "-RL.FIXED"], &["(+sem.info ~k)"]] {
        let user = args!["ACL", "SETUSER", "user", "reset", "on", "nopass", "~*", "+ping"];
        let said = server.call(&[user, args![rule]].concat());
        assert_eq!(said.text(), "OK", "{rule:?}");
        let mut client = server.client();
        assert_eq!(client.call(&["AUTH", "user", "any"]).text(), "OK");
        let mut open = in_transaction(&server, &args!["RL.BUCKET", "b", 5, 1, "1h"]);

        let refused = server.call(&["MODULE", "UNLOAD", "sluice"]);
        assert!(refused.is_error("ERR "), "{rule:?}: {refused:?}");
        // Nothing has changed.
        assert_eq!(server.call(&["ACL", "LIST"]).array().len(), 2);
        assert_eq!(client.call(&["PING"]).text(), "PONG");
        assert!(open.call(&["EXEC"]).error().is_none(), "{rule:?}");
        assert!(server.call(&["LOCK.ACQUIRE", "k", "t", "1h"]).int() > 0);
        assert!(server.call(&["INFO", "sluice"]).text().contains("sluice_lock_grants"));
    }
    server.call(&["ACL", "DELUSER", "user"]);
    assert_eq!(server.call(&["MODULE", "UNLOAD", "sluice"]).text(), "OK");
    assert_eq!(server.call(&["ACL", "LIST"]).array().len(), 1);
    wait_for(SOON, "the server lives", || server.call(&["PING"]).text(), |said| said == "PONG");
}
