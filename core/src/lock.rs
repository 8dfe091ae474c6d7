//! Who may have a lock: every kind against every wish, as one table.
//!
//! What is stored is read by the caller into a [`Found`], which is all a decision depends on; deadlines are the caller's to
//! move, by the rules of [`crate::lease`].

use crate::args::Mode;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// LOCK.ACQUIRE, in one of its ways.
    Lock(Mode),
    /// SEM.ACQUIRE with this limit.
    Permit(u64),
}

/// A lock, as it stands to the token that asks. Holders whose deadline is past are not holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nobody holds it.
    Free,
    /// One token holds it.
    Exclusive {
        /// It is the one that asks.
        mine: bool,
    },
    /// One token holds it, several times over.
    Reentrant {
        /// It is the one that asks.
        mine: bool,
        /// How many times.
        holds: u64,
    },
    /// Tokens hold it together.
    Shared {
        /// The one that asks is among them.
        mine: bool,
        /// There are others.
        others: bool,
    },
    /// Tokens hold permits.
    Permits {
        /// The one that asks is among them.
        mine: bool,
        /// How many there are.
        held: u64,
    },
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Granted: what is there makes way, and the token alone holds the lock.
    Exclusive,
    /// Granted: what is there makes way, and the token alone holds the lock, so many times.
    Reentrant {
        /// How many times.
        holds: u64,
    },
    /// Granted: what is there makes way, and the token is the first of those who share the lock or its permits.
    First,
    /// Granted: one more shares the lock or its permits.
    Join,
    /// Granted to a holder: only the deadline may move.
    Prolong,
    /// Not granted.
    Refuse,
    /// Not granted, and never while the asking token holds what it holds: to wait would be to wait for itself.
    Deadlock,
    /// LOCK.* on a semaphore, or SEM.* on a lock.
    WrongKind,
}

/// How many holds there can be: as many as HINCRBY can count. What is more is no lock.
pub const MOST_HOLDS: u64 = i64::MAX.cast_unsigned();

impl Decision {
    /// Does it grant anything?
    #[must_use]
    pub const fn grants(self) -> bool {
        !matches!(self, Self::Refuse | Self::Deadlock | Self::WrongKind)
    }
}

/// Decides one request. `queued`: somebody is ahead of it, which bars a newcomer, but never a holder.
#[inline]
#[must_use]
pub const fn decide(found: Found, want: Want, queued: bool) -> Decision {
    match want {
        Want::Lock(mode) => lock(found, mode, queued),
        Want::Permit(limit) => permit(found, limit, queued),
    }
}

const fn lock(found: Found, mode: Mode, queued: bool) -> Decision {
    match (found, mode) {
        (Found::Permits { .. }, _) => Decision::WrongKind,
        (Found::Free, _) if queued => Decision::Refuse,
        (Found::Free, Mode::Exclusive) => Decision::Exclusive,
        (Found::Free, Mode::Reentrant) => Decision::Reentrant { holds: 1 },
        (Found::Free, Mode::Shared) => Decision::First,

        (Found::Exclusive { mine: false } | Found::Reentrant { mine: false, .. }, _) => Decision::Refuse,
        (Found::Shared { mine: false, .. }, Mode::Shared) if !queued => Decision::Join,
        (Found::Shared { mine: false, .. }, _) => Decision::Refuse,

        // A holder asks again. Plainly it adds no hold, so that a retry is safe.
        (Found::Exclusive { mine: true } | Found::Reentrant { mine: true, .. }, Mode::Exclusive)
        | (Found::Shared { mine: true, .. }, Mode::Shared) => Decision::Prolong,
        (Found::Exclusive { mine: true }, Mode::Reentrant) => Decision::Reentrant { holds: 2 },
        (Found::Reentrant { mine: true, holds }, Mode::Reentrant) => {
            let more = holds.saturating_add(1);
            Decision::Reentrant { holds: if more < MOST_HOLDS { more } else { MOST_HOLDS } }
        }
        (Found::Exclusive { mine: true } | Found::Reentrant { mine: true, holds: 0 | 1 }, Mode::Shared) => {
            Decision::First
        }
        (Found::Reentrant { mine: true, .. }, Mode::Shared) => Decision::Deadlock,
        (Found::Shared { mine: true, others: true }, Mode::Exclusive | Mode::Reentrant) => Decision::Deadlock,
        (Found::Shared { mine: true, others: false }, Mode::Exclusive) => Decision::Exclusive,
        (Found::Shared { mine: true, others: false }, Mode::Reentrant) => Decision::Reentrant { holds: 2 },
    }
}

const fn permit(found: Found, limit: u64, queued: bool) -> Decision {
    match found {
        Found::Free if queued => Decision::Refuse,
        Found::Free => Decision::First,
        Found::Permits { mine: true, .. } => Decision::Prolong,
        Found::Permits { held, .. } if held < limit && !queued => Decision::Join,
        Found::Permits { .. } => Decision::Refuse,
        Found::Exclusive { .. } | Found::Reentrant { .. } | Found::Shared { .. } => Decision::WrongKind,
    }
}

