//! The one clock: the server's.

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

#[inline]
fn system_us() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and the pointer is to a time of ours. `SystemTime` asks the same, and takes three times as long
    // to wrap the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    // A time that does not fit into 292,000 years is no time.
    time.tv_sec.wrapping_mul(1_000_000).wrapping_add(time.tv_nsec / 1000)
}
