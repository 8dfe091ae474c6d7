//! Redlock on five servers, of which some are killed, stalled or slow, with a checker over what the holders believed.
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

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rig::noise::{Noise, net};
use rig::{SOON, Server, ValueExt, args, in_time, ms, wait_for, wait_until};
use sluice_client::{Error, Kind, Loss, Options, aio, blocking};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};
use support::{Proxy, SLACK, Watch, url};

fn servers() -> Vec<Server> {
    thread::scope(|scope| {
        let starting: Vec<_> = (0..5).map(|_| scope.spawn(Server::start)).collect();
        starting.into_iter().map(|server| server.join().unwrap()).collect()
    })
}

fn over(urls: impl IntoIterator<Item = String>, options: Options) -> blocking::Redlock {
    blocking::Redlock::new(urls.into_iter().map(|url| blocking::Sluice::open(&url).unwrap()), "k", options)
}

fn on(servers: &[Server], options: Options) -> blocking::Redlock {
    over(servers.iter().map(url), options)
}

/// On how many servers that run the key is.
fn keys(servers: &mut [Server]) -> usize {
    let running = servers.iter_mut().filter_map(|server| server.is_alive().then_some(&*server));
    running.filter(|server| server.call(&args!["EXISTS", "k"]).int() == 1).count()
}

/// Long enough for a machine that is busy with something else.
fn calm() -> Options {
    Options::new(SOON)
}

/// So long may a server take that runs, on such a machine; and each that does not run, or does not answer, costs as much.
const NODE: Duration = ms(2500);

/// What could not be done because the machine stood still for a good part of the ttl is done once more, with a longer one.
#[track_caller]
fn no_client_could<T>(watches: Vec<Watch>, ttl: Duration) -> Option<T> {
    let stall = watches.into_iter().map(Watch::longest_stall).max().unwrap_or_default();
    assert!(stall > ttl / 10, "lost, and the machine stood still for no longer than {stall:?}");
    None
}

#[test]
fn one_holds_it_and_a_release_frees_all_servers() {
    let mut servers = servers();
    let (a, b) = (on(&servers, calm()).node_timeout(NODE), on(&servers, calm()).node_timeout(NODE));
    let guard = a.try_acquire().unwrap().expect("free");
    assert!(guard.validity() <= SOON - ms(202) && guard.validity() > SOON / 2);
    // Three of them have answered by now. Of the others B might have one before A's call gets there, and A then not at all.
    wait_until(SOON, "the key is on all of them", || keys(&mut servers) == 5);
    assert!(b.try_acquire().unwrap().is_none());
    assert_eq!(keys(&mut servers), 5);
    assert!(servers.iter().all(|server| server.cli_raw(&["GET", "k"]) == guard.token()));
    assert!(guard.release().unwrap());
    assert_eq!(keys(&mut servers), 0);
    drop(b.try_acquire().unwrap().expect("free"));
    assert_eq!(keys(&mut servers), 0, "the drop waits for the release");
}

#[test]
fn two_dead_servers_are_survived_and_three_are_not() {
    let mut servers = servers();
    let lock = on(&servers, calm()).node_timeout(NODE);
    for dead in 0..5 {
        let tried = lock.acquire_timeout(if dead <= 2 { SOON } else { ms(300) });
        if dead <= 2 {
            assert!(tried.unwrap().expect("a quorum lives").release().unwrap());
        } else {
            let error = tried.unwrap_err();
            assert!(matches!(error, Error::NoQuorum { failed: 3, servers: 5, quorum: 3 }), "{error:?}");
        }
        wait_until(SOON, "nothing is left behind", || keys(&mut servers) == 0);
        servers[dead].kill9();
    }
}

#[test]
fn stalled_servers_cost_their_timeout_and_no_more() {
    let mut servers = servers();
    let lock = on(&servers, calm()).node_timeout(NODE);
    servers[0].stop();
    servers[1].stop();
    let guard = lock.acquire_timeout(SOON).unwrap().expect("a quorum answers");
    let watch = Watch::start();
    assert!(guard.release().unwrap());
    let net = watch.net();
    assert!(net < 5 * NODE + SLACK, "{net:?}");
    servers[2].stop();
    let watch = Watch::start();
    assert!(matches!(lock.try_acquire(), Err(Error::NoQuorum { failed: 3, .. })));
    let net = watch.net();
    assert!(net < NODE + SLACK, "{net:?}");
    // What the stalled ones were told meanwhile they do when they go on: in that order, so that nothing is left.
    servers[..3].iter().for_each(Server::cont);
    thread::sleep(ms(100));
    wait_until(SOON, "all are free", || keys(&mut servers) == 0);
}

