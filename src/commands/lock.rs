//! LOCK.ACQUIRE, LOCK.RELEASE, LOCK.RENEW, LOCK.INFO.
//!
//! A command that finds somebody waiting for its key serves the queue before itself: so a lock whose lease has just ended is
//! never seen free by a newcomer.

use sluice_core::args::{self, Timeout, Words};
use sluice_core::lease;
use sluice_core::lock::{self, Decision, Found, Want};
use sluice_core::queue::Ask;

use crate::hold::{self, Hold, Kind};
use crate::server::{Call, Command, Failure, Lent, ms};
use crate::{spec, stats, waiters};

/// LOCK.ACQUIRE.
#[derive(Debug)]
pub struct Acquire;

impl Command for Acquire {
    const SPEC: &'static spec::Command = &spec::LOCK_ACQUIRE;

    fn run(call: &Call) -> Result<(), Failure> {
        let args::Acquire { token, ttl, mode, block } = args::Acquire::parse(call)?;
        acquire(call, call.text_of(2, token)?, Ask { want: Want::Lock(mode), ttl }, block)
    }
}

/// LOCK.RELEASE.
#[derive(Debug)]
pub struct Release;

impl Command for Release {
    const SPEC: &'static spec::Command = &spec::LOCK_RELEASE;

    fn run(call: &Call) -> Result<(), Failure> {
        release(call, Side::Lock)
    }
}

/// LOCK.RENEW.
#[derive(Debug)]
pub struct Renew;

impl Command for Renew {
    const SPEC: &'static spec::Command = &spec::LOCK_RENEW;

    fn run(call: &Call) -> Result<(), Failure> {
        renew(call, Side::Lock)
    }
}

/// LOCK.INFO.
#[derive(Debug)]
pub struct Info;

impl Command for Info {
    const SPEC: &'static spec::Command = &spec::LOCK_INFO;

    fn run(call: &Call) -> Result<(), Failure> {
        info(call, Side::Lock)
    }
}

/// Which commands are speaking: a semaphore is no lock, and a lock no semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// LOCK.*.
    Lock,
    /// SEM.*.
    Semaphore,
}

impl Side {
    const fn wrong(self) -> Failure {
        match self {
            Self::Lock => Failure::NoLock,
            Self::Semaphore => Failure::NoSemaphore,
        }
    }

    const fn check(self, found: Found) -> Result<Found, Failure> {
        match (found, self) {
            (Found::Free, _)
            | (Found::Permits { .. }, Self::Semaphore)
            | (Found::Exclusive { .. } | Found::Reentrant { .. } | Found::Shared { .. }, Self::Lock) => Ok(found),
            _ => Err(self.wrong()),
        }
    }
}

/// Serves those who wait for the key; says whether anybody is left who does.
#[inline]
fn serve(call: &Call, hold: &mut Hold<'_, '_>) -> Result<bool, Failure> {
    if waiters::any() { waiters::serve(call, hold) } else { Ok(false) }
}

/// LOCK.ACQUIRE and SEM.ACQUIRE.
#[inline(always)] // so that each knows what it wants
pub fn acquire(call: &Call, token: Lent<'_>, ask: Ask, block: Option<Timeout>) -> Result<(), Failure> {
    let Ask { want, ttl } = ask;
    let mut key = call.open();
    let mut hold = Hold::new(call, &mut key);
    let queued = serve(call, &mut hold)?;
    // Asked first, for who asks for a lock mostly finds none.
    let found = if hold.is_absent() { Found::Free } else { hold.find(token)? };
    let decision = lock::decide(found, want, queued);
    match decision {
        Decision::WrongKind => {
            return Err(match want {
                Want::Lock(_) => Failure::NoLock,
                Want::Permit(_) => Failure::NoSemaphore,
            });
        }
        Decision::Deadlock if block.is_some() && call.may_block() => return Err(Failure::Deadlock),
        Decision::Refuse | Decision::Deadlock => {
            if let (Some(timeout), Decision::Refuse) = (block, decision)
                && waiters::join(call, token.bytes(), ask, timeout, hold.next_change())?
            {
                return Ok(());
            }
            stats::bump(&stats::of(want).refused);
            call.reply_integer(0);
            return Ok(());
        }
        _ => {}
    }
    let fence = hold.grant(found, decision, token, want, ttl)?;
    if waiters::any() {
        waiters::confirm(call, token.bytes());
        if queued {
            // A holder that now shares lets the readers at the head of the queue in.
            waiters::serve(call, &mut hold)?;
        }
    }
    stats::bump(&stats::of(want).grants);
    call.reply_integer(fence);
    Ok(())
}

