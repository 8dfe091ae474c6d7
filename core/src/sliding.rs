//! RL.SLIDING: at most `limit` units in *any* window, exactly: a hit at t counts while now - t < window.
//!
//! Stored is the log of admitted hits, a ring without a cursor:
//!
//! ```text
//! header  magic 1 | width of an offset, width of a sum (4 bits each) 1 | base 6 (ms)
//! slot    offset: time - base in ms; 0 = never used | sum: units admitted so far, this hit's included
//! ```
//!
//! all little-endian. Offsets grow strictly in the ring's order, so the newest slot is the last one whose offset is not
//! below slot 0's, and no hit ever moves another: it changes one slot, which goes out as one `SETRANGE`. Sums (prefix
//! sums, modulo their width) make the units between two slots one subtraction, so the hits that count are found by binary
//! search, and so is the one that has to leave first for a refused call to pass.
//!
//! The oldest slot only serves as the predecessor of the next: its sum is known, its own units are not. A new log begins
//! with one that never was a hit.

use crate::args::LONGEST_MS;
use crate::limit::{self, Expiry, NEVER, Refusal, Request, Verdict};

/// What to do to the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: not a byte, not an event.
    Nothing,
    /// `SETRANGE key at bytes`, inside the value, then `PEXPIREAT key expiry.set_to` unless the key's TTL may stay.
    Slot {
        /// Where in the value.
        at: usize,
        /// What to put there.
        bytes: SlotBytes,
        /// Not before this hit has left, at most window / 8 + 1 ms later.
        expiry: Expiry,
    },
    /// `SET key value PXAT expiry.set_to`
    Rebuild {
        /// The whole log.
        value: Vec<u8>,
        /// As for a slot.
        expiry: Expiry,
    },
}

/// The bytes of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotBytes {
    bytes: [u8; 16],
    len: usize,
}

