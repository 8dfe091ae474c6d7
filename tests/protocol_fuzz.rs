//! Random commands with hostile arguments, from several connections at once: pipelined, over both protocols, in transactions
//! and scripts, waiting, killed and unblocked in the middle. The server lives, and every reply is one of ours.
//!
//! 20,000 calls, a million with SLUICE_LONG=1; SLUICE_SEED=n makes the choices of an earlier run again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::RL_COUNTERS;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use rig::{Client, SOON, Server, Value, ValueExt, args, dump_all, ms, replica, wait_for, wait_for_sync, wait_until};
use std::io::ErrorKind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::Relaxed};

const CONNECTIONS: usize = 6;
/// Scripts get their command as arguments, the key declared.
const SCRIPT: &str = "return redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2))";
const SCRIPT_3: &str = "redis.setresp(3); return redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2))";
const FUNCTION: &str = "#!lua name=hostile\nredis.register_function('hostile', function(keys, args) \
                        return redis.pcall(args[1], keys[1], unpack(args, 2)) end)";

/// What a reply must be.
#[derive(Clone, Debug)]
enum Expected {
    /// Anything: it is the server's own command.
    Any,
    /// An integer from 0, or an error of ours.
    Lock,
    /// Six fields, or an error of ours.
    Info,
    /// Five integers, or an error of ours.
    Limit,
    /// `QUEUED`, or an error.
    Queued,
    /// What EXEC answers.
    Exec(Vec<Expected>),
    /// What was sent.
    Echo(Vec<u8>),
}

type Sent = (Vec<Vec<u8>>, Expected);

/// Where calls come from.
struct Source {
    random: StdRng,
    /// Queued calls of the transaction that is open.
    transaction: Option<Vec<Expected>>,
    echoes: u64,
}

