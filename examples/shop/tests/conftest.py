"""The tests want a server with sluice: SHOP_REDIS_PORT. `cargo test --test shop` starts one and runs them."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import pytest
import redis


@pytest.fixture(scope="session")
def port() -> int:
    if "SHOP_REDIS_PORT" not in os.environ:
        pytest.exit("set SHOP_REDIS_PORT to the port of a server with sluice", returncode=2)
    return int(os.environ["SHOP_REDIS_PORT"])


@pytest.fixture
def client(port: int) -> Iterator[redis.Redis]:
    with redis.Redis(port=port, decode_responses=True) as client:
        yield client


@pytest.fixture
def key() -> str:
    """A name of the test's own."""
    return f"test:{uuid.uuid4().hex}"


@pytest.fixture
def stopped(client: redis.Redis) -> Callable[[], AbstractContextManager[None]]:
    """`with stopped():` the server stands still, as in a long pause. Only for one that is there for it."""
    if os.environ.get("SHOP_REDIS_MAY_STOP") != "1":
        pytest.skip("SHOP_REDIS_MAY_STOP is not 1")
    pid = client.info("server")["process_id"]

    @contextmanager
    def stop() -> Iterator[None]:
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    return stop


T = TypeVar("T")


def in_time(least: float, attempt: Callable[[float], T | None]) -> T:
    """What has to be done before a time is over that runs all along, though the machine may stand still for longer than that: where
    it was not in time, it is tried once more with four times as much. `attempt` is given its time in seconds, and says by `None` that
    it was over too soon to tell."""
    for turn in range(4):
        if (got := attempt(least * 4**turn)) is not None:
            return got
    raise AssertionError("too late each time")


def wait_until(is_so: Callable[[], bool], what: str, within: float = 20.0) -> float:
    """How long it took, in seconds."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() < began + within, f"not within {within} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - began
