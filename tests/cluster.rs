//! In a cluster: commands go where their key belongs, and a slot that moves takes locks and limits along, and sends on those
//! who wait for them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod rig;

use rig::cluster::{Atomic, Cluster, Router, asking, redirected, state};
use rig::line::{Waiter, enter, hold, holder, line_up, not_here, queue, release, waiters, words};
use rig::noise::{Noise, net, prompt, unix_ms};
use rig::{Client, SOON, Server, Value, ValueExt, args, in_time, ms, wait_for, wait_until};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// By then a waiter of a slot that has moved has been told.
const SENT_ON: Duration = ms(1500);

fn long() -> bool {
    std::env::var_os("SLUICE_LONG").is_some()
}

/// Every command, with every option that could be taken for a key.
fn every_command(key: &str) -> Vec<Vec<Vec<u8>>> {
    [
        "LOCK.ACQUIRE KEY t 1m",
        "LOCK.ACQUIRE KEY t 1m SHARED BLOCK 1",
        "LOCK.ACQUIRE KEY t 1m BLOCK 1 REENTRANT",
        "LOCK.RENEW KEY t 1m",
        "LOCK.INFO KEY",
        "LOCK.RELEASE KEY t",
        "SEM.ACQUIRE sKEY t 1m 2",
        "SEM.ACQUIRE sKEY t 1m 2 BLOCK 1",
        "SEM.RENEW sKEY t 1m",
        "SEM.INFO sKEY",
        "SEM.RELEASE sKEY t",
        "RL.FIXED fKEY 10 1m COST 2 PEEK",
        "RL.SLIDING lKEY 10 1m COST 2",
        "RL.BUCKET bKEY 10 10 1m PEEK COST 2",
    ]
    .map(|line| words(&line.replace("KEY", key)))
    .into()
}

fn text(words: &[Vec<u8>]) -> String {
    words.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}

fn alive(cluster: &mut Cluster) {
    for node in cluster.nodes.iter_mut().chain(&mut cluster.replicas) {
        assert!(node.is_alive(), "a node has ended");
        assert_eq!(node.info_int("sluice", "sluice_internal_errors"), 0);
    }
}

/// A semaphore's waiter, in the queue.
#[track_caller]
fn line_up_for_permit(server: &Server, key: &str, token: &str) -> Client {
    let mut client = server.client();
    client.send(&args!["SEM.ACQUIRE", key, token, "1m", 1, "BLOCK", 0]);
    let queued = || server.call(&["SEM.INFO", key]).map()["queue"].array();
    wait_until(SOON, "it is in the queue", || queued().iter().any(|one| one.map()["token"].text() == token));
    client
}

fn handovers(server: &Server) -> i64 {
    ["lock_handovers", "lock_expired_handovers", "sem_handovers", "sem_expired_handovers"]
        .map(|name| server.info_int("sluice", &format!("sluice_{name}")))
        .iter()
        .sum()
}

#[test]
fn commands_go_by_their_one_key_and_by_nothing_else() {
    let cluster = Cluster::start(0);
    let names = ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.RENEW", "LOCK.INFO", "SEM.ACQUIRE", "SEM.RELEASE", "SEM.RENEW"];
    for name in names.into_iter().chain(["SEM.INFO", "RL.FIXED", "RL.SLIDING", "RL.BUCKET"]) {
        let info = cluster.nodes[0].call(&["COMMAND", "INFO", name]).array()[0].array();
        assert_eq!(info[3..6].iter().map(ValueExt::int).collect::<Vec<_>>(), [1, 1, 1], "{name}");
        let specs = info[8].array();
        assert_eq!(specs.len(), 1, "{name}: {specs:?}");
        let spec = specs[0].map();
        assert_eq!(spec["begin_search"].map()["spec"].map()["index"].int(), 1, "{name}");
        let range = spec["find_keys"].map()["spec"].map();
        assert_eq!((range["lastkey"].int(), range["keystep"].int(), range["limit"].int()), (0, 1, 0), "{name}");
    }
    // The key may look like an option, and a token like a key of another slot: only the second word counts.
    let (here, there) = (cluster.keys_of(0, "SHARED", 1), cluster.keys_of(2, "k", 1));
    let mut odd = every_command(&cluster.keys_of(1, "k", 1)[0]);
    odd.extend(here.iter().flat_map(|key| every_command(key)));
    odd.push(args!["LOCK.ACQUIRE", "REENTRANT", &there[0], "1m", "REENTRANT", "BLOCK", "1"]);
    odd.push(args!["LOCK.ACQUIRE", "{BLOCK}SHARED", "{SHARED}BLOCK", "1m", "BLOCK", "1", "SHARED"]);
    odd.push(args!["LOCK.RELEASE", "{a}\0{b}", "{c}"]);
    odd.push(args!["RL.BUCKET", "{}x", 10, 10, "1m"]);
    for command in odd {
        let mut ask = args!["COMMAND", "GETKEYS"];
        ask.extend(command.iter().cloned());
        let keys: Vec<_> = cluster.nodes[0].call(&ask).array().iter().map(ValueExt::bytes).collect();
        assert_eq!(keys, [command[1].clone()], "{}", text(&command));
        let slot = cluster.nodes[0].call(&args!["CLUSTER", "KEYSLOT", &command[1]]).int();
        let mut answers = 0;
        for node in &cluster.nodes {
            let reply = node.call(&command);
            if reply.error().is_none() {
                answers += 1;
                continue;
            }
            let (said, to) = redirected(&reply, "MOVED");
            assert_eq!(i64::from(said), slot, "{}", text(&command));
            let target = cluster.nodes.iter().find(|node| to == format!("127.0.0.1:{}", node.port())).unwrap();
            assert_eq!(target.call(&command).error(), None, "{}", text(&command));
        }
        assert_eq!(answers, 1, "{}", text(&command));
    }
}

