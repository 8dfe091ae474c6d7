//! Clients that lock, share, wait, renew and are limited, while the server is killed with SIGKILL and started again from its AOF
//! (`appendfsync always`) over and over. Then what they saw is held against the contract.
//!
//! Only what clients were told counts, with times of their own: a grant is certain from its reply on, and until its release is
//! sent or its lease, counted from when it was asked for, is over. What is certain must never contradict itself.
//! 15 s, 10 minutes with SLUICE_LONG=1, SLUICE_SECONDS=n otherwise; SLUICE_SEED=n makes the choices of an earlier run again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod rig;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rig::{Client, SOON, Server, Value, ValueExt, args, ms, wait_for};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const CLIENTS: usize = 24;
/// Keys by what they are: two exclusive locks (one of them asked for in a reentrant way as well), one that is shared, a semaphore.
const KEYS: [&str; 4] = ["lock:0", "lock:1", "shared:2", "sem:3"];
const SHARED: usize = 2;
const SEM: usize = 3;
const PERMITS: usize = 3;
/// The limits, each in a window (period) of as many ms.
const LIMIT: i64 = 20;
const WINDOW: u64 = 500;

/// A grant as its client knows it; times in µs since the start.
#[derive(Clone, Debug)]
struct Grant {
    key: usize,
    token: String,
    shared: bool,
    /// When the call that was granted was sent, and when its reply came.
    sent: u64,
    received: u64,
    fence: i64,
    /// Until when it certainly held: a release was sent then, or the lease was over then at the earliest.
    until: u64,
}

/// An allowed hit of a limiter.
#[derive(Clone, Debug)]
struct Hit {
    limiter: usize,
    sent: u64,
    received: u64,
}

#[derive(Clone, Debug, Default)]
struct History {
    grants: Vec<Grant>,
    hits: Vec<Hit>,
    /// What a client saw with its own eyes that must not be.
    wrong: Vec<String>,
    /// Tokens in the AOF.
    written: HashSet<String>,
    /// Holders asked after a restart, before their lease was over.
    asked: usize,
    /// Those granted on asking again, the first reply having been lost.
    again: usize,
}

impl History {
    /// What contradicts the contract.
    fn faults(&self) -> Vec<String> {
        let mut wrong = self.wrong.clone();
        self.overlaps(&mut wrong);
        self.fences(&mut wrong);
        self.limits(&mut wrong);
        for grant in &self.grants {
            if !self.written.contains(&grant.token) {
                wrong.push(format!("the grant of {} was acknowledged and is not in the AOF", grant.token));
            }
        }
        wrong
    }

    /// No two hold at once for certain that may not.
    fn overlaps(&self, wrong: &mut Vec<String>) {
        for (key, name) in KEYS.iter().enumerate() {
            let mut of_key: Vec<&Grant> = self.grants.iter().filter(|grant| grant.key == key).collect();
            of_key.sort_by_key(|grant| grant.received);
            let mut holding: Vec<&Grant> = Vec::new();
            for grant in of_key {
                if grant.until <= grant.received {
                    continue;
                }
                holding.retain(|held| held.until > grant.received && held.token != grant.token);
                let bad = match key {
                    SEM => holding.len() >= PERMITS,
                    _ => holding.iter().any(|held| !(held.shared && grant.shared)),
                };
                if bad {
                    let held: Vec<_> = holding.iter().map(|held| &held.token).collect();
                    wrong.push(format!("{} was granted {name} while {held:?} held it", grant.token));
                }
                holding.push(grant);
            }
        }
    }

    /// A grant asked for after another's reply had come has a larger fence, whatever key and whatever happened between.
    fn fences(&self, wrong: &mut Vec<String>) {
        let mut by_reply: Vec<&Grant> = self.grants.iter().collect();
        by_reply.sort_by_key(|grant| grant.received);
        let mut by_call = by_reply.clone();
        by_call.sort_by_key(|grant| grant.sent);
        let (mut seen, mut largest) = (0, (0, ""));
        for grant in by_call {
            while let Some(earlier) = by_reply.get(seen).filter(|earlier| earlier.received < grant.sent) {
                largest = largest.max((earlier.fence, &earlier.token));
                seen += 1;
            }
            if grant.fence <= largest.0 {
                wrong.push(format!(
                    "fence {} of {} is not above {} of {}",
                    grant.fence, grant.token, largest.0, largest.1
                ));
            }
        }
    }

