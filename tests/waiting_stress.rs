//! Sixty-four clients, few locks, and everything that can go wrong at once; then the history is checked.
//!
//! Three accounts of the same events are held against each other: what every client sent and got and when; the server's AOF,
//! which has all changes of the keys in their order with absolute deadlines; and MONITOR, which has the calls in the order in
//! which the server took them. SLUICE_LONG=1 runs it for 30 s, SLUICE_SEED=n with the random choices of an earlier run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod rig;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rig::line::{defers, is_deaf, waiters};
use rig::noise::{Noise, two_clocks};
use rig::{Client, SOON, Server, Value, ValueExt, args, ms, wait_for};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How a call of LOCK.ACQUIRE ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Granted(i64),
    /// 0, or UNBLOCKED.
    InVain,
    /// The connection went first, by either side.
    Gone,
    /// The connection stayed, and no reply has come.
    NoReply,
}

/// A LOCK.ACQUIRE. All times are in microseconds since the start, on one clock.
#[derive(Clone, Debug)]
struct Call {
    key: usize,
    /// What the server calls the connection.
    client: i64,
    ttl: u64,
    sent: u64,
    over: u64,
    end: End,
    /// For how long it would wait; none: not at all.
    timeout: Option<u64>,
    release: Option<Release>,
}

#[derive(Clone, Debug)]
struct Release {
    sent: u64,
    /// When the reply came, and what it was.
    reply: Option<(u64, i64)>,
}

/// A DEL or SET by somebody who knows nothing of locks.
#[derive(Clone, Debug)]
struct Foreign {
    key: usize,
    sent: u64,
    over: u64,
    /// A DEL that found something.
    removed: bool,
}

/// A SET as the AOF has it: a grant, or a foreign one. A lease starts at its grant, so the deadline tells when that was, by the
/// server's clock, however late the client's thread was run to hear of it.
#[derive(Clone, Debug)]
struct Entry {
    key: usize,
    token: String,
    deadline: u64,
}

#[derive(Clone, Debug, Default)]
struct History {
    calls: HashMap<String, Call>,
    foreign: Vec<Foreign>,
    /// Whom a CLIENT UNBLOCK was for, when it was sent and when it was over: who is told of it may hear of it later.
    unblocks: Vec<(i64, u64, u64)>,
    /// In the order of the AOF.
    log: Vec<Entry>,
    /// Tokens, in the order in which the server took their calls, and when it did: a client's thread may stand still between
    /// its look at the clock and its send.
    arrivals: Vec<(String, u64)>,
    /// When the machine ran neither us nor the server.
    lost: Vec<(u64, u64)>,
    /// Replies that nobody had asked for.
    stray: usize,
    /// For how long a lock may be free while somebody waits, in microseconds.
    bound: u64,
}

#[derive(Debug, Default)]
struct Summary {
    grants: usize,
    received: usize,
    in_vain: usize,
    gone: usize,
    /// The longest time a lock was free though somebody waited: as seen, and without the machine's own delays.
    gap: u64,
    net_gap: u64,
}

impl History {
    fn net(&self, from: u64, to: u64) -> u64 {
        let taken: u64 = self.lost.iter().map(|(a, b)| (*b).min(to).saturating_sub((*a).max(from))).sum();
        to.saturating_sub(from).saturating_sub(taken)
    }

    /// When what `entry` had put there was gone for certain, as far as can be told by what came before `until`.
    fn free_by(&self, entry: &Entry, until: u64) -> u64 {
        // A deadline is over when its millisecond is.
        let mut by = entry.deadline + 1_000;
        let since = self.calls.get(&entry.token).map(|call| (call.sent, call.end, call.over));
        if let Some(release) = self.calls.get(&entry.token).and_then(|call| call.release.as_ref())
            && let Some((at, 1)) = release.reply
        {
            by = by.min(at);
        }
        if let Some((_, End::Granted(_), received)) = since {
            let dels = self.foreign.iter().filter(|del| del.key == entry.key && del.removed);
            by = dels.filter(|del| del.sent > received && del.over < until).map(|del| del.over).fold(by, u64::min);
        }
        by
    }