impl SlotBytes {
    /// The bytes to write.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The answer of RL.SLIDING and what to write for it.
pub type Decision = limit::Decision<Effect>;

/// Bytes before the first slot. No field is longer, so each can be read as the end of a word that starts in the value.
const HEADER: usize = 8;
/// The most hits a log holds.
const MAX_ENTRIES: usize = 1 << 24;
/// Slots a new log has to spare: many a key is hit a few times only.
const FIRST_SPARE: usize = 4;
/// Slots a log that has grown has to spare, at least; it has a quarter of its hits otherwise.
const MIN_SPARE: usize = 14;
/// Bounds of the clock in ms, since a base is a signed 6-byte number: the years -2491 to 6429. Beyond, time stands still.
const FIRST: i64 = -(1 << 47) + 2;
const LAST: i64 = (1 << 47) - 1;
/// How often `retry_after` is put off by hits from the future before the log is given up.
const MAX_POSTPONED: usize = 64;

/// Decides one call at `now_ms`, absolute milliseconds, on what is stored.
///
/// Hits later than now (a clock set back) do not count until their time comes, and the next admitted hit drops them. If
/// they would keep a call out for longer than one window, or lie further ahead than that, the log is taken as empty by a
/// call that it would refuse.
///
/// # Errors
///
/// [`Refusal::Foreign`] if the value cannot be a log; [`Refusal::LogFull`] if this call's hit needs an entry of its own
/// and 2^24 hits count already.
#[inline]
pub fn decide(stored: Option<&[u8]>, now_ms: i64, request: &Request) -> Result<Decision, Refusal> {
    let now = now_ms.clamp(FIRST, LAST);
    let window = request.window.min(LONGEST_MS).cast_signed();
    let Some(bytes) = stored else {
        return Ok(as_new(now, window, request));
    };
    let log = Log::open(bytes).ok_or(Refusal::Foreign)?;
    let counted = log.counted(now, window);

    let free = request.limit.saturating_sub(counted.used);
    let as_it_stands = |allowed, retry_after| {
        let reset_after = counted.leaves.max(now).wrapping_sub(now);
        let verdict = Verdict { allowed, limit: request.limit, remaining: free, retry_after, reset_after };
        Ok(Decision { verdict, effect: Effect::Nothing })
    };
    if request.cost == 0 {
        return as_it_stands(true, 0);
    }
    let Some(room) = request.limit.checked_sub(request.cost) else {
        return as_it_stands(false, NEVER);
    };
    if counted.used > room {
        return match log.first_fit(now, window, room, &counted) {
            Some(at) => as_it_stands(false, at.wrapping_sub(now)),
            // What counts now is shown as long as no call has given the log up.
            None if request.peek => as_it_stands(true, 0),
            None => Ok(as_new(now, window, request)),
        };
    }
    if !counted.any() {
        return Ok(as_new(now, window, request));
    }
    let effect = match log.place(now, window, request.cost, &counted) {
        Some((at, bytes)) => Effect::Slot { at, bytes, expiry: expiry(now, window) },
        None => log.make_room(now, window, request, &counted)?,
    };
    if request.peek {
        return as_it_stands(true, 0);
    }
    Ok(charged(free, window, request, effect))
}

/// The answer where nothing counts: no key, a log whose hits have all left, or one given up.
#[cold]
fn as_new(now: i64, window: i64, request: &Request) -> Decision {
    let free = request.limit;
    let allowed = request.cost <= free;
    if allowed && request.cost > 0 && !request.peek {
        let value = rebuild(None, &Counted::NONE, now, window, request, false);
        return charged(free, window, request, Effect::Rebuild { value, expiry: expiry(now, window) });
    }
    let retry_after = if allowed { 0 } else { NEVER };
    let verdict = Verdict { allowed, limit: free, remaining: free, retry_after, reset_after: 0 };
    Decision { verdict, effect: Effect::Nothing }
}

/// The answer to a call that took its units from the `free` ones.
#[inline]
fn charged(free: u64, window: i64, request: &Request, effect: Effect) -> Decision {
    let remaining = free.wrapping_sub(request.cost);
    let verdict = Verdict { allowed: true, limit: request.limit, remaining, retry_after: 0, reset_after: window };
    Decision { verdict, effect }
}

/// The deadlines of a key whose newest hit is of `now`.
#[inline]
fn expiry(now: i64, window: i64) -> Expiry {
    let leaves = now.wrapping_add(window);
    let set_to = leaves.wrapping_add(window / 8);
    Expiry { earliest: leaves, set_to, latest: set_to.wrapping_add(1) }
}

/// A stored log, its shape checked. What the slots say is not: no search goes wrong by it, and none lasts longer.
///
/// Slots are counted in 32 bits and widths in 8, so that the compiler knows a place in the value cannot overflow, and one
/// comparison guards a read. Times and offsets stay below 2^49, so their sums are plain.
#[derive(Clone, Copy)]
struct Log<'a> {
    bytes: &'a [u8],
    base: i64,
    widths: Widths,
    slots: u32,
    /// The newest slot, where it lies, and its offset.
    newest: u32,
    newest_offset: i64,
    /// The oldest slot, where it lies. The ring's order counts from here.
    oldest: u32,
    /// Slots ever used: all, once the ring has come round.
    used: u32,
}

/// Bytes of an offset and of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Widths {
    offset: u8,
    sum: u8,
}

impl Widths {
    /// The fewest bytes an offset over three windows and a sum of `units` take.
    ///
    /// Three windows, since a log is rewritten when an offset no longer fits, and one window of it is still there then.
    fn fitting(window: i64, units: u64) -> Self {
        Widths { offset: width(last_offset(window)), sum: width(units) }
    }

    #[inline]
    fn slot(self) -> usize {
        usize::from(self.offset).wrapping_add(usize::from(self.sum))
    }