impl Source {
    fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed), transaction: None, echoes: 0 }
    }

    fn below(&mut self, n: usize) -> usize {
        self.random.random_range(0..n)
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.random_ratio(1, n)
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a [u8] {
        let at = self.below(from.len());
        from[at].as_bytes()
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.below(most + 1)];
        self.random.fill_bytes(&mut bytes);
        bytes
    }

    /// A word that is hardly ever right where it stands.
    fn hostile(&mut self) -> Vec<u8> {
        match self.below(12) {
            0 => self.bytes(16),
            1 => self.bytes(1500),
            2 => self.random.random::<i64>().to_string().into_bytes(),
            3 => self.random.random::<u128>().to_string().into_bytes(),
            4 => vec![self.random.random(); self.random.random_range(510..515)],
            5 => {
                self.pick(&["BLOCK", "block", "SHARED", "Reentrant", "COST", "PEEK", "KEYS", "%s%n", "\r\n+OK"]).into()
            }
            6 => self.pick(&["", "-1", "+5", "05", "1e3", "0x10", "1.5", "NaN", "inf", "nil", "\0", "5\0"]).into(),
            7 => self.pick(&["316224000000", "316224000001", "3660d", "3661d", "87840h", "9223372036854775807"]).into(),
            8 => self.pick(&["1000000000000", "1000000000001", "1000000000", "18446744073709551616", "0"]).into(),
            9 => "\u{ff15}٥".into(),
            _ => self.random.random_range(-1..200).to_string().into_bytes(),
        }
    }

    fn or_hostile(&mut self, good: impl ToString) -> Vec<u8> {
        if self.one_in(25) { self.hostile() } else { good.to_string().into_bytes() }
    }

    /// A key of one family, that nothing but our own commands writes; or one that everybody does; or a strange one.
    fn key(&mut self, family: &str) -> Vec<u8> {
        match self.below(20) {
            0..12 => format!("{family}:{}", self.below(5)).into_bytes(),
            12..18 => self.any_key(),
            18 => self.pick(&["", "\0", "%n%n", "\r\n", "{", "{}", "ключ"]).into(),
            _ => {
                let mut key = vec![self.random.random(); 300];
                key[0] = b'~';
                key
            }
        }
    }

    fn any_key(&mut self) -> Vec<u8> {
        format!("any:{}", self.below(6)).into_bytes()
    }

    fn token(&mut self) -> Vec<u8> {
        if self.one_in(30) { self.hostile() } else { format!("t{}", self.below(8)).into_bytes() }
    }

    /// Mostly short: what is held for long makes everybody else wait in vain.
    fn ttl(&mut self) -> Vec<u8> {
        let ttl = match self.below(10) {
            0..6 => format!("{}ms", self.random.random_range(1..40)),
            6..9 => self.random.random_range(1..200).to_string(),
            _ => "1s".into(),
        };
        self.or_hostile(ttl)
    }

    fn timeout(&mut self) -> Vec<u8> {
        match self.below(40) {
            0 => b"0".to_vec(),
            1 => self.pick(&["", "-1", "0ms", "1.5", "forever", "3661d"]).into(),
            _ => format!("{}ms", self.random.random_range(1..12)).into_bytes(),
        }
    }

    /// A command of ours.
    fn ours(&mut self) -> Sent {
        let (mut call, expected) = match self.below(24) {
            0..6 => {
                let mut call = args!["LOCK.ACQUIRE", self.key("lock"), self.token(), self.ttl()];
                for _ in 0..self.below(3) {
                    match self.below(6) {
                        0 | 1 => call.push(self.pick(&["SHARED", "shared", "ShArEd"]).into()),
                        2 => call.push(self.pick(&["REENTRANT", "reentrant"]).into()),
                        3 => call.push(self.hostile()),
                        _ => call.extend([self.pick(&["BLOCK", "block"]).into(), self.timeout()]),
                    }
                }
                (call, Expected::Lock)
            }
            6..8 => (args!["LOCK.RELEASE", self.key("lock"), self.token()], Expected::Lock),
            8 => (args!["LOCK.RENEW", self.key("lock"), self.token(), self.ttl()], Expected::Lock),
            9 => (args!["LOCK.INFO", self.key("lock")], Expected::Info),
            10..13 => {
                let limit = self.random.random_range(1..4);
                let limit = self.or_hostile(limit);
                let mut call = args!["SEM.ACQUIRE", self.key("sem"), self.token(), self.ttl(), limit];
                if self.one_in(2) {
                    call.extend([b"BLOCK".to_vec(), self.timeout()]);
                }
                (call, Expected::Lock)
            }
            13 => (args!["SEM.RELEASE", self.key("sem"), self.token()], Expected::Lock),
            14 => (args!["SEM.RENEW", self.key("sem"), self.token(), self.ttl()], Expected::Lock),
            15 => (args!["SEM.INFO", self.key("sem")], Expected::Info),
            16 => {
                // Anything behind any name of ours.
                let (name, expected) = [
                    ("LOCK.ACQUIRE", Expected::Lock),
                    ("LOCK.RELEASE", Expected::Lock),
                    ("LOCK.RENEW", Expected::Lock),
                    ("LOCK.INFO", Expected::Info),
                    ("SEM.ACQUIRE", Expected::Lock),
                    ("SEM.RELEASE", Expected::Lock),
                    ("SEM.RENEW", Expected::Lock),
                    ("SEM.INFO", Expected::Info),
                    ("RL.FIXED", Expected::Limit),
                    ("RL.SLIDING", Expected::Limit),
                    ("RL.BUCKET", Expected::Limit),
                ][self.below(11)]
                .clone();
                let mut call = args![name];
                for _ in 0..self.below(8) {
                    call.push(self.hostile());
                }
                // (A wait without end is asked for elsewhere, and rarely.)
                if call.iter().any(|word| word.eq_ignore_ascii_case(b"BLOCK")) {
                    call.retain(|word| word != b"0");
                }
                (call, expected)
            }
            n => {
                let bucket = n >= 22;
                let name = if bucket { "RL.BUCKET" } else { ["RL.FIXED", "RL.SLIDING"][n % 2] };
                let limit = self.random.random_range(1..30);
                let mut call = args![name, self.key(name), self.or_hostile(limit)];
                if bucket {
                    let refill = self.random.random_range(1..30);
                    call.push(self.or_hostile(refill));
                }
                call.push(self.ttl());
                if self.one_in(3) {
                    let cost = self.random.random_range(0..10);
                    call.extend([b"cost".to_vec(), self.or_hostile(cost)]);
                }
                if self.one_in(5) {
                    call.push(self.pick(&["PEEK", "peek"]).into());
                }
                (call, Expected::Limit)
            }
        };
        if self.one_in(10) {
            call[0].make_ascii_lowercase();
        }
        if self.one_in(60) {
            call.truncate(1 + self.below(3));
        }
        (call, expected)
    }

    /// A command of the server's own, on a key that everybody writes.
    fn foreign(&mut self) -> Vec<Vec<u8>> {
        let (key, other, n) = (self.any_key(), self.any_key(), self.random.random_range(1..60_i64));
        let score = self.pick(&["1.25", "99999999999999.5", "-inf", "1.5", "4503599627370496.25", "1e300"]).to_vec();
        match self.below(22) {
            0 => args!["SET", key, self.token()],
            1 => args!["SET", key, self.token(), "PX", n],
            2 => args!["SET", key, self.bytes(60), "PX", n],
            3 => args!["DEL", key, other],
            4 => args!["PEXPIRE", key, n - 10],
            5 => args!["PERSIST", key],
            6 => args!["RENAME", key, other],
            7 => args!["COPY", key, other, "REPLACE"],
            8 => args!["ZADD", key, score, self.token()],
            9 => args!["HSET", key, self.token(), n - 2],
            10 => args!["HINCRBY", key, self.token(), i64::MAX],
            11 => args!["RPUSH", key, "x"],
            12 => args!["INCRBY", key, n],
            13 => args!["APPEND", key, self.bytes(3)],
            14 => args!["SETRANGE", key, n, self.bytes(3)],
            15 => args!["GETDEL", key],
            16 => args!["UNLINK", key],
            17 => args!["RESTORE", key, n, self.bytes(40), "REPLACE"],
            18 => args!["MOVE", key, 1],
            19 => args!["GETEX", key, "PX", n],
            20 => args!["ZPOPMIN", key],
            _ => args!["SADD", key, "x"],
        }
    }

    /// The next call on one connection.
    fn next(&mut self, resp3: bool) -> Sent {
        if let Some(mut queued) = self.transaction.take() {
            if self.one_in(4) {
                return (args!["EXEC"], Expected::Exec(queued));
            }
            if self.one_in(15) {
                return (args!["DISCARD"], Expected::Any);
            }
            let (call, expected) = if self.one_in(4) { (self.foreign(), Expected::Any) } else { self.ours() };
            queued.push(expected);
            self.transaction = Some(queued);
            return (call, Expected::Queued);
        }
        match self.below(30) {
            0 => {
                self.transaction = Some(Vec::new());
                (args!["MULTI"], Expected::Any)
            }
            1 => (args!["WATCH", self.any_key(), self.key("lock")], Expected::Any),
            2 => {
                self.echoes += 1;
                let word = format!("echo {}", self.echoes).into_bytes();
                (args!["ECHO", &word], Expected::Echo(word))
            }
            3..6 => {
                let (call, expected) = self.ours();
                let [name, key, rest @ ..] = &call[..] else { return (args!["EVAL", SCRIPT], Expected::Any) };
                let script = match self.below(3) {
                    0 => args!["FCALL", "hostile"],
                    1 if resp3 => args!["EVAL", SCRIPT_3],
                    _ => args!["EVAL", SCRIPT],
                };
                // Without a key of its own the call in the script has wrong arity, or no name.
                ([script, args!["1", key, name], rest.to_vec()].concat(), expected)
            }
            6..9 => (self.foreign(), Expected::Any),
            _ => self.ours(),
        }
    }
}

