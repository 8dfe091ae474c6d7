//! A key by its name, in a context in which it may be opened, and its changes replicated and told.

use core::ffi::{CStr, c_int};

use redis_module::raw;

use super::{Failure, Key, api, clock};

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
}

impl Event {
    const fn class_and_name(self) -> (c_int, &'static CStr) {
        match self {
            Self::Set => (raw::REDISMODULE_NOTIFY_STRING, c"set"),
            Self::SetRange => (raw::REDISMODULE_NOTIFY_STRING, c"setrange"),
            Self::IncrBy => (raw::REDISMODULE_NOTIFY_STRING, c"incrby"),
            Self::Expire => (raw::REDISMODULE_NOTIFY_GENERIC, c"expire"),
            Self::Del => (raw::REDISMODULE_NOTIFY_GENERIC, c"del"),
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

    /// Opens the key to read and write.
    #[inline]
    pub fn open(&self) -> Key<'_> {
        Key::open(self, true)
    }

    /// Opens the key to read.
    pub fn open_to_read(&self) -> Key<'_> {
        Key::open(self, false)
    }

    /// Would the server refuse a command that may need memory?
    ///
    /// Above `maxmemory` the server evicts before every command and only refuses if that did not help, which the ratio does
    /// not tell; so above it, and only there, the server is asked by a write of no bytes, which changes nothing.
    #[inline]
    pub fn out_of_memory(&self) -> bool {
        // SAFETY: no preconditions.
        if unsafe { api!(RedisModule_GetUsedMemoryRatio)() } <= 1.0 {
            return false;
        }
        self.refused_for_memory()
    }

    #[cold]
    fn refused_for_memory(&self) -> bool {
        let call = api!(RedisModule_Call);
        // SAFETY: the format names the arguments that follow: a string of the server's, a C string, a C string.
        let reply = unsafe {
            call(self.context, c"SETRANGE".as_ptr(), c"EMscc".as_ptr(), self.name, c"0".as_ptr(), c"".as_ptr())
        };
        if reply.is_null() {
            return true;
        }
        let mut len = 0;
        // SAFETY: the reply is not null and not yet freed.
        let refused = unsafe {
            let text = api!(RedisModule_CallReplyStringPtr)(reply, &raw mut len);
            api!(RedisModule_CallReplyType)(reply) == raw::REDISMODULE_REPLY_ERROR as c_int
                && !text.is_null()
                && core::slice::from_raw_parts(text.cast::<u8>(), len).starts_with(b"OOM")
        };
        // SAFETY: freed once.
        unsafe { api!(RedisModule_FreeCallReply)(reply) };
        refused
    }

    /// `DEL key`, as a client would send it. No handle on a key that holds something may be open.
    #[cold]
    pub(super) fn delete_by_name(&self) -> Result<(), Failure> {
        // SAFETY: the format names the arguments that follow; a reply that is not null is freed once.
        unsafe {
            let reply = api!(RedisModule_Call)(self.context, c"DEL".as_ptr(), c"!s".as_ptr(), self.name);
            if reply.is_null() {
                return Err(Failure::Internal);
            }
            api!(RedisModule_FreeCallReply)(reply);
        }
        Ok(())
    }

    /// Tells watchers, client-side caches and listeners that the key has changed. To be called after the change.
    #[inline]
    pub fn changed(&self, events: &[Event]) {
        // SAFETY: context and name are those of the running command.
        unsafe { api!(RedisModule_SignalModifiedKey)(self.context, self.name) };
        let notify = api!(RedisModule_NotifyKeyspaceEvent);
        for event in events {
            let (class, name) = event.class_and_name();
            // SAFETY: as above; the event's name ends with NUL.
            unsafe { notify(self.context, class, name.as_ptr(), self.name) };
        }
    }
}
