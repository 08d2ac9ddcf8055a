"""Hold combinations against the reference decoder, token for token, and distinguish ties from bugs.

Every combination is compared with two references: the target decoding plainly at batch 1 (the reference decoder) and
at the same batch, under the same alignment, scheduler and KV backend. In low precision plain decoding at another batch
size may itself part from batch 1, at a tie. What is compared are token ids, those of the references up to the first
stop; a length that differs is a divergence.

With a temperature the reference is plain sampling at the same seed, which only rules whose output does not depend on the
draft (``gumbel``) can be held against: ids that the others draw are others, and right if their distribution is.

Where a KV backend rounds the target's keys and values, the references round them alike: what is compared is decoding, not rounding.

With ``bitwise`` logits are the same to the bit on both sides, and every divergence is a bug.

The target's generation config is left aside on both sides: penalties and other processors change what both choose from.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch
from specframe_std.noise import Stream, gumbel
from specframe_testing.instrumentation.ties import Scales
from transformers import PreTrainedModel

from specframe.contracts.cache import rounding
from specframe.engine.encoding import Prompt, encode_prompt, is_ids
from specframe.errors import ModelError, OptionError, PromptError, SpecframeError
from specframe.models import loading as models
from specframe.pipeline import Pipeline
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry
from specframe.reference import reference_decode
from specframe.text.sampling import Sampling
from specframe_lab.grid import COMPARABLE_RULE, Cell, Grid
from specframe_lab.grid_models import LoadedModels, models_of


@attrs.frozen
class Divergence:
    """First difference between a continuation and a reference, and the closeness of the logits there."""

    index: int
    """Which prompt."""
    position: int
    """Tokens of the continuation that are equal."""
    expected: int | None
    """The reference's next token, or None if the reference has ended."""
    got: int | None
    gap: float
    """Distance of the target's two best logits there, in float64."""
    short: float
    """Distance from the best logit to the lower logit of the two tokens; infinite if a token is missing."""
    bound: float
    """Largest distance that rounding explains at that place, see :mod:`specframe_testing.instrumentation.ties`."""
    bitwise: bool = False
    """Whether logits are the same to the bit, so that there is nothing to explain."""

    @property
    def kind(self) -> str:
        """A "tie" where both tokens were as good as the best, else a "bug"."""
        return "tie" if self.short <= self.bound and not self.bitwise else "bug"

    def __str__(self) -> str:
        expected, got = ("the end" if token is None else f"token {token}" for token in (self.expected, self.got))
        sign = "<=" if self.short <= self.bound else ">"
        close = "" if math.isinf(self.short) else f", {self.short:.2g} {sign} {self.bound:.2g} short of the best logit"
        return f"prompt {self.index} parts at token {self.position}: expected {expected}, got {got}{close}: {self.kind}"


@attrs.frozen
class Agreement:
    """Agreement of continuations with a reference."""

    sequences: int
    shares: list[float]
    """Per sequence, the share of the longer of the two that is their common start."""
    divergences: list[Divergence]

    @property
    def exact_match(self) -> float:
        """Percentage of sequences that are the reference's."""
        return 100 * (self.sequences - len(self.divergences)) / self.sequences

    @property
    def partial_match(self) -> float:
        """Mean matched share, in percent."""
        return 100 * sum(self.shares) / self.sequences

    @property
    def ties(self) -> int:
        """Divergences that rounding explains."""
        return sum(divergence.kind == "tie" for divergence in self.divergences)

    @property
    def bugs(self) -> int:
        """Number of divergences that rounding does not explain."""
        return len(self.divergences) - self.ties

    @property
    def worst(self) -> Divergence | None:
        """The earliest bug or, without one, the earliest tie."""
        return min(self.divergences, key=lambda one: (one.kind == "tie", one.position, one.index), default=None)

    def record(self) -> dict[str, Any]:
        """Return everything as JSON takes it; an infinite distance is null."""
        kept = [attrs.asdict(one) | {"kind": one.kind} for one in self.divergences]
        for one in kept:
            one["short"] = None if math.isinf(one["short"]) else one["short"]
        figures = ("exact_match", "partial_match", "ties", "bugs")
        return {figure: getattr(self, figure) for figure in figures} | {"divergences": kept}


