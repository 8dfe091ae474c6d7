//! Locks, blocking, on real servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

#[path = "../../tests/rig/mod.rs"]
mod rig;
mod support;

use rig::{SOON, Server, ValueExt, args, in_time, ms, wait_for, wait_until};
use sluice_client::blocking::{Guard, Lock, Sluice};
use sluice_client::{Error, Kind, Limit, Options};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use support::{Proxy, SLACK, Watch, calls, held, info, open, patiently, queue, url, waiters};

const LONG: Duration = Duration::from_secs(30);

fn lock(server: &Server, key: &str, kind: Kind) -> Lock {
    open(server).lock(key, Options::new(LONG).kind(kind))
}

fn hold(lock: &Lock) -> Guard {
    lock.try_acquire().unwrap().expect("the lock is free")
}

#[test]
fn one_holds_it_at_a_time_and_each_grant_has_a_larger_fence() {
    let server = Server::start();
    let (a, b) = (lock(&server, "k", Kind::Exclusive), lock(&server, "k", Kind::Exclusive));
    let first = hold(&a);
    assert!(b.try_acquire().unwrap().is_none());
    assert!(a.try_acquire().unwrap().is_none(), "not reentrant");
    assert_eq!(server.cli_raw(&["GET", "k"]), first.token());
    assert!(!first.is_lost() && first.proved_for() > ms(25_000) && first.check().is_ok());
    let fence = first.fence();
    assert!(first.release().unwrap());
    let second = hold(&b);
    assert!(second.fence() > fence);
    assert_eq!(held(&server, "k"), 1);
}

#[test]
fn shared_holders_join_and_bar_an_exclusive_one() {
    let server = Server::start();
    let (a, b) = (lock(&server, "k", Kind::Shared), lock(&server, "k", Kind::Shared));
    let (first, second) = (hold(&a), hold(&b));
    assert_eq!(held(&server, "k"), 2);
    assert!(lock(&server, "k", Kind::Exclusive).try_acquire().unwrap().is_none());
    assert!(first.release().unwrap() && second.release().unwrap());
    drop(hold(&lock(&server, "k", Kind::Exclusive)));
}

#[test]
fn a_semaphore_admits_as_many_as_its_limit() {
    let server = Server::start();
    let lock = lock(&server, "k", Kind::Semaphore(2));
    let (first, _second) = (hold(&lock), hold(&lock));
    assert!(lock.try_acquire().unwrap().is_none());
    assert!(first.release().unwrap());
    let _third = hold(&lock);
    assert_eq!(info(&server, "SEM", "k", "held"), 2);
}

#[test]
fn a_reentrant_lock_nests_in_its_owner_and_in_nobody_else() {
    let server = Server::start();
    let mine = lock(&server, "k", Kind::Reentrant);
    let outer = hold(&mine);
    let inner = hold(&mine.clone());
    let innermost = mine.acquire().unwrap();
    assert_eq!((outer.fence(), outer.token()), (inner.fence(), innermost.token()));
    assert!(lock(&server, "k", Kind::Reentrant).try_acquire().unwrap().is_none(), "another owner");
    // The server knows of one hold: a command that got there twice would count for nothing.
    assert_eq!(server.cli_raw(&["HVALS", "k"]), "1");
    drop(outer);
    assert!(innermost.release().unwrap());
    assert_eq!(held(&server, "k"), 1);
    assert!(inner.release().unwrap());
    assert_eq!(held(&server, "k"), 0);
    drop(hold(&mine));
}

#[test]
fn a_reentrant_lock_that_is_lost_is_not_entered_again() {
    let server = Server::start();
    let mine = open(&server).lock("k", Options::new(ms(200)).kind(Kind::Reentrant));
    let outer = hold(&mine);
    server.cli(&["DEL", "k"]);
    wait_until(SOON, "the loss", || outer.is_lost());
    assert!(matches!(mine.try_acquire(), Err(Error::Lost(_))));
    assert!(!outer.release().unwrap());
    drop(hold(&mine));
}

#[test]
fn holds_that_were_counted_twice_are_all_given_back() {
    let server = Server::start();
    let mine = lock(&server, "k", Kind::Reentrant);
    let guard = hold(&mine);
    // As a client that resends would have it.
    server.call(&args!["LOCK.ACQUIRE", "k", guard.token(), "30s", "REENTRANT"]);
    assert_eq!(server.cli_raw(&["HVALS", "k"]), "2");
    assert!(guard.release().unwrap());
    assert_eq!(server.cli(&["EXISTS", "k"]), "(integer) 0");
}

