//! The one clock: the server's.

use std::time::{SystemTime, UNIX_EPOCH};

use redis_module::raw;

/// Does the server offer the time it decides expiry by, which stands still during a command, a transaction and a script?
pub fn cached() -> bool {
    // SAFETY: see `api!`.
    unsafe { raw::RedisModule_CachedMicroseconds }.is_some()
}

/// Microseconds since 1970: the server's cached time, or on a server without it (Redis 7.0) the system's.
#[inline]
pub fn now_us() -> i64 {
    // SAFETY: see `api!`.
    match unsafe { raw::RedisModule_CachedMicroseconds } {
        // SAFETY: the function has no preconditions.
        Some(cached) => unsafe { cached() },
        None => system_us(),
    }
}

fn system_us() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_micros()).ok())
        .unwrap_or(0)
}
