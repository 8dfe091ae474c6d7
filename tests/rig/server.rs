//! A server of one's own.

use super::client::shown;
use super::spawn::{command, in_path, spawn};
use super::{Client, SOON, ValueExt, wait_for, wait_until};
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

/// How a server is to be started; see [`Server::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    module: bool,
    module_args: Vec<String>,
    args: Vec<String>,
    envs: Vec<(String, String)>,
    dir: Option<PathBuf>,
    replica_of: Option<u16>,
    config_file: Option<String>,
}

impl Builder {
    /// Whether the module is loaded; yes unless said otherwise.
    pub fn module(mut self, loaded: bool) -> Self {
        self.module = loaded;
        self
    }

    /// Arguments of the module, behind its path.
    pub fn module_args(mut self, args: &[&str]) -> Self {
        self.module_args.extend(args.iter().map(ToString::to_string));
        self
    }

    /// More options of the server, as on its command line: `&["--appendonly", "yes"]`.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(ToString::to_string));
        self
    }

    /// A variable of the server's environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.envs.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The folder to run in, which stays; without this the server gets a new one that goes with it.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// A redis.conf to begin with, `server.conf` in the server's folder. The server may rewrite it, and a restart reads what it
    /// has written; there the module's own line is in it.
    pub fn config_file(mut self, lines: &str) -> Self {
        self.config_file = Some(lines.to_owned());
        self
    }

    /// A replica of that server from its first moment; [`wait_for_sync`] waits until it has caught up.
    pub fn replica_of(mut self, primary: &Server) -> Self {
        self.replica_of = Some(primary.port);
        self
    }

    /// Starts it and returns when it answers. Panics with the end of its log if it does not.
    #[track_caller]
    pub fn start(self) -> Server {
        let (own_dir, dir) = match &self.dir {
            Some(dir) => (None, dir.clone()),
            None => {
                let own = tempfile::Builder::new().prefix("sluice-test-").tempdir().expect("a folder for the server");
                let path = own.path().to_owned();
                (Some(own), path)
            }
        };
        let mut server = Server { how: self, port: 0, dir, own_dir, child: None };
        for _ in 0..10 {
            server.port = free_port();
            match server.launch() {
                Ok(()) => return server,
                // Somebody else took the port between the look and the start.
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("the server did not start:\n{log}"),
            }
        }
        panic!("ten ports in a row were taken by others");
    }
}

/// A running server. It is killed when this value goes; its folder goes too, unless the test panics.
pub struct Server {
    how: Builder,
    port: u16,
    dir: PathBuf,
    own_dir: Option<tempfile::TempDir>,
    child: Option<Child>,
}

impl Server {
    /// A server with the module and nothing special.
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A server to be described.
    pub fn builder() -> Builder {
        Builder {
            module: true,
            module_args: vec![],
            args: vec![],
            envs: vec![],
            dir: None,
            replica_of: None,
            config_file: None,
        }
    }

