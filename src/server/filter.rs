//! The words of other clients' commands, in place of what the server tells of keys.
//!
//! Redis 7.0 makes a context and a client for every event of a key that a module listens to, which doubles what the event
//! costs everybody, and cannot be told to stop. It is also the server on which a hand-over after a foreign command comes by a
//! timer, after the commands that were read with it: so there nothing is lost by hearing of the command before it runs. So on
//! a server without jobs after a command ([`takes_words`]) the words of all commands are held against the waited keys while
//! somebody waits, and of events only evictions are listened to, where there is a limit of memory: a lease that ends is waited for anyway.
//!
//! What scripts, functions and other modules call passes here as well. It does not while a call of our own runs (then another
//! module hears of our write, and acts on it), nor when another module changes a key that no command names. Such keys are
//! looked at once a second, as all waited keys are.

use core::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use redis_module::raw;

use super::context::own;
use super::{api, guarded, hot, key};
use crate::waiters;

/// Ours, while it is registered.
static FILTER: AtomicPtr<raw::RedisModuleCommandFilter> = AtomicPtr::new(ptr::null_mut());

/// Is the server one whose commands are listened to, and not its keys?
pub(super) fn takes_words() -> bool {
    // SAFETY: see `api!`.
    let (jobs, register, unregister, count, word) = unsafe {
        (
            raw::RedisModule_AddPostNotificationJob,
            raw::RedisModule_RegisterCommandFilter,
            raw::RedisModule_UnregisterCommandFilter,
            raw::RedisModule_CommandFilterArgsCount,
            raw::RedisModule_CommandFilterArgGet,
        )
    };
    jobs.is_none() && register.is_some() && unregister.is_some() && count.is_some() && word.is_some()
}

/// Has the words of all commands pass by [`passes`] from now on. False: the server does not do that.
pub(super) fn start() -> bool {
    if FILTER.load(Relaxed).is_null() {
        // Our own calls into the server name waited keys all the time, and are none of its news.
        let flags = raw::REDISMODULE_CMDFILTER_NOSELF as c_int;
        // SAFETY: the context lives as long as the module.
        let filter = unsafe { api!(RedisModule_RegisterCommandFilter)(own(), Some(passes), flags) };
        FILTER.store(filter, Relaxed);
    }
    !FILTER.load(Relaxed).is_null()
}

/// Has them pass by no more. Not to be called from within a command or a callback that a command may cause: the server may be
/// on its way through the list of filters, because another module's has called that command.
pub(super) fn stop() {
    let filter = FILTER.swap(ptr::null_mut(), Relaxed);
    if !filter.is_null() {
        // SAFETY: what `start` was given, given back once.
        unsafe { api!(RedisModule_UnregisterCommandFilter)(own(), filter) };
    }
}

/// Every command of the server comes by here while somebody waits, also those that only read: so this is short, and most words
/// are told from a waited key by their length.
unsafe extern "C" fn passes(command: *mut raw::RedisModuleCommandFilterCtx) {
    let lengths = waiters::SIEVE.lengths();
    if lengths.is_empty() {
        return;
    }
    // SAFETY: see `api!`; without them nothing is registered.
    let (Some(count), Some(word)) =
        (unsafe { (raw::RedisModule_CommandFilterArgsCount, raw::RedisModule_CommandFilterArgGet) })
    else {
        return;
    };
    // SAFETY: the command is the one that is passing by.
    let count = unsafe { count(command) };
    if count == 1 {
        guarded(waiters::doubt);
        return;
    }
    // The first word is the command's own name.
    for at in 1..count {
        let mut len = 0;
        // SAFETY: as above, and it has so many words, which nobody replaces before this returns.
        let bytes = unsafe { hot!(RedisModule_StringPtrLen)(word(command, at), &raw mut len) };
        if lengths.may_have(len) {
            // SAFETY: the server gave both, of one string; the command is the one that is passing by.
            unsafe { seen(command, core::slice::from_raw_parts(bytes.cast::<u8>(), len)) };
        }
    }
}

/// A word as long as a key that somebody waits for.
///
/// # Safety
/// `command` is the one that is passing by.
#[inline(never)]
unsafe fn seen(command: *mut raw::RedisModuleCommandFilterCtx, word: &[u8]) {
    if waiters::SIEVE.may_have(word) {
        guarded(|| {
            // SAFETY: as the caller promised; a command has a name.
            let name = unsafe { key::bytes(api!(RedisModule_CommandFilterArgGet)(command, 0)) };
            waiters::named(name, word);
        });
    }
}
