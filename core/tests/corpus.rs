//! What the fuzzer has found worth keeping, run through the same checks without it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

#[path = "../../fuzz/src/checks.rs"]
mod checks;

use std::path::Path;

/// Every file of a folder of the corpus, through its check.
fn all(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{} has hardly anything", folder.display());
    // Miri takes a second for what takes a millisecond: four files, and of each the beginning.
    let (step, most) = if cfg!(miri) { (files.len().div_ceil(4), 200) } else { (1, usize::MAX) };
    for file in files.iter().step_by(step) {
        println!("{}", file.display());
        let bytes = std::fs::read(file).unwrap();
        check(&bytes[..bytes.len().min(most)]);
    }
}

#[test]
fn the_corpus_of_arguments_holds() {
    all("args", checks::args);
}

#[test]
fn the_corpus_of_fixed_windows_holds() {
    all("fixed", checks::fixed);
}

#[test]
fn the_corpus_of_sliding_windows_holds() {
    all("sliding", checks::sliding);
}

#[test]
fn the_corpus_of_buckets_holds() {
    all("bucket", checks::bucket);
}

#[test]
fn the_corpus_of_slots_and_their_owners_holds() {
    all("cluster", checks::cluster);
}

#[test]
fn the_corpus_of_locks_holds() {
    all("lock", checks::lock);
}

#[test]
fn the_corpus_of_queues_holds() {
    all("queue", checks::queue);
}
