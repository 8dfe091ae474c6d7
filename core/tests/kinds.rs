//! Locks of every kind, and the queue before them, in random histories beside a ledger of what the callers were told.
//!
//! Two models stand side by side. [`Key`] is what a server would store, decided by `lock::decide` and served by the queue;
//! [`Ledger`] knows only who was told what, and the rules as the contract words them. After each step both must say the same.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation
)]

mod support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use sluice_core::args::Mode;
use sluice_core::lease;
use sluice_core::lock::{self, Decision, Found, Release, Want};
use sluice_core::queue::{Ask, Lock, Place, Queues, Waiter};

type Token = u8;

/// The key is of another type, or of the other family.
#[derive(Debug, PartialEq, Eq)]
struct WrongType;

// ---------------------------------------------------------------------------------------------------------------------------
// What is stored.

#[derive(Clone, Debug, PartialEq, Eq)]
enum Key {
    Nothing,
    Text { token: Token, until: Option<i64> },
    Hash { token: Token, holds: u64, until: Option<i64> },
    Set { permits: bool, members: BTreeMap<Token, i64>, until: Option<i64> },
    List,
}

impl Key {
    fn until(&self) -> Option<i64> {
        match self {
            Key::Text { until, .. } | Key::Hash { until, .. } | Key::Set { until, .. } => *until,
            Key::Nothing | Key::List => None,
        }
    }

    /// As a server has it: a key is gone once the clock is past its deadline.
    fn expire(&mut self, now: i64) {
        if self.until().is_some_and(|until| now > until) {
            *self = Key::Nothing;
        }
    }

    /// When it may next become free for somebody who waits.
    fn next_change(&self, now: i64) -> Option<i64> {
        match self {
            Key::Set { permits: true, members, .. } => members.values().copied().filter(|&until| until >= now).min(),
            Key::Set { members, .. } => members.values().copied().max(),
            _ => self.until(),
        }
    }
}

/// A key, opened.
struct Hold<'k> {
    key: &'k mut Key,
    now: i64,
    freed: bool,
}

impl<'k> Hold<'k> {
    fn new(key: &'k mut Key, now: i64) -> Self {
        Self { key, now, freed: false }
    }

    fn find(&self, token: Token) -> Result<Found, WrongType> {
        if self.freed {
            return Ok(Found::Free);
        }
        match &*self.key {
            Key::Nothing => Ok(Found::Free),
            Key::Text { token: holder, .. } => Ok(Found::Exclusive { mine: *holder == token }),
            Key::Hash { token: holder, holds, .. } => Ok(Found::Reentrant { mine: *holder == token, holds: *holds }),
            Key::Set { permits, members, .. } => {
                let live = || members.iter().filter(|(_, until)| **until >= self.now).map(|(token, _)| *token);
                let (mine, held) = (live().any(|holder| holder == token), live().count() as u64);
                Ok(match (held, permits) {
                    (0, _) => Found::Free,
                    (held, true) => Found::Permits { mine, held },
                    (_, false) => Found::Shared { mine, others: live().any(|holder| holder != token) },
                })
            }
            Key::List => Err(WrongType),
        }
    }

    fn set(&mut self) -> &mut BTreeMap<Token, i64> {
        let Key::Set { members, .. } = self.key else { panic!("no set: {:?}", self.key) };
        members
    }

    /// After a change to a set: what is past goes, and the key lives as long as its last member.
    fn tidy(&mut self) {
        let now = self.now;
        let Key::Set { members, until, .. } = self.key else { panic!("no set: {:?}", self.key) };
        members.retain(|_, until| *until >= now);
        *until = members.values().copied().max();
        assert!(until.is_some(), "a set of nobody is no key");
    }

