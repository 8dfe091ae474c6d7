//! LOCK.ACQUIRE … BLOCK: who gets the lock, when, and how a wait ends. How a key can go away is in waiting_roads.rs, when the
//! server takes no writes in waiting_gates.rs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod cases;
mod rig;

use cases::timed;
use rig::line::{Waiter, acquire, defers, enter, hold, holder, line_up, line_up_on, queue, release, waiters, words};
use rig::noise::{Noise, net, took, two_clocks, unix_ms, within};
use rig::{SOON, Server, Value, ValueExt, args, in_time, ms, replica, wait_for, wait_for_sync, wait_until};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// The contract's bound for a grant or a timeout.
const PROMPT: Duration = ms(20);

fn kill(server: &Server, waiter: &Waiter) {
    assert_eq!(server.call(&args!["CLIENT", "KILL", "ID", waiter.id]).int(), 1);
}

fn unblock(server: &Server, waiter: &Waiter, how: &[&str]) -> i64 {
    server.call(&args!["CLIENT", "UNBLOCK", waiter.id, how]).int()
}

// ---- Order.

#[test]
fn l22_a_holder_that_dies_is_succeeded_within_20_ms_of_its_deadline_among_100_000_volatile_keys() {
    let server = Server::start();
    let filled = server.call(&args!["DEBUG", "POPULATE", 100_000, "other"]);
    assert!(filled.error().is_none(), "{filled:?}");
    let expire = "for i = 0, 99999 do redis.call('EXPIRE', 'other:' .. i, 3600) end";
    server.call(&args!["EVAL", expire, 0]);
    within(ms(500) + PROMPT, "the grant after a dead holder", |round| {
        let key = format!("k{round}");
        let noise = Noise::of(&server);
        let sent = Instant::now();
        hold(&server, &key, "tA", "500ms");
        let mut b = enter(&server, &key, "tB", "1m", "1m");
        b.fence();
        let took = took(sent, noise);
        assert!(sent.elapsed() >= ms(499), "before the lease's end");
        assert_eq!(holder(&server, &key), "tB");
        took
    });
}

#[test]
fn l23_waiters_are_served_first_come_first_served_one_grant_a_release() {
    let server = Server::start();
    let mut last = hold(&server, "k", "tA", "1m");
    let tokens = ["tB", "tC", "tD", "tE"];
    let mut line: Vec<Waiter> = tokens.iter().map(|token| line_up(&server, "k", token, "1m", "0")).collect();
    assert_eq!(queue(&server, "k"), tokens);
    let mut holding = "tA";
    for (at, token) in tokens.iter().enumerate() {
        assert_eq!(release(&server, "k", holding), 1);
        let fence = line[at].fence();
        assert!(fence > last, "the fences grow in the order of the grants");
        assert_eq!(holder(&server, "k"), *token);
        assert_eq!(queue(&server, "k"), tokens[at + 1..], "one release, one grant");
        (last, holding) = (fence, token);
    }
    assert_eq!(release(&server, "k", holding), 1);
    assert_eq!(holder(&server, "k"), "nobody");
    line.into_iter().for_each(Waiter::has_no_other_reply);
}

#[test]
fn l24_a_release_and_an_acquire_sent_together_do_not_jump_the_queue() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    let together = [words("LOCK.RELEASE k tA"), words("LOCK.ACQUIRE k tA 1000"), words("GET k")];
    let replies = server.client().pipeline(&together);
    assert_eq!((replies[0].int(), replies[1].int()), (1, 0));
    assert_eq!(replies[2].text(), "tB", "the lock is the waiter's when RELEASE returns");
    b.fence();
    // In a transaction and a script there is no moment between the two either.
    let mut c = line_up(&server, "k", "tC", "1m", "0");
    let both = "return {redis.call('LOCK.RELEASE', KEYS[1], 'tB'), redis.call('LOCK.ACQUIRE', KEYS[1], 'tX', '1s')}";
    assert_eq!(server.call(&args!["EVAL", both, 1, "k"]).ints(), [1, 0]);
    c.fence();
    assert_eq!(holder(&server, "k"), "tC");
}

#[test]
fn a_newcomer_who_finds_the_lock_just_expired_comes_after_those_who_wait() {
    let server = Server::start();
    let mut client = server.client();
    for round in 0..20 {
        let key = format!("k{round}");
        hold(&server, &key, "tA", "1m");
        let mut b = line_up(&server, &key, "tB", "1m", "0");
        let replies = client.pipeline(&[args!["LOCK.RENEW", &key, "tA", 40], args!["PEXPIRETIME", &key]]);
        assert_eq!(replies[0].int(), 1);
        let end = replies[1].int() as f64;
        // Asked all the time around the deadline: some call is the first to see the lease's end.
        loop {
            let late = unix_ms() > end + 10.0;
            assert_eq!(client.call(&["LOCK.ACQUIRE", &key, "tX", "1m"]).int(), 0, "the newcomer jumped the queue");
            if late {
                break;
            }
        }
        b.fence();
        assert_eq!(holder(&server, &key), "tB");
    }
}

