//! What the server would not survive after an unload, and is kept from here. All of these are faults of servers, which any module
//! meets: they go on to use a command that is no more.
//!
//! - An ACL rule that names a command. Redis 8 and Valkey 8 crash while they unload, Redis 7.0 at the next ACL LIST; Valkey 9
//!   refuses by itself.
//! - A transaction that is open: its EXEC runs the command, on all servers.
//! - A command that CLIENT PAUSE holds back: most servers run it afterwards without looking it up again.
//! - Redis 8 remembers each client's last command, to look the next one up faster.

use sluice_core::unload;

use super::context::own;
use super::load::is_valkey;
use super::reply::Reply;
use super::{api, log};
use crate::spec;

/// Makes way for the server to unload the module: refuses where nothing else helps, and closes the connections that would have
/// the server run what is no more.
pub(super) fn prepare() -> Result<(), &'static str> {
    // SAFETY: two C strings, as the format says; the reply is ours.
    let users = unsafe { Reply::new(api!(RedisModule_Call)(own(), c"ACL".as_ptr(), c"c".as_ptr(), c"LIST".as_ptr())) };
    let mut lines = (0..).map(|at| users.element(at)).take_while(|line| !line.is_empty());
    if lines.any(|line| unload::is_named(line, is_ours)) {
        return Err(
            "an ACL rule names a command of the module, and the server would crash: delete or reset that user first",
        );
    }
    // SAFETY: as above.
    let clients =
        unsafe { Reply::new(api!(RedisModule_Call)(own(), c"CLIENT".as_ptr(), c"c".as_ptr(), c"LIST".as_ptr())) };
    let ids = unload::left_behind(clients.text(), remembers(), is_ours);
    for id in &ids {
        let mut digits = itoa::Buffer::new();
        let id = digits.format(*id);
        // SAFETY: the format names the arguments that follow: two C strings, bytes.
        drop(unsafe {
            Reply::new(api!(RedisModule_Call)(
                own(),
                c"CLIENT".as_ptr(),
                c"ccb".as_ptr(),
                c"KILL".as_ptr(),
                c"ID".as_ptr(),
                id.as_ptr(),
                id.len(),
            ))
        });
    }
    if !ids.is_empty() {
        log::notice(&format!(
            "{} connections are closed, which the server would not survive after the unload",
            ids.len()
        ));
    }
    Ok(())
}

fn is_ours(command: &[u8]) -> bool {
    spec::ALL.iter().any(|ours| ours.name.as_bytes().eq_ignore_ascii_case(command))
}

/// Does the server keep each client's last command for the next one?
fn remembers() -> bool {
    // SAFETY: no preconditions.
    let version = unsafe { api!(RedisModule_GetServerVersion)() };
    version >= 0x0008_0000 && !is_valkey(own())
}
