"""What a run was made with and what came of it, as JSON and as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

from specframe.errors import OptionError
from specframe.files import MARK

if TYPE_CHECKING:
    from specframe.observe.counts import RunReport
    from specframe.pipeline import Pipeline
    from specframe.text.sampling import Sampling

Facts = dict[str, Any]


@attrs.frozen
class Outcome:
    """What came of a run.

    Args:
        failed: prompts that failed, those that could not be read among them.
        report: the run's figures; None when there was nothing to decode.
        combination: what was combined, "lossless", "device", "dtype", and the settings that "generation_config" adds.
    """

    failed: int
    report: RunReport | None = None
    combination: Facts = attrs.Factory(dict)


def combination(pipe: Pipeline, options: Facts, samplings: list[Sampling], max_new_tokens: int) -> Facts:
    """Return the names of what was combined, and whether the output is the target's own."""
    from specframe.models.pairs import choose
    from specframe.text.generation import inherited, told

    target, strategy, draft_model = choose(options["target"], options["drafter"])
    settings = [one for one in pipe.intake.settings(samplings, max_new_tokens) if not isinstance(one, OptionError)]
    greedy = all(one.greedy for one in settings)
    use = pipe.parts.strategies(pipe.recipe, greedy)
    chosen = options | {
        "accept": pipe.recipe.rule(greedy),
        "draft_length": pipe.recipe.length(use.rule, strategy),
        "target": target,
        "drafter": draft_model or strategy,
        "schedule": options["schedule"] or use.alignment.scheduler,
        "kv": options["kv"] or use.alignment.kv,
    }
    roles = ("target", "drafter", "verify", "accept", "align", "schedule", "kv", "draft_length", "batch_size")
    place = {"device": str(pipe.target_model.device), "dtype": str(pipe.target_model.dtype).removeprefix("torch.")}
    names = {role: chosen[role] for role in roles}
    return {"lossless": bool(use.lossless)} | names | place | {"generation_config": told(inherited(settings))}


def verdict(combined: Facts) -> str:
    """Return one line that names what was combined and says whether the output is the target's own."""
    apart = ("lossless", "device", "dtype", "generation_config")
    named = ", ".join(f"{role.replace('_', ' ')} {name}" for role, name in combined.items() if role not in apart)
    kind = "lossless" if combined["lossless"] else "NOT lossless"
    checkpoint = f"; generation config: {combined['generation_config']}" if combined["generation_config"] else ""
    return f"this combination is {kind}: {named}, on {combined['device']} in {combined['dtype']}{checkpoint}"


def as_json(outcome: Outcome, settings: Facts) -> str:
    """Return a run's figures with all that they depend on, as JSON."""
    from specframe.cli.environment import environment

    found: Facts = {"generator": f"{MARK} run", "settings": settings, "failed": outcome.failed, "figures": None}
    if outcome.report:
        found["figures"] = outcome.report.figures()
        found["combination"] = outcome.combination
        found["environment"] = environment({outcome.combination["device"]})
    return json.dumps(found, indent=1) + "\n"
