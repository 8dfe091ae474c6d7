//! Roads on which a key goes away long after the command that takes it has been read, or without a command that names it.
//! They matter where the module hears of commands and not of keys (Redis 7.0), and hold everywhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod cases;
mod rig;

use rig::line::{Waiter, defers, hold, holder, is_deaf, line_up, not_here, release, waiters, words};
use rig::noise::{Noise, took, within};
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

/// Runs the commands over one connection, the last of which takes the key away, and B has the lock: how much later.
#[track_caller]
fn is_granted_by(server: &Server, client: &mut Client, commands: &[Vec<Vec<u8>>], b: &mut Waiter) -> Duration {
    let noise = Noise::of(server);
    let at = Instant::now();
    for reply in client.pipeline(commands) {
        assert!(reply.error().is_none(), "{reply:?}");
    }
    b.fence();
    took(at, noise)
}

fn queued(reply: &Value) -> bool {
    reply.text() == "QUEUED"
}

#[test]
fn a_del_that_waits_in_a_transaction_is_noticed_when_that_is_executed() {
    let server = Server::start();
    for (when, queued_first) in [("before-anybody-waits", true), ("while-somebody-waits", false)] {
        within(AT_ONCE, when, |round| {
            let key = format!("{when}:{round}");
            let mut client = server.client();
            client.call(&["MULTI"]);
            hold(&server, &key, "tA", "1m");
            if queued_first {
                assert!(queued(&client.call(&["DEL", &key])));
            }
            let mut b = line_up(&server, &key, "tB", "1m", "0");
            if !queued_first {
                assert!(queued(&client.call(&["DEL", &key])));
            }
            traffic(&server, &key);
            a_while();
            b.still_waits(&server, &key);
            let late = is_granted_by(&server, &mut client, &[words("EXEC")], &mut b);
            assert_eq!(holder(&server, &key), "tB");
            late
        });
    }
}

#[test]
fn so_it_is_when_exec_has_another_name() {
    let server = Server::builder().args(&["--rename-command", "EXEC", "go-on"]).start();
    within(AT_ONCE, "a renamed EXEC", |round| {
        let key = format!("k{round}");
        hold(&server, &key, "tA", "1m");
        let mut client = server.client();
        client.call(&["MULTI"]);
        assert!(queued(&client.call(&["DEL", &key])));
        let mut b = line_up(&server, &key, "tB", "1m", "0");
        a_while();
        is_granted_by(&server, &mut client, &[words("go-on")], &mut b)
    });
}

#[test]
fn a_transaction_that_comes_to_nothing_leaves_the_waiters_where_they_are() {
    let server = Server::start();
    let mut client = server.client();
    within(AT_ONCE, "the last of many", |round| {
        let key = format!("k{round}");
        let del = args!["DEL", &key];
        hold(&server, &key, "tA", "1m");
        client.call(&["WATCH", "watched"]);
        client.pipeline(&[words("MULTI"), del.clone()]);
        let mut b = line_up(&server, &key, "tB", "1m", "0");
        server.call(&["SET", "watched", "x"]);
        assert!(client.call(&["EXEC"]).is_nil());
        client.pipeline(&[words("MULTI"), del.clone(), words("DISCARD")]);
        b.still_waits(&server, &key);
        assert_eq!(holder(&server, &key), "tA");
        // And many one after the other do not keep the next one that does something from being noticed.
        for _ in 0..200 {
            client.pipeline(&[words("MULTI"), words("EXEC"), words("PING")]);
        }
        is_granted_by(&server, &mut client, &[words("MULTI"), del, words("EXEC")], &mut b)
    });
}

#[test]
fn a_transaction_of_many_keys_serves_the_queues_of_all_of_them() {
    let server = Server::start();
    within(AT_ONCE, "60 keys", |round| {
        let keys: Vec<_> = (0..60).map(|number| format!("key:{round}:{number}")).collect();
        let mut client = server.client();
        client.call(&["MULTI"]);
        for key in &keys {
            assert!(queued(&client.call(&["DEL", key])));
        }
        let mut waiting: Vec<_> = keys
            .iter()
            .map(|key| {
                hold(&server, key, "tA", "10m");
                line_up(&server, key, "tB", "1m", "0")
            })
            .collect();
        let noise = Noise::of(&server);
        let at = Instant::now();
        assert_eq!(client.call(&["EXEC"]).array().len(), keys.len());
        waiting.iter_mut().for_each(|waiter| assert!(waiter.fence() > 0));
        took(at, noise)
    });
}

