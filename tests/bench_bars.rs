//! The bars that need no counting of instructions: bytes, the size of the file, threads, and that no call takes long.
//! Those that do are `make bench-check`'s.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::{micros, verdict};
use rig::{Client, SOON, Server, ValueExt, args, module_file, replica, wait_for, wait_for_sync};
use sluice_core::limit::Request;
use sluice_core::sliding::{self, Effect};
use std::time::Instant;

/// 14 bytes.
const KEY: &str = "rate:alice:sms";
const HOUR_MS: u64 = 3_600_000;

/// A log as RL.SLIDING would have stored it, hit by hit, and what that took in the append-only file.
struct Log {
    limit: u64,
    window: u64,
    value: Vec<u8>,
    aof: usize,
    /// The log before its last rebuilding.
    outgrown: Vec<u8>,
}

impl Log {
    fn new(limit: u64, window: u64) -> Self {
        Self { limit, window, value: Vec::new(), aof: 0, outgrown: Vec::new() }
    }

    /// So many hits, `step` ms apart; the last is at `end`.
    fn hits(mut self, count: u64, step: u64, end: i64) -> Self {
        for hit in (0..count).rev() {
            self.hit(end - (hit * step).cast_signed());
        }
        self
    }

    fn hit(&mut self, now: i64) {
        let request = Request { limit: self.limit, refill: 1, window: self.window, cost: 1, peek: false };
        let stored = (!self.value.is_empty()).then_some(&self.value[..]);
        match sliding::decide(stored, now, &request).unwrap().effect {
            Effect::Nothing => panic!("refused"),
            Effect::Slot { at, bytes, .. } => {
                let bytes = bytes.as_slice();
                self.value[at..at + bytes.len()].copy_from_slice(bytes);
                self.aof += wire(&[8, KEY.len(), at.to_string().len(), bytes.len()]);
            }
            Effect::Rebuild { value, .. } => {
                self.aof += wire(&[3, KEY.len(), value.len(), 4, 13]);
                self.outgrown = std::mem::replace(&mut self.value, value);
            }
        }
    }
}

/// The bytes of a command whose words are that long.
fn wire(words: &[usize]) -> usize {
    4 + words.iter().map(|len| len.to_string().len() + len + 5).sum::<usize>()
}

/// What a call appends is in the file when it is answered: with `everysec` a slow disk would put that off.
fn with_aof() -> Server {
    let options = ["--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"];
    Server::builder().args(&options).start()
}

fn now_ms(client: &mut Client) -> i64 {
    micros(&client.call(&["TIME"])) / 1000
}

/// Runs the calls so many times, no two times in the same millisecond: each time the clock is past all of the time before.
fn apart(client: &mut Client, count: u64, calls: &[Vec<Vec<u8>>]) {
    let batch = [calls, &[args!["TIME"]]].concat();
    let mut last = 0;
    for _ in 0..count {
        wait_for(SOON, "the next millisecond", || now_ms(client), |now| *now > last);
        let mut replies = client.pipeline(&batch);
        last = micros(&replies.pop().unwrap()) / 1000;
        for reply in replies {
            verdict(&reply);
        }
    }
}

/// Bytes that a call has added to the append-only file, on average over `count` of them.
fn bytes_a_call(server: &Server, client: &mut Client, count: u64, call: &[Vec<u8>]) -> f64 {
    let before = server.aof_size();
    apart(client, count, &[call.to_vec()]);
    (server.aof_size() - before) as f64 / count as f64
}

#[test]
fn a_hit_takes_few_bytes_of_the_stream_at_any_limit_and_a_refusal_or_peek_none() {
    let server = with_aof();
    let mut client = server.client();
    for limit in [100, 1_000, 70_000] {
        let fixed = args!["RL.FIXED", KEY, limit, "1h"];
        let bucket = args!["RL.BUCKET", KEY, limit, 1, "1h"];
        let sliding = args!["RL.SLIDING", KEY, limit, "1h"];
        for (call, most) in [(&fixed, 40.0), (&bucket, 104.0)] {
            client.call(&["DEL", KEY]);
            verdict(&client.call(call));
            let bytes = bytes_a_call(&server, &mut client, 50, call);
            assert!(0.0 < bytes && bytes <= most, "{bytes} bytes a hit at {limit}");
        }
        // A full ring, half of whose hits have left.
        let (now, step) = (now_ms(&mut client), 2 * HOUR_MS / limit);
        let full = Log::new(limit, 2 * HOUR_MS).hits(limit, step, now - 1000);
        client.call(&args!["SET", KEY, full.value, "PX", HOUR_MS + HOUR_MS / 16]);
        let bytes = bytes_a_call(&server, &mut client, 40, &sliding);
        assert!(0.0 < bytes && bytes <= 70.0, "{bytes} bytes a hit of a full log at {limit}");

        for call in [fixed, bucket, sliding] {
            client.call(&["DEL", KEY]);
            let spend = [&call[..], &args!["COST", limit]].concat();
            assert!(verdict(&client.call(&spend)).allowed);
            assert_eq!(bytes_a_call(&server, &mut client, 5, &call), 0.0, "a refusal at {limit}");
            client.call(&["DEL", KEY]);
            let peek = [&call[..], &args!["PEEK"]].concat();
            let before = server.aof_size();
            assert!(verdict(&client.call(&peek)).allowed);
            assert_eq!(server.aof_size(), before, "a PEEK at {limit}");
        }
    }
}

