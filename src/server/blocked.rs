//! Clients whose reply is pending.
//!
//! Every blocked client has one end, and exactly one call of `UnblockClient` belongs to it, whatever the end is: an answer of
//! ours, a timeout (CLIENT UNBLOCK), or a connection that is gone. The server's own timeouts are not used: it looks at them
//! too rarely, and some servers lose a reply when one meets an answer.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use std::ffi::CString;
use std::ptr;

use redis_module::raw;

use super::context::context_flags;
use super::events::is_dying;
use super::{Call, Context, OK, api, guarded, hot};
use crate::waiters;

/// A blocked client. Copies stand for the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocked(NonNull<raw::RedisModuleBlockedClient>);

// SAFETY: only touched on the thread that holds the server's global lock.
unsafe impl Send for Blocked {}

/// What a client that waited is told.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A fencing token, or 0.
    Integer(i64),
    /// One line that begins with a code.
    Error(CString),
}

struct Pending {
    client: Blocked,
    answer: Answer,
}

impl Call {
    /// May this call wait for its reply?
    pub fn may_block(&self) -> bool {
        let denied = raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
            | raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA;
        context_flags(self.context) & denied == 0
    }

    /// Leaves the reply pending. None: the server does not let it, and nothing has happened.
    pub fn block(&self) -> Option<Blocked> {
        // SAFETY: the context is that of the running command; the callbacks are there for as long as the module is, which is
        // not unloaded while a client is blocked by it.
        let raw = unsafe {
            api!(RedisModule_BlockClient)(self.context, Some(reply), Some(unblocked_by_command), Some(free), 0)
        };
        let raw = NonNull::new(raw)?;
        // SAFETY: just made.
        unsafe { api!(RedisModule_SetDisconnectCallback)(raw.as_ptr(), Some(disconnected)) };
        Some(Blocked(raw))
    }

    /// The id of the calling client.
    pub fn client_id(&self) -> u64 {
        // SAFETY: the context is that of the running command.
        unsafe { api!(RedisModule_GetClientId)(self.context) }
    }
}

impl Blocked {
    /// Ends the wait with an answer. To be called once, and not after [`Blocked::end`].
    pub fn answer(self, answer: Answer) {
        let pending = Box::into_raw(Box::new(Pending { client: self, answer }));
        // SAFETY: the client is blocked, and its one end is now; the server hands the data to `free` once.
        unsafe { api!(RedisModule_UnblockClient)(self.0.as_ptr(), pending.cast::<c_void>()) };
    }

    /// Ends the wait without an answer: the server has given one, or nobody is there to hear it.
    pub fn end(self) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_UnblockClient)(self.0.as_ptr(), ptr::null_mut()) };
    }

    /// The blocked client a callback is about.
    fn of(context: *mut raw::RedisModuleCtx) -> Option<Self> {
        // SAFETY: the context is that of the running callback.
        NonNull::new(unsafe { api!(RedisModule_GetBlockedClientHandle)(context) }).map(Self)
    }
}

unsafe extern "C" fn reply(
    context: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    guarded(|| {
        // SAFETY: the context is that of the running callback.
        let pending = unsafe { api!(RedisModule_GetBlockedClientPrivateData)(context) }.cast::<Pending>();
        // SAFETY: the data is what `answer` gave, and not yet freed.
        let Some(pending) = (unsafe { pending.as_ref() }) else { return };
        say(context, &pending.answer);
        waiters::delivered(pending.client);
    });
    OK
}

fn say(context: *mut raw::RedisModuleCtx, answer: &Answer) {
    match answer {
        // SAFETY: the context is that of a running callback about the client.
        Answer::Integer(number) => unsafe { hot!(RedisModule_ReplyWithLongLong)(context, *number) },
        // SAFETY: as above; the text ends with NUL.
        Answer::Error(text) => unsafe { api!(RedisModule_ReplyWithError)(context, text.as_ptr()) },
    };
}

/// Redis 7.0 loses a reply: when CLIENT UNBLOCK meets a client that we have answered in the same turn, that client gets
/// neither our answer nor one of the server's, and would take its next reply for it.
pub fn loses_replies() -> bool {
    // SAFETY: see `api!`.
    unsafe { raw::RedisModule_AddPostNotificationJob }.is_none()
}

impl Context<'_> {
    /// In a callback that tells that a client's wait is over: gives it the answer that the server has lost, unless CLIENT
    /// UNBLOCK ERROR has given it another, or it is being freed. Says whether it answered.
    pub fn pays(&self, id: u64, answer: &Answer) -> bool {
        // A client that is being freed must not be asked about: parts of it are gone.
        let owed = !is_dying(id) && self.has_no_output(id);
        if owed {
            say(self.raw(), answer);
        }
        owed
    }
}

/// CLIENT UNBLOCK, without ERROR: as if the wait had ended by itself.
unsafe extern "C" fn unblocked_by_command(
    context: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    guarded(|| {
        if let Some(client) = Blocked::of(context) {
            // SAFETY: the context is that of the running callback.
            waiters::gone(&unsafe { Context::new(context) }, client);
        }
        // SAFETY: as above.
        unsafe { hot!(RedisModule_ReplyWithLongLong)(context, 0) };
    });
    OK
}

/// The connection is closed or killed, or CLIENT UNBLOCK ERROR or a change of roles has ended the wait.
unsafe extern "C" fn disconnected(context: *mut raw::RedisModuleCtx, client: *mut raw::RedisModuleBlockedClient) {
    guarded(|| {
        if let Some(client) = NonNull::new(client) {
            // SAFETY: the context is that of the running callback.
            waiters::gone(&unsafe { Context::new(context) }, Blocked(client));
        }
    });
}

unsafe extern "C" fn free(_context: *mut raw::RedisModuleCtx, data: *mut c_void) {
    guarded(|| {
        if data.is_null() {
            return;
        }
        // SAFETY: what `answer` gave, handed over once.
        let pending = unsafe { Box::from_raw(data.cast::<Pending>()) };
        waiters::delivered(pending.client);
    });
}
