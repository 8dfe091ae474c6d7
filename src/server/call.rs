//! One call of a command: its words, its key, its reply, and the border that no panic crosses.

use core::ffi::{c_char, c_int};
use core::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use redis_module::raw;
use sluice_core::args::Words;
use sluice_core::limit::Verdict;

use super::{Failure, Lent, OK, Site, api, hot, key};
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
    site: Site,
    argv: *const *mut raw::RedisModuleString,
    argc: usize,
}

/// What the server calls for a command.
pub(super) unsafe extern "C" fn enter<C: Command>(
    context: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // First, for then it is known that there is a key.
    let fits = fits(C::SPEC.arity, argc);
    let call = Call::new(context, argv, argc);
    if !fits {
        call.reply_failure(Failure::Arity);
        return OK;
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| C::run(&call)));
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

#[inline(always)]
const fn fits(arity: i32, argc: c_int) -> bool {
    if arity < 0 { argc >= arity.saturating_neg() } else { argc == arity }
}

impl Deref for Call {
    type Target = Site;

    #[inline]
    fn deref(&self) -> &Site {
        &self.site
    }
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
    #[inline(always)]
    fn new(context: *mut raw::RedisModuleCtx, argv: *const *mut raw::RedisModuleString, argc: c_int) -> Self {
        let argc = argc.max(0).cast_unsigned() as usize;
        // The key is the first argument of every command of ours.
        // SAFETY: `argv` has `argc` elements.
        let name = if argc > 1 { unsafe { argv.add(1).read() } } else { ptr::null_mut() };
        Self { site: Site { context, name }, argv, argc }
    }

    /// Argument `index`, if there are so many.
    #[inline]
    pub(super) fn argument(&self, index: usize) -> Option<*mut raw::RedisModuleString> {
        // SAFETY: `argv` has `argc` elements, and `index` is below that.
        (index < self.argc).then(|| unsafe { self.argv.add(index).read() })
    }

    /// Argument `index` as a string object of the server's.
    #[inline]
    pub fn text(&self, index: usize) -> Result<Lent<'_>, Failure> {
        self.text_of(index, self.word(index))
    }

    /// The same where its bytes have been read already.
    #[inline]
    pub fn text_of<'c>(&'c self, index: usize, bytes: &'c [u8]) -> Result<Lent<'c>, Failure> {
        Ok(Lent { raw: self.argument(index).ok_or(Failure::Arity)?, bytes })
    }

    /// Replies an integer.
    #[inline]
    pub fn reply_integer(&self, number: i64) {
        // SAFETY: the context is that of the running command.
        unsafe { hot!(RedisModule_ReplyWithLongLong)(self.site.context, number) };
    }

    /// Replies a limiter's five integers.
    #[inline(always)] // so that the verdict is never in memory
    pub fn reply_verdict(&self, verdict: Verdict) {
        self.reply_array(5);
        self.reply_integer(i64::from(verdict.allowed));
        // Both are at most 10^12.
        self.reply_integer(verdict.limit.cast_signed());
        self.reply_integer(verdict.remaining.cast_signed());
        self.reply_integer(verdict.retry_after);
        self.reply_integer(verdict.reset_after);
    }

    /// Begins an array of `len` replies.
    #[inline]
    pub fn reply_array(&self, len: usize) {
        // SAFETY: as above.
        unsafe { hot!(RedisModule_ReplyWithArray)(self.site.context, whole(len as u64)) };
    }

    /// Begins a map of `len` pairs: in RESP2 an array, flat.
    pub fn reply_map(&self, len: usize) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithMap)(self.site.context, whole(len as u64)) };
    }

    /// Replies a string of any bytes.
    pub fn reply_bytes(&self, bytes: &[u8]) {
        // SAFETY: as above; the bytes are valid for the call, which copies them.
        unsafe {
            api!(RedisModule_ReplyWithStringBuffer)(self.site.context, bytes.as_ptr().cast::<c_char>(), bytes.len())
        };
    }

    fn reply_failure(&self, failure: Failure) {
        match failure.text() {
            // SAFETY: as above; the text ends with NUL.
            Some(text) => unsafe { api!(RedisModule_ReplyWithError)(self.site.context, text.as_ptr()) },
            // SAFETY: as above.
            None => unsafe { api!(RedisModule_WrongArity)(self.site.context) },
        };
    }
}

#[inline]
fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
