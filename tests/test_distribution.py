"""Sampling draws from the target's own distribution, whatever the combination.

A cell decodes :data:`SAMPLES` sequences per prompt, in batches of prompts of different lengths. It fails when so large a statistic
(:mod:`specframe_testing.distribution`) has a probability below 0.001 / :data:`TESTS`: by Bonferroni, the whole matrix fails by
chance once in a thousand times, and with the fixed seeds it either does or does not. What it can see is tested too: a rule that
gives 1 to 3 percent of each token's probability to other tokens fails.

What runs by default holds every rule under every alignment once; ``SPECFRAME_FULL_MATRIX=1`` runs everything.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
from typing import Any, NamedTuple
from zlib import crc32

import attrs
import pytest
import torch
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_testing import fakes, harness, zoo
from specframe_testing.distribution import PROMPTS, VOCABULARY, drawn, p_value, small
from transformers import LlamaForCausalLM

from specframe import Pipeline
from specframe.contracts.drafts import Draft, Scores
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry
from specframe.text.sampling import Sampling

SAMPLES, FEWER = 3000, 500
"""Sequences per prompt; fewer under ``rollback``, whose batches are small so that the least accepted is not always none."""

RULES = ("rejection", "block", "gumbel")
ALIGNMENTS = (
    "ragged",
    "eqspec",
    "exspec",
    "rollback",
    "masking,positions=content",
    "padding,mask=content,positions=content,bonus=target",
)
LENGTHS = (1, 4)
SAMPLINGS = {
    "t0.3": Sampling(temperature=0.3),
    "t0.3-p0.95": Sampling(temperature=0.3, top_p=0.95),
    "t1": Sampling(temperature=1.0),
    "t1-k3": Sampling(temperature=1.0, top_k=3),
    "t1.7-p0.9": Sampling(temperature=1.7, top_p=0.9),
    "t1.7-k4-p0.9": Sampling(temperature=1.7, top_k=4, top_p=0.9),
}
TESTS = len(RULES) * len(ALIGNMENTS) * len(LENGTHS) * len(SAMPLINGS)
LEAST = 0.001 / TESTS
"""The p-value below which a cell fails."""


class Cell(NamedTuple):
    rule: str
    align: str
    length: int
    sampling: str

    def __str__(self) -> str:
        return f"{self.rule}-{self.align.partition(',')[0]}-k{self.length}-{self.sampling}"


def cells() -> list[Cell]:
    """Return the whole matrix, or a sample: every rule under every alignment, with the other options in turn."""
    if os.environ.get("SPECFRAME_FULL_MATRIX") == "1":
        return [Cell(*values) for values in itertools.product(RULES, ALIGNMENTS, LENGTHS, SAMPLINGS)]
    product = itertools.product(enumerate(RULES), enumerate(ALIGNMENTS))
    names = [*SAMPLINGS]
    return [
        Cell(rule, align, LENGTHS[(r + a + a // 2) % 2], names[(a + 2 * r) % 6]) for (r, rule), (a, align) in product
    ]


TARGET = small(1)
DRAFT = zoo.good_draft(TARGET, noise=0.15)
NEAR = zoo.good_draft(TARGET, noise=0.02)
"""A draft that is seldom wrong: what ``rollback`` needs to accept more than a token in every row."""


def by_rule(cell: Cell, samples: int, prompts: tuple[tuple[int, ...], ...] = PROMPTS, **options: Any) -> float:
    """Return the p-value of a cell, with other options of the pipeline in place of its own."""
    together = cell.align == "rollback"
    usual = {
        "drafter": NEAR if together else DRAFT,
        "align": cell.align,
        "accept": cell.rule,
        "draft_length": cell.length,
        "batch_size": 4 if together else 750,
    }
    pipe = Pipeline(TARGET, seed=crc32(str(cell).encode()), **{**usual, **options})
    if pipe.parts.draft is None:  # a drafter as an object
        pipe.parts.draft = DRAFT
    sampling = SAMPLINGS[cell.sampling]
    return p_value(drawn(pipe, sampling, samples, prompts), sampling)


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells(), ids=str)
def test_draws_from_the_target(cell: Cell) -> None:
    """The joint distribution of the first three tokens is the target's."""
    assert by_rule(cell, FEWER if cell.align == "rollback" else SAMPLES) > LEAST


