//! One key of a stock server, its clock in the test's hand, and what every limiter's tests need besides.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use sluice_core::limit::{Request, Verdict};

/// A string key as a server without the module keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    pub value: Option<Vec<u8>>,
    pub expires_at: Option<i64>,
}

impl Store {
    /// What the server does before each command: a key is gone once the clock is past its deadline.
    pub fn expire(&mut self, now: i64) {
        if self.expires_at.is_some_and(|at| now > at) {
            *self = Store::default();
        }
    }

    /// `SET key value PXAT at`
    pub fn set(&mut self, value: &[u8], at: i64) {
        self.value = Some(value.to_vec());
        self.expires_at = Some(at);
    }

    /// `SETRANGE key at bytes`, with the zeros the server pads with.
    pub fn set_range(&mut self, at: usize, bytes: &[u8]) {
        let value = self.value.get_or_insert_default();
        if value.len() < at + bytes.len() {
            value.resize(at + bytes.len(), 0);
        }
        value[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// `INCRBY key by`
    pub fn incr_by(&mut self, by: u64) -> i64 {
        let text = self.value.take().map_or_else(|| "0".into(), |v| String::from_utf8(v).unwrap());
        let count = text.parse::<i64>().unwrap().checked_add(i64::try_from(by).unwrap()).unwrap();
        self.value = Some(count.to_string().into_bytes());
        count
    }

    /// `PEXPIREAT key at`
    pub fn expire_at(&mut self, at: i64) {
        assert!(self.value.is_some(), "PEXPIREAT on no key does nothing");
        self.expires_at = Some(at);
    }
}

/// A call of cost 1 that charges.
pub fn hit(limit: u64, window: u64) -> Request {
    Request { limit, refill: 1, window, cost: 1, peek: false }
}

pub fn cost(request: Request, cost: u64) -> Request {
    Request { cost, ..request }
}

pub fn peek(request: Request) -> Request {
    Request { peek: true, ..request }
}

pub fn allowed(v: Verdict, remaining: u64) -> bool {
    v.allowed && v.retry_after == 0 && v.remaining == remaining
}

pub fn refused(v: Verdict, retry_after: i64) -> bool {
    !v.allowed && v.retry_after == retry_after
}

/// What must hold of every verdict, whatever is stored and whenever it is asked.
pub fn check_shape(v: &Verdict, r: &Request) {
    assert_eq!(v.limit, r.limit);
    assert!(v.remaining <= r.limit, "{v:?} {r:?}");
    assert!(v.reset_after >= 0, "{v:?} {r:?}");
    match v.allowed {
        true => assert_eq!(v.retry_after, 0),
        false if r.cost > r.limit => assert_eq!(v.retry_after, -1),
        false => assert!(v.retry_after >= 1, "{v:?} {r:?}"),
    }
    if r.cost == 0 {
        assert!(v.allowed);
    } else if r.cost > r.limit {
        assert!(!v.allowed);
    }
}

/// How many random cases; few under Miri, which is some hundred times slower.
pub fn cases(usual: u32) -> u32 {
    if cfg!(miri) { 4 } else { usual }
}

/// How many rounds a test goes that usually goes so many; a hundredth under Miri, which goes through the same code in each.
pub fn rounds(usual: u64) -> u64 {
    if cfg!(miri) { usual.div_ceil(100) } else { usual }
}

/// How long a random history gets at most, which is looked at as a whole after each step.
pub fn history(usual: usize) -> usize {
    if cfg!(miri) { usual / 4 } else { usual }
}

/// How many steps a random walk takes; `LONG=1` asks for the long one.
pub fn steps(usual: u64, long: u64) -> u64 {
    if cfg!(miri) {
        return usual.div_ceil(20_000).max(4);
    }
    if std::env::var_os("LONG").is_some_and(|v| v == "1") { long } else { usual }
}

/// SplitMix64 (Steele, Lea, Flood 2014): a walk of millions of steps needs a generator that costs nothing.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// `1..=high`, every order of magnitude alike.
    pub fn magnitude(&mut self, high: u64) -> u64 {
        let bits = self.below(u64::from(64 - high.leading_zeros())) + 1;
        self.between(1, if bits == 64 { u64::MAX } else { (1 << bits) - 1 }).min(high)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
