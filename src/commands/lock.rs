//! LOCK.ACQUIRE, LOCK.RELEASE, LOCK.RENEW, LOCK.INFO.
//!
//! A command that finds somebody waiting for its key serves the queue before itself: so a lock whose lease has just ended is
//! never seen free by a newcomer.

use sluice_core::args::{self, Words};
use sluice_core::lease::{self, Standing};
use sluice_core::queue::Ask;

use crate::hold::{self, Hold, fence, standing};
use crate::server::{Call, Command, Content, Event, Failure, Key};
use crate::{spec, stats, waiters};

/// How the lock stands to the token, once those who wait have had their turn.
#[inline]
fn served<'c>(call: &'c Call, key: &mut Key<'c>, token: &[u8], now_us: i64) -> Result<Standing, Failure> {
    let found = standing(key, token)?;
    if found != Standing::Free || !waiters::any() {
        return Ok(found);
    }
    waiters::serve(call, &mut Hold::new(call, key, now_us))?;
    standing(key, token)
}

/// LOCK.ACQUIRE.
#[derive(Debug)]
pub struct Acquire;

impl Command for Acquire {
    const SPEC: &'static spec::Command = &spec::LOCK_ACQUIRE;

    fn run(call: &Call) -> Result<(), Failure> {
        let args::Acquire { token, ttl, mode, block } = args::Acquire::parse(call)?;
        let mut key = call.open();
        let now_us = call.now_us();
        let now = now_us.div_euclid(1000);
        match served(call, &mut key, token, now_us)? {
            Standing::Free => {
                let deadline = lease::deadline(now, ttl);
                key.create(token, deadline)?;
                call.replicate_set_argument(2, deadline)?;
                call.changed(&[Event::Set, Event::Expire]);
                if waiters::any() {
                    waiters::confirm(call, token);
                }
            }
            Standing::Mine => {
                if waiters::any() {
                    waiters::confirm(call, token);
                }
                if let Some(deadline) = lease::prolonged(key.deadline(), now, ttl) {
                    key.set_deadline(deadline)?;
                    call.replicate_deadline(deadline)?;
                    call.changed(&[Event::Expire]);
                }
            }
            Standing::Theirs => {
                if let Some(timeout) = block {
                    let ends = key.deadline();
                    drop(key);
                    if waiters::join(call, token, Ask { mode, ttl }, timeout, ends)? {
                        return Ok(());
                    }
                }
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
        let busy = waiters::any();
        let released = hold::release(call, token, |hold| if busy { waiters::serve(call, hold) } else { Ok(()) })?;
        if busy && !released {
            // Who only waits gives up its place; and whoever is next may have had to be told that the lease has ended.
            waiters::withdraw(call, token);
            let mut key = call.open();
            served(call, &mut key, token, call.now_us())?;
        }
        call.reply_integer(i64::from(released));
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
        let now_us = call.now_us();
        let mine = served(call, &mut key, token, now_us)? == Standing::Mine;
        if mine {
            if waiters::any() {
                waiters::confirm(call, token);
            }
            if let Some(deadline) = lease::renewed(key.deadline(), now_us.div_euclid(1000), ttl) {
                key.set_deadline(deadline)?;
                call.replicate_deadline(deadline)?;
                call.changed(&[Event::Expire]);
            }
        }
        call.reply_integer(i64::from(mine));
        Ok(())
    }
}

/// How many holders and waiters INFO lists at most.
const LISTED: usize = 100;

/// LOCK.INFO.
#[derive(Debug)]
pub struct Info;

impl Command for Info {
    const SPEC: &'static spec::Command = &spec::LOCK_INFO;

    fn run(call: &Call) -> Result<(), Failure> {
        let (waiting, queue) = if waiters::any() { waiters::show(call, LISTED) } else { (0, Vec::new()) };
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
        call.reply_integer(i64::try_from(waiting).unwrap_or(i64::MAX));
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
        call.reply_array(queue.len());
        for waiter in queue {
            call.reply_map(4);
            call.reply_bytes(b"token");
            call.reply_bytes(&waiter.token);
            call.reply_bytes(b"mode");
            call.reply_bytes(b"exclusive");
            call.reply_bytes(b"waited");
            call.reply_integer(waiter.waited);
            call.reply_bytes(b"client");
            call.reply_integer(waiter.client.cast_signed());
        }
        Ok(())
    }
}
