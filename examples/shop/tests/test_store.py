"""The books hold by themselves: these tests have no lock at all."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from store import NothingLeft, Stale, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(str(tmp_path / "books.sqlite"), {"phone": 2})


def test_an_order_that_comes_twice_is_one_order(store: Store) -> None:
    assert store.reserve("o1", "phone", "ann", fence=1) == "reserved"
    assert store.reserve("o1", "phone", "ann", fence=2) == "reserved"
    assert store.charge("o1", accept=1.0) and store.charge("o1", accept=0.0)
    assert store.finish("o1", True, fence=2) == "paid"
    assert store.reserve("o1", "phone", "ann", fence=3) == "paid"
    assert store.summary("phone") == {
        "total": 2,
        "left": 1,
        "sold": 1,
        "reserved": 0,
        "paid": 1,
        "declined": 0,
    }
    assert store.counts() == {"order there already": 2, "charge there already": 1}
    assert store.audit() == []


def test_who_lost_the_lock_cannot_write_any_more(store: Store) -> None:
    store.reserve("o1", "phone", "ann", fence=10)  # its worker sleeps through the lease …
    store.reserve("o1", "phone", "ann", fence=20)  # … and another goes on
    with pytest.raises(Stale):
        store.finish("o1", True, fence=10)
    with pytest.raises(Stale):
        store.reserve("o1", "phone", "ann", fence=10)
    assert store.finish("o1", False, fence=20) == "declined"
    with pytest.raises(Stale):
        store.finish("o1", True, fence=20)
    assert store.counts()["older fence refused"] == 3
    assert store.summary("phone")["left"] == 2 and store.audit() == []


def test_the_stock_ends_at_zero_and_a_declined_one_is_back(store: Store) -> None:
    store.reserve("o1", "phone", "ann", fence=1)
    store.reserve("o2", "phone", "ben", fence=2)
    with pytest.raises(NothingLeft):
        store.reserve("o3", "phone", "cem", fence=3)
    assert store.order("o3") is None
    store.finish("o1", store.charge("o1", accept=0.0), fence=1)
    assert store.reserve("o3", "phone", "cem", fence=4) == "reserved"
    assert not store.is_sold_out("phone")
    for number, fence in (("o2", 2), ("o3", 4)):
        store.finish(number, store.charge(number, accept=1.0), fence)
    assert store.is_sold_out("phone") and store.audit() == []


def test_many_at_once_and_without_any_lock_sell_each_phone_once(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path / "books.sqlite"), {"phone": 10})
    sold: list[str] = []

    def work(fence: int) -> None:
        for n in range(20):  # all of them work on the same orders
            try:
                if store.reserve(f"o{n}", "phone", "ann", fence) == "reserved":
                    store.finish(f"o{n}", store.charge(f"o{n}", accept=1.0), fence)
                    sold.append(f"o{n}")
            except (NothingLeft, Stale):
                pass

    threads = [threading.Thread(target=work, args=(fence,)) for fence in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sold) == len(set(sold)) == 10
    assert store.summary("phone")["left"] == 0 and store.audit() == []


def test_the_audit_finds_what_is_wrong(tmp_path: Path) -> None:
    path = str(tmp_path / "books.sqlite")
    store = Store.create(path, {"phone": 3})
    store.reserve("o1", "phone", "ann", fence=5)
    store.finish("o1", store.charge("o1", accept=1.0), fence=5)
    assert store.audit() == []
    with sqlite3.connect(path) as db:
        db.execute("UPDATE stock SET left = left - 1")
        db.execute("INSERT INTO journal VALUES ('o1', 'paid', 0, 4)")
    wrong = " ".join(store.audit())
    assert "stock and journal differ" in wrong and "moved twice" in wrong and "smaller fence" in wrong
