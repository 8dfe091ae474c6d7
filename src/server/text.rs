//! Strings of the server's that we own.

use core::ffi::c_char;
use core::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use redis_module::raw;

use super::{api, key};

/// A string object of the server's: what a key can share without a copy.
#[derive(Debug)]
pub struct Text(NonNull<raw::RedisModuleString>);

impl Text {
    /// A new string object with these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        let create = api!(RedisModule_CreateString);
        // SAFETY: the bytes are valid for the call, which copies them; a null context means that we free it ourselves.
        let raw = unsafe { create(ptr::null_mut(), bytes.as_ptr().cast::<c_char>(), bytes.len()) };
        // The server ends itself rather than answer a null.
        NonNull::new(raw).map_or_else(|| super::api::absent("memory"), Self)
    }

    /// A string object that the server has made for us, if it has.
    ///
    /// # Safety
    /// `raw` is null, or one reference to a string object that nobody else will give back.
    pub(super) unsafe fn own(raw: *mut raw::RedisModuleString) -> Option<Self> {
        NonNull::new(raw).map(Self)
    }

    /// For a call into the API that only borrows it or counts its own reference.
    pub(super) const fn raw(&self) -> *mut raw::RedisModuleString {
        self.0.as_ptr()
    }

    /// To lend it.
    pub fn lend(&self) -> Lent<'_> {
        // SAFETY: `self` keeps it, and nobody writes to it.
        Lent { raw: self.raw(), bytes: unsafe { key::bytes(self.raw()) } }
    }
}

/// A string object that somebody else owns: a [`Text`], or an argument of a call.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'t> {
    pub(super) raw: *mut raw::RedisModuleString,
    pub(super) bytes: &'t [u8],
}

impl<'t> Lent<'t> {
    /// Its bytes.
    pub const fn bytes(&self) -> &'t [u8] {
        self.bytes
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        let free = api!(RedisModule_FreeString);
        // SAFETY: `self` owns one reference and gives it back once.
        unsafe { free(ptr::null_mut(), self.raw()) };
    }
}

/// A string object that lives as long as the module is loaded, so that replicating it costs no copy.
#[derive(Debug)]
pub(super) struct Word {
    bytes: &'static [u8],
    raw: AtomicPtr<raw::RedisModuleString>,
}

impl Word {
    pub const fn new(bytes: &'static [u8]) -> Self {
        Self { bytes, raw: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Makes the string, unless there is one.
    pub fn make(&self) {
        if self.raw.load(Relaxed).is_null() {
            let text = ManuallyDrop::new(Text::new(self.bytes));
            self.raw.store(text.raw(), Relaxed);
        }
    }

    /// Gives it back; [`Word::make`] may make it again.
    pub fn free(&self) {
        if let Some(raw) = NonNull::new(self.raw.swap(ptr::null_mut(), Relaxed)) {
            drop(Text(raw));
        }
    }

    /// For a call into the API that only borrows it or counts its own reference.
    #[inline]
    pub fn raw(&self) -> *mut raw::RedisModuleString {
        self.raw.load(Relaxed)
    }
}
