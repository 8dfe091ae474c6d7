//! Keyspace events: what a plain client would have caused, no more and no less.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod cases;
mod rig;

use cases::{Events, wait_until_gone};
use rig::{Client, Server, ValueExt, args};

struct Case {
    client: Client,
    events: Events,
    _server: Server,
}

fn start() -> Case {
    let server = Server::start();
    Case { client: server.client(), events: Events::of(&server), _server: server }
}

impl Case {
    /// The events of one call, without the server's own word that a key was made.
    #[track_caller]
    fn of(&mut self, call: &[Vec<u8>]) -> Vec<String> {
        assert!(self.client.call(call).error().is_none());
        self.events.seen().into_iter().filter(|event| !event.starts_with("new ")).collect()
    }
}

#[test]
fn an_acquire_fires_set_and_expire_a_renewal_expire_a_release_del() {
    let mut case = start();
    assert_eq!(case.of(&args!["LOCK.ACQUIRE", "k", "t", "1h"]), ["set k", "expire k"]);
    assert_eq!(case.of(&args!["LOCK.ACQUIRE", "k", "other", "1h"]), [""; 0]);
    assert_eq!(case.of(&args!["LOCK.ACQUIRE", "k", "t", "2h"]), ["expire k"]);
    assert_eq!(case.of(&args!["LOCK.RENEW", "k", "t", "3h"]), ["expire k"]);
    assert_eq!(case.of(&args!["LOCK.RENEW", "k", "other", "3h"]), [""; 0]);
    assert_eq!(case.of(&args!["LOCK.RELEASE", "k", "other"]), [""; 0]);
    assert_eq!(case.of(&args!["LOCK.RELEASE", "k", "t"]), ["del k"]);
    assert_eq!(case.of(&args!["LOCK.RELEASE", "k", "t"]), [""; 0]);
}

#[test]
fn a_lease_that_ends_fires_expired_once() {
    let mut case = start();
    // It may end before the first look, or after it.
    let mut seen = case.of(&args!["LOCK.ACQUIRE", "k", "t", "20ms"]);
    wait_until_gone(&mut case.client, "k");
    seen.extend(case.events.seen());
    assert_eq!(seen, ["set k", "expire k", "expired k"]);
    assert_eq!(case.of(&args!["LOCK.RENEW", "k", "t", "1h"]), [""; 0]);
}

#[test]
fn the_first_hit_of_a_fixed_window_fires_set_and_expire_later_ones_incrby() {
    let mut case = start();
    assert_eq!(case.of(&args!["RL.FIXED", "k", 3, "1h"]), ["set k", "expire k"]);
    assert_eq!(case.of(&args!["RL.FIXED", "k", 3, "1h"]), ["incrby k"]);
    assert_eq!(case.of(&args!["RL.FIXED", "k", 3, "1h", "COST", 1]), ["incrby k"]);
    assert_eq!(case.of(&args!["RL.FIXED", "k", 3, "1h"]), [""; 0]);
    assert_eq!(case.of(&args!["PERSIST", "k"]), ["persist k"]);
    assert_eq!(case.of(&args!["RL.FIXED", "k", 3, "1h"]), ["expire k"]);
    case.of(&args!["PERSIST", "k"]);
    assert_eq!(case.of(&args!["RL.FIXED", "k", 4, "1h"]), ["incrby k", "expire k"]);
}

#[test]
fn a_hit_of_a_sliding_window_fires_setrange_and_expire_where_the_ttl_moves() {
    let mut case = start();
    assert_eq!(case.of(&args!["RL.SLIDING", "k", 100, "1h"]), ["setrange k", "expire k"]);
    // The TTL is good for an eighth of the window: none of these moves it, but the log may be made anew, and that does.
    for _ in 0..20 {
        let events = case.of(&args!["RL.SLIDING", "k", 100, "1h"]);
        assert!(events == ["setrange k"] || events == ["setrange k", "expire k"], "{events:?}");
    }
    assert_eq!(case.of(&args!["RL.SLIDING", "k", 21, "1h"]), [""; 0]);
}

#[test]
fn a_hit_of_a_bucket_fires_set_and_expire() {
    let mut case = start();
    for _ in 0..3 {
        assert_eq!(case.of(&args!["RL.BUCKET", "k", 3, 1, "1d"]), ["set k", "expire k"]);
    }
    assert_eq!(case.of(&args!["RL.BUCKET", "k", 3, 1, "1d"]), [""; 0]);
}

#[test]
fn events_name_the_key_as_it_is_and_the_database_it_is_in() {
    let mut case = start();
    case.client.call(&["SELECT", "7"]);
    assert_eq!(case.of(&args!["LOCK.ACQUIRE", "a key:%s\r\n", "t", "1h"]), ["set a key:%s\r\n", "expire a key:%s\r\n"]);
    let mut listener = Client::connect(case._server.port()).unwrap();
    listener.call(&["PSUBSCRIBE", "__keyspace@*__:*"]);
    case.client.call(&["LOCK.RELEASE", "a key:%s\r\n", "t"]);
    let heard = listener.read(rig::SOON).unwrap().array();
    assert_eq!((heard[2].text().as_str(), heard[3].text().as_str()), ("__keyspace@7__:a key:%s\r\n", "del"));
}
