"""The crowd: buyers who come, are refused, and come back.

patient   waits Retry-After and a random time on top, which doubles with each try
hammerer  sends again at once, 20 times at most, then behaves
storming  sends again at once, until the sale is over
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from ratelimit import come_back_after

ANSWERS = {200: "paid", 402: "declined", 409: "last ones in hand", 410: "sold out", 503: "busy"}
FINAL = ("paid", "declined", "sold out")
SERVED = ("paid", "declined")
TIMEOUT = 3.0  # seconds for an answer


@dataclass
class Outcome:
    """What the crowd saw."""

    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    sold_out_after: float = 0.0
    buyers: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    by_second: dict[str, Counter[int]] = field(default_factory=dict)
    took: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    most_in_flight: int = 0

    def saw(self, what: str, took: float | None) -> None:
        now = time.monotonic() - self.began
        self.answers[what] += 1
        self.by_second.setdefault(what, Counter())[int(now)] += 1
        if took is not None:
            self.took[what in SERVED].append(took)
        if what == "sold out" and not self.sold_out_after:
            self.sold_out_after = now

    @property
    def peak(self) -> int:
        """Requests in the second that had most."""
        return max(sum(self.by_second.values(), Counter()).values(), default=0)

    def percentile(self, share: float, served: bool) -> float:
        """How long an answer took, in ms: to those who were served, or to those who were sent away."""
        took = sorted(self.took[served])
        return 1000 * took[min(len(took) - 1, int(share * len(took)))] if took else 0.0


class Wire:
    """HTTP to the workers over connections that are kept, and what a load balancer does: a request goes to the worker
    with the fewest under way, past those that cannot be reached or have been silent for a while."""

    def __init__(self, ports: list[int], at_once: int) -> None:
        self.ports = ports
        self.slots = asyncio.Semaphore(at_once)
        self.idle: dict[int, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {p: [] for p in ports}
        self.under_way = dict.fromkeys(ports, 0)
        self.heard = dict.fromkeys(ports, 0.0)
        self.down_until = dict.fromkeys(ports, 0.0)

    async def post(self, path: str) -> tuple[int, str, float]:
        """Status, text and Retry-After; raises OSError or a timeout if there was no answer."""
        return await asyncio.wait_for(self._send(path), TIMEOUT)

    def _choose(self) -> int | None:
        now = time.monotonic()
        up = [port for port in self.ports if self.down_until[port] <= now]
        lively = [port for port in up if not self.under_way[port] or self.heard[port] > now - 0.5]
        return min(lively or up, key=lambda port: (self.under_way[port], random.random()), default=None)

    async def _send(self, path: str) -> tuple[int, str, float]:
        while True:
            port = self._choose()
            if port is None:
                await asyncio.sleep(0.05)
                continue
            if not self.under_way[port]:
                self.heard[port] = time.monotonic()
            self.under_way[port] += 1
            try:
                answer = await self._post(port, path)
                self.heard[port] = time.monotonic()
                return answer
            except OSError as error:
                self.down_until[port] = time.monotonic() + 0.3
                self.drop(port)
                if not isinstance(error, ConnectionRefusedError):
                    raise  # it may have been received
            finally:
                self.under_way[port] -= 1

    async def _post(self, port: int, path: str) -> tuple[int, str, float]:
        if self.idle[port]:
            reader, writer = self.idle[port].pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(f"POST {path} HTTP/1.1\r\nHost: shop\r\nContent-Length: 0\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
            text = (await reader.readexactly(int(fields["Content-Length"]))).decode()
        except BaseException as error:
            writer.close()
            if isinstance(error, asyncio.IncompleteReadError):
                raise ConnectionResetError from error
            raise
        self.idle[port].append((reader, writer))
        return int(head[9:12]), text, float(fields.get("Retry-After", 0))

    def drop(self, port: int) -> None:
        for _, writer in self.idle[port]:
            writer.close()
        self.idle[port].clear()

    def close(self) -> None:
        for port in self.ports:
            self.drop(port)


@dataclass
class Crowd:
    buyers: int
    a_second: float
    storming: bool = False
    hammerers: float = 0.02
    impatient_clicks: float = 0.05
    at_once: int = 300
    longest: float = 300.0  # seconds, whatever happens

    async def run(self, ports: list[int], sku: str) -> Outcome:
        self.wire, self.outcome, self.path = Wire(ports, self.at_once), Outcome(), f"/buy/{sku}"
        self.deadline = time.monotonic() + self.longest
        self.in_flight = 0
        coming: set[asyncio.Task[None]] = set()
        for n in range(self.buyers):
            ahead = self.outcome.began + n / self.a_second - time.monotonic()
            # Enough of them at the door: the next one comes when one of those has gone in.
            await asyncio.sleep(ahead if ahead > 0.005 else 0)
            while self.wire.slots.locked() and time.monotonic() < self.deadline:
                await asyncio.sleep(0.005)
            task = asyncio.create_task(self.buyer(n))
            coming.add(task)
            task.add_done_callback(coming.discard)
        while coming:
            await asyncio.wait(coming)
        self.outcome.ended = time.monotonic()
        self.wire.close()
        return self.outcome

    async def buyer(self, n: int) -> None:
        buyer, order = f"buyer-{n}", f"order-{n}-{random.getrandbits(64):016x}"
        if not self.storming and random.random() < self.impatient_clicks:
            # Two clicks, one order.
            results = await asyncio.gather(self.shop(buyer, order), self.shop(buyer, order))
            result = min(results, key=lambda result: (*FINAL, "gave up").index(result))
        else:
            result = await self.shop(buyer, order, hammers=20 if random.random() < self.hammerers else 0)
        self.outcome.buyers[result] += 1

    async def shop(self, buyer: str, order: str, hammers: int = 0) -> str:
        tries = 0
        while time.monotonic() < self.deadline:
            began = time.monotonic()  # before the wait for a slot, which is part of what a crowd does to its buyers
            async with self.wire.slots:
                self.in_flight += 1
                self.outcome.most_in_flight = max(self.outcome.most_in_flight, self.in_flight)
                try:
                    status, text, retry_after = await self.wire.post(f"{self.path}?order={order}&buyer={buyer}")
                except (OSError, TimeoutError, asyncio.TimeoutError):
                    status, text, retry_after = 0, "", 0.0
                finally:
                    self.in_flight -= 1
            took = time.monotonic() - began if status else None
            what = f"refused: {text}" if status == 429 else ANSWERS.get(status, "no answer")
            self.outcome.saw(what, took)
            if what in FINAL:
                return what
            if self.storming or hammers > 0:
                hammers -= 1
                if not status:
                    await asyncio.sleep(random.uniform(0.0, 0.1))
            else:
                # Only who was refused for the crowd's sake has to stand back further each time.
                spread = 1.0 if status == 429 else 0.3
                await asyncio.sleep(come_back_after(retry_after, tries if status == 429 else 0, spread=spread))
                tries += status == 429
        return "gave up"
