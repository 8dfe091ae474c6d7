//! The server's log. Nothing a caller sent may get in here, so a line is made of fixed words and numbers.

use core::ffi::CStr;
use std::ffi::CString;
use std::ptr;

use super::api;

fn write(level: &CStr, line: &str) {
    let Ok(line) = CString::new(line) else { return };
    let log = api!(RedisModule_Log);
    // SAFETY: a null context is allowed; both strings end with NUL and outlive the call; the format takes one string.
    unsafe { log(ptr::null_mut(), level.as_ptr(), c"%s".as_ptr(), line.as_ptr()) };
}

/// One line at level `notice`.
pub fn notice(line: &str) {
    write(c"notice", line);
}

/// One line at level `warning`.
pub fn warning(line: &str) {
    write(c"warning", line);
}
