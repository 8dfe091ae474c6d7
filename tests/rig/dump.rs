//! All that a server holds, in a form that can be compared and read.

use super::{Client, Server, ValueExt, args};
use std::collections::BTreeMap;

/// One key: its type, its content in an order that does not depend on the server's hash seed, and when it expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As `TYPE` says.
    pub kind: String,
    /// The value, escaped so that a difference can be read: a string alone, the fields or members of anything else.
    pub value: Vec<String>,
    /// As `PEXPIRETIME` says: Unix time in ms, -1 without.
    pub expires_at: i64,
}

/// Every key of every database, by database and (escaped) name. Two servers that hold the same give equal maps.
#[track_caller]
pub fn dump_all(server: &Server) -> BTreeMap<(u32, String), Entry> {
    let mut all = BTreeMap::new();
    let mut client = server.client();
    for name in server.info("keyspace").keys() {
        let Some(db) = name.strip_prefix("db").and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        client.call(&args!["SELECT", db]);
        for key in client.call(&["KEYS", "*"]).array().iter().map(ValueExt::bytes) {
            if let Some(entry) = entry(&mut client, &key) {
                all.insert((db, key.escape_ascii().to_string()), entry);
            }
        }
    }
    all
}

/// `None` if the key has gone meanwhile.
fn entry(client: &mut Client, key: &[u8]) -> Option<Entry> {
    loop {
        let kind = client.call(&args!["TYPE", key]).text();
        // (what reads it, whether its order means something, how many replies belong together)
        let (read, ordered, group) = match kind.as_str() {
            "none" => return None,
            "string" => (args!["GET", key], true, 1),
            "list" => (args!["LRANGE", key, 0, -1], true, 1),
            "zset" => (args!["ZRANGE", key, 0, -1, "WITHSCORES"], true, 2),
            "hash" => (args!["HGETALL", key], false, 2),
            "set" => (args!["SMEMBERS", key], false, 1),
            _ => (args!["DUMP", key], true, 1),
        };
        // All in one: a key may end, and become another, between any two commands.
        let together = [args!["MULTI"], args!["TYPE", key], read, args!["PEXPIRETIME", key], args!["EXEC"]];
        let [is, reply, expires_at] = &client.pipeline(&together).pop()?.array()[..] else { panic!("three replies") };
        if is.text() != kind {
            continue;
        }
        let parts = if matches!(reply, redis::Value::BulkString(_)) { vec![reply.clone()] } else { reply.array() };
        let mut value: Vec<String> = parts
            .chunks(group)
            .map(|one| one.iter().map(|part| part.bytes().escape_ascii().to_string()).collect::<Vec<_>>().join(" => "))
            .collect();
        if !ordered {
            value.sort();
        }
        return Some(Entry { kind, value, expires_at: expires_at.int() });
    }
}