@attrs.frozen
class Verification:
    """Outcome of one cell."""

    cell: Cell
    sequences: int
    lossless: bool | None = None
    """Whether the combination is declared lossless."""
    batch_one: Agreement | None = None
    """Against plain decoding at batch 1."""
    same_batch: Agreement | None = None
    """Against plain decoding at the same batch."""
    plain: Agreement | None = None
    """Plain decoding at the same batch, against batch 1."""
    fault: str | None = None
    """Reason why the cell could not be decoded to the end, or None."""

    @property
    def sound(self) -> bool:
        """Whether every divergence from batch 1 is a tie."""
        return self.batch_one is not None and self.batch_one.bugs == 0

    def record(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        cell = {
            option: value if isinstance(value, str | int | float | None) else str(value)[:80]
            for option, value in self.cell.items()
        }
        agreements = {name: getattr(self, name) for name in ("batch_one", "same_batch", "plain")}
        return {
            "cell": cell,
            "sequences": self.sequences,
            "lossless": self.lossless,
            "sound": self.sound,
            "fault": self.fault,
            **{name: agreement and agreement.record() for name, agreement in agreements.items()},
        }


def verify(
    grid: Grid,
    prompts: Sequence[Prompt],
    max_new_tokens: int = 64,
    max_prompt_tokens: int | None = None,
    progress: Callable[[str], None] = lambda doing: None,
    temperature: float = 0.0,
) -> Iterator[Verification]:
    """Yield one verification per cell.

    Args:
        grid: checked cells.
        prompts: texts, lists of token ids or messages.
        max_new_tokens: tokens compared per prompt.
        max_prompt_tokens: length that prompts are cut to.
        progress: receives what is being decoded.
        temperature: tokens are drawn at it; 0 is greedy decoding.

    Raises:
        OptionError: a prompt that cannot be decoded, or a rule that draws other ids than plain sampling.
        ModelError: the target cannot be loaded, and there is no other.
    """
    if temperature:
        check_comparable(grid.cells)
    references = References(prompts, max_new_tokens, max_prompt_tokens, progress, temperature)
    for number, cell in enumerate(grid.cells, start=1):
        progress(f"cell {number} of {len(grid.cells)}")
        try:
            reference = references.of(cell)
        except ModelError as fault:
            if len({repr(cell.get("target")) for cell in grid.cells}) == 1:
                raise
            yield Verification(cell, len(prompts), fault=str(fault))
            continue
        try:
            yield reference.verification(cell, references.loaded.pipeline(cell))
        except Exception as fault:  # a broken strategy may raise anything; the other cells go on
            kind = "" if isinstance(fault, SpecframeError) else f"{type(fault).__name__}: "
            yield Verification(cell, len(prompts), fault=f"{kind}{fault}")


def check_comparable(cells: Sequence[Cell]) -> None:
    """Raise :class:`OptionError` for a sampling cell whose rule draws other ids than plain sampling."""
    for cell in cells:
        rule = strategy(registry(), "acceptance rule", cell["accept"])
        if not {"samples", "draft-invariant"} <= rule.offers:
            raise OptionError(
                f"acceptance rule {str(cell['accept'])[:80]!r} cannot be verified with a temperature: what it draws depends on the "
                "draft, so ids cannot be compared with plain sampling; expected gumbel, or no temperature"
            )


def decodings(cells: Sequence[Cell], temperature: float = 0.0) -> int:
    """Return how often all prompts are decoded to verify some cells.

    That is once for each cell, once for each plain decoding that a cell is held against, and once for each target (and, drawing
    tokens, each seed) by the reference, where sampling at batch 1 under ``ragged`` is not one of those already.
    """
    rule = {"accept": COMPARABLE_RULE} if temperature else {}
    plain = {plain_key(cell | PLAIN | rule) for cell in cells}
    if temperature:
        return len(cells) + len(plain | {plain_key(cell | PLAIN | rule | at_one(cell)) for cell in cells})
    places = {repr([models_of(cell)[0], *map(cell.get, LOADED), rounds(cell) and cell.get("kv")]) for cell in cells}
    return len(cells) + len(plain) + len(places)


LOADED = ("device", "dtype", "bitwise", "load_options")
"""Options with which a target is loaded, and with which it computes."""


def plain_key(cell: Cell) -> tuple[tuple[str, str], ...]:
    """Return the settings that distinguish one plain decoding from another."""
    return tuple(sorted((option, repr(value)) for option, value in cell.items()))


@attrs.define
class References:
    """The references of all targets, each decoded once; the arguments are those of :func:`verify`."""

    _prompts: Sequence[Prompt]
    _new: int
    _cut: int | None
    _progress: Callable[[str], None]
    _temperature: float
    loaded: LoadedModels = attrs.Factory(LoadedModels)
    _references: dict[Any, Reference] = attrs.Factory(dict)

    def of(self, cell: Cell) -> Reference:
        """Return the reference of a cell's target."""
        target, seed = self.loaded.target(cell), cell.get("seed", 0)
        kv = repr(cell.get("kv")) if rounds(cell) else None
        key = id(target), bool(cell.get("bitwise")), seed if self._temperature else None, kv
        if key not in self._references:
            pipe = self.loaded.pipeline(cell | PLAIN)
            ids = encode(pipe, self._prompts, self._cut)
            scales, sampling = Scales(target, rounding(pipe.composition.kv)), Sampling(temperature=self._temperature)
            reference = Reference(scales, ids, [], self._new, self.loaded, sampling, seed, pipe.recipe.bitwise)
            reference.tokens = reference.sampled(cell) if self._temperature else self._greedy(target, ids, pipe)
            self._references[key] = reference
        return self._references[key]

    def _greedy(self, target: PreTrainedModel, prompts: list[list[int]], pipe: Pipeline) -> list[list[int]]:
        """Return the reference decoder's continuations."""
        stops, tokens = models.stop_token_ids(target, pipe.tokenizer), list[list[int]]()
        rounded, numerics = rounding(pipe.composition.kv), pipe.composition.numerics
        for number, prompt in enumerate(prompts, start=1):
            self._progress(f"reference, prompt {number} of {len(prompts)}")
            with numerics.around(target.device) if numerics else contextlib.nullcontext():
                tokens.append(reference_decode(target, prompt, self._new, stops, rounded=rounded))
        return tokens


PLAIN: Cell = {"drafter": None, "accept": "greedy", "draft_length": 1, "check": False}
"""Options that turn a cell into plain decoding."""
AT_ONE: Cell = {"align": "ragged", "schedule": None, "kv": None, "batch_size": 1}
"""Options of the reference by plain sampling."""


def at_one(cell: Cell) -> Cell:
    """Return the options of the reference by plain sampling for a cell; it rounds keys and values as the cell does."""
    return {"schedule": None, "batch_size": 1} if rounds(cell) else AT_ONE


def rounds(cell: Cell) -> bool:
    """Return whether a cell's KV backend rounds the target's keys and values: the reference has to do the same."""
    kv = cell.get("kv")
    return kv is not None and rounding(strategy(registry(), "KV backend", kv)) is not None


@attrs.define
class Reference:
    """One target's continuations: at batch 1 and, as asked for, at other batch sizes."""

    _scales: Scales
    prompts: list[list[int]]
    tokens: list[list[int]]
    _new: int
    _loaded: LoadedModels
    _sampling: Sampling = attrs.Factory(Sampling)
    _seed: int = 0
    _bitwise: bool = False
    _plain: dict[Any, list[list[int]]] = attrs.Factory(dict)

    def verification(self, cell: Cell, pipe: Pipeline) -> Verification:
        """Decode a cell and compare it with both references."""
        plain, got = self.plain(cell), self.decode(pipe)
        return Verification(
            cell,
            len(got),
            pipe.composition.lossless,
            self.agreement(got, self.tokens),
            self.agreement(got, plain),
            self.agreement(plain, self.tokens),
        )

    def plain(self, cell: Cell) -> list[list[int]]:
        """Return plain decoding at a cell's batch, alignment, scheduler and KV backend."""
        cell = cell | PLAIN | ({} if self._sampling.greedy else {"accept": COMPARABLE_RULE})
        key = plain_key(cell)
        if key not in self._plain:
            self._plain[key] = self.decode(self._loaded.pipeline(cell))
        return self._plain[key]

    def sampled(self, cell: Cell) -> list[list[int]]:
        """Return plain sampling at batch 1."""
        return self.plain(cell | at_one(cell))

    def decode(self, pipe: Pipeline) -> list[list[int]]:
        """Return a pipeline's continuations of all prompts; raise :class:`OptionError` for one that cannot be decoded."""
        results = list(pipe.generate(self.prompts, self._new, sampling=self._sampling))
        for result in results:
            if result.error is not None:
                raise OptionError(f"prompt {result.index}: {result.error}")
        return [result.token_ids for result in results]

    def agreement(self, got: list[list[int]], expected: list[list[int]]) -> Agreement:
        """Compare continuations one by one."""
        matched = [common_start(a, b) for a, b in zip(got, expected, strict=True)]
        longer = [max(len(a), len(b)) for a, b in zip(got, expected, strict=True)]
        parted = [index for index, (m, n) in enumerate(zip(matched, longer, strict=True)) if m < n]
        shares = [m / n for m, n in zip(matched, longer, strict=True)]
        return Agreement(len(got), shares, [self._divergence(i, matched[i], got[i], expected[i]) for i in parted])

    def _divergence(self, index: int, position: int, got: list[int], expected: list[int]) -> Divergence:
        """Look at the target's logits, in float64, where two continuations part."""
        wanted, token = (ids[position] if position < len(ids) else None for ids in (expected, got))
        both = [] if wanted is None or token is None else [wanted, token]
        ids = [*self.prompts[index], *got[:position]]
        weighed = self._scales.weigh(ids, both, lambda logits_V: self._noised(logits_V, index, len(ids)))
        return Divergence(index, position, wanted, token, weighed.gap, weighed.short, weighed.bound, self._bitwise)

    def _noised(self, logits_V: torch.Tensor, index: int, position: int) -> torch.Tensor:
        """Return logits (V,) with what sampling adds to those of a prompt at a position, in their own scale."""
        if self._sampling.greedy:
            return logits_V
        at = torch.tensor(position, device=logits_V.device)
        noise_V = gumbel(self._seed, torch.tensor(index, device=at.device), at, Stream.TARGET, len(logits_V))
        return logits_V + (self._sampling.temperature or 0) * noise_V


def common_start(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two sequences share from the start."""
    shortest = min(len(one), len(other))
    return next((place for place in range(shortest) if one[place] != other[place]), shortest)


def encode(pipe: Pipeline, prompts: Sequence[Prompt], cut: int | None) -> list[list[int]]:
    """Return prompts as token ids, at most ``cut`` each; raise :class:`OptionError` for one that cannot be decoded."""
    encoded = []
    for index, prompt in enumerate(prompts):
        try:
            if cut is not None and pipe.tokenizer is not None and not is_ids(prompt):
                prompt = encode_prompt(prompt, pipe.tokenizer)
            encoded.append(pipe.encode(prompt[:cut] if is_ids(prompt) else prompt))
        except PromptError as fault:
            raise OptionError(f"prompt {index}: {fault}") from fault
    return encoded
