"""One call of a logits processor for all rows and places that have it gives, to the bit, what a call for each place gives."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import generation as hf

from specframe.contracts.constraints import paths
from specframe.contracts.requests import Request, SamplingPlan
from specframe.contracts.round import Batch
from specframe.contracts.round import Sequence as Row
from specframe.text.processor_formulas import FORMULAS, PresencePenalty, Reads, kind_of, plan_of
from specframe.text.sampling import apply_processors

VOCABULARY, LENGTHS, NODES = 23, (9, 2, 14, 1, 9, 6), 5
TREES = {
    "chain": None,
    "one-tree": [[-1, -1, 0, 1, 1]],
    "trees": [[-1, 0, 0, 2, 3], [-1, -1, -1, -1, -1], [-1, 0, 1, 2, 3], [-1, -1, 1, 1, 2], [-1, 0, -1, 2, 2], [-1] * 5],
}
Made = Callable[[int], Any]
"""Makes the processor of a row, by the length of the row's prompt."""

CASES: dict[str, Made] = {
    "temperature": lambda prompt: hf.TemperatureLogitsWarper(0.7),
    "top-k": lambda prompt: hf.TopKLogitsWarper(4),
    "top-p": lambda prompt: hf.TopPLogitsWarper(0.8),
    "min-p": lambda prompt: hf.MinPLogitsWarper(0.1),
    "typical": lambda prompt: hf.TypicalLogitsWarper(0.8),
    "top-h": lambda prompt: hf.TopHLogitsWarper(0.5),
    "epsilon": lambda prompt: hf.EpsilonLogitsWarper(0.03),
    "eta": lambda prompt: hf.EtaLogitsWarper(0.1),
    "suppress": lambda prompt: hf.SuppressTokensLogitsProcessor([3, 7]),
    "no-nan": lambda prompt: hf.InfNanRemoveLogitsProcessor(),
    "normal": lambda prompt: hf.LogitNormalization(),
    "min-length": lambda prompt: hf.MinLengthLogitsProcessor(11, [0, 5]),
    "min-new": lambda prompt: hf.MinNewTokensLengthLogitsProcessor(prompt, 3, [0, 5]),
    "forced-bos": lambda prompt: hf.ForcedBOSTokenLogitsProcessor(4),
    "forced-eos": lambda prompt: hf.ForcedEOSTokenLogitsProcessor(prompt + 5, [0]),
    "decay": lambda prompt: hf.ExponentialDecayLengthPenalty((2, 1.3), [0, 5], prompt),
    "begin": lambda prompt: hf.SuppressTokensAtBeginLogitsProcessor([1, 2], prompt + 2),
    "bias": lambda prompt: hf.SequenceBiasLogitsProcessor({(4,): 1.5, (1, 2): -2.5, (2, 3, 1): 4.0, (1, 1): 0.3}),
    "bad-words": lambda prompt: hf.NoBadWordsLogitsProcessor([[2], [1, 3], [2, 1, 1], [3, 2, 1, 1]], 0),
    "repetition": lambda prompt: hf.RepetitionPenaltyLogitsProcessor(1.3),
    "repetition-since": lambda prompt: hf.RepetitionPenaltyLogitsProcessor(1.3, prompt_ignore_length=prompt),
    "presence": lambda prompt: PresencePenalty(0.8, prompt),
    "2-gram": lambda prompt: hf.NoRepeatNGramLogitsProcessor(2),
    "4-gram": lambda prompt: hf.NoRepeatNGramLogitsProcessor(4),
}
"""Processors of every class that is one formula."""


def batch_of(plans: Sequence[SamplingPlan], seed: int = 0) -> Batch:
    """Return a batch of ragged rows with these plans; what is beyond a row's end means nothing, and may be no token."""
    generator = torch.Generator().manual_seed(seed)
    lengths = np.array([LENGTHS[row % len(LENGTHS)] for row in range(len(plans))])
    tokens_BS = torch.randint(4, (len(plans), max(LENGTHS) + 9), generator=generator)
    rows = [Row(Request(row, [1], 9, plan=plan), 99) for row, plan in enumerate(plans)]
    for row, length in enumerate(lengths):
        tokens_BS[row, length:] = VOCABULARY - 1
    lengths_B = torch.from_numpy(lengths)
    return Batch(rows, tokens_BS, lengths_B, tokens_BS.numpy(), lengths, lengths + 30, lengths_B, False)


