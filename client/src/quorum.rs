//! The arithmetic of Redlock.

use crate::time::divided;
use std::time::Duration;

/// How many of `servers` have to say yes.
#[must_use]
pub const fn quorum(servers: usize) -> usize {
    (servers / 2).saturating_add(1)
}

/// What is taken off a ttl for clocks that do not run alike, and for servers that count in whole milliseconds: 1 % and 2 ms.
#[must_use]
pub fn drift(ttl: Duration) -> Duration {
    divided(ttl, 100).saturating_add(Duration::from_millis(2))
}

/// For how long a lock is valid that took `elapsed` to get, counted from before the first server was asked; `None` if that
/// took too long for anything to be left.
#[must_use]
pub fn validity(ttl: Duration, elapsed: Duration) -> Option<Duration> {
    let left = ttl.checked_sub(elapsed)?.checked_sub(drift(ttl))?;
    (!left.is_zero()).then_some(left)
}

/// What one server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    /// Granted, or renewed.
    Yes,
    /// Held by another, or not ours.
    No,
    /// No answer, or an error.
    Failed,
}

/// What the answers so far come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It can go either way yet.
    Open,
    /// A quorum says yes.
    Carried,
    /// So many say no that the rest are no quorum.
    Denied,
    /// So many failed, or said no, that the rest are no quorum.
    Failed,
}

/// The answers of one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    servers: usize,
    yes: usize,
    no: usize,
    failed: usize,
}

impl Tally {
    pub(crate) const fn new(servers: usize) -> Self {
        Self { servers, yes: 0, no: 0, failed: 0 }
    }

    pub(crate) const fn count(&mut self, vote: Vote) {
        let place = match vote {
            Vote::Yes => &mut self.yes,
            Vote::No => &mut self.no,
            Vote::Failed => &mut self.failed,
        };
        *place = place.saturating_add(1);
    }

    /// How many servers have failed, or, if it is still open now that the time is up, have not answered.
    const fn unanswered(&self) -> usize {
        match self.verdict() {
            Verdict::Open => self.servers.saturating_sub(self.yes.saturating_add(self.no)),
            _ => self.failed,
        }
    }

    /// Whether it was for want of answers that nothing was carried, and not for others who hold or ask too: how many have
    /// failed then.
    pub(crate) const fn too_few(&self) -> Option<usize> {
        let failed = self.unanswered();
        if self.servers.saturating_sub(failed) < quorum(self.servers) { Some(failed) } else { None }
    }

    pub(crate) const fn verdict(&self) -> Verdict {
        let spare = self.servers.saturating_sub(quorum(self.servers));
        if self.yes >= quorum(self.servers) {
            Verdict::Carried
        } else if self.no > spare {
            Verdict::Denied
        } else if self.no.saturating_add(self.failed) > spare {
            Verdict::Failed
        } else {
            Verdict::Open
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_quorum_is_more_than_half() {
        for (servers, needed) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4), (8, 5)] {
            assert_eq!(quorum(servers), needed);
            assert!(2 * quorum(servers) > servers, "two quorums share a server");
        }
    }

    #[test]
    fn validity_is_what_the_asking_and_the_drift_leave() {
        let ms = Duration::from_millis;
        assert_eq!(drift(ms(1000)), ms(12));
        assert_eq!(validity(ms(1000), ms(0)), Some(ms(988)));
        assert_eq!(validity(ms(1000), ms(987)), Some(ms(1)));
        assert_eq!(validity(ms(1000), ms(988)), None);
        assert_eq!(validity(ms(1000), ms(2000)), None);
        assert_eq!(validity(ms(2), ms(0)), None);
        assert!(validity(Duration::MAX, Duration::MAX).is_none());
    }

    #[test]
    fn servers_that_do_not_answer_are_told_from_others_who_hold() {
        let tally = |votes: &[Vote]| {
            let mut tally = Tally::new(5);
            votes.iter().for_each(|vote| tally.count(*vote));
            tally
        };
        use Vote::{Failed, No, Yes};
        assert_eq!(tally(&[Failed, Failed, Failed]).too_few(), Some(3));
        assert_eq!(tally(&[No, No, Failed]).too_few(), None);
        assert_eq!(tally(&[No, No, No]).too_few(), None);
        assert_eq!(tally(&[Yes, Yes]).too_few(), Some(3));
        assert_eq!(tally(&[Yes, Yes, No]).too_few(), None);
        assert_eq!(tally(&[]).too_few(), Some(5));
    }

    proptest! {
        #[test]
        fn a_verdict_once_given_stands(votes in prop::collection::vec(0u8..3, 1..10)) {
            let mut tally = Tally::new(votes.len());
            let mut seen = Verdict::Open;
            for vote in &votes {
                tally.count([Vote::Yes, Vote::No, Vote::Failed][*vote as usize]);
                let now = tally.verdict();
                match seen {
                    Verdict::Open => {}
                    Verdict::Failed => prop_assert!(matches!(now, Verdict::Failed | Verdict::Denied)),
                    _ => prop_assert_eq!(seen, now),
                }
                seen = now;
            }
            let yes = votes.iter().filter(|vote| **vote == 0).count();
            prop_assert_eq!(seen == Verdict::Carried, yes >= quorum(votes.len()));
            prop_assert_ne!(seen, Verdict::Open);
        }

        #[test]
        fn validity_and_elapsed_and_drift_never_exceed_the_ttl(ttl in 0u64..10_000_000, elapsed in 0u64..10_000_000) {
            let (ttl, elapsed) = (Duration::from_micros(ttl), Duration::from_micros(elapsed));
            if let Some(left) = validity(ttl, elapsed) {
                prop_assert_eq!(left + elapsed + drift(ttl), ttl);
            }
        }
    }
}
