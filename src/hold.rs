//! A lock, as it is stored in a key; the Redis type of the key is the kind of the lock.
//!
//! | kind | stored as |
//! |---|---|
//! | exclusive | string: the token; the key's TTL is the lease |
//! | reentrant | hash of one field: token -> holds; the key's TTL is the lease |
//! | shared, semaphore | sorted set: token -> deadline in ms and a fraction; the key's TTL is the last deadline |
//!
//! An exclusive lock is thereby the same as that of every client that locks with `SET key token NX PX`.

use core::cell::Cell;
use std::ffi::CString;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use sluice_core::args;
use sluice_core::fence::Fence;
use sluice_core::lease;
use sluice_core::lock::{self, Decision, Family, Found, Release, Want};
use sluice_core::queue::{Ask, Lock};

use crate::server::{Content, Event, Failure, Key, Lent, Order, Site, Text, class, ms};

/// The last fencing token given. Under the server's global lock a plain load and store is enough.
static LAST_FENCE: AtomicU64 = AtomicU64::new(0);

/// When, in ms, the last grant was.
static GRANTED_AT: AtomicI64 = AtomicI64::new(i64::MIN);

/// When, in ms, a lease was last renewed, for each class of keys that [`Hold::renewed_at`] tells apart.
static RENEWED_AT: [AtomicI64; 256] = [const { AtomicI64::new(i64::MIN) }; 256];

/// How many members whose deadline is past a change takes along at most, so that no call pays for all of a long silence.
const PRUNED: usize = 64;

/// One holder, as INFO shows it.
#[derive(Debug)]
pub struct Holder {
    /// Who.
    pub token: Vec<u8>,
    /// How many holds.
    pub holds: u64,
    /// When the lease ends, in ms; `None`: it does not.
    pub deadline: Option<i64>,
}

/// An opened lock. What it was is written over by a grant, or removed by [`Hold::release`]; so a lock that is handed over is
/// never seen free, and costs one write.
#[derive(Debug)]
pub struct Hold<'k, 'c> {
    site: &'c Site,
    key: &'k mut Key<'c>,
    /// Read once, and not at all where a refusal does not depend on it.
    now_us: Cell<Option<i64>>,
    /// Given up, though it is still there.
    freed: bool,
    /// Over, though it is still there: holders who share have deadlines of their own.
    stale: Cell<bool>,
}

impl<'k, 'c> Hold<'k, 'c> {
    /// The lock in a key opened to write.
    pub const fn new(site: &'c Site, key: &'k mut Key<'c>) -> Self {
        Self { site, key, now_us: Cell::new(None), freed: false, stale: Cell::new(false) }
    }

    #[inline]
    fn now_us(&self) -> i64 {
        if let Some(now) = self.now_us.get() {
            return now;
        }
        let now = self.site.now_us();
        self.now_us.set(Some(now));
        now
    }

    #[inline]
    fn now(&self) -> i64 {
        ms(self.now_us())
    }

    /// Is there no lock? What is over, or given up, may still be there.
    #[inline(always)]
    pub fn is_absent(&self) -> bool {
        !self.key.exists()
    }

    /// How the lock stands to a token.
    ///
    /// # Errors
    /// [`Failure::NoLock`] if the key holds what no lock is.
    #[inline(always)]
    pub fn find(&mut self, token: Lent<'_>) -> Result<Found, Failure> {
        if self.freed {
            return Ok(Found::Free);
        }
        match self.key.content() {
            Content::Nothing => Ok(Found::Free),
            Content::String(holder) => Ok(Found::Exclusive { mine: holder == token.bytes() }),
            Content::Hash => self.find_reentrant(token),
            Content::SortedSet => self.find_among(token),
            Content::Other => Err(Failure::NoLock),
        }
    }

    #[inline(never)]
    fn find_reentrant(&self, token: Lent<'_>) -> Result<Found, Failure> {
        let (holder, holds) = reentrant(self.key)?;
        Ok(Found::Reentrant { mine: holder == token.bytes(), holds })
    }

