//! The one clock: the server's.

use redis_module::raw;

/// Does the server offer the time it decides expiry by, which stands still during a command, a transaction and a script?
pub fn cached() -> bool {
    // SAFETY: see `api!`.
    unsafe { raw::RedisModule_CachedMicroseconds }.is_some()
}

/// Microseconds since 1970, never less than 0: the server's cached time, or on a server without it (Redis 7.0) the system's.
#[inline]
pub fn now_us() -> i64 {
    // SAFETY: see `api!`.
    let now = match unsafe { raw::RedisModule_CachedMicroseconds } {
        // SAFETY: the function has no preconditions.
        Some(cached) => unsafe { cached() },
        None => system_us(),
    };
    now.max(0)
}

/// Milliseconds of a time that is not below 0, as [`now_us`] is.
#[inline]
pub const fn ms(us: i64) -> i64 {
    // Without a sign it takes a third of the instructions.
    (us.cast_unsigned() / 1000).cast_signed()
}

#[inline]
fn system_us() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and the pointer is to a time of ours. `SystemTime` asks the same, and takes three times as long
    // to wrap the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    // Seconds reach 292,000 years before they no longer fit; below one second nothing is negative.
    time.tv_sec.wrapping_mul(1_000_000).wrapping_add((time.tv_nsec.cast_unsigned() / 1000).cast_signed())
}
