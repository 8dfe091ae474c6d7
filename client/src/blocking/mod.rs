//! The blocking API: [`Sluice`] is a server, [`Lock`] and [`Limiter`] come from it; [`Redlock`] is for several servers.

mod hold;
mod limiter;
mod link;
mod lock;
mod redlock;

pub use limiter::Limiter;
pub use link::Sluice;
pub use lock::{Guard, Lock};
pub use redlock::{Redlock, RedlockGuard};
