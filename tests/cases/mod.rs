//! What the tests of the cases share: reading a limiter's answer, asking between two readings of the server's clock, and
//! looking at all that a change would leave behind.
#![allow(dead_code, missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

pub mod models;

use crate::rig::{Client, SOON, Server, Value, ValueExt, args, ms, wait_for, wait_until};

/// Four and a half hours, in which no test ends: a lease or window that must not run out by itself.
pub const LONG: &str = "270m";

/// What INFO counts of the limiters, behind `sluice_`.
pub const RL_COUNTERS: [&str; 6] = [
    "rl_fixed_allowed",
    "rl_fixed_refused",
    "rl_sliding_allowed",
    "rl_sliding_refused",
    "rl_bucket_allowed",
    "rl_bucket_refused",
];

/// The five integers of a limiter's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    pub limit: i64,
    pub remaining: i64,
    pub retry_after: i64,
    pub reset_after: i64,
}

/// Reads a limiter's reply, and holds it to what every such reply has to keep.
#[track_caller]
pub fn verdict(reply: &Value) -> Verdict {
    let five = reply.ints();
    let [allowed, limit, remaining, retry_after, reset_after] = five[..] else { panic!("not five: {five:?}") };
    assert!(allowed == 0 || allowed == 1, "allowed: {five:?}");
    assert!((0..=limit).contains(&remaining), "remaining: {five:?}");
    assert!(
        if allowed == 1 { retry_after == 0 } else { retry_after == -1 || retry_after > 0 },
        "retry_after: {five:?}"
    );
    assert!(reset_after >= 0, "reset_after: {five:?}");
    Verdict { allowed: allowed == 1, limit, remaining, retry_after, reset_after }
}

/// Asks a limiter.
#[track_caller]
pub fn ask(client: &mut Client, words: &[Vec<u8>]) -> Verdict {
    verdict(&client.call(words))
}

/// `(allowed, remaining, retry_after)`, where the window is too long for its end to be of interest.
#[track_caller]
pub fn short(client: &mut Client, words: &[Vec<u8>]) -> (bool, i64, i64) {
    let Verdict { allowed, remaining, retry_after, .. } = ask(client, words);
    (allowed, remaining, retry_after)
}

/// A reply, and the server's clock just before and just after, in µs.
#[derive(Clone, Debug)]
pub struct Timed {
    pub before: i64,
    pub after: i64,
    pub reply: Value,
}

impl Timed {
    /// The millisecond before which the call cannot have been.
    pub fn earliest_ms(&self) -> i64 {
        self.before / 1000
    }

    /// The millisecond after which the call cannot have been.
    pub fn latest_ms(&self) -> i64 {
        self.after / 1000
    }

    #[track_caller]
    pub fn verdict(&self) -> Verdict {
        verdict(&self.reply)
    }
}

/// The server's clock as TIME replies it, in µs.
#[track_caller]
pub fn micros(time: &Value) -> i64 {
    let parts: Vec<i64> = time.array().iter().map(|n| n.text().parse().unwrap()).collect();
    parts[0] * 1_000_000 + parts[1]
}

/// Asks between two readings of the server's clock, all three in one write.
#[track_caller]
pub fn timed(client: &mut Client, words: &[Vec<u8>]) -> Timed {
    let mut replies = client.pipeline(&[args!["TIME"], words.to_vec(), args!["TIME"]]);
    let after = micros(&replies.pop().unwrap());
    let reply = replies.pop().unwrap();
    Timed { before: micros(&replies.pop().unwrap()), after, reply }
}

/// Asks until the call is refused, and then again and again until it passes, and holds every answer to the first refusal's
/// promise: before `retry_after` is over it is refused, after that it is allowed.
#[track_caller]
pub fn refused_until_its_time_and_allowed_from_then_on(client: &mut Client, words: &[Vec<u8>]) {
    // RL.BUCKET reckons in µs and rounds its answer up to ms; the others know nothing below the ms.
    let (unit, rounding) = if words[0] == b"RL.BUCKET" { (1, 999) } else { (1000, 0) };
    let promise = |call: &Timed| {
        let wait = call.verdict().retry_after * 1000;
        (call.before / unit * unit + wait - rounding, call.after / unit * unit + wait)
    };
    let first = wait_for(SOON, "a refusal", || timed(client, words), |asked| !asked.verdict().allowed);
    let refused = first.verdict();
    assert!(refused.retry_after > 0, "{refused:?}");
    // The call passes from a moment on that lies between these two, in µs.
    let (earliest, latest) = promise(&first);
    wait_until(ms(u64::try_from(refused.retry_after).unwrap()) + SOON, "the promised moment comes", || {
        let again = timed(client, words);
        if again.verdict().allowed {
            assert!(again.after >= earliest, "allowed before {earliest}: {again:?}");
            return true;
        }
        assert!(again.before / unit * unit < latest, "refused after {latest}: {again:?}");
        let due = promise(&again);
        assert!(due.0 <= latest && due.1 >= earliest, "promised {earliest} to {latest}, then {due:?}");
        false
    });
}

/// Waits until a key is gone.
#[track_caller]
pub fn wait_until_gone(client: &mut Client, key: &str) {
    wait_until(SOON, "the key expires", || client.call(&["EXISTS", key]).int() == 0);
}

