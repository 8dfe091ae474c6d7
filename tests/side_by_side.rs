//! The scripts that people use today and our commands, side by side: the same traffic at the same time, the same decisions,
//! and where a script is known to be wrong, exactly that difference.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::models::{Level, Log};
use cases::{Timed, expires_at, micros, seeded, verdict, wait_until_ms};
use rand::RngExt;
use rig::{Client, Server, Value, ValueExt, args};
use std::collections::HashMap;

/// The scripts, loaded.
struct Scripts {
    hashes: HashMap<&'static str, String>,
}

impl Scripts {
    fn load(client: &mut Client) -> Self {
        let texts = [
            ("acquire", include_str!("../bench/lua/acquire.lua")),
            ("release", include_str!("../bench/lua/release.lua")),
            ("renew", include_str!("../bench/lua/renew.lua")),
            ("fixed", include_str!("../bench/lua/fixed.lua")),
            ("sliding", include_str!("../bench/lua/sliding.lua")),
            ("bucket", include_str!("../bench/lua/bucket.lua")),
        ];
        let hashes = texts.map(|(name, text)| (name, client.call(&["SCRIPT", "LOAD", text]).text()));
        Self { hashes: hashes.into() }
    }

    fn call(&self, name: &str, key: &str, rest: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        [args!["EVALSHA", &self.hashes[name], 1, key], rest].concat()
    }
}

/// Script and command in one transaction, between two readings of the clock.
struct Pair {
    before: i64,
    after: i64,
    script: Value,
    command: Value,
}

impl Pair {
    fn ask(client: &mut Client, script: Vec<Vec<u8>>, command: Vec<Vec<u8>>) -> Self {
        let replies = client.pipeline(&[args!["TIME"], args!["MULTI"], script, command, args!["EXEC"], args!["TIME"]]);
        let done = replies[4].array();
        Self {
            before: micros(&replies[0]),
            after: micros(&replies[5]),
            script: done[0].clone(),
            command: done[1].clone(),
        }
    }

    /// `(allowed, a number)` of the script's array.
    fn script(&self) -> (bool, i64) {
        let parts = self.script.array();
        let number = match &parts[1] {
            Value::Int(n) => *n,
            text => text.text().parse().unwrap(),
        };
        (parts[0].int() == 1, number)
    }

    /// The script's answer in the form of one of ours, so that the same model can be asked about it.
    fn script_as_ours(&self, limit: i64) -> Timed {
        let (allowed, left) = self.script();
        let five = [i64::from(allowed), limit, left, i64::from(!allowed), 0];
        self.timed(Value::Array(five.map(Value::Int).to_vec()))
    }

    fn command(&self) -> Timed {
        self.timed(self.command.clone())
    }

    fn timed(&self, reply: Value) -> Timed {
        Timed { before: self.before, after: self.after, reply }
    }
}

fn start() -> (Server, Client, Scripts) {
    let server = Server::start();
    let mut client = server.client();
    let scripts = Scripts::load(&mut client);
    (server, client, scripts)
}

#[test]
fn scripts_and_commands_on_the_same_keys_are_one_lock() {
    let (_, mut random) = seeded();
    let (_server, mut client, scripts) = start();
    let mut holders: HashMap<String, i64> = HashMap::new();
    for _ in 0..3000 {
        let (key, token) = (format!("k{}", random.random_range(0..3)), random.random_range(0..3_i64));
        let holder = holders.get(&key).copied();
        let by_script = random.random_bool(0.5);
        match random.random_range(0..4) {
            0 | 1 => {
                let granted = if by_script {
                    client.call(&scripts.call("acquire", &key, args![token, 3_600_000])).int() == 1
                } else {
                    client.call(&args!["LOCK.ACQUIRE", &key, token, "1h"]).int() > 0
                };
                // The one difference: the script does not know its own token again, so a call whose reply was lost locks
                // its own caller out.
                let right = holder.is_none() || (holder == Some(token) && !by_script);
                assert_eq!(granted, right, "{key}: {token} asks, {holder:?} holds, by script: {by_script}");
                if granted {
                    holders.insert(key, token);
                }
            }
            2 => {
                let released = if by_script {
                    client.call(&scripts.call("release", &key, args![token])).int()
                } else {
                    client.call(&args!["LOCK.RELEASE", &key, token]).int()
                };
                assert_eq!(released == 1, holder == Some(token));
                if released == 1 {
                    holders.remove(&key);
                }
            }
            _ => {
                let before = expires_at(&mut client, &key);
                let renewed = if by_script {
                    client.call(&scripts.call("renew", &key, args![token, 7_200_000])).int()
                } else {
                    client.call(&args!["LOCK.RENEW", &key, token, "2h"]).int()
                };
                assert_eq!(renewed == 1, holder == Some(token));
                let after = expires_at(&mut client, &key);
                assert!(if renewed == 1 { after >= before } else { after == before });
            }
        }
    }
}

