//! The queues beside a model of plain lists, in random histories; and each rule by its name.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod support;

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;
use sluice_core::args::Mode;
use sluice_core::lease;
use sluice_core::lock::Want;
use sluice_core::queue::{Ask, Full, Lock, Place, QueueId, Queues, Sieve, Waiter};
use support::*;

/// A client, by number. Shared, so that its count tells whether a queue still keeps it.
type Client = Arc<usize>;

/// No queue is full.
const ANY: usize = usize::MAX;

// ---------------------------------------------------------------------------------------------------------------------------
// The model, and a server in small around the queues.

/// What can be waited for: the same key in two databases, keys that share a byte of hash, the shortest keys there are.
const SITES: [(i32, &[u8]); 6] =
    [(0, b"lock:0:a"), (0, b"lock:1:a"), (7, b"lock:0:a"), (7, b"another"), (-1, b""), (0, b"\0")];
const TOKENS: [&[u8]; 7] = [b"a", b"b", b"c", b"d", b"ab", b"\0", b"A"];
const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Reentrant, Mode::Shared];

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Key {
    Nothing,
    Token { token: Vec<u8>, until: Option<i64> },
    AnotherType,
}

impl Key {
    /// As a server has it: a key is gone once the clock is past its deadline.
    fn is_free(&self, now: i64) -> bool {
        match self {
            Key::Nothing => true,
            Key::Token { until, .. } => until.is_some_and(|until| now > until),
            Key::AnotherType => false,
        }
    }
}

/// Where a lock fails besides being of another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The first or second time it is asked whom it admits.
    Read(usize),
    Write,
}

/// An exclusive lock in a key, opened.
struct Hold<'a> {
    key: &'a mut Key,
    now: i64,
    freed: bool,
    fault: Fault,
    asked: usize,
    admitted: Option<Vec<u8>>,
}

impl Lock for Hold<'_> {
    type Grant = i64;
    type Error = &'static str;

    fn admits(&mut self, token: &[u8], _: &Ask) -> Result<bool, &'static str> {
        self.asked += 1;
        if self.fault == Fault::Read(self.asked) {
            return Err("cannot be read");
        }
        if *self.key == Key::AnotherType {
            return Err("of another type");
        }
        let admits = self.freed || self.key.is_free(self.now);
        self.admitted = admits.then(|| token.to_vec());
        Ok(admits)
    }

    fn grant(&mut self, token: &[u8], ask: &Ask) -> Result<i64, &'static str> {
        assert_eq!(self.admitted.take().as_deref(), Some(token), "granted to the one it has just admitted");
        assert!(self.freed || self.key.is_free(self.now), "two grants overlap");
        if self.fault == Fault::Write {
            return Err("cannot be written");
        }
        let until = lease::deadline(self.now, ask.ttl);
        *self.key = Key::Token { token: token.to_vec(), until: Some(until) };
        self.freed = false;
        Ok(until)
    }
}

/// How a call ends. Each does once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Granted,
    Refused,
    Displaced,
    TimedOut,
    Died,
    Withdrawn,
}

/// A queue of the model.
#[derive(Default)]
struct Line {
    id: Option<QueueId>,
    waiting: Vec<(Place, Waiter<Client>)>,
    look: Option<i64>,
    /// Something was done to it that leaves the next look to chance.
    astray: bool,
}

impl Line {
    fn position(&self, token: &[u8]) -> Option<usize> {
        self.waiting.iter().position(|(_, waiter)| *waiter.token == *token)
    }

    fn remove(&mut self, at: usize) -> Waiter<Client> {
        let (_, waiter) = self.waiting.remove(at);
        if self.waiting.is_empty() {
            *self = Line::default();
        }
        waiter
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// `LOCK.ACQUIRE`, with BLOCK where there is a patience (0: no end).
    Acquire { site: usize, token: usize, ask: Ask, block: Option<i64>, most: usize },
    /// Into the queue, whatever the lock is like.
    Join { site: usize, token: usize, ask: Ask, patience: i64, most: usize },
    /// The monotonic clock goes on.
    Wait(i64),
    /// The server's clock is moved, to either side.
    Clock(i64),
    /// Those whose time is over are sent away.
    TimeOut,
    /// The client that has, or had, this place is gone.
    Die(usize),
    /// `LOCK.RELEASE` by a token, or by whoever holds the lock; who only waits is withdrawn.
    Release { site: usize, token: Option<usize>, fault: Fault },
    /// Another command changes the key.
    Foreign { site: usize, to: Key },
    /// A look at a queue, live or long gone, is moved.
    Look { queue: usize, when: Option<i64> },
    /// The timer, this much late.
    Due(i64),
    /// A look at a queue, live or long gone.
    Serve { queue: usize, fault: Fault },
    /// Everything the server knows it has to do is done.
    Settle,
}

fn ask() -> impl Strategy<Value = Ask> {
    (prop::sample::select(&MODES), 1..20u64).prop_map(|(mode, ttl)| Ask { want: Want::Lock(mode), ttl })
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        6 => Just(Fault::None),
        1 => Just(Fault::Read(1)),
        1 => Just(Fault::Read(2)),
        1 => Just(Fault::Write),
    ]
}

fn key() -> impl Strategy<Value = Key> {
    let token = (0..TOKENS.len(), prop::option::of(-3..12i64))
        .prop_map(|(token, until)| Key::Token { token: TOKENS[token].to_vec(), until });
    prop_oneof![3 => Just(Key::Nothing), 2 => token, 1 => Just(Key::AnotherType)]
}

