"""The server's page: its state on made-up rounds, and what a browser shows of it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from browser import browsing, faults, needs_chromium
from playwright.sync_api import Page
from specframe_serve.live import SPAN, SPANS, WINDOW, Live


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the state."""
    made = Clock()
    monkeypatch.setattr("specframe_serve.live.time", made)
    return made


def report(numbers: list[int], accepted: int = 1, ended: tuple[int, ...] = ()) -> Any:
    """Return the report of a round in which the requests of these numbers had two draft tokens each."""
    rows = len(numbers)
    sequences = [SimpleNamespace(request=SimpleNamespace(index=number, key=(number, 0))) for number in numbers]
    return SimpleNamespace(
        gained=np.full(rows, accepted + 1),
        drafted=np.full(rows, 2),
        accepted=np.full(rows, accepted),
        lengths=np.full(rows, 5),
        prefill=False,
        transfer=True,
        draft=SimpleNamespace(tokens_BN=torch.zeros(rows, 2, dtype=torch.long)),
        acceptance=SimpleNamespace(path_BT=None),
        sequences=sequences,
        finished=[one for one in sequences if one.request.index in ended],
    )


def places(live: Live) -> list[int | None]:
    """Return the number of the request at each place of the page."""
    return [row and row["request"] for row in live.state(1, 0)["rows"]]


@pytest.mark.usefixtures("clock")
def test_rows_keep_their_places() -> None:
    """When a request ends, those after it stay where they are, and the next one takes its place."""
    live = Live(None)
    assert places(live) == []
    live.round(report([4, 5, 6], ended=(5,)))
    assert places(live) == [4, 6]
    live.round(report([4, 6, 7]))
    assert places(live) == [4, 6, 7]
    live.round(report([7, 6, 4], ended=(4,)))
    assert places(live) == [None, 6, 7]
    live.round(report([7, 6, 8, 9]))
    assert places(live) == [8, 6, 7, 9]


@pytest.mark.wide
def test_a_row_that_a_round_leaves_out_rests(clock: Clock) -> None:
    """It keeps its place while the scheduler passes it over, marked as resting, and loses it when it is not seen any more."""
    live = Live(None)
    live.state(1, 0)
    live.round(report([1, 2]))
    live.round(report([2]))
    assert [row["resting"] for row in live.state(2, 0)["rows"]] == [True, False]
    clock.now += WINDOW + 1
    live.state(1, 0)
    live.round(report([2]))
    assert places(live) == [None, 2]


def row(request: int, accepted: str = "a b", rejected: str = "\n\tc", **more: Any) -> dict[str, Any]:
    """Return a row of the state."""
    told = {"request": request, "length": 10, "accepted": accepted, "rejected": rejected, "drafted": 5, "stood": 3}
    return told | {"resting": False} | more


STATE: dict[str, Any] = {
    "model": "tiny",
    "running": 3,
    "waiting": 1,
    "tokens_per_second": 123.4,
    "mean_acceptance_length": 2.5,
    "draft_acceptance_rate": 0.625,
    "span": SPAN,
    "history": [*[None] * (SPANS - 4), 0.25, 0.75, None, 0.5],
    "rows": [row(1), row(2, "x" * 300), row(3, resting=True)],
}


@pytest.fixture
def shown() -> Iterator[tuple[Page, dict[str, Any]]]:
    """The page in a browser, and the state that it receives next."""
    state = dict(STATE)
    text = resources.files("specframe_serve").joinpath("page.html").read_text(encoding="utf-8")
    with browsing() as page:
        page.route("http://server/", lambda route: route.fulfill(body=text, content_type="text/html; charset=utf-8"))
        page.route("http://server/live", lambda route: route.fulfill(json=state))
        page.goto("http://server/")
        page.wait_for_selector("#rows tr")
        yield page, state


@pytest.mark.slow
@needs_chromium
def test_the_page_in_a_browser(shown: tuple[Page, dict[str, Any]]) -> None:
    """White space can be seen, acceptance is drawn, rows stay where they are, and it fits all screens accessibly."""
    page, state = shown
    assert page.inner_text("#rows tr:first-child td:last-child") == "a·b↵⇥c"
    assert page.inner_text("#model") == "· tiny"
    assert page.get_attribute("#chart path", "d").count("M") == 2
    assert "between 25% and 75%, at last 50%" in page.get_attribute("#chart svg", "aria-label")
    assert faults(page) == []
    before = page.locator("#rows tr").nth(1).bounding_box()
    state["rows"] = [None, row(2), row(3)]
    page.wait_for_function("document.querySelector('#rows th').textContent === 'free'")
    assert page.locator("#rows tr").nth(1).bounding_box() == before
    state["rows"] = [row(4)]
    page.wait_for_function("document.querySelectorAll('#rows tr').length === 1")
    assert page.inner_text("#rows th") == "4"