    #[inline(never)]
    fn find_among(&mut self, token: Lent<'_>) -> Result<Found, Failure> {
        let now = self.now();
        let mine = match self.key.score(token) {
            None => None,
            Some(score) => Some(lock::score(score).ok_or(Failure::NoLock)?),
        };
        let alone = self.key.len() == 1;
        let (family, first, last) = match mine {
            Some((family, deadline)) if alone => (family, deadline, deadline),
            _ => ends(self.key)?,
        };
        if mine.is_some_and(|(found, _)| found != family) {
            return Err(Failure::NoLock);
        }
        if last < now {
            all_ours(self.key, family)?;
            self.stale.set(true);
            return Ok(Found::Free);
        }
        let mine = mine.is_some_and(|(_, deadline)| deadline >= now);
        match family {
            Family::Semaphore => Ok(match self.live(first, family)? {
                Some(held) => Found::Permits { mine, held },
                None => Found::Free,
            }),
            Family::Shared if mine && alone => Ok(Found::Shared { mine, others: false }),
            Family::Shared => {
                let mut others = false;
                self.key.members(Order::Down, f64::INFINITY, |member, score| {
                    let live = lock::score(score).is_some_and(|(_, deadline)| deadline >= now);
                    others = live && member.bytes() != token.bytes();
                    live && !others
                });
                Ok(Found::Shared { mine, others })
            }
        }
    }

    /// How many members are unexpired; `None` if the key has expired meanwhile.
    fn live(&mut self, first: i64, family: Family) -> Result<Option<u64>, Failure> {
        if first >= self.now() {
            return Ok(Some(self.key.len() as u64));
        }
        let from = CString::new(score_text(family, self.now())).map_err(|_| Failure::Internal)?;
        let counted = self.key.while_closed(|site| site.count_from(&from));
        if self.key.content() != Content::SortedSet {
            return Ok(None);
        }
        Ok(Some(counted.unwrap_or_else(|| walked_from(self.key, family, self.now()))))
    }

    /// When the lock may next become free for somebody who waits, as far as that is known.
    pub fn next_change(&self) -> Option<i64> {
        match self.key.content() {
            Content::SortedSet => {
                // A sorted set that is none of ours is in the way of those who wait until it ends.
                let Ok((family, first, last)) = ends(self.key) else { return self.key.deadline() };
                let of_members = match family {
                    Family::Shared => Some(last),
                    Family::Semaphore if first >= self.now() => Some(first),
                    Family::Semaphore => {
                        let mut next = None;
                        self.key.members(Order::Up, family.score(self.now()), |_, score| {
                            next = lock::score(score).map(|(_, deadline)| deadline);
                            false
                        });
                        next
                    }
                };
                // Another client may have given the key an earlier end.
                of_members.into_iter().chain(self.key.deadline()).min()
            }
            _ => self.key.deadline(),
        }
    }

    /// Writes a decision that grants, and gives its fencing token. A holder's lease is never shortened by it.
    #[inline(always)]
    pub fn grant(
        &mut self,
        found: Found,
        decision: Decision,
        token: Lent<'_>,
        want: Want,
        ttl: u64,
    ) -> Result<i64, Failure> {
        let (now_us, now) = (self.now_us(), self.now());
        if (decision, found) == (Decision::Exclusive, Found::Free) && !self.freed && !self.stale.get() {
            let deadline = lease::deadline(now, ttl);
            self.key.create(token.bytes(), deadline)?;
            self.site.replicate_set_text(token, deadline)?;
            self.site.changed(&[Event::Set, Event::Expire]);
        } else {
            self.grant_over(found, decision, token, want, ttl)?;
            (self.freed, self.stale) = (false, Cell::new(false));
        }
        GRANTED_AT.store(now, Relaxed);
        let fence = Fence::after(LAST_FENCE.load(Relaxed)).next(now_us);
        LAST_FENCE.store(fence, Relaxed);
        Ok(fence.cast_signed())
    }

