//! Roads on which a key goes away long after the command that takes it has been read, or without a command that names it.
//! They matter where the module hears of commands and not of keys (Redis 7.0), and hold everywhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod cases;
mod rig;

use rig::line::{Noise, Waiter, defers, hold, holder, is_deaf, line_up, not_here, prompt, release, waiters, words};
use rig::{Client, SOON, Server, Value, ValueExt, args, ms, wait_for};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How soon a waiter has a lock whose key went away: the grant follows the command; where the module cannot listen it looks.
const AT_ONCE: Duration = ms(25);

/// Long enough for whatever a command that was only queued has left to be done.
fn a_while() {
    std::thread::sleep(ms(150));
}

/// Other clients' commands, some of which name `key` and leave it alone, and none of which is a single word.
fn traffic(server: &Server, key: &str) {
    let mut client = server.client();
    for round in 0..200 {
        let other = format!("other:{round}");
        let replies = client.pipeline(&[
            args!["SET", &other, "x", "PX", 60_000],
            args!["EXISTS", key],
            args!["DEL", &other],
            args!["PTTL", key],
        ]);
        assert!(replies.iter().all(|reply| reply.error().is_none()), "{replies:?}");
    }
}

/// Runs the commands over one connection, the last of which takes the key away, and B has the lock at once.
#[track_caller]
fn is_granted_by(server: &Server, client: &mut Client, commands: &[Vec<Vec<u8>>], b: &mut Waiter, what: &str) {
    let noise = Noise::of(server);
    let at = Instant::now();
    for reply in client.pipeline(commands) {
        assert!(reply.error().is_none(), "{what}: {reply:?}");
    }
    b.fence();
    prompt(at, AT_ONCE, noise, what);
}

fn queued(reply: &Value) -> bool {
    reply.text() == "QUEUED"
}

#[test]
fn a_del_that_waits_in_a_transaction_is_noticed_when_that_is_executed() {
    let server = Server::start();
    for (key, queued_first) in [("before-anybody-waits", true), ("while-somebody-waits", false)] {
        let mut client = server.client();
        client.call(&["MULTI"]);
        hold(&server, key, "tA", "1m");
        if queued_first {
            assert!(queued(&client.call(&["DEL", key])));
        }
        let mut b = line_up(&server, key, "tB", "1m", "0");
        if !queued_first {
            assert!(queued(&client.call(&["DEL", key])));
        }
        traffic(&server, key);
        a_while();
        b.still_waits(&server, key);
        is_granted_by(&server, &mut client, &[words("EXEC")], &mut b, key);
        assert_eq!(holder(&server, key), "tB");
    }
}

#[test]
fn so_it_is_when_exec_has_another_name() {
    let server = Server::builder().args(&["--rename-command", "EXEC", "go-on"]).start();
    hold(&server, "k", "tA", "1m");
    let mut client = server.client();
    client.call(&["MULTI"]);
    assert!(queued(&client.call(&["DEL", "k"])));
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    a_while();
    is_granted_by(&server, &mut client, &[words("go-on")], &mut b, "a renamed EXEC");
}

#[test]
fn a_transaction_that_comes_to_nothing_leaves_the_waiters_where_they_are() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut client = server.client();
    client.call(&["WATCH", "watched"]);
    client.pipeline(&[words("MULTI"), words("DEL k")]);
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    server.call(&["SET", "watched", "x"]);
    assert!(client.call(&["EXEC"]).is_nil());
    client.pipeline(&[words("MULTI"), words("DEL k"), words("DISCARD")]);
    b.still_waits(&server, "k");
    assert_eq!(holder(&server, "k"), "tA");
    // And many one after the other do not keep the next one that does something from being noticed.
    for _ in 0..200 {
        client.pipeline(&[words("MULTI"), words("EXEC"), words("PING")]);
    }
    is_granted_by(&server, &mut client, &[words("MULTI"), words("DEL k"), words("EXEC")], &mut b, "the last of many");
}