@pytest.mark.wide
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_draws_from_the_target(rule: str) -> None:
    """Under the default alignment, with a draft of four and a temperature of 1, each rule passes."""
    assert by_rule(Cell(rule, "ragged", 4, "t1"), FEWER) > LEAST


@pytest.mark.wide
def test_typical_acceptance_is_seen_to_be_biased() -> None:
    """A rule that is not lossless fails, by far."""
    assert by_rule(Cell("typical", "ragged", 4, "t1"), FEWER) < LEAST**2


TREES = {"drafter": "model,branch=2/2", "draft_length": "auto", "batch_size": 750}
PROPOSED: dict[str, tuple[int, dict[str, Any]]] = {
    **{
        f"{rule}-distinct-2/2": (2, TREES | {"accept": f"{rule},siblings=distinct"})
        for rule in ("rejection", "traversal")
    },
    "rejection-window": (2, {"drafter": "window,sink=0,recent=1", "batch_size": 300}),
    "rejection-window-tree": (2, {"drafter": "window,sink=1,recent=1,branch=2/2", "batch_size": 300}),
    "block-mixed": (4, {"drafter": "first,of=suffix|model,match=2,weigh=off"}),
    "traversal-mixed": (
        4,
        {"drafter": 'first,"of=suffix,tree=dynamic,nodes=4,factor=4|model,branch=2/2",match=2,weigh=off'},
    ),
    "block-found": (4, {"drafter": "suffix,factor=3,requests=30"}),
    "traversal-tree-found": (4, {"drafter": "suffix,tree=dynamic,nodes=6,factor=6,requests=30"}),
}
"""Draft lengths and drafters, by rule: trees, tokens drawn on a few keys of the target's own cache, drafters of certain and of
drawn tokens in the rows of one batch, and drafters whose tokens are certain, chains and trees with several children of a node."""


@pytest.mark.wide(but=["rejection-window"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[pytest.mark.slow] * (one == "rejection-window-tree")) for one in PROPOSED],
)
def test_what_each_drafter_proposes_leaves_the_targets_distribution(name: str) -> None:
    """Whatever proposes tokens, and however it draws or finds them, a rule for them passes."""
    length, own = PROPOSED[name]
    options = {"accept": name.partition("-")[0], "draft_length": length, "batch_size": 50, **own}
    cell = Cell(name.replace("window-tree", "window"), "ragged", length, "t1")
    assert by_rule(cell, FEWER, **options) > LEAST


LEVELS = (-1, -1, 0, 0, 1, 1)
"""The parents of a tree of two levels, two children for every node."""