#[test]
fn a_newcomer_is_second_also_where_the_server_slept_through_the_deadline() {
    let server = Server::start();
    for (late, command) in
        [("acquire", "LOCK.ACQUIRE k tX 1000"), ("release", "LOCK.RELEASE k tA"), ("renew", "LOCK.RENEW k tA 1000")]
    {
        hold(&server, "k", "tA", "1m");
        let mut b = line_up(&server, "k", "tB", "1m", "0");
        // Commands that were read together and run after the deadline: the module's timer has not had its turn.
        let replies = server.client().pipeline(&[
            words("LOCK.RENEW k tA 100"),
            words("DEBUG SLEEP 0.15"),
            words(command),
            words("GET k"),
        ]);
        assert_eq!(replies[0].int(), 1);
        assert_eq!(replies[2].int(), 0, "{late} by a newcomer, or by the token whose lease has ended");
        assert_eq!(replies[3].text(), "tB", "after the {late}");
        b.fence();
        assert_eq!(release(&server, "k", "tB"), 1);
    }
}

#[test]
fn the_lease_of_a_waiter_starts_at_its_grant() {
    let server = Server::start();
    // In a transaction, so that the lease has not ended when its end is asked for.
    let both = [words("MULTI"), words("LOCK.ACQUIRE k tA 300"), words("PEXPIRETIME k"), words("EXEC")];
    let replies = server.client().pipeline(&both).pop().unwrap().array();
    let free = replies[1].int();
    assert!(replies[0].int() > 0 && free > 0, "{replies:?}");
    enter(&server, "k", "tB", "5m", "0").fence();
    let (ends, now) = (server.call(&["PEXPIRETIME", "k"]).int(), server.now_ms());
    assert!((free..=now).contains(&(ends - 300_000)), "free at {free}, granted for 5 minutes until {ends}, now {now}");
}

#[test]
fn l29_one_release_wakes_one_of_1000() {
    let server = Server::start();
    hold(&server, "k", "t0", "10m");
    let mut line: Vec<_> = (1..=1000)
        .map(|number| {
            let mut client = server.client();
            client.send(&["LOCK.ACQUIRE", "k", &format!("t{number}"), "10m", "BLOCK", "0"]);
            client
        })
        .collect();
    wait_for(SOON, "all are queued", || waiters(&server), |n| *n == 1000);
    let (mut holding, mut served) = ("t0".to_owned(), vec![false; 1001]);
    for left in (980..1000).rev() {
        assert_eq!(release(&server, "k", &holding), 1);
        holding = holder(&server, "k");
        let number: usize = holding.trim_start_matches('t').parse().unwrap();
        assert!(line[number - 1].read(SOON).unwrap().int() > 0);
        assert!(!std::mem::replace(&mut served[number], true));
        assert_eq!(waiters(&server), left, "one release, one grant");
    }
    let others = line.iter_mut().zip(&served[1..]).filter(|(_, served)| !**served);
    let answered = others.map(|(client, _)| client).filter_map(|client| client.read(Duration::ZERO).ok()).count();
    assert_eq!(answered, 0, "replies that nobody was due");
    assert_eq!(server.blocked_clients(), 980);
}

// ---- Ends.

#[test]
fn l25_a_waiter_that_dies_leaves_the_queue_at_that_moment() {
    let server = Server::start();
    within(PROMPT, "the grant to the one who lives", |round| {
        let key = format!("k{round}");
        hold(&server, &key, "tA", "1m");
        let b = line_up(&server, &key, "tB", "1m", "0");
        let killed = line_up(&server, &key, "tK", "1m", "0");
        let mut c = line_up(&server, &key, "tC", "1m", "0");
        kill(&server, &killed);
        assert_eq!(queue(&server, &key), ["tB", "tC"], "CLIENT KILL");
        b.client.close();
        wait_for(SOON, "the closed socket leaves", || queue(&server, &key), |left| left == &["tC"]);
        let noise = Noise::of(&server);
        let at = Instant::now();
        assert_eq!(release(&server, &key, "tA"), 1);
        c.fence();
        let took = took(at, noise);
        assert_eq!(holder(&server, &key), "tC");
        assert_eq!((waiters(&server), server.blocked_clients()), (0, 0));
        took
    });
}

#[test]
fn l26_a_timeout_is_one_reply_of_0_in_time_and_leaves_nothing_behind() {
    let server = Server::start();
    within(ms(200) + PROMPT, "the timeout", |round| {
        let key = format!("k{round}");
        hold(&server, &key, "tA", "1m");
        let noise = Noise::of(&server);
        let mut b = enter(&server, &key, "tB", "1m", "200ms");
        assert_eq!(b.reply().int(), 0);
        let took = took(b.sent, noise);
        assert!(b.sent.elapsed() >= ms(199), "too early");
        assert_eq!(queue(&server, &key), [""; 0]);
        assert_eq!(server.info_int("sluice", "sluice_lock_timeouts"), round as i64 + 1);
        assert_eq!(release(&server, &key, "tA"), 1);
        assert_eq!(holder(&server, &key), "nobody");
        b.has_no_other_reply();
        took
    });
}

#[test]
fn l27_client_unblock_ends_a_wait_with_0_and_with_error_with_unblocked() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut c = None;
    for (how, word) in [(&[][..], None), (&["TIMEOUT"][..], None), (&["ERROR"][..], Some("UNBLOCKED "))] {
        let mut b = line_up(&server, "k", "tB", "1m", "0");
        c.get_or_insert_with(|| line_up(&server, "k", "tC", "1m", "0"));
        assert_eq!(unblock(&server, &b, how), 1);
        match word {
            None => assert_eq!(b.reply().int(), 0, "{how:?}"),
            Some(code) => assert!(b.reply().is_error(code), "{how:?}"),
        }
        assert_eq!(queue(&server, "k"), ["tC"], "{how:?}: out of the queue");
        assert_eq!(unblock(&server, &b, how), 0, "it does not wait any more");
        b.has_no_other_reply();
    }
    assert_eq!(release(&server, "k", "tA"), 1);
    c.unwrap().fence();
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
}

