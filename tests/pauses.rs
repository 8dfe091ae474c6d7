//! When writes are paused (CLIENT PAUSE, FAILOVER, CLUSTER FAILOVER) or refused for a while (NOREPLICAS, MISCONF), with an AOF
//! and a replica: leases that end, waiters that leave and grantees that die in it. To write then would end the server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod rig;

use rig::cluster::Cluster;
use rig::line::{not_here, words};
use rig::noise::{Noise, prompt, took, within};
use rig::{
    Client, SOON, Server, Value, ValueExt, args, dump_all, in_time, ms, replica, wait_for, wait_for_sync, wait_until,
};
use std::time::{Duration, Instant};

/// The contract's bound once a gate is open again.
const SERVED: Duration = ms(150);

fn long() -> bool {
    std::env::var_os("SLUICE_LONG").is_some()
}

fn primary_and_replica() -> (Server, Server) {
    let primary = Server::builder().args(&["--appendonly", "yes"]).start();
    let follower = replica(&primary, false);
    (primary, follower)
}

/// One lock of every kind: its key's end, what takes it for the token T, and what gives it back.
const KINDS: [(&str, &str, &str); 4] = [
    ("x", "LOCK.ACQUIRE KEY T TTL", "LOCK.RELEASE KEY T"),
    ("r", "LOCK.ACQUIRE KEY T TTL REENTRANT", "LOCK.RELEASE KEY T"),
    ("s", "LOCK.ACQUIRE KEY T TTL SHARED", "LOCK.RELEASE KEY T"),
    ("p", "SEM.ACQUIRE KEY T TTL 1", "SEM.RELEASE KEY T"),
];

/// A line of KINDS with its words filled in.
fn line(pattern: &str, key: &str, token: &str, ttl: &str) -> Vec<Vec<u8>> {
    words(pattern)
        .into_iter()
        .map(|word| match word.as_slice() {
            b"KEY" => key.into(),
            b"T" => token.into(),
            b"TTL" => ttl.into(),
            _ => word,
        })
        .collect()
}

/// What takes a lock so that one of that kind must wait: a shared one waits for an exclusive one only.
fn barring(end: &str) -> &'static str {
    if end == "s" { KINDS[0].1 } else { KINDS.iter().find(|kind| kind.0 == end).unwrap().1 }
}

/// One who waits for a lock of one of the kinds.
struct Waiter {
    client: Client,
    id: i64,
    key: String,
    token: String,
}

impl Waiter {
    #[track_caller]
    fn reply(&mut self) -> Value {
        self.client.read(SOON).unwrap_or_else(|error| panic!("no reply for {}: {error}", self.key))
    }

    #[track_caller]
    fn fence(&mut self) -> i64 {
        let reply = self.reply();
        assert!(matches!(reply, Value::Int(1..)), "{}: {reply:?}", self.key);
        reply.int()
    }

    #[track_caller]
    fn holds(&self, server: &Server) {
        let info = info(server, &self.key);
        let tokens: Vec<String> = info["holders"].array().iter().map(|holder| holder.map()["token"].text()).collect();
        assert!(tokens.contains(&self.token), "{}: {tokens:?}", self.key);
    }
}

fn info(server: &Server, key: &str) -> std::collections::BTreeMap<String, Value> {
    server.call(&[if key.ends_with('p') { "SEM.INFO" } else { "LOCK.INFO" }, key]).map()
}

#[track_caller]
fn granted(server: &Server, command: &[Vec<u8>]) -> i64 {
    let reply = server.call(command);
    assert!(matches!(reply, Value::Int(1..)), "{command:?}: {reply:?}");
    reply.int()
}

#[track_caller]
fn line_up(server: &Server, take: &str, key: &str, token: &str, timeout: &str) -> Waiter {
    let waiter = send(server, take, key, token, timeout);
    wait_until(SOON, "it is in the queue", || is_queued(server, &waiter));
    waiter
}

/// The same for one whose patience may be over before anybody has seen it wait: the queue has it, or its answer is here.
#[track_caller]
fn enter(server: &Server, take: &str, key: &str, token: &str, timeout: &str) -> Waiter {
    let waiter = send(server, take, key, token, timeout);
    wait_until(SOON, "it is in the queue or answered", || waiter.client.is_answered() || is_queued(server, &waiter));
    waiter
}

fn send(server: &Server, take: &str, key: &str, token: &str, timeout: &str) -> Waiter {
    let mut client = server.client();
    let id = client.id();
    let mut command = line(take, key, token, "5m");
    command.extend(args!["BLOCK", timeout]);
    client.send(&command);
    Waiter { client, id, key: key.to_owned(), token: token.to_owned() }
}

