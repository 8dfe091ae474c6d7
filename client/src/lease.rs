//! When a lease is to be renewed, until when it is proved, and when it is lost: decided here, without a thread, a socket or
//! a clock of its own.

use crate::time::{divided, later, left, part, whole_ms};
use std::fmt;
use std::time::{Duration, Instant};

/// Why a hold is over, though nobody released it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The server says that the token holds the lock no more: the lease ran out, or the key was deleted or replaced. Of a
    /// Redlock: so many servers say it that the rest are no quorum.
    Gone,
    /// No renewal got through while the last one was good. The server may still keep the lock, but nothing proves it.
    Unproved,
    /// The hold has lasted for as long as [`Options::max_hold`](crate::Options::max_hold) lets it.
    HeldTooLong,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "it is not held by this token any more",
            Self::Unproved => "no renewal came through in time to prove it",
            Self::HeldTooLong => "it was held for as long as it may be",
        })
    }
}

/// What a lease is kept by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// How long each grant or renewal is good for.
    pub ttl: Duration,
    /// How long the hold may last in all.
    pub max_hold: Option<Duration>,
    /// Whether it is renewed at all.
    pub renews: bool,
    /// How long a renewal may take to answer.
    pub response_timeout: Duration,
    /// What is taken off for clocks that do not run alike.
    pub margin: fn(Duration) -> Duration,
}

impl Terms {
    /// The ttl to ask for first.
    pub(crate) fn first_ttl(&self) -> Duration {
        self.max_hold.map_or(self.ttl, |most| whole_ms(most).min(self.ttl))
    }
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Renew for `ttl`; an answer counts for that long.
    Renew {
        /// What to ask for.
        ttl: Duration,
        /// How long to wait for the answer.
        within: Duration,
    },
    /// Nothing until then.
    Sleep(Instant),
    /// It is over.
    Lost(Loss),
}

/// How a renewal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// It was confirmed.
    Yes,
    /// The lock is not ours.
    No,
    /// No answer, or none that says either.
    Failed,
}

/// One hold, from the grant to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    terms: Terms,
    /// When the hold has to be over.
    ends: Option<Instant>,
    /// Proved until then.
    until: Instant,
    renew_at: Instant,
    /// The last renewal reaches to the end: there is nothing more to gain.
    last: bool,
    lost: Option<Loss>,
}

/// Until when a grant or renewal proves the lease: the server began to count when it read the command, which was sent before.
pub(crate) fn proved_until(sent: Instant, ttl: Duration, margin: Duration) -> Instant {
    later(sent, ttl.saturating_sub(margin))
}

/// How long to wait for the answer to a renewal, so that another one can follow before the lease is over.
pub(crate) fn attempt(left: Duration, response_timeout: Duration) -> Duration {
    const LEAST: Duration = Duration::from_millis(5);
    divided(left, 2).max(LEAST).min(left).min(response_timeout)
}

/// How long to wait after a failed renewal; `random` from 0 to 1.
pub(crate) fn pause(left: Duration, ttl: Duration, random: f64) -> Duration {
    let most = divided(ttl, 10).min(divided(left, 4)).min(Duration::from_secs(1));
    divided(most, 2).saturating_add(part(divided(most, 2), random))
}

impl Lease {
    /// A hold that begins with a grant, or with the renewal after one that was waited for, asked for `ttl` at `sent`.
    pub(crate) fn granted(terms: Terms, sent: Instant, ttl: Duration) -> Self {
        let mut lease = Self {
            terms,
            ends: terms.max_hold.map(|most| later(sent, most)),
            until: sent,
            renew_at: sent,
            last: false,
            lost: None,
        };
        lease.prove(sent, ttl);
        lease
    }

    fn prove(&mut self, sent: Instant, ttl: Duration) {
        self.until = proved_until(sent, ttl, (self.terms.margin)(ttl));
        self.renew_at = later(sent, divided(ttl, 3));
        self.last = self.ends.is_some_and(|ends| left(later(sent, ttl), ends) < Duration::from_millis(1));
    }

    /// The end, if it has come. Once it has, it stays.
    pub(crate) fn check(&mut self, now: Instant) -> Option<Loss> {
        if self.lost.is_none() && now >= self.until {
            self.lost = Some(if self.last { Loss::HeldTooLong } else { Loss::Unproved });
        }
        self.lost
    }

    /// The end, if it has been noticed: by the clock it may have come since.
    pub(crate) const fn noticed(&self) -> Option<Loss> {
        self.lost
    }