/// What becomes of a RELEASE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The token holds nothing.
    NotMine,
    /// One hold is given back, and so many are left.
    Hold {
        /// How many.
        left: u64,
    },
    /// The token leaves, and others stay.
    Leave,
    /// The lock is free.
    Free,
}

/// Decides a RELEASE.
#[inline]
#[must_use]
pub const fn release(found: Found) -> Release {
    match found {
        Found::Exclusive { mine: true }
        | Found::Shared { mine: true, others: false }
        | Found::Permits { mine: true, held: 0 | 1 }
        | Found::Reentrant { mine: true, holds: 0 | 1 } => Release::Free,
        Found::Reentrant { mine: true, holds } => Release::Hold { left: holds.saturating_sub(1) },
        Found::Shared { mine: true, .. } | Found::Permits { mine: true, .. } => Release::Leave,
        _ => Release::NotMine,
    }
}

/// Which family of commands a sorted set belongs to, told by the fraction of its scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// SHARED holders of a lock.
    Shared,
    /// Holders of a semaphore's permits.
    Semaphore,
}

/// The latest deadline a score can hold together with its fraction, in ms: below 2^51, the year 73324.
const LATEST: i64 = (1 << 51) - 1;

impl Family {
    /// The score of a holder whose deadline is `deadline` (ms).
    #[must_use]
    pub fn score(self, deadline: i64) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "below 2^51 every quarter is exact in a double")]
        let whole = deadline.clamp(0, LATEST) as f64;
        whole + self.fraction()
    }

    const fn fraction(self) -> f64 {
        match self {
            Self::Shared => 0.25,
            Self::Semaphore => 0.5,
        }
    }

    /// The fraction as text, as it stands behind the deadline in a ZADD.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Shared => ".25",
            Self::Semaphore => ".5",
        }
    }
}

