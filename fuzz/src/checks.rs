//! What must hold of `core` whatever bytes come in: one function a fuzz target, which panics where something does not hold.
//!
//! The functions know nothing of a fuzzer, so that a test of `core` can run all of the committed corpus through them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice, missing_docs, dead_code)]

use sluice_core::args::{self, Acquire, AcquirePermit, Invalid, Mode, Timeout, Words};
use sluice_core::cluster::Endpoint;
use sluice_core::limit::{Expiry, Refusal, Request, Verdict};
use sluice_core::lock::{self, Decision, Family, Found, Release, Want};
use sluice_core::queue::{Ask, Lock, Place, QueueId, Queues, Sieve, Waiter};
use sluice_core::{bucket, cluster, fence, fixed, lease, sliding};

/// Reads choices from the fuzzer's bytes; at their end everything is 0.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A number of any magnitude: the first byte says of how many bytes, or which of those where things change.
    fn number(&mut self) -> u64 {
        const EDGES: [u64; 8] =
            [0, 1, u64::MAX, i64::MAX as u64, 1 << 63, args::LARGEST_UNITS, args::LARGEST_COUNTED, args::LONGEST_MS];
        let how = self.byte();
        match how % 12 {
            size @ 0..=8 => {
                let mut word = [0; 8];
                let bytes = self.take(usize::from(size));
                word[..bytes.len()].copy_from_slice(bytes);
                u64::from_le_bytes(word)
            }
            _ => EDGES[usize::from(how / 12) % 8].wrapping_add(u64::from(self.byte() % 3)).wrapping_sub(1),
        }
    }

    /// From 1 to `largest`.
    fn up_to(&mut self, largest: u64) -> u64 {
        let number = self.number();
        if (1..=largest).contains(&number) { number } else { 1 + number % largest }
    }

    fn request(&mut self, largest: u64) -> Request {
        let how = self.byte();
        let limit = self.up_to(largest);
        let refill = if how & 1 == 0 { 1 } else { self.up_to(args::LARGEST_UNITS) };
        let window = self.up_to(args::LONGEST_MS);
        let cost = if how & 2 == 0 { 1 } else { self.number() % (args::LARGEST_UNITS + 1) };
        Request { limit, refill, window, cost, peek: how & 12 == 12 }
    }

    /// A time near today, in ms, or any at all.
    fn time(&mut self) -> i64 {
        match self.byte() % 4 {
            0 => self.number().cast_signed(),
            1 => 0,
            _ => 1_700_000_000_000 + i64::from(self.byte()),
        }
    }

    /// The next time of a clock that mostly goes forward.
    fn later(&mut self, now: i64) -> i64 {
        match self.byte() % 8 {
            0 => now.saturating_sub_unsigned(self.number()),
            1 | 2 => now,
            _ => now.saturating_add_unsigned(self.number()),
        }
    }
}

// ---- Arguments.

/// An integer as the contract has it, written another way.
fn plain_integer(word: &[u8]) -> Option<u128> {
    let text = core::str::from_utf8(word).ok()?;
    let value = text.parse::<u128>().ok()?;
    (value.to_string() == text).then_some(value)
}

