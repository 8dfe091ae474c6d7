//! Who waits for what, and the hand-over.
//!
//! The order of things is decided in [`sluice_core::queue`]; here it meets clients, keys and the clock. A grant is written to
//! the key first, then the client's pending reply is released; until that reply has gone out the grant is "under way", and if
//! the client dies on the way the lock goes on to the next.
//!
//! Inside a client's own write command a grant may always be written. Everywhere else the server is asked first whether it
//! would take a plain write now; if not, the waiters stay, and are looked at again a little later.

use core::ffi::CStr;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use foldhash::fast::RandomState;
use sluice_core::args::Timeout;
use sluice_core::lock::Want;
use sluice_core::queue::{Ask, Place, QueueId, Queues, Waiter};

use crate::hold::Hold;
use crate::server::{self, Answer, Blocked, Call, Context, Failure, Gate, Hearing, Site, Text, monotonic_ms};
use crate::{MAX_WAITERS, stats};

mod words;

pub use words::{SIEVE, doubt, named};

/// How soon a key is looked at again while the server would not take a write.
const SHUT_MS: i64 = 20;
/// The same while writes are paused: nothing tells when a pause ends.
const PAUSED_MS: i64 = 5;
/// How often a key is looked at where the server cannot tell that it changed.
const DEAF_MS: i64 = 20;
/// How often a key is looked at where its slot may move, or what another module does to it may not be told.
const SELDOM_MS: i64 = 1000;

#[derive(Debug)]
struct Client {
    blocked: Blocked,
    id: u64,
}

/// A grant whose reply has not gone out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Grant {
    db: i32,
    key: Arc<[u8]>,
    token: Arc<[u8]>,
}

/// How far a client has come.
#[derive(Debug)]
enum Stage {
    Waits(Place),
    /// Granted, and the reply has not gone out.
    UnderWay {
        grant: Grant,
        id: u64,
        fence: i64,
    },
    /// Answered otherwise, and the reply has not gone out. Only kept where a server may lose it.
    Told {
        id: u64,
        answer: Answer,
    },
}

struct State {
    queues: Queues<Client>,
    clients: HashMap<Blocked, Stage, RandomState>,
    /// Who has been granted what and not yet told; a token holds a lock once, so a grant tells its client.
    under_way: HashMap<Grant, Blocked, RandomState>,
    /// Grants whose client died before the reply.
    give_back: Vec<Grant>,
    /// Queues whose keys something has happened to.
    touched: BTreeSet<QueueId>,
    /// Queues whose keys commands have named.
    named: BTreeSet<QueueId>,
    /// Queues whose keys commands may have changed without naming them, as far as they are not looked at yet.
    doubted: BTreeSet<QueueId>,
    /// Is that all the server tells of keys that change?
    by_words: bool,
    /// Keys must be looked at from time to time, in ms: the server cannot tell that they changed, or slots may move.
    every: Option<i64>,
    /// By how much the wall clock was ahead of the monotonic one when that was last looked at, in ms.
    ahead: i64,
}

impl State {
    fn new() -> Self {
        Self {
            queues: Queues::new(),
            clients: HashMap::default(),
            under_way: HashMap::default(),
            give_back: Vec::new(),
            touched: BTreeSet::new(),
            named: BTreeSet::new(),
            doubted: BTreeSet::new(),
            by_words: false,
            every: None,
            ahead: ahead(),
        }
    }
}

fn ahead() -> i64 {
    server::ms(server::now_us()).saturating_sub(monotonic_ms())
}

lazy_static::lazy_static! {
    static ref STATE: Mutex<State> = Mutex::new(State::new());
}

/// How many wait or are about to be answered: what every command asks before it asks anything else.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Does anybody wait for anything?
#[inline]
pub fn any() -> bool {
    BUSY.load(Relaxed) > 0
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same for a command: one that another module has sent from within a write of ours must not wait for itself.
fn state_for_command() -> Result<MutexGuard<'static, State>, Failure> {
    match STATE.try_lock() {
        Ok(state) => Ok(state),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Failure::Internal),
    }
}