#[test]
fn a_grant_whose_reply_was_lost_is_given_back_too() {
    let mut servers = servers();
    let proxies: Vec<Proxy> = servers.iter().map(Proxy::to).collect();
    let lock = over(proxies.iter().map(Proxy::url), calm()).node_timeout(NODE);
    drop(lock.acquire_timeout(SOON).unwrap().expect("free"));
    proxies[..3].iter().for_each(|proxy| proxy.swallow(true));
    assert!(matches!(lock.try_acquire(), Err(Error::NoQuorum { failed: 3, .. })));
    wait_until(SOON, "all are free", || keys(&mut servers) == 0);
}

#[test]
fn without_a_quorum_of_the_module_the_reason_is_said() {
    let plain: Vec<Server> = (0..3).map(|_| Server::builder().module(false).start()).collect();
    let asked = on(&plain, calm()).node_timeout(NODE).try_acquire();
    assert!(matches!(asked, Err(Error::ModuleMissing { command: "LOCK.ACQUIRE" })));
    assert!(matches!(on(&plain, calm().kind(Kind::Shared)).try_acquire(), Err(Error::Invalid(_))));
    assert!(matches!(on(&plain, calm()).node_timeout(SOON).try_acquire(), Err(Error::Invalid(_))));
}

#[test]
fn a_quorum_prolongs_it_and_without_one_it_is_lost() {
    in_time(2000, |ttl| {
        let (mut servers, ttl) = (servers(), ms(ttl));
        let watches: Vec<Watch> = servers[2..].iter().map(Watch::of).collect();
        let (tell, told) = channel();
        let options = Options::new(ttl).on_loss(move |loss| tell.send((Instant::now(), loss)).unwrap());
        let lock = on(&servers, options).node_timeout(ttl / 4);
        let guard = lock.acquire_timeout(SOON).unwrap().expect("free");
        servers[0].kill9();
        servers[1].stop();
        thread::sleep(2 * ttl);
        let proved = (Instant::now(), guard.validity());
        if proved.1.is_zero() {
            // Three of five prolong it.
            return no_client_could(watches, ttl);
        }
        drop(watches);
        servers[2].stop();
        let stopped = Watch::start();
        let (at, loss) = told.recv_timeout(ttl + SOON).unwrap();
        assert_eq!(loss, Loss::Unproved);
        assert!(at >= proved.0 + proved.1 && stopped.net_until(at) < ttl + SLACK);
        servers[1].cont();
        servers[2].cont();
        assert!(!guard.release().unwrap());
        // Deleted on a majority: known at the next renewal.
        servers[0].restart();
        let guard = lock.acquire_timeout(SOON).unwrap().expect("free");
        let deleted = || {
            // Over and over: a server outside the quorum may grant it after it was deleted there.
            servers[..3].iter().for_each(|server| drop(server.cli(&["DEL", "k"])));
            told.try_recv().ok()
        };
        let told = wait_for(ttl + SOON, "the loss", deleted, Option::is_some);
        assert!(matches!(told, Some((_, Loss::Gone | Loss::Unproved))), "{told:?}");
        assert!(!guard.release().unwrap());
        Some(())
    });
}

// ---- faults at any moment, and the checker ----

const TTL: Duration = Duration::from_millis(400);

/// That somebody believed to hold the lock from then to then.
#[derive(Debug)]
struct Belief {
    who: usize,
    from: Instant,
    to: Instant,
}

/// No two at once. Who never saw it to be valid believed nothing, whenever it got to look.
fn check(mut history: Vec<Belief>, what: &str) -> usize {
    history.retain(|belief| belief.from < belief.to);
    history.sort_by_key(|belief| belief.from);
    for pair in history.windows(2) {
        assert!(
            pair[0].to <= pair[1].from,
            "{what}: {} believed it for {:?} more when {} got it",
            pair[0].who,
            pair[0].to - pair[1].from,
            pair[1].who
        );
    }
    history.len()
}

#[test]
#[should_panic(expected = "believed it for")]
fn the_checker_sees_two_holders() {
    let start = Instant::now();
    let belief = |who, from, to| Belief { who, from: start + ms(from), to: start + ms(to) };
    assert_eq!(check(vec![belief(2, 10, 20), belief(1, 0, 10)], "side by side"), 2);
    check(vec![belief(2, 9, 20), belief(1, 0, 10)], "overlapping");
}