/// Waits until the server's clock shows that millisecond or a later one.
#[track_caller]
pub fn wait_until_ms(server: &Server, at: i64) {
    let left = u64::try_from(at - server.now_ms()).unwrap_or(0);
    wait_until(ms(left) + SOON, "the server's clock gets there", || server.now_ms() >= at);
}

/// When the key expires: Unix time in ms, -1 never, -2 no key.
#[track_caller]
pub fn expires_at(client: &mut Client, key: &str) -> i64 {
    client.call(&["PEXPIRETIME", key]).int()
}

/// The value and the expiry of a key.
#[track_caller]
pub fn value_and_expiry(client: &mut Client, key: &str) -> (Value, i64) {
    (client.call(&["DUMP", key]), expires_at(client, key))
}

/// Asserts an error of one line, with that code, that carries nothing of `never`.
#[track_caller]
pub fn assert_error(reply: &Value, code: &str) -> String {
    let line = reply.error().unwrap_or_else(|| panic!("no error but {reply:?}"));
    assert!(line.starts_with(&format!("{code} ")), "not {code}: {line}");
    assert!(!line.contains(['\r', '\n']), "more than one line: {line:?}");
    line
}

/// The keyspace events of a server, as one listener hears them.
pub struct Events {
    listener: Client,
    server_port: u16,
}

impl Events {
    /// Turns all of them on, and listens.
    #[track_caller]
    pub fn of(server: &Server) -> Self {
        server.call(&["CONFIG", "SET", "notify-keyspace-events", "KEA"]);
        let mut listener = server.client();
        listener.call(&["PSUBSCRIBE", "__keyevent@*__:*"]);
        Self { listener, server_port: server.port() }
    }

    /// What has happened since the last look, as `event key`.
    #[track_caller]
    pub fn seen(&mut self) -> Vec<String> {
        // What is published now comes after all that has happened before.
        let mut publisher = Client::connect(self.server_port).unwrap();
        publisher.call(&["PUBLISH", "__keyevent@0__:-- end --", ""]);
        let mut seen = Vec::new();
        loop {
            let message = self.listener.read(SOON).expect("an event").array();
            let event = message[2].text();
            let event = event.split_once(':').unwrap().1;
            if event == "-- end --" {
                return seen;
            }
            seen.push(format!("{event} {}", message[3].text()));
        }
    }
}

/// A random source whose seed is printed; `SLUICE_SEED` replays it.
pub fn seeded() -> (u64, rand::rngs::StdRng) {
    let seed = match std::env::var("SLUICE_SEED") {
        Ok(seed) => seed.parse().expect("SLUICE_SEED is a number"),
        Err(_) => rand::random(),
    };
    // Shown by the test's runner if the test fails.
    println!("SLUICE_SEED={seed} replays this");
    (seed, rand::SeedableRng::seed_from_u64(seed))
}

/// Random calls of every command on a few keys, with leases and windows from an hour on, so that nothing ends by itself.
pub fn random_traffic(random: &mut rand::rngs::StdRng, calls: usize) -> Vec<Vec<Vec<u8>>> {
    use rand::RngExt;
    let mut traffic = Vec::new();
    for _ in 0..calls {
        let key = random.random_range(0..6);
        let token = random.random_range(0..3);
        // Half of the keys are always asked with the same parameters, as most are in real life.
        let (mut hours, mut limit) = (random.random_range(1..4), random.random_range(1..60));
        if key < 3 {
            (hours, limit) = (2, 20_000);
        }
        let cost = random.random_range(0..12);
        let mut call = match random.random_range(0..10) {
            0 | 1 => args!["LOCK.ACQUIRE", format!("lock:{key}"), token, format!("{hours}h")],
            2 => args!["LOCK.RELEASE", format!("lock:{key}"), token],
            3 => args!["LOCK.RENEW", format!("lock:{key}"), token, format!("{hours}h")],
            4 | 5 => args!["RL.FIXED", format!("fixed:{key}"), limit, format!("{hours}h"), "COST", cost],
            6 | 7 => args!["RL.SLIDING", format!("sliding:{key}"), limit, format!("{hours}h"), "COST", cost],
            _ => args!["RL.BUCKET", format!("bucket:{key}"), limit, 1, format!("{hours}h"), "COST", cost],
        };
        if call[0].starts_with(b"RL.") && random.random_bool(0.1) {
            call.extend(args!["PEEK"]);
        }
        traffic.push(match random.random_range(0..200) {
            0 => args!["PERSIST", format!("fixed:{key}")],
            1 => args!["PERSIST", format!("sliding:{key}")],
            2 => args!["DEL", format!("bucket:{key}")],
            3 => args!["SET", format!("lock:{key}"), token],
            _ => call,
        });
    }
    traffic
}

/// What MODULE LIST says of ours, if it is loaded; servers bring modules of their own.
#[track_caller]
pub fn our_module(client: &mut Client) -> Option<std::collections::BTreeMap<String, Value>> {
    let loaded = client.call(&["MODULE", "LIST"]).array();
    let mut ours = loaded.iter().map(ValueExt::map).filter(|module| module["name"].text() == "sluice");
    let found = ours.next();
    assert!(ours.next().is_none(), "loaded twice");
    found
}

/// Where the module was loaded from.
#[track_caller]
pub fn module_path(client: &mut Client) -> String {
    our_module(client).expect("it is loaded")["path"].text()
}
