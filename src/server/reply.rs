//! What the server answers to a command of ours.

use redis_module::raw;

use super::api;

/// What the server answers to a command of ours; dropped, it is freed.
pub(super) struct Reply(*mut raw::RedisModuleCallReply);

impl Reply {
    /// What `RM_Call` has given.
    ///
    /// # Safety
    /// It is null, or a reply that nobody frees but this.
    pub(super) const unsafe fn new(reply: *mut raw::RedisModuleCallReply) -> Self {
        Self(reply)
    }

    /// None: there was no such command, or it was not run.
    pub(super) fn kind(&self) -> Option<isize> {
        // SAFETY: not null, and not yet freed.
        (!self.0.is_null()).then(|| unsafe { api!(RedisModule_CallReplyType)(self.0) } as isize)
    }

    /// The text of a string or an error.
    pub(super) fn text(&self) -> &[u8] {
        self.text_of(self.0)
    }

    /// The text of an element of an array.
    pub(super) fn element(&self, at: usize) -> &[u8] {
        if self.kind() != Some(raw::REDISMODULE_REPLY_ARRAY) {
            return &[];
        }
        // SAFETY: an array that is not yet freed; beyond its end there is null.
        self.text_of(unsafe { api!(RedisModule_CallReplyArrayElement)(self.0, at) })
    }

    /// The text of this reply or of a part of it, which goes with it.
    fn text_of(&self, part: *mut raw::RedisModuleCallReply) -> &[u8] {
        if part.is_null() {
            return &[];
        }
        let mut len = 0;
        // SAFETY: as above.
        let text = unsafe { api!(RedisModule_CallReplyStringPtr)(part, &raw mut len) };
        if text.is_null() {
            return &[];
        }
        // SAFETY: the server gave pointer and length of one allocation, which lives as long as the reply.
        unsafe { core::slice::from_raw_parts(text.cast::<u8>(), len) }
    }

    pub(super) fn integer(&self) -> Option<i64> {
        // SAFETY: as above.
        (self.kind()? == raw::REDISMODULE_REPLY_INTEGER).then(|| unsafe { api!(RedisModule_CallReplyInteger)(self.0) })
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: freed once.
            unsafe { api!(RedisModule_FreeCallReply)(self.0) };
        }
    }
}
