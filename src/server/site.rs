//! A key by its name, in a context in which it may be opened, and its changes replicated and told.

use core::ffi::{CStr, c_int};

use redis_module::raw;

use super::{Context, Key, ReadKey, api, clock, hot, key};

/// The kinds of keyspace events we send.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// `set`.
    Set,
    /// `setrange`.
    SetRange,
    /// `incrby`.
    IncrBy,
    /// `expire`.
    Expire,
    /// `del`.
    Del,
    /// `hincrby`.
    HIncrBy,
    /// `zadd`.
    ZAdd,
    /// `zrem`.
    ZRem,
}

impl Event {
    const fn class_and_name(self) -> (c_int, &'static CStr) {
        match self {
            Self::Set => (raw::REDISMODULE_NOTIFY_STRING, c"set"),
            Self::SetRange => (raw::REDISMODULE_NOTIFY_STRING, c"setrange"),
            Self::IncrBy => (raw::REDISMODULE_NOTIFY_STRING, c"incrby"),
            Self::Expire => (raw::REDISMODULE_NOTIFY_GENERIC, c"expire"),
            Self::Del => (raw::REDISMODULE_NOTIFY_GENERIC, c"del"),
            Self::HIncrBy => (raw::REDISMODULE_NOTIFY_HASH, c"hincrby"),
            Self::ZAdd => (raw::REDISMODULE_NOTIFY_ZSET, c"zadd"),
            Self::ZRem => (raw::REDISMODULE_NOTIFY_ZSET, c"zrem"),
        }
    }
}

/// A key by its name, and where it may be opened.
#[derive(Debug)]
pub struct Site {
    /// A context of the server's, valid until the callback that got it returns, in the key's database.
    pub(super) context: *mut raw::RedisModuleCtx,
    /// A string object that lives as long.
    pub(super) name: *mut raw::RedisModuleString,
}

impl Site {
    /// The time, in microseconds since 1970. To be asked once a call.
    #[inline]
    pub fn now_us(&self) -> i64 {
        clock::now_us()
    }

    /// The number of the database.
    #[inline]
    pub fn db(&self) -> i32 {
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_GetSelectedDb)(self.context) }
    }

    /// The key's name.
    #[inline]
    pub fn key(&self) -> &[u8] {
        // SAFETY: the name lives as long as the site.
        unsafe { key::bytes(self.name) }
    }

    /// The context it is in.
    pub const fn context(&self) -> Context<'_> {
        // SAFETY: it is valid as long as the site.
        unsafe { Context::new(self.context) }
    }

    /// Opens the key to read and write. One handle at a time, see [`Key`].
    #[inline]
    pub fn open(&self) -> Key<'_> {
        Key::open(self, true)
    }

    /// Opens the key to read.
    pub fn open_to_read(&self) -> ReadKey<'_> {
        ReadKey::open(self)
    }

    /// Would the server refuse a command that may need memory?
    ///
    /// Above `maxmemory` the server evicts before every command and only refuses if that did not help, which the ratio does
    /// not tell; so above it, and only there, the server is asked by a write of no bytes, which changes nothing.
    #[inline]
    pub fn out_of_memory(&self) -> bool {
        // SAFETY: no preconditions.
        if unsafe { hot!(RedisModule_GetUsedMemoryRatio)() } <= 1.0 {
            return false;
        }
        self.refused_for_memory()
    }

    /// Tells watchers, client-side caches and listeners that the key has changed. To be called after the change, with nothing
    /// lent of the key's value: another module may change it now.
    #[inline(always)] // what `events` are is known where it is called
    pub fn changed(&self, events: &[Event]) {
        // SAFETY: context and name are those of the running command.
        unsafe { hot!(RedisModule_SignalModifiedKey)(self.context, self.name) };
        let notify = hot!(RedisModule_NotifyKeyspaceEvent);
        for event in events {
            let (class, name) = event.class_and_name();
            // SAFETY: as above; the event's name ends with NUL.
            unsafe { notify(self.context, class, name.as_ptr(), self.name) };
        }
    }
}