    /// The same where something is there already, or other than a string is to be.
    #[inline(never)]
    fn grant_over(
        &mut self,
        found: Found,
        decision: Decision,
        token: Lent<'_>,
        want: Want,
        ttl: u64,
    ) -> Result<(), Failure> {
        let wanted = lease::deadline(self.now(), ttl);
        match (decision, found) {
            (Decision::Exclusive, _) => {
                let deadline = self.at_least(found, token, wanted).unwrap_or(wanted);
                if matches!(self.key.content(), Content::String(_)) {
                    self.key.replace(token.bytes())?;
                    self.key.set_deadline(deadline)?;
                } else {
                    self.key.delete()?;
                    self.key.create(token.bytes(), deadline)?;
                }
                self.site.replicate_set_text(token, deadline)?;
                self.site.changed(&[Event::Set, Event::Expire]);
            }
            (Decision::Reentrant { holds }, Found::Reentrant { .. }) if holds > 1 => {
                self.set_holds(token, holds)?;
                if let Some(deadline) = lease::prolonged(self.key.deadline(), self.now(), ttl) {
                    self.set_deadline(deadline)?;
                }
                self.site.changed(&[Event::HIncrBy, Event::Expire]);
            }
            (Decision::Reentrant { holds }, _) => {
                let deadline = self.at_least(found, token, wanted);
                self.make_way()?;
                self.set_holds(token, holds)?;
                if let Some(deadline) = deadline {
                    self.set_deadline(deadline)?;
                }
                self.site.changed(&[Event::HIncrBy, Event::Expire]);
            }
            (Decision::First, _) => {
                let deadline = self.at_least(found, token, wanted).unwrap_or(wanted);
                self.make_way()?;
                self.add(token, family(want), deadline)?;
                self.set_deadline(deadline)?;
                self.site.changed(&[Event::ZAdd, Event::Expire]);
            }
            (Decision::Prolong, Found::Exclusive { .. } | Found::Reentrant { .. }) => {
                if let Some(deadline) = lease::prolonged(self.key.deadline(), self.now(), ttl) {
                    self.set_deadline(deadline)?;
                    self.site.changed(&[Event::Expire]);
                }
            }
            (Decision::Join, _) => self.set_share(token, family(want), wanted)?,
            (Decision::Prolong, _) => {
                let end = self.heed_end(family(want))?;
                let deadline = self.share(token).map_or(wanted, |deadline| deadline.max(wanted));
                self.set_share_until(token, family(want), deadline, end)?;
            }
            (Decision::Refuse | Decision::Deadlock | Decision::WrongKind, _) => return Err(Failure::Internal),
        }
        Ok(())
    }

    /// The deadline of a holder that converts: the later of its own and the one it asks for, or none if it has none.
    fn at_least(&self, found: Found, token: Lent<'_>, wanted: i64) -> Option<i64> {
        if self.freed {
            return Some(wanted);
        }
        match found {
            Found::Exclusive { mine: true } | Found::Reentrant { mine: true, .. } => {
                self.key.deadline().map(|deadline| deadline.max(wanted))
            }
            Found::Shared { mine: true, .. } => {
                // Another client may have given the key an earlier end.
                Some(self.share(token).into_iter().chain(self.key.deadline()).min().unwrap_or(wanted).max(wanted))
            }
            _ => Some(wanted),
        }
    }

    /// Gives back what `token` holds. What is free after that is handed to whom `next` finds, or removed.
    #[inline(always)]
    pub fn release(
        &mut self,
        found: Found,
        token: Lent<'_>,
        next: impl FnOnce(&mut Self) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        match lock::release(found) {
            Release::NotMine => return Ok(false),
            Release::Hold { left } => self.give_back_one(token, left)?,
            Release::Leave => {
                let of = if matches!(found, Found::Permits { .. }) { Family::Semaphore } else { Family::Shared };
                self.leave(token, of)?;
                next(self)?;
            }
            Release::Free => {
                self.freed = true;
                next(self)?;
                if self.freed {
                    self.remove()?;
                    match found {
                        Found::Shared { .. } | Found::Permits { .. } => self.site.changed(&[Event::ZRem, Event::Del]),
                        _ => self.site.changed(&[Event::Del]),
                    }
                }
            }
        }
        Ok(true)
    }

    #[inline(never)]
    fn give_back_one(&mut self, token: Lent<'_>, left: u64) -> Result<(), Failure> {
        self.set_holds(token, left)?;
        self.site.changed(&[Event::HIncrBy]);
        Ok(())
    }