fn shown(call: &[Vec<u8>]) -> String {
    call.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}

/// What is wrong with a reply, if anything is.
fn fault(expected: &Expected, reply: &Value) -> Option<String> {
    let codes = ["ERR ", "WRONGTYPE ", "DEADLOCK ", "QUEUEFULL ", "UNBLOCKED ", "OOM ", "EXECABORT ", "NOREPLICAS "];
    if let Some(line) = reply.error() {
        let of_ours = codes.iter().any(|code| line.starts_with(code));
        let expects_ours = !matches!(expected, Expected::Any);
        let bad = line.contains("internal") || (expects_ours && !of_ours) || (expects_ours && !line.is_ascii());
        // The server itself repeats the name of a command it does not know, and the arguments behind.
        return (bad && !line.contains("unknown command")).then(|| format!("the error {line:?}"));
    }
    let good = match expected {
        Expected::Any => true,
        Expected::Lock => matches!(reply, Value::Int(0..0x20_0000_0000_0000)),
        Expected::Info => {
            let known = ["mode", "ttl", "held", "waiters", "holders", "queue"];
            let fields = match reply {
                Value::Map(pairs) => pairs.len() == 6,
                Value::Array(flat) => flat.len() == 12,
                _ => false,
            };
            fields && known.iter().all(|field| reply.map().contains_key(*field))
        }
        Expected::Limit => match reply {
            Value::Array(five) => match five[..] {
                [
                    Value::Int(allowed @ (0 | 1)),
                    Value::Int(limit),
                    Value::Int(remaining),
                    Value::Int(retry),
                    Value::Int(reset),
                ] => {
                    limit >= 1
                        && (0..=limit).contains(&remaining)
                        && reset >= 0
                        && if allowed == 1 { retry == 0 } else { retry == -1 || retry > 0 }
                }
                _ => false,
            },
            _ => false,
        },
        Expected::Queued => matches!(reply, Value::SimpleString(word) if word == "QUEUED"),
        Expected::Echo(word) => matches!(reply, Value::BulkString(said) if said == word),
        Expected::Exec(all) => match reply {
            // A watched key was changed.
            Value::Nil => true,
            Value::Array(replies) if replies.len() == all.len() => {
                return all.iter().zip(replies).find_map(|(expected, reply)| fault(expected, reply));
            }
            // Commands that were refused while they were queued abort the whole, and never get here.
            _ => false,
        },
    };
    (!good).then(|| format!("{reply:?} where {expected:?} was expected"))
}

