//! Semaphores: at most as many holders as the limit of the call, permits that come back by themselves, and a queue nobody overtakes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects)]

mod kinds;
mod rig;

use kinds::{
    Ears, ends_at, expires_at, granted, holders, int, is_error, late_by_at_most, line_up, no_internal_error, queue,
    send_up, wait_past, words,
};
use rig::{Client, SOON, Server, ValueExt, args, in_time, wait_until};

fn start() -> (Server, Client) {
    let server = Server::start();
    let client = server.client();
    (server, client)
}

#[test]
fn a_semaphore_grants_up_to_the_limit_and_each_permit_has_its_own_deadline() {
    let (server, mut client) = start();
    for n in 1..=3 {
        granted(&mut client, &format!("SEM.ACQUIRE k t{n} {}m 3", 100 + n));
    }
    assert_eq!(int(&mut client, "SEM.ACQUIRE k t4 1m 3"), 0);
    assert_eq!(client.call(&["TYPE", "k"]).text(), "zset");
    let ends: Vec<i64> = (1..=3).map(|n| ends_at(&server, "k", &format!("t{n}"))).collect();
    assert_eq!(expires_at(&server, "k"), ends[2]);
    // A holder asks again: it keeps its permit, and takes no second one, whatever the limit says.
    granted(&mut client, "SEM.ACQUIRE k t1 1m 3");
    granted(&mut client, "SEM.ACQUIRE k t1 1m 1");
    assert_eq!(ends_at(&server, "k", "t1"), ends[0]);
    assert_eq!(int(&mut client, "SEM.ACQUIRE k t4 1m 3"), 0);
    // RENEW, also to an earlier end; the others keep theirs, and the key follows the last.
    assert_eq!(int(&mut client, "SEM.RENEW k t3 10m"), 1);
    assert_eq!(expires_at(&server, "k"), ends[1]);
    assert_eq!((ends_at(&server, "k", "t1"), ends_at(&server, "k", "t2")), (ends[0], ends[1]));
    assert_eq!(int(&mut client, "SEM.RENEW k t4 10m"), 0);
    assert_eq!(int(&mut client, "SEM.RELEASE k t4"), 0);
    assert_eq!(int(&mut client, "SEM.RELEASE k t2"), 1);
    granted(&mut client, "SEM.ACQUIRE k t4 1m 3");
    assert_eq!(holders(&server, "k"), ["t1", "t3", "t4"]);
    for token in ["t1", "t3", "t4"] {
        assert_eq!(int(&mut client, &format!("SEM.RELEASE k {token}")), 1);
    }
    assert_eq!(client.call(&["EXISTS", "k"]).int(), 0);
    no_internal_error(&server);
}

#[test]
fn the_limit_travels_with_each_call_and_a_lower_one_evicts_nobody() {
    let (server, mut client) = start();
    for n in 1..=3 {
        granted(&mut client, &format!("SEM.ACQUIRE k t{n} 270m 3"));
    }
    assert_eq!(int(&mut client, "SEM.ACQUIRE k x 1m 2"), 0);
    assert_eq!(holders(&server, "k").len(), 3);
    granted(&mut client, "SEM.ACQUIRE k t4 270m 4");
    assert_eq!(int(&mut client, "SEM.RELEASE k t1"), 1);
    assert_eq!(int(&mut client, "SEM.RELEASE k t2"), 1);
    assert_eq!(int(&mut client, "SEM.ACQUIRE k x 1m 2"), 0, "two are left, and two is the limit");
    assert_eq!(int(&mut client, "SEM.RELEASE k t3"), 1);
    granted(&mut client, "SEM.ACQUIRE k x 1m 2");
    for limit in ["0", "-1", "1.5", "01", "+1", "", "1000000001", "99999999999999999999"] {
        let reply = client.call(&["SEM.ACQUIRE", "k", "y", "1m", limit]);
        assert!(reply.is_error("ERR invalid limit"), "{limit}: {reply:?}");
    }
    granted(&mut client, "SEM.ACQUIRE k y 1m 1000000000");
}

#[test]
fn l39_an_expired_permit_is_the_next_ones_and_a_late_release_takes_nothing_from_it() {
    let (server, mut client) = start();
    let end = in_time(100, |lease| {
        let replies = client.pipeline(&[
            words("DEL k"),
            words(&format!("SEM.ACQUIRE k tA {lease} 1")),
            words("SEM.ACQUIRE k tB 270m 1"),
            words("PEXPIRETIME k"),
        ]);
        assert!(replies[1].int() > 0, "{replies:?}");
        (replies[2].int() == 0 && replies[3].int() > 0).then(|| replies[3].int())
    });
    wait_past(&server, end);
    granted(&mut client, "SEM.ACQUIRE k tB 270m 1");
    assert_eq!(int(&mut client, "SEM.RELEASE k tA"), 0);
    assert_eq!(int(&mut client, "SEM.RENEW k tA 1m"), 0);
    assert_eq!(holders(&server, "k"), ["tB"]);
}