    /// Starts the process and waits until it serves; the end of its log if it does not.
    fn launch(&mut self) -> Result<(), String> {
        let log = OpenOptions::new().create(true).append(true).open(self.log_path()).expect("a log file");
        let seen = log.metadata().map_or(0, |m| m.len()) as usize;
        let mut run = command(&server_program());
        run.current_dir(&self.dir).stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
        let mut module = self.how.module;
        if let Some(lines) = &self.how.config_file {
            let file = self.dir.join("server.conf");
            if !file.exists() {
                std::fs::write(&file, lines).expect("a configuration file");
            }
            // A rewritten file names the module, and to load it twice is an error.
            module &= !std::fs::read_to_string(&file).expect("its text").contains("\nloadmodule ");
            run.arg(file);
        }
        run.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--loglevel", "notice"]);
        run.args(["--enable-debug-command", "yes", "--enable-module-command", "yes"]);
        // With `everysec` the server puts writing off while the disk is slow, and what a test reads of the file is old.
        run.args(["--appendfsync", "no"]);
        // What is slow on a busy machine would be noted, in memory that tests count.
        run.args(["--slowlog-log-slower-than", "-1"]);
        // A primary otherwise waits 5 s for more replicas before it serves the first.
        run.args(["--repl-diskless-sync-delay", "0"]);
        if let Some(primary) = self.how.replica_of {
            run.args(["--replicaof", "127.0.0.1", &primary.to_string()]);
        }
        run.args(&self.how.args).envs(self.how.envs.iter().map(|(name, value)| (name, value)));
        if module {
            run.arg("--loadmodule").arg(module_file()).args(&self.how.module_args);
        }
        let mut child = spawn(run).map_err(|error| format!("{}: {error}", server_program().display()))?;
        let deadline = Instant::now() + SOON;
        loop {
            let log = self.log().get(seen..).unwrap_or_default().to_owned();
            let over = child.try_wait().expect("the state of the server").is_some();
            // The log says that the port is this server's own; the reply says that nothing is still being loaded.
            if !over && log.contains("Ready to accept connections") && self.answers() {
                self.child = Some(child);
                return Ok(());
            }
            if over || Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                // Read again: the last lines may have been written after the first look.
                return Err(tail(self.log().get(seen..).unwrap_or_default()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn answers(&self) -> bool {
        let Ok(mut client) = Client::connect(self.port) else {
            return false;
        };
        client.send(&["PING"]);
        client.read(Duration::from_secs(1)).is_ok_and(|reply| !reply.is_error("LOADING"))
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder it runs in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its process id.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server is not running").id()
    }

    /// All it has logged, over all its starts.
    pub fn log(&self) -> String {
        std::fs::read(self.log_path()).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// What redis-cli prints for a person: `(integer) 1`, `OK`, `"text"`, `(error) ERR …`.
    #[track_caller]
    pub fn cli<W: AsRef<[u8]>>(&self, words: &[W]) -> String {
        self.redis_cli(&["--no-raw"], words, b"")
    }

    /// What redis-cli prints for a script: values alone, one a line.
    #[track_caller]
    pub fn cli_raw<W: AsRef<[u8]>>(&self, words: &[W]) -> String {
        self.redis_cli(&["--raw"], words, b"")
    }

    /// [`Self::cli`] over RESP3.
    #[track_caller]
    pub fn cli_resp3<W: AsRef<[u8]>>(&self, words: &[W]) -> String {
        self.redis_cli(&["-3", "--no-raw"], words, b"")
    }

    /// [`Self::cli`] with a last argument from standard input, which may be any bytes.
    #[track_caller]
    pub fn cli_stdin<W: AsRef<[u8]>>(&self, words: &[W], last: &[u8]) -> String {
        self.redis_cli(&["-x", "--no-raw"], words, last)
    }

    #[track_caller]
    fn redis_cli<W: AsRef<[u8]>>(&self, options: &[&str], words: &[W], input: &[u8]) -> String {
        let mut cli = Command::new(cli_program());
        cli.args(["-p", &self.port.to_string()]).args(options);
        cli.args(words.iter().map(|word| OsStr::from_bytes(word.as_ref())));
        cli.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = cli.spawn().unwrap_or_else(|error| panic!("{}: {error}", cli_program().display()));
        // Dropped at once, so that -x sees the end. Without -x it is not read, and an error to write is none.
        let _ = child.stdin.take().expect("its standard input").write_all(input);
        let out = child.wait_with_output().expect("redis-cli ends");
        assert!(out.stderr.is_empty(), "redis-cli {}: {}", shown(words), String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
    }

    /// A new connection.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(self.port).expect("the server accepts a connection")
    }

    /// One command over a connection of its own.
    #[track_caller]
    pub fn call<W: AsRef<[u8]>>(&self, words: &[W]) -> redis::Value {
        self.client().call(words)
    }

    /// The server's clock, Unix time in ms.
    #[track_caller]
    pub fn now_ms(&self) -> i64 {
        let time: Vec<i64> = self.call(&["TIME"]).array().iter().map(|n| n.text().parse().unwrap()).collect();
        time[0] * 1000 + time[1] / 1000
    }

    /// The fields of a section of INFO.
    #[track_caller]
    pub fn info(&self, section: &str) -> BTreeMap<String, String> {
        let text = self.call(&["INFO", section]).text();
        text.lines().filter_map(|line| line.split_once(':')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    /// One number of a section of INFO.
    #[track_caller]
    pub fn info_int(&self, section: &str, field: &str) -> i64 {
        let fields = self.info(section);
        fields.get(field).and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no number {field} in {fields:?}"))
    }

    /// How many bytes it has replicated. It counts only once a replica has been attached.
    #[track_caller]
    pub fn offset(&self) -> i64 {
        self.info_int("replication", "master_repl_offset")
    }

    /// The size of its append-only file.
    #[track_caller]
    pub fn aof_size(&self) -> i64 {
        self.info_int("persistence", "aof_current_size")
    }

    /// How many clients wait in a blocking command.
    #[track_caller]
    pub fn blocked_clients(&self) -> i64 {
        self.info_int("clients", "blocked_clients")
    }

    /// Freezes the process.
    #[track_caller]
    pub fn stop(&self) {
        self.signal("STOP");
    }

    /// Lets a frozen process go on.
    #[track_caller]
    pub fn cont(&self) {
        self.signal("CONT");
    }

    #[track_caller]
    fn signal(&self, name: &str) {
        // The shell's own `kill`: not every system has the program.
        let done = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", name, &self.pid().to_string()]).status();
        assert!(done.is_ok_and(|status| status.success()), "kill -s {name} {}", self.pid());
    }

    /// Kills it, as a crash or a power cut would, and waits until it is gone.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills it if it runs, and starts it again: same port, folder and options.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill9();
        // For a moment the port may still be somebody else's passing connection.
        let mut log = String::new();
        for _ in 0..50 {
            match self.launch() {
                Ok(()) => return,
                Err(why) => log = why,
            }
            if !log.contains("Address already in use") {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the server did not start again:\n{log}");
    }

    /// Tells it to write an RDB file and end, and waits until it has.
    #[track_caller]
    pub fn shutdown_save(&mut self) {
        self.client().send(&["SHUTDOWN", "SAVE"]);
        let mut child = self.child.take().expect("the server is not running");
        wait_until(SOON, "the server saves and ends", || child.try_wait().expect("its state").is_some());
    }

    /// Whether the process still runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|ended| ended.is_none()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking()
            && let Some(dir) = &mut self.own_dir
        {
            dir.disable_cleanup(true);
            eprintln!("the server's folder is kept: {}\n{}", self.dir.display(), tail(&self.log()));
        }
    }
}

/// A replica of a running server, with the module or without, that has caught up.
#[track_caller]
pub fn replica(of: &Server, module: bool) -> Server {
    let replica = Server::builder().module(module).replica_of(of).start();
    wait_for_sync(of, &replica);
    replica
}

/// Waits until the replica has applied all that the primary has sent.
#[track_caller]
pub fn wait_for_sync(primary: &Server, replica: &Server) {
    let look = || {
        let of_replica = replica.info("replication");
        let field = |name: &str| of_replica.get(name).cloned().unwrap_or_default();
        (field("master_link_status"), field("slave_repl_offset"), primary.offset().to_string())
    };
    wait_for(SOON, "the replica catches up (link, its offset, the primary's)", look, |(link, here, there)| {
        link == "up" && here == there
    });
}

/// The last lines of a log.
pub(super) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

/// A port that is free now, and that nobody in this process has been given before: a server that is down for a while comes back to
/// its own. Ports below those that systems give to outgoing connections, and low enough for a cluster's second port (10000 above)
/// to be so too.
pub(super) fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut random = rand::rng();
    (0..1000)
        .map(|_| random.random_range(16_000..22_000))
        .find(|port| free(*port) && free(port + 10_000) && GIVEN.lock().unwrap().insert(*port))
        .expect("a free port")
}

/// The root of the repository, also for the tests of a member of the workspace, which share this file.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().find(|dir| dir.join("tests/rig").is_dir()).unwrap_or(package).to_owned()
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    let root = root();
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// SLUICE_SERVER, or the one that `make` has put into the target folder, or the one in the PATH.
pub fn server_program() -> PathBuf {
    let made = target_dir().join("tools/redis-server");
    match std::env::var_os("SLUICE_SERVER") {
        Some(given) => root().join(given),
        None if made.exists() => made,
        None => in_path("redis-server").expect("no redis-server in the PATH: run `make test`, which gets it"),
    }
}

/// SLUICE_CLI, or the one beside the server, or the one in the PATH.
pub fn cli_program() -> PathBuf {
    if let Some(given) = std::env::var_os("SLUICE_CLI") {
        return given.into();
    }
    let beside = |name| server_program().with_file_name(name);
    let found = [beside("redis-cli"), beside("valkey-cli")].into_iter().find(|file| file.is_file());
    found
        .or_else(|| in_path("redis-cli"))
        .or_else(|| in_path("valkey-cli"))
        .expect("no redis-cli: run `make test`, which gets it")
}

/// SLUICE_MODULE, or what `make build` made, if nothing that goes into it is newer.
pub fn module_file() -> PathBuf {
    let root = root();
    if let Some(given) = std::env::var_os("SLUICE_MODULE") {
        return root.join(given);
    }
    let file = target_dir().join("release/libsluice.so");
    let built = file.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let newest = newest_source(&root.join("src")).max(newest_source(&root.join("core/src")));
    assert!(
        built >= newest,
        "the module is not built, or older than its source: run `make build` first (or `make test`, which does)"
    );
    file
}

/// When the last of the .rs and .toml files below a folder was changed.
fn newest_source(dir: &Path) -> SystemTime {
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in std::fs::read_dir(dir).expect("the source folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            newest = newest.max(newest_source(&path));
        } else if path.extension().is_some_and(|e| e == "rs" || e == "toml") {
            newest = newest.max(entry.metadata().and_then(|m| m.modified()).unwrap_or(newest));
        }
    }
    newest
}
