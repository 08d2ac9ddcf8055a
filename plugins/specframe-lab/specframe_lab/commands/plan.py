"""``specframe plan``: what a pair takes of memory, what fits into a budget, and how little suffices."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import click
from specframe_std.command_options.options import PROMPTS_FILE, choice_option, whole, with_options

from specframe.cli.option_types import Bytes, File, StrategyType
from specframe.cli.tables import per_second, show_table
from specframe.errors import OptionError
from specframe_lab.commands.modelled_options import modelled

if TYPE_CHECKING:
    from specframe_lab.planning.candidates import Candidate, CandidatePlan, Speed

CONTEXT = 512
"""Tokens of a prompt where nothing else is said: those of `specframe predict`."""


@click.command()
@with_options(modelled("1,2,4,8", "1,3,5,8"))
@click.option("--memory", metavar="BYTES", type=Bytes(), help="Bytes that there are, as 22GB.")
@choice_option(
    "--kv",
    "B",
    StrategyType("KV backend"),
    "KV backend: how keys and values are stored.",
    shown="the alignment's choice",
)
@whole("--prompt-tokens", f"Tokens of the longest prompt, {CONTEXT} where there are no --prompts.")
@with_options([PROMPTS_FILE])
@whole("--max-new-tokens", "Tokens generated per prompt.", 128)
@click.option(
    "--measured",
    metavar="FILE",
    type=File(),
    help="Speeds as they were measured, in the place of modelled ones: a results.jsonl of `specframe compare`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def plan(
    target: str | None,
    drafter: str,
    memory: int | None,
    batch_size: list[int],
    draft_length: list[int],
    kv: str | None,
    prompt_tokens: int | None,
    prompts: str | None,
    max_new_tokens: int,
    dtype: str,
    device_profile: str,
    acceptance: str | None,
    measured: str | None,
    as_json: bool,
) -> None:
    """Plan the memory of a pair: what fits, by parts, how fast it is, the least that runs, and the knee.

    No weights are loaded: the bytes are counted on torch's device meta, where tensors have shapes alone. Tokens per second are
    modelled as by `specframe predict`, or those of --measured. The knee is the least memory that keeps 96% of the greatest speed.
    """
    from specframe_memory.footprint import Workload
    from specframe_memory.memory_plan import ladder_of
    from specframe_memory.meta_parts import named_parts

    from specframe.plugins.recipe import Recipe, own_budget
    from specframe.plugins.registry import registry
    from specframe_lab.planning.candidates import CandidatePlan, candidates
    from specframe_lab.prediction.pair import precision_of

    if prompts is not None and prompt_tokens is not None:
        raise OptionError("--prompt-tokens: expected it or --prompts, got both")
    speed = speed_of(
        target, drafter, dtype, device_profile, acceptance, measured, (prompt_tokens or CONTEXT) + max_new_tokens // 2
    )
    recipe = Recipe(target, drafter, kv=kv, batch_size=max(batch_size), draft_length=str(max(draft_length))).checked()
    recipe = recipe.named(registry())
    tokens = prompt_tokens or (CONTEXT if prompts is None else longest_prompt(target, drafter, prompts))
    parts = named_parts(recipe, precision_of(dtype))
    load = Workload(max(batch_size), tokens, tokens + max_new_tokens)
    ladder = ladder_of(recipe, parts, True)

    def nodes(length: int) -> int:
        own = own_budget(parts.composition.drafter, length) if length else None
        return length if own is None else own.nodes

    found = CandidatePlan([*candidates(ladder, load, batch_size, draft_length, speed, nodes)], memory)
    if not found.candidates:
        raise OptionError("--measured: expected runs of these batch sizes and draft lengths, got none")
    if as_json:
        click.echo(json.dumps(record(found, load)))
    else:
        show(found, None if measured is not None else device_profile, acceptance)
    found.require_fitting()


def speed_of(
    target: str | None,
    drafter: str,
    dtype: str,
    device_profile: str,
    acceptance: str | None,
    measured: str | None,
    context: int,
) -> Speed:
    """Return the speed by rows and drafted tokens: as it was measured, or modelled."""
    from specframe_lab.planning.candidates import measured_speeds

    if measured is not None:
        found = measured_speeds(measured)
        return lambda rows, length: found.get((rows, length))
    from specframe_lab.prediction.predict import predictor, read_acceptance

    rate = None if acceptance is None else read_acceptance(acceptance)
    predict_of = predictor(target, drafter, dtype, device_profile, rate, context)

    def modelled(rows: int, length: int) -> float:
        *_, one = predict_of(batch_sizes=[rows], draft_lengths=[length] if length else [])
        return one.tokens_per_second

    return modelled


def longest_prompt(target: str | None, drafter: str, file: str) -> int:
    """Return the tokens of a file's longest prompt."""
    from specframe.engine.encoding import encode_prompt
    from specframe.models.loading import load_tokenizer
    from specframe.models.pairs import choose
    from specframe_lab.commands.grids import readable

    name, _, _ = choose(target, drafter)
    tokenizer = load_tokenizer(name)
    return max(len(one) if isinstance(one, list) else len(encode_prompt(one, tokenizer)) for one in readable((), file))


