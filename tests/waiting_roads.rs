//! How the key of a waited lock can go away, or become something else, without any command of ours.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod rig;

use rig::line::{
    Waiter, defers, enter, hold, holder, is_deaf, knows, line_up, not_here, release, version, waiters, words,
};
use rig::noise::{Noise, took, within};
use rig::{SOON, Server, Value, ValueExt, args, dump_all, in_time, ms, replica, wait_for, wait_for_sync};
use std::time::{Duration, Instant};

/// How soon a waiter has a lock whose key went away: the grant follows the command; where the module cannot listen it looks.
const AT_ONCE: Duration = ms(25);

/// What happens to key `{k}`, one command a line, in one pipeline.
struct Road {
    /// What the server must know for it.
    needs: &'static str,
    /// Before the waiter comes.
    before: &'static str,
    /// Takes the key away, or puts another there.
    commands: &'static str,
    /// When the key is gone.
    gone: Gone,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Gone {
    /// When the commands are done.
    AtOnce,
    /// `{ms}` ms after they were sent, at the time `{soon}`.
    Later,
    /// It stays.
    Never,
}

const fn at_once(commands: &'static str) -> Road {
    Road { needs: "", before: "", commands, gone: Gone::AtOnce }
}

impl Road {
    const fn after(self, before: &'static str) -> Self {
        Self { before, ..self }
    }

    const fn later(self) -> Self {
        Self { gone: Gone::Later, ..self }
    }

    const fn stays(self) -> Self {
        Self { gone: Gone::Never, ..self }
    }

    const fn needs(self, needs: &'static str) -> Self {
        Self { needs, ..self }
    }

    /// A holds, B waits, the road is taken: B has the lock as soon as it is free, and A's token is good for nothing.
    fn take(&self, server: &Server, key: &str) -> bool {
        if !self.needs.is_empty() && !knows(server, self.needs) {
            not_here(self.commands, "this server does not know the command");
            return false;
        }
        // The server's own search for keys whose time is over may be long in coming; the module has to do without.
        server.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        within(AT_ONCE, self.commands, |round| {
            let key = format!("{key}{round}");
            match self.gone {
                // Of several commands the last must have been run before what the first has shortened is over.
                Gone::Later => in_time(80, |time| self.is_taken(server, &format!("{key}:{time}"), time)),
                _ => self.is_taken(server, &key, 0).expect("nothing that ends"),
            }
        });
        true
    }

    /// The same with one key, and how late B had the lock; none if the time was over before all commands were run.
    fn is_taken(&self, server: &Server, key: &str, time: u64) -> Option<Duration> {
        let run = |commands: &str| -> Vec<Value> {
            let soon = (server.now_ms() + time as i64).to_string();
            let word = |word: &str| {
                let word = word.replace("{k}", key).replace("{soon}", &soon).replace("{ms}", &time.to_string());
                word.replace('~', " ").into_bytes()
            };
            let lines = commands.lines().map(str::trim).filter(|line| !line.is_empty());
            let all: Vec<_> = lines.map(|line| line.split_whitespace().map(word).collect()).collect();
            server.client().pipeline(&all)
        };
        let first = hold(server, key, "tA", "10m");
        for reply in run(self.before) {
            assert!(reply.error().is_none(), "before: {reply:?}");
        }
        let mut b = line_up(server, key, "tB", "10m", "0");
        let mut noise = Noise::of(server);
        let mut at = Instant::now();
        let replies = run(self.commands);
        if self.gone == Gone::Later && at.elapsed() >= ms(time) {
            return None;
        }
        for reply in replies {
            assert!(reply.error().is_none(), "{reply:?}");
        }
        if self.gone == Gone::Never {
            b.still_waits(server, key);
            (noise, at) = (Noise::of(server), Instant::now());
            server.call(&["DEL", key]);
        }
        b.fence();
        let took = took(at, noise);
        if self.gone == Gone::Later {
            // By the server's clock, of which the time that it was told may be a millisecond short.
            assert!(at.elapsed() + ms(1) >= ms(time), "before the key was gone: {:?}", at.elapsed());
        }
        self.is_the_waiters(server, key, b, first);
        // A deadline is over when its millisecond is.
        Some(took.saturating_sub(if time > 0 { ms(time + 1) } else { ms(0) }))
    }

