//! The usual Lua scripts beside the commands: the same random calls to both at once, and the same decisions; and where a
//! script is wrong, how.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod kinds;
mod rig;

use kinds::{ends_at, granted, int, wait_past, words};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rig::{Client, Server, ValueExt, args, in_time};
use std::path::Path;

/// A lease that outlasts a phase of calls, in ms; where one did not, those of the next phase are twice as long.
const TTL: i64 = 400;
const LONGEST_TTL: i64 = 12_800;

struct Script(String);

impl Script {
    fn load(client: &mut Client, name: &str) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/lua").join(name);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Self(client.call(&["SCRIPT", "LOAD", &text]).text())
    }

    fn words(&self, key: &str, rest: &str) -> Vec<Vec<u8>> {
        words(&format!("EVALSHA {} 1 {key} {rest}", self.0))
    }

    fn int(&self, client: &mut Client, key: &str, rest: &str) -> i64 {
        client.call(&self.words(key, rest)).int()
    }
}

/// Phases of random calls, each shorter than the leases taken in it; between them all leases end, but for those of holders
/// who never died. Gives how many decisions were compared.
fn compare(mut pair_of_calls: impl FnMut(&mut StdRng, i64) -> (Vec<Vec<u8>>, Vec<Vec<u8>>)) -> usize {
    let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("SEED={seed} replays it");
    let mut rng = StdRng::seed_from_u64(seed);
    let server = SERVER.with(std::rc::Rc::clone);
    let (mut client, mut compared, mut ttl) = (server.client(), 0, TTL);
    for _ in 0..8 {
        let begun = server.now_ms();
        let mut decisions = vec![];
        for _ in 0..25 {
            let mut batch = vec![];
            for _ in 0..4 {
                let (script, command) = pair_of_calls(&mut rng, ttl);
                batch.extend([script, command]);
            }
            for (pair, words) in client.pipeline(&batch).chunks(2).zip(batch.chunks(2)) {
                decisions.push((pair[0].int() > 0, pair[1].int() > 0, words[1].join(&b' ').escape_ascii().to_string()));
            }
        }
        // On a machine that slept meanwhile some leases may have ended between a script and its command.
        let now = server.now_ms();
        let in_time = now < begun + ttl - 5;
        if in_time {
            for (script, command, call) in &decisions {
                assert_eq!(script, command, "{call}");
            }
            compared += decisions.len();
        }
        wait_past(&server, now + ttl + 1);
        ttl = if in_time { ttl } else { LONGEST_TTL.min(2 * ttl) };
    }
    compared
}

thread_local! {
    static SERVER: std::rc::Rc<Server> = std::rc::Rc::new(Server::start());
}

#[test]
fn reentrant_scripts_and_commands_decide_alike() {
    let mut client = SERVER.with(|server| server.client());
    let acquire = Script::load(&mut client, "reentrant_acquire.lua");
    let release = Script::load(&mut client, "reentrant_release.lua");
    let compared = compare(|rng, ttl| {
        let (n, token) = (rng.random_range(0..3), format!("t{}", rng.random_range(0..3)));
        if rng.random_bool(0.5) {
            let script = acquire.words(&format!("lua{n}"), &format!("{token} {ttl}"));
            (script, words(&format!("LOCK.ACQUIRE own{n} {token} {ttl} REENTRANT")))
        } else {
            (release.words(&format!("lua{n}"), &token), words(&format!("LOCK.RELEASE own{n} {token}")))
        }
    });
    assert!(compared > 0, "a machine too slow to compare anything");
    // The same is stored.
    acquire.int(&mut client, "lua", "t 16000000");
    acquire.int(&mut client, "lua", "t 16000000");
    granted(&mut client, "LOCK.ACQUIRE own t 16000000 REENTRANT");
    granted(&mut client, "LOCK.ACQUIRE own t 16000000 REENTRANT");
    assert_eq!(client.call(&["DUMP", "own"]), client.call(&["DUMP", "lua"]));
}

#[test]
fn semaphore_scripts_and_commands_decide_alike() {
    let mut client = SERVER.with(|server| server.client());
    let acquire = Script::load(&mut client, "semaphore_acquire.lua");
    let release = Script::load(&mut client, "semaphore_release.lua");
    let compared = compare(|rng, ttl| {
        let (n, token) = (rng.random_range(0..3), format!("t{}", rng.random_range(0..5)));
        if rng.random_bool(0.6) {
            let limit = rng.random_range(1..4);
            let script = acquire.words(&format!("lua{n}"), &format!("{token} {ttl} {limit}"));
            (script, words(&format!("SEM.ACQUIRE own{n} {token} {ttl} {limit}")))
        } else {
            (release.words(&format!("lua{n}"), &token), words(&format!("SEM.RELEASE own{n} {token}")))
        }
    });
    assert!(compared > 0, "a machine too slow to compare anything");
}