#[test]
fn a_transaction_of_many_keys_serves_the_queues_of_all_of_them() {
    let server = Server::start();
    let keys: Vec<_> = (0..60).map(|number| format!("key:{number}")).collect();
    let mut client = server.client();
    client.call(&["MULTI"]);
    for key in &keys {
        assert!(queued(&client.call(&["DEL", key])));
    }
    let mut waiting: Vec<_> = keys
        .iter()
        .map(|key| {
            hold(&server, key, "tA", "1m");
            line_up(&server, key, "tB", "1m", "0")
        })
        .collect();
    let noise = Noise::of(&server);
    let at = Instant::now();
    assert_eq!(client.call(&["EXEC"]).array().len(), keys.len());
    waiting.iter_mut().for_each(|waiter| assert!(waiter.fence() > 0));
    prompt(at, AT_ONCE, noise, "60 keys");
}

#[test]
fn our_own_commands_in_a_transaction_hand_the_lock_over_within_it() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut client = server.client();
    client.pipeline(&[words("MULTI"), words("LOCK.RELEASE k tA"), words("GET k")]);
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    let mut c = line_up(&server, "k", "tC", "1m", "0");
    a_while();
    b.still_waits(&server, "k");
    let replies = client.call(&["EXEC"]).array();
    assert_eq!((replies[0].int(), replies[1].text().as_str()), (1, "tB"));
    b.fence();
    c.still_waits(&server, "k");
    // A renewal that lets the lease end earlier.
    let noise = Noise::of(&server);
    let at = Instant::now();
    let renewed = client.pipeline(&[words("MULTI"), words("LOCK.RENEW k tB 80ms"), words("EXEC")]);
    assert_eq!(renewed[2].array()[0].int(), 1);
    c.fence();
    assert!(at.elapsed() + ms(1) >= ms(80));
    prompt(at, ms(81) + AT_ONCE, noise, "the end of a renewed lease");
}

#[test]
fn a_key_that_a_script_or_function_has_made_up_is_noticed() {
    let server = Server::start();
    let library = "#!lua name=others\nredis.register_function('gone', function(keys, words) \
                   return redis.call('DEL', words[1] .. words[2]) end)";
    assert_eq!(server.call(&["FUNCTION", "LOAD", library]).text(), "others");
    let script = "return redis.call('DEL', ARGV[1] .. ARGV[2])";
    let mut client = server.client();
    for (number, road) in [args!["EVAL", script, 0], args!["FCALL", "gone", 0]].into_iter().enumerate() {
        let key = format!("made-up-{number}");
        let (a, b) = key.split_at(5);
        let call = [road, args![a, b]].concat();
        hold(&server, &key, "tA", "1m");
        let mut waiter = line_up(&server, &key, "tB", "1m", "0");
        is_granted_by(&server, &mut client, std::slice::from_ref(&call), &mut waiter, &key);
        // Within a transaction, queued before.
        client.pipeline(&[words("MULTI"), call]);
        let mut waiter = line_up(&server, &key, "tC", "1m", "0");
        a_while();
        waiter.still_waits(&server, &key);
        is_granted_by(&server, &mut client, &[words("EXEC")], &mut waiter, &key);
    }
}

