//! The ACL rules of docs/security.md, put to a server as they stand there: what they allow, and what they do not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod pages;
mod rig;

use rig::{Client, Server, ValueExt, args};
use std::io::Write;
use std::path::Path;

/// A server with the users of the page, and whether those by category are among them.
fn server() -> (Server, bool) {
    let server = Server::start();
    let known = server.call(&["ACL", "CAT"]).array().iter().any(|name| name.text() == "lock");
    let all = pages::blocks(Path::new("docs/security.md"));
    assert!(all.iter().any(|block| block.info == "console categories"));
    let (mine, other): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|block| known || !block.info.ends_with("categories"));
    assert_eq!(pages::run(&server, &mine), Vec::<String>::new());
    if !known {
        // Past the test harness, which keeps what a test prints to itself.
        let _ = writeln!(
            std::io::stderr(),
            "NOT RUN: {} rule(s) of docs/security.md by category, which this server does not offer a module",
            other.len()
        );
    }
    (server, known)
}

fn login(server: &Server, user: &str) -> Client {
    let mut client = server.client();
    assert_eq!(client.call(&args!["AUTH", user, format!("{user}-password")]).text(), "OK", "{user}");
    client
}

#[track_caller]
fn may(client: &mut Client, words: &[Vec<u8>]) {
    let reply = client.call(words);
    assert!(reply.error().is_none(), "{reply:?}");
}

#[track_caller]
fn may_not(client: &mut Client, words: &[Vec<u8>]) {
    let reply = client.call(words);
    assert!(reply.is_error("NOPERM"), "{reply:?}");
}

#[test]
fn an_application_may_lock_and_count_under_its_prefix_and_no_more() {
    let (server, categories) = server();
    for user in if categories { &["shop", "store"][..] } else { &["store"] } {
        let mut client = login(&server, user);
        let key = |name: &str| format!("{user}:{name}");
        may(&mut client, &args!["LOCK.ACQUIRE", key("lock"), "t", "30s"]);
        may(&mut client, &args!["LOCK.RENEW", key("lock"), "t", "30s"]);
        may(&mut client, &args!["LOCK.RELEASE", key("lock"), "t"]);
        may(&mut client, &args!["RL.FIXED", key("fixed"), 3, "1m"]);
        may(&mut client, &args!["RL.SLIDING", key("sliding"), 3, "1m", "PEEK"]);
        may(&mut client, &args!["RL.BUCKET", key("bucket"), 3, 1, "1m", "COST", 0]);
        may(&mut client, &args!["PING"]);
        may_not(&mut client, &args!["LOCK.INFO", key("lock")]);
        may_not(&mut client, &args!["GET", key("lock")]);
        may_not(&mut client, &args!["DEL", key("lock")]);
        may_not(&mut client, &args!["SET", key("lock"), "t"]);
        may_not(&mut client, &args!["LOCK.ACQUIRE", "other:lock", "t", "30s"]);
        may_not(&mut client, &args!["LOCK.RELEASE", "other:lock", "t"]);
        may_not(&mut client, &args!["RL.FIXED", "other:fixed", 3, "1m"]);
        may_not(&mut client, &args!["RL.SLIDING", "other:sliding", 3, "1m", "PEEK"]);
    }
}

#[test]
fn an_observer_sees_locks_and_changes_nothing() {
    let (server, categories) = server();
    let by_name = [("auditor", "store", true), ("dashboard", "store", false)];
    let by_category = [("watcher", "shop", true)];
    for (user, prefix, tokens) in by_name.into_iter().chain(by_category.into_iter().filter(|_| categories)) {
        let lock = format!("{prefix}:lock");
        server.call(&args!["LOCK.ACQUIRE", &lock, "t", "30s"]);
        let mut client = login(&server, user);
        let see: fn(&mut Client, &[Vec<u8>]) = if tokens { may } else { may_not };
        see(&mut client, &args!["LOCK.INFO", &lock]);
        may(&mut client, &args!["PTTL", &lock]);
        may(&mut client, &args!["TTL", &lock]);
        may(&mut client, &args!["EXISTS", &lock]);
        may(&mut client, &args!["INFO", "sluice"]);
        may_not(&mut client, &args!["PTTL", "other:lock"]);
        may_not(&mut client, &args!["GET", &lock]);
        may_not(&mut client, &args!["LOCK.RELEASE", &lock, "t"]);
        may_not(&mut client, &args!["LOCK.ACQUIRE", &lock, "t", "30s"]);
        may_not(&mut client, &args!["RL.FIXED", format!("{prefix}:fixed"), 3, "1m", "PEEK"]);
    }
}

#[test]
fn rules_by_category_are_in_nobodys_way_at_an_unload() {
    let (server, categories) = server();
    if categories {
        server.call(&["ACL", "DELUSER", "store", "auditor"]);
        assert_eq!(server.call(&["MODULE", "UNLOAD", "sluice"]).text(), "OK");
        assert_eq!(server.call(&["PING"]).text(), "PONG");
        may(&mut login(&server, "shop"), &args!["PING"]);
    }
}

#[test]
fn to_peek_a_user_needs_to_write_the_key_as_the_page_says() {
    let server = Server::start();
    server.call(&args!["ACL", "SETUSER", "reader", "on", ">reader-password", "%R~*", "+rl.fixed", "+lock.info"]);
    let mut client = login(&server, "reader");
    may_not(&mut client, &args!["RL.FIXED", "k", 3, "1m", "PEEK"]);
    may_not(&mut client, &args!["RL.FIXED", "k", 3, "1m", "COST", 0]);
    may(&mut client, &args!["LOCK.INFO", "k"]);
}
