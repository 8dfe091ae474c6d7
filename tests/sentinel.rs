//! Under Sentinel: the primary is killed while clients lock, wait and are limited. What that costs, what is lost, and what WAIT
//! and `min-replicas-to-write` save of it. `docs/failover.md` has the figures of a run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod rig;

use rig::line::{line_up, words};
use rig::sentinel::{Follower, NAME, Sentinel, primary_by, three};
use rig::{Client, SOON, Server, Value, ValueExt, args, dump_all, ms, wait_for, wait_for_sync, wait_until};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long a primary may be silent before a sentinel takes it for dead: longer than a machine stands still, or it is
/// replaced while it lives. (And no replica is chosen whose link has been down for ten times as long.) A long run has
/// the time of `docs/failover.md`.
fn down_after() -> Duration {
    if std::env::var_os("SLUICE_LONG").is_some() { ms(1000) } else { ms(3000) }
}

/// Long enough for sentinels to agree, choose and promote on a busy machine. They sync a file before they vote, and where that takes
/// longer than two seconds they trust their clocks no more and do nothing for the next thirty (`+tilt`).
const FAILOVER: Duration = ms(120_000);

/// A primary, two replicas, and three sentinels that know them.
struct Shop {
    primary: Server,
    replicas: Vec<Server>,
    sentinels: Vec<Sentinel>,
}

impl Shop {
    #[track_caller]
    fn open(options: &[&str]) -> Self {
        let primary = Server::builder().args(options).start();
        let replicas: Vec<Server> =
            (0..2).map(|_| Server::builder().args(options).replica_of(&primary).start()).collect();
        replicas.iter().for_each(|replica| wait_for_sync(&primary, replica));
        let sentinels = three(&primary, 2, down_after());
        Self { primary, replicas, sentinels }
    }

    /// The replica's link ends, and does not come back: it offers a password that nobody asks for.
    #[track_caller]
    fn cut(&self, replicas: &[usize]) {
        for at in replicas {
            self.replicas[*at].ok(&["CONFIG", "SET", "masterauth", "nobody asks for it"]);
        }
        let left = 2 - i64::try_from(replicas.len()).unwrap();
        self.primary.call(&["CLIENT", "KILL", "TYPE", "replica"]);
        let linked = || self.primary.info_int("replication", "connected_slaves");
        wait_for(SOON, "the links are cut", linked, |n| *n <= left);
        wait_for(SOON, "the others are back", linked, |n| *n == left);
        for (at, replica) in self.replicas.iter().enumerate() {
            if !replicas.contains(&at) {
                wait_for_sync(&self.primary, replica);
            }
        }
    }

    /// The links may come back.
    fn mend(&self) {
        for replica in &self.replicas {
            replica.call(&["CONFIG", "SET", "masterauth", ""]);
        }
    }

    /// Waits until all sentinels have heard of a replica that it has more than so much. They ask every ten seconds as
    /// long as all is well, choose by what they heard last, and need not hear of it between the kill and the choice.
    #[track_caller]
    fn wait_until_it_is_known_to_have_more(&self, replica: usize, than: i64) {
        let port = self.replicas[replica].port().to_string();
        for sentinel in &self.sentinels {
            let look = || {
                let known = sentinel.call(&["SENTINEL", "REPLICAS", NAME]).array();
                let of = known.iter().map(ValueExt::map).find(|of| of["port"].text() == port);
                of.map_or(0, |of| of["slave-repl-offset"].text().parse::<i64>().unwrap())
            };
            wait_for(2 * SOON, "the sentinels know who has more", look, |offset| *offset > than);
        }
    }

    /// Kills the primary and waits until the sentinels have another: its number among the replicas, and how long it took.
    #[track_caller]
    fn kill_the_primary(&mut self) -> (usize, Duration) {
        let killed = Instant::now();
        self.primary.kill9();
        let port = self.sentinels[0].port();
        let old = self.primary.port();
        let new =
            wait_for(FAILOVER, "another is the primary", || primary_by(port), |new| new.is_some_and(|new| new != old));
        let at = self.replicas.iter().position(|replica| Some(replica.port()) == new).expect("one of the replicas");
        wait_until(SOON, "it takes writes", || self.replicas[at].info("replication")["role"] == "master");
        (at, killed.elapsed())
    }
}

/// A grant that somebody was told of.
#[derive(Clone, Debug)]
struct Told {
    key: String,
    token: String,
    fence: i64,
    by: u16,
    at: Instant,
}

fn holds(server: &Server, key: &str, token: &str) -> bool {
    let value = server.call(&["GET", key]);
    !value.is_nil() && value.text() == token
}

