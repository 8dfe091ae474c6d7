//! Locks with tokio, on real servers.
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

use rig::{SOON, Server, ms};
use sluice_client::aio::{Guard, Lock, Redlock, Sluice};
use sluice_client::{Error, Kind, Loss, Options};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use support::{Proxy, SLACK, Watch, calls, held, info, is_late, open_aio as open, waiters};
use tokio::time::{sleep, timeout};

const LONG: Duration = Duration::from_secs(30);

fn lock(server: &Server, kind: Kind) -> Lock {
    open(server).lock("k", Options::new(LONG).kind(kind))
}

async fn hold(lock: &Lock) -> Guard {
    lock.try_acquire().await.unwrap().expect("the lock is free")
}

/// The same and a release with a short timeout, on a machine that may stand still for longer: what was granted then is
/// given back. All is answered at the end.
async fn hold_and_release_patiently(lock: &Lock) {
    let (deadline, mut was_late) = (Instant::now() + SOON, false);
    loop {
        let done = match lock.try_acquire().await {
            Ok(Some(guard)) => guard.release().await.map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        match done {
            Ok(Some(_)) => return,
            Ok(None) => assert!(was_late, "the lock is free"),
            Err(error) if is_late(&error) => was_late = true,
            Err(error) => panic!("{error:?}"),
        }
        assert!(Instant::now() < deadline, "not in time");
        sleep(ms(5)).await;
    }
}

/// Whether the machine stood still for a good part of a ttl, so that no client could have kept the lock; a fault if not.
#[track_caller]
fn no_client_could(watch: Watch, ttl: Duration) -> bool {
    let stall = watch.longest_stall();
    assert!(stall > ttl / 8, "lost, and the machine stood still for no longer than {stall:?}");
    false
}

/// Waits in a way that lets the tasks of this runtime run.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        sleep(ms(2)).await;
    }
}

#[tokio::test]
async fn each_kind_is_acquired_and_released() {
    let server = Server::start();
    let exclusive = lock(&server, Kind::Exclusive);
    let first = hold(&exclusive).await;
    assert!(exclusive.try_acquire().await.unwrap().is_none());
    assert!(first.proved_for() > LONG / 2 && first.check().is_ok());
    let fence = first.fence();
    assert!(first.release().await.unwrap());
    let shared = lock(&server, Kind::Shared);
    let (a, b) = (hold(&shared).await, hold(&shared).await);
    assert_eq!(held(&server, "k"), 2);
    assert!(a.release().await.unwrap() && b.release().await.unwrap());
    let semaphore = lock(&server, Kind::Semaphore(2));
    let (a, b) = (hold(&semaphore).await, hold(&semaphore).await);
    assert!(semaphore.try_acquire().await.unwrap().is_none() && a.fence() > fence);
    assert_eq!(info(&server, "SEM", "k", "held"), 2);
    assert!(a.release().await.unwrap() && b.release().await.unwrap());
    let mine = lock(&server, Kind::Reentrant);
    let (outer, inner) = (hold(&mine).await, mine.clone().acquire().await.unwrap());
    assert_eq!((outer.fence(), server.cli_raw(&["HVALS", "k"]).as_str()), (inner.fence(), "1"));
    assert!(lock(&server, Kind::Reentrant).try_acquire().await.unwrap().is_none());
    assert!(outer.release().await.unwrap());
    assert_eq!(held(&server, "k"), 1);
    assert!(inner.release().await.unwrap());
    assert_eq!(held(&server, "k"), 0);
}

#[tokio::test]
async fn a_waiter_is_granted_beyond_the_response_timeout_and_others_are_not_kept_waiting() {
    let server = Server::start();
    let sluice = open(&server).response_timeout(ms(3000));
    let first = sluice.lock("k", Options::new(LONG)).acquire().await.unwrap();
    let waiting = sluice.lock("k", Options::new(LONG).ask_anew(ms(100)).renew(false));
    let waits = tokio::spawn(async move { waiting.acquire_timeout(LONG).await });
    until("it waits", || waiters(&server, "k") == 1).await;
    // Over the shared connection, beside the one that waits.
    assert!(sluice.lock("other", Options::new(LONG)).acquire().await.unwrap().release().await.unwrap());
    let asked = Instant::now();
    until("asked anew several times", || calls(&server, "lock.acquire") > 6 && asked.elapsed() > ms(3500)).await;
    assert_eq!(waiters(&server, "k"), 1);
    let before = Instant::now();
    assert!(first.release().await.unwrap());
    let guard = waits.await.unwrap().unwrap().expect("granted");
    assert!(guard.proved_for() <= LONG && guard.proved_for() + before.elapsed() + ms(1) >= LONG);
    assert!(calls(&server, "lock.renew") >= 1);
    assert!(sluice.lock("k", Options::new(LONG)).acquire_timeout(ms(100)).await.unwrap().is_none());
}

