//! Links that break, replicas that stall, files that are cut, servers that are killed: what is left is what was acknowledged, on
//! servers with the module and without.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod rig;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rig::line::{line_up, not_here, release, words};
use rig::noise::unix_ms;
use rig::{Client, SOON, Server, Value, ValueExt, args, dump_all, ms, replica, wait_for_sync, wait_until};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

fn long() -> bool {
    std::env::var_os("SLUICE_LONG").is_some()
}

fn seeded() -> StdRng {
    let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("SEED={seed} replays it");
    StdRng::seed_from_u64(seed)
}

/// Locks and semaphores of every kind, and limiters, in use: some leases are over at once, and some clients wait.
struct Traffic {
    random: StdRng,
    client: Client,
    waiting: Vec<Client>,
}

impl Traffic {
    fn on(server: &Server) -> Self {
        let waiting = (0..6).map(|_| server.client()).collect();
        Self { random: seeded(), client: server.client(), waiting }
    }

    fn one(random: &mut StdRng) -> Vec<Vec<u8>> {
        let (n, token) = (random.random_range(0..8), random.random_range(0..4));
        let ttl = ["1ms", "15ms", "200m", "270m", "270m"][random.random_range(0..5)];
        let mode = ["", "REENTRANT", "SHARED", "SHARED"][random.random_range(0..4)];
        let cost = random.random_range(0..4);
        words(&match random.random_range(0..20) {
            0..5 => format!("LOCK.ACQUIRE lock{n} t{token} {ttl} {mode}"),
            5 => format!("LOCK.RENEW lock{n} t{token} {ttl}"),
            6..8 => format!("LOCK.RELEASE lock{n} t{token}"),
            8..10 => format!("SEM.ACQUIRE sem{n} t{token} {ttl} {}", random.random_range(1..4)),
            10 => format!("SEM.RENEW sem{n} t{token} {ttl}"),
            11 => format!("SEM.RELEASE sem{n} t{token}"),
            12 => format!("PEXPIRE lock{n} 5"),
            13 => format!("DEL sem{n}"),
            14 => format!("RL.FIXED fixed{n} 100 20ms COST {cost}"),
            15 => format!("RL.FIXED fixed1h{n} 1000 1h COST {cost}"),
            16 => format!("RL.SLIDING sliding{n} 50 20ms COST {cost}"),
            17 => format!("RL.SLIDING sliding1h{n} 1000 1h COST {cost}"),
            18 => format!("RL.BUCKET bucket{n} 50 50 20ms COST {cost}"),
            _ => format!("RL.BUCKET bucket1h{n} 1000 1 1h COST {cost}"),
        })
    }

    /// Some more of it; all is answered when it returns.
    #[track_caller]
    fn round(&mut self) {
        let batch: Vec<_> = (0..40).map(|_| Self::one(&mut self.random)).collect();
        for (at, waiting) in self.waiting.iter_mut().enumerate() {
            // Those who were answered ask again; patience is short.
            let (n, mode) =
                (self.random.random_range(0..8), ["", "REENTRANT", "SHARED"][self.random.random_range(0..3)]);
            waiting.send(&words(&match at % 2 {
                0 => format!("LOCK.ACQUIRE lock{n} w{at} 10ms {mode} BLOCK 10ms"),
                _ => format!("SEM.ACQUIRE sem{n} w{at} 10ms 2 BLOCK 10ms"),
            }));
        }
        for (reply, command) in self.client.pipeline(&batch).iter().zip(&batch) {
            assert!(reply.error().is_none_or(|error| error.starts_with("WRONGTYPE")), "{command:?}: {reply:?}");
        }
        for waiting in &mut self.waiting {
            let reply = waiting.read(SOON).expect("one reply each");
            // Who shares it with others and asks for all of it would wait for itself.
            assert!(reply.error().is_none() || reply.is_error("DEADLOCK "), "{reply:?}");
        }
    }

    /// Rounds for that long, and as many as it takes to have keys of every kind.
    #[track_caller]
    fn rounds(&mut self, time: Duration) {
        let until = Instant::now() + time;
        (0..4).for_each(|_| self.round());
        while Instant::now() < until {
            self.round();
        }
    }