    fn is_the_waiters(&self, server: &Server, key: &str, b: Waiter, first: i64) {
        assert_eq!(holder(server, key), "tB");
        assert_eq!(release(server, key, "tA"), 0, "a late release by the first holder");
        assert_eq!(server.call(&words(&format!("LOCK.RENEW {key} tA 1000"))).int(), 0, "a late renewal by it");
        let fence = server.call(&["LOCK.ACQUIRE", key, "tB", "10m"]).int();
        assert!(fence > first, "fences grow");
        b.has_no_other_reply();
    }
}

macro_rules! roads {
    ($($name:ident: $road:expr,)*) => {
        /// All of them, by name.
        const ROADS: &[(&str, Road)] = &[$((stringify!($name), $road),)*];

        $(
            #[test]
            fn $name() {
                $road.take(&Server::start(), "k");
            }
        )*
    };
}

roads! {
    // L30: by any road.
    l30_del: at_once("DEL {k}"),
    l30_unlink: at_once("UNLINK {k}"),
    l30_getdel: at_once("GETDEL {k}"),
    l30_flushdb: at_once("FLUSHDB"),
    l30_flushdb_async: at_once("FLUSHDB ASYNC"),
    l30_flushall: at_once("FLUSHALL"),
    l30_flushall_async: at_once("FLUSHALL ASYNC"),
    l30_swapdb_away: at_once("SWAPDB 0 1").after("SELECT 1\n FLUSHDB"),
    l30_swapdb_away_named_the_other_way_round: at_once("SWAPDB 1 0").after("SELECT 1\n FLUSHDB"),
    l30_rename_away: at_once("RENAME {k} elsewhere"),
    l30_renamenx_away: at_once("RENAMENX {k} elsewhere").after("DEL elsewhere"),
    l30_move_away: at_once("MOVE {k} 2").after("SELECT 2\n DEL {k}"),
    a_script_that_deletes: at_once("EVAL return~redis.call('DEL',KEYS[1]) 1 {k}"),
    a_transaction_that_deletes: at_once("MULTI\n SET other 1\n DEL {k}\n SET other 2\n EXEC"),
    an_expiry_in_the_past: at_once("EXPIRE {k} -1"),
    an_expiry_at_a_time_in_the_past: at_once("EXPIREAT {k} 1"),
    a_set_that_ends_in_the_past: at_once("SET {k} x PXAT 1"),
    a_store_of_nothing: at_once("SUNIONSTORE {k} none1 none2"),
    a_sort_of_nothing: at_once("SORT none STORE {k}"),
    a_bitop_of_nothing: at_once("BITOP AND {k} none1 none2"),
    a_copy_in_another_database_is_another_key: at_once("COPY {k} {k} DB 3 REPLACE\n DEL {k}"),
    delex: at_once("DELEX {k} IFEQ tA").needs("DELEX"),
    delifeq: at_once("DELIFEQ {k} tA").needs("DELIFEQ"),
    // A shortened TTL.
    expiry: at_once("PEXPIRE {k} {ms}").later(),
    expireat: at_once("PEXPIREAT {k} {soon}").later(),
    getex: at_once("GETEX {k} PX {ms}").later(),
    getex_at: at_once("GETEX {k} PXAT {soon}").later(),
    persisted_and_then_expired: at_once("PERSIST {k}\n PEXPIRE {k} {ms}").later(),
    set_over_it_with_a_ttl: at_once("SET {k} x PX {ms}").later(),
    psetex_over_it: at_once("PSETEX {k} {ms} x").later(),
    set_over_it_keeping_the_ttl: at_once("PEXPIRE {k} {ms}\n SET {k} x KEEPTTL").later(),
    // A foreign key in its place, with a TTL: respected, to its end.
    deleted_and_set_in_a_transaction: at_once("MULTI\n DEL {k}\n SET {k} x NX PX {ms}\n EXEC").later(),
    deleted_and_set_in_a_script:
        at_once("EVAL redis.call('DEL',KEYS[1])redis.call('SET',KEYS[1],'x','PX',{ms})return~1 1 {k}").later(),
    rename_onto_it: at_once("PEXPIRE other {ms}\n RENAME other {k}").after("SET other x").later(),
    copy_onto_it: at_once("PEXPIRE other {ms}\n COPY other {k} REPLACE").after("SET other x").later(),
    swapdb_with_one_that_has_the_key:
        at_once("SELECT 1\n PEXPIRE {k} {ms}\n SWAPDB 0 1").after("SELECT 1\n FLUSHDB\n SET {k} x").later(),
    move_onto_it:
        at_once("MULTI\n DEL {k}\n SELECT 4\n PEXPIRE {k} {ms}\n MOVE {k} 0\n EXEC").after("SELECT 4\n SET {k} x").later(),
    a_list_with_a_ttl_in_its_place:
        at_once("MULTI\n DEL {k}\n RPUSH {k} 1\n PEXPIRE {k} {ms}\n EXEC").later(),
    // A foreign key in its place that stays until it is deleted.
    set_over_it_without_a_ttl: at_once("SET {k} x").stays(),
    persisted: at_once("PERSIST {k}").stays(),
    renamed_onto_without_a_ttl: at_once("SET other x\n RENAME other {k}").stays(),
    copied_onto_without_a_ttl: at_once("SET other x\n COPY other {k} REPLACE").stays(),
    swapped_with_one_that_has_the_key: at_once("SWAPDB 0 1").after("SELECT 1\n FLUSHDB\n SET {k} x").stays(),
    deleted_and_set_without_a_ttl: at_once("MULTI\n DEL {k}\n SET {k} x\n EXEC").stays(),
    a_list_in_its_place: at_once("MULTI\n DEL {k}\n RPUSH {k} 1\n EXEC").stays(),
    a_set_stored_over_it: at_once("SADD other x\n SUNIONSTORE {k} other").stays(),
    a_stream_renamed_onto_it: at_once("XADD other * f v\n RENAME other {k}").after("DEL other").stays(),
    a_hash_in_its_place: at_once("MULTI\n DEL {k}\n HSET {k} f v\n EXEC").stays(),
    debug_reload: at_once("DEBUG RELOAD").stays(),
    a_key_of_the_same_name_elsewhere: at_once("SELECT 5\n SET {k} x\n DEL {k}\n SELECT 0").stays(),
}

#[test]
fn after_all_roads_a_replica_and_the_aof_hold_the_same_without_the_module() {
    let primary = Server::builder().args(&["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"]).start();
    let follower = replica(&primary, false);
    let mut taken = 0;
    for (name, road) in ROADS {
        taken += usize::from(road.take(&primary, name));
        wait_for_sync(&primary, &follower);
        assert_eq!(dump_all(&follower), dump_all(&primary), "after {name}");
    }
    assert!(taken > 40);
    let all = dump_all(&primary);
    assert!(!all.is_empty());
    let dir = primary.dir().to_owned();
    let copy = tempfile::tempdir().unwrap();
    primary.call(&["CONFIG", "SET", "appendfsync", "always"]);
    primary.call(&["SET", "last", "1"]);
    primary.call(&["DEL", "last"]);
    let aof = copy.path().join("appendonlydir");
    std::fs::create_dir(&aof).unwrap();
    for file in std::fs::read_dir(dir.join("appendonlydir")).unwrap().flatten() {
        std::fs::copy(file.path(), aof.join(file.file_name())).unwrap();
    }
    let reader = Server::builder().module(false).dir(copy.path()).args(&["--appendonly", "yes"]).start();
    assert_eq!(dump_all(&reader), all, "read from the AOF");
}

#[test]
fn restore_over_it_is_respected_to_its_ttl() {
    let server = Server::start();
    server.call(&["SET", "other", "x"]);
    let dump = server.call(&["DUMP", "other"]).bytes();
    within(ms(81) + AT_ONCE, "the grant after RESTORE's ttl", |round| {
        let key = format!("k{round}");
        hold(&server, &key, "tA", "1m");
        let mut b = line_up(&server, &key, "tB", "1m", "0");
        let noise = Noise::of(&server);
        let at = Instant::now();
        assert_eq!(server.call(&args!["RESTORE", &key, 80, &dump, "REPLACE"]).text(), "OK");
        b.fence();
        let took = took(at, noise);
        assert!(at.elapsed() + ms(1) >= ms(80));
        assert_eq!(holder(&server, &key), "tB");
        took
    });
    // And without a TTL.
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    assert_eq!(server.call(&args!["RESTORE", "k", 0, &dump, "REPLACE"]).text(), "OK");
    b.still_waits(&server, "k");
    assert_eq!(holder(&server, "k"), "x");
    server.call(&["DEL", "k"]);
    b.fence();
    assert_eq!(holder(&server, "k"), "tB");
}

#[test]
fn l30_eviction() {
    let server = Server::builder().args(&["--maxmemory-policy", "allkeys-lru"]).start();
    let mut client = server.client();
    hold(&server, "k", "tA", "1m");
    for number in 0..50 {
        client.call(&args!["SET", format!("other{number}"), vec![b'x'; 10_000]]);
    }
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    // Less and less room, until it is this key's turn.
    let answered = |b: &mut Waiter| b.client.read(ms(30)).ok();
    let mut reply = None;
    for _ in 0..60 {
        let room = server.info_int("memory", "used_memory") - 40_000;
        let squeeze = [args!["CONFIG", "SET", "maxmemory", room], args!["PING"], words("CONFIG SET maxmemory 0")];
        client.pipeline(&squeeze);
        reply = answered(&mut b);
        if reply.is_some() {
            break;
        }
    }
    assert!(server.info_int("stats", "evicted_keys") > 0);
    assert!(reply.expect("the key was evicted in the end").int() > 0);
    assert_eq!(release(&server, "k", "tA"), 0);
    assert_eq!(waiters(&server), 0);
}

#[test]
fn a_key_of_another_type_keeps_the_waiters_until_its_last_element_goes() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    let mut c = line_up(&server, "k", "tC", "1m", "0");
    server.client().pipeline(&[words("MULTI"), words("DEL k"), words("RPUSH k 1 2"), words("EXEC")]);
    assert!(server.call(&words("LOCK.ACQUIRE k tX 1000 BLOCK 0")).is_error("WRONGTYPE "), "a newcomer is refused");
    server.call(&["RPOP", "k"]);
    b.still_waits(&server, "k");
    server.call(&["RPOP", "k"]);
    b.fence();
    c.still_waits(&server, "k");
    assert_eq!(holder(&server, "k"), "tB");
    // By its TTL as well.
    server.client().pipeline(&[
        words("MULTI"),
        words("DEL k"),
        words("RPUSH k 1"),
        words("PEXPIRE k 60000"),
        words("EXEC"),
    ]);
    c.still_waits(&server, "k");
    assert_eq!(server.call(&words("PEXPIRE k 50")).int(), 1);
    c.fence();
}

