//! Who may, and what happens when memory is full.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::{ask, assert_error, short, value_and_expiry};
use rig::{Client, Server, ValueExt, args, dump_all, wait_until};

fn user(server: &Server, rules: &[&str]) -> Client {
    let made = server.call(&[&["ACL", "SETUSER", "app", "reset", "on", "nopass"], rules].concat());
    assert_eq!(made.text(), "OK", "{rules:?}");
    let mut client = server.client();
    assert_eq!(client.call(&["AUTH", "app", "any"]).text(), "OK");
    client
}

fn every_command(key: &str) -> [Vec<Vec<u8>>; 7] {
    [
        args!["LOCK.ACQUIRE", key, "t", "1h"],
        args!["LOCK.RENEW", key, "t", "1h"],
        args!["LOCK.INFO", key],
        args!["LOCK.RELEASE", key, "t"],
        args!["RL.FIXED", key, 5, "1h"],
        args!["RL.SLIDING", format!("{key}:s"), 5, "1h"],
        args!["RL.BUCKET", format!("{key}:b"), 5, 5, "1h"],
    ]
}

#[test]
fn l47_and_r41_a_key_outside_the_users_patterns_is_noperm_and_untouched() {
    let server = Server::start();
    server.call(&["LOCK.ACQUIRE", "others:k", "t", "1h"]);
    let all = dump_all(&server);
    let mut client = user(&server, &["~user:*", "+@all"]);
    for call in every_command("others:k") {
        assert_error(&client.call(&call), "NOPERM");
    }
    assert_eq!(dump_all(&server), all);
    for call in every_command("user:k") {
        assert!(client.call(&call).error().is_none(), "{call:?}");
    }
}

#[test]
fn l47_a_command_that_was_not_allowed_is_noperm() {
    let server = Server::start();
    let mut client = user(&server, &["~*", "-@all", "+lock.info", "+rl.fixed"]);
    let refused: Vec<bool> = every_command("k").iter().map(|call| client.call(call).is_error("NOPERM ")).collect();
    assert_eq!(refused, [true, true, false, true, false, true, true]);
}

#[test]
fn l47_key_permissions_are_asked_by_what_a_command_does_with_the_key() {
    let server = Server::start();
    server.call(&["LOCK.ACQUIRE", "k", "t", "1h"]);
    // Who may only read sees a lock, and changes neither it nor a limit.
    let mut reader = user(&server, &["%R~*", "+@all"]);
    assert_eq!(reader.call(&["LOCK.INFO", "k"]).map()["held"].int(), 1);
    for call in every_command("k") {
        assert_eq!(reader.call(&call).is_error("NOPERM "), call[0] != b"LOCK.INFO", "{call:?}");
    }
    // Who may only write takes and gives back, but does not see; and a limit's answer is about what is stored.
    let mut writer = user(&server, &["%W~*", "+@all"]);
    assert_error(&writer.call(&["LOCK.INFO", "k"]), "NOPERM");
    assert!(writer.call(&["LOCK.ACQUIRE", "k", "t", "2h"]).int() > 0);
    assert_eq!(writer.call(&["LOCK.RENEW", "k", "t", "1h"]).int(), 1);
    assert_eq!(writer.call(&["LOCK.RELEASE", "k", "t"]).int(), 1);
    for call in &every_command("k")[4..] {
        assert_error(&writer.call(call), "NOPERM");
    }
}

#[test]
fn l47_the_modules_own_categories_cover_its_commands_where_the_server_has_them() {
    let server = Server::start();
    let categories: Vec<String> = server.call(&["ACL", "CAT"]).array().iter().map(ValueExt::text).collect();
    if !categories.iter().any(|name| name == "lock") {
        println!("this server lets no module add categories: nothing to see");
        return;
    }
    categories_cover_their_commands(&server);
    // The server keeps a category for good; the module loaded again goes on with it.
    let mut client = server.client();
    let path = cases::module_path(&mut client);
    client.call(&["ACL", "DELUSER", "app"]);
    assert_eq!(client.call(&["MODULE", "UNLOAD", "sluice"]).text(), "OK");
    assert_eq!(client.call(&["MODULE", "LOAD", &path]).text(), "OK");
    categories_cover_their_commands(&server);
}

fn categories_cover_their_commands(server: &Server) {
    for (category, allowed) in [("+@lock", &[0, 1, 2, 3][..]), ("+@ratelimit", &[4, 5, 6])] {
        let mut client = user(server, &["~*", category]);
        for (at, call) in every_command("k").iter().enumerate() {
            assert_eq!(!client.call(call).is_error("NOPERM "), allowed.contains(&at), "{category}, {call:?}");
        }
        server.call(&["FLUSHALL"]);
    }
}