    /// Until when it is proved; now, if it is lost.
    pub(crate) fn left(&mut self, now: Instant) -> Duration {
        if self.check(now).is_some() { Duration::ZERO } else { left(now, self.until) }
    }

    /// What is to be done now.
    pub(crate) fn step(&mut self, now: Instant) -> Step {
        if let Some(loss) = self.check(now) {
            return Step::Lost(loss);
        }
        if !self.terms.renews || self.last {
            return Step::Sleep(self.until);
        }
        if now < self.renew_at {
            return Step::Sleep(self.renew_at.min(self.until));
        }
        let ttl = match self.ends {
            Some(ends) => whole_ms(left(now, ends)).min(self.terms.ttl),
            None => self.terms.ttl,
        };
        if ttl.is_zero() {
            return Step::Sleep(self.until);
        }
        Step::Renew { ttl, within: attempt(left(now, self.until), self.terms.response_timeout) }
    }

    /// A renewal for `ttl`, sent at `sent`, has ended. One that comes after the end changes nothing: what was lost stays lost.
    pub(crate) fn renewed(&mut self, now: Instant, sent: Instant, ttl: Duration, how: Renewal, random: f64) {
        if self.check(now).is_some() {
            return;
        }
        match how {
            Renewal::Yes => {
                self.prove(sent, ttl);
                self.check(now);
            }
            Renewal::No => self.lost = Some(Loss::Gone),
            Renewal::Failed => self.renew_at = later(now, pause(left(now, self.until), self.terms.ttl, random)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn terms(ttl: u64, max_hold: Option<u64>) -> Terms {
        Terms {
            ttl: ms(ttl),
            max_hold: max_hold.map(ms),
            renews: true,
            response_timeout: ms(1000),
            margin: |_| Duration::ZERO,
        }
    }

    fn start(terms: Terms) -> (Instant, Lease) {
        let t0 = Instant::now();
        (t0, Lease::granted(terms, t0, terms.first_ttl()))
    }

    #[test]
    fn it_is_renewed_after_a_third_of_its_time() {
        let (t0, mut lease) = start(terms(900, None));
        assert_eq!(lease.step(t0), Step::Sleep(t0 + ms(300)));
        assert_eq!(lease.step(t0 + ms(299)), Step::Sleep(t0 + ms(300)));
        assert_eq!(lease.step(t0 + ms(300)), Step::Renew { ttl: ms(900), within: ms(300) });
    }

    #[test]
    fn a_renewal_proves_from_when_it_was_sent_and_not_from_its_answer() {
        let (t0, mut lease) = start(terms(900, None));
        lease.renewed(t0 + ms(550), t0 + ms(300), ms(900), Renewal::Yes, 0.0);
        assert_eq!(lease.left(t0 + ms(550)), ms(650));
        assert_eq!(lease.check(t0 + ms(1199)), None);
        assert_eq!(lease.check(t0 + ms(1200)), Some(Loss::Unproved));
    }

    #[test]
    fn an_answer_after_the_end_revives_nothing() {
        let (t0, mut lease) = start(terms(900, None));
        lease.renewed(t0 + ms(900), t0 + ms(899), ms(900), Renewal::Yes, 0.0);
        assert_eq!(lease.step(t0 + ms(901)), Step::Lost(Loss::Unproved));
        lease.renewed(t0 + ms(902), t0 + ms(901), ms(900), Renewal::Yes, 0.0);
        assert_eq!(lease.left(t0 + ms(902)), Duration::ZERO);
    }

    #[test]
    fn what_was_seen_lost_stays_lost_for_an_answer_that_was_under_way() {
        let (t0, mut lease) = start(terms(900, None));
        assert_eq!(lease.check(t0 + ms(900)), Some(Loss::Unproved));
        lease.renewed(t0 + ms(890), t0 + ms(880), ms(900), Renewal::Yes, 0.0);
        assert_eq!(lease.check(t0 + ms(890)), Some(Loss::Unproved));
    }

    #[test]
    fn a_no_is_the_end_at_once() {
        let (t0, mut lease) = start(terms(900, None));
        lease.renewed(t0 + ms(301), t0 + ms(300), ms(900), Renewal::No, 0.0);
        assert_eq!(lease.step(t0 + ms(301)), Step::Lost(Loss::Gone));
    }

    #[test]
    fn a_failure_is_tried_again_before_the_end_and_not_after() {
        let (t0, mut lease) = start(terms(900, None));
        let mut now = t0 + ms(300);
        let mut tries = 0;
        loop {
            match lease.step(now) {
                Step::Renew { within, .. } => {
                    tries += 1;
                    assert!(within > Duration::ZERO && now + within <= t0 + ms(900));
                    let sent = now;
                    now += within;
                    lease.renewed(now, sent, ms(900), Renewal::Failed, 0.5);
                }
                Step::Sleep(until) => now = until,
                Step::Lost(loss) => {
                    assert_eq!((loss, now), (Loss::Unproved, t0 + ms(900)));
                    break;
                }
            }
        }
        assert!((3..200).contains(&tries), "{tries}");
    }

    #[test]
    fn without_renewing_it_only_runs_out() {
        let (t0, mut lease) = start(Terms { renews: false, ..terms(900, None) });
        assert_eq!(lease.step(t0 + ms(500)), Step::Sleep(t0 + ms(900)));
        assert_eq!(lease.step(t0 + ms(900)), Step::Lost(Loss::Unproved));
    }

    #[test]
    fn it_ends_with_the_longest_hold_to_the_millisecond() {
        let (t0, mut lease) = start(terms(900, Some(1000)));
        assert_eq!(lease.step(t0 + ms(300)), Step::Renew { ttl: ms(700), within: ms(300) });
        lease.renewed(t0 + ms(300), t0 + ms(300), ms(700), Renewal::Yes, 0.0);
        assert_eq!(lease.step(t0 + ms(999)), Step::Sleep(t0 + ms(1000)));
        assert_eq!(lease.step(t0 + ms(1000)), Step::Lost(Loss::HeldTooLong));
    }

    #[test]
    fn a_longest_hold_below_the_ttl_shortens_the_grant() {
        let (t0, mut lease) = start(terms(900, Some(100)));
        assert_eq!(lease.step(t0), Step::Sleep(t0 + ms(100)));
        assert_eq!(lease.step(t0 + ms(100)), Step::Lost(Loss::HeldTooLong));
    }

    #[test]
    fn the_margin_is_taken_off_each_time() {
        let (t0, mut lease) = start(Terms { margin: |ttl| ttl / 100 + ms(2), ..terms(1000, None) });
        assert_eq!(lease.left(t0), ms(988));
        lease.renewed(t0 + ms(400), t0 + ms(333), ms(1000), Renewal::Yes, 0.0);
        assert_eq!(lease.left(t0 + ms(400)), ms(333 + 988 - 400));
    }

    /// A server that keeps the lease by its own count, and loses or delays messages.
    #[derive(Debug)]
    struct Fake {
        until: Instant,
    }

    proptest! {
        /// Whatever is lost, late, or paused for however long: while the lease says that it holds, the server does too.
        #[test]
        fn what_is_proved_is_true(
            ttl in 3u64..2000,
            max_hold in prop::option::of(1u64..10_000),
            // (before the server, after it, does the request arrive, does the answer, oversleeping)
            turns in prop::collection::vec((0u64..3000, 0u64..3000, any::<bool>(), any::<bool>(), 0u64..500), 1..60),
            random in 0.0f64..1.0,
        ) {
            let terms = terms(ttl, max_hold);
            let t0 = Instant::now();
            let mut server = Fake { until: t0 + ms(1) + terms.first_ttl() };
            let mut lease = Lease::granted(terms, t0, terms.first_ttl());
            let mut now = t0;
            let mut over = false;
            for (there, back, arrives, answers, overslept) in turns {
                let holds = lease.left(now);
                if !holds.is_zero() {
                    prop_assert!(!over, "revived");
                    prop_assert!(now + holds <= server.until, "proved for longer than the server keeps it");
                    prop_assert!(max_hold.is_none_or(|most| now + holds <= t0 + ms(most)), "held for too long");
                }
                match lease.step(now) {
                    Step::Sleep(until) => {
                        prop_assert!(until > now);
                        now = until + ms(overslept);
                    }
                    Step::Lost(_) => {
                        over = true;
                        now += ms(overslept);
                    }
                    Step::Renew { ttl, within } => {
                        prop_assert!(!over && !within.is_zero() && !ttl.is_zero());
                        let sent = now;
                        let (there, back) = (there / 10, back / 10);
                        let read = sent + ms(there);
                        let mut how = Renewal::Failed;
                        now = sent + within;
                        if arrives {
                            let yes = read < server.until;
                            if yes {
                                server.until = read + ttl;
                            }
                            if answers && ms(there + back) <= within {
                                now = read + ms(back);
                                how = if yes { Renewal::Yes } else { Renewal::No };
                            }
                        }
                        // The client itself may be paused before it looks at the answer.
                        now += ms(overslept);
                        lease.renewed(now, sent, ttl, how, random);
                    }
                }
            }
        }
    }
}