fn plain_duration(word: &[u8]) -> Option<u128> {
    let text = core::str::from_utf8(word).ok()?;
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match &text[digits..] {
        "" | "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let value = plain_integer(&word[..digits])?.checked_mul(factor)?;
    (1..=u128::from(args::LONGEST_MS)).contains(&value).then_some(value)
}

pub fn args(data: &[u8]) {
    // The whole as one word, …
    let integer = args::integer(data).map(u128::from);
    match plain_integer(data).filter(|&n| n <= 9_999_999_999_999_999_999) {
        Some(value) => assert_eq!(integer, Some(value)),
        None => assert_eq!(integer, None),
    }
    assert_eq!(args::duration(data).map(u128::from), plain_duration(data));
    match args::timeout(data) {
        Some(Timeout::Never) => assert_eq!(data, b"0"),
        Some(Timeout::After(ms)) => assert_eq!(Some(ms), args::duration(data)),
        None => assert!(args::duration(data).is_none() && data != b"0"),
    }
    assert_eq!(args::token(data).is_ok(), (1..=512).contains(&data.len()));

    // … and as the words of a call.
    let words: Vec<&[u8]> = data.split(|&byte| byte == b' ').collect();
    let words = &words[..];
    let says = |invalid: Invalid| {
        let text = invalid.text().to_str().unwrap();
        assert!(text.starts_with("ERR ") && text.is_ascii() && !text.contains(['\r', '\n']));
    };
    match Acquire::parse(words) {
        Ok(call) => {
            assert_eq!(call.token, words.word(2));
            assert_eq!(Some(u128::from(call.ttl)), plain_duration(words.word(3)));
            let options = &words[4..];
            let has = |name: &str| options.iter().any(|word| word.eq_ignore_ascii_case(name.as_bytes()));
            assert_eq!(call.mode == Mode::Shared, has("SHARED"));
            assert_eq!(call.mode == Mode::Reentrant, has("REENTRANT"));
            assert_eq!(call.block.is_some(), has("BLOCK"));
            let expected = usize::from(call.mode != Mode::Exclusive) + 2 * usize::from(call.block.is_some());
            assert_eq!(options.len(), expected);
        }
        Err(invalid) => says(invalid),
    }
    match AcquirePermit::parse(words) {
        Ok(call) => {
            assert_eq!(call.token, words.word(2));
            assert!((1..=args::LARGEST_COUNTED).contains(&call.limit));
            assert_eq!(words.len(), 5 + 2 * usize::from(call.block.is_some()));
        }
        Err(invalid) => says(invalid),
    }
    for (parsed, first, largest) in [
        (args::fixed(words), 4, args::LARGEST_UNITS),
        (args::sliding(words), 4, args::LARGEST_COUNTED),
        (args::bucket(words), 5, args::LARGEST_UNITS),
    ] {
        match parsed {
            Ok(request) => {
                assert!((1..=largest).contains(&request.limit));
                assert!((1..=args::LARGEST_UNITS).contains(&request.refill));
                assert!((1..=args::LONGEST_MS).contains(&request.window));
                assert!(request.cost <= args::LARGEST_UNITS);
                let costs = words[first..].iter().filter(|word| word.eq_ignore_ascii_case(b"COST")).count();
                assert_eq!(words.len(), first + usize::from(request.peek) + 2 * costs);
                assert!(costs <= 1 && (costs == 1 || request.cost == 1));
            }
            Err(invalid) => says(invalid),
        }
    }
}

// ---- Limiters.

/// What holds of every answer.
fn shape(verdict: &Verdict, request: &Request) {
    assert_eq!(verdict.limit, request.limit);
    assert!(verdict.remaining <= request.limit, "{verdict:?} {request:?}");
    assert!(verdict.reset_after >= 0, "{verdict:?} {request:?}");
    match verdict.allowed {
        true => assert_eq!(verdict.retry_after, 0),
        false if request.cost > request.limit => assert_eq!(verdict.retry_after, -1),
        false => assert!(verdict.retry_after >= 1, "{verdict:?} {request:?}"),
    }
    assert!(request.cost != 0 || verdict.allowed);
    assert!(request.cost <= request.limit || !verdict.allowed);
}

fn ordered(expiry: &Expiry) {
    assert!(expiry.earliest <= expiry.set_to && expiry.set_to <= expiry.latest, "{expiry:?}");
}

/// A refusal's promise kept: refused a millisecond before, allowed then.
fn tight(verdict: &Verdict, at: impl Fn(i64) -> Verdict) {
    if verdict.allowed || verdict.retry_after < 0 {
        return;
    }
    let there = at(verdict.retry_after);
    assert!(there.allowed, "still refused at its retry_after: {verdict:?} then {there:?}");
    let before = at(verdict.retry_after - 1);
    assert!(!before.allowed, "allowed a millisecond before: {verdict:?} {before:?}");
}

/// What holds of a refusal that rests on damaged bytes: whoever comes again when told to is let in within one window.
fn let_in(verdict: &Verdict, window: i64, at: impl Fn(i64) -> Verdict) {
    let mut waited = 0;
    let mut verdict = *verdict;
    while !verdict.allowed && verdict.retry_after > 0 {
        waited += verdict.retry_after;
        assert!(waited <= window, "locked out for more than a window: {waited} of {window}");
        verdict = at(waited);
    }
}

/// A look answers as the call would.
fn peeks(verdict: &Verdict, peeked: &Verdict, request: &Request) {
    assert_eq!((peeked.allowed, peeked.retry_after), (verdict.allowed, verdict.retry_after));
    if !verdict.allowed || request.cost == 0 {
        assert_eq!(peeked, verdict);
    } else if !request.peek {
        // Less than the call takes is left where a log shuts callers out for too long, which the call then gives up.
        let had = if peeked.remaining < request.cost { request.limit } else { peeked.remaining };
        assert_eq!(had - request.cost, verdict.remaining);
    }
}

/// Times so far from the ends of the clock that no sum of ours reaches them.
fn ordinary(now: i64) -> bool {
    (-(1 << 44)..1 << 44).contains(&now)
}

pub fn fixed(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut now = bytes.time();
    let mut value: Option<Vec<u8>> = None;
    let mut end: Option<i64> = None;
    match bytes.byte() % 4 {
        0 => {}
        1 => value = Some(bytes.number().to_string().into_bytes()),
        _ => {
            let length = usize::from(bytes.byte() % 24);
            value = Some(bytes.take(length).to_vec());
        }
    }
    if value.is_some() {
        end = match bytes.byte() % 3 {
            0 => None,
            1 => Some(bytes.number().cast_signed()),
            _ => Some(now.saturating_add_unsigned(bytes.number())),
        };
    }
    for _ in 0..32 {
        let request = bytes.request(args::LARGEST_UNITS);
        let decide = |value: &Option<Vec<u8>>, expires_at, now, request: &Request| {
            let found = value.as_deref().map(|value| fixed::Found { value, expires_at });
            fixed::decide(found, now, request)
        };
        let decision = match decide(&value, end, now, &request) {
            Ok(decision) => decision,
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Foreign);
                let count = value.as_deref().and_then(plain_integer);
                assert!(count.is_none_or(|count| count > i64::MAX as u128), "a count was refused: {value:?}");
                return;
            }
        };
        let verdict = decision.verdict;
        shape(&verdict, &request);
        assert!(verdict.retry_after <= request.window.cast_signed(), "locked out: {verdict:?} {request:?}");
        assert!(verdict.reset_after <= request.window.cast_signed());
        peeks(&verdict, &decide(&value, end, now, &Request { peek: true, ..request }).unwrap().verdict, &request);
        let charged = verdict.allowed && request.cost > 0 && !request.peek;
        match decision.effect {
            fixed::Effect::Nothing => assert!(!charged),
            fixed::Effect::Start { count, end: over } => {
                assert!(charged && count == request.cost);
                (value, end) = (Some(count.to_string().into_bytes()), Some(over));
            }
            fixed::Effect::Add { count, by, end: moved } => {
                assert!(charged && by == request.cost);
                let before = value.as_deref().and_then(plain_integer).unwrap();
                assert_eq!(before + u128::from(by), u128::from(count));
                assert!(count <= i64::MAX.cast_unsigned());
                value = Some(count.to_string().into_bytes());
                end = moved.or(end);
            }
            fixed::Effect::MoveEnd { end: moved } => {
                assert!(!verdict.allowed && !request.peek);
                end = Some(moved);
            }
        }
        // A look writes no end, so what it promises counts from the first call that does.
        if ordinary(now) && !request.peek {
            tight(&verdict, |wait| decide(&value, end, now + wait, &request).unwrap().verdict);
        }
        if bytes.is_empty() {
            return;
        }
        now = bytes.later(now);
    }
}