#[test]
fn client_unblock_of_a_grant_under_way_leaves_the_grant() {
    let server = Server::start();
    for how in [&[][..], &["TIMEOUT"]] {
        hold(&server, "k", "tA", "1m");
        let mut b = line_up(&server, "k", "tB", "1m", "0");
        let mut c = line_up(&server, "k", "tC", "1m", "0");
        server.client().pipeline(&[words("LOCK.RELEASE k tA"), args!["CLIENT", "UNBLOCK", b.id, how]]);
        b.fence();
        b.has_no_other_reply();
        c.still_waits(&server, "k");
        assert_eq!(release(&server, "k", "tB"), 1);
        c.fence();
        assert_eq!(release(&server, "k", "tC"), 1);
    }
}

#[test]
fn client_unblock_of_a_waiter_that_is_being_answered_loses_no_reply() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    // What would come next on the connection must not be taken for the answer.
    let mut b = server.client();
    let id = b.id();
    b.send_all(&[words("LOCK.ACQUIRE k tB 1m BLOCK 0"), words("PING")]);
    wait_for(SOON, "it waits", || waiters(&server), |n| *n == 1);
    server.client().pipeline(&[words("LOCK.RELEASE k tB"), args!["CLIENT", "UNBLOCK", id]]);
    assert_eq!(b.read(SOON).unwrap().int(), 0);
    assert_eq!(b.read(SOON).unwrap().text(), "PONG");
    assert_eq!((holder(&server, "k"), waiters(&server)), ("tA".to_owned(), 0));
}

#[test]
fn client_unblock_error_of_a_grant_under_way_sends_the_lock_on() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    let mut c = line_up(&server, "k", "tC", "1m", "0");
    let both = [words("LOCK.RELEASE k tA"), args!["CLIENT", "UNBLOCK", b.id, "ERROR"]];
    assert_eq!(server.client().pipeline(&both).iter().map(ValueExt::int).collect::<Vec<_>>(), [1, 1]);
    assert!(b.reply().is_error("UNBLOCKED "));
    c.fence();
    assert_eq!(holder(&server, "k"), "tC");
    b.has_no_other_reply();
}

/// A, B and C: A holds, B and C wait. `commands` runs in one pipeline, with B's client id for `{b}`.
fn while_under_way(transaction: bool, commands: &[&str], then: impl FnOnce(&Server, Vec<Value>, Waiter)) {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let b = line_up(&server, "k", "tB", "1m", "0");
    let c = line_up(&server, "k", "tC", "1m", "0");
    let mut all: Vec<_> = commands.iter().map(|command| words(&command.replace("{b}", &b.id.to_string()))).collect();
    let mut client = server.client();
    let replies = if transaction {
        all.insert(0, words("MULTI"));
        all.push(words("EXEC"));
        client.pipeline(&all).pop().unwrap().array()
    } else {
        client.pipeline(&all)
    };
    then(&server, replies, c);
    assert_eq!(server.info_int("sluice", "sluice_internal_errors"), 0);
}

#[test]
fn a_grant_whose_client_is_killed_on_the_way_goes_to_the_next() {
    for transaction in [false, true] {
        while_under_way(transaction, &["LOCK.RELEASE k tA", "CLIENT KILL ID {b}"], |server, replies, mut c| {
            assert_eq!((replies[0].int(), replies[1].int()), (1, 1));
            c.fence();
            assert_eq!(holder(server, "k"), "tC");
            assert_eq!((waiters(server), server.blocked_clients()), (0, 0));
        });
    }
}

#[test]
fn a_grant_whose_client_is_killed_on_the_way_frees_the_lock_where_nobody_else_waits() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let b = line_up(&server, "k", "tB", "1m", "0");
    server.client().pipeline(&[words("LOCK.RELEASE k tA"), args!["CLIENT", "KILL", "ID", b.id]]);
    wait_for(SOON, "the lock is free", || holder(&server, "k"), |who| who == "nobody");
    // The same at a lease's end, the client killed by a command that was read in the turn of the grant.
    hold(&server, "k", "tA", "1m");
    let b = line_up(&server, "k", "tB", "1m", "0");
    server.client().pipeline(&[
        words("LOCK.RENEW k tA 50"),
        words("DEBUG SLEEP 0.1"),
        words("LOCK.RENEW k tA 1000"),
        args!["CLIENT", "KILL", "ID", b.id],
    ]);
    wait_for(SOON, "the lock is free", || holder(&server, "k"), |who| who == "nobody");
}

#[test]
fn a_killed_grant_stays_where_the_token_was_granted_or_renewed_again_since() {
    let goes_on_later = defers(&Server::start());
    for again in ["LOCK.ACQUIRE k tB 60000", "LOCK.RENEW k tB 60000"] {
        for order in [["CLIENT KILL ID {b}", again], [again, "CLIENT KILL ID {b}"]] {
            for transaction in [false, true] {
                if order[1] == again && !transaction && !goes_on_later {
                    continue; // the lock is the next one's before the token asks
                }
                while_under_way(transaction, &["LOCK.RELEASE k tA", order[0], order[1]], |server, replies, mut c| {
                    assert!(replies.iter().all(|reply| reply.int() > 0), "{order:?}: {replies:?}");
                    c.still_waits(server, "k");
                    assert_eq!(holder(server, "k"), "tB", "{order:?}, transaction: {transaction}");
                    assert_eq!(release(server, "k", "tB"), 1);
                    c.fence();
                });
            }
        }
    }
}