#[test]
fn a_cluster_client_of_a_library_finds_every_key_and_follows_a_slot_that_moves() {
    let cluster = Cluster::start(0);
    let urls: Vec<String> = (0..3).map(|node| format!("redis://{}", cluster.address(node))).collect();
    let client = redis::cluster::ClusterClient::builder(urls).connection_timeout(SOON).build().unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut ask = |line: &str| -> Value {
        let words = words(line);
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word.as_slice());
        });
        command.query(&mut connection).unwrap_or_else(|error| panic!("{line}: {error}"))
    };
    let keys: Vec<String> = (0..60).map(|n| format!("k{n}")).collect();
    let mut fences = Vec::new();
    for key in &keys {
        fences.push(ask(&format!("LOCK.ACQUIRE {key} tA 5m BLOCK 1s")).int());
        assert_eq!(ask(&format!("LOCK.ACQUIRE {key} tB 5m")).int(), 0);
        assert_eq!(ask(&format!("RL.FIXED f{key} 5 5m COST 2")).ints()[..3], [1, 5, 3]);
        assert_eq!(ask(&format!("SEM.RELEASE s{key} tA")).int(), 0);
    }
    let at: Vec<i64> = cluster.nodes.iter().map(|node| node.call(&["DBSIZE"]).int()).collect();
    assert!(at.iter().all(|n| *n > 0) && at.iter().sum::<i64>() == 120, "{at:?}");
    let moving = cluster.keys_of(0, "k", 1).remove(0);
    let slot = cluster.slot(&moving);
    cluster.move_slot(slot, 0, 1);
    cluster.wait_for_owner(slot, 1);
    for (key, fence) in keys.iter().zip(fences) {
        assert!(ask(&format!("LOCK.ACQUIRE {key} tA 5m")).int() > fence, "{key}");
        assert_eq!(ask(&format!("LOCK.RELEASE {key} tA")).int(), 1, "{key}");
        assert_eq!(ask(&format!("RL.FIXED f{key} 5 5m")).ints()[..3], [1, 5, 2]);
    }
}

/// What there is of a key, exactly.
fn exactly(server: &Server, key: &str) -> (Vec<u8>, i64) {
    let mut client = server.client();
    // A connection to a node that has the key, but not its slot yet.
    let dump = asking(&mut client, &args!["DUMP", key]);
    let at = asking(&mut client, &args!["PEXPIRETIME", key]).int();
    (if dump.is_nil() { vec![] } else { dump.bytes() }, at)
}

/// It is the same after a MIGRATE, which sends the time left and not the end: that is later by the time on the way.
#[track_caller]
fn moved_along(is: &(Vec<u8>, i64), was: &(Vec<u8>, i64), begun: Instant, key: &str) {
    assert_eq!(is.0, was.0, "{key}");
    let later = u128::try_from(is.1 - was.1).unwrap_or(u128::MAX);
    assert!(later <= begun.elapsed().as_millis() + 1, "{key} ends {later} ms later");
}

/// One key of every kind in the slot of `tag`, and the largest fence.
#[track_caller]
fn every_kind(server: &Server, tag: &str) -> (Vec<String>, i64) {
    let mut fence = 0;
    let mut client = server.client();
    for line in [
        "LOCK.ACQUIRE {TAG}x tA 5m",
        "LOCK.ACQUIRE {TAG}r tA 5m REENTRANT",
        "LOCK.ACQUIRE {TAG}r tA 6m REENTRANT",
        "LOCK.ACQUIRE {TAG}s tA 5m SHARED",
        "LOCK.ACQUIRE {TAG}s tB 6m SHARED",
        "SEM.ACQUIRE {TAG}p tA 5m 2",
        "SEM.ACQUIRE {TAG}p tB 6m 2",
        "RL.FIXED {TAG}f 10 5m COST 3",
        "RL.SLIDING {TAG}l 10 5m COST 3",
        "RL.BUCKET {TAG}b 10 1 5m COST 3",
    ] {
        let reply = client.call(&words(&line.replace("TAG", tag)));
        match &reply {
            Value::Int(new) => {
                assert!(*new > fence, "{line}");
                fence = *new;
            }
            _ => assert_eq!(reply.ints()[..3], [1, 10, 7], "{line}"),
        }
    }
    (["x", "r", "s", "p", "f", "l", "b"].map(|end| format!("{{{tag}}}{end}")).into(), fence)
}

/// The holders' commands work on the new owner, strangers are refused, fences grow, and limiters go on where they were.
#[track_caller]
fn goes_on(server: &Server, tag: &str, fence: i64) {
    let mut client = server.client();
    let mut ask = |line: &str| client.call(&words(&line.replace("TAG", tag)));
    for (line, right) in [
        ("LOCK.ACQUIRE {TAG}x tB 1m", 0),
        ("LOCK.ACQUIRE {TAG}r tB 1m REENTRANT", 0),
        ("LOCK.ACQUIRE {TAG}s tC 1m", 0),
        ("SEM.ACQUIRE {TAG}p tC 1m 2", 0),
        ("LOCK.RENEW {TAG}x tA 7m", 1),
        ("SEM.RENEW {TAG}p tA 7m", 1),
    ] {
        assert_eq!(ask(line).int(), right, "{line}");
    }
    for line in ["LOCK.ACQUIRE {TAG}x tA 5m", "LOCK.ACQUIRE {TAG}s tC 5m SHARED", "SEM.ACQUIRE {TAG}p tB 5m 2"] {
        assert!(ask(line).int() > fence, "{line}");
    }
    for line in [
        "LOCK.RELEASE {TAG}x tA",
        "LOCK.RELEASE {TAG}r tA",
        "LOCK.RELEASE {TAG}r tA",
        "LOCK.RELEASE {TAG}s tA",
        "LOCK.RELEASE {TAG}s tB",
        "LOCK.RELEASE {TAG}s tC",
        "SEM.RELEASE {TAG}p tA",
        "SEM.RELEASE {TAG}p tB",
    ] {
        assert_eq!(ask(line).int(), 1, "{line}");
    }
    for line in ["RL.FIXED {TAG}f 10 5m", "RL.SLIDING {TAG}l 10 5m", "RL.BUCKET {TAG}b 10 1 5m"] {
        assert_eq!(ask(line).ints()[..3], [1, 10, 6], "{line}");
    }
    for free in ["x", "r", "s", "p"] {
        assert_eq!(ask(&format!("EXISTS {{TAG}}{free}")).int(), 0, "{free}");
    }
}