#[tokio::test]
async fn a_future_that_is_dropped_leaves_neither_a_waiter_nor_a_lock() {
    let server = Server::start();
    let lock = lock(&server, Kind::Exclusive);
    let first = hold(&lock).await;
    assert!(timeout(ms(100), lock.acquire()).await.is_err());
    until("nobody waits", || waiters(&server, "k") == 0).await;
    // And at any other moment, with the lock changing hands.
    assert!(first.release().await.unwrap());
    for round in 0..60u64 {
        // What was under way is seen to be given back here at the latest: its lease is longer.
        let other = timeout(SOON, lock.acquire()).await.expect("nothing is left").unwrap();
        let asking = timeout(Duration::from_micros(round * 100), lock.acquire());
        let (got, _) = tokio::join!(asking, async {
            sleep(Duration::from_micros(round * 70)).await;
            other.release().await
        });
        drop(got);
        until("free again", || held(&server, "k") == 0 && waiters(&server, "k") == 0).await;
    }
}

#[tokio::test]
async fn a_lost_reply_leaves_no_lock_behind() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let sluice = Sluice::open(&proxy.url()).unwrap().response_timeout(ms(500));
    for kind in [Kind::Exclusive, Kind::Reentrant] {
        proxy.swallow(false);
        let lock = sluice.lock("k", Options::new(LONG).kind(kind));
        hold_and_release_patiently(&lock).await;
        proxy.swallow(true);
        assert!(matches!(lock.try_acquire().await, Err(Error::Timeout)));
        until("what was granted is given back", || server.cli(&["EXISTS", "k"]) == "(integer) 0").await;
    }
}

#[tokio::test]
async fn a_guard_that_is_dropped_is_released_in_the_background() {
    let server = Server::start();
    let lock = lock(&server, Kind::Exclusive);
    drop(hold(&lock).await);
    until("free", || held(&server, "k") == 0).await;
    let task = {
        let lock = lock.clone();
        tokio::spawn(async move {
            let _guard = lock.acquire().await.unwrap();
            panic!("in the middle of the work");
        })
    };
    assert!(task.await.is_err());
    until("free", || held(&server, "k") == 0).await;
    // A guard that goes where no runtime is, and one whose runtime has gone.
    let guard = hold(&lock).await;
    std::thread::spawn(move || drop(guard)).join().unwrap();
    until("free", || held(&server, "k") == 0).await;
    let short = open(&server).lock("short", Options::new(ms(300)));
    let guard = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(short.acquire()).unwrap()
    });
    drop(guard.join().unwrap());
    until("its lease ran out", || held(&server, "short") == 0).await;
}

/// So many times longer a ttl is tried with, where the machine stood still for longer than a lock can be kept.
const TTLS: [u64; 4] = [1, 4, 16, 64];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watchdog_keeps_the_lock_for_ten_times_the_ttl() {
    for times in TTLS {
        if is_kept_for_ten_times(ms(1500 * times)).await {
            return;
        }
    }
    panic!("too late each time");
}