    /// No more than the limit within a window for certain; a fixed window may have an edge in it, a bucket what has come in.
    fn limits(&self, wrong: &mut Vec<String>) {
        for (limiter, name, most) in [(0, "fixed", 2 * LIMIT), (1, "sliding", LIMIT), (2, "bucket", 2 * LIMIT)] {
            let mut hits: Vec<&Hit> = self.hits.iter().filter(|hit| hit.limiter == limiter).collect();
            hits.sort_by_key(|hit| hit.sent);
            for (at, first) in hits.iter().enumerate() {
                // The last millisecond of a window belongs to the next.
                let end = first.sent + (WINDOW - 1) * 1000;
                let within =
                    hits[at..].iter().take_while(|hit| hit.sent < end).filter(|hit| hit.received < end).count();
                if i64::try_from(within).unwrap() > most {
                    wrong.push(format!("{within} hits of {name} within {WINDOW} ms after {}", first.sent));
                    break;
                }
            }
        }
    }
}

struct Run {
    port: u16,
    start: Instant,
    stop: AtomicBool,
    next: AtomicU64,
    ids: Vec<AtomicI64>,
    history: Mutex<History>,
}

impl Run {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap()
    }

    /// A connection to the server, as soon as it serves; none if the run is over.
    fn connect(&self, number: usize) -> Option<Client> {
        while !self.stop.load(Relaxed) {
            if let Ok(mut client) = Client::connect(self.port)
                // While it reads its AOF it has no PONG.
                && client.try_send_all(&[args!["PING"], args!["CLIENT", "ID"]])
                && client.read(SOON).is_ok_and(|reply| reply.error().is_none())
                && let Ok(Value::Int(id)) = client.read(SOON)
            {
                self.ids[number].store(id, Relaxed);
                return Some(client);
            }
            std::thread::sleep(ms(2));
        }
        None
    }

    /// One call; none if the connection went.
    fn call(client: &mut Client, words: Vec<Vec<u8>>) -> Option<Value> {
        if !client.try_send_all(&[words]) {
            return None;
        }
        match client.read(SOON) {
            Ok(reply) => Some(reply),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => panic!("no reply"),
            Err(_) => None,
        }
    }

    /// One who locks, until the end.
    fn client(&self, number: usize, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut connected = None;
        let mut seen = History::default();
        while let Some(client) = connected.take().or_else(|| self.connect(number)) {
            if self.stop.load(Relaxed) {
                break;
            }
            connected = self.turn(number, client, &mut random, &mut seen);
        }
        let mut history = self.history.lock().unwrap();
        history.grants.extend(seen.grants);
        history.wrong.extend(seen.wrong);
        history.asked += seen.asked;
        history.again += seen.again;
    }

    /// Acquires, holds, and lets go, one way or another.
    fn turn(&self, number: usize, mut client: Client, random: &mut StdRng, seen: &mut History) -> Option<Client> {
        let key = random.random_range(0..KEYS.len());
        let token = format!("t{}", self.next.fetch_add(1, Relaxed));
        let ttl = random.random_range(60..900_u64);
        let shared = key == SEM || (key == SHARED && random.random_ratio(4, 5));
        let acquire = |timeout: u64| {
            let mut words = match key {
                SEM => args!["SEM.ACQUIRE", KEYS[key], &token, ttl, PERMITS],
                SHARED if shared => args!["LOCK.ACQUIRE", KEYS[key], &token, ttl, "SHARED"],
                _ => args!["LOCK.ACQUIRE", KEYS[key], &token, ttl],
            };
            words.extend(args!["BLOCK", timeout]);
            words
        };
        let family = if key == SEM { "SEM" } else { "LOCK" };
        // A call whose connection goes is sent again, with the same token, over the next one.
        let timeout = random.random_range(20..800);
        let mut tries = 0;
        let (sent, received, fence) = loop {
            let sent = self.now();
            match Self::call(&mut client, acquire(timeout)) {
                Some(Value::Int(0)) => return Some(client),
                Some(Value::Int(fence)) => break (sent, self.now(), fence),
                Some(reply) if reply.is_error("UNBLOCKED ") => return Some(client),
                Some(reply) => panic!("{reply:?}"),
                None => {
                    tries += 1;
                    client = self.connect(number)?;
                }
            }
        };
        seen.again += usize::from(tries > 0);
        // The lease starts at the grant, which was not before the call was sent.
        let mut until = sent + ttl * 1000;
        let mut grant = Grant { key, token: token.clone(), shared, sent, received, fence, until };

        let rest = random.random_range(0..40);
        if rest < 25 {
            std::thread::sleep(ms(random.random_range(0..8)));
        } else {
            std::thread::sleep(ms(random.random_range(0..ttl.min(400))));
        }
        let mut connected = Some(client);
        // Before the end some renew, and all whose connection went ask whether what they were told still holds.
        if random.random_ratio(1, 2) {
            let asked = self.now();
            let renewed = connected.as_mut().and_then(|client| {
                Self::call(client, args![format!("{family}.RENEW"), KEYS[key], &token, ttl]).map(|reply| reply.int())
            });
            match renewed {
                Some(1) => until = asked + ttl * 1000,
                Some(0) if self.now() < until => {
                    seen.wrong.push(format!("{token} had lost its lock before its deadline"))
                }
                Some(_) => {
                    grant.until = until.min(asked);
                    seen.grants.push(grant);
                    return connected;
                }
                None => {
                    connected = self.connect(number);
                    if let Some(client) = &mut connected {
                        // The renewal may have been done or not: the deadline is the old one at least.
                        let asked = self.now();
                        let reply = Self::call(client, args![format!("{family}.RENEW"), KEYS[key], &token, ttl]);
                        match reply.map(|reply| reply.int()) {
                            Some(1) => until = asked + ttl * 1000,
                            Some(0) if self.now() < until => {
                                seen.wrong
                                    .push(format!("{token} had lost its lock over a restart, before its deadline"));
                            }
                            _ => until = until.min(asked),
                        }
                        seen.asked += 1;
                    }
                }
            }
        }
        // Most release; a release without a reply is sent again.
        if random.random_ratio(9, 10) {
            grant.until = until.min(self.now());
            let mut resent = false;
            for _ in 0..3 {
                let Some(client) = &mut connected else { break };
                match Self::call(client, args![format!("{family}.RELEASE"), KEYS[key], &token]) {
                    Some(reply) => {
                        // One that was done and whose reply was lost is 0 the second time.
                        if reply.int() == 0 && !resent && self.now() < until {
                            seen.wrong.push(format!("{token} had lost its lock at its release, before its deadline"));
                        }
                        break;
                    }
                    None => {
                        resent = true;
                        connected = self.connect(number);
                    }
                }
            }
        } else {
            grant.until = until;
        }
        seen.grants.push(grant);
        connected
    }

    /// One who is limited.
    fn limited(&self, number: usize, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut hits = Vec::new();
        let mut wrong = Vec::new();
        let mut connected = None;
        while let Some(mut client) = connected.take().or_else(|| self.connect(number)) {
            if self.stop.load(Relaxed) {
                break;
            }
            let limiter = random.random_range(0..3);
            let words = match limiter {
                0 => args!["RL.FIXED", "fixed", LIMIT, WINDOW],
                1 => args!["RL.SLIDING", "sliding", LIMIT, WINDOW],
                _ => args!["RL.BUCKET", "bucket", LIMIT, LIMIT, WINDOW],
            };
            let sent = self.now();
            if let Some(reply) = Self::call(&mut client, words) {
                let five = reply.ints();
                if five[0] == 1 {
                    hits.push(Hit { limiter, sent, received: self.now() });
                } else if five[3] > i64::try_from(WINDOW).unwrap() {
                    wrong.push(format!("limiter {limiter} says {five:?}"));
                }
                connected = Some(client);
            }
            std::thread::sleep(ms(random.random_range(0..6)));
        }
        let mut history = self.history.lock().unwrap();
        history.hits.extend(hits);
        history.wrong.extend(wrong);
    }

    /// Kills connections meanwhile.
    fn trouble(&self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut connected = None;
        while let Some(mut client) = connected.take().or_else(|| self.connect(CLIENTS)) {
            if self.stop.load(Relaxed) {
                break;
            }
            std::thread::sleep(ms(random.random_range(10..60)));
            let id = self.ids[random.random_range(0..CLIENTS)].load(Relaxed);
            let words = match random.random_range(0..3) {
                0 => args!["CLIENT", "UNBLOCK", id, "ERROR"],
                _ => args!["CLIENT", "KILL", "ID", id],
            };
            if Self::call(&mut client, words).is_some() {
                connected = Some(client);
            }
        }
    }
}