fn is_queued(server: &Server, waiter: &Waiter) -> bool {
    info(server, &waiter.key)["queue"].array().iter().any(|entry| entry.map()["client"].int() == waiter.id)
}

/// One lock of every kind, held, and one who waits for each.
#[track_caller]
fn one_of_each(server: &Server, prefix: &str) -> Vec<Waiter> {
    KINDS
        .map(|(end, take, _)| {
            let key = format!("{prefix}{end}");
            granted(server, &line(barring(end), &key, "tA", "5m"));
            line_up(server, take, &key, "tB", "0")
        })
        .into()
}

/// The leases of all those locks end at that time from now.
#[track_caller]
fn end_leases(server: &Server, waiters: &[Waiter], within: i64) {
    end_leases_and(server, waiters, within, None);
}

/// The same, and at the same moment a command is done.
#[track_caller]
fn end_leases_and(server: &Server, waiters: &[Waiter], within: i64, then: Option<&str>) {
    let mut all = vec![words("MULTI")];
    all.extend(waiters.iter().map(|waiter| args!["PEXPIRE", &waiter.key, within]));
    all.extend(then.map(words));
    all.push(words("EXEC"));
    let done = server.client().pipeline(&all).pop().unwrap().array();
    assert!(done.iter().all(|reply| [Value::Int(1), Value::Okay].contains(reply)), "{done:?}");
}

/// The leases of all those locks end one after the other; returns when the first few have been handed over.
#[track_caller]
fn end_leases_one_by_one(server: &Server, waiters: &[Waiter], apart: i64) {
    let had = handovers(server);
    let ends = waiters.iter().zip(1..).map(|(waiter, n)| args!["PEXPIRE", &waiter.key, apart * n]);
    server.client().pipeline(&ends.collect::<Vec<_>>());
    wait_until(SOON, "some are handed over", || handovers(server) >= had + 3);
}

fn handovers(server: &Server) -> i64 {
    ["lock_handovers", "lock_expired_handovers", "sem_handovers", "sem_expired_handovers"]
        .map(|name| server.info_int("sluice", &format!("sluice_{name}")))
        .iter()
        .sum()
}

fn all_waiters(server: &Server) -> i64 {
    server.info_int("sluice", "sluice_lock_waiters") + server.info_int("sluice", "sluice_sem_waiters")
}

#[track_caller]
fn same_everywhere(primary: &mut Server, follower: &Server) {
    wait_for_sync(primary, follower);
    assert_eq!(dump_all(follower), dump_all(primary));
    lives(primary);
}

#[track_caller]
fn lives(server: &mut Server) {
    assert!(server.is_alive(), "the server has ended");
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
}

/// Nobody is granted anything until that time, which comes.
#[track_caller]
fn nobody_until(until: Instant, server: &Server, had: i64) {
    wait_until(SOON, "the time comes", || {
        assert_eq!(handovers(server), had, "granted while no writes are taken");
        Instant::now() >= until
    });
}

#[test]
fn leases_of_every_kind_that_end_in_a_pause_are_handed_over_after_it() {
    for kind in ["WRITE", "ALL"] {
        let (mut primary, follower) = primary_and_replica();
        within(ms(400) + SERVED, "the grants after a pause", |round| {
            let mut waiting = one_of_each(&primary, &format!("{round}:"));
            // In a pause of all commands the server itself has no reply.
            let noise = Noise::of(if kind == "ALL" { &follower } else { &primary });
            let paused = Instant::now();
            end_leases_and(&primary, &waiting, 60, Some(&format!("CLIENT PAUSE 400 {kind}")));
            for waiter in &mut waiting {
                waiter.fence();
                assert!(paused.elapsed() >= ms(399), "{kind}: granted within the pause");
            }
            let took = took(paused, noise);
            waiting.iter().for_each(|waiter| waiter.holds(&primary));
            took
        });
        same_everywhere(&mut primary, &follower);
    }
}

