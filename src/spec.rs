//! One table of commands. Registration with flags and key specs, COMMAND DOCS, ACL categories, the header of each docs page
//! and a test come from it. It is plain data and imports nothing, so that the tests read the same file.

/// One command.
#[derive(Debug)]
pub struct Command {
    /// The name as docs write it.
    pub name: &'static str,
    /// One sentence, without a full stop.
    pub summary: &'static str,
    /// What a call costs.
    pub complexity: &'static str,
    /// The first version of the module that has it.
    pub since: &'static str,
    /// As COMMAND INFO counts it: the name included, negative for "at least".
    pub arity: i32,
    /// As COMMAND INFO names them.
    pub flags: &'static [&'static str],
    /// ACL categories, without the `@`; the last is the module's own.
    pub categories: &'static [&'static str],
    /// What is done with the key, as key specs name it.
    pub key: &'static [&'static str],
    /// The arguments, the key first.
    pub args: &'static [Arg],
    /// What it answers.
    #[allow(dead_code, reason = "for the docs pages and their tests: the server is told nothing of it")]
    pub replies: Replies,
}

/// What a command answers, for each protocol.
#[derive(Debug)]
#[allow(dead_code, reason = "as `Command::replies`")]
pub struct Replies {
    /// In RESP2.
    pub resp2: &'static str,
    /// In RESP3.
    pub resp3: &'static str,
}

/// One argument or option.
#[derive(Debug)]
pub struct Arg {
    /// Its name in the syntax.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The option word before it, or the word itself for [`Kind::Word`].
    pub token: Option<&'static str>,
    /// May it be left out?
    pub optional: bool,
}

