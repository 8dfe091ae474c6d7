//! Locks and those who wait for them, as a test sees them.

use super::{Client, SOON, Server, Value, ValueExt, args, ms, wait_for, wait_until};
use std::io::Write;
use std::time::Instant;

/// A connection whose LOCK.ACQUIRE … BLOCK is in the queue.
pub struct Waiter {
    /// The connection; its next reply is the call's.
    pub client: Client,
    /// What the server calls it.
    pub id: i64,
    /// When the call was sent.
    pub sent: Instant,
    token: String,
}

impl Waiter {
    /// The reply, which must come.
    #[track_caller]
    pub fn reply(&mut self) -> Value {
        self.client.read(SOON).unwrap_or_else(|error| panic!("no reply to {}: {error}", self.token))
    }

    /// The fence of the grant it must get.
    #[track_caller]
    pub fn fence(&mut self) -> i64 {
        let reply = self.reply();
        assert!(matches!(reply, Value::Int(fence) if fence > 0), "{} has no grant but {reply:?}", self.token);
        reply.int()
    }

    /// It still waits: nothing comes for a while that is longer than any grant takes, and the server lists it.
    #[track_caller]
    pub fn still_waits(&mut self, server: &Server, key: &str) {
        assert!(self.client.is_silent(ms(60)), "{} was answered", self.token);
        // A key of another type has no LOCK.INFO, though those who waited for the lock it was still do.
        let listed = if server.call(&["LOCK.INFO", key]).is_error("WRONGTYPE") {
            waiters(server) > 0
        } else {
            queue(server, key).contains(&self.token)
        };
        assert!(listed, "{} is not in the queue", self.token);
    }

    /// Nothing but what has been read has come: the connection answers the next command, and that only.
    #[track_caller]
    pub fn has_no_other_reply(mut self) {
        assert_eq!(self.client.call(&["PING"]).text(), "PONG");
        assert!(self.client.is_silent(ms(2)));
    }
}

/// LOCK.ACQUIRE without BLOCK.
#[track_caller]
pub fn acquire(server: &Server, key: &str, token: &str, ttl: &str) -> i64 {
    server.call(&["LOCK.ACQUIRE", key, token, ttl]).int()
}

/// LOCK.ACQUIRE by somebody who must get it at once.
#[track_caller]
pub fn hold(server: &Server, key: &str, token: &str, ttl: &str) -> i64 {
    let fence = acquire(server, key, token, ttl);
    assert!(fence > 0, "{token} did not get {key}");
    fence
}

/// LOCK.RELEASE.
#[track_caller]
pub fn release(server: &Server, key: &str, token: &str) -> i64 {
    server.call(&["LOCK.RELEASE", key, token]).int()
}

/// Sends LOCK.ACQUIRE … BLOCK and returns when the queue has it, over a new connection in database 0.
#[track_caller]
pub fn line_up(server: &Server, key: &str, token: &str, ttl: &str, timeout: &str) -> Waiter {
    line_up_on(server.client(), server, key, token, ttl, timeout)
}

/// The same over a given connection, in database 0.
#[track_caller]
pub fn line_up_on(mut client: Client, server: &Server, key: &str, token: &str, ttl: &str, timeout: &str) -> Waiter {
    let id = client.id();
    let sent = Instant::now();
    client.send(&["LOCK.ACQUIRE", key, token, ttl, "BLOCK", timeout]);
    wait_for(SOON, "the call is in the queue", || queued_ids(server, key), |ids| ids.contains(&id));
    Waiter { client, id, sent, token: token.to_owned() }
}

/// The same where the holder's lease or the waiter's own patience is so short that it may be over before anybody has seen the call
/// wait: returns when the queue has it, or its answer is here.
#[track_caller]
pub fn enter(server: &Server, key: &str, token: &str, ttl: &str, timeout: &str) -> Waiter {
    let mut client = server.client();
    let id = client.id();
    let sent = Instant::now();
    client.send(&["LOCK.ACQUIRE", key, token, ttl, "BLOCK", timeout]);
    wait_until(SOON, "the call is in the queue or answered", || {
        client.is_answered() || queued_ids(server, key).contains(&id)
    });
    Waiter { client, id, sent, token: token.to_owned() }
}

/// The tokens in the queue, the next one first.
#[track_caller]
pub fn queue(server: &Server, key: &str) -> Vec<String> {
    entries(server, key).iter().map(|entry| entry.map()["token"].text()).collect()
}

fn queued_ids(server: &Server, key: &str) -> Vec<i64> {
    entries(server, key).iter().map(|entry| entry.map()["client"].int()).collect()
}

#[track_caller]
fn entries(server: &Server, key: &str) -> Vec<Value> {
    server.call(&["LOCK.INFO", key]).map()["queue"].array()
}

/// How many wait, for any key.
#[track_caller]
pub fn waiters(server: &Server) -> i64 {
    server.info_int("sluice", "sluice_lock_waiters")
}

/// Who holds it: the text of the key.
#[track_caller]
pub fn holder(server: &Server, key: &str) -> String {
    let value = server.call(&["GET", key]);
    if value.is_nil() { "nobody".to_owned() } else { value.text() }
}

/// Whether the server knows a command.
pub fn knows(server: &Server, command: &str) -> bool {
    !server.call(&["COMMAND", "INFO", command]).array()[0].is_nil()
}

/// Major, minor and patch, and whether it is a Valkey.
pub fn version(server: &Server) -> (bool, [u32; 3]) {
    let info = server.info("server");
    let (valkey, text) = match info.get("valkey_version") {
        Some(version) => (true, version.clone()),
        None => (false, info["redis_version"].clone()),
    };
    let mut parts = text.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (valkey, std::array::from_fn(|_| parts.next().unwrap_or(0)))
}

/// Whether what a foreign command left is looked at only after the commands read in the same turn (Redis 7.0).
pub fn defers(server: &Server) -> bool {
    let (valkey, version) = version(server);
    !valkey && version < [7, 2, 0]
}

/// Whether the module does not listen to key events there, because the server breaks MOVE and COPY if one does.
pub fn is_deaf(server: &Server) -> bool {
    let (valkey, version) = version(server);
    valkey && ([8, 1, 0]..=[9, 1, 0]).contains(&version)
}

/// Says, past the capture of the test's output, that something was not tested here, and why.
pub fn not_here(what: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "NOT TESTED HERE: {what}: {why}");
}

/// The words of one command, for [`Client::pipeline`].
pub fn words(command: &str) -> Vec<Vec<u8>> {
    args![command.split_whitespace().collect::<Vec<_>>()]
}