#[test]
fn l40_nobody_overtakes_the_queue_with_a_higher_limit() {
    let (server, mut client) = start();
    granted(&mut client, "SEM.ACQUIRE k tA 270m 1");
    let mut b = line_up(&server, "SEM.ACQUIRE k tB 270m 1 BLOCK 0");
    assert_eq!(int(&mut client, "SEM.ACQUIRE k tC 270m 3"), 0);
    let mut c = line_up(&server, "SEM.ACQUIRE k tC 270m 3 BLOCK 0");
    granted(&mut client, "SEM.ACQUIRE k tA 270m 3"); // a holder asks again, past the queue
    assert_eq!(queue(&server, "k"), ["tB", "tC"]);
    assert_eq!(int(&mut client, "SEM.RELEASE k tA"), 1);
    // B by its limit of one; C behind it by its own of three.
    assert!(b.fence() < c.fence());
    assert_eq!(holders(&server, "k"), ["tB", "tC"]);
}

#[test]
fn a_waiter_is_judged_by_the_limit_it_came_with() {
    let (server, mut client) = start();
    for n in 1..=3 {
        granted(&mut client, &format!("SEM.ACQUIRE k t{n} 270m 3"));
    }
    let mut low = line_up(&server, "SEM.ACQUIRE k low 270m 2 BLOCK 0");
    let mut high = line_up(&server, "SEM.ACQUIRE k high 270m 9 BLOCK 0");
    assert_eq!(int(&mut client, "SEM.RELEASE k t1"), 1);
    assert_eq!(queue(&server, "k"), ["low", "high"]);
    assert_eq!(int(&mut client, "SEM.RELEASE k t2"), 1);
    low.fence();
    high.fence();
    assert_eq!(holders(&server, "k"), ["high", "low", "t3"]);
    // The same token, reconnected, with a limit that lets it in: it comes in, and whoever is behind it.
    let mut first = line_up(&server, "SEM.ACQUIRE k w 270m 1 BLOCK 0");
    let mut behind = line_up(&server, "SEM.ACQUIRE k z 270m 9 BLOCK 0");
    let mut again = send_up(&server, "SEM.ACQUIRE k w 270m 4 BLOCK 0");
    assert_eq!(first.reply().int(), 0);
    again.fence();
    behind.fence();
    no_internal_error(&server);
}

#[test]
fn l41_permits_of_dead_holders_come_back_at_their_deadlines_one_by_one_to_waiters_in_order() {
    let (server, mut client) = start();
    client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    late_by_at_most(20, "a dead holder's permit", || {
        let replies = client.pipeline(&[
            words("DEL k"),
            words("SEM.ACQUIRE k d1 150ms 2"),
            words("SEM.ACQUIRE k d2 300ms 2"),
            words("ZSCORE k d1"),
            words("ZSCORE k d2"),
        ]);
        assert!(replies[1].int() > 0 && replies[2].int() > 0, "{replies:?}");
        if replies[3].is_nil() || replies[4].is_nil() {
            return i64::MAX; // over before they could be looked at
        }
        let dead = [3, 4].map(|at| replies[at].text().strip_suffix(".5").unwrap().parse::<i64>().unwrap());
        let mut w1 = send_up(&server, "SEM.ACQUIRE k w1 270m 2 BLOCK 0");
        wait_until(SOON, "it waits or has it", || {
            queue(&server, "k") == ["w1"] || holders(&server, "k").contains(&"w1".to_owned())
        });
        let mut w2 = send_up(&server, "SEM.ACQUIRE k w2 270m 2 BLOCK 0");
        assert!(w1.fence() < w2.fence());
        let granted = ["w1", "w2"].map(|token| ends_at(&server, "k", token) - 270 * 60_000);
        let late = [granted[0] - dead[0], granted[1] - dead[1]];
        assert!(late.iter().all(|late| *late > 0), "before a deadline: {late:?}");
        assert_eq!(holders(&server, "k"), ["w1", "w2"]);
        *late.iter().max().unwrap()
    });
    no_internal_error(&server);
}