#[test]
fn locks_decide_alike_but_for_a_call_that_is_sent_again() {
    let (_, mut random) = seeded();
    let (_server, mut client, scripts) = start();
    let mut holder: Option<i64> = None;
    let mut again = 0;
    for _ in 0..2000 {
        let token = random.random_range(0..3_i64);
        let (name, script, command) = match random.random_range(0..4) {
            0 | 1 => ("acquire", args![token, 3_600_000], args!["LOCK.ACQUIRE", "c", token, "1h"]),
            2 => ("release", args![token], args!["LOCK.RELEASE", "c", token]),
            _ => ("renew", args![token, 3_600_000], args!["LOCK.RENEW", "c", token, "1h"]),
        };
        let pair = Pair::ask(&mut client, scripts.call(name, "s", script), command);
        let (script, command) = (pair.script.int() > 0, pair.command.int() > 0);
        if name == "acquire" && holder == Some(token) {
            assert!(command && !script, "the holder asks again");
            again += 1;
        } else {
            assert_eq!(script, command, "{name} by {token}, held by {holder:?}");
        }
        match name {
            "acquire" if command => holder = Some(token),
            "release" if command => holder = None,
            _ => {}
        }
        assert_eq!(client.call(&["GET", "s"]), client.call(&["GET", "c"]));
    }
    assert!(again > 50);
}

#[test]
fn fixed_windows_decide_alike_where_every_call_costs_one() {
    let (_server, mut client, scripts) = start();
    for n in 1..=40 {
        let pair = Pair::ask(
            &mut client,
            scripts.call("fixed", "s", args![25, 3_600_000, 1]),
            args!["RL.FIXED", "c", 25, "1h"],
        );
        assert_eq!(pair.script().0, n <= 25);
        assert_eq!(verdict(&pair.command).allowed, n <= 25);
        // Known difference: the script counts what it refuses.
        assert_eq!(pair.script().1, n);
        assert_eq!(client.call(&["GET", "c"]).text(), n.min(25).to_string());
    }
}

#[test]
fn a_counter_shared_by_script_and_command_is_one_window() {
    let (_, mut random) = seeded();
    let (_server, mut client, scripts) = start();
    let mut allowed = 0;
    for _ in 0..60 {
        // (After the script's first refusal the counter stands above the limit: full for both.)
        allowed += i64::from(if random.random_bool(0.5) {
            client.call(&scripts.call("fixed", "k", args![30, 3_600_000, 1])).array()[0].int() == 1
        } else {
            verdict(&client.call(&args!["RL.FIXED", "k", 30, "1h"])).allowed
        });
    }
    assert_eq!(allowed, 30);
}

