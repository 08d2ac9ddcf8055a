"""``specframe models check``: whether a head fits a target, and whether its file is read rightly."""

from __future__ import annotations

import click
from specframe_std.command_options.options import DTYPES, whole

from specframe.cli.option_types import ModelType
from specframe.cli.tables import show_table
from specframe.errors import OptionError
from specframe.models.pairs import paired_target


@click.command()
@click.argument("drafter")
@click.option(
    "--target",
    metavar="T",
    type=ModelType(),
    help="The target: an alias, a directory or a hub id.  [default: that of the head's alias]",
)
@click.option("--device", metavar="D", default="auto", show_default=True, help="Device: auto, cpu, cuda or cuda:N.")
@click.option("--dtype", metavar="P", type=click.Choice(DTYPES), default="auto", show_default=True, help="Precision.")
@whole("--draft-length", "Draft tokens per round, for measuring acceptance.", 4)
@whole("--max-new-tokens", "Tokens per prompt, for measuring acceptance.", 128)
@whole("--limit", "Only the first N of the 8 built-in prompts.", 8)
@click.pass_context
def check(
    ctx: click.Context,
    drafter: str,
    target: str | None,
    device: str,
    dtype: str,
    draft_length: int,
    max_new_tokens: int,
    limit: int,
) -> None:
    """Check a head DRAFTER for a target: what its file says, what does not fit, and how much is accepted.

    Acceptance is measured as the file is read, and with its layer ids shifted by one in both directions: a wrong offset lowers
    acceptance and is no error otherwise. The exit status is 2 where something does not fit, and 3 where too little was measured to
    decide.
    """
    from transformers.utils.logging import disable_progress_bar

    from specframe_heads.doctor import examine, measured

    disable_progress_bar()
    if (target := target or paired_target(drafter)) is None:
        raise OptionError(f"--target: expected the model that {drafter} is for: only an alias says that by itself")
    patient = examine(drafter, target, device, dtype)
    findings = patient.findings
    if patient.fits:
        findings = [*findings, *measured(patient, draft_length, max_new_tokens, limit)]
    show_table(("", "subject", "finding"), [(one.mark, one.subject, one.text) for one in findings])
    ctx.exit(2 if any(one.wrong for one in findings) else 3 if any(one.unsure for one in findings) else 0)