#[test]
fn a_log_that_grows_takes_at_most_100_bytes_of_the_stream_a_hit() {
    let server = with_aof();
    let mut client = server.client();
    for limit in [100, 1_000] {
        client.call(&["DEL", KEY]);
        let bytes = bytes_a_call(&server, &mut client, limit, &args!["RL.SLIDING", KEY, limit, "1h"]);
        let reckoned = Log::new(limit, HOUR_MS).hits(limit, 1, 1_800_000_000_000).aof as f64 / limit as f64;
        // The file may begin with the database's number.
        assert!(reckoned <= bytes && bytes <= reckoned + 1.0, "{bytes} bytes a hit, reckoned {reckoned}");
        assert!(bytes <= 100.0, "{bytes} bytes a hit at {limit}");
    }
    // For more hits than a test has milliseconds, what is reckoned is what was just seen to be right.
    for limit in [10_000, 70_000] {
        let bytes = Log::new(limit, HOUR_MS).hits(limit, 1, 1_800_000_000_000).aof as f64 / limit as f64;
        assert!(bytes <= 100.0, "{bytes} bytes a hit at {limit}");
    }
}

#[test]
fn a_full_window_of_1000_takes_5_to_8_bytes_a_hit_all_in_and_at_most_twice_that_on_a_replica() {
    let primary = Server::start();
    let stock = replica(&primary, false);
    let mut client = primary.client();
    let windows = [("1500ms", 4800), ("1h", 5800), ("1d", 6800), ("30d", 7800)];
    let calls: Vec<_> = windows.iter().map(|(window, _)| args!["RL.SLIDING", window, 1000, window]).collect();
    apart(&mut client, 1000, &calls);
    wait_for_sync(&primary, &stock);
    for (window, most) in windows {
        let sizes = [&primary, &stock].map(|server| server.call(&["MEMORY", "USAGE", window]));
        if window == "1500ms" && sizes.iter().any(ValueExt::is_nil) {
            continue; // the machine slept until it was gone
        }
        let [here, there] = sizes.map(|size| size.int());
        assert!(here <= most, "{window}: {here} bytes for 1000 hits");
        assert!(there <= 2 * here, "{window}: {there} bytes on the replica, {here} here");
    }
}

#[test]
fn the_module_is_smaller_than_a_megabyte_and_a_half() {
    let size = module_file().metadata().unwrap().len();
    assert!(size < 1_500_000, "{size} bytes");
}

#[test]
fn the_module_loads_in_less_than_20_ms() {
    let server = Server::builder().module(false).start();
    let mut client = server.client();
    let path = module_file().to_str().unwrap().to_owned();
    // A machine that is busy with something else makes a try slower, and none faster.
    let least = (0..10).map(|_| {
        client.call(&["CONFIG", "RESETSTAT"]);
        assert_eq!(client.call(&["MODULE", "LOAD", &path]).text(), "OK");
        let stats = server.info("commandstats");
        let load = &stats["cmdstat_module|load"];
        assert_eq!(client.call(&["MODULE", "UNLOAD", "sluice"]).text(), "OK");
        load.split(',').find_map(|field| field.strip_prefix("usec=")).unwrap().parse::<u64>().unwrap()
    });
    let least = least.min().unwrap();
    assert!(least < 20_000, "{least} us");
}

#[test]
fn the_module_has_no_thread_of_its_own() {
    let threads = |server: &Server| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
        // (One that has ended since it was listed has no name any more.)
        let mut names: Vec<_> =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok()).collect();
        names.sort();
        names
    };
    if !std::path::Path::new("/proc/self/task").exists() {
        return println!("SKIPPED: there is no /proc/PID/task here");
    }
    let (with, without) = (Server::start(), Server::builder().module(false).start());
    let mut client = with.client();
    client.call(&["LOCK.ACQUIRE", "k", "t", "1h"]);
    let mut waiter = with.client();
    waiter.send(&["LOCK.ACQUIRE", "k", "u", "1h", "BLOCK", "1h"]);
    wait_for(SOON, "somebody waits", || with.blocked_clients(), |blocked| *blocked == 1);
    client.call(&args!["RL.SLIDING", KEY, 10, "1h"]);
    // The server's own threads may still be starting.
    wait_for(SOON, "the same threads with and without", || (threads(&with), threads(&without)), |(a, b)| a == b);
}