#[test]
fn who_times_out_or_dies_in_a_pause_is_skipped_after_it_in_queues_of_every_kind() {
    let (mut primary, follower) = primary_and_replica();
    within(SERVED, "the grants after a pause", |round| {
        let had = handovers(&primary);
        let (mut first, mut rest) = in_time(400, |patience| {
            let prefix = format!("{round}:{patience}:");
            let first = one_of_each(&primary, &prefix);
            let begun = Instant::now();
            let rest: Vec<[Waiter; 2]> = KINDS
                .map(|(end, take, _)| {
                    let key = format!("{prefix}{end}");
                    // Shared ones would be granted together: here they are behind each other by a wish for all of it.
                    let take = if end == "s" { KINDS[0].1 } else { take };
                    let times_out = enter(&primary, take, &key, "tC", &format!("{patience}ms"));
                    [times_out, line_up(&primary, take, &key, "tD", "0")]
                })
                .into();
            if begun.elapsed() < ms(patience) {
                end_leases_and(&primary, &first, 60, Some("CLIENT PAUSE 600000 WRITE"));
                return Some((first, rest));
            }
            drop((first, rest));
            wait_for(SOON, "nobody is left of it", || all_waiters(&primary), |left| *left == 0);
            None
        });
        for (waiter, how) in first.iter_mut().zip(["kill", "close", "unblock", "error"]) {
            match how {
                "kill" => assert_eq!(primary.call(&args!["CLIENT", "KILL", "ID", waiter.id]).int(), 1),
                "unblock" => {
                    assert_eq!(primary.call(&args!["CLIENT", "UNBLOCK", waiter.id]).int(), 1);
                    assert_eq!(waiter.reply().int(), 0);
                }
                "error" => {
                    assert_eq!(primary.call(&args!["CLIENT", "UNBLOCK", waiter.id, "ERROR"]).int(), 1);
                    assert!(waiter.reply().is_error("UNBLOCKED "));
                }
                _ => {
                    let other = primary.client();
                    std::mem::replace(&mut waiter.client, other).close();
                }
            }
        }
        for [times_out, _] in &mut rest {
            assert_eq!(times_out.reply().int(), 0);
        }
        wait_for(SOON, "one waits for each", || all_waiters(&primary), |left| *left == 4);
        nobody_until(Instant::now() + ms(100), &primary, had);
        let noise = Noise::of(&primary);
        let opened = Instant::now();
        primary.ok(&["CLIENT", "UNPAUSE"]);
        for [_, last] in &mut rest {
            last.fence();
        }
        let took = took(opened, noise);
        rest.iter().for_each(|[_, last]| last.holds(&primary));
        took
    });
    same_everywhere(&mut primary, &follower);
}

#[test]
fn grants_of_every_kind_whose_clients_die_as_a_pause_begins_go_on_after_it() {
    let (mut primary, follower) = primary_and_replica();
    within(SERVED, "the grants after a pause", |round| {
        let (prefix, had) = (format!("{round}:"), handovers(&primary));
        let mut dying = one_of_each(&primary, &prefix);
        let mut heirs: Vec<Waiter> = KINDS
            .map(|(end, take, _)| {
                let take = if end == "s" { KINDS[0].1 } else { take };
                line_up(&primary, take, &format!("{prefix}{end}"), "tC", "0")
            })
            .into();
        // All in one: the lock is given to who dies before its reply, and then no writes are taken any more.
        let mut all = vec![words("MULTI")];
        for (end, ..) in KINDS {
            let release = if end == "p" { KINDS[3].2 } else { KINDS[0].2 };
            all.push(line(release, &format!("{prefix}{end}"), "tA", ""));
        }
        all.extend(dying.iter().map(|waiter| args!["CLIENT", "KILL", "ID", waiter.id]));
        all.extend([words("CLIENT PAUSE 600000 WRITE"), words("EXEC")]);
        let replies = primary.client().pipeline(&all);
        let done = replies.last().unwrap().array();
        assert!(done[..8].iter().all(|reply| *reply == Value::Int(1)), "{done:?}");
        for waiter in &mut dying {
            assert!(waiter.client.read(SOON).is_err(), "killed");
            waiter.holds(&primary);
        }
        nobody_until(Instant::now() + ms(200), &primary, had + 4);
        assert_eq!(all_waiters(&primary), 4);
        let noise = Noise::of(&primary);
        let opened = Instant::now();
        primary.ok(&["CLIENT", "UNPAUSE"]);
        heirs.iter_mut().for_each(|heir| {
            heir.fence();
        });
        let took = took(opened, noise);
        heirs.iter().for_each(|heir| heir.holds(&primary));
        took
    });
    same_everywhere(&mut primary, &follower);
}

/// Every command, on what every kind of lock and limit has left behind.
fn every_command_on(prefix: &str) -> Vec<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for end in ["x", "r", "s", "p", "f", "l", "b"] {
        let key = format!("{prefix}{end}");
        for form in [
            "LOCK.INFO KEY",
            "LOCK.RENEW KEY tA 5m",
            "LOCK.ACQUIRE KEY tC 5m",
            "LOCK.ACQUIRE KEY tC 5m REENTRANT",
            "LOCK.ACQUIRE KEY tC 5m SHARED",
            "LOCK.RELEASE KEY tC",
            "LOCK.RELEASE KEY tC",
            "SEM.ACQUIRE KEY tC 5m 1",
            "SEM.RENEW KEY tC 6m",
            "SEM.INFO KEY",
            "SEM.RELEASE KEY tC",
            "RL.FIXED KEY 5 5m",
            "RL.SLIDING KEY 5 5m",
            "RL.BUCKET KEY 5 5 5m",
            "RL.FIXED KEY 5 5m PEEK",
        ] {
            all.push(words(&form.replace("KEY", &key)));
        }
        all.push(args!["DEL", &key]);
        for form in ["RL.BUCKET KEY 5 5 5m COST 2", "RL.BUCKET KEY 5 5 5m", "LOCK.ACQUIRE KEY tC 5m"] {
            all.push(words(&form.replace("KEY", &key)));
        }
    }
    all
}

