//! Rate limits and the decisions of the server.

use crate::command::Call;
use crate::error::Error;
use crate::time::{millis, millis_up};
use redis::Value;
use std::time::Duration;

/// A rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// RL.FIXED: at most `limit` in a window that begins with its first hit.
    Fixed {
        /// How many.
        limit: u64,
        /// In how long.
        window: Duration,
    },
    /// RL.SLIDING: at most `limit` in any window, exactly.
    Sliding {
        /// How many.
        limit: u64,
        /// In how long.
        window: Duration,
    },
    /// RL.BUCKET: `refill` in each period, and up to `capacity` at once.
    Bucket {
        /// How many at once.
        capacity: u64,
        /// How many come back.
        refill: u64,
        /// In how long.
        period: Duration,
    },
}

impl Limit {
    /// At most `limit` in a window that begins with its first hit.
    #[must_use]
    pub const fn fixed(limit: u64, window: Duration) -> Self {
        Self::Fixed { limit, window }
    }

    /// At most `limit` in any window, exactly.
    #[must_use]
    pub const fn sliding(limit: u64, window: Duration) -> Self {
        Self::Sliding { limit, window }
    }

    /// `refill` in each period, and up to `capacity` at once.
    #[must_use]
    pub const fn bucket(capacity: u64, refill: u64, period: Duration) -> Self {
        Self::Bucket { capacity, refill, period }
    }

    /// How many units there are at most.
    #[must_use]
    pub const fn quota(&self) -> u64 {
        match *self {
            Self::Fixed { limit, .. } | Self::Sliding { limit, .. } => limit,
            Self::Bucket { capacity, .. } => capacity,
        }
    }

    /// In how long the quota comes back whole: the window, or the time an empty bucket takes to fill.
    #[must_use]
    pub fn window(&self) -> Duration {
        match *self {
            Self::Fixed { window, .. } | Self::Sliding { window, .. } => window,
            Self::Bucket { capacity, refill, period } => {
                let fill = u128::from(capacity).saturating_mul(period.as_nanos()).div_ceil(u128::from(refill.max(1)));
                Duration::from_nanos(u64::try_from(fill).unwrap_or(u64::MAX))
            }
        }
    }

    /// The call that asks.
    pub(crate) fn call(&self, key: &[u8], cost: u64, peek: bool) -> Call {
        let unit = |duration| format!("{}ms", millis(duration));
        let call = match *self {
            Self::Fixed { limit, window } => Call::new("RL.FIXED").arg(key).arg(limit).arg(unit(window)),
            Self::Sliding { limit, window } => Call::new("RL.SLIDING").arg(key).arg(limit).arg(unit(window)),
            Self::Bucket { capacity, refill, period } => {
                Call::new("RL.BUCKET").arg(key).arg(capacity).arg(refill).arg(unit(period))
            }
        };
        let call = if cost == 1 { call } else { call.arg("COST").arg(cost) };
        if peek { call.arg("PEEK") } else { call }
    }
}

/// What a limiter says to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the call may go on.
    pub allowed: bool,
    /// The limit or capacity.
    pub limit: u64,
    /// Whole units left after this call; the true number also on a refusal.
    pub remaining: u64,
    /// How long it is until this same call would pass if nobody else came: nothing if it is allowed, `None` if never, for its
    /// cost is above the limit.
    pub retry_after: Option<Duration>,
    /// How long it is until the limiter is as new.
    pub reset_after: Duration,
}

impl Decision {
    pub(crate) fn read(call: &Call, answer: &Value) -> Result<Self, Error> {
        let Value::Array(fields) = answer else { return Err(call.unexpected()) };
        let [Value::Int(allowed), Value::Int(limit), Value::Int(remaining), Value::Int(retry), Value::Int(reset)] =
            fields.as_slice()
        else {
            return Err(call.unexpected());
        };
        let whole = |n: &i64| u64::try_from(*n).map_err(|_| call.unexpected());
        Ok(Self {
            allowed: match allowed {
                0 => false,
                1 => true,
                _ => return Err(call.unexpected()),
            },
            limit: whole(limit)?,
            remaining: whole(remaining)?,
            retry_after: if *retry == -1 { None } else { Some(Duration::from_millis(whole(retry)?)) },
            reset_after: Duration::from_millis(whole(reset)?),
        })
    }

    /// The value of a `Retry-After` field (RFC 9110): whole seconds, rounded up so that who obeys is not too early. `None` if the
    /// call was allowed, or can never pass.
    #[must_use]
    pub fn retry_after_value(&self) -> Option<String> {
        if self.allowed {
            return None;
        }
        self.retry_after.map(|after| seconds_up(after).max(1).to_string())
    }

    /// The value of a `RateLimit` field (draft-ietf-httpapi-ratelimit-headers-11): `"name";r=remaining;t=seconds`.
    ///
    /// `t` is the time within which no more than `r` may be used. On a refusal that is the same as `Retry-After`, as the draft wants
    /// it; else it is the time until the limiter is as new, in which who uses no more than `r` is never refused.
    #[must_use]
    pub fn ratelimit_value(&self, policy: &Policy) -> String {
        let until = match self.retry_after {
            Some(after) if !self.allowed => seconds_up(after).max(1),
            _ => seconds_up(self.reset_after),
        };
        format!("{};r={};t={until}", policy.quoted, self.remaining.min(LARGEST))
    }
}

/// The largest integer of a structured field.
const LARGEST: u64 = 999_999_999_999_999;

fn seconds_up(duration: Duration) -> u64 {
    millis_up(duration).div_ceil(1000)
}

/// The name of a limit, and its rate, as HTTP header fields give them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    quoted: String,
    limit: Limit,
}

