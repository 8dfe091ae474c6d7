from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import redis
from conftest import in_time, wait_until
from redis.backoff import NoBackoff
from redis.retry import Retry

from lock import Lock, LockLost, NotAcquired, seconds


def test_one_at_a_time(port: int, key: str) -> None:
    inside, most, rounds = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, rounds
        with redis.Redis(port=port, socket_timeout=60) as client:
            for _ in range(10):
                with Lock(client, key, ttl="30s", wait="50s"):
                    inside += 1
                    most = max(most, inside)
                    time.sleep(0.001)
                    rounds += 1
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, rounds) == (1, 80)


def test_only_the_holder_can_release_or_renew(client: redis.Redis, key: str) -> None:
    with Lock(client, key, ttl="30s") as lock:
        assert client.execute_command("LOCK.RELEASE", key, "somebody else") == 0
        assert client.execute_command("LOCK.RENEW", key, "somebody else", "1s") == 0
        assert client.get(key) == lock.token


def test_the_guard_releases_when_the_work_raises(client: redis.Redis, key: str) -> None:
    with pytest.raises(ZeroDivisionError), Lock(client, key, ttl="30s"):
        _ = 1 / 0
    assert not client.exists(key)


def test_who_does_not_get_it_is_told_by_an_exception(client: redis.Redis, key: str) -> None:
    with Lock(client, key, ttl="30s"):
        with pytest.raises(NotAcquired), Lock(client, key, ttl="30s"):
            raise AssertionError("inside without the lock")
        began = time.monotonic()
        with pytest.raises(NotAcquired), Lock(client, key, ttl="30s", wait="200ms"):
            raise AssertionError("inside without the lock")
        assert time.monotonic() - began > 0.19


def test_who_waits_gets_it_at_the_release_with_a_larger_fence_and_a_whole_lease(
    client: redis.Redis, port: int, key: str
) -> None:
    fences: list[int] = []

    def wait() -> None:
        with redis.Redis(port=port) as other, Lock(other, key, ttl="6s", wait="60s") as lock:
            assert lock.held
            fences.append(lock.fence)

    with Lock(client, key, ttl="30s") as first:
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: client.execute_command("LOCK.INFO", key)["waiters"] == 1, "it waits")
        time.sleep(2.1)  # more than a third of the lease that is to come
    thread.join()
    assert fences and fences[0] > first.fence


def test_the_watchdog_keeps_it_for_a_job_of_five_leases(client: redis.Redis, key: str) -> None:
    def job(ttl: float) -> bool | None:
        last, longest = time.monotonic(), 0.0
        try:
            with Lock(client, key, ttl=f"{ttl:.0f}s") as lock:
                until = time.monotonic() + 5 * ttl
                while time.monotonic() < until:
                    time.sleep(0.02)
                    holder = client.get(key)
                    last, longest = time.monotonic(), max(longest, time.monotonic() - last)
                    assert holder == lock.token or longest > ttl / 4
                    lock.check()
        except LockLost:
            # Nobody could have kept it where the machine stood still for a good part of the lease.
            assert max(longest, time.monotonic() - last) > ttl / 4
            return None
        return True

    assert in_time(1, job)
    assert not client.exists(key)


def test_the_watchdog_ends_with_the_guard(client: redis.Redis, key: str) -> None:
    with Lock(client, key, ttl="3s"):
        pass
    client.set(key, "somebody else", px=60_000)
    time.sleep(1.5)  # in which it would have renewed
    assert client.get(key) == "somebody else" and client.pttl(key) > 5_000


def test_the_watchdog_ends_at_the_longest_hold(client: redis.Redis, key: str) -> None:
    began = time.monotonic()
    with pytest.raises(LockLost), Lock(client, key, ttl="900ms", max_hold="1s") as lock:
        wait_until(lock.lost.is_set, "told that it is lost")
        assert time.monotonic() - began >= 0.9
        with pytest.raises(LockLost):
            lock.check()


def test_a_lock_that_was_deleted_is_noticed_and_not_taken_again(client: redis.Redis, key: str) -> None:
    told = threading.Event()
    with pytest.raises(LockLost), Lock(client, key, ttl="900ms", on_lost=told.set) as lock:
        client.delete(key)
        wait_until(told.is_set, "told that it is lost")
        assert not lock.held and not client.exists(key)


def test_a_server_that_stands_still_is_noticed_before_the_lease_can_be_over(
    port: int, key: str, stopped: Callable[[], AbstractContextManager[None]]
) -> None:
    with redis.Redis(port=port, socket_timeout=30, retry=Retry(NoBackoff(), 0)) as client:
        with pytest.raises(LockLost), Lock(client, key, ttl="900ms") as lock:
            with stopped():
                # Long before the call that is under way gives up: that may take 30 s.
                assert wait_until(lock.lost.is_set, "told that it is lost") < 10
                assert not lock.held
            wait_until(lambda: not client.exists(key), "the lease ends on the server as well")
            assert not lock.held  # and it is never ours again


def test_a_lock_that_was_told_to_be_lost_is_not_renewed_any_more(client: redis.Redis, key: str) -> None:
    with pytest.raises(LockLost), Lock(client, key, ttl="5s") as lock:
        # As if a renewal had got through right after that: the server had stood still, and its own lease was not over.
        lock.lost.set()
        assert lock._until > time.monotonic()
        wait_until(lambda: not client.exists(key), "the lease ends on the server")


def test_an_exception_of_the_work_is_not_hidden_by_a_lost_lock(client: redis.Redis, key: str) -> None:
    with pytest.raises(ZeroDivisionError), Lock(client, key, ttl="30s"):
        client.delete(key)
        _ = 1 / 0


def test_it_is_the_same_lock_as_that_of_redis_py(client: redis.Redis, key: str) -> None:
    theirs = client.lock(key, timeout=30)
    with Lock(client, key, ttl="30s"):
        assert not theirs.acquire(blocking=False)
    assert theirs.acquire(blocking=False)
    with pytest.raises(NotAcquired), Lock(client, key, ttl="30s"):
        pass
    theirs.release()


def test_one_lock_is_for_one_with(client: redis.Redis, key: str) -> None:
    lock = Lock(client, key, ttl="30s")
    with lock:
        pass
    with pytest.raises(RuntimeError), lock:
        pass
    assert not client.exists(key)


def test_a_duration_has_a_unit() -> None:
    assert [seconds(text) for text in ("250ms", "30s", "2m", "1h", "1d")] == [0.25, 30, 120, 3600, 86400]
    for text in ("30", "", "s", "1.5s", "30 s", "30x", "+3s", "3_0s"):
        with pytest.raises(ValueError):
            seconds(text)


def test_the_lines_in_the_readme_run(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks, "none"
    for block in blocks:
        names = {"client": client, "save": lambda order, fence: None, "order": 42}
        exec(block, names)