#[test]
fn a_clone_that_asks_while_its_owner_waits_gives_up_in_its_own_time() {
    let server = Server::start();
    let _other = hold(&lock(&server, "k", Kind::Exclusive));
    let mine = lock(&server, "k", Kind::Reentrant);
    in_time(1500, |patience| {
        let start = Instant::now();
        thread::scope(|scope| {
            let waits = scope.spawn(|| mine.acquire_timeout(ms(patience)).unwrap().is_none());
            wait_until(SOON, "it waits", || waiters(&server, "k") == 1 || start.elapsed() > ms(patience));
            assert!(mine.try_acquire().unwrap().is_none());
            assert!(mine.acquire_timeout(ms(50)).unwrap().is_none());
            let waiting = waiters(&server, "k");
            let in_time = start.elapsed() < ms(patience);
            assert!(waiting == 1 || !in_time, "{waiting} wait");
            assert!(waits.join().unwrap());
            in_time.then_some(())
        })
    });
}

#[test]
fn a_waiter_gets_the_lock_by_a_reply_and_renews_it_once() {
    let server = Server::start();
    let first = hold(&open(&server).lock("k", Options::new(10 * LONG).renew(false)));
    let sluice = open(&server).response_timeout(ms(3000));
    let second = sluice.lock("k", Options::new(LONG).renew(false));
    thread::scope(|scope| {
        let waits = scope.spawn(|| second.acquire_timeout(LONG).unwrap().expect("granted"));
        wait_until(SOON, "it waits", || waiters(&server, "k") == 1);
        // Longer than the response timeout.
        thread::sleep(ms(3500));
        let before = Instant::now();
        assert!(first.release().unwrap());
        let guard = waits.join().unwrap();
        assert!(
            guard.proved_for() <= LONG && guard.proved_for() + before.elapsed() + ms(1) >= LONG,
            "proved from after the wait"
        );
        assert_eq!((calls(&server, "lock.renew"), calls(&server, "lock.acquire")), (1, 3));
    });
}

#[test]
fn a_wait_ends_in_time_and_leaves_the_queue() {
    let server = Server::start();
    let _first = hold(&lock(&server, "k", Kind::Exclusive));
    let (watch, start) = (Watch::start(), Instant::now());
    assert!(lock(&server, "k", Kind::Exclusive).acquire_timeout(ms(150)).unwrap().is_none());
    let (all, net) = (start.elapsed(), watch.net());
    assert!(all >= ms(150) && net < ms(150) + SLACK, "{all:?}, {net:?}");
    assert_eq!(waiters(&server, "k"), 0);
}

/// Where the process below finds its server.
const URL: &str = "SLUICE_CLIENT_TEST_URL";

/// Not a test of its own: the life of a client that another test stops while it waits.
#[test]
fn the_stopped_waiter() {
    let Ok(url) = std::env::var(URL) else { return };
    let guard = Sluice::open(&url).unwrap().lock("k", Options::new(LONG)).acquire().unwrap();
    assert!(guard.release().unwrap());
}