/// Until when a holder may believe it: what it saw last, if it was still valid then.
struct Holding {
    from: Instant,
    to: Instant,
}

impl Holding {
    fn see(&mut self, before: Instant, validity: Duration) -> bool {
        if !validity.is_zero() {
            self.to = before + validity;
        }
        !validity.is_zero()
    }

    /// Over at `at`, or when it ran out.
    fn end(self, who: usize, at: Instant) -> Belief {
        Belief { who, from: self.from, to: self.to.min(at).max(self.from) }
    }
}

/// Kills, stalls and slows down at most `faults` servers at a time, until `stop`. A server that was killed comes back after more than
/// one ttl, as the page on Redlock demands of servers that forget. At the end all run.
fn disturb(servers: &mut [Server], faults: usize, seed: u64, stop: &AtomicBool) {
    let mut random = SmallRng::seed_from_u64(seed);
    while !stop.load(Ordering::SeqCst) {
        let mut victims: Vec<usize> = (0..servers.len()).collect();
        while victims.len() > faults {
            victims.swap_remove(random.random_range(0..victims.len()));
        }
        let faults: Vec<(usize, u32)> = victims.into_iter().map(|victim| (victim, random.random_range(0..5))).collect();
        let lasts = ms(random.random_range(50..500));
        for (victim, fault) in &faults {
            thread::sleep(ms(random.random_range(0..30)));
            match fault {
                0 => servers[*victim].kill9(),
                1 | 2 => servers[*victim].stop(),
                _ => {}
            }
        }
        let until =
            Instant::now() + if faults.iter().any(|(_, fault)| *fault == 0) { lasts.max(TTL + ms(100)) } else { lasts };
        while Instant::now() < until {
            for (victim, _) in faults.iter().filter(|(_, fault)| *fault > 2) {
                servers[*victim].stop();
                thread::sleep(ms(random.random_range(1..25)));
                servers[*victim].cont();
            }
            thread::sleep(ms(random.random_range(1..15)));
        }
        for (victim, fault) in &faults {
            match fault {
                0 => servers[*victim].restart(),
                1 | 2 => servers[*victim].cont(),
                _ => {}
            }
        }
        thread::sleep(ms(random.random_range(0..100)));
    }
}

/// Runs clients, each over a number of its own, while servers are disturbed, and returns how often one got the lock.
fn chaos(name: &str, faults: usize, clients: impl Fn(&[String], u64, &AtomicBool) -> Vec<Belief>) -> usize {
    let seed = std::env::var("SLUICE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("{name}, {faults} servers at fault: SLUICE_SEED={seed}");
    let mut servers = servers();
    let urls: Vec<String> = servers.iter().map(url).collect();
    let stop = AtomicBool::new(false);
    let history = thread::scope(|scope| {
        let disturbing = scope.spawn(|| disturb(&mut servers, faults, seed, &stop));
        let timer = scope.spawn(|| {
            thread::sleep(ms(2500));
            stop.store(true, Ordering::SeqCst);
        });
        let history = clients(&urls, seed, &stop);
        timer.join().unwrap();
        disturbing.join().unwrap();
        history
    });
    let granted = check(history, &format!("{name}, {faults} at fault, SLUICE_SEED={seed}"));
    println!("{name}, {faults} servers at fault: {granted} grants");
    // Whatever happened: with all servers running, it can be had again.
    let lock = over(urls, calm()).node_timeout(NODE);
    let guard = lock.acquire_timeout(SOON).unwrap().expect("free after at most a ttl");
    assert!(guard.release().unwrap());
    granted
}

fn options(random: &mut SmallRng) -> Options {
    let options = Options::new(TTL).renew(random.random_bool(0.7));
    if random.random_bool(0.2) { options.max_hold(TTL * 2) } else { options }
}

/// Mostly short, and sometimes longer than the ttl.
fn job(random: &mut SmallRng) -> Duration {
    let longest = if random.random_bool(0.7) { 20 } else { 600 };
    ms(random.random_range(0..longest))
}

fn blocking_clients(urls: &[String], seed: u64, stop: &AtomicBool) -> Vec<Belief> {
    let history = Mutex::new(Vec::new());
    let (failed, noise) = (Mutex::new(Vec::new()), Noise::of_this_process());
    thread::scope(|scope| {
        for who in 0..3 {
            let (history, failed) = (&history, &failed);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed ^ (who as u64 + 1));
                while !stop.load(Ordering::SeqCst) {
                    let lock = over(urls.iter().cloned(), options(&mut random))
                        .node_timeout(ms(60))
                        .retry_delay(ms(5), ms(60));
                    let asked = Instant::now();
                    let guard = match lock.acquire_timeout(ms(300)) {
                        Ok(Some(guard)) => guard,
                        Ok(None) | Err(Error::NoQuorum { .. }) => {
                            failed.lock().unwrap().push((asked, Instant::now()));
                            continue;
                        }
                        Err(error) => panic!("{error:?}"),
                    };
                    let from = Instant::now();
                    let mut holding = Holding { from, to: from };
                    let until = from + job(&mut random);
                    loop {
                        let before = Instant::now();
                        if !holding.see(before, guard.validity()) || before >= until {
                            break;
                        }
                        thread::sleep(ms(random.random_range(1..10)));
                    }
                    history.lock().unwrap().push(holding.end(who, Instant::now()));
                    if random.random_bool(0.5) {
                        let _ = guard.release().unwrap();
                    }
                }
            });
        }
    });
    let lost = noise.lost();
    let longest = failed.into_inner().unwrap().into_iter().map(|(from, to)| net(from, to, &lost)).max();
    let longest = longest.unwrap_or_default();
    println!("an acquire that failed took {longest:?} at most");
    assert!(longest < ms(300 + 60) + SLACK, "a failed acquire took {longest:?}");
    history.into_inner().unwrap()
}

