//! The commands of the module, and what their answers mean.

use crate::error::Error;
use crate::options::Kind;
use crate::time::millis;
use redis::{Cmd, Value};
use std::time::Duration;

/// One lock command, to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub name: &'static str,
    pub cmd: Cmd,
}

impl Call {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, cmd: redis::cmd(name) }
    }

    pub(crate) fn arg<A: redis::ToRedisArgs>(mut self, argument: A) -> Self {
        self.cmd.arg(argument);
        self
    }

    /// The number a lock command answers.
    pub(crate) fn number(&self, answer: &Value) -> Result<u64, Error> {
        match answer {
            Value::Int(n) => u64::try_from(*n).map_err(|_| self.unexpected()),
            _ => Err(self.unexpected()),
        }
    }

    /// The yes or no a lock command answers.
    pub(crate) fn yes(&self, answer: &Value) -> Result<bool, Error> {
        match answer {
            Value::Int(0) => Ok(false),
            Value::Int(1) => Ok(true),
            _ => Err(self.unexpected()),
        }
    }

    pub(crate) const fn unexpected(&self) -> Error {
        Error::Unexpected { command: self.name }
    }
}

/// One holder of one lock: what all its commands have in common.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    pub key: Vec<u8>,
    pub token: String,
    pub kind: Kind,
}

/// A duration as the module reads it, with its unit.
fn with_unit(duration: Duration) -> String {
    format!("{}ms", millis(duration))
}

impl Words {
    /// Ask for the lock. `block`: what to say behind BLOCK.
    pub(crate) fn acquire(&self, ttl: Duration, block: Option<u64>) -> Call {
        let call = match self.kind {
            Kind::Semaphore(limit) => {
                Call::new("SEM.ACQUIRE").arg(&self.key).arg(&self.token).arg(with_unit(ttl)).arg(limit)
            }
            kind => {
                let call = Call::new("LOCK.ACQUIRE").arg(&self.key).arg(&self.token).arg(with_unit(ttl));
                match kind {
                    Kind::Shared => call.arg("SHARED"),
                    Kind::Reentrant => call.arg("REENTRANT"),
                    _ => call,
                }
            }
        };
        match block {
            None => call,
            Some(0) => call.arg("BLOCK").arg("0"),
            Some(ms) => call.arg("BLOCK").arg(format!("{ms}ms")),
        }
    }

    pub(crate) fn renew(&self, ttl: Duration) -> Call {
        let name = if matches!(self.kind, Kind::Semaphore(_)) { "SEM.RENEW" } else { "LOCK.RENEW" };
        Call::new(name).arg(&self.key).arg(&self.token).arg(with_unit(ttl))
    }

    pub(crate) fn release(&self) -> Call {
        let name = if matches!(self.kind, Kind::Semaphore(_)) { "SEM.RELEASE" } else { "LOCK.RELEASE" };
        Call::new(name).arg(&self.key).arg(&self.token)
    }

    /// How often to say RELEASE at most, until the answer is 0. A reentrant hold counts the calls it got, and one whose reply
    /// was lost was made twice; nobody else has this token, so all of them are ours.
    pub(crate) const fn releases(&self) -> u32 {
        if matches!(self.kind, Kind::Reentrant) { 16 } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(call: &Call) -> String {
        let args = call.cmd.args_iter().map(|arg| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => "?".to_owned(),
        });
        args.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_kind_has_its_commands() {
        let ttl = Duration::from_secs(30);
        let words = |kind| Words { key: b"k".to_vec(), token: "t".to_owned(), kind };
        assert_eq!(line(&words(Kind::Exclusive).acquire(ttl, None)), "LOCK.ACQUIRE k t 30000ms");
        assert_eq!(line(&words(Kind::Exclusive).acquire(ttl, Some(0))), "LOCK.ACQUIRE k t 30000ms BLOCK 0");
        assert_eq!(line(&words(Kind::Shared).acquire(ttl, Some(5))), "LOCK.ACQUIRE k t 30000ms SHARED BLOCK 5ms");
        assert_eq!(line(&words(Kind::Reentrant).acquire(ttl, None)), "LOCK.ACQUIRE k t 30000ms REENTRANT");
        assert_eq!(line(&words(Kind::Semaphore(3)).acquire(ttl, Some(9))), "SEM.ACQUIRE k t 30000ms 3 BLOCK 9ms");
        assert_eq!(line(&words(Kind::Semaphore(3)).renew(ttl)), "SEM.RENEW k t 30000ms");
        assert_eq!(line(&words(Kind::Semaphore(3)).release()), "SEM.RELEASE k t");
        assert_eq!(line(&words(Kind::Shared).renew(ttl)), "LOCK.RENEW k t 30000ms");
        assert_eq!(line(&words(Kind::Reentrant).release()), "LOCK.RELEASE k t");
    }

    #[test]
    fn an_answer_of_another_shape_is_an_error() {
        let call = Call::new("LOCK.RENEW");
        assert!(call.yes(&Value::Int(1)).unwrap() && !call.yes(&Value::Int(0)).unwrap());
        for wrong in [Value::Int(2), Value::Int(-1), Value::Nil, Value::Okay] {
            assert!(matches!(call.yes(&wrong), Err(Error::Unexpected { command: "LOCK.RENEW" })));
        }
        assert!(call.number(&Value::Int(-1)).is_err() && call.number(&Value::Nil).is_err());
    }
}