/// Stopping and continuing a process ends a read on a socket that has a timeout, as any signal does that is handled.
#[test]
fn a_wait_that_signals_interrupt_goes_on_at_its_place() {
    let server = Server::start();
    let first = hold(&lock(&server, "k", Kind::Exclusive));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_stopped_waiter"])
        .env(URL, url(&server))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until(SOON, "the process waits", || waiters(&server, "k") == 1);
    // (Neither is in the way of a test that fails: both end with the server.)
    let b = lock(&server, "k", Kind::Exclusive);
    let late = thread::spawn(move || b.acquire().unwrap());
    wait_until(SOON, "another waits behind it", || waiters(&server, "k") == 2);
    let line = queue(&server, "k");
    for _ in 0..5 {
        let asked = calls(&server, "lock.acquire");
        for (name, states) in [("STOP", "T"), ("CONT", "SRD")] {
            let id = child.id().to_string();
            assert!(Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", name, &id]).status().unwrap().success());
            wait_until(SOON, name, || {
                let all = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
                all.rsplit(") ").next().unwrap().starts_with(|state| states.contains(state))
            });
        }
        wait_until(SOON, "it asks again", || calls(&server, "lock.acquire") > asked);
        assert_eq!(queue(&server, "k"), line);
    }
    drop(first);
    assert!(child.wait().unwrap().success());
    assert_eq!(late.join().unwrap().token(), line[1]);
    assert_eq!(waiters(&server, "k"), 0);
}

#[test]
fn asked_anew_over_fresh_connections_it_keeps_its_place() {
    let server = Server::start();
    let first = hold(&lock(&server, "k", Kind::Exclusive));
    let options = Options::new(LONG);
    let (a, b) = (open(&server).lock("k", options.clone().ask_anew(ms(50))), open(&server).lock("k", options));
    thread::scope(|scope| {
        let early = scope.spawn(|| a.acquire().unwrap());
        wait_until(SOON, "the first waits", || waiters(&server, "k") == 1);
        let in_front = queue(&server, "k");
        let late = scope.spawn(|| b.acquire().unwrap());
        wait_until(SOON, "the second waits", || waiters(&server, "k") == 2);
        wait_until(SOON, "asked anew several times", || calls(&server, "lock.acquire") > 8);
        assert_eq!(queue(&server, "k")[0], in_front[0]);
        assert_eq!(waiters(&server, "k"), 2);
        drop(first);
        let early = early.join().unwrap();
        assert_eq!(early.token(), in_front[0]);
        assert_eq!(waiters(&server, "k"), 1);
        drop(early);
        drop(late.join().unwrap());
    });
}

#[test]
fn a_server_that_stalls_or_dies_ends_a_wait_without_end() {
    let mut server = Server::start();
    let _first = hold(&open(&server).lock("k", Options::new(10 * LONG).renew(false)));
    let waiting = open(&server).response_timeout(ms(2000)).lock("k", Options::new(LONG).ask_anew(ms(200)));
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiting.acquire());
        wait_until(SOON, "it waits", || waiters(&server, "k") == 1);
        let watch = Watch::start();
        server.stop();
        assert!(matches!(waits.join().unwrap(), Err(Error::Connection(_) | Error::Timeout)));
        let net = watch.net();
        assert!(net < ms(8400) + SLACK, "{net:?}");
        server.cont();
    });
    wait_until(SOON, "nobody waits", || waiters(&server, "k") == 0);
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiting.acquire());
        wait_until(SOON, "it waits", || waiters(&server, "k") == 1);
        server.kill9();
        assert!(matches!(waits.join().unwrap(), Err(Error::Connection(_))));
    });
}

#[test]
fn a_wait_that_is_cut_off_goes_on() {
    let server = Server::start();
    let first = hold(&lock(&server, "k", Kind::Exclusive));
    let second = lock(&server, "k", Kind::Exclusive);
    thread::scope(|scope| {
        let waits = scope.spawn(|| second.acquire().unwrap());
        for what in [&["CLIENT", "KILL", "ID"][..], &["CLIENT", "UNBLOCK"][..]] {
            wait_until(SOON, "it waits", || waiters(&server, "k") == 1);
            let id = server.call(&args!["LOCK.INFO", "k"]).map()["queue"].array()[0].map()["client"].int();
            let words: Vec<String> = what.iter().map(ToString::to_string).chain([id.to_string()]).collect();
            assert_eq!(server.call(&words).int(), 1);
            // Again in the queue as another client, or on its way to it.
            wait_for(
                SOON,
                "it waits again",
                || server.call(&args!["LOCK.INFO", "k"]).map()["queue"].clone(),
                |queue| {
                    queue
                        .array()
                        .first()
                        .is_some_and(|waiter| waiter.map()["client"].int() != id || what[1] == "UNBLOCK")
                },
            );
        }
        drop(first);
        drop(waits.join().unwrap());
    });
    assert!(matches!(
        thread::scope(|scope| {
            let _first = hold(&second);
            let waits = scope.spawn(|| second.acquire().map(drop));
            wait_until(SOON, "it waits", || waiters(&server, "k") == 1);
            let id = server.call(&args!["LOCK.INFO", "k"]).map()["queue"].array()[0].map()["client"].int();
            server.call(&args!["CLIENT", "UNBLOCK", id, "ERROR"]);
            waits.join().unwrap()
        }),
        Err(Error::Unblocked(_))
    ));
}