    /// May what `entry` had put there have been gone when the next was granted, in the millisecond that began at `at`?
    fn may_be_gone(&self, entry: &Entry, at: u64) -> bool {
        let at = at + 1_000;
        let call = self.calls.get(&entry.token);
        let since = call.map_or(0, |call| call.sent);
        let released = call
            .and_then(|call| call.release.as_ref())
            .is_some_and(|release| release.sent <= at && release.reply.is_none_or(|(_, reply)| reply == 1));
        let foreign = |foreign: &Foreign| foreign.key == entry.key && foreign.sent <= at && foreign.over >= since;
        // A grant that never reached its client goes on to the next.
        entry.deadline <= at
            || released
            || call.is_some_and(|call| matches!(call.end, End::Gone | End::InVain))
            || self.foreign.iter().any(foreign)
    }

    /// What contradicts the contract; or what there was.
    fn check(&self) -> Result<Summary, Vec<String>> {
        let mut wrong = Vec::new();
        let mut sum = Summary::default();
        let arrived: HashMap<&str, (usize, u64)> =
            self.arrivals.iter().zip(0..).map(|((token, when), place)| (token.as_str(), (place, *when))).collect();
        let keys = self.log.iter().map(|entry| entry.key).max().map_or(0, |most| most + 1);
        let mut last: Vec<Option<&Entry>> = vec![None; keys];
        let mut last_arrival: Vec<Option<(usize, &str)>> = vec![None; keys];
        let mut last_fence = 0;
        let mut following: HashMap<&str, Option<&str>> = HashMap::new();
        for entry in &self.log {
            let before = last[entry.key].replace(entry);
            if let Some(before) = before {
                following.insert(&before.token, Some(&entry.token));
            }
            following.insert(&entry.token, None);
            let Some(call) = self.calls.get(&entry.token) else { continue };
            sum.grants += 1;
            if let End::Granted(fence) = call.end {
                sum.received += 1;
                if fence <= last_fence {
                    wrong.push(format!("fence {fence} of {} is not above {last_fence}", entry.token));
                }
                last_fence = fence;
            }
            let arrival = arrived.get(entry.token.as_str());
            match arrival {
                None => wrong.push(format!("{} was granted, and the server never took its call", entry.token)),
                Some(&(at, _)) => {
                    if let Some((_, earlier)) = last_arrival[entry.key].filter(|(there, _)| *there > at) {
                        wrong.push(format!("{} was granted after {earlier}, who came later", entry.token));
                    }
                    last_arrival[entry.key] = Some((at, &entry.token));
                }
            }
            let Some(before) = before.filter(|before| before.token != entry.token) else { continue };
            let granted = entry.deadline.saturating_sub(call.ttl);
            if !self.may_be_gone(before, granted) {
                wrong.push(format!("{} was granted while {} held it", entry.token, before.token));
            }
            if matches!(call.end, End::Granted(_)) {
                let from = self.free_by(before, granted).max(arrival.map_or(call.sent, |(_, when)| *when));
                let (gap, net) = (granted.saturating_sub(from), self.net(from, granted));
                (sum.gap, sum.net_gap) = (sum.gap.max(gap), sum.net_gap.max(net));
                if net > self.bound {
                    wrong.push(format!("{} waited {net} us for a lock that {} had left", entry.token, before.token));
                }
            }
        }
        let logged: HashMap<&str, &Entry> = self.log.iter().map(|entry| (entry.token.as_str(), entry)).collect();
        for (token, call) in &self.calls {
            match call.end {
                End::Granted(_) if !logged.contains_key(token.as_str()) => {
                    wrong.push(format!("{token} was told of a grant that is not in the AOF"));
                }
                End::NoReply => wrong.push(format!("{token} got no reply")),
                End::InVain => sum.in_vain += 1,
                End::Gone => sum.gone += 1,
                End::Granted(_) => {}
            }
            if let Some((at, 0)) = call.release.as_ref().and_then(|release| release.reply)
                && let Some(entry) = logged.get(token.as_str())
            {
                let foreign = |f: &&Foreign| f.key == call.key && f.sent <= at && f.over >= call.sent;
                if entry.deadline > at + 1_000 && !self.foreign.iter().any(|f| foreign(&f)) {
                    wrong.push(format!("{token} had lost the lock at its release, before its deadline"));
                }
            }
        }
        self.check_waits_in_vain(&following, &arrived, &mut wrong);
        if self.stray > 0 {
            wrong.push(format!("{} replies that nobody asked for", self.stray));
        }
        if wrong.is_empty() { Ok(sum) } else { Err(wrong) }
    }

