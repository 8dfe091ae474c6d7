//! Ten thousand who wait, a server whose memory is full, and a server that stands still.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod cases;
mod rig;

use rig::line::{enter, hold, holder, line_up, not_here, queue, release, waiters};
use rig::noise::{Noise, net};
use rig::{Client, SOON, Server, ValueExt, args, in_time, ms, wait_for, wait_until};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const CROWD: usize = 10_000;
/// Files a process needs open for one end of the crowd's connections, and some to spare.
const FILES: usize = CROWD + 500;
/// Long enough for ten thousand of anything on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// How many files this process may have open.
fn files_allowed() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap_or_default();
    line.split_whitespace().next().and_then(|soft| soft.parse().ok()).unwrap_or(0)
}

/// Runs a test here if this process may open enough files, or else in a new process that may. Where the system does not allow
/// that, a line says so.
fn with_files(test: &str, body: fn()) {
    if files_allowed() >= FILES {
        return body();
    }
    let raised = format!("ulimit -n {FILES} && exec \"$0\" --exact \"$1\" --nocapture");
    let program = std::env::current_exe().unwrap();
    let child = std::env::var_os("SLUICE_FILES_RAISED").is_none().then(|| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &raised]).arg(program).arg(test).env("SLUICE_FILES_RAISED", "1");
        let allowed = Command::new("sh").args(["-c", &format!("ulimit -n {FILES}")]).output();
        allowed.is_ok_and(|tried| tried.status.success()).then(|| shell.status().unwrap())
    });
    match child.flatten() {
        Some(status) => assert!(status.success(), "see above"),
        None => not_here(test, &format!("a process may not have {FILES} files open here")),
    }
}

fn start() -> Server {
    Server::builder().args(&["--maxclients", &(CROWD + 100).to_string()]).start()
}

/// So many connections, each with a LOCK.ACQUIRE … BLOCK in the queue of `key`, in the order in which they are in it.
fn crowd(server: &Server, key: &str, many: usize, timeout: &str) -> Vec<Client> {
    let clients: Vec<Client> = (0..many)
        .map(|number| {
            let mut client = server.client();
            client.send(&args!["LOCK.ACQUIRE", key, format!("t{number}"), "10m", "BLOCK", timeout]);
            // Not one reads the other's reply: the next connection is served after this one's call has been.
            if number % 500 == 499 {
                let here = i64::try_from(number + 1).unwrap();
                wait_for(LONG, "these wait", || waiters(server), |waiting| *waiting == here);
            }
            client
        })
        .collect();
    wait_for(LONG, "all wait", || waiters(server), |waiting| usize::try_from(*waiting) == Ok(many));
    clients
}

/// Memory in use once everybody but the asker has gone, in bytes.
fn used(server: &Server) -> i64 {
    wait_for(LONG, "all have gone", || server.info_int("clients", "connected_clients"), |clients| *clients == 1);
    server.info_int("memory", "used_memory")
}

/// The same when tables that grow and then stay have grown; `k` is held.
fn used_after_a_start(server: &Server) -> i64 {
    drop(crowd(server, "k", 50, "10m"));
    // Not before the server has noticed that they are gone: one of them might be granted what it frees.
    used(server);
    server.call(&["FLUSHALL"]);
    used(server)
}

/// Microseconds the server spent on a LOCK.RELEASE, on average, since it was last asked.
fn release_us(server: &Server) -> f64 {
    let all = server.info("commandstats");
    let (_, line) = all.iter().find(|(name, _)| name.eq_ignore_ascii_case("cmdstat_lock.release")).unwrap();
    server.call(&["CONFIG", "RESETSTAT"]);
    line.split(',').find_map(|field| field.strip_prefix("usec_per_call=")).unwrap().parse().unwrap()
}

/// Two crowds at once would need twice the files.
static ONE_CROWD: Mutex<()> = Mutex::new(());

