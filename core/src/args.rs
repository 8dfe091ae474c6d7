//! Strict parsing of what a client sends. Every error has one fixed text: no byte of the caller's ever gets into it.

use core::ffi::CStr;

use crate::limit;

/// The longest lease, window, period or timeout: 3660 days, in milliseconds.
pub const LONGEST_MS: u64 = 3660 * 24 * 60 * 60 * 1000;
/// The longest token, in bytes.
pub const LONGEST_TOKEN: usize = 512;
/// The largest cost, limit, capacity or refill.
pub const LARGEST_UNITS: u64 = 1_000_000_000_000;
/// The largest limit of RL.SLIDING and SEM.ACQUIRE.
pub const LARGEST_COUNTED: u64 = 1_000_000_000;

/// The words of one call, the command's name first.
pub trait Words {
    /// How many words there are, the name included.
    fn count(&self) -> usize;
    /// Word `index`; empty if there is none.
    fn word(&self, index: usize) -> &[u8];
}

impl Words for [&[u8]] {
    fn count(&self) -> usize {
        self.len()
    }

    fn word(&self, index: usize) -> &[u8] {
        self.get(index).copied().unwrap_or_default()
    }
}

/// What is wrong with a call's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// Empty, or longer than [`LONGEST_TOKEN`].
    Token,
    /// Not a duration, or outside 1 ms to [`LONGEST_MS`].
    Ttl,
    /// As [`Invalid::Ttl`], for a fixed or sliding window.
    Window,
    /// As [`Invalid::Ttl`], for a bucket's period.
    Period,
    /// Neither a duration nor `0`.
    Timeout,
    /// Not an integer from 1 to [`LARGEST_UNITS`].
    Limit,
    /// Not an integer from 1 to [`LARGEST_COUNTED`].
    CountedLimit,
    /// Not an integer from 1 to [`LARGEST_UNITS`].
    Capacity,
    /// Not an integer from 1 to [`LARGEST_UNITS`].
    Refill,
    /// Not an integer from 0 to [`LARGEST_UNITS`].
    Cost,
    /// BLOCK is the last word.
    BlockWithoutTimeout,
    /// BLOCK came before.
    BlockTwice,
    /// SHARED or REENTRANT came before, or both were given.
    TwoModes,
    /// A word that is no option of LOCK.ACQUIRE.
    LockOption,
    /// A word that is no option of SEM.ACQUIRE.
    SemOption,
    /// COST is the last word.
    CostWithoutNumber,
    /// COST came before.
    CostTwice,
    /// PEEK came before.
    PeekTwice,
    /// A word that is no option of RL.*.
    LimitOption,
}

impl Invalid {
    /// The one line the caller gets: a code, the argument at fault, and what would have been right.
    #[must_use]
    pub const fn text(self) -> &'static CStr {
        match self {
            Self::Token => c"ERR invalid token: expected 1 to 512 bytes",
            Self::Ttl => {
                c"ERR invalid ttl: expected 1ms to 3660d, as milliseconds or with a unit (ms, s, m, h, d)"
            }
            Self::Window => {
                c"ERR invalid window: expected 1ms to 3660d, as milliseconds or with a unit (ms, s, m, h, d)"
            }
            Self::Period => {
                c"ERR invalid period: expected 1ms to 3660d, as milliseconds or with a unit (ms, s, m, h, d)"
            }
            Self::Timeout => {
                c"ERR invalid timeout: expected 1ms to 3660d, as milliseconds or with a unit (ms, s, m, h, d), or 0 for no end"
            }
            Self::Limit => c"ERR invalid limit: expected an integer from 1 to 1000000000000",
            Self::CountedLimit => c"ERR invalid limit: expected an integer from 1 to 1000000000",
            Self::Capacity => c"ERR invalid capacity: expected an integer from 1 to 1000000000000",
            Self::Refill => c"ERR invalid refill: expected an integer from 1 to 1000000000000",
            Self::Cost => c"ERR invalid cost: expected an integer from 0 to 1000000000000",
            Self::BlockWithoutTimeout => {
                c"ERR option BLOCK needs a timeout: a duration such as 5s, or 0 for no end"
            }
            Self::BlockTwice => c"ERR option BLOCK was given twice: give it once",
            Self::TwoModes => c"ERR options SHARED and REENTRANT: give one of them, once",
            Self::LockOption => {
                c"ERR unknown option: expected SHARED, REENTRANT or BLOCK timeout after the ttl"
            }
            Self::SemOption => c"ERR unknown option: expected BLOCK timeout after the limit",
            Self::CostWithoutNumber => {
                c"ERR option COST needs a number: an integer from 0 to 1000000000000"
            }
            Self::CostTwice => c"ERR option COST was given twice: give it once",
            Self::PeekTwice => c"ERR option PEEK was given twice: give it once",
            Self::LimitOption => {
                c"ERR unknown option: expected COST n or PEEK after the positional arguments"
            }
        }
    }
}