    fn write(&mut self, found: Found, decision: Decision, token: Token, ask: &Ask) {
        let wanted = lease::deadline(self.now, ask.ttl);
        let own = match found {
            Found::Exclusive { mine: true } | Found::Reentrant { mine: true, .. } => self.key.until(),
            Found::Shared { mine: true, .. } | Found::Permits { mine: true, .. } => Some(self.set()[&token]),
            _ => Some(wanted),
        };
        let until = own.map(|own| own.max(wanted));
        let permits = matches!(ask.want, Want::Permit(_));
        match decision {
            Decision::Exclusive => *self.key = Key::Text { token, until },
            Decision::Reentrant { holds } => *self.key = Key::Hash { token, holds, until },
            Decision::First => {
                let until = until.unwrap_or(wanted);
                *self.key = Key::Set { permits, members: BTreeMap::from([(token, until)]), until: Some(until) };
            }
            Decision::Join => {
                self.set().insert(token, wanted);
                self.tidy();
            }
            Decision::Prolong => match self.key {
                Key::Text { until: old, .. } | Key::Hash { until: old, .. } => *old = until,
                _ if own == until => {}
                _ => {
                    self.set().insert(token, until.unwrap());
                    self.tidy();
                }
            },
            other => panic!("{other:?} grants nothing"),
        }
        self.freed = false;
    }

    /// RELEASE. `next` hands over what is free after it.
    fn release(mut self, found: Found, token: Token, next: impl FnOnce(&mut Self)) -> bool {
        match lock::release(found) {
            Release::NotMine => return false,
            Release::Hold { left } => match self.key {
                Key::Hash { holds, .. } => *holds = left,
                other => panic!("a hold of {other:?}"),
            },
            Release::Leave => {
                self.set().remove(&token).unwrap();
                self.tidy();
                next(&mut self);
            }
            Release::Free => {
                self.freed = true;
                next(&mut self);
                if self.freed {
                    *self.key = Key::Nothing;
                }
            }
        }
        true
    }

    fn renew(&mut self, found: Found, token: Token, ttl: u64) -> bool {
        let wanted = lease::deadline(self.now, ttl);
        match (found, &mut *self.key) {
            (Found::Exclusive { mine: true }, Key::Text { until, .. })
            | (Found::Reentrant { mine: true, .. }, Key::Hash { until, .. }) => *until = Some(wanted),
            (Found::Shared { mine: true, .. } | Found::Permits { mine: true, .. }, Key::Set { members, .. }) => {
                members.insert(token, wanted);
                self.tidy();
            }
            _ => return false,
        }
        true
    }
}

impl Lock for Hold<'_> {
    type Grant = ();
    type Error = WrongType;

    fn admits(&mut self, token: &[u8], ask: &Ask) -> Result<bool, WrongType> {
        match lock::decide(self.find(token[0])?, ask.want, false) {
            Decision::WrongKind => Err(WrongType),
            decision => Ok(decision.grants()),
        }
    }

    fn grant(&mut self, token: &[u8], ask: &Ask) -> Result<(), WrongType> {
        let found = self.find(token[0])?;
        self.write(found, lock::decide(found, ask.want, false), token[0], ask);
        Ok(())
    }
}

// ---------------------------------------------------------------------------------------------------------------------------
// What the callers know.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Exclusive,
    Reentrant(u64),
    Shared,
    Permit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    kind: Kind,
    until: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Granted,
    No,
    Deadlock,
    WrongType,
}

#[derive(Clone, Debug, Default)]
struct Ledger {
    shares: BTreeMap<Token, Share>,
    another_type: bool,
}

impl Ledger {
    fn expire(&mut self, now: i64) {
        self.shares.retain(|_, share| share.until.is_none_or(|until| until >= now));
    }

    fn others(&self, token: Token) -> impl Iterator<Item = Kind> {
        self.shares.iter().filter(move |(holder, _)| **holder != token).map(|(_, share)| share.kind)
    }

    fn is_of(&self, permits: bool) -> bool {
        !self.another_type && self.shares.values().all(|share| (share.kind == Kind::Permit) == permits)
    }

