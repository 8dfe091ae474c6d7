//! Effects, as replicas and the AOF get them: plain commands of the server's, with absolute times.
//!
//! Formats are chosen by price: an existing string (`s`) costs a tenth of bytes to copy (`b`), and the server's own number
//! format (`l`) twice those.

use super::text::Word;
use super::{Call, Failure, OK, Text, api};

static PXAT: Word = Word::new(b"PXAT");

impl Call {
    /// `SET key value PXAT deadline`.
    #[inline]
    pub fn replicate_set(&self, value: &[u8], deadline: i64) -> Result<(), Failure> {
        let mut digits = itoa::Buffer::new();
        let deadline = digits.format(deadline);
        // SAFETY: the format names the arguments that follow, and all of them outlive the call.
        sent(unsafe {
            api!(RedisModule_Replicate)(
                self.context(),
                c"SET".as_ptr(),
                c"sbsb".as_ptr(),
                self.key_name(),
                value.as_ptr(),
                value.len(),
                PXAT.raw(),
                deadline.as_ptr(),
                deadline.len(),
            )
        })
    }

    /// `SET key value PXAT deadline`, the value an argument of this call or a string that a key shares.
    #[inline]
    pub fn replicate_set_text(&self, value: &Text, deadline: i64) -> Result<(), Failure> {
        let mut digits = itoa::Buffer::new();
        let deadline = digits.format(deadline);
        // SAFETY: as above.
        sent(unsafe {
            api!(RedisModule_Replicate)(
                self.context(),
                c"SET".as_ptr(),
                c"sssb".as_ptr(),
                self.key_name(),
                value.raw(),
                PXAT.raw(),
                deadline.as_ptr(),
                deadline.len(),
            )
        })
    }

    /// `SET key argument PXAT deadline`, with the caller's argument `index` as the value.
    #[inline]
    pub fn replicate_set_argument(&self, index: usize, deadline: i64) -> Result<(), Failure> {
        let mut digits = itoa::Buffer::new();
        let deadline = digits.format(deadline);
        let value = self.argument(index).ok_or(Failure::Arity)?;
        // SAFETY: as above.
        sent(unsafe {
            api!(RedisModule_Replicate)(
                self.context(),
                c"SET".as_ptr(),
                c"sssb".as_ptr(),
                self.key_name(),
                value,
                PXAT.raw(),
                deadline.as_ptr(),
                deadline.len(),
            )
        })
    }

    /// `SETRANGE key at bytes`.
    #[inline]
    pub fn replicate_setrange(&self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        let mut digits = itoa::Buffer::new();
        let at = digits.format(at);
        // SAFETY: as above.
        sent(unsafe {
            api!(RedisModule_Replicate)(
                self.context(),
                c"SETRANGE".as_ptr(),
                c"sbb".as_ptr(),
                self.key_name(),
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
                api!(RedisModule_Replicate)(self.context(), c"INCR".as_ptr(), c"s".as_ptr(), self.key_name())
            });
        }
        let mut digits = itoa::Buffer::new();
        self.replicate_number(c"INCRBY", digits.format(by))
    }

    /// `PEXPIREAT key deadline`.
    #[inline]
    pub fn replicate_deadline(&self, deadline: i64) -> Result<(), Failure> {
        let mut digits = itoa::Buffer::new();
        self.replicate_number(c"PEXPIREAT", digits.format(deadline))
    }

    fn replicate_number(&self, command: &core::ffi::CStr, number: &str) -> Result<(), Failure> {
        // SAFETY: as above.
        sent(unsafe {
            api!(RedisModule_Replicate)(
                self.context(),
                command.as_ptr(),
                c"sb".as_ptr(),
                self.key_name(),
                number.as_ptr(),
                number.len(),
            )
        })
    }

    /// `DEL key`.
    #[inline]
    pub fn replicate_del(&self) -> Result<(), Failure> {
        // SAFETY: as above.
        sent(unsafe { api!(RedisModule_Replicate)(self.context(), c"DEL".as_ptr(), c"s".as_ptr(), self.key_name()) })
    }
}

#[inline]
const fn sent(status: i32) -> Result<(), Failure> {
    if status == OK { Ok(()) } else { Err(Failure::Internal) }
}

/// Makes the words of commands that are made once, while loading is the time for it.
pub(super) fn prepare() {
    PXAT.make();
}

/// Gives them back at unload.
pub(super) fn release() {
    PXAT.free();
}