    /// Whatever is short has ended, and replicas have been told of it.
    #[track_caller]
    fn settle(&mut self, server: &Server) {
        let over = server.now_ms() + 120;
        wait_until(SOON, "what is short has ended", || server.now_ms() > over);
        for key in self.client.call(&["KEYS", "*"]).array() {
            self.client.call(&args!["EXISTS", key.bytes()]);
        }
    }
}

/// Every key's DUMP and end: the same on two servers if they hold the same in the same form.
fn dumps(server: &Server) -> BTreeMap<String, (String, i64)> {
    let mut client = server.client();
    let mut all = BTreeMap::new();
    for key in client.call(&["KEYS", "*"]).array().iter().map(ValueExt::bytes) {
        let dump = client.call(&args!["DUMP", &key]);
        if !dump.is_nil() {
            let at = client.call(&args!["PEXPIRETIME", &key]).int();
            all.insert(key.escape_ascii().to_string(), (dump.bytes().escape_ascii().to_string(), at));
        }
    }
    all
}

#[track_caller]
fn same(primary: &Server, replicas: &[&Server]) {
    let here = dumps(primary);
    assert!(here.len() > 10, "{here:?}");
    for replica in replicas {
        wait_for_sync(primary, replica);
        let there = dumps(replica);
        for key in here.keys().chain(there.keys()) {
            assert_eq!(there.get(key), here.get(key), "{key}");
        }
    }
    assert_eq!(primary.info_int("sluice", "sluice_internal_errors"), 0);
}

#[test]
fn a_link_that_is_cut_again_and_again_leaves_a_stock_replica_equal() {
    let primary = Server::builder().args(&["--repl-backlog-size", "64mb"]).start();
    let (stock, with_module) = (replica(&primary, false), replica(&primary, true));
    let mut traffic = Traffic::on(&primary);
    let full = primary.info_int("stats", "sync_full");
    let cuts = if long() { 60 } else { 8 };
    for cut in 0..cuts {
        traffic.rounds(ms(20));
        primary.call(&["CLIENT", "KILL", "TYPE", if cut % 2 == 0 { "replica" } else { "slave" }]);
        traffic.rounds(ms(20));
        wait_for_sync(&primary, &stock);
        wait_for_sync(&primary, &with_module);
    }
    traffic.settle(&primary);
    same(&primary, &[&stock, &with_module]);
    let info = primary.info("stats");
    assert_eq!(info["sync_full"], full.to_string(), "only what was missing was sent");
    assert!(info["sync_partial_ok"].parse::<i64>().unwrap() >= cuts, "{info:?}");
}

#[test]
fn a_replica_that_stalls_for_three_seconds_in_full_traffic_catches_up_to_the_same() {
    let primary = Server::builder().args(&["--appendonly", "yes"]).start();
    let stock = replica(&primary, false);
    let mut traffic = Traffic::on(&primary);
    traffic.rounds(ms(50));
    stock.stop();
    // What is granted, ends, is handed over and counted meanwhile has its absolute time.
    let until = unix_ms() + 3000.0;
    while unix_ms() < until {
        traffic.rounds(ms(40));
        wait_a_little(ms(100));
    }
    stock.cont();
    traffic.settle(&primary);
    same(&primary, &[&stock]);
}

/// Lets time pass in which nothing is expected.
fn wait_a_little(time: Duration) {
    std::thread::sleep(time);
}