    /// What the contract says to a request.
    fn judge(&self, token: Token, want: Want, somebody_ahead: bool) -> Verdict {
        if !self.is_of(matches!(want, Want::Permit(_))) {
            return Verdict::WrongType;
        }
        let alone = self.others(token).next().is_none();
        let yes = |yes: bool, no| if yes { Verdict::Granted } else { no };
        match (self.shares.get(&token).map(|share| share.kind), want) {
            (None, _) if somebody_ahead => Verdict::No,
            (None, Want::Permit(limit)) => yes((self.others(token).count() as u64) < limit, Verdict::No),
            (None, Want::Lock(Mode::Shared)) => yes(self.others(token).all(|kind| kind == Kind::Shared), Verdict::No),
            (None, Want::Lock(_)) => yes(alone, Verdict::No),
            (Some(Kind::Permit), _) => Verdict::Granted,
            (Some(Kind::Reentrant(holds)), Want::Lock(Mode::Shared)) => yes(holds == 1, Verdict::Deadlock),
            (Some(_), Want::Lock(Mode::Shared)) => Verdict::Granted,
            (Some(_), _) => yes(alone, Verdict::Deadlock),
        }
    }

    /// A caller was told that it has it.
    fn granted(&mut self, token: Token, ask: &Ask, now: i64) {
        let wanted = Some(now + i64::try_from(ask.ttl).unwrap());
        let old = self.shares.get(&token).copied();
        let kind = match (old.map(|share| share.kind), ask.want) {
            (_, Want::Permit(_)) => Kind::Permit,
            (None, Want::Lock(Mode::Exclusive)) => Kind::Exclusive,
            (None, Want::Lock(Mode::Reentrant)) => Kind::Reentrant(1),
            (Some(Kind::Reentrant(holds)), Want::Lock(Mode::Exclusive)) => Kind::Reentrant(holds),
            (Some(Kind::Reentrant(holds)), Want::Lock(Mode::Reentrant)) => Kind::Reentrant(holds + 1),
            (Some(_), Want::Lock(Mode::Reentrant)) => Kind::Reentrant(2),
            (Some(_), Want::Lock(Mode::Exclusive)) => Kind::Exclusive,
            (_, Want::Lock(Mode::Shared)) => Kind::Shared,
        };
        let until = match old {
            None => wanted,
            // A lock without a deadline keeps none; but who shares has one.
            Some(Share { until: None, .. }) => wanted.filter(|_| kind == Kind::Shared),
            Some(Share { until, .. }) => until.max(wanted),
        };
        self.shares.insert(token, Share { kind, until });
        // A writer alone, readers together, permits counted.
        let mut others = self.others(token);
        match (kind, ask.want) {
            (Kind::Exclusive | Kind::Reentrant(_), _) => assert_eq!(others.next(), None, "a writer is alone"),
            (Kind::Shared, _) => assert!(others.all(|kind| kind == Kind::Shared), "a reader is among readers"),
            (Kind::Permit, Want::Permit(limit)) => {
                assert!(others.all(|kind| kind == Kind::Permit));
                assert!(old.is_some() || self.shares.len() as u64 <= limit, "more holders than permits");
            }
            (Kind::Permit, _) => panic!("a permit by {ask:?}"),
        }
    }

    fn renewed(&mut self, token: Token, ttl: u64, now: i64) -> bool {
        self.shares.get_mut(&token).map(|share| share.until = Some(now + i64::try_from(ttl).unwrap())).is_some()
    }

