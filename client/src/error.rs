//! What can go wrong.

use crate::lease::Loss;
use redis::RedisError;
use std::error::Error as StdError;
use std::sync::Arc;

/// What can go wrong. To lose is none of it: that is an answer (`None`, or a decision that says no).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server does not know the command: it runs without the module, or with an older one.
    #[error(
        "the server does not know {command}: load the sluice module, with the line \
         `loadmodule /usr/lib/redis/modules/libsluice.so` in its redis.conf and a restart, \
         or with `MODULE LOAD /usr/lib/redis/modules/libsluice.so`"
    )]
    ModuleMissing {
        /// The command.
        command: &'static str,
    },
    /// DEADLOCK: this would have waited for itself.
    #[error("the server answered: DEADLOCK {0}")]
    Deadlock(String),
    /// QUEUEFULL: too many wait for the key already.
    #[error("the server answered: QUEUEFULL {0}")]
    QueueFull(String),
    /// UNBLOCKED: somebody ended the wait (`CLIENT UNBLOCK … ERROR`), or the server became a replica.
    #[error("the server answered: UNBLOCKED {0}")]
    Unblocked(String),
    /// WRONGTYPE: the key is something else.
    #[error("the server answered: WRONGTYPE {0}")]
    WrongType(String),
    /// Any other error of the server.
    #[error("the server answered: {code} {message}")]
    Server {
        /// The word it begins with: `ERR`, `OOM`, `READONLY`, `NOPERM` …
        code: String,
        /// The rest of the line.
        message: String,
    },
    /// No answer in time. Whether the server has done, or will yet do, what it was told is not known.
    #[error("the server did not answer in time")]
    Timeout,
    /// No connection, or none any more.
    #[error("the connection failed: {0}")]
    Connection(#[source] RedisError),
    /// Fewer servers than a quorum could be asked.
    #[error("at least {failed} of {servers} servers did not answer, and {quorum} are needed")]
    NoQuorum {
        /// How many did not answer, or with an error; there may be more, for it ends as soon as it is certain.
        failed: usize,
        /// How many there are.
        servers: usize,
        /// How many are needed.
        quorum: usize,
    },
    /// The lease was lost.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
    /// An option that cannot be.
    #[error("invalid option: {0}")]
    Invalid(&'static str),
    /// An answer that none of the module's commands gives.
    #[error("the server gave an answer that does not belong to {command}")]
    Unexpected {
        /// The command.
        command: &'static str,
    },
    /// The system has no thread for the watchdog.
    #[error("no thread could be started: {0}")]
    Thread(#[source] std::io::Error),
    /// The system has no random numbers to give.
    #[error("the system gave no random numbers for a token")]
    NoRandomness,
}

impl Error {
    /// What a failed call of `command` means.
    pub(crate) fn of(error: RedisError, command: &'static str) -> Self {
        if error.is_timeout() {
            return Self::Timeout;
        }
        let Some(code) = error.code() else {
            return Self::Connection(error);
        };
        let message = error.detail().unwrap_or_default().to_owned();
        match code {
            "ERR" if message.starts_with("unknown command") => Self::ModuleMissing { command },
            "DEADLOCK" => Self::Deadlock(message),
            "QUEUEFULL" => Self::QueueFull(message),
            "UNBLOCKED" => Self::Unblocked(message),
            "WRONGTYPE" => Self::WrongType(message),
            code => Self::Server { code: code.to_owned(), message },
        }
    }

    /// Whether the command may have been carried out all the same, or may be yet.
    pub(crate) const fn outcome_is_unknown(&self) -> bool {
        matches!(self, Self::Timeout | Self::Connection(_))
    }

    /// Whether the server itself said so that the lock is no longer what it was.
    pub(crate) const fn says_gone(&self) -> bool {
        matches!(self, Self::WrongType(_))
    }
}

/// Whether it is the server that says so, over a connection that goes on.
pub(crate) fn from_server(error: &RedisError) -> bool {
    error.code().is_some()
}

/// Whether a signal ended the read: on a socket with a timeout the system does not go on by itself (signal(7)), and the redis
/// crate does not either. A sampling profiler sends such signals, and so does being stopped and continued.
pub(crate) fn interrupted(error: &RedisError) -> bool {
    // (The crate tells no kind of I/O error but those it has words for, and keeps the error in an Arc.)
    let io =
        StdError::source(error).and_then(|source| match source.downcast_ref::<Arc<dyn StdError + Send + Sync>>() {
            Some(kept) => kept.downcast_ref::<std::io::Error>(),
            None => source.downcast_ref(),
        });
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(line: &str) -> RedisError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let redis::Value::ServerError(error) = value else { panic!("{value:?}") };
        error.into()
    }

    #[test]
    fn a_server_without_the_module_gets_an_error_that_says_how_to_load_it() {
        let error = Error::of(
            server("ERR unknown command 'LOCK.ACQUIRE', with args beginning with: 'k' 'secret' '30s' "),
            "LOCK.ACQUIRE",
        );
        assert!(matches!(error, Error::ModuleMissing { command: "LOCK.ACQUIRE" }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("loadmodule /usr/lib/redis/modules/libsluice.so"), "{text}");
        assert!(text.contains("MODULE LOAD") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn each_code_of_the_module_has_a_variant_and_others_keep_their_code() {
        let of = |line: &str| Error::of(server(line), "LOCK.ACQUIRE");
        assert!(matches!(of("DEADLOCK the lock is yours"), Error::Deadlock(m) if m == "the lock is yours"));
        assert!(matches!(of("QUEUEFULL too many"), Error::QueueFull(_)));
        assert!(matches!(of("UNBLOCKED client unblocked"), Error::Unblocked(_)));
        assert!(matches!(of("WRONGTYPE no lock"), Error::WrongType(_)));
        for code in ["ERR", "OOM", "READONLY", "NOPERM", "MOVED", "CLUSTERDOWN", "MISCONF", "LOADING", "NEWCODE"] {
            let error = of(&format!("{code} and more"));
            assert!(
                matches!(&error, Error::Server { code: c, message } if c == code && message == "and more"),
                "{error:?}"
            );
            assert!(!error.outcome_is_unknown());
        }
    }

    #[test]
    fn an_io_error_leaves_the_outcome_open() {
        let io = |kind| Error::of(RedisError::from(std::io::Error::from(kind)), "LOCK.ACQUIRE");
        assert!(matches!(io(std::io::ErrorKind::TimedOut), Error::Timeout));
        assert!(matches!(io(std::io::ErrorKind::WouldBlock), Error::Timeout));
        assert!(matches!(io(std::io::ErrorKind::ConnectionReset), Error::Connection(_)));
        assert!(io(std::io::ErrorKind::Interrupted).outcome_is_unknown());
    }

    #[test]
    fn a_signal_is_told_from_a_connection_that_is_gone() {
        let io = |kind| interrupted(&RedisError::from(std::io::Error::from(kind)));
        assert!(io(std::io::ErrorKind::Interrupted));
        assert!(!io(std::io::ErrorKind::ConnectionReset) && !io(std::io::ErrorKind::WouldBlock));
        assert!(!interrupted(&server("ERR Interrupted system call")));
    }
}