#[test]
fn a_killed_grant_stays_where_the_token_lost_the_lock_and_was_granted_it_anew() {
    // B's grant dies, somebody else removes the key, and B, over a new connection, gets the lock before the module has
    // come to the dead grant: what is left of that must not take the new one away.
    let killed_first = ["LOCK.RELEASE k tA", "CLIENT KILL ID {b}", "DEL k", "LOCK.ACQUIRE k tB 60000"];
    let killed_last = ["LOCK.RELEASE k tA", "DEL k", "LOCK.ACQUIRE k tB 60000", "CLIENT KILL ID {b}"];
    let goes_on_later = defers(&Server::start());
    for (commands, transaction) in
        [(killed_first, false), (killed_first, true), (killed_last, false), (killed_last, true)]
    {
        if commands == killed_first && !transaction && !goes_on_later {
            continue; // the lock is free, by the dead one's end, before the token asks
        }
        let server = Server::start();
        hold(&server, "k", "tA", "1m");
        let b = line_up(&server, "k", "tB", "1m", "0");
        let mut all: Vec<_> =
            commands.iter().map(|command| words(&command.replace("{b}", &b.id.to_string()))).collect();
        let mut client = server.client();
        let replies = if transaction {
            all.insert(0, words("MULTI"));
            all.push(words("EXEC"));
            client.pipeline(&all).pop().unwrap().array()
        } else {
            client.pipeline(&all)
        };
        assert!(replies.iter().all(|reply| reply.int() > 0), "{replies:?}");
        let mut c = line_up(&server, "k", "tC", "1m", "0");
        c.still_waits(&server, "k");
        assert_eq!(holder(&server, "k"), "tB", "transaction: {transaction}");
    }
}

#[test]
fn a_closed_socket_on_the_way_of_a_grant_never_leaves_the_lock_with_the_dead() {
    // The close reaches the server before, with or after the RELEASE: in the first two cases the next waiter has the lock,
    // in the last the grant had been delivered, and the lease ends it.
    let server = Server::start();
    for round in 0..50 {
        let key = format!("k{round}");
        hold(&server, &key, "tA", "1m");
        let b = line_up(&server, &key, "tB", "50ms", "0");
        let mut c = line_up(&server, &key, "tC", "1m", "0");
        let mut releasing = server.client();
        releasing.send(&["LOCK.RELEASE", &key, "tA"]);
        b.client.close();
        assert_eq!(releasing.read(SOON).unwrap().int(), 1);
        c.fence();
    }
    assert_eq!((waiters(&server), server.blocked_clients()), (0, 0));
}

// ---- Where nobody waits.

#[test]
fn l28_block_is_ignored_in_a_transaction_a_script_and_a_function() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = server.client();
    let replies =
        b.pipeline(&[words("MULTI"), words("LOCK.ACQUIRE k tB 1000 BLOCK 5000"), words("SET x 1"), words("EXEC")]);
    let results = replies[3].array();
    assert_eq!((results[0].int(), results[1].text()), (0, "OK".to_owned()));
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'tB', '1m', 'BLOCK', '5s')";
    assert_eq!(b.call(&args!["EVAL", script, 1, "k"]).int(), 0);
    let library = format!("#!lua name=l\nredis.register_function('f', function(KEYS) {script} end)");
    assert_eq!(b.call(&["FUNCTION", "LOAD", &library]).text(), "l");
    assert_eq!(b.call(&args!["FCALL", "f", 1, "k"]).int(), 0);
    assert_eq!((waiters(&server), server.blocked_clients()), (0, 0), "nothing is queued");
    assert_eq!(release(&server, "k", "tA"), 1);
    assert!(b.is_silent(ms(30)), "a reply that nobody asked for");
    // Try once means: what is free is taken.
    assert!(b.call(&args!["EVAL", script, 1, "k"]).int() > 0);
    assert_eq!(holder(&server, "k"), "tB");
}

#[test]
fn a_free_lock_is_taken_at_once_and_one_of_its_own_prolonged_with_block_too() {
    let server = Server::start();
    let mut a = server.client();
    let first = a.call(&words("LOCK.ACQUIRE k tA 1m BLOCK 5000")).int();
    let second = a.call(&words("LOCK.ACQUIRE k tA 10m BLOCK 5000")).int();
    assert!(first > 0 && second > first);
    assert!(server.call(&["PTTL", "k"]).int() > 9 * 60_000);
    assert_eq!(waiters(&server), 0);
}

#[test]
fn l9_a_key_of_another_type_is_refused_at_once_with_block_too() {
    let server = Server::start();
    server.call(&["LPUSH", "k", "x"]);
    let commands = ["ACQUIRE k t 1000 BLOCK 0", "ACQUIRE k t 1000", "RELEASE k t", "RENEW k t 1000", "INFO k"];
    for command in commands {
        let reply = server.call(&words(&format!("LOCK.{command}")));
        assert!(reply.is_error("WRONGTYPE "), "{command}: {reply:?}");
    }
    assert_eq!((waiters(&server), server.blocked_clients()), (0, 0));
    assert_eq!(server.cli_raw(&["LRANGE", "k", "0", "-1"]), "x");
}

