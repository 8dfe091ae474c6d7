//! Effects, as replicas and the AOF get them: plain commands of the server's, with absolute times.
//!
//! Formats are chosen by price: an existing string (`s`) costs a tenth of bytes to copy (`b`), and the server's own number
//! format (`l`) twice those.

use core::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering::Relaxed};

use redis_module::raw;

use super::text::Word;
use super::{Failure, Lent, OK, Site, Text, class, hot};

static PXAT: Word = Word::new(b"PXAT");
static KEEPTTL: Word = Word::new(b"KEEPTTL");

/// A number as a string object, kept for the next time it is sent: an existing string costs a tenth of a new one.
struct Number {
    number: AtomicI64,
    text: AtomicPtr<raw::RedisModuleString>,
}

/// Deadlines. On a busy server the leases of one millisecond end together, and limiters end at round times.
static DEADLINE: [Number; 64] = [const { Number::new() }; 64];

/// A deadline as a string object.
#[inline]
fn deadline(ms: i64) -> *mut raw::RedisModuleString {
    DEADLINE.get(class(ms.cast_unsigned()) / 4).unwrap_or(&DEADLINE[0]).raw(ms)
}

/// Places within a string. Keys whose values are laid out alike are written to at the same places, over and over.
const PLACES: usize = 1021;
static PLACE: [Number; PLACES] = [const { Number::new() }; PLACES];
/// Places from here on are too many to be kept.
const FAR: usize = 8 * PLACES;

impl Number {
    const fn new() -> Self {
        Self { number: AtomicI64::new(0), text: AtomicPtr::new(ptr::null_mut()) }
    }

    /// For a call into the API that only borrows it or counts its own reference.
    #[inline]
    fn raw(&self, number: i64) -> *mut raw::RedisModuleString {
        let text = self.text.load(Relaxed);
        if self.number.load(Relaxed) == number && !text.is_null() { text } else { self.make(number) }
    }

    #[inline(never)]
    fn make(&self, number: i64) -> *mut raw::RedisModuleString {
        let text = ManuallyDrop::new(Text::new(itoa::Buffer::new().format(number).as_bytes()));
        self.free();
        self.number.store(number, Relaxed);
        self.text.store(text.raw(), Relaxed);
        text.raw()
    }

    fn free(&self) {
        // SAFETY: `make` has left its reference here, and it is taken out once.
        drop(unsafe { Text::own(self.text.swap(ptr::null_mut(), Relaxed)) });
    }
}

impl Site {
    /// `SET key value PXAT deadline`.
    #[inline]
    pub fn replicate_set(&self, value: &[u8], deadline: i64) -> Result<(), Failure> {
        let mut digits = itoa::Buffer::new();
        let deadline = digits.format(deadline);
        // SAFETY: the format names the arguments that follow, and all of them outlive the call.
        sent(unsafe {
            hot!(RedisModule_Replicate)(
                self.context,
                c"SET".as_ptr(),
                c"sbsb".as_ptr(),
                self.name,
                value.as_ptr(),
                value.len(),
                PXAT.raw(),
                deadline.as_ptr(),
                deadline.len(),
            )
        })
    }

    /// `SET key value PXAT deadline`, the deadline one that other keys have too.
    #[inline]
    pub fn replicate_set_shared(&self, value: &[u8], deadline: i64) -> Result<(), Failure> {
        // SAFETY: as above.
        sent(unsafe {
            hot!(RedisModule_Replicate)(
                self.context,
                c"SET".as_ptr(),
                c"sbss".as_ptr(),
                self.name,
                value.as_ptr(),
                value.len(),
                PXAT.raw(),
                self::deadline(deadline),
            )
        })
    }

    /// `SET key value PXAT deadline`, the value a string object that is shared and not copied.
    #[inline(always)]
    pub fn replicate_set_text(&self, value: Lent<'_>, deadline: i64) -> Result<(), Failure> {
        // SAFETY: as above.
        sent(unsafe {
            hot!(RedisModule_Replicate)(
                self.context,
                c"SET".as_ptr(),
                c"ssss".as_ptr(),
                self.name,
                value.raw,
                PXAT.raw(),
                self::deadline(deadline),
            )
        })
    }

    /// `SET key value KEEPTTL`.
    #[inline]
    pub fn replicate_set_alone(&self, value: &[u8]) -> Result<(), Failure> {
        // SAFETY: as above.
        sent(unsafe {
            hot!(RedisModule_Replicate)(
                self.context,
                c"SET".as_ptr(),
                c"sbs".as_ptr(),
                self.name,
                value.as_ptr(),
                value.len(),
                KEEPTTL.raw(),
            )
        })
    }