fn serves_a_crowd() {
    let _alone = ONE_CROWD.lock();
    let long = std::env::var_os("SLUICE_LONG").is_some();
    let server = start();
    hold(&server, "k", "first", "10m");
    let before = used_after_a_start(&server);

    hold(&server, "k", "first", "10m");
    let from = Instant::now();
    let mut clients = crowd(&server, "k", CROWD, "10m");
    let lined_up = from.elapsed();
    // The server keeps two idle clients, with buffers of 16 KB, for each that a module blocks; ours are some hundred bytes.
    let list = server.call(&["CLIENT", "LIST"]).text();
    let sizes = list.split_whitespace().filter_map(|field| field.strip_prefix("tot-mem="));
    let of_clients: i64 = sizes.map(|size| size.parse::<i64>().unwrap()).sum();
    let all = (server.info_int("memory", "used_memory") - before) / 10_000;
    let each = all - of_clients / 10_000;
    assert!(each < 40_000, "{each} bytes for each who waits, besides the connection's own");
    let shown = server.call(&["LOCK.INFO", "k"]).map();
    assert_eq!((shown["waiters"].int(), shown["queue"].array().len()), (10_000, 100));
    // One more than may wait.
    let refused = server.call(&["LOCK.ACQUIRE", "k", "late", "1m", "BLOCK", "1m"]);
    assert!(refused.is_error("QUEUEFULL "), "{refused:?}");

    server.call(&["CONFIG", "RESETSTAT"]);
    let mut control = server.client();
    let (mut token, mut last, mut costs) = ("first".to_owned(), 0, Vec::new());
    let from = Instant::now();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(control.call(&["LOCK.RELEASE", "k", &token]).int(), 1);
        let fence = client.read(SOON).expect("the next in line is granted").int();
        assert!(fence > last, "number {number} got {fence} after {last}");
        (token, last) = (format!("t{number}"), fence);
        if number % 1000 == 999 {
            costs.push(release_us(&server));
        }
    }
    let served = from.elapsed();
    assert_eq!(control.call(&["LOCK.RELEASE", "k", &token]).int(), 1);
    drop(control);
    assert_eq!(server.info_int("sluice", "sluice_lock_handovers"), 10_000);
    assert_eq!((waiters(&server), server.blocked_clients()), (0, 0));
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
    println!(
        "{CROWD} lined up in {lined_up:?}, {all} bytes each, {each} without the connection itself; served in {served:?}; RELEASE, us by thousand: {costs:?}"
    );
    // The median of the fullest thousands and of the emptiest.
    let median = |part: &[f64]| {
        let mut part = part.to_vec();
        part.sort_by(f64::total_cmp);
        part[part.len() / 2]
    };
    let (with_many, with_few) = (median(&costs[..5]), median(&costs[5..]));
    assert!(
        with_many <= 2.0 * with_few + 5.0,
        "a RELEASE costs {with_many} us before thousands, {with_few} before few"
    );
    // A machine that stands still in the middle of a call spoils a thousand of them.
    assert!(costs.iter().filter(|us| **us >= 500.0).count() <= 2, "{costs:?}");

    drop(clients);
    // The server frees its idle clients at 500 a second: all of this crowd's take too long to be waited for each time.
    if !long {
        server.call(&["FLUSHALL"]);
        wait_for(LONG, "nobody waits", || (waiters(&server), server.blocked_clients()), |left| *left == (0, 0));
        return;
    }
    let mut after = 0;
    wait_until(LONG, "the memory is back", || {
        after = used(&server);
        after < before + 300_000
    });
    println!("memory: {before} bytes before, {after} after");
}

#[test]
fn ten_thousand_who_wait_are_served_in_order_at_a_flat_cost() {
    with_files("ten_thousand_who_wait_are_served_in_order_at_a_flat_cost", serves_a_crowd);
}

