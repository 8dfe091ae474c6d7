//! The server's functions, by their names there.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_long, c_longlong};

use redis_module::raw::{self, RedisModuleCtx, RedisModuleKey, RedisModuleString};

/// One function of the server's API. [`copy`] has seen that those exist that every call needs; should another one be missing
/// all the same, the call panics, which the border turns into an error reply.
macro_rules! api {
    ($name:ident) => {{
        #[allow(unused_unsafe, reason = "often called within a block that is unsafe for the call's own sake")]
        // SAFETY: the table of functions is written when a load begins, before anything of ours runs, and only read since.
        let function = unsafe { redis_module::raw::$name };
        match function {
            Some(function) => function,
            None => $crate::server::api::absent(stringify!($name)),
        }
    }};
}
pub(super) use api;

/// One of the functions that a call spends its time in. From the copy of the table that is ours alone it is one instruction to
/// call it; from the crate's it is five, because another object could change that one at any time.
macro_rules! hot {
    ($name:ident) => {{
        #[allow(unused_unsafe, reason = "often called within a block that is unsafe for the call's own sake")]
        // SAFETY: written by the load function only, which fails if one is missing; nothing of ours is called before.
        let function = unsafe { (*$crate::server::api::HOT.0.get()).$name.unwrap_unchecked() };
        function
    }};
}
pub(super) use hot;

#[cold]
#[allow(clippy::panic, reason = "caught at the border; load refuses servers that lack a function")]
pub(super) fn absent(name: &str) -> ! {
    panic!("the server has no {name}")
}

pub(super) struct Hot(pub UnsafeCell<Functions>);

// SAFETY: written while the module is loaded and nothing else of it runs: a server that has it loaded refuses to load it again.
unsafe impl Sync for Hot {}

macro_rules! functions {
    ($($name:ident: $type:ty,)*) => {
        #[allow(non_snake_case, reason = "the names are the server's")]
        pub(super) struct Functions { $(pub $name: Option<$type>,)* }

        pub(super) static HOT: Hot = Hot(UnsafeCell::new(Functions { $($name: None,)* }));

        /// Copies the functions. To be done before any other is called. False: the server lacks one.
        pub(super) fn copy() -> bool {
            // SAFETY: the crate's table is complete; nobody else reads or writes ours while the module is being loaded.
            unsafe {
                let hot = &mut *HOT.0.get();
                $(hot.$name = raw::$name;)*
                [$(hot.$name.is_some(),)*].into_iter().all(|there| there)
            }
        }
    };
}

functions! {
    RedisModule_OpenKey: unsafe extern "C" fn(*mut RedisModuleCtx, *mut RedisModuleString, c_int) -> *mut RedisModuleKey,
    RedisModule_CloseKey: unsafe extern "C" fn(*mut RedisModuleKey),
    RedisModule_KeyType: unsafe extern "C" fn(*mut RedisModuleKey) -> c_int,
    RedisModule_StringDMA: unsafe extern "C" fn(*mut RedisModuleKey, *mut usize, c_int) -> *mut c_char,
    RedisModule_StringTruncate: unsafe extern "C" fn(*mut RedisModuleKey, usize) -> c_int,
    RedisModule_StringSet: unsafe extern "C" fn(*mut RedisModuleKey, *mut RedisModuleString) -> c_int,
    RedisModule_DeleteKey: unsafe extern "C" fn(*mut RedisModuleKey) -> c_int,
    RedisModule_GetAbsExpire: unsafe extern "C" fn(*mut RedisModuleKey) -> raw::mstime_t,
    RedisModule_SetAbsExpire: unsafe extern "C" fn(*mut RedisModuleKey, raw::mstime_t) -> c_int,
    RedisModule_StringPtrLen: unsafe extern "C" fn(*const RedisModuleString, *mut usize) -> *const c_char,
    RedisModule_Replicate: unsafe extern "C" fn(*mut RedisModuleCtx, *const c_char, *const c_char, ...) -> c_int,
    RedisModule_SignalModifiedKey: unsafe extern "C" fn(*mut RedisModuleCtx, *mut RedisModuleString) -> c_int,
    RedisModule_NotifyKeyspaceEvent:
        unsafe extern "C" fn(*mut RedisModuleCtx, c_int, *const c_char, *mut RedisModuleString) -> c_int,
    RedisModule_AvoidReplicaTraffic: unsafe extern "C" fn() -> c_int,
    RedisModule_GetUsedMemoryRatio: unsafe extern "C" fn() -> f32,
    RedisModule_ReplyWithArray: unsafe extern "C" fn(*mut RedisModuleCtx, c_long) -> c_int,
    RedisModule_ReplyWithLongLong: unsafe extern "C" fn(*mut RedisModuleCtx, c_longlong) -> c_int,
}