@pytest.mark.wide
@pytest.mark.parametrize("siblings", ["distinct", "independent"])
@pytest.mark.parametrize("rule", ["traversal", "rejection"])
def test_what_follows_a_node_whose_children_fall_is_drawn_from_the_target(rule: str, siblings: str) -> None:
    """The rule alone, on 60,000 trees at once: three tokens have the target's joint probabilities, wherever the tree is left.

    Tokens that come after the acceptance result's are counted by their probabilities. No cell may be five standard deviations off.
    """
    rows, generator = 60_000, torch.Generator().manual_seed(1)
    target_WV, draft_WV = (2 * torch.randn(VOCABULARY + 1, VOCABULARY, generator=generator) for _ in range(2))
    accept = strategy(registry(), "acceptance rule", f"{rule},siblings={siblings}")
    accept.start(harness.open_run(fakes.fake_target(), rows=1, capacity=8))
    (request,) = harness.requests([[1]], 9)
    pool = harness.open_pool([request])
    one = pool.batch(pool.admit(1))
    batch = attrs.evolve(one, lengths_B=one.lengths_B.expand(rows), streams_B=torch.arange(rows))

    first_B1V = draft_WV[-1].expand(rows, 1, -1)
    first_BC = accept.siblings(batch, 0, first_B1V, 2)[0][:, 0]
    second_B4 = accept.siblings(batch, 1, draft_WV[first_BC], 2)[0].flatten(1)
    tokens_BN = torch.cat([first_BC, second_B4], dim=1)
    before_BN = torch.cat([torch.full((rows, 2), VOCABULARY), first_BC.repeat_interleave(2, dim=1)], dim=1)
    draft = Draft(tokens_BN, draft_WV[before_BN], torch.tensor([LEVELS]), depth=2)
    places_BT = torch.cat([torch.full((rows, 1), VOCABULARY), tokens_BN], dim=1)
    acceptance = accept.accept(batch, draft, Scores(target_WV[places_BT]))

    chain_WV = target_WV.softmax(-1).double()
    count_B, tokens_BT = acceptance.accepted_B + 1, acceptance.tokens_BT.clamp(max=VOCABULARY - 1)
    shares_B = torch.eye(VOCABULARY, dtype=torch.double)[
        tokens_BT[:, 0]
    ]  # of the first token, then of two, then of three
    for place in (1, 2):
        known_BV = torch.eye(VOCABULARY, dtype=torch.double)[tokens_BT[:, place]]
        last_BX = torch.arange(VOCABULARY).repeat(VOCABULARY ** (place - 1))
        next_BXV = chain_WV[last_BX].expand(rows, -1, -1).where((count_B <= place)[:, None, None], known_BV[:, None])
        shares_B = (shares_B[..., None] * next_BXV).flatten(1)
    first_V = chain_WV[-1]
    exact_X = (first_V[:, None, None] * chain_WV[:-1, :, None] * chain_WV[None, :-1]).flatten()
    off_X = (shares_B.sum(0) - rows * exact_X).abs() / (rows * exact_X * (1 - exact_X)).sqrt()
    assert set(count_B.tolist()) == {1, 2, 3}
    assert float(off_X.max()) < 5


def made(rule: str) -> type:
    """Return a rule's class."""
    return registry().entry("acceptance rule", rule).factory


class Hasty(made("rejection")):  # type: ignore[misc]
    """Rejection sampling that accepts one draft token of 22 untested: that share of its tokens is q's, the rest p's."""

    share = 1 / 22

    def _accepted(self, batch: Any, draft: Any, target_BTV: torch.Tensor, draft_BKV: torch.Tensor) -> torch.Tensor:
        tested_BKV = target_BTV[:, : draft.nodes].minimum(draft_BKV)
        return super()._accepted(batch, draft, tested_BKV.lerp(draft_BKV, self.share), draft_BKV)


@pytest.mark.slow
@torch.no_grad()
def test_a_bias_of_a_few_percent_is_caught() -> None:
    """Power: a rule that gives 1 to 3 percent of each token's probability to other tokens fails."""
    distances = []
    for prompt in PROMPTS:
        target, draft = (model(torch.tensor([prompt])).logits[0, -1].softmax(-1) for model in (TARGET, DRAFT))
        distances.append(float((target - draft).abs().sum() / 2))
    assert all(0.01 < Hasty.share * distance < 0.03 for distance in distances)
    assert by_rule(Cell("rejection", "ragged", 4, "t1"), SAMPLES, accept=Hasty()) < LEAST


@pytest.mark.nightly
@pytest.mark.slow
def test_what_a_rejected_draft_drew_is_not_drawn_again() -> None:
    """A rule that decides on a draft as a whole stays unbiased over rounds: 60,000 sequences, with a draft far from the target.

    With numbers keyed by position alone the p-value is below 1e-9: 1.6 percent of the mass is elsewhere.
    """
    assert by_rule(Cell("block", "ragged", 4, "t1"), 60_000, prompts=PROMPTS[1:2], drafter=small(2)) > LEAST


SCHEDULERS = ("fixed", "continuous", "same-length,window=9,patience=4")
DRAFTERS: dict[str, Any] = {
    "good": NEAR,
    "bad": small(2),
    "same": TARGET,
    "prompt-lookup": "prompt-lookup",
    "suffix": "suffix,factor=3",
}
SETTINGS = {"length": (1, 3, 6), "batch_size": (1, 4, 9), "drafter": (*DRAFTERS,)}