#[test]
fn every_command_lives_through_a_transaction_that_pauses_on_keys_past_their_end() {
    // Each key's first command finds what has ended and, in a pause, is still there.
    let firsts = ["LOCK.ACQUIRE KEY tC 5m", "LOCK.ACQUIRE KEY tC 5m SHARED", "LOCK.ACQUIRE KEY tC 5m REENTRANT"];
    let more = ["SEM.ACQUIRE KEY tC 5m 1", "RL.FIXED KEY 5 5m", "RL.SLIDING KEY 5 5m", "RL.BUCKET KEY 5 5 5m"];
    let (mut primary, follower) = primary_and_replica();
    for (round, first) in [""].into_iter().chain(firsts).chain(more).enumerate() {
        let mut client = primary.client();
        let prefix = format!("k{round}");
        let mut make = vec![words("CONFIG SET hz 1"), words("DEBUG SET-ACTIVE-EXPIRE 0")];
        let mut run = vec![words("DEBUG SLEEP 0.05"), words("MULTI"), words("CLIENT PAUSE 60000 WRITE")];
        for (end, take, _) in KINDS {
            make.push(line(take, &format!("{prefix}{end}"), "tA", "20ms"));
        }
        for (end, limit) in
            [("f", "RL.FIXED KEY 5 20ms"), ("l", "RL.SLIDING KEY 5 20ms"), ("b", "RL.BUCKET KEY 5 5 20ms")]
        {
            make.push(words(&limit.replace("KEY", &format!("{prefix}{end}"))));
        }
        for end in ["x", "r", "s", "p", "f", "l", "b"] {
            if !first.is_empty() {
                run.push(words(&first.replace("KEY", &format!("{prefix}{end}"))));
            }
        }
        run.extend(every_command_on(&prefix));
        run.push(words("EXEC"));
        let count = make.len();
        make.extend(run);
        let replies = client.pipeline(&make);
        assert!(replies[2..count].iter().all(|reply| reply.error().is_none()), "{replies:?}");
        let results = replies.last().unwrap().array();
        assert_eq!(results.len(), make.len() - count - 3);
        for (result, command) in results.iter().skip(1).zip(&make[count + 3..]) {
            let shown: Vec<_> = command.iter().map(|word| word.escape_ascii().to_string()).collect();
            assert!(!result.is_error("ERR internal"), "{shown:?}: {result:?}");
        }
        assert_eq!(primary.info_int("sluice", "sluice_internal_errors"), 0, "round {round}: {first}");
        primary.ok(&["CLIENT", "UNPAUSE"]);
        primary.ok(&["DEBUG", "SET-ACTIVE-EXPIRE", "1"]);
        same_everywhere(&mut primary, &follower);
    }
}

/// A FAILOVER that waits, with writes paused, for a replica that is frozen, and is given up.
#[test]
fn all_that_can_happen_to_waiters_happens_in_a_failover_that_is_given_up() {
    let (mut primary, follower) = primary_and_replica();
    in_a_pause(
        &mut primary,
        |primary| {
            follower.stop();
            primary.call(&["SET", "behind", "1"]);
            primary.ok(&["FAILOVER", "TIMEOUT", "60000"]);
            wait_until(SOON, "it waits", || primary.info("replication")["master_failover_state"] != "no-failover");
        },
        |primary, _| primary.ok(&["FAILOVER", "ABORT"]),
    );
    follower.cont();
    same_everywhere(&mut primary, &follower);
}