/// What has to have been at work, besides the limiters.
const COUNTED: [&str; 6] =
    ["lock_grants", "lock_refused", "lock_handovers", "lock_timeouts", "sem_grants", "sem_refused"];

struct Run<'a> {
    server: &'a Server,
    calls: AtomicUsize,
    replies: AtomicUsize,
    most: usize,
    /// All of it has been at work.
    enough: AtomicBool,
    stop: AtomicBool,
    ids: Vec<AtomicI64>,
    /// Held by who pauses, and by who unblocks meanwhile.
    unblock: Mutex<()>,
}

impl Run<'_> {
    /// One connection after the other, until all calls are made.
    fn connection(&self, number: usize, seed: u64) {
        let mut source = Source::new(seed);
        let resp3 = number % 2 == 1;
        let connect = || {
            let client = self.server.client();
            let mut client = if resp3 { client.resp3() } else { client };
            self.ids[number].store(client.id(), Relaxed);
            client
        };
        let mut client = connect();
        let goes_on = |calls| calls < self.most || calls < 20 * self.most && !self.enough.load(Relaxed);
        while goes_on(self.calls.load(Relaxed)) {
            let batch: Vec<Sent> = (0..1 + source.below(40)).map(|_| source.next(resp3)).collect();
            self.calls.fetch_add(batch.len(), Relaxed);
            let lives = self.batch(&mut client, &batch);
            // Some leave while they may be waiting.
            if !lives || source.one_in(50) {
                source.transaction = None;
                if lives {
                    let _ = client.try_send_all(&[source.next(resp3).0, source.ours().0]);
                    source.transaction = None;
                }
                client.close();
                client = connect();
            }
        }
    }

    /// Sends a batch and holds every reply to what it must be; false if the connection was killed meanwhile.
    fn batch(&self, client: &mut Client, batch: &[Sent]) -> bool {
        if !client.try_send_all(&batch.iter().map(|(call, _)| call.clone()).collect::<Vec<_>>()) {
            return false;
        }
        for (call, expected) in batch {
            match client.read(SOON) {
                Ok(reply) => {
                    if let Some(fault) = fault(expected, &reply) {
                        panic!("{}: {fault}", shown(call));
                    }
                }
                Err(error) if error.kind() == ErrorKind::TimedOut => panic!("no reply to {}", shown(call)),
                Err(error) if error.kind() == ErrorKind::Other && !error.to_string().contains("reset") => {
                    panic!("no RESP in reply to {}: {error}", shown(call))
                }
                Err(_) => return false,
            }
            self.replies.fetch_add(1, Relaxed);
        }
        true
    }

    /// Kills, unblocks, pauses, flushes and changes settings meanwhile.
    fn trouble(&self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut client = self.server.client();
        while !self.stop.load(Relaxed) {
            std::thread::sleep(ms(random.random_range(1..12)));
            let id = self.ids[random.random_range(0..CONNECTIONS)].load(Relaxed);
            let call = match random.random_range(0..40) {
                0..2 => args!["CLIENT", "KILL", "ID", id],
                // Who waits without end has to be woken by somebody.
                2..28 => args!["CLIENT", "UNBLOCK", id, "ERROR"],
                28 => args!["FLUSHALL"],
                29 => args!["SWAPDB", 0, 1],
                30..33 => args!["CONFIG", "SET", "sluice.max-waiters", random.random_range(1..5)],
                33 => args!["CONFIG", "SET", "sluice.max-waiters", 10000],
                34..36 => {
                    // Redis 7.0 takes CLIENT UNBLOCK for a client whose command a pause has put off, and answers it twice.
                    let _nobody_is_unblocked = self.unblock.lock().unwrap();
                    // A pause of all puts off UNPAUSE as well, so that its own end has to be soon.
                    let (what, long) = [("WRITE", 1000), ("ALL", 20)][random.random_range(0..2)];
                    client.call(&args!["CLIENT", "PAUSE", long, what]);
                    std::thread::sleep(ms(random.random_range(1..25)));
                    client.call(&["CLIENT", "UNPAUSE"]);
                    continue;
                }
                36 => args!["CONFIG", "SET", "min-replicas-to-write", 5],
                37 => args!["INFO", "sluice"],
                38 => args!["MODULE", "UNLOAD", "no-such-module"],
                _ => args!["MEMORY", "USAGE", "lock:1"],
            };
            client.call(&call);
            if random.random_ratio(1, 4) {
                client.call(&args!["CONFIG", "SET", "min-replicas-to-write", 0]);
            }
        }
        for call in [args!["CONFIG", "SET", "min-replicas-to-write", 0], args!["CLIENT", "UNPAUSE"]] {
            assert_eq!(client.call(&call).text(), "OK");
        }
    }

    /// What of it has not been at work as often as it is to be: what the random calls come to depends on what they
    /// meet.
    fn hardly_any(&self) -> Vec<(&'static str, String)> {
        let (counted, least) = (self.server.info("sluice"), self.most / 2000);
        let few = |name: &&str| counted[&format!("sluice_{name}")].parse::<usize>().unwrap() < least;
        COUNTED
            .into_iter()
            .chain(RL_COUNTERS)
            .filter(few)
            .map(|name| (name, counted[&format!("sluice_{name}")].clone()))
            .collect()
    }

    /// Says when all of it has been.
    fn look_at_counters(&self) {
        while !self.stop.load(Relaxed) && !self.hardly_any().is_empty() {
            std::thread::sleep(ms(20));
        }
        self.enough.store(true, Relaxed);
    }

    /// Those whose last call waits without end are let go.
    fn let_go(&self) {
        let mut client = self.server.client();
        while !self.stop.load(Relaxed) {
            std::thread::sleep(ms(20));
            let _nothing_is_paused = self.unblock.lock().unwrap();
            for id in &self.ids {
                client.call(&args!["CLIENT", "UNBLOCK", id.load(Relaxed), "ERROR"]);
            }
        }
    }
}