    #[inline(never)]
    fn leave(&mut self, token: Lent<'_>, of: Family) -> Result<(), Failure> {
        self.key.remove(token)?;
        self.site.replicate_zrem(token)?;
        let end = self.heed_end(of)?;
        self.prune()?;
        self.follow_last(end)?;
        self.site.changed(if end.heeded { &[Event::ZRem, Event::ZAdd] } else { &[Event::ZRem] });
        Ok(())
    }

    /// Sets the deadline of a holder to `ttl` from now, also to an earlier one.
    pub fn renew(&mut self, found: Found, token: Lent<'_>, ttl: u64) -> Result<bool, Failure> {
        let wanted = lease::deadline(self.now(), ttl);
        match found {
            Found::Exclusive { mine: true } | Found::Reentrant { mine: true, .. } => {
                // To ask for the deadline takes the server two look-ups, and it is another one than is wanted, unless the lease
                // was written within this very ms.
                let renewed_at = self.renewed_at();
                let now = self.now();
                let written_now = renewed_at.load(Relaxed) == now || GRANTED_AT.load(Relaxed) == now;
                let current = if written_now { self.key.deadline() } else { None };
                if let Some(deadline) = lease::renewed(current, now, ttl) {
                    renewed_at.store(now, Relaxed);
                    self.set_deadline(deadline)?;
                    self.site.changed(&[Event::Expire]);
                }
            }
            Found::Shared { mine: true, .. } => self.set_share(token, Family::Shared, wanted)?,
            Found::Permits { mine: true, .. } => self.set_share(token, Family::Semaphore, wanted)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// When a lease was last renewed on this key, or on another of its class.
    #[inline]
    fn renewed_at(&self) -> &'static AtomicI64 {
        let end = self.site.key().last_chunk().map_or(0, |end| u64::from_le_bytes(*end));
        RENEWED_AT.get(class(end)).unwrap_or(&RENEWED_AT[0])
    }

    fn set_deadline(&mut self, deadline: i64) -> Result<(), Failure> {
        self.key.set_deadline(deadline)?;
        self.site.replicate_deadline(deadline)
    }

    /// Removes what is there, if anything is: a lock of another kind, or one that is over.
    fn make_way(&mut self) -> Result<(), Failure> {
        if self.key.exists() {
            self.remove()?;
        }
        (self.freed, self.stale) = (false, Cell::new(false));
        Ok(())
    }

    /// Removes what is there.
    #[inline(always)]
    fn remove(&mut self) -> Result<(), Failure> {
        self.key.delete()?;
        self.site.replicate_del()
    }

    fn set_holds(&mut self, token: Lent<'_>, holds: u64) -> Result<(), Failure> {
        let mut digits = itoa::Buffer::new();
        self.key.set_field(token, &Text::new(digits.format(holds).as_bytes()))?;
        self.site.replicate_hset(token, holds)
    }

    /// The deadline of one who shares.
    fn share(&self, token: Lent<'_>) -> Option<i64> {
        self.key.score(token).and_then(lock::score).map(|(_, deadline)| deadline)
    }

    fn add(&mut self, token: Lent<'_>, family: Family, deadline: i64) -> Result<(), Failure> {
        self.key.add(token, family.score(deadline))?;
        self.site.replicate_zadd(&score_text(family, deadline), token)
    }

    /// Sets the deadline of one who shares, or adds it, and keeps the key in step.
    fn set_share(&mut self, token: Lent<'_>, family: Family, deadline: i64) -> Result<(), Failure> {
        let end = self.heed_end(family)?;
        self.set_share_until(token, family, deadline, end)
    }

    /// The same where [`Self::heed_end`] has said when the key ends.
    fn set_share_until(&mut self, token: Lent<'_>, family: Family, deadline: i64, end: End) -> Result<(), Failure> {
        if self.share(token) == Some(deadline) {
            // Another client may have taken the key's own away, or set another.
            match (self.follow_last(end)?, end.heeded) {
                (false, false) => {}
                (true, false) => self.site.changed(&[Event::Expire]),
                (_, true) => self.site.changed(&[Event::ZAdd, Event::Expire]),
            }
            return Ok(());
        }
        self.add(token, family, deadline)?;
        self.prune()?;
        self.follow_last(end)?;
        self.site.changed(&[Event::ZAdd, Event::Expire]);
        Ok(())
    }

    /// When the key ends. Where another client has given it an earlier end than its last holder's, that is the end of all who have
    /// a later one, and stays so when the key is given another for the sake of one of them.
    fn heed_end(&mut self, family: Family) -> Result<End, Failure> {
        let at = self.key.deadline();
        let mut late: Vec<Text> = Vec::new();
        if let Some(end) = at {
            self.key.members(Order::Down, f64::INFINITY, |member, score| {
                let is_late = lock::score(score).is_some_and(|(_, deadline)| deadline > end);
                if is_late {
                    late.push(Text::new(member.bytes()));
                }
                is_late
            });
            for member in &late {
                self.add(member.lend(), family, end)?;
            }
        }
        Ok(End { at, heeded: !late.is_empty() })
    }

    /// Removes members whose deadline is past. At least one is not, so the key stays.
    fn prune(&mut self) -> Result<(), Failure> {
        let now = self.now();
        let mut past: Vec<Text> = Vec::new();
        let mut last = f64::NEG_INFINITY;
        self.key.members(Order::Up, f64::NEG_INFINITY, |member, score| {
            let is_past = lock::score(score).is_some_and(|(_, deadline)| deadline < now);
            // Members of one score go together, for replicas are told the score.
            if !is_past || (past.len() >= PRUNED && score > last) {
                return false;
            }
            last = score;
            past.push(Text::new(member.bytes()));
            true
        });
        let Some((family, deadline)) = lock::score(last) else { return Ok(()) };
        for member in &past {
            self.key.remove(member.lend())?;
        }
        self.site.replicate_zrem_up_to(&score_text(family, deadline))
    }

    /// The key, which has this end, lives as long as its last holder. Says whether its deadline had to move.
    fn follow_last(&mut self, end: End) -> Result<bool, Failure> {
        let (_, last) = last(self.key)?;
        if end.at == Some(last) {
            return Ok(false);
        }
        self.set_deadline(last)?;
        Ok(true)
    }
}

/// The end of a sorted set's key.
#[derive(Clone, Copy)]
struct End {
    /// When it is; `None`: it stays.
    at: Option<i64>,
    /// It was another client's, and earlier than some deadlines, which are drawn in now.
    heeded: bool,
}

/// What a lock shows of itself.
#[derive(Debug)]
pub struct Shown {
    /// What kind of lock.
    pub kind: Kind,
    /// How many hold it.
    pub held: u64,
    /// The first of them.
    pub holders: Vec<Holder>,
    /// When it ends, in ms; `None`: it does not.
    pub deadline: Option<i64>,
}

impl Shown {
    const FREE: Self = Self { kind: Kind::Free, held: 0, holders: Vec::new(), deadline: None };