/// The same as all the pauses of this file want, for pauses that begin and end otherwise.
#[track_caller]
fn in_a_pause(server: &mut Server, begin: impl FnOnce(&Server), end: impl FnOnce(&Server, &mut Client)) {
    let prefix = server_prefix(server);
    let mut waiting = one_of_each(server, &format!("{prefix}a"));
    let mut dying = one_of_each(server, &format!("{prefix}b"));
    let mut heirs: Vec<Waiter> = KINDS
        .map(|(end, take, _)| {
            let take = if end == "s" { KINDS[0].1 } else { take };
            line_up(server, take, &format!("{prefix}b{end}"), "tC", "0")
        })
        .into();
    let mut timing_out: Vec<Waiter> = KINDS
        .map(|(end, _, _)| {
            let take = if end == "p" { KINDS[3].1 } else { KINDS[0].1 };
            enter(server, take, &format!("{prefix}a{end}"), "tT", "3s")
        })
        .into();
    let mut behind: Vec<Waiter> = KINDS
        .map(|(end, _, _)| {
            let take = if end == "p" { KINDS[3].1 } else { KINDS[0].1 };
            line_up(server, take, &format!("{prefix}a{end}"), "tZ", "0")
        })
        .into();
    let had = handovers(server);
    end_leases(server, &waiting, 1500);
    end_leases(server, &dying, 1500);
    begin(server);
    // A write is answered when the pause is over. Until then whatever is seen is seen in it.
    let mut probe = server.client();
    probe.send(&args!["SET", format!("{prefix}probe"), 1]);
    let mut seen = 0;
    let mut look = |server: &Server| {
        let now = handovers(server);
        // What the server had answered by then is here; who sees grants waits for as long as a server may stand still between
        // them and the probe, all pauses being longer.
        let paused = probe.is_silent(if now == had { ms(1) } else { ms(1500) });
        if paused {
            assert_eq!(now, had, "granted while writes are paused");
            seen += 1;
        }
        (paused, seen)
    };
    let late = handovers(server) != had;
    let mut paused = !late && look(server).0;
    if paused {
        for waiter in &mut dying {
            assert_eq!(server.call(&args!["CLIENT", "KILL", "ID", waiter.id]).int(), 1);
        }
        for waiter in &mut timing_out {
            assert_eq!(waiter.reply().int(), 0);
        }
        let until = Instant::now() + ms(100);
        while {
            let (still, times) = look(server);
            paused = still;
            paused && (times <= 2 || Instant::now() < until)
        } {}
    }
    if !paused {
        // Then there has been no such pause to speak of.
        not_here("a pause over the end of leases", "there was none, on a machine this busy");
        if late {
            end(server, &mut probe);
        }
        return;
    }
    let noise = Noise::of(server);
    end(server, &mut probe);
    let opened = Instant::now();
    for waiter in waiting.iter_mut().chain(&mut heirs) {
        waiter.fence();
    }
    prompt(opened, SERVED, noise, "the grants after the pause");
    waiting.iter().chain(&heirs).for_each(|waiter| waiter.holds(server));
    for (waiter, (_, _, release)) in behind.iter_mut().zip(KINDS) {
        assert_eq!(server.call(&line(release, &waiter.key, "tB", "")).int(), 1);
        waiter.fence();
    }
    lives(server);
}

/// In a cluster all keys are of the first node.
fn server_prefix(server: &Server) -> String {
    let in_cluster = server.info("cluster").get("cluster_enabled").is_some_and(|on| on == "1");
    if in_cluster { "{0}".to_owned() } else { String::new() }
}

/// A cluster of whose nodes the first has an AOF and a replica, and owns `{0}`; a stopped node is not taken for dead so soon.
fn patient_cluster() -> Cluster {
    let cluster = Cluster::of(&[16382, 1, 1], 1, &["--appendonly", "yes", "--cluster-node-timeout", "30000"]);
    assert!(cluster.slot("{0}") < 16382);
    cluster
}

#[test]
fn all_that_can_happen_to_waiters_happens_in_a_cluster_failover_that_fails() {
    let mut cluster = patient_cluster();
    // Without the others' votes the replica is not elected, and the primary's pause ends with its patience, after 5 s.
    let (mut first, others) = (cluster.nodes.remove(0), cluster.nodes);
    let follower = &cluster.replicas[0];
    in_a_pause(
        &mut first,
        |first| {
            others.iter().for_each(Server::stop);
            follower.ok(&["CLUSTER", "FAILOVER"]);
            wait_until(SOON, "the primary has been asked", || first.log().contains("Manual failover requested"));
        },
        |_, probe| assert_eq!(probe.read(SOON).expect("the pause ends"), Value::Okay),
    );
    assert_eq!(first.info("replication")["role"], "master");
    // The replica gives up in its own time; votes that came before that would still be counted.
    wait_until(SOON, "the replica has given up", || follower.log().contains("Manual failover timed out"));
    others.iter().for_each(Server::cont);
    same_in_cluster(&first, follower);
}

