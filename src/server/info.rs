//! `INFO sluice`.

use core::ffi::c_int;
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis_module::raw;

use super::{api, guarded};
use crate::{MODULE, stats};

/// What the server calls for INFO. It names the section after the module, and each field `sluice_…`.
pub(super) unsafe extern "C" fn show(context: *mut raw::RedisModuleInfoCtx, _crashing: c_int) {
    guarded(|| {
        // SAFETY: the context is that of the running call; an empty name stands for the module's.
        if unsafe { api!(RedisModule_InfoAddSection)(context, c"".as_ptr()) } != super::OK {
            return; // another section was asked for
        }
        let show = |name: &str, counter: &AtomicU64| {
            let Ok(name) = CString::new(name) else { return };
            // SAFETY: as above; the name outlives the call, which copies it.
            unsafe { api!(RedisModule_InfoAddFieldULongLong)(context, name.as_ptr(), counter.load(Relaxed)) };
        };
        for (family, counters) in [("lock", &stats::LOCK), ("sem", &stats::SEM)] {
            for (name, counter) in counters.fields() {
                show(&format!("{family}_{name}"), counter);
            }
        }
        for (name, counter) in stats::COUNTERS {
            show(name, counter);
        }
        if let Ok(version) = CString::new(MODULE.version) {
            // SAFETY: as above.
            unsafe { api!(RedisModule_InfoAddFieldCString)(context, c"version".as_ptr(), version.as_ptr()) };
        }
    });
}