fn step() -> impl Strategy<Value = Step> {
    let most = || prop_oneof![6 => Just(ANY), 1 => 0..4usize];
    // Half of all happens to one key, so that its queue grows.
    let site = || prop_oneof![Just(0), 0..SITES.len()];
    let token = || 0..TOKENS.len();
    let patience = || prop_oneof![1 => Just(0), 2 => 1..50i64];
    prop_oneof![
        8 => (site(), token(), ask(), prop::option::weighted(0.9, patience()), most())
            .prop_map(|(site, token, ask, block, most)| Step::Acquire { site, token, ask, block, most }),
        2 => (site(), token(), ask(), patience(), most())
            .prop_map(|(site, token, ask, patience, most)| Step::Join { site, token, ask, patience, most }),
        2 => (0..8i64).prop_map(Step::Wait),
        3 => (-6..12i64).prop_map(Step::Clock),
        2 => Just(Step::TimeOut),
        2 => any::<usize>().prop_map(Step::Die),
        5 => (site(), prop::option::weighted(0.3, token()), fault())
            .prop_map(|(site, token, fault)| Step::Release { site, token, fault }),
        3 => (site(), key()).prop_map(|(site, to)| Step::Foreign { site, to }),
        1 => (any::<usize>(), prop::option::of(-5..60i64)).prop_map(|(queue, when)| Step::Look { queue, when }),
        2 => prop_oneof![4 => Just(0), 2 => 0..30i64, 1 => Just(i64::MAX / 2)].prop_map(Step::Due),
        2 => (any::<usize>(), fault()).prop_map(|(queue, fault)| Step::Serve { queue, fault }),
        2 => Just(Step::Settle),
    ]
}

/// A server in small, and the model.
struct World {
    queues: Queues<Client>,
    lines: Vec<Line>,
    keys: Vec<Key>,
    monotonic: i64,
    clock: i64,
    /// Queues whose keys something has happened to.
    touched: Vec<QueueId>,
    /// Who ever called, and how it ended.
    calls: Vec<(Client, Option<End>)>,
    /// All that was ever lent to the queues, or taken from them.
    bytes: Vec<Arc<[u8]>>,
    places: Vec<Place>,
    ids: Vec<QueueId>,
    /// Which keys share a byte of hash with which.
    alike: Vec<Vec<usize>>,
}

/// What other commands are told of those who wait.
fn sieve<C>(queues: &Queues<C>) -> Sieve {
    let sieve = Sieve::new();
    queues.sift(&sieve);
    sieve
}

impl World {
    fn new() -> Self {
        let alike = SITES.map(|(db, key)| {
            let mut alone = Queues::new();
            alone.join(db, key, 1, waiter("a", None)).unwrap();
            let sieve = sieve(&alone);
            (0..SITES.len()).filter(|&other| sieve.may_have(SITES[other].1)).collect()
        });
        Self {
            queues: Queues::new(),
            lines: SITES.map(|_| Line::default()).into(),
            keys: SITES.map(|_| Key::Nothing).into(),
            monotonic: 1000,
            clock: 20,
            touched: Vec::new(),
            calls: Vec::new(),
            bytes: Vec::new(),
            places: Vec::new(),
            ids: Vec::new(),
            alike: alike.into(),
        }
    }

    fn call(&mut self) -> Client {
        let client = Arc::new(self.calls.len());
        self.calls.push((Arc::clone(&client), None));
        client
    }

    fn end(&mut self, client: &Client, end: End) {
        let before = self.calls[**client].1.replace(end);
        assert_eq!(before, None, "a call ended twice, the second time {end:?}");
    }

    fn site(&self, id: QueueId) -> Option<usize> {
        self.lines.iter().position(|line| line.id == Some(id))
    }

    fn touch(&mut self, id: QueueId) {
        if !self.touched.contains(&id) {
            self.touched.push(id);
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Acquire { site, token, ask, block, most } => self.acquire(site, token, ask, block, most),
            Step::Join { site, token, ask, patience, most } => {
                self.join(site, token, ask, patience, most);
                self.lines[site].astray = self.lines[site].id.is_some();
            }
            Step::Wait(ms) => self.monotonic += ms,
            Step::Clock(ms) => self.clock += ms,
            Step::TimeOut => self.time_out(self.monotonic),
            Step::Die(which) => {
                if let Some(&place) = which.checked_rem(self.places.len()).and_then(|at| self.places.get(at)) {
                    self.leave(place, End::Died);
                }
            }
            Step::Release { site, token, fault } => self.release(site, token, fault),
            Step::Foreign { site, to } => {
                self.keys[site] = match to {
                    Key::Token { token, until } => {
                        Key::Token { token, until: until.map(|until| self.clock.saturating_add(until)) }
                    }
                    other => other,
                };
                let (db, key) = SITES[site];
                match self.queues.find(db, key) {
                    Some(id) => {
                        assert!(sieve(&self.queues).may_have(key));
                        self.touch(id);
                    }
                    None => assert!(self.lines[site].waiting.is_empty()),
                }
            }
            Step::Look { queue, when } => {
                let Some(id) = self.some_queue(queue) else { return };
                self.queues.look_at(id, when);
                if let Some(site) = self.site(id) {
                    self.lines[site].look = when;
                    self.lines[site].astray = true;
                }
            }
            Step::Due(late) => self.due(self.clock.saturating_add(late)),
            Step::Serve { queue, fault } => {
                if let Some(id) = self.some_queue(queue) {
                    self.serve(id, false, fault);
                }
            }
            Step::Settle => self.settle(),
        }
    }

    fn some_queue(&self, which: usize) -> Option<QueueId> {
        self.ids.get(which.checked_rem(self.ids.len())?).copied()
    }

    fn acquire(&mut self, site: usize, token: usize, ask: Ask, block: Option<i64>, most: usize) {
        let (db, key) = SITES[site];
        if let Some(id) = self.queues.find(db, key) {
            self.serve(id, false, Fault::None);
        }
        if self.keys[site].is_free(self.clock) {
            assert!(self.lines[site].waiting.is_empty(), "a lock is seen free while somebody waits");
            let until = Some(lease::deadline(self.clock, ask.ttl));
            self.keys[site] = Key::Token { token: TOKENS[token].to_vec(), until };
        } else if let (Some(patience), Key::Token { until, .. }) = (block, &self.keys[site]) {
            let ends = *until;
            self.join(site, token, ask, patience, most);
            self.look_after(site, ends);
        }
    }