#[test]
fn a_lost_reply_leaves_no_lock_behind() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    for kind in [Kind::Exclusive, Kind::Reentrant, Kind::Shared, Kind::Semaphore(1)] {
        proxy.swallow(false);
        let lock =
            Sluice::open(&proxy.url()).unwrap().response_timeout(ms(500)).lock("k", Options::new(LONG).kind(kind));
        // A connection that is set up and has answered all, so that it is the ACQUIRE whose reply is lost.
        patiently(|| lock.try_acquire()?.map(Guard::release).transpose());
        proxy.swallow(true);
        let watch = Watch::start();
        assert!(matches!(lock.try_acquire(), Err(Error::Timeout)), "{kind:?}");
        let net = watch.net();
        assert!(net < ms(2500) + SLACK, "{net:?}");
        wait_until(SOON, "what was granted is given back", || server.cli(&["EXISTS", "k"]) == "(integer) 0");
    }
}

#[test]
fn a_server_without_the_module_says_how_to_load_it() {
    let server = Server::builder().module(false).start();
    let missing = |error: Error, name| {
        assert!(matches!(error, Error::ModuleMissing { command } if command == name), "{error:?}");
        assert!(error.to_string().contains("loadmodule "), "{error}");
    };
    missing(lock(&server, "k", Kind::Exclusive).try_acquire().unwrap_err(), "LOCK.ACQUIRE");
    missing(lock(&server, "k", Kind::Semaphore(3)).acquire().unwrap_err(), "SEM.ACQUIRE");
    missing(open(&server).limiter(Limit::fixed(1, LONG)).hit("k").unwrap_err(), "RL.FIXED");
}

#[test]
fn a_key_of_another_type_and_a_full_queue_are_errors_of_their_own() {
    let server = Server::builder().module_args(&["max-waiters", "1"]).start();
    server.cli(&["LPUSH", "list", "x"]);
    assert!(matches!(lock(&server, "list", Kind::Exclusive).try_acquire(), Err(Error::WrongType(_))));
    assert_eq!(server.cli(&["CONFIG", "SET", "sluice.max-waiters", "1"]), "OK");
    let first = hold(&lock(&server, "k", Kind::Exclusive));
    let (a, b) = (lock(&server, "k", Kind::Exclusive), lock(&server, "k", Kind::Exclusive));
    thread::scope(|scope| {
        scope.spawn(|| a.acquire().map(drop).unwrap());
        wait_until(SOON, "one waits", || waiters(&server, "k") == 1);
        assert!(matches!(b.acquire(), Err(Error::QueueFull(_))));
        drop(first);
    });
}

#[test]
fn a_guard_that_goes_by_a_panic_or_otherwise_frees_the_lock() {
    let server = Server::start();
    let lock = lock(&server, "k", Kind::Exclusive);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = hold(&lock);
        panic!("in the middle of the work");
    }));
    assert!(panicked.is_err());
    assert_eq!(server.cli(&["EXISTS", "k"]), "(integer) 0");
    fn early(lock: &Lock) -> Result<(), Error> {
        let guard = lock.acquire()?;
        guard.check()?;
        Err(Error::Invalid("something else"))
    }
    assert!(early(&lock).is_err());
    assert_eq!(server.cli(&["EXISTS", "k"]), "(integer) 0");
}

#[test]
fn a_release_says_whether_it_was_held_until_then() {
    let server = Server::start();
    let lock = lock(&server, "k", Kind::Exclusive);
    let guard = hold(&lock);
    server.cli(&["SET", "k", "somebody-else"]);
    assert!(!guard.release().unwrap());
    assert_eq!(server.cli_raw(&["GET", "k"]), "somebody-else");
}

#[test]
fn a_server_that_restarted_meanwhile_costs_no_error() {
    let mut server = Server::start();
    let lock = lock(&server, "k", Kind::Exclusive);
    drop(hold(&lock));
    server.restart();
    drop(hold(&lock));
    server.kill9();
    let watch = Watch::start();
    assert!(matches!(lock.try_acquire(), Err(Error::Connection(_))));
    assert!(watch.net() < ms(500) + SLACK);
}

#[test]
fn many_threads_take_turns() {
    let server = Server::start();
    let sluice = open(&server);
    let inside = std::sync::atomic::AtomicUsize::new(0);
    let fences = std::sync::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let guard = sluice.lock("k", Options::new(LONG)).acquire().unwrap();
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    fences.lock().unwrap().push(guard.fence());
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    assert!(guard.release().unwrap());
                }
            });
        }
    });
    let fences = fences.into_inner().unwrap();
    assert!(fences.len() == 80 && fences.is_sorted_by(|a, b| a < b));
}
