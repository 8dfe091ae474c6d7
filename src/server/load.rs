//! Loading and unloading.

use core::ffi::{CStr, c_int};

use lazy_static::lazy_static;
use redis_module::alloc::RedisAlloc;
use redis_module::raw;

use super::api::{self, api};
use super::config::{self, Config};
use super::{ERR, Entry, OK, clock, context, events, filter, guarded, info, log, register, replicate, unload};
use crate::{MODULE, waiters};

/// Our memory is the server's, so it counts in `used_memory` and towards `maxmemory`.
#[global_allocator]
static ALLOCATOR: RedisAlloc = RedisAlloc;

/// What is loaded.
#[derive(Debug)]
pub struct Module {
    /// Its name.
    pub name: &'static CStr,
    /// Its version, as `major.minor.patch`.
    pub version: &'static str,
    /// The version as MODULE LIST shows it: 10000 × major + 100 × minor + patch.
    pub number: c_int,
    /// ACL categories of its own.
    pub categories: &'static [&'static CStr],
    /// Its commands.
    pub commands: &'static [Entry],
    /// Its settings.
    pub configs: &'static [Config],
}

/// What a server offers, found by looking for the function and not by its version.
#[derive(Debug)]
struct Offer {
    cached_clock: bool,
    command_categories: bool,
    own_categories: bool,
}

lazy_static! {
    static ref OFFER: Offer = Offer {
        cached_clock: clock::cached(),
        // SAFETY: see `api!`.
        command_categories: unsafe { raw::RedisModule_SetCommandACLCategories }.is_some(),
        // SAFETY: see `api!`.
        own_categories: unsafe { raw::RedisModule_AddACLCategory }.is_some(),
    };
}

/// Valkey wants to be told that a module can live with slots that move at once; Redis does not know the bit.
const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;
const NO_IMPLICIT_SIGNAL_MODIFIED: u32 = 1 << 1;

/// Has the server the youngest of the other functions we cannot do without? One that has these (Redis 7.0, Valkey 8.0) has all.
fn is_young_enough() -> bool {
    macro_rules! has {
        ($($name:ident)&&*) => {
            // SAFETY: see `api!`.
            $(unsafe { raw::$name }.is_some())&&*
        };
    }
    has!(
        RedisModule_SetCommandInfo
            && RedisModule_RegisterNumericConfig
            && RedisModule_LoadConfigs
            && RedisModule_ReplyWithMap
    )
}

/// What the server calls first.
#[unsafe(no_mangle)]
unsafe extern "C" fn RedisModule_OnLoad(
    context: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // Before this there is no allocator, so nothing may allocate.
    // SAFETY: the context is that of the running load; the name ends with NUL.
    let status = unsafe {
        raw::Export_RedisModule_Init(context, MODULE.name.as_ptr(), MODULE.number, raw::REDISMODULE_APIVER_1 as c_int)
    };
    if status == ERR {
        return ERR;
    }
    let mut status = ERR;
    guarded(|| match load(context, argv, argc) {
        Ok(()) => status = OK,
        Err(why) => log::warning(&format!("sluice was not loaded: {why}")),
    });
    status
}

/// What the server calls last. It asks only when nobody is blocked by us.
#[unsafe(no_mangle)]
unsafe extern "C" fn RedisModule_OnUnload(_context: *mut raw::RedisModuleCtx) -> c_int {
    let mut status = OK;
    guarded(|| {
        if let Err(why) = unload::prepare() {
            log::warning(&format!("sluice is not unloaded: {why}"));
            status = ERR;
            return;
        }
        filter::stop();
        context::release();
        replicate::release();
        waiters::forget();
        // The hook is code that is about to go away.
        drop(std::panic::take_hook());
    });
    status
}

fn load(
    context: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> Result<(), &'static str> {
    if !(api::copy() && is_young_enough()) {
        return Err("this server is too old: it takes Redis 7.0 or later, or Valkey 8.0 or later");
    }
    // A panic says where, in the log; what it says could hold a caller's bytes.
    std::panic::set_hook(Box::new(|panic| {
        if let Some(place) = panic.location() {
            log::warning(&format!("internal error at {}:{}", place.file(), place.line()));
        }
    }));
    let valkey = is_valkey(context);
    options(context, valkey);
    config::register(context, MODULE.configs, argv, argc)?;
    register::categories(context, MODULE.categories)?;
    for command in MODULE.commands {
        register::register(context, command)?;
    }
    // SAFETY: the load function is the place for this.
    if unsafe { api!(RedisModule_RegisterInfoFunc)(context, Some(info::show)) } == ERR {
        return Err("the server refuses an INFO section");
    }
    context::prepare(context);
    events::prepare(context, valkey && breaks_move())?;
    replicate::prepare();
    log::notice(&format!(
        "sluice {} is loaded; this server offers: a clock that stands still in a transaction {}, ACL categories {}, of our own {}",
        MODULE.version,
        yes_or_no(OFFER.cached_clock),
        yes_or_no(OFFER.command_categories),
        yes_or_no(OFFER.own_categories),
    ));
    Ok(())
}

const fn yes_or_no(it: bool) -> &'static str {
    if it { "yes" } else { "no" }
}

/// A refusal must not look like a change, and no data of ours needs care in a diskless sync.
fn options(context: *mut raw::RedisModuleCtx, valkey: bool) {
    let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | NO_IMPLICIT_SIGNAL_MODIFIED
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    if valkey {
        options |= HANDLE_ATOMIC_SLOT_MIGRATION;
    }
    // SAFETY: the load function is the place for this.
    unsafe { api!(RedisModule_SetModuleOptions)(context, options as c_int) };
}

/// From Valkey 8.1.0 to 9.1.0 a client's MOVE leaves it in the other database, and goes wrong on replicas, if any module
/// listens to key events. A version is asked for bugs only, which have no function to look for.
fn breaks_move() -> bool {
    // SAFETY: no preconditions.
    let version = unsafe { api!(RedisModule_GetServerVersion)() };
    (0x0008_0100..=0x0009_0100).contains(&version)
}

pub(super) fn is_valkey(context: *mut raw::RedisModuleCtx) -> bool {
    // SAFETY: the section's name ends with NUL; what comes back is freed once, after the last use of what it holds.
    unsafe {
        let info = api!(RedisModule_GetServerInfo)(context, c"server".as_ptr());
        let name = api!(RedisModule_ServerInfoGetFieldC)(info, c"server_name".as_ptr());
        let valkey = !name.is_null() && CStr::from_ptr(name) == c"valkey";
        api!(RedisModule_FreeServerInfo)(context, info);
        valkey
    }
}
