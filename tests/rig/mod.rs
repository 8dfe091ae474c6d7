//! The rig of the integration tests: real servers, real sockets, and waiting for conditions.
//!
//! Each file in `tests/` says `mod rig;` and uses the part it needs. Nothing here sleeps and hopes: whatever takes time is
//! asked for with [`wait_until`] or [`wait_for`], with a deadline and a message.
//!
//! clippy.toml lets test functions unwrap, but not the helpers beside them: a file with helpers begins with the same
//! `#![allow(…)]` as this one.
#![allow(dead_code, unused_imports, missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod client;
pub mod cluster;
mod dump;
pub mod line;
pub mod noise;
pub mod sentinel;
mod server;
mod spawn;
mod value;

pub use client::Client;
pub(crate) use client::args;
pub use dump::{Entry, dump_all};
pub use redis::Value;
pub use server::{Builder, Server, cli_program, module_file, replica, server_program, target_dir, wait_for_sync};
pub use spawn::in_path;
pub use value::ValueExt;

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Long enough for whatever should happen at once, on a machine that is busy with something else.
pub const SOON: Duration = Duration::from_secs(20);

/// A [`Duration`] of so many milliseconds.
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What has to be done before a time is over that runs all along, though the machine may stand still for longer than that:
/// where it was not in time, it is tried once more with four times as much. `attempt` is given its time in ms, and says by `None`
/// that it was over too soon to tell.
#[track_caller]
pub fn in_time<T>(least: u64, mut attempt: impl FnMut(u64) -> Option<T>) -> T {
    let times: Vec<u64> = (0..5).map(|turn| least << (2 * turn)).collect();
    times.iter().find_map(|time| attempt(*time)).unwrap_or_else(|| panic!("too late each time, with {times:?} ms"))
}

/// Asks `is_so` every millisecond until it says yes; at the deadline it panics with `what`.
#[track_caller]
pub fn wait_until(within: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(within, what, &mut is_so, |yes| *yes);
}

/// Looks every millisecond until `is_it` likes what was seen, and returns it; at the deadline it panics with `what` and
/// the last value seen.
#[track_caller]
pub fn wait_for<T: Debug>(within: Duration, what: &str, mut look: impl FnMut() -> T, is_it: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + within;
    loop {
        // The clock is read before the look: what is seen in time counts, however long the look itself took.
        let late = Instant::now() >= deadline;
        let seen = look();
        if is_it(&seen) {
            return seen;
        }
        assert!(!late, "not within {within:?}: {what}; last seen: {seen:?}");
        std::thread::sleep(ms(1));
    }
}
