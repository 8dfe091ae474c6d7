//! docs/reliability.md names tests that there are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::string_slice)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const PAGE: &str = "docs/reliability.md";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files that come with the tests of faults; while one is not there, what is named of it is not looked for.
const ON_THE_WAY: [&str; 4] = ["cluster", "pauses", "replication_faults", "sentinel"];

/// The tests that a text names: what stands between backquotes as `file::test`, a file of `core/tests` with its folder.
fn named(text: &str) -> BTreeSet<(String, String)> {
    let words = text.split('`').skip(1).step_by(2);
    let is_name = |word: &str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    words
        .filter_map(|word| word.split_once("::"))
        .filter(|(file, test)| is_name(file.strip_prefix("core/").unwrap_or(file)) && is_name(test))
        .map(|(file, test)| (file.to_owned(), test.to_owned()))
        .collect()
}

/// The names of the functions behind `#[test]`.
fn tests(source: &str) -> BTreeSet<String> {
    let mut after = false;
    let mut found = BTreeSet::new();
    for line in source.lines().map(str::trim) {
        if line == "#[test]" {
            after = true;
        } else if let Some(rest) = line.strip_prefix("fn ") {
            if after {
                found.insert(rest.split('(').next().unwrap().to_owned());
            }
            after = false;
        }
    }
    found
}

#[test]
fn every_test_that_the_page_names_exists() {
    let text = std::fs::read_to_string(root().join(PAGE)).unwrap();
    let named = named(&text);
    assert!(named.len() > 40, "the test finds too little: {}", named.len());
    let mut sources: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut wrong = vec![];
    for (file, test) in &named {
        if ON_THE_WAY.contains(&file.as_str()) && !root().join(format!("tests/{file}.rs")).exists() {
            println!("not looked for: {file}::{test}");
            continue;
        }
        let known = sources.entry(file.clone()).or_insert_with(|| {
            let path = match file.strip_prefix("core/") {
                Some(name) => format!("core/tests/{name}.rs"),
                None => format!("tests/{file}.rs"),
            };
            tests(&std::fs::read_to_string(root().join(path)).unwrap_or_default())
        });
        if !known.contains(test) {
            wrong.push(format!("{file}::{test}"));
        }
    }
    assert!(wrong.is_empty(), "{PAGE} names tests that there are not: {wrong:#?}");
}

#[test]
fn each_promise_has_a_test_beside_it() {
    let text = std::fs::read_to_string(root().join(PAGE)).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promised"));
    let mut many = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        assert_eq!(cells.len(), 3, "{row}");
        assert!(!named(cells[1]).is_empty() || cells[1].contains("the same"), "no test: {row}");
        many += 1;
    }
    assert!(many > 25, "the test finds too little: {many}");
}

#[test]
fn a_name_is_told_from_other_code() {
    let text = "`clock::a_step` and `core/corpus::all`, not `WAIT 1`, `file::test…` or clock::bare";
    let expected = [("clock", "a_step"), ("core/corpus", "all")].map(|(file, test)| (file.to_owned(), test.to_owned()));
    assert_eq!(named(text), expected.into());
    assert_eq!(tests("#[test]\nfn a() {}\nfn b() {}\n    #[test]\n    fn c() {}").len(), 2);
}
