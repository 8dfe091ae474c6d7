//! Tokens, and delays that differ from client to client.

use crate::error::Error;
use crate::time::{divided, part};
use rand::TryRng;
use rand::rngs::SysRng;
use std::time::Duration;

/// A token nobody else has: 128 random bits of the system's, as 32 hexadecimal digits.
pub(crate) fn token() -> Result<String, Error> {
    let mut bits = [0; 16];
    SysRng.try_fill_bytes(&mut bits).map_err(|_| Error::NoRandomness)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bits)))
}

/// From 0 to 1, for delays.
pub(crate) fn fraction() -> f64 {
    rand::random()
}

/// A delay from `least` to `most`, by a number from 0 to 1.
#[must_use]
pub fn retry_delay(least: Duration, most: Duration, random: f64) -> Duration {
    least.saturating_add(part(most.saturating_sub(least), random))
}

/// How long a refused call waits before it asks again: until the limiter may admit it, and a random time more, so that all
/// who were refused at once do not come back at once. That time doubles with each refusal, from `spread` (and at least a
/// quarter of the wait) up to 64 times that, and ends at the deadline. `None` if the call cannot be admitted in time.
///
/// `refusals` counts from 0, `random` is from 0 to 1.
#[must_use]
pub fn admission_delay(
    retry_after: Duration,
    refusals: u32,
    left: Duration,
    spread: Duration,
    random: f64,
) -> Option<Duration> {
    let room = left.checked_sub(retry_after)?;
    let spread = spread.max(divided(retry_after, 4)).saturating_mul(1u32.checked_shl(refusals.min(6)).unwrap_or(1));
    Some(retry_after.saturating_add(part(spread.min(room), random)))
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn tokens_are_32_hexadecimal_digits_and_never_the_same() {
        let tokens: HashSet<String> = (0..1000).map(|_| token().unwrap()).collect();
        assert_eq!(tokens.len(), 1000);
        assert!(tokens.iter().all(|t| t.len() == 32 && t.bytes().all(|b| b.is_ascii_hexdigit())));
        // Each of the 128 bits is 0 in one and 1 in another.
        let bits = tokens.iter().map(|t| u128::from_str_radix(t, 16).unwrap());
        let (ones, zeros) = bits.fold((0, 0), |(ones, zeros), bits| (ones | bits, zeros | !bits));
        assert_eq!((ones, zeros), (u128::MAX, u128::MAX));
    }

    #[test]
    fn a_call_that_cannot_be_admitted_in_time_does_not_wait() {
        let ms = Duration::from_millis;
        assert_eq!(admission_delay(ms(101), 0, ms(100), ms(10), 0.5), None);
        assert_eq!(admission_delay(ms(100), 0, ms(100), ms(10), 0.5), Some(ms(100)));
        assert_eq!(admission_delay(ms(0), 0, ms(100), ms(10), 1.0), Some(ms(10)));
        assert_eq!(admission_delay(ms(0), 3, ms(100), ms(10), 1.0), Some(ms(80)));
        assert_eq!(admission_delay(ms(0), u32::MAX, ms(9000), ms(10), 1.0), Some(ms(640)));
        assert_eq!(admission_delay(ms(80), 0, ms(1000), ms(10), 1.0), Some(ms(100)));
    }

    proptest! {
        #[test]
        fn a_delay_is_never_before_the_admission_nor_after_the_deadline(
            retry_after in 0u64..100_000, refusals: u32, left in 0u64..100_000, spread in 0u64..10_000, random in 0.0f64..1.0,
        ) {
            let ms = Duration::from_millis;
            match admission_delay(ms(retry_after), refusals, ms(left), ms(spread), random) {
                Some(delay) => prop_assert!(delay >= ms(retry_after) && delay <= ms(left)),
                None => prop_assert!(retry_after > left),
            }
        }

        #[test]
        fn a_retry_is_within_its_bounds(least in 0u64..1000, more in 0u64..1000, random in 0.0f64..1.0) {
            let (least, most) = (Duration::from_millis(least), Duration::from_millis(least.saturating_add(more)));
            let delay = retry_delay(least, most, random);
            prop_assert!(delay >= least && delay <= most);
        }
    }
}