#[test]
fn l10_a_lock_made_by_set_is_waited_for_to_its_end() {
    let server = Server::start();
    within(PROMPT, "the grant after a lock by SET", |round| {
        let (key, lease, set, noise) = in_time(500, |lease| {
            let (key, noise, set) = (format!("k{round}:{lease}"), Noise::of(&server), Instant::now());
            let both = [args!["SET", &key, "other", "NX", "PX", lease], args!["LOCK.ACQUIRE", &key, "tX", "1m"]];
            let replies = server.client().pipeline(&both);
            assert_eq!(replies[0].text(), "OK");
            let in_time = set.elapsed() < ms(lease);
            assert!(replies[1].int() == 0 || !in_time, "granted before its end");
            in_time.then_some((key, lease, set, noise))
        });
        let mut b = enter(&server, &key, "tB", "1m", "1m");
        b.fence();
        let took = took(set, noise);
        assert!(set.elapsed() + ms(1) >= ms(lease));
        assert_eq!(holder(&server, &key), "tB");
        took.saturating_sub(ms(lease))
    });
}

#[test]
fn l11_a_compare_and_delete_script_of_another_client_hands_the_lock_on() {
    let server = Server::start();
    let unlock = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
    within(ms(25), "the grant after a script", |round| {
        let key = format!("k{round}");
        hold(&server, &key, "tA", "1m");
        assert!(server.call(&["SET", &key, "x", "NX", "PX", "1000"]).is_nil());
        let mut b = line_up(&server, &key, "tB", "1m", "0");
        let noise = Noise::of(&server);
        let at = Instant::now();
        assert_eq!(server.call(&args!["EVAL", unlock, 1, &key, "tA"]).int(), 1);
        b.fence();
        let took = took(at, noise);
        assert_eq!(holder(&server, &key), "tB");
        took
    });
}

// ---- One token, twice.

#[test]
fn l32_a_token_that_asks_again_keeps_its_place_and_the_newer_call_gets_the_grant() {
    let server = Server::start();
    let (key, patience, mut old, mut c, mut new) = in_time(200, |patience| {
        let key = format!("k{patience}");
        hold(&server, &key, "tA", "10m");
        let old = enter(&server, &key, "tB", "1m", &format!("{patience}ms"));
        let c = line_up(&server, &key, "tC", "1m", "0");
        let new = line_up(&server, &key, "tB", "30m", "0");
        (old.sent.elapsed() < ms(patience)).then_some((key, patience, old, c, new))
    });
    assert_eq!(old.reply().int(), 0, "the older call is over at once");
    assert_eq!(queue(&server, &key), ["tB", "tC"], "one entry, its place kept");
    // The older call's timeout has gone with it: this is long after its end.
    let past = ms(patience) + ms(100);
    wait_until(past + SOON, "the old timeout is past", || old.sent.elapsed() > past);
    new.still_waits(&server, &key);
    assert_eq!(release(&server, &key, "tA"), 1);
    new.fence();
    let left = server.call(&["PTTL", &key]).int();
    assert!((20 * 60_000..=30 * 60_000).contains(&left), "the newer call's ttl, not the older's: {left}");
    c.still_waits(&server, &key);
    old.has_no_other_reply();
    new.has_no_other_reply();
}

#[test]
fn the_newer_call_of_a_token_brings_its_own_timeout() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut old = line_up(&server, "k", "tB", "1s", "0");
    let mut new = enter(&server, "k", "tB", "1s", "100ms");
    assert_eq!((old.reply().int(), new.reply().int()), (0, 0));
    assert!(new.sent.elapsed() >= ms(99));
    assert_eq!(waiters(&server), 0);
}

#[test]
fn a_displaced_call_that_dies_takes_nobodys_place() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let old = line_up(&server, "k", "tB", "1s", "0");
    let mut new = line_up(&server, "k", "tB", "1s", "0");
    old.client.close();
    new.still_waits(&server, "k");
    assert_eq!(release(&server, "k", "tA"), 1);
    new.fence();
}

#[test]
fn a_call_without_block_by_a_queued_token_is_0_and_keeps_its_place() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    let mut c = line_up(&server, "k", "tC", "1m", "0");
    assert_eq!(acquire(&server, "k", "tB", "1s"), 0);
    b.still_waits(&server, "k");
    assert_eq!(queue(&server, "k"), ["tB", "tC"]);
    assert_eq!(release(&server, "k", "tA"), 1);
    b.fence();
    assert_eq!(release(&server, "k", "tB"), 1);
    c.fence();
}

#[test]
fn a_release_by_a_token_that_only_waits_takes_it_out_and_answers_0() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    let mut c = line_up(&server, "k", "tC", "1m", "0");
    assert_eq!(release(&server, "k", "tB"), 0);
    assert_eq!(b.reply().int(), 0);
    assert_eq!(queue(&server, "k"), ["tC"]);
    assert_eq!(holder(&server, "k"), "tA");
    assert_eq!(release(&server, "k", "tX"), 0, "a token that neither holds nor waits");
    c.still_waits(&server, "k");
    assert_eq!(release(&server, "k", "tA"), 1);
    c.fence();
    b.has_no_other_reply();
}

#[test]
fn a_renew_by_a_token_that_only_waits_is_0_and_keeps_its_place() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    assert_eq!(server.call(&words("LOCK.RENEW k tB 1000")).int(), 0);
    b.still_waits(&server, "k");
}

