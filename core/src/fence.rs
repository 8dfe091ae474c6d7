//! Fencing tokens: whole numbers that grow with every grant of a server.
//!
//! The source is `max(last + 1, unix time in microseconds)`. While a server runs, `last` alone makes them grow; across a restart,
//! a promotion or a slot's move, the clock does, for no server grants a lock every microsecond. 2^53 microseconds reach to the year 2255.

/// The source of a server's fencing tokens.
#[derive(Debug, Default)]
pub struct Fence {
    last: u64,
}

impl Fence {
    /// A source that has given none yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { last: 0 }
    }

    /// A source whose newest token is `last`.
    #[inline]
    #[must_use]
    pub const fn after(last: u64) -> Self {
        Self { last }
    }

    /// The next token, larger than every earlier one, at `now_us` (microseconds since 1970).
    #[inline]
    pub fn next(&mut self, now_us: i64) -> u64 {
        let clock = u64::try_from(now_us).unwrap_or(0);
        self.last = self.last.saturating_add(1).max(clock);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_fence_is_the_clock_while_the_clock_is_ahead() {
        let mut fence = Fence::new();
        assert_eq!((fence.next(1_000), fence.next(1_000), fence.next(5_000)), (1_000, 1_001, 5_000));
    }

    proptest! {
        #[test]
        fn fences_grow_whatever_the_clock_does(clock in prop::collection::vec(any::<i64>().prop_map(|t| t >> 8), 1..100)) {
            let mut fence = Fence::new();
            let mut last = 0;
            for now in clock {
                let next = fence.next(now);
                prop_assert!(next > last);
                last = next;
            }
        }
    }
}