    /// Nobody times out beside a lock that had been free for a while.
    fn check_waits_in_vain(
        &self,
        following: &HashMap<&str, Option<&str>>,
        arrived: &HashMap<&str, (usize, u64)>,
        wrong: &mut Vec<String>,
    ) {
        let mut received: HashMap<usize, Vec<(u64, &Entry)>> = HashMap::new();
        for entry in &self.log {
            if let Some(call) = self.calls.get(&entry.token).filter(|call| matches!(call.end, End::Granted(_))) {
                received.entry(entry.key).or_default().push((call.over, entry));
            }
        }
        for (token, call) in self.calls.iter().filter(|(_, call)| call.end == End::InVain) {
            let Some(&(_, since)) = arrived.get(token.as_str()) else { continue };
            let unblocks = self.unblocks.iter().filter(|(client, _, end)| *client == call.client && *end >= call.sent);
            let over = unblocks.map(|(_, sent, _)| *sent).fold(call.over, u64::min);
            let Some(until) = call.timeout.map(|timeout| over.min(since + timeout)) else { continue };
            let Some(before) = received.get(&call.key) else { continue };
            // Grants of one key are received about in their order; the last that had been by then, in the AOF's order.
            let Some((_, entry)) = before.iter().rfind(|(over, _)| *over < until) else { continue };
            let next = following.get(entry.token.as_str()).copied().flatten();
            // Whoever came next may have had it by then, known only later or never.
            let open = next.is_none_or(|next| self.calls.get(next).is_some_and(|next| next.sent > until));
            let free = self.free_by(entry, until).max(since);
            if open && self.net(free, until) > self.bound {
                wrong.push(format!("{token} timed out beside a lock that {} had left", entry.token));
            }
        }
    }
}

// ---- The run.

const CLIENTS: usize = 64;
const KEYS: usize = 3;

struct Run<'a> {
    server: &'a Server,
    start: Instant,
    stop: AtomicBool,
    next: AtomicU64,
    ids: Vec<AtomicI64>,
    history: Mutex<History>,
}

