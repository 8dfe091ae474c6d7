//! What the tests of the client share: a server's URL, what it counts, and a way to it that can be disturbed.
#![allow(dead_code, missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

use crate::rig::noise::{Noise, net};
use crate::rig::{SOON, Server, Value, ValueExt, args};
use sluice_client::{Error, aio, blocking};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}/", server.port())
}

/// So long may an answer take where the machine is late; what is given up is given back within as much.
const ANSWER: Duration = Duration::from_secs(5);

/// Asks a server that may be late because the machine is.
pub fn open(server: &Server) -> blocking::Sluice {
    blocking::Sluice::open(&url(server)).unwrap().response_timeout(ANSWER)
}

/// The same with tokio.
pub fn open_aio(server: &Server) -> aio::Sluice {
    aio::Sluice::open(&url(server)).unwrap().response_timeout(ANSWER)
}

/// Tries once more where a call with a short timeout met a machine that stood still. What such a call was granted is given back
/// by the client, in its own time.
#[track_caller]
pub fn patiently<T>(mut call: impl FnMut() -> Result<Option<T>, Error>) -> T {
    let (deadline, mut was_late) = (Instant::now() + SOON, false);
    loop {
        match call() {
            Ok(Some(got)) => return got,
            Ok(None) => assert!(was_late, "the lock is free"),
            Err(error) if is_late(&error) => was_late = true,
            Err(error) => panic!("{error:?}"),
        }
        assert!(Instant::now() < deadline, "not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether no answer came in time, or no connection.
pub fn is_late(error: &Error) -> bool {
    match error {
        Error::Timeout => true,
        Error::Connection(error) => error.is_timeout(),
        _ => false,
    }
}

/// A time that is measured without what the machine took away meanwhile.
pub struct Watch {
    from: Instant,
    noise: Noise,
}

impl Watch {
    /// Begins now. It looks at this process alone, so that a server which a test stops is not taken for a slow machine.
    pub fn start() -> Self {
        Self { noise: Noise::of_this_process(), from: Instant::now() }
    }

    /// The same of this process and of a server that no test stops meanwhile.
    pub fn of(server: &Server) -> Self {
        Self { noise: Noise::of(server), from: Instant::now() }
    }

    /// How long it was until now.
    pub fn net(self) -> Duration {
        self.net_until(Instant::now())
    }

    /// How long it was until then.
    pub fn net_until(self, to: Instant) -> Duration {
        net(self.from, to, &self.noise.lost())
    }

    /// The longest time without a break for which the machine stood still. Where that is a good part of a ttl, a lock may be lost
    /// that no client could have kept.
    pub fn longest_stall(self) -> Duration {
        self.noise.lost().iter().map(|(from, to)| *to - *from).max().unwrap_or_default()
    }
}

/// How often the server carried a command out.
pub fn calls(server: &Server, command: &str) -> i64 {
    let stats = server.info("commandstats");
    let name = format!("cmdstat_{command}");
    let line = stats.iter().find(|(field, _)| field.eq_ignore_ascii_case(&name));
    line.and_then(|(_, line)| line.strip_prefix("calls=")?.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// One number of LOCK.INFO or SEM.INFO: `held`, `waiters`, `ttl`.
pub fn info(server: &Server, family: &str, key: &str, field: &str) -> i64 {
    server.call(&args![format!("{family}.INFO"), key]).map()[field].int()
}

pub fn held(server: &Server, key: &str) -> i64 {
    info(server, "LOCK", key, "held")
}

pub fn waiters(server: &Server, key: &str) -> i64 {
    info(server, "LOCK", key, "waiters")
}

/// The tokens that wait, in their order.
pub fn queue(server: &Server, key: &str) -> Vec<String> {
    let queue: Value = server.call(&args!["LOCK.INFO", key]).map()["queue"].clone();
    queue.array().iter().map(|waiter| waiter.map()["token"].text()).collect()
}

/// Stands between a client and a server, and can keep the replies to itself.
pub struct Proxy {
    port: u16,
    swallows: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Proxy {
    pub fn to(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy =
            Self { port: listener.local_addr().unwrap().port(), swallows: Arc::default(), stop: Arc::default() };
        let (target, swallows, stop) = (server.port(), Arc::clone(&proxy.swallows), Arc::clone(&proxy.stop));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let (up, down) = ((client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client));
                std::thread::spawn(move || pump(up.0, up.1, None));
                let swallows = Arc::clone(&swallows);
                std::thread::spawn(move || pump(down.0, down.1, Some(swallows)));
            }
        });
        proxy
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Whether replies are lost from now on. Connections stay open.
    pub fn swallow(&self, yes: bool) {
        self.swallows.store(yes, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, swallows: Option<Arc<AtomicBool>>) {
    let _ = to.set_nodelay(true);
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        if swallows.as_ref().is_some_and(|yes| yes.load(Ordering::SeqCst)) {
            continue;
        }
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// What a busy machine may add to any time in these tests.
pub const SLACK: Duration = Duration::from_millis(1500);
