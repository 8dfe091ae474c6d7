//! What may be known of a limiter from outside, by one who knows only between which two moments each call was decided.

use super::Timed;

/// What may be known of a sliding window from outside: admitted hits, each between two readings of the clock.
pub struct Log {
    limit: i64,
    window: i64,
    pub admitted: Vec<(i64, i64, i64)>,
}

impl Log {
    pub fn new(limit: i64, window: i64) -> Self {
        Self { limit, window, admitted: Vec::new() }
    }

    /// Holds one answer against all admitted hits before it.
    #[track_caller]
    pub fn check(&mut self, asked: &Timed, cost: i64) {
        let (from, to) = (asked.earliest_ms(), asked.latest_ms());
        // A hit at t counts while now - t < window.
        let surely: i64 = self.admitted.iter().filter(|hit| to - hit.0 < self.window).map(|hit| hit.2).sum();
        let perhaps: i64 = self.admitted.iter().filter(|hit| from - hit.1 < self.window).map(|hit| hit.2).sum();
        let verdict = asked.verdict();
        if verdict.allowed {
            assert!(surely + cost <= self.limit, "{surely} units within the window and yet {cost} more: {asked:?}");
            self.admitted.push((from, to, cost));
        } else {
            assert!(perhaps + cost > self.limit, "refused with {perhaps} units within the window: {asked:?}");
        }
        let used = if verdict.allowed { cost } else { 0 };
        let left = (self.limit - perhaps - used).max(0)..=self.limit - surely - used;
        assert!(left.contains(&verdict.remaining), "remaining in {left:?}: {asked:?}");
    }
}

/// What may be known of a bucket from outside: bounds of its level at the last admitted hit, in tokens × µs of the period.
pub struct Level {
    capacity: i128,
    refill: i128,
    period: i128,
    low: i128,
    high: i128,
    at: (i64, i64),
}

impl Level {
    pub fn full(capacity: i64, refill: i64, period_ms: i64) -> Self {
        let period = i128::from(period_ms) * 1000;
        let full = i128::from(capacity) * period;
        Self { capacity: full, refill: refill.into(), period, low: full, high: full, at: (0, 0) }
    }

    /// What the level can have been when that was asked.
    pub fn bounds(&self, asked: &Timed) -> (i128, i128) {
        let accrued = |us: i64| i128::from(us.max(0)) * self.refill;
        let low = self.low + accrued(asked.before - self.at.1);
        let high = self.high + accrued(asked.after - self.at.0);
        (low.min(self.capacity), high.min(self.capacity))
    }

    /// Holds what a PEEK shows against all before it.
    #[track_caller]
    pub fn check_peek(&self, asked: &Timed) {
        let (low, high) = self.bounds(asked);
        let left = low / self.period..=high / self.period;
        assert!(left.contains(&i128::from(asked.verdict().remaining)), "remaining in {left:?}: {asked:?}");
    }

    /// Holds one answer against all before it.
    #[track_caller]
    pub fn check(&mut self, asked: &Timed, cost: i64) {
        let (low, high) = self.bounds(asked);
        let verdict = asked.verdict();
        let units = i128::from(cost) * self.period;
        let used = if verdict.allowed { units } else { 0 };
        if verdict.allowed {
            assert!(high >= units, "allowed with at most {high} of {units}: {asked:?}");
        } else {
            assert!(low < units, "refused with at least {low} of {units}: {asked:?}");
        }
        let (low, high) = if verdict.allowed { (low.max(units), high) } else { (low, high.min(units - 1)) };
        let left = (low - used) / self.period..=(high - used) / self.period;
        assert!(left.contains(&i128::from(verdict.remaining)), "remaining in {left:?}: {asked:?}");
        if verdict.allowed {
            (self.low, self.high, self.at) = (low - used, high - used, (asked.before, asked.after));
        }
    }
}