#[test]
fn clients_that_follow_the_sentinels_go_on_after_the_primary_was_killed() {
    let mut shop = Shop::open(&[]);
    let (told, stop) = (Mutex::new(Vec::<Told>::new()), AtomicBool::new(false));
    let (units, tries) = (Mutex::new(Vec::<(u16, Instant)>::new()), Mutex::new(0_i64));
    let waits = Mutex::new(Vec::<Told>::new());
    let old = shop.primary.port();
    let (killed, new) = std::thread::scope(|scope| {
        let (told, stop, units, tries, waits) = (&told, &stop, &units, &tries, &waits);
        // Two lock: a key of its own for each grant, so that what is lost can be counted.
        for n in 0..2 {
            let mut client = Follower::new(&shop.sentinels);
            scope.spawn(move || {
                for turn in 0.. {
                    if stop.load(SeqCst) {
                        return;
                    }
                    let (key, token) = (format!("k{n}:{turn}"), format!("{n}:{turn}"));
                    let take = args!["LOCK.ACQUIRE", &key, &token, "10m"];
                    // The same token asks again until it knows: a retry is safe.
                    let (by, reply) = loop {
                        match client.try_call(&take) {
                            Some(answer) => break answer,
                            None if stop.load(SeqCst) => return,
                            None => std::thread::sleep(ms(5)),
                        }
                    };
                    told.lock().unwrap().push(Told { key, token, fence: reply.int(), by, at: Instant::now() });
                }
            });
        }
        // One is limited.
        let mut client = Follower::new(&shop.sentinels);
        scope.spawn(move || {
            while !stop.load(SeqCst) {
                *tries.lock().unwrap() += 1;
                match client.try_call(&args!["RL.SLIDING", "limit", 1_000_000, "1h"]) {
                    Some((by, reply)) if reply.ints()[0] == 1 => units.lock().unwrap().push((by, Instant::now())),
                    _ => std::thread::sleep(ms(5)),
                }
            }
        });
        // Two wait for one lock, in turns.
        for n in 0..2 {
            let mut client = Follower::new(&shop.sentinels);
            client.patience = ms(3000);
            scope.spawn(move || {
                for turn in 0.. {
                    if stop.load(SeqCst) {
                        return;
                    }
                    let token = format!("{n}:{turn}");
                    let take = args!["LOCK.ACQUIRE", "turns", &token, "2s", "BLOCK", "1s"];
                    match client.try_call(&take) {
                        Some((by, Value::Int(fence))) if fence > 0 => {
                            let key = "turns".to_owned();
                            waits.lock().unwrap().push(Told {
                                key,
                                token: token.clone(),
                                fence,
                                by,
                                at: Instant::now(),
                            });
                            client.try_call(&args!["LOCK.RELEASE", "turns", &token]);
                        }
                        Some(_) => {}
                        None => std::thread::sleep(ms(5)),
                    }
                }
            });
        }
        let ended = Ends(stop);
        wait_until(FAILOVER, "all are at work", || {
            told.lock().unwrap().len() > 200 && units.lock().unwrap().len() > 100 && waits.lock().unwrap().len() > 50
        });
        let killed = Instant::now();
        let (new, _) = shop.kill_the_primary();
        wait_until(FAILOVER, "all go on", || {
            let after = |list: &Mutex<Vec<Told>>| list.lock().unwrap().iter().filter(|one| one.by != old).count();
            after(told) > 100
                && after(waits) > 20
                && units.lock().unwrap().iter().filter(|(by, _)| *by != old).count() > 50
        });
        drop(ended);
        (killed, new)
    });
    let (told, waits, units) = (told.into_inner().unwrap(), waits.into_inner().unwrap(), units.into_inner().unwrap());
    let server = &shop.replicas[new];
    let first = |list: &[Told]| list.iter().filter(|one| one.by != old).map(|one| one.at).min().unwrap() - killed;
    let first_unit = units.iter().filter(|(by, _)| *by != old).map(|(_, at)| *at).min().unwrap() - killed;
    println!(
        "after the kill, the first new grant came in {:?}, the first by waiting in {:?}, the first unit of a limit in {first_unit:?}",
        first(&told),
        first(&waits)
    );

    // Fences: every grant of the new primary has a larger one than any of the old one's.
    let of_old = told.iter().chain(&waits).filter(|one| one.by == old).map(|one| one.fence).max().unwrap();
    let of_new = told.iter().chain(&waits).filter(|one| one.by != old).map(|one| one.fence).min().unwrap();
    assert!(of_new > of_old, "fences grow over a failover: {of_old}, then {of_new}");
    let mut fences: Vec<i64> = waits.iter().map(|one| one.fence).collect();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), waits.len(), "no fence twice");

    // What was told by the old primary and is not there: the hole of asynchronous replication, if it was hit.
    let by_old: Vec<&Told> = told.iter().filter(|one| one.by == old).collect();
    let lost = by_old.iter().filter(|one| !holds(server, &one.key, &one.token)).count();
    let kept = told.iter().filter(|one| one.by != old).all(|one| holds(server, &one.key, &one.token));
    assert!(kept, "the new primary has all its own grants");
    let used = 1_000_000 - server.call(&words("RL.SLIDING limit 1000000 1h PEEK")).ints()[2];
    let (had, asked) = (i64::try_from(units.len()).unwrap(), *tries.lock().unwrap());
    println!(
        "of {} grants of the old primary {lost} were lost; of {had} units {} were lost",
        by_old.len(),
        (had - used).max(0)
    );
    assert!(used <= asked, "{used} units used, {asked} asked for");

    // The old primary comes back, is made a replica, and forgets what it alone knew.
    shop.primary.restart();
    // The sentinels cut its clients off when they tell it, so that they ask anew who the primary is.
    let role = || {
        let mut client = Client::connect(shop.primary.port()).ok()?;
        let sent = client.send_if_open(&["ROLE"]);
        if sent { client.read(SOON).ok().map(|role| role.array()[0].text()) } else { None }
    };
    wait_for(FAILOVER, "the old primary follows the new one", role, |role| role.as_deref() == Some("slave"));
    // On a busy machine they might take the new one for dead while it is looked at, and turn both round again.
    shop.sentinels.clear();
    // Nor had they to leave it at one turn: what counts is whom it follows now.
    let follows = shop.primary.info("replication")["master_port"].clone();
    let server = shop.replicas.iter().find(|replica| replica.port().to_string() == follows).expect("one of the others");
    wait_until(SOON, "the last turn is over", || server.call(&["EXISTS", "turns"]).int() == 0);
    wait_for_sync(server, &shop.primary);
    assert_eq!(dump_all(&shop.primary).len(), dump_all(server).len());
    assert!(shop.primary.call(&words("LOCK.ACQUIRE k t 1m BLOCK 0")).is_error("READONLY "));
}