#[test]
fn while_a_slot_is_on_its_way_keys_are_served_where_they_are_and_the_rest_is_asked_of_the_target() {
    let mut cluster = Cluster::start(0);
    let tag = cluster.keys_of(0, "t", 1).remove(0);
    let slot = cluster.slot(&tag);
    let (keys, fence) = every_kind(&cluster.nodes[0], &tag);
    let before: Vec<_> = keys.iter().map(|key| exactly(&cluster.nodes[0], key)).collect();
    cluster.begin_move(slot, 0, 1);

    // What is there is served there; what is not is asked of the target.
    let (source, target) = (&cluster.nodes[0], &cluster.nodes[1]);
    assert_eq!(source.call(&args!["LOCK.ACQUIRE", &keys[0], "tB", "1m"]).int(), 0);
    assert_eq!(source.call(&args!["LOCK.RENEW", &keys[0], "tB", "1m"]).int(), 0);
    let fresh = format!("{{{tag}}}new");
    let take = args!["LOCK.ACQUIRE", &fresh, "tA", "1m"];
    assert_eq!(redirected(&source.call(&take), "ASK"), (slot, cluster.address(1)));
    assert_eq!(redirected(&target.call(&take), "MOVED"), (slot, cluster.address(0)));
    let mut client = target.client();
    let taken = asking(&mut client, &take).int();
    assert!(taken > fence);
    let hit = args!["RL.FIXED", format!("{{{tag}}}fresh"), 5, "1m"];
    assert_eq!(redirected(&source.call(&hit), "ASK"), (slot, cluster.address(1)));
    assert_eq!(asking(&mut client, &hit).ints()[..3], [1, 5, 4]);

    // Waiting on the target, for a lock that is there already. Who waits there for a second is sent to the owner, and
    // asks again.
    let mut waiting = target.client();
    let granted = (0..5).find_map(|_| {
        assert!(asking(&mut client, &take).int() >= taken);
        waiting.send_all(&[args!["ASKING"], args!["LOCK.ACQUIRE", &fresh, "tB", "1m", "BLOCK", 0]]);
        assert_eq!(waiting.read(SOON).unwrap(), Value::Okay);
        wait_until(SOON, "it waits", || waiters(target) == 1 || waiting.is_answered());
        assert_eq!(asking(&mut client, &args!["LOCK.RELEASE", &fresh, "tA"]).int(), 1);
        let reply = waiting.read(SOON).unwrap();
        (!reply.is_error("MOVED ")).then(|| reply.int())
    });
    assert!(granted.is_some_and(|fence| fence > taken), "{granted:?}");
    assert_eq!(asking(&mut client, &args!["LOCK.RELEASE", &fresh, "tB"]).int(), 1);

    let begun = Instant::now();
    cluster.move_keys(slot, 0, 1);
    for (key, was) in keys.iter().zip(&before) {
        moved_along(&exactly(target, key), was, begun, key);
        let ask = args!["LOCK.INFO", key];
        assert_eq!(redirected(&source.call(&ask), "ASK"), (slot, cluster.address(1)));
    }
    cluster.end_move(slot, 0, 1);
    cluster.wait_for_owner(slot, 1);
    for (key, was) in keys.iter().zip(&before) {
        moved_along(&exactly(target, key), was, begun, key);
        assert_eq!(redirected(&source.call(&args!["LOCK.INFO", key]), "MOVED"), (slot, cluster.address(1)));
    }
    goes_on(target, &tag, fence);
    alive(&mut cluster);
}

/// Waiters of every kind in the slot of `tag`, whose locks tA holds, and one of another slot.
struct Line {
    tag: String,
    keys: Vec<String>,
    fence: i64,
    locks: Vec<Waiter>,
    permit: Client,
    other_key: String,
    other: Waiter,
}

impl Line {
    #[track_caller]
    fn at(cluster: &Cluster, node: usize) -> Self {
        let found = cluster.keys_of(node, "t", 2);
        let server = &cluster.nodes[node];
        let (keys, fence) = every_kind(server, &found[0]);
        let mut locks: Vec<Waiter> = [0, 0, 1, 2]
            .iter()
            .zip(["tB", "tC", "tB", "tD"])
            .map(|(at, who)| line_up(server, &keys[*at], who, "1m", "0"))
            .collect();
        // One that waits for what has become no lock.
        let odd = format!("{{{}}}odd", found[0]);
        hold(server, &odd, "tA", "5m");
        locks.push(line_up(server, &odd, "tB", "1m", "0"));
        server.client().pipeline(&[args!["MULTI"], args!["DEL", &odd], args!["RPUSH", &odd, "x"], args!["EXEC"]]);
        let permit = line_up_for_permit(server, &keys[3], "tC");
        hold(server, &found[1], "tA", "5m");
        let other = line_up(server, &found[1], "tB", "1m", "0");
        Self { tag: found[0].clone(), keys, fence, locks, permit, other_key: found[1].clone(), other }
    }

    /// What all of the slot's waiters have been answered.
    #[track_caller]
    fn replies(&mut self) -> Vec<Value> {
        let mut all: Vec<Value> = self.locks.iter_mut().map(Waiter::reply).collect();
        all.push(self.permit.read(SOON).expect("a reply"));
        all
    }

    /// The rest of it, once the slot is the target's.
    #[track_caller]
    fn after(mut self, cluster: &Cluster, from: usize, to: usize) {
        let (source, target) = (&cluster.nodes[from], &cluster.nodes[to]);
        assert_eq!(handovers(source), 0, "nobody was granted anything by the old owner");
        assert_eq!((waiters(source), source.info_int("sluice", "sluice_sem_waiters")), (1, 0));
        // Who waits for another slot's lock is left alone.
        self.other.still_waits(source, &self.other_key);
        assert_eq!(release(source, &self.other_key, "tA"), 1);
        self.other.fence();
        // Who was sent on waits there, behind nobody, and is granted by who holds it there.
        let mut again = line_up(target, &self.keys[0], "tB", "1m", "0");
        assert_eq!(holder(target, &self.keys[0]), "tA");
        again.still_waits(target, &self.keys[0]);
        assert_eq!(release(target, &self.keys[0], "tA"), 1);
        let fence = again.fence();
        assert!(fence > self.fence);
        assert_eq!(release(target, &self.keys[0], "tB"), 1);
        assert!(hold(target, &self.keys[0], "tA", "5m") > fence);
        goes_on(target, &self.tag, self.fence);
    }
}

