//! What the scripts behind `make` say on a machine that lacks something: one line that tells what to do.
//!
//! They run on a copy of `scripts/`, with a PATH that holds nothing but stubs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rand::RngExt;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const REDIS_7: &str = "echo 'Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=0'";
const REDIS_6: &str = "echo 'Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64 build=0'";

/// A machine with what the scripts need, until a test takes something away.
struct Machine {
    dir: tempfile::TempDir,
    env: Vec<(String, String)>,
}

impl Machine {
    fn new() -> Self {
        let guard = starting();
        let machine = Self { dir: tempfile::tempdir().unwrap(), env: vec![] };
        for folder in ["bin", "home", "root/scripts"] {
            std::fs::create_dir_all(machine.path(folder)).unwrap();
        }
        for file in ["Cargo.toml", "Makefile", "redis.conf"] {
            std::fs::copy(Path::new(ROOT).join(file), machine.path("root").join(file)).unwrap();
        }
        for script in std::fs::read_dir(Path::new(ROOT).join("scripts")).unwrap().flatten() {
            if script.path().is_file() {
                std::fs::copy(script.path(), machine.path("root/scripts").join(script.file_name())).unwrap();
            }
        }
        for tool in ["bash", "env", "cat", "ln", "mkdir", "rm", "touch"] {
            symlink(real(tool), machine.path("bin").join(tool)).unwrap();
        }
        drop(guard);
        machine
            .with("id", "echo 0")
            .with("rustc", "echo 'rustc 1.95.0 (0 2026-01-01)'; echo 'host: x86_64-unknown-linux-gnu'")
            .with("cargo", "[ \"$1\" != build ] || { mkdir -p target/release && touch target/release/libsluice.so; }")
            .with("cc", "")
            .with(
                "redis-server",
                &format!("[ \"$1\" = --version ] || {{ echo \"started with $*\"; exit; }}; {REDIS_7}"),
            )
            .with("redis-cli", "")
            .with("valgrind", "")
            .set("LIBCLANG_PATH", "/somewhere")
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// A program of that name that does this.
    fn with(self, name: &str, does: &str) -> Self {
        let _no_start = starting();
        let file = self.path("bin").join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{does}\n")).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        self
    }

    fn without(self, name: &str) -> Self {
        std::fs::remove_file(self.path("bin").join(name)).unwrap();
        self
    }

    fn set(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    fn bash(&self, args: &[&str]) -> Output {
        let mut bash = Command::new(real("bash"));
        bash.args(args).current_dir(self.path("root")).env_clear();
        bash.env("PATH", self.path("bin")).env("HOME", self.path("home"));
        bash.envs(self.env.iter().map(|(name, value)| (name, value)));
        bash.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = {
            let _no_other = starting();
            bash.spawn().unwrap()
        };
        started.wait_with_output().unwrap()
    }

    /// The one line that a script ends with when it fails.
    #[track_caller]
    fn fails(&self, args: &[&str]) -> String {
        let out = self.bash(args);
        let (said, failed) = (text(&out.stdout), text(&out.stderr));
        assert!(!out.status.success(), "it did not fail: {said}{failed}");
        let line = failed.strip_suffix('\n').unwrap_or_default();
        assert!(line.starts_with("sluice: ") && !line.contains('\n'), "not one line: {failed:?}");
        assert!(said.lines().all(|line| line.starts_with("sluice: installing ")), "chatter: {said:?}");
        line.to_owned()
    }

    #[track_caller]
    fn works(&self, args: &[&str]) -> String {
        let out = self.bash(args);
        assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
        text(&out.stdout)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// While a file is written no process is started: until it runs a program of its own, a new process has all open files of
/// this one, and the system runs no file that is still open to write anywhere.
fn starting() -> MutexGuard<'static, ()> {
    static STARTING: Mutex<()> = Mutex::new(());
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port that nobody listens on: none of those that systems give to outgoing connections, nor of tests/rig's servers.
fn free_port() -> String {
    let mut random = rand::rng();
    let mut ports = (0..1000).map(|_| random.random_range(22_000..26_000));
    ports.find(|port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port").to_string()
}

/// Where this machine really has a tool.
fn real(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file()).expect(name)
}

#[track_caller]
fn assert_names(line: &str, all: &[&str]) {
    for part in all {
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
}

#[test]
fn run_starts_the_server_on_the_port_asked_for_and_says_what_to_try() {
    let free = free_port();
    let said = Machine::new().set("PORT", &free).works(&["scripts/run"]);
    assert_names(&said, &["Redis 7.0 with sluice", &format!("redis-cli -p {free} LOCK.ACQUIRE order:42 worker-1 30s")]);
    assert_names(&said, &["LOCK.RELEASE order:42 worker-1", "RL.BUCKET api:alice 100 20 1s"]);
    assert!(said.ends_with(&format!("started with ./redis.conf --port {free}\n")), "{said}");
}

#[test]
fn a_busy_port_is_named_with_another_to_take() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let line = Machine::new().set("PORT", port.to_string()).fails(&["scripts/run"]);
    assert_names(&line, &[&format!("port {port} is in use"), "make run PORT="]);
}

#[test]
fn a_port_that_is_none_is_refused() {
    for port in ["0", "65536", "99999", "http", "-1", "6379x"] {
        let line = Machine::new().set("PORT", port).fails(&["scripts/run"]);
        assert_names(&line, &[&format!("PORT={port} is no port"), "make run PORT="]);
    }
}

#[test]
fn without_rust_the_line_says_how_to_get_it() {
    for script in ["scripts/run", "scripts/build", "scripts/test", "scripts/lint", "scripts/deny"] {
        let line = Machine::new().without("cargo").fails(&[script]);
        assert_names(&line, &["Rust is missing", "sh.rustup.rs"]);
    }
}

#[test]
fn a_rust_that_is_not_in_the_path_but_where_rustup_puts_it_is_found() {
    let machine = Machine::new();
    std::fs::create_dir_all(machine.path("home/.cargo/bin")).unwrap();
    std::fs::rename(machine.path("bin/cargo"), machine.path("home/.cargo/bin/cargo")).unwrap();
    machine.works(&["scripts/build"]);
}

#[test]
fn a_rust_that_is_too_old_is_named() {
    let line = Machine::new().with("rustc", "echo 'rustc 1.70.0 (0 2023-06-01)'").fails(&["scripts/build"]);
    assert_names(&line, &["1.70", "rustup update stable"]);
}

#[test]
fn missing_lint_components_are_named_with_the_line_that_adds_them() {
    for (component, word) in [("rustfmt", "fmt"), ("clippy", "clippy"), ("cargo-deny", "deny")] {
        let machine = Machine::new().with("cargo", &format!("[ \"$1\" != {word} ] || exit 101"));
        let line = machine.fails(&[if word == "deny" { "scripts/deny" } else { "scripts/lint" }]);
        let by = if word == "deny" { "cargo install --locked".to_owned() } else { "rustup component add".to_owned() };
        assert_names(&line, &[&format!("{component} is missing"), &format!("{by} {component}")]);
    }
}

#[test]
fn crates_that_cannot_be_fetched_are_one_line() {
    let cargo = "[ \"$1\" != fetch ] || { printf 'warning: spurious\\nerror: failed to get `itoa`\\n\\nCaused by:\\n  dns\\n' >&2; exit 101; }";
    let line = Machine::new().with("cargo", cargo).fails(&["scripts/build"]);
    assert_names(&line, &["crates could not be fetched (no network?)", "failed to get `itoa`"]);
}

#[test]
fn where_nothing_can_be_installed_one_line_names_all_that_is_missing() {
    let bare = || Machine::new().without("cc").without("redis-server").without("redis-cli");
    let line = bare().fails(&["scripts/setup"]);
    assert_names(&line, &["a C compiler (cc)", "redis-server and redis-cli", "7.0"]);
    let line = bare().with("dnf", "").fails(&["scripts/setup"]);
    assert_names(&line, &["sudo dnf install gcc redis"]);
    // apt-get, but neither root nor a sudo that does not ask.
    for machine in [bare(), bare().with("sudo", "exit 1")] {
        let line = machine.with("id", "echo 1000").with("apt-get", "exit 0").fails(&["scripts/setup"]);
        assert_names(&line, &["sudo apt-get install gcc libc6-dev redis-tools"]);
    }
    let libclang = "source scripts/lib.bash; has_libclang() { return 1; }; need_system";
    let line = Machine::new().with("dnf", "").fails(&["-c", libclang]);
    assert_names(&line, &["missing: libclang;", "sudo dnf install clang-devel"]);
}

#[test]
fn a_packaged_server_before_7_counts_as_missing() {
    let old = || Machine::new().with("redis-server", REDIS_6);
    assert_names(&old().fails(&["scripts/setup"]), &["Redis 7.0, Valkey 8.0 or later", "found Redis 6.0"]);
    // … also if the package manager has no newer one.
    let line = old().with("apt-get", "exit 0").with("redis-check-rdb", REDIS_6).fails(&["scripts/setup"]);
    assert_names(&line, &["too old (Redis 6.0)", "SLUICE_SERVER=path"]);
}

#[test]
fn a_server_given_by_hand_is_checked() {
    let line = Machine::new().with("mine", REDIS_6).set("SLUICE_SERVER", "mine").fails(&["scripts/setup"]);
    assert_names(&line, &["SLUICE_SERVER=mine is Redis 6.0", "7.0"]);
    let line = Machine::new().with("mine", "exit 1").set("SLUICE_SERVER", "mine").fails(&["scripts/setup"]);
    assert_names(&line, &["SLUICE_SERVER=mine is no Redis or Valkey server"]);
    let line = Machine::new().set("SLUICE_SERVER", "/no/where").fails(&["scripts/setup"]);
    assert_names(&line, &["SLUICE_SERVER=/no/where: no such program"]);
    let mine = Machine::new().with("mine", REDIS_7).without("redis-server").set("SLUICE_SERVER", "mine");
    assert_eq!(mine.works(&["scripts/setup"]), "");
}

#[test]
fn valkey_counts_from_8_and_redis_from_7() {
    for (line, good) in [
        ("Valkey server v=8.0.1 sha=0", true),
        ("Valkey server v=9.1.2 sha=0", true),
        ("Valkey server v=7.2.9 sha=0", false),
        ("Server v=7.2.5 sha=0", false),
        ("Redis server v=7.0.0 sha=0", true),
        ("Redis server v=10.2.0 sha=0", true),
        ("Redis server v=6.2.14 sha=0", false),
        ("something else v=8.0.0", false),
    ] {
        let machine = Machine::new().without("redis-server").with("valkey-server", &format!("echo '{line}'"));
        assert_eq!(machine.bash(&["scripts/setup"]).status.success(), good, "{line}");
    }
}

#[test]
fn a_package_manager_that_fails_is_one_line_with_its_reason() {
    let machine = Machine::new()
        .without("cc")
        .with("apt-get", "echo 'Err:1 x'; echo 'E: Unable to fetch some archives' >&2; exit 100");
    let line = machine.fails(&["scripts/setup"]);
    assert_names(&line, &["could not install gcc libc6-dev (no network?)", "Unable to fetch some archives"]);
}

#[test]
fn what_is_missing_is_installed_and_no_service_comes_with_it() {
    // As Debian has it: redis-tools brings the server's program as redis-check-rdb, and only redis-server has a service.
    let machine = Machine::new().without("redis-server").without("redis-cli").without("cc");
    let bin = machine.path("bin");
    let apt = format!(
        "cd '{}'; echo \"$*\" >>asked; case \"$*\" in *update*) exit 0;; esac; [ $(grep -c . asked) -gt 2 ] || exit 100\n\
         printf '#!/bin/sh\\n{}\\n' >redis-check-rdb; : >redis-cli; : >cc; chmod +x redis-check-rdb redis-cli cc",
        bin.display(),
        REDIS_7.replace('\'', "\"").replace('%', "%%"),
    );
    let machine = machine.with("apt-get", &apt);
    for tool in ["grep", "chmod"] {
        symlink(real(tool), bin.join(tool)).unwrap();
    }
    assert_eq!(machine.works(&["scripts/setup"]), "sluice: installing gcc libc6-dev redis-tools with apt-get\n");
    let asked = std::fs::read_to_string(bin.join("asked")).unwrap();
    assert!(!asked.contains("redis-server"), "{asked}");
    // The second time there is nothing to say, nor to get.
    assert_eq!(machine.works(&["scripts/setup"]), "");
    assert_eq!(std::fs::read_to_string(bin.join("asked")).unwrap(), asked);
}

#[test]
fn valgrind_is_got_where_it_can_be_and_one_line_where_it_cannot() {
    let without = || Machine::new().without("valgrind");
    assert_eq!(without().works(&["scripts/setup"]), "");
    assert_eq!(without().with("id", "echo 1000").with("apt-get", "exit 0").works(&["scripts/setup"]), "");
    let said = without().with("apt-get", "exit 100").works(&["scripts/setup"]);
    assert_names(&said, &["installing valgrind with apt-get", "could not be installed", "bench-check is skipped"]);
    // And the guard says that it was skipped.
    let said = without().with("python3", "").works(&["scripts/bench-check"]);
    assert_names(&said, &["SKIPPED bench-check", "valgrind is missing"]);
}

#[test]
fn client_libraries_that_cannot_be_had_are_a_line_each_and_no_failure() {
    let machine = Machine::new().with("python3", "exit 1").with("node", "exit 1").with("npm", "exit 1");
    let said = machine.works(&["scripts/setup"]);
    assert_names(
        &said,
        &["redis-py could not be installed", "node-redis and ioredis could not be installed", "examples are not run"],
    );
    // With redis-py in the system there is nothing to get, nor without node.
    assert_eq!(Machine::new().with("python3", "exit 0").with("npm", "exit 1").works(&["scripts/setup"]), "");
}

#[test]
fn the_demo_says_what_it_lacks() {
    let machine = Machine::new();
    assert_names(&machine.fails(&["scripts/demo"]), &["Python 3.10"]);
    let out = Machine::new().with("python3", "exit 1").bash(&["scripts/demo"]);
    assert!(!out.status.success());
    assert_names(&text(&out.stdout), &["could not be installed"]);
    assert_names(&text(&out.stderr), &["aiohttp"]);
}

/// A machine for `scripts/test-matrix`, with a server of each of these names in SLUICE_SERVERS that says so of itself. Its cargo
/// fails where a test file and a server meet that `fails` names, as `file server`.
fn matrix(servers: &[(&str, &str)], fails: &str) -> Machine {
    let cargo = format!(
        "file=''; for word; do [ \"$before\" != --test ] || file=$word; before=$word; done\n\
         case \"$* \" in *--no-run*) exit 0;; test*) ;; *) exit 0;; esac\n\
         echo \"..NOT RUN: an example of $file\"\n\
         [ \"$file ${{SLUICE_SERVER##*/}}\" = '{fails}' ] || {{ echo 'test result: ok. 3 passed; 0 failed; 0 ignored'; exit 0; }}\n\
         echo 'the lock was held twice'; echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored'; exit 101"
    );
    let mut machine = Machine::new().with("cargo", &cargo);
    for tool in ["grep", "sed", "sort", "tail", "tr"] {
        symlink(real(tool), machine.path("bin").join(tool)).unwrap();
    }
    std::fs::create_dir_all(machine.path("root/target/release")).unwrap();
    std::fs::write(machine.path("root/target/release/libsluice.so"), "").unwrap();
    let mut named = vec![];
    for (name, line) in servers {
        machine = machine.with(&format!("a-{name}"), &format!("echo '{line}'"));
        named.push(format!("{name}={}", machine.path("bin").join(format!("a-{name}")).display()));
    }
    machine.set("SLUICE_SERVERS", named.join(" ")).set("FILES", "locks waiting")
}

const REDIS_8: &str = "Redis server v=8.6.3 sha=0";
const VALKEY_9: &str = "Valkey server v=9.1.2 sha=0";

#[test]
fn the_matrix_is_a_table_of_what_each_server_really_was() {
    let said = matrix(&[("redis-8.6", REDIS_8), ("valkey-9", VALKEY_9), ("mine", REDIS_8)], "").works(&[
        "scripts/test-matrix",
        "redis-8.6",
        "valkey-9",
        "mine",
    ]);
    let table = said.split("\nserver ").nth(1).unwrap();
    for row in ["redis-8.6 (Redis 8.6)", "valkey-9 (Valkey 9.1)", "mine (Redis 8.6)"] {
        let rows: Vec<_> = table.lines().filter(|line| line.starts_with(row)).collect();
        assert_eq!(rows.len(), 3, "{row}: {said}");
        assert_names(rows[0], &["locks", "3 passed"]);
        assert_names(rows[1], &["waiting", "3 passed"]);
        assert_names(rows[2], &["all", "6 passed"]);
    }
    assert!(!said.contains("not had"), "{said}");
    // What a test file left out is told as well.
    assert_names(&said, &["\nnot tested: valkey-9 waiting: an example of waiting\n"]);
    let said = matrix(&[("mine", REDIS_8)], "").set("WITHOUT", "locks").works(&["scripts/test-matrix", "mine"]);
    assert_names(&said, &["waiting ", "all                        3 passed"]);
}

#[test]
fn a_server_that_is_not_what_it_is_called_is_a_line_and_is_not_run() {
    for (name, line, is) in [
        ("redis-8.6", "Redis server v=8.8.0 sha=0", "redis-8.6 is Redis 8.8"),
        ("redis-8.6", "Redis server v=8.60.0 sha=0", "redis-8.6 is Redis 8.60"),
        ("valkey-9", "Valkey server v=8.1.1 sha=0", "valkey-9 is Valkey 8.1"),
        ("valkey-9", "Redis server v=9.0.0 sha=0", "valkey-9 is Redis 9.0"),
        ("redis-8.6", "nothing of the kind", "redis-8.6 is no Redis or Valkey server"),
    ] {
        let said = matrix(&[(name, line)], "").works(&["scripts/test-matrix", name]);
        assert_names(&said, &[&format!("\nnot had: {is}")]);
        assert!(!said.contains("passed"), "{name}, {line}: {said}");
    }
}

#[test]
fn a_server_that_cannot_be_had_is_a_line_of_the_matrix_and_no_failure() {
    // No apt-get, no Python: none of the known ones can be fetched.
    let said = matrix(&[("redis-9.9", "Redis server v=9.9.0 sha=0")], "").works(&[
        "scripts/test-matrix",
        "redis-8.6",
        "redis-9.9",
        "redis-1",
    ]);
    assert_names(&said, &["\nnot had: redis-8.6 could not be had (no network", "\nnot had: redis-1 is not known"]);
    assert_names(&said, &["redis-9.9 (Redis 9.9)"]);
}

#[test]
fn a_test_that_fails_on_one_server_fails_the_matrix_and_shows_its_words() {
    let out = matrix(&[("redis-8.6", REDIS_8), ("valkey-9", VALKEY_9)], "locks a-valkey-9").bash(&[
        "scripts/test-matrix",
        "redis-8.6",
        "valkey-9",
    ]);
    let said = text(&out.stdout);
    assert!(!out.status.success(), "{said}");
    assert_names(&said, &["the lock was held twice", "2 passed, 1 failed", "valkey-9-locks.log"]);
    // The rest is run all the same.
    assert_eq!(said.matches("3 passed").count(), 2 * 3, "{said}");
}

#[test]
fn the_run_from_a_clean_checkout_ends_with_make_test_and_fails_with_any_part() {
    for (fails, good) in [("", true), ("bench-check", false), ("test-matrix", false), ("test", false)] {
        let make = format!("echo \"made $*\"; [ \"$1\" != '{fails}' ]");
        let machine = Machine::new().with("make", &make);
        symlink(real("dirname"), machine.path("bin/dirname")).unwrap();
        std::fs::create_dir(machine.path("root/.ci")).unwrap();
        std::fs::copy(Path::new(ROOT).join(".ci/run"), machine.path("root/.ci/run")).unwrap();
        let out = machine.bash(&[".ci/run"]);
        let said = text(&out.stdout);
        assert_eq!(out.status.success(), good, "{fails}: {said}");
        let made: Vec<_> = said.lines().filter(|line| line.starts_with("made ")).collect();
        assert_eq!(made.len(), 3, "{fails}: {said}");
        assert_names(made[1], &["made test-matrix", "SERVERS=redis-8.6 valkey-9"]);
        assert!(said.trim_end().lines().last().unwrap().starts_with("made test "), "{fails}: {said}");
    }
}