    /// Where the slot at `index` would lie in a value without a header. That is `HEADER` bytes early: a word from where a
    /// field would end then ends where it does.
    #[inline]
    fn start(self, index: u32) -> usize {
        (index as usize).wrapping_mul(self.slot())
    }

    /// A slot, and zeros.
    #[inline]
    fn bytes(self, offset: i64, sum: u64) -> [u8; 16] {
        let sum = u128::from(sum & largest(self.sum)).wrapping_shl(u32::from(self.offset).wrapping_mul(8));
        (sum | u128::from(offset.cast_unsigned() & largest(self.offset))).to_le_bytes()
    }

    /// The offset in the slot that lies at `index`.
    #[inline]
    fn offset_in(self, bytes: &[u8], index: u32) -> i64 {
        let end = self.start(index).wrapping_add(usize::from(self.offset));
        field(bytes, end, self.offset).cast_signed()
    }

    /// The sum in the slot that lies at `index`.
    #[inline]
    fn sum_in(self, bytes: &[u8], index: u32) -> u64 {
        field(bytes, self.start(index).wrapping_add(self.slot()), self.sum)
    }
}

/// The number of `width` bytes that ends where the word at `start` ends.
#[inline]
fn field(bytes: &[u8], start: usize, width: u8) -> u64 {
    let word = bytes.get(start..start.wrapping_add(8)).and_then(<[u8]>::first_chunk::<8>);
    word.map_or(0, |word| u64::from_le_bytes(*word).wrapping_shr(shift(width)))
}

/// The largest offset that has to fit.
#[inline]
fn last_offset(window: i64) -> u64 {
    window.wrapping_mul(3).wrapping_sub(1).cast_unsigned()
}

/// Bytes of a number, at least 1.
fn width(number: u64) -> u8 {
    let bits = u64::BITS.saturating_sub((number | 1).leading_zeros());
    u8::try_from(bits.div_ceil(8)).unwrap_or(8)
}

/// How far down to shift a word for its last `width` bytes, from 1 to 8.
#[inline]
fn shift(width: u8) -> u32 {
    64u32.wrapping_sub(u32::from(width).wrapping_mul(8))
}

/// The largest number of so many bytes.
#[inline]
fn largest(width: u8) -> u64 {
    u64::MAX.wrapping_shr(shift(width))
}

/// The hits that count at some moment: those after `before` up to `last`, in the ring's order.
#[derive(Clone, Copy)]
struct Counted {
    before: u32,
    last: u32,
    /// The sum in the slot of the last.
    sum: u64,
    /// Their units.
    used: u64,
    /// When the last of them leaves, absolute ms.
    leaves: i64,
}

impl Counted {
    const NONE: Self = Counted { before: 0, last: 0, sum: 0, used: 0, leaves: i64::MIN };

    #[inline]
    fn any(&self) -> bool {
        self.before < self.last
    }

    #[inline]
    fn hits(&self) -> usize {
        self.last.saturating_sub(self.before) as usize
    }
}

impl<'a> Log<'a> {
    #[inline]
    fn open(bytes: &'a [u8]) -> Option<Self> {
        let (head, slots) = bytes.split_first_chunk::<HEADER>()?;
        let [magic, both, ..] = *head;
        let widths = Widths { offset: both >> 4, sum: both & 15 };
        if magic != limit::SLIDING || !(1..=5).contains(&widths.offset) || !(1..=4).contains(&widths.sum) {
            return None;
        }
        let count = slots.len().checked_div(widths.slot())?;
        if count.wrapping_mul(widths.slot()) != slots.len() || count < 2 || count > MAX_ENTRIES.wrapping_add(1) {
            return None;
        }
        let slots = count as u32;
        let base = u64::from_le_bytes(*head).cast_signed().wrapping_shr(16);
        let mut log = Log { bytes, base, widths, slots, newest: 0, newest_offset: 0, oldest: 0, used: slots };
        // A predecessor and a hit are always there.
        let first = log.offset_in(0);
        if first == 0 || log.offset_in(1) == 0 {
            return None;
        }
        (log.newest, log.newest_offset) = search_newest(bytes, widths, slots, first);
        let next = log.newest.wrapping_add(1);
        if next < slots {
            if log.offset_in(next) == 0 {
                log.used = next;
            } else {
                log.oldest = next;
            }
        }
        Some(log)
    }

