"""Runs a flash sale and prints what happened: a server with sluice, workers, a crowd, and faults.

python sale.py --server redis-server --module target/release/libsluice.so
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from buyers import Crowd, Outcome
from picture import Panel, draw
from store import Store

HERE = Path(__file__).resolve().parent
SKU = "phone"


@dataclass
class Sale:
    """One sale, from an empty book to the last buyer."""

    redis_port: int
    crowd: Crowd
    phones: int = 100
    accept: float = 1.0
    kills: int = 0
    stops: int = 0
    fault_rate: float = 0.05
    workers: int = 3
    folder: Path = Path(tempfile.gettempdir())


@dataclass
class Result:
    sale: Sale
    outcome: Outcome
    books: dict[str, int]
    counts: dict[str, int]
    wrong: list[str]
    server: dict[str, int]

    @property
    def seconds(self) -> float:
        return self.outcome.ended - self.outcome.began

    @property
    def refused(self) -> int:
        return self.outcome.answers["refused: sku"] + self.outcome.answers["refused: buyer"]


class Workers:
    """The workers' processes; one that has died is started again."""

    def __init__(self, count: int, environment: dict[str, str]) -> None:
        self.environment = environment
        self.ports = free_ports(count)
        self.processes = {port: self._start(port) for port in self.ports}

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        environment = os.environ | self.environment | {"SHOP_PORT": str(port), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen([sys.executable, str(HERE / "shop.py")], env=environment)

    async def keep(self) -> None:
        while True:
            for port, process in self.processes.items():
                if process.poll() is not None:
                    self.processes[port] = self._start(port)
            await asyncio.sleep(0.05)

    async def ready(self) -> None:
        deadline = time.monotonic() + 30
        for port, process in self.processes.items():
            while not listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("a worker did not start")
                await asyncio.sleep(0.02)

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    # All of them are held until the last one is found, or two could be the same.
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def server_numbers(client: redis.Redis) -> dict[str, int]:
    calls = {name: stat["calls"] for name, stat in client.info("commandstats").items()}
    ours = {name: n for name, n in calls.items() if name.lower()[8:].startswith(("lock.", "sem.", "rl."))}
    numbers = {
        name: value
        for name, value in client.info("sluice").items()
        if name.startswith("sluice_") and isinstance(value, int)
    }
    return numbers | {"calls": sum(ours.values())}


async def run(sale: Sale) -> Result:
    client = redis.Redis(port=sale.redis_port)
    books = sale.folder / f"books-{uuid.uuid4().hex}.sqlite"
    store = Store.create(str(books), {SKU: sale.phones}, {"killed": sale.kills, "stopped": sale.stops})
    workers = Workers(
        sale.workers,
        {
            "SHOP_REDIS_PORT": str(sale.redis_port),
            "SHOP_BOOKS": str(books),
            "SHOP_PREFIX": f"sale:{books.stem[6:14]}",
            "SHOP_ACCEPT": str(sale.accept),
            "SHOP_FAULT_RATE": str(sale.fault_rate if sale.kills or sale.stops else 0),
        },
    )
    try:
        await workers.ready()
        before = server_numbers(client)
        keeper = asyncio.create_task(workers.keep())
        outcome = await sale.crowd.run(workers.ports, SKU)
        keeper.cancel()
        after = server_numbers(client)
    finally:
        workers.stop()
    server = {name: after[name] - before.get(name, 0) for name in after}
    result = Result(sale, outcome, store.summary(SKU), store.counts(), store.audit(), server)
    store.close()
    return result


def report(result: Result) -> list[str]:
    """What happened, in a screen."""
    outcome, books, counts, server = result.outcome, result.books, Counter(result.counts), result.server
    answers = outcome.answers
    come_again = answers["busy"] + answers["last ones in hand"]
    right = "the books are right" if not result.wrong else "THE BOOKS ARE WRONG: " + "; ".join(result.wrong)
    lines = [
        f"{sum(outcome.buyers.values()):,} buyers, {result.sale.phones} phones, {result.seconds:.0f} s;"
        f" at most {outcome.most_in_flight:,} requests in flight; sold out after {outcome.sold_out_after:.1f} s",
        "",
        f"  sold                         {books['sold']:>8,}   left {books['left']}, in hand {books['reserved']};"
        f" {books['declined']} declined by the bank went back on the shelf",
        f"  requests                     {sum(answers.values()):>8,}",
        f"    refused by buyer's window  {answers['refused: buyer']:>8,}   RL.SLIDING, 5 in any 10s",
        f"    refused by the SKU's bucket{answers['refused: sku']:>8,}   RL.BUCKET, 100 at once, 20 a second;"
        f" it let {server['sluice_rl_bucket_allowed']:,} through",
        f"    told that it is sold out   {answers['sold out']:>8,}",
        f"    told to come again         {come_again:>8,}   the order or the last phones are in other hands",
        f"    without an answer          {answers['no answer']:>8,}   the worker was killed or stopped",
        f"  workers killed, stopped      {counts['worker killed']:>4},{counts['worker stopped']:>3}"
        "   in mid-order, with the lock in hand",
        f"  locks granted                {server['sluice_lock_grants']:>8,}"
        f"   {server['sluice_lock_handovers']} to one who waited for a release,"
        f" {server['sluice_lock_expired_handovers']} for the end of a lost worker's lease",
        f"  duplicates stopped           {counts['order there already'] + counts['charge there already']:>8,}"
        f"   by the unique indexes: {counts['order there already']} orders, {counts['charge there already']} charges",
        f"  late writers stopped         {counts['older fence refused'] + counts['LockLost']:>8,}"
        f"   {counts['older fence refused']} by the fence, {counts['LockLost']} by their own watchdog",
        "  an answer took             "
        f"  p50 {outcome.percentile(0.5, False):.0f} ms, p99 {outcome.percentile(0.99, False):.0f} ms to be sent away;"
        f" p50 {outcome.percentile(0.5, True):.0f} ms, p99 {outcome.percentile(0.99, True):.0f} ms to be served",
        f"  {right}",
    ]
    return lines


def compare(patient: Result, storm: Result) -> list[str]:
    def row(name: str, one: float, other: float, unit: str = "") -> str:
        return f"  {name:<28}{one:>10,.0f}{unit:<3}{other:>10,.0f}{unit:<3}   x {other / one if one else 0:.1f}"

    p, s = patient.outcome, storm.outcome
    return [
        f"The same sale for {sum(p.buyers.values()):,} buyers twice: refused, they wait Retry-After and a random"
        " time, or come back at once",
        "",
        f"  {'':<28}{'patient':>10}   {'storm':>10}",
        row("requests", sum(p.answers.values()), sum(s.answers.values())),
        row("calls to the server", patient.server["calls"], storm.server["calls"]),
        row("requests a second, peak", p.peak, s.peak),
        row("refused", patient.refused, storm.refused),
        row("sent away: p50", p.percentile(0.5, False), s.percentile(0.5, False), " ms"),
        row("sent away: p99", p.percentile(0.99, False), s.percentile(0.99, False), " ms"),
        row("served: p50", p.percentile(0.5, True), s.percentile(0.5, True), " ms"),
        row("served: p99", p.percentile(0.99, True), s.percentile(0.99, True), " ms"),
        row("sold", patient.books["sold"], storm.books["sold"]),
    ]


def picture(sale: Result, patient: Result | None = None, storm: Result | None = None) -> str:
    def admitted(result: Result, title: str, seconds: int, most: float | None = None) -> Panel:
        seen = result.outcome.by_second
        series = {"admitted": seen.get("paid", Counter()) + seen.get("declined", Counter())}
        return Panel(title, series, seconds, 20, "20 a second", most)

    def refused(result: Result, title: str, seconds: int, most: float | None = None) -> Panel:
        names = ("refused: sku", "refused: buyer", "sold out")
        series = {name: result.outcome.by_second.get(name, Counter()) for name in names}
        return Panel(title, series, seconds, most=most)

    seconds = int(sale.seconds) + 1
    buyers = f"{sum(sale.outcome.buyers.values()):,} buyers"
    rows = [
        [admitted(sale, f"Admitted a second: {buyers}", seconds)],
        [refused(sale, "Sent away a second", seconds)],
    ]
    if patient and storm:
        seconds = int(max(patient.seconds, storm.seconds)) + 1
        buyers = f"{sum(patient.outcome.buyers.values()):,} buyers"
        most = max(
            sum(
                result.outcome.by_second.get(name, Counter())[s]
                for name in ("refused: sku", "refused: buyer", "sold out")
            )
            for result in (patient, storm)
            for s in range(seconds)
        )
        rows.append(
            [
                refused(patient, f"Sent away: {buyers} who wait", seconds, most),
                refused(storm, "Sent away: the same, who do not", seconds, most),
            ]
        )
    return draw(rows)


@contextmanager
def server(program: str, module: Path) -> Iterator[int]:
    """A server of its own, on a port that is free, in a folder that goes."""
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="sluice-shop-") as folder:
        process = subprocess.Popen(
            [
                program,
                "--port",
                str(port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--dir",
                folder,
                "--logfile",
                "server.log",
            ]
            + ["--loadmodule", str(module.resolve())]
        )
        try:
            deadline = time.monotonic() + 20
            while not listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit((Path(folder) / "server.log").read_text())
                time.sleep(0.02)
            yield port
        finally:
            process.terminate()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="redis-server", help="the server's program")
    parser.add_argument("--module", type=Path, required=True, help="libsluice.so")
    parser.add_argument("--buyers", type=int, default=100_000)
    parser.add_argument("--arrivals", type=float, default=1500, help="buyers a second")
    parser.add_argument("--at-once", type=int, default=300, help="requests in flight at most")
    parser.add_argument("--compare", type=int, default=1_000, help="buyers of the two smaller sales; 0 for none")
    parser.add_argument("--picture", type=Path, help="where to write the SVG")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    with server(options.server, options.module) as port, tempfile.TemporaryDirectory() as folder:
        crowd = Crowd(options.buyers, options.arrivals, at_once=options.at_once)
        sale = asyncio.run(run(Sale(port, crowd, accept=0.25, kills=6, stops=3, folder=Path(folder))))
        print("\n".join(report(sale)), flush=True)
        results = [sale]
        if options.compare:
            for storming in (False, True):
                crowd = Crowd(options.compare, 500, storming=storming, hammerers=0, at_once=options.at_once)
                results.append(asyncio.run(run(Sale(port, crowd, accept=0.35, folder=Path(folder)))))
            print("\n" + "\n".join(compare(*results[1:])), flush=True)
    if options.picture:
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        options.picture.write_text(picture(*results))
        print(f"\nthe picture: {options.picture}")
    return 1 if any(result.wrong for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