async fn is_kept_for_ten_times(ttl: Duration) -> bool {
    let server = Server::start();
    let (watch, start) = (Watch::of(&server), Instant::now());
    let guard = open(&server).lock("k", Options::new(ttl)).acquire().await.unwrap();
    let other = lock(&server, Kind::Exclusive);
    while start.elapsed() < 10 * ttl {
        if other.try_acquire().await.unwrap().is_some() || guard.is_lost() {
            return no_client_could(watch, ttl);
        }
        sleep(ms(20)).await;
    }
    if !guard.release().await.unwrap() {
        return no_client_could(watch, ttl);
    }
    let renewals = calls(&server, "lock.renew");
    sleep(ttl).await;
    assert_eq!(calls(&server, "lock.renew"), renewals, "it does not outlive the guard");
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_is_told_by_the_token_the_future_and_the_callback() {
    for times in TTLS {
        if is_told(ms(1200 * times)).await {
            return;
        }
    }
    panic!("too late each time");
}

async fn is_told(ttl: Duration) -> bool {
    let server = Server::start();
    let (watch, until_deleted) = (Watch::of(&server), Watch::of(&server));
    let (tell, told) = channel();
    let options = Options::new(ttl).on_loss(move |loss| tell.send(loss).unwrap());
    let lock = open(&server).lock("k", options);
    let guard = hold(&lock).await;
    let token = guard.cancellation();
    // Somebody's own copy: to cancel it says nothing about the lock.
    guard.cancellation().cancel();
    if guard.is_lost() {
        return no_client_could(until_deleted, ttl);
    }
    drop(until_deleted);
    assert!(!token.is_cancelled());
    let deleted = Watch::start();
    server.cli(&["DEL", "k"]);
    if guard.lost().await != Loss::Gone {
        return no_client_could(watch, ttl);
    }
    assert!(token.is_cancelled() && deleted.net() < ttl / 3 + SLACK);
    assert_eq!(told.recv_timeout(SOON).unwrap(), Loss::Gone);
    assert!(!guard.release().await.unwrap());

    let guard = hold(&lock).await;
    let proved = (Instant::now(), guard.proved_for());
    if proved.1.is_zero() {
        return no_client_could(watch, ttl);
    }
    drop(watch);
    server.stop();
    let stopped = Watch::start();
    let loss = timeout(ttl + SOON, guard.lost()).await.unwrap();
    let at = Instant::now();
    server.cont();
    assert_eq!((loss, told.recv_timeout(SOON).unwrap()), (Loss::Unproved, Loss::Unproved));
    assert!(at >= proved.0 + proved.1 && stopped.net_until(at) < ttl + SLACK);
    assert!(!guard.release().await.unwrap());
    assert!(told.try_recv().is_err(), "each loss is told once");

    until("free", || held(&server, "k") == 0).await;
    let watch = Watch::of(&server);
    let guard = open(&server).lock("k", Options::new(ttl).max_hold(ttl * 3 / 2)).acquire().await.unwrap();
    if timeout(2 * ttl + SOON, guard.lost()).await.unwrap() != Loss::HeldTooLong {
        return no_client_could(watch, ttl);
    }
    true
}

#[tokio::test]
async fn a_runtime_that_was_blocked_past_the_ttl_is_noticed_by_the_clock() {
    let server = Server::start();
    let guard = open(&server).lock("k", Options::new(ms(300))).acquire().await.unwrap();
    let token = guard.cancellation();
    std::thread::sleep(ms(350));
    // The watchdog had no chance to run yet.
    assert!(guard.is_lost());
    assert!(token.is_cancelled());
    sleep(ms(50)).await;
    assert_eq!(guard.loss(), Some(Loss::Unproved), "and nothing revives it");
    assert!(!guard.release().await.unwrap());
}

#[tokio::test]
async fn a_server_without_the_module_says_how_to_load_it_and_a_dead_one_that_it_is() {
    let mut server = Server::builder().module(false).start();
    let lock = lock(&server, Kind::Exclusive);
    let error = lock.acquire().await.unwrap_err();
    assert!(
        matches!(error, Error::ModuleMissing { command: "LOCK.ACQUIRE" }) && error.to_string().contains("loadmodule")
    );
    server.kill9();
    let watch = Watch::start();
    assert!(matches!(lock.acquire().await, Err(Error::Connection(_))));
    assert!(watch.net() < ms(1000) + SLACK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stalls_ends_a_wait_without_end_and_one_that_restarted_costs_no_error() {
    let mut server = Server::start();
    let lock = open(&server).response_timeout(ms(2000)).lock("k", Options::new(LONG).ask_anew(ms(200)));
    let first = hold(&lock).await;
    let waits = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await.map(drop) })
    };
    until("it waits", || waiters(&server, "k") == 1).await;
    let watch = Watch::start();
    server.stop();
    assert!(matches!(waits.await.unwrap(), Err(Error::Connection(_) | Error::Timeout)));
    let net = watch.net();
    assert!(net < ms(8400) + SLACK, "{net:?}");
    server.cont();
    until("nobody waits", || waiters(&server, "k") == 0).await;
    assert!(first.release().await.unwrap());
    server.restart();
    assert!(hold(&lock).await.release().await.unwrap());
}

#[tokio::test]
async fn a_redlock_is_held_by_one_prolonged_by_a_quorum_and_released_everywhere() {
    for times in TTLS {
        if is_held_by_a_quorum(ms(4000 * times)).await {
            return;
        }
    }
    panic!("too late each time");
}

async fn is_held_by_a_quorum(ttl: Duration) -> bool {
    let mut servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let watch = Watch::start();
    let lock =
        |servers: &[Server]| Redlock::new(servers.iter().map(open), "k", Options::new(ttl)).node_timeout(ttl / 4);
    let guard = lock(&servers).acquire_timeout(SOON).await.unwrap().expect("free");
    // A quorum has answered by now; somebody else might have the last one before this call gets there.
    until("all have granted it", || servers.iter().all(|server| held(server, "k") == 1)).await;
    match lock(&servers).try_acquire().await {
        Ok(None) => {}
        Ok(Some(_)) | Err(Error::NoQuorum { .. }) => return no_client_could(watch, ttl),
        Err(error) => panic!("{error:?}"),
    }
    servers[2].kill9();
    sleep(ttl * 5 / 4).await;
    if guard.is_lost() {
        return no_client_could(watch, ttl);
    }
    assert!(guard.validity() < ttl - ttl / 100);
    if !guard.release().await.is_ok_and(|held| held) {
        return no_client_could(watch, ttl);
    }
    assert!(servers[..2].iter().all(|server| held(server, "k") == 0));
    servers[1].kill9();
    let error = lock(&servers).try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::NoQuorum { failed: 2, servers: 3, quorum: 2 }), "{error:?}");
    until("given back", || held(&servers[0], "k") == 0).await;
    let plain = Server::builder().module(false).start();
    let alone = Redlock::new([open(&plain)], "k", Options::new(LONG)).node_timeout(LONG / 6);
    let error = alone.try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::ModuleMissing { .. }));
    true
}