    fn join(&mut self, site: usize, token: usize, ask: Ask, patience: i64, most: usize) {
        let (db, key) = SITES[site];
        let client = self.call();
        let token: Arc<[u8]> = TOKENS[token].into();
        self.bytes.push(Arc::clone(&token));
        let until = (patience > 0).then(|| self.monotonic + patience);
        let waiter =
            || Waiter { token: Arc::clone(&token), ask, since: self.monotonic, until, client: Arc::clone(&client) };
        let had = self.lines[site].position(&token);
        let room = had.is_some() || self.lines[site].waiting.len() < most;
        assert_eq!(self.queues.has_room(db, key, most, &token), room);
        let (joined, mut mine) = (self.queues.join(db, key, most, waiter()), waiter());
        let Ok(joined) = joined else {
            assert!(!room, "full, though there was room");
            return self.end(&client, End::Refused);
        };
        assert!(room, "no room, and not full");
        let line = &mut self.lines[site];
        match had {
            Some(at) => {
                let (place, old) = &mut line.waiting[at];
                assert_eq!(joined.place, *place, "its place is kept");
                mine.since = old.since;
                let old = std::mem::replace(old, mine);
                assert_eq!(joined.displaced.as_ref(), Some(&old.client));
                self.end(&old.client, End::Displaced);
            }
            None => {
                assert_eq!(joined.displaced, None);
                assert!(self.places.iter().all(|earlier| *earlier < joined.place), "places are in order and new");
                self.places.push(joined.place);
                line.waiting.push((joined.place, mine));
            }
        }
        let id = joined.place.queue();
        if let Some(known) = self.lines[site].id.replace(id) {
            assert_eq!(known, id);
        } else {
            assert_eq!(self.lines.iter().filter(|line| line.id == Some(id)).count(), 1, "a queue of its own");
            let (_, key) = self.queues.key(id).unwrap();
            self.bytes.push(Arc::clone(key));
        }
        if !self.ids.contains(&id) {
            self.ids.push(id);
        }
    }

    fn leave(&mut self, place: Place, end: End) {
        let mut lines = self.lines.iter_mut();
        let found = lines.find_map(|line| Some((line.waiting.iter().position(|(p, _)| *p == place)?, line)));
        let left = self.queues.leave(place);
        let Some((at, line)) = found else { return assert_eq!(left, None, "it had left before") };
        let left = left.expect("it was there");
        assert_eq!(left.was_head, at == 0);
        assert_eq!(left.waiter, line.remove(at));
        self.end(&left.waiter.client, end);
        if left.was_head {
            self.touch(place.queue());
        }
    }

    fn time_out(&mut self, now: i64) {
        let over = self.queues.timed_out(now);
        assert_eq!(over, self.over(now));
        for place in over {
            self.leave(place, End::TimedOut);
        }
    }

    /// Who has a timeout that is over: by the model.
    fn over(&self, now: i64) -> Vec<Place> {
        let waiting = self.lines.iter().flat_map(|line| &line.waiting);
        let mut over: Vec<(i64, Place)> = waiting.filter_map(|(place, w)| Some((w.until?, *place))).collect();
        over.retain(|(until, _)| *until <= now);
        over.sort_unstable();
        over.into_iter().map(|(_, place)| place).collect()
    }

