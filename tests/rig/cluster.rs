//! A cluster of one's own, made and changed by commands alone.

use super::line::knows;
use super::{Builder, Client, SOON, Server, Value, ValueExt, args, ms, wait_for, wait_until};
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

/// How many slots there are.
pub const SLOTS: u16 = 16384;

/// How long a node may be silent before the others take it for dead.
const NODE_TIMEOUT: Duration = ms(3000);

/// Primaries that share the slots, and replicas of the first.
pub struct Cluster {
    /// The primaries, in the order of their slots.
    pub nodes: Vec<Server>,
    /// The replicas of the first primary.
    pub replicas: Vec<Server>,
    ids: Vec<String>,
    /// The first slot of each primary, and one that is none.
    firsts: Vec<u16>,
}

/// What the servers offer for a slot that moves at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// `CLUSTER MIGRATESLOTS`, asked of the source.
    Export,
    /// `CLUSTER MIGRATION IMPORT`, asked of the target.
    Import,
}

/// The options that make a server a node of a cluster.
pub fn node() -> Builder {
    let timeout = NODE_TIMEOUT.as_millis().to_string();
    Server::builder().args(&["--cluster-enabled", "yes", "--cluster-node-timeout", &timeout])
}

impl Cluster {
    /// Three primaries that share the slots evenly, the first with so many replicas, all with the module.
    #[track_caller]
    pub fn start(replicas: usize) -> Self {
        Self::of(&[5461, 5461, 5462], replicas, &[])
    }

    /// A cluster to be described: how many slots each primary has, how many replicas the first, and options for every node.
    #[track_caller]
    pub fn of(shares: &[u16], replicas: usize, options: &[&str]) -> Self {
        let start = || node().args(options).start();
        let nodes: Vec<Server> = shares.iter().map(|_| start()).collect();
        let replicas: Vec<Server> = (0..replicas).map(|_| start()).collect();
        let mut firsts = vec![0];
        for (at, node) in nodes.iter().enumerate() {
            // Epochs of their own, or they would have to agree on them first.
            node.ok(&args!["CLUSTER", "SET-CONFIG-EPOCH", at + 1]);
            firsts.push(firsts[at] + shares[at]);
            node.ok(&args!["CLUSTER", "ADDSLOTSRANGE", firsts[at], firsts[at + 1] - 1]);
        }
        assert_eq!(firsts.last(), Some(&SLOTS), "all slots are given out");
        let ids = nodes.iter().map(id_of).collect();
        let cluster = Self { nodes, replicas, ids, firsts };
        let all = || cluster.all();
        let (size, mut met) = (all().count(), None);
        wait_until(SOON, "the nodes know each other", || {
            // On a busy machine a first meeting may end before the two have shaken hands.
            if met.is_none_or(|met: Instant| met.elapsed() > NODE_TIMEOUT) {
                for other in all().skip(1).filter(|other| known(other) < size) {
                    cluster.nodes[0].ok(&args!["CLUSTER", "MEET", "127.0.0.1", other.port()]);
                }
                met = Some(Instant::now());
            }
            all().all(|node| known(node) == size)
        });
        for follower in &cluster.replicas {
            follower.ok(&args!["CLUSTER", "REPLICATE", &cluster.ids[0]]);
        }
        for node in all() {
            wait_for(SOON, "the cluster is whole", || state(node), |state| state == "ok");
        }
        for follower in &cluster.replicas {
            wait_until(SOON, "its link is up", || follower.info("replication")["master_link_status"] == "up");
        }
        // Every node knows who follows whom, and by which address to send a client on.
        for node in all() {
            wait_until(SOON, "all is known everywhere", || cluster.is_known_to(node));
        }
        cluster
    }

    fn is_known_to(&self, node: &Server) -> bool {
        let nodes = node.call(&["CLUSTER", "NODES"]).text();
        let replicas = nodes.lines().filter(|line| line.split(' ').nth(2).is_some_and(|f| f.contains("slave"))).count();
        let addressed = nodes.lines().filter(|line| !line.contains("noaddr") && !line.contains("handshake")).count();
        replicas == self.replicas.len() && addressed == self.all().count()
    }

    /// All nodes.
    pub fn all(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().chain(&self.replicas)
    }

    /// The id of a primary.
    pub fn id(&self, node: usize) -> &str {
        &self.ids[node]
    }

    /// The slot of a key.
    #[track_caller]
    pub fn slot(&self, key: &str) -> u16 {
        u16::try_from(self.nodes[0].call(&["CLUSTER", "KEYSLOT", key]).int()).unwrap()
    }