pub fn sliding(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut now = bytes.time();
    let mut value: Option<Vec<u8>> = match bytes.byte() % 4 {
        0 | 1 => None,
        2 => Some(bytes.take(512).to_vec()),
        _ => {
            // A header that may pass, and slots of anything.
            let (offset, sum) = (1 + bytes.byte() % 5, 1 + bytes.byte() % 4);
            let base = now.saturating_sub_unsigned(bytes.number()).to_le_bytes();
            let mut log = vec![0xf6, offset << 4 | sum];
            log.extend(&base[..6]);
            let slots = 2 + usize::from(bytes.byte() % 32);
            let mut slot = bytes.take(slots * usize::from(offset + sum)).to_vec();
            slot.resize(slots * usize::from(offset + sum), 0xff);
            log.extend(slot);
            Some(log)
        }
    };
    // While nothing but the clock changes, and that forward, there is a simple model: all that was admitted, and when.
    let sound = value.is_none();
    let mut model: Option<Vec<(i64, u64)>> = (sound && ordinary(now)).then(Vec::new);
    let mut usual = bytes.request(args::LARGEST_COUNTED);
    for round in 0..48 {
        let mut request = usual;
        if round > 0 && bytes.byte() & 7 == 7 {
            request = bytes.request(args::LARGEST_COUNTED);
            if (request.limit, request.window) != (usual.limit, usual.window) {
                model = None;
                usual = request;
            }
        }
        let decide = |value: &Option<Vec<u8>>, now, request: &Request| sliding::decide(value.as_deref(), now, request);
        let decision = match decide(&value, now, &request) {
            Ok(decision) => decision,
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Foreign);
                assert_eq!(round, 0, "a log of ours was refused: {value:?}");
                return;
            }
        };
        let verdict = decision.verdict;
        shape(&verdict, &request);
        assert!(verdict.retry_after <= request.window.cast_signed(), "locked out: {verdict:?} {request:?}");
        peeks(&verdict, &decide(&value, now, &Request { peek: true, ..request }).unwrap().verdict, &request);
        if let Some(model) = model.as_ref().filter(|_| ordinary(now)) {
            against(model, now, &request, &verdict);
        }
        let after = |wait| decide(&value, now + wait, &request).unwrap().verdict;
        match ordinary(now) {
            true if sound => tight(&verdict, after),
            true => let_in(&verdict, request.window.cast_signed(), after),
            false => {}
        }
        let charged = verdict.allowed && request.cost > 0 && !request.peek;
        match decision.effect {
            sliding::Effect::Nothing => assert!(!charged),
            sliding::Effect::Slot { at, bytes, expiry } => {
                assert!(charged);
                ordered(&expiry);
                let (value, bytes) = (value.as_mut().unwrap(), bytes.as_slice());
                assert!(!bytes.is_empty() && at >= 8 && at + bytes.len() <= value.len());
                value[at..at + bytes.len()].copy_from_slice(bytes);
            }
            sliding::Effect::Rebuild { value: log, expiry } => {
                assert!(charged);
                ordered(&expiry);
                value = Some(log);
            }
        }
        if charged && let Some(model) = &mut model {
            model.push((now, request.cost));
        }
        if bytes.is_empty() {
            return;
        }
        let next = bytes.later(now);
        if next < now || !ordinary(next) {
            model = None;
        }
        now = next;
    }
}

