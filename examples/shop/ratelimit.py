"""Rate limits on a Redis or Valkey server with sluice. Needs redis-py; copy it as it is.

    per_user = Sliding(5, "10s")
    decision = check(client, "user:alice", per_user)           # or: await acheck(async_client, ...)
    if not decision.allowed:
        return 429, decision.headers("per-user")

A call that is sent twice counts twice. redis-py sends again by itself after a lost connection, so give these calls a
client that does not: `redis.Redis(..., retry=Retry(NoBackoff(), 0))`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis
import redis.asyncio


class Decision(NamedTuple):
    """What a limiter answers."""

    allowed: bool
    limit: int
    remaining: int
    retry_after_ms: int  # -1: never, the cost is above the limit
    reset_after_ms: int

    def headers(self, policy: str) -> dict[str, str]:
        """For an HTTP answer: whole seconds, rounded up so that nobody is told to come too early."""
        headers = {"RateLimit": f'"{policy}";r={self.remaining};t={-(-self.reset_after_ms // 1000)}'}
        if self.retry_after_ms > 0:
            headers["Retry-After"] = str(-(-self.retry_after_ms // 1000))
        return headers


@dataclass(frozen=True)
class Fixed:
    """`limit` in a window that begins with its first hit; twice as many around an edge."""

    limit: int
    window: str

    def call(self, key: str) -> tuple[Any, ...]:
        return "RL.FIXED", key, self.limit, self.window


@dataclass(frozen=True)
class Sliding:
    """`limit` in any window, exactly."""

    limit: int
    window: str

    def call(self, key: str) -> tuple[Any, ...]:
        return "RL.SLIDING", key, self.limit, self.window


@dataclass(frozen=True)
class Bucket:
    """`capacity` at once, `refill` a period on average."""

    capacity: int
    refill: int
    period: str

    def call(self, key: str) -> tuple[Any, ...]:
        return "RL.BUCKET", key, self.capacity, self.refill, self.period


Limit = Fixed | Sliding | Bucket


def check(client: redis.Redis, key: str, limit: Limit, *, cost: int = 1, peek: bool = False) -> Decision:
    return _decision(client.execute_command(*limit.call(key), "COST", cost, *(("PEEK",) if peek else ())))


async def acheck(client: redis.asyncio.Redis, key: str, limit: Limit, *, cost: int = 1) -> Decision:
    return _decision(await client.execute_command(*limit.call(key), "COST", cost))


def come_back_after(retry_after: float, tries: int, *, spread: float = 1.0, most: float = 8.0) -> float:
    """When a refused client should ask again, in seconds.

    A limiter tells every refused client the same moment. Whoever adds nothing comes together with all others, and all
    but one are refused again. So a random delay goes on top, from a range that doubles with each try.
    """
    return retry_after + random.uniform(0.0, min(most, spread * 2 ** min(tries, 16)))


def _decision(reply: Any) -> Decision:
    allowed, *numbers = reply
    return Decision(bool(allowed), *numbers)
