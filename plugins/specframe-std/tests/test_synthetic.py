"""Forced acceptance: as often as asked for, the same for every batch, and the target's token after it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from specframe_std.acceptance.synthetic import Synthetic
from specframe_testing import fakes, harness

from specframe.errors import OptionError
from specframe.plugins.registry import registry

TARGET = fakes.fake_target()
PROMPTS = harness.random_prompts([5, 1, 9, 3] * 8, 61)


def decode(accept: str, draft_length: int = 4, **options: Any) -> tuple[list[int], list[list[int]]]:
    """Return what rows that could use a whole draft accepted, and the tokens; the drafter is always wrong."""
    wanted = [attrs.evolve(request, stream=request.index) for request in harness.requests(PROMPTS, 40)]
    drafter, feeds = fakes.always_wrong(harness.truth(TARGET, wanted)), harness.Feeds()
    options = {"batch_size": 8, "draft_length": draft_length, "observers": [feeds], **options}
    results = harness.decode(harness.pipeline(TARGET, drafter, accept=accept, **options), wanted)
    accepted = list[int]()
    for report in (round.report for round in feeds.decoding):
        full = report.lengths + draft_length < [sequence.limit for sequence in report.sequences]
        accepted += report.accepted[full].tolist()
    return accepted, [result.token_ids for result in results]


def shares(accepted: list[int], draft_length: int) -> list[float]:
    """Return, per place of the draft, the accepted share of those whose predecessors all are."""
    reached = [sum(a >= place for a in accepted) for place in range(draft_length + 1)]
    return [after / before for before, after in itertools.pairwise(reached) if before]


def test_profile() -> None:
    """Each place of the draft has its own rate, the last one going on."""
    accepted, _ = decode("synthetic,profile=0.9/0.4")
    assert shares(accepted, 4)[:3] == pytest.approx([0.9, 0.4, 0.4], abs=0.1)


@pytest.mark.wide
@pytest.mark.parametrize("options", [{"batch_size": 1}, {"align": "eqspec"}, {"schedule": "same-length,window=12"}])
def test_the_same_tokens_stand_whatever_the_batch(options: dict[str, Any]) -> None:
    """What is accepted depends on seed, sequence and position: not on batch size, alignment or scheduler."""
    one, other = decode("synthetic,rate=0.7")[1], decode("synthetic,rate=0.7", **options)[1]
    assert [tokens[:36] for tokens in one] == [tokens[:36] for tokens in other]


@pytest.mark.wide
def test_tokens_are_the_draft_s_and_the_bonus_the_target_s() -> None:
    """Accepted tokens are those proposed, and the one after them is the target's choice on what was accepted."""
    _, tokens = decode("synthetic,length=2", draft_length=2)
    for prompt, generated in zip(PROMPTS[:4], tokens[:4], strict=True):
        truth = harness.continuation(TARGET, prompt, 2)
        assert generated[0] == truth[0]
        assert generated[1] == (truth[1] + 1) % 61
        assert generated[3] == harness.continuation(TARGET, [*prompt, *generated[:3]], 1)[0]


@pytest.mark.wide
@pytest.mark.parametrize("options", ["rate=1.1", "profile=0.5/2", "length=-1", "rate=1,length=2"])
def test_bad_options_are_refused(options: str) -> None:
    """Probabilities are from 0 to 1, lengths at least 0, and only one of the options is given."""
    with pytest.raises(OptionError, match="expected"):
        registry().make("acceptance rule", f"synthetic,{options}")


def test_rates_are_those_of_a_report(tmp_path: Path) -> None:
    """Each place has the share of a report's rounds that accepted it, of those that accepted all before; the whole draft counts."""
    path = tmp_path / "report.json"
    figures = {"acceptance_histogram": {"0": 2, "1": 4, "3": 4}}
    path.write_text(json.dumps({"figures": figures, "combination": {"draft_length": "4"}}))
    rule = registry().make("acceptance rule", f"synthetic,from={path}")
    chances_K = rule._chances(torch.zeros(1, 6)).tolist()
    assert chances_K == pytest.approx([0.8, 0.5, 1.0, 0.0, 0.0, 0.0])
    path.write_text(json.dumps({"figures": figures, "combination": {"draft_length": "goodput"}}))
    assert Synthetic(**{"from": str(path)})._chances(torch.zeros(1, 4)).tolist() == pytest.approx([0.8, 0.5, 1.0, 1.0])


@pytest.mark.parametrize(
    "content",
    [
        None,
        "{",
        "[]",
        '{"figures": null}',
        '{"figures": {"acceptance_histogram": {}}, "combination": {"draft_length": "5"}}',
        '{"figures": {"acceptance_histogram": {"x": 1}}, "combination": {"draft_length": "5"}}',
        '{"figures": {"acceptance_histogram": {"1": "3"}}, "combination": {"draft_length": "5"}}',
    ],
)
def test_what_is_no_report_is_refused_in_a_sentence(tmp_path: Path, content: str | None) -> None:
    """A file that is missing, broken, or of a run that drafted nothing is named in one sentence; so is an unknown option."""
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(OptionError, match=rf"from: {path}.* (cannot be read|expected the report of a run)") as caught:
        registry().make("acceptance rule", f"synthetic,from={path}")
    assert "\n" not in str(caught.value)
    with pytest.raises(OptionError, match="no option 'form': its options are rate, profile, length, from"):
        registry().make("acceptance rule", "synthetic,form=x")
