"""Bytes: in memory, in the append-only file, in the replication stream."""

import time

from rig import Server, encode
from works import FULL, WORKS, scripts

WINDOWS = ("1500ms", "1h", "1d", "30d")
LIMIT = 1000


def each_millisecond(client, count, commands):
    """Runs the commands so many times, each time in a millisecond of its own."""
    batch = [encode(words) for words in commands]
    last = 0
    for _ in range(count):
        while (now := clock(client)) == last:
            pass
        last = now
        client.many(batch)


def apart(client, commands, batch):
    """Runs encoded commands in batches of different milliseconds: a key that is asked twice in one may have nothing to say."""
    for at in range(0, len(commands), batch):
        client.many(commands[at : at + batch])
        time.sleep(0.002)


def clock(client):
    seconds, micros = client.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


class Streams:
    """A primary with an append-only file and a replica without the module."""

    def __init__(self, program, modules):
        always = ["--auto-aof-rewrite-percentage", "0", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "3600"]
        self.primary = Server(program, modules, ["--appendonly", "yes", *always])
        try:
            self.replica = Server(program, [], ["--replicaof", f"127.0.0.1 {self.primary.port}", *always])
        except BaseException:
            self.primary.close()
            raise

    def __enter__(self):
        while self.replica.client.info("replication").get("master_link_status") != "up":
            time.sleep(0.05)
        self.primary.client.call("SET", "first", "1")
        self.caught_up()
        return self

    def __exit__(self, *_):
        self.replica.close()
        self.primary.close()

    def caught_up(self):
        self.primary.client.call("WAIT", 1, 10_000)

    def sizes(self):
        client = self.primary.client
        return (
            int(client.info("persistence")["aof_current_size"]),
            int(client.info("replication")["master_repl_offset"]),
        )

    def cost(self, work, rounds):
        """Bytes a round that went into the file and down the stream while `work` ran."""
        before = self.sizes()
        work()
        after = self.sizes()
        return tuple((b - a) / rounds for a, b in zip(before, after))


def streams(program, modules, ways, rounds=500, say=print):
    """For each work and way, bytes a round in the file and in the stream."""
    took = {}
    with Streams(program, modules) as pair:
        client = pair.primary.client
        loaded = scripts(client)
        for work in WORKS + FULL:
            took[work.name] = {}
            for name in ways:
                way = getattr(work, name)
                if not way:
                    continue
                client.call("FLUSHALL")
                client.many([encode(words) for words in way.preparation(rounds, loaded, clock(client))])
                # The first round of a key is not like the others.
                client.many([encode(words) for words in way.rounds(way.keys, loaded, first=rounds)])
                measured = [encode(words) for words in way.rounds(rounds, loaded)]
                took[work.name][name] = pair.cost(lambda: apart(client, measured, way.keys), rounds)
        say("bytes: append-only file and replication")
    return took


def full_windows(program, modules, say=print):
    """A thousand hits of a thousand milliseconds, at several windows: bytes a hit here, on the replica and in the streams.

    And what the script's sorted set takes for the same.
    """
    took = {}
    with Streams(program, modules) as pair:
        client = pair.primary.client
        loaded = scripts(client)
        calls = [["RL.SLIDING", f"window:{window}", LIMIT, window] for window in WINDOWS]
        each_millisecond(client, LIMIT, calls)
        for window in WINDOWS:
            if window == "1500ms":
                continue
            assert client.call("RL.SLIDING", f"window:{window}", LIMIT, window, "PEEK")[2] == 0, "the window is not full"
        script = ["EVALSHA", loaded["sliding"], 1, "window:script", LIMIT, 3_600_000, 1]
        client.many([encode(script)] * LIMIT)
        pair.caught_up()
        for key in [*WINDOWS, "script"]:
            took[key] = tuple(
                server.client.call("MEMORY", "USAGE", f"window:{key}") / LIMIT for server in (pair.primary, pair.replica)
            )
        growing = [["RL.SLIDING", "rate:000000001", LIMIT, "1h"]]
        stream = pair.cost(lambda: each_millisecond(client, LIMIT, growing), LIMIT)
        say("bytes: full windows")
    return took, stream


KEYS = [
    ("a lock", "LOCK.ACQUIRE key:0000000001 0123456789abcdef 30s"),
    ("the same by SET", "SET key:0000000001 0123456789abcdef NX PX 30000"),
    ("RL.FIXED", "RL.FIXED key:0000000001 1000 1h"),
    ("a counter by INCR", "INCR key:0000000001"),
    ("RL.BUCKET", "RL.BUCKET key:0000000001 1000 1 1s"),
    ("the script's bucket", "script:bucket 1 key:0000000001 1000 1 1000 1"),
    ("RL.SLIDING, one hit", "RL.SLIDING key:0000000001 1000 1h"),
    ("the script's log, one hit", "script:sliding 1 key:0000000001 1000 3600000 1"),
]


def keys(program, modules):
    """What one key takes, by MEMORY USAGE."""
    took = {}
    with Server(program, modules) as server:
        loaded = scripts(server.client)
        for name, command in KEYS:
            server.client.call("FLUSHALL", "SYNC")
            first, _, rest = command.partition(" ")
            if first.startswith("script:"):
                command = f"EVALSHA {loaded[first[7:]]} {rest}"
            server.client.call(*command.split(" "))
            took[name] = server.client.call("MEMORY", "USAGE", "key:0000000001")
    return took
