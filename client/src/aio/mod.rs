//! The API for tokio: [`Sluice`] is a server, [`Lock`] and [`Limiter`] come from it; [`Redlock`] is for several servers.
//!
//! A watchdog is a task of the runtime that the lock was acquired in. A runtime that is kept from running (blocking code in a
//! task) keeps it from renewing, and from telling; [`Guard::is_lost`] is right all the same, for it looks at the clock.

mod hold;
mod limiter;
mod link;
mod lock;
mod redlock;

pub use limiter::Limiter;
pub use link::Sluice;
pub use lock::{Guard, Lock};
pub use redlock::{Redlock, RedlockGuard};
pub use tokio_util::sync::CancellationToken;
