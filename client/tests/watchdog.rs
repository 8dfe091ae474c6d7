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

use rig::{SOON, Server, args, in_time, ms, wait_until};
use sluice_client::blocking::{Guard, Sluice};
use sluice_client::{Error, Loss, Options};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use support::{SLACK, Watch, calls, open, url};

/// A lock in hand, and when and why its holder was told that it is lost.
fn hold(server: &Server, options: Options) -> (Guard, Receiver<(Instant, Loss)>) {
    let (tell, told) = channel();
    let options = options.on_loss(move |loss| tell.send((Instant::now(), loss)).unwrap());
    let guard = open(server).lock("k", options).try_acquire().unwrap().expect("the lock is free");
    (guard, told)
}

#[test]
fn it_keeps_a_lock_for_a_job_of_ten_times_the_ttl() {
    in_time(1500, |ttl| {
        let (server, ttl) = (Server::start(), ms(ttl));
        let (watch, start) = (Watch::of(&server), Instant::now());
        let (guard, told) = hold(&server, Options::new(ttl));
        let other = open(&server).lock("k", Options::new(ttl));
        while start.elapsed() < 10 * ttl {
            if other.try_acquire().unwrap().is_some() || guard.check().is_err() {
                return no_client_could(watch, ttl);
            }
            thread::sleep(ms(20));
        }
        let renewals = calls(&server, "lock.renew");
        assert!(renewals >= 10, "at each third of the ttl: {renewals}");
        if renewals > 40 {
            // A renewal that is not answered in time is sent again, and a server that goes on does all of them.
            return no_client_could(watch, ttl);
        }
        if !guard.release().unwrap() {
            return no_client_could(watch, ttl);
        }
        assert!(told.try_recv().is_err());
        drop(other.try_acquire().unwrap().expect("free"));
        Some(())
    });
}

/// What could not be done because the machine stood still for a good part of the ttl is done once more, with a longer one.
#[track_caller]
fn no_client_could<T>(watch: Watch, ttl: Duration) -> Option<T> {
    let stall = watch.longest_stall();
    assert!(stall > ttl / 8, "lost, and the machine stood still for no longer than {stall:?}");
    None
}

#[test]
fn it_tells_at_the_next_renewal_that_the_key_was_deleted() {
    in_time(1500, |ttl| {
        let (server, ttl) = (Server::start(), ms(ttl));
        let watch = Watch::of(&server);
        let (guard, told) = hold(&server, Options::new(ttl));
        let deleted = Watch::start();
        server.cli(&["DEL", "k"]);
        let (at, loss) = told.recv_timeout(ttl + SOON).unwrap();
        if loss != Loss::Gone {
            return no_client_could(watch, ttl);
        }
        assert!(deleted.net_until(at) < ttl / 3 + SLACK);
        assert!(matches!(guard.check(), Err(Error::Lost(Loss::Gone))));
        assert_eq!(guard.proved_for(), Duration::ZERO);
        // Once, and that is the end of it: nothing is asked for again.
        let renewals = calls(&server, "lock.renew");
        assert!(told.recv_timeout(ttl).is_err());
        assert_eq!((calls(&server, "lock.renew"), server.cli(&["EXISTS", "k"])), (renewals, "(integer) 0".to_owned()));
        assert!(!guard.release().unwrap());
        Some(())
    });
}

#[test]
fn it_tells_that_a_key_became_something_else() {
    in_time(1500, |ttl| {
        let (server, ttl) = (Server::start(), ms(ttl));
        let watch = Watch::of(&server);
        let (guard, told) = hold(&server, Options::new(ttl));
        server.client().pipeline(&[args!["DEL", "k"], args!["LPUSH", "k", "x"]]);
        if told.recv_timeout(ttl + SOON).unwrap().1 != Loss::Gone {
            return no_client_could(watch, ttl);
        }
        assert!(!guard.release().unwrap());
        assert_eq!(server.cli(&["LLEN", "k"]), "(integer) 1");
        Some(())
    });
}

#[test]
fn it_tells_before_the_lease_is_over_that_the_server_has_stopped() {
    let (server, guard) = in_time(1200, |ttl| {
        let (server, ttl) = (Server::start(), ms(ttl));
        let watch = Watch::of(&server);
        let (guard, told) = hold(&server, Options::new(ttl));
        wait_until(ttl + SOON, "a renewal", || calls(&server, "lock.renew") > 1 || guard.is_lost());
        let proved = (Instant::now(), guard.proved_for());
        if proved.1.is_zero() {
            return no_client_could(watch, ttl);
        }
        drop(watch);
        server.stop();
        let stopped = Watch::start();
        let (at, loss) = told.recv_timeout(ttl + SOON).unwrap();
        assert_eq!(loss, Loss::Unproved);
        assert!(at >= proved.0 + proved.1, "not before it has to be");
        let net = stopped.net_until(at);
        assert!(net < ttl + SLACK, "{net:?}");
        Some((server, guard))
    });
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
    in_time(3000, |ttl| {
        let (server, ttl, watch) = (Server::start(), ms(ttl), Watch::start());
        let (guard, told) = hold(&server, Options::new(ttl));
        for _ in 0..3 {
            thread::sleep(ttl / 6);
            server.stop();
            thread::sleep(ttl * 3 / 10);
            server.cont();
        }
        if told.try_recv().is_ok() || !guard.release().unwrap() {
            return no_client_could(watch, ttl);
        }
        Some(())
    });
}

