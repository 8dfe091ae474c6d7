//! Readers, writers and holders of permits on real connections, all at once, and a checker of what they were told.
//!
//! A caller certainly holds from the moment it reads its grant until it sends its release, or until its lease may be over.
//! What is certain must never contradict: a writer is alone, readers are among readers, permits are counted. And the server
//! says itself (by MONITOR) in which order calls arrived: whoever came first has the smaller fence.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod kinds;
mod rig;

use kinds::{no_internal_error, words};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rig::{Client, SOON, Server, ValueExt, ms, wait_for};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

const CALLERS: u64 = 8;
const RUN: Duration = ms(4000);
/// How often each kind is to be held at least, for the run to tell anything: it goes on until then.
const ENOUGH: u32 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reader,
    Writer,
    Permit { limit: usize },
}

/// What a caller certainly held.
#[derive(Clone, Debug)]
struct Held {
    token: String,
    kind: Kind,
    asked: Instant,
    from: Instant,
    to: Instant,
}

#[derive(Default)]
struct Told {
    held: Vec<Held>,
    /// The fence of each call's first grant, by token.
    fences: HashMap<String, i64>,
    calls: u32,
}

/// How often a reader, a writer and a permit were held, by all callers.
type Counts = [AtomicU32; 3];

struct Caller {
    number: u64,
    counts: Arc<Counts>,
    port: u16,
    client: Client,
    rng: StdRng,
    told: Told,
}

impl Caller {
    fn ask(&mut self, command: &str) -> i64 {
        self.told.calls += 1;
        let reply = self.client.call(&words(command));
        assert!(reply.error().is_none(), "{command}: {reply:?}");
        reply.int()
    }

    fn hold(&mut self, token: &str, kind: Kind, asked: Instant, from: Instant, to: Instant) {
        if from < to {
            let kinds = [kind == Kind::Reader, kind == Kind::Writer, matches!(kind, Kind::Permit { .. })];
            for (count, _) in self.counts.iter().zip(kinds).filter(|(_, is_it)| *is_it) {
                count.fetch_add(1, Relaxed);
            }
            self.told.held.push(Held { token: token.to_owned(), kind, asked, from, to });
        }
    }

    fn pause(&mut self) {
        let us = self.rng.random_range(0..1500);
        if us > 300 {
            std::thread::sleep(Duration::from_micros(us));
        }
    }

    fn once(&mut self, n: u32) {
        let token = format!("t{}-{n}", self.number);
        let permits = self.rng.random_bool(0.4);
        let dies = self.rng.random_bool(0.1);
        let ttl = if dies { self.rng.random_range(3..25) } else { 100_000 };
        let block = match self.rng.random_range(0..10) {
            0..6 => "BLOCK 0",
            6..8 => "BLOCK 30ms",
            _ => "",
        };
        let (mut kind, mode) = match self.rng.random_range(0..10) {
            _ if permits => (Kind::Permit { limit: self.rng.random_range(2..4) }, ""),
            0..6 => (Kind::Reader, "SHARED"),
            6..9 => (Kind::Writer, ""),
            _ => (Kind::Writer, "REENTRANT"),
        };
        let command = match kind {
            Kind::Permit { limit } => format!("SEM.ACQUIRE p {token} {ttl} {limit} {block}"),
            _ => format!("LOCK.ACQUIRE l {token} {ttl} {mode} {block}"),
        };
        if dies && block == "BLOCK 0" && self.rng.random_bool(0.5) {
            // It is gone while it waits, or while its grant is on the way.
            self.client.send(&words(&command));
            self.pause();
            let old = std::mem::replace(&mut self.client, Client::connect(self.port).unwrap());
            old.close();
            return;
        }
        let asked = Instant::now();
        let fence = self.ask(&command);
        let mut from = Instant::now();
        if fence == 0 {
            assert_ne!(block, "BLOCK 0", "who waits without end is granted");
            return;
        }
        self.told.fences.insert(token.clone(), fence);
        self.pause();
        if dies {
            // Nothing is heard of it any more. Its lease did not begin before it asked.
            self.hold(&token, kind, asked, from, asked + ms(ttl - 2));
            return;
        }
        let mut releases = 1;
        if !permits && self.rng.random_bool(0.3) {
            // It converts, if it can.
            let (wanted, mode) = match (kind, mode) {
                (Kind::Reader, _) => (Kind::Writer, ["", "REENTRANT"][self.rng.random_range(0..2)]),
                (_, "REENTRANT") => (Kind::Writer, "REENTRANT"),
                _ => (Kind::Reader, "SHARED"),
            };
            let sent = Instant::now();
            let again = self.ask(&format!("LOCK.ACQUIRE l {token} 100000 {mode}"));
            assert!(again > fence || (again == 0 && kind == Kind::Reader), "{again} after {fence}");
            if again > 0 {
                self.hold(&token, kind, asked, from, sent);
                (kind, from) = (wanted, Instant::now());
                releases = if mode == "REENTRANT" { 2 } else { 1 };
                self.pause();
            }
        }
        let release = if permits { format!("SEM.RELEASE p {token}") } else { format!("LOCK.RELEASE l {token}") };
        for left in (0..releases).rev() {
            if left == 0 {
                self.hold(&token, kind, asked, from, Instant::now());
            }
            assert_eq!(self.ask(&release), 1, "{release}");
        }
        if self.rng.random_bool(0.1) {
            assert_eq!(self.ask(&release), 0, "{release}, once more");
        }
    }
}

fn together(a: &Held, b: &Held) -> bool {
    a.from.max(b.from) < a.to.min(b.to)
}

