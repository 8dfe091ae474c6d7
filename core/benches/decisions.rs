//! What a decision takes without a server: `make bench-core`.
#![allow(missing_docs, clippy::panic, clippy::unwrap_used, clippy::arithmetic_side_effects)]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use sluice_core::args;
use sluice_core::limit::Request;
use sluice_core::{bucket, fixed, sliding};
use std::hint::black_box;
use std::time::Duration;

const NOW: i64 = 1_800_000_000_000;
const HOUR: u64 = 3_600_000;

fn request(limit: u64) -> Request {
    Request { limit, refill: 1, window: HOUR, cost: 1, peek: false }
}

fn arguments(c: &mut Criterion) {
    let words: [&[u8]; 5] = [b"RL.BUCKET", b"key", b"1000", b"20", b"1s"];
    c.bench_function("arguments of RL.BUCKET", |b| b.iter(|| args::bucket(black_box(&words[..]))));
}

fn fixed_windows(c: &mut Criterion) {
    let end = Some(NOW + 1000);
    for (name, value) in [("allowed", &b"41"[..]), ("refused", b"1000")] {
        let found = Some(fixed::Found { value, expires_at: end });
        c.bench_function(&format!("fixed, {name}"), |b| {
            b.iter(|| fixed::decide(black_box(found), black_box(NOW), &request(1000)));
        });
    }
}

fn buckets(c: &mut Criterion) {
    let used = |cost| {
        let decided = bucket::decide(None, NOW * 1000, &Request { cost, ..request(1000) }).unwrap();
        let bucket::Effect::Store { value, .. } = decided.effect else { panic!("a new bucket allows") };
        value
    };
    for (name, cost) in [("allowed", 400), ("refused", 1000)] {
        let value = used(cost);
        c.bench_function(&format!("bucket, {name}"), |b| {
            b.iter(|| bucket::decide(Some(black_box(&value)), black_box(NOW * 1000 + 17), &request(1000)));
        });
    }
}

/// The log after so many hits, one a millisecond, and the time of the last.
fn log(limit: u64, hits: u64) -> (Vec<u8>, i64) {
    let (mut value, mut now) = (Vec::new(), NOW);
    for _ in 0..hits {
        now += 1;
        let stored = (!value.is_empty()).then_some(&value[..]);
        match sliding::decide(stored, now, &request(limit)).unwrap().effect {
            sliding::Effect::Slot { at, bytes, .. } => {
                let bytes = bytes.as_slice();
                value.get_mut(at..at + bytes.len()).unwrap().copy_from_slice(bytes);
            }
            sliding::Effect::Rebuild { value: rebuilt, .. } => value = rebuilt,
            sliding::Effect::Nothing => panic!("a hit within the limit is written"),
        }
    }
    (value, now)
}

fn sliding_windows(c: &mut Criterion) {
    let mut group = c.benchmark_group("sliding");
    for limit in [100, 1_000, 100_000] {
        let (full, now) = log(limit, limit);
        group.bench_with_input(BenchmarkId::new("refused", limit), &full, |b, full| {
            b.iter(|| sliding::decide(Some(black_box(full)), black_box(now + 1), &request(limit)));
        });
        // So late that half of the hits have left.
        let late = now + HOUR.cast_signed() - limit.cast_signed() / 2;
        group.bench_with_input(BenchmarkId::new("allowed", limit), &full, |b, full| {
            b.iter(|| sliding::decide(Some(black_box(full)), black_box(late), &request(limit)));
        });
    }
    group.finish();
}

criterion_group! {
    name = decisions;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .without_plots();
    targets = arguments, fixed_windows, buckets, sliding_windows
}
criterion_main!(decisions);