/// LOCK.RELEASE and SEM.RELEASE.
#[inline(always)] // as above
pub fn release(call: &Call, side: Side) -> Result<(), Failure> {
    let token = call.text(2)?;
    args::token(token.bytes())?;
    let mut key = call.open();
    let mut hold = Hold::new(call, &mut key);
    let found = match side_of(hold.find(token), side).and_then(|found| side.check(found)) {
        // Who only waits may leave whatever has come to be in the key.
        Err(Failure::NoLock | Failure::NoSemaphore) if waiters::any() && withdraw(call, token, side) => {
            call.reply_integer(0);
            return Ok(());
        }
        found => found?,
    };
    let released = if lock::release(found) == lock::Release::NotMine {
        if waiters::any() {
            // Who only waits gives up its place; and whoever is next may not have been told yet that a lease has ended.
            withdraw(call, token, side);
            waiters::serve(call, &mut hold)?;
        }
        false
    } else {
        hold.release(found, token, |hold| serve(call, hold).map(|_left| ()))?
    };
    call.reply_integer(i64::from(released));
    Ok(())
}

fn withdraw(call: &Call, token: Lent<'_>, side: Side) -> bool {
    waiters::withdraw(call, token.bytes(), side == Side::Semaphore)
}

/// LOCK.RENEW and SEM.RENEW.
pub fn renew(call: &Call, side: Side) -> Result<(), Failure> {
    let token = call.text(2)?;
    args::token(token.bytes())?;
    let ttl = args::ttl(call.word(3))?;
    let mut key = call.open();
    let mut hold = Hold::new(call, &mut key);
    let queued = serve(call, &mut hold)?;
    let found = side.check(side_of(hold.find(token), side)?)?;
    let renewed = hold.renew(found, token, ttl)?;
    if waiters::any() && renewed {
        waiters::confirm(call, token.bytes());
        if queued {
            // The lease may end earlier now.
            waiters::serve(call, &mut hold)?;
        }
    }
    call.reply_integer(i64::from(renewed));
    Ok(())
}

/// What is found, with the error of the commands that are speaking.
fn side_of<T>(found: Result<T, Failure>, side: Side) -> Result<T, Failure> {
    found.map_err(|failure| if matches!(failure, Failure::NoLock) { side.wrong() } else { failure })
}

/// How many holders and waiters INFO lists at most.
const LISTED: usize = 100;

/// LOCK.INFO and SEM.INFO.
pub fn info(call: &Call, side: Side) -> Result<(), Failure> {
    let now = ms(call.now_us());
    let (waiting, queue) = if waiters::any() {
        waiters::refresh(call);
        waiters::show(call, LISTED)
    } else {
        (0, Vec::new())
    };
    let key = call.open_to_read();
    let shown = side_of(hold::show(call, &key, now, LISTED), side)?;
    let mode: &[u8] = match (shown.kind, side) {
        (Kind::Free, _) => b"free",
        (Kind::Exclusive, Side::Lock) => b"exclusive",
        (Kind::Reentrant, Side::Lock) => b"reentrant",
        (Kind::Shared, Side::Lock) => b"shared",
        (Kind::Semaphore, Side::Semaphore) => b"semaphore",
        _ => return Err(side.wrong()),
    };
    call.reply_map(6);
    call.reply_bytes(b"mode");
    call.reply_bytes(mode);
    call.reply_bytes(b"ttl");
    call.reply_integer(if shown.kind == Kind::Free { 0 } else { lease::left(shown.deadline, now) });
    call.reply_bytes(b"held");
    call.reply_integer(shown.held.cast_signed());
    call.reply_bytes(b"waiters");
    call.reply_integer(i64::try_from(waiting).unwrap_or(i64::MAX));
    call.reply_bytes(b"holders");
    call.reply_array(shown.holders.len());
    for holder in shown.holders {
        call.reply_map(3);
        call.reply_bytes(b"token");
        call.reply_bytes(&holder.token);
        call.reply_bytes(b"holds");
        call.reply_integer(holder.holds.cast_signed());
        call.reply_bytes(b"ttl");
        call.reply_integer(lease::left(holder.deadline, now));
    }
    call.reply_bytes(b"queue");
    call.reply_array(queue.len());
    for waiter in queue {
        call.reply_map(4);
        call.reply_bytes(b"token");
        call.reply_bytes(&waiter.token);
        call.reply_bytes(b"mode");
        call.reply_bytes(match waiter.want {
            Want::Lock(args::Mode::Exclusive) => b"exclusive",
            Want::Lock(args::Mode::Reentrant) => b"reentrant",
            Want::Lock(args::Mode::Shared) => b"shared",
            Want::Permit(_) => b"semaphore",
        });
        call.reply_bytes(b"waited");
        call.reply_integer(waiter.waited);
        call.reply_bytes(b"client");
        call.reply_integer(waiter.client.cast_signed());
    }
    Ok(())
}
