"""Writes what was measured: docs/benchmarks.md and its pictures."""

import os
import platform
import subprocess
from datetime import date

from chart import bars
from instructions import ratio, typical
from works import FULL, WORKS

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAMES = {"plain": "plain command", "ours": "sluice", "lua": "Lua script", "cell": "redis-cell"}


def rows(head, body):
    """A table; all columns but the first are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in body])


def number(value, digits=0):
    return "" if value is None else f"{value:,.{digits}f}"


def machine():
    """The processor, as it calls itself, and how many cores there are."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo") as cpu:
            model = next((line.split(":", 1)[1].strip() for line in cpu if line.startswith("model name")), model)
    except OSError:
        pass
    return f"{model}, {os.cpu_count()} cores, Linux on {platform.machine()}"


def first_line(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()[0].strip()
    except (OSError, IndexError):
        return "unknown"


def plain_name(work):
    return " + ".join(f"`{command.split(' ')[0]}`" for command in work.plain.commands)


def instructions_table(works, ways, took):
    body = []
    for work in works:
        has = lambda name: name in took[work.name]
        row = [work.name, plain_name(work)]
        row += [number(typical(took, work, name)) if has(name) else "" for name in ways]
        row += [f"{ratio(took, work, 'ours', 'plain'):.2f} ×"]
        row += [f"{ratio(took, work, name, 'ours'):.1f} ×" if has(name) else "" for name in ways[2:]]
        body.append(row)
    head = ["work", "beside", *(NAMES[name] for name in ways), "sluice / plain"]
    return rows(head + [f"{NAMES[name]} / sluice" for name in ways[2:]], body)


def bars_table(measured):
    """The bars the project has set itself, beside what this run reached."""
    took, aof = measured["instructions"], measured["with_aof"]
    body = []
    for work in WORKS:
        if work.most:
            reached = ratio(took, work, "ours", "plain"), ratio(took, work, "lua", "ours")
            held = reached[0] <= work.most and reached[1] >= work.least
            body.append([work.name, f"{work.most:.2f}", f"{reached[0]:.2f}", f"{work.least:.2f}", f"{reached[1]:.2f}", yes(held)])
    for work in WORKS:
        if work.with_aof:
            reached = ratio(aof, work, "ours", "plain")
            body.append([f"{work.name}, with AOF", f"{work.with_aof:.2f}", f"{reached:.2f}", "", "", yes(reached <= work.with_aof)])
    return rows(["work", "at most × plain", "this run", "at least × fewer than Lua", "this run", "held"], body)


def yes(held):
    return "yes" if held else "**no**"


def speed_table(works, ways, took):
    body = []
    for work in works:
        cells = took[work.name]
        row = [work.name]
        row += [number(cells[name]["us"], 2) if name in cells else "" for name in ways]
        for kind in ("single", "pipelined"):
            row += [number(cells[name][kind] / 1000) if name in cells else "" for name in ways]
        body.append(row)
    of = lambda what: [f"{what}: {NAMES[name]}" for name in ways]
    return rows(["work", *of("µs a call"), *of("thousand calls a second"), *of("pipelined")], body)


def stream_table(ways, took):
    body = []
    for name, cells in took.items():
        row = [name]
        for place in (0, 1):
            row += [number(cells[way][place]) if way in cells else "" for way in ways]
        body.append(row)
    of = lambda what: [f"{what}: {NAMES[name]}" for name in ways]
    return rows(["work", *of("AOF"), *of("replication")], body)


def write(measured):
    """The page and its pictures."""
    ways, took = measured["ways"], measured["instructions"]
    pictures(measured)
    hits, growing = measured["full_windows"]
    sizes = list(next(iter(measured["many_keys"].values())))
    text = f"""# Benchmarks

What a call costs beside the plain command that is nearest to it, and beside the Lua scripts that do the same today
([bench/lua](../bench/lua)). `make bench` measures all of this and writes this page: one server in one run answers all ways of a piece of
work, so that what is compared is of one moment. Compare columns, not pages.

![Instructions a call takes: plain command, sluice, Lua script](img/cost.svg)

| measured | |
|---|---|
| on | {date.today().isoformat()} |
| machine | {machine()} |
| server | {measured["server"]} |
| module | sluice {measured["version"]}, release build by {first_line("rustc", "--version")} |
| counted by | {first_line("valgrind", "--version")} |

## Instructions a call

Counted by callgrind inside the server's `processCommand`: parsing of the protocol and the network are left out, as they are the same for
all; the median of {measured["servers"]} servers, {measured["count"]:,} calls on each. Unlike time, this is repeatable to a few percent on any machine, busy
or not. A held lock, a counter and a limit are one of a hundred keys; a lock that is taken or released is a new key each time.

{instructions_table(WORKS, ways, took)}

"bucket, allowed" is a bucket much used, whose key may keep its expiry; "nearly full" is one whose expiry moves at each hit. Some scripts write
where they refuse; ours does not. Leases that are written in one millisecond and end together share some work, as they did here; one alone takes
some 400 instructions more ([bench/baseline.toml](../bench/baseline.toml) has those).

Sliding windows whose log is full, of 100 to 100,000 hits:

{instructions_table(FULL, ways, took)}

With `--appendonly yes`:

{instructions_table([work for work in WORKS if work.with_aof], ["plain", "ours", "lua"], measured["with_aof"])}

The bars we have set ourselves:

{bars_table(measured)}

## Time

µs a call are the server's own (`INFO commandstats`). Calls a second are those of the server's one thread: calls divided by the processor time it
took, with 50 connections of one call at a time each, and with 4 connections of {measured["pipeline"]} calls at a time. The best of {measured["tries"]} tries each.

{speed_table(WORKS + FULL, ways, measured["speed"])}

Many keys, pipelined, in an order that no cache foresees; thousand calls a second. What is lost with a million keys are the processor's
cache misses in the server's own tables, which `GET` has as well:

{rows(["command", *(f"{size:,} key{'s' * (size > 1)}" for size in sizes), f"{sizes[-1]:,} to {sizes[-2]:,}"],
      [[name, *(number(cells[size]["rate"] / 1000) for size in sizes), f"{cells[sizes[-1]]['rate'] / cells[sizes[-2]]['rate']:.2f}"]
       for name, cells in measured["many_keys"].items()])}

## Memory

![Bytes a hit of an exact sliding window: sluice and sorted set](img/memory.svg)

By `MEMORY USAGE`, all in, bytes a key:

{rows(["key", "bytes"], [[name, number(size)] for name, size in measured["keys"].items()])}

A sliding window at its limit of 1,000, each hit in a millisecond of its own; bytes a hit, here and on a replica:

{rows(["window", "bytes a hit", "on a replica"],
      [[f"RL.SLIDING, {name}" if name != "script" else "the script's sorted set", number(here, 1), number(there, 1)]
       for name, (here, there) in hits.items()])}

## Bytes in the append-only file and the replication stream

A call, with a key of 14 bytes. While a sliding window grows to 1,000 hits, its log is written anew whenever it has grown by a quarter, and a hit
takes {growing[0]:.0f} bytes all in.

{stream_table(ways, measured["streams"])}

## Again

```sh
make bench         # all of this, in some minutes; SLUICE_BENCH_CELL=path/to/libredis_cell.so adds CL.THROTTLE
make bench-core    # the decisions alone, without a server, by criterion
make bench-check   # instructions a call against bench/baseline.toml; fails above +5 %, and above +15 % for others while somebody waits
```

They take the server that `make test` takes (`SLUICE_SERVER=path` for another), and valgrind, which `make` gets where it can. Functions are
told apart by the server's exported symbols, which Debian's packages have.
"""
    with open(os.path.join(ROOT, "docs/benchmarks.md"), "w") as page:
        page.write(text)


SHOWN = [
    ("acquire", "acquire, free"),
    ("acquire, held", "acquire, held"),
    ("release", "release"),
    ("fixed window", "fixed, allowed"),
    ("sliding window", "sliding, allowed"),
    ("token bucket", "bucket, allowed"),
    ("bucket, refused", "bucket, refused"),
]


def pictures(measured):
    folder = os.path.join(ROOT, "docs/img")
    os.makedirs(folder, exist_ok=True)
    took = measured["instructions"]
    by_name = {work.name: work for work in WORKS}
    groups = []
    for label, name in SHOWN:
        work = by_name[name]
        groups.append((label, {way: typical(took, work, way) for way in ("plain", "ours", "lua") if way in took[name]}))
    series = [("plain", "plain command (SET, DEL, INCR)"), ("ours", "sluice"), ("lua", "Lua script")]
    with open(f"{folder}/cost.svg", "w") as file:
        file.write(bars("Instructions the server spends on a call", series, groups))

    hits, _ = measured["full_windows"]
    groups = [(f"sluice, {window}", {"ours": hits[window][0]}) for window in ("1500ms", "1h", "30d")]
    groups.append(("sorted set", {"lua": hits["script"][0]}))
    series = [("ours", "sluice"), ("lua", "Lua script's sorted set")]
    with open(f"{folder}/memory.svg", "w") as file:
        file.write(bars("Bytes a hit of an exact sliding window of 1,000", series, groups, lambda value: f"{value:.1f}"))