#[test]
fn l35_waiters_of_a_slot_that_is_moved_key_by_key_are_sent_on_and_not_granted_by_the_old_owner() {
    let mut cluster = Cluster::start(0);
    let mut line = Line::at(&cluster, 0);
    let slot = cluster.slot(&line.tag);
    let before: Vec<_> = line.keys.iter().map(|key| exactly(&cluster.nodes[0], key)).collect();
    cluster.begin_move(slot, 0, 1);
    // The keys are still here, and so are those who wait.
    let key = &line.keys[0];
    line.locks[0].still_waits(&cluster.nodes[0], key);
    assert_eq!(queue(&cluster.nodes[0], key), ["tB", "tC"]);

    let noise = Noise::of(&cluster.nodes[0]);
    let gone = Instant::now();
    cluster.move_keys(slot, 0, 1);
    for reply in line.replies() {
        assert!(reply.is_error("TRYAGAIN "), "{reply:?}");
    }
    prompt(gone, SENT_ON, noise, "waiters are sent on");
    cluster.end_move(slot, 0, 1);
    cluster.wait_for_owner(slot, 1);
    for (key, was) in line.keys.iter().zip(&before) {
        moved_along(&exactly(&cluster.nodes[1], key), was, gone, key);
    }
    line.after(&cluster, 0, 1);
    alive(&mut cluster);
}

#[test]
fn l35_a_lock_released_while_its_slot_is_on_its_way_is_handed_over_where_it_is() {
    let mut cluster = Cluster::start(0);
    let key = cluster.keys_of(0, "k", 1).remove(0);
    let slot = cluster.slot(&key);
    hold(&cluster.nodes[0], &key, "tA", "1m");
    let mut b = line_up(&cluster.nodes[0], &key, "tB", "300ms", "0");
    let mut c = line_up(&cluster.nodes[0], &key, "tC", "1m", "0");
    let mut d = line_up(&cluster.nodes[0], &key, "tD", "1m", "0");
    cluster.begin_move(slot, 0, 1);
    assert_eq!(release(&cluster.nodes[0], &key, "tA"), 1);
    let first = b.fence();
    // B's lease ends: the key is here until then, and there is no moment in between at which it is not.
    let reply = c.reply();
    if reply.is_error("TRYAGAIN ") {
        // The server itself has removed the key at its end: then the slot's new keys are made on the target.
        assert!(d.reply().is_error("TRYAGAIN "));
    } else {
        assert!(reply.int() > first);
        cluster.move_keys(slot, 0, 1);
        assert!(d.reply().is_error("TRYAGAIN "));
        assert_eq!(asking(&mut cluster.nodes[1].client(), &args!["GET", &key]).text(), "tC");
    }
    cluster.move_keys(slot, 0, 1);
    cluster.end_move(slot, 0, 1);
    assert_eq!(waiters(&cluster.nodes[0]), 0);
    alive(&mut cluster);
}