    fn due(&mut self, now: i64) {
        let looks = self.lines.iter().filter_map(|line| Some((line.look?, line.id?)));
        let mut expected: Vec<(i64, QueueId)> = looks.filter(|(when, _)| *when <= now).collect();
        expected.sort_unstable();
        let due = self.queues.due(now);
        assert_eq!(due, expected.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
        for &id in &due {
            let site = self.site(id).unwrap();
            self.lines[site].look = None;
        }
        for id in due {
            self.serve(id, false, Fault::None);
        }
    }

    fn release(&mut self, site: usize, token: Option<usize>, fault: Fault) {
        let (db, key) = SITES[site];
        let holder = match &self.keys[site] {
            Key::Token { token, .. } if !self.keys[site].is_free(self.clock) => Some(token.clone()),
            _ => None,
        };
        let Some(token) = token.map(|token| TOKENS[token].to_vec()).or_else(|| holder.clone()) else { return };
        let id = self.queues.find(db, key);
        if holder.as_ref() == Some(&token) {
            match id {
                Some(id) => self.serve(id, true, fault),
                None => self.keys[site] = Key::Nothing,
            }
            return;
        }
        let Some(id) = id else { return };
        let at = self.lines[site].position(&token);
        let left = self.queues.leave_token(id, &token);
        assert_eq!(left.is_some(), at.is_some());
        if let (Some(left), Some(at)) = (left, at) {
            assert_eq!(left.was_head, at == 0);
            assert_eq!(left.waiter, self.lines[site].remove(at));
            self.end(&left.waiter.client, End::Withdrawn);
            if left.was_head {
                self.touch(id);
            }
        }
    }

    /// Serves a queue and compares with what an exclusive lock leads to: one grant where it is free, and none elsewhere.
    fn serve(&mut self, id: QueueId, freed: bool, fault: Fault) {
        let Some(site) = self.site(id) else {
            return self.queues.serve(id, &mut Never, |_, ()| panic!("nobody is there")).unwrap();
        };
        let (now, before) = (self.clock, self.keys[site].clone());
        let free = freed || before.is_free(now);
        let more = self.lines[site].waiting.len() > 1;
        let fails_at_once = before == Key::AnotherType || fault == Fault::Read(1) || free && fault == Fault::Write;
        let granted = usize::from(free && !fails_at_once);
        let fails = fails_at_once || granted == 1 && more && fault == Fault::Read(2);

        let mut hold = Hold { key: &mut self.keys[site], now, freed, fault, asked: 0, admitted: None };
        let mut grants = Vec::new();
        let served = self.queues.serve(id, &mut hold, |waiter, until| grants.push((waiter, until)));
        let (asked, freed) = (hold.asked, hold.freed);

        assert!(asked <= 2, "asked {asked} times whom it admits");
        assert_eq!(served.is_err(), fails, "{served:?}");
        assert_eq!(grants.len(), granted);
        self.lines[site].astray = fails;
        for (waiter, until) in grants {
            assert_eq!(waiter, self.lines[site].remove(0), "first come, first served");
            assert_eq!(until, lease::deadline(now, waiter.ask.ttl));
            assert_eq!(self.keys[site], Key::Token { token: waiter.token.to_vec(), until: Some(until) });
            self.end(&waiter.client, End::Granted);
        }
        if granted == 0 {
            assert_eq!(self.keys[site], before);
        }
        if served.is_ok() {
            if freed {
                self.keys[site] = Key::Nothing;
            }
            let free = self.keys[site].is_free(now);
            assert!(!free || self.lines[site].waiting.is_empty(), "a free lock and a queue survive a serve");
        }
        let ends = match self.keys[site] {
            Key::Token { until, .. } => until,
            _ => None,
        };
        self.look_after(site, ends);
    }

    /// A key is looked at right after its lease has ended.
    fn look_after(&mut self, site: usize, lease_ends: Option<i64>) {
        let line = &mut self.lines[site];
        let Some(id) = line.id else { return };
        line.look = lease_ends.map(|ends| ends + 1);
        self.queues.look_at(id, line.look);
    }

    /// After which no free lock has a queue, wherever the server's own rules were kept.
    fn settle(&mut self) {
        self.time_out(self.monotonic);
        for id in std::mem::take(&mut self.touched) {
            self.serve(id, false, Fault::None);
        }
        self.due(self.clock);
        for (line, key) in self.lines.iter().zip(&self.keys) {
            let forgotten = key.is_free(self.clock) && !line.waiting.is_empty();
            assert!(line.astray || !forgotten, "a lock is free and {:?} wait for it", line.waiting);
        }
    }

    /// Everything the queues say of themselves is what the model says.
    fn check(&self) {
        let queues = &self.queues;
        let waiting = self.lines.iter().map(|line| line.waiting.len()).sum::<usize>();
        assert_eq!((queues.waiting(), queues.is_empty()), (waiting, waiting == 0));
        let sieve = sieve(queues);
        assert_eq!(sieve.lengths().is_empty(), waiting == 0);
        for (site, line) in self.lines.iter().enumerate() {
            let (db, key) = SITES[site];
            let id = queues.find(db, key);
            assert_eq!(id, line.id);
            assert_eq!(queues.find(99, key), None);
            let alike = self.alike[site].iter().any(|&other| self.lines[other].id.is_some());
            assert_eq!(sieve.may_have(key), alike);
            let waited = |other: usize| self.lines[other].id.is_some();
            let as_long = (0..SITES.len()).any(|other| waited(other) && SITES[other].1.len() == key.len());
            assert_eq!(sieve.lengths().may_have(key.len()), as_long);
            let mut all: Vec<_> = queues.find_all(key).collect();
            let mut known: Vec<_> =
                (0..SITES.len()).filter(|&o| SITES[o].1 == key).filter_map(|o| self.lines[o].id).collect();
            all.sort();
            known.sort();
            assert_eq!(all, known, "in every database");
            for token in TOKENS {
                let has = line.position(token).is_some();
                for most in [0, 1, 2, ANY] {
                    assert_eq!(queues.has_room(db, key, most, token), has || line.waiting.len() < most);
                }
                if let Some(id) = id {
                    assert_eq!(queues.has(id, token), has);
                    let asks = line.position(token).map(|at| &line.waiting[at].1.ask);
                    assert_eq!(queues.ask(id, token), asks);
                }
            }
            let Some(id) = id else { continue };
            assert_eq!(queues.key(id).map(|(db, key)| (db, &**key)), Some((db, key)));
            assert_eq!(queues.len(id), line.waiting.len());
            assert_eq!(queues.look(id), line.look);
            assert_eq!(queues.head(id), line.waiting.first().map(|(place, waiter)| (*place, waiter)));
            assert!(queues.waiters(id).eq(line.waiting.iter().map(|(_, waiter)| waiter)), "who waits, in order");
        }
        for db in [-1, 0, 7, 99] {
            let of_db = SITES.iter().zip(&self.lines).filter(|((of, _), _)| *of == db);
            same_queues(queues.of_db(db), of_db.filter_map(|(_, line)| line.id).collect());
        }
        same_queues(queues.all(), self.lines.iter().filter_map(|line| line.id).collect());
        for &id in self.ids.iter().filter(|&&id| self.site(id).is_none()) {
            assert_eq!((queues.key(id), queues.len(id), queues.head(id), queues.look(id)), (None, 0, None, None));
            assert!(queues.waiters(id).next().is_none() && !queues.has(id, b"a"));
        }
        let timeouts = self.lines.iter().flat_map(|line| &line.waiting).filter_map(|(_, waiter)| waiter.until);
        let next = timeouts.min();
        assert_eq!(queues.next_timeout(), next);
        for now in [i64::MIN, self.monotonic, next.unwrap_or(0) - 1, next.unwrap_or(0), i64::MAX] {
            assert_eq!(queues.timed_out(now), self.over(now));
        }
        assert_eq!(queues.next_look(), self.lines.iter().filter_map(|line| line.look).min());
    }

    /// All leave, each in one of the ways there are, and nothing is left of them.
    fn drain(&mut self) {
        self.time_out(i64::MAX);
        for place in self.places.clone().into_iter().rev() {
            self.leave(place, End::Died);
        }
        self.check();
        assert!(self.queues.is_empty());
        let sieve = sieve(&self.queues);
        assert!(SITES.iter().all(|(_, key)| !sieve.may_have(key)), "the sieve forgot nothing");
        assert_eq!((self.queues.next_timeout(), self.queues.next_look()), (None, None));
        assert_eq!(self.queues.due(i64::MAX), []);
        for (client, end) in &self.calls {
            assert!(end.is_some(), "call {client} has no end");
            assert_eq!(Arc::strong_count(client), 1, "call {client} is kept");
        }
        assert!(self.bytes.iter().all(|bytes| Arc::strong_count(bytes) == 1), "a key or a token is kept");
    }
}

fn same_queues(mut a: Vec<QueueId>, mut b: Vec<QueueId>) {
    a.sort_unstable();
    b.sort_unstable();
    assert_eq!(a, b);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: steps(500, 30_000) as u32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn queues_are_what_plain_lists_are_in_any_history(steps in prop::collection::vec(step(), 1..history(150))) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
            world.check();
        }
        world.drain();
        world.join(0, 0, exclusive(), 5, 1); // they can be used again
        world.check();
        world.drain();
    }

    /// Whatever a lock is, those it admits are granted up to the first whom it does not, and nobody else.
    #[test]
    fn a_serve_grants_the_head_of_the_queue_as_far_as_the_lock_admits_it(
        waiting in 0..12usize,
        lock in prop::collection::vec(prop::sample::select(&[Say::Yes, Say::Yes, Say::Yes, Say::No, Say::Unread, Say::Unwritten]), 12),
    ) {
        let mut queues = Queues::new();
        let tokens: Vec<String> = (0..waiting).map(|n| n.to_string()).collect();
        for token in &tokens {
            queues.join(0, b"k", ANY, waiter(token, None)).unwrap();
        }
        let yes = lock.iter().take(waiting).take_while(|&&say| say == Say::Yes).count();
        let fails = yes < waiting && lock[yes] != Say::No;
        let mut granted = Vec::new();
        if let Some(id) = queues.find(0, b"k") {
            let served = queues.serve(id, &mut Script(lock.into()), |waiter, ()| granted.push(text(&waiter)));
            prop_assert_eq!(served.is_err(), fails);
        }
        prop_assert_eq!(&granted[..], &tokens[..yes]);
        prop_assert_eq!(&names(&queues, 0, b"k")[..], &tokens[yes..]);
        prop_assert_eq!(queues.waiting(), waiting - yes);
    }

    #[test]
    fn the_sieve_never_says_no_for_a_waited_key_and_forgets_it_with_the_last_waiter(
        keys in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(prop::sample::select(b"\0\x01a:\xff"), 0..6),
                prop::collection::vec(prop::sample::select(b"a:"), 60..70),
            ],
            1..40,
        ),
        order in any::<u64>(),
    ) {
        let (mut queues, mut dice, sieve) = (Queues::new(), Dice(order), Sieve::new());
        let mut places = Vec::new();
        for (n, key) in keys.iter().enumerate() {
            places.push(queues.join(dice.below(3) as i32, key, ANY, waiter(&n.to_string(), None)).unwrap().place);
        }
        while !places.is_empty() {
            for id in queues.all() {
                let key = queues.key(id).unwrap().1;
                queues.sift(&sieve);
                prop_assert!(sieve.may_have(key) && sieve.lengths().may_have(key.len()));
            }
            queues.leave(places.swap_remove(dice.below(places.len() as u64) as usize)).unwrap();
        }
        queues.sift(&sieve);
        prop_assert!(keys.iter().all(|key| !sieve.may_have(key)));
        prop_assert!(sieve.lengths().is_empty());
    }
}

