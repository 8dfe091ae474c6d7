//! A key, opened.

use core::ffi::{c_char, c_void};
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::slice;
use std::ptr::{self, NonNull};

use redis_module::raw;

use super::api::absent;
use super::{Failure, Lent, OK, Site, Text, api, hot};

const READ: i32 = raw::REDISMODULE_READ as i32;
const WRITE: i32 = raw::REDISMODULE_WRITE as i32;
const EMPTY: i32 = raw::REDISMODULE_KEYTYPE_EMPTY as i32;
const STRING: i32 = raw::REDISMODULE_KEYTYPE_STRING as i32;

const HASH: i32 = raw::REDISMODULE_KEYTYPE_HASH as i32;
const SORTED_SET: i32 = raw::REDISMODULE_KEYTYPE_ZSET as i32;

/// A key opened to read: no `&mut` of it is to be had.
#[derive(Debug)]
pub struct ReadKey<'c>(Key<'c>);

impl<'c> ReadKey<'c> {
    pub(super) fn open(site: &'c Site) -> Self {
        Self(Key::open(site, false))
    }
}

impl<'c> Deref for ReadKey<'c> {
    type Target = Key<'c>;

    fn deref(&self) -> &Key<'c> {
        &self.0
    }
}

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<S> {
    /// Nothing: there is no such key, or it has expired.
    Nothing,
    /// A string.
    String(S),
    /// A hash.
    Hash,
    /// A sorted set.
    SortedSet,
    /// Another type.
    Other,
}

impl<S> Content<S> {
    #[inline(always)]
    fn map<T>(self, to: impl FnOnce(S) -> T) -> Content<T> {
        match self {
            Self::String(string) => Content::String(to(string)),
            Self::Nothing => Content::Nothing,
            Self::Hash => Content::Hash,
            Self::SortedSet => Content::SortedSet,
            Self::Other => Content::Other,
        }
    }
}

/// An opened key; dropped, it is closed. It lives no longer than the call that opened it.
///
/// What it lends of its value lies in the server's memory until the key is changed. That takes `&mut self` here; so that nobody
/// else changes it meanwhile, a site has one handle at a time, and [`Site::changed`], at which other modules may act, is called
/// when nothing is lent.
#[derive(Debug)]
pub struct Key<'c> {
    /// None: opened to read, and there is none.
    raw: Option<NonNull<raw::RedisModuleKey>>,
    site: &'c Site,
}

impl<'c> Key<'c> {
    pub(super) fn open(site: &'c Site, write: bool) -> Self {
        let mode = if write { READ | WRITE } else { READ };
        // SAFETY: context and name are valid.
        let raw = unsafe { hot!(RedisModule_OpenKey)(site.context, site.name, mode) };
        Self { raw: NonNull::new(raw), site }
    }

    fn raw(&self) -> *mut raw::RedisModuleKey {
        self.raw.map_or_else(|| absent("key"), NonNull::as_ptr)
    }

    /// What it holds. A short string that another client wrote is unpacked in memory by this, once.
    #[inline(always)]
    pub fn content(&self) -> Content<&[u8]> {
        // SAFETY: `memory` has pointer and length of one allocation; see [`Key`] for how long it stays.
        self.memory(READ).map(|(start, len)| unsafe { slice::from_raw_parts(start, len) })
    }

    /// The same, a string to be written over in place.
    #[inline(always)]
    pub fn content_to_write(&mut self) -> Content<Stored<'_, 'c>> {
        self.memory(WRITE).map(|(start, len)| Stored { key: self, start, len })
    }

    /// What it holds, and where in memory, to read or to write.
    #[inline(always)]
    fn memory(&self, mode: i32) -> Content<(*mut u8, usize)> {
        let Some(raw) = self.raw else { return Content::Nothing };
        let mut len = 0;
        // SAFETY: the key is open.
        let start = unsafe { hot!(RedisModule_StringDMA)(raw.as_ptr(), &raw mut len, mode) };
        if len > 0 && !start.is_null() {
            return Content::String((start.cast::<u8>(), len));
        }
        // No string, or none of any length: which of them, it takes a second question to know.
        // SAFETY: the key is open.
        let kind = unsafe { hot!(RedisModule_KeyType)(raw.as_ptr()) };
        if kind == EMPTY {
            return Content::Nothing;
        }
        match kind {
            STRING => Content::String((NonNull::dangling().as_ptr(), 0)),
            HASH => Content::Hash,
            SORTED_SET => Content::SortedSet,
            _ => Content::Other,
        }
    }

    /// Does it hold anything?
    #[inline(always)]
    pub fn exists(&self) -> bool {
        // SAFETY: the key is open.
        self.raw.is_some_and(|raw| unsafe { hot!(RedisModule_KeyType)(raw.as_ptr()) } != EMPTY)
    }

    /// The absolute deadline in ms, or none.
    #[inline]
    pub fn deadline(&self) -> Option<i64> {
        let raw = self.raw?;
        // SAFETY: the key is open.
        let deadline = unsafe { hot!(RedisModule_GetAbsExpire)(raw.as_ptr()) };
        (deadline >= 0).then_some(deadline)
    }