#[test]
fn the_memory_of_those_who_waited_comes_back() {
    let server = start();
    hold(&server, "k", "first", "10m");
    let before = used_after_a_start(&server);
    for round in 0..2 {
        hold(&server, "k", "first", "10m");
        let mut clients = crowd(&server, "k", 1000, "10m");
        // Half of them are served, all others leave.
        let mut token = "first".to_owned();
        for (number, client) in clients.iter_mut().enumerate().take(500) {
            assert_eq!(release(&server, "k", &token), 1);
            assert!(client.read(SOON).unwrap().int() > 0);
            token = format!("t{number}");
        }
        drop(clients);
        server.call(&["FLUSHALL"]);
        let mut after = 0;
        wait_until(LONG, "the memory is back", || {
            after = used(&server);
            after < before + 100_000
        });
        println!("round {round}: {before} bytes before a thousand waited, {after} after");
    }
}

fn ends_a_crowd() {
    let _alone = ONE_CROWD.lock();
    let server = start();
    hold(&server, "k", "holder", "10m");
    // All leave.
    let from = Instant::now();
    let clients = crowd(&server, "k", CROWD, "10m");
    let lined_up = from.elapsed();
    drop(clients);
    wait_for(LONG, "closed connections wait no more", || waiters(&server), |waiting| *waiting == 0);

    // All are killed in one moment.
    let mut clients = crowd(&server, "k", CROWD, "10m");
    let mut control = server.client();
    wait_until(LONG, "nobody else is there", || {
        control.call(&["INFO", "clients"]).text().contains(&format!("connected_clients:{}\r", CROWD + 1))
    });
    let from = Instant::now();
    assert_eq!(control.call(&["CLIENT", "KILL", "TYPE", "normal"]).int(), 10_000);
    wait_for(LONG, "nobody waits", || waiters(&server), |waiting| *waiting == 0);
    let killed = from.elapsed();
    assert!(clients.iter_mut().all(|client| client.read(SOON).is_err()));
    drop(clients);

    // All run out of time while the server stands still, so that it finds them all at once.
    let patience = 6 + 3 * lined_up.as_secs();
    let mut clients = crowd(&server, "k", CROWD, &format!("{patience}s"));
    control.send(&args!["DEBUG", "SLEEP", patience]);
    let asleep = Instant::now();
    for client in &mut clients {
        assert_eq!(client.read(LONG).unwrap().int(), 0);
    }
    let over = asleep.elapsed().saturating_sub(Duration::from_secs(patience));
    assert_eq!(control.read(SOON).unwrap().text(), "OK");
    println!("{CROWD} killed in {killed:?}; {CROWD} timeouts at once took {over:?}");
    assert!(killed < ms(5_000) && over < ms(5_000), "{killed:?} {over:?}");
    assert_eq!(server.info_int("sluice", "sluice_lock_timeouts"), 10_000);
    assert_eq!((waiters(&server), holder(&server, "k")), (0, "holder".to_owned()));
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
}

#[test]
fn ten_thousand_who_wait_are_killed_and_run_out_of_time_at_once() {
    with_files("ten_thousand_who_wait_are_killed_and_run_out_of_time_at_once", ends_a_crowd);
}