def settings() -> list[dict[str, Any]]:
    """Return every alignment under every scheduler with all settings, or with some of each in turn."""
    pairs = itertools.product(enumerate(ALIGNMENTS), enumerate(SCHEDULERS))
    if os.environ.get("SPECFRAME_FULL_MATRIX") == "1":
        rest = [dict(zip(SETTINGS, values, strict=True)) for values in itertools.product(*SETTINGS.values())]
        return [{"align": align, "schedule": schedule, **one} for (_, align), (_, schedule) in pairs for one in rest]
    return [
        {
            "align": align,
            "schedule": schedule,
            "length": SETTINGS["length"][(a + s) % 3],
            "batch_size": SETTINGS["batch_size"][(a + 2 * s + a // 3) % 3],
            "drafter": SETTINGS["drafter"][(a + s) % len(DRAFTERS)],
        }
        for (a, align), (s, schedule) in pairs
    ]


def gumbel_ids(drafter: Any, **options: Any) -> list[list[int]]:
    """Return what the rule ``gumbel`` gives a ragged set of prompts, with one seed."""
    prompts = [[(number * number + place) % VOCABULARY for place in range(1 + 5 * number % 7)] for number in range(12)]
    pipe = Pipeline(TARGET, drafter, accept="gumbel", seed=11, **options)
    sampling = Sampling(temperature=1.3, top_k=4)
    return [result.token_ids for result in pipe.generate(prompts, max_new_tokens=12, sampling=sampling)]


@functools.cache
def plain_ids() -> list[list[int]]:
    """Return what plain sampling gives, one prompt at a time."""
    ids = gumbel_ids(None, batch_size=1)
    assert len(set(map(tuple, ids))) == len(ids), "the prompts and streams are meant to differ"
    return ids


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", settings(), ids=lambda setting: "-".join(str(v).partition(",")[0] for v in setting.values())
)
def test_gumbel_gives_the_tokens_of_plain_sampling(setting: dict[str, Any]) -> None:
    """With one seed every drafter, draft length, batch size, alignment and scheduler gives plain sampling's ids, in fp32."""
    options = {key: setting[key] for key in ("align", "schedule", "batch_size")}
    assert gumbel_ids(DRAFTERS[setting["drafter"]], draft_length=setting["length"], **options) == plain_ids()


def overflowing() -> LlamaForCausalLM:
    """Return a copy of the draft of which one logit after token 4 is infinite: a model is tried on other tokens."""
    model = copy.deepcopy(DRAFT)
    plain = model.forward

    @functools.wraps(plain)
    def forward(input_ids: torch.Tensor, **options: Any) -> Any:
        output = plain(input_ids=input_ids, **options)
        count = output.logits.shape[1]
        output.logits[input_ids[:, -count:] == 4, 1] = float("inf")
        return output

    model.forward = forward
    return model


@pytest.mark.wide(but=["traversal"])
@pytest.mark.parametrize("rule", ["rejection", "block", "traversal"])
def test_a_draft_without_distribution_leaves_the_targets(rule: str) -> None:
    """Where a draft model's logits overflow, tokens are drawn from the target as if nothing had been drafted there."""
    drafter = {"drafter": ModelDrafter(branch="2/2"), "draft_length": "auto"} if rule == "traversal" else {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(globals(), "DRAFT", overflowing())
        options = drafter or {"drafter": DRAFT}
        assert by_rule(Cell(rule, "ragged", 4, "t1"), FEWER, **options) > LEAST


@pytest.mark.wide(but=["rejection"])
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_rows_without_speculation_do_not_depend_on_those_with(rule: str) -> None:
    """What is padding for a row is as if it had not been drafted: it draws what it draws alone."""
    prompts = [[1], [2, 3, 4, 0], [0, 0]]

    def tokens(speculate: list[bool]) -> list[list[int]]:
        pipe = Pipeline(TARGET, drafter=small(2), accept=rule, draft_length=4, batch_size=3, seed=1)
        asked, _ = pipe.requests.make(prompts, 20, sampling=Sampling(temperature=1.0))
        asked = [attrs.evolve(one, speculate=drafts) for one, drafts in zip(asked, speculate, strict=True)]
        return [one.token_ids for one in sorted(pipe.decode(asked), key=lambda one: one.index)]

    alone = tokens([False] * 3)
    mixed = tokens([False, True, False])
    assert [mixed[0], mixed[2]] == [alone[0], alone[2]]
    assert mixed[1] != alone[1]