#[test]
fn l35_waiters_of_a_slot_that_another_node_has_taken_are_told_whose_it_is() {
    let mut cluster = Cluster::start(0);
    let key = cluster.keys_of(0, "k", 1).remove(0);
    let slot = cluster.slot(&key);
    hold(&cluster.nodes[0], &key, "tA", "5m");
    let mut line: Vec<Waiter> = ["tB", "tC"].map(|who| line_up(&cluster.nodes[0], &key, who, "1m", "0")).into();
    let (id, source) = (cluster.id(1).to_owned(), &cluster.nodes[0]);
    // The target claims it with a newer epoch, and nobody tells the old owner but the cluster's own gossip.
    cluster.nodes[1].call(&["CLUSTER", "BUMPEPOCH"]);
    cluster.nodes[1].ok(&args!["CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id(0)]);
    cluster.nodes[1].ok(&args!["CLUSTER", "SETSLOT", slot, "NODE", &id]);
    wait_until(SOON, "the old owner has heard of it", || source.call(&args!["LOCK.INFO", &key]).is_error("MOVED "));
    let noise = Noise::of(source);
    let moved = Instant::now();
    for waiter in &mut line {
        assert_eq!(redirected(&waiter.reply(), "MOVED"), (slot, cluster.address(1)));
    }
    prompt(moved, SENT_ON, noise, "waiters are told");
    assert_eq!((handovers(source), waiters(source)), (0, 0));
    alive(&mut cluster);
}

#[test]
fn l35_waiters_are_sent_to_the_endpoint_that_the_server_itself_names() {
    let mut cluster = Cluster::start(0);
    let keys = cluster.keys_of(0, "k", 4);
    for (at, node) in cluster.nodes.iter().enumerate().take(2) {
        node.ok(&args!["CONFIG", "SET", "cluster-announce-hostname", format!("node-{at}.test")]);
    }
    let source = &cluster.nodes[0];
    let knows_its_name = || source.call(&["CLUSTER", "NODES"]).text().contains("node-1.test");
    wait_until(SOON, "the source has heard the target's name", knows_its_name);
    // By address, by name, by a name that is not known, and not at all: behind a proxy only the port counts.
    let wanted =
        [("ip", 1, "127.0.0.1"), ("hostname", 1, "node-1.test"), ("hostname", 2, "?"), ("unknown-endpoint", 1, "")];
    for (key, (kind, target, host)) in keys.iter().zip(wanted) {
        let slot = cluster.slot(key);
        source.ok(&["CONFIG", "SET", "cluster-preferred-endpoint-type", kind]);
        hold(source, key, "tA", "5m");
        let mut b = line_up(source, key, "tB", "1m", "0");
        cluster.nodes[target].call(&["CLUSTER", "BUMPEPOCH"]);
        cluster.nodes[target].ok(&args!["CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id(0)]);
        cluster.nodes[target].ok(&args!["CLUSTER", "SETSLOT", slot, "NODE", cluster.id(target)]);
        let moved = || source.call(&args!["LOCK.INFO", key]);
        let server = wait_for(SOON, "the server says so", moved, |reply| {
            reply.is_error("MOVED ")
                && redirected(reply, "MOVED").1 == format!("{host}:{}", cluster.nodes[target].port())
        });
        assert_eq!(b.reply().error(), server.error(), "{kind}");
    }
    alive(&mut cluster);
}

#[test]
fn who_waits_on_the_target_of_a_move_that_does_not_end_is_sent_to_the_owner() {
    let mut cluster = Cluster::start(0);
    let key = cluster.keys_of(0, "k", 1).remove(0);
    let slot = cluster.slot(&key);
    cluster.begin_move(slot, 0, 1);
    let target = &cluster.nodes[1];
    assert!(asking(&mut target.client(), &args!["LOCK.ACQUIRE", &key, "tA", "1m"]).int() > 0);
    let mut waiting = target.client();
    waiting.send_all(&[args!["ASKING"], args!["LOCK.ACQUIRE", &key, "tB", "1m", "BLOCK", 0]]);
    assert_eq!(waiting.read(SOON).unwrap(), Value::Okay);
    // The owner sends it here again: a client that follows goes on waiting, and nobody is granted what tA holds.
    assert_eq!(redirected(&waiting.read(SOON).unwrap(), "MOVED"), (slot, cluster.address(0)));
    assert_eq!(handovers(target), 0);
    cluster.end_move(slot, 0, 1);
    let mut b = line_up(target, &key, "tB", "1m", "0");
    assert_eq!(release(target, &key, "tA"), 1);
    b.fence();
    alive(&mut cluster);
}

#[test]
fn a_primary_that_loses_its_last_slot_sends_its_waiters_on() {
    // It becomes a replica of the new owner by itself.
    let mut cluster = Cluster::of(&[1, 8191, 8192], 0, &[]);
    let key = cluster.keys_of(0, "k", 1).remove(0);
    hold(&cluster.nodes[0], &key, "tA", "5m");
    let mut b = line_up(&cluster.nodes[0], &key, "tB", "1m", "0");
    cluster.begin_move(0, 0, 1);
    cluster.move_keys(0, 0, 1);
    // The old owner hears of it from the new one, and follows it from then on.
    cluster.nodes[1].ok(&args!["CLUSTER", "SETSLOT", 0, "NODE", cluster.id(1)]);
    let reply = b.reply();
    assert!(["TRYAGAIN ", "MOVED ", "UNBLOCKED "].iter().any(|code| reply.is_error(code)), "{reply:?}");
    wait_for(SOON, "it follows", || cluster.nodes[0].info("replication")["role"].clone(), |role| role == "slave");
    assert_eq!((handovers(&cluster.nodes[0]), waiters(&cluster.nodes[0])), (0, 0));
    let mut again = line_up(&cluster.nodes[1], &key, "tB", "1m", "0");
    assert_eq!(release(&cluster.nodes[1], &key, "tA"), 1);
    again.fence();
    alive(&mut cluster);
}

/// What a server without moves at once says for all tests of them.
fn atomic(cluster: &Cluster) -> Option<Atomic> {
    let how = cluster.atomic();
    if how.is_none() {
        not_here("a slot that moves at once", "this server has neither CLUSTER MIGRATESLOTS nor CLUSTER MIGRATION");
    }
    how
}

#[test]
fn l35_waiters_of_a_slot_that_moves_at_once_are_told_whose_it_is_and_not_granted_by_the_old_owner() {
    let mut cluster = Cluster::start(0);
    let Some(how) = atomic(&cluster) else { return };
    let mut line = Line::at(&cluster, 0);
    let slot = cluster.slot(&line.tag);
    let before: Vec<_> = line.keys.iter().map(|key| exactly(&cluster.nodes[0], key)).collect();
    cluster.begin_atomic_move(how, slot, 0, 1);
    wait_until(SOON, "the old owner has let go", || {
        cluster.nodes[0].call(&args!["LOCK.INFO", &line.keys[0]]).is_error("MOVED ")
    });
    let noise = Noise::of(&cluster.nodes[0]);
    let moved = Instant::now();
    for reply in line.replies() {
        assert_eq!(redirected(&reply, "MOVED"), (slot, cluster.address(1)));
    }
    prompt(moved, SENT_ON, noise, "waiters are told");
    cluster.wait_for_owner(slot, 1);
    for (key, was) in line.keys.iter().zip(before) {
        assert_eq!(exactly(&cluster.nodes[1], key), was, "{key}");
    }
    line.after(&cluster, 0, 1);
    alive(&mut cluster);
}

/// Tells the workers to end, also when the test ends by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Moves a slot to and fro while others work, and tells them to end. `work_goes_on` returns when they have done
/// something.
fn to_and_fro(
    cluster: &Cluster,
    slot: u16,
    rounds: usize,
    how: Option<Atomic>,
    work_goes_on: impl Fn(),
    stop: &AtomicBool,
) {
    let (begun, _ends) = (Instant::now(), Ends(stop));
    for round in 0..rounds {
        let (from, to) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        match how {
            None => {
                cluster.begin_move(slot, from, to);
                // Some of the work is done between the two, some while keys go.
                work_goes_on();
                loop {
                    cluster.move_keys(slot, from, to);
                    let left = cluster.nodes[from].call(&args!["CLUSTER", "COUNTKEYSINSLOT", slot]).int();
                    if left == 0 {
                        break;
                    }
                }
                work_goes_on();
                cluster.end_move(slot, from, to);
            }
            Some(how) => cluster.begin_atomic_move(how, slot, from, to),
        }
        cluster.wait_for_owner(slot, to);
        work_goes_on();
    }
    println!("{rounds} moves in {:?}", begun.elapsed());
}

/// Some time for others, and then as much as they need to do something.
fn work_for(time: Duration, done: impl Fn() -> i64) {
    let before = done();
    std::thread::sleep(time);
    wait_until(SOON, "the work goes on", || done() > before + 4);
}

fn exclusion_across_moves(how: Option<Atomic>, cluster: &mut Cluster) {
    let tag = cluster.keys_of(0, "t", 1).remove(0);
    let slot = cluster.slot(&tag);
    let key = format!("{{{tag}}}k");
    let (stop, inside, last) = (AtomicBool::new(false), AtomicI64::new(0), AtomicI64::new(0));
    let served = AtomicI64::new(0);
    let rounds = if long() { 60 } else { 6 };
    let shared = &*cluster;
    let way: Vec<(usize, Vec<String>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|n| {
                let (stop, inside, last, served, key) = (&stop, &inside, &last, &served, &key);
                let mut router = Router::new(shared);
                scope.spawn(move || {
                    let (mut grants, mut way) = (0, vec![]);
                    for turn in 0.. {
                        if stop.load(SeqCst) {
                            break;
                        }
                        let token = format!("{n}:{turn}");
                        let got = router.call(&args!["LOCK.ACQUIRE", key, &token, "30s", "BLOCK", "10s"]);
                        way.extend(got.way);
                        let fence = got.reply.int();
                        if fence == 0 {
                            continue;
                        }
                        // The fence is this grant's from here to the release: nobody else may be inside.
                        assert_eq!(inside.swap(fence, SeqCst), 0, "two hold it at once");
                        let before = last.swap(fence, SeqCst);
                        assert!(fence > before, "fences grow: {before}, then {fence}");
                        assert_eq!(inside.swap(0, SeqCst), fence, "two hold it at once");
                        let done = router.call(&args!["LOCK.RELEASE", key, &token]);
                        assert_eq!(done.reply.int(), 1, "{:?}", done.way);
                        way.extend(done.way);
                        grants += 1;
                        served.fetch_add(1, SeqCst);
                    }
                    (grants, way)
                })
            })
            .collect();
        to_and_fro(shared, slot, rounds, how, || work_for(ms(60), || served.load(SeqCst)), &stop);
        workers.into_iter().map(|worker| worker.join().expect("a worker")).collect()
    });
    let grants: usize = way.iter().map(|(grants, _)| grants).sum();
    let mut codes = std::collections::BTreeMap::<&str, usize>::new();
    way.iter().flat_map(|(_, way)| way).for_each(|code| *codes.entry(code).or_default() += 1);
    println!("{how:?}: {grants} grants, sent about by {codes:?}");
    assert!(grants > 4 * rounds, "{grants}");
    for node in &shared.nodes {
        assert_eq!(waiters(node), 0);
    }
    alive(cluster);
}

#[test]
fn one_holder_at_a_time_and_growing_fences_while_the_slot_goes_to_and_fro_key_by_key() {
    exclusion_across_moves(None, &mut Cluster::start(0));
}

#[test]
fn one_holder_at_a_time_and_growing_fences_while_the_slot_goes_to_and_fro_at_once() {
    let mut cluster = Cluster::start(0);
    let Some(how) = atomic(&cluster) else { return };
    exclusion_across_moves(Some(how), &mut cluster);
}

fn quotas_across_moves(how: Option<Atomic>, cluster: &mut Cluster) {
    let tag = cluster.keys_of(0, "t", 1).remove(0);
    let slot = cluster.slot(&tag);
    let limit = 1_000_000;
    let calls = [
        args!["RL.FIXED", format!("{{{tag}}}f"), limit, "1h"],
        args!["RL.SLIDING", format!("{{{tag}}}l"), limit, "1h"],
        // One unit an hour: none comes back while the test runs.
        args!["RL.BUCKET", format!("{{{tag}}}b"), limit, 1, "1h"],
    ];
    let stop = AtomicBool::new(false);
    let admitted = [const { AtomicI64::new(0) }; 3];
    let shared = &*cluster;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (stop, admitted, calls) = (&stop, &admitted, &calls);
            let mut router = Router::new(shared);
            scope.spawn(move || {
                while !stop.load(SeqCst) {
                    for (call, admitted) in calls.iter().zip(admitted) {
                        let routed = router.call(call);
                        // A call whose reply was lost would be counted and not seen; nothing here is lost.
                        assert!(!routed.way.iter().any(|code| code == "GONE"));
                        admitted.fetch_add(routed.reply.ints()[0], SeqCst);
                    }
                }
            });
        }
        // The one of which least was admitted.
        let done = || admitted.iter().map(|one| one.load(SeqCst)).min().unwrap();
        to_and_fro(shared, slot, if long() { 40 } else { 4 }, how, || work_for(ms(60), done), &stop);
    });
    let mut router = Router::new(shared);
    for (call, admitted) in calls.iter().zip(admitted) {
        let mut peek = call.clone();
        peek.push(b"PEEK".to_vec());
        let (remaining, admitted) = (router.call(&peek).reply.ints()[2], admitted.load(SeqCst));
        println!("{how:?}: {} admitted {admitted} of {limit}", text(call));
        assert_eq!(remaining, limit - admitted, "{}: what was admitted is what is used", text(call));
        assert!(admitted > 0);
    }
    alive(cluster);
}