def record(found: CandidatePlan, load: Any) -> dict[str, Any]:
    """Return a plan as JSON has it."""
    drafting, chosen = found.least_drafting, found.chosen
    return {
        "memory": found.budget,
        "prompt_tokens": load.prompt,
        "new_tokens": load.longest - load.prompt,
        "chosen": chosen and attrs.asdict(chosen),
        "best": attrs.asdict(found.best),
        "knee": attrs.asdict(found.knee),
        "least": attrs.asdict(found.least),
        "least_drafting": drafting and attrs.asdict(drafting),
        "candidates": [attrs.asdict(one) for one in found.candidates],
    }


def show(found: CandidatePlan, modelled_for: str | None, acceptance: str | None) -> None:
    """Print a plan: its candidates as a table, those worth choosing, and the parts of the chosen one if one fits.

    ``modelled_for`` is the device profile, or None where tokens per second were measured.
    """
    from specframe_lab.prediction.profiles import assumed

    if modelled_for is None:
        click.echo("tokens per second: as they were measured", err=True)
    else:
        click.echo(assumed(modelled_for), err=True)
        click.echo(
            "tokens per second: modelled"
            + ("" if acceptance else ", with every draft token accepted: the most there can be"),
            err=True,
        )
    best = found.best.tokens_per_second
    fitting = {id(one) for one in found.fitting}
    rows = [
        [
            str(one.batch_size),
            str(one.draft_length or "none"),
            in_gigabytes(one.bytes),
            in_gigabytes(one.kv_bytes),
            per_second(one.tokens_per_second),
            f"{one.tokens_per_second / best:.0%}",
            "yes" if id(one) in fitting else "no",
        ]
        for one in found.candidates
    ]
    show_table(
        ["batch size", "draft length", "bytes", "KV cache", "tokens/s", "of the best", "fits"], rows, numbers=True
    )
    chosen = found.chosen
    lines = {"chosen": chosen, "knee": found.knee, "least": found.least, "least with a drafter": found.least_drafting}
    for name, one in lines.items():
        if one is not None:
            click.echo(f"{name}: {described(one)}")
    if chosen is None:
        return
    click.echo("parts of the chosen one:")
    for part, count in sorted(chosen.parts.items(), key=lambda both: -both[1]):
        click.echo(f"  {part}: {in_gigabytes(count)}")


def described(one: Candidate) -> str:
    """Return a candidate in words, with the options that decode so."""
    drafting = f"--draft-length {one.draft_length}" if one.draft_length else "--drafter none"
    return f"--batch-size {one.batch_size} {drafting}, {in_gigabytes(one.bytes)}, {per_second(one.tokens_per_second)} tokens/s"


def in_gigabytes(count: int) -> str:
    """Return bytes as a table shows them."""
    return f"{count / 1e9:.3f} GB" if count >= 10**9 else f"{count / 1e6:.3f} MB"
