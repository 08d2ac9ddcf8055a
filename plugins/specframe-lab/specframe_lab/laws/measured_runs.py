"""What runs have shown of each drafter: rounds and accepted tokens of every prompt, and tokens per second."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from specframe.errors import OptionError, literal, sentence
from specframe.files import contents
from specframe.value_checks import number_within, whole_within
from specframe_lab.comparison.schemes import SETTING

PLAIN = "none"
"""The drafter of plain decoding."""
GRID = ("batch_size", "draft_length")
"""What budgets depend on."""
COUNTS = ("spec_steps", "accepted")
"""The counts of every prompt in a line of ``specframe compare``."""
METRICS = ("num_spec_steps", "num_accepted_draft_tokens")
"""The same counts in a line of ``specframe run --output``, which has one prompt."""


@attrs.frozen(eq=False)
class MeasuredRun:
    """One run, or all lines of one run."""

    setting: tuple[str, ...]
    """The file that has it and, of a comparison, what it shares with plain decoding: target, device, precision and seed."""
    scheme: str
    """What drafts and how rows are kept together, apart from draft length and batch size."""
    drafter: str
    draft_length: int
    """Tokens drafted in a round, or 0 for plain decoding."""
    batch_size: int
    repeat: int
    steps_P: np.ndarray
    """Rounds with a draft, of each prompt."""
    accepted_P: np.ndarray
    """Accepted draft tokens of each prompt."""
    speed: float | None
    """Tokens per second, or None if the results have no times."""


def read_runs(files: Sequence[str]) -> list[MeasuredRun]:
    """Return the runs in results of ``specframe compare`` and ``specframe run``.

    Runs that failed are left out, and those whose draft length is a policy: their rounds have no one length.

    Raises:
        OptionError: a file cannot be read, has a line that is no result, or there is no run in all of them.
    """
    found = [run for file in files for run in runs_of(file)]
    if not found:
        raise OptionError(
            f"{', '.join(files)}: expected results of runs with a draft length in numbers, as in --draft-length 4, got none"
        )
    return found


def runs_of(file: str) -> list[MeasuredRun]:
    """Return the runs of one file."""
    try:
        texts = contents(file).decode().splitlines()
    except (OSError, ValueError) as error:
        raise OptionError(f"argument RESULTS: {literal(file)} cannot be read: {reason(error)}") from error
    compared: list[MeasuredRun] = []
    single: dict[str, list[tuple[int, ...]]] = {}
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
            if "cell" in line:
                compared += [run_of(file, line)] if is_used(line) else []
            elif line["settings"]["draft_length"].isdecimal() and "metrics" in line:
                counts = line["index"], *(line["metrics"][name] for name in METRICS)
                single.setdefault(json.dumps(line["settings"], sort_keys=True), []).append(counts)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            missing = f" without {literal(error.args[0])}" if isinstance(error, KeyError) else ""
            raise OptionError(
                f"{file} line {number} is no result{missing}: expected lines as in results.jsonl of specframe compare, or in "
                "the file of specframe run --output"
            ) from None
    return compared + [joined(file, json.loads(settings), lines) for settings, lines in single.items()]


def reason(error: Exception) -> str:
    """Return why a file cannot be read."""
    return error.strerror or sentence(error) if isinstance(error, OSError) else sentence(error)


def is_used(line: Mapping[str, Any]) -> bool:
    """Return whether a line of a comparison is of a run that came to its end, with drafts of one length, or plain decoding."""
    if "error" in line:
        return False
    cell = line["cell"]
    return bool(line["plain"]) or (cell["drafter"] != PLAIN and cell["draft_length"].isdecimal())


def run_of(file: str, line: Mapping[str, Any]) -> MeasuredRun:
    """Return the run of a line of a comparison."""
    cell, speed, plain = line["cell"], line["figures"]["tokens_per_second"], line["plain"]
    steps, accepted = ([0] if plain else line[name] for name in COUNTS)
    if not number_within(speed, 0) or not whole_within(cell["batch_size"], 1):
        raise ValueError
    return MeasuredRun(
        (file, *(str(cell.get(option)) for option in SETTING)),
        json.dumps({option: value for option, value in cell.items() if option not in GRID}, sort_keys=True),
        cell["drafter"],
        0 if plain else int(cell["draft_length"]),
        cell["batch_size"],
        line["repeat"],
        whole(steps),
        whole(accepted),
        float(speed),
    )


def joined(file: str, settings: Mapping[str, Any], counts: Iterable[tuple[int, ...]]) -> MeasuredRun:
    """Return the run of its lines, in the order of their prompts."""
    _, steps, accepted = zip(*sorted(counts), strict=True)
    setting, scheme = (file, str(settings["target"])), json.dumps(settings, sort_keys=True)
    drafter, length = str(settings["drafter"]), int(settings["draft_length"])
    return MeasuredRun(setting, scheme, drafter, length, settings["batch_size"], 0, whole(steps), whole(accepted), None)


def whole(values: Sequence[int]) -> np.ndarray:
    """Return counts as an array; raise :class:`ValueError` for anything else."""
    if not values or not all(whole_within(value, 0) for value in values):
        raise ValueError
    return np.array(values)


def by_prompt(runs: Sequence[MeasuredRun], option: str) -> tuple[np.ndarray, np.ndarray]:
    """Return rounds and accepted tokens of runs, (N, P) each: prompts are resampled for all runs alike.

    Raises:
        OptionError: they have not the same number of prompts; ``option`` asks for them.
    """
    counts = sorted({len(run.steps_P) for run in runs})
    if len(counts) > 1:
        raise OptionError(
            f"{option}: expected runs of the same prompts, got some of {counts[0]} and some of {counts[-1]} prompts"
        )
    return np.stack([run.steps_P for run in runs]), np.stack([run.accepted_P for run in runs])