#[test]
fn a_del_in_one_database_serves_the_queue_there_and_no_other() {
    let server = Server::start();
    let queue_up = |db: i64| {
        let mut client = server.client();
        client.call(&args!["SELECT", db]);
        assert!(client.call(&["LOCK.ACQUIRE", "k", "tA", "1m"]).int() > 0);
        client.send(&["LOCK.ACQUIRE", "k", "tB", "1m", "BLOCK", "0"]);
        client
    };
    let (mut zero, mut seven) = (queue_up(0), queue_up(7));
    wait_for(SOON, "both wait", || waiters(&server), |n| *n == 2);
    let noise = Noise::of(&server);
    let at = Instant::now();
    server.client().pipeline(&[words("SELECT 7"), words("DEL k")]);
    assert!(seven.read(SOON).unwrap().int() > 0);
    prompt(at, AT_ONCE, noise, "database 7");
    assert!(zero.is_silent(ms(60)));
    server.client().pipeline(&[words("SELECT 3"), words("SET k x"), words("DEL k")]);
    assert!(zero.is_silent(ms(60)));
    server.call(&["DEL", "k"]);
    assert!(zero.read(SOON).unwrap().int() > 0);
}

#[test]
fn a_del_that_was_held_back_by_a_pause_is_noticed_when_it_runs() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    server.call(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    let mut client = server.client();
    client.send(&["DEL", "k"]);
    assert!(b.client.is_silent(ms(300)), "writes are paused");
    let noise = Noise::of(&server);
    let ended = Instant::now();
    server.call(&["CLIENT", "UNPAUSE"]);
    b.fence();
    assert_eq!(client.read(SOON).unwrap().int(), 1);
    // The end of a pause is noticed in the server's cron.
    prompt(ended, ms(150), noise, "the grant after the pause");
}

#[test]
fn among_keys_as_long_as_the_waited_one_the_right_one_is_told() {
    let server = Server::start();
    let mut client = server.client();
    hold(&server, "lock:000500", "tA", "1m");
    let mut b = line_up(&server, "lock:000500", "tB", "1m", "0");
    let others: Vec<_> = (0..1000).filter(|n| *n != 500).map(|n| format!("lock:{n:06}")).collect();
    for batch in others.chunks(100) {
        client.pipeline(&batch.iter().map(|key| args!["SET", key, "x"]).collect::<Vec<_>>());
        client.pipeline(&batch.iter().map(|key| args!["DEL", key]).collect::<Vec<_>>());
    }
    b.still_waits(&server, "lock:000500");
    let all: Vec<_> = others.iter().map(String::as_str).chain(["lock:000500"]).collect();
    let del = [&["DEL"][..], &all[..]].concat();
    is_granted_by(&server, &mut client, &[args![del]], &mut b, "the last of a thousand");
}

#[test]
fn a_key_longer_than_any_that_is_told_by_its_length_is_noticed_and_an_empty_one() {
    let server = Server::start();
    for key in ["k".repeat(5000).as_str(), ""] {
        hold(&server, key, "tA", "1m");
        let mut b = line_up(&server, key, "tB", "1m", "0");
        server.call(&["DEL", &"K".repeat(5000)]);
        b.still_waits(&server, key);
        is_granted_by(&server, &mut server.client(), &[args!["DEL", key]], &mut b, "its DEL");
    }
}

#[test]
fn a_permit_that_a_blocked_client_snatches_goes_to_the_next() {
    let server = Server::start();
    let mut client = server.client();
    for round in 0..5 {
        let key = format!("s{round}");
        assert!(client.call(&["SEM.ACQUIRE", &key, "a", "1m", "1"]).int() > 0);
        let mut line: Vec<_> = ["b", "c"]
            .map(|token| {
                let mut client = server.client();
                client.send(&["SEM.ACQUIRE", &key, token, "1m", "1", "BLOCK", "0"]);
                client
            })
            .into();
        wait_for(SOON, "they wait", || server.info_int("sluice", "sluice_sem_waiters"), |n| *n == 2);
        // Read in one turn: the key is gone when BZPOPMIN looks, or it is the first to be handed over.
        let noise = Noise::of(&server);
        let at = Instant::now();
        client.send_all(&[args!["ZREM", &key, "a"], args!["BZPOPMIN", &key, 0]]);
        for waiter in &mut line {
            assert!(waiter.read(SOON).unwrap().int() > 0);
        }
        // Two looks, one after the other, where the module looks by a timer.
        prompt(at, if is_deaf(&server) { 2 * AT_ONCE } else { AT_ONCE }, noise, "both have had it");
        assert_eq!(client.read(SOON).unwrap().int(), 1);
        assert_eq!(client.read(SOON).unwrap().array().len(), 3);
    }
}