def drafts(rows: int, tree: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return draft tokens and parents."""
    generator = torch.Generator().manual_seed(7)
    drafted_BN = torch.randint(4, (rows, NODES), generator=generator)
    given = TREES[tree]
    if given is None:
        return drafted_BN, None
    return drafted_BN, torch.tensor(given if len(given) == 1 else [given[row % len(given)] for row in range(rows)])


def logits(rows: int, places: int) -> torch.Tensor:
    """Return logits, some of them equal, and some infinite."""
    drawn_BTV = torch.randn(rows, places, VOCABULARY, generator=torch.Generator().manual_seed(3)) * 3
    drawn_BTV[:, :, 9] = drawn_BTV[:, :, 8]
    drawn_BTV[:, :, 11] = float("-inf")
    return drawn_BTV


def one_by_one(
    batch: Batch, drafted_BN: torch.Tensor, logits_BTV: torch.Tensor, parents_BN: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the scores that a call of each processor for each place gives, with the exact tokens before the place."""
    processed_BTV = logits_BTV.clone()
    for row, sequence in enumerate(batch.sequences):
        plan = sequence.request.plan
        own = torch.tensor([*plan.lead, *batch.tokens_BS[row, : batch.lengths[row]].tolist()])
        above = range(-1, NODES - 1) if parents_BN is None else parents_BN.expand(len(batch), -1)[row].tolist()
        ways = paths(above[: drafted_BN.shape[1]])[-logits_BTV.shape[1] :]
        for place, path in enumerate(ways):
            prefix_1L = torch.cat([own, drafted_BN[row, path]])[None]
            for processor in plan.processors:
                processed_BTV[row, place] = processor(prefix_1L, processed_BTV[row, place][None])[0]
    return processed_BTV


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal to the bit."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[type]]:
    """Count the calls of processors, by class."""
    counts: Counter[type] = Counter()
    usual: dict[type, Any] = {kind: kind.__call__ for kind in FORMULAS}
    for kind in usual:

        def counted(self: Any, ids: Any, scores: Any, kind: type = kind, call: Any = usual[kind]) -> Any:
            counts[kind] += 1
            return call(self, ids, scores)

        monkeypatch.setattr(kind, "__call__", counted)
    return counts


@pytest.mark.wide
def test_every_formula_has_a_case() -> None:
    """No class is called for several places without a test of it below."""
    kinds = {type(make(4)) for make in CASES.values()}
    assert kinds == set(FORMULAS)
    assert {FORMULAS[kind].reads for kind in kinds} == set(Reads)


@pytest.mark.wide
@pytest.mark.parametrize("lead", [False, True], ids=["", "lead"])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", CASES)
def test_one_call_is_as_many_calls(name: str, tree: str, lead: bool) -> None:
    """All places of ragged rows shaped together have the scores that each has by itself, in chains and trees."""
    given = [
        plan_of([CASES[name](max(1, length - 3))], True, (3,) * (row % 3) * lead) for row, length in enumerate(LENGTHS)
    ]
    batch = batch_of(given)
    drafted_BN, parents_BN = drafts(len(batch), tree)
    for places in (NODES + 1, 2, 1):
        logits_BTV = logits(len(batch), places)
        before = logits_BTV.clone()
        processed_BTV = apply_processors(batch, drafted_BN, logits_BTV, parents_BN)
        assert same(processed_BTV, one_by_one(batch, drafted_BN, logits_BTV, parents_BN))
        assert same(logits_BTV, before)


def test_what_is_not_one_formula_is_called_for_each_place() -> None:
    """A subclass, a class of the user's own, and one made for other rows are called with the exact tokens before each place."""

    class Own(hf.TemperatureLogitsWarper):
        pass

    seen: list[list[int]] = []

    def noting(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert ids.shape[0] == scores.shape[0] == 1
        seen.append(ids[0].tolist())
        return scores + len(seen)

    ignoring = hf.RepetitionPenaltyLogitsProcessor(1.2)
    ignoring.prompt_ignore_length = torch.tensor([2])  # older versions do not take it as an argument
    for one in (Own(0.5), noting, ignoring, hf.NoRepeatNGramLogitsProcessor(1)):
        assert kind_of(one) is None
    plans = [plan_of([Own(0.5), ignoring, hf.NoRepeatNGramLogitsProcessor(1)], True) for _ in LENGTHS]
    batch = batch_of([*plans[:-1], plan_of([noting], True)])
    drafted_BN, parents_BN = drafts(len(batch), "trees")
    logits_BTV = logits(len(batch), NODES + 1)
    processed_BTV = apply_processors(batch, drafted_BN, logits_BTV, parents_BN)
    assert same(processed_BTV[:-1], one_by_one(batch_of(plans), drafted_BN, logits_BTV, parents_BN)[:-1])
    own, last = batch.tokens_BS[-1, : LENGTHS[-1]].tolist(), len(LENGTHS) - 1
    assert parents_BN is not None
    assert seen == [own + drafted_BN[last, path].tolist() for path in paths(parents_BN[last].tolist())]
    assert same(processed_BTV[-1], logits_BTV[-1] + torch.arange(1.0, NODES + 2)[:, None])


MIXED = {
    0: ["repetition", "temperature", "top-p"],
    1: [],
    2: ["temperature", "top-p"],
    3: ["presence", "2-gram", "temperature"],
    4: ["temperature", "repetition", "top-p"],
    5: ["bias", "repetition", "min-new", "temperature", "temperature"],
}


@pytest.mark.wide(but=["chain"])
@pytest.mark.parametrize("tree", TREES)
def test_rows_with_different_plans(tree: str, called: Counter[type]) -> None:
    """Each row's processors are applied in the row's own order, and what rows have in common is called once."""
    made = [[CASES[name](max(1, LENGTHS[row] - 3)) for name in names] for row, names in MIXED.items()]
    made[4].append(lambda ids, scores: scores + ids.shape[1])
    batch = batch_of([plan_of(one, True) for one in made])
    drafted_BN, parents_BN = drafts(len(batch), tree)
    logits_BTV = logits(len(batch), NODES + 1)
    processed_BTV = apply_processors(batch, drafted_BN, logits_BTV, parents_BN)
    assert called[hf.RepetitionPenaltyLogitsProcessor] == 2  # row 4 has it after its temperature
    assert called[hf.TopPLogitsWarper] == 1
    assert same(processed_BTV, one_by_one(batch, drafted_BN, logits_BTV, parents_BN))


def test_other_parameters_are_another_kind() -> None:
    """Processors of one class whose parameters differ are told apart, and equal ones are not, in another process either."""
    for name, make in CASES.items():
        assert kind_of(make(4)) == kind_of(make(4)) == pickle.loads(pickle.dumps(kind_of(make(4)))), name
    others = [
        *[hf.TopPLogitsWarper(0.8), hf.TopPLogitsWarper(0.9), hf.TopPLogitsWarper(0.8, min_tokens_to_keep=2)],
        *[hf.RepetitionPenaltyLogitsProcessor(1.3), hf.RepetitionPenaltyLogitsProcessor(1.4), PresencePenalty(1.3, 2)],
        *[hf.MinLengthLogitsProcessor(3, [0]), hf.MinLengthLogitsProcessor(3, [0, 1])],
        *[hf.SequenceBiasLogitsProcessor({(1, 2): 1.0}), hf.SequenceBiasLogitsProcessor({(1, 2): 2.0})],
        *[hf.ForcedEOSTokenLogitsProcessor(3, [0]), hf.ForcedEOSTokenLogitsProcessor(3, [1])],
        *[hf.ExponentialDecayLengthPenalty((1, 1.2), [0], 3), hf.ExponentialDecayLengthPenalty((1, 1.3), [0], 3)],
        *[hf.NoRepeatNGramLogitsProcessor(2), hf.NoRepeatNGramLogitsProcessor(3)],
        *[hf.SuppressTokensLogitsProcessor([1]), hf.SuppressTokensLogitsProcessor([2])],
    ]
    kinds = [kind_of(one) for one in others]
    assert len(set(kinds)) == len(others)
    batch = batch_of([plan_of([one], True) for one in others])
    drafted_BN, _ = drafts(len(batch), "chain")
    logits_BTV = logits(len(batch), NODES + 1)
    assert same(apply_processors(batch, drafted_BN, logits_BTV), one_by_one(batch, drafted_BN, logits_BTV))
