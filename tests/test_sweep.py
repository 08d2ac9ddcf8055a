"""Every decoder architecture of transformers is exact or refused in one sentence; those that are exact stay so.

``architectures.json`` names the exact ones, and the transformers they were found on. One that the installed transformers does not
know is passed over, one that it decodes wrongly itself has to be refused. A sample runs by default,
``SPECFRAME_ALL_ARCHITECTURES=1`` runs all.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import architectures
import pytest
import transformers
from specframe_testing import harness, zoo
from transformers import PreTrainedModel

from specframe.errors import SpecframeError

FROZEN = json.loads(Path(__file__).with_name("architectures.json").read_text())
SAME = transformers.__version__ == FROZEN["transformers"]
"""Whether the list was found on the installed transformers."""

EXACT = [name for name in FROZEN["exact"] if name not in architectures.FAULTY | architectures.OTHERWISE]
"""Those that are exact with the installed transformers, as far as it knows them."""

ALIGNMENTS = ("ragged", "eqspec", "exspec")
ALL = os.environ.get("SPECFRAME_ALL_ARCHITECTURES") == "1"
PROMPTS = harness.random_prompts((12, 1, 20, 5), zoo.VOCABULARY, seed=1)
REQUESTS = harness.requests(PROMPTS, [6, 8, 4, 8], {zoo.EOS})
ALWAYS = {
    *("doge", "dots3_note_text", "falcon", "gemma3", "gemma4_unified", "gpt_neox_japanese", "gpt_oss", "inkling_text"),
    *("minicpm3", "phimoe", "qwen3_moe"),
}
"""Exact ones that are odd in a way of their own: masks per head, no attention interface, mixed layers (also with keys that heads
share by repeating them), layers with other numbers of heads, sinks, latent keys, layers that attend and keep several states."""
REFUSED = {"cpmant", "deepseek_v4", "moshi", "recurrent_gemma"}
"""One for each reason to refuse: no positions, keys of several tokens, a window that is not kept, a state of no known kind."""
EVERY = 8
"""Of the others, in the order of their names, one in this many is in the sample."""


def sample() -> list[str]:
    """Return the model types that are swept: the same ones on every machine with the same transformers."""
    known = set(architectures.NAMES)
    if ALL:
        return sorted(known)
    return sorted(known & (ALWAYS | REFUSED | set(FROZEN["exact"][::EVERY])))


def outcome(target: PreTrainedModel, alignments: Sequence[str] = ALIGNMENTS) -> str:
    """Return "exact", or the sentence that refuses a target; any other error, and any other token, is a failure.

    A ragged batch with rows that end early and are replaced is decoded under each alignment, with a noisy copy as the draft.
    """
    draft = zoo.good_draft(target)
    try:
        for align in alignments:
            harness.check(harness.pipeline(target, draft, align=align, batch_size=3, draft_length=3), REQUESTS)
    except SpecframeError as error:
        return str(error)
    return "exact"


def tiny(name: str) -> PreTrainedModel | None:
    """Return a tiny model of an architecture, or None if transformers refuses the sizes and the list does not have it."""
    try:
        return architectures.build(name)
    except Exception:  # whatever transformers raises on a configuration that does not fit
        if name in FROZEN["exact"]:
            raise
        return None


CASES = {
    f"{name}-{alignments[0]}" if name in EXACT else name: (name, alignments)
    for name in sample()
    for alignments in ([(one,) for one in ALIGNMENTS] if name in EXACT else [ALIGNMENTS])
}
"""Exact architectures are swept under one alignment at a time, all three by turns in the quick set."""
QUICK = [f"{name}-{ALIGNMENTS[place % len(ALIGNMENTS)]}" for place, name in enumerate(sorted(ALWAYS))]


@pytest.mark.wide
@pytest.mark.quick(*QUICK, *sorted(REFUSED))
@pytest.mark.parametrize("case", CASES)
def test_an_architecture_is_exact_or_refused(case: str) -> None:
    """A tiny model has the reference decoder's tokens, or is refused in one sentence; one on the list is made, and is exact.

    One that the installed transformers decodes wrongly itself is refused.
    """
    name, alignments = CASES[case]
    if (target := tiny(name)) is None:
        return
    found = outcome(target, alignments)
    assert "\n" not in found
    if name in EXACT:
        assert found == "exact"
    elif found == "exact":
        assert name not in architectures.FAULTY
        assert not SAME, f"{name} is exact: add it to tests/architectures.json"
    else:
        assert type(target).__name__ in found or "has layers of type" in found


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT if ALL else sorted({*ALWAYS, "axk1", "deepseek_v3", "diffllama"} & set(EXACT)))
def test_traced_forwards_are_exact(name: str) -> None:
    """With forwards run as pieces an architecture has the reference decoder's tokens as well; all but a few can be traced."""
    if name in architectures.NAMES:
        target = architectures.build(name)
        draft = zoo.good_draft(target)
        pipe = harness.pipeline(target, draft, batch_size=3, draft_length=3, layers="traced", graphs="on")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            harness.check(pipe, REQUESTS)
        refused = any("layers are not traced" in str(one.message) for one in told)
        assert refused == (name in FROZEN["not_traced"]) or not SAME


