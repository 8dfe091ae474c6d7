//! A server whose clock is set forward and back by an hour, with waiters, locks and limits on it.
//!
//! A few lines of C preloaded into the server put its wall clock off by what a file says; the monotonic clock goes on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod rig;

use rig::line::{enter, hold, holder, line_up, not_here, queue, waiters};
use rig::noise::{Noise, took, unix_ms, within};
use rig::{SOON, Server, ValueExt, args, in_time, ms, wait_for};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const HOUR: i64 = 3_600_000;
/// Within which the server notices that a timer has been put off: its own round of looks, ten a second.
const NOTICED: Duration = ms(150);

/// A server and its clock.
struct Clock {
    server: Server,
    file: File,
    _dir: tempfile::TempDir,
}

impl Clock {
    /// None, and a line that says so, where nothing can be preloaded.
    fn start() -> Option<Self> {
        if !cfg!(target_os = "linux") {
            not_here("steps of the clock", "only Linux preloads a clock");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (shim, path) = (dir.path().join("shim.so"), dir.path().join("offset"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clock/shim.c");
        let built = Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&shim).arg(source).status();
        if !built.is_ok_and(|status| status.success()) {
            not_here("steps of the clock", "no C compiler (cc)");
            return None;
        }
        std::fs::write(&path, [0; 16]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let server = Server::builder()
            .env("LD_PRELOAD", shim.to_str().unwrap())
            .env("SLUICE_CLOCK", path.to_str().unwrap())
            .start();
        let mut clock = Self { server, file, _dir: dir };
        // It is the server's own clock that steps, and by that much.
        clock.put(HOUR);
        if !clock.is_seen(ms(5_000)) {
            not_here("steps of the clock", "this server does not take a preloaded clock");
            return None;
        }
        clock.step(-HOUR);
        Some(clock)
    }

    fn offset_ms(&self) -> i64 {
        let mut offset = [0; 8];
        self.file.read_exact_at(&mut offset, 0).unwrap();
        i64::from_ne_bytes(offset) / 1_000_000
    }

    fn put(&mut self, by_ms: i64) {
        let offset = (self.offset_ms() + by_ms) * 1_000_000;
        self.file.write_all_at(&offset.to_ne_bytes(), 0).unwrap();
    }

    /// Whether the server has seen it. Some (Valkey 9.1) read the system's clock ten times a second, and count on in between.
    fn is_seen(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        loop {
            let off = self.server.now_ms() - unix_ms() as i64 - self.offset_ms();
            if off.abs() < 40 || Instant::now() > deadline {
                return off.abs() < 40;
            }
            std::thread::sleep(ms(1));
        }
    }

    /// Sets the clock forward, or back, and returns when the server has seen it.
    fn step(&mut self, by_ms: i64) {
        self.put(by_ms);
        assert!(self.is_seen(SOON), "the server's clock is set");
    }

    /// From now on each look at the clock takes so long.
    fn look_takes(&mut self, time: Duration) {
        self.file.write_all_at(&u64::try_from(time.as_nanos()).unwrap().to_ne_bytes(), 8).unwrap();
    }
}

#[test]
fn a_timeout_is_kept_by_the_monotonic_clock_whatever_the_clock_does() {
    let Some(mut clock) = Clock::start() else { return };
    hold(&clock.server, "k", "holder", "30d");
    let mut worst = Duration::ZERO;
    for step in [HOUR, -HOUR, -HOUR, HOUR, 5_000, -5_000] {
        let late = within(NOTICED, &format!("a timeout across a step of {step} ms"), |_| {
            let noise = Noise::of(&clock.server);
            let mut patient = line_up(&clock.server, "k", "patient", "1m", "10m");
            let mut waiter = enter(&clock.server, "k", "waiter", "1m", "400ms");
            std::thread::sleep(ms(50));
            clock.step(step);
            assert_eq!(waiter.reply().int(), 0);
            let all = waiter.sent.elapsed();
            let net = took(waiter.sent, noise);
            assert!(all >= ms(399), "a step of {step} ms: timed out after {all:?}");
            // Who has more patience still waits, and INFO shows for how long by the clock that did not step.
            let waited = clock.server.call(&["LOCK.INFO", "k"]).map()["queue"].array()[0].map()["waited"].int();
            assert!((380..60_000).contains(&waited), "waited {waited} ms");
            patient.still_waits(&clock.server, "k");
            assert_eq!(clock.server.call(&["LOCK.RELEASE", "k", "patient"]).int(), 0);
            assert_eq!(patient.reply().int(), 0);
            net.saturating_sub(ms(400))
        });
        worst = worst.max(late);
    }
    println!("timeouts across steps of an hour: at most {worst:?} late");
    assert_eq!(waiters(&clock.server), 0);
}

#[test]
fn a_lease_moves_with_the_clock_as_a_ttl_does() {
    let Some(mut clock) = Clock::start() else { return };
    let left = |clock: &Clock, key: &str| clock.server.call(&["PTTL", key]).int();
    // Back: what would have ended in a second is there for an hour more, lock and plain key alike.
    let lease = in_time(1000, |lease| {
        let held = Instant::now();
        for command in [args!["LOCK.ACQUIRE", "k", "holder", lease], args!["SET", "plain", "x", "PX", lease]] {
            assert!(clock.server.call(&command).error().is_none());
        }
        clock.step(-HOUR);
        // Not before the server has seen it: some look at the clock from time to time only.
        let in_time = held.elapsed() < ms(lease);
        if !in_time {
            clock.step(HOUR);
        }
        in_time.then_some(lease)
    });
    let minute = 60_000;
    for key in ["k", "plain"] {
        let left = left(&clock, key);
        assert!((HOUR - minute..=HOUR + lease as i64).contains(&left), "{key}: {left}");
    }
    let mut waiter = enter(&clock.server, "k", "w", "1m", &format!("{}ms", lease + 200));
    assert_eq!(waiter.reply().int(), 0, "the lease has not ended");
    assert_eq!(clock.server.call(&["LOCK.ACQUIRE", "k", "holder", "1s"]).int().signum(), 1);
    assert!(left(&clock, "k") > HOUR - minute, "a re-acquire shortens nothing");
    assert_eq!(clock.server.call(&["LOCK.RENEW", "k", "holder", "1m"]).int(), 1);
    assert!((0..=minute).contains(&left(&clock, "k")), "a renewal sets the deadline anew");
    // Forward: what had half an hour left is over, and who waits for it has it.
    let late = within(NOTICED, "a grant after the clock had gone past the lease", |_| {
        hold(&clock.server, "long", "holder", "30m");
        let mut next = line_up(&clock.server, "long", "next", "1m", "10m");
        let mut after = line_up(&clock.server, "long", "after", "1m", "10m");
        let noise = Noise::of(&clock.server);
        clock.step(HOUR);
        let from = Instant::now();
        let fence = next.fence();
        let late = took(from, noise);
        assert_eq!(queue(&clock.server, "long"), ["after"]);
        after.still_waits(&clock.server, "long");
        assert_eq!(clock.server.call(&["LOCK.RELEASE", "long", "next"]).int(), 1);
        assert!(after.fence() > fence);
        assert_eq!(clock.server.call(&["LOCK.RELEASE", "long", "after"]).int(), 1);
        late
    });
    println!("granted {late:?} after a step past the lease");
    assert_eq!(holder(&clock.server, "k"), "nobody");
}

#[test]
fn after_a_step_a_dead_holders_lock_goes_on_as_before() {
    let Some(mut clock) = Clock::start() else { return };
    let mut worst = Duration::ZERO;
    for step in [-HOUR, HOUR, HOUR, -HOUR] {
        // A timer of before the step is in the way of the first; those after it have nothing to be late for.
        for (round, bound) in [(0, NOTICED), (1, ms(20)), (2, ms(20))] {
            let late = within(bound, &format!("step {step}, round {round}: a grant after a lease"), |_| {
                hold(&clock.server, "far", "holder", "30d");
                let mut far = line_up(&clock.server, "far", "w", "1m", "10m");
                if round == 0 {
                    clock.step(step);
                }
                let noise = Noise::of(&clock.server);
                let held = Instant::now();
                hold(&clock.server, "k", "dead", "250ms");
                let answered = Instant::now();
                let mut waiter = enter(&clock.server, "k", "w", "1m", "1m");
                waiter.fence();
                let late = took(answered + ms(250), noise);
                assert!(held.elapsed() >= ms(249), "granted before the lease had ended");
                clock.server.call(&["LOCK.RELEASE", "k", "w"]);
                assert_eq!(clock.server.call(&["LOCK.RELEASE", "far", "holder"]).int(), 1);
                far.fence();
                clock.server.call(&["LOCK.RELEASE", "far", "w"]);
                late
            });
            worst = worst.max(late);
        }
    }
    println!("hand-overs after a step: at most {worst:?} late");
}

/// Where nothing tells of a change, a key is looked at from time to time; a clock set back must not put the next look off.
#[test]
fn a_gate_that_opens_and_a_key_that_goes_are_noticed_though_the_clock_was_set_back() {
    let Some(mut clock) = Clock::start() else { return };
    let gate = within(NOTICED, "a grant after a gate has opened", |_| {
        hold(&clock.server, "k", "dead", "10m");
        let mut waiter = line_up(&clock.server, "k", "w", "1m", "10m");
        // In one write, so that the lease ends behind the gate.
        let shut = [args!["LOCK.RENEW", "k", "dead", 100], args!["CONFIG", "SET", "min-replicas-to-write", 1]];
        assert_eq!(clock.server.client().pipeline(&shut)[0].int(), 1);
        wait_for(SOON, "the lease is over", || holder(&clock.server, "k"), |holder| holder == "nobody");
        std::thread::sleep(ms(60)); // it has been looked at by now, and is to be again
        clock.step(-HOUR);
        let (from, noise) = (Instant::now(), Noise::of(&clock.server));
        clock.server.ok(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        waiter.fence();
        let late = took(from, noise);
        assert_eq!(clock.server.call(&["LOCK.RELEASE", "k", "w"]).int(), 1);
        late
    });
    let gone = within(NOTICED, "a grant after a DEL", |_| {
        hold(&clock.server, "k", "holder", "30d");
        let mut waiter = line_up(&clock.server, "k", "w", "1m", "10m");
        clock.step(-HOUR);
        let (from, noise) = (Instant::now(), Noise::of(&clock.server));
        clock.server.call(&["DEL", "k"]);
        waiter.fence();
        let late = took(from, noise);
        assert_eq!(clock.server.call(&["LOCK.RELEASE", "k", "w"]).int(), 1);
        late
    });
    println!("after a step back: a gate that opens is seen {gate:?} late, a key that goes {gone:?}");
}

#[test]
fn fences_of_a_server_grow_whatever_its_clock_does() {
    let Some(mut clock) = Clock::start() else { return };
    let mut last = 0;
    for step in [0, -HOUR, -HOUR, 5, HOUR, -1, -100, 3 * HOUR, -3 * HOUR, 0] {
        clock.step(step);
        clock.server.call(&["FLUSHALL"]);
        for call in [
            &["LOCK.ACQUIRE", "k", "t", "1m"][..],
            &["LOCK.ACQUIRE", "k", "t", "1m"],
            &["LOCK.ACQUIRE", "r", "t", "1m", "REENTRANT"],
            &["LOCK.ACQUIRE", "s", "t", "1m", "SHARED"],
            &["SEM.ACQUIRE", "p", "t", "1m", "2"],
        ] {
            let fence = clock.server.call(call).int();
            assert!(fence > last, "{call:?} after a step of {step} ms: {fence} is not above {last}");
            last = fence;
        }
        let mut waiter = line_up(&clock.server, "k", "w", "1m", "1m");
        assert_eq!(clock.server.call(&["LOCK.RELEASE", "k", "t"]).int(), 1);
        let fence = waiter.fence();
        assert!(fence > last);
        last = fence;
    }
}

/// Case R39 on a real server.
#[test]
fn r39_a_step_locks_nobody_out_for_more_than_a_window_and_gives_one_quota_at_most() {
    let Some(mut clock) = Clock::start() else { return };
    const LIMIT: i64 = 5;
    const WINDOW: i64 = 400;
    let mut said = Vec::new();
    for kind in ["RL.FIXED", "RL.SLIDING", "RL.BUCKET"] {
        for step in [-HOUR, HOUR, -150, 150, -WINDOW, -WINDOW - 1, WINDOW] {
            let key = format!("{kind}{step}");
            let call = match kind {
                "RL.BUCKET" => args![kind, &key, LIMIT, LIMIT, format!("{WINDOW}ms")],
                _ => args![kind, &key, LIMIT, format!("{WINDOW}ms")],
            };
            let mut client = clock.server.client();
            let mut hit = || client.call(&call).ints();
            let begun = Instant::now();
            let mut used = 0;
            while hit()[0] == 1 {
                used += 1;
                assert!(used < 100, "it never refuses");
            }
            let slow = begun.elapsed();
            let from = Instant::now();
            clock.step(step);
            // At once: a quota more at most, and then no refusal for more than a window.
            let mut more = 0;
            let verdict = loop {
                let verdict = hit();
                if verdict[0] == 0 {
                    break verdict;
                }
                more += 1;
                assert!(more < 100, "{key}: it never refuses after the step");
            };
            let extra = LIMIT + i64::try_from((slow + from.elapsed()).as_millis()).unwrap() * LIMIT / WINDOW + 1;
            assert!(more <= extra, "{key}: {more} allowed at once after the step");
            // A bucket gains nothing for a period at most, and then what it would have taken without the step.
            let longest = if kind == "RL.BUCKET" { WINDOW + WINDOW / LIMIT } else { WINDOW };
            assert!((1..=longest).contains(&verdict[3]), "{key}: {verdict:?}");
            // Who was refused then is let in by then in real time, and is told so all along.
            let refused = Instant::now();
            loop {
                let asked = refused.elapsed();
                let verdict = hit();
                if verdict[0] == 1 {
                    break;
                }
                let until = asked + Duration::from_millis(verdict[3].unsigned_abs());
                assert!(until <= Duration::from_millis(longest.unsigned_abs() + 1), "{key}: locked out for {until:?}");
                std::thread::sleep(ms(1));
            }
            let locked = refused.elapsed();
            said.push(format!("{kind} {step:+}: {more} more at once, then {locked:?}"));
        }
    }
    println!("{}", said.join("\n"));
}

#[test]
fn a_key_that_expires_between_two_looks_at_the_clock_is_not_looked_into_any_more() {
    let Some(mut clock) = Clock::start() else { return };
    // As slow as a server that is not given the processor just then: nearly each key of a few milliseconds ends in the middle of
    // something.
    let mut client = clock.server.client();
    let mut waiters: Vec<_> = (0..4).map(|_| clock.server.client()).collect();
    for round in 0..1200 {
        clock.look_takes(Duration::from_micros(2 * (round % 80)));
        for (kind, waiter) in waiters.iter_mut().enumerate() {
            let key = format!("{kind}:{}", round % 3);
            let hold = |token: &str, ttl: u64| match kind {
                0 => args!["SEM.ACQUIRE", &key, token, ttl, 3],
                1 => args!["LOCK.ACQUIRE", &key, token, ttl, "SHARED"],
                2 => args!["LOCK.ACQUIRE", &key, token, ttl, "REENTRANT"],
                _ => args!["LOCK.ACQUIRE", &key, token, ttl],
            };
            let calls: Vec<_> = (0..3).map(|n| hold(&format!("t{n}"), 4 + n * (round % 3) + round % 5)).collect();
            client.pipeline(&calls);
            waiter.send(&[hold("w", 3), args!["BLOCK", "20ms"]].concat());
        }
        for kind in 0..4 {
            let family = if kind == 0 { "SEM" } else { "LOCK" };
            client.call(&args![format!("{family}.INFO"), format!("{kind}:{}", round % 3)]);
        }
        for waiter in &mut waiters {
            let reply = waiter.read(rig::SOON).expect("the server lives");
            assert!(reply.error().is_none(), "{reply:?}");
        }
    }
    clock.look_takes(Duration::ZERO);
    assert!(clock.server.is_alive());
    assert_eq!(clock.server.info_int("sluice", "sluice_internal_errors"), 0);
}
