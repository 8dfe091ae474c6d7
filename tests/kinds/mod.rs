//! What the tests of the kinds of lock share.
#![allow(dead_code, missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

use crate::rig::{Client, SOON, Server, Value, ValueExt, args, ms, wait_for, wait_until};

/// A lease in which no test ends.
pub const LONG: &str = "270m";

/// The words of one command.
pub fn words(command: &str) -> Vec<Vec<u8>> {
    args![command.split_whitespace().collect::<Vec<_>>()]
}

/// Sends a command and reads its integer.
#[track_caller]
pub fn int(client: &mut Client, command: &str) -> i64 {
    client.call(&words(command)).int()
}

/// An ACQUIRE that must be granted: its fence.
#[track_caller]
pub fn granted(client: &mut Client, command: &str) -> i64 {
    let fence = int(client, command);
    assert!(fence > 0, "not granted: {command}");
    fence
}

/// Asserts an error of that code.
#[track_caller]
pub fn is_error(client: &mut Client, command: &str, code: &str) {
    let reply = client.call(&words(command));
    assert!(reply.is_error(&format!("{code} ")), "{command}: {reply:?}");
}

/// An ACQUIRE … BLOCK that is in the queue.
pub struct Waiter {
    pub client: Client,
    pub id: i64,
    command: String,
}

impl Waiter {
    #[track_caller]
    pub fn reply(&mut self) -> Value {
        self.client.read(SOON).unwrap_or_else(|error| panic!("no reply to {}: {error}", self.command))
    }

    /// The fence of the grant it must get.
    #[track_caller]
    pub fn fence(&mut self) -> i64 {
        let reply = self.reply();
        assert!(matches!(reply, Value::Int(fence) if fence > 0), "{}: {reply:?}", self.command);
        reply.int()
    }
}

/// LOCK.INFO or SEM.INFO, as the command at hand is of a lock or a semaphore.
fn info(server: &Server, command: &str) -> Value {
    let of = words(command);
    let name = if of[0].starts_with(b"SEM") { "SEM.INFO" } else { "LOCK.INFO" };
    server.call(&args![name, &of[1]])
}

/// Sends an ACQUIRE … BLOCK and returns when the queue has it.
#[track_caller]
pub fn line_up(server: &Server, command: &str) -> Waiter {
    let mut client = server.client();
    let id = client.id();
    client.send(&words(command));
    wait_until(SOON, "the call is in the queue", || {
        info(server, command).map()["queue"].array().iter().any(|entry| entry.map()["client"].int() == id)
    });
    Waiter { client, id, command: command.to_owned() }
}

/// The same for one whose patience may be over before anybody has seen it wait: the queue has it, or its answer is here.
#[track_caller]
pub fn enter(server: &Server, command: &str) -> Waiter {
    let waiter = send_up(server, command);
    wait_until(SOON, "the call is in the queue or answered", || {
        let queued = info(server, command).map()["queue"].array();
        waiter.client.is_answered() || queued.iter().any(|entry| entry.map()["client"].int() == waiter.id)
    });
    waiter
}

/// Sends an ACQUIRE … BLOCK whose grant may come before anybody could see it wait.
#[track_caller]
pub fn send_up(server: &Server, command: &str) -> Waiter {
    let mut client = server.client();
    let id = client.id();
    client.send(&words(command));
    Waiter { client, id, command: command.to_owned() }
}

fn tokens(server: &Server, key: &str, field: &str) -> Vec<String> {
    let mut info = server.call(&["LOCK.INFO", key]);
    if info.is_error("WRONGTYPE") {
        info = server.call(&["SEM.INFO", key]);
    }
    info.map()[field].array().iter().map(|entry| entry.map()["token"].text()).collect()
}

/// The tokens that hold, in order.
#[track_caller]
pub fn holders(server: &Server, key: &str) -> Vec<String> {
    let mut tokens = tokens(server, key, "holders");
    tokens.sort();
    tokens
}

/// The tokens that wait, the next one first.
#[track_caller]
pub fn queue(server: &Server, key: &str) -> Vec<String> {
    tokens(server, key, "queue")
}

/// When the key expires: Unix time in ms, -1 never, -2 no key.
#[track_caller]
pub fn expires_at(server: &Server, key: &str) -> i64 {
    server.call(&["PEXPIRETIME", key]).int()
}

