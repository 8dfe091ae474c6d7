//! One call of a command: its words, its key, its reply, and the border that no panic crosses.

use core::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use redis_module::raw;
use sluice_core::args::Words;
use sluice_core::limit::Verdict;

use super::{Failure, Key, OK, api, clock, key};
use crate::{spec, stats};

/// A command: its row in the table, and what it does.
pub trait Command {
    /// Its row.
    const SPEC: &'static spec::Command;

    /// Answers one call. It has replied if and only if it returns `Ok`.
    fn run(call: &Call) -> Result<(), Failure>;
}

/// One call of a command.
#[derive(Debug)]
pub struct Call {
    context: *mut raw::RedisModuleCtx,
    argv: *const *mut raw::RedisModuleString,
    argc: usize,
}

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

/// What the server calls for a command.
pub(super) unsafe extern "C" fn enter<C: Command>(
    context: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let call = Call { context, argv, argc: usize::try_from(argc).unwrap_or(0) };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        if !fits(C::SPEC.arity, argc) {
            return Err(Failure::Arity);
        }
        C::run(&call)
    }));
    let failure = match outcome {
        Ok(Ok(())) => return OK,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            // Its destructor could panic as well.
            core::mem::forget(payload);
            Failure::Internal
        }
    };
    if matches!(failure, Failure::Internal) {
        stats::bump(&stats::INTERNAL_ERRORS);
    }
    call.reply_failure(failure);
    OK
}

const fn fits(arity: i32, argc: c_int) -> bool {
    if arity < 0 { argc >= arity.saturating_neg() } else { argc == arity }
}

impl Words for Call {
    #[inline]
    fn count(&self) -> usize {
        self.argc
    }

    #[inline]
    fn word(&self, index: usize) -> &[u8] {
        // SAFETY: the server keeps a command's arguments until it has returned, and nobody writes to them.
        self.argument(index).map_or(&[], |text| unsafe { key::bytes(text) })
    }
}

impl Call {
    pub(super) const fn context(&self) -> *mut raw::RedisModuleCtx {
        self.context
    }

    /// Argument `index`, if there are so many.
    #[inline]
    pub(super) fn argument(&self, index: usize) -> Option<*mut raw::RedisModuleString> {
        // SAFETY: `argv` has `argc` elements, and `index` is below that.
        (index < self.argc).then(|| unsafe { self.argv.add(index).read() })
    }

    /// The name of the key: the first argument, for every command of ours.
    #[inline]
    pub(super) fn key_name(&self) -> *mut raw::RedisModuleString {
        self.argument(1).unwrap_or(ptr::null_mut())
    }

    /// The time of this call, in microseconds since 1970. To be asked once a call.
    #[inline]
    pub fn now_us(&self) -> i64 {
        clock::now_us()
    }

    /// Opens the key to read and write.
    #[inline]
    pub fn open(&self) -> Key<'_> {
        Key::open(self, self.key_name(), true)
    }

    /// Opens the key to read.
    pub fn open_to_read(&self) -> Key<'_> {
        Key::open(self, self.key_name(), false)
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
            call(self.context, c"SETRANGE".as_ptr(), c"EMscc".as_ptr(), self.key_name(), c"0".as_ptr(), c"".as_ptr())
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
            let reply = api!(RedisModule_Call)(self.context, c"DEL".as_ptr(), c"!s".as_ptr(), self.key_name());
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
        unsafe { api!(RedisModule_SignalModifiedKey)(self.context, self.key_name()) };
        let notify = api!(RedisModule_NotifyKeyspaceEvent);
        for event in events {
            let (class, name) = event.class_and_name();
            // SAFETY: as above; the event's name ends with NUL.
            unsafe { notify(self.context, class, name.as_ptr(), self.key_name()) };
        }
    }

    /// Replies an integer.
    #[inline]
    pub fn reply_integer(&self, number: i64) {
        // SAFETY: the context is that of the running command.
        unsafe { api!(RedisModule_ReplyWithLongLong)(self.context, number) };
    }

    /// Replies a limiter's five integers.
    #[inline]
    pub fn reply_verdict(&self, verdict: &Verdict) {
        self.reply_array(5);
        self.reply_integer(i64::from(verdict.allowed));
        self.reply_integer(whole(verdict.limit));
        self.reply_integer(whole(verdict.remaining));
        self.reply_integer(verdict.retry_after);
        self.reply_integer(verdict.reset_after);
    }

    /// Begins an array of `len` replies.
    #[inline]
    pub fn reply_array(&self, len: usize) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithArray)(self.context, whole(len as u64)) };
    }

    /// Begins a map of `len` pairs: in RESP2 an array, flat.
    pub fn reply_map(&self, len: usize) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithMap)(self.context, whole(len as u64)) };
    }

    /// Replies a string of any bytes.
    pub fn reply_bytes(&self, bytes: &[u8]) {
        // SAFETY: as above; the bytes are valid for the call, which copies them.
        unsafe { api!(RedisModule_ReplyWithStringBuffer)(self.context, bytes.as_ptr().cast::<c_char>(), bytes.len()) };
    }

    fn reply_failure(&self, failure: Failure) {
        match failure.text() {
            // SAFETY: as above; the text ends with NUL.
            Some(text) => unsafe { api!(RedisModule_ReplyWithError)(self.context, text.as_ptr()) },
            // SAFETY: as above.
            None => unsafe { api!(RedisModule_WrongArity)(self.context) },
        };
    }
}

#[inline]
fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