    fn one(kind: Kind, token: Vec<u8>, holds: u64, deadline: Option<i64>) -> Self {
        Self { kind, held: 1, holders: vec![Holder { token, holds, deadline }], deadline }
    }
}

/// Shows a lock, and the first `most` of its holders. Nothing is written.
///
/// # Errors
/// [`Failure::NoLock`] if the key holds what no lock is.
pub fn show(site: &Site, key: &Key<'_>, now: i64, most: usize) -> Result<Shown, Failure> {
    match key.content() {
        Content::Nothing => Ok(Shown::FREE),
        Content::String(token) => Ok(Shown::one(Kind::Exclusive, shown(token).to_vec(), 1, key.deadline())),
        Content::Hash => {
            let (token, holds) = reentrant(key)?;
            Ok(Shown::one(Kind::Reentrant, token, holds, key.deadline()))
        }
        Content::SortedSet => {
            let (family, _, last) = ends(key)?;
            if last < now {
                all_ours(key, family)?;
                return Ok(Shown::FREE);
            }
            // Another client may have given the key an earlier end.
            let until = key.deadline().unwrap_or(i64::MAX);
            let mut holders = Vec::new();
            key.members(Order::Up, family.score(now), |member, score| {
                let deadline = lock::score(score).map(|(_, deadline)| deadline.min(until));
                holders.push(Holder { token: member.bytes().to_vec(), holds: 1, deadline });
                holders.len() < most
            });
            // Within a client's command the clock stands still, so the key stays while it is counted.
            let from = CString::new(score_text(family, now)).map_err(|_| Failure::Internal)?;
            let held = site.count_from(&from).unwrap_or_else(|| walked_from(key, family, now));
            let kind = if family == Family::Shared { Kind::Shared } else { Kind::Semaphore };
            Ok(Shown { kind, held, holders, deadline: Some(last.min(until)) })
        }
        Content::Other => Err(Failure::NoLock),
    }
}

/// Any string is a lock, and may be long; what is beyond a token's length no call can name.
fn shown(token: &[u8]) -> &[u8] {
    token.get(..args::LONGEST_TOKEN).unwrap_or(token)
}

/// What kind of lock a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// None, or one that is over.
    Free,
    /// A string.
    Exclusive,
    /// A hash.
    Reentrant,
    /// A sorted set.
    Shared,
    /// A sorted set.
    Semaphore,
}