@pytest.mark.wide
@pytest.mark.parametrize("name", EXACT if ALL else sorted(ALWAYS & set(EXACT)))
def test_nothing_is_near_a_tie(name: str) -> None:
    """The reference's best two logits are well apart at every token of the sweep: rounding decides nothing."""
    if name in architectures.NAMES:
        target = architectures.build(name)
        for request in REQUESTS:
            tokens, _ = harness.expected(target, request)
            gaps = [harness.logit_gap(target, [*request.prompt_ids, *tokens[:place]]) for place in range(len(tokens))]
            assert min(gaps) > 1e-4


@pytest.mark.wide
def test_the_list_is_sorted_and_says_where_it_comes_from() -> None:
    """The list has each name once, in order, all known to the transformers they were found on when that is installed."""
    names = FROZEN["exact"]
    assert names == sorted(set(names))
    assert not SAME or set(names) <= set(architectures.NAMES)
    assert not REFUSED & set(names)
    assert set(names) >= ALWAYS


@pytest.mark.wide(but=["bloom"])
@pytest.mark.parametrize(
    "name", EXACT if ALL else ["bloom", "deepseek_v3", "deepseek_v32", "gpt_neo", "llama4_text", "mpt"]
)
def test_a_row_within_the_window_is_drafted_for_as_it_is_decoded(name: str) -> None:
    """ALiBi, latent keys, indexers, chunks and layers with windows: where keys are gathered for a long row beside it, every draft
    of a short row is accepted."""
    if name not in architectures.NAMES or name in architectures.OTHERWISE:
        return
    asked = harness.requests(harness.random_prompts((3, 24), zoo.VOCABULARY, seed=1), [8, 8], set())
    pipe = harness.pipeline(
        architectures.build(name), None, drafter="window,sink=4,recent=12", batch_size=2, draft_length=3
    )
    short, _ = harness.check(pipe, asked)
    assert short.metrics.num_draft_tokens == short.metrics.num_accepted_draft_tokens > 3


@pytest.mark.wide(but=["gpt_neox_japanese"])
@pytest.mark.parametrize("name", ["cohere", "falcon", "gemma2", "gpt_neox_japanese", "gptj", "phi"])
def test_sublayers_are_found_and_left_out(name: str) -> None:
    """Blocks whose sublayers are parallel, have norms behind them or return more than states draft without them, exactly."""
    pipe = harness.pipeline(
        architectures.build(name), None, drafter="layer-skip,skip=attn:0+mlp:1", batch_size=3, draft_length=3
    )
    harness.check(pipe, REQUESTS)
    assert pipe.report.num_draft_tokens > 0


@pytest.mark.wide(but=["mistral-sliding_window"])
@pytest.mark.parametrize(("name", "size"), [("mistral", "sliding_window"), ("llama4_text", "attention_chunk_size")])
def test_layers_of_one_kind_with_other_windows_are_refused(name: str, size: str) -> None:
    """Where layers differ in the size of their windows or chunks, which is asked of each, the sentence has both."""
    found = outcome(architectures.build(name, per_layer_config={1: {size: 4}}))
    assert re.fullmatch(rf"the target has layers with {size} \d and 4: expected one for all layers", found)
