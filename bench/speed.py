"""What a server spends on a call in microseconds, and how many calls a second it answers.

Both depend on the machine and on what else runs there: compare the ways of one run with each other.
"""

import math
import re
import selectors
import socket
import time
from dataclasses import replace

from rig import Server, encode
from works import scripts

CONNECTIONS = 50
PIPELINE = 100
# A load ends after so many rounds or so many seconds, whichever is first.
ROUNDS = 20_000
SECONDS = 1.0
# Other programs on the machine only ever slow a try down.
TRIES = 3
# A limit or a lock that is asked for again and again is one of so many.
KEYS = 10_000


def lines_of(server, commands):
    """How many lines a reply to each of these has."""
    counts = []
    for words in commands:
        with socket.create_connection(("127.0.0.1", server.port)) as one:
            one.sendall(encode(words) + encode(["PING"]))
            got = b""
            while not got.endswith(b"+PONG\r\n"):
                got += one.recv(65536)
            counts.append(got.count(b"\n") - 1)
    return counts


def thread_seconds(client):
    """The processor time of the server's one thread."""
    cpu = client.info("cpu")
    return float(cpu["used_cpu_sys_main_thread"]) + float(cpu["used_cpu_user_main_thread"])


def load(server, rounds, lines, connections, pipeline):
    """Sends rounds (encoded) over so many connections, so many at a time on each.

    Gives rounds a second of the server's thread, and how many were made. A server whose clients are fast enough has no other
    limit than its thread, and unlike the clock, that thread's time is not taken up by other programs on the machine.
    """
    selector = selectors.DefaultSelector()
    sockets = []
    for _ in range(connections):
        one = socket.create_connection(("127.0.0.1", server.port))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets.append(one)
    batches = [b"".join(rounds[at : at + pipeline]) for at in range(0, len(rounds) - pipeline + 1, pipeline)]
    due = lines * pipeline
    left = {}
    sent = done = 0
    began, busy = time.perf_counter(), thread_seconds(server.client)
    for one in sockets:
        selector.register(one, selectors.EVENT_READ)
        if sent < len(batches):
            one.sendall(batches[sent])
            sent += 1
            left[one] = due
    while left:
        in_time = time.perf_counter() - began < SECONDS
        for ready, _ in selector.select():
            one = ready.fileobj
            left[one] -= one.recv(1 << 16).count(b"\n")
            if left[one] <= 0:
                done += 1
                if in_time and sent < len(batches):
                    one.sendall(batches[sent])
                    sent += 1
                    left[one] = due
                else:
                    del left[one]
    took = thread_seconds(server.client) - busy
    for one in sockets:
        one.close()
    selector.close()
    return done * pipeline / took, done * pipeline


def one_way(server, loaded, way, count):
    """Microseconds by the server's own measure, and rounds a second, pipelined and not; the best of some tries."""
    way = way if way.seed else replace(way, keys=KEYS)
    each = len(way.commands)
    commands = [encode(words) for words in way.rounds(2 * count, loaded)]
    rounds = [b"".join(commands[at : at + each]) for at in range(0, len(commands), each)]
    client = server.client
    best = {"us": math.inf, "pipelined": 0, "single": 0}
    for _ in range(TRIES):
        client.call("FLUSHALL", "SYNC")
        now_ms = int(client.call("TIME")[0]) * 1000
        client.many([encode(words) for words in way.preparation(2 * count, loaded, now_ms)])
        # Whatever the outcome, the replies of a way are all of one shape, which a call on a key of its own tells.
        lines = sum(lines_of(server, way.rounds(1, loaded, first=2 * count)))
        client.call("CONFIG", "RESETSTAT")
        pipelined, made = load(server, rounds[:count], lines, 4, PIPELINE)
        best["us"] = min(best["us"], microseconds(client, way) / made)
        single, _ = load(server, rounds[count:], lines, CONNECTIONS, 1)
        best = {"us": best["us"], "pipelined": max(best["pipelined"], pipelined), "single": max(best["single"], single)}
    return best


def microseconds(client, way):
    """What the server has spent on a way's commands since its statistics were reset."""
    stats = {name.lower(): fields for name, fields in client.info("commandstats").items()}
    names = {"evalsha" if each.startswith("script:") else each.split(" ")[0].lower() for each in way.commands}
    return sum(int(re.search(r"usec=(\d+)", stats[f"cmdstat_{name}"]).group(1)) for name in names)


def table(program, modules, works, ways, count=ROUNDS, say=print):
    """For each work and way: microseconds and rounds a second."""
    took = {}
    with Server(program, modules) as server:
        loaded = scripts(server.client)
        for work in works:
            took[work.name] = {
                name: one_way(server, loaded, getattr(work, name), count) for name in ways if getattr(work, name)
            }
            say(f"speed: {work.name}")
    return took


MANY_KEYS = [
    ("GET", "SET key:%010d 0123456789abcdef", "GET key:%010d"),
    ("LOCK.ACQUIRE, held", "LOCK.ACQUIRE key:%010d 0123456789abcdef 1h", "LOCK.ACQUIRE key:%010d other 1h"),
    ("RL.FIXED", "RL.FIXED key:%010d 1000 1h", "RL.FIXED key:%010d 1000 1h"),
    ("RL.BUCKET", "RL.BUCKET key:%010d 1000 1 1h", "RL.BUCKET key:%010d 1000 1 1h"),
    ("RL.SLIDING", "RL.SLIDING key:%010d 1000 1h", "RL.SLIDING key:%010d 1000 1h"),
]


def numbered(command):
    """A command whose key is a number of ten digits, encoded, for the number to be put in: a million take a second."""
    return encode(command.split(" ")).replace(b"$%d\r\nkey:%%010d" % len("key:%010d"), b"$14\r\nkey:%010d")


def many_keys(program, modules, counts=(1, 10_000, 1_000_000), say=print):
    """Pipelined calls a second with so many keys, and what a key takes in all with the most of them."""
    took = {}
    with Server(program, modules) as server:
        for name, fill, command in MANY_KEYS:
            took[name] = {}
            for keys in counts:
                server.client.call("FLUSHALL", "SYNC")
                before = int(server.client.info("memory")["used_memory"])
                one = numbered(fill)
                for at in range(0, keys, 10_000):
                    server.client.many([one % i for i in range(at, min(at + 10_000, keys))], batch=1000)
                bytes_a_key = (int(server.client.info("memory")["used_memory"]) - before) / keys
                # A prime step goes through the keys in an order that no cache foresees.
                one = numbered(command)
                rounds = [one % (number * 7_368_787 % keys) for number in range(5 * ROUNDS)]
                lines = lines_of(server, [(command % 0).split(" ")])[0]
                rate = max(load(server, rounds, lines, 4, PIPELINE)[0] for _ in range(TRIES))
                took[name][keys] = {"rate": rate, "bytes": bytes_a_key}
            say(f"speed: {name} with many keys")
    return took
