"""Names become strategies; what cannot work together is refused with what can."""

from __future__ import annotations

from typing import Any

import pytest
from specframe_std.acceptance.block import BlockVerification
from specframe_std.acceptance.greedy import Greedy
from specframe_std.alignments.ragged import Ragged
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_std.kv.dynamic import Dynamic
from specframe_std.policies.fixed_length import FixedLength
from specframe_testing import harness, zoo

from specframe.contracts.drafts import Budget
from specframe.errors import CompositionError, OptionError, PluginError
from specframe.plugins.compose import Composition, compose, draft_length_policy
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry
from specframe.text.sampling import Sampling

DEFAULTS = {"drafter": "none", "verify": "chain", "accept": "greedy", "align": "ragged", "draft_length": 5}


class Sprouting(ModelDrafter):
    """A drafter that nobody registers."""


class Wanting(Greedy):
    """A rule that wants something of which nobody has heard."""

    needs = frozenset({"wind"})


def composed(**options) -> Composition:
    """Compose the defaults but for some options."""
    options = {**DEFAULTS, **options}
    return compose(registry(), Recipe(**options), options["drafter"])


def test_nothing_fits_an_alignment_with_needs_of_its_own():
    """An alignment that needs what no strategy offers is refused, and no strategy is named that lacks another word."""
    needy = registry().make("alignment", "ragged")
    needy.needs = frozenset({"scatter", "grow"})
    with pytest.raises(CompositionError, match=r"needs 'scatter' .* does not offer it, as none that is installed does"):
        composed(align=needy, kv="dynamic")
    needy.needs = frozenset({"teleport"})
    with pytest.raises(CompositionError, match=r"needs 'teleport' to be offered, and no other strategy does$"):
        composed(align=needy)
    needy.needs = frozenset({"scater"})
    with pytest.raises(CompositionError, match=r"no other strategy does; did you mean 'scatter'\?$"):
        composed(align=needy)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"drafter": "model,branch=2/2", "align": "masking"}, "drafter 'model,branch=2/2' .* alignment 'masking' does"),
        (
            {"drafter": ModelDrafter(branch="2/2"), "accept": BlockVerification()},
            "drafter 'model' .* acceptance rule 'block' does",
        ),
        (
            {"drafter": Sprouting(branch="2/2"), "accept": BlockVerification()},
            "drafter 'Sprouting' .* rule 'block' does",
        ),
        ({"drafter": "model", "accept": Wanting()}, "acceptance rule 'Wanting' needs 'wind' .* no other strategy does"),
        ({"align": Ragged(), "kv": Dynamic()}, "alignment 'ragged' .* KV backend 'dynamic' does"),
    ],
)
def test_parts_are_named_as_they_were_asked_for(options: dict[str, Any], said: str) -> None:
    """A text is shown as it was given, an object by the name it is registered under, else by its class."""
    with pytest.raises(CompositionError, match=f"^{said}"):
        composed(**options)


@pytest.mark.wide
@pytest.mark.parametrize("given", [0, "-1", None, True])
def test_draft_lengths_out_of_range(given):
    """A draft length below 1, or none at all, is refused."""
    with pytest.raises(OptionError, match="at least 1"):
        draft_length_policy(registry(), given)


@pytest.mark.wide
def test_a_draft_as_long_as_the_context_is_refused() -> None:
    """It could never be used, and its slots would take the memory."""
    target = zoo.build("llama")
    context = target.config.max_position_embeddings
    with pytest.raises(OptionError, match=f"fewer tokens than the target's context of {context}, got {context}$"):
        harness.pipeline(target, None, draft_length=context)
    harness.pipeline(target, None, draft_length=context - 1)


def test_a_run_that_samples_keeps_its_draft_length() -> None:
    """By default block accepts it, whose tokens depend on the draft length: a seed gives the same tokens twice."""
    target = zoo.build("qwen3")
    pipe = harness.pipeline(target, zoo.good_draft(target), batch_size=2)
    assert type(pipe.parts.strategies(pipe.recipe, greedy=True).policy).__name__ == "Goodput"
    sampled = pipe.parts.strategies(pipe.recipe, greedy=False)
    assert (type(sampled.policy).__name__, sampled.policy.maximum.depth) == ("FixedLength", 5)
    assert "draft-invariant" not in sampled.rule.offers
    prompts, how = harness.random_prompts([3, 9, 5], zoo.VOCABULARY), Sampling(temperature=0.9)
    once, again = ([result.token_ids for result in pipe.generate(prompts, 12, sampling=how)] for _ in range(2))
    assert once == again


@pytest.mark.wide
@pytest.mark.parametrize(("role", "kind"), [("kv", "KV backend"), ("scheduler", "scheduler")])
def test_an_alignment_whose_own_strategy_is_not_installed(role: str, kind: str) -> None:
    """An alignment may ask for a KV backend or a scheduler of another plugin; where that is missing, both are named."""
    wishing = Ragged()
    setattr(wishing, role, "elsewhere")
    said = f"^alignment 'ragged' asks for a {kind} that is not installed: .*'elsewhere'"
    with pytest.raises(PluginError, match=said):
        composed(align=wishing)


@pytest.mark.wide
def test_a_policy_with_a_maximum_below_0() -> None:
    """A policy's maximum is what caches and graphs are made for."""
    negative = FixedLength(3)
    negative.maximum = Budget(-1, -1)
    with pytest.raises(PluginError, match=r"^draft-length policy 'fixed': expected a maximum of at least 0, got -1$"):
        draft_length_policy(registry(), negative)