#[test]
fn the_standard_categories_cover_our_commands_where_the_server_lets_a_module_say_so() {
    let server = Server::start();
    let of = |name: &str| -> Vec<String> {
        server.call(&["ACL", "CAT", name]).array().iter().map(|one| one.text().to_lowercase()).collect()
    };
    let write = of("write");
    if !write.iter().any(|name| name == "lock.acquire") {
        println!("this server puts no module's command into a category: nothing to see");
        return;
    }
    for name in ["lock.acquire", "lock.release", "lock.renew", "rl.fixed", "rl.sliding", "rl.bucket"] {
        assert!(write.iter().any(|one| one == name), "{name}");
    }
    assert!(of("read").iter().any(|one| one == "lock.info"));
}

#[test]
fn r41_command_getkeys_finds_the_key_and_no_option_is_taken_for_one() {
    let server = Server::start();
    for call in every_command("k") {
        let keys = server.call(&[&args!["COMMAND", "GETKEYS"][..], &call].concat());
        assert_eq!(keys.array().iter().map(ValueExt::bytes).collect::<Vec<_>>(), [call[1].clone()]);
    }
    let with_options = args!["COMMAND", "GETKEYS", "RL.FIXED", "k", 1, "1s", "COST", 5, "PEEK"];
    assert_eq!(server.call(&with_options).array().len(), 1);
    let with_options = args!["COMMAND", "GETKEYS", "LOCK.ACQUIRE", "k", "t", "1s", "BLOCK", "5s"];
    assert_eq!(server.call(&with_options).array().len(), 1);
}

