//! Who waits for what: one queue a key, first come, first served.
//!
//! Pure: the clients are of any type, and time comes in as a number. Two clocks are told apart: timeouts run on a monotonic
//! one (they are spans of the caller's patience), looks at a key on the server's (they are about its leases).
//! Joining, leaving and being served cost O(log waiters); nothing walks a queue.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use foldhash::fast::RandomState;
use slab::Slab;

use crate::lock::Want;

/// What a waiter asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// A lock in one of its ways, or a permit.
    pub want: Want,
    /// The lease, in ms from the grant on.
    pub ttl: u64,
}

/// One who waits.
#[derive(Debug, PartialEq, Eq)]
pub struct Waiter<C> {
    /// Who.
    pub token: Arc<[u8]>,
    /// What for.
    pub ask: Ask,
    /// When the wait began: monotonic ms.
    pub since: i64,
    /// When it ends without a grant: monotonic ms.
    pub until: Option<i64>,
    /// Whose reply is pending.
    pub client: C,
}

/// A queue, as long as it is not empty. After that its number may be another queue's, so who keeps one over a change does no
/// more with it than have a look at a key: at worst for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(usize);

/// A place in a queue. Places are numbered in the order they are taken, and no number comes twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    number: u64,
    queue: QueueId,
}

impl Place {
    /// The queue it is in.
    #[must_use]
    pub const fn queue(self) -> QueueId {
        self.queue
    }
}

/// The queue of the key is as long as it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A waiter has its place.
#[derive(Debug, PartialEq, Eq)]
pub struct Joined<C> {
    /// Which.
    pub place: Place,
    /// The client that had waited there with the same token, and whose call has to be answered now.
    pub displaced: Option<C>,
}

/// A waiter is out of its queue.
#[derive(Debug, PartialEq, Eq)]
pub struct Left<C> {
    /// Who left.
    pub waiter: Waiter<C>,
    /// Those behind a head that left may have waited for nothing else: the key should be looked at.
    pub was_head: bool,
}

#[derive(Debug)]
struct Queue<C> {
    db: i32,
    key: Arc<[u8]>,
    waiting: BTreeMap<u64, Waiter<C>>,
    places: HashMap<Arc<[u8]>, u64, RandomState>,
    look: Option<i64>,
    lease_end: Option<i64>,
}

/// All queues of a server.
#[derive(Debug)]
pub struct Queues<C> {
    queues: Slab<Queue<C>>,
    by_key: BTreeMap<i32, HashMap<Arc<[u8]>, QueueId, RandomState>>,
    timeouts: BTreeSet<(i64, Place)>,
    looks: BTreeSet<(i64, QueueId)>,
    last: u64,
    waiting: usize,
    permits: usize,
    /// How many waited keys share a byte of hash.
    hashes: [u32; 256],
    /// How many waited keys share a length, the longest taken as one.
    lengths: [u32; LENGTHS],
    /// The same as bits, for a [`Sieve`]: of the lengths, and of the bytes of hash.
    bits: (u64, [u64; 4]),
}

/// Lengths that are told apart; longer keys count as the last of them.
const LENGTHS: usize = 64;

/// What [`Queues`] know of their keys, laid out to be asked about each key that changes, or each word of each command, of a
/// server: a word's length first and only then its bytes, and without a way to the queues themselves. "No" is certain, "yes"
/// is not.
#[derive(Debug, Default)]
pub struct Sieve {
    lengths: AtomicU64,
    hashes: [AtomicU64; 4],
}

/// The lengths of waited keys.
#[derive(Clone, Copy, Debug)]
pub struct Lengths(u64);

impl Lengths {
    /// Does nobody wait for anything?
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// May anybody wait for a key of this length?
    #[inline]
    #[must_use]
    pub fn may_have(self, len: usize) -> bool {
        (self.0 >> len.min(LENGTHS - 1)) & 1 != 0
    }
}

impl Sieve {
    /// Nobody waits.
    #[must_use]
    pub const fn new() -> Self {
        Self { lengths: AtomicU64::new(0), hashes: [const { AtomicU64::new(0) }; 4] }
    }

    /// The lengths of waited keys.
    #[inline]
    #[must_use]
    pub fn lengths(&self) -> Lengths {
        Lengths(self.lengths.load(Relaxed))
    }

    /// May anybody wait for this key, in any database?
    #[inline]
    #[must_use]
    pub fn may_have(&self, key: &[u8]) -> bool {
        let hash = hash(key);
        self.hashes.get(usize::from(hash >> 6)).is_some_and(|part| (part.load(Relaxed) >> (hash & 63)) & 1 != 0)
    }
}

