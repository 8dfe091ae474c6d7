//! The decisions of sluice, as pure functions: what is stored and the time go in, a decision and its effect come out.
//!
//! Nothing here knows of a server, reads a clock or does I/O, so every rule can be tested with a fake clock.
#![forbid(unsafe_code)]

pub mod args;
pub mod bucket;
pub mod cluster;
pub mod fence;
pub mod fixed;
pub mod lease;
pub mod limit;
pub mod lock;
pub mod queue;
pub mod sliding;
pub mod unload;
