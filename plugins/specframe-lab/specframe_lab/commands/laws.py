"""``specframe laws``: acceptance by a draft's training and depth, and the best budget by batch size, fitted to runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from specframe_std.command_options.options import DTYPES, MODELS, choice_option, refuse_idle, whole, with_options

from specframe.cli.option_types import File, OneOf, TextType
from specframe.cli.tables import show_table
from specframe.errors import OptionError
from specframe.value_checks import LARGEST_SEED
from specframe_lab.commands.modelled_options import NUMBERS

if TYPE_CHECKING:
    from specframe_lab.laws.acceptance_laws import AcceptanceLaw
    from specframe_lab.laws.budget_laws import Budgets
    from specframe_lab.laws.draft_choice import DraftChoice
    from specframe_lab.laws.law_tables import Table

MOST_RESAMPLES = 100_000
"""Most resamples: an interval no longer changes in a digit that is shown, and each takes memory."""


@click.command()
@click.argument("results", nargs=-1, required=True, metavar="RESULTS...", type=File())
@click.option(
    "--drafts",
    metavar="FILE",
    type=File(),
    help="How drafts were trained: CSV or JSON with the columns drafter, tokens and layers.",
)
@whole("--draft-length", "Fit acceptance of runs with this draft length.  [default: the one that most drafts have]")
@whole("--resamples", "Resamples of the bootstrap.", 2000, most=MOST_RESAMPLES)
@whole("--seed", "Of the resamples.", 0, least=0, most=LARGEST_SEED)
@click.option(
    "--device-profile",
    metavar="P",
    type=TextType(),
    help="Predict the fastest draft on a device: a100, b200, h100, h200, or a file of `specframe predict --measure`.",
)
@with_options(MODELS)
@choice_option("--batch-size", "N,...", NUMBERS, "Batch sizes to predict for.", "1,8,32")
@click.option(
    "--draft-tokens",
    metavar="N,...",
    type=NUMBERS,
    help="Training tokens to predict for.  [default: the most in --drafts]",
)
@click.option(
    "--draft-layers", metavar="N,...", type=NUMBERS, help="Depths to choose from.  [default: those in --drafts]"
)
@whole("--context", "Tokens of each row in the cache, to predict for.", 512)
@choice_option("--dtype", "T", OneOf(*DTYPES), "Precision to predict for; auto: that of the files.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, residuals among it.")
@click.pass_context
def laws(
    ctx: click.Context,
    results: tuple[str, ...],
    drafts: str | None,
    draft_length: int | None,
    resamples: int,
    seed: int,
    device_profile: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Fit how acceptance grows with a draft's training and depth, and the best budget by batch size.

    RESULTS are lines of `specframe compare` (results.jsonl) or of `specframe run --output`. Laws are straight lines over
    logarithms, with 95% intervals of a bootstrap over prompts. Each is checked with drafts, or a batch size, that it was not
    fitted to. With --device-profile the law of acceptance and the costs of the models give the fastest draft and draft length.
    """
    for option in ("target", "drafter", "batch_size", "draft_tokens", "draft_layers", "context", "dtype"):
        refuse_idle(ctx, option, "device_profile", "nothing is predicted")
    refuse_idle(ctx, "device_profile", "drafts", "no law of acceptance is fitted")
    refuse_idle(ctx, "draft_length", "drafts", "no law of acceptance is fitted")
    from specframe_lab.laws.acceptance_laws import acceptance_of
    from specframe_lab.laws.budget_laws import budgets_of
    from specframe_lab.laws.draft_table import read_drafts
    from specframe_lab.laws.law_tables import record
    from specframe_lab.laws.measured_runs import read_runs

    family = read_drafts(drafts) if drafts else []
    runs = read_runs(results)
    acceptance = acceptance_of(runs, family, draft_length, resamples, seed) if drafts else None
    budgets = budgets_of(runs, resamples, seed)
    if not acceptance and not budgets:
        raise OptionError(
            "expected --drafts, or a drafter that was timed at two batch sizes and at two draft lengths of each, got neither: "
            "there is no law to fit"
        )
    choices = chosen(acceptance, device_profile, **asked) if acceptance and device_profile else []
    if as_json:
        click.echo(json.dumps(record(acceptance, budgets, choices)))
    else:
        show(acceptance, budgets, choices)


def chosen(
    acceptance: AcceptanceLaw,
    device_profile: str,
    *,
    target: str | None,
    drafter: str,
    batch_size: list[int],
    draft_tokens: list[int] | None,
    draft_layers: list[int] | None,
    context: int,
    dtype: str,
) -> list[DraftChoice]:
    """Return the fastest drafts on a device."""
    from specframe_lab.laws.draft_choice import choose_drafts, with_layers
    from specframe_lab.prediction.model_costs import costs_of
    from specframe_lab.prediction.pair import configurations, precision_of
    from specframe_lab.prediction.profiles import read_profile

    profile = read_profile(device_profile)
    of_target, of_draft = configurations(target, drafter)
    if of_draft is None:
        raise OptionError(
            "--drafter: expected a draft model, whose shape the drafts have but for their layers, got none"
        )
    precision = precision_of(dtype)
    return choose_drafts(
        acceptance,
        costs_of(of_target, precision),
        lambda layers: costs_of(with_layers(of_draft, layers), precision),
        profile,
        tokens=draft_tokens or [max(draft.tokens for draft in acceptance.drafts)],
        layers=draft_layers or sorted({draft.layers for draft in acceptance.drafts}),
        batch_sizes=batch_size,
        context=context,
    )


def show(acceptance: AcceptanceLaw | None, budgets: list[Budgets], choices: list[DraftChoice]) -> None:
    """Print tables, each under its title."""
    from specframe_lab.laws.law_tables import acceptance_tables, budget_tables, choice_table
    from specframe_lab.laws.published_laws import SOURCE

    for table in acceptance_tables(acceptance) if acceptance else []:
        show_titled(table)
    for one in budgets:
        for table in budget_tables(one):
            show_titled(table)
        click.echo(f"num_speculative_tokens_per_batch_size of vLLM: {json.dumps(one.schedule)}\n")
    if choices:
        show_titled(choice_table(choices))
    click.echo(f"published: {SOURCE}", err=True)


def show_titled(table: Table) -> None:
    """Print one table."""
    title, columns, rows = table
    click.echo(title)
    show_table(columns, rows, numbers=True)
    click.echo()