    fn released(&mut self, token: Token) -> bool {
        match self.shares.get_mut(&token) {
            None => false,
            Some(Share { kind: Kind::Reentrant(holds), .. }) if *holds > 1 => {
                *holds -= 1;
                true
            }
            Some(_) => self.shares.remove(&token).is_some(),
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------------
// A server in small.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Granted,
    Zero,
    Deadlock,
    WrongType,
    Died,
}

#[derive(Clone, Debug)]
enum Step {
    /// LOCK.ACQUIRE or SEM.ACQUIRE, with BLOCK where there is a patience (0: no end).
    Acquire {
        token: Token,
        ask: Ask,
        block: Option<i64>,
    },
    Release {
        token: Token,
        permits: bool,
    },
    /// By somebody who holds it, if anybody does.
    ReleaseHeld(usize),
    Renew {
        token: Token,
        permits: bool,
        ttl: u64,
    },
    RenewHeld(usize, u64),
    /// Time goes on.
    Pass(i64),
    /// A client that waits, or whose grant is on its way to it, is gone.
    Die(usize),
    /// All replies have gone out.
    Deliver,
    /// Another command changes the key.
    Del,
    Set(Token, Option<i64>),
    Push,
    /// The key's own expiry is taken away. Deadlines are not.
    Persist,
}

struct World {
    now: i64,
    key: Key,
    queues: Queues<usize>,
    ledger: Ledger,
    /// Who waits: the call, its place and its end of patience.
    line: Vec<(usize, Token, Ask, Option<i64>)>,
    ends: Vec<Option<End>>,
    on_its_way: Vec<(usize, Token)>,
    persisted: bool,
    /// Another client's SET made somebody a holder who waited.
    gifted: bool,
}

const NAME: &[u8] = b"k";

impl World {
    fn new() -> Self {
        Self {
            now: 1_000_000,
            key: Key::Nothing,
            queues: Queues::new(),
            ledger: Ledger::default(),
            line: Vec::new(),
            ends: Vec::new(),
            on_its_way: Vec::new(),
            persisted: false,
            gifted: false,
        }
    }

    fn end(&mut self, call: usize, end: End) {
        assert_eq!(self.ends[call].replace(end), None, "call {call} is answered twice");
    }

    /// Serves the queue with an opened key; what is granted has to be right and in order.
    fn serve_with(&mut self, hold: &mut Hold<'_>) {
        let Some(id) = self.queues.find(0, NAME) else { return };
        let now = self.now;
        let mut granted = Vec::new();
        let _ = self.queues.serve(id, hold, |waiter, ()| granted.push(waiter));
        for waiter in granted {
            let (call, token, ask, _) = self.line.remove(0);
            assert_eq!((waiter.client, waiter.token[0], waiter.ask), (call, token, ask), "first come, first served");
            self.ledger.granted(token, &ask, now);
            self.end(call, End::Granted);
            self.on_its_way.push((call, token));
        }
        let next = hold.key.next_change(now).map(|until| until + 1);
        self.queues.look_at(id, next);
    }

    fn open<T>(&mut self, work: impl FnOnce(&mut Self, Hold<'_>) -> T) -> T {
        self.key.expire(self.now);
        let mut key = std::mem::replace(&mut self.key, Key::Nothing);
        let done = work(self, Hold::new(&mut key, self.now));
        self.key = key;
        done
    }

    fn serve(&mut self) {
        self.open(|world, mut hold| world.serve_with(&mut hold));
    }

    fn acquire(&mut self, token: Token, ask: Ask, block: Option<i64>) {
        let call = self.ends.len();
        self.ends.push(None);
        self.open(|world, mut hold| {
            world.serve_with(&mut hold);
            let queued = !world.line.is_empty();
            let wanted = world.ledger.judge(token, ask.want, queued);
            let before = hold.key.clone();
            let decision = hold.find(token).map_or(Decision::WrongKind, |found| lock::decide(found, ask.want, queued));
            let said = match decision {
                Decision::WrongKind => Verdict::WrongType,
                Decision::Deadlock => Verdict::Deadlock,
                Decision::Refuse => Verdict::No,
                _ => Verdict::Granted,
            };
            assert_eq!(said, wanted, "{token} asks for {ask:?} of {before:?} by {:?}", world.ledger);
            match (decision, block) {
                (Decision::WrongKind, _) => world.end(call, End::WrongType),
                (Decision::Deadlock, Some(_)) => world.end(call, End::Deadlock),
                (Decision::Deadlock, None) | (Decision::Refuse, None) => world.end(call, End::Zero),
                (Decision::Refuse, Some(patience)) => {
                    if world.join(call, token, ask, patience, &hold) {
                        // What it asks for now it may have at once.
                        world.serve_with(&mut hold);
                        return;
                    }
                }
                _ => {
                    let found = hold.find(token).unwrap();
                    hold.write(found, decision, token, &ask);
                    world.ledger.granted(token, &ask, world.now);
                    world.end(call, End::Granted);
                    world.on_its_way.retain(|(_, granted)| *granted != token);
                    world.serve_with(&mut hold);
                    return;
                }
            }
            assert_eq!(*hold.key, before, "a refusal changes nothing");
        });
    }

    /// Says whether the token had a place.
    fn join(&mut self, call: usize, token: Token, ask: Ask, patience: i64, hold: &Hold<'_>) -> bool {
        let until = (patience > 0).then_some(self.now + patience);
        let waiter = Waiter { token: [token][..].into(), ask, since: self.now, until, client: call };
        let joined = self.queues.join(0, NAME, usize::MAX, waiter).unwrap();
        match self.line.iter().position(|(_, there, _, _)| *there == token) {
            Some(at) => {
                let (older, ..) = std::mem::replace(&mut self.line[at], (call, token, ask, until));
                assert_eq!(joined.displaced, Some(older), "one place for a token");
                self.end(older, End::Zero);
            }
            None => {
                assert_eq!(joined.displaced, None);
                self.line.push((call, token, ask, until));
            }
        }
        self.queues.look_at(joined.place.queue(), hold.key.next_change(self.now).map(|until| until + 1));
        joined.displaced.is_some()
    }

    /// Takes a waiter out of its queue.
    fn leave(&mut self, at: usize, end: End) {
        let (call, token, ..) = self.line.remove(at);
        let id = self.queues.find(0, NAME).unwrap();
        let left = self.queues.leave_token(id, &[token]).unwrap();
        assert_eq!(left.was_head, at == 0);
        self.end(call, end);
        if left.was_head {
            self.serve();
        }
    }

    fn release(&mut self, token: Token, permits: bool) {
        let withdrawn = self.open(|world, mut hold| {
            // A call finds whoever has expired meanwhile already succeeded.
            let found = hold.find(token);
            let right = world.ledger.is_of(permits);
            let of_side = match found {
                Ok(Found::Free) => true,
                Ok(Found::Permits { .. }) => permits,
                Ok(_) => !permits,
                Err(WrongType) => false,
            };
            assert_eq!(of_side, right, "WRONGTYPE of {:?} by {:?}", hold.key, world.ledger);
            if !of_side {
                return None;
            }
            let found = found.unwrap();
            if lock::release(found) == Release::NotMine {
                assert!(!world.ledger.shares.contains_key(&token));
                let queued = world.line.iter().position(|(_, there, _, _)| *there == token);
                world.serve_with(&mut hold);
                return queued.and_then(|_| world.line.iter().position(|(_, there, _, _)| *there == token));
            }
            assert!(world.ledger.released(token), "{token} was never told it holds {found:?}");
            hold.release(found, token, |hold| world.serve_with(hold));
            None
        });
        if let Some(at) = withdrawn {
            self.leave(at, End::Zero);
        }
    }

    fn renew(&mut self, token: Token, permits: bool, ttl: u64) {
        self.open(|world, mut hold| {
            world.serve_with(&mut hold);
            let Ok(found) = hold.find(token) else { return };
            if matches!(found, Found::Permits { .. }) != permits && found != Found::Free {
                return;
            }
            let before = hold.key.clone();
            let renewed = hold.renew(found, token, ttl);
            assert_eq!(renewed, world.ledger.renewed(token, ttl, world.now), "{token} renews {before:?}");
            if renewed {
                world.on_its_way.retain(|(_, granted)| *granted != token);
                world.serve_with(&mut hold);
            } else {
                assert_eq!(*hold.key, before);
            }
        });
    }

    /// One millisecond at a time: timeouts, and the looks at keys that were asked for. Nothing else wakes anybody.
    fn pass(&mut self, ms: i64) {
        for _ in 0..ms {
            self.now += 1;
            self.ledger.expire(self.now);
            for place in self.queues.timed_out(self.now) {
                // Whoever left before may have let the others in.
                if let Some(at) = self.impatient(place) {
                    self.leave(at, End::Zero);
                }
            }
            for _ in self.queues.due(self.now) {
                self.serve();
            }
            self.check();
        }
    }

    /// Whose time is over: the first of them in the line.
    fn impatient(&self, place: Place) -> Option<usize> {
        let over = |until: Option<i64>| until.is_some_and(|until| until <= self.now);
        let queued = self.queues.waiters(place.queue()).position(|waiter| over(waiter.until));
        assert_eq!(queued, self.line.iter().position(|(.., until)| over(*until)));
        queued
    }

    fn die(&mut self, which: usize) {
        let all = self.line.len() + self.on_its_way.len();
        if all == 0 {
            return;
        }
        let which = which % all;
        if which < self.line.len() {
            self.leave(which, End::Died);
            return;
        }
        // The grant goes on to the next, if the token still has it.
        let (_, token) = self.on_its_way.remove(which - self.line.len());
        self.open(|world, hold| {
            let Ok(found) = hold.find(token) else { return };
            if lock::release(found) != Release::NotMine {
                assert!(world.ledger.released(token));
                hold.release(found, token, |hold| world.serve_with(hold));
            }
        });
    }

    fn foreign(&mut self, key: Key, ledger: Ledger) {
        self.key = key;
        self.ledger = ledger;
        self.on_its_way.clear();
        self.serve();
    }

    fn step(&mut self, step: Step) {
        self.key.expire(self.now);
        let held = |world: &Self, which: usize| {
            let all: Vec<(Token, Kind)> =
                world.ledger.shares.iter().map(|(token, share)| (*token, share.kind)).collect();
            (!all.is_empty()).then(|| all[which % all.len()]).map(|(token, kind)| (token, kind == Kind::Permit))
        };
        match step {
            Step::Acquire { token, ask, block } => self.acquire(token, ask, block),
            Step::Release { token, permits } => self.release(token, permits),
            Step::ReleaseHeld(which) => {
                if let Some((token, permits)) = held(self, which) {
                    self.release(token, permits);
                }
            }
            Step::Renew { token, permits, ttl } => self.renew(token, permits, ttl),
            Step::RenewHeld(which, ttl) => {
                if let Some((token, permits)) = held(self, which) {
                    self.renew(token, permits, ttl);
                }
            }
            Step::Pass(ms) => self.pass(ms),
            Step::Die(which) => self.die(which),
            Step::Deliver => self.on_its_way.clear(),
            Step::Del => self.foreign(Key::Nothing, Ledger::default()),
            Step::Set(token, ttl) => {
                let until = ttl.map(|ttl| self.now + ttl);
                self.gifted |= self.line.iter().any(|(_, there, ..)| *there == token);
                let shares = BTreeMap::from([(token, Share { kind: Kind::Exclusive, until })]);
                self.foreign(Key::Text { token, until }, Ledger { shares, another_type: false });
            }
            Step::Push => {
                if self.key == Key::Nothing {
                    self.foreign(Key::List, Ledger { another_type: true, ..Ledger::default() });
                }
            }
            Step::Persist => {
                match &mut self.key {
                    Key::Text { until, .. } | Key::Hash { until, .. } => {
                        *until = None;
                        self.ledger.shares.values_mut().for_each(|share| share.until = None);
                    }
                    Key::Set { until, .. } => *until = None,
                    Key::Nothing | Key::List => {}
                }
                self.serve();
            }
        }
        self.check();
    }

    fn check(&mut self) {
        self.key.expire(self.now);
        // Stored and told are the same.
        let live = |until: &Option<i64>| until.is_none_or(|until| until >= self.now);
        let stored: BTreeMap<Token, Share> = match &self.key {
            Key::Nothing | Key::List => BTreeMap::new(),
            Key::Text { token, until } => BTreeMap::from([(*token, Share { kind: Kind::Exclusive, until: *until })]),
            Key::Hash { token, holds, until } => {
                assert!(*holds > 0, "no hold, no key");
                BTreeMap::from([(*token, Share { kind: Kind::Reentrant(*holds), until: *until })])
            }
            Key::Set { permits, members, until } => {
                let last = members.values().copied().max();
                assert!(last.is_some(), "nobody in it, no key");
                assert!(until.is_none() || *until == last, "a key lives as long as its last member: {:?}", self.key);
                let kind = if *permits { Kind::Permit } else { Kind::Shared };
                let share = |until: i64| Share { kind, until: Some(until) };
                members.iter().map(|(token, until)| (*token, share(*until))).filter(|(_, s)| live(&s.until)).collect()
            }
        };
        assert_eq!(stored, self.ledger.shares, "{:?}", self.key);
        self.persisted |= matches!(&self.key, Key::Set { until: None, .. });
        if stored.is_empty() && !self.persisted {
            assert!(matches!(self.key, Key::Nothing | Key::List), "nobody holds it, and yet: {:?}", self.key);
        }
        // The queue is the line, and nobody in it waits for what it could have.
        let id = self.queues.find(0, NAME);
        let queued: Vec<usize> =
            id.map(|id| self.queues.waiters(id).map(|waiter| waiter.client).collect()).unwrap_or_default();
        assert_eq!(queued, self.line.iter().map(|(call, ..)| *call).collect::<Vec<_>>());
        for (call, token, ..) in &self.line {
            assert_eq!(self.ends[*call], None);
            assert!(self.gifted || !self.ledger.shares.contains_key(token), "{token} waits for what it holds");
        }
        // (Who waits, and was made a holder by a foreign SET, may have to wait for the end of its own lease.)
        if let Some((_, token, ask, _)) = self.line.first()
            && !(self.gifted && self.ledger.shares.contains_key(token))
        {
            assert_ne!(
                self.ledger.judge(*token, ask.want, false),
                Verdict::Granted,
                "{token} waits for {ask:?} of {:?}",
                self.key
            );
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------------

const TOKENS: Token = 5;
const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Reentrant, Mode::Shared];

/// Histories are of locks, of semaphores, or of both by mistake.
#[derive(Clone, Copy, Debug)]
enum Theme {
    Locks,
    Readers,
    Permits,
    Both,
}

fn want(theme: Theme) -> BoxedStrategy<Want> {
    let lock = prop::sample::select(&MODES).prop_map(Want::Lock);
    let reader = Just(Want::Lock(Mode::Shared));
    let permit = (1..=3u64).prop_map(Want::Permit);
    match theme {
        Theme::Locks => lock.boxed(),
        Theme::Readers => prop_oneof![2 => reader, 1 => lock].boxed(),
        Theme::Permits => permit.boxed(),
        Theme::Both => prop_oneof![lock, permit].boxed(),
    }
}

fn step(theme: Theme) -> impl Strategy<Value = Step> {
    let token = || 0..TOKENS;
    let ttl = || 1..25u64;
    let side = move || match theme {
        Theme::Permits => Just(true).boxed(),
        Theme::Both => any::<bool>().boxed(),
        _ => Just(false).boxed(),
    };
    let block = prop::option::weighted(0.6, prop_oneof![1 => Just(0), 1 => 1..40i64]);
    prop_oneof![
        12 => (token(), want(theme), ttl(), block)
            .prop_map(|(token, want, ttl, block)| Step::Acquire { token, ask: Ask { want, ttl }, block }),
        2 => (token(), side()).prop_map(|(token, permits)| Step::Release { token, permits }),
        5 => any::<usize>().prop_map(Step::ReleaseHeld),
        1 => (token(), side(), ttl()).prop_map(|(token, permits, ttl)| Step::Renew { token, permits, ttl }),
        2 => (any::<usize>(), ttl()).prop_map(|(which, ttl)| Step::RenewHeld(which, ttl)),
        6 => (1..12i64).prop_map(Step::Pass),
        2 => any::<usize>().prop_map(Step::Die),
        2 => Just(Step::Deliver),
        1 => prop_oneof![
            2 => Just(Step::Del),
            2 => (token(), prop::option::weighted(0.7, 1..30i64)).prop_map(|(token, ttl)| Step::Set(token, ttl)),
            1 => Just(Step::Push),
            1 => Just(Step::Persist),
        ],
    ]
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    prop::sample::select(&[Theme::Locks, Theme::Readers, Theme::Permits, Theme::Both])
        .prop_flat_map(|theme| prop::collection::vec(step(theme), 1..support::history(120)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(support::steps(1500, 60_000) as u32))]

    #[test]
    fn a_writer_is_alone_readers_are_together_permits_are_counted_and_nobody_overtakes(history in history()) {
        let mut world = World::new();
        for step in history {
            world.step(step);
        }
        // In the end all leases run out, and whoever waits is served or gives up.
        if world.key == Key::List {
            world.step(Step::Del);
        }
        for _ in 0..200 {
            if world.line.is_empty() && world.ledger.shares.is_empty() {
                break;
            }
            if world.ledger.shares.values().any(|share| share.until.is_none()) {
                world.step(Step::Del);
            }
            world.pass(5);
        }
        assert!(world.line.is_empty(), "someone waits for ever: {:?} for {:?}", world.line, world.key);
        assert!(world.ends.iter().all(Option::is_some), "one answer for each call");
    }
}

fn ask(want: Want) -> Ask {
    Ask { want, ttl: 100 }
}

fn told(world: &World) -> Vec<(Token, Kind)> {
    world.ledger.shares.iter().map(|(token, share)| (*token, share.kind)).collect()
}

const WRITE: Want = Want::Lock(Mode::Exclusive);
const READ: Want = Want::Lock(Mode::Shared);

#[test]
fn l36_a_queued_writer_bars_later_readers_and_readers_behind_it_come_together() {
    let mut world = World::new();
    world.acquire(1, ask(READ), None);
    world.acquire(2, ask(WRITE), Some(0));
    for reader in 3..=5 {
        world.acquire(reader, ask(READ), Some(0));
    }
    world.acquire(6, ask(WRITE), Some(0));
    world.acquire(7, ask(READ), Some(0));
    assert_eq!(told(&world), [(1, Kind::Shared)]);
    world.release(1, false);
    assert_eq!(told(&world), [(2, Kind::Exclusive)]);
    world.release(2, false);
    assert_eq!(
        told(&world),
        [(3, Kind::Shared), (4, Kind::Shared), (5, Kind::Shared)],
        "the run, and not the one after"
    );
    world.check();
}

#[test]
fn a_writer_that_leaves_the_head_of_the_queue_lets_the_readers_behind_it_in() {
    let mut world = World::new();
    world.acquire(1, Ask { want: READ, ttl: 1000 }, None);
    world.acquire(2, ask(WRITE), Some(50));
    world.acquire(3, ask(READ), Some(0));
    assert_eq!(told(&world), [(1, Kind::Shared)]);
    world.pass(50);
    assert_eq!(told(&world), [(1, Kind::Shared), (3, Kind::Shared)]);
}

#[test]
fn l41_permits_come_back_at_their_holders_deadlines_one_by_one() {
    let mut world = World::new();
    world.acquire(1, Ask { want: Want::Permit(2), ttl: 10 }, None);
    world.acquire(2, Ask { want: Want::Permit(2), ttl: 20 }, None);
    world.acquire(3, ask(Want::Permit(2)), Some(0));
    world.acquire(4, ask(Want::Permit(2)), Some(0));
    world.pass(10);
    assert_eq!(told(&world), [(1, Kind::Permit), (2, Kind::Permit)]);
    world.pass(1);
    assert_eq!(told(&world), [(2, Kind::Permit), (3, Kind::Permit)]);
    world.pass(10);
    assert_eq!(told(&world), [(3, Kind::Permit), (4, Kind::Permit)]);
}

#[test]
fn a_waiter_is_judged_by_the_limit_it_came_with_and_a_lowered_limit_evicts_nobody() {
    let mut world = World::new();
    for token in 1..=3 {
        world.acquire(token, ask(Want::Permit(3)), None);
    }
    world.acquire(4, ask(Want::Permit(1)), Some(0));
    world.acquire(5, ask(Want::Permit(9)), Some(0));
    for (left, token) in [(2, 1), (1, 2)] {
        world.release(token, true);
        assert_eq!(world.ledger.shares.len(), left, "neither the lower limit nor who came behind it");
    }
    world.release(3, true);
    assert_eq!(told(&world), [(4, Kind::Permit), (5, Kind::Permit)]);
}