#[test]
fn no_unit_is_lost_or_given_twice_while_the_slot_goes_to_and_fro_key_by_key() {
    quotas_across_moves(None, &mut Cluster::start(0));
}

#[test]
fn no_unit_is_lost_or_given_twice_while_the_slot_goes_to_and_fro_at_once() {
    let mut cluster = Cluster::start(0);
    let Some(how) = atomic(&cluster) else { return };
    quotas_across_moves(Some(how), &mut cluster);
}

#[test]
fn leases_that_end_and_grants_that_come_by_waiting_while_a_slot_moves_at_once_go_along() {
    let mut cluster = Cluster::start(0);
    let Some(how) = atomic(&cluster) else { return };
    let tag = cluster.keys_of(0, "t", 1).remove(0);
    let slot = cluster.slot(&tag);
    let source = &cluster.nodes[0];
    // Enough of it that the move takes a while, and a lease that ends every few milliseconds of that while.
    let mut client = source.client();
    let filler = "x".repeat(10_000);
    for n in 0..1_000 {
        client.send(&args!["SET", format!("{{{tag}}}filler{n}"), &filler]);
    }
    (0..1_000).for_each(|_| assert_eq!(client.read(SOON).unwrap(), Value::Okay));
    let keys: Vec<String> = (0..200).map(|n| format!("{{{tag}}}{n}")).collect();
    let mut line = Vec::new();
    for key in &keys {
        hold(source, key, "tA", "5m");
        let mut waiting = source.client();
        waiting.send(&args!["LOCK.ACQUIRE", key, "tB", "5m", "BLOCK", 0]);
        line.push((key, waiting));
    }
    wait_until(SOON, "all wait", || waiters(source) == 200);
    let ends: Vec<_> = keys.iter().zip(0..).map(|(key, n)| args!["PEXPIRE", key, 1 + 4 * n]).collect();
    client.pipeline(&ends);
    cluster.begin_atomic_move(how, slot, 0, 1);
    cluster.wait_for_owner(slot, 1);
    let (mut granted, mut sent_on) = (0, 0);
    for (key, waiting) in &mut line {
        let reply = waiting.read(SOON).unwrap();
        let value = cluster.nodes[1].call(&["GET", key]);
        let now = if value.is_nil() { "nobody".to_owned() } else { value.text() };
        if reply.error().is_some() {
            assert_eq!(redirected(&reply, "MOVED"), (slot, cluster.address(1)));
            assert_ne!(now, "tB", "{key}: sent on, and granted all the same");
            sent_on += 1;
        } else {
            assert!(reply.int() > 0);
            assert_eq!(now, "tB", "{key}: granted by the old owner, and the new one does not know");
            granted += 1;
        }
    }
    println!("{granted} granted before the slot was gone, {sent_on} sent on");
    assert_eq!(handovers(&cluster.nodes[0]), granted);
    alive(&mut cluster);
}