/// A whole number in decimal digits: no sign, no leading zero, no blank, nothing that overflows.
#[inline]
#[must_use]
pub fn integer(word: &[u8]) -> Option<u64> {
    let number = number(word);
    (number != NONE).then_some(number)
}

/// What is no number; more than any of 19 digits.
const NONE: u64 = u64::MAX;

/// The same, so that one comparison with a largest value tells what is too large and what is no number.
#[inline(always)]
fn number(word: &[u8]) -> u64 {
    match (word.len(), word.first_chunk(), word.last_chunk()) {
        (4, Some(all), _) => return four(*all),
        (5..=8, Some(head), Some(tail)) => return up_to_eight(*head, *tail, word.len()),
        _ => {}
    }
    match *word {
        [one] if digit(one) <= 9 => digit(one),
        [ten @ b'1'..=b'9', one] if digit(one) <= 9 => digit(ten).wrapping_mul(10).wrapping_add(digit(one)),
        [hundred @ b'1'..=b'9', ten, one] if digit(ten) <= 9 && digit(one) <= 9 => {
            digit(hundred).wrapping_mul(100).wrapping_add(digit(ten).wrapping_mul(10)).wrapping_add(digit(one))
        }
        _ => long(word),
    }
}

/// The value of a digit; of what is none, more than 9.
#[inline(always)]
const fn digit(byte: u8) -> u64 {
    byte.wrapping_sub(b'0') as u64
}

/// A number of 4 digits, as below.
#[inline(always)]
fn four(all: [u8; 4]) -> u64 {
    let [first, ..] = all;
    let digits = u32::from_le_bytes(all) ^ 0x3030_3030;
    if first == b'0' || (digits | digits.wrapping_add(0x0606_0606)) & 0xf0f0_f0f0 != 0 {
        return NONE;
    }
    let pairs = digits.wrapping_mul(10).wrapping_add(digits.wrapping_shr(8));
    u64::from((pairs & 0xff).wrapping_mul(100).wrapping_add(pairs.wrapping_shr(16) & 0xff))
}

