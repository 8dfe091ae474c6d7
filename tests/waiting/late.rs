//! How late something was, and what may be made of it. Each file uses the part it needs.
#![allow(dead_code)]

use crate::rig::line::{Noise, net, unix_ms};
use std::time::{Duration, Instant};

/// How long something took that began at `from` and is over, the time left out that the machine took away.
pub fn took(from: Instant, noise: Noise) -> Duration {
    let to = Instant::now();
    net(from, to, &noise.lost())
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
