//! What the words of commands tell of waited keys, on a server that tells of its keys at too high a price.
//!
//! A command that names a waited key may take it away, and has not run yet: the key is looked at in the next turn of the
//! server's loop. A command that is queued by MULTI runs long after it has passed by, it may have been queued before anybody
//! waited for its key, and the EXEC that runs it names nothing and may go by another name. So after every command of a single
//! word all waited keys are looked at.
//!
//! These looks find a lock that is held as it was, as a rule: one is a fraction of what it costs to ask the server whether it
//! would take a write, and a round of them keeps the next one off for a time that grows with it.
//! So they take a few hundredths of the server's time at most, whatever the commands are.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, TryLockError};

use sluice_core::args::Mode;
use sluice_core::lock::Want;
use sluice_core::queue::{Lock, QueueId, Sieve};

use super::{STATE, State};
use crate::hold::Hold;
use crate::server::{self, Context, monotonic_ms};
use crate::spec;

/// Told of keys before anything else is asked.
pub static SIEVE: Sieve = Sieve::new();

/// Anything may have happened to any waited key.
static DOUBT: AtomicBool = AtomicBool::new(false);

/// When the next round of looks may be, in monotonic ms.
static NEXT_ROUND: AtomicI64 = AtomicI64::new(0);

/// How many keys one round looks at: a third of a millisecond's worth.
const SLICE: usize = 500;

/// How long a round keeps the next one off, in ms: a millisecond for so many looks, and this if none of them granted anything.
const LOOKS_A_MS: usize = 100;
const PAUSE_MS: usize = 2;

/// Is it a command that serves the queue of its key itself, and changes no other key?
fn is_ours(command: &[u8]) -> bool {
    let locks = spec::ALL.iter().filter(|ours| ours.categories.contains(&"lock"));
    locks.into_iter().any(|ours| ours.name.as_bytes().eq_ignore_ascii_case(command))
}

/// A command that is about to run, or to be queued, names what may be a waited key, in whatever database.
#[cold]
pub fn named(command: &[u8], key: &[u8]) {
    if is_ours(command) {
        return;
    }
    let mut state = match STATE.try_lock() {
        Ok(state) => state,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // Another module's, sent from within a write of ours.
        Err(TryLockError::WouldBlock) => return doubt(),
    };
    let State { queues, named, .. } = &mut *state;
    let before = named.len();
    named.extend(queues.find_all(key));
    if named.len() > before {
        soon();
    }
}

/// A command names no key, and may have changed any.
#[cold]
pub fn doubt() {
    if !DOUBT.swap(true, Relaxed) {
        soon();
    }
}

/// Has the timer come for the next round. A command that is passing by has run by then.
fn soon() {
    server::arm(NEXT_ROUND.load(Relaxed).saturating_sub(monotonic_ms()).max(0));
}

impl State {
    /// Nobody waits any more.
    pub(super) fn forget_words(&mut self) {
        self.named.clear();
        self.doubted.clear();
        DOUBT.store(false, Relaxed);
    }

    /// A grant of a share or a permit has made a sorted set, and a client that another module or a command such as BZPOPMIN
    /// has blocked may be waiting for one, and takes it as soon as the command that made it is over.
    pub(super) fn mistrust(&mut self, id: QueueId, want: Want) {
        let sorted_set = matches!(want, Want::Permit(_) | Want::Lock(Mode::Shared));
        if self.by_words && sorted_set && self.queues.len(id) > 0 && self.named.insert(id) {
            soon();
        }
    }

    /// Looks at the keys that commands have named, and at some of those that they may have changed without.
    pub(super) fn round(&mut self, context: &Context<'_>) {
        if self.named.is_empty() && self.doubted.is_empty() && !DOUBT.load(Relaxed) {
            return;
        }
        let now = monotonic_ms();
        if now < NEXT_ROUND.load(Relaxed) {
            return soon();
        }
        // Doubts that have come meanwhile are about keys that have been looked at as well; but first it is the others' turn.
        if self.doubted.is_empty() && DOUBT.swap(false, Relaxed) {
            self.doubted.extend(self.queues.all());
        }
        // Taken out first: what a grant puts in is for the next round.
        let keys: Vec<_> =
            (0..SLICE).map_while(|_| self.named.pop_first().or_else(|| self.doubted.pop_first())).collect();
        let (looks, mut grants) = (keys.len(), false);
        for id in keys {
            grants |= self.glance(context, id, false);
        }
        let pause = (looks / LOOKS_A_MS).saturating_add(if grants { 0 } else { PAUSE_MS });
        NEXT_ROUND.store(now.saturating_add_unsigned(pause as u64), Relaxed);
        if !self.named.is_empty() || !self.doubted.is_empty() || DOUBT.load(Relaxed) {
            soon();
        }
    }

    /// Looks at a key that is probably as it was, because its time has come or because something may have happened to it. Says
    /// whether somebody has been granted something.
    pub(super) fn glance(&mut self, context: &Context<'_>, id: QueueId, due: bool) -> bool {
        let Some((db, key)) = self.queues.key(id).map(|(db, key)| (db, Arc::clone(key))) else {
            return false;
        };
        let free = context.at(db, &key, |site| {
            let mut key = site.open();
            let mut hold = Hold::new(site, &mut key);
            let head = self.queues.head(id);
            let free = head.is_some_and(|(_, head)| hold.admits(&head.token, &head.ask).unwrap_or(false));
            match free {
                true => {}
                false if due => self.look_after(id, hold.next_change()),
                false => self.look_no_later(id, hold.next_change()),
            }
            free
        });
        let before = self.queues.len(id);
        if free {
            self.look(context, id);
        }
        self.queues.len(id) < before
    }

    /// A lease that may end earlier now. What is looked at earlier for another reason, such as its slot, stays so.
    fn look_no_later(&mut self, id: QueueId, lease_ends: Option<i64>) {
        self.queues.set_lease_end(id, lease_ends);
        let Some(when) = lease_ends.map(|ends| ends.saturating_add(1)) else { return };
        if self.queues.look(id).is_none_or(|earlier| when < earlier) {
            self.queues.look_at(id, Some(when));
        }
    }
}