#[test]
fn a_cluster_failover_ends_the_waits_and_the_new_primary_goes_on() {
    let mut cluster = Cluster::start(1);
    let mut line = Line::at(&cluster, 0);
    let (old, new) = (&cluster.nodes[0], &cluster.replicas[0]);
    cluster.begin_failover(old, new);
    for reply in line.replies().into_iter().chain([line.other.reply()]) {
        assert!(reply.is_error("UNBLOCKED "), "{reply:?}");
    }
    wait_until(SOON, "the roles have changed", || {
        new.info("replication")["role"] == "master" && old.info("replication")["role"] == "slave"
    });
    assert_eq!((handovers(old), waiters(old), old.blocked_clients()), (0, 0, 0));
    wait_until(SOON, "the new primary serves", || state(new) == "ok");
    // Who still asks the old one is sent to the new one.
    let reply = old.call(&args!["LOCK.ACQUIRE", &line.keys[0], "tB", "1m", "BLOCK", 0]);
    assert_eq!(redirected(&reply, "MOVED").1, format!("127.0.0.1:{}", new.port()));
    let mut again = line_up(new, &line.keys[0], "tB", "1m", "0");
    assert_eq!(release(new, &line.keys[0], "tA"), 1);
    let fence = again.fence();
    assert!(fence > line.fence);
    assert_eq!(release(new, &line.keys[0], "tB"), 1);
    assert!(hold(new, &line.keys[0], "tA", "5m") > fence);
    goes_on(new, &line.tag, line.fence);

    // And back again, to a server that had ended its waits once.
    let mut b = line_up(new, &line.other_key, "tB", "1m", "0");
    cluster.begin_failover(new, old);
    assert!(b.reply().is_error("UNBLOCKED "));
    wait_until(SOON, "the roles are as before", || old.info("replication")["role"] == "master" && state(old) == "ok");
    let mut b = line_up(old, &line.other_key, "tB", "1m", "0");
    assert_eq!(release(old, &line.other_key, "tA"), 1);
    b.fence();
    alive(&mut cluster);
}

#[test]
fn a_primary_that_is_killed_is_replaced_and_locks_limits_and_fences_go_on() {
    let mut cluster = Cluster::of(&[5461, 5461, 5462], 1, &["--cluster-replica-validity-factor", "0"]);
    let tag = cluster.keys_of(0, "t", 1).remove(0);
    let (keys, fence) = every_kind(&cluster.nodes[0], &tag);
    let mut b = line_up(&cluster.nodes[0], &keys[0], "tB", "1m", "0");
    rig::wait_for_sync(&cluster.nodes[0], &cluster.replicas[0]);
    let killed = Instant::now();
    cluster.nodes[0].kill9();
    assert!(b.client.read(SOON).is_err());
    let new = &cluster.replicas[0];
    let take = args!["LOCK.ACQUIRE", format!("{{{tag}}}new"), "tB", "1m"];
    let reply =
        wait_for(ms(40_000), "the replica has taken over", || new.call(&take), |reply| matches!(reply, Value::Int(_)));
    println!("a new grant {:?} after the kill", killed.elapsed());
    assert!(reply.int() > fence);
    goes_on(new, &tag, fence);
}

/// Nobody is granted anything behind the gate, whatever the servers make of those who wait; and who waits still is
/// granted soon after. The best of five: what else the machine does makes a grant later, and never earlier.
fn through_clusterdown(cluster: &mut Cluster, shut: impl Fn(&Cluster), open: impl Fn(&Cluster), key: &str, code: &str) {
    let mut late = vec![];
    let is_prompt = (0..5).any(|round| {
        late.push(shut_and_opened(cluster, &shut, &open, &format!("{{{key}}}{round}:"), code));
        late[round] <= ms(150)
    });
    assert!(is_prompt, "the grant after CLUSTERDOWN: {late:?}");
    alive(cluster);
}

