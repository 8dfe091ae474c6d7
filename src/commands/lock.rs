//! LOCK.ACQUIRE, LOCK.RELEASE, LOCK.RENEW, LOCK.INFO.
//!
//! An exclusive lock is a string: the token, with the lease as its expiry. So it is the same lock as that of every client that
//! locks with `SET key token NX PX`.

use std::sync::{Mutex, PoisonError};

use sluice_core::args::{self, Words};
use sluice_core::fence::Fence;
use sluice_core::lease::{self, Standing};

use crate::server::{Call, Command, Content, Event, Failure};
use crate::{spec, stats};

static FENCE: Mutex<Fence> = Mutex::new(Fence::new());

/// The next fencing token of this server.
fn fence(now_us: i64) -> i64 {
    let mut fence = FENCE.lock().unwrap_or_else(PoisonError::into_inner);
    fence.next(now_us).cast_signed()
}

/// How the key stands to the token in word `index`.
fn standing(content: Content<'_>, token: &[u8]) -> Result<Standing, Failure> {
    match content {
        Content::Nothing => Ok(lease::standing(None, token)),
        Content::String(holder) => Ok(lease::standing(Some(holder), token)),
        Content::Other => Err(Failure::NoLock),
    }
}

/// LOCK.ACQUIRE.
#[derive(Debug)]
pub struct Acquire;

impl Command for Acquire {
    const SPEC: &'static spec::Command = &spec::LOCK_ACQUIRE;

    fn run(call: &Call) -> Result<(), Failure> {
        let args::Acquire { token, ttl, .. } = args::Acquire::parse(call)?;
        let mut key = call.open();
        let now_us = call.now_us();
        let now = now_us.div_euclid(1000);
        match standing(key.content(), token)? {
            Standing::Free => {
                let deadline = lease::deadline(now, ttl);
                key.create(token, deadline)?;
                call.replicate_set_argument(2, deadline)?;
                call.changed(&[Event::Set, Event::Expire]);
            }
            Standing::Mine => {
                if let Some(deadline) = lease::prolonged(key.deadline(), now, ttl) {
                    key.set_deadline(deadline)?;
                    call.replicate_deadline(deadline)?;
                    call.changed(&[Event::Expire]);
                }
            }
            Standing::Theirs => {
                stats::bump(&stats::LOCK_REFUSED);
                call.reply_integer(0);
                return Ok(());
            }
        }
        stats::bump(&stats::LOCK_GRANTS);
        call.reply_integer(fence(now_us));
        Ok(())
    }
}

/// LOCK.RELEASE.
#[derive(Debug)]
pub struct Release;

impl Command for Release {
    const SPEC: &'static spec::Command = &spec::LOCK_RELEASE;

    fn run(call: &Call) -> Result<(), Failure> {
        let token = args::token(call.word(2))?;
        let mut key = call.open();
        let mine = standing(key.content(), token)? == Standing::Mine;
        if mine {
            key.delete()?;
            call.replicate_del()?;
            call.changed(&[Event::Del]);
        }
        call.reply_integer(i64::from(mine));
        Ok(())
    }
}

/// LOCK.RENEW.
#[derive(Debug)]
pub struct Renew;

impl Command for Renew {
    const SPEC: &'static spec::Command = &spec::LOCK_RENEW;

    fn run(call: &Call) -> Result<(), Failure> {
        let (token, ttl) = (args::token(call.word(2))?, args::ttl(call.word(3))?);
        let mut key = call.open();
        let mine = standing(key.content(), token)? == Standing::Mine;
        if mine {
            let now = call.now_us().div_euclid(1000);
            if let Some(deadline) = lease::renewed(key.deadline(), now, ttl) {
                key.set_deadline(deadline)?;
                call.replicate_deadline(deadline)?;
                call.changed(&[Event::Expire]);
            }
        }
        call.reply_integer(i64::from(mine));
        Ok(())
    }
}

/// LOCK.INFO.
#[derive(Debug)]
pub struct Info;

impl Command for Info {
    const SPEC: &'static spec::Command = &spec::LOCK_INFO;

    fn run(call: &Call) -> Result<(), Failure> {
        let key = call.open_to_read();
        let holder = match key.content() {
            Content::Nothing => None,
            Content::String(token) => Some(token),
            Content::Other => return Err(Failure::NoLock),
        };
        let ttl = holder.map_or(0, |_| lease::left(key.deadline(), call.now_us().div_euclid(1000)));
        call.reply_map(6);
        call.reply_bytes(b"mode");
        call.reply_bytes(if holder.is_some() { b"exclusive" } else { b"free" });
        call.reply_bytes(b"ttl");
        call.reply_integer(ttl);
        call.reply_bytes(b"held");
        call.reply_integer(i64::from(holder.is_some()));
        call.reply_bytes(b"waiters");
        call.reply_integer(0);
        call.reply_bytes(b"holders");
        call.reply_array(usize::from(holder.is_some()));
        if let Some(token) = holder {
            call.reply_map(3);
            call.reply_bytes(b"token");
            call.reply_bytes(token);
            call.reply_bytes(b"holds");
            call.reply_integer(1);
            call.reply_bytes(b"ttl");
            call.reply_integer(ttl);
        }
        call.reply_bytes(b"queue");
        call.reply_array(0);
        Ok(())
    }
}