#[test]
fn fixed_windows_differ_by_exactly_what_the_script_counted_and_refused() {
    let (_, mut random) = seeded();
    let (_server, mut client, scripts) = start();
    let mut differences = 0;
    for round in 0..40 {
        let (s, c) = (format!("s{round}"), format!("c{round}"));
        let limit = random.random_range(10..60_i64);
        let (mut script_used, mut used) = (0, 0);
        for _ in 0..20 {
            let cost = random.random_range(1..30_i64);
            let pair = Pair::ask(
                &mut client,
                scripts.call("fixed", &s, args![limit, 3_600_000, cost]),
                args!["RL.FIXED", &c, limit, "1h", "COST", cost],
            );
            script_used += cost;
            let ours = used + cost <= limit;
            used += if ours { cost } else { 0 };
            assert_eq!(pair.script(), (script_used <= limit, script_used));
            let command = verdict(&pair.command);
            assert_eq!((command.allowed, command.remaining), (ours, limit - used));
            differences += i32::from(pair.script().0 != ours);
        }
    }
    assert!(differences > 10, "large refused calls shut small ones out: {differences}");
}

#[test]
fn fixed_windows_of_some_milliseconds_end_together() {
    let (server, mut client, scripts) = start();
    let (limit, window) = (12, 40);
    // The start of the window that runs, between two moments.
    let mut start: Option<(i64, i64)> = None;
    let (mut alike, mut count, until) = (0, 0, server.now_ms() + 700);
    loop {
        let pair = Pair::ask(
            &mut client,
            scripts.call("fixed", "s", args![limit, window, 1]),
            args!["RL.FIXED", "c", limit, window],
        );
        let (script, command) = (pair.script().0, verdict(&pair.command).allowed);
        let (from, to) = (pair.before / 1000, pair.after / 1000);
        // The server's key lives until a millisecond after its deadline, and so does the script's window.
        let ended = start.is_none_or(|(_, latest)| from > latest + window + 1);
        let runs = start.is_some_and(|(earliest, _)| to < earliest + window);
        if ended {
            (start, count) = (Some((from, to)), 0);
        }
        if ended || runs {
            count += 1;
            assert_eq!((script, command), (count <= limit, count <= limit), "call {count} of a window");
            alike += 1;
        } else {
            // At the edge either may be first: both begin anew.
            client.call(&["DEL", "s", "c"]);
            start = None;
        }
        if from > until && alike > 50 {
            break;
        }
        assert!(from < until + 60_000, "{alike}");
    }
}

#[test]
fn sliding_windows_decide_alike_for_any_costs() {
    let (_, mut random) = seeded();
    let (_server, mut client, scripts) = start();
    for round in 0..30 {
        let (s, c) = (format!("s{round}"), format!("c{round}"));
        let limit = random.random_range(5..80_i64);
        for _ in 0..25 {
            let cost = random.random_range(1..25_i64);
            let pair = Pair::ask(
                &mut client,
                scripts.call("sliding", &s, args![limit, 3_600_000, cost]),
                args!["RL.SLIDING", &c, limit, "1h", "COST", cost],
            );
            let command = verdict(&pair.command);
            assert_eq!(pair.script(), (command.allowed, command.remaining), "{cost} of {limit}");
        }
    }
}

#[test]
fn sliding_windows_of_some_milliseconds_lose_their_hits_together() {
    let (_, mut random) = seeded();
    let (server, mut client, scripts) = start();
    let (limit, window) = (20, 50);
    let (mut ours, mut theirs) = (Log::new(limit, window), Log::new(limit, window));
    let (mut alike, mut refused, mut differ) = (0, 0, 0);
    let until = server.now_ms() + 800;
    let mut next = server.now_ms();
    // (Where calls are slow, few are refused, and it takes more of them.)
    while next < until || alike <= 50 || refused <= 5 {
        let cost = random.random_range(1..6);
        let pair = Pair::ask(
            &mut client,
            scripts.call("sliding", "s", args![limit, window, cost]),
            args!["RL.SLIDING", "c", limit, window, "COST", cost],
        );
        // One model for both; what it leaves open is a hit that left between the two, the script reckoning in µs.
        ours.check(&pair.command(), cost);
        let command = verdict(&pair.command).allowed;
        if pair.script().0 == command {
            alike += 1;
            refused += i32::from(!command);
        } else {
            differ += 1;
        }
        let mut script = pair.script_as_ours(limit);
        // In µs a hit counts up to a millisecond longer or shorter than in whole ones.
        (script.before, script.after) = (script.before - 1000, script.after + 1000);
        theirs.check(&script, cost);
        if pair.script().0 != command {
            client.call(&["DEL", "s", "c"]);
            (ours, theirs) = (Log::new(limit, window), Log::new(limit, window));
        }
        next += random.random_range(0..5);
        wait_until_ms(&server, next);
        let late = pair.before / 1000 > until + 60_000;
        assert!(!late, "{alike} alike, {refused} of them refused, {differ} at an edge");
    }
}