/// Ends the run when it goes, also where a server does not start again: the clients would look for it for ever.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// All tokens that the AOF names, in whatever it has of each.
fn written(server: &Server) -> HashSet<String> {
    let mut all = HashSet::new();
    for file in std::fs::read_dir(server.dir().join("appendonlydir")).unwrap().flatten() {
        let bytes = std::fs::read(file.path()).unwrap();
        let words = bytes.split(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\r"));
        let tokens = words.filter(|word| word.first() == Some(&b't') && word[1..].iter().all(u8::is_ascii_digit));
        all.extend(tokens.map(|word| String::from_utf8(word.to_vec()).unwrap()));
    }
    all
}

#[test]
fn what_was_acknowledged_outlives_the_servers_death_again_and_again() {
    let seed = std::env::var("SLUICE_SEED").ok().map_or_else(|| rand::rng().random(), |seed| seed.parse().unwrap());
    let seconds = match std::env::var("SLUICE_SECONDS") {
        Ok(seconds) => seconds.parse().unwrap(),
        Err(_) if std::env::var_os("SLUICE_LONG").is_some() => 600,
        Err(_) => 15,
    };
    println!("SLUICE_SEED={seed}");
    let mut server = Server::builder()
        .args(&["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"])
        .start();
    let run = Run {
        port: server.port(),
        start: Instant::now(),
        stop: AtomicBool::new(false),
        next: AtomicU64::new(1),
        ids: (0..CLIENTS + 3).map(|_| AtomicI64::new(0)).collect(),
        history: Mutex::default(),
    };
    let mut random = StdRng::seed_from_u64(seed);
    let mut deaths = 0;
    let over = Instant::now() + Duration::from_secs(seconds);
    let mut handovers = 0;
    std::thread::scope(|threads| {
        let run = &run;
        let ends = Ends(&run.stop);
        let mut all = vec![threads.spawn(move || run.trouble(seed ^ 1))];
        all.extend((0..CLIENTS).map(|n| threads.spawn(move || run.client(n, seed.wrapping_add(2 + n as u64)))));
        let limited = |n: usize| move || run.limited(CLIENTS + 1 + n, seed.wrapping_sub(1 + n as u64));
        all.extend((0..2).map(|n| threads.spawn(limited(n))));
        while Instant::now() < over && !all.iter().any(|thread| thread.is_finished()) {
            std::thread::sleep(ms(random.random_range(100..1200)));
            handovers += server.info_int("sluice", "sluice_lock_handovers");
            assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
            server.kill9();
            deaths += 1;
            // Sometimes leases end while nobody is there.
            if random.random_ratio(1, 4) {
                std::thread::sleep(ms(random.random_range(0..400)));
            }
            server.restart();
        }
        drop(ends);
        assert!(all.into_iter().map(|one| one.join()).all(|end| end.is_ok()), "see above; SLUICE_SEED={seed}");
    });
    let mut history = run.history.into_inner().unwrap();
    history.written = written(&server);
    let faults = history.faults();
    println!(
        "{seconds} s, {deaths} deaths, {} grants ({} on asking again), {handovers} hand-overs, {} asked after a death, {} hits; \
         {} faults",
        history.grants.len(),
        history.again,
        history.asked,
        history.hits.len(),
        faults.len()
    );
    assert!(
        faults.is_empty(),
        "SLUICE_SEED={seed}: {} faults:\n{}",
        faults.len(),
        faults[..faults.len().min(30)].join("\n")
    );
    assert!(
        deaths > 3 && history.grants.len() > 100 && history.hits.len() > 100 && handovers > 30,
        "too little happened"
    );
    assert!(history.again > 0 && history.asked > 0, "too little went wrong");
    wait_for(SOON, "nobody waits", || server.info_int("sluice", "sluice_lock_waiters"), |waiting| *waiting == 0);
    assert!(server.log().contains("DB loaded from append only file") || server.log().contains("DB loaded from "));
}

// ---- The checker, on histories made by hand.

fn grant(token: &str, key: usize, sent: u64, received: u64, until: u64, fence: i64) -> Grant {
    let shared = key == SEM;
    Grant { key, token: token.to_owned(), shared, sent, received, fence, until }
}

/// What the checker says of a history of these grants.
fn said(grants: &[Grant]) -> String {
    let written = grants.iter().map(|grant| grant.token.clone()).collect();
    History { grants: grants.to_vec(), written, ..History::default() }.faults().join("; ")
}

#[test]
fn the_checker_finds_nothing_in_a_good_history() {
    let good = [grant("t1", 0, 0, 10, 100, 5), grant("t2", 0, 20, 110, 150, 6), grant("t3", 1, 20, 30, 150, 7)];
    assert_eq!(said(&good), "");
}

#[test]
fn the_checker_finds_two_who_hold_at_once() {
    assert!(
        said(&[grant("t1", 0, 0, 10, 100, 5), grant("t2", 0, 20, 90, 150, 6)]).contains("t2 was granted lock:0 while")
    );
    let mut readers = [grant("t1", SHARED, 0, 10, 100, 5), grant("t2", SHARED, 20, 90, 150, 6)];
    readers[0].shared = true;
    assert!(said(&readers).contains("t2 was granted shared:2"));
    readers[1].shared = true;
    assert_eq!(said(&readers), "");
    let permits: Vec<Grant> = (0..4).map(|n| grant(&format!("t{n}"), SEM, n, 10 + n, 100, 5 + n as i64)).collect();
    assert_eq!(said(&permits[..PERMITS]), "");
    assert!(said(&permits).contains("t3 was granted sem:3"));
}

#[test]
fn the_checker_finds_a_fence_that_does_not_grow() {
    assert!(said(&[grant("t1", 0, 0, 10, 15, 5), grant("t2", 1, 20, 30, 40, 5)]).contains("fence 5 of t2"));
    // Whose order nobody can tell may have either.
    assert_eq!(said(&[grant("t1", 0, 0, 25, 28, 6), grant("t2", 1, 20, 30, 40, 5)]), "");
}

#[test]
fn the_checker_finds_a_grant_that_is_written_nowhere_and_a_limit_that_is_not_kept() {
    let history = History { grants: vec![grant("t1", 0, 0, 10, 15, 5)], ..History::default() };
    assert!(history.faults().join(" ").contains("t1 was acknowledged"));
    let hits = |many: u64, limiter| (0..many).map(|n| Hit { limiter, sent: n, received: n + 1 }).collect();
    let of = |many, limiter| History { hits: hits(many, limiter), ..History::default() }.faults().len();
    assert_eq!((of(20, 1), of(21, 1), of(40, 0), of(41, 0)), (0, 1, 0, 1));
}
