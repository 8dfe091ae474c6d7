//! From a row of the table to a command of the server's.

use core::ffi::{CStr, c_char, c_int};
use core::fmt;
use std::ffi::CString;
use std::ptr;

use redis_module::raw;

use super::call::{self, Command};
use super::{ERR, api};
use crate::spec::{self, Kind};

/// A command, ready to be registered.
pub struct Entry {
    spec: &'static spec::Command,
    enter: unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

/// The entry of one command.
pub const fn entry<C: Command>() -> Entry {
    Entry { spec: C::SPEC, enter: call::enter::<C> }
}

static VERSION: raw::RedisModuleCommandInfoVersion = raw::RedisModuleCommandInfoVersion {
    version: 1,
    sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
    sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
    sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
};

/// What a description points to, until the server has copied it.
#[derive(Default)]
struct Texts {
    strings: Vec<CString>,
    choices: Vec<Vec<raw::RedisModuleCommandArg>>,
}

impl Texts {
    fn keep(&mut self, text: &str) -> *const c_char {
        let text = CString::new(text).unwrap_or_default();
        let start = text.as_ptr(); // the bytes stay where they are when the vector moves its strings
        self.strings.push(text);
        start
    }
}

/// Registers one command: name, flags and key, COMMAND DOCS, ACL categories.
pub fn register(context: *mut raw::RedisModuleCtx, entry: &Entry) -> Result<(), &'static str> {
    let mut texts = Texts::default();
    let spec = entry.spec;
    let name = texts.keep(spec.name);
    // The API writes with a hyphen what COMMAND INFO writes without.
    let flags = spec.flags.join(" ").replace("denyoom", "deny-oom");
    let flags = texts.keep(&flags);
    // SAFETY: the strings outlive the call, which copies them.
    if unsafe { api!(RedisModule_CreateCommand)(context, name, Some(entry.enter), flags, 1, 1, 1) } == ERR {
        return Err("the server refuses a command: is another module with the same commands loaded?");
    }
    // SAFETY: as above.
    let command = unsafe { api!(RedisModule_GetCommand)(context, name) };
    if command.is_null() {
        return Err("the server does not find a command just registered");
    }
    describe(command, spec, &mut texts)?;
    // SAFETY: see `api!`.
    if let Some(categorise) = unsafe { raw::RedisModule_SetCommandACLCategories } {
        let mut categories = spec.categories;
        // SAFETY: see `api!`.
        if unsafe { raw::RedisModule_AddACLCategory }.is_none() {
            categories = categories.split_last().map_or(&[], |(_own, standard)| standard);
        }
        // SAFETY: as above.
        if unsafe { categorise(command, texts.keep(&categories.join(" "))) } == ERR {
            return Err("the server refuses the ACL categories of a command");
        }
    }
    Ok(())
}

/// Adds the module's own ACL categories, where the server lets a module do so. It keeps them when a module is unloaded, so one
/// that is there already is from an earlier load.
pub fn categories(context: *mut raw::RedisModuleCtx, names: &[&CStr]) -> Result<(), &'static str> {
    // SAFETY: see `api!`.
    let Some(add) = (unsafe { raw::RedisModule_AddACLCategory }) else { return Ok(()) };
    for name in names {
        // SAFETY: the name outlives the call, which copies it.
        if unsafe { add(context, name.as_ptr()) } == ERR
            && std::io::Error::last_os_error().kind() != std::io::ErrorKind::ResourceBusy
        {
            return Err("the server refuses an ACL category");
        }
    }
    Ok(())
}

fn describe(
    command: *mut raw::RedisModuleCommand,
    spec: &spec::Command,
    texts: &mut Texts,
) -> Result<(), &'static str> {
    let key_flags = spec.key.iter().fold(0, |flags, word| flags | key_flag(word));
    let mut key_specs = [
        raw::RedisModuleCommandKeySpec {
            notes: ptr::null(),
            flags: u64::from(key_flags),
            begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX,
            bs: raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
                index: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 1 },
            },
            find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE,
            fk: raw::RedisModuleCommandKeySpec__bindgen_ty_2 {
                range: raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey: 0, keystep: 1, limit: 0 },
            },
        },
        // SAFETY: all zeros end the list; every field may be zero.
        unsafe { core::mem::zeroed() },
    ];
    let mut args: Vec<_> = spec.args.iter().map(|arg| argument(arg, texts)).collect();
    // SAFETY: as above.
    args.push(unsafe { core::mem::zeroed() });
    let info = raw::RedisModuleCommandInfo {
        version: &raw const VERSION,
        summary: texts.keep(spec.summary),
        complexity: texts.keep(spec.complexity),
        since: texts.keep(spec.since),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: spec.arity,
        key_specs: key_specs.as_mut_ptr(),
        args: args.as_mut_ptr(),
    };
    // SAFETY: all that `info` points to outlives the call, which copies it.
    if unsafe { api!(RedisModule_SetCommandInfo)(command, &raw const info) } == ERR {
        return Err("the server refuses the description of a command");
    }
    Ok(())
}

fn argument(arg: &spec::Arg, texts: &mut Texts) -> raw::RedisModuleCommandArg {
    raw::RedisModuleCommandArg {
        name: texts.keep(arg.name),
        type_: match arg.kind {
            Kind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
            Kind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
            Kind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
            Kind::Word => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
            Kind::OneOf(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
        },
        key_spec_index: if matches!(arg.kind, Kind::Key) { 0 } else { -1 },
        token: arg.token.map_or(ptr::null(), |token| texts.keep(token)),
        summary: ptr::null(),
        since: ptr::null(),
        flags: if arg.optional { raw::REDISMODULE_CMD_ARG_OPTIONAL as c_int } else { 0 },
        deprecated_since: ptr::null(),
        subargs: if let Kind::OneOf(words) = arg.kind { choices(words, texts) } else { ptr::null_mut() },
        display_text: ptr::null(),
    }
}

fn choices(words: &[&'static str], texts: &mut Texts) -> *mut raw::RedisModuleCommandArg {
    let word = |word: &&'static str| spec::Arg { name: word, kind: Kind::Word, token: Some(word), optional: false };
    let mut args: Vec<_> = words.iter().map(|name| argument(&word(name), texts)).collect();
    // SAFETY: all zeros end the list; every field may be zero.
    args.push(unsafe { core::mem::zeroed() });
    let start = args.as_mut_ptr(); // they stay where they are when the vector around them moves
    texts.choices.push(args);
    start
}

fn key_flag(word: &str) -> u32 {
    match word {
        "RO" => raw::REDISMODULE_CMD_KEY_RO,
        "RW" => raw::REDISMODULE_CMD_KEY_RW,
        "access" => raw::REDISMODULE_CMD_KEY_ACCESS,
        "update" => raw::REDISMODULE_CMD_KEY_UPDATE,
        "delete" => raw::REDISMODULE_CMD_KEY_DELETE,
        _ => 0,
    }
}