#[test]
fn l14_with_memory_full_a_holder_renews_and_releases_and_nobody_acquires() {
    let server = Server::start();
    let mut client = server.client();
    assert!(client.call(&["LOCK.ACQUIRE", "k", "tA", "1h"]).int() > 0);
    client.call(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_error(&client.call(&["LOCK.ACQUIRE", "k2", "tB", "1h"]), "OOM");
    assert_error(&client.call(&["LOCK.ACQUIRE", "k", "tB", "1h"]), "OOM");
    assert_eq!(client.call(&["DBSIZE"]).int(), 1);
    assert_eq!(client.call(&["LOCK.RENEW", "k", "tB", "2h"]).int(), 0);
    assert_eq!(client.call(&["LOCK.RENEW", "k", "tA", "2h"]).int(), 1);
    assert!(client.call(&["PTTL", "k"]).int() > 3_700_000);
    assert_eq!(client.call(&["LOCK.INFO", "k"]).map()["held"].int(), 1);
    assert_eq!(client.call(&["LOCK.RELEASE", "k", "tA"]).int(), 1);
    assert_eq!(client.call(&["DBSIZE"]).int(), 0);
    client.call(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(client.call(&["LOCK.ACQUIRE", "k2", "tB", "1h"]).int() > 0);
}

#[test]
fn r42_with_memory_full_an_existing_limit_is_decided_and_a_new_one_is_oom() {
    let server = Server::start();
    let mut client = server.client();
    let calls = |key: &str| {
        [
            args!["RL.FIXED", format!("{key}f"), 4, "1h"],
            args!["RL.SLIDING", format!("{key}s"), 4, "1h"],
            args!["RL.BUCKET", format!("{key}b"), 4, 1, "1d"],
        ]
    };
    for call in calls("old") {
        client.call(&call);
    }
    client.call(&["CONFIG", "SET", "maxmemory", "1"]);
    for call in calls("old") {
        assert_eq!(short(&mut client, &call), (true, 2, 0));
        assert_eq!(short(&mut client, &call), (true, 1, 0));
        assert_eq!(short(&mut client, &[&call[..], &args!["PEEK"]].concat()), (true, 1, 0));
        assert_eq!(short(&mut client, &call), (true, 0, 0));
        assert!(!ask(&mut client, &call).allowed);
    }
    for call in calls("new") {
        assert_error(&client.call(&call), "OOM");
        // Nothing is made by a look, so nothing is in its way.
        assert_eq!(short(&mut client, &[&call[..], &args!["PEEK"]].concat()), (true, 4, 0));
        assert_eq!(short(&mut client, &[&call[..], &args!["COST", 0]].concat()), (true, 4, 0));
        assert_eq!(short(&mut client, &[&call[..], &args!["COST", 5]].concat()), (false, 4, -1));
        // A wrong call is wrong first.
        assert_error(&client.call(&[&call[..], &args!["NONSENSE"]].concat()), "ERR");
    }
    assert_eq!(client.call(&["DBSIZE"]).int(), 3);
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
    client.call(&["CONFIG", "SET", "maxmemory", "0"]);
    for call in calls("new") {
        assert_eq!(short(&mut client, &call), (true, 3, 0));
    }
}

#[test]
fn r42_with_memory_full_in_a_transaction_or_script_a_new_limit_is_oom_as_well() {
    let server = Server::start();
    let mut client = server.client();
    client.call(&["RL.FIXED", "old", "9", "1h"]);
    // Memory runs out within the transaction (before it, the server itself would not queue a thing): a limiter then gets
    // what a plain SET gets.
    client.pipeline(&[
        args!["MULTI"],
        args!["CONFIG", "SET", "maxmemory", 1],
        args!["SET", "plain", "x"],
        args!["RL.FIXED", "new f", 9, "1h"],
        args!["RL.SLIDING", "new s", 9, "1h"],
        args!["RL.BUCKET", "new b", 9, 9, "1h"],
        args!["RL.FIXED", "old", 9, "1h"],
    ]);
    let done = client.call(&["EXEC"]).array();
    for reply in &done[2..5] {
        assert_eq!(reply.is_error("OOM "), done[1].is_error("OOM "), "{reply:?}, plain SET: {:?}", done[1]);
    }
    assert_eq!(cases::verdict(&done[5]).remaining, 7);
    client.call(&["DEL", "plain", "new f", "new s", "new b"]);

    let script = "return redis.pcall('RL.FIXED', KEYS[1], '9', '1h')";
    for (at, script) in [script.to_owned(), format!("#!lua flags=allow-oom\n{script}")].iter().enumerate() {
        assert_eq!(
            cases::verdict(&client.call(&["EVAL", script, "1", "old"])).remaining,
            6 - i64::try_from(at).unwrap()
        );
        assert_error(&client.call(&["EVAL", script, "1", "new"]), "OOM");
    }
    assert_eq!(client.call(&["DBSIZE"]).int(), 1);
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
}

#[test]
fn r42_where_the_server_evicts_new_limits_and_locks_are_made_and_never_oom() {
    let server = Server::builder().args(&["--maxmemory-policy", "allkeys-lru"]).start();
    let mut client = server.client();
    let used = server.info_int("memory", "used_memory");
    client.call(&args!["CONFIG", "SET", "maxmemory", used + 3_000_000]);
    let filler = vec![b'x'; 10_000];
    let batch: Vec<_> = (0..500).map(|n| args!["SET", format!("filler:{n}"), &filler[..]]).collect();
    client.pipeline(&batch);
    wait_until(rig::SOON, "the server evicts", || server.info_int("stats", "evicted_keys") > 0);
    for n in 0..300 {
        let replies = client.pipeline(&[
            args!["SET", format!("filler:more:{n}"), &filler[..]],
            args!["RL.FIXED", format!("f:{n}"), 4, "1h"],
            args!["RL.SLIDING", format!("s:{n}"), 4, "1h"],
            args!["RL.BUCKET", format!("b:{n}"), 4, 4, "1h"],
            args!["LOCK.ACQUIRE", format!("l:{n}"), "t", "1h"],
        ]);
        for reply in replies {
            assert!(reply.error().is_none(), "{reply:?}");
        }
    }
    assert!(server.info_int("stats", "evicted_keys") > 100);
    // Where all that could be evicted is gone and it is still too much, it is full after all. Until then the server evicts
    // for a part of a millisecond at a time, and lets in who comes in between.
    client.call(&["CONFIG", "SET", "maxmemory", "1"]);
    wait_until(rig::SOON, "all is evicted", || client.call(&["DBSIZE"]).int() == 0);
    for call in [
        args!["RL.FIXED", "n", 4, "1h"],
        args!["RL.SLIDING", "n", 4, "1h"],
        args!["RL.BUCKET", "n", 4, 4, "1h"],
        args!["LOCK.ACQUIRE", "n", "t", "1h"],
    ] {
        assert_error(&client.call(&call), "OOM");
    }
    assert_eq!(client.call(&["EXISTS", "n"]).int(), 0);
}

#[test]
fn a_server_that_may_not_write_refuses_with_its_own_code() {
    let server = Server::builder().args(&["--min-replicas-to-write", "1"]).start();
    let mut client = server.client();
    for call in every_command("k") {
        let reply = client.call(&call);
        assert_eq!(reply.is_error("NOREPLICAS "), call[0] != b"LOCK.INFO", "{call:?}: {reply:?}");
    }
    assert_eq!(value_and_expiry(&mut client, "k"), (rig::Value::Nil, -2));
}