/// Holds an answer of RL.SLIDING to all that was admitted before.
fn against(admitted: &[(i64, u64)], now: i64, request: &Request, verdict: &Verdict) {
    let window = request.window.cast_signed();
    let used_at = |at: i64| admitted.iter().filter(|(hit, _)| at - hit < window).map(|(_, units)| units).sum::<u64>();
    let used = used_at(now);
    assert!(used <= request.limit, "more than the limit was admitted in one window");
    let allowed = request.cost == 0 || used + request.cost <= request.limit;
    assert_eq!(verdict.allowed, allowed, "{admitted:?} {now} {request:?}");
    let taken = if allowed && !request.peek { request.cost } else { 0 };
    assert_eq!(verdict.remaining, request.limit - used - taken, "{admitted:?} {now} {request:?}");
    let newest = admitted.last().map_or(0, |(hit, _)| (hit + window - now).max(0));
    assert_eq!(verdict.reset_after, if taken > 0 { window } else { newest });
}

pub fn bucket(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut now = bytes.time().saturating_mul(1000).saturating_add_unsigned(bytes.number() % 1000);
    let mut value: Option<Vec<u8>> = match bytes.byte() % 4 {
        0 | 1 => None,
        2 => Some(bytes.take(32).to_vec()),
        _ => {
            // A state that may pass.
            let time = now.saturating_sub_unsigned(bytes.number()).to_le_bytes();
            let mut state = vec![0xf5];
            state.extend(&time[..7]);
            let mut numerator = bytes.take(12).to_vec();
            numerator.resize(12, 0);
            state.extend(numerator);
            state.extend(&bytes.up_to(args::LONGEST_MS).to_le_bytes()[..5]);
            Some(state)
        }
    };
    // The level in units of 1 / period, exactly, while the parameters stay and the clock goes forward.
    let mut model: Option<(i64, u128)> = (value.is_none() && ordinary(now / 1000)).then_some((now, 0));
    let mut usual = bytes.request(args::LARGEST_UNITS);
    for round in 0..48 {
        let mut request = usual;
        if round > 0 && bytes.byte() & 7 == 7 {
            request = bytes.request(args::LARGEST_UNITS);
            if (request.limit, request.refill, request.window) != (usual.limit, usual.refill, usual.window) {
                model = None;
                usual = request;
            }
        }
        let decide = |value: &Option<Vec<u8>>, now, request: &Request| bucket::decide(value.as_deref(), now, request);
        let decision = match decide(&value, now, &request) {
            Ok(decision) => decision,
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Foreign);
                assert_eq!(round, 0, "a state of ours was refused: {value:?}");
                return;
            }
        };
        let verdict = decision.verdict;
        shape(&verdict, &request);
        // Nothing accrues for a period at most, and then what is missing does, which is no more than the cost.
        let period = u128::from(request.window) * 1000;
        let missing = (u128::from(request.cost) * period).div_ceil(u128::from(request.refill));
        let longest = (period + missing).div_ceil(1000);
        assert!(u128::try_from(verdict.retry_after).unwrap_or(0) <= longest, "locked out: {verdict:?} {request:?}");
        peeks(&verdict, &decide(&value, now, &Request { peek: true, ..request }).unwrap().verdict, &request);
        let usual_times = ordinary(now / 1000) && verdict.retry_after < 1 << 43;
        if usual_times {
            tight(&verdict, |wait| decide(&value, now + wait * 1000, &request).unwrap().verdict);
        }
        let charged = verdict.allowed && request.cost > 0 && !request.peek;
        if let Some((then, used)) = model.as_mut().filter(|_| ordinary(now / 1000)) {
            let elapsed = u128::try_from(now - *then).unwrap();
            let left = used.saturating_sub(elapsed * u128::from(request.refill));
            let free = u128::from(request.limit) * period - left;
            let cost = u128::from(request.cost) * period;
            assert_eq!(verdict.allowed, cost == 0 || cost <= free, "{request:?}");
            let after = if charged { left + cost } else { left };
            assert_eq!(u128::from(verdict.remaining), (u128::from(request.limit) * period - after) / period);
            let full_in = after.div_ceil(u128::from(request.refill)).div_ceil(1000);
            assert_eq!(i128::from(verdict.reset_after), i128::try_from(full_in).unwrap().min(i128::from(i64::MAX)));
            if charged {
                (*then, *used) = (now, after);
            }
        }
        match decision.effect {
            bucket::Effect::Nothing => assert!(!charged),
            bucket::Effect::Store { value: state, expiry, .. } => {
                assert!(charged);
                ordered(&expiry);
                value = Some(state.to_vec());
            }
        }
        if bytes.is_empty() {
            return;
        }
        let next = match bytes.byte() % 8 {
            0 => now.saturating_sub_unsigned(bytes.number()),
            1 => now,
            2 | 3 => now.saturating_add_unsigned(bytes.number() % 4_000_000),
            _ => now.saturating_add_unsigned(bytes.number()),
        };
        if next < now || !ordinary(next / 1000) {
            model = None;
        }
        now = next;
    }
}

