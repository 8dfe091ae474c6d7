"""A lock on a Redis or Valkey server with sluice: a guard with a watchdog. Needs redis-py; copy it as it is.

    with Lock(client, "order:42", ttl="30s", wait="5s") as lock:
        ...                        # the watchdog renews the lease while this runs
        lock.check()               # raises LockLost if the lock may be somebody else's by now
        save(order, lock.fence)    # and what is written to refuses a fence smaller than it has seen

It raises NotAcquired rather than go on without the lock. `wait` is spent in a queue on the server, first come, first
served. Give the client a `socket_timeout` longer than `wait`, or it gives up earlier; without one it may hang.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType

import redis

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class NotAcquired(Exception):
    """Somebody else has the lock."""


class LockLost(Exception):
    """The lease is over, or can no longer be proved. Do not write any more in its name."""


def seconds(duration: str) -> float:
    """A duration as sluice writes it, `250ms` or `30s`. A number without a unit is refused."""
    match = re.fullmatch(r"([0-9]+)(ms|s|m|h|d)", duration)
    if not match:
        raise ValueError("a duration is a whole number and a unit: ms, s, m, h, d")
    return int(match[1]) * UNITS[match[2]]


class Lock:
    def __init__(
        self,
        client: redis.Redis,
        key: str,
        *,
        ttl: str,
        wait: str | None = None,
        max_hold: str | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """`max_hold`: how long the watchdog renews at most. `on_lost` is called from the watchdog's thread."""
        self.client, self.key, self.ttl, self.wait, self.on_lost = client, key, ttl, wait, on_lost
        self._ttl = seconds(ttl)
        self._max_hold = seconds(max_hold) if max_hold else float("inf")
        self.token = uuid.uuid4().hex
        self.fence = 0
        self.lost = threading.Event()
        self._done = threading.Event()
        self._until = 0.0

    def __enter__(self) -> Lock:
        if self.fence:
            raise RuntimeError("a Lock is for one `with`: its token must be nobody else's, and no earlier guard's")
        block = ("BLOCK", self.wait) if self.wait else ()
        try:
            sent = time.monotonic()
            self.fence = int(self.client.execute_command("LOCK.ACQUIRE", self.key, self.token, self.ttl, *block))
            if not self.fence:
                raise NotAcquired(f"{self.key} is held by somebody else")
            self._until = sent + self._ttl
            # After a wait nobody here knows how much of the lease is left; a renewal tells.
            if time.monotonic() - sent > self._ttl / 3 and not self._renew():
                raise LockLost(f"{self.key} was lost as soon as it was granted")
        except NotAcquired:
            raise
        except BaseException:
            try:  # the grant may have been made, and only its reply lost
                self.client.execute_command("LOCK.RELEASE", self.key, self.token)
            except redis.RedisError:
                pass
            raise
        for job in (self._keep, self._mind):
            threading.Thread(target=job, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held = self.held
        self._done.set()
        try:
            released = bool(self.client.execute_command("LOCK.RELEASE", self.key, self.token))
        except redis.RedisError:
            released = held  # the lease ends by itself
        # An exception of the work's own is the one to be seen.
        if kind is None and not (held and released):
            raise LockLost(f"{self.key} was lost before the work was done")

    @property
    def held(self) -> bool:
        """Is the lock certainly still ours, by this process's own clock?"""
        return not self.lost.is_set() and time.monotonic() < self._until

    def check(self) -> None:
        """Before each step that cannot be undone."""
        if not self.held:
            raise LockLost(f"{self.key} can no longer be proved to be ours")

    def _renew(self) -> bool:
        sent = time.monotonic()
        if not self.client.execute_command("LOCK.RENEW", self.key, self.token, self.ttl):
            return False
        self._until = sent + self._ttl  # the lease began after the call was sent, so this errs on the safe side
        return True

    def _keep(self) -> None:
        """Renews, from a thread of its own: a call to a server that does not answer may take long."""
        stop_at = time.monotonic() + self._max_hold
        while not self._done.wait(self._ttl / 3) and time.monotonic() < min(self._until, stop_at):
            if self.lost.is_set():  # an answer that came too late for that has proved it again: nobody uses it any more
                return
            try:
                if not self._renew():
                    self._until = 0.0
            except redis.RedisError:
                pass  # again, for as long as the lease can be proved

    def _mind(self) -> None:
        """Tells when the lease is over or can no longer be proved."""
        while (left := self._until - time.monotonic()) > 0:
            if self._done.wait(min(left, self._ttl / 10)):
                return
        self.lost.set()
        if self.on_lost:
            self.on_lost()