#[test]
fn our_own_commands_in_a_transaction_hand_the_lock_over_within_it() {
    let server = Server::start();
    within(ms(81) + AT_ONCE, "the end of a renewed lease", |round| {
        let key = format!("k{round}");
        hold(&server, &key, "tA", "1m");
        let mut client = server.client();
        client.pipeline(&[words("MULTI"), args!["LOCK.RELEASE", &key, "tA"], args!["GET", &key]]);
        let mut b = line_up(&server, &key, "tB", "1m", "0");
        let mut c = line_up(&server, &key, "tC", "1m", "0");
        a_while();
        b.still_waits(&server, &key);
        let replies = client.call(&["EXEC"]).array();
        assert_eq!((replies[0].int(), replies[1].text().as_str()), (1, "tB"));
        b.fence();
        c.still_waits(&server, &key);
        // A renewal that lets the lease end earlier.
        let noise = Noise::of(&server);
        let at = Instant::now();
        let renewed = client.pipeline(&[words("MULTI"), args!["LOCK.RENEW", &key, "tB", "80ms"], words("EXEC")]);
        assert_eq!(renewed[2].array()[0].int(), 1);
        c.fence();
        let took = took(at, noise);
        assert!(at.elapsed() + ms(1) >= ms(80));
        took
    });
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
        let call = |key: &str| {
            let (a, b) = key.split_at(5);
            [road.clone(), args![a, b]].concat()
        };
        within(AT_ONCE, "a key made up", |round| {
            let key = format!("made-up-{number}-{round}");
            hold(&server, &key, "tA", "1m");
            let mut waiter = line_up(&server, &key, "tB", "1m", "0");
            is_granted_by(&server, &mut client, &[call(&key)], &mut waiter)
        });
        within(AT_ONCE, "a key made up within a transaction", |round| {
            let key = format!("queued-{number}-{round}");
            hold(&server, &key, "tA", "1m");
            client.pipeline(&[words("MULTI"), call(&key)]);
            let mut waiter = line_up(&server, &key, "tB", "1m", "0");
            a_while();
            waiter.still_waits(&server, &key);
            is_granted_by(&server, &mut client, &[words("EXEC")], &mut waiter)
        });
    }
}

#[test]
fn a_del_in_one_database_serves_the_queue_there_and_no_other() {
    let server = Server::start();
    let queue_up = |db: i64, key: &str| {
        let mut client = server.client();
        client.call(&args!["SELECT", db]);
        assert!(client.call(&["LOCK.ACQUIRE", key, "tA", "1m"]).int() > 0);
        client.send(&["LOCK.ACQUIRE", key, "tB", "1m", "BLOCK", "0"]);
        client
    };
    within(AT_ONCE, "database 7", |round| {
        let key = format!("k{round}");
        let (mut zero, mut seven) = (queue_up(0, &key), queue_up(7, &key));
        wait_for(SOON, "both wait", || waiters(&server), |n| *n == 2);
        let noise = Noise::of(&server);
        let at = Instant::now();
        server.client().pipeline(&[words("SELECT 7"), args!["DEL", &key]]);
        assert!(seven.read(SOON).unwrap().int() > 0);
        let took = took(at, noise);
        assert!(zero.is_silent(ms(60)));
        server.client().pipeline(&[words("SELECT 3"), args!["SET", &key, "x"], args!["DEL", &key]]);
        assert!(zero.is_silent(ms(60)));
        server.call(&["DEL", &key]);
        assert!(zero.read(SOON).unwrap().int() > 0);
        took
    });
}

#[test]
fn a_del_that_was_held_back_by_a_pause_is_noticed_when_it_runs() {
    let server = Server::start();
    // The end of a pause is noticed in the server's cron.
    within(ms(150), "the grant after the pause", |round| {
        let key = format!("k{round}");
        hold(&server, &key, "tA", "1m");
        let mut b = line_up(&server, &key, "tB", "1m", "0");
        server.call(&["CLIENT", "PAUSE", "600000", "WRITE"]);
        let mut client = server.client();
        client.send(&["DEL", &key]);
        assert!(b.client.is_silent(ms(300)), "writes are paused");
        let noise = Noise::of(&server);
        let ended = Instant::now();
        server.call(&["CLIENT", "UNPAUSE"]);
        b.fence();
        assert_eq!(client.read(SOON).unwrap().int(), 1);
        took(ended, noise)
    });
}

