"""One worker of the shop: a web server with one page, POST /buy/{sku}?order=…&buyer=…

A request passes, from the outside in:

1. the books, read only: an order that is done gets the answer it got before, and a sold-out sale is over;
2. a sliding window per buyer: 5 requests in any 10 s, against those who hammer;
3. a token bucket per SKU: 100 at once, then 20 a second, against the crowd. An order under way has had its token;
4. a lock per order number, with a watchdog: one worker at a time works on an order;
5. the transactions of store.py, with the lock's fencing token.

Answers: 200 paid, 402 declined, 410 sold out, 429 refused, 409 and 503 come again.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import redis
import redis.asyncio
from aiohttp import web
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff

from lock import Lock, LockLost, NotAcquired
from ratelimit import Bucket, Decision, Sliding, acheck
from store import DONE, NothingLeft, Stale, Store

PER_BUYER = Sliding(5, "10s")
PER_SKU = Bucket(100, 20, "1s")
LEASE, WAIT = "1s", "2s"
FAULTS_APART = 1.5  # seconds
NOTHING_LEFT = "the last ones are being paid for"
NO_MODULE = "the server has no sluice; load it with: redis-server --loadmodule target/release/libsluice.so"


@dataclass
class Settings:
    """How a worker is started: all from the environment."""

    port: int = field(default_factory=lambda: int(os.environ["SHOP_PORT"]))
    redis_port: int = field(default_factory=lambda: int(os.environ["SHOP_REDIS_PORT"]))
    books: str = field(default_factory=lambda: os.environ["SHOP_BOOKS"])
    prefix: str = field(default_factory=lambda: os.environ.get("SHOP_PREFIX", "shop"))
    accept: float = field(default_factory=lambda: float(os.environ.get("SHOP_ACCEPT", "1")))
    fault_rate: float = field(default_factory=lambda: float(os.environ.get("SHOP_FAULT_RATE", "0")))


class Shop:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = Store(settings.books)
        self.over: set[str] = set()
        # The limits are not to be sent twice, so this client never sends again by itself.
        self.limits = redis.asyncio.Redis.from_pool(
            redis.asyncio.BlockingConnectionPool(
                port=settings.redis_port, max_connections=16, timeout=5, retry=AsyncRetry(NoBackoff(), 0)
            )
        )
        self.locks = redis.Redis(port=settings.redis_port, socket_timeout=5)
        self.threads = ThreadPoolExecutor(48)

    async def buy(self, request: web.Request) -> web.Response:
        sku, order, buyer = request.match_info["sku"], request.query["order"], request.query["buyer"]
        known = self.store.order(order)
        if known and known.buyer != buyer:
            return answer(403, "not your order")
        if known and known.state in DONE:
            return self.done(known.state)
        if not known and self.is_over(sku):
            return answer(410, "sold out")
        try:
            decision = await acheck(self.limits, f"{self.settings.prefix}:buyer:{buyer}", PER_BUYER)
            if not decision.allowed:
                return refused("buyer", decision)
            if not known:
                decision = await acheck(self.limits, f"{self.settings.prefix}:sku:{sku}", PER_SKU)
                if not decision.allowed:
                    return refused("sku", decision)
            work = asyncio.get_running_loop().run_in_executor(self.threads, self.place, order, sku, buyer)
            state = await work
            if state in DONE:
                return self.done(state)
            return answer(409 if state == NOTHING_LEFT else 503, state, 1)
        except redis.RedisError:
            return answer(503, "no answer from the limits or the locks", 1)  # closed, rather than without them

    def place(self, order: str, sku: str, buyer: str) -> str:
        """The state of the order, or why there is none yet."""
        try:
            return self.work(order, sku, buyer)
        except NothingLeft:
            return NOTHING_LEFT
        except (NotAcquired, LockLost, Stale) as error:
            self.store.count(type(error).__name__)
            return "this order is being worked on"

    def work(self, order: str, sku: str, buyer: str) -> str:
        with Lock(self.locks, f"{self.settings.prefix}:order:{order}", ttl=LEASE, wait=WAIT) as lock:
            self.fault()
            state = self.store.reserve(order, sku, buyer, lock.fence)
            self.fault()
            if state not in DONE:
                lock.check()
                time.sleep(random.uniform(0.02, 0.08))  # the bank thinks
                accepted = self.store.charge(order, self.settings.accept)
                self.fault()
                state = self.store.finish(order, accepted, lock.fence)
                self.fault()
        return state

    def fault(self) -> None:
        """For the show: now and then the whole worker is killed here, or stopped for much longer than the lease."""
        if random.random() >= self.settings.fault_rate:
            return
        kind = random.choice(["killed", "stopped"])
        if not self.store.take_fault(kind, apart=FAULTS_APART):
            return
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        with self.store.writing:  # not in the middle of another thread's transaction, which would stop the whole shop
            subprocess.Popen(["sh", "-c", f"sleep 5; kill -CONT {os.getpid()} 2>/dev/null"])
            os.kill(os.getpid(), signal.SIGSTOP)

    def is_over(self, sku: str) -> bool:
        if sku not in self.over and self.store.is_sold_out(sku):
            self.over.add(sku)  # paid for is paid for: it stays so
        return sku in self.over

    @staticmethod
    def done(state: str) -> web.Response:
        return answer(200 if state == "paid" else 402, state)


def answer(status: int, text: str, retry_after: int | None = None) -> web.Response:
    headers = {"Retry-After": str(retry_after)} if retry_after else None
    return web.Response(status=status, text=text, headers=headers)


def refused(layer: str, decision: Decision) -> web.Response:
    return web.Response(status=429, text=layer, headers=decision.headers(layer))


async def mind_parent(app: web.Application) -> AsyncIterator[None]:
    """A worker does not outlive the sale that started it, however that ended."""

    async def mind(parent: int) -> None:
        while os.getppid() == parent:
            await asyncio.sleep(1)
        os._exit(1)

    task = asyncio.create_task(mind(os.getppid()))
    yield
    task.cancel()


def main() -> None:
    settings = Settings()
    client = redis.Redis(port=settings.redis_port)
    try:
        client.execute_command("LOCK.INFO", "shop")
    except redis.ResponseError as error:
        raise SystemExit(NO_MODULE) from error
    sys.setswitchinterval(0.0005)  # those who are only sent away need not wait long for the threads at work
    app = web.Application()
    app.cleanup_ctx.append(mind_parent)
    app.router.add_post("/buy/{sku}", Shop(settings).buy)
    web.run_app(app, host="127.0.0.1", port=settings.port, access_log=None, print=None, backlog=2048)


if __name__ == "__main__":
    main()
