"""Every lossless combination gives the reference decoder's tokens, on every architecture.

The whole product of architectures, strategies, batch sizes, draft lengths and drafts is thousands of runs. What runs
by default holds every architecture under every alignment, KV backend and scheduler once; batch size, draft length and
draft vary with them by a fixed rule, so that every pair of values meets. ``SPECFRAME_FULL_MATRIX=1`` runs everything.
"""

from __future__ import annotations

import functools
import itertools
import os
from typing import Any, NamedTuple

import pytest
import torch
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_testing import fakes, harness, zoo
from transformers import PreTrainedModel

from specframe.contracts.requests import Request
from specframe.reference import reference_decode
from specframe.text.sampling import Sampling

LAYOUTS = (("ragged", "slab"), ("eqspec", "dynamic"), ("eqspec", "slab"), ("exspec", "dynamic"), ("exspec", "slab"))
SCHEDULERS = ("fixed", "continuous", "same-length,window=9,patience=4")
BATCH_SIZES, DRAFT_LENGTHS, DRAFTS = (1, 3, 8), (1, 4, 7), ("good", "bad")
NEW = 10
STOPS = frozenset({zoo.EOS, 3})
LENGTHS = (1, 40, 2, 17, 5, 5, 28, 1, 9, 3)


class Cell(NamedTuple):
    architecture: str
    align: str
    kv: str
    schedule: str
    batch_size: int
    draft_length: int
    draft: str

    def __str__(self) -> str:
        names = self.architecture, self.align, self.kv, self.schedule.partition(",")[0]
        return "-".join((*names, f"b{self.batch_size}", f"k{self.draft_length}", self.draft))


def cells() -> list[Cell]:
    """Return the whole matrix, or the sample of it."""
    full = os.environ.get("SPECFRAME_FULL_MATRIX") == "1"
    product = itertools.product(*map(enumerate, (zoo.NAMES, LAYOUTS, SCHEDULERS)))
    return [
        Cell(name, *layout, schedule, *rest)
        for (a, name), (i, layout), (s, schedule) in product
        for rest in (itertools.product(BATCH_SIZES, DRAFT_LENGTHS, DRAFTS) if full else [sampled(a, i, s)])
    ]