/// A lock, as its queue sees it.
pub trait Lock {
    /// What a grant is.
    type Grant;
    /// Why it may fail.
    type Error;

    /// Would this request be granted now, if nobody were ahead of it?
    ///
    /// # Errors
    /// Whatever keeps the lock from being read.
    fn admits(&mut self, token: &[u8], ask: &Ask) -> Result<bool, Self::Error>;

    /// Grants it.
    ///
    /// # Errors
    /// Whatever keeps the lock from being written. It has not been granted then.
    fn grant(&mut self, token: &[u8], ask: &Ask) -> Result<Self::Grant, Self::Error>;
}

/// A byte of hash: not a good one, but four instructions for a key of any length.
#[inline]
fn hash(key: &[u8]) -> u8 {
    let edge = |byte: Option<&u8>| byte.copied().unwrap_or(0);
    let middle = key.get(key.len() / 2);
    let before_last = key.get(key.len().wrapping_sub(2));
    edge(key.last())
        .wrapping_add(edge(before_last).rotate_left(4))
        .wrapping_add(edge(middle).rotate_left(2))
        .wrapping_add(edge(key.first()))
        .wrapping_add(key.len().to_le_bytes().first().copied().unwrap_or(0))
}

impl<C> Default for Queues<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> Queues<C> {
    /// Nobody waits.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            queues: Slab::new(),
            by_key: BTreeMap::new(),
            timeouts: BTreeSet::new(),
            looks: BTreeSet::new(),
            last: 0,
            waiting: 0,
            permits: 0,
            hashes: [0; 256],
            lengths: [0; LENGTHS],
            bits: (0, [0; 4]),
        }
    }

    fn count(&mut self, key: &[u8], change: i32) {
        let (hash, len) = (usize::from(hash(key)), key.len().min(LENGTHS - 1));
        let by_hash = self.bits.1.get_mut(hash / 64).zip(self.hashes.get_mut(hash));
        let by_length = self.lengths.get_mut(len).map(|waited| (&mut self.bits.0, waited));
        for ((bits, waited), at) in by_hash.into_iter().zip([hash]).chain(by_length.into_iter().zip([len])) {
            *waited = waited.saturating_add_signed(change);
            let bit = 1 << (at % 64);
            *bits = if *waited > 0 { *bits | bit } else { *bits & !bit };
        }
    }

    /// Has the sieve know the keys that are waited for now.
    pub fn sift(&self, sieve: &Sieve) {
        let (lengths, hashes) = self.bits;
        sieve.lengths.store(lengths, Relaxed);
        for (part, bits) in sieve.hashes.iter().zip(hashes) {
            part.store(bits, Relaxed);
        }
    }

    /// How many wait, for any key.
    #[inline]
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many of them wait for a permit, and not for a lock.
    #[must_use]
    pub const fn waiting_for_permits(&self) -> usize {
        self.permits
    }

    fn count_permit(&mut self, want: Want, change: isize) {
        if matches!(want, Want::Permit(_)) {
            self.permits = self.permits.saturating_add_signed(change);
        }
    }

    /// The queue of a key, if anybody waits for it.
    #[inline]
    #[must_use]
    pub fn find(&self, db: i32, key: &[u8]) -> Option<QueueId> {
        if self.waiting == 0 {
            return None;
        }
        self.by_key.get(&db)?.get(key).copied()
    }

    /// Database and key of a queue.
    #[must_use]
    pub fn key(&self, id: QueueId) -> Option<(i32, &Arc<[u8]>)> {
        self.queues.get(id.0).map(|queue| (queue.db, &queue.key))
    }

    /// The queues of a key, in whatever database.
    pub fn find_all(&self, key: &[u8]) -> impl Iterator<Item = QueueId> {
        self.by_key.values().filter_map(move |keys| keys.get(key).copied())
    }

    /// The queues of one database.
    #[must_use]
    pub fn of_db(&self, db: i32) -> Vec<QueueId> {
        self.by_key.get(&db).map(|keys| keys.values().copied().collect()).unwrap_or_default()
    }

    /// All queues.
    #[must_use]
    pub fn all(&self) -> Vec<QueueId> {
        self.by_key.values().flat_map(|keys| keys.values().copied()).collect()
    }

    /// How many wait in a queue.
    #[must_use]
    pub fn len(&self, id: QueueId) -> usize {
        self.queues.get(id.0).map_or(0, |queue| queue.waiting.len())
    }

    /// Does nobody wait for anything?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Those who wait in a queue, the next one first.
    pub fn waiters(&self, id: QueueId) -> impl Iterator<Item = &Waiter<C>> {
        self.queues.get(id.0).into_iter().flat_map(|queue| queue.waiting.values())
    }

    /// Does this token wait in the queue?
    #[must_use]
    pub fn has(&self, id: QueueId, token: &[u8]) -> bool {
        self.queues.get(id.0).is_some_and(|queue| queue.places.contains_key(token))
    }

    /// What the waiter of this token asks for.
    #[must_use]
    pub fn ask(&self, id: QueueId, token: &[u8]) -> Option<&Ask> {
        let queue = self.queues.get(id.0)?;
        Some(&queue.waiting.get(queue.places.get(token)?)?.ask)
    }

    /// Would [`Queues::join`] find room?
    #[must_use]
    pub fn has_room(&self, db: i32, key: &[u8], most: usize, token: &[u8]) -> bool {
        self.find(db, key).map_or(most > 0, |id| self.len(id) < most || self.has(id, token))
    }

    /// Takes the last place in the queue of a key; a token that has a place keeps it, and only what it asks for changes.
    ///
    /// # Errors
    /// [`Full`] if `most` wait there already. Nothing has changed then.
    pub fn join(&mut self, db: i32, key: &[u8], most: usize, waiter: Waiter<C>) -> Result<Joined<C>, Full> {
        let id = match self.find(db, key) {
            Some(id) => id,
            None if most == 0 => return Err(Full),
            None => self.open(db, key),
        };
        let Some(queue) = self.queues.get_mut(id.0) else { return Err(Full) };
        if let Some(&number) = queue.places.get(&waiter.token)
            && let Some(there) = queue.waiting.get_mut(&number)
        {
            let place = Place { number, queue: id };
            let older_ask = core::mem::replace(&mut there.ask, waiter.ask);
            if let Some(older) = core::mem::replace(&mut there.until, waiter.until) {
                self.timeouts.remove(&(older, place));
            }
            if let Some(newer) = waiter.until {
                self.timeouts.insert((newer, place));
            }
            let displaced = core::mem::replace(&mut there.client, waiter.client);
            self.count_permit(older_ask.want, -1);
            self.count_permit(waiter.ask.want, 1);
            return Ok(Joined { place, displaced: Some(displaced) });
        }
        if queue.waiting.len() >= most {
            return Err(Full);
        }
        self.last = self.last.wrapping_add(1);
        let place = Place { number: self.last, queue: id };
        if let Some(until) = waiter.until {
            self.timeouts.insert((until, place));
        }
        let want = waiter.ask.want;
        queue.places.insert(Arc::clone(&waiter.token), place.number);
        queue.waiting.insert(place.number, waiter);
        self.count_permit(want, 1);
        self.waiting = self.waiting.saturating_add(1);
        Ok(Joined { place, displaced: None })
    }

    fn open(&mut self, db: i32, key: &[u8]) -> QueueId {
        self.count(key, 1);
        let key: Arc<[u8]> = key.into();
        let id = QueueId(self.queues.insert(Queue {
            db,
            key: Arc::clone(&key),
            waiting: BTreeMap::new(),
            places: HashMap::default(),
            look: None,
            lease_end: None,
        }));
        self.by_key.entry(db).or_default().insert(key, id);
        id
    }

    /// The one who is next.
    #[inline]
    #[must_use]
    pub fn head(&self, id: QueueId) -> Option<(Place, &Waiter<C>)> {
        let (&number, waiter) = self.queues.get(id.0)?.waiting.first_key_value()?;
        Some((Place { number, queue: id }, waiter))
    }

    /// Gives up a place: a timeout, a death, a grant.
    pub fn leave(&mut self, place: Place) -> Option<Left<C>> {
        let queue = self.queues.get_mut(place.queue.0)?;
        let (waiter, was_head) = match queue.waiting.first_entry() {
            Some(head) if *head.key() == place.number => (head.remove(), true),
            _ => (queue.waiting.remove(&place.number)?, false),
        };
        queue.places.remove(&waiter.token);
        self.waiting = self.waiting.saturating_sub(1);
        let last = queue.waiting.is_empty();
        if let Some(until) = waiter.until {
            self.timeouts.remove(&(until, place));
        }
        self.count_permit(waiter.ask.want, -1);
        if last {
            self.close(place.queue);
        }
        Some(Left { waiter, was_head })
    }

    fn close(&mut self, id: QueueId) {
        let Some(queue) = self.queues.try_remove(id.0) else { return };
        self.count(&queue.key, -1);
        if let Some(look) = queue.look {
            self.looks.remove(&(look, id));
        }
        if let Some(keys) = self.by_key.get_mut(&queue.db) {
            keys.remove(&queue.key);
            if keys.is_empty() {
                self.by_key.remove(&queue.db);
            }
        }
        if self.waiting == 0 {
            // The last one out gives back what a rush had needed.
            self.queues = Slab::new();
        }
    }

    /// Grants the lock to the head of the queue, and to the next, for as long as it admits them; each is out of the queue when
    /// `granted` hears of it. One lock that admits nobody else costs two looks at a head, however long the queue.
    ///
    /// # Errors
    /// The lock's own. Who was granted before stays granted, all others stay queued.
    pub fn serve<L: Lock>(
        &mut self,
        id: QueueId,
        lock: &mut L,
        mut granted: impl FnMut(Waiter<C>, L::Grant),
    ) -> Result<(), L::Error> {
        while let Some((place, head)) = self.head(id) {
            if !lock.admits(&head.token, &head.ask)? {
                break;
            }
            let grant = lock.grant(&head.token, &head.ask)?;
            let Some(left) = self.leave(place) else { break };
            granted(left.waiter, grant);
        }
        Ok(())
    }

    /// Gives up the place of a token.
    pub fn leave_token(&mut self, id: QueueId, token: &[u8]) -> Option<Left<C>> {
        let number = *self.queues.get(id.0)?.places.get(token)?;
        self.leave(Place { number, queue: id })
    }

    /// When the key of a queue should be looked at next: server's ms.
    pub fn look_at(&mut self, id: QueueId, when: Option<i64>) {
        let Some(queue) = self.queues.get_mut(id.0) else { return };
        if queue.look == when {
            return;
        }
        if let Some(old) = queue.look {
            self.looks.remove(&(old, id));
        }
        if let Some(new) = when {
            self.looks.insert((new, id));
        }
        queue.look = when;
    }

    /// The time [`Queues::look_at`] was given last, and which has not come since.
    #[must_use]
    pub fn look(&self, id: QueueId) -> Option<i64> {
        self.queues.get(id.0)?.look
    }

    /// When the lease ends that is waited for: server's ms.
    pub fn set_lease_end(&mut self, id: QueueId, end: Option<i64>) {
        if let Some(queue) = self.queues.get_mut(id.0) {
            queue.lease_end = end;
        }
    }

    /// Has the lease ended that was waited for last?
    #[must_use]
    pub fn lease_has_ended(&self, id: QueueId, now: i64) -> bool {
        // A key expires when its deadline is past, not when it is reached.
        self.queues.get(id.0).and_then(|queue| queue.lease_end).is_some_and(|end| end < now)
    }

    /// The next timeout, in monotonic ms.
    #[must_use]
    pub fn next_timeout(&self) -> Option<i64> {
        self.timeouts.first().map(|&(until, _)| until)
    }

    /// The next look at a key, in the server's ms.
    #[must_use]
    pub fn next_look(&self) -> Option<i64> {
        self.looks.first().map(|&(when, _)| when)
    }

    /// The places whose time is over at `now` (monotonic ms), the longest over first. They stay until they are left.
    #[must_use]
    pub fn timed_out(&self, now: i64) -> Vec<Place> {
        self.timeouts.iter().take_while(|(until, _)| *until <= now).map(|&(_, place)| place).collect()
    }

    /// Takes out the queues whose keys should be looked at by `now` (server's ms). Each is due once: to be due again, it has
    /// to be given another time.
    pub fn due(&mut self, now: i64) -> Vec<QueueId> {
        let mut due = Vec::new();
        while self.looks.first().is_some_and(|&(when, _)| when <= now)
            && let Some((_, id)) = self.looks.pop_first()
        {
            if let Some(queue) = self.queues.get_mut(id.0) {
                queue.look = None;
            }
            due.push(id);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Mode;

    #[test]
    fn the_last_one_out_gives_back_what_a_rush_had_needed() {
        let mut queues = Queues::new();
        let mut places = Vec::new();
        // Miri takes a minute for a thousand.
        let rush: u32 = if cfg!(miri) { 100 } else { 1000 };
        for n in 0..rush {
            let ask = Ask { want: Want::Lock(Mode::Exclusive), ttl: 1 };
            let waiter = Waiter { token: n.to_le_bytes().into(), ask, since: 0, until: Some(1), client: () };
            places.push(queues.join(n.cast_signed() % 3, &(n / 2).to_le_bytes(), 1000, waiter).unwrap().place);
        }
        assert!(queues.queues.capacity() >= rush as usize / 2);
        for place in places {
            queues.leave(place).unwrap();
        }
        assert_eq!(queues.queues.capacity(), 0);
        assert!(queues.by_key.is_empty() && queues.timeouts.is_empty() && queues.looks.is_empty());
        assert_eq!(queues.hashes, [0; 256]);
        assert_eq!((queues.lengths, queues.bits), ([0; LENGTHS], (0, [0; 4])));
    }
}