/// A number of 5 to 8 digits, given by its first and its last four, which overlap; all digits at once.
///
/// The text is put in one word of eight digits, the first in the lowest byte and zeros before it; then neighbours are joined,
/// ones to pairs, pairs to fours, fours to the eight.
#[inline(always)]
fn up_to_eight(head: [u8; 4], tail: [u8; 4], len: usize) -> u64 {
    const ASCII: u64 = 0x3030_3030_3030_3030;
    let before = 64_u32.wrapping_sub((len as u32).wrapping_mul(8));
    let [first, ..] = head;
    let (head, tail) = (u64::from(u32::from_le_bytes(head)), u64::from(u32::from_le_bytes(tail)));
    let text = head.wrapping_shl(before) | tail.wrapping_shl(32);
    let digits = text ^ ASCII.wrapping_shl(before);
    // What is above 9 reaches the upper half of its byte, now or with 6 more.
    if first == b'0' || (digits | digits.wrapping_add(0x0606_0606_0606_0606)) & 0xf0f0_f0f0_f0f0_f0f0 != 0 {
        return NONE;
    }
    let pairs = digits.wrapping_mul(10).wrapping_add(digits.wrapping_shr(8));
    let first_and_third = (pairs & 0xff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let second_and_fourth = (pairs.wrapping_shr(16) & 0xff_0000_00ff).wrapping_mul(0x2710_0000_0001);
    first_and_third.wrapping_add(second_and_fourth).wrapping_shr(32)
}

/// A number of more digits, or what is none.
#[inline(never)]
fn long(word: &[u8]) -> u64 {
    if !(9..=19).contains(&word.len()) || word.first() == Some(&b'0') {
        return NONE;
    }
    // 19 digits stay below 2^64, so no step can overflow.
    let add = |number: u64, &byte: &u8| {
        let digit = digit(byte);
        (digit <= 9).then(|| number.wrapping_mul(10).wrapping_add(digit))
    };
    word.iter().try_fold(0, add).unwrap_or(NONE)
}

/// A duration from 1 ms to [`LONGEST_MS`], in milliseconds: a whole number and a unit (`ms s m h d`), or a bare number of ms.
#[inline(always)] // a call of it costs as much as it does
#[must_use]
pub fn duration(word: &[u8]) -> Option<u64> {
    let (last, rest) = word.split_last()?;
    let (digits, unit) = match last {
        b'0'..=b'9' => (word, 1),
        b's' => match rest.split_last() {
            Some((b'm', digits)) => (digits, 1),
            _ => (rest, 1000),
        },
        b'm' => (rest, 60_000),
        b'h' => (rest, 3_600_000),
        b'd' => (rest, 86_400_000),
        _ => return None,
    };
    number(digits).checked_mul(unit).filter(|ms| (1..=LONGEST_MS).contains(ms))
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// `BLOCK 0`.
    Never,
    /// Milliseconds from the call on.
    After(u64),
}

/// A timeout: a [`duration`], or a bare `0` for no end.
#[must_use]
pub fn timeout(word: &[u8]) -> Option<Timeout> {
    match word {
        b"0" => Some(Timeout::Never),
        _ => duration(word).map(Timeout::After),
    }
}

/// A token: 1 to [`LONGEST_TOKEN`] bytes of any kind.
#[inline]
pub fn token(word: &[u8]) -> Result<&[u8], Invalid> {
    if (1..=LONGEST_TOKEN).contains(&word.len()) { Ok(word) } else { Err(Invalid::Token) }
}

/// A lease, in milliseconds.
#[inline]
pub fn ttl(word: &[u8]) -> Result<u64, Invalid> {
    duration(word).ok_or(Invalid::Ttl)
}

#[inline]
fn units(word: &[u8], largest: u64, otherwise: Invalid) -> Result<u64, Invalid> {
    let units = number(word);
    if (1..=largest).contains(&units) { Ok(units) } else { Err(otherwise) }
}

/// In which way a lock is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Alone, asked for any number of times.
    #[default]
    Exclusive,
    /// Alone, with a count of holds.
    Reentrant,
    /// Together with other shared holders.
    Shared,
}

/// LOCK.ACQUIRE's arguments after the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire<'a> {
    /// Who asks.
    pub token: &'a [u8],
    /// The lease in milliseconds.
    pub ttl: u64,
    /// In which way.
    pub mode: Mode,
    /// How long to wait; `None`: not at all.
    pub block: Option<Timeout>,
}

impl<'a> Acquire<'a> {
    /// Parses `LOCK.ACQUIRE key token ttl [SHARED | REENTRANT] [BLOCK timeout]`.
    #[inline]
    pub fn parse<W: Words + ?Sized>(words: &'a W) -> Result<Self, Invalid> {
        let mut call =
            Self { token: token(words.word(2))?, ttl: ttl(words.word(3))?, mode: Mode::Exclusive, block: None };
        if words.count() > 4 {
            call.options(words)?;
        }
        Ok(call)
    }

    #[cold]
    fn options<W: Words + ?Sized>(&mut self, words: &W) -> Result<(), Invalid> {
        let mut rest = 4..words.count();
        while let Some(at) = rest.next() {
            let word = words.word(at);
            if word.eq_ignore_ascii_case(b"BLOCK") {
                block(&mut self.block, words, rest.next())?;
                continue;
            }
            let mode = if word.eq_ignore_ascii_case(b"SHARED") {
                Mode::Shared
            } else if word.eq_ignore_ascii_case(b"REENTRANT") {
                Mode::Reentrant
            } else {
                return Err(Invalid::LockOption);
            };
            if self.mode != Mode::Exclusive {
                return Err(Invalid::TwoModes);
            }
            self.mode = mode;
        }
        Ok(())
    }
}

/// SEM.ACQUIRE's arguments after the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquirePermit<'a> {
    /// Who asks.
    pub token: &'a [u8],
    /// The lease in milliseconds.
    pub ttl: u64,
    /// How many may hold a permit at once.
    pub limit: u64,
    /// How long to wait; `None`: not at all.
    pub block: Option<Timeout>,
}