// ---- Who owns a slot.

pub fn cluster(data: &[u8]) {
    let mut bytes = Bytes(data);
    let slot = u16::from_le_bytes([bytes.byte(), bytes.byte()]);
    let text = String::from_utf8_lossy(bytes.0);
    for by in [Endpoint::Ip, Endpoint::Hostname, Endpoint::Unknown] {
        match cluster::owner(&text, slot, by) {
            cluster::Owner::Other(address) => {
                assert!(!address.contains(|c: char| c.is_ascii_whitespace()));
                let (host, port) = address.rsplit_once(':').unwrap();
                assert!(port != "0" && host.is_empty() == (by == Endpoint::Unknown));
                assert!(by != Endpoint::Ip || (text.contains(&address) && !address.contains('@')));
                assert!(text.contains(host) || host == "?");
            }
            cluster::Owner::Myself => assert!(text.contains("myself")),
            cluster::Owner::Unknown => {}
        }
    }
    // A cluster made from the bytes, where the right answer is known.
    let mut wanted = cluster::Owner::Unknown;
    let mut name = String::new();
    let mut lines = String::new();
    for node in 0..1 + bytes.byte() % 6 {
        let (from, how) = (u16::from_le_bytes([bytes.byte(), bytes.byte()]) % 16384, bytes.byte());
        let to = from.saturating_add(u16::from(bytes.byte()) * 16).min(16383);
        let flags = ["master", "myself,master", "master,fail", "slave"][usize::from(how & 3)];
        let port = if how & 12 == 12 { 0 } else { 7000 + u32::from(node) };
        let extra = if how & 16 == 0 { "" } else { ",host.example" };
        let range = if from == to { format!("{from}") } else { format!("{from}-{to}") };
        lines += &format!(
            "id{node} 10.0.0.{node}:{port}@1{port}{extra} {flags} - 0 0 {node} connected {range} [{slot}->-id9]\n"
        );
        if wanted == cluster::Owner::Unknown && (from..=to).contains(&slot) {
            wanted = match (how & 3, port) {
                (1, _) => cluster::Owner::Myself,
                (_, 0) => break,
                _ => cluster::Owner::Other(format!("10.0.0.{node}:{port}")),
            };
            name = format!("{}:{port}", extra.strip_prefix(',').unwrap_or("?"));
            break;
        }
    }
    assert_eq!(cluster::owner(&lines, slot, Endpoint::Ip), wanted, "{lines}");
    if matches!(wanted, cluster::Owner::Other(_)) {
        wanted = cluster::Owner::Other(name);
    }
    assert_eq!(cluster::owner(&lines, slot, Endpoint::Hostname), wanted, "{lines}");
}