impl Policy {
    /// A limit under a name of printable ASCII characters, such as `default` or `per-user`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name has other characters.
    pub fn new(name: &str, limit: Limit) -> Result<Self, Error> {
        if !name.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
            return Err(Error::Invalid("the name of the policy is not of printable ASCII characters"));
        }
        let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
        Ok(Self { quoted: format!("\"{escaped}\""), limit })
    }

    /// The value of a `RateLimit-Policy` field (draft-ietf-httpapi-ratelimit-headers-11): `"name";q=quota;w=seconds`. The window
    /// is left out where it is no whole number of seconds, as the field has nothing finer.
    #[must_use]
    pub fn value(&self) -> String {
        let window = self.limit.window();
        let quota = self.limit.quota().min(LARGEST);
        if window.subsec_nanos() == 0 && !window.is_zero() {
            format!("{};q={quota};w={}", self.quoted, window.as_secs())
        } else {
            format!("{};q={quota}", self.quoted)
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: Duration = Duration::from_secs(1);

    fn decision(fields: [i64; 5]) -> Result<Decision, Error> {
        Decision::read(&Call::new("RL.BUCKET"), &Value::Array(fields.map(Value::Int).to_vec()))
    }

    #[test]
    fn five_integers_are_a_decision() {
        let yes = decision([1, 100, 99, 0, 50]).unwrap();
        assert!(yes.allowed && yes.limit == 100 && yes.remaining == 99);
        assert_eq!((yes.retry_after, yes.reset_after), (Some(Duration::ZERO), Duration::from_millis(50)));
        let never = decision([0, 100, 100, -1, 0]).unwrap();
        assert_eq!((never.allowed, never.retry_after), (false, None));
        for wrong in [[2, 1, 1, 0, 0], [1, -1, 1, 0, 0], [1, 1, -1, 0, 0], [0, 1, 1, -2, 0], [1, 1, 1, 0, -1]] {
            assert!(matches!(decision(wrong), Err(Error::Unexpected { command: "RL.BUCKET" })), "{wrong:?}");
        }
        let read = |value| Decision::read(&Call::new("RL.FIXED"), &value);
        assert!(read(Value::Nil).is_err() && read(Value::Array(vec![Value::Int(1)])).is_err());
    }

    #[test]
    fn header_values_are_those_of_the_draft() {
        let policy = Policy::new("default", Limit::fixed(100, 60 * S)).unwrap();
        assert_eq!(policy.value(), "\"default\";q=100;w=60");
        let yes = decision([1, 100, 50, 0, 29_001]).unwrap();
        assert_eq!(yes.ratelimit_value(&policy), "\"default\";r=50;t=30");
        assert_eq!(yes.retry_after_value(), None);
        let no = decision([0, 100, 0, 4001, 60_000]).unwrap();
        assert_eq!(no.ratelimit_value(&policy), "\"default\";r=0;t=5");
        assert_eq!(no.retry_after_value().unwrap(), "5");
        let soon = decision([0, 100, 0, 1, 1]).unwrap();
        assert_eq!(soon.retry_after_value().unwrap(), "1");
        let never = decision([0, 100, 100, -1, 2000]).unwrap();
        assert_eq!(
            (never.retry_after_value(), never.ratelimit_value(&policy)),
            (None, "\"default\";r=100;t=2".to_owned())
        );
    }

    #[test]
    fn the_window_of_a_bucket_is_the_time_it_takes_to_fill() {
        let value = |limit| Policy::new("b", limit).unwrap().value();
        assert_eq!(value(Limit::bucket(100, 20, S)), "\"b\";q=100;w=5");
        assert_eq!(value(Limit::bucket(1, 2, S)), "\"b\";q=1");
        assert_eq!(value(Limit::sliding(3, Duration::from_millis(1500))), "\"b\";q=3");
        assert_eq!(value(Limit::bucket(u64::MAX, 1, Duration::MAX)), "\"b\";q=999999999999999");
    }

    #[test]
    fn a_policy_has_a_name_that_a_header_can_carry() {
        assert_eq!(Policy::new("a\"b\\c", Limit::fixed(1, S)).unwrap().value(), "\"a\\\"b\\\\c\";q=1;w=1");
        for wrong in ["a\r\nSet-Cookie: x", "ä", "\0"] {
            assert!(Policy::new(wrong, Limit::fixed(1, S)).is_err());
        }
    }

    #[test]
    fn the_calls_are_those_of_the_module() {
        let line = |call: Call| String::from_utf8(call.cmd.get_packed_command()).unwrap();
        let call = line(Limit::bucket(100, 20, S).call(b"k", 3, true));
        assert!(
            call.contains("RL.BUCKET") && call.contains("1000ms") && call.contains("COST") && call.contains("PEEK")
        );
        let call = line(Limit::sliding(5, S).call(b"k", 1, false));
        assert!(call.starts_with("*4\r\n$10\r\nRL.SLIDING"), "{call}");
    }

    proptest! {
        #[test]
        fn who_obeys_retry_after_is_never_too_early(retry in 1i64..10_000_000, reset in 0i64..10_000_000) {
            let no = decision([0, 10, 0, retry, reset.max(retry)]).unwrap();
            let seconds: i64 = no.retry_after_value().unwrap().parse().unwrap();
            prop_assert!(seconds * 1000 >= retry && (seconds - 1) * 1000 < retry);
            let policy = Policy::new("p", Limit::fixed(10, S)).unwrap();
            let end = format!(";t={seconds}");
            prop_assert!(no.ratelimit_value(&policy).ends_with(&end));
        }
    }
}