impl Run<'_> {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap()
    }

    fn connect(&self, number: usize) -> Client {
        let mut client = self.server.client();
        self.ids[number].store(client.id(), Relaxed);
        client
    }

    /// One client, until the end: asks, holds, releases, dies.
    fn client(&self, number: usize, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut calls = Vec::new();
        let mut stray = 0;
        let mut connected = None;
        while !self.stop.load(Relaxed) {
            let mut client = connected.take().unwrap_or_else(|| self.connect(number));
            let token = format!("t{}", self.next.fetch_add(1, Relaxed));
            let key = random.random_range(0..KEYS);
            let ttl: u64 = random.random_range(15..120);
            let timeout: u64 = random.random_range(20..600);
            let name = format!("k{key}");
            let mut words = args!["LOCK.ACQUIRE", &name, &token, ttl];
            let waits = random.random_ratio(9, 10);
            if waits {
                words.extend(args!["BLOCK", timeout]);
            }
            let sent = self.now();
            let timeout = waits.then_some(timeout * 1_000);
            let (ttl, id) = (ttl * 1_000, self.ids[number].load(Relaxed));
            let mut call = Call { key, client: id, ttl, sent, over: 0, end: End::NoReply, timeout, release: None };
            client.send(&words);
            let patience = if random.random_ratio(1, 25) { ms(random.random_range(0..80)) } else { SOON };
            let reply = client.read(patience);
            call.over = self.now();
            match reply {
                Ok(Value::Int(0)) => call.end = End::InVain,
                Ok(Value::Int(fence)) => call.end = End::Granted(fence),
                Ok(reply) if reply.is_error("UNBLOCKED ") => call.end = End::InVain,
                Ok(reply) => panic!("{reply:?}"),
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                    if patience < SOON {
                        call.end = End::Gone;
                        client.close();
                        call.over = self.now();
                        calls.push((token, call));
                        continue;
                    }
                }
                Err(_) => {
                    call.end = End::Gone;
                    calls.push((token, call));
                    continue;
                }
            }
            let mut lives = true;
            if matches!(call.end, End::Granted(_)) {
                match random.random_range(0..100) {
                    0..60 => {}
                    60..90 => std::thread::sleep(ms(random.random_range(0..5))),
                    _ => std::thread::sleep(ms(random.random_range(5..60))),
                }
                // Some forget to release; of these, some die.
                if random.random_ratio(47, 50) {
                    let sent = self.now();
                    client.send(&["LOCK.RELEASE", &name, &token]);
                    let reply = client.read(SOON).ok().map(|reply| (self.now(), reply.int()));
                    lives = reply.is_some();
                    call.release = Some(Release { sent, reply });
                } else if random.random_ratio(1, 2) {
                    client.close();
                    calls.push((token, call));
                    continue;
                }
            }
            calls.push((token, call));
            if lives {
                std::thread::sleep(Duration::from_micros(random.random_range(0..6_000)));
                connected = Some(client);
            }
        }
        if let Some(mut client) = connected {
            client.send(&["PING"]);
            match client.read(SOON) {
                Ok(reply) if reply.text() != "PONG" => stray += 1,
                _ => {}
            }
        }
        let mut history = self.history.lock().unwrap();
        history.calls.extend(calls);
        history.stray += stray;
    }

    /// Kills, unblocks, deletes, overwrites, and freezes the server now and then.
    fn trouble(&self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut client = self.server.client();
        let (mut foreign, mut unblocks) = (Vec::new(), Vec::new());
        let loses_replies = defers(self.server);
        while !self.stop.load(Relaxed) {
            std::thread::sleep(ms(random.random_range(2..14)));
            let id = self.ids[random.random_range(0..CLIENTS)].load(Relaxed);
            let key = random.random_range(0..KEYS);
            let name = format!("k{key}");
            let sent = self.now();
            match random.random_range(0..100) {
                0..35 => {
                    client.call(&args!["CLIENT", "KILL", "ID", id]);
                }
                35..50 => {
                    client.call(&args!["CLIENT", "UNBLOCK", id, "ERROR"]);
                    unblocks.push((id, sent, self.now()));
                }
                50..60 if !loses_replies => {
                    client.call(&args!["CLIENT", "UNBLOCK", id]);
                    unblocks.push((id, sent, self.now()));
                }
                60..85 => {
                    let removed = client.call(&args!["DEL", &name]).int() == 1;
                    foreign.push(Foreign { key, sent, over: self.now(), removed });
                }
                85..98 => {
                    let token = format!("f{}", self.next.fetch_add(1, Relaxed));
                    let nx: &[&str] = if random.random_ratio(1, 2) { &["NX"] } else { &[] };
                    client.call(&args!["SET", &name, token, "PX", random.random_range(5..50), nx]);
                    foreign.push(Foreign { key, sent, over: self.now(), removed: false });
                }
                98.. => {
                    self.server.stop();
                    std::thread::sleep(ms(random.random_range(5..60)));
                    self.server.cont();
                }
                _ => {}
            }
        }
        let mut history = self.history.lock().unwrap();
        (history.foreign, history.unblocks) = (foreign, unblocks);
    }

    /// Writes down in which order the server takes the calls.
    fn arrivals(&self, mut client: Client, start_ms: f64) {
        let mut arrivals = Vec::new();
        loop {
            let line = client.read(SOON).expect("MONITOR goes on").text();
            let mut words = line.split('"').skip(1).step_by(2);
            match words.next() {
                Some("LOCK.ACQUIRE") => {
                    let when = line.split(' ').next().and_then(|when| when.parse::<f64>().ok()).expect("a time");
                    let when = ((when * 1e3 - start_ms) * 1e3).max(0.0) as u64;
                    arrivals.extend(words.nth(1).map(|token| (token.to_owned(), when)));
                }
                Some("ECHO") if words.next() == Some("the end") => break,
                _ => {}
            }
        }
        self.history.lock().unwrap().arrivals = arrivals;
    }
}

