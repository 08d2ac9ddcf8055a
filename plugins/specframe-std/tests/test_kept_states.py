"""States that are kept at blocks of prompts: rows go on from the state after exactly the tokens that they share with others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import architectures
import pytest
from specframe_testing import fakes, harness, states, zoo

from specframe.contracts.round import Sequence
from specframe.pipeline import Pipeline
from specframe.text.sampling import Sampling

HYBRIDS = ("qwen3_5_text", "nemotron_h", "lfm2", "zaya", "jamba", "minimax", "kimi_linear", "falcon_h1")
KINDS = (*HYBRIDS, *filter(architectures.known, ("inkling_text", "inkling2_text")))
"""A hybrid model of each kind of state; four whose layers have both a state, or several, and attention."""

TARGET = states.fake_state_target()
COMMON = harness.random_prompts([14], 61, seed=4)[0]
ALIKE = [[*COMMON, 5, 6], [3], [*COMMON, 7], [*COMMON, 5], [*COMMON[:9], 8], COMMON[:3]]


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with states.known():
        yield


def pipeline(draft: Any = None, kv: str = "", target: Any = TARGET, **options: Any) -> Pipeline:
    """Return a pipeline whose store keeps states."""
    given = {"batch_size": 3, "draft_length": 3, **options}
    return harness.pipeline(target, draft, kv=f"paged,block=2,share=on{kv}", **given)


def hits(pipe: Pipeline, prompts: list[list[int]], new: int = 6) -> int:
    """Return how many tokens of prompts were not fed; tokens are the reference's."""
    harness.check(pipe, harness.requests(prompts, new))
    return pipe.report.prefix_hit_tokens


def drafts() -> dict[str, Any]:
    """Return drafters, by their name."""
    return {
        "plain": None,
        "a draft model with states": fakes.fake_draft(TARGET),
        "a draft model without": fakes.fake_draft(fakes.fake_target()),
        "prompt-lookup": "prompt-lookup",
        "trees": "suffix",
    }


@pytest.mark.wide
@pytest.mark.parametrize("draft", drafts().values(), ids=drafts())
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_what_prompts_have_in_common_is_read_once(batch_size: int, draft: Any) -> None:
    """Who waits for another begins where they part; later runs, of other sizes, begin at the last block before the last token."""
    pipe = pipeline(draft, batch_size=batch_size)
    assert hits(pipe, ALIKE) <= 14 + 14 + 8 + 2
    again = 14 + 0 + 14 + 14 + 8 + 2
    assert hits(pipe, ALIKE) == again
    pipe.batch_size = 2
    assert hits(pipe, ALIKE, 30) == again, "longer sequences in fewer rows"
    assert hits(pipe, [[3] * 15]) == 0
    pipe.close()
    assert hits(pipe, [[*COMMON, 5]]) == 0


def test_a_stride_of_less_than_a_block_is_a_block() -> None:
    """Copies are taken after a block, two, four and so on."""
    pipe, long = pipeline(kv=",stride=1,blocks=64", batch_size=1), harness.random_prompts([15], 61, seed=5)[0]
    assert [hits(pipe, [one]) for one in (long, [*long[:5], 9, 9])] == [0, 4]


def test_models_begin_where_each_has_a_state() -> None:
    """Where the draft model lacks the copy that the target has, both begin where both have one."""
    pipe = pipeline(fakes.fake_draft(TARGET), batch_size=2)
    asked = [[*COMMON, *range(1, 6)], [*COMMON, 7]]
    assert hits(pipe, asked) == 0, "the second has waited for a copy of the target's states alone"
    assert hits(pipe, asked) == 18 + 14


def test_a_copy_that_a_row_waits_to_begin_with_stays() -> None:
    """What is read meanwhile gives up others, or is not copied."""
    run = harness.open_run(TARGET, 3, 40, kv="paged,block=2,share=on,states=1")
    pool = harness.open_pool(harness.requests([COMMON, COMMON, [9] * 14], 4))
    first, again, other = pool.admit(3)

    def read(sequence: Sequence, begins: int) -> None:
        assert run.reserve(sequence, 14) == begins
        sequence.uncached = 14 - begins
        run.target.read(pool.batch([sequence]), left=1)

    read(first, 0)
    assert run.reserve(again, 14) == 12
    read(other, 0)
    run.target.follow(pool.batch([again]))
    assert run.reserve(again, 14) == 12


@pytest.mark.wide(but=["kimi_linear"])
@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_state(name: str) -> None:
    """Rows that begin after unlike numbers of tokens are read together, by every kind, in chunks and in mixed batches."""
    target = architectures.build(name)
    prompts = [[token % zoo.VOCABULARY for token in prompt] for prompt in [*ALIKE, [*COMMON, *COMMON, *COMMON]]]
    for options in ({}, {"schedule": "continuous,piece=4"}):
        pipe = pipeline("prompt-lookup", target=target, batch_size=8, **options)
        found = [hits(pipe, prompts, 4) for _ in range(2)]
        assert found[1] == 52 + 40


@pytest.mark.wide
def test_a_model_without_attention() -> None:
    """Where no layer attends there is nothing but states to begin with."""
    pipe = pipeline("prompt-lookup", kv=",stride=4", target=architectures.build("mamba2"))
    prompts = [[token % zoo.VOCABULARY for token in prompt] for prompt in ALIKE]
    assert [hits(pipe, prompts) for _ in range(2)][1] == 52
    assert hits(pipe, [[*prompts[0][:9], 4, 4, 4]]) == 8


@pytest.mark.wide
def test_the_least_recently_used_go_first() -> None:
    """There are no more copies than was said, and none are given up that a row waits to begin with."""
    pipe = pipeline(kv=",states=2,stride=99,blocks=64", batch_size=1)
    first, second, third = harness.random_prompts([9, 9, 9], 61, seed=6)
    assert [hits(pipe, [one]) for one in (first, second, first, third, first)] == [0, 0, 8, 0, 8]
    assert hits(pipe, [second]) == 0
    none = pipeline(kv=",states=0", batch_size=1)
    assert [hits(none, [first]) for _ in range(2)] == [0, 0]
    crowd = pipeline(kv=",states=1", batch_size=8)
    for _ in range(2):
        hits(crowd, [*harness.random_prompts([9] * 4, 61, seed=7), *ALIKE])


@pytest.mark.wide
def test_samples_of_a_prompt_that_was_read_before() -> None:
    """Forks start from a parent that began with a kept state, and draw what they draw alone."""
    how = Sampling(temperature=40.0, samples=3)
    pipe, alone = pipeline(accept="gumbel", batch_size=8), pipeline(accept="gumbel", batch_size=1, kv=",states=0")
    wanted = [one.token_ids for one in alone.generate(ALIKE[:3], 5, sampling=how)]
    for _ in range(2):
        assert [one.token_ids for one in pipe.generate(ALIKE[:3], 5, sampling=how)] == wanted
    assert pipe.report.prefix_hit_tokens > 0
