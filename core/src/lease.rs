//! The lease of a lock: a deadline on the server's clock, in milliseconds.

/// When a lease of `ttl` ms that begins at `now` ends.
#[inline]
#[must_use]
pub const fn deadline(now: i64, ttl: u64) -> i64 {
    now.saturating_add_unsigned(ttl)
}

/// The deadline a holder's own re-acquire leads to, or `None` where it stays as it is.
///
/// A re-acquire never shortens a lease, and a lock without a deadline keeps none.
#[inline]
#[must_use]
pub const fn prolonged(current: Option<i64>, now: i64, ttl: u64) -> Option<i64> {
    match current {
        Some(current) if current < deadline(now, ttl) => Some(deadline(now, ttl)),
        _ => None,
    }
}

/// The deadline a holder's RENEW leads to, also an earlier one, or `None` where it is that already.
#[inline]
#[must_use]
pub fn renewed(current: Option<i64>, now: i64, ttl: u64) -> Option<i64> {
    let wanted = deadline(now, ttl);
    (current != Some(wanted)).then_some(wanted)
}

/// What a deadline leaves at `now`, as a reply shows it: -1 without a deadline, never below 0.
#[inline]
#[must_use]
pub fn left(current: Option<i64>, now: i64) -> i64 {
    current.map_or(-1, |deadline| deadline.saturating_sub(now).max(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_reacquire_never_shortens_and_a_renew_may() {
        assert_eq!(prolonged(Some(60_000), 0, 1000), None);
        assert_eq!(prolonged(Some(500), 0, 1000), Some(1000));
        assert_eq!(prolonged(None, 0, 1000), None);
        assert_eq!(renewed(Some(60_000), 0, 1000), Some(1000));
        assert_eq!(renewed(None, 0, 1000), Some(1000));
        assert_eq!(renewed(Some(1000), 0, 1000), None);
    }

    #[test]
    fn what_is_left_is_minus_1_without_a_deadline_and_never_below_0() {
        assert_eq!((left(None, 7), left(Some(5), 7), left(Some(9), 7)), (-1, 0, 2));
    }

    proptest! {
        #[test]
        fn no_time_overflows(current in any::<Option<i64>>(), now in any::<i64>(), ttl in any::<u64>()) {
            let later = prolonged(current, now, ttl);
            prop_assert!(later.is_none() || later > current);
            prop_assert_eq!(renewed(current, now, ttl).or(current), Some(deadline(now, ttl)));
            prop_assert!(left(current, now) >= -1);
        }
    }
}