#[test]
fn full_memory_refuses_newcomers_and_hands_over_to_those_who_wait() {
    let server = Server::builder().args(&["--maxmemory-policy", "noeviction"]).start();
    let mut client = server.client();
    hold(&server, "k", "holder", "10m");
    client.call(&["SEM.ACQUIRE", "s", "holder", "10m", "1"]);
    for limit in
        [&["RL.FIXED", "f", "3", "1m"][..], &["RL.SLIDING", "l", "3", "1m"], &["RL.BUCKET", "b", "3", "1", "1m"]]
    {
        assert_eq!(client.call(limit).ints()[0], 1);
    }
    let mut first = line_up(&server, "k", "first", "10m", "10m");
    let mut dies = line_up(&server, "k", "dies", "300ms", "10m");
    let mut last = line_up(&server, "k", "last", "10m", "10m");
    let mut permit = server.client();
    permit.send(&["SEM.ACQUIRE", "s", "waiter", "10m", "1", "BLOCK", "10m"]);
    wait_for(SOON, "it waits", || server.info_int("sluice", "sluice_sem_waiters"), |waiting| *waiting == 1);
    assert_eq!(client.call(&["CONFIG", "SET", "maxmemory", "1"]).text(), "OK");

    for call in [
        &["LOCK.ACQUIRE", "k", "late", "1m"][..],
        &["LOCK.ACQUIRE", "k", "late", "1m", "BLOCK", "1m"],
        &["LOCK.ACQUIRE", "new", "late", "1m"],
        &["SEM.ACQUIRE", "s", "late", "1m", "5"],
        &["RL.FIXED", "new", "3", "1m"],
        &["RL.SLIDING", "new", "3", "1m"],
        &["RL.BUCKET", "new", "3", "1", "1m"],
    ] {
        let reply = client.call(call);
        assert!(reply.is_error("OOM "), "{call:?}: {reply:?}");
    }
    assert_eq!(client.call(&["EXISTS", "new"]).int(), 0);
    // What exists is decided.
    for limit in
        [&["RL.FIXED", "f", "3", "1m"][..], &["RL.SLIDING", "l", "3", "1m"], &["RL.BUCKET", "b", "3", "1", "1m"]]
    {
        let five: Vec<i64> = (0..3).map(|_| client.call(limit).ints()[0]).collect();
        assert_eq!(five, [1, 1, 0], "{limit:?}");
    }
    assert_eq!(client.call(&["LOCK.RENEW", "k", "holder", "1m"]).int(), 1);
    assert_eq!(client.call(&["SEM.RENEW", "s", "holder", "1m"]).int(), 1);
    // And so are the hand-overs: by a release, by the end of a lease, of a permit.
    assert_eq!(release(&server, "k", "holder"), 1);
    let fence = first.fence();
    assert_eq!(release(&server, "k", "first"), 1);
    assert!(dies.fence() > fence);
    assert!(last.fence() > fence);
    assert_eq!(client.call(&["SEM.RELEASE", "s", "holder"]).int(), 1);
    assert!(permit.read(SOON).unwrap().int() > 0);
    assert_eq!(holder(&server, "k"), "last");
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
}