/// Holder and holds of a reentrant lock.
fn reentrant(key: &Key<'_>) -> Result<(Vec<u8>, u64), Failure> {
    let (token, holds) = key.only_field().ok_or(Failure::NoLock)?;
    let holds = args::integer(&holds).filter(|holds| (1..=lock::MOST_HOLDS).contains(holds));
    Ok((token, holds.ok_or(Failure::NoLock)?))
}

/// Family, first and last deadline of a sorted set of ours. Its two ends speak for what is between them.
fn ends(key: &Key<'_>) -> Result<(Family, i64, i64), Failure> {
    let (family, first) = outermost(key, Order::Up, f64::NEG_INFINITY)?;
    let (last_family, last) = last(key)?;
    if family == last_family { Ok((family, first, last)) } else { Err(Failure::NoLock) }
}

/// The last deadline, and of which family it is.
fn last(key: &Key<'_>) -> Result<(Family, i64), Failure> {
    outermost(key, Order::Down, f64::INFINITY)
}

fn outermost(key: &Key<'_>, order: Order, bound: f64) -> Result<(Family, i64), Failure> {
    let mut end = None;
    key.members(order, bound, |_, score| {
        end = lock::score(score);
        false
    });
    end.ok_or(Failure::NoLock)
}

/// A set that is over goes as a whole, and what another client keeps in the middle of it must not go with it. The key expires
/// with its last holder, so this is asked only where somebody has made it stay.
#[cold]
fn all_ours(key: &Key<'_>, family: Family) -> Result<(), Failure> {
    let mut ours = true;
    key.members(Order::Up, f64::NEG_INFINITY, |_, score| {
        ours = lock::score(score).is_some_and(|(found, _)| found == family);
        ours
    });
    if ours { Ok(()) } else { Err(Failure::NoLock) }
}

/// How many members have a deadline that is not past, one by one: where a server's people have renamed the command that counts.
fn walked_from(key: &Key<'_>, family: Family, now: i64) -> u64 {
    let mut count: u64 = 0;
    key.members(Order::Up, family.score(now), |_, _| {
        count = count.saturating_add(1);
        true
    });
    count
}

fn score_text(family: Family, deadline: i64) -> String {
    format!("{deadline}{}", family.suffix())
}

const fn family(want: Want) -> Family {
    match want {
        Want::Lock(_) => Family::Shared,
        Want::Permit(_) => Family::Semaphore,
    }
}

impl Lock for Hold<'_, '_> {
    type Grant = i64;
    type Error = Failure;

    fn admits(&mut self, token: &[u8], ask: &Ask) -> Result<bool, Failure> {
        let token = Text::new(token);
        match lock::decide(self.find(token.lend())?, ask.want, false) {
            Decision::WrongKind => Err(Failure::NoLock),
            decision => Ok(decision.grants()),
        }
    }

    fn grant(&mut self, token: &[u8], ask: &Ask) -> Result<i64, Failure> {
        let token = Text::new(token);
        let found = self.find(token.lend())?;
        let decision = lock::decide(found, ask.want, false);
        Hold::grant(self, found, decision, token.lend(), ask.want, ask.ttl)
    }
}