fn run(server: &Server, seed: u64, long: Duration) -> History {
    let ids = (0..CLIENTS).map(|_| AtomicI64::new(0)).collect();
    let (start, start_ms) = two_clocks();
    let run =
        Run { server, start, stop: AtomicBool::new(false), next: AtomicU64::new(1), ids, history: Mutex::default() };
    let from = aof(server.dir()).len();
    let noise = Noise::of(server);
    let mut monitor = server.client();
    assert_eq!(monitor.call(&["MONITOR"]).text(), "OK");
    std::thread::scope(|threads| {
        let run = &run;
        threads.spawn(move || run.arrivals(monitor, start_ms));
        threads.spawn(move || run.trouble(seed));
        let clients: Vec<_> =
            (0..CLIENTS).map(|n| threads.spawn(move || run.client(n, seed.wrapping_add(1 + n as u64)))).collect();
        std::thread::sleep(long);
        run.stop.store(true, Relaxed);
        clients.into_iter().for_each(|client| client.join().expect("a client's thread"));
        server.call(&["ECHO", "the end"]);
    });
    let us = |at: Instant| u64::try_from(at.saturating_duration_since(start).as_micros()).unwrap();
    let mut history = run.history.into_inner().unwrap();
    history.lost = noise.lost().iter().map(|(from, to)| (us(*from), us(*to))).collect();
    history.bound = if is_deaf(server) { 25_000 } else { 20_000 };
    history.log = log(&aof(server.dir())[from..], start_ms);
    history
}

/// All that the server has appended to its AOF.
fn aof(dir: &Path) -> Vec<u8> {
    let mut files: Vec<_> = std::fs::read_dir(dir.join("appendonlydir"))
        .unwrap()
        .flatten()
        .map(|file| file.path())
        .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
        .collect();
    files.sort();
    files.iter().flat_map(|path| std::fs::read(path).unwrap()).collect()
}

/// The SETs of locks, read from an AOF.
fn log(bytes: &[u8], start_ms: f64) -> Vec<Entry> {
    // All words here are without line ends, and their lengths need no look.
    let text = String::from_utf8_lossy(bytes);
    let words: Vec<&str> = text.lines().filter(|line| !line.starts_with('$')).collect();
    let mut entries = Vec::new();
    for command in words.split(|line| line.starts_with('*')) {
        if let ["SET", key, token, "PXAT", deadline] = command
            && let Some(key) = key.strip_prefix('k').and_then(|key| key.parse().ok())
        {
            let deadline = ((deadline.parse::<f64>().unwrap() - start_ms) * 1e3).max(0.0) as u64;
            entries.push(Entry { key, token: (*token).to_owned(), deadline });
        }
    }
    entries
}

#[test]
fn sixty_four_clients_in_trouble_keep_every_promise() {
    let seed = std::env::var("SLUICE_SEED").ok().map_or_else(|| rand::rng().random(), |seed| seed.parse().unwrap());
    let long = if std::env::var_os("SLUICE_LONG").is_some() { 30 } else { 8 };
    println!("SLUICE_SEED={seed}");
    let server = Server::builder()
        .args(&["--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"])
        // A command's first call would take 25 KB for its latencies, in whichever of the two runs that is.
        .args(&["--latency-tracking", "no"])
        .start();
    // What the server itself has not given back yet is gone after a while: the least of some looks.
    let used = || {
        server.call(&["FLUSHALL"]);
        let look = |_| {
            std::thread::sleep(ms(50));
            server.info_int("memory", "used_memory")
        };
        (0..20).map(look).min().unwrap()
    };
    let settle = || {
        wait_for(SOON, "nobody waits", || (waiters(&server), server.blocked_clients()), |n| *n == (0, 0));
        wait_for(SOON, "all have gone", || server.info_int("clients", "connected_clients"), |n| *n == 1);
    };
    run(&server, seed ^ 1, ms(500));
    settle();
    let before = used();
    let history = run(&server, seed, Duration::from_secs(long));
    settle();
    let sum = match history.check() {
        Ok(sum) => sum,
        Err(wrong) => panic!("{} faults:\n{}", wrong.len(), wrong[..wrong.len().min(30)].join("\n")),
    };
    println!("{sum:?}, lost {} ms", history.lost.iter().map(|(a, b)| b - a).sum::<u64>() / 1000);
    assert!(sum.received > 200, "too little happened: {sum:?}");
    assert!(sum.gone > 10 && sum.in_vain > 10, "too little went wrong: {sum:?}");
    let after = used();
    println!("used memory {before} before, {after} after");
    // The smallest thing that a wait needs takes 32 bytes: one lost in two waits would show.
    let waits = i64::try_from(sum.grants + sum.in_vain).unwrap();
    assert!(after < before + 8_192 + waits * 16, "{before} bytes before, {after} after {waits} waits");
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
    assert_eq!(server.info_int("sluice", "sluice_lock_waiters"), 0);
}

