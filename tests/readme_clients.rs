//! The examples for client libraries do what the documentation shows: redis-py by `python` blocks, node-redis by `js` blocks,
//! each followed by a `text` block with what it prints.
//!
//! `make test` gets both libraries where it can. Where one is absent its examples are not run, and a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod pages;
mod rig;

use pages::{Block, Fences, blocks, compare};
use rig::{Server, in_path, target_dir};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn clients() -> PathBuf {
    target_dir().join("clients")
}

/// A Python that has redis-py: the one that `make test` made, or the system's.
fn python() -> Option<PathBuf> {
    let made = clients().join("python/bin/python");
    [Some(made), in_path("python3")]
        .into_iter()
        .flatten()
        .find(|python| Command::new(python).args(["-c", "import redis"]).output().is_ok_and(|out| out.status.success()))
}

/// Node, if node-redis is there for it.
fn node() -> Option<PathBuf> {
    in_path("node").filter(|_| clients().join("node/node_modules/redis").exists())
}

/// Of the libraries for Node, this one may be missing alone.
fn lacks_ioredis(block: &Block) -> bool {
    block.lines.iter().any(|line| line.contains("\"ioredis\"")) && !clients().join("node/node_modules/ioredis").exists()
}

/// Past the test harness, which keeps what a test prints to itself.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Runs the blocks of a file from the first to the last on one server, those of `language` and the console's. How many of
/// `language` there are.
fn run(file: &Path, language: &str, program: Option<PathBuf>, library: &str) -> usize {
    let all = blocks(file);
    let found = all.iter().filter(|block| block.info == language).count();
    if found == 0 {
        return 0;
    }
    let Some(program) = program else {
        say(&format!("NOT RUN: {found} {language} example(s) in {}: {library} is not there", file.display()));
        return found;
    };
    let server = Server::start();
    for (index, block) in all.iter().enumerate() {
        if block.is_console() {
            assert_eq!(pages::run(&server, std::slice::from_ref(block)), Vec::<String>::new());
        }
        if block.info == language && lacks_ioredis(block) {
            say(&format!("NOT RUN: the example at {}: ioredis is not there", block.place));
        } else if block.info == language {
            let shown = all.get(index + 1).filter(|next| next.info == "text");
            let shown = shown.unwrap_or_else(|| panic!("{}: a text block with the output is missing", block.place));
            run_one(&server, block, shown, &program);
        }
    }
    found
}

fn run_one(server: &Server, block: &Block, shown: &Block, program: &Path) {
    // node looks for libraries from the script's own folder upwards.
    let folder = if block.info == "js" { clients().join("node") } else { std::env::temp_dir() };
    let suffix = if block.info == "js" { ".mjs" } else { ".py" };
    let mut script = tempfile::Builder::new().prefix("example-").suffix(suffix).tempfile_in(folder).unwrap();
    let text = block.lines.join("\n").replace("6379", &server.port().to_string());
    script.write_all(text.as_bytes()).unwrap();
    let out = Command::new(program).arg(script.path()).output().unwrap();
    let (printed, failed) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{}: {failed}", block.place);
    let printed: Vec<String> = printed.lines().map(str::to_owned).collect();
    let mut fences = Fences::default();
    if let Err(why) = compare("", &shown.lines, &printed, Duration::ZERO, &mut fences) {
        panic!("{}: {why}; it prints\n{}", block.place, printed.join("\n"));
    }
}

fn run_all(language: &str, program: Option<PathBuf>, library: &str) {
    let found: usize = pages::files().iter().map(|file| run(file, language, program.clone(), library)).sum();
    assert!(found > 0, "no {language} example");
}

#[test]
fn the_python_examples_do_what_they_show() {
    run_all("python", python(), "redis-py");
}

#[test]
fn the_javascript_examples_do_what_they_show() {
    run_all("js", node(), "node-redis");
}
