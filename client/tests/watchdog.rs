//! The watchdog, on real servers: it keeps the lock, notices a loss, and does no more than that.
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

use rig::{SOON, Server, args, ms, wait_until};
use sluice_client::blocking::{Guard, Sluice};
use sluice_client::{Error, Loss, Options};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use support::{SLACK, calls, url};

fn open(server: &Server) -> Sluice {
    Sluice::open(&url(server)).unwrap().response_timeout(ms(500))
}

/// A lock in hand, and when and why its holder was told that it is lost.
fn hold(server: &Server, options: Options) -> (Guard, Receiver<(Instant, Loss)>) {
    let (tell, told) = channel();
    let options = options.on_loss(move |loss| tell.send((Instant::now(), loss)).unwrap());
    let guard = open(server).lock("k", options).try_acquire().unwrap().expect("the lock is free");
    (guard, told)
}

#[test]
fn it_keeps_a_lock_for_a_job_of_ten_times_the_ttl() {
    let server = Server::start();
    let (guard, told) = hold(&server, Options::new(ms(800)));
    let other = open(&server).lock("k", Options::new(ms(800)));
    let start = Instant::now();
    while start.elapsed() < ms(8000) {
        assert!(other.try_acquire().unwrap().is_none(), "lost after {:?}", start.elapsed());
        guard.check().unwrap();
        thread::sleep(ms(20));
    }
    let renewals = calls(&server, "lock.renew");
    assert!((10..=40).contains(&renewals), "at each third of the ttl: {renewals}");
    assert!(guard.release().unwrap());
    assert!(told.try_recv().is_err());
    drop(other.try_acquire().unwrap().expect("free"));
}

#[test]
fn it_tells_at_the_next_renewal_that_the_key_was_deleted() {
    let server = Server::start();
    let (guard, told) = hold(&server, Options::new(ms(900)));
    let start = Instant::now();
    server.cli(&["DEL", "k"]);
    let (at, loss) = told.recv_timeout(SOON).unwrap();
    assert_eq!(loss, Loss::Gone);
    assert!(at.duration_since(start) < ms(300) + SLACK);
    assert!(matches!(guard.check(), Err(Error::Lost(Loss::Gone))));
    assert_eq!(guard.proved_for(), Duration::ZERO);
    // Once, and that is the end of it: nothing is asked for again.
    let renewals = calls(&server, "lock.renew");
    assert!(told.recv_timeout(ms(900)).is_err());
    assert_eq!((calls(&server, "lock.renew"), server.cli(&["EXISTS", "k"])), (renewals, "(integer) 0".to_owned()));
    assert!(!guard.release().unwrap());
}

#[test]
fn it_tells_that_a_key_became_something_else() {
    let server = Server::start();
    let (guard, told) = hold(&server, Options::new(ms(600)));
    server.call(&args!["DEL", "k"]);
    server.call(&args!["LPUSH", "k", "x"]);
    assert_eq!(told.recv_timeout(SOON).unwrap().1, Loss::Gone);
    assert!(!guard.release().unwrap());
    assert_eq!(server.cli(&["LLEN", "k"]), "(integer) 1");
}

#[test]
fn it_tells_before_the_lease_is_over_that_the_server_has_stopped() {
    let server = Server::start();
    let ttl = ms(600);
    let (guard, told) = hold(&server, Options::new(ttl));
    wait_until(SOON, "a renewal", || calls(&server, "lock.renew") > 1);
    let proved = (Instant::now(), guard.proved_for());
    server.stop();
    let stopped = Instant::now();
    let (at, loss) = told.recv_timeout(SOON).unwrap();
    assert_eq!(loss, Loss::Unproved);
    assert!(at >= proved.0 + proved.1, "not before it has to be");
    assert!(at < stopped + ttl + SLACK, "{:?}", at - stopped);
    assert!(guard.is_lost());
    server.cont();
    // It has gone by the server's clock, too, and nothing that was under way revives it.
    let other = open(&server).lock("k", Options::new(SOON)).acquire_timeout(SOON).unwrap().expect("free");
    assert!(guard.is_lost());
    assert!(!guard.release().unwrap());
    assert_eq!(server.cli_raw(&["GET", "k"]), other.token());
}

#[test]
fn a_short_stall_is_survived() {
    let server = Server::start();
    let (guard, told) = hold(&server, Options::new(ms(3000)));
    for _ in 0..3 {
        thread::sleep(ms(500));
        server.stop();
        thread::sleep(ms(900));
        server.cont();
    }
    assert!(told.try_recv().is_err());
    assert!(guard.release().unwrap());
}

#[test]
fn a_server_that_comes_back_without_the_lock_is_noticed() {
    let mut server = Server::start();
    let (guard, told) = hold(&server, Options::new(ms(3000)));
    server.restart();
    assert_eq!(told.recv_timeout(SOON).unwrap().1, Loss::Gone);
    assert!(!guard.release().unwrap());
}