// ---- The checker, on histories made by hand.

/// Three calls for one key, with leases of 100 ms: a is granted at 1 ms and releases at 5 ms, b and c wait and follow.
fn good() -> History {
    let call = |sent, over, fence, released| Call {
        key: 0,
        client: 1,
        ttl: 100_000,
        sent,
        over,
        end: End::Granted(fence),
        timeout: Some(500_000),
        release: Some(Release { sent: released, reply: Some((released + 500, 1)) }),
    };
    let entry = |token: &str, deadline| Entry { key: 0, token: token.to_owned(), deadline };
    History {
        calls: [
            ("a".to_owned(), call(0, 1_000, 10, 5_000)),
            ("b".to_owned(), call(2_000, 6_000, 11, 9_000)),
            ("c".to_owned(), call(3_000, 10_000, 12, 15_000)),
        ]
        .into(),
        foreign: vec![],
        unblocks: vec![],
        log: vec![entry("a", 101_000), entry("b", 106_000), entry("c", 110_000)],
        arrivals: [("a", 0), ("b", 2_000), ("c", 3_000)].map(|(token, when)| (token.to_owned(), when)).into(),
        lost: vec![],
        stray: 0,
        bound: 20_000,
    }
}

/// What the checker says of the good history once `spoil` has been at it.
fn said(spoil: impl FnOnce(&mut History)) -> String {
    let mut history = good();
    spoil(&mut history);
    history.check().map(|_| String::new()).unwrap_or_else(|wrong| wrong.join("; "))
}

fn in_vain(sent: u64, over: u64) -> Call {
    let timeout = Some(500_000);
    Call { key: 0, client: 2, ttl: 100_000, sent, over, end: End::InVain, timeout, release: None }
}

fn of<'a>(history: &'a mut History, token: &str) -> &'a mut Call {
    history.calls.get_mut(token).unwrap()
}

#[test]
fn the_checker_finds_nothing_in_a_good_history() {
    assert_eq!(said(|_| ()), "");
    let sum = good().check().unwrap();
    assert_eq!((sum.grants, sum.received, sum.gap), (3, 3, 500));
}

#[test]
fn the_checker_finds_two_holders_at_once() {
    let early = |history: &mut History| history.log[1].deadline = 103_000;
    assert!(said(early).contains("b was granted while a held it"));
    let never_released = |history: &mut History| of(history, "a").release = None;
    assert!(said(never_released).contains("b was granted while a held it"));
    // A foreign write, a lease's end or a death explains it.
    let del = Foreign { key: 0, sent: 3_000, over: 3_500, removed: true };
    assert_eq!(
        said(|history| {
            never_released(history);
            history.foreign.push(del.clone());
        }),
        ""
    );
    assert!(
        said(|history| {
            never_released(history);
            history.foreign.push(Foreign { key: 1, ..del });
        })
        .contains("held it"),
        "another key's"
    );
    assert_eq!(
        said(|history| {
            never_released(history);
            history.log[0].deadline = 5_000;
        }),
        ""
    );
}