    /// Sets the deadline of a key that exists.
    #[inline]
    pub fn set_deadline(&mut self, deadline: i64) -> Result<(), Failure> {
        // SAFETY: the key is open for writing.
        done(unsafe { hot!(RedisModule_SetAbsExpire)(self.raw(), deadline) })
    }

    /// Runs `ask` while the key is closed, and opens it anew. Outside a client's command Redis 7.0 reads the clock for each
    /// command we run, so one may find the key expired, and a handle on it would point to what is gone.
    pub fn while_closed<R>(&mut self, ask: impl FnOnce(&Site) -> R) -> R {
        self.close();
        let done = ask(self.site);
        *self = Self::open(self.site, true);
        done
    }

    fn close(&mut self) {
        if let Some(raw) = self.raw.take() {
            // SAFETY: opened once, closed once, within the call that opened it.
            unsafe { hot!(RedisModule_CloseKey)(raw.as_ptr()) };
        }
    }

    /// Makes room for a key that holds nothing.
    ///
    /// While writes are paused no key expires: it opens as if it held nothing, but it is still there, and to create it again
    /// is an assertion in some servers. A client's own write meets that in `MULTI … CLIENT PAUSE … EXEC` only.
    #[inline]
    fn bury(&self) -> Result<(), Failure> {
        // SAFETY: no preconditions; the key is open.
        if unsafe { hot!(RedisModule_AvoidReplicaTraffic)() } == 0 || self.exists() {
            return Ok(());
        }
        self.site.delete_by_name()
    }

    /// Makes a string of a key that holds nothing. Written this way it needs no unpacking later, and no byte too many.
    #[inline(always)]
    pub fn create(&mut self, bytes: &[u8], deadline: i64) -> Result<(), Failure> {
        self.bury()?;
        // SAFETY: the key is open for writing.
        done(unsafe { hot!(RedisModule_StringTruncate)(self.raw(), bytes.len()) })?;
        self.fill(bytes)?;
        self.set_deadline(deadline)
    }

    /// Writes all bytes of a string that has just got so many.
    #[inline(always)]
    fn fill(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let Content::String(mut string) = self.content_to_write() else { return Err(Failure::Internal) };
        string.write(0, bytes)
    }

    /// Puts another string of any length in the place of the one that is there; the deadline stays.
    pub fn replace(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        // SAFETY: the key is open for writing.
        done(unsafe { hot!(RedisModule_StringTruncate)(self.raw(), bytes.len()) })?;
        self.fill(bytes)
    }

    /// Puts a string there, whatever was there before, without a copy.
    pub fn set(&mut self, text: &Text, deadline: i64) -> Result<(), Failure> {
        self.bury()?;
        // SAFETY: the key is open for writing; the server counts its own reference to the string.
        done(unsafe { hot!(RedisModule_StringSet)(self.raw(), text.raw()) })?;
        self.set_deadline(deadline)
    }

    /// Removes the key.
    #[inline]
    pub fn delete(&mut self) -> Result<(), Failure> {
        // SAFETY: the key is open for writing.
        done(unsafe { hot!(RedisModule_DeleteKey)(self.raw()) })
    }
}

/// The string that a key holds, where it lies: to be read, and written over in place, until the key is changed otherwise. The
/// server is asked once for both.
#[derive(Debug)]
pub struct Stored<'k, 'c> {
    key: &'k mut Key<'c>,
    start: *mut u8,
    len: usize,
}

impl<'k, 'c> Stored<'k, 'c> {
    /// Its bytes.
    #[inline]
    pub const fn bytes(&self) -> &[u8] {
        // SAFETY: pointer and length are of one allocation; see [`Key`] for how long it stays.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }

    /// The key's absolute deadline in ms, or none.
    #[inline]
    pub fn deadline(&self) -> Option<i64> {
        self.key.deadline()
    }

    /// The key, to be changed otherwise than in place.
    #[inline]
    pub const fn into_key(self) -> &'k mut Key<'c> {
        self.key
    }

    /// Writes over some of the bytes; they must be there.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        // SAFETY: as above; the server was asked for it to be written to, so it is the key's alone. Nobody has `&mut` of a key
        // that was opened to read.
        let all = unsafe { slice::from_raw_parts_mut(self.start, self.len) };
        let part = all.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len())).ok_or(Failure::Internal)?;
        part.copy_from_slice(bytes);
        Ok(())
    }
}

