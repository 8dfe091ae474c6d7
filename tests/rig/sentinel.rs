//! Sentinels, and a client that asks them whom to talk to.

use super::server::{free_port, server_program, tail};
use super::spawn::{command, spawn};
use super::{Client, SOON, Server, Value, ValueExt, args, ms, wait_for};
use std::fs::OpenOptions;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// What the sentinels call the primary.
pub const NAME: &str = "shop";

/// One sentinel. It is killed when this value goes.
pub struct Sentinel {
    port: u16,
    dir: tempfile::TempDir,
    child: Child,
}

impl Sentinel {
    /// A sentinel that watches a primary, and takes it for dead when it has been silent for `down_after`.
    #[track_caller]
    pub fn start(primary: &Server, quorum: usize, down_after: Duration) -> Self {
        for _ in 0..10 {
            if let Some(sentinel) = Self::try_start(primary, quorum, down_after) {
                return sentinel;
            }
        }
        panic!("ten ports in a row were taken by others");
    }

    fn try_start(primary: &Server, quorum: usize, down_after: Duration) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("sluice-sentinel-").tempdir().expect("a folder for the sentinel");
        let (port, down_after) = (free_port(), down_after.as_millis());
        let file = dir.path().join("sentinel.conf");
        let lines = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {NAME} 127.0.0.1 {} {quorum}\n\
             sentinel down-after-milliseconds {NAME} {down_after}\nsentinel failover-timeout {NAME} 10000\n\
             sentinel parallel-syncs {NAME} 5\n",
            dir.path().display(),
            primary.port()
        );
        std::fs::write(&file, lines).expect("a configuration file");
        let log = OpenOptions::new().create(true).append(true).open(dir.path().join("log")).expect("a log file");
        let mut run = command(&server_program());
        run.arg(&file).arg("--sentinel").current_dir(dir.path()).stdin(Stdio::null());
        run.stdout(log.try_clone().expect("a log file")).stderr(log);
        let child = spawn(run).expect("the sentinel starts");
        let mut sentinel = Self { port, dir, child };
        let deadline = Instant::now() + SOON;
        loop {
            let (log, over) = (sentinel.log(), sentinel.child.try_wait().expect("its state").is_some());
            if !over && log.contains("+monitor") && Client::connect(port).is_ok() {
                return Some(sentinel);
            }
            if log.contains("Address already in use") {
                return None;
            }
            assert!(!over && Instant::now() < deadline, "the sentinel did not start:\n{}", tail(&log));
            std::thread::sleep(ms(2));
        }
    }

    /// All it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// One command.
    #[track_caller]
    pub fn call<W: AsRef<[u8]>>(&self, words: &[W]) -> Value {
        Client::connect(self.port).expect("the sentinel accepts a connection").call(words)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("a sentinel's log:\n{}", tail(&self.log()));
        }
    }
}

/// Three sentinels of which two must agree, when each knows the others and all replicas.
#[track_caller]
pub fn three(primary: &Server, replicas: usize, down_after: Duration) -> Vec<Sentinel> {
    let sentinels: Vec<Sentinel> = (0..3).map(|_| Sentinel::start(primary, 2, down_after)).collect();
    for sentinel in &sentinels {
        let look = || {
            let known = sentinel.call(&["SENTINEL", "MASTER", NAME]).map();
            let number = |field: &str| known[field].text().parse::<usize>().unwrap_or(0);
            (number("num-other-sentinels"), number("num-slaves"))
        };
        wait_for(ms(40_000), "the sentinels know each other and the replicas", look, |seen| *seen == (2, replicas));
    }
    sentinels
}

/// Whom a sentinel takes for the primary: its port.
pub fn primary_by(port: u16) -> Option<u16> {
    let mut sentinel = Client::connect(port).ok()?;
    sentinel.send(&args!["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
    match sentinel.read(ms(500)) {
        Ok(Value::Array(words)) => words.get(1)?.text().parse().ok(),
        _ => None,
    }
}

/// A client that follows the sentinels, as libraries do: it asks them for the primary, asks that for its role, and after an
/// error, an end of the connection or a silence begins again.
pub struct Follower {
    sentinels: Vec<u16>,
    /// How long a reply may take before the connection is given up.
    pub patience: Duration,
    at: Option<(u16, Client)>,
}

impl Follower {
    /// A client that has not connected yet.
    pub fn new(sentinels: &[Sentinel]) -> Self {
        Self { sentinels: sentinels.iter().map(Sentinel::port).collect(), patience: ms(1000), at: None }
    }

    /// Connects to the primary, if the sentinels know one who says the same of itself.
    fn connect(&mut self) -> Option<&mut (u16, Client)> {
        if self.at.is_none() {
            for sentinel in &self.sentinels {
                let Some(port) = primary_by(*sentinel) else { continue };
                let Ok(mut client) = Client::connect(port) else { continue };
                if client.send_if_open(&args!["ROLE"])
                    && client.read(ms(500)).is_ok_and(|role| {
                        matches!(&role, Value::Array(parts) if parts.first().is_some_and(|name| name.text() == "master"))
                    })
                {
                    self.at = Some((port, client));
                    break;
                }
            }
        }
        self.at.as_mut()
    }

    /// One try: the reply and the port it came from. `None`: no primary was found, or it did not answer, and the call may
    /// have been done or not.
    pub fn try_call(&mut self, words: &[Vec<u8>]) -> Option<(u16, Value)> {
        let patience = self.patience;
        let (port, client) = self.connect()?;
        let port = *port;
        let reply = if client.send_if_open(words) { client.read(patience).ok() } else { None };
        let lost =
            |reply: &Value| ["READONLY", "LOADING", "MASTERDOWN", "UNBLOCKED"].iter().any(|code| reply.is_error(code));
        match reply {
            Some(reply) if !lost(&reply) => Some((port, reply)),
            _ => {
                self.at = None;
                None
            }
        }
    }
}
