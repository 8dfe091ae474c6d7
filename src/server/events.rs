//! What the server tells of its keys, while somebody waits for one, and of itself.

use core::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use redis_module::raw;

use super::blocked::loses_replies;
use super::context::own;
use super::{Context, ERR, OK, api, filter, guarded, hot, key};
use crate::waiters;

/// Does the server tell us what happens to keys?
static LISTENING: AtomicBool = AtomicBool::new(false);
/// Does it tell us of connections?
static WATCHING: AtomicBool = AtomicBool::new(false);
/// May we listen at all? From Valkey 8.1.0 to 9.1.0 a module that does breaks other clients' MOVE and COPY.
static DEAF: AtomicBool = AtomicBool::new(false);

/// What is heard of keys while somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hearing {
    /// Nothing: they must be looked at.
    Nothing,
    /// What commands name, and what is evicted.
    Words,
    /// All events.
    Events,
}

/// DEL, expiry, eviction, RENAME, MOVE, EXPIRE and their like, and a permit or a share that another client takes out of its
/// sorted set. Where the server knows it: a slot's keys that go without a DEL.
///
/// Where commands are heard, only what no command stands for and no deadline foretells: to listen to events at all makes each
/// a little dearer, also those that are not asked for.
fn classes() -> c_int {
    if filter::takes_words() {
        return raw::REDISMODULE_NOTIFY_EVICTED;
    }
    let classes = raw::REDISMODULE_NOTIFY_GENERIC
        | raw::REDISMODULE_NOTIFY_EXPIRED
        | raw::REDISMODULE_NOTIFY_EVICTED
        | raw::REDISMODULE_NOTIFY_ZSET;
    // SAFETY: see `api!`; the function has no preconditions.
    let all = unsafe { raw::RedisModule_GetKeyspaceNotificationFlagsAll }.map_or(0, |all| unsafe { all() });
    classes | (raw::REDISMODULE_NOTIFY_KEY_TRIMMED & all)
}

/// The client whose connection was closed last, on a server that has to be asked.
static DYING: AtomicU64 = AtomicU64::new(0);

/// Is this client being freed right now?
pub(super) fn is_dying(id: u64) -> bool {
    DYING.load(Relaxed) == id
}

unsafe extern "C" fn client_changed(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        // SAFETY: for this event the server gives this type, or nothing.
        if let Some(client) = unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() } {
            DYING.store(client.id, Relaxed);
        }
    }
}

/// On a server that loses replies: has it tell us which connections are closed, or no more.
fn watch_clients(callback: raw::RedisModuleEventCallback) {
    if loses_replies() {
        let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_CLIENT_CHANGE, dataver: 1 };
        // SAFETY: the context lives as long as the module.
        unsafe { api!(RedisModule_SubscribeToServerEvent)(own(), event, callback) };
    }
}

/// Has the server tell us what happens to keys from now on, in the way that costs the others least.
pub fn listen() -> Hearing {
    if DEAF.load(Relaxed) {
        return Hearing::Nothing;
    }
    if !WATCHING.swap(true, Relaxed) {
        watch_clients(Some(client_changed));
    }
    let by_words = filter::takes_words();
    if !LISTENING.load(Relaxed) && (!by_words || may_evict()) {
        // SAFETY: the context lives as long as the module.
        let status = unsafe { api!(RedisModule_SubscribeToKeyspaceEvents)(own(), classes(), Some(happened)) };
        LISTENING.store(status != ERR, Relaxed);
    }
    if by_words && filter::start() {
        Hearing::Words
    } else if !by_words && LISTENING.load(Relaxed) {
        Hearing::Events
    } else {
        Hearing::Nothing
    }
}

/// Has the server a limit of memory?
fn may_evict() -> bool {
    // SAFETY: no preconditions.
    unsafe { hot!(RedisModule_GetUsedMemoryRatio)() > 0.0 }
}

/// Nobody waits any more. A server that cannot be told (Redis before 8.2, Valkey) goes on telling, and is not listened to.
pub fn stop_listening() {
    if WATCHING.swap(false, Relaxed) {
        watch_clients(None);
    }
    // SAFETY: see `api!`.
    let Some(unsubscribe) = (unsafe { raw::RedisModule_UnsubscribeFromKeyspaceEvents }) else { return };
    // SAFETY: the context lives as long as the module.
    if LISTENING.load(Relaxed) && unsafe { unsubscribe(own(), classes(), Some(happened)) } != ERR {
        LISTENING.store(false, Relaxed);
    }
}

unsafe extern "C" fn happened(
    context: *mut raw::RedisModuleCtx,
    class: c_int,
    _event: *const c_char,
    name: *mut raw::RedisModuleString,
) -> c_int {
    if !waiters::any() {
        return OK;
    }
    guarded(|| {
        // SAFETY: the server keeps the name until the callback returns.
        let name = unsafe { key::bytes(name) };
        // The server evicts key after key until there is room: a lock made again at once would go the same way at once.
        let now = class & raw::REDISMODULE_NOTIFY_EVICTED == 0;
        waiters::touched(name, now, || {
            // SAFETY: the context is that of the running callback.
            unsafe { (Context::new(context), api!(RedisModule_GetSelectedDb)(context)) }
        });
    });
    OK
}

unsafe extern "C" fn flushed(
    context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    if subevent != raw::REDISMODULE_SUBEVENT_FLUSHDB_END || !waiters::any() {
        return;
    }
    guarded(|| {
        // SAFETY: for this event the server gives this type, or nothing.
        let db = unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() }.map_or(-1, |info| info.dbnum);
        // SAFETY: the context is that of the running callback.
        waiters::flushed(&unsafe { Context::new(context) }, (db >= 0).then_some(db));
    });
}

unsafe extern "C" fn swapped(
    context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    if waiters::any() {
        // SAFETY: the context is that of the running callback.
        guarded(|| waiters::flushed(&unsafe { Context::new(context) }, None));
    }
}

unsafe extern "C" fn role_changed(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA {
        guarded(waiters::demoted);
    }
}

/// Ten times a second or so. Timers run on a clock that may be set back or forward, and then come too late. And here nobody's
/// command is running, so that commands are listened to no more if nobody waits; often somebody does again before.
unsafe extern "C" fn cron(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    if waiters::any() {
        guarded(waiters::check);
    } else {
        guarded(filter::stop);
    }
}

/// The server may evict keys from now on.
unsafe extern "C" fn configured(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    if waiters::any() {
        guarded(|| {
            listen();
        });
    }
}

/// At load: what the server tells of itself, and whether it may be listened to.
pub(super) fn prepare(context: *mut raw::RedisModuleCtx, deaf: bool) -> Result<(), &'static str> {
    LISTENING.store(false, Relaxed);
    WATCHING.store(false, Relaxed);
    DEAF.store(deaf, Relaxed);
    type Callback = unsafe extern "C" fn(*mut raw::RedisModuleCtx, raw::RedisModuleEvent, u64, *mut c_void);
    let callbacks: [(u64, Callback); 5] = [
        (raw::REDISMODULE_EVENT_FLUSHDB, flushed),
        (raw::REDISMODULE_EVENT_SWAPDB, swapped),
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, role_changed),
        (raw::REDISMODULE_EVENT_CRON_LOOP, cron),
        (raw::REDISMODULE_EVENT_CONFIG, configured),
    ];
    for (id, callback) in callbacks {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the load function is the place for this.
        if unsafe { api!(RedisModule_SubscribeToServerEvent)(context, event, Some(callback)) } == ERR {
            return Err("the server refuses to tell of its events");
        }
    }
    Ok(())
}