#[test]
fn a_release_wakes_one_waiter_and_a_permit_killed_on_its_way_goes_on() {
    let (server, mut client) = start();
    granted(&mut client, "SEM.ACQUIRE k a 270m 2");
    granted(&mut client, "SEM.ACQUIRE k b 270m 2");
    let mut line: Vec<_> = (1..=3).map(|n| line_up(&server, &format!("SEM.ACQUIRE k w{n} 270m 2 BLOCK 0"))).collect();
    let replies = client.pipeline(&[words("SEM.RELEASE k a"), words("SEM.ACQUIRE k a 1m 2")]);
    assert_eq!((replies[0].int(), replies[1].int()), (1, 0), "nobody jumps the queue");
    line[0].fence();
    assert_eq!(queue(&server, "k"), ["w2", "w3"]);
    // w2 is killed in the turn in which it is granted.
    client.pipeline(&[words("SEM.RELEASE k b"), args!["CLIENT", "KILL", "ID", line[1].id]]);
    line[2].fence();
    assert_eq!(holders(&server, "k"), ["w1", "w3"]);
    no_internal_error(&server);
}

#[test]
fn a_semaphore_that_goes_away_by_another_command_is_granted_anew_up_to_the_limit() {
    let (server, mut client) = start();
    for n in 1..=2 {
        granted(&mut client, &format!("SEM.ACQUIRE k t{n} 270m 2"));
    }
    let mut line: Vec<_> = (1..=3).map(|n| line_up(&server, &format!("SEM.ACQUIRE k w{n} 270m 2 BLOCK 0"))).collect();
    client.call(&["DEL", "k"]);
    line[0].fence();
    line[1].fence();
    assert_eq!((holders(&server, "k"), queue(&server, "k")), (vec!["w1".into(), "w2".into()], vec!["w3".into()]));
    assert_eq!(int(&mut client, "SEM.RELEASE k t1"), 0);
    // A foreign member removed by hand is a permit that came back.
    client.call(&words("ZREM k w1"));
    assert_eq!(int(&mut client, "SEM.RELEASE k t1"), 0, "any of our commands serves the queue");
    line[2].fence();
    // Behind a key of another type who waits stays, and is served when it goes.
    let mut w4 = line_up(&server, "SEM.ACQUIRE k w4 270m 2 BLOCK 0");
    client.pipeline(&[args!["MULTI"], words("DEL k"), words("RPUSH k x"), args!["EXEC"]]);
    is_error(&mut client, "SEM.ACQUIRE k t1 1m 2 BLOCK 0", "WRONGTYPE");
    assert_eq!(kinds::counter(&server, "sem_waiters"), 1);
    client.call(&["DEL", "k"]);
    w4.fence();
    no_internal_error(&server);
}

#[test]
fn events_of_semaphores_are_those_of_the_plain_commands() {
    let (server, mut client) = start();
    let mut ears = Ears::on(&server, "k");
    for (command, events) in [
        ("SEM.ACQUIRE k a 270m 2", &["zadd", "expire"][..]),
        ("SEM.ACQUIRE k b 10m 2", &["zadd", "expire"]),
        ("SEM.ACQUIRE k b 1m 2", &[]),
        ("SEM.ACQUIRE k c 1m 2", &[]),
        ("SEM.INFO k", &[]),
        ("SEM.RENEW k c 1m", &[]),
        ("SEM.RELEASE k c", &[]),
        ("SEM.RELEASE k b", &["zrem"]),
        ("SEM.RELEASE k a", &["zrem", "del"]),
    ] {
        client.call(&words(command));
        assert_eq!(ears.heard(&mut client), events, "{command}");
    }
}