/// What an argument is.
#[derive(Debug)]
pub enum Kind {
    /// The key.
    Key,
    /// Any bytes, or a duration.
    Text,
    /// An integer.
    Integer,
    /// An option word without a value.
    Word,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// Every command, in the order the docs list them.
#[allow(dead_code, reason = "for the docs pages and their tests: registration names each command with what it does")]
pub const ALL: &[&Command] = &[
    &LOCK_ACQUIRE,
    &LOCK_RELEASE,
    &LOCK_RENEW,
    &LOCK_INFO,
    &SEM_ACQUIRE,
    &SEM_RELEASE,
    &SEM_RENEW,
    &SEM_INFO,
    &RL_FIXED,
    &RL_SLIDING,
    &RL_BUCKET,
];

const KEY: Arg = positional("key", Kind::Key);
const TOKEN: Arg = positional("token", Kind::Text);
const TTL: Arg = positional("ttl", Kind::Text);
const LIMIT: Arg = positional("limit", Kind::Integer);
const WINDOW: Arg = positional("window", Kind::Text);
const MODE: Arg = Arg { name: "mode", kind: Kind::OneOf(&["SHARED", "REENTRANT"]), token: None, optional: true };
const BLOCK: Arg = Arg { name: "timeout", kind: Kind::Text, token: Some("BLOCK"), optional: true };
const COST: Arg = Arg { name: "cost", kind: Kind::Integer, token: Some("COST"), optional: true };
const PEEK: Arg = Arg { name: "peek", kind: Kind::Word, token: Some("PEEK"), optional: true };

const fn positional(name: &'static str, kind: Kind) -> Arg {
    Arg { name, kind, token: None, optional: false }
}

const DECISION: Replies = Replies {
    resp2: "Array of five integers: allowed, limit, remaining, retry_after, reset_after",
    resp3: "Array of five integers: allowed, limit, remaining, retry_after, reset_after",
};

/// Takes a lock.
pub const LOCK_ACQUIRE: Command = Command {
    name: "LOCK.ACQUIRE",
    summary: "Takes a lock, prolongs it for the token that holds it, or waits for it",
    complexity: "O(1); O(log N) for SHARED with N being the holders, and to wait with N being those who wait",
    since: "0.1.0",
    arity: -4,
    flags: &["write", "denyoom", "blocking"],
    categories: &["write", "slow", "blocking", "lock"],
    key: &["RW", "update"],
    args: &[KEY, TOKEN, TTL, MODE, BLOCK],
    replies: Replies {
        resp2: "Integer: the fencing token, greater than 0, or 0 if the lock was not acquired",
        resp3: "Integer: the fencing token, greater than 0, or 0 if the lock was not acquired",
    },
};

/// Gives a lock back.
pub const LOCK_RELEASE: Command = Command {
    name: "LOCK.RELEASE",
    summary: "Gives a lock back, if the token holds it",
    complexity: "O(1); O(log N) for SHARED with N being the holders, and for each reader it lets in",
    since: "0.1.0",
    arity: 3,
    flags: &["write", "fast"],
    categories: &["write", "fast", "lock"],
    key: &["RW", "delete"],
    args: &[KEY, TOKEN],
    replies: Replies {
        resp2: "Integer: 1 if the lock was released, 0 if the token does not hold it",
        resp3: "Integer: 1 if the lock was released, 0 if the token does not hold it",
    },
};

/// Sets a lease anew.
pub const LOCK_RENEW: Command = Command {
    name: "LOCK.RENEW",
    summary: "Sets the lease of a lock to end ttl from now, if the token holds it",
    complexity: "O(1); O(log N) for SHARED with N being the holders",
    since: "0.1.0",
    arity: 4,
    flags: &["write", "fast"],
    categories: &["write", "fast", "lock"],
    key: &["RW", "update"],
    args: &[KEY, TOKEN, TTL],
    replies: Replies {
        resp2: "Integer: 1 if the deadline is now + ttl, 0 if the token does not hold the lock",
        resp3: "Integer: 1 if the deadline is now + ttl, 0 if the token does not hold the lock",
    },
};

/// Shows a lock.
pub const LOCK_INFO: Command = Command {
    name: "LOCK.INFO",
    summary: "Shows who holds a lock and who waits for it",
    complexity: "O(1); O(log N) for SHARED with N being the holders; at most 100 holders and 100 waiters are listed",
    since: "0.1.0",
    arity: 2,
    flags: &["readonly"],
    categories: &["read", "slow", "lock"],
    key: &["RO", "access"],
    args: &[KEY],
    replies: Replies {
        resp2: "Array of field, value, field, value: mode, ttl, held, waiters, holders, queue",
        resp3: "Map: mode, ttl, held, waiters, holders (array of maps), queue (array of maps)",
    },
};

/// Takes one of limit permits, prolongs the one the token holds, or waits for one.
pub const SEM_ACQUIRE: Command = Command {
    name: "SEM.ACQUIRE",
    summary: "Takes one of limit permits, prolongs the one the token holds, or waits for one",
    complexity: "O(log N) with N being the holders and the calls that wait",
    since: "0.1.0",
    arity: -5,
    flags: &["write", "denyoom", "blocking"],
    categories: &["write", "slow", "blocking", "lock"],
    key: &["RW", "update"],
    args: &[KEY, TOKEN, TTL, LIMIT, BLOCK],
    replies: Replies {
        resp2: "Integer: the fencing token, greater than 0, or 0 if no permit was acquired",
        resp3: "Integer: the fencing token, greater than 0, or 0 if no permit was acquired",
    },
};

/// Gives a permit back, if the token holds one.
pub const SEM_RELEASE: Command = Command {
    name: "SEM.RELEASE",
    summary: "Gives a permit back, if the token holds one",
    complexity: "O(log N) with N being the holders",
    since: "0.1.0",
    arity: 3,
    flags: &["write", "fast"],
    categories: &["write", "fast", "lock"],
    key: &["RW", "delete"],
    args: &[KEY, TOKEN],
    replies: Replies {
        resp2: "Integer: 1 if the permit was released, 0 if the token does not hold one",
        resp3: "Integer: 1 if the permit was released, 0 if the token does not hold one",
    },
};

/// Sets the lease of a permit to end ttl from now, if the token holds one.
pub const SEM_RENEW: Command = Command {
    name: "SEM.RENEW",
    summary: "Sets the lease of a permit to end ttl from now, if the token holds one",
    complexity: "O(log N) with N being the holders",
    since: "0.1.0",
    arity: 4,
    flags: &["write", "fast"],
    categories: &["write", "fast", "lock"],
    key: &["RW", "update"],
    args: &[KEY, TOKEN, TTL],
    replies: Replies {
        resp2: "Integer: 1 if the deadline is now + ttl, 0 if the token does not hold a permit",
        resp3: "Integer: 1 if the deadline is now + ttl, 0 if the token does not hold a permit",
    },
};

/// Shows who holds permits and who waits for one.
pub const SEM_INFO: Command = Command {
    name: "SEM.INFO",
    summary: "Shows who holds permits and who waits for one",
    complexity: "O(log N) with N being the holders; at most 100 holders and 100 waiters are listed",
    since: "0.1.0",
    arity: 2,
    flags: &["readonly"],
    categories: &["read", "slow", "lock"],
    key: &["RO", "access"],
    args: &[KEY],
    replies: Replies {
        resp2: "Array of field, value, field, value: mode, ttl, held, waiters, holders, queue",
        resp3: "Map: mode, ttl, held, waiters, holders (array of maps), queue (array of maps)",
    },
};

/// A window that starts with its first hit.
pub const RL_FIXED: Command = Command {
    name: "RL.FIXED",
    summary: "Takes units from a fixed window: at most limit of them from the first hit until window later",
    complexity: "O(1)",
    since: "0.1.0",
    arity: -4,
    flags: &["write", "fast"],
    categories: &["write", "fast", "ratelimit"],
    key: &["RW", "access", "update"],
    args: &[KEY, LIMIT, WINDOW, COST, PEEK],
    replies: DECISION,
};

/// An exact sliding window.
pub const RL_SLIDING: Command = Command {
    name: "RL.SLIDING",
    summary: "Takes units from an exact sliding window: at most limit of them in any window",
    complexity: "O(log N) with N being the entries of the log; O(N) when it grows, by a quarter at a time",
    since: "0.1.0",
    arity: -4,
    flags: &["write", "fast"],
    categories: &["write", "fast", "ratelimit"],
    key: &["RW", "access", "update"],
    args: &[KEY, LIMIT, WINDOW, COST, PEEK],
    replies: DECISION,
};

/// A token bucket.
pub const RL_BUCKET: Command = Command {
    name: "RL.BUCKET",
    summary: "Takes tokens from a bucket that holds capacity of them and regains refill per period",
    complexity: "O(1)",
    since: "0.1.0",
    arity: -5,
    flags: &["write", "fast"],
    categories: &["write", "fast", "ratelimit"],
    key: &["RW", "access", "update"],
    args: &[
        KEY,
        positional("capacity", Kind::Integer),
        positional("refill", Kind::Integer),
        positional("period", Kind::Text),
        COST,
        PEEK,
    ],
    replies: DECISION,
};
