//! examples/clients: the same lines from each client do the same, against a real server.
//!
//! `make test` gets the libraries where it can. Where one is absent its example is not run, and a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod rig;

use rig::{Server, ValueExt, cli_program, in_path, target_dir};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const KEY: &str = "order:42";

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/clients")
}

fn clients() -> PathBuf {
    target_dir().join("clients")
}

/// Past the test harness, which keeps what a test prints to itself.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A Python that has redis-py: the one that `make test` made, or the system's.
fn python() -> Option<PathBuf> {
    let made = clients().join("python/bin/python");
    [Some(made), in_path("python3")]
        .into_iter()
        .flatten()
        .find(|python| Command::new(python).args(["-c", "import redis"]).output().is_ok_and(|out| out.status.success()))
}

/// Node, if that library is there for it.
fn node(library: &str) -> Option<PathBuf> {
    in_path("node").filter(|_| clients().join("node/node_modules").join(library).exists())
}

fn output(server: &Server, program: &Path, file: &Path, path: &str) -> Output {
    let mut command = Command::new(program);
    command.arg(file).env("REDIS_PORT", server.port().to_string()).env("PATH", path);
    command.output().unwrap()
}

/// What the file prints on a server where the lock is free, and that it keeps out where it is not.
fn run(program: Option<PathBuf>, file: &str, library: &str, path: &str) {
    let Some(program) = program else {
        say(&format!("NOT RUN: examples/clients/{file}: {library} is not there"));
        return;
    };
    let source = std::fs::read(examples().join(file)).unwrap();
    // node looks for libraries from the script's own folder upwards.
    let suffix = format!(".{}", file.rsplit('.').next().unwrap());
    let folder = if suffix == ".mjs" { clients().join("node") } else { std::env::temp_dir() };
    let mut copy = tempfile::Builder::new().prefix("example-").suffix(&suffix).tempfile_in(folder).unwrap();
    copy.write_all(&source).unwrap();

    let server = Server::start();
    let out = output(&server, &program, copy.path(), path);
    assert!(out.status.success(), "{file}: {}", String::from_utf8_lossy(&out.stderr));
    let printed = String::from_utf8_lossy(&out.stdout).into_owned();
    if let Err(why) = is_right(&printed) {
        panic!("{file}: {why}; it printed\n{printed}");
    }
    assert_eq!(server.call(&["LOCK.INFO", KEY]).array()[1].text(), "free", "{file} gave its lock back");
    assert_eq!(server.info_int("sluice", "sluice_rl_sliding_allowed"), 2);
    assert_eq!(server.info_int("sluice", "sluice_rl_sliding_refused"), 1);

    assert!(server.call(&["LOCK.ACQUIRE", KEY, "somebody else", "1h"]).int() > 0);
    let out = output(&server, &program, copy.path(), path);
    let said = [out.stdout, out.stderr].concat();
    assert_eq!(out.status.code(), Some(1), "{file}: {}", String::from_utf8_lossy(&said));
    assert_eq!(String::from_utf8_lossy(&said).trim_end(), "somebody else has the lock", "{file}");
    assert_eq!(server.call(&["GET", KEY]).text(), "somebody else");
}

/// Compares with what examples/clients/README.md shows: a fencing token stands for any, and the time left for one near it.
fn is_right(printed: &str) -> Result<(), String> {
    let readme = std::fs::read_to_string(examples().join("README.md")).unwrap();
    let shown = readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a text block");
    let (shown, printed): (Vec<_>, Vec<_>) = (shown.lines().collect(), printed.lines().collect());
    if shown.len() != printed.len() {
        return Err(format!("{} lines are shown", shown.len()));
    }
    for (shown, printed) in shown.into_iter().zip(printed) {
        let good = if shown.starts_with("locked") {
            number(printed, "locked, fencing token ", "").is_some_and(|fence| fence > 1_000_000_000_000_000)
        } else if shown.contains("refused") {
            number(printed, "try 3: refused, again in ", " ms").is_some_and(|ms| (30_000..=60_000).contains(&ms))
        } else {
            shown == printed
        };
        if !good {
            return Err(format!("{shown:?} is shown, {printed:?} printed"));
        }
    }
    Ok(())
}

fn number(line: &str, before: &str, after: &str) -> Option<u64> {
    line.strip_prefix(before)?.strip_suffix(after)?.parse().ok()
}

fn path() -> String {
    std::env::var("PATH").unwrap_or_default()
}

#[test]
fn redis_cli_does_what_is_shown() {
    // It may go by another name, or not be in the PATH.
    let folder = tempfile::tempdir().unwrap();
    let program = in_path(cli_program().to_str().unwrap()).unwrap_or_else(cli_program);
    std::os::unix::fs::symlink(program, folder.path().join("redis-cli")).unwrap();
    run(in_path("sh"), "redis-cli.sh", "sh", &format!("{}:{}", folder.path().display(), path()));
}

#[test]
fn redis_py_does_what_is_shown() {
    run(python(), "redis_py.py", "redis-py", &path());
}

#[test]
fn node_redis_does_what_is_shown() {
    run(node("redis"), "node-redis.mjs", "node-redis", &path());
}

#[test]
fn ioredis_does_what_is_shown() {
    run(node("ioredis"), "ioredis.mjs", "ioredis", &path());
}