    /// The offset in the slot that lies at `index`.
    #[inline]
    fn offset_in(&self, index: u32) -> i64 {
        self.widths.offset_in(self.bytes, index)
    }

    /// Where the slot lies that is number `order` in the ring.
    #[inline]
    fn index(&self, order: u32) -> u32 {
        let index = self.oldest.wrapping_add(order);
        if index >= self.slots { index.wrapping_sub(self.slots) } else { index }
    }

    /// The offset of number `order` in the ring.
    #[inline]
    fn offset(&self, order: u32) -> i64 {
        self.offset_in(self.index(order))
    }

    /// The sum in the slot that lies at `index`.
    #[inline]
    fn sum_in(&self, index: u32) -> u64 {
        self.widths.sum_in(self.bytes, index)
    }

    /// The units up to a slot with the sum `total` of the hits after number `before`.
    #[inline]
    fn units(&self, before: u32, total: u64) -> u64 {
        total.wrapping_sub(self.sum_in(self.index(before))) & largest(self.widths.sum)
    }

    /// The hits that count at `at`.
    #[inline]
    fn counted(&self, at: i64, window: i64) -> Counted {
        let now = at.wrapping_sub(self.base);
        let dead = now.wrapping_sub(window);
        let (mut last, mut index, mut offset) = (self.used.wrapping_sub(1), self.newest, self.newest_offset);
        if offset > now {
            last = match self.last_until(now) {
                Some(last) => last,
                None => return Counted::NONE,
            };
            index = self.index(last);
            offset = self.offset_in(index);
        }
        if offset <= dead {
            return Counted::NONE;
        }
        let before = first_where(1, last, |order| self.offset(order) > dead).wrapping_sub(1);
        let leaves = self.base.wrapping_add(offset).wrapping_add(window);
        let sum = self.sum_in(index);
        Counted { before, last, sum, used: self.units(before, sum), leaves }
    }

    /// The last hit in the ring's order with an offset up to `now`, where the newest has a larger one.
    #[cold]
    fn last_until(&self, now: i64) -> Option<u32> {
        if self.offset(1) > now {
            return None;
        }
        let (mut last, mut left) = (1u32, self.used.wrapping_sub(1));
        while left > 1 {
            let half = left / 2;
            let middle = last.wrapping_add(half);
            last = if self.offset(middle) <= now { middle } else { last };
            left = left.wrapping_sub(half);
        }
        Some(last)
    }

    /// The first moment at which no more than `room` units count, given those that `counted` now do. `None`: not within
    /// one window.
    #[inline]
    fn first_fit(&self, now: i64, window: i64, room: u64, counted: &Counted) -> Option<i64> {
        let leaves = self.enough_left(window, room, counted);
        if counted.last != self.used.wrapping_sub(1) {
            return self.first_fit_ahead(now, window, room, leaves);
        }
        (now < leaves && leaves <= now.wrapping_add(window)).then_some(leaves)
    }

    /// When so many of the hits that `counted` have left that `room` holds the rest.
    #[inline]
    fn enough_left(&self, window: i64, room: u64, counted: &Counted) -> i64 {
        let leaver =
            first_where(counted.before.wrapping_add(1), counted.last, |order| self.units(order, counted.sum) <= room);
        // Never later than the last of them, whatever a damaged log says.
        self.base.wrapping_add(self.offset(leaver)).wrapping_add(window).min(counted.leaves)
    }

