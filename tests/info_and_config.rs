//! INFO, settings, loading and unloading.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::{assert_error, expires_at, module_path, our_module};
use rig::{Server, Value, ValueExt, args};
use std::collections::BTreeMap;

fn counters(server: &Server) -> BTreeMap<String, i64> {
    let fields = server.info("sluice");
    fields.into_iter().filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect()
}

/// How much the counters have grown, those that have.
fn grown(before: &BTreeMap<String, i64>, after: &BTreeMap<String, i64>) -> Vec<(String, i64)> {
    let difference = after.iter().map(|(name, value)| (name.clone(), value - before[name]));
    difference.filter(|(_, by)| *by != 0).collect()
}

#[test]
fn info_has_all_fields_of_the_contract_each_with_the_modules_name_before_it() {
    let server = Server::start();
    let text = server.call(&["INFO", "sluice"]).text();
    assert!(text.starts_with("# sluice"), "{text}");
    let mut expected: Vec<String> = Vec::new();
    for kind in ["lock", "sem"] {
        for field in ["grants", "refused", "handovers", "expired_handovers", "timeouts", "waiters", "wait_ms_max"] {
            expected.push(format!("sluice_{kind}_{field}"));
        }
    }
    for kind in ["fixed", "sliding", "bucket"] {
        expected.extend([format!("sluice_rl_{kind}_allowed"), format!("sluice_rl_{kind}_refused")]);
    }
    expected.extend(["sluice_internal_errors".to_owned(), "sluice_version".to_owned()]);
    expected.sort();
    let fields = server.info("sluice");
    assert_eq!(fields.keys().cloned().collect::<Vec<_>>(), expected);
    assert_eq!(fields["sluice_version"], env!("CARGO_PKG_VERSION"));
    assert!(counters(&server).values().all(|value| *value == 0), "a server that has just started has counted nothing");
    // In INFO without a name it is not, in `everything` and `modules` it is.
    assert!(server.call(&["INFO", "everything"]).text().contains("sluice_lock_grants:0"));
    assert!(server.call(&["INFO", "modules"]).text().contains("sluice_lock_grants:0"));
}

#[test]
fn the_counters_count() {
    let server = Server::start();
    let mut client = server.client();
    let one = |name: &str, by: i64| vec![(format!("sluice_{name}"), by)];
    client.call(&["RPUSH", "list", "x"]);
    for (call, expected) in [
        (args!["LOCK.ACQUIRE", "k", "t", "1h"], one("lock_grants", 1)),
        (args!["LOCK.ACQUIRE", "k", "t", "1h"], one("lock_grants", 1)),
        (args!["LOCK.ACQUIRE", "k", "u", "1h"], one("lock_refused", 1)),
        (args!["LOCK.ACQUIRE", "k", "u", "0"], vec![]),
        (args!["LOCK.ACQUIRE", "list", "u", "1h"], vec![]),
        (args!["LOCK.RENEW", "k", "u", "1h"], vec![]),
        (args!["LOCK.RELEASE", "k", "t"], vec![]),
        (args!["RL.FIXED", "f", 1, "1h"], one("rl_fixed_allowed", 1)),
        (args!["RL.FIXED", "f", 1, "1h"], one("rl_fixed_refused", 1)),
        (args!["RL.FIXED", "list", 1, "1h"], vec![]),
        (args!["RL.SLIDING", "s", 1, "1h"], one("rl_sliding_allowed", 1)),
        (args!["RL.SLIDING", "s", 1, "1h"], one("rl_sliding_refused", 1)),
        (args!["RL.BUCKET", "b", 1, 1, "1h"], one("rl_bucket_allowed", 1)),
        (args!["RL.BUCKET", "b", 1, 1, "1h"], one("rl_bucket_refused", 1)),
    ] {
        let before = counters(&server);
        client.call(&call);
        let words: Vec<_> = call.iter().map(|word| String::from_utf8_lossy(word)).collect();
        assert_eq!(grown(&before, &counters(&server)), expected, "{words:?}");
    }
}

#[test]
fn max_waiters_is_a_setting_with_bounds() {
    let server = Server::start();
    let mut client = server.client();
    let mut get = || client.call(&["CONFIG", "GET", "sluice.*"]).map()["sluice.max-waiters"].text();
    assert_eq!(get(), "10000");
    assert_eq!(server.call(&["CONFIG", "SET", "sluice.max-waiters", "17"]).text(), "OK");
    assert_eq!(get(), "17");
    for wrong in ["0", "-1", "", "x", "1.5", "99999999999999999999"] {
        let reply = server.call(&["CONFIG", "SET", "sluice.max-waiters", wrong]);
        assert!(reply.is_error("ERR "), "{wrong:?}: {reply:?}");
        assert_eq!(get(), "17");
    }
    assert_eq!(server.call(&["CONFIG", "SET", "sluice.max-waiters", "1"]).text(), "OK");
    assert_eq!(get(), "1");
    assert!(server.call(&["CONFIG", "SET", "sluice.no-such-thing", "1"]).is_error("ERR "));
}

