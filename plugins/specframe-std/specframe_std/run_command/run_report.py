"""The outcome of a run and its combination of strategies, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from specframe.cli.tables import per_second
from specframe.plugins.recipe import PLAIN
from specframe_std.output_file import MARK

if TYPE_CHECKING:
    from specframe.observe.counts import RunReport
    from specframe.pipeline import Pipeline

Facts = dict[str, Any]

LONG_RUN = 60.0
"""Seconds of a run from which worker processes pay on a CPU: to begin two takes 10 to 20 s, and they decode 1.2 to 1.8 times the
tokens of one process with as many threads."""

HALF = ("float16", "bfloat16")
"""Precisions in which two logits of a model are often equal, so that a batch of another shape takes the other token."""

TIES = "in {dtype} two logits may tie, and a tie may fall otherwise than one sequence at a time: specframe verify reports such ties"
"""What a combination that is declared lossless does not guarantee in half precision."""


@attrs.frozen
class DisplaySettings:
    """Display settings: which parts a run shows, and on which stream."""

    stream: bool = False
    """Show texts while they are generated."""
    quiet: bool = False
    """Show no progress and no figures."""
    verbose: bool = False
    """Show more of each completion, and the environment."""
    completions: bool = True
    """Show texts when they are complete."""
    err: bool = False
    """Show everything on standard error, since standard output is for JSON."""


@attrs.frozen
class RunOutcome:
    """The outcome of a run.

    Args:
        failed: number of failed prompts, unreadable prompts included.
        report: the run's figures, or None if there was nothing to decode.
        combination: names of models and strategies, "lossless", "device", "dtype", and the settings from "generation_config".
    """

    failed: int
    report: RunReport | None = None
    combination: Facts = attrs.Factory(dict)


def combination(pipe: Pipeline, options: Facts, greedy: bool, inherited: Facts) -> Facts:
    """Return the names of models and strategies, and whether their combination is declared lossless.

    Args:
        greedy: whether no prompt has a temperature.
        inherited: what prompts take from the generation config.
    """
    from specframe.models.pairs import choose, chosen_name
    from specframe.plugins.recipe import own_budget
    from specframe.text.generation import settings_text

    target, strategy, draft_model = choose(options["target"], options["drafter"])
    use = pipe.parts.strategies(pipe.recipe, greedy)
    chosen = options | {
        "accept": pipe.recipe.rule(greedy, use.drafter),
        "draft_length": pipe.recipe.length(use.rule, use.drafter if own_budget(use.drafter) else strategy),
        "target": target,
        "drafter": chosen_name(options["drafter"], strategy, draft_model),
        "schedule": options["schedule"] or use.alignment.scheduler,
        "kv": options["kv"] or use.alignment.kv,
    }
    roles = ("target", "drafter", "verify", "accept", "align", "schedule", "kv", "draft_length", "batch_size")
    place: Facts = {"device": str(pipe.device), "dtype": str(pipe.target_model.dtype).removeprefix("torch.")}
    names = {role: chosen[role] for role in roles}
    if given := options.get("load_options"):
        names["load_options"] = given
    place["bitwise"] = pipe.recipe.bitwise
    return {"lossless": bool(use.lossless)} | names | place | {"generation_config": settings_text(inherited)}


def summary(figures: Mapping[str, Any]) -> str:
    """Return one line that says in words what a run with these figures gained.

    A pass of the target gives each row a token of the target's own, and the accepted draft tokens before it.
    """
    tokens, passes = figures["tokens"], figures["target_forwards"]
    own = tokens - figures["num_accepted_draft_tokens"]
    said = f"{counted(figures['sequences'], 'sequence')}, {counted(tokens, 'token')} in {figures['seconds']:.2f} s"
    if not (own and passes):
        return said
    said += f" ({per_second(figures['tokens_per_second'])} a second): "
    every = f"and all rows {tokens / passes:.1f} with one pass of the target"
    if not figures["num_draft_tokens"]:
        return f"{said}nothing was drafted, so each row gained 1 token a round, {every}"
    gained = f"each row gained {tokens / own:.2f} tokens a round, where plain decoding gains 1"
    return f"{said}{gained}, {every}; for the time of plain decoding run the same with --drafter {PLAIN}"


def workers_offer(outcome: RunOutcome, executor: str) -> str | None:
    """Return a line that offers worker processes, where a run would have been shorter with them, or None.

    They pay on a CPU of several cores, where one batch after the other was decoded in one process for some time. They are not the
    default: their models take memory once more each, and a short run ends before they have begun.

    Args:
        outcome: of the run.
        executor: the executor that decoded it, by name.
    """
    import torch

    from specframe.plugins.registry import registry

    known, combined = registry(), outcome.combination
    if outcome.report is None or executor != known.default("executor") or not known.defaults.get("worker processes"):
        return None
    figures, cores = outcome.report.figures(), torch.get_num_threads()
    long = figures["seconds"] > LONG_RUN and figures["sequences"] > combined["batch_size"]
    if combined["device"] != "cpu" or cores == 1 or not long:
        return None
    asked = f"--executor {known.default('worker processes')},count=auto"
    return f"several processes decode more tokens a second on the {cores} cores of this CPU: run the same with {asked}"


def counted(count: int, thing: str) -> str:
    """Return a number of things in words."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def acceptance(combined: Facts) -> str:
    """Return one line that names the models and strategies and says whether these declare to be lossless together."""
    apart = ("lossless", "device", "dtype", "bitwise", "generation_config")
    named = ", ".join(f"{role.replace('_', ' ')} {name}" for role, name in combined.items() if role not in apart)
    kind = "declared lossless" if combined["lossless"] else "NOT lossless"
    ties = combined["lossless"] and combined["dtype"] in HALF and not combined["bitwise"]
    caveat = f"; {TIES.format(dtype=combined['dtype'])}" if ties else ""
    checkpoint = f"; generation config: {combined['generation_config']}" if combined["generation_config"] else ""
    return f"this combination is {kind}: {named}, on {combined['device']} in {combined['dtype']}{checkpoint}{caveat}"


def as_json(outcome: RunOutcome, settings: Facts) -> str:
    """Return a run's figures, settings, combination and environment as JSON."""
    from specframe_std.run_command.environment import environment

    found: Facts = {"generator": f"{MARK} run", "settings": settings, "failed": outcome.failed, "figures": None}
    if outcome.report:
        found["figures"] = outcome.report.figures()
        found["combination"] = outcome.combination
        found["environment"] = environment({outcome.combination["device"]})
    return json.dumps(found, indent=1) + "\n"