#[test]
fn a_timeout_runs_on_behind_a_key_of_another_type() {
    let server = Server::start();
    let (key, mut b) = in_time(150, |patience| {
        let key = format!("k{patience}");
        hold(&server, &key, "tA", "1m");
        let b = enter(&server, &key, "tB", "1m", &format!("{patience}ms"));
        server.client().pipeline(&[args!["MULTI"], args!["DEL", &key], args!["RPUSH", &key, 1], args!["EXEC"]]);
        (b.sent.elapsed() < ms(patience)).then_some((key, b))
    });
    assert_eq!(b.reply().int(), 0);
    assert_eq!(server.cli_raw(&["LRANGE", &key, "0", "-1"]), "1", "untouched");
}

#[test]
fn the_grant_follows_the_command_so_a_set_sent_with_a_del_is_too_late() {
    let server = Server::start();
    for (what, is) in
        [("Redis 7.0 runs what it has read first", defers(&server)), ("it is looked at by a timer", is_deaf(&server))]
    {
        if is {
            return not_here("a SET NX sent together with a DEL", what);
        }
    }
    let mut client = server.client();
    for round in 0..30 {
        let key = format!("k{round}");
        hold(&server, &key, "tA", "1m");
        let mut b = line_up(&server, &key, "tB", "1m", "0");
        let replies = client.pipeline(&[args!["DEL", &key], args!["SET", &key, "x", "NX", "PX", 60_000]]);
        assert!(replies[1].is_nil(), "the waiter has it by then");
        b.fence();
        assert_eq!(holder(&server, &key), "tB");
    }
}