/// One time of it: how long the grant took, where the server has left the waiters to us.
fn shut_and_opened(
    cluster: &Cluster,
    shut: impl Fn(&Cluster),
    open: impl Fn(&Cluster),
    key: &str,
    code: &str,
) -> Duration {
    let server = &cluster.nodes[0];
    let (key, until, had, [mut b, mut c]) = in_time(400, |lease| {
        let (key, had, held) = (format!("{key}{lease}"), handovers(server), Instant::now());
        hold(server, &key, "tA", &format!("{lease}ms"));
        let line = ["tB", "tC"].map(|token| enter(server, &key, token, "1m", "0"));
        let until = unix_ms() + lease as f64;
        shut(cluster);
        let refused = server.call(&args!["LOCK.ACQUIRE", &key, "tX", "1m"]);
        assert!(refused.is_error("CLUSTERDOWN "), "{refused:?}");
        let in_time = held.elapsed() < ms(lease);
        if !in_time {
            open(cluster);
            wait_until(SOON, "the cluster is up", || state(server) == "ok");
            drop(line);
            wait_until(SOON, "nobody is left of it", || waiters(server) == 0);
            return None;
        }
        Some((key, until, had, line))
    });
    let key = key.as_str();
    wait_until(ms(60_000), "the lease has ended", || unix_ms() > until + 100.0);
    assert_eq!(handovers(server), had, "granted while the cluster is down");
    // Redis ends such waits itself; Valkey leaves them to us, and we leave them until the cluster is up again.
    let mut told = [&mut b, &mut c].map(|waiter| waiter.client.read(ms(1500)).ok());
    if told[0].is_some() != told[1].is_some() {
        // The server was held up between the two.
        let [first, second] = &mut told;
        for (waiter, reply) in [(&mut b, first), (&mut c, second)] {
            *reply = reply.take().or_else(|| waiter.client.read(SOON).ok());
        }
    }
    match &told {
        [Some(one), Some(two)] => {
            assert!([one, two].iter().all(|reply| reply.is_error("CLUSTERDOWN ") || reply.is_error(code)), "{told:?}");
            wait_until(SOON, "nobody waits", || waiters(server) == 0);
            open(cluster);
            wait_until(SOON, "it can be had again", || {
                matches!(server.call(&args!["LOCK.ACQUIRE", key, "tB", "1m"]), Value::Int(1..))
            });
            Duration::ZERO
        }
        [None, None] => {
            open(cluster);
            wait_until(SOON, "the cluster is up", || state(server) == "ok");
            let (noise, opened) = (Noise::of(server), Instant::now());
            b.fence();
            let late = net(opened, Instant::now(), &noise.lost());
            assert_eq!(release(server, key, "tB"), 1);
            c.fence();
            late
        }
        _ => panic!("one was told and the other was not: {told:?}"),
    }
}

#[test]
fn nobody_is_granted_a_lock_while_a_slot_of_the_cluster_is_nobodys() {
    let mut cluster = Cluster::start(0);
    let key = cluster.keys_of(0, "k", 1).remove(0);
    // A slot of another key, on this node, so that this node knows at once.
    let slot = cluster.slot(&cluster.keys_of(0, "other", 1)[0]);
    let shut = |cluster: &Cluster| {
        cluster.nodes[0].ok(&args!["CLUSTER", "DELSLOTS", slot]);
        wait_until(SOON, "the cluster is down", || state(&cluster.nodes[0]) == "fail");
    };
    let open = |cluster: &Cluster| cluster.nodes[0].ok(&args!["CLUSTER", "ADDSLOTS", slot]);
    through_clusterdown(&mut cluster, shut, open, &key, "CLUSTERDOWN ");
}

#[test]
fn nobody_is_granted_a_lock_whose_own_slot_is_nobodys() {
    let mut cluster = Cluster::of(&[5461, 5461, 5462], 0, &["--cluster-require-full-coverage", "no"]);
    let key = cluster.keys_of(0, "k", 1).remove(0);
    let slot = cluster.slot(&key);
    let shut = |cluster: &Cluster| cluster.nodes[0].ok(&args!["CLUSTER", "DELSLOTS", slot]);
    let open = |cluster: &Cluster| cluster.nodes[0].ok(&args!["CLUSTER", "ADDSLOTS", slot]);
    through_clusterdown(&mut cluster, shut, open, &key, "TRYAGAIN ");
}

#[test]
fn nobody_is_granted_a_lock_by_a_primary_that_is_cut_off_from_the_others() {
    let mut cluster = Cluster::start(0);
    let key = cluster.keys_of(0, "k", 1).remove(0);
    let shut = |cluster: &Cluster| {
        // The majority is silent: this node is alone.
        cluster.nodes[1].stop();
        cluster.nodes[2].stop();
        wait_until(SOON, "the cluster is down", || state(&cluster.nodes[0]) == "fail");
    };
    let open = |cluster: &Cluster| {
        cluster.nodes[1].cont();
        cluster.nodes[2].cont();
    };
    let server = &cluster.nodes[0];
    hold(server, &key, "tA", "10m");
    let mut b = line_up(server, &key, "tB", "1m", "0");
    shut(&cluster);
    // Redis ends such a wait itself; Valkey leaves it to us, and we leave it until the cluster is up again.
    let told = b.client.read(ms(1500)).ok();
    assert!(told.as_ref().is_none_or(|reply| reply.is_error("CLUSTERDOWN ")), "{told:?}");
    assert!(server.call(&args!["LOCK.RELEASE", &key, "tA"]).is_error("CLUSTERDOWN "));
    open(&cluster);
    wait_until(SOON, "the cluster is up", || state(server) == "ok");
    assert_eq!(handovers(server), 0, "granted while it was cut off");
    assert_eq!(server.call(&args!["LOCK.RENEW", &key, "tA", 50]).int(), 1);
    // Who was not told by then waits still, or was told later.
    let told = told.unwrap_or_else(|| b.reply());
    if !matches!(told, Value::Int(1..)) {
        assert!(told.is_error("CLUSTERDOWN "), "{told:?}");
        wait_until(SOON, "it can be had again", || {
            matches!(server.call(&args!["LOCK.ACQUIRE", &key, "tB", "1m"]), Value::Int(1..))
        });
    }
    alive(&mut cluster);
}