#[test]
fn a_replica_that_is_sent_everything_anew_in_full_traffic_is_equal_however_it_is_sent() {
    // By memory or by file, on either side; and over two channels, where the server can.
    let ways: [(&str, &[&str], &[&str]); 4] = [
        ("a file on both sides", &["--repl-diskless-sync", "no"], &["--repl-diskless-load", "disabled"]),
        ("no file on the primary", &["--repl-diskless-sync", "yes"], &["--repl-diskless-load", "disabled"]),
        ("no file at all", &["--repl-diskless-sync", "yes"], &["--repl-diskless-load", "swapdb"]),
        ("two channels", &["--repl-diskless-sync", "yes"], &["--repl-diskless-load", "disabled"]),
    ];
    for (what, of_primary, of_replica) in ways {
        // Nothing is left to go on from when the link comes back.
        let primary = Server::builder().args(&["--repl-backlog-size", "16kb"]).args(of_primary).start();
        let follow = |module| Server::builder().module(module).args(of_replica).replica_of(&primary).start();
        let followers = [follow(false), follow(true)];
        if what == "two channels" {
            let name = ["repl-rdb-channel", "dual-channel-replication-enabled"];
            let on =
                |server: &Server| name.iter().any(|name| server.call(&["CONFIG", "SET", name, "yes"]) == Value::Okay);
            if !followers.iter().all(on) || !on(&primary) {
                not_here("a sync over two channels", "this server has none");
                continue;
            }
        }
        let mut traffic = Traffic::on(&primary);
        for follower in &followers {
            wait_for_sync(&primary, follower);
        }
        for turn in 0..2 {
            let full = primary.info_int("stats", "sync_full");
            let backlog = "x".repeat(40_000);
            primary.client().pipeline(&[
                args!["MULTI"],
                args!["CLIENT", "KILL", "TYPE", "replica"],
                args!["SET", "backlog", &backlog],
                args!["EXEC"],
            ]);
            traffic.rounds(ms(100));
            wait_until(SOON, "both are sent everything", || primary.info_int("stats", "sync_full") >= full + 2);
            traffic.rounds(ms(50));
            traffic.settle(&primary);
            same(&primary, &followers.each_ref());
            println!("{what}, turn {turn}: {} full syncs", primary.info_int("stats", "sync_full"));
        }
    }
}

fn rewritten(server: &Server) {
    wait_until(SOON, "the AOF is rewritten", || {
        let info = server.info("persistence");
        info["aof_rewrite_in_progress"] == "0"
            && info["aof_rewrite_scheduled"] == "0"
            && info["aof_last_bgrewrite_status"] == "ok"
    });
}

#[test]
fn rewriting_the_aof_and_saving_in_full_traffic_leave_replica_aof_and_rdb_equal() {
    let dir = tempfile::tempdir().unwrap();
    let aof = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut primary = Server::builder().dir(dir.path()).args(&aof).start();
    let stock = replica(&primary, false);
    let mut traffic = Traffic::on(&primary);
    for _ in 0..if long() { 30 } else { 4 } {
        traffic.rounds(ms(40));
        primary.call(&["BGREWRITEAOF"]);
        traffic.rounds(ms(40));
        rewritten(&primary);
        primary.call(&["CLIENT", "KILL", "TYPE", "replica"]);
    }
    traffic.rounds(ms(40));
    traffic.settle(&primary);
    same(&primary, &[&stock]);
    // What ends soon may end while the others start.
    let lasting = |server: &Server| -> BTreeMap<_, _> {
        let mut all = dump_all(server);
        all.retain(|_, entry| entry.expires_at < 0 || entry.expires_at as f64 > unix_ms() + 30_000.0);
        all
    };
    assert_eq!(primary.call(&["SAVE"]), Value::Okay);
    let before = lasting(&primary);
    assert!(before.len() > 10);
    primary.kill9();
    let from_aof = Server::builder().module(false).dir(dir.path()).args(&aof).start();
    assert_eq!(lasting(&from_aof), before, "from the AOF");
    let rdb = tempfile::tempdir().unwrap();
    std::fs::copy(dir.path().join("dump.rdb"), rdb.path().join("dump.rdb")).unwrap();
    let from_rdb = Server::builder().module(false).dir(rdb.path()).start();
    assert_eq!(lasting(&from_rdb), before, "from the RDB");
}

/// One key of every kind; the bytes are such that a decoder may stumble.
#[track_caller]
fn every_kind(client: &mut Client) -> i64 {
    let mut fence = 0;
    for command in [
        args!["LOCK.ACQUIRE", "x", b"t\0\xff\r\n", "270m"],
        args!["LOCK.ACQUIRE", "r", "tA", "270m", "REENTRANT"],
        args!["LOCK.ACQUIRE", "r", "tA", "271m", "REENTRANT"],
        args!["LOCK.ACQUIRE", "s", "tA", "270m", "SHARED"],
        args!["LOCK.ACQUIRE", "s", "tB", "271m", "SHARED"],
        args!["SEM.ACQUIRE", "p", "tA", "270m", 3],
        args!["SEM.ACQUIRE", "p", "tB", "271m", 3],
        args!["RL.FIXED", "f", 10, "270m", "COST", 3],
        args!["RL.SLIDING", "l", 10, "270m", "COST", 3],
        args!["RL.BUCKET", "b", 10, 1, "270m", "COST", 3],
    ] {
        match client.call(&command) {
            Value::Int(new) => {
                assert!(new > fence, "{command:?}");
                fence = new;
            }
            reply => assert_eq!(reply.ints()[..3], [1, 10, 7], "{command:?}"),
        }
    }
    fence
}