/// How long the server worked on the calls, one by one, in µs, by its own measure.
fn durations(client: &mut Client, calls: &[Vec<Vec<u8>>]) -> Vec<i64> {
    client.call(&["CONFIG", "SET", "slowlog-max-len", "100000", "slowlog-log-slower-than", "0"]);
    client.call(&["SLOWLOG", "RESET"]);
    for reply in client.pipeline(calls) {
        verdict(&reply);
    }
    client.call(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
    let entries = client.call(&["SLOWLOG", "GET", "-1"]).array();
    let name = String::from_utf8(calls[0][0].clone()).unwrap();
    let ours = entries.iter().map(ValueExt::array).filter(|entry| entry[3].array()[0].text() == name);
    // The newest is the first.
    let mut took: Vec<i64> = ours.map(|entry| entry[2].int()).collect();
    took.reverse();
    assert_eq!(took.len(), calls.len());
    took
}

fn p99(mut all: Vec<i64>) -> i64 {
    all.sort_unstable();
    all[all.len() * 99 / 100]
}

const MANY: u64 = 70_000;

/// Whatever else runs on the machine makes some tries slower and none faster: one good try shows that a call need not
/// take longer. Where two programs want each core, nearly every try is interrupted for some ms, so there are many.
#[track_caller]
fn in_one_of_some_tries(what: &str, mut attempt: impl FnMut() -> Result<(), String>) {
    let (begun, mut failures) = (Instant::now(), Vec::new());
    while failures.len() < 50 || begun.elapsed() < SOON {
        match attempt() {
            Ok(()) => return,
            Err(why) => failures.push(why),
        }
    }
    panic!("{what}: {} tries, such as {:?}", failures.len(), &failures[..8]);
}

#[test]
fn a_full_window_of_70_000_is_as_fast_as_a_nearly_empty_one() {
    let server = Server::start();
    let mut client = server.client();
    let window = 10 * HOUR_MS;
    let now = now_ms(&mut client);
    // 500 ms apart, 70,000 hits reach back almost ten hours.
    let refused = Log::new(MANY, window).hits(MANY, 500, now - 1000).value;
    let allowed = Log::new(MANY, 2 * window).hits(MANY, 1000, now - 1000).value;
    for (what, value) in [("refused", refused), ("allowed", allowed)] {
        in_one_of_some_tries(what, || {
            client.call(&args!["SET", "full", &value, "PX", window]);
            client.call(&["DEL", "empty"]);
            let calls: Vec<_> = (0..1000)
                .map(|n| args!["RL.SLIDING", if n % 2 == 0 { "full" } else { "empty" }, MANY, "10h"])
                .collect();
            let took = durations(&mut client, &calls);
            let of = |rest| took.iter().copied().skip(rest).step_by(2).collect::<Vec<_>>();
            let (full, empty) = (p99(of(0)), p99(of(1)));
            // The server counts whole microseconds.
            let flat = full <= 3 * (empty + 1) && took.iter().all(|us| *us <= 2000);
            let most = took.iter().max();
            flat.then_some(()).ok_or(format!("p99 {full} us full, {empty} us nearly empty, at most {most:?} us"))
        });
    }
}

#[test]
fn no_single_call_takes_2_ms_not_even_when_70_000_hits_leave_at_once_or_the_log_grows() {
    let server = Server::start();
    let mut client = server.client();
    let now = now_ms(&mut client);
    let gone = Log::new(MANY, HOUR_MS).hits(MANY, 1, now - HOUR_MS.cast_signed() - 1000);
    let grown = Log::new(MANY, HOUR_MS).hits(MANY, 1, now - 1000);
    for (what, value) in [("70,000 hits leave at once", gone.value), ("the log grows", grown.outgrown)] {
        assert!(value.len() > 200_000);
        in_one_of_some_tries(what, || {
            client.call(&args!["SET", KEY, &value, "PX", 2 * HOUR_MS]);
            let took = durations(&mut client, &vec![args!["RL.SLIDING", KEY, MANY, "1h"]; 3]);
            let written = client.call(&["GET", KEY]).bytes();
            assert_ne!(written.len(), value.len(), "it was written anew");
            took.iter().all(|us| *us <= 2000).then_some(()).ok_or(format!("{took:?} us"))
        });
    }
}
