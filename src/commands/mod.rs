//! The commands. Each reads from top to bottom: parse, open, decide, apply, reply.

pub mod limit;
pub mod lock;
pub mod sem;