#[test]
fn a_setting_may_stand_behind_loadmodule_or_on_a_line_of_its_own() {
    let server = Server::builder().module_args(&["max-waiters", "33"]).start();
    assert_eq!(server.call(&["CONFIG", "GET", "sluice.max-waiters"]).map()["sluice.max-waiters"].text(), "33");
    let server = Server::builder().args(&["--sluice.max-waiters", "44"]).start();
    assert_eq!(server.call(&["CONFIG", "GET", "sluice.max-waiters"]).map()["sluice.max-waiters"].text(), "44");
}

#[test]
fn config_rewrite_keeps_the_setting_over_a_restart() {
    let mut server = Server::builder().config_file("# a file of its own\n").start();
    server.call(&["CONFIG", "SET", "sluice.max-waiters", "55"]);
    assert_eq!(server.call(&["CONFIG", "REWRITE"]).text(), "OK");
    let file = std::fs::read_to_string(server.dir().join("server.conf")).unwrap();
    assert!(file.contains("sluice.max-waiters 55"), "{file}");
    assert!(file.contains("loadmodule "), "{file}");
    server.restart();
    assert_eq!(server.call(&["CONFIG", "GET", "sluice.max-waiters"]).map()["sluice.max-waiters"].text(), "55");
}

#[test]
fn wrong_arguments_behind_loadmodule_refuse_the_load_and_say_why() {
    let with = Server::start();
    let path = module_path(&mut with.client());
    let server = Server::builder().module(false).start();
    for wrong in [
        &["max-waiters"][..],
        &["max-waiters", "0"],
        &["max-waiters", "-5"],
        &["max-waiters", "x"],
        &["max-waiters", "10000001"],
        &["max-waiters", "10", "max-waiters"],
        &["no-such-thing", "1"],
        &["%s%n", "%s%n"],
        &[""],
    ] {
        let seen = server.log().len();
        let reply = server.call(&[&["MODULE", "LOAD", &path], wrong].concat());
        assert!(reply.error().is_some(), "{wrong:?}: {reply:?}");
        assert!(server.log()[seen..].contains("sluice was not loaded: "), "{wrong:?}: {}", &server.log()[seen..]);
        assert!(our_module(&mut server.client()).is_none());
        assert_error(&server.call(&["LOCK.INFO", "k"]), "ERR");
    }
    // And after all that it can be loaded, with the default where nothing else is said.
    assert_eq!(server.call(&["MODULE", "LOAD", &path]).text(), "OK");
    assert_eq!(server.call(&["CONFIG", "GET", "sluice.max-waiters"]).map()["sluice.max-waiters"].text(), "10000");
    assert_eq!(server.call(&["RL.FIXED", "f", "2", "1h"]).array().len(), 5);
}

#[test]
fn loadex_takes_settings_and_arguments() {
    let with = Server::start();
    let path = module_path(&mut with.client());
    let server = Server::builder().module(false).start();
    let mut client = server.client();
    let bad = client.call(&["MODULE", "LOADEX", &path, "CONFIG", "sluice.max-waiters", "0"]);
    assert!(bad.error().is_some(), "{bad:?}");
    let bad = client.call(&["MODULE", "LOADEX", &path, "CONFIG", "sluice.no-such-thing", "1"]);
    assert!(bad.error().is_some(), "{bad:?}");
    assert!(our_module(&mut client).is_none());
    let good = client.call(&["MODULE", "LOADEX", &path, "CONFIG", "sluice.max-waiters", "21"]);
    assert_eq!(good.text(), "OK");
    assert_eq!(client.call(&["CONFIG", "GET", "sluice.max-waiters"]).map()["sluice.max-waiters"].text(), "21");
    assert_eq!(client.call(&["MODULE", "UNLOAD", "sluice"]).text(), "OK");
    let good = client.call(&["MODULE", "LOADEX", &path, "ARGS", "max-waiters", "22"]);
    assert_eq!(good.text(), "OK");
    assert_eq!(client.call(&["CONFIG", "GET", "sluice.max-waiters"]).map()["sluice.max-waiters"].text(), "22");
}