fn tokio_clients(urls: &[String], seed: u64, stop: &AtomicBool) -> Vec<Belief> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let history = std::sync::Arc::new(Mutex::new(Vec::new()));
    let over = std::sync::Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|who| {
            let servers: Vec<aio::Sluice> = urls.iter().map(|url| aio::Sluice::open(url).unwrap()).collect();
            let (history, over) = (std::sync::Arc::clone(&history), std::sync::Arc::clone(&over));
            runtime.spawn(async move {
                let mut random = SmallRng::seed_from_u64(seed ^ (who as u64 + 1));
                while !over.load(Ordering::SeqCst) {
                    let lock = aio::Redlock::new(servers.iter().cloned(), "k", options(&mut random));
                    let lock = lock.node_timeout(ms(60)).retry_delay(ms(5), ms(60));
                    // Some lose patience in the middle of it.
                    let patience = if random.random_bool(0.3) { ms(random.random_range(1..80)) } else { SOON };
                    let guard = match tokio::time::timeout(patience, lock.acquire_timeout(ms(300))).await {
                        Ok(Ok(Some(guard))) => guard,
                        Err(_) | Ok(Ok(None) | Err(Error::NoQuorum { .. })) => continue,
                        Ok(Err(error)) => panic!("{error:?}"),
                    };
                    let from = Instant::now();
                    let mut holding = Holding { from, to: from };
                    let until = from + job(&mut random);
                    loop {
                        let before = Instant::now();
                        if !holding.see(before, guard.validity()) || before >= until {
                            break;
                        }
                        tokio::time::sleep(ms(random.random_range(1..10))).await;
                    }
                    history.lock().unwrap().push(holding.end(who, Instant::now()));
                    if random.random_bool(0.5) {
                        let _ = guard.release().await.unwrap();
                    }
                }
            })
        })
        .collect();
    while !stop.load(Ordering::SeqCst) {
        thread::sleep(ms(10));
    }
    over.store(true, Ordering::SeqCst);
    for client in clients {
        runtime.block_on(client).unwrap();
    }
    runtime.shutdown_timeout(ms(500));
    std::mem::take(&mut *history.lock().unwrap())
}

/// Once in some runs at least, where a quorum is there; a machine that stands still may spoil one.
fn somebody_gets_it(faults: usize, mut run: impl FnMut() -> usize) {
    let got = (0..4).any(|_| run() > 0 || faults > 2);
    assert!(got, "nobody ever got it with {faults} servers at fault");
}

#[test]
fn never_two_holders_whatever_happens_to_up_to_three_servers() {
    for faults in 0..=3 {
        somebody_gets_it(faults, || chaos("blocking", faults, blocking_clients));
    }
}

#[test]
fn never_two_holders_whatever_happens_to_up_to_three_servers_with_tokio() {
    for faults in 0..=3 {
        somebody_gets_it(faults, || chaos("tokio", faults, tokio_clients));
    }
}
