//! The thin safe layer over the server's module API, and the only room that says `unsafe`.
//!
//! The server calls in on one thread at a time, under its global lock, so what is kept in statics here is never contended. It
//! does call in while a callback of ours runs, to tell of the events of our own writes: whoever holds a lock then must be
//! asked with `try_lock`.
//!
//! `#[inline(always)]`, here and in what calls it, is on what every call passes through: left to itself the compiler keeps such
//! pieces apart once they have two users, and a call then hands its numbers on through memory.

mod api;
mod blocked;
mod call;
mod clock;
mod config;
mod context;
mod events;
mod failure;
mod filter;
mod gate;
mod info;
mod key;
mod load;
mod log;
mod register;
mod replicate;
mod reply;
mod site;
mod text;
mod unload;

use api::{api, hot};
pub use blocked::{Answer, Blocked, loses_replies};
pub use call::{Call, Command};
pub use clock::{ms, now_us};
pub use config::Config;
pub use context::{Context, arm, arm_anew, disarm, monotonic_ms};
pub use events::{Hearing, listen, stop_listening};
pub use failure::Failure;
pub use gate::Gate;
pub use key::{Content, Key, Order, ReadKey, Stored};
pub use load::Module;
pub use register::{Entry, entry};
pub use site::{Event, Site};
pub use text::{Lent, Text};

use std::panic::{AssertUnwindSafe, catch_unwind};

use redis_module::raw;

use crate::stats;

/// The border: no panic crosses it. A panic has been logged by then; it is counted here.
fn guarded(work: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
        core::mem::forget(payload); // its destructor could panic as well
        stats::bump(&stats::INTERNAL_ERRORS);
    }
}

/// Which of 256 classes a number is in, for tables that forget: Fibonacci hashing, where the upper bits of the product depend on
/// all of the number.
#[inline]
pub const fn class(number: u64) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}

const OK: i32 = raw::REDISMODULE_OK as i32;
const ERR: i32 = raw::REDISMODULE_ERR as i32;