#[test]
fn an_eviction_is_noticed_whenever_the_server_was_given_its_limit() {
    let filler = vec![b'x'; 50_000];
    for limit_first in [true, false] {
        let server = Server::builder().args(&["--maxmemory-policy", "volatile-ttl"]).start();
        let mut client = server.client();
        hold(&server, "k", "tA", "1m");
        if limit_first {
            let room = server.info_int("memory", "used_memory") + 1_000_000;
            assert_eq!(client.call(&args!["CONFIG", "SET", "maxmemory", room]).text(), "OK");
        }
        let mut b = line_up(&server, "k", "tB", "1m", "0");
        let mut commands: Vec<_> = (0..30).map(|n| args!["SET", format!("filler{n}"), &filler]).collect();
        if !limit_first {
            // The only key that may be evicted, and then there is room again, so that it is not evicted over and over.
            commands = ["CONFIG SET maxmemory 1", "ECHO anything", "CONFIG SET maxmemory 0"].map(words).into();
        }
        let noise = Noise::of(&server);
        let at = Instant::now();
        client.pipeline(&commands);
        b.fence();
        prompt(at, ms(100), noise, if limit_first { "with a limit from the start" } else { "with a limit set later" });
        assert!(server.info_int("stats", "evicted_keys") > 0);
    }
}

#[test]
fn among_many_waited_keys_a_transaction_is_noticed_though_everybody_pings() {
    const KEYS: usize = 1200;
    let server = Server::start();
    let mut control = server.client();
    let keys: Vec<_> = (0..KEYS).map(|n| format!("many:{n}")).collect();
    control.pipeline(&keys.iter().map(|key| args!["LOCK.ACQUIRE", key, "tA", "10m"]).collect::<Vec<_>>());
    let mut waiting: Vec<_> = (0..KEYS).map(|_| server.client()).collect();
    for (client, key) in waiting.iter_mut().zip(&keys) {
        client.send(&args!["LOCK.ACQUIRE", key, "tB", "10m", "BLOCK", "0"]);
    }
    wait_for(SOON, "all wait", || waiters(&server), |&waiting| waiting == KEYS as i64);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pings = scope.spawn(|| {
            let (mut client, mut sent) = (server.client(), 0);
            while !done.load(std::sync::atomic::Ordering::Relaxed) && sent < 1_000_000 {
                client.pipeline(&vec![words("PING"); 50]);
                sent += 50;
            }
            sent
        });
        for round in 0..10 {
            let (first, second) = (round * 7, KEYS - 1 - round);
            control.pipeline(&[args!["MULTI"], args!["DEL", &keys[first]], args!["DEL", &keys[second]]]);
            a_while();
            let noise = Noise::of(&server);
            let at = Instant::now();
            control.call(&["EXEC"]);
            for n in [first, second] {
                assert!(waiting[n].read(SOON).unwrap().int() > 0, "{n}");
            }
            prompt(at, ms(100), noise, "a round over all keys, and another");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(pings.join().unwrap() > 0);
    });
    assert_eq!(waiters(&server), KEYS as i64 - 20);
}

/// Another module, which does what no client can; none where it cannot be built.
fn other_module(dir: &Path) -> Option<PathBuf> {
    let (source, path) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/waiting/other.c"), dir.join("other.so"));
    let built = Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&path).arg(source).status();
    if built.is_ok_and(|status| status.success()) {
        return Some(path);
    }
    not_here("what another module does", "no C compiler (cc)");
    None
}

