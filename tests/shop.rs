//! examples/shop: its own tests pass against a real server, the sale in small among them.
//!
//! `make test` gets what they need where it can. Where that is absent they are not run, and a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod rig;

use rig::{SOON, Server, in_path, ms, target_dir, wait_until};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const LONGEST: Duration = Duration::from_secs(400);

/// A Python that has what the shop needs: the system's, or the one that `make test` made.
fn python() -> Option<PathBuf> {
    let made = target_dir().join("clients/shop/bin/python");
    let has_all = |python: &PathBuf| {
        let out = Command::new(python).args(["-c", "import aiohttp, pytest, redis"]).output();
        out.is_ok_and(|out| out.status.success())
    };
    [in_path("python3"), Some(made)].into_iter().flatten().find(has_all)
}

#[test]
fn the_shop_passes_its_tests() {
    let Some(python) = python() else {
        // Past the test harness, which keeps what a test prints to itself.
        let _ =
            writeln!(std::io::stderr(), "NOT RUN: examples/shop: aiohttp, pytest and redis for Python are not there");
        return;
    };
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut pytest = Command::new(python);
    pytest.args(["-B", "-m", "pytest", "-q", "-rPs", "-p", "no:cacheprovider", "--color=no", "--basetemp"]);
    pytest.arg(folder.path().join("tmp")).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/shop"));
    pytest.env("SHOP_REDIS_PORT", server.port().to_string()).env("SHOP_REDIS_MAY_STOP", "1");
    pytest.stdout(File::create(&log).unwrap()).stderr(File::options().append(true).open(&log).unwrap());
    let mut child = pytest.spawn().unwrap();

    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if begun.elapsed() > LONGEST {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(ms(50));
    };
    let said = String::from_utf8_lossy(&std::fs::read(&log).unwrap()).into_owned();
    assert!(status.is_some_and(|status| status.success()), "{status:?} after {:?}\n{said}", begun.elapsed());
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains(" passed") && !last.contains("skipped"), "all of them, and none left out:\n{said}");
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
    // The last workers were killed.
    wait_until(SOON, "nobody is left", || server.blocked_clients() == 0);
}