/// The server's program on a folder of files, without a port: until it is ready, or has ended.
fn loads(dir: &Path, options: &[&str]) -> (bool, String) {
    let log = std::fs::File::create(dir.join("log")).unwrap();
    let mut run = std::process::Command::new(rig::server_program());
    run.current_dir(dir).args(["--port", "0", "--save", "", "--unixsocket", "s"]).args(options);
    run.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let mut child: Child = run.spawn().unwrap();
    let read = || String::from_utf8_lossy(&std::fs::read(dir.join("log")).unwrap()).into_owned();
    let deadline = Instant::now() + SOON;
    loop {
        let over = child.try_wait().unwrap();
        let log = read();
        if over.is_some() || log.contains("eady to accept connections") {
            let _ = child.kill();
            let _ = child.wait();
            // A crash has a signal, or a report.
            let clean = over.is_none_or(|status| status.code().is_some_and(|code| code < 128));
            let crashed = ["crashed by signal", "ASSERTION FAILED", "BUG REPORT", "internal error"];
            assert!(clean && !crashed.iter().any(|word| log.contains(word)), "{over:?}\n{log}");
            return (over.is_none(), read());
        }
        assert!(Instant::now() < deadline, "neither loads nor ends:\n{log}");
        std::thread::sleep(ms(2));
    }
}

/// Does `work` for every number below `n`, on two threads, each with a folder of its own.
fn by_two(n: usize, work: impl Fn(usize, &Path) + Sync) {
    let (next, work) = (AtomicUsize::new(0), &work);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let next = &next;
            scope.spawn(move || {
                let dir = tempfile::tempdir().unwrap();
                loop {
                    let at = next.fetch_add(1, SeqCst);
                    if at >= n {
                        return;
                    }
                    work(at, dir.path());
                }
            });
        }
    });
}

#[test]
fn an_rdb_cut_at_any_byte_is_refused_or_loaded_and_never_crashes() {
    let mut server = Server::start();
    every_kind(&mut server.client());
    server.shutdown_save();
    let whole = std::fs::read(server.dir().join("dump.rdb")).unwrap();
    let (loaded, begun) = (AtomicUsize::new(0), Instant::now());
    // The module is there in every other run: what it makes of a file that is cut is what the server makes of it.
    let module = rig::module_file().display().to_string();
    by_two(whole.len() + 1, |len, dir| {
        std::fs::write(dir.join("dump.rdb"), &whole[..len]).unwrap();
        let options: &[&str] = if len % 2 == 0 { &["--loadmodule", &module] } else { &[] };
        let (ready, log) = loads(dir, options);
        if ready {
            loaded.fetch_add(1, SeqCst);
            assert!(len == whole.len() || len == 0, "a file cut at {len} of {} was loaded:\n{log}", whole.len());
        }
    });
    println!("{} cuts of an RDB, {loaded:?} loaded, {:?}", whole.len(), begun.elapsed());
    assert!(loaded.into_inner() >= 1);
}

/// The AOF's file that is being written to.
fn last_aof(dir: &Path) -> PathBuf {
    let folder = std::fs::read_dir(dir.join("appendonlydir")).unwrap().flatten().map(|entry| entry.path());
    folder.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max().unwrap()
}