    /// The same with hits from the future in the log, `at` being the first guess.
    ///
    /// Each guess is a lower bound: until enough of what counts at the last one has left, nothing fits, whatever comes.
    /// So the first that holds is the first moment.
    #[cold]
    fn first_fit_ahead(&self, now: i64, window: i64, room: u64, mut at: i64) -> Option<i64> {
        // Hits still further ahead shut callers out one after the other, with gaps in between that nobody meets.
        if self.base.wrapping_add(self.newest_offset) > now.wrapping_add(window) {
            return None;
        }
        let mut last = now;
        for _ in 0..MAX_POSTPONED {
            if at <= last || at > now.wrapping_add(window) {
                return None;
            }
            let counted = self.counted(at, window);
            if counted.used <= room {
                return Some(at);
            }
            last = at;
            at = self.enough_left(window, room, &counted);
        }
        None
    }

    /// The slot for a hit of `cost` units at `now`, and where in the value it lies; `None` if the log has to be rebuilt.
    #[inline]
    fn place(&self, now: i64, window: i64, cost: u64, counted: &Counted) -> Option<(usize, SlotBytes)> {
        let offset = now.wrapping_sub(self.base);
        let newest = self.newest_offset;
        let most = largest(self.widths.offset);
        if newest > offset || offset.cast_unsigned() > most || last_offset(window) > most {
            return None;
        }
        // Besides the slot that is written over, one more has to be dead: the predecessor of the first that counts.
        let (index, oldest, free) = if newest == offset {
            (self.newest, 0, true)
        } else if self.used < self.slots {
            (self.used, 0, true)
        } else {
            (self.oldest, 1, counted.before >= 1)
        };
        let sum = counted.sum;
        if !free || self.crowded(oldest, sum, cost) {
            return None;
        }
        let bytes = self.widths.bytes(offset, sum.wrapping_add(cost));
        let bytes = SlotBytes { bytes, len: self.widths.slot() };
        Some((self.widths.start(index).wrapping_add(HEADER), bytes))
    }

    /// Would `cost` units more than `sum` come round to the sum of the ring's number `oldest`?
    ///
    /// Over the whole ring, not just over what counts: a longer window may ask for the rest.
    #[inline]
    fn crowded(&self, oldest: u32, sum: u64, cost: u64) -> bool {
        self.units(oldest, sum).saturating_add(cost) > largest(self.widths.sum)
    }

    /// Rebuilds the log around a hit that has no place in it.
    #[cold]
    fn make_room(&self, now: i64, window: i64, request: &Request, counted: &Counted) -> Result<Effect, Refusal> {
        if counted.hits() >= MAX_ENTRIES && counted.leaves != now.wrapping_add(window) {
            return Err(Refusal::LogFull);
        }
        if request.peek {
            return Ok(Effect::Nothing);
        }
        let oldest = u32::from(self.used == self.slots);
        let crowded = self.crowded(oldest, self.sum_in(self.newest), request.cost);
        let value = rebuild(Some(self), counted, now, window, request, crowded);
        Ok(Effect::Rebuild { value, expiry: expiry(now, window) })
    }
}

/// The last slot in the value whose offset is not below slot 0's, `first`; and its offset.
///
/// On its own, so that all it needs stays in registers: this is the most of what a call takes.
#[inline(never)]
fn search_newest(bytes: &[u8], widths: Widths, slots: u32, first: i64) -> (u32, i64) {
    let (mut newest, mut offset) = (0u32, first);
    // It is among `left` slots from `newest` on.
    let mut left = slots;
    while left > 1 {
        let half = left / 2;
        let middle = newest.wrapping_add(half);
        let found = widths.offset_in(bytes, middle);
        if found >= first {
            (newest, offset) = (middle, found);
        }
        left = left.wrapping_sub(half);
    }
    (newest, offset)
}

