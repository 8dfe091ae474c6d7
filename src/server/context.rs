//! Work outside a command: contexts, the one timer, jobs after a command.

use core::ffi::c_void;
use core::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use redis_module::raw;

use super::{OK, Site, Text, api, guarded};
use crate::waiters;

/// A context of the server's, for the length of one callback.
#[derive(Debug)]
pub struct Context<'c> {
    raw: *mut raw::RedisModuleCtx,
    callback: PhantomData<&'c ()>,
}

/// Puts a context back into the database it was in, also when the work in another one has failed.
struct Back(*mut raw::RedisModuleCtx, i32);

impl Drop for Back {
    fn drop(&mut self) {
        // SAFETY: the context outlives this, which lives within one of its methods.
        unsafe { api!(RedisModule_SelectDb)(self.0, self.1) };
    }
}

impl Context<'_> {
    /// The context a callback was given.
    ///
    /// # Safety
    /// `raw` is valid until the callback returns, and the value is not kept beyond that.
    pub(super) const unsafe fn new(raw: *mut raw::RedisModuleCtx) -> Self {
        Self { raw, callback: PhantomData }
    }

    /// Does `work` on a key of any database.
    pub fn at<R>(&self, db: i32, key: &[u8], work: impl FnOnce(&Site) -> R) -> R {
        let name = Text::new(key);
        // Some servers run a callback on the client whose command has caused it, and a client must stay in its database.
        // SAFETY: the context is valid.
        let _back = Back(self.raw, unsafe { api!(RedisModule_GetSelectedDb)(self.raw) });
        // SAFETY: as above.
        unsafe { api!(RedisModule_SelectDb)(self.raw, db) };
        work(&Site { context: self.raw, name: name.raw() })
    }

    pub(super) const fn raw(&self) -> *mut raw::RedisModuleCtx {
        self.raw
    }

    /// Is this server a replica, or still reading its data?
    pub fn is_passive(&self) -> bool {
        let flags = context_flags(self.raw);
        flags & (raw::REDISMODULE_CTX_FLAGS_SLAVE | raw::REDISMODULE_CTX_FLAGS_LOADING) != 0
    }

    /// Is this server a node of a cluster?
    pub fn in_cluster(&self) -> bool {
        context_flags(self.raw) & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0
    }

    /// Has [`waiters::work`] done as soon as the running command, transaction or script is over; on a server without such jobs
    /// (Redis 7.0) after the commands that have already been read.
    pub fn work_soon(&self) {
        // SAFETY: see `api!`.
        if let Some(add) = unsafe { raw::RedisModule_AddPostNotificationJob } {
            if JOB.load(Relaxed) {
                return;
            }
            // SAFETY: the job has no data; the context is valid.
            if unsafe { add(self.raw, Some(job), ptr::null_mut(), None) } == OK {
                JOB.store(true, Relaxed);
                return;
            }
        }
        arm(0);
    }
}

pub(super) fn context_flags(context: *mut raw::RedisModuleCtx) -> u32 {
    // SAFETY: the context is valid.
    unsafe { api!(RedisModule_GetContextFlags)(context) }.cast_unsigned()
}

/// Is a job on its way?
static JOB: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn job(context: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    JOB.store(false, Relaxed);
    // SAFETY: the context is that of the running job.
    guarded(|| waiters::work(&unsafe { Context::new(context) }));
}

/// A context that lives as long as the module is loaded: for what needs one only to know whose it is.
static OWN: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// The one timer: its id, and when it is due (monotonic ms).
static TIMER: Mutex<Option<(raw::RedisModuleTimerID, i64)>> = Mutex::new(None);

/// Monotonic milliseconds: for spans, not for dates.
pub fn monotonic_ms() -> i64 {
    // SAFETY: no preconditions.
    let us = unsafe { api!(RedisModule_MonotonicMicroseconds)() };
    i64::try_from(us / 1000).unwrap_or(i64::MAX)
}

/// Has [`waiters::tick`] called in at most `ms` from now. A timer that comes no later stays as it is.
pub fn arm(ms: i64) {
    let due = monotonic_ms().saturating_add(ms);
    let mut timer = TIMER.lock().unwrap_or_else(PoisonError::into_inner);
    let own = OWN.load(Relaxed);
    if let Some((id, earlier)) = *timer {
        if earlier <= due {
            return;
        }
        // SAFETY: the timer is ours and has not fired; it has no data.
        unsafe { api!(RedisModule_StopTimer)(own, id, ptr::null_mut()) };
    }
    // SAFETY: the context lives as long as the module.
    let id = unsafe { api!(RedisModule_CreateTimer)(own, ms.max(0), Some(fire), ptr::null_mut()) };
    *timer = Some((id, due));
}

/// Has [`waiters::tick`] called at once, whatever the timer had been armed for.
pub fn arm_anew() {
    disarm();
    arm(0);
}

/// Nothing is to be done later. A server that knows of a timer does not unload the module (Redis from 7.2, Valkey).
pub fn disarm() {
    if let Some((id, _)) = TIMER.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // SAFETY: as in `arm`.
        unsafe { api!(RedisModule_StopTimer)(OWN.load(Relaxed), id, ptr::null_mut()) };
    }
}

unsafe extern "C" fn fire(context: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // A timer that has fired is gone: it must not be stopped any more.
    *TIMER.lock().unwrap_or_else(PoisonError::into_inner) = None;
    // SAFETY: the context is that of the running callback.
    guarded(|| waiters::tick(&unsafe { Context::new(context) }));
}

/// At load.
pub(super) fn prepare(context: *mut raw::RedisModuleCtx) {
    JOB.store(false, Relaxed); // one that was on its way when the module was unloaded is not any more
    // SAFETY: the context is that of the running load.
    OWN.store(unsafe { api!(RedisModule_GetDetachedThreadSafeContext)(context) }, Relaxed);
}

/// At unload: no timer may be left.
pub(super) fn release() {
    disarm();
    let own = OWN.swap(ptr::null_mut(), Relaxed);
    if !own.is_null() {
        // SAFETY: made by `prepare`, freed once.
        unsafe { api!(RedisModule_FreeThreadSafeContext)(own) };
    }
}

/// For calls that need a context only to know whose it is.
pub(super) fn own() -> *mut raw::RedisModuleCtx {
    OWN.load(Relaxed)
}
