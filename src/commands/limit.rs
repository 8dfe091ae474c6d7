//! RL.FIXED, RL.SLIDING, RL.BUCKET: what is allowed is decided in `sluice_core`; here the key is read, and the effect applied
//! and replicated.

use std::sync::atomic::AtomicU64;

use sluice_core::limit::{self, Expiry, Verdict};
use sluice_core::{args, bucket, fixed, sliding};

use crate::server::{Call, Command, Content, Event, Failure, Key, Stored, Text, ms};
use crate::{spec, stats};

/// Counts and replies.
#[inline(always)] // so that the verdict is never in memory
fn answer(call: &Call, verdict: Verdict, allowed: &AtomicU64, refused: &AtomicU64) {
    stats::bump(if verdict.allowed { allowed } else { refused });
    call.reply_verdict(verdict);
}

/// A limiter makes a key where there was none; only then does it need memory that a full server does not have.
fn may_create(call: &Call) -> Result<(), Failure> {
    if call.out_of_memory() { Err(Failure::OutOfMemory) } else { Ok(()) }
}

/// RL.FIXED.
#[derive(Debug)]
pub struct Fixed;

impl Command for Fixed {
    const SPEC: &'static spec::Command = &spec::RL_FIXED;

    fn run(call: &Call) -> Result<(), Failure> {
        let request = args::fixed(call)?;
        let mut key = call.open();
        let now = ms(call.now_us());
        let mut stored = state_of(&mut key)?;
        let found = stored.as_ref().map(|stored| fixed::Found { value: stored.bytes(), expires_at: stored.deadline() });
        let decision = fixed::decide(found, now, &request)?;
        match decision.effect {
            fixed::Effect::Nothing => {}
            fixed::Effect::Start { count, end } => {
                let mut digits = itoa::Buffer::new();
                let text = digits.format(count).as_bytes();
                if stored.is_none() {
                    may_create(call)?;
                    key.create(text, end)?;
                } else {
                    key.replace(text)?;
                    key.set_deadline(end)?;
                }
                call.replicate_set(text, end)?;
                call.changed(&[Event::Set, Event::Expire]);
            }
            fixed::Effect::Add { count, by, end } => {
                let mut digits = itoa::Buffer::new();
                let text = digits.format(count).as_bytes();
                match &mut stored {
                    Some(stored) if stored.bytes().len() == text.len() => stored.write(0, text)?,
                    _ => key.replace(text)?,
                }
                call.replicate_incr(by)?;
                if let Some(end) = end {
                    key.set_deadline(end)?;
                    call.replicate_deadline(end)?;
                    call.changed(&[Event::IncrBy, Event::Expire]);
                } else {
                    call.changed(&[Event::IncrBy]);
                }
            }
            fixed::Effect::MoveEnd { end } => {
                key.set_deadline(end)?;
                call.replicate_deadline(end)?;
                call.changed(&[Event::Expire]);
            }
        }
        answer(call, decision.verdict, &stats::RL_FIXED_ALLOWED, &stats::RL_FIXED_REFUSED);
        Ok(())
    }
}

/// RL.SLIDING.
#[derive(Debug)]
pub struct Sliding;

impl Command for Sliding {
    const SPEC: &'static spec::Command = &spec::RL_SLIDING;

    fn run(call: &Call) -> Result<(), Failure> {
        let request = args::sliding(call)?;
        let mut key = call.open();
        let now = ms(call.now_us());
        let mut stored = state_of(&mut key)?;
        let decision = sliding::decide(stored.as_ref().map(Stored::bytes), now, &request)?;
        match &decision.effect {
            sliding::Effect::Nothing => {}
            sliding::Effect::Slot { at, bytes, expiry } => {
                stored.as_mut().ok_or(Failure::Internal)?.write(*at, bytes.as_slice())?;
                call.replicate_setrange(*at, bytes.as_slice())?;
                if moved(&mut key, *expiry)? {
                    call.replicate_deadline(expiry.set_to)?;
                    call.changed(&[Event::SetRange, Event::Expire]);
                } else {
                    call.changed(&[Event::SetRange]);
                }
            }
            sliding::Effect::Rebuild { value, expiry } => {
                if stored.is_none() {
                    may_create(call)?;
                }
                // A string of the exact length, which the key and the replication stream share.
                let text = Text::new(value);
                key.set(&text, expiry.set_to)?;
                call.replicate_set_text(text.lend(), expiry.set_to)?;
                call.changed(&[Event::SetRange, Event::Expire]);
            }
        }
        answer(call, decision.verdict, &stats::RL_SLIDING_ALLOWED, &stats::RL_SLIDING_REFUSED);
        Ok(())
    }
}