#[test]
fn what_another_module_takes_away_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let Some(other) = other_module(dir.path()) else { return };
    let server = Server::builder().args(&["--loadmodule", other.to_str().unwrap()]).start();
    let mut client = server.client();
    for (command, within) in [
        ("OTHER.CALL", AT_ONCE),
        // No command names the key, and where events are not heard it is looked at once a second.
        ("OTHER.DELETE", if defers(&server) { ms(1025) } else { AT_ONCE }),
    ] {
        hold(&server, "made-up", "tA", "1m");
        let mut b = line_up(&server, "made-up", "tB", "1m", "0");
        let noise = Noise::of(&server);
        let at = Instant::now();
        assert_eq!(client.call(&[command, "made", "-up"]).int(), 1);
        b.fence();
        prompt(at, within, noise, command);
        assert_eq!(release(&server, "made-up", "tB"), 1);
    }
}

#[test]
fn what_another_module_takes_away_within_a_write_of_ours_is_noticed_and_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some(other) = other_module(dir.path()) else { return };
    let server = Server::builder().args(&["--loadmodule", other.to_str().unwrap()]).start();
    if is_deaf(&server) {
        return not_here("a key deleted within a write of ours", "the module does not listen");
    }
    if !defers(&server) {
        return not_here("a key deleted within a write of ours", "events of others are not heard within our own");
    }
    let mut client = server.client();
    let roads = ["LOCK.RELEASE cause tA", "PEXPIRE cause 5", "DEL cause", "EVAL return~redis.call('DEL','cause') 0"];
    for (round, road) in roads.iter().enumerate() {
        client.call(&["DEL", "cause", "effect"]);
        hold(&server, "cause", "tA", "1m");
        hold(&server, "effect", "tA", "1m");
        let mut cause = line_up(&server, "cause", "tB", "1m", "0");
        let mut effect = line_up(&server, "effect", "tB", "1m", "0");
        // The grant of `cause` writes it, and for that the other module deletes `effect`.
        let noise = Noise::of(&server);
        let at = Instant::now();
        let road: Vec<_> = road.split_whitespace().map(|word| word.replace('~', " ")).collect();
        assert_eq!(client.call(&road).int(), 1, "round {round}");
        cause.fence();
        effect.fence();
        prompt(at, ms(6) + AT_ONCE, noise, road.join(" ").as_str());
        assert_eq!(holder(&server, "effect"), "tB");
    }
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
}

/// How many filters of commands our module has registered.
fn filters(server: &Server) -> u32 {
    let text = server.cli(&["INFO", "modules"]);
    let ours = text.lines().find(|line| line.contains("name=sluice")).unwrap();
    ours.split(',').find_map(|field| field.strip_prefix("filters=")).unwrap().parse().unwrap()
}

#[test]
fn commands_are_heard_only_while_somebody_waits_and_nothing_is_left_by_an_unload() {
    let server = Server::start();
    let path = cases::module_path(&mut server.client());
    let hears = u32::from(defers(&server));
    for round in 0..3 {
        assert_eq!(filters(&server), 0, "round {round}");
        hold(&server, "k", "tA", "1m");
        let mut b = line_up(&server, "k", "tB", "1m", "0");
        assert_eq!(filters(&server), hears);
        assert_eq!(release(&server, "k", "tA"), 1);
        b.fence();
        assert_eq!(release(&server, "k", "tB"), 1);
        if round == 0 {
            wait_for(SOON, "nobody is heard", || filters(&server), |filters| *filters == 0);
            continue;
        }
        // Unloaded with the last of it still there.
        wait_for(SOON, "unloaded", || server.call(&["MODULE", "UNLOAD", "sluice"]), |reply| reply.error().is_none());
        let mut client = server.client();
        client.pipeline(&[words("MULTI"), words("SET k x"), words("DEL k"), words("EXEC")]);
        assert_eq!(client.call(&["PING"]).text(), "PONG");
        assert_eq!(server.call(&["MODULE", "LOAD", &path]).text(), "OK");
    }
}
