//! The module's settings: `CONFIG GET sluice.*`, `CONFIG SET`, redis.conf, and the arguments of `loadmodule`.

use core::ffi::{c_char, c_int, c_longlong, c_void};
use std::ffi::CString;
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use redis_module::raw;
use sluice_core::args;

use super::{ERR, OK, api, key, log};

/// A whole number that the server's people may set.
#[derive(Debug)]
pub struct Config {
    /// Its name, without the module's.
    pub name: &'static str,
    /// What it is unless somebody sets it.
    pub default: i64,
    /// The least it may be.
    pub min: i64,
    /// The most it may be.
    pub max: i64,
    /// What it is.
    pub value: &'static AtomicI64,
}

unsafe extern "C" fn get(_name: *const c_char, value: *mut c_void) -> c_longlong {
    // SAFETY: `register` gave the address of a static.
    unsafe { &*value.cast::<AtomicI64>() }.load(Relaxed)
}

unsafe extern "C" fn set(
    _name: *const c_char,
    number: c_longlong,
    value: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: as above. The server has checked the bounds.
    unsafe { &*value.cast::<AtomicI64>() }.store(number, Relaxed);
    OK
}

/// Registers all settings, lets the server set them, and then takes the `name value` pairs behind `loadmodule`.
pub fn register(
    context: *mut raw::RedisModuleCtx,
    configs: &'static [Config],
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> Result<(), &'static str> {
    for config in configs {
        let name = CString::new(config.name).map_err(|_| "a setting's name is not a C string")?;
        // SAFETY: the name outlives the call, which copies it; the value is a static.
        let status = unsafe {
            api!(RedisModule_RegisterNumericConfig)(
                context,
                name.as_ptr(),
                config.default,
                raw::REDISMODULE_CONFIG_DEFAULT,
                config.min,
                config.max,
                Some(get),
                Some(set),
                None,
                ptr::from_ref(config.value).cast_mut().cast::<c_void>(),
            )
        };
        if status == ERR {
            return Err("the server refuses a setting of this name");
        }
    }
    // SAFETY: the load function is the place for this.
    if unsafe { api!(RedisModule_LoadConfigs)(context) } == ERR {
        return Err("a sluice.* setting is wrong: see the line above, and CONFIG GET sluice.* for the names");
    }
    let words = (0..usize::try_from(argc).unwrap_or(0)).map(|index| {
        // SAFETY: `argv` has `argc` elements, which live until the load function returns.
        unsafe { key::bytes(argv.add(index).read()) }
    });
    from_words(configs, words)
}

fn from_words<'a>(configs: &[Config], mut words: impl Iterator<Item = &'a [u8]>) -> Result<(), &'static str> {
    while let Some(name) = words.next() {
        let config = configs.iter().find(|config| config.name.as_bytes() == name);
        let config = config.ok_or("unknown argument behind loadmodule: expected pairs such as max-waiters 10000")?;
        let number = words.next().and_then(args::integer).and_then(|number| i64::try_from(number).ok());
        let number = number.filter(|number| (config.min..=config.max).contains(number)).ok_or_else(|| {
            log::warning(&format!("{} takes a whole number from {} to {}", config.name, config.min, config.max));
            "an argument behind loadmodule has no right value"
        })?;
        config.value.store(number, Relaxed);
    }
    Ok(())
}
