//! Arithmetic on times that neither panics nor wraps.

use std::time::{Duration, Instant};

/// What stands for "never" where an instant is wanted: far enough, and well inside of what the clock can say.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// `by` after `from`.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    from.checked_add(by.min(FAR)).unwrap_or(from)
}

/// How long it is until `until`; nothing if that is past.
pub(crate) fn left(now: Instant, until: Instant) -> Duration {
    until.saturating_duration_since(now)
}

/// Whole milliseconds, rounded down.
pub(crate) fn whole_ms(duration: Duration) -> Duration {
    Duration::from_millis(millis(duration))
}

/// The number of whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The number of milliseconds, a begun one counted in full.
pub(crate) fn millis_up(duration: Duration) -> u64 {
    let whole = millis(duration);
    if duration > Duration::from_millis(whole) { whole.saturating_add(1) } else { whole }
}

/// A part of a duration, by a number from 0 to 1.
pub(crate) fn part(of: Duration, fraction: f64) -> Duration {
    let fraction = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 };
    Duration::try_from_secs_f64(of.as_secs_f64() * fraction).unwrap_or(Duration::ZERO).min(of)
}

/// One of `parts` equal parts.
pub(crate) fn divided(duration: Duration, parts: u32) -> Duration {
    duration.checked_div(parts).unwrap_or_default()
}

/// When to give up waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Ask once.
    None,
    /// Wait until then.
    Until(Instant),
    /// Wait without end.
    Endless,
}

impl Patience {
    /// Patience for that long from now.
    pub(crate) fn lasting(now: Instant, timeout: Duration) -> Self {
        if timeout.is_zero() {
            Self::None
        } else if timeout >= FAR {
            Self::Endless
        } else {
            Self::Until(later(now, timeout))
        }
    }

    /// How much of it is left.
    pub(crate) fn left(self, now: Instant) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Until(deadline) => left(now, deadline),
            Self::Endless => Duration::MAX,
        }
    }

    /// What to say behind BLOCK: milliseconds, or 0 for no end. `None` where there is no time left.
    pub(crate) fn block(self, now: Instant) -> Option<u64> {
        /// The longest timeout that the module takes.
        const LONGEST: u64 = 3660 * 24 * 60 * 60 * 1000;
        match self {
            Self::Endless => Some(0),
            _ => match millis_up(self.left(now)) {
                0 => None,
                ms => Some(ms.min(LONGEST)),
            },
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    #[test]
    fn times_beyond_all_clocks_saturate() {
        let now = Instant::now();
        assert!(later(now, Duration::MAX) > now);
        assert_eq!(left(later(now, Duration::from_secs(1)), now), Duration::ZERO);
        assert_eq!(millis(Duration::MAX), u64::MAX);
        assert_eq!(millis_up(Duration::from_nanos(1)), 1);
        assert_eq!(millis_up(Duration::from_millis(7)), 7);
        assert_eq!(part(Duration::from_secs(4), 0.25), Duration::from_secs(1));
        assert_eq!(part(Duration::from_secs(4), f64::NAN), Duration::ZERO);
        assert!(part(Duration::MAX, 1.0) <= Duration::MAX);
        assert_eq!(divided(Duration::from_secs(1), 0), Duration::ZERO);
    }

    #[test]
    fn patience_ends_and_a_begun_millisecond_is_still_waited_for() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let until = Patience::lasting(now, second);
        assert_eq!(until.block(now), Some(1000));
        assert_eq!(until.block(later(now, second - Duration::from_micros(1))), Some(1));
        assert_eq!(until.block(later(now, second)), None);
        assert_eq!(Patience::Endless.block(now), Some(0));
        assert_eq!(Patience::lasting(now, Duration::ZERO).block(now), None);
        assert_eq!(Patience::lasting(now, Duration::MAX).block(now), Some(0));
        assert_eq!(Patience::lasting(now, Duration::from_secs(5000 * 86_400)).block(now), Some(316_224_000_000));
    }
}
