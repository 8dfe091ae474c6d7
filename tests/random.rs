//! Random bytes in every place, and random values under the keys: the server lives, and every reply is one of ours.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::{RL_COUNTERS, seeded, verdict};
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use rig::{Server, Value, ValueExt, args};

const CALLS: usize = 100_000;
const BATCH: usize = 500;

/// What a batch is made from: random numbers, and states that the limiters have really stored.
struct Source {
    random: StdRng,
    states: Vec<Vec<u8>>,
    dumps: Vec<Vec<u8>>,
}

/// A command, and what its reply must be.
struct Sent {
    call: Vec<Vec<u8>>,
    expected: Expected,
}

enum Expected {
    /// Anything: it is the server's own command.
    Any,
    /// An integer from 0, or an error of ours.
    Lock,
    /// Fields and values, or an error of ours.
    Info,
    /// Five integers, or an error of ours; where the arguments were good, a refused call of no more than the limit waits no
    /// longer than this.
    Limit(Option<i64>),
}

impl Source {
    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.random.random_range(0..=most)];
        self.random.fill_bytes(&mut bytes);
        bytes
    }

    /// One of a few keys: those that only our commands write, and those that anybody writes.
    fn key(&mut self) -> Vec<u8> {
        let room = if self.random.random_bool(0.4) { "own" } else { "any" };
        format!("{room}:{}", self.random.random_range(0..12)).into_bytes()
    }

    fn own_or_any(&mut self, kind: &str) -> Vec<u8> {
        let mut key = self.key();
        // Each kind has its own of those that nobody else writes, or they would only ever meet a WRONGTYPE.
        if key.starts_with(b"own") {
            key.extend(kind.as_bytes());
        }
        key
    }

    /// A word for a number or a duration, good or not.
    fn word(&mut self) -> Vec<u8> {
        match self.random.random_range(0..9) {
            0 => self.bytes(12),
            1 => self.random.random::<i64>().to_string().into_bytes(),
            2 => self.random.random::<u128>().to_string().into_bytes(),
            3 => format!(
                "{}{}",
                self.random.random_range(0..100),
                ["ms", "s", "m", "h", "d", "", "x"][self.random.random_range(0..7)]
            )
            .into_bytes(),
            4 => b"COST".to_vec(),
            5 => b"PEEK".to_vec(),
            _ => self.random.random_range(-1..200).to_string().into_bytes(),
        }
    }

    /// Something that a limiter stored, damaged.
    fn damaged(&mut self) -> Vec<u8> {
        if self.states.is_empty() || self.random.random_bool(0.1) {
            return self.bytes(200);
        }
        let at = self.random.random_range(0..self.states.len());
        let mut state = self.states[at].clone();
        for _ in 0..self.random.random_range(0..4) {
            if state.is_empty() {
                break;
            }
            let place = self.random.random_range(0..state.len());
            match self.random.random_range(0..6) {
                0 => state[place] ^= 1 << self.random.random_range(0..8),
                1 => state[place] = [0, 0xff, 0x7f, 0x80][self.random.random_range(0..4)],
                2 => state.truncate(place),
                3 => state.extend(self.bytes(9)),
                4 => {
                    let other = self.random.random_range(0..self.states.len());
                    let other = self.states[other].clone();
                    state = [&state[..place], other.get(place..).unwrap_or_default()].concat();
                }
                _ => {
                    let byte = state[place];
                    state.insert(place, byte);
                }
            }
        }
        state
    }

    fn next(&mut self) -> Sent {
        let sent = |call, expected| Sent { call, expected };
        match self.random.random_range(0..20) {
            0 => {
                let (key, value) = (self.any_key(), self.damaged());
                sent(args!["SET", key, value], Expected::Any)
            }
            1 | 2 => {
                let (key, value) = (self.any_key(), self.damaged());
                let ttl = self.random.random_range(1..100_000);
                sent(args!["SET", key, value, "PX", ttl], Expected::Any)
            }
            3 => {
                let key = self.any_key();
                let dump = match self.dumps.is_empty() || self.random.random_bool(0.3) {
                    true => self.bytes(60),
                    false => {
                        let at = self.random.random_range(0..self.dumps.len());
                        self.dumps[at].clone()
                    }
                };
                sent(args!["RESTORE", key, self.random.random_range(0..50_000), dump, "REPLACE"], Expected::Any)
            }
            4 => {
                let key = self.any_key();
                if self.random.random_bool(0.3) {
                    let kind = ["", "lock", "f", "s", "b"][self.random.random_range(0..5)];
                    return sent(args!["DEL", self.own_or_any(kind)], Expected::Any);
                }
                let others = [
                    args!["RPUSH", &key, 1],
                    args!["HSET", &key, "f", 1],
                    args!["PERSIST", &key],
                    args!["DEL", &key],
                    args!["APPEND", &key, "1"],
                    args!["INCR", &key],
                    args!["SETRANGE", &key, self.random.random_range(0..40), "\u{f6}"],
                    args!["SETBIT", &key, self.random.random_range(0..200), 1],
                ];
                sent(others[self.random.random_range(0..others.len())].clone(), Expected::Any)
            }
            5 | 6 => {
                let token = if self.random.random_bool(0.8) { args!["t"].remove(0) } else { self.bytes(600) };
                let ttl = if self.random.random_bool(0.7) { args!["30s"].remove(0) } else { self.word() };
                let key = self.own_or_any("lock");
                match self.random.random_range(0..4) {
                    0 | 1 => sent(args!["LOCK.ACQUIRE", key, token, ttl], Expected::Lock),
                    2 => sent(args!["LOCK.RELEASE", key, token], Expected::Lock),
                    _ => sent(args!["LOCK.RENEW", key, token, ttl], Expected::Lock),
                }
            }
            7 => sent(args!["LOCK.INFO", self.key()], Expected::Info),
            8 | 9 => {
                // Anything at all behind any of our names.
                let names = ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.RENEW", "RL.FIXED", "RL.SLIDING", "RL.BUCKET"];
                let name = names[self.random.random_range(0..names.len())];
                let mut call = args![name, self.any_key()];
                for _ in 0..self.random.random_range(0..7) {
                    call.push(self.word());
                }
                // (BLOCK could make the connection wait: that has tests of its own.)
                call.retain(|word| !word.eq_ignore_ascii_case(b"BLOCK"));
                sent(call, if name.starts_with("LOCK") { Expected::Lock } else { Expected::Limit(None) })
            }
            _ => {
                let (limit, refill) = (self.random.random_range(1..50_i64), self.random.random_range(1..50_i64));
                let window = if self.random.random_bool(0.5) {
                    self.random.random_range(1..20)
                } else {
                    self.random.random_range(1..60_000_i64)
                };
                let cost = if self.random.random_bool(0.7) {
                    self.random.random_range(0..5)
                } else {
                    self.random.random_range(0..60_i64)
                };
                let (mut call, most) = match self.random.random_range(0..3) {
                    0 => (args!["RL.FIXED", self.own_or_any("f"), limit, window], window),
                    1 => (args!["RL.SLIDING", self.own_or_any("s"), limit, window], window),
                    // It may have to fill, and what lies in the future holds it up by one period at most.
                    _ => (
                        args!["RL.BUCKET", self.own_or_any("b"), limit, refill, window],
                        (limit * window) / refill + 1 + window,
                    ),
                };
                call.extend(args!["COST", cost]);
                if self.random.random_bool(0.1) {
                    call.extend(args!["PEEK"]);
                }
                sent(call, Expected::Limit(Some(most)))
            }
        }
    }

    fn any_key(&mut self) -> Vec<u8> {
        format!("any:{}", self.random.random_range(0..12)).into_bytes()
    }
}