/// When a token's share or permit ends.
#[track_caller]
pub fn ends_at(server: &Server, key: &str, token: &str) -> i64 {
    let score = server.call(&["ZSCORE", key, token]);
    if score.is_nil() {
        panic!("{token} has none of {key}");
    }
    let text = score.text();
    let (whole, fraction) = text.split_once('.').unwrap_or_else(|| panic!("{text} has no fraction"));
    assert!(fraction == "25" || fraction == "5", "{text}");
    whole.parse().unwrap()
}

/// The server's clock, Unix time in ms.
#[track_caller]
pub fn now_ms(client: &mut Client) -> i64 {
    let time: Vec<i64> = client.call(&["TIME"]).array().iter().map(|n| n.text().parse().unwrap()).collect();
    time[0] * 1000 + time[1] / 1000
}

/// Waits until the server's clock is past that millisecond.
#[track_caller]
pub fn wait_past(server: &Server, at: i64) {
    let mut client = server.client();
    wait_for(ms(30_000), "the server's clock gets there", || now_ms(&mut client), |now| *now > at);
}

/// All that a change of any kind would leave behind.
#[derive(Debug, PartialEq, Eq)]
pub struct Traces {
    value: Vec<u8>,
    expires_at: i64,
    dirty: i64,
    offset: i64,
    aof: i64,
}

/// Looks for it.
#[track_caller]
pub fn traces(server: &Server, key: &str) -> Traces {
    let dump = server.call(&["DUMP", key]);
    Traces {
        value: if dump.is_nil() { vec![] } else { dump.bytes() },
        expires_at: expires_at(server, key),
        dirty: server.info_int("persistence", "rdb_changes_since_last_save"),
        offset: server.offset(),
        aof: server.aof_size(),
    }
}

/// A server that counts what it replicates and logs, with a replica that has no module.
pub struct Pair {
    pub primary: Server,
    pub replica: Server,
}

#[track_caller]
pub fn pair() -> Pair {
    let quiet = ["--repl-ping-replica-period", "3600"];
    let primary = Server::builder().args(&["--appendonly", "yes"]).args(&quiet).start();
    let replica = crate::rig::replica(&primary, false);
    Pair { primary, replica }
}

/// The keyspace events of a key that a command fires, in order.
pub struct Ears {
    ears: Client,
    key: String,
}

impl Ears {
    #[track_caller]
    pub fn on(server: &Server, key: &str) -> Self {
        server.call(&["CONFIG", "SET", "notify-keyspace-events", "KA"]);
        let mut ears = server.client();
        ears.send(&args!["SUBSCRIBE", format!("__keyspace@0__:{key}"), "end"]);
        for _ in 0..2 {
            ears.read(SOON).unwrap();
        }
        Self { ears, key: key.to_owned() }
    }

    /// What has been heard since the last time.
    #[track_caller]
    pub fn heard(&mut self, client: &mut Client) -> Vec<String> {
        client.call(&["PUBLISH", "end", "end"]);
        let mut heard = vec![];
        loop {
            let message: Vec<String> = self.ears.read(SOON).unwrap().array().iter().map(ValueExt::text).collect();
            if message[1] == "end" {
                return heard;
            }
            assert_eq!(message[1], format!("__keyspace@0__:{}", self.key));
            heard.push(message[2].clone());
        }
    }
}

/// A counter of `INFO sluice`.
#[track_caller]
pub fn counter(server: &Server, name: &str) -> i64 {
    server.info_int("sluice", &format!("sluice_{name}"))
}

/// No bug of ours has been met.
#[track_caller]
pub fn no_internal_error(server: &Server) {
    assert_eq!(counter(server, "internal_errors"), 0);
}

/// Tries something whose time matters up to five times, and takes the best: on a machine that is busy with something else one
/// bad time means nothing. `once` gives how late it was, in ms by the server's clock.
#[track_caller]
pub fn late_by_at_most(most: i64, what: &str, mut once: impl FnMut() -> i64) {
    let mut seen = vec![];
    for _ in 0..5 {
        let late = once();
        if late <= most {
            return;
        }
        seen.push(late);
    }
    panic!("{what}: late by {seen:?} ms, at most {most} was promised");
}
