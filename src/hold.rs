//! A lock, as it is stored in a key: an exclusive one is a string, the token, with the lease as its expiry. So it is the same
//! lock as that of every client that locks with `SET key token NX PX`.

use std::sync::{Mutex, PoisonError};

use sluice_core::fence::Fence;
use sluice_core::lease::{self, Standing};
use sluice_core::queue::{Ask, Lock};

use crate::server::{Content, Event, Failure, Key, Site};

static FENCE: Mutex<Fence> = Mutex::new(Fence::new());

/// The next fencing token of this server.
pub fn fence(now_us: i64) -> i64 {
    FENCE.lock().unwrap_or_else(PoisonError::into_inner).next(now_us).cast_signed()
}

/// How the lock in a key stands to `token`.
#[inline]
pub fn standing(key: &Key<'_>, token: &[u8]) -> Result<Standing, Failure> {
    match key.content() {
        Content::Nothing => Ok(lease::standing(None, token)),
        Content::String(holder) => Ok(lease::standing(Some(holder), token)),
        Content::Other => Err(Failure::NoLock),
    }
}

/// An opened lock, about to change hands. What it was is written over by a grant, or removed by [`Hold::settle`], so a lock that
/// is handed over is never seen free, and costs one write.
#[derive(Debug)]
pub struct Hold<'k, 'c> {
    site: &'c Site,
    key: &'k mut Key<'c>,
    now_us: i64,
    /// Given up, though it is still there.
    freed: bool,
    /// The end of the lease granted last.
    deadline: Option<i64>,
}

impl<'k, 'c> Hold<'k, 'c> {
    /// The lock in an open key.
    pub const fn new(site: &'c Site, key: &'k mut Key<'c>, now_us: i64) -> Self {
        Self { site, key, now_us, freed: false, deadline: None }
    }

    /// The holder gives it up.
    pub const fn free(&mut self) {
        self.freed = true;
    }

    /// The end of the lease, as far as there is one.
    pub fn deadline(&self) -> Option<i64> {
        self.deadline.or_else(|| self.key.deadline())
    }

    /// Nobody wanted it: a lock that was given up is removed.
    pub fn settle(self) -> Result<(), Failure> {
        if self.freed {
            self.key.delete()?;
            self.site.replicate_del()?;
            self.site.changed(&[Event::Del]);
        }
        Ok(())
    }
}

/// Releases the lock if `token` holds it: to whom `next` hands it, or to nobody. Says whether it did.
pub fn release(
    site: &Site,
    token: &[u8],
    next: impl FnOnce(&mut Hold<'_, '_>) -> Result<(), Failure>,
) -> Result<bool, Failure> {
    let mut key = site.open();
    if standing(&key, token)? != Standing::Mine {
        return Ok(false);
    }
    let mut hold = Hold::new(site, &mut key, site.now_us());
    hold.free();
    next(&mut hold)?;
    hold.settle()?;
    Ok(true)
}

impl Lock for Hold<'_, '_> {
    type Grant = i64;
    type Error = Failure;

    fn admits(&mut self, _token: &[u8], _ask: &Ask) -> Result<bool, Failure> {
        match self.key.content() {
            Content::Nothing => Ok(true),
            Content::String(_) => Ok(self.freed),
            Content::Other => Err(Failure::NoLock),
        }
    }

    fn grant(&mut self, token: &[u8], ask: &Ask) -> Result<i64, Failure> {
        let deadline = lease::deadline(self.now_us.div_euclid(1000), ask.ttl);
        if self.freed {
            self.key.replace(token)?;
            self.key.set_deadline(deadline)?;
        } else {
            self.key.create(token, deadline)?;
        }
        self.site.replicate_set(token, deadline)?;
        self.site.changed(&[Event::Set, Event::Expire]);
        (self.freed, self.deadline) = (false, Some(deadline));
        Ok(fence(self.now_us))
    }
}