#[test]
fn l33_the_module_can_be_unloaded_with_locks_held_and_loaded_again() {
    let server = Server::start();
    let mut client = server.client();
    let path = module_path(&mut client);
    client.pipeline(&[
        args!["LOCK.ACQUIRE", "k", "t", "1h"],
        args!["RL.FIXED", "f", 5, "1h"],
        args!["RL.SLIDING", "s", 5, "1h"],
        args!["RL.BUCKET", "b", 5, 1, "1h"],
    ]);
    let deadline = expires_at(&mut client, "k");
    for _ in 0..3 {
        assert_eq!(client.call(&["MODULE", "UNLOAD", "sluice"]).text(), "OK");
        assert_error(&client.call(&["LOCK.RELEASE", "k", "t"]), "ERR");
        assert_eq!(client.call(&["GET", "k"]).text(), "t");
        assert_eq!(client.call(&["GET", "f"]).text(), "1");
        assert_eq!(expires_at(&mut client, "k"), deadline);
        assert!(!client.call(&["INFO", "everything"]).text().contains("sluice_"));
        assert_eq!(client.call(&["MODULE", "LOAD", &path]).text(), "OK");
    }
    assert_eq!(client.call(&["LOCK.ACQUIRE", "k", "u", "1h"]).int(), 0);
    assert_eq!(client.call(&["LOCK.RELEASE", "k", "t"]).int(), 1);
    for call in
        [args!["RL.FIXED", "f", 5, "1h"], args!["RL.SLIDING", "s", 5, "1h"], args!["RL.BUCKET", "b", 5, 1, "1h"]]
    {
        assert_eq!(cases::verdict(&client.call(&call)).remaining, 3);
    }
}

#[test]
fn the_module_is_not_loaded_twice() {
    let server = Server::start();
    let mut client = server.client();
    let path = module_path(&mut client);
    assert!(client.call(&["MODULE", "LOAD", &path]).error().is_some());
    assert!(client.call(&["LOCK.ACQUIRE", "k", "t", "1h"]).int() > 0);
    assert!(our_module(&mut client).is_some());
}

#[test]
fn the_log_has_one_line_of_ours_at_load_and_never_a_key_or_token() {
    let server = Server::builder().args(&["--loglevel", "debug"]).start();
    let mut client = server.client();
    for key in ["zebra-key", "zebra%s%n", "zebra\r\nline"] {
        client.call(&["LOCK.ACQUIRE", key, "zebra-token", "1h"]);
        client.call(&["LOCK.RELEASE", key, "zebra-other"]);
        client.call(&["RL.FIXED", key, "zebra", "1h"]);
        client.call(&["RL.SLIDING", key, "1", "1h"]);
    }
    let log = server.log();
    assert_eq!(log.lines().filter(|line| line.contains("<sluice>") || line.contains("<module> sluice")).count(), 1);
    assert!(log.contains(&format!("sluice {} is loaded", env!("CARGO_PKG_VERSION"))));
    assert!(!log.contains("zebra"), "{log}");
}

#[test]
fn command_info_and_docs_tell_what_the_contract_says() {
    let server = Server::start();
    let flags = |name: &str| -> Vec<String> {
        let info = server.call(&["COMMAND", "INFO", name]).array()[0].array();
        let mut flags: Vec<String> = info[2].array().iter().map(ValueExt::text).collect();
        // What the server adds of itself to every module's command.
        flags.retain(|flag| flag != "module");
        flags.sort();
        flags
    };
    for name in ["LOCK.ACQUIRE", "SEM.ACQUIRE"] {
        assert_eq!(flags(name), ["blocking", "denyoom", "write"], "{name}");
    }
    for name in ["LOCK.RELEASE", "LOCK.RENEW", "SEM.RELEASE", "SEM.RENEW", "RL.FIXED", "RL.SLIDING", "RL.BUCKET"] {
        assert_eq!(flags(name), ["fast", "write"], "{name}");
    }
    for name in ["LOCK.INFO", "SEM.INFO"] {
        assert_eq!(flags(name), ["readonly"], "{name}");
    }
    for name in ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.RENEW", "LOCK.INFO", "RL.FIXED", "RL.SLIDING", "RL.BUCKET"] {
        let docs = server.call(&["COMMAND", "DOCS", name]);
        let Value::Array(parts) = &docs else { panic!("{docs:?}") };
        let docs = parts[1].map();
        assert!(!docs["summary"].text().is_empty() && docs["complexity"].text().starts_with("O("), "{name}");
        assert!(docs["arguments"].array().len() >= if name == "LOCK.INFO" { 1 } else { 2 });
    }
}