// ---------------------------------------------------------------------------------------------------------------------------
// Rule by rule.

fn exclusive() -> Ask {
    Ask { want: Want::Lock(Mode::Exclusive), ttl: 10 }
}

fn waiter(token: &str, until: Option<i64>) -> Waiter<Client> {
    Waiter { token: token.as_bytes().into(), ask: exclusive(), since: 0, until, client: Arc::new(0) }
}

fn text(waiter: &Waiter<Client>) -> String {
    String::from_utf8(waiter.token.to_vec()).unwrap()
}

/// The tokens in the queue of a key, the next one first.
fn names(queues: &Queues<Client>, db: i32, key: &[u8]) -> Vec<String> {
    queues.find(db, key).map(|id| queues.waiters(id).map(text).collect()).unwrap_or_default()
}

/// The queue of `k` in database 0, these tokens in it.
fn queue(tokens: &[&str]) -> (Queues<Client>, QueueId, Vec<Place>) {
    let mut queues = Queues::new();
    let mut places = Vec::new();
    for token in tokens {
        places.push(queues.join(0, b"k", ANY, waiter(token, None)).unwrap().place);
    }
    let id = queues.find(0, b"k").unwrap();
    (queues, id, places)
}

/// Who is granted.
fn serve<L: Lock>(queues: &mut Queues<Client>, id: QueueId, lock: &mut L) -> (Vec<String>, Result<(), L::Error>) {
    let mut granted = Vec::new();
    let served = queues.serve(id, lock, |waiter, _| granted.push(text(&waiter)));
    (granted, served)
}

/// A lock nobody may ask for.
struct Never;

impl Lock for Never {
    type Grant = ();
    type Error = std::convert::Infallible;

    fn admits(&mut self, _: &[u8], _: &Ask) -> Result<bool, Self::Error> {
        panic!("the lock of no queue was asked")
    }

