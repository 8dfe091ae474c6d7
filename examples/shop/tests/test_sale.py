"""The sale in small, with the faults of the large one. What it prints is shown by `pytest -s` and when a test fails."""

from __future__ import annotations

import asyncio
import xml.etree.ElementTree
from pathlib import Path

from buyers import Crowd
from sale import Sale, compare, picture, report, run


def test_five_thousand_buyers_a_hundred_phones_and_workers_that_die(port: int, tmp_path: Path) -> None:
    # Enough of them click twice that some orders are there already, whatever the faults hit.
    crowd = Crowd(5_000, a_second=1_000, impatient_clicks=0.2, longest=120)
    result = asyncio.run(run(Sale(port, crowd, accept=0.5, kills=3, stops=2, fault_rate=0.1, folder=tmp_path)))
    print("\n".join(report(result)))
    outcome, books = result.outcome, result.books
    assert result.wrong == []
    assert (books["sold"], books["left"], books["reserved"]) == (100, 0, 0)
    # What the buyers were told is what the books say, and everybody was told something.
    assert outcome.buyers["paid"] == 100
    assert outcome.buyers["declined"] == books["declined"]
    assert outcome.buyers["gave up"] == 0 and sum(outcome.buyers.values()) == 5_000
    assert outcome.most_in_flight <= 1_000
    # Each layer had something to do, and so had the faults.
    assert outcome.answers["refused: sku"] > 0 and outcome.answers["refused: buyer"] > 0
    assert result.counts.get("worker killed", 0) + result.counts.get("worker stopped", 0) >= 2
    assert result.counts["order there already"] > 0
    # Capacity at first, and the refill for as long as it lasted.
    assert result.server["sluice_rl_bucket_allowed"] <= 100 + 20 * (result.seconds + 1)
    assert result.server["sluice_internal_errors"] == 0
    assert result.server["sluice_lock_waiters"] == 0


def test_who_does_not_wait_costs_more(port: int, tmp_path: Path) -> None:
    patient, storm = (
        asyncio.run(
            run(
                Sale(
                    port,
                    Crowd(400, a_second=400, storming=storming, hammerers=0, longest=60),
                    phones=60,
                    accept=0.5,
                    workers=2,
                    folder=tmp_path,
                )
            )
        )
        for storming in (False, True)
    )
    print("\n".join(compare(patient, storm)))
    for result in (patient, storm):
        assert result.wrong == [] and result.books["sold"] == 60
    assert sum(storm.outcome.answers.values()) > sum(patient.outcome.answers.values())
    drawn = xml.etree.ElementTree.fromstring(picture(patient, patient, storm))
    assert len(drawn) > 50
