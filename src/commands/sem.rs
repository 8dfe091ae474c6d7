//! SEM.ACQUIRE, SEM.RELEASE, SEM.RENEW, SEM.INFO: a lock that several tokens hold at once, as many as the limit of the call says.

use sluice_core::args;
use sluice_core::lock::Want;
use sluice_core::queue::Ask;

use super::lock::{self, Side};
use crate::server::{Call, Command, Failure};
use crate::spec;

/// SEM.ACQUIRE.
#[derive(Debug)]
pub struct Acquire;

impl Command for Acquire {
    const SPEC: &'static spec::Command = &spec::SEM_ACQUIRE;

    fn run(call: &Call) -> Result<(), Failure> {
        let args::AcquirePermit { token, ttl, limit, block } = args::AcquirePermit::parse(call)?;
        lock::acquire(call, call.text_of(2, token)?, Ask { want: Want::Permit(limit), ttl }, block)
    }
}

/// SEM.RELEASE.
#[derive(Debug)]
pub struct Release;

impl Command for Release {
    const SPEC: &'static spec::Command = &spec::SEM_RELEASE;

    fn run(call: &Call) -> Result<(), Failure> {
        lock::release(call, Side::Semaphore)
    }
}

/// SEM.RENEW.
#[derive(Debug)]
pub struct Renew;

impl Command for Renew {
    const SPEC: &'static spec::Command = &spec::SEM_RENEW;

    fn run(call: &Call) -> Result<(), Failure> {
        lock::renew(call, Side::Semaphore)
    }
}

/// SEM.INFO.
#[derive(Debug)]
pub struct Info;

impl Command for Info {
    const SPEC: &'static spec::Command = &spec::SEM_INFO;

    fn run(call: &Call) -> Result<(), Failure> {
        lock::info(call, Side::Semaphore)
    }
}