#[test]
fn hostile_calls_from_many_connections_break_nothing_and_leave_nothing() {
    let long = std::env::var_os("SLUICE_LONG").is_some();
    let seed = std::env::var("SLUICE_SEED").ok().map_or_else(|| rand::rng().random(), |seed| seed.parse().unwrap());
    let most = if long { 1_000_000 } else { 20_000 };
    println!("SLUICE_SEED={seed}");
    let mut server = Server::builder().args(&["--appendonly", "yes", "--appendfsync", "no"]).start();
    let follower = replica(&server, false);
    assert_eq!(server.call(&["FUNCTION", "LOAD", FUNCTION]).text(), "hostile");
    let ids = (0..CONNECTIONS).map(|_| AtomicI64::new(0)).collect();
    let run = Run {
        server: &server,
        calls: AtomicUsize::new(0),
        replies: AtomicUsize::new(0),
        most,
        enough: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        ids,
        unblock: Mutex::new(()),
    };
    std::thread::scope(|threads| {
        let run = &run;
        threads.spawn(move || run.trouble(seed));
        threads.spawn(move || run.let_go());
        threads.spawn(move || run.look_at_counters());
        let all: Vec<_> = (0..CONNECTIONS)
            .map(|n| threads.spawn(move || run.connection(n, seed.wrapping_add(1 + n as u64))))
            .collect();
        let ends: Vec<_> = all.into_iter().map(|one| one.join()).collect();
        run.stop.store(true, Relaxed);
        assert!(ends.into_iter().all(|end| end.is_ok()), "see above; SLUICE_SEED={seed}");
    });
    let replies = run.replies.load(Relaxed);
    let waiting = |server: &Server| {
        let info = server.info("sluice");
        (info["sluice_lock_waiters"].clone(), info["sluice_sem_waiters"].clone(), server.blocked_clients())
    };
    wait_for(SOON, "nobody waits", || waiting(&server), |waiting| *waiting == ("0".into(), "0".into(), 0));

    // What only our commands have written always expires. What does so soon goes now, so that none of it ends while one
    // looks at it.
    let (mut client, soon) = (server.client(), server.now_ms() + 60_000);
    for db in 0..16 {
        client.call(&args!["SELECT", db]);
        for key in client.call(&["KEYS", "*"]).array().iter().map(ValueExt::bytes) {
            let end = client.call(&args!["PEXPIRETIME", &key]).int();
            assert!(key.starts_with(b"any:") || end != -1, "{db} {} has no TTL", key.escape_ascii());
            if (0..soon).contains(&end) {
                client.call(&args!["DEL", &key]);
            }
        }
    }
    // A stock replica has the same.
    wait_for_sync(&server, &follower);
    let stays = |server: &Server, now: i64| {
        let mut all = dump_all(server);
        all.retain(|_, entry| entry.expires_at == -1 || entry.expires_at > now + 10_000);
        all
    };
    let now = server.now_ms();
    wait_until(SOON, "the replica has what the primary has", || stays(&server, now) == stays(&follower, now));

    let counted = server.info("sluice");
    println!("{replies} replies; {counted:?}");
    assert_eq!(counted["sluice_internal_errors"], "0");
    assert!(!server.log().contains("internal error"));
    let hardly_any = run.hardly_any();
    assert!(hardly_any.is_empty(), "hardly any {hardly_any:?}: {counted:?}");
    assert!(server.is_alive());
}

