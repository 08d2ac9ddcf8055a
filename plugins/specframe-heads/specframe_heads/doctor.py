"""The format doctor: reads a head and a target, names what does not fit, and measures acceptance with other layer ids.

A head that is read wrongly drafts badly and raises no error: the output is the target's own all the same. Each cause has a line
here: another target, missing or further tensors, a vocabulary mapping read as ids, norm flags that a file leaves open, and
layer ids that mean other hidden states.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specframe.contracts.requests import Result
from specframe.errors import ModelError, OptionError, SpecframeWarning
from specframe.models import loading
from specframe.pipeline import Pipeline
from specframe.plugins.registry import quote
from specframe.text.prompts.builtin import BUILT_IN
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.formats.format import Format
from specframe_heads.formats.recognised import format_of
from specframe_heads.head_vocabulary import looks_like_ids
from specframe_heads.target import Target

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "layernorms", "fusion_bias")
"""Flags that change what a head computes. Engines disagree on what holds where a file leaves one out."""

CLEARLY, ERRORS = 0.1, 3
"""By how much more than the file as read an offset has to be accepted to be reported as the right one: tokens per round, and
standard errors. Less may be chance over a few prompts."""

RIGHT = 1
"""Standard errors by which the file as read has to be accepted more than with any offset to be reported as right: few files are
wrong, and a wrong one would need such luck twice, since another offset is right then."""

PAIRS = 4
"""Prompts whose differences are enough for a standard error. Texts differ more in how well they are foreseen than offsets do."""

SHIFTS = (0, -1, 1)
"""The shifts of layer ids that are measured. Formats differ by one."""

MOST_TOLD = 3
"""The most tensors that are not needed of which each is listed with the reason."""


@attrs.frozen
class Finding:
    """One line of a report."""

    subject: str
    text: str
    wrong: bool = False
    unsure: bool = False
    """Whether what was measured allows no conclusion."""

    @property
    def mark(self) -> str:
        """A word for the first column."""
        return "WRONG" if self.wrong else "UNSURE" if self.unsure else "ok"


@attrs.frozen(eq=False)
class Patient:
    """A head and a target that were read, and what was found."""

    checkpoint: Checkpoint
    format: Format
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    findings: list[Finding]

    @property
    def fits(self) -> bool:
        """Whether the head can be run."""
        return not any(one.wrong for one in self.findings)


def examine(drafter: str, target: str | PreTrainedModel, device: str = "auto", dtype: str = "auto") -> Patient:
    """Read a head and a target, and return all that the files say.

    Raises:
        ModelError: one of them cannot be read, or the head is of no known format.
    """
    checkpoint = Checkpoint.open(drafter)
    format = format_of(checkpoint)
    place = loading.pick_device(device)
    model = loading.load_model(target, "target", place, loading.pick_dtype(dtype, place))
    findings = [Finding("format", f"{format.name}, for the drafter {format.drafter!r}")]
    try:
        findings += [*layers_of(checkpoint, format, Target(model)), *mapping_of(checkpoint), *flags_of(checkpoint)]
        findings += tensors_of(checkpoint, format, Target(model))
    except ModelError as error:
        findings.append(Finding("tensors", str(error), wrong=True))
    tokenizer = None
    try:
        tokenizer = loading.load_tokenizer(target)
    except ModelError as error:
        findings.append(Finding("prompts", f"token ids instead of texts: {error}"))
    return Patient(checkpoint, format, model, tokenizer, findings)


def layers_of(checkpoint: Checkpoint, format: Format, target: Target) -> Iterator[Finding]:
    """Say which hidden states the head is fed, and whether the target has them."""
    ids, read = format.ids(checkpoint, target.layers), format.layers(checkpoint, target.layers)
    meaning = f"id k is hidden state k{f' + {format.offset}' if format.offset else ''}"
    text = f"{list(ids)} of {target.layers} layers, {meaning} in this format: hidden states {list(read)}"
    outside = [one for one in read if not 0 <= one <= target.layers + 1]  # the last: before the final norm
    twice = len(set(read)) < len(read)
    if outside or twice:
        expected = f"expected different ones from 0 to {target.layers + 1}"
        yield Finding("layer ids", f"{text}; {expected}, so this head is for a target of another depth", wrong=True)
    else:
        yield Finding("layer ids", text)


def mapping_of(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Say which part of the target's vocabulary the head drafts, and whether ``d2t`` and ``t2d`` say the same."""
    if "d2t" not in checkpoint.names:
        yield Finding("vocabulary", "no d2t: the head's ids are the target's")
        return
    found = checkpoint.load(lambda name: name in ("d2t", "t2d"))
    d2t, t2d = found["d2t"].long(), found.get("t2d")
    ids = torch.arange(len(d2t)) + d2t
    if t2d is not None and sorted(ids.tolist()) != t2d.nonzero()[:, 0].tolist():
        seems = ": d2t seems to have ids where offsets are expected" if looks_like_ids(d2t, len(t2d)) else ""
        told = f"d2t leads to {len(ids.unique())} ids and t2d marks {int(t2d.sum())} others{seems}"
        yield Finding(
            "vocabulary", f"{told}; expected offsets d2t[i], so that i + d2t[i] is an id that t2d marks", wrong=True
        )
        return
    yield Finding("vocabulary", f"{len(d2t)} of the target's tokens, by offsets in d2t")


