//! Why a call fails, and the one line its caller gets.

use core::ffi::CStr;

use sluice_core::args::Invalid;
use sluice_core::limit::Refusal;

/// Why a call fails. Nothing has changed then.
#[derive(Clone, Copy, Debug)]
pub enum Failure {
    /// Too few or too many arguments: the server's own words.
    Arity,
    /// An argument is wrong.
    Invalid(Invalid),
    /// The key holds something a lock is not.
    NoLock,
    /// The key holds something that is not a state of this limiter.
    NoLimiter,
    /// No memory for a new key.
    OutOfMemory,
    /// RL.SLIDING's log is full.
    LogFull,
    /// To wait would be to wait for itself.
    Deadlock,
    /// The key holds something a semaphore is not.
    NoSemaphore,
    /// As many wait for the key as may.
    QueueFull,
    /// A bug of ours.
    Internal,
}

impl Failure {
    /// The line, or none where the server has its own.
    pub const fn text(self) -> Option<&'static CStr> {
        Some(match self {
            Self::Arity => return None,
            Self::Invalid(invalid) => invalid.text(),
            Self::NoLock => c"WRONGTYPE the key holds a value that is no lock: use another key",
            Self::NoLimiter => {
                c"WRONGTYPE the key holds a value that is no state of this limiter: use another key, or DEL it to start anew"
            }
            Self::OutOfMemory => c"OOM command not allowed when used memory > 'maxmemory'.",
            Self::LogFull => {
                c"ERR log full: 16777216 entries in one window; use a shorter window, RL.FIXED or RL.BUCKET"
            }
            Self::NoSemaphore => c"WRONGTYPE the key holds a value that is no semaphore: use another key",
            Self::Deadlock => {
                c"DEADLOCK this token holds the lock in a way that bars what it would wait for: release it first"
            }
            Self::QueueFull => {
                c"QUEUEFULL as many calls wait for this key as sluice.max-waiters allows: try again later, or raise it"
            }
            Self::Internal => c"ERR internal error: this is a bug in sluice; the server's log says where, please report it",
        })
    }
}

impl From<Invalid> for Failure {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Foreign => Self::NoLimiter,
            Refusal::LogFull => Self::LogFull,
        }
    }
}