/// A command of ours on a key that somebody waits for: whoever is next, and can have the lock, has it before anybody else.
/// Says whether anybody is left who waits.
pub fn serve(site: &Site, hold: &mut Hold<'_, '_>) -> Result<bool, Failure> {
    let mut state = state_for_command()?;
    let Some(id) = state.queues.find(site.db(), site.key()) else { return Ok(false) };
    match state.serve(id, hold) {
        // What is no lock for those who wait may be one for who asks now.
        Ok(()) | Err(Failure::NoLock) => Ok(state.queues.find(site.db(), site.key()).is_some()),
        Err(failure) => Err(failure),
    }
}

/// Takes a place in the queue of the key, the reply left pending. False: it cannot be left pending here.
pub fn join(call: &Call, token: &[u8], ask: Ask, timeout: Timeout, lease_ends: Option<i64>) -> Result<bool, Failure> {
    if !call.may_block() {
        return Ok(false);
    }
    let (mut state, db, key) = (state_for_command()?, call.db(), call.key());
    let most = usize::try_from(MAX_WAITERS.load(Relaxed)).unwrap_or(usize::MAX);
    if !state.queues.has_room(db, key, most, token) {
        return Err(Failure::QueueFull);
    }
    let Some(blocked) = call.block() else { return Ok(false) };
    if !any() {
        state.ahead = ahead();
    }
    let since = monotonic_ms();
    let until = match timeout {
        Timeout::Never => None,
        Timeout::After(ms) => Some(since.saturating_add_unsigned(ms)),
    };
    let client = Client { blocked, id: call.client_id() };
    let joined = state.queues.join(db, key, most, Waiter { token: token.into(), ask, since, until, client });
    let Ok(joined) = joined else {
        blocked.answer(Answer::Integer(0)); // not reached: there was room
        return Err(Failure::Internal);
    };
    state.clients.insert(blocked, Stage::Waits(joined.place));
    if let Some(displaced) = joined.displaced {
        state.dismiss(&displaced, Answer::Integer(0));
        // What is asked for now may be had at once, where what was asked for before could not.
        state.touched.insert(joined.place.queue());
        call.context().work_soon();
    }
    let hearing = server::listen();
    state.by_words = hearing == Hearing::Words;
    state.every = match hearing {
        Hearing::Nothing => Some(DEAF_MS),
        Hearing::Words => Some(SELDOM_MS),
        Hearing::Events => call.context().in_cluster().then_some(SELDOM_MS),
    };
    state.look_after(joined.place.queue(), lease_ends);
    state.count();
    state.arm();
    Ok(true)
}

/// A token has been granted the lock, or has renewed it: an earlier grant of it that is under way will not be taken back.
pub fn confirm(site: &Site, token: &[u8]) {
    let Ok(mut state) = state_for_command() else { return };
    if state.under_way.is_empty() && state.give_back.is_empty() {
        return;
    }
    let grant = Grant { db: site.db(), key: site.key().into(), token: token.into() };
    state.give_back.retain(|given| *given != grant);
    if let Some(client) = state.under_way.remove(&grant) {
        state.clients.remove(&client);
        state.count();
    }
}

/// A token that is only queued, for a permit or for a lock, takes itself out. Says whether it was queued.
pub fn withdraw(site: &Site, token: &[u8], permit: bool) -> bool {
    let Ok(mut state) = state_for_command() else { return false };
    let Some(id) = state.queues.find(site.db(), site.key()) else { return false };
    if state.queues.ask(id, token).is_none_or(|ask| matches!(ask.want, Want::Permit(_)) != permit) {
        return false;
    }
    let Some(left) = state.queues.leave_token(id, token) else { return false };
    state.dismiss(&left.waiter.client, Answer::Integer(0));
    if left.was_head {
        state.touched.insert(id);
        site.context().work_soon();
    }
    state.count();
    true
}

/// One waiter, as INFO shows it.
#[derive(Debug)]
pub struct Shown {
    /// Who.
    pub token: Arc<[u8]>,
    /// What for.
    pub want: Want,
    /// For how long, in ms.
    pub waited: i64,
    /// The client's id.
    pub client: u64,
}

