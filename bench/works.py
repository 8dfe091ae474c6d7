"""What is measured: each piece of work in our way, as a Lua script, as the nearest plain command, and as redis-cell does it.

In a command, {i} counts up without end and {hot} goes round a hundred keys; a key is 14 bytes long. `script:name` is a script
of bench/lua, called by EVALSHA.
"""

import os
from dataclasses import dataclass, field

HOT = 100
TOKEN = "0123456789abcdef"
LUA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lua")


@dataclass
class Way:
    """How one contender does a piece of work: commands that are measured, and what has to be there before.

    `before` are commands that are run once for each key; `seed` makes them from a number of hits and the time instead.
    """

    commands: list
    before: list = field(default_factory=list)
    seed: object = None
    keys: int = HOT

    def rounds(self, count, loaded, first=0):
        """So many rounds of the commands, as words."""
        numbers = range(first, first + count)
        return [words(each, i, self.keys, loaded) for i in numbers for each in self.commands]

    def preparation(self, count, loaded, now_ms):
        """The commands to run before so many rounds."""
        if self.seed:
            return [each for key in range(self.keys) for each in self.seed(f"rate:{key:09}", now_ms)]
        once_a_key = not any("{i" in each for each in self.before)
        numbers = range(self.keys if once_a_key else count)
        return [words(each, i, self.keys, loaded) for i in numbers for each in self.before]


@dataclass
class Work:
    name: str
    plain: Way
    ours: Way
    lua: Way = None
    cell: Way = None
    # The bars: at most so many times the plain command, at least so many times fewer than the script.
    most: float = None
    least: float = None
    with_aof: float = None
    group: str = "locks"


def way(command, before=None):
    """Both are commands joined by ` ; `."""
    parts = lambda text: [part.strip() for part in text.split(" ; ")] if text else []
    return Way(parts(command), parts(before))


ONE = "lock:{i:09}"
HELD = "lock:{hot:09}"
LIMIT = "rate:{hot:09}"
TAKE = f"script:acquire 1 {ONE} {TOKEN} 30000"
OURS = f"LOCK.ACQUIRE {ONE} {TOKEN} 30s"
SET = f"SET {ONE} {TOKEN} NX PX 30000"
INCR = way(f"INCR {LIMIT}")

WORKS = [
    Work("acquire, free", way(SET), way(OURS), way(TAKE), most=1.30, least=2.7),
    Work(
        "acquire, held",
        way(f"SET {HELD} other NX PX 30000", f"SET {HELD} {TOKEN} PX 300000"),
        way(f"LOCK.ACQUIRE {HELD} other 30s", f"LOCK.ACQUIRE {HELD} {TOKEN} 300s"),
        way(f"script:acquire 1 {HELD} other 30000", f"SET {HELD} {TOKEN} PX 300000"),
        most=1.12,
        least=5.4,
    ),
    Work(
        "release",
        way(f"DEL {ONE}", SET),
        way(f"LOCK.RELEASE {ONE} {TOKEN}", OURS),
        way(f"script:release 1 {ONE} {TOKEN}", SET),
        most=2.10,
        least=2.9,
    ),
    Work(
        "release of a lock that SET made",
        way(f"DEL {ONE}", SET),
        way(f"LOCK.RELEASE {ONE} {TOKEN}", SET),
        way(f"script:release 1 {ONE} {TOKEN}", SET),
        most=2.35,
        least=2.7,
    ),
    Work(
        "release by another token",
        way(f"DEL {ONE}"),
        way(f"LOCK.RELEASE {HELD} other", f"LOCK.ACQUIRE {HELD} {TOKEN} 300s"),
        way(f"script:release 1 {HELD} other", f"SET {HELD} {TOKEN} PX 300000"),
    ),
    Work(
        "renew",
        way(f"PEXPIRE {HELD} 60000", f"SET {HELD} {TOKEN} PX 300000"),
        way(f"LOCK.RENEW {HELD} {TOKEN} 60s", f"LOCK.ACQUIRE {HELD} {TOKEN} 300s"),
        way(f"script:renew 1 {HELD} {TOKEN} 60000", f"SET {HELD} {TOKEN} PX 300000"),
        most=1.55,
        least=3.3,
    ),
    Work(
        "acquire and release",
        way(f"{SET} ; DEL {ONE}"),
        way(f"{OURS} ; LOCK.RELEASE {ONE} {TOKEN}"),
        way(f"{TAKE} ; script:release 1 {ONE} {TOKEN}"),
    ),
    Work(
        "fixed, allowed",
        INCR,
        way(f"RL.FIXED {LIMIT} 1000 1h"),
        way(f"script:fixed 1 {LIMIT} 1000 3600000 1"),
        most=3.2,
        least=2.4,
        with_aof=2.05,
        group="limits",
    ),
    Work(
        "fixed, refused",
        INCR,
        way(f"RL.FIXED {LIMIT} 1 1h", f"RL.FIXED {LIMIT} 1 1h"),
        way(f"script:fixed 1 {LIMIT} 1 3600000 1", f"script:fixed 1 {LIMIT} 1 3600000 1"),
        most=2.05,
        least=3.6,
        group="limits",
    ),
    Work(
        "bucket, allowed",
        INCR,
        way(f"RL.BUCKET {LIMIT} 1000 1 1s", f"RL.BUCKET {LIMIT} 1000 1 1s COST 400"),
        way(f"script:bucket 1 {LIMIT} 1000 1 1000 1", f"script:bucket 1 {LIMIT} 1000 1 1000 400"),
        way(f"CL.THROTTLE {LIMIT} 999 1 1", f"CL.THROTTLE {LIMIT} 999 1 1 400"),
        most=3.2,
        least=9,
        with_aof=2.65,
        group="limits",
    ),
    Work(
        "bucket, allowed, nearly full",
        INCR,
        way(f"RL.BUCKET {LIMIT} 1000 1 1s"),
        way(f"script:bucket 1 {LIMIT} 1000 1 1000 1"),
        way(f"CL.THROTTLE {LIMIT} 999 1 1"),
        group="limits",
    ),
    Work(
        "bucket, refused",
        INCR,
        way(f"RL.BUCKET {LIMIT} 10 1 1h", f"RL.BUCKET {LIMIT} 10 1 1h COST 10"),
        way(f"script:bucket 1 {LIMIT} 10 1 3600000 1", f"script:bucket 1 {LIMIT} 10 1 3600000 10"),
        way(f"CL.THROTTLE {LIMIT} 9 1 3600", f"CL.THROTTLE {LIMIT} 9 1 3600 10"),
        most=1.88,
        least=15,
        group="limits",
    ),
    Work(
        "sliding, allowed",
        INCR,
        way(f"RL.SLIDING {LIMIT} 1000 1h"),
        way(f"script:sliding 1 {LIMIT} 1000 3600000 1"),
        most=3.65,
        least=7.9,
        with_aof=2.6,
        group="limits",
    ),
    Work(
        "sliding, refused",
        INCR,
        way(f"RL.SLIDING {LIMIT} 10 1h", f"RL.SLIDING {LIMIT} 10 1h COST 10"),
        way(f"script:sliding 1 {LIMIT} 10 3600000 1", f"script:sliding 1 {LIMIT} 10 3600000 10"),
        most=1.97,
        least=8.8,
        group="limits",
    ),
]


