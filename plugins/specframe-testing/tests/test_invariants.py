"""Invariant checks one by one: each kind of wrong state is named, which no strategy of the other tests produces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from specframe_testing.instrumentation.cache_checks import View
from specframe_testing.instrumentation.invariant_error import InvariantError
from specframe_testing.instrumentation.invariants import Checks

from specframe.contracts.drafts import Acceptance
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch, Sequence

PROMPTS = ([3, 4, 5], [6, 7])
STOP, LIMIT, VOCABULARY = 9, 8, 11


@pytest.fixture
def sequences() -> list[Sequence]:
    """Two sequences that have read their prompts."""
    return [Sequence(Request(index, ids, 5, frozenset({STOP})), LIMIT) for index, ids in enumerate(PROMPTS)]


def batch_of(sequences: list[Sequence], rows: Any = PROMPTS) -> Batch:
    """Return a batch of these sequences whose rows hold these tokens."""
    tokens = np.zeros((len(rows), LIMIT), dtype=np.int64)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    lengths = np.array([len(ids) for ids in rows])
    on_device = torch.from_numpy(tokens), torch.from_numpy(lengths.copy())
    return Batch(sequences, *on_device, tokens, lengths, lengths, on_device[1], prefill=False)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("rows", "on_host", "told"),
    [
        (PROMPTS, [3, 3], "the row's length is 3 on the host and 2 on the device"),
        (
            ([3, 4, 5], [6, 7, 8]),
            [3, 3],
            "the row's length is 3 on the host and 3 on the device, expected its 2 tokens",
        ),
        (([3, 4, 5], [6, 8]), [3, 2], "the row's tokens differ from its sequence's tokens"),
    ],
)
def test_rows_that_do_not_hold_their_sequence(
    sequences: list[Sequence], rows: Any, on_host: list[int], told: str
) -> None:
    """A row is as long as its sequence, on the host and on the device, and has its tokens."""
    batch = attrs.evolve(batch_of(sequences, rows), lengths=np.array(on_host))
    with pytest.raises(InvariantError, match=f"invariant 'row' is broken: {told}") as caught:
        Checks().batch(batch)
    assert (caught.value.row, caught.value.index) == (1, 1)


@pytest.mark.wide
@pytest.mark.parametrize("added", [[1, STOP], [1] * (LIMIT - 2)], ids=["stop", "limit"])
def test_a_row_that_goes_on_after_its_end(sequences: list[Sequence], added: list[int]) -> None:
    """No round has a row whose sequence has had its stop token, or reached its limit."""
    checks = Checks()
    checks.account(sequences[1]).tokens.extend(added)
    with pytest.raises(InvariantError, match="invariant 'stop' is broken: the row decodes on after its end"):
        checks.batch(batch_of(sequences, (PROMPTS[0], [*PROMPTS[1], *added])))


def test_a_sequence_with_two_rows(sequences: list[Sequence]) -> None:
    """A sequence has one row of a batch."""
    with pytest.raises(InvariantError, match="invariant 'row' is broken: the sequence has two rows"):
        Checks().batch(batch_of([sequences[0]] * 2, (PROMPTS[0], PROMPTS[0])))


@pytest.mark.wide(but=["3"])
@pytest.mark.parametrize("accepted", [-1, 3])
def test_more_accepted_than_drafted(sequences: list[Sequence], accepted: int) -> None:
    """A lossless rule accepts no more tokens than were drafted, and no fewer than none."""
    checks: Any = Checks()
    checks._lossless = True
    logits_BTV = torch.zeros(1, 3, VOCABULARY)
    acceptance = Acceptance(torch.tensor([accepted]), torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(InvariantError, match=f"'bonus' is broken: {accepted} tokens of a draft of 2 are accepted"):
        checks.by_rule(acceptance, batch_of(sequences[:1], PROMPTS[:1]), None, SimpleNamespace(logits_BTV=logits_BTV))


@pytest.mark.wide(but=["0-2"])
@pytest.mark.parametrize(("accepted", "token"), [(1, 1), (0, 2)])
def test_a_host_that_has_another_verdict(sequences: list[Sequence], accepted: int, token: int) -> None:
    """What the host receives is what the device has: counts, and the tokens up to the bonus token."""
    acceptance = Acceptance(torch.tensor([0]), torch.tensor([[1, 5]]))
    on_host = SimpleNamespace(accepted=np.array([accepted]), tokens=np.array([[token, 5]]))
    stands: Any = SimpleNamespace(acceptance=acceptance, host=on_host)
    with pytest.raises(InvariantError, match="'bonus' is broken: the committed tokens differ between host and device"):
        Checks().committed(batch_of(sequences[:1], PROMPTS[:1]), sequences[:1], acceptance, stands)


@pytest.mark.wide(
    but=[
        "4-offered0-None-held0-the row gained 4 tokens, expected 2: up to its first stop token, or to its limit of 8",
        "2-offered3-None-held3-the row goes on after its end",
    ]
)
@pytest.mark.parametrize(
    ("gained", "offered", "reason", "held", "told"),
    [
        (
            4,
            [1, STOP, 2, 2],
            None,
            [],
            "the row gained 4 tokens, expected 2: up to its first stop token, or to its limit of 8",
        ),
        (6, [1] * 6, None, [], "the row gained 6 tokens, expected 5"),
        (1, [1, 1], None, [], "the row gained 1 tokens, expected 2"),
        (2, [1, STOP], None, [], "the row goes on after its end"),
        (2, [1, STOP], "stop", [1], "the finished sequence holds other tokens than it was given"),
    ],
)
def test_what_a_round_has_given(
    sequences: list[Sequence], gained: int, offered: list[int], reason: Any, held: list[int], told: str
) -> None:
    """A row gains what was committed up to its end, ends there, and its sequence holds just that."""
    sequence = sequences[0]
    if reason:
        sequence.token_ids = held
        sequence.finish(reason)
    on_host = SimpleNamespace(accepted=np.array([len(offered) - 1]), tokens=np.array([offered]))
    report: Any = SimpleNamespace(sequences=[sequence], gained=[gained], detail=SimpleNamespace(host=on_host))
    with pytest.raises(InvariantError, match=told):
        Checks().round(report)


TOKENS = np.array([3, 4, 5])
CACHED = [(1, 0, 3), (1, 1, 4), (1, 2, 5)]
"""The names of three slots: the sequence's number, the token's place, the token."""
CAUSAL = [[1, 1, 0], [1, 1, 1]]
"""What the queries at the places 1 and 2 see of them."""


@pytest.mark.wide(but=["names2-visible2-fault2"])
@pytest.mark.parametrize(
    ("names", "visible", "fault"),
    [
        (CACHED, CAUSAL, None),
        ([*CACHED, (-1, -1, -1)], [[1, 1, 0, 0], [1, 1, 1, 0]], None),
        ([*CACHED, (1, 0, 3)], [[1, 1, 0, 1], [1, 1, 1, 1]], ("cache", "the token at place 0 is cached more than once")),
        ([CACHED[0], (-1, -1, -1), CACHED[2]], [[1, 0, 0], [1, 0, 1]], ("cache", "the token at place 1 is lost")),
        (CACHED, [[1, 1, 0], [1, 0, 1]], ("mask", "the token at place 1 is hidden from a query after it")),
        (CACHED, [[1, 1, 1], [1, 1, 1]], ("mask", "a query sees the token at place 2, which comes after it")),
        ([*CACHED, (2, 0, 3)], [[1, 1, 0, 0], [1, 1, 1, 1]], ("row", "a query sees keys of another sequence")),
        ([*CACHED[:2], (1, 2, 6)], CAUSAL, ("cache", "slot 2 holds token 6 of place 2, where the row has another")),
        ([*CACHED, (-1, -1, -1)], [[1, 1, 0, 0], [1, 1, 1, 1]], ("mask", "a query sees slot 3, which holds no token")),
    ],
)  # fmt: skip
def test_what_queries_see(names: list[Any], visible: list[list[int]], fault: tuple[str, str] | None) -> None:
    """Every query sees each token of its row up to itself once, and nothing else."""
    view = View(np.array(names), np.array(visible, dtype=bool), np.array([1, 2]))
    assert view.fault(1, TOKENS) == fault