/// RL.BUCKET.
#[derive(Debug)]
pub struct Bucket;

impl Command for Bucket {
    const SPEC: &'static spec::Command = &spec::RL_BUCKET;

    fn run(call: &Call) -> Result<(), Failure> {
        let limit::Request { limit, refill, window, cost, peek } = args::bucket(call)?;
        // Made where it is needed: where it is handed on it is in memory.
        let request = || limit::Request { limit, refill, window, cost, peek };
        let mut key = call.open();
        let now_us = call.now_us();
        match state_of(&mut key)? {
            Some(stored) => match bucket::decide_usual(stored.bytes(), now_us, &request()) {
                Some(decision) => Self::update(call, stored, decision),
                None => Self::update_otherwise(call, &mut key, now_us, request()),
            },
            None => Self::create(call, &mut key, now_us, request()),
        }
    }
}

/// Apart, so that what the usual call decides is never in memory.
impl Bucket {
    #[inline(always)]
    fn update(call: &Call, mut stored: Stored<'_, '_>, decision: bucket::Decision) -> Result<(), Failure> {
        if let bucket::Effect::Store { value, expiry, moves } = decision.effect {
            stored.write(0, &value)?;
            let key = stored.into_key();
            if moves {
                key.set_deadline(expiry.set_to)?;
            }
            if moves || moved(key, expiry)? {
                call.replicate_set_shared(&value, expiry.set_to)?;
            } else {
                call.replicate_set_alone(&value)?;
            }
            call.changed(&[Event::Set, Event::Expire]);
        }
        answer(call, decision.verdict, &stats::RL_BUCKET_ALLOWED, &stats::RL_BUCKET_REFUSED);
        Ok(())
    }

    #[inline(never)]
    fn update_otherwise(call: &Call, key: &mut Key<'_>, now_us: i64, request: limit::Request) -> Result<(), Failure> {
        let stored = state_of(key)?.ok_or(Failure::Internal)?;
        let decision = bucket::decide_otherwise(Some(stored.bytes()), now_us, &request)?;
        Self::update(call, stored, decision)
    }

    #[inline(never)]
    fn create(call: &Call, key: &mut Key<'_>, now_us: i64, request: limit::Request) -> Result<(), Failure> {
        let decision = bucket::decide_otherwise(None, now_us, &request)?;
        if let bucket::Effect::Store { value, expiry, .. } = &decision.effect {
            may_create(call)?;
            key.create(value, expiry.set_to)?;
            call.replicate_set(value, expiry.set_to)?;
            call.changed(&[Event::Set, Event::Expire]);
        }
        answer(call, decision.verdict, &stats::RL_BUCKET_ALLOWED, &stats::RL_BUCKET_REFUSED);
        Ok(())
    }
}

/// The state of a limiter, if there is one.
#[inline(always)]
fn state_of<'k, 'c>(key: &'k mut Key<'c>) -> Result<Option<Stored<'k, 'c>>, Failure> {
    match key.content_to_write() {
        Content::String(state) => Ok(Some(state)),
        Content::Nothing => Ok(None),
        Content::Hash | Content::SortedSet | Content::Other => Err(Failure::NoLimiter),
    }
}

/// Moves the deadline of a key whose present one may not stay; says whether it did.
#[inline(always)]
fn moved(key: &mut Key<'_>, expiry: Expiry) -> Result<bool, Failure> {
    if expiry.keeps(key.deadline()) {
        return Ok(false);
    }
    key.set_deadline(expiry.set_to)?;
    Ok(true)
}