def full_log(limit, share):
    """Seeds of a full sliding window, ours and the script's: `limit` hits, the newest `share` of which still count.

    Made by hand (docs/storage.md has the bytes), since hits of different milliseconds take their time.
    """
    window = 3_600_000
    # None leaves while it is measured, and none is of the future.
    oldest, newest = window / share - 300_000, 10_000
    step = (oldest - newest) / limit

    def times(now_ms):
        return [int(now_ms - oldest + step * hit) for hit in range(limit)]

    def ours(key, now_ms):
        hits = times(now_ms)
        base = hits[0] - 2
        offset, total = 3, max(1, (limit.bit_length() + 7) // 8)
        value = bytes([0xF6, offset << 4 | total]) + base.to_bytes(6, "little", signed=True)
        for number, hit in enumerate([base + 1, *hits]):
            value += (hit - base).to_bytes(offset, "little") + number.to_bytes(total, "little")
        return [["SET", key, value, "PX", 2 * window]]

    def script(key, now_ms):
        members = [word for hit in times(now_ms) for word in (hit * 1000, f"{hit * 1000}:1")]
        return [["ZADD", key, *members[at : at + 2000]] for at in range(0, len(members), 2000)]

    keys = HOT if limit <= 1000 else 1
    return (
        Way([f"RL.SLIDING {LIMIT} {limit} 1h"], seed=ours, keys=keys),
        Way([f"script:sliding 1 {LIMIT} {limit} 3600000 1"], seed=script, keys=keys),
    )


FULL = [
    Work(f"sliding at {limit:,} full, {outcome}", INCR, *full_log(limit, share), group="full")
    for limit in (100, 1_000, 100_000)
    for outcome, share in (("allowed", 0.5), ("refused", 1))
]


def scripts(client):
    """Loads the scripts; their names with what EVALSHA takes."""
    loaded = {}
    for file in sorted(os.listdir(LUA)):
        if file.endswith(".lua"):
            with open(os.path.join(LUA, file), "rb") as text:
                loaded[file[:-4]] = client.call("SCRIPT", "LOAD", text.read()).decode()
    return loaded


def words(template, i, keys, loaded):
    """The words of a command, number `i` of a row."""
    line = template.format(i=i, hot=i % keys)
    first, _, rest = line.partition(" ")
    if first.startswith("script:"):
        line = f"EVALSHA {loaded[first[7:]]} {rest}"
    return line.split(" ")
