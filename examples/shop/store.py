"""The shop's books in SQLite. They are right by themselves, whatever happens to the locks:

- an order number is there once (unique index), and so is its charge;
- a write in the name of an older fence than the order has seen is refused;
- the stock cannot go below zero (a CHECK), and moves in the same transaction as the order.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE stock (
    sku TEXT PRIMARY KEY, total INTEGER NOT NULL,
    left INTEGER NOT NULL CHECK (left >= 0),
    sold INTEGER NOT NULL DEFAULT 0 CHECK (left + sold <= total)
);
CREATE TABLE orders (
    number TEXT NOT NULL, sku TEXT NOT NULL, buyer TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('reserved', 'paid', 'declined')),
    fence INTEGER NOT NULL
);
CREATE UNIQUE INDEX an_order_once ON orders (number);
CREATE TABLE charges (number TEXT NOT NULL, accepted INTEGER NOT NULL);
CREATE UNIQUE INDEX a_charge_once ON charges (number);
-- Every step, in the order it happened: for the audit, nothing reads it otherwise.
CREATE TABLE journal (number TEXT NOT NULL, step TEXT NOT NULL, change INTEGER NOT NULL, fence INTEGER NOT NULL);
CREATE TABLE counts (what TEXT PRIMARY KEY, n INTEGER NOT NULL);
CREATE TABLE faults (kind TEXT PRIMARY KEY, left INTEGER NOT NULL, last REAL NOT NULL);
"""

DONE = ("paid", "declined")


class Stale(Exception):
    """A later holder of the lock has been here: this one has to stop."""


class NothingLeft(Exception):
    """All that is not sold is in other buyers' hands for the moment."""


class Order(NamedTuple):
    buyer: str
    state: str


