//! What INFO counts. All of it runs under the server's global lock, so a plain load and store is enough.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Adds one.
#[inline]
pub fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
}

/// Sets a gauge.
pub fn set(gauge: &AtomicU64, value: usize) {
    gauge.store(value as u64, Relaxed);
}

/// Raises a maximum.
pub fn raise(maximum: &AtomicU64, value: i64) {
    let value = u64::try_from(value).unwrap_or(0);
    if value > maximum.load(Relaxed) {
        maximum.store(value, Relaxed);
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $field:literal,)*) => {
        $($(#[$doc])* pub static $name: AtomicU64 = AtomicU64::new(0);)*

        /// Every counter with its field in INFO, in the order INFO shows them.
        pub static COUNTERS: &[(&str, &AtomicU64)] = &[$(($field, &$name),)*];
    };
}

counters! {
    /// Locks granted.
    LOCK_GRANTS = "lock_grants",
    /// Calls that did not get the lock.
    LOCK_REFUSED = "lock_refused",
    /// Grants by waiting: at a release, or because the key went away.
    LOCK_HANDOVERS = "lock_handovers",
    /// Grants by waiting, after a holder's lease had ended.
    LOCK_EXPIRED_HANDOVERS = "lock_expired_handovers",
    /// Calls that waited to their timeout.
    LOCK_TIMEOUTS = "lock_timeouts",
    /// Calls that wait now.
    LOCK_WAITERS = "lock_waiters",
    /// The longest wait that ended in a grant, in milliseconds.
    LOCK_WAIT_MS_MAX = "lock_wait_ms_max",
    /// As LOCK_GRANTS, of semaphores.
    SEM_GRANTS = "sem_grants",
    /// As LOCK_REFUSED.
    SEM_REFUSED = "sem_refused",
    /// As LOCK_HANDOVERS.
    SEM_HANDOVERS = "sem_handovers",
    /// As LOCK_EXPIRED_HANDOVERS.
    SEM_EXPIRED_HANDOVERS = "sem_expired_handovers",
    /// As LOCK_TIMEOUTS.
    SEM_TIMEOUTS = "sem_timeouts",
    /// As LOCK_WAITERS.
    SEM_WAITERS = "sem_waiters",
    /// As LOCK_WAIT_MS_MAX.
    SEM_WAIT_MS_MAX = "sem_wait_ms_max",
    /// RL.FIXED calls that passed.
    RL_FIXED_ALLOWED = "rl_fixed_allowed",
    /// RL.FIXED calls that were refused.
    RL_FIXED_REFUSED = "rl_fixed_refused",
    /// RL.SLIDING calls that passed.
    RL_SLIDING_ALLOWED = "rl_sliding_allowed",
    /// RL.SLIDING calls that were refused.
    RL_SLIDING_REFUSED = "rl_sliding_refused",
    /// RL.BUCKET calls that passed.
    RL_BUCKET_ALLOWED = "rl_bucket_allowed",
    /// RL.BUCKET calls that were refused.
    RL_BUCKET_REFUSED = "rl_bucket_refused",
    /// Bugs of ours that a caller has met.
    INTERNAL_ERRORS = "internal_errors",
}