#[test]
fn a_reply_that_is_none_of_ours_is_found() {
    let five = |five: [i64; 5]| Value::Array(five.map(Value::Int).to_vec());
    for (expected, reply) in [
        (Expected::Lock, Value::Int(-1)),
        (Expected::Lock, Value::Int(1 << 53)),
        (Expected::Lock, Value::Nil),
        (Expected::Limit, five([2, 5, 1, 0, 0])),
        (Expected::Limit, five([1, 5, 6, 0, 0])),
        (Expected::Limit, five([1, 5, 1, 3, 0])),
        (Expected::Limit, five([0, 5, 1, 0, 9])),
        (Expected::Info, Value::Array(vec![])),
        (Expected::Queued, Value::Int(1)),
        (Expected::Echo(b"a".into()), Value::Okay),
        (Expected::Exec(vec![Expected::Lock]), Value::Array(vec![])),
        (Expected::Exec(vec![Expected::Lock]), Value::Array(vec![Value::Nil])),
    ] {
        assert!(fault(&expected, &reply).is_some(), "{expected:?} {reply:?}");
    }
    assert!(fault(&Expected::Limit, &five([0, 5, 1, -1, 9])).is_none());
    assert!(fault(&Expected::Exec(vec![Expected::Lock]), &Value::Array(vec![Value::Int(7)])).is_none());
}
