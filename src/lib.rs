//! sluice: native locks and rate limits for Redis and Valkey.
//!
//! This is all that is loaded: the commands, the settings, and what the module is called. A command's row in the table is in
//! [`spec`], what it does in [`commands`], what it decides in the crate `sluice_core`, and all that touches the server's
//! memory in [`server`].
#![deny(unsafe_code)]

use std::sync::atomic::AtomicI64;

use server::{Config, Module, entry};

mod commands;
#[allow(unsafe_code, reason = "the one room for it")]
mod server;
mod spec;
mod stats;

use commands::{limit, lock};

static MAX_WAITERS: AtomicI64 = AtomicI64::new(10_000);

static MODULE: Module = Module {
    name: c"sluice",
    version: env!("CARGO_PKG_VERSION"),
    number: 100,
    categories: &[c"lock", c"ratelimit"],
    commands: &[
        entry::<lock::Acquire>(),
        entry::<lock::Release>(),
        entry::<lock::Renew>(),
        entry::<lock::Info>(),
        entry::<limit::Fixed>(),
        entry::<limit::Sliding>(),
        entry::<limit::Bucket>(),
    ],
    configs: &[Config { name: "max-waiters", default: 10_000, min: 1, max: 10_000_000, value: &MAX_WAITERS }],
};