fn copy_dir(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn an_aof_cut_anywhere_holds_whole_effects_only() {
    let mut server = Server::builder().args(&["--appendonly", "yes", "--appendfsync", "always"]).start();
    let mut client = server.client();
    every_kind(&mut client);
    // Conversions and hand-overs, whose effects are of several commands.
    for line in [
        "LOCK.ACQUIRE up tA 270m SHARED",
        "LOCK.ACQUIRE up tA 270m",
        "LOCK.ACQUIRE up tA 270m REENTRANT",
        "LOCK.RELEASE up tA",
        "LOCK.ACQUIRE up tA 270m SHARED",
        "LOCK.ACQUIRE up tB 271m SHARED",
    ] {
        assert_ne!(client.call(&words(line)).int(), 0, "{line}");
    }
    let mut b = line_up(&server, "up", "tC", "272m", "0");
    assert_eq!((release(&server, "up", "tA"), release(&server, "up", "tB")), (1, 1));
    b.fence();
    server.kill9();
    let folder = server.dir().join("appendonlydir");
    let file = last_aof(server.dir());
    let name = file.file_name().unwrap().to_owned();
    let whole = std::fs::read(&file).unwrap();
    let cuts: Vec<usize> = if long() {
        (0..=whole.len()).collect()
    } else {
        let mut random = seeded();
        (0..24).map(|_| random.random_range(0..whole.len())).chain([whole.len()]).collect()
    };
    by_two(cuts.len(), |at, dir| {
        copy_dir(&folder, &dir.join("appendonlydir"));
        std::fs::write(dir.join("appendonlydir").join(&name), &whole[..cuts[at]]).unwrap();
        let server = Server::builder().dir(dir).args(&["--appendonly", "yes"]).start();
        let mut client = server.client();
        // Whatever it is up to there, every key is one that the commands know, with its end.
        for key in ["x", "r", "s", "up"] {
            let info = client.call(&["LOCK.INFO", key]).map();
            assert!(["free", "exclusive", "reentrant", "shared"].contains(&info["mode"].text().as_str()), "{info:?}");
            assert!(info["ttl"].int() >= 0, "cut at {}: {key} without an end: {info:?}", cuts[at]);
        }
        assert!(client.call(&["SEM.INFO", "p"]).map()["ttl"].int() >= 0);
        for peek in ["RL.FIXED f 10 270m PEEK", "RL.SLIDING l 10 270m PEEK", "RL.BUCKET b 10 1 270m PEEK"] {
            assert!([7, 10].contains(&client.call(&words(peek)).ints()[2]), "cut at {}: {peek}", cuts[at]);
        }
        assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
    });
}

/// What a server has acknowledged: `(key, token, fence)` of grants, and units of limits by key.
#[derive(Default)]
struct Acknowledged {
    grants: Mutex<Vec<(String, String, i64)>>,
    released: Mutex<Vec<String>>,
    units: [AtomicUsize; 3],
    asked: [AtomicUsize; 3],
}

const LIMITS: [(&str, &str); 3] =
    [("f", "RL.FIXED f 1000000 1h"), ("l", "RL.SLIDING l 1000000 1h"), ("b", "RL.BUCKET b 1000000 1 1h")];

impl Acknowledged {
    /// Uses a server in every way until it answers no more. `safe` asks whether what was granted is to be counted.
    fn use_up(&self, server: &Server, n: usize, begun: &AtomicBool, safe: impl Fn(&mut Client) -> bool) {
        let (mut one, mut two) = (server.client(), server.client());
        let call = |client: &mut Client, command: Vec<Vec<u8>>| -> Option<Value> {
            if client.send_if_open(&command) { client.read(SOON).ok() } else { None }
        };
        let granted = |client: &mut Client, command: Vec<Vec<u8>>| match call(client, command) {
            Some(Value::Int(fence)) if fence > 0 => Some(fence),
            Some(other) => panic!("not granted: {other:?}"),
            None => None,
        };
        let mut go = || -> Option<()> {
            for turn in 0.. {
                let key = format!("k{n}:{turn}");
                let take = |name: &str, ending: &str| words(&format!("{name} {key} a 1h {ending}"));
                let fence = match turn % 4 {
                    0 => granted(&mut one, take("LOCK.ACQUIRE", ""))?,
                    1 => granted(&mut one, take("LOCK.ACQUIRE", "REENTRANT"))?,
                    2 => granted(&mut one, take("LOCK.ACQUIRE", "SHARED"))?,
                    _ => granted(&mut one, take("SEM.ACQUIRE", "1"))?,
                };
                if safe(&mut one) {
                    self.grants.lock().unwrap().push((key.clone(), "a".into(), fence));
                }
                if turn % 4 == 0 && turn % 3 == 0 {
                    // It goes on to one who waits: B's pending reply is the grant.
                    if !two.send_if_open(&words(&format!("LOCK.ACQUIRE {key} b 1h BLOCK 0"))) {
                        return None;
                    }
                    self.grants.lock().unwrap().retain(|(of, ..)| *of != key);
                    call(&mut one, words(&format!("LOCK.RELEASE {key} a")))?;
                    let Ok(Value::Int(fence)) = two.read(SOON) else { return None };
                    if safe(&mut two) {
                        self.grants.lock().unwrap().push((key.clone(), "b".into(), fence));
                    }
                } else if turn % 16 == 4 {
                    self.grants.lock().unwrap().retain(|(of, ..)| *of != key);
                    call(&mut one, words(&format!("LOCK.RELEASE {key} a")))?;
                    if safe(&mut one) {
                        self.released.lock().unwrap().push(key);
                    }
                }
                for (at, (_, limit)) in LIMITS.iter().enumerate() {
                    self.asked[at].fetch_add(1, SeqCst);
                    let reply = call(&mut one, words(limit))?;
                    if safe(&mut one) {
                        self.units[at].fetch_add(usize::try_from(reply.ints()[0]).unwrap(), SeqCst);
                    }
                }
                if turn > 20 {
                    begun.store(true, SeqCst);
                }
            }
            None
        };
        let _ = go();
    }

    /// How many grants there are, and how many of them the server does not have, of grants and of units.
    fn lost(&self, server: &Server) -> (usize, usize, usize) {
        let grants = self.grants.lock().unwrap();
        let mut client = server.client();
        let holds = |key: &str, token: &str, client: &mut Client| {
            let mut info = client.call(&["LOCK.INFO", key]);
            if info.is_error("WRONGTYPE") {
                info = client.call(&["SEM.INFO", key]);
            }
            info.map()["holders"].array().iter().any(|holder| holder.map()["token"].text() == token)
        };
        let lost = grants.iter().filter(|(key, token, _)| !holds(key, token, &mut client)).count();
        let back = self.released.lock().unwrap().iter().filter(|key| client.call(&["EXISTS", key]).int() != 0).count();
        let mut units = 0;
        for (at, (_, limit)) in LIMITS.iter().enumerate() {
            let used = 1_000_000 - client.call(&words(&format!("{limit} PEEK"))).ints()[2];
            let (had, asked) = (self.units[at].load(SeqCst), self.asked[at].load(SeqCst));
            let used = usize::try_from(used).unwrap();
            assert!(used <= asked, "{limit}: {used} used, {asked} asked for");
            units += had.saturating_sub(used);
        }
        (grants.len(), lost + back, units)
    }

    fn last_fence(&self) -> i64 {
        self.grants.lock().unwrap().iter().map(|(.., fence)| *fence).max().unwrap_or(0)
    }
}

#[test]
fn kill_9_with_appendfsync_always_loses_no_acknowledged_grant_and_no_unit() {
    let mut server = Server::builder().args(&["--appendonly", "yes", "--appendfsync", "always"]).start();
    let mut last = 0;
    for round in 0..if long() { 20 } else { 4 } {
        server.call(&["FLUSHALL"]);
        let (seen, begun) = (Acknowledged::default(), [const { AtomicBool::new(false) }; 3]);
        let pid = server.pid();
        std::thread::scope(|scope| {
            let (seen, server) = (&seen, &server);
            for (n, begun) in begun.iter().enumerate() {
                scope.spawn(move || seen.use_up(server, n, begun, |_| true));
            }
            // Each step waits for the disk.
            wait_until(3 * SOON, "all are at it", || begun.iter().all(|begun| begun.load(SeqCst)));
            if round % 2 == 1 {
                server.call(&["BGREWRITEAOF"]);
            }
            let killed = std::process::Command::new("sh").args(["-c", "kill -9 $0", &pid.to_string()]).status();
            assert!(killed.unwrap().success());
        });
        server.restart();
        let (grants, lost, units) = seen.lost(&server);
        println!("round {round}: {grants} grants acknowledged, {lost} lost; {units} units lost");
        assert!(grants > 30);
        assert_eq!((lost, units), (0, 0));
        last = last.max(seen.last_fence());
        let next = server.call(&["LOCK.ACQUIRE", "after", "t", "1h"]).int();
        assert!(next > last, "the fence grows: {last}, then {next}");
    }
}

#[test]
fn a_promoted_replica_has_every_grant_and_unit_that_wait_has_counted_whatever_had_happened_to_the_link() {
    let mut primary = Server::builder().args(&["--repl-backlog-size", "16mb"]).start();
    let next = replica(&primary, true);
    let (seen, begun) = (Acknowledged::default(), [const { AtomicBool::new(false) }; 2]);
    let pid = primary.pid();
    std::thread::scope(|scope| {
        let (seen, primary) = (&seen, &primary);
        let waited = |client: &mut Client| {
            client.send_if_open(&args!["WAIT", 1, 100]) && client.read(SOON).is_ok_and(|reply| reply.int() >= 1)
        };
        for (n, begun) in begun.iter().enumerate() {
            scope.spawn(move || seen.use_up(primary, n, begun, waited));
        }
        wait_until(SOON, "all are at it", || begun.iter().all(|begun| begun.load(SeqCst)));
        primary.call(&["CLIENT", "KILL", "TYPE", "replica"]);
        let had = seen.grants.lock().unwrap().len();
        wait_until(SOON, "it goes on", || seen.grants.lock().unwrap().len() > (had + 20).max(60));
        let killed = std::process::Command::new("sh").args(["-c", "kill -9 $0", &pid.to_string()]).status();
        assert!(killed.unwrap().success());
    });
    primary.kill9();
    next.ok(&["REPLICAOF", "NO", "ONE"]);
    let (grants, lost, units) = seen.lost(&next);
    println!("{grants} grants that WAIT counted, {lost} lost; {units} units lost");
    assert!(grants > 40);
    assert_eq!((lost, units), (0, 0));
    assert!(next.call(&["LOCK.ACQUIRE", "after", "t", "1h"]).int() > seen.last_fence());
    assert_eq!(next.info_int("sluice", "sluice_internal_errors"), 0);
}

#[test]
fn locks_and_limits_of_every_kind_go_on_over_two_promotions() {
    let mut first = Server::start();
    let second = replica(&first, true);
    let third = replica(&first, true);
    let mut fence = every_kind(&mut first.client());
    let before = dumps(&first);
    wait_for_sync(&first, &second);
    wait_for_sync(&first, &third);
    first.kill9();
    for (turn, (new, other)) in [(&second, Some(&third)), (&third, None)].into_iter().enumerate() {
        new.ok(&["REPLICAOF", "NO", "ONE"]);
        if let Some(other) = other {
            other.ok(&args!["REPLICAOF", "127.0.0.1", new.port()]);
            wait_for_sync(new, other);
            assert_eq!(dumps(other), before);
        }
        let mut client = new.client();
        for (line, reply) in [
            ("LOCK.ACQUIRE x tB 1m", 0),
            ("LOCK.ACQUIRE r tB 1m", 0),
            ("LOCK.ACQUIRE s tC 1m", 0),
            ("SEM.ACQUIRE p tC 1m 2", 0),
            ("LOCK.RENEW r tA 1h", 1),
            ("LOCK.RENEW s tB 1h", 1),
            ("SEM.RENEW p tB 1h", 1),
        ] {
            assert_eq!(client.call(&words(line)).int(), reply, "{line}");
        }
        // Waiting goes on there, too, and what it brings has a larger fence.
        let mut b = line_up(new, "s", "tW", "1m", "0");
        assert_eq!((release(new, "s", "tA"), release(new, "s", "tB")), (1, 1));
        let next = b.fence();
        assert!(next > fence);
        assert_eq!(release(new, "s", "tW"), 1);
        for line in ["LOCK.ACQUIRE s tA 270m SHARED", "LOCK.ACQUIRE s tB 271m SHARED"] {
            let next = client.call(&words(line)).int();
            assert!(next > fence, "{line}");
            fence = next;
        }
        for limit in ["RL.FIXED f 10 270m", "RL.SLIDING l 10 270m", "RL.BUCKET b 10 1 270m"] {
            let left = 6 - i64::try_from(turn).unwrap();
            assert_eq!(client.call(&words(limit)).ints()[..3], [1, 10, left], "{limit}");
        }
        if let Some(other) = other {
            wait_for_sync(new, other);
        }
    }
    for line in ["LOCK.RELEASE r tA", "LOCK.RELEASE r tA", "SEM.RELEASE p tA", "SEM.RELEASE p tB"] {
        assert_eq!(third.call(&words(line)).int(), 1, "{line}");
    }
    assert_eq!(third.call(&args!["LOCK.RELEASE", "x", b"t\0\xff\r\n"]).int(), 1);
}