impl<'a> AcquirePermit<'a> {
    /// Parses `SEM.ACQUIRE key token ttl limit [BLOCK timeout]`.
    pub fn parse<W: Words + ?Sized>(words: &'a W) -> Result<Self, Invalid> {
        let mut call = Self {
            token: token(words.word(2))?,
            ttl: ttl(words.word(3))?,
            limit: units(words.word(4), LARGEST_COUNTED, Invalid::CountedLimit)?,
            block: None,
        };
        let mut rest = 5..words.count();
        while let Some(at) = rest.next() {
            if !words.word(at).eq_ignore_ascii_case(b"BLOCK") {
                return Err(Invalid::SemOption);
            }
            block(&mut call.block, words, rest.next())?;
        }
        Ok(call)
    }
}

/// The value of a BLOCK option, which stands at `at` if it stands anywhere.
fn block<W: Words + ?Sized>(block: &mut Option<Timeout>, words: &W, at: Option<usize>) -> Result<(), Invalid> {
    if block.is_some() {
        return Err(Invalid::BlockTwice);
    }
    let at = at.ok_or(Invalid::BlockWithoutTimeout)?;
    *block = Some(timeout(words.word(at)).ok_or(Invalid::Timeout)?);
    Ok(())
}

/// Parses `RL.FIXED key limit window [COST n] [PEEK]`.
#[inline]
pub fn fixed<W: Words + ?Sized>(words: &W) -> Result<limit::Request, Invalid> {
    window(words, LARGEST_UNITS, Invalid::Limit)
}

/// Parses `RL.SLIDING key limit window [COST n] [PEEK]`.
#[inline]
pub fn sliding<W: Words + ?Sized>(words: &W) -> Result<limit::Request, Invalid> {
    window(words, LARGEST_COUNTED, Invalid::CountedLimit)
}

#[inline(always)] // so that the request is never in memory
fn window<W: Words + ?Sized>(words: &W, largest: u64, otherwise: Invalid) -> Result<limit::Request, Invalid> {
    let limit = units(words.word(2), largest, otherwise)?;
    let window = duration(words.word(3)).ok_or(Invalid::Window)?;
    let (cost, peek) = limit_options(words, 4)?;
    Ok(limit::Request { limit, refill: 1, window, cost, peek })
}

/// Parses `RL.BUCKET key capacity refill period [COST n] [PEEK]`.
#[inline(always)] // so that the request is never in memory
pub fn bucket<W: Words + ?Sized>(words: &W) -> Result<limit::Request, Invalid> {
    let limit = units(words.word(2), LARGEST_UNITS, Invalid::Capacity)?;
    let refill = units(words.word(3), LARGEST_UNITS, Invalid::Refill)?;
    let window = duration(words.word(4)).ok_or(Invalid::Period)?;
    let (cost, peek) = limit_options(words, 5)?;
    Ok(limit::Request { limit, refill, window, cost, peek })
}

/// `[COST n] [PEEK]`, which begin at word `first`.
#[inline(always)]
fn limit_options<W: Words + ?Sized>(words: &W, first: usize) -> Result<(u64, bool), Invalid> {
    if words.count() > first { given_options(words, first) } else { Ok((1, false)) }
}