#[test]
fn the_checker_finds_fences_out_of_order_and_twice() {
    assert!(said(|history| of(history, "c").end = End::Granted(10)).contains("fence 10 of c"));
    assert!(said(|history| of(history, "c").end = End::Granted(11)).contains("fence 11 of c"));
}

#[test]
fn the_checker_finds_a_queue_jumper_but_not_one_whose_predecessor_left() {
    assert!(said(|history| history.arrivals.swap(1, 2)).contains("c was granted after b, who came later"));
    assert_eq!(
        said(|history| {
            history.arrivals.insert(1, ("d".to_owned(), 1_500));
            history.calls.insert("d".to_owned(), in_vain(1_500, 4_000));
        }),
        ""
    );
}

#[test]
fn the_checker_finds_a_reply_too_few_and_one_too_many() {
    assert!(said(|history| of(history, "c").end = End::NoReply).contains("c got no reply"));
    assert!(said(|history| history.stray = 1).contains("nobody asked for"));
}

#[test]
fn the_checker_finds_a_grant_that_is_written_nowhere() {
    assert!(said(|history| drop(history.log.pop())).contains("c was told of a grant that is not in the AOF"));
}

#[test]
fn the_checker_finds_a_lock_that_lay_free_before_a_waiter() {
    let late = |history: &mut History| {
        history.log[2].deadline = 130_000;
    };
    assert!(said(late).contains("c waited 20500 us for a lock that b had left"));
    // Not where the machine stood still.
    assert_eq!(
        said(|history| {
            late(history);
            history.lost.push((12_000, 13_000));
        }),
        ""
    );
    // A deadline is an end, too, and so is a foreign DEL.
    assert!(
        said(|history| {
            of(history, "b").release = None;
            history.log[1].deadline = 7_000;
            late(history);
        })
        .contains("c waited 22000 us")
    );
    assert!(
        said(|history| {
            of(history, "b").release = None;
            history.foreign.push(Foreign { key: 0, sent: 7_000, over: 7_500, removed: true });
            late(history);
        })
        .contains("c waited 22500 us")
    );
}

#[test]
fn the_checker_finds_one_who_timed_out_beside_a_free_lock() {
    let in_vain = |over| {
        move |history: &mut History| {
            history.arrivals.push(("d".to_owned(), 12_000));
            history.calls.insert("d".to_owned(), in_vain(12_000, over));
        }
    };
    assert!(said(in_vain(40_000)).contains("d timed out beside a lock that c had left"));
    assert_eq!(said(in_vain(30_000)), "");
    // Not one who was unblocked in time and heard of it late.
    let unblocked = |client, at| {
        said(|history| {
            in_vain(40_000)(history);
            history.unblocks.push((client, at, at + 500));
        })
    };
    assert_eq!(unblocked(2, 30_000), "");
    assert!(unblocked(3, 30_000).contains("d timed out beside a lock"), "another");
    assert!(unblocked(2, 11_000).contains("d timed out beside a lock"), "before its call");
}

#[test]
fn the_checker_finds_a_lock_that_was_lost_before_its_deadline() {
    let lost =
        |history: &mut History| of(history, "c").release = Some(Release { sent: 15_000, reply: Some((15_500, 0)) });
    assert!(said(lost).contains("c had lost the lock at its release"));
    assert_eq!(
        said(|history| {
            lost(history);
            history.log[2].deadline = 14_000;
            of(history, "c").ttl = 4_000;
        }),
        ""
    );
}

#[test]
fn the_aof_is_read_as_the_server_writes_it() {
    let bytes = b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n*5\r\n$3\r\nSET\r\n$2\r\nk2\r\n$2\r\nt7\r\n$4\r\nPXAT\r\n$4\r\n1005\r\n*2\r\n$3\r\nDEL\r\n$2\r\nk2\r\n";
    let read = log(bytes, 1_000.0);
    // Whether it is the last or not.
    let set = bytes.len() - b"*2\r\n$3\r\nDEL\r\n$2\r\nk2\r\n".len();
    assert_eq!(log(&bytes[..set], 1_000.0).len(), 1);
    assert_eq!(read.len(), 1);
    assert_eq!((read[0].key, read[0].token.as_str(), read[0].deadline), (2, "t7", 5_000));
}
