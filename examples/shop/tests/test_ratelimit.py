from __future__ import annotations

import asyncio
import time

import pytest
import redis
import redis.asyncio
from conftest import in_time

from ratelimit import Bucket, Decision, Fixed, Sliding, acheck, check, come_back_after


def use_up(client: redis.Redis, key: str, limit: Bucket | Fixed | Sliding) -> Decision:
    """Asks until it is refused; that answer."""
    for _ in range(1000):
        decision = check(client, key, limit)
        if not decision.allowed:
            return decision
    raise AssertionError("never refused")


def admitted(client: redis.Redis, key: str, limit: Bucket | Fixed | Sliding, asks: int) -> int:
    return sum(check(client, key, limit).allowed for _ in range(asks))


def test_a_burst_passes_and_what_comes_after_is_told_when(client: redis.Redis, key: str) -> None:
    bucket = Bucket(10, 1, "1h")
    assert admitted(client, key, bucket, 15) == 10
    decision = check(client, key, bucket)
    assert (decision.allowed, decision.limit, decision.remaining) == (False, 10, 0)
    assert 3_590_000 < decision.retry_after_ms <= 3_600_000


def test_a_bucket_refills_evenly_and_not_above_its_capacity(client: redis.Redis, key: str) -> None:
    bucket = Bucket(5, 10, "1s")
    refused = use_up(client, key, bucket)
    assert 0 < refused.retry_after_ms <= 100
    time.sleep(refused.retry_after_ms / 1000)
    assert check(client, key, bucket).allowed
    use_up(client, key, bucket)
    time.sleep(1.2)  # enough for 12, and it holds 5
    assert check(client, key, bucket, cost=0).remaining == 5


def test_a_sliding_window_lets_its_limit_through_in_any_window(client: redis.Redis, key: str) -> None:
    def attempt(seconds: float) -> tuple[int, int] | None:
        window, name = Sliding(3, f"{seconds:.0f}s"), f"{key}:{seconds}"
        began = time.monotonic()
        assert check(client, name, window).allowed
        time.sleep(seconds / 2)
        middle = time.monotonic()
        first = admitted(client, name, window, 10)
        refused = check(client, name, window)
        if time.monotonic() - began >= seconds:
            return None
        # The first hit leaves, and only that one: at the edge of a fixed window all three would be back.
        time.sleep(refused.retry_after_ms / 1000)
        second = admitted(client, name, window, 10)
        assert 0 < refused.retry_after_ms <= seconds * 500
        return (first, second) if time.monotonic() - middle < seconds else None

    assert in_time(3, attempt) == (2, 1)


def test_a_sliding_window_is_as_new_when_its_newest_hit_has_left(client: redis.Redis, key: str) -> None:
    window = Sliding(3, "300ms")
    refused = use_up(client, key, window)
    time.sleep(refused.reset_after_ms / 1000)
    assert check(client, key, window, cost=0) == Decision(True, 3, 3, 0, 0)


def test_a_fixed_window_begins_with_its_first_hit_and_is_back_whole_at_its_end(client: redis.Redis, key: str) -> None:
    window = Fixed(3, "500ms")
    refused = use_up(client, key, window)
    assert refused.retry_after_ms == refused.reset_after_ms <= 500
    time.sleep(refused.retry_after_ms / 1000)
    assert check(client, key, window, cost=3).allowed


def test_a_look_takes_nothing_and_del_resets(client: redis.Redis, key: str) -> None:
    window = Sliding(1, "1h")
    assert check(client, key, window, peek=True).allowed
    assert check(client, key, window).allowed
    assert not check(client, key, window, peek=True).allowed
    client.delete(key)
    assert check(client, key, window).allowed


def test_more_than_the_limit_never_passes_and_no_retry_is_promised(client: redis.Redis, key: str) -> None:
    decision = check(client, key, Bucket(3, 1, "1s"), cost=4)
    assert (decision.allowed, decision.retry_after_ms) == (False, -1)
    assert "Retry-After" not in decision.headers("api")


def test_headers_round_up(client: redis.Redis, key: str) -> None:
    refused = Decision(False, 100, 0, 50, 5001)
    assert refused.headers("sku") == {"RateLimit": '"sku";r=0;t=6', "Retry-After": "1"}
    assert "Retry-After" not in Decision(True, 100, 99, 0, 50).headers("sku")


def test_the_asynchronous_call_answers_the_same(port: int, key: str) -> None:
    async def ask() -> list[bool]:
        async with redis.asyncio.Redis(port=port) as client:
            return [(await acheck(client, key, Sliding(2, "1h"))).allowed for _ in range(3)]

    assert asyncio.run(ask()) == [True, True, False]


def test_nobody_comes_back_before_the_time_and_not_all_at_once() -> None:
    first = [come_back_after(1.0, 0) for _ in range(200)]
    later = [come_back_after(1.0, 2) for _ in range(200)]
    assert min(first) >= 1.0 and max(first) <= 2.0 and max(first) - min(first) > 0.5
    assert max(first) < max(later) <= 5.0
    assert come_back_after(1.0, 10**6) <= 9.0


def test_a_limit_that_cannot_be_is_an_error_and_not_a_permission(client: redis.Redis, key: str) -> None:
    with pytest.raises(redis.ResponseError, match="invalid window"):
        check(client, key, Sliding(3, "1.5s"))