/// A replica in a cluster does not answer for keys unless it is asked to.
#[track_caller]
fn same_in_cluster(primary: &Server, follower: &Server) {
    wait_for_sync(primary, follower);
    let all = |server: &Server| {
        let mut client = server.client();
        client.call(&["READONLY"]);
        let mut keys: Vec<String> = client.call(&["KEYS", "*"]).array().iter().map(ValueExt::text).collect();
        keys.sort();
        keys.into_iter()
            .map(|key| {
                let at = client.call(&["PEXPIRETIME", &key]).int();
                let dump = client.call(&["DUMP", &key]);
                (key, at, if dump.is_nil() { vec![] } else { dump.bytes() })
            })
            .collect::<Vec<_>>()
    };
    // Leases still end, and a replica hears of it from its primary.
    wait_for(SOON, "both hold the same", || (all(follower), all(primary)), |(there, here)| there == here);
}

#[test]
fn leases_that_end_around_a_cluster_failover_harm_neither_server_and_nobody_is_granted_by_both() {
    let mut cluster = Cluster::of(&[16382, 1, 1], 1, &["--appendonly", "yes"]);
    let mut last: Option<Instant> = None;
    for round in 0..if long() { 6 } else { 2 } {
        let (old, new) = if cluster.nodes[0].info("replication")["role"] == "master" {
            (&cluster.nodes[0], &cluster.replicas[0])
        } else {
            (&cluster.replicas[0], &cluster.nodes[0])
        };
        let mut waiting: Vec<Waiter> = (0..10).flat_map(|n| one_of_each(old, &format!("{{0}}{round}:{n}"))).collect();
        let had = handovers(old);
        cluster_ready(&cluster, old, new);
        // Nobody votes about the same primary twice within two node timeouts, nor asks for votes twice within four.
        wait_until(SOON, "they may vote again", || last.is_none_or(|last| last.elapsed() > ms(12_500)));
        // One ends every few milliseconds, from before the failover until after it.
        end_leases_one_by_one(old, &waiting, 10);
        new.ok(&["CLUSTER", "FAILOVER"]);
        let mut granted = vec![];
        for waiter in &mut waiting {
            let reply = waiter.reply();
            if let Value::Int(fence) = reply {
                assert!(fence > 0, "{}", waiter.key);
                granted.push(&*waiter);
            } else {
                assert!(reply.is_error("UNBLOCKED "), "{}: {reply:?}", waiter.key);
            }
        }
        wait_until(SOON, "the roles have changed", || {
            new.info("replication")["role"] == "master" && old.info("replication")["role"] == "slave"
        });
        // A manual failover loses nothing: what the old primary has granted, the new one knows.
        granted.iter().for_each(|waiter| waiter.holds(new));
        assert_eq!(i64::try_from(granted.len()).unwrap(), handovers(old) - had);
        assert_eq!((all_waiters(old), old.blocked_clients()), (0, 0));
        println!("round {round}: {} of 40 granted before, the others ended by it", granted.len());
        wait_until(SOON, "it serves", || rig::cluster::state(new) == "ok");
        last = (round > 0).then(Instant::now);
        same_in_cluster(new, old);
    }
    lives(&mut cluster.nodes[0]);
    lives(&mut cluster.replicas[0]);
}

#[track_caller]
fn cluster_ready(cluster: &Cluster, primary: &Server, replica: &Server) {
    cluster.wait_for_replica(primary, replica);
    wait_for_sync(primary, replica);
}

#[test]
fn leases_that_end_around_a_failover_harm_neither_server_and_nobody_is_granted_by_both() {
    let (mut one, mut two) = (Server::builder().args(&["--appendonly", "yes"]).start(), None);
    let next = Server::builder().args(&["--appendonly", "yes"]).replica_of(&one).start();
    let stock = replica(&one, false);
    wait_for_sync(&one, &next);
    let next = two.insert(next);
    for round in 0..if long() { 20 } else { 4 } {
        let (old, new) = if one.info("replication")["role"] == "master" { (&one, &*next) } else { (&*next, &one) };
        let mut waiting: Vec<Waiter> = (0..10).flat_map(|n| one_of_each(old, &format!("{round}:{n}"))).collect();
        let had = handovers(old);
        wait_for_sync(old, new);
        end_leases_one_by_one(old, &waiting, 5);
        old.ok(&args!["FAILOVER", "TO", "127.0.0.1", new.port(), "TIMEOUT", 10_000]);
        let mut granted = vec![];
        for waiter in &mut waiting {
            let reply = waiter.reply();
            match reply {
                Value::Int(fence) => {
                    assert!(fence > 0, "{}", waiter.key);
                    granted.push(&*waiter);
                }
                _ => assert!(reply.is_error("UNBLOCKED "), "{}: {reply:?}", waiter.key),
            }
        }
        wait_until(SOON, "the roles have changed", || {
            new.info("replication")["role"] == "master" && old.info("replication")["role"] == "slave"
        });
        granted.iter().for_each(|waiter| waiter.holds(new));
        assert_eq!(i64::try_from(granted.len()).unwrap(), handovers(old) - had);
        assert_eq!((all_waiters(old), old.blocked_clients()), (0, 0));
        println!("round {round}: {} of 40 granted before, the others ended by it", granted.len());
        wait_for_sync(new, old);
    }
    drop(stock);
    lives(&mut one);
    lives(next);
}