#[test]
fn a_holder_that_renews_is_waited_for_longer_and_one_that_shortens_its_lease_less_long() {
    let server = Server::start();
    within(ms(50) + PROMPT, "the grant after a shortened lease", |round| {
        let (key, lease, mut b) = in_time(100, |lease| {
            let (key, held) = (format!("k{round}:{lease}"), Instant::now());
            hold(&server, &key, "tA", &format!("{lease}ms"));
            let b = enter(&server, &key, "tB", "10m", "0");
            let renewed = server.call(&["LOCK.RENEW", &key, "tA", "10m"]).int();
            let in_time = held.elapsed() < ms(lease);
            assert!(renewed == 1 || !in_time, "not renewed, before its end");
            in_time.then_some((key, lease, b))
        });
        assert!(b.client.is_silent(ms(lease + 50)), "granted at the old deadline");
        b.still_waits(&server, &key);
        let noise = Noise::of(&server);
        let at = Instant::now();
        assert_eq!(server.call(&["LOCK.RENEW", &key, "tA", "50"]).int(), 1);
        b.fence();
        let took = took(at, noise);
        assert!(at.elapsed() >= ms(49));
        took
    });
}

// ---- Borders.

#[test]
fn l34_more_waiters_than_max_waiters_get_queuefull_and_change_nothing() {
    let server = Server::builder().module_args(&["max-waiters", "2"]).start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    let mut c = line_up(&server, "k", "tC", "1m", "0");
    assert!(server.call(&words("LOCK.ACQUIRE k tD 1000 BLOCK 0")).is_error("QUEUEFULL "));
    assert_eq!(queue(&server, "k"), ["tB", "tC"]);
    assert_eq!(holder(&server, "k"), "tA");
    assert_eq!(acquire(&server, "k", "tD", "1s"), 0, "a call that does not wait is not concerned");
    // A token that is in the queue needs no room of its own, and another key has a queue of its own.
    let mut again = line_up(&server, "k", "tB", "1m", "0");
    assert_eq!(b.reply().int(), 0);
    hold(&server, "k2", "tA", "1m");
    line_up(&server, "k2", "tB", "1m", "0").still_waits(&server, "k2");
    // Room that is made can be taken, and the setting can be changed.
    assert_eq!(release(&server, "k", "tC"), 0);
    assert_eq!(c.reply().int(), 0);
    line_up(&server, "k", "tD", "1m", "0").still_waits(&server, "k");
    server.call(&["CONFIG", "SET", "sluice.max-waiters", "1"]);
    assert!(server.call(&words("LOCK.ACQUIRE k tE 1000 BLOCK 0")).is_error("QUEUEFULL "));
    assert_eq!(release(&server, "k", "tA"), 1);
    again.fence();
}

#[test]
fn l33_the_module_is_not_unloaded_while_somebody_waits_and_is_afterwards() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    let unload = || server.call(&["MODULE", "UNLOAD", "sluice"]);
    assert!(unload().is_error("ERR "), "with a waiter");
    b.still_waits(&server, "k");
    assert_eq!(release(&server, "k", "tA"), 1);
    b.fence();
    // Every other end of a wait.
    let mut timed_out = enter(&server, "k", "tC", "1m", "20ms");
    assert_eq!(timed_out.reply().int(), 0);
    let mut unblocked = line_up(&server, "k", "tD", "1m", "0");
    unblock(&server, &unblocked, &[]);
    assert_eq!(unblocked.reply().int(), 0);
    let mut unblocked = line_up(&server, "k", "tE", "1m", "0");
    unblock(&server, &unblocked, &["ERROR"]);
    assert!(unblocked.reply().is_error("UNBLOCKED "));
    kill(&server, &line_up(&server, "k", "tF", "1m", "0"));
    let mut displaced = line_up(&server, "k", "tG", "1m", "0");
    let closed = line_up(&server, "k", "tG", "1m", "0");
    assert_eq!(displaced.reply().int(), 0);
    closed.client.close();
    wait_for(SOON, "nobody waits", || (waiters(&server), server.blocked_clients()), |n| *n == (0, 0));
    assert_eq!(holder(&server, "k"), "tB", "with a held lock");
    assert_eq!(unload().text(), "OK");
    assert_eq!(holder(&server, "k"), "tB", "a held lock stays");
    // What was left behind, a timer or a subscription, would end the server now.
    server.call(&["DEL", "k"]);
    server.call(&words("SET k x PX 1"));
    wait_for(SOON, "it is gone", || holder(&server, "k"), |who| who == "nobody");
    assert_eq!(server.call(&["PING"]).text(), "PONG");
}

#[test]
fn the_module_can_be_loaded_again_and_waits_as_before() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = enter(&server, "k", "tB", "1m", "20ms");
    assert_eq!(b.reply().int(), 0);
    let modules = server.call(&["MODULE", "LIST"]).array();
    let ours = modules.iter().map(ValueExt::map).find(|module| module["name"].text() == "sluice").unwrap();
    let path = ours["path"].text();
    wait_for(SOON, "unloaded", || server.call(&["MODULE", "UNLOAD", "sluice"]), |reply| reply.error().is_none());
    assert_eq!(server.call(&["MODULE", "LOAD", &path]).text(), "OK");
    let mut b = line_up(&server, "k", "tB", "100ms", "0");
    assert_eq!(release(&server, "k", "tA"), 1);
    b.fence();
    let mut c = enter(&server, "k", "tC", "1m", "0");
    c.fence();
    server.call(&["DEL", "k"]);
    assert_eq!(holder(&server, "k"), "nobody");
}

#[test]
fn a_wait_of_0_has_no_end_and_a_computed_0ms_is_an_error() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    b.still_waits(&server, "k");
    for timeout in ["0ms", "0s", "-1", "1.5", ""] {
        let reply = server.call(&["LOCK.ACQUIRE", "k", "tC", "1s", "BLOCK", timeout]);
        assert!(reply.is_error("ERR "), "{timeout:?}: {reply:?}");
    }
    assert_eq!(waiters(&server), 1);
}