#[test]
fn a_server_that_comes_back_without_the_lock_is_noticed() {
    in_time(3000, |ttl| {
        let (mut server, ttl, watch) = (Server::start(), ms(ttl), Watch::start());
        let (guard, told) = hold(&server, Options::new(ttl));
        let down = Instant::now();
        server.restart();
        let down = down.elapsed();
        if told.recv_timeout(ttl + SOON).unwrap().1 != Loss::Gone {
            return if down > ttl / 4 { None } else { no_client_could(watch, ttl) };
        }
        assert!(!guard.release().unwrap());
        Some(())
    });
}

#[test]
fn it_stops_at_the_longest_hold_and_the_server_then_frees_the_lock() {
    in_time(1200, |ttl| {
        let (server, ttl) = (Server::start(), ms(ttl));
        let watch = Watch::of(&server);
        let (longest, from_start, until_told) = (ttl * 5 / 3, Watch::start(), Watch::start());
        let start = Instant::now();
        let (guard, told) = hold(&server, Options::new(ttl).max_hold(longest));
        let other = open(&server).lock("k", Options::new(ttl)).acquire_timeout(longest + SOON).unwrap();
        let (freed, net) = (start.elapsed(), from_start.net());
        let (at, loss) = told.recv_timeout(SOON).unwrap();
        if loss != Loss::HeldTooLong {
            return no_client_could(watch, ttl);
        }
        assert!(other.is_some() && freed + ms(1) >= longest && net < longest + SLACK, "{freed:?}, {net:?}");
        assert!(until_told.net_until(at) < longest + SLACK);
        assert!(guard.is_lost() && !guard.release().unwrap());
        Some(())
    });
}

#[test]
fn it_does_not_outlive_the_guard() {
    in_time(600, |ttl| {
        let (server, ttl) = (Server::start(), ms(ttl));
        let watch = Watch::of(&server);
        let (guard, _told) = hold(&server, Options::new(ttl));
        wait_until(ttl + SOON, "it renews", || calls(&server, "lock.renew") > 2 || guard.is_lost());
        if guard.is_lost() {
            return no_client_could(watch, ttl);
        }
        drop(guard);
        let renewals = calls(&server, "lock.renew");
        // Another who uses the very same token would be renewed by it.
        thread::sleep(3 * ttl);
        assert_eq!(calls(&server, "lock.renew"), renewals);
        Some(())
    });
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
    // The callback may come at once, and waits for it to be there.
    let mut empty = place.lock().unwrap();
    *empty = Some(open(&server).lock("k", options).acquire().unwrap());
    drop(empty);
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
/// In ms.
const TTL: &str = "SLUICE_CLIENT_TEST_TTL";

/// Not a test of its own: the life of a client that another test pauses.
#[test]
fn the_paused_client() {
    let Ok(url) = std::env::var(URL) else { return };
    let ttl = ms(std::env::var(TTL).unwrap().parse().unwrap());
    let options = Options::new(ttl).on_loss(|loss| println!("\ntold {loss:?}"));
    let lock = Sluice::open(&url).unwrap().response_timeout(SOON).lock("k", options);
    let (watch, guard) = (Watch::start(), lock.acquire().unwrap());
    println!("\nholds");
    // Time only passes unseen while the process is stopped.
    let (mut last, mut was_lost) = (Instant::now(), false);
    loop {
        let now = Instant::now();
        let is_lost = guard.is_lost();
        if now - last > ttl {
            // The first thing it asks when it runs again.
            println!("\nlost {is_lost}");
            break;
        }
        if was_lost {
            let _: Option<()> = no_client_could(watch, ttl);
            println!("\nstood still");
            return;
        }
        // It may have been stopped between the two: then it is the next look that tells for how long.
        (last, was_lost) = (now, is_lost);
        thread::sleep(ms(5));
    }
    println!("\nreleased {}", guard.release().unwrap());
}

#[test]
fn a_client_that_was_paused_past_its_ttl_knows_at_once() {
    in_time(1500, |ttl| {
        let (server, watch, millis, ttl) = (Server::start(), Watch::start(), ttl.to_string(), ms(ttl));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_paused_client", "--nocapture"])
            .env(URL, url(&server))
            .env(TTL, millis)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut lines = lines
            .filter(|line| ["holds", "lost", "told", "released", "stood"].iter().any(|word| line.starts_with(word)));
        assert_eq!(lines.next().unwrap(), "holds");
        thread::sleep(ttl);
        if server.cli(&["EXISTS", "k"]) != "(integer) 1" || child.try_wait().unwrap().is_some() {
            let _ = child.kill();
            let _ = child.wait();
            return if lines.any(|line| line == "stood still") { None } else { no_client_could(watch, ttl) };
        }
        let signal = |name: &str| {
            let id = child.id().to_string();
            let done = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", name, &id]).status();
            assert!(done.unwrap().success());
        };
        signal("STOP");
        // Somebody else gets it, while the first is asleep.
        let other = open(&server).lock("k", Options::new(6 * SOON)).acquire_timeout(ttl + SOON).unwrap();
        let other = other.expect("the lease ran out");
        thread::sleep(ttl);
        signal("CONT");
        let mut said: Vec<String> = lines.collect();
        said.sort();
        assert!(child.wait().unwrap().success());
        if said.iter().any(|line| line == "stood still") {
            return None;
        }
        assert_eq!(said.len(), 3, "{said:?}");
        assert_eq!((said[0].as_str(), said[1].as_str()), ("lost true", "released false"));
        assert!(said[2] == "told Unproved" || said[2] == "told Gone", "{said:?}");
        assert_eq!(server.cli_raw(&["GET", "k"]), other.token(), "the late client has not touched it");
        Some(())
    });
}