    /// The first `n` keys that begin with `prefix` and belong to that primary, as the slots were given out.
    #[track_caller]
    pub fn keys_of(&self, node: usize, prefix: &str, n: usize) -> Vec<String> {
        let mut client = self.nodes[0].client();
        let own = self.firsts[node]..self.firsts[node + 1];
        (0..)
            .map(|number| format!("{prefix}{number}"))
            .filter(|key| own.contains(&u16::try_from(client.call(&["CLUSTER", "KEYSLOT", key]).int()).unwrap()))
            .take(n)
            .collect()
    }

    /// `host:port` of a primary.
    pub fn address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.nodes[node].port())
    }

    /// The first half of a classic move: the source asks for what it has not, the target takes what it is asked for.
    #[track_caller]
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        self.nodes[to].ok(&args!["CLUSTER", "SETSLOT", slot, "IMPORTING", &self.ids[from]]);
        self.nodes[from].ok(&args!["CLUSTER", "SETSLOT", slot, "MIGRATING", &self.ids[to]]);
    }

    /// All keys of the slot go to the target.
    #[track_caller]
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let mut source = self.nodes[from].client();
        loop {
            let keys = source.call(&args!["CLUSTER", "GETKEYSINSLOT", slot, 100]).array();
            if keys.is_empty() {
                return;
            }
            let mut migrate = args!["MIGRATE", "127.0.0.1", self.nodes[to].port(), "", 0, 10_000, "KEYS"];
            migrate.extend(keys.iter().map(ValueExt::bytes));
            let reply = source.call(&migrate);
            // Keys may have ended between the two.
            assert!(["OK", "NOKEY"].contains(&reply.text().as_str()), "MIGRATE: {reply:?}");
        }
    }

    /// The last step: all are told whose the slot is now. The target first, so that nobody is sent to who knows nothing of it.
    #[track_caller]
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        for node in [to, from].into_iter().chain((0..self.nodes.len()).filter(|n| ![to, from].contains(n))) {
            self.nodes[node].ok(&args!["CLUSTER", "SETSLOT", slot, "NODE", &self.ids[to]]);
        }
    }

    /// What these servers offer for a move at once, if anything.
    pub fn atomic(&self) -> Option<Atomic> {
        if knows(&self.nodes[0], "cluster|migrateslots") {
            Some(Atomic::Export)
        } else if knows(&self.nodes[0], "cluster|migration") {
            Some(Atomic::Import)
        } else {
            None
        }
    }

    /// Begins a move at once, and returns as soon as the servers have taken the order.
    #[track_caller]
    pub fn begin_atomic_move(&self, how: Atomic, slot: u16, from: usize, to: usize) {
        match how {
            Atomic::Export => {
                let ask = args!["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", &self.ids[to]];
                self.nodes[from].ok(&ask);
            }
            Atomic::Import => {
                let task = self.nodes[to].call(&args!["CLUSTER", "MIGRATION", "IMPORT", slot, slot]);
                assert!(task.error().is_none(), "{task:?}");
            }
        }
    }

    /// Waits until every node knows the slot as that primary's.
    #[track_caller]
    pub fn wait_for_owner(&self, slot: u16, owner: usize) {
        for node in self.all() {
            let look = || owner_of(node, slot);
            wait_for(SOON, "every node knows the new owner", look, |known| known.as_ref() == Some(&self.ids[owner]));
        }
    }

    /// All of a classic move.
    #[track_caller]
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        self.move_keys(slot, from, to);
        self.end_move(slot, from, to);
    }
}

impl Server {
    /// A command that must be answered with OK.
    #[track_caller]
    pub fn ok<W: AsRef<[u8]>>(&self, words: &[W]) {
        let reply = self.call(words);
        assert_eq!(reply, Value::Okay, "{}", super::client::shown(words));
    }
}

/// The id of a node.
pub fn id_of(node: &Server) -> String {
    node.call(&["CLUSTER", "MYID"]).text()
}

/// A field of `CLUSTER INFO`.
pub fn info(node: &Server, field: &str) -> String {
    let text = node.call(&["CLUSTER", "INFO"]).text();
    let found = text.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| *name == field);
    found.map(|(_, value)| value.to_owned()).unwrap_or_default()
}

impl Cluster {
    /// Waits until all know a replica for that primary's. Before that the primary does not listen to it, and nobody votes for it.
    #[track_caller]
    pub fn wait_for_replica(&self, primary: &Server, replica: &Server) {
        let (primary_id, id) = (id_of(primary), id_of(replica));
        let follows = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            words[0] == id && words[2].contains("slave") && words[3] == primary_id
        };
        for node in self.all() {
            wait_until(SOON, "all know the replica for one", || {
                node.call(&["CLUSTER", "NODES"]).text().lines().any(follows)
            });
        }
    }

    /// Has a replica take over from its primary, which must be there and agree; returns when it is on its way.
    #[track_caller]
    pub fn begin_failover(&self, primary: &Server, replica: &Server) {
        self.wait_for_replica(primary, replica);
        super::wait_for_sync(primary, replica);
        replica.ok(&["CLUSTER", "FAILOVER"]);
    }
}