/// Tells the workers to end, also when the test ends by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_grant_that_no_replica_has_is_lost_with_the_primary_and_fences_and_wait_tell() {
    let mut shop = Shop::open(&[]);
    let mut a = shop.primary.client();
    // What both replicas have is safe; WAIT says so.
    let replies = a.pipeline(&[args!["LOCK.ACQUIRE", "safe", "tA", "10m"], args!["WAIT", 2, 10_000]]);
    let safe = replies[0].int();
    assert_eq!(replies[1].int(), 2);
    let limit = args!["RL.FIXED", "limit", 10, "10m"];
    assert_eq!(a.call(&limit).ints()[..3], [1, 10, 9]);
    assert_eq!(a.call(&args!["WAIT", 2, 10_000]).int(), 2);

    // The hole: the links are cut, and the primary does not know of it, or does not mind.
    shop.cut(&[0, 1]);
    let lost = a.call(&args!["LOCK.ACQUIRE", "lost", "tA", "10m"]).int();
    assert!(lost > safe, "A has been told that it holds the lock");
    assert_eq!(a.call(&limit).ints()[..3], [1, 10, 8]);
    // A who asks is told that nobody else knows; it gives up what it holds, or goes on with its eyes open.
    assert_eq!(a.call(&args!["WAIT", 1, 100]).int(), 0, "WAIT tells that the grant is on this server alone");
    // And so it is for a grant that comes by waiting.
    let mut b = line_up(&shop.primary, "safe", "tB", "10m", "0");
    assert_eq!(a.call(&args!["LOCK.RELEASE", "safe", "tA"]).int(), 1);
    let handed = b.fence();
    assert_eq!(b.client.call(&args!["WAIT", 1, 100]).int(), 0);

    let (new, took) = shop.kill_the_primary();
    println!("another primary after {took:?}");
    let mut c = Follower::new(&shop.sentinels);
    let mut call = |line: &str| {
        let mut answer = None;
        wait_until(FAILOVER, "the new primary answers", || {
            answer = c.try_call(&words(line));
            answer.is_some()
        });
        answer.unwrap()
    };
    // C gets the lock that A believes to hold. The fence is what tells them apart, wherever it is checked.
    let (by, reply) = call("LOCK.ACQUIRE lost tC 10m");
    assert_eq!(by, shop.replicas[new].port());
    assert!(reply.int() > lost, "C has the lock as well, and a larger fence: {lost}, then {reply:?}");
    assert_eq!(call("LOCK.RENEW lost tA 10m").1.int(), 0, "A is told at its next renewal");
    // The hand-over is lost, too: the lock is still A's, who gave it back.
    assert!(holds(&shop.replicas[new], "safe", "tA"));
    assert_eq!(call("LOCK.RENEW safe tB 10m").1.int(), 0);
    assert_eq!(call("LOCK.RELEASE safe tA").1.int(), 1);
    assert!(call("LOCK.ACQUIRE safe tB 10m").1.int() > handed);
    assert_eq!(call("RL.FIXED limit 10 10m").1.ints()[..3], [1, 10, 8], "a unit used is there again");
    shop.mend();
}