def sampled(a: int, i: int, s: int) -> tuple[int, int, str]:
    """Return batch size, draft length and draft of a cell of the sample: a Latin square in the three numbers."""
    return BATCH_SIZES[(a + i + s) % 3], DRAFT_LENGTHS[(a + 2 * i + s + a // 3) % 3], DRAFTS[(a + i) % 2]


@functools.cache
def models(name: str) -> dict[str, PreTrainedModel]:
    """Return the target of an architecture, a good and a bad draft."""
    target = zoo.build(name)
    return {"target": target, "good": zoo.good_draft(target), "bad": zoo.bad_draft()}


def prompts() -> list[list[int]]:
    """Return ragged prompts with eos ids, which are pad ids, first, last, in the middle and alone."""
    made = zoo.eos_prompts(LENGTHS)
    made[4][2], made[6][10] = zoo.EOS, 3
    return made


def asked(new: int = NEW) -> list[Request]:
    """Return the requests of the matrix, all to end alike."""
    return harness.requests(prompts(), new, STOPS)


def pipeline(cell: Cell, **options: Any) -> harness.Pipeline:
    """Return the pipeline of a cell."""
    loaded = models(cell.architecture)
    return harness.pipeline(
        loaded["target"],
        loaded[cell.draft],
        align=cell.align,
        kv=cell.kv,
        schedule=cell.schedule,
        batch_size=cell.batch_size,
        draft_length=cell.draft_length,
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells(), ids=str)
def test_equals_reference(cell: Cell) -> None:
    """A combination decodes a ragged batch to the reference decoder's tokens, in fp32."""
    pipe = pipeline(cell)
    harness.check(pipe, asked())
    rate = pipe.report.draft_acceptance_rate
    assert rate > 0.3 if cell.draft == "good" else rate < 0.2, "the draft is not what the matrix means it to be"


@pytest.mark.wide
@pytest.mark.parametrize("name", zoo.NAMES)
def test_no_near_ties(name: str) -> None:
    """The target's best two logits are well apart wherever the matrix looks: rounding decides nothing."""
    target = models(name)["target"]
    for request in asked():
        tokens, _ = harness.expected(target, request)
        assert min(gaps(target, request.prompt_ids, tokens)) > 1e-4


def gaps(target: PreTrainedModel, prompt: list[int], tokens: list[int]) -> list[float]:
    """Return the gap of the best two logits at every generated token."""
    return [harness.logit_gap(target, [*prompt, *tokens[:place]]) for place in range(len(tokens))]


@pytest.mark.wide
@pytest.mark.parametrize("name", zoo.NAMES)
def test_reference_is_the_models_own_output(name: str) -> None:
    """The oracle's tokens are those of transformers' own greedy generation, stop ids included."""
    target, prompt = models(name)["target"], prompts()[3]
    ids = torch.tensor([prompt])
    own = target.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=10, eos_token_id=sorted(STOPS)
    )
    assert reference_decode(target, prompt, 10, STOPS) == own[0, len(prompt) :].tolist()


TREES: dict[str, dict[str, Any]] = {"static": {"branch": "3/2/1"}, "dynamic": {"tree": "dynamic", "nodes": 8}}
OF_TREES = [
    ("llama", "ragged", "static", 1, "greedy"),
    ("qwen3", "eqspec", "dynamic", 3, "greedy"),
    ("mistral", "exspec", "static", 8, "gumbel"),
    ("gemma3", "rollback", "dynamic", 1, "gumbel"),
    ("gpt2", "ragged", "static", 3, "greedy"),
    ("opt", "eqspec", "dynamic", 8, "greedy"),
]
"""Architectures, each with one alignment, tree, batch size and rule, by turns."""


@pytest.mark.wide
@pytest.mark.parametrize(("name", "align", "tree", "batch_size", "rule"), OF_TREES)
def test_trees_of_a_draft_model(name: str, align: str, tree: str, batch_size: int, rule: str) -> None:
    """They give the target's own tokens, greedy and sampled with shared noise, and some of their nodes are accepted."""
    target, warm = models(name)["target"], Sampling(temperature=0.9)
    options = {"align": align, "accept": rule, "batch_size": batch_size, "draft_length": "auto", "seed": 3}
    pipe = harness.pipeline(target, models(name)["good"], drafter=ModelDrafter(**TREES[tree]), **options)
    if rule == "greedy":
        harness.check(pipe, asked(9))
    else:
        plain = harness.pipeline(target, None, accept=rule, batch_size=4, seed=3)
        found, wanted = (
            [one.token_ids for one in each.generate(prompts(), 9, sampling=warm)] for each in (pipe, plain)
        )
        assert found == wanted
    assert pipe.report.mean_acceptance_length > 1


PAIR = fakes.fake_target(), fakes.fake_draft(fakes.fake_target())


def test_a_prompt_given_many_times() -> None:
    """Copies of one prompt in a batch each get its continuation."""
    pipe = harness.pipeline(*PAIR, batch_size=4)
    results = harness.check(pipe, harness.requests([[4, 8, 15]] * 6, 12))
    assert len({tuple(result.token_ids) for result in results}) == 1


@pytest.mark.wide
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_eager_attention(name: str) -> None:
    """A target that is set to another attention implementation runs on that one and is left with it."""
    target = zoo.build(name)
    target.set_attn_implementation("eager")
    harness.check(harness.pipeline(target, zoo.good_draft(target), batch_size=3, draft_length=4), asked(6))
    assert target.config._attn_implementation == "eager"


@pytest.mark.wide
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec"])
def test_bfloat16_parts_only_at_ties(align: str) -> None:
    """In bfloat16 a divergence from the reference is a tie: the best two logits are as close as rounding."""
    target = zoo.build("llama").to(torch.bfloat16)
    requests = asked(8)
    results = harness.decode(harness.pipeline(target, zoo.good_draft(target), align=align, batch_size=4), requests)
    for request, result in zip(requests, results, strict=True):
        want, _ = harness.expected(target, request)
        pairs = enumerate(itertools.zip_longest(result.token_ids, want))
        place = next((place for place, (got, wanted) in pairs if got != wanted), None)
        if place is not None:
            assert place < min(len(result.token_ids), len(want)), "one of them ends where the other goes on"
            gap = harness.logit_gap(target, [*request.prompt_ids, *want[:place]])
            assert gap < 0.1, harness.difference(target, request, result.token_ids, want)


@pytest.mark.wide
@pytest.mark.cuda
@pytest.mark.parametrize(("align", "kv"), LAYOUTS)
def test_equals_reference_on_cuda(align: str, kv: str) -> None:
    """On a CUDA device a combination gives the reference decoder's tokens too."""
    fake, real = fakes.fake_target().cuda(), zoo.build("qwen3").cuda()
    for target, draft in ((fake, fakes.fake_draft(fake).cuda()), (real, zoo.good_draft(zoo.build("qwen3")).cuda())):
        made = harness.random_prompts((3, 1, 12, 7, 20), 61, seed=8)
        pipe = harness.pipeline(target, draft, align=align, kv=kv, batch_size=3, draft_length=4)
        harness.check(pipe, harness.requests(made, 10, {5}))