def flags_of(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Say which flags a file sets, and which of those that matter it leaves open."""
    config = checkpoint.config
    known = [flag for flag in FLAGS if flag in config]
    if known:
        yield Finding("flags", ", ".join(f"{flag} {str(bool(config[flag])).lower()}" for flag in known))
    if config.get("speculators_model_type") in ("eagle3", "peagle") and "norm_before_residual" not in config:
        told = "norm_before_residual is not in config.json: read as false, as the format's library does; some engines take true"
        yield Finding("flags", told)


def tensors_of(checkpoint: Checkpoint, format: Format, target: Target) -> Iterator[Finding]:
    """Make the head, and say which keys are not known and which tensors are not needed.

    Raises:
        ModelError: the head cannot be made, or has a tensor that is not read.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", SpecframeWarning)
        _, tensors = format.read(checkpoint, target)
    yield from (Finding("keys", str(one.message), unsure=True) for one in told if one.category is SpecframeWarning)
    left = "".join(f"; {name} is not needed: {why}" for name, why in sorted(tensors.ledger.left.items())[:MOST_TOLD])
    more = len(tensors.ledger.left) - MOST_TOLD
    yield Finding(
        "tensors", f"all are read, of the target's sizes{left}{f'; {more} more are not needed' if more > 0 else ''}"
    )


def measured(patient: Patient, draft_length: int, new: int, limit: int) -> Iterator[Finding]:
    """Measure acceptance on built-in prompts, as the file is read and with other layer ids.

    Yields:
        A line with the figures, and one with what follows from them.
    """
    shifts = SHIFTS if patient.format.layers(patient.checkpoint, Target(patient.model).layers) else SHIFTS[:1]
    known = {shift: acceptance(patient, shift, draft_length, new, limit) for shift in shifts}
    told = ", ".join(
        f"{'as read' if not shift else f'ids {shift:+d}'} {f'{one.length:.2f}' if one.rounds else 'not possible'}"
        for shift, one in known.items()
    )
    yield Finding("acceptance", f"mean acceptance length of {draft_length} drafted in {known[0].rounds} rounds: {told}")
    yield from concluded(patient.format, known)


def concluded(format: Format, known: dict[int, HeadAcceptance]) -> Iterator[Finding]:
    """Say what follows from acceptance by the shift of layer ids, if anything does; nothing where the file is read rightly."""
    as_read = known[0]
    best = max(
        (shift for shift in known if shift and known[shift].rounds), key=lambda shift: known[shift].length, default=0
    )
    more, error = known[best].beyond(as_read)
    if best and more > max(CLEARLY, ERRORS * error):
        yield Finding(
            "layer ids",
            f"more is accepted with ids shifted by {best:+d}: the file was written for another meaning of its ids, expected those "
            f"of {format.name}; run it with shift={best}",
            wrong=True,
        )
    elif as_read.length < 1 + CLEARLY:
        yield Finding("acceptance", "hardly anything is accepted: expected a head trained for this target", wrong=True)
    elif best and more > -RIGHT * error:
        yield Finding(
            "layer ids",
            f"not certain whether ids shifted by {best:+d} are the right ones: {more:+.2f} tokens a round are accepted with them, "
            f"give or take {error:.2f}; expected a larger difference, so measure more tokens",
            unsure=True,
        )


@attrs.frozen
class HeadAcceptance:
    """What was accepted over some rounds; without rounds the target has no such hidden states."""

    rounds: int = 0
    length: float = 0.0
    """The mean acceptance length."""
    error: float = 0.0
    """Its standard error, rounds taken as independent."""
    each: tuple[float, ...] = ()
    """That of each prompt."""

    @classmethod
    def of(cls, results: Iterable[Result]) -> HeadAcceptance:
        """Return that of results."""
        each = [[*Counter[int](one.metrics.acceptance_histogram).elements()] for one in results]
        if not (accepted := [count for one in each for count in one]):
            return cls()
        error = statistics.pstdev(accepted) / math.sqrt(len(accepted))
        means = (statistics.mean(one or [0]) for one in (accepted, *each))
        length, *lengths = (1 + mean for mean in means)
        return cls(len(accepted), length, error, tuple(lengths))

    def beyond(self, other: HeadAcceptance) -> tuple[float, float]:
        """Return by how much more is accepted than in another run over the same texts, and the standard error of that."""
        differences = [mine - its for mine, its in zip(self.each, other.each, strict=False)]
        if len(differences) < PAIRS:
            return self.length - other.length, math.hypot(self.error, other.error)
        return statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(differences))


def acceptance(patient: Patient, shift: int, draft_length: int, new: int, limit: int) -> HeadAcceptance:
    """Return what is accepted with layer ids shifted."""
    drafter = f"{patient.format.drafter},{quote(f'checkpoint={patient.checkpoint.name}')}"
    drafter += f",shift={shift}" if shift else ""
    options: dict[str, Any] = {"tokenizer": patient.tokenizer, "batch_size": 4, "draft_length": draft_length}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"the config\.json of drafter", SpecframeWarning)  # a finding of its own
            pipe = Pipeline(target=patient.model, drafter=drafter, accept="greedy", generation_config=None, **options)
            return HeadAcceptance.of(pipe.generate(prompts(patient)[:limit], max_new_tokens=new))
    except (ModelError, OptionError):
        if shift:
            return HeadAcceptance()
        raise


def prompts(patient: Patient) -> list[Any]:
    """Return prompts: the built-in ones, or a few ids where the target has no tokenizer."""
    if patient.tokenizer is not None:
        return list(BUILT_IN)
    vocabulary = Target(patient.model).vocabulary
    return [[(7 * place + step) % vocabulary for step in range(4)] for place in range(8)]