fn check(held: &mut [Held]) {
    held.sort_by_key(|one| one.from);
    for (at, one) in held.iter().enumerate() {
        // Those who begin while this one holds, and all who held when this one was granted.
        for other in held[at + 1..].iter().take_while(|other| other.from < one.to) {
            let apart = matches!(
                (one.kind, other.kind),
                (Kind::Writer, Kind::Writer | Kind::Reader) | (Kind::Reader, Kind::Writer)
            );
            let (a, b) = (&one.token, &other.token);
            assert!(!(apart && together(one, other)), "{a} and {b} at once: {one:?} {other:?}");
        }
        if let Kind::Permit { limit } = one.kind {
            // Others who held from before this one asked until after it was told: they were there at its grant.
            let mut there = held[..at].iter().rev().filter(|other| {
                matches!(other.kind, Kind::Permit { .. }) && other.from < one.asked && other.to > one.from
            });
            let others = there.by_ref().take(10).count();
            // And with no call's limit above three there are never more, all told.
            let now =
                held[..at].iter().filter(|other| matches!(other.kind, Kind::Permit { .. }) && other.to > one.from);
            assert!(now.count() < 3, "more than three hold at the time of {}", one.token);
            assert!(others < limit, "{} was granted with {others} others at a limit of {limit}: {one:?}", one.token);
        }
    }
}

/// The tokens of ACQUIREs in the order in which the server took them, each once.
fn arrivals(lines: &[String]) -> Vec<(String, String)> {
    let mut seen = std::collections::HashSet::new();
    let mut arrivals = vec![];
    for line in lines {
        let mut quoted = line.split('"').skip(1).step_by(2);
        let (Some(name), Some(key), Some(token)) = (quoted.next(), quoted.next(), quoted.next()) else { continue };
        if name.ends_with(".ACQUIRE") && seen.insert(token.to_owned()) {
            arrivals.push((key.to_owned(), token.to_owned()));
        }
    }
    arrivals
}

#[test]
fn l36_to_l41_readers_writers_and_permits_all_at_once() {
    let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("SEED={seed} makes every caller choose as in this run");
    let server = Server::start();
    let mut monitor = server.client();
    assert_eq!(monitor.call(&["MONITOR"]).text(), "OK");
    let monitor = std::thread::spawn(move || {
        let mut lines = vec![];
        loop {
            let line = monitor.read(SOON).expect("the server tells what it does").text();
            if line.contains("that was all") {
                return lines;
            }
            lines.push(line);
        }
    });
    let (port, begun, counts) = (server.port(), Instant::now(), Arc::<Counts>::default());
    let callers: Vec<_> = (0..CALLERS)
        .map(|number| {
            let counts = Arc::clone(&counts);
            std::thread::spawn(move || {
                let rng = StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let client = Client::connect(port).unwrap();
                let mut caller = Caller { number, counts, port, client, rng, told: Told::default() };
                let mut n = 0;
                let too_few = |counts: &Counts| counts.iter().any(|count| count.load(Relaxed) < ENOUGH);
                while begun.elapsed() < RUN || too_few(&caller.counts) && begun.elapsed() < RUN + SOON {
                    caller.once(n);
                    n += 1;
                }
                // Nothing but what was read has come.
                assert_eq!(caller.client.call(&["PING"]).text(), "PONG");
                assert!(caller.client.is_silent(ms(2)));
                caller.told
            })
        })
        .collect();
    let told: Vec<Told> = callers.into_iter().map(|caller| caller.join().expect("a caller")).collect();
    server.call(&["ECHO", "that was all"]);
    let arrivals = arrivals(&monitor.join().expect("the monitor"));

    let mut held: Vec<Held> = told.iter().flat_map(|told| told.held.clone()).collect();
    check(&mut held);
    let fences: HashMap<String, i64> = told.iter().flat_map(|told| told.fences.clone()).collect();
    for key in ["l", "p"] {
        let mut last = (String::new(), 0);
        for (_, token) in arrivals.iter().filter(|(of, _)| of == key) {
            if let Some(&fence) = fences.get(token) {
                assert!(fence > last.1, "{token} came after {} and was granted before it", last.0);
                last = (token.clone(), fence);
            }
        }
    }
    // Nothing is left of it all but the leases of the dead, and they end.
    let mut client = server.client();
    wait_for(SOON, "all is free", || client.call(&["DBSIZE"]).int(), |keys| *keys == 0);
    assert_eq!((kinds::counter(&server, "lock_waiters"), kinds::counter(&server, "sem_waiters")), (0, 0));
    no_internal_error(&server);
    let calls: u32 = told.iter().map(|told| told.calls).sum();
    let [readers, writers] =
        [Kind::Reader, Kind::Writer].map(|kind| held.iter().filter(|one| one.kind == kind).count());
    eprintln!("{calls} calls; held: {readers} readers, {writers} writers, {} permits", held.len() - readers - writers);
    assert!(
        readers > 50 && writers > 50 && held.len() > readers + writers + 50,
        "too little happened to tell anything"
    );
}

#[test]
fn permits_that_end_in_the_same_moments_as_they_are_counted_harm_nobody() {
    // Where a server reads the clock anew for each step, a key may expire between being opened and being counted.
    let server = Server::start();
    let mut client = server.client();
    let keys = 60;
    for round in 0..6 {
        let mut asked: Vec<Client> = Vec::new();
        for n in 0..keys {
            let key = format!("s{round}-{n}");
            for (token, ttl) in [("a", "60ms"), ("b", "61ms")] {
                client.call(&["SEM.ACQUIRE", &key, token, ttl, "2"]);
            }
            let mut waiter = server.client();
            waiter.send(&["SEM.ACQUIRE", &key, "c", "1m", "2", "BLOCK", "10s"]);
            asked.push(waiter);
        }
        for mut waiter in asked {
            assert!(waiter.read(SOON).unwrap().int() > 0);
        }
    }
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
}