/// `ok` or `fail`, as the node sees it.
pub fn state(node: &Server) -> String {
    info(node, "cluster_state")
}

fn known(node: &Server) -> usize {
    let nodes = node.call(&["CLUSTER", "NODES"]).text();
    nodes.lines().filter(|line| !line.contains("handshake")).count()
}

/// The id of the node that a slot belongs to, as one node sees it.
fn owner_of(node: &Server, slot: u16) -> Option<String> {
    let nodes = node.call(&["CLUSTER", "NODES"]).text();
    let covers = |range: &str| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        matches!((from.parse::<u16>(), to.parse::<u16>()), (Ok(from), Ok(to)) if (from..=to).contains(&slot))
    };
    let line = nodes.lines().find(|line| line.split_whitespace().skip(8).any(covers))?;
    line.split(' ').next().map(ToOwned::to_owned)
}

/// The slot and the address that a redirection of that code names: `MOVED 42 127.0.0.1:7000`.
#[track_caller]
pub fn redirected(reply: &Value, code: &str) -> (u16, String) {
    let line = reply.error().unwrap_or_else(|| panic!("no {code} but {reply:?}"));
    let words: Vec<&str> = line.split(' ').collect();
    assert!(words.len() == 3 && words[0] == code, "no {code} but {line}");
    (words[1].parse().unwrap_or_else(|_| panic!("no slot in {line}")), words[2].to_owned())
}

/// The same command behind an ASKING.
#[track_caller]
pub fn asking(client: &mut Client, command: &[Vec<u8>]) -> Value {
    client.pipeline(&[args!["ASKING"], command.to_vec()]).remove(1)
}

/// A client of the cluster: it keeps a connection to every node, learns whose a slot is, and goes where it is sent.
pub struct Router {
    ports: Vec<u16>,
    open: std::collections::HashMap<u16, Client>,
    owners: std::collections::HashMap<Vec<u8>, u16>,
}

/// How a command of a [`Router`] came to its answer.
#[derive(Debug)]
pub struct Routed {
    /// The answer.
    pub reply: Value,
    /// Who gave it.
    pub port: u16,
    /// The codes of the redirections on the way, in order.
    pub way: Vec<String>,
}

impl Router {
    /// A client that knows the nodes and nothing of the slots.
    pub fn new(cluster: &Cluster) -> Self {
        let ports = cluster.all().map(Server::port).collect();
        Self { ports, open: Default::default(), owners: Default::default() }
    }

    /// Sends a command whose second word is its key to where that belongs. What a node is not able to answer (it is on its
    /// way, down, a replica now, gone) is asked again a little later.
    #[track_caller]
    pub fn call(&mut self, words: &[Vec<u8>]) -> Routed {
        let (key, deadline) = (words[1].clone(), Instant::now() + SOON);
        let (mut way, mut ask) = (Vec::new(), None);
        let mut at = self.owners.get(&key).copied().unwrap_or(self.ports[0]);
        loop {
            let port = ask.unwrap_or(at);
            let reply = self.try_at(port, words, ask.take().is_some());
            let error = match &reply {
                Ok(reply) => reply.error().unwrap_or_default(),
                Err(_) => "GONE".to_owned(),
            };
            let code = error.split(' ').next().unwrap_or_default().to_owned();
            let target = || error.rsplit(':').next().and_then(|port| port.parse::<u16>().ok()).expect("a port");
            match code.as_str() {
                "MOVED" => at = target(),
                "ASK" => ask = Some(target()),
                "TRYAGAIN" | "CLUSTERDOWN" | "UNBLOCKED" | "LOADING" | "MASTERDOWN" => std::thread::sleep(ms(2)),
                "GONE" => {
                    self.open.remove(&port);
                    at = self.ports[way.len() % self.ports.len()];
                    std::thread::sleep(ms(2));
                }
                _ => {
                    self.owners.insert(key, at);
                    return Routed { reply: reply.expect("it has come"), port, way };
                }
            }
            way.push(code);
            assert!(Instant::now() < deadline, "sent about for too long: {way:?}");
        }
    }

    fn try_at(&mut self, port: u16, words: &[Vec<u8>], asking: bool) -> std::io::Result<Value> {
        let client = match self.open.entry(port) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(place) => place.insert(Client::connect(port)?),
        };
        let sent = !asking || (client.send_if_open(&["ASKING"]) && client.read(SOON).is_ok());
        if !(sent && client.send_if_open(words)) {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        client.read(SOON)
    }
}