// ---- Locks.

pub fn lock(data: &[u8]) {
    let mut bytes = Bytes(data);
    let bits = u64::from_le_bytes(std::array::from_fn(|_| bytes.byte()));
    if let Some((family, deadline)) = lock::score(f64::from_bits(bits)) {
        assert!((0..1 << 51).contains(&deadline));
        assert_eq!(family.score(deadline).to_bits(), bits, "a score is read as one it is not");
    }
    let deadline = bytes.number().cast_signed();
    for family in [Family::Shared, Family::Semaphore] {
        assert_eq!(lock::score(family.score(deadline)), Some((family, deadline.clamp(0, (1 << 51) - 1))));
    }

    let (mine, others, count) = (bytes.flag(), bytes.flag(), bytes.number());
    let found = match bytes.byte() % 5 {
        0 => Found::Free,
        1 => Found::Exclusive { mine },
        2 => Found::Reentrant { mine, holds: count },
        3 => Found::Shared { mine, others },
        _ => Found::Permits { mine, held: count },
    };
    let want = match bytes.byte() % 4 {
        0 => Want::Lock(Mode::Exclusive),
        1 => Want::Lock(Mode::Reentrant),
        2 => Want::Lock(Mode::Shared),
        _ => Want::Permit(bytes.up_to(args::LARGEST_COUNTED)),
    };
    let queued = bytes.flag();
    let decision = lock::decide(found, want, queued);
    let holds = !matches!(found, Found::Free) && mine;
    if matches!(found, Found::Permits { .. }) == matches!(want, Want::Lock(_)) && !matches!(found, Found::Free) {
        assert_eq!(decision, Decision::WrongKind);
    } else if !holds {
        // A newcomer never gets past a queue, nor into what one token has, and never waits for itself.
        assert!(!matches!(decision, Decision::Deadlock | Decision::WrongKind | Decision::Prolong));
        assert!(!(queued && decision.grants()));
        assert!(!(matches!(found, Found::Exclusive { .. } | Found::Reentrant { .. }) && decision.grants()));
    } else {
        // To a holder the queue is nothing.
        assert_eq!(decision, lock::decide(found, want, !queued));
        assert!(!matches!(decision, Decision::Refuse | Decision::WrongKind));
    }
    if let Decision::Reentrant { holds } = decision {
        assert!(holds >= 1);
    }
    let released = lock::release(found);
    assert_eq!(released != Release::NotMine, holds);
    if let (Release::Hold { left }, Found::Reentrant { holds, .. }) = (released, found) {
        assert!(left >= 1 && left == holds - 1);
    }

    let (now, ttl, current) = (bytes.number().cast_signed(), bytes.number(), bytes.flag().then_some(deadline));
    if let Some(later) = lease::prolonged(current, now, ttl) {
        assert!(current.is_some_and(|current| current < later));
    }
    assert!(lease::left(current, now) >= -1);
    let mut fences = fence::Fence::new();
    let mut last = 0;
    for _ in 0..8 {
        let next = fences.next(bytes.number().cast_signed() >> 10);
        assert!(next > last && next < 1 << 54);
        last = next;
    }
}