class Store:
    def __init__(self, path: str) -> None:
        self._path = path
        self._local = threading.local()
        self.writing = threading.Lock()  # SQLite has one writer; the threads of a process need not race for it

    @classmethod
    def create(cls, path: str, stock: dict[str, int], faults: dict[str, int] | None = None) -> Store:
        store = cls(path)
        store._db.executescript(SCHEMA)
        with store._transaction() as db:
            for sku, total in stock.items():
                db.execute("INSERT INTO stock (sku, total, left) VALUES (?, ?, ?)", (sku, total, total))
            for kind, left in (faults or {}).items():
                db.execute("INSERT INTO faults VALUES (?, ?, ?)", (kind, left, time.time()))
        return store

    @property
    def _db(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = sqlite3.connect(self._path, timeout=10, isolation_level=None)
            db.execute("PRAGMA synchronous = NORMAL")
        return db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = self._db
        with self.writing:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except Stale:
                db.execute("COMMIT")  # nothing was changed but the count of refusals
                raise
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()
        self._local = threading.local()

    def order(self, number: str) -> Order | None:
        row = self._db.execute("SELECT buyer, state FROM orders WHERE number = ?", (number,)).fetchone()
        return Order(*row) if row else None

    def is_sold_out(self, sku: str) -> bool:
        row = self._db.execute("SELECT sold >= total FROM stock WHERE sku = ?", (sku,)).fetchone()
        return bool(row and row[0])

    def reserve(self, number: str, sku: str, buyer: str, fence: int) -> str:
        """Puts one aside for this order, or takes over what an earlier holder left; the state of the order."""
        with self._transaction() as db:
            try:
                db.execute("INSERT INTO orders VALUES (?, ?, ?, 'reserved', ?)", (number, sku, buyer, fence))
            except sqlite3.IntegrityError:  # the unique index: this order is there already
                self._count(db, "order there already")
                changed = db.execute(
                    "UPDATE orders SET fence = :fence WHERE number = :number AND fence <= :fence",
                    {"number": number, "fence": fence},
                )
                if not changed.rowcount:
                    self._count(db, "older fence refused")
                    raise Stale from None
                self._note(db, number, "taken over", 0, fence)
                return str(db.execute("SELECT state FROM orders WHERE number = ?", (number,)).fetchone()[0])
            taken = db.execute("UPDATE stock SET left = left - 1 WHERE sku = ? AND left > 0", (sku,))
            if not taken.rowcount:
                raise NothingLeft
            self._note(db, number, "reserved", -1, fence)
            return "reserved"

    def charge(self, number: str, accept: float) -> bool:
        """What a bank does that takes an idempotency key: the second charge of an order is the first one's answer."""
        with self._transaction() as db:
            try:
                db.execute("INSERT INTO charges VALUES (?, ?)", (number, random.random() < accept))
            except sqlite3.IntegrityError:
                self._count(db, "charge there already")
            return bool(db.execute("SELECT accepted FROM charges WHERE number = ?", (number,)).fetchone()[0])

    def finish(self, number: str, accepted: bool, fence: int) -> str:
        """Sold, or back on the shelf."""
        state = "paid" if accepted else "declined"
        with self._transaction() as db:
            changed = db.execute(
                "UPDATE orders SET state = :state, fence = :fence"
                " WHERE number = :number AND state = 'reserved' AND fence <= :fence",
                {"number": number, "state": state, "fence": fence},
            )
            if not changed.rowcount:
                self._count(db, "older fence refused")
                raise Stale
            column = "sold" if accepted else "left"
            db.execute(
                f"UPDATE stock SET {column} = {column} + 1 WHERE sku = (SELECT sku FROM orders WHERE number = ?)",
                (number,),
            )
            self._note(db, number, state, 0 if accepted else 1, fence)
        return state

    def take_fault(self, kind: str, apart: float) -> bool:
        """One of the faults that were ordered for this sale, if there is one left and none was taken a moment ago."""
        with self._transaction() as db:
            now = time.time()
            taken = db.execute(
                "UPDATE faults SET left = left - 1, last = ?"
                " WHERE kind = ? AND left > 0 AND (SELECT max(last) FROM faults) < ?",
                (now, kind, now - apart),
            )
            if taken.rowcount:
                self._count(db, f"worker {kind}")
            return bool(taken.rowcount)

    def count(self, what: str) -> None:
        with self._transaction() as db:
            self._count(db, what)

    def counts(self) -> dict[str, int]:
        return dict(self._db.execute("SELECT what, n FROM counts").fetchall())

    def summary(self, sku: str) -> dict[str, int]:
        total, left, sold = self._db.execute("SELECT total, left, sold FROM stock WHERE sku = ?", (sku,)).fetchone()
        states = dict(self._db.execute("SELECT state, count(*) FROM orders GROUP BY state").fetchall())
        return {"total": total, "left": left, "sold": sold} | {
            state: states.get(state, 0) for state in ("reserved", "paid", "declined")
        }

    def audit(self) -> list[str]:
        """What is wrong with the books; nothing, that is. From the journal, so that a wrong total cannot hide it."""
        wrong: list[str] = []

        def none(what: str, query: str) -> None:
            rows: list[Any] = self._db.execute(query).fetchall()
            if rows:
                wrong.append(f"{what}: {rows[:5]}")

        none("order twice", "SELECT number FROM orders GROUP BY number HAVING count(*) > 1")
        none("charged twice", "SELECT number FROM charges GROUP BY number HAVING count(*) > 1")
        none(
            "stock moved twice for one order",
            "SELECT number, step FROM journal WHERE step != 'taken over' GROUP BY number, step HAVING count(*) > 1",
        )
        none(
            "paid without a good charge, or the other way round",
            "SELECT o.number, o.state FROM orders o LEFT JOIN charges c USING (number)"
            " WHERE (o.state = 'paid') != coalesce(c.accepted, 0) AND o.state != 'reserved'",
        )
        none(
            "a smaller fence after a larger one",
            "SELECT a.number FROM journal a JOIN journal b ON a.number = b.number AND a.rowid < b.rowid"
            " AND a.fence > b.fence",
        )
        none(
            "stock and journal differ",
            "SELECT sku FROM stock WHERE left != total + (SELECT coalesce(sum(change), 0) FROM journal)"
            " OR sold != (SELECT count(*) FROM orders o WHERE o.sku = stock.sku AND state = 'paid')",
        )
        none(
            "below zero at some moment",
            "SELECT rowid FROM (SELECT rowid, sum(change) OVER (ORDER BY rowid) AS moved FROM journal)"
            " WHERE moved + (SELECT sum(total) FROM stock) < 0",
        )
        return wrong

    @staticmethod
    def _note(db: sqlite3.Connection, number: str, step: str, change: int, fence: int) -> None:
        db.execute("INSERT INTO journal VALUES (?, ?, ?, ?)", (number, step, change, fence))

    @staticmethod
    def _count(db: sqlite3.Connection, what: str) -> None:
        db.execute("INSERT INTO counts VALUES (?, 1) ON CONFLICT (what) DO UPDATE SET n = n + 1", (what,))
