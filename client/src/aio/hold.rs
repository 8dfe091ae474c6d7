//! A hold and the task that watches over it.

use crate::error::Error;
use crate::lease::{Lease, Loss, Renewal, Step};
use crate::options::OnLoss;
use crate::random::fraction;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What renews a lease, and gives it back.
pub(super) trait Keeper: Send + 'static {
    /// Asks for `ttl` more.
    fn renew(&mut self, ttl: Duration, within: Duration) -> impl Future<Output = Renewal> + Send;
    /// Gives it back; says whether it was still ours.
    fn release(self) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// What the guard and its watchdog share.
struct Watch {
    lease: Mutex<Lease>,
    /// Cancelled when the hold is lost.
    lost: CancellationToken,
    /// Cancelled when the guard goes.
    stop: CancellationToken,
}

impl Watch {
    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loss(&self) -> Option<Loss> {
        let loss = self.lease().check(Instant::now());
        if loss.is_some() {
            self.lost.cancel();
        }
        loss
    }
}

/// A lock in hand. When this value goes, the watchdog releases it.
pub(super) struct Held {
    watch: Arc<Watch>,
    task: Option<JoinHandle<Result<bool, Error>>>,
}

impl Held {
    pub(super) fn new<K: Keeper>(lease: Lease, keeper: K, on_loss: Option<OnLoss>) -> Self {
        let watch = Arc::new(Watch {
            lease: Mutex::new(lease),
            lost: CancellationToken::new(),
            stop: CancellationToken::new(),
        });
        let task = tokio::spawn(run(Arc::clone(&watch), keeper, on_loss));
        Self { watch, task: Some(task) }
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.watch.loss()
    }

    pub(super) fn left(&self) -> Duration {
        self.watch.lease().left(Instant::now())
    }

    /// A token of the caller's own: to cancel it says nothing to anybody else.
    pub(super) fn cancellation(&self) -> CancellationToken {
        self.watch.lost.child_token()
    }

    pub(super) async fn lost(&self) -> Loss {
        loop {
            self.watch.lost.cancelled().await;
            if let Some(loss) = self.watch.loss() {
                return loss;
            }
        }
    }

    /// Stops the watchdog, and waits until it has released. Goes on without whoever waits for it.
    pub(super) async fn release(mut self) -> Result<bool, Error> {
        self.watch.stop.cancel();
        match self.task.take() {
            Some(task) => task.await.unwrap_or(Ok(false)),
            None => Ok(false),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.watch.stop.cancel();
    }
}

/// The life of a watchdog.
async fn run<K: Keeper>(watch: Arc<Watch>, mut keeper: K, on_loss: Option<OnLoss>) -> Result<bool, Error> {
    loop {
        let step = watch.lease().step(Instant::now());
        match step {
            Step::Sleep(until) => tokio::select! {
                biased;
                () = watch.stop.cancelled() => break,
                () = watch.lost.cancelled() => {}
                () = tokio::time::sleep_until(until.into()) => {}
            },
            Step::Renew { ttl, within } => {
                let sent = Instant::now();
                tokio::select! {
                    biased;
                    () = watch.stop.cancelled() => break,
                    how = keeper.renew(ttl, within) => {
                        watch.lease().renewed(Instant::now(), sent, ttl, how, fraction());
                    }
                }
            }
            Step::Lost(_) => {
                watch.lost.cancel();
                break;
            }
        }
    }
    // The guard may have noticed it, and gone, before this task was run.
    let noticed = watch.lease().noticed();
    if let (Some(loss), Some(tell)) = (noticed, on_loss) {
        // A panic of the holder's own must not keep the lock from being released.
        let _ = catch_unwind(AssertUnwindSafe(|| tell(loss)));
    }
    watch.stop.cancelled().await;
    // What only could not be proved may be held all the same, and is given back.
    let lost = watch.loss().is_some();
    keeper.release().await.map(|released| released && !lost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Terms;

    struct Nobody;

    impl Keeper for Nobody {
        async fn renew(&mut self, _: Duration, _: Duration) -> Renewal {
            Renewal::Failed
        }

        async fn release(self) -> Result<bool, Error> {
            Ok(false)
        }
    }

    /// What a guard tells that goes when its watchdog has not been run since it began, and the lease is over or is not.
    fn told(over: bool) -> Vec<Loss> {
        let ttl = if over { Duration::from_millis(20) } else { Duration::from_secs(600) };
        let terms = Terms { ttl, max_hold: None, renews: false, response_timeout: ttl, margin: |_| Duration::ZERO };
        let (told, tells) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let _ = runtime.map(|runtime| {
            runtime.block_on(async {
                let lease = Lease::granted(terms, Instant::now(), ttl);
                let held = Held::new(lease, Nobody, Some(Arc::new(move |loss| told.send(loss).unwrap_or_default())));
                tokio::task::yield_now().await;
                if over {
                    std::thread::sleep(ttl); // and so no task is run
                }
                assert_eq!(held.loss().is_some(), over);
                let _ = held.release().await;
            })
        });
        tells.iter().collect()
    }

    #[test]
    fn a_loss_that_a_guard_notices_is_told_though_the_guard_goes_at_once() {
        assert_eq!(told(true), [Loss::Unproved]);
        assert_eq!(told(false), []);
    }
}