// ---- Queues.

/// A waiter as the model has it.
#[derive(Clone, Debug, PartialEq)]
struct Plain {
    token: Vec<u8>,
    ask: Ask,
    until: Option<i64>,
    client: u32,
    place: Place,
}

/// A queue as the model has it: database and key, who waits, when to look.
type PlainQueue = ((i32, Vec<u8>), Vec<Plain>, Option<i64>);

/// A lock that admits so many, and of whom it is told.
struct Room {
    left: u32,
    granted: Vec<Vec<u8>>,
}

impl Lock for Room {
    type Grant = usize;
    type Error = ();

    fn admits(&mut self, token: &[u8], _ask: &Ask) -> Result<bool, ()> {
        if token.first() == Some(&7) { Err(()) } else { Ok(self.left > 0) }
    }

    fn grant(&mut self, token: &[u8], ask: &Ask) -> Result<usize, ()> {
        if ask.ttl == 7 {
            return Err(());
        }
        self.left -= 1;
        self.granted.push(token.to_vec());
        Ok(self.granted.len())
    }
}

pub fn queue(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut queues: Queues<u32> = Queues::new();
    let mut model: Vec<PlainQueue> = Vec::new();
    let mut clients = 0;
    let mut places: Vec<Place> = Vec::new();
    let most = 1 + usize::from(bytes.byte() % 20);
    while !bytes.is_empty() {
        let how = bytes.byte();
        let db = i32::from(bytes.byte() & 1);
        let length = usize::from(bytes.byte() % 3);
        let key = bytes.take(length).to_vec();
        let at = model.iter().position(|(name, ..)| *name == (db, key.clone()));
        let id = queues.find(db, &key);
        assert_eq!(id.is_some(), at.is_some());
        let sieve = Sieve::new();
        queues.sift(&sieve);
        assert!(id.is_none() || sieve.may_have(&key));
        match how % 8 {
            0..=2 => {
                let token = vec![bytes.byte() % 32];
                let (kind, ttl) = (bytes.byte(), 1 + u64::from(bytes.byte()));
                let want = match kind & 3 {
                    0 => Want::Lock(Mode::Exclusive),
                    1 => Want::Lock(Mode::Shared),
                    2 => Want::Lock(Mode::Reentrant),
                    _ => Want::Permit(ttl),
                };
                let until = (kind & 4 == 0).then(|| i64::from(bytes.byte()));
                let ask = Ask { want, ttl };
                clients += 1;
                let waiter = Waiter { token: token.as_slice().into(), ask, since: 0, until, client: clients };
                let room = queues.has_room(db, &key, most, &token);
                let joined = queues.join(db, &key, most, waiter);
                assert_eq!(joined.is_ok(), room);
                let there = at.and_then(|at| model[at].1.iter_mut().find(|plain| plain.token == token));
                match (joined, there) {
                    (Ok(joined), Some(there)) => {
                        assert_eq!((joined.place, joined.displaced), (there.place, Some(there.client)));
                        (there.ask, there.until, there.client) = (ask, until, clients);
                    }
                    (Ok(joined), None) => {
                        assert_eq!(joined.displaced, None);
                        let plain = Plain { token, ask, until, client: clients, place: joined.place };
                        places.push(joined.place);
                        match at {
                            Some(at) => model[at].1.push(plain),
                            None => model.push(((db, key), vec![plain], None)),
                        }
                    }
                    (Err(_), there) => assert!(there.is_none() && at.is_some_and(|at| model[at].1.len() >= most)),
                }
            }
            3 if !places.is_empty() => {
                // Any place ever taken, long left or not.
                let place = places[usize::from(bytes.byte()) % places.len()];
                let left = queues.leave(place);
                let found = model.iter().enumerate().find_map(|(at, (_, waiting, _))| {
                    waiting.iter().position(|plain| plain.place == place).map(|number| (at, number))
                });
                match (left, found) {
                    (Some(left), Some((at, number))) => {
                        assert_eq!(left.was_head, number == 0);
                        assert_eq!(left.waiter.client, model[at].1.remove(number).client);
                    }
                    (left, found) => assert!(left.is_none() && found.is_none()),
                }
            }
            4 => {
                let token = [bytes.byte() % 32];
                if let (Some(id), Some(at)) = (id, at) {
                    let number = model[at].1.iter().position(|plain| plain.token == token);
                    assert_eq!(queues.has(id, &token), number.is_some());
                    let left = queues.leave_token(id, &token);
                    assert_eq!(left.is_some(), number.is_some());
                    if let Some(number) = number {
                        model[at].1.remove(number);
                    }
                }
            }
            5 => {
                if let (Some(id), Some(at)) = (id, at) {
                    let mut room = Room { left: u32::from(bytes.byte() % 5), granted: Vec::new() };
                    let admitted = room.left;
                    let mut told = Vec::new();
                    let served = queues.serve(id, &mut room, |waiter, _| told.push(waiter.client));
                    let mut expected = Vec::new();
                    let mut fails = false;
                    while let Some(head) = model[at].1.first() {
                        let full = expected.len() >= admitted as usize;
                        fails = head.token == [7] || (!full && head.ask.ttl == 7);
                        if full || fails {
                            break;
                        }
                        expected.push(model[at].1.remove(0).client);
                    }
                    assert_eq!((told, served.is_err()), (expected, fails));
                }
            }
            6 => {
                let when = bytes.flag().then(|| i64::from(bytes.byte()));
                if let (Some(id), Some(at)) = (id, at) {
                    queues.look_at(id, when);
                    model[at].2 = when;
                    assert_eq!(queues.look(id), when);
                }
            }
            _ => {
                let now = i64::from(bytes.byte());
                let mut over: Vec<(i64, Place)> = model
                    .iter()
                    .flat_map(|(_, waiting, _)| waiting.iter().filter_map(|plain| Some((plain.until?, plain.place))))
                    .filter(|(until, _)| *until <= now)
                    .collect();
                over.sort();
                assert_eq!(queues.timed_out(now), over.iter().map(|(_, place)| *place).collect::<Vec<_>>());
                let due = queues.due(now).len();
                let mut wanted = 0;
                for (_, _, look) in &mut model {
                    if look.is_some_and(|look| look <= now) {
                        *look = None;
                        wanted += 1;
                    }
                }
                assert_eq!(due, wanted);
            }
        }
        model.retain(|(_, waiting, _)| !waiting.is_empty());
        same(&queues, &model);
    }
}

fn same(queues: &Queues<u32>, model: &[PlainQueue]) {
    let all = || model.iter().flat_map(|(_, waiting, _)| waiting);
    assert_eq!(queues.waiting(), all().count());
    assert_eq!(queues.is_empty(), model.is_empty());
    assert_eq!(queues.waiting_for_permits(), all().filter(|plain| matches!(plain.ask.want, Want::Permit(_))).count());
    assert_eq!(queues.next_timeout(), all().filter_map(|plain| plain.until).min());
    assert_eq!(queues.next_look(), model.iter().filter_map(|(.., look)| *look).min());
    let mut ids: Vec<QueueId> = queues.all();
    assert_eq!(ids.len(), model.len());
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), model.len());
    for ((db, key), waiting, _) in model {
        let id = queues.find(*db, key).unwrap();
        assert_eq!(queues.len(id), waiting.len());
        let (place, head) = queues.head(id).unwrap();
        assert_eq!((place, head.client), (waiting[0].place, waiting[0].client));
        assert!(queues.waiters(id).map(|waiter| waiter.client).eq(waiting.iter().map(|plain| plain.client)));
        assert!(queues.waiters(id).map(|waiter| &*waiter.token).eq(waiting.iter().map(|plain| &plain.token[..])));
    }
}