/// Hashes.
impl Key<'_> {
    /// How many fields or members it has.
    pub fn len(&self) -> usize {
        // SAFETY: the key is open.
        self.raw.map_or(0, |raw| unsafe { api!(RedisModule_ValueLength)(raw.as_ptr()) })
    }

    /// Field and value of a hash of one field.
    pub fn only_field(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        type Found = Option<(Vec<u8>, Vec<u8>)>;
        unsafe extern "C" fn take(
            _key: *mut raw::RedisModuleKey,
            field: *mut raw::RedisModuleString,
            value: *mut raw::RedisModuleString,
            found: *mut c_void,
        ) {
            // SAFETY: `scan` below was given this.
            let Some(found) = (unsafe { found.cast::<Found>().as_mut() }) else { return };
            super::guarded(|| {
                // SAFETY: the server keeps both until the callback returns.
                *found = (!value.is_null()).then(|| unsafe { (bytes(field).to_vec(), bytes(value).to_vec()) });
            });
        }
        if self.len() != 1 {
            return None;
        }
        let mut found: Found = None;
        // SAFETY: the key is open; the cursor is made, used and freed here; `take` is called during the scan only.
        unsafe {
            let cursor = api!(RedisModule_ScanCursorCreate)();
            let scan = api!(RedisModule_ScanKey);
            while scan(self.raw(), cursor, Some(take), (&raw mut found).cast::<c_void>()) != 0 && found.is_none() {}
            api!(RedisModule_ScanCursorDestroy)(cursor);
        }
        found
    }

    /// Sets a field of a hash, or makes a hash of it where there is nothing.
    pub fn set_field(&mut self, field: Lent<'_>, value: &Text) -> Result<(), Failure> {
        self.bury()?;
        let end = ptr::null_mut::<raw::RedisModuleString>();
        // SAFETY: the key is open for writing; pairs of strings of the server's follow, and then a null.
        unsafe { api!(RedisModule_HashSet)(self.raw(), 0, field.raw, value.raw(), end) };
        Ok(())
    }
}

/// Sorted sets.
impl Key<'_> {
    /// The score of a member.
    pub fn score(&self, member: Lent<'_>) -> Option<f64> {
        let mut score = 0.0;
        // SAFETY: the key is open.
        let status = unsafe { api!(RedisModule_ZsetScore)(self.raw(), member.raw, &raw mut score) };
        (status == OK).then_some(score)
    }

    /// Adds a member, gives it another score, or makes a sorted set of it where there is nothing.
    pub fn add(&mut self, member: Lent<'_>, score: f64) -> Result<(), Failure> {
        self.bury()?;
        // SAFETY: the key is open for writing.
        done(unsafe { api!(RedisModule_ZsetAdd)(self.raw(), score, member.raw, ptr::null_mut()) })
    }

    /// Removes a member; with the last one goes the key.
    pub fn remove(&mut self, member: Lent<'_>) -> Result<(), Failure> {
        // SAFETY: the key is open for writing.
        done(unsafe { api!(RedisModule_ZsetRem)(self.raw(), member.raw, ptr::null_mut()) })
    }

    /// Members with their scores, as long as `each` says so: upwards from the least score not below `bound`, or downwards
    /// from the greatest not above it.
    pub fn members(&self, order: Order, bound: f64, mut each: impl FnMut(Member<'_>, f64) -> bool) {
        let up = matches!(order, Order::Up);
        let key = self.raw();
        // SAFETY: the key is open; it is not written to before the range is stopped; each member is freed once.
        unsafe {
            let started = if up {
                api!(RedisModule_ZsetFirstInScoreRange)(key, bound, f64::INFINITY, 0, 0)
            } else {
                api!(RedisModule_ZsetLastInScoreRange)(key, f64::NEG_INFINITY, bound, 0, 0)
            };
            if started != OK {
                return;
            }
            while api!(RedisModule_ZsetRangeEndReached)(key) == 0 {
                let mut score = 0.0;
                let member = Text::own(api!(RedisModule_ZsetRangeCurrentElement)(key, &raw mut score));
                let Some(member) = member else { break };
                if !each(member.lend(), score) {
                    break;
                }
                let moved =
                    if up { api!(RedisModule_ZsetRangeNext)(key) } else { api!(RedisModule_ZsetRangePrev)(key) };
                if moved == 0 {
                    break;
                }
            }
            api!(RedisModule_ZsetRangeStop)(key);
        }
    }
}

/// A member of a sorted set.
pub type Member<'m> = Lent<'m>;

/// In which direction to go through a sorted set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// From low to high scores.
    Up,
    /// From high to low scores.
    Down,
}

#[inline]
const fn done(status: i32) -> Result<(), Failure> {
    if status == OK { Ok(()) } else { Err(Failure::Internal) }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// The bytes of a string of the server's, for as long as its owner lives.
///
/// # Safety
/// `text` is a string object that lives, unchanged, for `'a`.
pub(super) unsafe fn bytes<'a>(text: *const raw::RedisModuleString) -> &'a [u8] {
    let mut len = MaybeUninit::uninit();
    // SAFETY: as the caller promised. The server gives pointer and length of one allocation; for a string that lives the
    // pointer is never null.
    unsafe {
        let start: *const c_char = hot!(RedisModule_StringPtrLen)(text, len.as_mut_ptr());
        slice::from_raw_parts(start.cast::<u8>(), len.assume_init())
    }
}