#[test]
fn an_acquire_sent_with_a_del_never_jumps_the_queue() {
    let server = Server::start();
    let mut client = server.client();
    for (round, road) in ["DEL {k}", "FLUSHALL", "RENAME {k} x", "SWAPDB 0 {db}", "PEXPIRE {k} -1"].iter().enumerate() {
        let key = format!("k{round}");
        hold(&server, &key, "tA", "1m");
        let mut b = line_up(&server, &key, "tB", "1m", "0");
        let road = |db: &str| words(&road.replace("{k}", &key).replace("{db}", db));
        let replies = client.pipeline(&[road("1"), args!["LOCK.ACQUIRE", &key, "tX", "1m"]]);
        assert_eq!(replies[1].int(), 0, "{key}");
        b.fence();
        // Within a transaction, too.
        let mut c = line_up(&server, &key, "tC", "1m", "0");
        let acquire = args!["LOCK.ACQUIRE", &key, "tX", "1m"];
        let replies = client.pipeline(&[words("MULTI"), road("2"), acquire, words("EXEC")]);
        assert_eq!(replies[3].array()[1].int(), 0);
        c.fence();
    }
}

#[test]
fn move_and_copy_by_others_stay_right_while_somebody_waits() {
    let primary = Server::builder().args(&["--appendonly", "yes"]).start();
    let follower = replica(&primary, false);
    hold(&primary, "k", "tA", "1m");
    let mut b = line_up(&primary, "k", "tB", "1m", "0");
    let mut client = primary.client();
    for (number, command) in ["MOVE {k} 6", "COPY {k} {k} DB 6", "COPY {k} {k}2"].iter().enumerate() {
        let key = format!("other{number}");
        client.call(&args!["SET", &key, "v"]);
        assert_eq!(client.call(&words(&command.replace("{k}", &key))).int(), 1);
        // The client is still in database 0.
        client.call(&args!["SET", format!("here{number}"), "v"]);
        assert_eq!(primary.call(&args!["GET", format!("here{number}")]).text(), "v", "{command}");
    }
    wait_for_sync(&primary, &follower);
    assert_eq!(dump_all(&follower), dump_all(&primary));
    b.still_waits(&primary, "k");
}

