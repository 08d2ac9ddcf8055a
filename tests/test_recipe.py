"""The recipe: every option of a run has one default, which all who offer the option read there."""

from __future__ import annotations

import inspect
from typing import Any

import attrs
import pytest

from specframe import Pipeline, assisted
from specframe.cli import cli
from specframe.plugins.compose import compose
from specframe.plugins.recipe import DEFAULTS, Recipe
from specframe.plugins.registry import registry

OPTIONS = attrs.asdict(DEFAULTS, recurse=False)


def defaults(function: Any) -> dict[str, Any]:
    """Return the defaults of a function's parameters."""
    found = {name: one.default for name, one in inspect.signature(function).parameters.items()}
    return {name: value for name, value in found.items() if value is not inspect.Parameter.empty}


@pytest.mark.wide
def test_a_pipeline_takes_the_options_of_a_recipe() -> None:
    """The signature has the recipe's options, in the same order, with the same defaults."""
    assert list(defaults(Pipeline).items()) == list(OPTIONS.items())


@pytest.mark.wide
def test_the_command_line_has_the_recipes_defaults() -> None:
    """Options of ``run`` that a recipe has, too, have its defaults; all of a recipe's are there but for objects."""
    above = cli.context_class(cli, info_name="specframe", **cli.context_settings)
    given = cli.get_command(above, "run").make_context("run", [], parent=above).params
    found = {name: value for name, value in given.items() if name in OPTIONS}
    left_open = {"align": "alignment", "verify": "verifier", "executor": "executor"}
    resolved = {name: registry().default(purpose) for name, purpose in left_open.items()}
    assert found == {name: OPTIONS[name] for name in found} | resolved
    assert set(OPTIONS) - set(found) == {"tokenizer", "observers"}


@pytest.mark.wide
@pytest.mark.parametrize("name", ["draft_length", "align", "accept", "kv"])
def test_the_drop_in_has_the_recipes_defaults(name: str) -> None:
    """Strategies inside ``generate`` default to those of a pipeline."""
    assert defaults(assisted)[name] == OPTIONS[name]


@pytest.mark.wide(but=["{'accept': 'gumbel'}-False-gumbel-goodput"])
@pytest.mark.parametrize(
    ("given", "greedy", "rule", "length"),
    [
        ({}, True, "greedy", "goodput"),
        ({}, False, "block", "5"),
        ({"accept": "gumbel"}, False, "gumbel", "goodput"),
        ({"accept": "rejection"}, True, "rejection", "5"),
        ({"draft_length": 3}, False, "block", 3),
    ],
    ids=str,
)
def test_what_auto_stands_for(given: dict[str, Any], greedy: bool, rule: str, length: Any) -> None:
    """The acceptance rule follows the temperature, and the draft length the acceptance rule, unless they are named."""
    asked = Recipe(drafter="prompt-lookup", **given)
    use = compose(registry(), asked, asked.drafter)
    use = use if greedy else use.sampling(registry(), asked)
    assert asked.rule(greedy) == rule
    assert type(use.rule) is registry().entry("acceptance rule", rule).factory
    assert asked.length(use.rule, asked.drafter) == length