    /// `HSET key field number`.
    pub fn replicate_hset(&self, field: Lent<'_>, number: u64) -> Result<(), Failure> {
        let mut digits = itoa::Buffer::new();
        let number = digits.format(number);
        // SAFETY: as above.
        sent(unsafe {
            hot!(RedisModule_Replicate)(
                self.context,
                c"HSET".as_ptr(),
                c"ssb".as_ptr(),
                self.name,
                field.raw,
                number.as_ptr(),
                number.len(),
            )
        })
    }

    /// `ZADD key score member`.
    pub fn replicate_zadd(&self, score: &str, member: Lent<'_>) -> Result<(), Failure> {
        // SAFETY: as above.
        sent(unsafe {
            hot!(RedisModule_Replicate)(
                self.context,
                c"ZADD".as_ptr(),
                c"sbs".as_ptr(),
                self.name,
                score.as_ptr(),
                score.len(),
                member.raw,
            )
        })
    }

    /// `ZREM key member`.
    pub fn replicate_zrem(&self, member: Lent<'_>) -> Result<(), Failure> {
        // SAFETY: as above.
        sent(unsafe {
            hot!(RedisModule_Replicate)(self.context, c"ZREM".as_ptr(), c"ss".as_ptr(), self.name, member.raw)
        })
    }

    /// `ZREMRANGEBYSCORE key -inf score`.
    pub fn replicate_zrem_up_to(&self, score: &str) -> Result<(), Failure> {
        // SAFETY: as above.
        sent(unsafe {
            hot!(RedisModule_Replicate)(
                self.context,
                c"ZREMRANGEBYSCORE".as_ptr(),
                c"scb".as_ptr(),
                self.name,
                c"-inf".as_ptr(),
                score.as_ptr(),
                score.len(),
            )
        })
    }

    /// `SETRANGE key at bytes`.
    #[inline]
    pub fn replicate_setrange(&self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        let kept = if at < FAR { PLACE.get(at % PLACES) } else { None };
        let Some(place) = kept else { return self.replicate_setrange_afar(at, bytes) };
        // SAFETY: as above.
        sent(unsafe {
            hot!(RedisModule_Replicate)(
                self.context,
                c"SETRANGE".as_ptr(),
                c"ssb".as_ptr(),
                self.name,
                place.raw(at as i64),
                bytes.as_ptr(),
                bytes.len(),
            )
        })
    }

    #[inline(never)]
    fn replicate_setrange_afar(&self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        let mut digits = itoa::Buffer::new();
        let at = digits.format(at);
        // SAFETY: as above.
        sent(unsafe {
            hot!(RedisModule_Replicate)(
                self.context,
                c"SETRANGE".as_ptr(),
                c"sbb".as_ptr(),
                self.name,
                at.as_ptr(),
                at.len(),
                bytes.as_ptr(),
                bytes.len(),
            )
        })
    }

    /// `INCR key` or `INCRBY key by`.
    #[inline]
    pub fn replicate_incr(&self, by: u64) -> Result<(), Failure> {
        if by == 1 {
            // SAFETY: as above.
            return sent(unsafe {
                hot!(RedisModule_Replicate)(self.context, c"INCR".as_ptr(), c"s".as_ptr(), self.name)
            });
        }
        let mut digits = itoa::Buffer::new();
        let by = digits.format(by);
        // SAFETY: as above.
        sent(unsafe {
            hot!(RedisModule_Replicate)(
                self.context,
                c"INCRBY".as_ptr(),
                c"sb".as_ptr(),
                self.name,
                by.as_ptr(),
                by.len(),
            )
        })
    }

    /// `PEXPIREAT key deadline`.
    #[inline]
    pub fn replicate_deadline(&self, deadline: i64) -> Result<(), Failure> {
        // SAFETY: as above.
        sent(unsafe {
            hot!(RedisModule_Replicate)(
                self.context,
                c"PEXPIREAT".as_ptr(),
                c"ss".as_ptr(),
                self.name,
                self::deadline(deadline),
            )
        })
    }

    /// `DEL key`.
    #[inline]
    pub fn replicate_del(&self) -> Result<(), Failure> {
        // SAFETY: as above.
        sent(unsafe { hot!(RedisModule_Replicate)(self.context, c"DEL".as_ptr(), c"s".as_ptr(), self.name) })
    }
}

#[inline]
const fn sent(status: i32) -> Result<(), Failure> {
    if status == OK { Ok(()) } else { Err(Failure::Internal) }
}

/// Makes the words of commands that are made once, while loading is the time for it.
pub(super) fn prepare() {
    PXAT.make();
    KEEPTTL.make();
}

/// Gives them back at unload.
pub(super) fn release() {
    PXAT.free();
    KEEPTTL.free();
    for number in DEADLINE.iter().chain(&PLACE) {
        number.free();
    }
}
