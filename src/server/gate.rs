//! What only the server can tell, asked by commands that change nothing: would it take a write now, and whose is a slot?

use core::ffi::CStr;
use std::ffi::CString;

use redis_module::raw;
use sluice_core::cluster::{self, Endpoint};

use super::reply::Reply;
use super::{Context, Failure, Site, api, hot};

/// What would become of a plain write to a key now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It would be taken.
    Open,
    /// Writes are paused: CLIENT PAUSE, FAILOVER, CLUSTER FAILOVER. To write all the same would end the server.
    Paused,
    /// It would be refused: READONLY, NOREPLICAS, MISCONF, CLUSTERDOWN.
    Shut,
    /// The key's slot is another node's, or on its way there.
    Elsewhere,
}

impl Site {
    /// Asks the server by a write of no bytes, which changes nothing and is refused when any write would be.
    pub fn gate(&self) -> Gate {
        // SAFETY: no preconditions.
        if unsafe { hot!(RedisModule_AvoidReplicaTraffic)() } != 0 {
            return Gate::Paused;
        }
        if self.context().is_passive() {
            return Gate::Shut;
        }
        // SAFETY: the format names the arguments that follow: a string of the server's and two C strings.
        let by_setrange = unsafe {
            Reply::new(api!(RedisModule_Call)(
                self.context,
                c"SETRANGE".as_ptr(),
                c"SEscc".as_ptr(),
                self.name,
                c"0".as_ptr(),
                c"".as_ptr(),
            ))
        };
        // A server's people may have renamed the command; to remove an empty range asks the same.
        by_setrange.gate().unwrap_or_else(|| {
            // SAFETY: as above.
            let by_range = unsafe {
                Reply::new(api!(RedisModule_Call)(
                    self.context,
                    c"ZREMRANGEBYRANK".as_ptr(),
                    c"SEscc".as_ptr(),
                    self.name,
                    c"1".as_ptr(),
                    c"0".as_ptr(),
                ))
            };
            by_range.gate().unwrap_or(Gate::Open)
        })
    }

    /// Where to send those who wait for a key that [`Gate::Elsewhere`] was said of: the server's own redirection.
    pub fn redirection(&self) -> CString {
        let setting = c"cluster-preferred-endpoint-type";
        // SAFETY: as above: two C strings and a string of the server's; then C strings.
        let (slot, nodes, endpoint) = unsafe {
            let call = api!(RedisModule_Call);
            (
                Reply::new(call(self.context, c"CLUSTER".as_ptr(), c"cs".as_ptr(), c"KEYSLOT".as_ptr(), self.name)),
                Reply::new(call(self.context, c"CLUSTER".as_ptr(), c"c".as_ptr(), c"NODES".as_ptr())),
                Reply::new(call(self.context, c"CONFIG".as_ptr(), c"cc".as_ptr(), c"GET".as_ptr(), setting.as_ptr())),
            )
        };
        let by = core::str::from_utf8(endpoint.element(1)).map(Endpoint::of).unwrap_or_default();
        let owner = slot.integer().and_then(|slot| {
            let slot = u16::try_from(slot).ok()?;
            match cluster::owner(core::str::from_utf8(nodes.text()).ok()?, slot, by) {
                cluster::Owner::Other(address) => CString::new(format!("MOVED {slot} {address}")).ok(),
                cluster::Owner::Myself | cluster::Owner::Unknown => None,
            }
        });
        owner.unwrap_or_else(|| c"TRYAGAIN the slot of this key is on its way to another node: ask again".into())
    }

    /// Would the server refuse a command that may need memory, as it refused those of others before this one?
    #[cold]
    pub(super) fn refused_for_memory(&self) -> bool {
        // SAFETY: as in `gate`.
        let reply = unsafe {
            Reply::new(api!(RedisModule_Call)(
                self.context,
                c"SETRANGE".as_ptr(),
                c"EMscc".as_ptr(),
                self.name,
                c"0".as_ptr(),
                c"".as_ptr(),
            ))
        };
        match reply.kind() {
            // Above the limit as it is, a server that does not know the command is taken at its worst.
            None => true,
            Some(raw::REDISMODULE_REPLY_ERROR) => reply.text().starts_with(b"OOM") || reply.gate().is_none(),
            Some(_) => false,
        }
    }

    /// `ZCOUNT key from +inf`: how many members of a sorted set have at least this score, without walking over them.
    /// Outside a client's command no handle on the key may be open.
    pub fn count_from(&self, from: &CStr) -> Option<u64> {
        // SAFETY: as in `gate`.
        let reply = unsafe {
            Reply::new(api!(RedisModule_Call)(
                self.context,
                c"ZCOUNT".as_ptr(),
                c"scc".as_ptr(),
                self.name,
                from.as_ptr(),
                c"+inf".as_ptr(),
            ))
        };
        reply.integer().and_then(|count| u64::try_from(count).ok())
    }

    /// `DEL key`, as a client would send it. No handle on a key that holds something may be open.
    #[cold]
    pub(super) fn delete_by_name(&self) -> Result<(), Failure> {
        // SAFETY: as in `gate`.
        let reply =
            unsafe { Reply::new(api!(RedisModule_Call)(self.context, c"DEL".as_ptr(), c"!s".as_ptr(), self.name)) };
        reply.kind().map_or(Err(Failure::Internal), |_| Ok(()))
    }
}

impl Context<'_> {
    /// Has nothing been written to a client that it has not got yet?
    pub(super) fn has_no_output(&self, id: u64) -> bool {
        let mut digits = itoa::Buffer::new();
        let id = digits.format(id);
        // SAFETY: the format names the arguments that follow: two C strings, bytes.
        let reply = unsafe {
            Reply::new(api!(RedisModule_Call)(
                self.raw(),
                c"CLIENT".as_ptr(),
                c"ccb".as_ptr(),
                c"LIST".as_ptr(),
                c"ID".as_ptr(),
                id.as_ptr(),
                id.len(),
            ))
        };
        let says = |field: &[u8]| reply.text().windows(field.len()).any(|part| part == field);
        says(b" obl=0 ") && says(b" oll=0 ")
    }
}

impl Reply {
    /// What an attempt to write says of the gate; nothing if the server does not know the command.
    fn gate(&self) -> Option<Gate> {
        match self.kind() {
            None => None,
            Some(raw::REDISMODULE_REPLY_ERROR) => refusal(self.text()),
            Some(_) => Some(Gate::Open),
        }
    }
}

/// What an error says of the gate. A key of another type is no obstacle to a write as such.
fn refusal(text: &[u8]) -> Option<Gate> {
    let says = |words: &[u8]| text.windows(words.len()).any(|part| part.eq_ignore_ascii_case(words));
    if text.starts_with(b"WRONGTYPE") {
        Some(Gate::Open)
    } else if says(b"non local key") {
        Some(Gate::Elsewhere)
    } else if says(b"unknown redis command") || says(b"unknown command") {
        None
    } else {
        Some(Gate::Shut)
    }
}