#[test]
fn a_grant_that_wait_has_counted_on_one_replica_survives_as_the_best_replica_is_chosen() {
    let mut shop = Shop::open(&[]);
    // One replica knows, the other does not: the sentinels choose the one that has more.
    shop.cut(&[0]);
    let both = shop.primary.offset();
    let mut a = shop.primary.client();
    let replies = a.pipeline(&[args!["LOCK.ACQUIRE", "k", "tA", "10m"], args!["WAIT", 1, 10_000]]);
    let fence = replies[0].int();
    assert_eq!(replies[1].int(), 1);
    assert_eq!(a.call(&args!["WAIT", 2, 100]).int(), 1);
    shop.wait_until_it_is_known_to_have_more(1, both);
    let (new, took) = shop.kill_the_primary();
    println!("another primary after {took:?}");
    assert_eq!(new, 1, "the one that had the grant");
    let server = &shop.replicas[new];
    assert!(holds(server, "k", "tA"));
    // A's lock works on: it is renewed, waited for, and handed over with a larger fence.
    assert_eq!(server.call(&words("LOCK.RENEW k tA 10m")).int(), 1);
    let mut b = line_up(server, "k", "tB", "10m", "0");
    assert_eq!(server.call(&words("LOCK.RELEASE k tA")).int(), 1);
    assert!(b.fence() > fence);
    shop.mend();
}

#[test]
fn min_replicas_to_write_stops_grants_that_no_replica_would_have_but_for_a_moment() {
    // Replicas report every second, and may be late; how soon that counts is said when it is to.
    let mut shop = Shop::open(&["--min-replicas-to-write", "1", "--min-replicas-max-lag", "60"]);
    let mut a = shop.primary.client();
    let taken = || -> bool { shop.primary.call(&words("LOCK.ACQUIRE probe t 10m")).error().is_none() };
    wait_until(SOON, "the primary counts its replicas", taken);
    let held = a.call(&words("LOCK.ACQUIRE k tA 10m")).int();
    assert!(held > 0);
    let mut b = line_up(&shop.primary, "k", "tB", "10m", "0");
    assert_eq!(a.call(&args!["WAIT", 2, 10_000]).int(), 2);

    // The replicas stall, and are not heard of any more. For as long as max-lag allows (and a second of the server's cron)
    // grants go on that no replica has confirmed: what is left of the hole.
    shop.replicas.iter().for_each(Server::stop);
    let stalled = Instant::now();
    shop.primary.ok(&["CONFIG", "SET", "min-replicas-max-lag", "1"]);
    let (mut open, mut last) = (0, Client::connect(shop.primary.port()).unwrap());
    let refused = loop {
        let reply = last.call(&args!["LOCK.ACQUIRE", format!("in between {open}"), "tA", "10m"]);
        if reply.error().is_some() {
            break reply;
        }
        open += 1;
        assert!(stalled.elapsed() < SOON, "grants go on");
        std::thread::sleep(ms(5));
    };
    let hole = stalled.elapsed();
    println!("{open} grants in the {hole:?} until NOREPLICAS");
    assert!(refused.is_error("NOREPLICAS "), "{refused:?}");
    // From here on nothing is granted that could be lost: neither by asking nor by waiting.
    assert!(a.call(&words("LOCK.RELEASE k tA")).is_error("NOREPLICAS "));
    shop.primary.call(&["CONFIG", "SET", "min-replicas-max-lag", "1"]);
    b.still_waits(&shop.primary, "k");
    assert!(a.call(&words("RL.FIXED limit 10 10m")).is_error("NOREPLICAS "));
    assert_eq!(shop.primary.info_int("sluice", "sluice_lock_handovers"), 0);

    // The primary dies, the replicas come to. What was in their sockets they read; A's lock is there in any case.
    shop.primary.kill9();
    shop.replicas.iter().for_each(Server::cont);
    let old = shop.primary.port();
    let port = shop.sentinels[0].port();
    let new =
        wait_for(FAILOVER, "another is the primary", || primary_by(port), |new| new.is_some_and(|new| new != old));
    let server = shop.replicas.iter().find(|replica| Some(replica.port()) == new).unwrap();
    wait_until(SOON, "it is one", || server.info("replication")["role"] == "master");
    assert!(holds(server, "k", "tA"));
    // It wants a replica itself, and has one when the other follows it.
    let renewed = || server.call(&words("LOCK.RENEW k tA 10m"));
    let reply = wait_for(FAILOVER, "the new primary takes writes", renewed, |reply| matches!(reply, Value::Int(_)));
    assert_eq!(reply.int(), 1);
    assert!(server.call(&words("LOCK.ACQUIRE fresh tA 10m")).int() > held);
}