#[test]
fn among_keys_as_long_as_the_waited_one_the_right_one_is_told() {
    let server = Server::start();
    let mut client = server.client();
    let others: Vec<_> = (0..1000).filter(|n| *n != 500).map(|n| format!("lock:{n:06}")).collect();
    let all: Vec<_> = others.iter().map(String::as_str).chain(["lock:000500"]).collect();
    let del = args![[&["DEL"][..], &all[..]].concat()];
    within(AT_ONCE, "the last of a thousand", |_| {
        hold(&server, "lock:000500", "tA", "1m");
        let mut b = line_up(&server, "lock:000500", "tB", "1m", "0");
        for batch in others.chunks(100) {
            client.pipeline(&batch.iter().map(|key| args!["SET", key, "x"]).collect::<Vec<_>>());
            client.pipeline(&batch.iter().map(|key| args!["DEL", key]).collect::<Vec<_>>());
        }
        b.still_waits(&server, "lock:000500");
        let late = is_granted_by(&server, &mut client, std::slice::from_ref(&del), &mut b);
        assert_eq!(release(&server, "lock:000500", "tB"), 1);
        late
    });
}

#[test]
fn a_key_longer_than_any_that_is_told_by_its_length_is_noticed_and_an_empty_one() {
    let server = Server::start();
    for key in ["k".repeat(5000).as_str(), ""] {
        within(AT_ONCE, "its DEL", |_| {
            hold(&server, key, "tA", "1m");
            let mut b = line_up(&server, key, "tB", "1m", "0");
            server.call(&["DEL", &"K".repeat(5000)]);
            b.still_waits(&server, key);
            let late = is_granted_by(&server, &mut server.client(), &[args!["DEL", key]], &mut b);
            assert_eq!(release(&server, key, "tB"), 1);
            late
        });
    }
}

#[test]
fn a_permit_that_a_blocked_client_snatches_goes_to_the_next() {
    let server = Server::start();
    let mut client = server.client();
    let mut all = Vec::new();
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
        all.push(took(at, noise));
        assert_eq!(client.read(SOON).unwrap().int(), 1);
        assert_eq!(client.read(SOON).unwrap().array().len(), 3);
    }
    // Two looks, one after the other, where the module looks by a timer. A machine that is busy elsewhere spoils two rounds
    // at most.
    all.sort();
    assert!(all[2] <= if is_deaf(&server) { 2 * AT_ONCE } else { AT_ONCE }, "until both have had it: {all:?}");
}

#[test]
fn an_eviction_is_noticed_whenever_the_server_was_given_its_limit() {
    let filler = vec![b'x'; 50_000];
    let evict = |limit_first: bool| {
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
        let took = took(at, noise);
        assert!(server.info_int("stats", "evicted_keys") > 0);
        took
    };
    // The server may be above its limit with what it has read until its cron, ten times a second, has freed that; and takes no
    // write before. Who is not told looks once a second.
    within(ms(300), "with a limit from the start", |_| evict(true));
    within(ms(300), "with a limit set later", |_| evict(false));
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
            while !done.load(std::sync::atomic::Ordering::Relaxed) && sent < 50_000_000 {
                client.pipeline(&vec![words("PING"); 50]);
                sent += 50;
            }
            sent
        });
        let mut all = Vec::new();
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
            all.push(took(at, noise));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        // A machine that is busy elsewhere spoils four at most.
        all.sort();
        assert!(all[5] <= ms(100), "a round over all keys, and another: {all:?}");
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
    for (command, bound) in [
        ("OTHER.CALL", AT_ONCE),
        // No command names the key, and where events are not heard it is looked at once a second.
        ("OTHER.DELETE", if defers(&server) { ms(1025) } else { AT_ONCE }),
    ] {
        within(bound, command, |_| {
            hold(&server, "made-up", "tA", "1m");
            let mut b = line_up(&server, "made-up", "tB", "1m", "0");
            let noise = Noise::of(&server);
            let at = Instant::now();
            assert_eq!(client.call(&[command, "made", "-up"]).int(), 1);
            b.fence();
            let took = took(at, noise);
            assert_eq!(release(&server, "made-up", "tB"), 1);
            took
        });
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
    for road in roads {
        let command: Vec<_> = road.split_whitespace().map(|word| word.replace('~', " ")).collect();
        within(ms(6) + AT_ONCE, road, |_| {
            client.call(&["DEL", "cause", "effect"]);
            hold(&server, "cause", "tA", "1m");
            hold(&server, "effect", "tA", "1m");
            let mut cause = line_up(&server, "cause", "tB", "1m", "0");
            let mut effect = line_up(&server, "effect", "tB", "1m", "0");
            // The grant of `cause` writes it, and for that the other module deletes `effect`.
            let noise = Noise::of(&server);
            let at = Instant::now();
            assert_eq!(client.call(&command).int(), 1, "{road}");
            cause.fence();
            effect.fence();
            let took = took(at, noise);
            assert_eq!(holder(&server, "effect"), "tB");
            took
        });
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