#[inline(never)]
fn given_options<W: Words + ?Sized>(words: &W, first: usize) -> Result<(u64, bool), Invalid> {
    let (mut cost, mut peek) = (None, false);
    let mut rest = first..words.count();
    while let Some(at) = rest.next() {
        let word = words.word(at);
        if word.eq_ignore_ascii_case(b"COST") {
            if cost.is_some() {
                return Err(Invalid::CostTwice);
            }
            let at = rest.next().ok_or(Invalid::CostWithoutNumber)?;
            let units = integer(words.word(at)).filter(|&cost| cost <= LARGEST_UNITS);
            cost = Some(units.ok_or(Invalid::Cost)?);
        } else if word.eq_ignore_ascii_case(b"PEEK") {
            if peek {
                return Err(Invalid::PeekTwice);
            }
            peek = true;
        } else {
            return Err(Invalid::LimitOption);
        }
    }
    Ok((cost.unwrap_or(1), peek))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What no number may look like: signs, blanks, zeros, points, exponents, other bases, other alphabets, overflow.
    const HOSTILE: &[&[u8]] = &[
        b"",
        b"+5",
        b"-5",
        b"-0",
        b"+0",
        b"--5",
        b" 5",
        b"5 ",
        b"5\n",
        b"\t5",
        b"05",
        b"00",
        b"0x5",
        b"5.0",
        b".5",
        b"5.",
        b"1e3",
        b"1E3",
        b"5_0",
        b"5,0",
        b"abc",
        b"five",
        b"NaN",
        b"nan",
        b"inf",
        b"-inf",
        b"Infinity",
        b"\0",
        b"5\0",
        b"\x005",
        b"\xff",
        b"\xd9\xa5",
        b"\xef\xbc\x95",
        b"18446744073709551615",
        b"18446744073709551616",
        b"99999999999999999999",
        b"340282366920938463463374607431768211456",
        b"%d",
        b"%s%n",
        b"5%",
        b"$5",
        b"5;",
        b"(5)",
        b"'5'",
        b"\"5\"",
        b"true",
        b"null",
        b"0b1",
        b"5u64",
    ];

    /// What no duration may look like, besides.
    const HOSTILE_DURATION: &[&[u8]] = &[
        b"10x",
        b"10S",
        b"10MS",
        b"10Ms",
        b"10H",
        b"10 s",
        b"10sec",
        b"10min",
        b"10us",
        b"10ns",
        b"10w",
        b"10y",
        b"1.5s",
        b"s",
        b"ms",
        b"m",
        b"h",
        b"d",
        b"1s1s",
        b"1h30m",
        b"10ss",
        b"10sm",
        b"10msms",
        b"PT1S",
        b"0",
        b"0ms",
        b"0s",
        b"0d",
        b"-1s",
        b"+1s",
        b"01s",
        b"3661d",
        b"87841h",
        b"316224000001",
        b"316224000001ms",
        b"316224001s",
        b"9223372036854775807",
        b"9223372036854775807d",
        b"9999999999999999999d",
        b"1000000000000000000",
    ];

    fn words<'a>(line: &[&'a [u8]]) -> Vec<&'a [u8]> {
        line.to_vec()
    }

    #[test]
    fn an_integer_is_strictly_decimal_digits() {
        for &word in HOSTILE {
            assert_eq!(integer(word).filter(|&n| n <= LARGEST_UNITS), None, "{word:?}");
        }
        for (word, value) in [
            (&b"0"[..], 0),
            (b"1", 1),
            (b"10", 10),
            (b"9999999999999999999", 9_999_999_999_999_999_999),
            (b"9223372036854775808", 1 << 63),
        ] {
            assert_eq!(integer(word), Some(value));
        }
    }

    #[test]
    fn a_duration_is_an_integer_and_a_unit_or_bare_milliseconds() {
        for &word in HOSTILE.iter().chain(HOSTILE_DURATION) {
            assert_eq!(duration(word), None, "{:?}", word.escape_ascii().to_string());
        }
        for (word, value) in [
            (&b"1"[..], 1),
            (b"1ms", 1),
            (b"250ms", 250),
            (b"30s", 30_000),
            (b"5m", 300_000),
            (b"2h", 7_200_000),
            (b"1d", 86_400_000),
            (b"3660d", LONGEST_MS),
            (b"316224000000", LONGEST_MS),
            (b"316224000000ms", LONGEST_MS),
            (b"87840h", LONGEST_MS),
        ] {
            assert_eq!(duration(word), Some(value));
        }
    }

    #[test]
    fn a_timeout_is_a_duration_or_a_bare_zero() {
        assert_eq!(timeout(b"0"), Some(Timeout::Never));
        assert_eq!(timeout(b"5s"), Some(Timeout::After(5000)));
        for word in [&b"0s"[..], b"0ms", b"00", b"-1", b"", b"x"] {
            assert_eq!(timeout(word), None);
        }
    }

    #[test]
    fn a_token_is_1_to_512_bytes_of_any_kind() {
        assert_eq!(token(b""), Err(Invalid::Token));
        assert_eq!(token(&[0; 513]), Err(Invalid::Token));
        for word in [&[0_u8; 512][..], b"\0", b"\xff\xfe", b"mode", b"-1", b"\r\n"] {
            assert_eq!(token(word), Ok(word));
        }
    }

    #[test]
    fn acquire_takes_its_options_in_any_order_and_case_each_at_most_once() {
        let ok = |line: &[&[u8]]| {
            let line = words(line);
            let call = Acquire::parse(&line[..]).unwrap();
            (call.ttl, call.mode, call.block)
        };
        assert_eq!(ok(&[b"c", b"k", b"t", b"10s"]), (10_000, Mode::Exclusive, None));
        assert_eq!(
            ok(&[b"c", b"k", b"t", b"10s", b"bLoCk", b"0", b"shared"]),
            (10_000, Mode::Shared, Some(Timeout::Never))
        );
        assert_eq!(
            ok(&[b"c", b"k", b"t", b"10s", b"REENTRANT", b"BLOCK", b"5s"]),
            (10_000, Mode::Reentrant, Some(Timeout::After(5000)))
        );
        let refused = |line: &[&[u8]]| {
            let mut all = words(&[b"c", b"k", b"t", b"10s"]);
            all.extend(line);
            Acquire::parse(&all[..]).unwrap_err()
        };
        assert_eq!(refused(&[b"NOSUCHOPT"]), Invalid::LockOption);
        assert_eq!(refused(&[b""]), Invalid::LockOption);
        assert_eq!(refused(&[b"BLOCK"]), Invalid::BlockWithoutTimeout);
        assert_eq!(refused(&[b"BLOCK", b"x"]), Invalid::Timeout);
        assert_eq!(refused(&[b"BLOCK", b"1", b"BLOCK", b"1"]), Invalid::BlockTwice);
        assert_eq!(refused(&[b"SHARED", b"SHARED"]), Invalid::TwoModes);
        assert_eq!(refused(&[b"SHARED", b"REENTRANT"]), Invalid::TwoModes);
        assert_eq!(refused(&[b"REENTRANT", b"SHARED"]), Invalid::TwoModes);
        assert_eq!(refused(&[b"COST", b"1"]), Invalid::LockOption);
    }

    #[test]
    fn a_permit_is_asked_for_with_a_limit_and_block_at_most_once() {
        let parse = |line: &[&[u8]]| {
            let mut all = words(&[b"c", b"k", b"t", b"10s"]);
            all.extend(line);
            AcquirePermit::parse(&all[..]).map(|call| (call.ttl, call.limit, call.block))
        };
        assert_eq!(parse(&[b"3"]), Ok((10_000, 3, None)));
        assert_eq!(parse(&[b"1000000000", b"block", b"5s"]), Ok((10_000, LARGEST_COUNTED, Some(Timeout::After(5000)))));
        assert_eq!(parse(&[b"3", b"SHARED"]), Err(Invalid::SemOption));
        assert_eq!(parse(&[b"3", b"BLOCK"]), Err(Invalid::BlockWithoutTimeout));
        assert_eq!(parse(&[b"3", b"BLOCK", b"1", b"BLOCK", b"1"]), Err(Invalid::BlockTwice));
        for &word in HOSTILE.iter().chain([&b"0"[..], b"1000000001"].iter()) {
            assert_eq!(parse(&[word]), Err(Invalid::CountedLimit));
        }
    }

    #[test]
    fn limiters_take_their_options_in_any_order_and_case_each_at_most_once() {
        let line = words(&[b"c", b"k", b"10", b"60s", b"peek", b"Cost", b"0"]);
        let call = fixed(&line[..]).unwrap();
        assert_eq!((call.limit, call.window, call.cost, call.peek), (10, 60_000, 0, true));
        let line = words(&[b"c", b"k", b"10", b"3", b"1s", b"COST", b"1000000000000"]);
        let call = bucket(&line[..]).unwrap();
        assert_eq!((call.limit, call.refill, call.window, call.cost), (10, 3, 1000, LARGEST_UNITS));
        let refused = |line: &[&[u8]]| {
            let mut all = words(&[b"c", b"k", b"10", b"60s"]);
            all.extend(line);
            let fixed = fixed(&all[..]).unwrap_err();
            assert_eq!(sliding(&all[..]).unwrap_err(), fixed);
            all.insert(3, b"1");
            assert_eq!(bucket(&all[..]).unwrap_err(), fixed);
            fixed
        };
        assert_eq!(refused(&[b"COST"]), Invalid::CostWithoutNumber);
        assert_eq!(refused(&[b"COST", b"1000000000001"]), Invalid::Cost);
        assert_eq!(refused(&[b"COST", b"1", b"cost", b"1"]), Invalid::CostTwice);
        assert_eq!(refused(&[b"PEEK", b"PEEK"]), Invalid::PeekTwice);
        assert_eq!(refused(&[b"BLOCK", b"1"]), Invalid::LimitOption);
        for &word in HOSTILE {
            assert_eq!(refused(&[b"COST", word]), Invalid::Cost);
        }
    }

    #[test]
    fn every_positional_argument_refuses_every_hostile_string_by_its_own_name() {
        for &word in HOSTILE.iter().chain([&b"0"[..]].iter()) {
            let line = words(&[b"c", b"k", word, b"1s"]);
            assert_eq!(fixed(&line[..]).unwrap_err(), Invalid::Limit);
            assert_eq!(sliding(&line[..]).unwrap_err(), Invalid::CountedLimit);
            let line = words(&[b"c", b"k", word, b"1", b"1s"]);
            assert_eq!(bucket(&line[..]).unwrap_err(), Invalid::Capacity);
            let line = words(&[b"c", b"k", b"1", word, b"1s"]);
            assert_eq!(bucket(&line[..]).unwrap_err(), Invalid::Refill);
        }
        for &word in HOSTILE.iter().chain(HOSTILE_DURATION) {
            let line = words(&[b"c", b"k", b"1", word]);
            assert_eq!(fixed(&line[..]).unwrap_err(), Invalid::Window);
            assert_eq!(sliding(&line[..]).unwrap_err(), Invalid::Window);
            let line = words(&[b"c", b"k", b"1", b"1", word]);
            assert_eq!(bucket(&line[..]).unwrap_err(), Invalid::Period);
            let line = words(&[b"c", b"k", b"t", word]);
            assert_eq!(Acquire::parse(&line[..]).unwrap_err(), Invalid::Ttl);
        }
        let line = words(&[b"c", b"k", b"1000000001", b"1s"]);
        assert_eq!(sliding(&line[..]).unwrap_err(), Invalid::CountedLimit);
        assert!(fixed(&line[..]).is_ok());
        let line = words(&[b"c", b"k", b"1000000000001", b"1s"]);
        assert_eq!(fixed(&line[..]).unwrap_err(), Invalid::Limit);
    }

    #[test]
    fn every_error_is_one_line_that_begins_with_its_code() {
        use Invalid::*;
        for error in [
            Token,
            Ttl,
            Window,
            Period,
            Timeout,
            Limit,
            CountedLimit,
            Capacity,
            Refill,
            Cost,
            BlockWithoutTimeout,
            BlockTwice,
            TwoModes,
            LockOption,
            SemOption,
            CostWithoutNumber,
            CostTwice,
            PeekTwice,
            LimitOption,
        ] {
            let text = error.text().to_str().unwrap();
            assert!(text.starts_with("ERR ") && !text.contains(['\r', '\n']), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_parser_panics_and_what_is_accepted_is_in_bounds(line in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..24),
                "[0-9]{0,21}(ms|s|m|h|d|)".prop_map(String::into_bytes),
                prop::sample::select(vec![b"COST".to_vec(), b"PEEK".to_vec(), b"BLOCK".to_vec(), b"SHARED".to_vec()]),
            ], 0..9)) {
            let line: Vec<&[u8]> = line.iter().map(Vec::as_slice).collect();
            if let Ok(call) = Acquire::parse(&line[..]) {
                prop_assert!((1..=LONGEST_MS).contains(&call.ttl) && (1..=512).contains(&call.token.len()));
            }
            for parsed in [fixed(&line[..]), sliding(&line[..]), bucket(&line[..])].into_iter().flatten() {
                prop_assert!((1..=LARGEST_UNITS).contains(&parsed.limit) && (1..=LARGEST_UNITS).contains(&parsed.refill));
                prop_assert!((1..=LONGEST_MS).contains(&parsed.window) && parsed.cost <= LARGEST_UNITS);
            }
        }

        #[test]
        fn an_integer_is_what_the_standard_library_reads_strictly(
            word in prop_oneof![
                "[0-9]{0,21}",
                "[0-9]{0,8}[\\x00-\\xff][0-9]{0,8}",
                "[ -@]{0,9}",
            ],
        ) {
            let word = word.as_bytes();
            let strict = !word.is_empty() && word.iter().all(u8::is_ascii_digit) && (word[0] != b'0' || word.len() == 1);
            let read = strict.then(|| std::str::from_utf8(word).unwrap().parse().ok()).flatten();
            prop_assert_eq!(integer(word), read.filter(|_| word.len() <= 19));
        }

        #[test]
        fn an_integer_is_what_it_prints(n in 0..10_000_000_000_000_000_000_u64) {
            prop_assert_eq!(integer(n.to_string().as_bytes()), Some(n));
        }
    }
}