fn shown(call: &[Vec<u8>]) -> String {
    call.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}

/// Holds a reply to what ours may be.
fn check(sent: &Sent, reply: &Value) {
    if let Some(line) = reply.error() {
        if matches!(sent.expected, Expected::Any) {
            return;
        }
        let good = line.starts_with("ERR ") || line.starts_with("WRONGTYPE ");
        assert!(good && !line.contains("internal") && line.is_ascii(), "{}: {line}", shown(&sent.call));
        return;
    }
    match sent.expected {
        Expected::Any => {}
        Expected::Lock => assert!(reply.int() >= 0, "{}: {reply:?}", shown(&sent.call)),
        Expected::Info => assert_eq!(reply.map().len(), 6),
        Expected::Limit(most) => {
            let five = verdict(reply);
            if let Some(most) = most {
                assert!(five.retry_after <= most, "longer than {most}: {}: {reply:?}", shown(&sent.call));
            }
        }
    }
}

#[test]
fn r1_and_r5_random_calls_on_random_values_crash_nothing_and_get_only_replies_of_ours() {
    let (_, random) = seeded();
    let mut server = Server::start();
    let mut client = server.client();
    let mut source = Source { random, states: Vec::new(), dumps: Vec::new() };
    for _ in 0..CALLS / BATCH {
        let batch: Vec<Sent> = (0..BATCH).map(|_| source.next()).collect();
        let calls: Vec<_> = batch.iter().map(|sent| sent.call.clone()).collect();
        for (sent, reply) in batch.iter().zip(client.pipeline(&calls)) {
            check(sent, &reply);
        }
        // What only our commands have written always expires.
        let keys = client.call(&["KEYS", "own:*"]).array();
        let keys: Vec<Vec<u8>> = keys.iter().map(ValueExt::bytes).collect();
        for key in &keys {
            let ttl = client.call(&args!["PTTL", key]).int();
            assert_ne!(ttl, -1, "{} has no TTL", key.escape_ascii());
            if let Value::BulkString(state) = client.call(&args!["GET", key]) {
                source.states.push(state);
            }
            if let Value::BulkString(dump) = client.call(&args!["DUMP", key]) {
                source.dumps.push(dump);
            }
        }
        // The newest, and not too many.
        let spare = source.states.len().saturating_sub(100);
        source.states.drain(..spare);
        let spare = source.dumps.len().saturating_sub(100);
        source.dumps.drain(..spare);
    }
    assert!(server.is_alive());
    assert!(source.states.len() > 20, "the states of limiters were among what was damaged");
    let counted = server.info("sluice");
    assert_eq!(counted["sluice_internal_errors"], "0");
    for field in ["lock_grants"].into_iter().chain(RL_COUNTERS) {
        assert!(counted[&format!("sluice_{field}")].parse::<u64>().unwrap() > 100, "hardly any {field}: {counted:?}");
    }
    assert!(!server.log().contains("internal error"));
}
