//! A hold and the thread that watches over it.

use crate::error::Error;
use crate::lease::{Lease, Loss, Renewal, Step};
use crate::options::OnLoss;
use crate::random::fraction;
use crate::time::left;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What renews a lease, and gives it back.
pub(super) trait Keeper: Send + 'static {
    /// Asks for `ttl` more.
    fn renew(&mut self, ttl: Duration, within: Duration) -> Renewal;
    /// Gives it back; says whether it was still ours.
    fn release(&mut self) -> Result<bool, Error>;
}

/// What the guard and its watchdog share.
struct Watch {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    lease: Lease,
    /// The guard is gone.
    stop: bool,
    /// Nobody will join: the thread has to release.
    on_its_own: bool,
}

impl Watch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is lost. The watchdog is told of what is noticed here first.
    fn loss(&self) -> Option<Loss> {
        let loss = self.state().lease.check(Instant::now());
        if loss.is_some() {
            self.changed.notify_all();
        }
        loss
    }
}

/// A lock in hand. It is released when this value goes.
pub(super) struct Held<K: Keeper> {
    watch: Arc<Watch>,
    body: Option<Body<K>>,
}

enum Body<K> {
    /// Nothing to watch over.
    Here(K),
    Thread(JoinHandle<Option<K>>),
}

impl<K: Keeper> Held<K> {
    /// Begins to watch. `renews`: whether there is anything to do before the end.
    pub(super) fn new(lease: Lease, keeper: K, renews: bool, on_loss: Option<OnLoss>) -> Result<Self, Error> {
        let state = State { lease, stop: false, on_its_own: false };
        let watch = Arc::new(Watch { state: Mutex::new(state), changed: Condvar::new() });
        if !renews && on_loss.is_none() {
            return Ok(Self { watch, body: Some(Body::Here(keeper)) });
        }
        // Where the thread takes it from, or we again if there is none.
        let place = Arc::new(Mutex::new(Some(keeper)));
        let (shared, taken) = (Arc::clone(&watch), Arc::clone(&place));
        let take = |place: &Mutex<Option<K>>| place.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = std::thread::Builder::new()
            .name("sluice-watchdog".to_owned())
            .spawn(move || take(&taken).map(|keeper| run(&shared, keeper, on_loss)));
        match thread {
            Ok(thread) => Ok(Self { watch, body: Some(Body::Thread(thread)) }),
            Err(error) => {
                if let Some(mut keeper) = take(&place) {
                    let _ = keeper.release();
                }
                Err(Error::Thread(error))
            }
        }
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.watch.loss()
    }

    pub(super) fn left(&self) -> Duration {
        self.watch.state().lease.left(Instant::now())
    }

    /// Stops the watchdog, then releases.
    pub(super) fn release(mut self) -> Result<bool, Error> {
        self.end()
    }

    fn end(&mut self) -> Result<bool, Error> {
        let mut keeper = match self.body.take() {
            None => return Ok(false),
            Some(Body::Here(keeper)) => keeper,
            Some(Body::Thread(thread)) => {
                // The guard goes while `on_loss` runs: who waited here for the thread would wait for itself.
                let itself = thread.thread().id() == std::thread::current().id();
                {
                    let mut state = self.watch.state();
                    state.stop = true;
                    state.on_its_own = itself;
                }
                self.watch.changed.notify_all();
                if itself {
                    return Ok(false);
                }
                match thread.join() {
                    Ok(Some(keeper)) => keeper,
                    Ok(None) | Err(_) => return Ok(false),
                }
            }
        };
        let gone = self.watch.loss() == Some(Loss::Gone);
        // What only could not be proved may be held all the same, and is given back.
        let released = keeper.release();
        if gone { released.map(|_| false) } else { released }
    }
}

impl<K: Keeper> Drop for Held<K> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// The life of a watchdog.
fn run<K: Keeper>(watch: &Watch, mut keeper: K, on_loss: Option<OnLoss>) -> K {
    let mut state = watch.state();
    while !state.stop {
        match state.lease.step(Instant::now()) {
            Step::Sleep(until) => {
                let wait = left(Instant::now(), until);
                state = watch.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
            }
            Step::Renew { ttl, within } => {
                drop(state);
                let sent = Instant::now();
                let how = keeper.renew(ttl, within);
                state = watch.state();
                state.lease.renewed(Instant::now(), sent, ttl, how, fraction());
            }
            Step::Lost(_) => break,
        }
    }
    // The guard may have noticed it, and gone, before this thread was run.
    if let (Some(loss), Some(tell)) = (state.lease.noticed(), on_loss) {
        drop(state);
        // A panic of the holder's own must not keep the lock from being released.
        let _ = catch_unwind(AssertUnwindSafe(|| tell(loss)));
        state = watch.state();
    }
    let on_its_own = state.on_its_own;
    drop(state);
    if on_its_own {
        let _ = keeper.release();
    }
    keeper
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Terms;

    struct Nobody;

    impl Keeper for Nobody {
        fn renew(&mut self, _: Duration, _: Duration) -> Renewal {
            Renewal::Failed
        }

        fn release(&mut self) -> Result<bool, Error> {
            Ok(false)
        }
    }

    /// What the watchdog of a guard that has gone tells, if the guard has seen the hold to be lost or not.
    fn told(ttl: Duration) -> Vec<Loss> {
        let terms = Terms { ttl, max_hold: None, renews: true, response_timeout: ttl, margin: |_| Duration::ZERO };
        let lease = Lease::granted(terms, Instant::now(), ttl);
        let state = State { lease, stop: true, on_its_own: false };
        let watch = Watch { state: Mutex::new(state), changed: Condvar::new() };
        let _ = watch.loss();
        let (told, tells) = std::sync::mpsc::channel();
        run(&watch, Nobody, Some(Arc::new(move |loss| told.send(loss).unwrap_or_default())));
        tells.iter().collect()
    }

    #[test]
    fn a_loss_that_a_guard_notices_is_told_though_the_guard_goes_at_once() {
        assert_eq!(told(Duration::ZERO), [Loss::Unproved]);
        assert_eq!(told(Duration::from_secs(600)), []);
    }
}
