"""The search of sublayers that a target can spare: what it measures, what it finds, and the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from specframe_heads.skip_search import SkipSearch, skipped
from specframe_heads.training.continuations import ContinuationText
from specframe_std.partial.sublayers import read_sublayers, write_sublayers
from specframe_testing import harness, zoo
from transformers import PreTrainedModel

from specframe import Pipeline
from specframe.cli import cli
from specframe.errors import OptionError
from specframe.reference import reference_decode

IDLE = read_sublayers("skip", "attn:1+3+mlp:0+2")
"""Sublayers of the target that add nothing."""


def target() -> PreTrainedModel:
    """Return a model of four layers that can do without four of its sublayers."""
    model: Any = zoo.build("qwen3", num_hidden_layers=4).requires_grad_(False)
    for one in IDLE:
        layer = model.model.layers[one.layer]
        (layer.self_attn.o_proj if one.kind == "attn" else layer.mlp.down_proj).weight.zero_()
    return model


def searched() -> SkipSearch:
    model = target()
    prompts = harness.random_prompts([5, 2, 9], zoo.VOCABULARY)
    return SkipSearch(
        model, [ContinuationText([*one, *reference_decode(model, list(one), 12)], len(one)) for one in prompts]
    )


def test_a_search_finds_what_can_be_spared() -> None:
    """The sublayers that add nothing are found, and nothing is left changed."""
    search = searched()
    rates = list[float]()
    found = search.run(len(IDLE), 60, 0, lambda _, rate: rates.append(rate))
    assert write_sublayers(found.skip) == write_sublayers(IDLE)
    assert found.match_rate == 1
    assert rates == sorted(rates)
    assert rates[0] < 1


@pytest.mark.quick
def test_a_seed_is_that_of_the_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search with the same seed tries the same sets, and with another one others."""
    search, tried = searched(), list[list[Any]]()
    monkeypatch.setattr(search, "match_rate", lambda skip: tried[-1].append(skip) or 0.0)
    for seed in (7, 7, 8):
        tried.append([])
        search.run(3, 20, seed)
    assert tried[0] == tried[1] != tried[2]


@pytest.mark.wide
@pytest.mark.parametrize("text", ["0", "8", "1.0", "0.0", "0.01", "1.5", "-1", "nan", "abc", "true"])
def test_another_number_is_refused(text: str) -> None:
    """A number that leaves nothing in or nothing out, and what is no number, is named in one sentence."""
    with pytest.raises(
        OptionError, match=r"^--skip: expected a share of the 8 sublayers, as in 0.4, or a number of them"
    ):
        skipped(text, 8)


@pytest.mark.wide
def test_the_command_prints_a_drafter(tmp_path: Path) -> None:
    """The last line is an option that decodes with the sublayers that were found, and the output is the same again."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The sea is\nA story\n")
    arguments = ["heads", "search-skip", "--target", "tiny", "--prompts", str(prompts)]
    arguments += ["--skip", "3", "--rounds", "2", "--max-new-tokens", "8", "--device", "cpu"]
    first, second = (CliRunner().invoke(cli, arguments) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert first.stdout == second.stdout
    lines = first.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == [
        "match rate",
        "cost of a drafting forward",
        "expected speed",
    ]
    drafter = lines[-1].removeprefix("--drafter ")
    pipe = Pipeline(target="tiny", drafter=drafter, draft_length=3, device="cpu")
    list(pipe.generate(["The sea is"], 8))
    assert pipe.report.num_accepted_draft_tokens > 0
    wrong = CliRunner().invoke(cli, [*arguments, "--skip", "99"])
    assert wrong.exit_code != 0
    assert "--skip: expected a share of the 20 sublayers" in wrong.output