    fn grant(&mut self, _: &[u8], _: &Ask) -> Result<(), Self::Error> {
        panic!("the lock of no queue was granted")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Say {
    Yes,
    No,
    Unread,
    Unwritten,
}

/// A lock that says what it is told to, one grant after the other.
struct Script(VecDeque<Say>);

impl Lock for Script {
    type Grant = ();
    type Error = Say;

    fn admits(&mut self, _: &[u8], _: &Ask) -> Result<bool, Say> {
        match self.0[0] {
            Say::Unread => Err(Say::Unread),
            say => Ok(say != Say::No),
        }
    }

    fn grant(&mut self, _: &[u8], _: &Ask) -> Result<(), Say> {
        match self.0.pop_front() {
            Some(Say::Unwritten) => Err(Say::Unwritten),
            _ => Ok(()),
        }
    }
}

/// A lock of either kind, as far as its mode goes: what it is taken in, and how many more it takes.
struct Modes {
    taken: Option<Want>,
    permits: usize,
    asked: usize,
}

impl Modes {
    fn free() -> Self {
        Self { taken: None, permits: ANY, asked: 0 }
    }

    fn permits(permits: usize) -> Self {
        Self { permits, ..Self::free() }
    }
}

impl Lock for Modes {
    type Grant = ();
    type Error = std::convert::Infallible;

    fn admits(&mut self, _: &[u8], ask: &Ask) -> Result<bool, Self::Error> {
        self.asked += 1;
        let compatible = self.taken.is_none_or(|taken| taken == Want::Lock(Mode::Shared) && ask.want == taken);
        Ok(compatible && self.permits > 0)
    }

    fn grant(&mut self, _: &[u8], ask: &Ask) -> Result<(), Self::Error> {
        (self.taken, self.permits) = (Some(ask.want), self.permits - 1);
        Ok(())
    }
}

/// The queue of `k`: `s…` asks shared, the others exclusively.
fn mixed(tokens: &[&str]) -> (Queues<Client>, QueueId) {
    let mut queues = Queues::new();
    for token in tokens {
        let mode = if token.starts_with('s') { Mode::Shared } else { Mode::Exclusive };
        queues
            .join(0, b"k", ANY, Waiter { ask: Ask { want: Want::Lock(mode), ttl: 10 }, ..waiter(token, None) })
            .unwrap();
    }
    let id = queues.find(0, b"k").unwrap();
    (queues, id)
}

#[test]
fn who_came_first_is_served_first() {
    let (mut queues, id, _) = queue(&["a", "b", "c"]);
    for token in ["a", "b", "c"] {
        assert_eq!(serve(&mut queues, id, &mut Modes::free()), (vec![token.into()], Ok(())));
    }
    assert!(queues.is_empty());
}

#[test]
fn who_leaves_is_not_served_and_those_behind_move_up() {
    let (mut queues, id, places) = queue(&["a", "b", "c", "d"]);
    queues.leave(places[1]).unwrap();
    queues.leave_token(id, b"a").unwrap();
    assert_eq!(names(&queues, 0, b"k"), ["c", "d"]);
    assert_eq!(serve(&mut queues, id, &mut Modes::free()).0, ["c"]);
}

#[test]
fn who_comes_back_is_the_last() {
    let (mut queues, _, places) = queue(&["a", "b"]);
    queues.leave(places[0]).unwrap();
    let again = queues.join(0, b"k", ANY, waiter("a", None)).unwrap();
    assert!(again.displaced.is_none() && again.place > places[1]);
    assert_eq!(names(&queues, 0, b"k"), ["b", "a"]);
}

#[test]
fn a_token_that_asks_again_keeps_its_place_and_how_long_it_has_waited_and_nothing_else() {
    let (mut queues, id, places) = queue(&["a", "b"]);
    let (old, new) = (Arc::new(1), Arc::new(2));
    let first = Waiter { since: 5, client: Arc::clone(&old), ..waiter("x", Some(50)) };
    let place = queues.join(0, b"k", ANY, first).unwrap().place;
    queues.join(0, b"k", ANY, waiter("z", None)).unwrap();
    let ask = Ask { want: Want::Lock(Mode::Shared), ttl: 77 };
    let again = Waiter { ask, since: 20, client: Arc::clone(&new), ..waiter("x", Some(90)) };
    let joined = queues.join(0, b"k", ANY, again).unwrap();
    assert_eq!((joined.place, joined.displaced), (place, Some(old)));
    assert_eq!(names(&queues, 0, b"k"), ["a", "b", "x", "z"]);
    for place in places {
        queues.leave(place).unwrap();
    }
    let kept = Waiter { ask, since: 5, client: new, ..waiter("x", Some(90)) };
    assert_eq!(queues.head(id), Some((place, &kept)));
}

#[test]
fn a_token_that_asks_again_waits_as_long_as_its_newer_call_says() {
    for (older, newer) in [(Some(50), Some(90)), (Some(90), Some(50)), (Some(50), None), (None, Some(50)), (None, None)]
    {
        let mut queues = Queues::new();
        let place = queues.join(0, b"k", ANY, waiter("a", older)).unwrap().place;
        queues.join(0, b"k", ANY, waiter("a", newer)).unwrap();
        assert_eq!(queues.next_timeout(), newer);
        assert_eq!(queues.timed_out(i64::MAX), newer.map(|_| place).into_iter().collect::<Vec<_>>());
        queues.leave(place).unwrap();
        assert_eq!(queues.next_timeout(), None);
    }
}

#[test]
fn a_full_queue_takes_no_newcomer_and_a_refusal_changes_nothing() {
    let (mut queues, id, _) = queue(&["a", "b"]);
    for most in 0..=2 {
        assert!(!queues.has_room(0, b"k", most, b"c"));
        assert_eq!(queues.join(0, b"k", most, waiter("c", Some(1))), Err(Full));
    }
    assert_eq!((names(&queues, 0, b"k"), queues.next_timeout()), (vec!["a".into(), "b".into()], None));
    assert!(!queues.has(id, b"c"));
    assert!(queues.has_room(0, b"k", 3, b"c") && queues.join(0, b"k", 3, waiter("c", None)).is_ok());
}

#[test]
fn a_key_nobody_may_wait_for_gets_no_queue() {
    let mut queues = Queues::<Client>::new();
    assert!(!queues.has_room(0, b"k", 0, b"a"));
    assert_eq!(queues.join(0, b"k", 0, waiter("a", None)), Err(Full));
    assert!(queues.find(0, b"k").is_none() && !sieve(&queues).may_have(b"k") && queues.all().is_empty());
}

#[test]
fn a_token_that_waits_has_room_also_where_the_queue_is_longer_than_it_may_be() {
    let (mut queues, _, places) = queue(&["a", "b", "c"]);
    for most in 0..3 {
        assert!(queues.has_room(0, b"k", most, b"b"));
        assert_eq!(queues.join(0, b"k", most, waiter("b", None)).unwrap().place, places[1]);
    }
}

#[test]
fn the_same_key_in_two_databases_has_two_queues_and_each_its_own_limit() {
    let mut queues = Queues::new();
    for db in [0, 1] {
        queues.join(db, b"k", 1, waiter("a", None)).unwrap();
        assert_eq!(queues.join(db, b"k", 1, waiter("b", None)), Err(Full));
    }
    let (zero, one) = (queues.find(0, b"k").unwrap(), queues.find(1, b"k").unwrap());
    assert_ne!(zero, one);
    assert_eq!((queues.of_db(0), queues.of_db(1), queues.all().len()), (vec![zero], vec![one], 2));
    queues.leave_token(zero, b"a").unwrap();
    assert!(queues.find(0, b"k").is_none() && queues.has(one, b"a") && sieve(&queues).may_have(b"k"));
}

#[test]
fn a_token_may_wait_for_two_keys_and_leaves_one_of_them_only() {
    let mut queues = Queues::new();
    queues.join(0, b"k", ANY, waiter("a", Some(5))).unwrap();
    let other = queues.join(0, b"l", ANY, waiter("a", Some(5))).unwrap();
    assert_eq!(other.displaced, None);
    queues.leave_token(queues.find(0, b"k").unwrap(), b"a").unwrap();
    assert_eq!((names(&queues, 0, b"l"), queues.timed_out(5)), (vec!["a".into()], vec![other.place]));
}

#[test]
fn a_place_is_left_once_also_when_its_queue_is_another_keys_by_then() {
    let (mut queues, id, places) = queue(&["a"]);
    assert!(queues.leave(places[0]).is_some());
    assert!(queues.leave(places[0]).is_none());
    let other = queues.join(3, b"other", ANY, waiter("a", None)).unwrap().place;
    assert_eq!(other.queue(), id, "this test is about a number that is used again");
    assert!(queues.leave(places[0]).is_none());
    assert_eq!(names(&queues, 3, b"other"), ["a"]);
}

#[test]
fn only_a_head_that_leaves_concerns_those_behind_it() {
    let (mut queues, id, places) = queue(&["a", "b", "c", "d"]);
    assert!(!queues.leave(places[3]).unwrap().was_head);
    assert!(!queues.leave_token(id, b"b").unwrap().was_head);
    assert!(queues.leave(places[0]).unwrap().was_head);
    assert!(queues.leave_token(id, b"c").unwrap().was_head);
}

#[test]
fn nobody_is_granted_past_a_head_the_lock_does_not_admit() {
    let (mut queues, id) = mixed(&["x", "s1", "s2"]);
    let mut shared = Modes { taken: Some(Want::Lock(Mode::Shared)), ..Modes::free() };
    assert_eq!(serve(&mut queues, id, &mut shared), (vec![], Ok(())));
    assert_eq!((names(&queues, 0, b"k").len(), shared.asked), (3, 1));
}

#[test]
fn a_free_lock_goes_to_the_run_of_shared_ones_at_the_head() {
    let (mut queues, id) = mixed(&["s1", "s2", "x", "s3"]);
    assert_eq!(serve(&mut queues, id, &mut Modes::free()).0, ["s1", "s2"]);
    assert_eq!(serve(&mut queues, id, &mut Modes::free()).0, ["x"]);
    assert_eq!(serve(&mut queues, id, &mut Modes::free()).0, ["s3"]);
}

#[test]
fn a_semaphore_goes_to_as_many_as_it_has_permits_left() {
    let (mut queues, id) = mixed(&["s1", "s2", "s3", "s4"]);
    assert_eq!(serve(&mut queues, id, &mut Modes::permits(3)).0, ["s1", "s2", "s3"]);
    assert_eq!(serve(&mut queues, id, &mut Modes::permits(0)).0, [""; 0]);
    assert_eq!(serve(&mut queues, id, &mut Modes::permits(9)).0, ["s4"]);
}

#[test]
fn who_was_granted_before_an_error_stays_granted_and_all_others_stay_queued() {
    for error in [Say::Unread, Say::Unwritten] {
        let (mut queues, id, _) = queue(&["a", "b", "c"]);
        let mut lock = Script([Say::Yes, error, Say::Yes].into());
        assert_eq!(serve(&mut queues, id, &mut lock), (vec!["a".into()], Err(error)));
        assert_eq!(names(&queues, 0, b"k"), ["b", "c"]);
        let mut lock = Script([Say::Yes, Say::No].into());
        assert_eq!(serve(&mut queues, id, &mut lock), (vec!["b".into()], Ok(())));
    }
}

#[test]
fn a_grant_takes_the_timeout_of_the_waiter_with_it() {
    let mut queues = Queues::new();
    queues.join(0, b"k", ANY, waiter("a", Some(5))).unwrap();
    queues.join(0, b"k", ANY, waiter("b", Some(9))).unwrap();
    let id = queues.find(0, b"k").unwrap();
    serve(&mut queues, id, &mut Modes::free()).1.unwrap();
    assert_eq!((queues.next_timeout(), queues.timed_out(8)), (Some(9), vec![]));
}

#[test]
fn a_wait_is_over_at_its_millisecond_and_at_no_earlier_one() {
    for until in [i64::MIN + 1, -1, 0, 1, 1000, i64::MAX] {
        let mut queues = Queues::new();
        let place = queues.join(0, b"k", ANY, waiter("a", Some(until))).unwrap().place;
        assert_eq!(queues.timed_out(until - 1), []);
        assert_eq!(queues.timed_out(until), [place]);
    }
}

#[test]
fn the_longest_over_leave_first_and_among_equals_who_came_first() {
    let mut queues = Queues::new();
    let mut join = |key: &[u8], token, until| queues.join(0, key, ANY, waiter(token, Some(until))).unwrap().place;
    let (c, a, b, d) = (join(b"k", "c", 7), join(b"k", "a", 5), join(b"l", "b", 5), join(b"l", "d", 8));
    assert_eq!(queues.timed_out(7), [a, b, c]);
    assert_eq!(queues.timed_out(8), [a, b, c, d], "they stay until they are left");
}

#[test]
fn a_key_is_due_at_its_millisecond_once_and_then_not_until_it_is_given_another() {
    let (mut queues, id, _) = queue(&["a"]);
    queues.look_at(id, Some(30));
    assert_eq!((queues.due(29), queues.look(id), queues.next_look()), (vec![], Some(30), Some(30)));
    assert_eq!((queues.due(30), queues.look(id), queues.next_look()), (vec![id], None, None));
    assert_eq!(queues.due(i64::MAX), []);
    queues.look_at(id, Some(10));
    assert_eq!(queues.due(30), [id]);
}

#[test]
fn a_look_that_is_moved_is_due_at_its_new_time_only() {
    let (mut queues, id, _) = queue(&["a"]);
    for (older, newer) in [(10, 20), (20, 10), (10, 10)] {
        queues.look_at(id, Some(older));
        queues.look_at(id, Some(newer));
        assert_eq!((queues.next_look(), queues.due(newer - 1)), (Some(newer), vec![]));
        assert_eq!((queues.due(i64::MAX), queues.due(i64::MAX)), (vec![id], vec![]));
    }
    queues.look_at(id, Some(10));
    queues.look_at(id, None);
    assert_eq!((queues.next_look(), queues.due(i64::MAX)), (None, vec![]));
}

#[test]
fn a_queue_that_has_ended_is_not_looked_at_nor_is_the_next_of_its_number() {
    let (mut queues, id, places) = queue(&["a"]);
    queues.look_at(id, Some(10));
    queues.leave(places[0]).unwrap();
    queues.look_at(id, Some(10));
    assert_eq!((queues.next_look(), queues.due(i64::MAX)), (None, vec![]));
    let next = queues.join(0, b"other", ANY, waiter("a", None)).unwrap().place.queue();
    assert_eq!((next, queues.look(next)), (id, None));
}

#[test]
fn the_timer_finds_the_keys_that_are_due_the_longest_due_first() {
    let mut queues = Queues::new();
    let mut look = |key: &[u8], when| {
        let id = queues.join(0, key, ANY, waiter("a", None)).unwrap().place.queue();
        queues.look_at(id, Some(when));
        id
    };
    let (c, a, b, d) = (look(b"c", 7), look(b"a", i64::MIN), look(b"b", 5), look(b"d", i64::MAX));
    assert_eq!((queues.due(7), queues.next_look()), (vec![a, b, c], Some(i64::MAX)));
    assert_eq!(queues.due(i64::MAX), [d]);
}

#[test]
fn one_grant_costs_two_looks_at_a_head_however_long_the_queue() {
    for long in [1, 2, 8, rounds(10_000) as i64] {
        let mut queues = Queues::new();
        for n in 0..long {
            queues.join(0, b"k", ANY, waiter(&n.to_string(), Some(n))).unwrap();
        }
        let id = queues.find(0, b"k").unwrap();
        let mut lock = Modes::free();
        assert_eq!(serve(&mut queues, id, &mut lock).0, ["0"]);
        assert_eq!(lock.asked, if long == 1 { 1 } else { 2 }, "{long} waiting");
        if long > 1 {
            assert_eq!(serve(&mut queues, id, &mut lock).0, [""; 0]);
            assert_eq!(lock.asked, 3, "and a lock that is taken costs one");
        }
    }
}

#[test]
fn a_run_of_grants_costs_one_look_at_a_head_each_and_one_more() {
    let many = if cfg!(miri) { 100 } else { 1000 };
    let tokens: Vec<String> = (0..many).map(|n| format!("s{n}")).collect();
    let (mut queues, id) = mixed(&tokens.iter().map(String::as_str).collect::<Vec<_>>());
    let permits = many * 6 / 10;
    let mut lock = Modes::permits(permits);
    assert_eq!(serve(&mut queues, id, &mut lock).0, &tokens[..permits]);
    assert_eq!(lock.asked, permits + 1);
}

#[test]
fn nothing_is_kept_of_a_waiter_that_is_gone_nor_of_a_key_nobody_waits_for() {
    let (token, newer): (Arc<[u8]>, Arc<[u8]>) = (b"a"[..].into(), b"a"[..].into());
    let mut queues = Queues::new();
    let join = |queues: &mut Queues<Client>, token: &Arc<[u8]>| {
        queues.join(0, b"k", ANY, Waiter { token: Arc::clone(token), ..waiter("", Some(5)) }).unwrap().place
    };
    let place = join(&mut queues, &token);
    let key = Arc::clone(queues.key(place.queue()).unwrap().1);
    assert_eq!(join(&mut queues, &newer), place);
    assert_eq!(Arc::strong_count(&newer), 1, "a token that asks again is not stored again");
    queues.leave(place).unwrap();
    assert_eq!([&token, &newer, &key].map(Arc::strong_count), [1; 3]);
}