#[test]
fn an_inner_call_of_the_reentrant_script_cuts_the_outer_lease_and_that_of_the_command_does_not() {
    let server = Server::start();
    let mut client = server.client();
    let acquire = Script::load(&mut client, "reentrant_acquire.lua");
    acquire.int(&mut client, "lua", "t 60000");
    acquire.int(&mut client, "lua", "t 1000");
    assert!(client.call(&["PTTL", "lua"]).int() <= 1000, "the script: one second, though a minute was promised");
    granted(&mut client, "LOCK.ACQUIRE own t 60s REENTRANT");
    let before = client.call(&["PEXPIRETIME", "own"]);
    granted(&mut client, "LOCK.ACQUIRE own t 1s REENTRANT");
    assert_eq!(client.call(&["PEXPIRETIME", "own"]), before);
}

#[test]
fn the_semaphore_script_loses_long_permits_with_a_short_one_and_the_command_does_not() {
    let server = Server::start();
    let mut client = server.client();
    let acquire = Script::load(&mut client, "semaphore_acquire.lua");
    let release = Script::load(&mut client, "semaphore_release.lua");
    acquire.int(&mut client, "lua", "long 60000 1");
    granted(&mut client, "SEM.ACQUIRE own long 60s 1");
    acquire.int(&mut client, "lua", "short 20 2");
    granted(&mut client, "SEM.ACQUIRE own short 20ms 2");
    let now = server.now_ms();
    wait_past(&server, now + 30);
    assert_eq!(acquire.int(&mut client, "lua", "next 60000 1"), 1, "the script: two hold the one permit");
    assert_eq!(int(&mut client, "SEM.ACQUIRE own next 60s 1"), 0);

    // A holder that asks again with a shorter ttl: the script shortens, the command does not.
    client.call(&["DEL", "lua"]);
    acquire.int(&mut client, "lua", "long 60000 1");
    acquire.int(&mut client, "lua", "long 20000 1");
    let left = |client: &mut Client| client.call(&["ZSCORE", "lua", "long"]).text().parse::<i64>().unwrap();
    assert!(left(&mut client) < server.now_ms() + 30_000);
    let before = ends_at(&server, "own", "long");
    granted(&mut client, "SEM.ACQUIRE own long 1s 1");
    assert_eq!(ends_at(&server, "own", "long"), before);

    // A late release: the script says 1 of a permit that is over, as if the work had been covered to its end.
    // (The short one is the whole key's lease until the long one is taken: in time, or there is nothing to release.)
    let ttl = in_time(10, |ttl| {
        client.pipeline(&[acquire.words("lua", &format!("late {ttl} 2")), acquire.words("lua", "long 60000 2")]);
        (client.call(&["ZCARD", "lua"]).int() == 2).then_some(ttl as i64)
    });
    granted(&mut client, "SEM.ACQUIRE own late 10ms 2");
    let now = server.now_ms();
    wait_past(&server, now + ttl + 10);
    assert_eq!(release.int(&mut client, "lua", "late"), 1);
    assert_eq!(int(&mut client, "SEM.RELEASE own late"), 0);
}

#[test]
fn a_refused_script_writes_where_a_refused_command_does_not() {
    let server = Server::start();
    let mut client = server.client();
    let acquire = Script::load(&mut client, "semaphore_acquire.lua");
    // The short lease must not be over before the long one is taken.
    let ttl = in_time(40, |ttl| {
        let replies = client.pipeline(&[
            args!["DEL", "lua", "own"],
            acquire.words("lua", &format!("dead {ttl} 2")),
            acquire.words("lua", "lives 16000000 2"),
            words(&format!("SEM.ACQUIRE own dead {ttl} 2")),
            words("SEM.ACQUIRE own lives 16000000 2"),
            args!["ZCARD", "lua"],
            args!["ZCARD", "own"],
        ]);
        assert!(replies[1..5].iter().all(|reply| reply.int() > 0), "{replies:?}");
        replies[5..].iter().all(|both| both.int() == 2).then_some(ttl as i64)
    });
    let now = server.now_ms();
    wait_past(&server, now + ttl + 5);
    let dirty = |server: &Server| server.info_int("persistence", "rdb_changes_since_last_save");
    let before = dirty(&server);
    assert_eq!(int(&mut client, "SEM.ACQUIRE own next 1m 1"), 0);
    assert_eq!(dirty(&server), before);
    assert_eq!(acquire.int(&mut client, "lua", "next 60000 1"), 0);
    assert!(dirty(&server) > before, "the script removed the dead one, and told the replicas");
    assert_eq!(client.call(&args!["ZCARD", "lua"]).int(), 1);
}
