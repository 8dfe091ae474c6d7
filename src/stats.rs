//! What INFO counts. All of it runs under the server's global lock, so a plain load and store is enough.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sluice_core::lock::Want;

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

/// What is counted of locks, and of semaphores.
#[derive(Debug)]
pub struct Locks {
    /// Grants, at once or by waiting.
    pub grants: AtomicU64,
    /// Calls that did not get it, and did not wait.
    pub refused: AtomicU64,
    /// Grants by waiting: at a release, or because the key went away.
    pub handovers: AtomicU64,
    /// Grants by waiting, after a holder's lease had ended.
    pub expired_handovers: AtomicU64,
    /// Calls that waited to their timeout.
    pub timeouts: AtomicU64,
    /// Calls that wait now.
    pub waiters: AtomicU64,
    /// The longest wait that ended in a grant, in milliseconds.
    pub wait_ms_max: AtomicU64,
}

impl Locks {
    const fn new() -> Self {
        Self {
            grants: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            handovers: AtomicU64::new(0),
            expired_handovers: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
            waiters: AtomicU64::new(0),
            wait_ms_max: AtomicU64::new(0),
        }
    }

    /// Each with the end of its name in INFO, in the order INFO shows them.
    pub const fn fields(&self) -> [(&'static str, &AtomicU64); 7] {
        [
            ("grants", &self.grants),
            ("refused", &self.refused),
            ("handovers", &self.handovers),
            ("expired_handovers", &self.expired_handovers),
            ("timeouts", &self.timeouts),
            ("waiters", &self.waiters),
            ("wait_ms_max", &self.wait_ms_max),
        ]
    }
}

/// Of LOCK.*.
pub static LOCK: Locks = Locks::new();
/// Of SEM.*.
pub static SEM: Locks = Locks::new();

/// Where a request is counted.
pub const fn of(want: Want) -> &'static Locks {
    match want {
        Want::Lock(_) => &LOCK,
        Want::Permit(_) => &SEM,
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $field:literal,)*) => {
        $($(#[$doc])* pub static $name: AtomicU64 = AtomicU64::new(0);)*

        /// Every other counter with its field in INFO, in the order INFO shows them.
        pub static COUNTERS: &[(&str, &AtomicU64)] = &[$(($field, &$name),)*];
    };
}

counters! {
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