#[test]
fn the_servers_own_idle_timeout_leaves_waiters_alone() {
    let server = Server::builder().args(&["--timeout", "1"]).start();
    hold(&server, "k", "tA", "1m");
    let mut idle = server.client();
    idle.call(&["PING"]);
    let mut b = line_up(&server, "k", "tB", "1m", "0");
    assert_eq!(idle.read(SOON).unwrap_err().kind(), ErrorKind::UnexpectedEof, "others are cut off");
    b.still_waits(&server, "k");
    assert_eq!(release(&server, "k", "tA"), 1);
    b.fence();
}

#[test]
fn commands_sent_behind_a_waiting_call_are_answered_after_it_in_order() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut client = server.client();
    client.send_all(&[words("LOCK.ACQUIRE k tB 60000 BLOCK 0"), words("GET k"), words("LOCK.RELEASE k tB")]);
    wait_for(SOON, "it waits", || waiters(&server), |n| *n == 1);
    assert_eq!(release(&server, "k", "tA"), 1);
    assert!(client.read(SOON).unwrap().int() > 0);
    assert_eq!(client.read(SOON).unwrap().text(), "tB");
    assert_eq!(client.read(SOON).unwrap().int(), 1);
}

#[test]
fn queues_are_a_database_apart_and_hold_any_bytes() {
    let server = Server::start();
    let (key, token) = (&b"k\0\r\n\xff"[..], &b"t\0\xfe"[..]);
    let mut in_db_3 = server.client();
    in_db_3.call(&["SELECT", "3"]);
    for client in [&mut in_db_3, &mut server.client()] {
        assert!(client.call(&args!["LOCK.ACQUIRE", key, "tA", "1m"]).int() > 0);
    }
    let mut b = server.client();
    b.call(&["SELECT", "3"]);
    b.send(&args!["LOCK.ACQUIRE", key, token, "1m", "BLOCK", "0"]);
    wait_for(SOON, "it waits", || waiters(&server), |n| *n == 1);
    let queued = in_db_3.call(&args!["LOCK.INFO", key]).map()["queue"].array();
    assert_eq!(queued[0].map()["token"].bytes(), token);
    assert_eq!(server.call(&args!["LOCK.INFO", key]).map()["waiters"].int(), 0, "database 0");
    assert_eq!(server.call(&args!["LOCK.RELEASE", key, "tA"]).int(), 1, "database 0");
    assert!(b.is_silent(ms(30)));
    assert_eq!(in_db_3.call(&args!["LOCK.RELEASE", key, "tA"]).int(), 1);
    assert!(b.read(SOON).unwrap().int() > 0);
    assert_eq!(in_db_3.call(&args!["GET", key]).bytes(), token);
}

#[test]
fn info_tells_who_waits_for_how_long_and_what_has_happened() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up(&server, "k", "tB", "100ms", "0");
    let mut c = line_up(&server, "k", "tC", "1m", "0");
    // Both have been seen in the queue by now, so they wait for at least as long as passes from here on.
    let seen = Instant::now();
    wait_until(SOON, "some time passes", || seen.elapsed() > ms(30));
    let info = server.call(&["LOCK.INFO", "k"]).map();
    assert_eq!((info["waiters"].int(), info["held"].int()), (2, 1));
    let first = info["queue"].array()[0].map();
    assert_eq!((first["token"].text(), first["mode"].text()), ("tB".to_owned(), "exclusive".to_owned()));
    assert!((29..=b.sent.elapsed().as_millis() as i64 + 1).contains(&first["waited"].int()), "{first:?}");
    assert_eq!(first["client"].int(), b.id);
    assert_eq!(release(&server, "k", "tA"), 1);
    b.fence();
    c.fence();
    let count = |field: &str| server.info_int("sluice", &format!("sluice_lock_{field}"));
    assert_eq!(["grants", "handovers", "expired_handovers", "waiters"].map(count), [3, 1, 1, 0]);
    assert!(count("wait_ms_max") >= 129, "{}", count("wait_ms_max"));
}

// ---- Replicas.

#[test]
fn l45_wait_counts_a_grant_also_one_that_came_by_waiting() {
    let server = Server::start();
    let follower = replica(&server, false);
    hold(&server, "k", "tA", "1m");
    // WAIT behind the call in the same pipeline runs when the grant has come.
    for (stopped, seen) in [(false, 1), (true, 0)] {
        let roads: [(&str, &[&str]); 3] = [
            ("RELEASE", &["LOCK.RELEASE", "k", "tA"]),
            ("DEL", &["DEL", "k"]),
            ("a lease's end", &["PEXPIRE", "k", "20"]),
        ];
        for (road, command) in roads {
            let mut client = server.client();
            // A replica that runs is waited for as long as it takes; for one that does not there is nothing to wait for.
            let patience = if stopped { 300 } else { 20_000 };
            client.send_all(&[words("LOCK.ACQUIRE k tB 10m BLOCK 0"), args!["WAIT", 1, patience]]);
            wait_for(SOON, "it waits", || waiters(&server), |n| *n == 1);
            wait_for_sync(&server, &follower);
            if stopped {
                follower.stop();
            }
            server.call(command);
            assert!(client.read(SOON).unwrap().int() > 0);
            assert_eq!(client.read(SOON).unwrap().int(), seen, "{road}, replica stopped: {stopped}");
            follower.cont();
            assert_eq!(release(&server, "k", "tB"), 1);
            hold(&server, "k", "tA", "1m");
        }
    }
    // The same without waiting.
    release(&server, "k", "tA");
    let replies = server.client().pipeline(&[words("LOCK.ACQUIRE k tA 60000"), words("WAIT 1 20000")]);
    assert_eq!(replies[1].int(), 1);
}

