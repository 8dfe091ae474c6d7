//! How late something was, and what of it was the machine's doing.

use super::{Client, Server, ms};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Unix time in ms, with its fraction.
pub fn unix_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() * 1e3
}

/// What a busy machine adds to a time that a test measures: while this lives, a thread sleeps for a millisecond and asks
/// the server, where one is given, for a PONG, over and over, and notes how much longer that took.
pub struct Noise {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<Vec<(Instant, Instant)>>>,
}

impl Noise {
    /// Begins to listen.
    pub fn of(server: &Server) -> Self {
        // The time until it is connected and its thread runs is the machine's as well.
        Self::begin(Instant::now(), Some(server.client()))
    }

    /// The same of this process alone, where the test itself makes a server late.
    pub fn of_this_process() -> Self {
        Self::begin(Instant::now(), None)
    }

    fn begin(mut from: Instant, mut client: Option<Client>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut lost = Vec::new();
            while !stopped.load(Relaxed) {
                std::thread::sleep(ms(1));
                if let Some(client) = &mut client {
                    // Not a single word, after which the module may look at all its keys.
                    client.call(&["PING", "is anybody there?"]);
                }
                // A sleep is late by a part of a millisecond everywhere.
                if from.elapsed() > ms(2) {
                    lost.push((from + ms(1), Instant::now()));
                }
                from = Instant::now();
            }
            lost
        });
        Self { stop, thread: Some(thread) }
    }

    /// When the machine did not run us, or the server.
    pub fn lost(mut self) -> Vec<(Instant, Instant)> {
        self.stop.store(true, Relaxed);
        self.thread.take().map(|thread| thread.join().expect("it measures")).unwrap_or_default()
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        // Over when this is: it must not ask a server that is stopped next.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What is left of a span once the time is taken out that the machine did not give.
pub fn net(from: Instant, to: Instant, lost: &[(Instant, Instant)]) -> Duration {
    let taken: Duration = lost.iter().map(|(a, b)| (*b).min(to).saturating_duration_since((*a).max(from))).sum();
    to.saturating_duration_since(from).saturating_sub(taken)
}

/// How long something took that began at `from` and is over, the time left out that the machine took away.
pub fn took(from: Instant, noise: Noise) -> Duration {
    let to = Instant::now();
    net(from, to, &noise.lost())
}

/// Whether something that began at `from` and is over now took no longer than the contract says, the time that the machine
/// took away left out.
#[track_caller]
pub fn prompt(from: Instant, limit: Duration, noise: Noise, what: &str) {
    let (all, net) = (from.elapsed(), took(from, noise));
    assert!(net <= limit, "{what}: {all:?}, without the machine's own delays {net:?}; at most {limit:?} was promised");
}

/// The first of five measurements that keeps the bound. What is late by itself is late each time; a machine that keeps one thread
/// of ours from the processor, while that of `Noise` runs, spoils one. `measure` is told which it is, for keys of its own.
#[track_caller]
pub fn within(bound: Duration, what: &str, mut measure: impl FnMut(usize) -> Duration) -> Duration {
    let mut all = Vec::new();
    while all.len() < 5 {
        let late = measure(all.len());
        if late <= bound {
            return late;
        }
        all.push(late);
    }
    panic!("{what}: {all:?}, without the machine's own delays; at most {bound:?} was promised");
}

/// The same moment by two clocks, that of [`Instant`] and Unix time in ms: of a hundred looks at both, the one that took least.
/// In the others this thread may have stood still in between.
pub fn two_clocks() -> (Instant, f64) {
    let look = |_| {
        let from = Instant::now();
        let unix = unix_ms();
        (from.elapsed(), from, unix)
    };
    let (_, at, unix) = (0..100).map(look).min_by_key(|look| look.0).expect("a hundred looks");
    (at, unix)
}