/// The family and the deadline (ms) of a score, or nothing if it is none of ours.
#[must_use]
pub fn score(score: f64) -> Option<(Family, i64)> {
    #[allow(clippy::cast_precision_loss, reason = "2^51 - 1 is exact in a double")]
    if !(0.0..LATEST as f64 + 1.0).contains(&score) {
        return None;
    }
    let whole = score.floor();
    #[allow(clippy::cast_possible_truncation, reason = "from 0, and below 2^51")]
    let deadline = whole as i64;
    let fraction = score - whole;
    [Family::Shared, Family::Semaphore]
        .into_iter()
        .find(|family| family.fraction().to_bits() == fraction.to_bits())
        .map(|family| (family, deadline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXCLUSIVE: Want = Want::Lock(Mode::Exclusive);
    const REENTRANT: Want = Want::Lock(Mode::Reentrant);
    const SHARED: Want = Want::Lock(Mode::Shared);

    #[test]
    fn a_free_lock_is_granted_in_every_way_unless_somebody_is_queued() {
        for (want, granted) in [
            (EXCLUSIVE, Decision::Exclusive),
            (REENTRANT, Decision::Reentrant { holds: 1 }),
            (SHARED, Decision::First),
            (Want::Permit(1), Decision::First),
        ] {
            assert_eq!(decide(Found::Free, want, false), granted);
            assert_eq!(decide(Found::Free, want, true), Decision::Refuse);
        }
    }

    #[test]
    fn a_foreign_token_never_gets_into_an_exclusive_or_reentrant_lock() {
        for found in [Found::Exclusive { mine: false }, Found::Reentrant { mine: false, holds: 3 }] {
            for want in [EXCLUSIVE, REENTRANT, SHARED] {
                assert_eq!(decide(found, want, false), Decision::Refuse);
            }
        }
    }

    #[test]
    fn a_holder_that_asks_again_plainly_adds_no_hold_and_the_lock_keeps_its_kind() {
        for queued in [false, true] {
            assert_eq!(decide(Found::Exclusive { mine: true }, EXCLUSIVE, queued), Decision::Prolong);
            assert_eq!(decide(Found::Reentrant { mine: true, holds: 3 }, EXCLUSIVE, queued), Decision::Prolong);
            assert_eq!(decide(Found::Shared { mine: true, others: true }, SHARED, queued), Decision::Prolong);
            assert_eq!(decide(Found::Permits { mine: true, held: 9 }, Want::Permit(1), queued), Decision::Prolong);
        }
    }

    #[test]
    fn the_holder_converts_at_once_and_past_any_queue() {
        for queued in [false, true] {
            let sole = Found::Shared { mine: true, others: false };
            assert_eq!(decide(sole, EXCLUSIVE, queued), Decision::Exclusive);
            assert_eq!(decide(sole, REENTRANT, queued), Decision::Reentrant { holds: 2 });
            assert_eq!(decide(Found::Exclusive { mine: true }, REENTRANT, queued), Decision::Reentrant { holds: 2 });
            assert_eq!(decide(Found::Exclusive { mine: true }, SHARED, queued), Decision::First);
            assert_eq!(decide(Found::Reentrant { mine: true, holds: 1 }, SHARED, queued), Decision::First);
            let twice = Found::Reentrant { mine: true, holds: 2 };
            assert_eq!(decide(twice, REENTRANT, queued), Decision::Reentrant { holds: 3 });
        }
    }

    #[test]
    fn holds_stop_growing_where_a_hash_could_not_count_them_any_more() {
        let most = Found::Reentrant { mine: true, holds: MOST_HOLDS };
        assert_eq!(decide(most, REENTRANT, false), Decision::Reentrant { holds: i64::MAX.cast_unsigned() });
    }

    #[test]
    fn who_would_wait_for_itself_is_told_so() {
        let among_others = Found::Shared { mine: true, others: true };
        assert_eq!(decide(among_others, EXCLUSIVE, false), Decision::Deadlock);
        assert_eq!(decide(among_others, REENTRANT, false), Decision::Deadlock);
        assert_eq!(decide(Found::Reentrant { mine: true, holds: 2 }, SHARED, false), Decision::Deadlock);
    }

    #[test]
    fn a_reader_joins_readers_unless_somebody_is_queued_ahead() {
        let readers = Found::Shared { mine: false, others: true };
        assert_eq!(decide(readers, SHARED, false), Decision::Join);
        assert_eq!(decide(readers, SHARED, true), Decision::Refuse);
        assert_eq!(decide(readers, EXCLUSIVE, false), Decision::Refuse);
    }

    #[test]
    fn a_permit_is_granted_below_the_limit_of_the_call_and_to_nobody_who_overtakes() {
        let held = |held| Found::Permits { mine: false, held };
        assert_eq!(decide(held(2), Want::Permit(3), false), Decision::Join);
        assert_eq!(decide(held(3), Want::Permit(3), false), Decision::Refuse);
        assert_eq!(decide(held(5), Want::Permit(3), false), Decision::Refuse);
        assert_eq!(decide(held(2), Want::Permit(3), true), Decision::Refuse);
    }

    #[test]
    fn a_lock_is_no_semaphore_and_a_semaphore_no_lock() {
        for want in [EXCLUSIVE, REENTRANT, SHARED] {
            assert_eq!(decide(Found::Permits { mine: true, held: 1 }, want, false), Decision::WrongKind);
        }
        for found in [
            Found::Exclusive { mine: true },
            Found::Reentrant { mine: true, holds: 1 },
            Found::Shared { mine: true, others: false },
        ] {
            assert_eq!(decide(found, Want::Permit(5), false), Decision::WrongKind);
        }
    }

    #[test]
    fn a_release_gives_back_one_hold_one_share_or_the_lock() {
        assert_eq!(release(Found::Free), Release::NotMine);
        assert_eq!(release(Found::Exclusive { mine: false }), Release::NotMine);
        assert_eq!(release(Found::Exclusive { mine: true }), Release::Free);
        assert_eq!(release(Found::Reentrant { mine: true, holds: 3 }), Release::Hold { left: 2 });
        assert_eq!(release(Found::Reentrant { mine: true, holds: 1 }), Release::Free);
        assert_eq!(release(Found::Shared { mine: true, others: true }), Release::Leave);
        assert_eq!(release(Found::Shared { mine: true, others: false }), Release::Free);
        assert_eq!(release(Found::Permits { mine: false, held: 2 }), Release::NotMine);
        assert_eq!(release(Found::Permits { mine: true, held: 2 }), Release::Leave);
        assert_eq!(release(Found::Permits { mine: true, held: 1 }), Release::Free);
    }

    #[test]
    fn a_score_that_is_none_of_ours_is_told_from_one_that_is() {
        for foreign in [
            0.0,
            1.0,
            0.75,
            -0.25,
            -1.5,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e300,
            1.1,
            4.503_599_627_370_497e15,
        ] {
            assert_eq!(score(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn the_latest_deadline_is_told_apart_as_all_others_are() {
        for family in [Family::Shared, Family::Semaphore] {
            for deadline in [LATEST - 1, LATEST, LATEST + 1, i64::MAX] {
                assert_eq!(score(family.score(deadline)), Some((family, deadline.min(LATEST))), "{deadline}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_score_is_exact(deadline in 0..=LATEST) {
            for family in [Family::Shared, Family::Semaphore] {
                prop_assert_eq!(score(family.score(deadline)), Some((family, deadline)));
                let text = format!("{deadline}{}", family.suffix());
                prop_assert_eq!(text.parse::<f64>().unwrap().to_bits(), family.score(deadline).to_bits());
            }
        }

        #[test]
        fn any_score_is_read_without_harm(bits in any::<u64>()) {
            let _ = score(f64::from_bits(bits));
        }
    }
}