/// The first of `low..=high` where `holds`, which is known of `high` and holds from some point on.
///
/// By doubling steps from `low`, then by halving: in a ring that is nearly full, the steps are few.
#[inline]
fn first_where(mut low: u32, mut high: u32, holds: impl Fn(u32) -> bool) -> u32 {
    let mut step = 0u32;
    let mut probe = low;
    while probe < high {
        if holds(probe) {
            high = probe;
            break;
        }
        low = probe.wrapping_add(1);
        step = step.wrapping_mul(2) | 1;
        probe = low.wrapping_add(step);
    }
    while low < high {
        let middle = low.wrapping_add(high.wrapping_sub(low) / 2);
        if holds(middle) {
            high = middle;
        } else {
            low = middle.wrapping_add(1);
        }
    }
    low
}

/// The log of the hits that `counted` and this one, with room for a quarter more.
///
/// The one way a log grows, is widened, gets a new base and loses hits from the future; without a `log`, the way it starts.
#[cold]
fn rebuild(
    log: Option<&Log<'_>>,
    counted: &Counted,
    now: i64,
    window: i64,
    request: &Request,
    crowded: bool,
) -> Vec<u8> {
    let hits = counted.hits();
    let joins = counted.leaves == now.wrapping_add(window);
    // A predecessor, what counts, and this hit.
    let needed = hits.saturating_add(if joins { 1 } else { 2 });
    let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
    // Every hit has a unit at least, so there are never more than `limit` of them.
    let slots = needed
        .saturating_add(if log.is_some() { MIN_SPARE.max(hits / 4) } else { FIRST_SPARE })
        .min(limit.saturating_add(1))
        .min(MAX_ENTRIES.saturating_add(1))
        .max(needed);

    let mut widths = Widths::fitting(window, request.limit);
    if let Some(log) = log {
        if crowded && log.widths.sum >= widths.sum {
            // Hits of many units each would fill the sums again and again.
            widths.sum = width(request.limit.saturating_mul(2));
        }
        widths.offset = widths.offset.max(log.widths.offset);
        widths.sum = widths.sum.max(log.widths.sum);
    }

    let first = match log {
        Some(log) => log.base.wrapping_add(log.offset(counted.before.saturating_add(1))).min(now),
        None => now,
    };
    // Two below the first hit: the predecessor has offset 1, since 0 is a slot never used.
    let base = first.max(FIRST).saturating_sub(2);

    let len = slots.saturating_mul(widths.slot()).saturating_add(HEADER);
    let mut value = vec![0; len];
    let mut at = 0usize;
    // What is put has zeros behind it, which the next one covers.
    let mut put = |bytes: [u8; 16], len: usize| {
        let rest = value.get_mut(at..).unwrap_or_default();
        match rest.first_chunk_mut() {
            Some(to) => *to = bytes,
            None => rest.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte),
        }
        at = at.wrapping_add(len);
    };
    let magic = u128::from(limit::SLIDING) | u128::from(widths.offset.wrapping_shl(4) | widths.sum).wrapping_shl(8);
    let header = magic | u128::from(base.cast_unsigned().wrapping_shl(16));
    put(header.to_le_bytes(), HEADER);

    let (mut time, mut sum) = (base.saturating_add(1), 0);
    put(widths.bytes(1, 0), widths.slot());
    if let Some(log) = log {
        let (start, most) = (log.sum_in(log.index(counted.before)), largest(log.widths.sum));
        for order in counted.before.saturating_add(1)..=counted.last {
            let index = log.index(order);
            let at = log.base.wrapping_add(log.offset_in(index));
            let units = log.sum_in(index).wrapping_sub(start) & most;
            // Always so in a log of ours but for a hit of this very ms, which this one joins.
            if time < at && at < now && sum < units && units <= counted.used {
                (time, sum) = (at, units);
                put(widths.bytes(at.wrapping_sub(base), units), widths.slot());
            }
        }
    }
    put(widths.bytes(now.wrapping_sub(base), counted.used.saturating_add(request.cost)), widths.slot());
    value
}