#[test]
fn mutated_sorted_sets_and_hashes_and_random_bytes_never_harm_the_server() {
    let (server, mut client) = start();
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng: rand::rngs::StdRng = rand::SeedableRng::seed_from_u64(seed);
    let bytes = |rng: &mut rand::rngs::StdRng| -> Vec<u8> {
        let len = rand::RngExt::random_range(rng, 0..40);
        (0..len).map(|_| rand::RngExt::random::<u8>(rng)).collect()
    };
    let now = server.now_ms();
    for _ in 0..400 {
        let key = bytes(&mut rng);
        let pick = |rng: &mut rand::rngs::StdRng, n: usize| rand::RngExt::random_range(rng, 0..n);
        let tokens: Vec<Vec<u8>> = (0..3).map(|_| bytes(&mut rng)).collect();
        let mut batch: Vec<Vec<Vec<u8>>> = vec![];
        for _ in 0..12 {
            let token = &tokens[pick(&mut rng, 3)];
            let score = match pick(&mut rng, 6) {
                0 => format!("{}.25", now + 1_000_000),
                1 => format!("{}.5", now + 1_000_000),
                2 => format!("{}.25", now - 5),
                3 => format!("{}", f64::from_bits(rand::RngExt::random(&mut rng))).replace("NaN", "0"),
                4 => "inf".to_owned(),
                _ => format!("{}.75", now),
            };
            let ttl = ["1ms", "1m", "3660d"][pick(&mut rng, 3)];
            let limit = ["1", "2", "1000000000"][pick(&mut rng, 3)];
            let command = match pick(&mut rng, 18) {
                0 => args!["ZADD", &key, score, token],
                1 => args!["HSET", &key, token, ["1", "7", "-1", "9223372036854775807", "x"][pick(&mut rng, 5)]],
                2 => args!["SET", &key, token],
                3 => args!["ZREM", &key, token],
                4 => args!["HDEL", &key, token],
                5 => args!["PERSIST", &key],
                6 => args!["PEXPIRE", &key, 1],
                7 | 8 => args!["LOCK.ACQUIRE", &key, token, ttl, "SHARED"],
                9 => args!["LOCK.ACQUIRE", &key, token, ttl, "REENTRANT"],
                10 => args!["LOCK.ACQUIRE", &key, token, ttl],
                11 | 12 => args!["SEM.ACQUIRE", &key, token, ttl, limit],
                13 => args!["LOCK.RELEASE", &key, token],
                14 => args!["SEM.RELEASE", &key, token],
                15 => args!["LOCK.RENEW", &key, token, ttl],
                16 => args!["SEM.RENEW", &key, token, ttl],
                _ => args![["LOCK.INFO", "SEM.INFO"][pick(&mut rng, 2)], &key],
            };
            batch.push(command);
        }
        batch.push(args!["DEL", &key]);
        for (reply, command) in client.pipeline(&batch).iter().zip(&batch) {
            let ours = command[0].contains(&b'.');
            let code = reply.error().unwrap_or_else(|| "WRONGTYPE".into());
            assert!(
                !ours || code.starts_with("WRONGTYPE") || code.starts_with("ERR invalid token"),
                "{command:?}: {reply:?}"
            );
        }
    }
    assert_eq!(client.call(&["PING"]).text(), "PONG");
    no_internal_error(&server);
}

#[test]
fn ten_thousand_holders_slow_no_call_visibly() {
    let (server, mut client) = start();
    // What else runs on the machine makes some rounds dearer and none cheaper: the best of five, and of more while it is too dear.
    let cost = |client: &mut Client, holders: u32, most: [f64; 4]| {
        client.call(&["FLUSHALL"]);
        for at in (0..holders).step_by(500) {
            let batch: Vec<_> = (at..(at + 500).min(holders))
                .map(|n| words(&format!("SEM.ACQUIRE k t{n} {}ms 1000000", 16_000_000 + (n * 7919) % 10_007)))
                .collect();
            client.pipeline(&batch);
        }
        // A dead member makes the count of the living one of a range.
        granted(client, "SEM.ACQUIRE k dead 1ms 1000000");
        wait_past(&server, ends_at(&server, "k", "dead"));
        let mut best = [f64::MAX; 4];
        for round in 0..50 {
            if round >= 5 && best.iter().zip(most).all(|(best, most)| *best < most) {
                break;
            }
            client.call(&["CONFIG", "RESETSTAT"]);
            let mut batch = vec![];
            for n in 0..100 {
                batch.push(words(&format!("SEM.ACQUIRE k new{n} {}ms 1", 16_000_000 + n)));
                batch.push(words("SEM.INFO k"));
            }
            for n in 0..100 {
                batch.push(words(&format!("SEM.ACQUIRE k new{n} {}ms 1000000", 16_000_000 + n)));
                batch.push(words(&format!("SEM.RENEW k new{n} {}ms", 16_001_000 + n)));
                batch.push(words(&format!("SEM.RELEASE k new{n}")));
            }
            client.pipeline(&batch);
            let stats = server.info("commandstats");
            for (at, name) in ["acquire", "renew", "release", "info"].iter().enumerate() {
                let line = &stats[&format!("cmdstat_SEM.{}", name.to_uppercase())];
                let usec = line.split(',').find_map(|field| field.strip_prefix("usec_per_call=")).unwrap();
                best[at] = best[at].min(usec.parse().unwrap());
            }
        }
        best
    };
    let few = cost(&mut client, 200, [f64::MAX; 4]);
    let most = few.map(|few| few * 4.0 + 10.0);
    let many = cost(&mut client, 10_000, most);
    eprintln!("µs a call of ACQUIRE, RENEW, RELEASE, INFO: {few:?} with 200 holders, {many:?} with 10,000");
    for (most, many) in most.iter().zip(many) {
        assert!(many < *most, "µs: {few:?} with 200 holders, {many} with 10,000");
    }
}