#[test]
fn eviction_passes_a_lock_on_in_the_order_of_the_queue() {
    let server = Server::builder().args(&["--maxmemory-policy", "allkeys-lru"]).start();
    let filler = "x".repeat(1000);
    let mut client = server.client();
    hold(&server, "k", "holder", "10m");
    let mut waiting: Vec<_> = (0..20).map(|n| line_up(&server, "k", &format!("t{n}"), "10m", "10m")).collect();
    // Room for some hundred keys more, and then a write for each to be evicted.
    let most = server.info_int("memory", "used_memory") + 500_000;
    client.call(&args!["CONFIG", "SET", "maxmemory", most]);
    let mut fences = Vec::new();
    let mut written = 0;
    while fences.len() < waiting.len() {
        let batch: Vec<_> = (0..200).map(|n| args!["SET", format!("filler:{}", written + n), &filler]).collect();
        written += 200;
        assert!(client.pipeline(&batch).iter().all(|reply| reply.error().is_none()));
        while let Some(next) = waiting.get_mut(fences.len())
            && let Ok(reply) = next.client.read(ms(1))
        {
            fences.push(reply.int());
        }
        assert!(written < 400_000, "{} of {} after {written} writes", fences.len(), waiting.len());
    }
    assert!(fences[0] > 0 && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    assert!(server.info_int("stats", "evicted_keys") > 20);
    assert_eq!(waiters(&server), 0);
    println!("20 evicted holders in {written} writes");
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
    // With no room at all, commands of ours still answer.
    client.call(&args!["CONFIG", "SET", "maxmemory", 1]);
    for call in [
        &["LOCK.ACQUIRE", "n", "t", "1m"][..],
        &["LOCK.RELEASE", "n", "t"],
        &["RL.FIXED", "n", "3", "1m"],
        &["RL.SLIDING", "n2", "3", "1m"],
        &["RL.BUCKET", "n3", "3", "1", "1m"],
        &["SEM.ACQUIRE", "n4", "t", "1m", "2"],
    ] {
        let reply = client.call(call);
        assert!(reply.error().is_none() || reply.is_error("OOM "), "{call:?}: {reply:?}");
    }
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
}

#[test]
fn a_server_that_stood_still_serves_leases_before_timeouts_and_all_at_once() {
    let server = Server::start();
    // Twice it keeps the bound; a machine that is busy elsewhere spoils some rounds.
    let (mut all, bound) = (vec![], ms(20));
    while all.iter().filter(|late| **late <= bound).count() < 2 {
        let round = all.len();
        assert!(round < 5, "served so long after the server woke: {all:?}");
        // The lease ends while nothing runs, and later the patience of those who wait for it.
        let (key, [mut next, mut after, mut patient], woke) = in_time(600, |lease| {
            let (key, held) = (format!("k{round}:{lease}"), Instant::now());
            hold(&server, &key, "dead", &format!("{lease}ms"));
            let line = [("next", lease + 200), ("after", lease + 300), ("patient", 600_000)]
                .map(|(token, patience)| enter(&server, &key, token, "10m", &format!("{patience}ms")));
            let asleep = format!("{}", (lease * 2) as f64 / 1e3);
            let replies = server.client().pipeline(&[args!["GET", &key], args!["DEBUG", "SLEEP", asleep]]);
            let woke = Instant::now();
            // All of it was over while the server slept, if it slept before the first of it was.
            let in_time = !replies[0].is_nil() && replies[0].text() == "dead";
            assert!(in_time || held.elapsed() >= ms(lease), "the lease has ended too early");
            in_time.then_some((key, line, woke))
        });
        let noise = Noise::of(&server);
        // The lock had been free before anybody's time was over.
        next.fence();
        assert_eq!(after.reply().int(), 0);
        all.push(net(woke, Instant::now(), &noise.lost()));
        assert_eq!(queue(&server, &key), ["patient"]);
        assert_eq!(release(&server, &key, "next"), 1);
        patient.fence();
    }
    assert_eq!(waiters(&server), 0);
}

#[test]
fn a_module_that_is_loaded_and_unloaded_over_and_over_leaves_no_memory_behind() {
    let server = Server::start();
    let path = cases::module_path(&mut server.client());
    let rounds = |many: usize| {
        for _ in 0..many {
            hold(&server, "k", "holder", "10m");
            let waited = server.call(&["LOCK.ACQUIRE", "k", "waiter", "10m", "BLOCK", "1ms"]);
            assert_eq!(waited.int(), 0);
            let mut next = line_up(&server, "k", "next", "10m", "10m");
            assert_eq!(release(&server, "k", "holder"), 1);
            next.fence();
            assert_eq!(release(&server, "k", "next"), 1);
            wait_for(SOON, "nobody waits", || (waiters(&server), server.blocked_clients()), |left| *left == (0, 0));
            assert_eq!(server.call(&["MODULE", "UNLOAD", "sluice"]).text(), "OK");
            assert_eq!(server.call(&["MODULE", "LOAD", &path]).text(), "OK");
        }
        // The server gives back by and by what it keeps for those whom a module blocks: the least of some looks.
        let look = |_| {
            std::thread::sleep(ms(25));
            used(&server)
        };
        (0..20).map(look).min().unwrap()
    };
    let before = rounds(20);
    let after = rounds(100);
    println!("{before} bytes after 20 loads, {after} after 120");
    assert!(after < before + 40_000, "{} bytes a load", (after - before) / 100);
}