/// Before a key is shown: if it is free, and a write would be taken, those who wait are served. So it is not shown free.
pub fn refresh(site: &Site) {
    let Ok(mut state) = state_for_command() else { return };
    if let Some(id) = state.queues.find(site.db(), site.key()) {
        state.look(&site.context(), id);
    }
}

/// How many wait for a key, and the first of them.
pub fn show(site: &Site, most: usize) -> (usize, Vec<Shown>) {
    let Ok(state) = state_for_command() else { return (0, Vec::new()) };
    let Some(id) = state.queues.find(site.db(), site.key()) else { return (0, Vec::new()) };
    let now = monotonic_ms();
    let shown = state.queues.waiters(id).take(most).map(|waiter| Shown {
        token: Arc::clone(&waiter.token),
        want: waiter.ask.want,
        waited: now.saturating_sub(waiter.since).max(0),
        client: waiter.client.id,
    });
    (state.queues.len(id), shown.collect())
}

/// The reply has gone out, or never will.
pub fn delivered(client: Blocked) {
    if any() {
        state().delivered(client);
    }
}

/// A client waits no more, for it is gone, or CLIENT UNBLOCK has ended its wait: out of the queue with it. A grant on its way
/// to it goes back.
pub fn gone(context: &Context<'_>, client: Blocked) {
    let mut state = state();
    match state.clients.remove(&client) {
        Some(Stage::Waits(place)) => {
            client.end();
            if state.queues.leave(place).is_some_and(|left| left.was_head) {
                state.touched.insert(place.queue());
            }
        }
        Some(Stage::UnderWay { grant, id, fence }) => {
            state.under_way.remove(&grant);
            if !server::loses_replies() || !context.pays(id, &Answer::Integer(fence)) {
                state.give_back.push(grant);
            }
        }
        Some(Stage::Told { id, answer }) => {
            context.pays(id, &answer);
        }
        None => return, // its end has come already
    }
    state.count();
    if !state.touched.is_empty() || !state.give_back.is_empty() {
        context.work_soon();
    }
}