#[test]
fn it_stops_at_the_longest_hold_and_the_server_then_frees_the_lock() {
    let server = Server::start();
    let start = Instant::now();
    let (guard, told) = hold(&server, Options::new(ms(600)).max_hold(ms(1000)));
    let other = open(&server).lock("k", Options::new(ms(600))).acquire_timeout(SOON).unwrap();
    let freed = start.elapsed();
    assert!(other.is_some() && freed >= ms(999) && freed < ms(1000) + SLACK, "{freed:?}");
    let (at, loss) = told.recv_timeout(SOON).unwrap();
    assert_eq!(loss, Loss::HeldTooLong);
    assert!(at - start < ms(1000) + SLACK);
    assert!(guard.is_lost() && !guard.release().unwrap());
}

#[test]
fn it_does_not_outlive_the_guard() {
    let server = Server::start();
    let (guard, _told) = hold(&server, Options::new(ms(150)));
    wait_until(SOON, "it renews", || calls(&server, "lock.renew") > 2);
    drop(guard);
    let renewals = calls(&server, "lock.renew");
    // Another who uses the very same token would be renewed by it.
    thread::sleep(ms(450));
    assert_eq!(calls(&server, "lock.renew"), renewals);
}

#[test]
fn without_a_watchdog_the_hold_lasts_for_one_ttl() {
    let server = Server::start();
    let (guard, told) = hold(&server, Options::new(ms(300)).renew(false));
    assert_eq!(told.recv_timeout(SOON).unwrap().1, Loss::Unproved);
    assert!(guard.is_lost());
    assert_eq!(calls(&server, "lock.renew"), 0);
    let guard = open(&server).lock("other", Options::new(ms(100)).renew(false)).acquire().unwrap();
    assert!(guard.proved_for() <= ms(100));
    thread::sleep(ms(100));
    assert_eq!(guard.loss(), Some(Loss::Unproved));
}

#[test]
fn a_guard_that_goes_in_its_own_callback_or_after_one_that_panics_frees_the_lock() {
    let server = Server::start();
    let place: Arc<Mutex<Option<Guard>>> = Arc::default();
    let inside = Arc::clone(&place);
    let options = Options::new(ms(300)).max_hold(ms(200)).on_loss(move |_| drop(inside.lock().unwrap().take()));
    *place.lock().unwrap() = Some(open(&server).lock("k", options).acquire().unwrap());
    wait_until(SOON, "the callback takes it", || place.lock().unwrap().is_none());
    let options = Options::new(SOON).on_loss(|_| panic!("a bug of the holder's"));
    let guard = open(&server).lock("k2", options).acquire().unwrap();
    assert!(guard.release().unwrap());
    let options = Options::new(SOON).max_hold(ms(100)).on_loss(|_| panic!("a bug of the holder's"));
    let guard = open(&server).lock("k2", options).acquire().unwrap();
    wait_until(SOON, "the loss", || guard.is_lost());
    assert!(!guard.release().unwrap());
    wait_until(SOON, "the lock is free", || server.cli(&["EXISTS", "k", "k2"]) == "(integer) 0");
}

/// Where the process below finds its server.
const URL: &str = "SLUICE_CLIENT_TEST_URL";
const TTL: Duration = Duration::from_millis(800);

/// Not a test of its own: the life of a client that another test pauses.
#[test]
fn the_paused_client() {
    let Ok(url) = std::env::var(URL) else { return };
    let options = Options::new(TTL).on_loss(|loss| println!("\ntold {loss:?}"));
    let lock = Sluice::open(&url).unwrap().lock("k", options);
    let guard = lock.acquire().unwrap();
    println!("\nholds");
    // Time only passes unseen while the process is stopped.
    let mut last = Instant::now();
    while last.elapsed() < TTL {
        last = Instant::now();
        assert!(!guard.is_lost());
        thread::sleep(ms(5));
        if last.elapsed() > TTL {
            // The first thing it asks when it runs again.
            println!("\nlost {}", guard.is_lost());
            break;
        }
    }
    println!("\nreleased {}", guard.release().unwrap());
}

#[test]
fn a_client_that_was_paused_past_its_ttl_knows_at_once() {
    let server = Server::start();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_paused_client", "--nocapture"])
        .env(URL, url(&server))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut lines =
        lines.filter(|line| ["holds", "lost", "told", "released"].iter().any(|word| line.starts_with(word)));
    assert_eq!(lines.next().unwrap(), "holds");
    thread::sleep(TTL);
    let signal = |name: &str| {
        let done = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", name, &child.id().to_string()]).status();
        assert!(done.unwrap().success());
    };
    signal("STOP");
    // Somebody else gets it, while the first is asleep.
    let other = open(&server).lock("k", Options::new(SOON)).acquire_timeout(SOON).unwrap().expect("the lease ran out");
    thread::sleep(TTL);
    signal("CONT");
    let mut said: Vec<String> = lines.collect();
    said.sort();
    assert!(child.wait().unwrap().success());
    assert_eq!(said.len(), 3, "{said:?}");
    assert_eq!((said[0].as_str(), said[1].as_str()), ("lost true", "released false"));
    assert!(said[2] == "told Unproved" || said[2] == "told Gone", "{said:?}");
    assert_eq!(server.cli_raw(&["GET", "k"]), other.token(), "the late client has not touched it");
}