// ---- In time.

/// How late 100 grants after a dead holder's deadline and 100 timeouts were, each as the 99th percentile, in ms. By the server's
/// own clock, which is asked in the same write before each call and behind it: when our threads are run is not its doing.
fn lateness() -> (f64, f64) {
    let server = Server::start();
    let (begun, unix) = two_clocks();
    let at = |us: i64| begun + Duration::from_secs_f64((us as f64 / 1e3 - unix).max(0.0) / 1e3);
    let noise = Noise::of(&server);
    let (mut grants, mut timeouts) = (Vec::new(), Vec::new());
    let (mut holding, mut b) = (server.client(), server.client());
    for round in 0..100 {
        let key = format!("k{round}");
        assert!(holding.call(&["LOCK.ACQUIRE", &key, "tA", "12ms"]).int() > 0);
        let deadline = holding.call(&["PEXPIRETIME", &key]).int() * 1000;
        let granted = timed(&mut b, &args!["LOCK.ACQUIRE", &key, "tB", "1m", "BLOCK", "0"]);
        assert!(granted.reply.int() > 0);
        grants.push((at(granted.before.max(deadline)), at(granted.after)));
        let over = timed(&mut holding, &args!["LOCK.ACQUIRE", &key, "tC", "1m", "BLOCK", "7ms"]);
        assert_eq!(over.reply.int(), 0);
        assert!(over.after - over.before >= 6_000, "a timeout that came early: {over:?}");
        timeouts.push((at(over.before + 7_000), at(over.after)));
    }
    let lost = noise.lost();
    let p99 = |what: &str, spans: &[(Instant, Instant)]| {
        let sorted = |late: &dyn Fn(&(Instant, Instant)) -> Duration| {
            let mut times: Vec<f64> = spans.iter().map(|span| late(span).as_secs_f64() * 1e3).collect();
            times.sort_by(f64::total_cmp);
            times
        };
        let raw = sorted(&|(from, to)| to.saturating_duration_since(*from));
        let net = sorted(&|(from, to)| net(*from, *to, &lost));
        println!(
            "{what}: late by median {:.1} ms, p99 {:.1}, at most {:.1}; without the machine's own delays p99 {:.1}",
            raw[50], raw[98], raw[99], net[98],
        );
        net[98]
    };
    (p99("grant after a dead holder's deadline", &grants), p99("timeout", &timeouts))
}

#[test]
fn grants_after_a_dead_holder_and_timeouts_are_within_20_ms_at_the_99th_percentile() {
    // What is late by itself is so every time; what a busy machine does to this test's own threads is not.
    let limit = PROMPT.as_secs_f64() * 1e3;
    let mut seen = Vec::new();
    while !seen.iter().any(|(grants, timeouts)| *grants <= limit && *timeouts <= limit) {
        assert!(seen.len() < 4, "late in every round (grants, timeouts): {seen:?}");
        seen.push(lateness());
    }
}

#[test]
fn a_server_that_was_frozen_grants_and_times_out_right_after() {
    let server = Server::start();
    hold(&server, "k", "tA", "100ms");
    let mut late = enter(&server, "k", "tB", "1m", "150ms");
    let mut c = enter(&server, "k", "tC", "1m", "0");
    let frozen = Instant::now();
    server.stop();
    wait_until(SOON, "deadline and timeout pass", || frozen.elapsed() > ms(250));
    server.cont();
    // Which of the two B gets is open, the clock having passed both; but somebody has the lock now, and B one reply.
    let first = late.reply().int();
    if first > 0 {
        assert_eq!(release(&server, "k", "tB"), 1);
    }
    c.fence();
    late.has_no_other_reply();
}

#[test]
fn waiters_give_back_what_they_needed() {
    let server = Server::start();
    let used = || server.info_int("memory", "used_memory");
    hold(&server, "k", "tA", "10m");
    let rush = || {
        let mut line: Vec<_> = (0..300)
            .map(|number| {
                let mut client = server.client();
                client.send(&["LOCK.ACQUIRE", "k", &format!("t{number:0500}"), "1ms", "BLOCK", "0"]);
                client
            })
            .collect();
        wait_for(SOON, "all are queued", || waiters(&server), |n| *n == 300);
        let most = used();
        for client in line.split_off(150) {
            client.close();
        }
        wait_for(SOON, "half are gone", || waiters(&server), |n| *n == 150);
        server.call(&["DEL", "k"]);
        for client in &mut line {
            assert!(client.read(SOON).unwrap().int() > 0);
        }
        drop(line);
        wait_for(SOON, "nobody waits", || (waiters(&server), server.blocked_clients()), |n| *n == (0, 0));
        wait_until(SOON, "the last lease ends", || acquire(&server, "k", "tA", "10m") > 0);
        wait_for(SOON, "all have gone", || server.info_int("clients", "connected_clients"), |n| *n == 1);
        most
    };
    rush();
    let before = used();
    let most = rush();
    rush();
    wait_for(SOON, "the memory is back", used, |after| *after < before + 32_768);
    assert!(most > before + 300 * 500);
}

#[test]
fn a_waiter_on_a_resp3_connection_gets_the_same() {
    let server = Server::start();
    hold(&server, "k", "tA", "1m");
    let mut b = line_up_on(server.client().resp3(), &server, "k", "tB", "1m", "0");
    assert_eq!(release(&server, "k", "tA"), 1);
    b.fence();
    b.has_no_other_reply();
}