/// While the gate is shut nobody is granted anything; each time it opens, all that is due is granted. Leases end all the time.
fn gate_that_comes_and_goes(server: &mut Server, code: &str, shut: impl Fn(&Server), open: impl Fn(&Server)) {
    let mut all = Vec::new();
    for round in 0..if long() { 20 } else { 4 } {
        let mut due = one_of_each(server, &format!("a{round}"));
        let mut early = one_of_each(server, &format!("b{round}"));
        // Some end before it is shut, some behind it, and some by a command that is refused.
        end_leases(server, &early, 1);
        early.iter_mut().for_each(|waiter| {
            waiter.fence();
        });
        end_leases(server, &due, 400);
        let until = Instant::now() + ms(400);
        shut(server);
        let refused = server.call(&words("LOCK.ACQUIRE free tX 1m"));
        assert!(refused.is_error(code), "{refused:?}");
        let had = handovers(server);
        let over = due.iter().filter(|waiter| info(server, &waiter.key)["waiters"].int() == 0).count();
        for (waiter, (_, _, release)) in early.iter().zip(KINDS) {
            assert!(server.call(&line(release, &waiter.key, "tB", "")).is_error(code));
        }
        nobody_until(until.max(Instant::now()) + ms(60), server, had);
        let noise = Noise::of(server);
        open(server);
        let opened = Instant::now();
        due.iter_mut().for_each(|waiter| {
            waiter.fence();
        });
        all.push(took(opened, noise));
        due.iter().for_each(|waiter| waiter.holds(server));
        if over > 0 {
            println!("round {round}: {over} had it before the gate was shut");
        }
    }
    // A machine that is busy elsewhere spoils half of them at most.
    all.sort();
    assert!(all[all.len() / 2 - 1] <= SERVED, "the grants after the gate is open: {all:?}");
    assert_eq!(all_waiters(server), 0);
    lives(server);
}

#[test]
fn noreplicas_that_comes_and_goes_under_waiters_of_every_kind() {
    let (mut primary, follower) = primary_and_replica();
    let set = |least: &str| {
        let least = least.to_owned();
        move |server: &Server| server.ok(&["CONFIG", "SET", "min-replicas-to-write", &least])
    };
    gate_that_comes_and_goes(&mut primary, "NOREPLICAS ", set("2"), set("0"));
    same_everywhere(&mut primary, &follower);
    // The same by a replica that goes and comes back.
    primary.call(&["FLUSHALL"]);
    set("1")(&primary);
    // The link is kept from coming back by a password that nobody has asked for.
    let shut = |server: &Server| {
        follower.ok(&["CONFIG", "SET", "masterauth", "nobody asks for it"]);
        server.call(&["CLIENT", "KILL", "TYPE", "replica"]);
        wait_until(SOON, "no replica is there", || server.info_int("replication", "connected_slaves") == 0);
        wait_until(SOON, "writes are refused", || server.call(&["DEL", "nothing"]).is_error("NOREPLICAS "));
    };
    let open = |server: &Server| {
        follower.ok(&["CONFIG", "SET", "masterauth", ""]);
        wait_until(SOON, "writes are taken", || server.call(&["DEL", "nothing"]).error().is_none());
    };
    gate_that_comes_and_goes(&mut primary, "NOREPLICAS ", shut, open);
    same_everywhere(&mut primary, &follower);
}

#[test]
fn misconf_that_comes_and_goes_under_waiters_of_every_kind() {
    let builder = Server::builder().args(&["--appendonly", "yes", "--enable-protected-configs", "yes"]);
    let mut primary = builder.args(&["--save", "3600 1000000"]).start();
    let follower = replica(&primary, false);
    let in_the_way = primary.dir().join("in-the-way");
    std::fs::create_dir(&in_the_way).unwrap();
    std::fs::write(in_the_way.join("x"), "x").unwrap();
    let status = |server: &Server, wanted: &str| {
        let look = || {
            let info = server.info("persistence");
            (info["rdb_bgsave_in_progress"].clone(), info["rdb_last_bgsave_status"].clone())
        };
        let idle = |look: &(String, String)| look.0 == "0";
        wait_for(SOON, "no save is under way", look, idle);
        server.call(&["BGSAVE"]);
        wait_for(SOON, "the save has ended", look, |seen| idle(seen) && seen.1 == wanted);
    };
    let shut = |server: &Server| {
        server.ok(&["CONFIG", "SET", "dbfilename", "in-the-way"]);
        status(server, "err");
    };
    let open = |server: &Server| {
        server.ok(&["CONFIG", "SET", "dbfilename", "dump.rdb"]);
        status(server, "ok");
    };
    gate_that_comes_and_goes(&mut primary, "MISCONF ", shut, open);
    same_everywhere(&mut primary, &follower);
}