#[test]
fn buckets_decide_alike_while_the_level_is_small_and_calls_are_rare() {
    let (_, mut random) = seeded();
    let (server, mut client, scripts) = start();
    let (capacity, refill, period) = (30, 7, 20);
    let (mut ours, mut theirs) = (Level::full(capacity, refill, period), Level::full(capacity, refill, period));
    let (mut alike, mut refused, mut differ) = (0, 0, 0);
    let until = server.now_ms() + 800;
    let mut next = server.now_ms();
    // (Where calls are slow, few are refused, and it takes more of them.)
    while next < until || alike <= 50 || refused <= 5 {
        let cost = random.random_range(1..12);
        let pair = Pair::ask(
            &mut client,
            scripts.call("bucket", "s", args![capacity, refill, period, cost]),
            args!["RL.BUCKET", "c", capacity, refill, period, "COST", cost],
        );
        ours.check(&pair.command(), cost);
        let command = verdict(&pair.command).allowed;
        let mut script = pair.script_as_ours(capacity);
        // What the float loses at each of some calls is less than a µs of refill makes up.
        (script.before, script.after) = (script.before - 5, script.after + 5);
        theirs.check(&script, cost);
        if pair.script().0 == command {
            alike += 1;
            refused += i32::from(!command);
        } else {
            differ += 1;
            client.call(&["DEL", "s", "c"]);
            (ours, theirs) = (Level::full(capacity, refill, period), Level::full(capacity, refill, period));
        }
        next += random.random_range(0..5);
        wait_until_ms(&server, next);
        let late = pair.before / 1000 > until + 60_000;
        assert!(!late, "{alike} alike, {refused} of them refused, {differ} at an edge");
    }
}

#[test]
fn a_large_bucket_that_is_asked_often_gets_its_refill_from_the_command_and_not_from_the_script() {
    let (_server, mut client, scripts) = start();
    // 50 tokens a second: a call every 50 µs finds 0.0025 of one, and of 10^12 the script's 14 digits keep hundredths.
    let (capacity, refill, period) = (1_000_000_000_000_i64, 50, 1000);
    let (half, polls) = (capacity / 2, 25_000);
    let script = scripts.call("bucket", "s", args![capacity, refill, period, 1]);
    let command = args!["RL.BUCKET", "c", capacity, refill, period];
    let batch: Vec<_> = (1..polls).flat_map(|_| [script.clone(), command.clone()]).collect();
    let first = Pair::ask(
        &mut client,
        scripts.call("bucket", "s", args![capacity, refill, period, half]),
        args!["RL.BUCKET", "c", capacity, refill, period, "COST", half],
    );
    let replies = client.pipeline(&batch);
    let last = Pair::ask(&mut client, script, command);
    // All the time since the first call counts for the command, exactly.
    let accrued = |us: i64| us * refill / (period * 1000);
    let right = accrued(last.before - first.after)..=accrued(last.after - first.before);
    let gained = verdict(&last.command).remaining - (capacity - half - polls);
    assert!(right.contains(&gained) && gained >= 5, "{gained} accrued, and it should be {right:?}");
    // While nothing but calls came, the command went on gaining. The script gained only where something else held the
    // server up for long enough to show.
    let (first, last) = (&replies[..2], &replies[replies.len() - 2..]);
    let left = |reply: &Value| reply.array()[1].text().parse::<i64>().unwrap();
    let script_gained = left(&last[0]) - left(&first[0]) + polls - 2;
    let gained = verdict(&last[1]).remaining - verdict(&first[1]).remaining + polls - 2;
    assert!(script_gained + 1 < gained, "in {polls} calls the script gained {script_gained}, the command {gained}");
}
