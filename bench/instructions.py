"""Instructions a call takes inside processCommand: repeatable where microseconds are not."""

import os
import shutil
import time
from statistics import median

from rig import Client, Server, ServerError, encode
from works import scripts

# A server's first calls are not like the others: it looks scripts up, and its tables are small.
WARM = 200


def apart(client, commands):
    """Runs encoded commands one by one, each in a millisecond of its own."""
    for command in commands:
        client.many([command])
        time.sleep(0.001)


def steady(client):
    """A server takes memory for replies away from a client that has not needed it for some seconds, and longer replies then take
    another way through it: that depends on the clock and not on the command."""
    try:
        client.call("DEBUG", "REPLYBUFFER", "RESIZING", "0")
    except ServerError:
        pass


def measure(server, loaded, way, count, run=Client.many):
    """Instructions of one round of a way, and the file that tells where they went."""
    client = server.client
    client.call("FLUSHALL", "SYNC")
    now_ms = int(client.call("TIME")[0]) * 1000
    client.many([encode(each) for each in way.preparation(count + WARM, loaded, now_ms)])
    client.many([encode(each) for each in way.rounds(WARM, loaded)])
    measured = [encode(each) for each in way.rounds(count, loaded, first=WARM)]
    total, file = server.count(lambda: run(client, measured))
    return total / count, file


def table(program, modules, works, ways, count=2000, servers=3, options=(), keep=None, run=Client.many, say=print):
    """For each work, for each way that it has, what each of several servers took.

    One server measures all ways of a work one after the other, so that their ratio does not depend on its hash seed.
    """
    took = {work.name: {name: [] for name in ways if getattr(work, name)} for work in works}
    for number in range(servers):
        with Server(program, modules, options, callgrind=True) as server:
            steady(server.client)
            loaded = scripts(server.client)
            for work in works:
                for name in took[work.name]:
                    instructions, file = measure(server, loaded, getattr(work, name), count, run)
                    took[work.name][name].append(instructions)
                    if keep:
                        os.makedirs(keep, exist_ok=True)
                        shutil.copy(file, f"{keep}/{work.name.replace(', ', '-').replace(' ', '_')}.{name}")
                    os.remove(file)
            say(f"instructions: server {number + 1} of {servers}")
    return took


def typical(took, work, name):
    """The median of the servers."""
    return median(took[work.name][name])


def ratio(took, work, over, under):
    """The median of the ratios that each server had."""
    pairs = zip(took[work.name][over], took[work.name][under])
    return median(a / b for a, b in pairs)