#[test]
fn one_flush_serves_the_queues_of_all_keys_and_databases_it_emptied_and_no_others() {
    let server = Server::start();
    let wait = |db: i64, key: String| {
        let mut client = server.client();
        client.call(&args!["SELECT", db]);
        assert!(client.call(&args!["LOCK.ACQUIRE", &key, "tA", "1m"]).int() > 0);
        client.send(&args!["LOCK.ACQUIRE", &key, "tB", "1m", "BLOCK", 0]);
        client
    };
    let mut zero: Vec<_> = (0..50).map(|number| wait(0, format!("k{number}"))).collect();
    let mut one: Vec<_> = (0..50).map(|number| wait(1, format!("k{number}"))).collect();
    wait_for(SOON, "all wait", || waiters(&server), |n| *n == 100);
    server.call(&["FLUSHDB"]);
    zero.iter_mut().for_each(|client| assert!(client.read(SOON).unwrap().int() > 0));
    assert_eq!(waiters(&server), 50, "those of database 1");
    server.call(&["FLUSHALL"]);
    one.iter_mut().for_each(|client| assert!(client.read(SOON).unwrap().int() > 0));
    assert_eq!(waiters(&server), 0);
}

#[test]
fn the_servers_version_is_known() {
    let server = Server::start();
    assert!(version(&server).1 >= [7, 0, 0]);
}

#[test]
fn a_permit_that_another_client_takes_out_goes_to_the_next() {
    let server = Server::start();
    let mut client = server.client();
    for token in ["a", "b"] {
        assert!(client.call(&["SEM.ACQUIRE", "k", token, "1m", "2"]).int() > 0);
    }
    let mut waiter = server.client();
    waiter.send(&["SEM.ACQUIRE", "k", "c", "1m", "2", "BLOCK", "0"]);
    wait_for(SOON, "it waits", || server.info_int("sluice", "sluice_sem_waiters"), |n| *n == 1);
    assert_eq!(client.call(&["ZREM", "k", "a"]).int(), 1);
    assert!(waiter.read(SOON).unwrap().int() > 0);
}