/// Something has happened to a key. Called for every key of the server while somebody waits, so it tells most of them from a
/// waited one by a look at a small table; and not for what we do ourselves, for then the state is locked.
#[inline]
pub fn touched<'c>(key: &[u8], now: bool, place: impl FnOnce() -> (Context<'c>, i32)) {
    if !SIEVE.may_have(key) {
        return;
    }
    let mut state = match STATE.try_lock() {
        Ok(state) => state,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    let (context, db) = place();
    if let Some(id) = state.queues.find(db, key) {
        state.touched.insert(id);
        if now {
            context.work_soon();
        } else {
            server::arm(0);
        }
    }
}

/// All keys of a database, or of all of them, may be gone or others.
pub fn flushed(context: &Context<'_>, db: Option<i32>) {
    let mut state = state();
    let queues = db.map_or_else(|| state.queues.all(), |db| state.queues.of_db(db));
    state.touched.extend(queues);
    context.work_soon();
}

/// This server is a replica now: nobody waits here any more.
pub fn demoted() {
    let mut state = state();
    state.give_back.clear();
    let waiting: Vec<Place> = state
        .clients
        .values()
        .filter_map(|stage| match stage {
            Stage::Waits(place) => Some(*place),
            Stage::UnderWay { .. } | Stage::Told { .. } => None,
        })
        .collect();
    for place in waiting {
        let Some(left) = state.queues.leave(place) else { continue };
        state.dismiss(
            &left.waiter.client,
            Answer::Error(c"UNBLOCKED this server is a replica now: ask its primary".into()),
        );
    }
    state.count();
}

/// The module goes. Nobody waits any more, but maps that were in use keep a piece of memory when they are empty.
pub fn forget() {
    let mut state = state();
    *state = State::new();
    state.queues.sift(&SIEVE);
    state.forget_words();
}

/// What the events left to do, as soon as writing is allowed.
pub fn work(context: &Context<'_>) {
    state().work(context);
}

/// The timer: timeouts, leases that have ended, and what is to be tried again.
pub fn tick(context: &Context<'_>) {
    let mut state = state();
    // A lease that ended before a timeout goes to who still waits.
    let now = server::ms(server::now_us());
    let seldom = state.by_words && !context.in_cluster();
    for id in state.queues.due(now) {
        // What is only looked at from time to time is as it was, as a rule; to ask for the gate costs twenty times that look.
        if seldom && !state.queues.lease_has_ended(id, now) {
            state.glance(context, id, true);
        } else {
            state.look(context, id);
        }
    }
    for place in state.queues.timed_out(monotonic_ms()) {
        let Some(left) = state.queues.leave(place) else { continue };
        state.dismiss(&left.waiter.client, Answer::Integer(0));
        stats::bump(&stats::of(left.waiter.ask.want).timeouts);
        if left.was_head {
            state.touched.insert(place.queue());
        }
    }
    state.round(context);
    state.work(context);
}

/// How late the timer may be before it is taken for one that a change of the clock has put off.
const LATE_MS: i64 = 15;

/// By how much the wall clock must have gone back to be noticed: more than the server's reading of it may be old.
const BACK_MS: i64 = 50;

/// Is the timer late, or is it armed for a time by a clock that has been set back since?
pub fn check() {
    let mut state = state();
    let ahead = ahead();
    let is_back = ahead.saturating_add(BACK_MS) < state.ahead;
    state.ahead = ahead;
    if is_back {
        // Leases move with the clock, as TTLs do; what is looked at from time to time must not.
        let all = state.queues.all();
        state.touched.extend(all);
    }
    let is_late = |when: Option<i64>, now: i64| when.is_some_and(|when| when.saturating_add(LATE_MS) < now);
    if is_back
        || is_late(state.queues.next_timeout(), monotonic_ms())
        || is_late(state.queues.next_look(), server::ms(server::now_us()))
    {
        server::arm_anew();
    }
}

impl State {
    /// Grants to the head of a queue, and to the next, for as long as the lock admits them.
    fn serve(&mut self, id: QueueId, hold: &mut Hold<'_, '_>) -> Result<(), Failure> {
        let Some((db, key)) = self.queues.key(id).map(|(db, key)| (db, Arc::clone(key))) else { return Ok(()) };
        let expired = self.queues.lease_has_ended(id, server::ms(server::now_us()));
        let (clients, under_way, give_back) = (&mut self.clients, &mut self.under_way, &mut self.give_back);
        let mut granted = None;
        let served = self.queues.serve(id, hold, |waiter, fence| {
            let client = waiter.client.blocked;
            let grant = Grant { db, key: Arc::clone(&key), token: waiter.token };
            clients.insert(client, Stage::UnderWay { grant: grant.clone(), id: waiter.client.id, fence });
            // An earlier grant of the token, whose lock has gone another way since, is not to take this one back.
            give_back.retain(|given| *given != grant);
            if let Some(earlier) = under_way.insert(grant, client) {
                clients.remove(&earlier);
            }
            client.answer(Answer::Integer(fence));
            granted = Some(waiter.ask.want);
            let counters = stats::of(waiter.ask.want);
            stats::bump(&counters.grants);
            stats::bump(if expired { &counters.expired_handovers } else { &counters.handovers });
            stats::raise(&counters.wait_ms_max, monotonic_ms().saturating_sub(waiter.since));
        });
        self.look_after(id, hold.next_change());
        if let Some(want) = granted {
            self.mistrust(id, want);
        }
        self.count();
        self.arm();
        served
    }

    /// A client is answered, and not by a grant.
    fn dismiss(&mut self, client: &Client, answer: Answer) {
        if server::loses_replies() {
            self.clients.insert(client.blocked, Stage::Told { id: client.id, answer: answer.clone() });
        } else {
            self.clients.remove(&client.blocked);
        }
        client.blocked.answer(answer);
    }

    fn delivered(&mut self, client: Blocked) {
        if let Some(stage) = self.clients.remove(&client) {
            if let Stage::UnderWay { grant, .. } = stage {
                self.under_way.remove(&grant);
            }
            self.count();
        }
    }

    fn work(&mut self, context: &Context<'_>) {
        if context.is_passive() {
            self.give_back.clear();
        }
        for grant in core::mem::take(&mut self.give_back) {
            let open = context.at(grant.db, &grant.key, |site| self.take_back(site, &grant));
            if let Err(later) = open {
                self.give_back.push(grant);
                server::arm(later);
            }
        }
        for id in core::mem::take(&mut self.touched) {
            self.look(context, id);
        }
        self.count();
        self.arm();
    }

    /// A grant whose client died on the way: the lock goes on, if the token still has it. `Err`: try again in so many ms.
    fn take_back(&mut self, site: &Site, grant: &Grant) -> Result<(), i64> {
        match site.gate() {
            Gate::Open => {}
            Gate::Paused => return Err(PAUSED_MS),
            Gate::Shut => return Err(SHUT_MS),
            Gate::Elsewhere => return Ok(()),
        }
        let token = Text::new(&grant.token);
        let mut key = site.open();
        let mut hold = Hold::new(site, &mut key);
        if let Ok(found) = hold.find(token.lend()) {
            let _ = hold.release(found, token.lend(), |hold| {
                let Some(id) = self.queues.find(grant.db, &grant.key) else { return Ok(()) };
                self.serve(id, hold)
            });
        }
        Ok(())
    }

    /// Looks at a key that somebody waits for, outside a client's command.
    fn look(&mut self, context: &Context<'_>, id: QueueId) {
        let Some((db, key)) = self.queues.key(id).map(|(db, key)| (db, Arc::clone(key))) else { return };
        context.at(db, &key, |site| {
            let again = match site.gate() {
                Gate::Paused => PAUSED_MS,
                Gate::Shut => SHUT_MS,
                Gate::Elsewhere => return self.send_on(id, &site.redirection()),
                Gate::Open => {
                    let mut key = site.open();
                    let mut hold = Hold::new(site, &mut key);
                    // What keeps a lock from being read, as a key of another type does, keeps its waiters as well.
                    let _ = self.serve(id, &mut hold);
                    return;
                }
            };
            self.queues.look_at(id, Some(server::ms(site.now_us()).saturating_add(again)));
        });
    }

    /// The key is another node's now: all who wait for it are sent there.
    fn send_on(&mut self, id: QueueId, to: &CStr) {
        while let Some((place, _)) = self.queues.head(id) {
            let Some(left) = self.queues.leave(place) else { break };
            self.dismiss(&left.waiter.client, Answer::Error(to.into()));
        }
        self.count();
    }

    /// When a key is to be looked at next: right after its lease has ended, and from time to time where nothing tells of it.
    fn look_after(&mut self, id: QueueId, lease_ends: Option<i64>) {
        self.queues.set_lease_end(id, lease_ends);
        // A key expires when its deadline is past, not when it is reached.
        let mut when = lease_ends.map(|ends| ends.saturating_add(1));
        if let Some(every) = self.every {
            let soon = server::ms(server::now_us()).saturating_add(every);
            when = Some(when.map_or(soon, |when| when.min(soon)));
        }
        self.queues.look_at(id, when);
    }

    fn count(&mut self) {
        let waiting = self.queues.waiting();
        let permits = self.queues.waiting_for_permits();
        stats::set(&stats::LOCK.waiters, waiting.saturating_sub(permits));
        stats::set(&stats::SEM.waiters, permits);
        self.queues.sift(&SIEVE);
        let busy = self.clients.len().saturating_add(self.give_back.len());
        if busy == 0 && BUSY.load(Relaxed) > 0 {
            // The last one out gives back what a rush had needed.
            (self.clients, self.under_way) = (HashMap::default(), HashMap::default());
            self.forget_words();
            server::stop_listening();
            server::disarm();
        }
        BUSY.store(busy, Relaxed);
    }

    fn arm(&self) {
        let timeout = self.queues.next_timeout().map(|until| until.saturating_sub(monotonic_ms()));
        let look = self.queues.next_look().map(|when| when.saturating_sub(server::ms(server::now_us())));
        if let Some(ms) = timeout.into_iter().chain(look).min() {
            server::arm(ms.max(0));
        }
    }
}