#[test]
fn l31_a_server_that_is_demoted_again_and_again_leaves_nobody_behind_and_grants_nothing_as_a_replica() {
    let other = Server::builder().module(false).start();
    let mut server = Server::builder().args(&["--appendonly", "yes"]).start();
    let follower = replica(&server, false);
    for round in 0..if long() { 30 } else { 4 } {
        let prefix = format!("{round}:");
        let mut waiting = one_of_each(&server, &prefix);
        let mut over: Vec<Waiter> = KINDS
            .map(|(end, ..)| {
                let take = if end == "p" { KINDS[3].1 } else { KINDS[0].1 };
                enter(&server, take, &format!("{prefix}{end}"), "tC", "20ms")
            })
            .into();
        let had = handovers(&server);
        // Some in a pause, some with leases and patience that end just then.
        if round % 2 == 1 {
            server.ok(&["CLIENT", "PAUSE", "60000", "WRITE"]);
        } else {
            end_leases(&server, &waiting, 20);
        }
        // It never reaches the other's data, so that what it holds stays to be seen.
        other.stop();
        server.ok(&args!["REPLICAOF", "127.0.0.1", other.port()]);
        let now = handovers(&server);
        let mut granted = 0;
        for waiter in &mut waiting {
            match waiter.client.read(SOON) {
                Ok(Value::Int(fence)) if fence > 0 => granted += 1,
                Ok(reply) => assert!(reply.is_error("UNBLOCKED "), "{reply:?}"),
                Err(error) => panic!("no reply: {error}"),
            }
        }
        for waiter in &mut over {
            let reply = waiter.reply();
            assert!(reply == Value::Int(0) || reply.is_error("UNBLOCKED "), "{reply:?}");
        }
        assert!(granted <= now - had, "{granted} grants, {had} and {now} hand-overs");
        assert_eq!((all_waiters(&server), server.blocked_clients()), (0, 0));
        assert!(server.call(&words("LOCK.ACQUIRE k tX 1m BLOCK 0")).is_error("READONLY "));
        nobody_until(Instant::now() + ms(60), &server, now);
        server.call(&["CLIENT", "UNPAUSE"]);
        server.ok(&["REPLICAOF", "NO", "ONE"]);
        other.cont();
        lives(&mut server);
    }
    same_everywhere(&mut server, &follower);
}

#[test]
fn a_node_that_is_demoted_within_a_pause_ends_its_waits() {
    let mut cluster = patient_cluster();
    let (primary, follower) = (&cluster.nodes[0], &cluster.replicas[0]);
    let mut waiting = one_of_each(primary, "{0}k");
    cluster_ready(&cluster, primary, follower);
    let had = handovers(primary);
    end_leases_and(primary, &waiting, 300, Some("CLIENT PAUSE 60000 WRITE"));
    nobody_until(Instant::now() + ms(350), primary, had);
    // A take-over asks nobody; the primary hears of it and follows.
    follower.ok(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    for waiter in &mut waiting {
        let reply = waiter.reply();
        assert!(reply.is_error("UNBLOCKED "), "{reply:?}");
    }
    wait_until(SOON, "it follows", || primary.info("replication")["role"] == "slave");
    assert_eq!((handovers(primary), all_waiters(primary)), (had, 0));
    // The new primary's stream is held up by the pause as well, and counts as blocked.
    primary.call(&["CLIENT", "UNPAUSE"]);
    wait_for(SOON, "nobody is left", || primary.blocked_clients(), |left| *left == 0);
    assert_eq!(handovers(primary), had);
    wait_until(SOON, "the new one serves", || rig::cluster::state(follower) == "ok");
    let mut again: Vec<Waiter> = vec![];
    for (end, take, _) in KINDS {
        // The leases are over by now, and nobody is in the way.
        let key = format!("{{0}}k{end}");
        wait_until(SOON, "it is free", || info(follower, &key)["mode"].text() == "free");
        granted(follower, &line(barring(end), &key, "tA", "5m"));
        again.push(line_up(follower, take, &key, "tB", "0"));
    }
    for (waiter, (_, _, release)) in again.iter_mut().zip(KINDS) {
        assert_eq!(follower.call(&line(release, &waiter.key, "tA", "")).int(), 1);
        waiter.fence();
    }
    lives(&mut cluster.nodes[0]);
    lives(&mut cluster.replicas[0]);
}
