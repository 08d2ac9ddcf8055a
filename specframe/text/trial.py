"""Processors and criteria of a user's own, tried on the prompt: whether they can be called for one row and one place at a time."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import MaxTimeCriteria, PreTrainedTokenizerBase, StopStringCriteria
from transformers import generation as hf

from specframe.contracts.plan import POSITIONWISE
from specframe.errors import SpecframeWarning

if TYPE_CHECKING:
    from specframe.text.sampling import Sampling

ROW_BY_ROW = frozenset(
    {
        *POSITIONWISE,
        hf.EncoderNoRepeatNGramLogitsProcessor,
        hf.EncoderRepetitionPenaltyLogitsProcessor,
        hf.EosTokenCriteria,
        hf.ExponentialDecayLengthPenalty,
        hf.ForcedBOSTokenLogitsProcessor,
        hf.ForcedEOSTokenLogitsProcessor,
        hf.MaxLengthCriteria,
        hf.MinLengthLogitsProcessor,
        hf.MinNewTokensLengthLogitsProcessor,
        hf.NoBadWordsLogitsProcessor,
        hf.NoRepeatNGramLogitsProcessor,
        hf.PrefixConstrainedLogitsProcessor,
        hf.RepetitionPenaltyLogitsProcessor,
        hf.SequenceBiasLogitsProcessor,
        hf.SuppressTokensAtBeginLogitsProcessor,
        hf.WatermarkLogitsProcessor,
        MaxTimeCriteria,
        StopStringCriteria,
    }
)
"""Classes of transformers that go by each row's ids alone. A class that inherits from one of them may do otherwise."""

SHARED = (torch.nn.Module, PreTrainedTokenizerBase)
"""What is not copied with an object for its trial: large, and called without a change."""

PLAIN = (type(None), str, bytes, int, float)
"""What is compared as it is."""

MOST = 10_000
"""Entries of a list or dictionary that are looked at for a change, such as a vocabulary's; of more, their number."""

ALL = slice(None)

TRIED = 2
"""Tokens that are added to the prompt, one by one, for further trials."""


def unfit(processors: Iterable[Any], criteria: Iterable[Any], ids_BS: torch.Tensor, vocabulary: int) -> list[str]:
    """Return the processors and criteria that have to be called once per token, with all rows, each with the reason why.

    Args:
        processors, criteria: a user's own and others.
        ids_BS: the prompts, (B, S).
        vocabulary: tokens that have a score.
    """
    drawn_BV = torch.randn(len(ids_BS), vocabulary, generator=torch.Generator().manual_seed(0))
    scores_BV = drawn_BV.to(ids_BS.device)
    ways: list[tuple[Any, Callable[..., Any]]] = [
        (processors, lambda one, ids_BS, rows: one(ids_BS[rows], scores_BV[rows].clone())),
        (criteria, lambda one, ids_BS, rows: one(ids_BS[rows], None)),
    ]
    found = []
    for own, show in ways:
        for one in own:
            if type(one) not in ROW_BY_ROW and (why := fault(one, show, ids_BS, vocabulary)):
                found.append(f"{named(one)}, which {why}")
    return found


def warn_of_unfit(
    asked: Iterable[Sampling], prompt_ids: Rows[int], vocabulary: int, device: torch.device | str
) -> None:
    """Warn of the processors and criteria asked for that have to be called once per token, tried on one prompt."""
    distinct = {id(one): one for one in asked}.values()
    processors = {id(one): one for sampling in distinct for one in sampling.processors}.values()
    criteria = {id(one): one for sampling in distinct for one in sampling.criteria}.values()
    if not (processors or criteria):
        return
    for found in unfit(processors, criteria, torch.tensor([prompt_ids], device=device), vocabulary):
        warnings.warn(
            f"{found}: it is called for drafted tokens, too, so its tokens may be others than one token at a time gives",
            SpecframeWarning,
            stacklevel=4,
        )


def fault(
    one: Any, show: Callable[[Any, torch.Tensor, slice], Any], ids_BS: torch.Tensor, vocabulary: int
) -> str | None:
    """Return why an object cannot be called for one row and one place at a time, as far as can be seen; None if it can.

    A copy is called with the prompt, once more with the same, with each row alone, and all of it with some tokens more.
    """
    devices = [ids_BS.device] if ids_BS.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            twin = twin_of(one)
            for shown_BS in longer(ids_BS, vocabulary):
                together = show(twin, shown_BS, ALL)
                before = noted(twin)
                again = show(twin, shown_BS, ALL)
                if noted(twin) != before or not same(together, again):
                    return "changes from call to call"
                alone = [show(twin, shown_BS, slice(row, row + 1)) for row in range(len(shown_BS))]
                if len(alone) > 1 and not same(together, joined(alone)):
                    return "compares rows"
                if noted(twin) != before:
                    return "counts its rows"
        except Exception as error:  # whatever an object of a stranger raises when it is called in another way
            return f"raises {type(error).__name__} when it is called for one row alone, or twice"
    return None


def longer(ids_BS: torch.Tensor, vocabulary: int) -> Iterator[torch.Tensor]:
    """Yield the prompt, and then the prompt with random tokens, the same in some rows."""
    generator = torch.Generator().manual_seed(0)
    yield ids_BS
    for _ in range(TRIED):
        drawn_B1 = torch.randint(vocabulary, (len(ids_BS), 1), generator=generator).to(ids_BS)
        drawn_B1[1::3] = drawn_B1[0]
        ids_BS = torch.cat([ids_BS, drawn_B1], dim=1)
        yield ids_BS


def twin_of(one: Any) -> Any:
    """Return a copy of an object that can be called in its place: what it holds is copied, too, where that can be."""
    twin = copy.copy(one)
    if not hasattr(twin, "__dict__"):
        return twin
    shared = {id(held): held for held in within(vars(twin), set()) if isinstance(held, SHARED)}
    for name, value in vars(twin).items():
        try:
            vars(twin)[name] = copy.deepcopy(value, dict(shared))
        except Exception:  # locks, files, objects of other languages: the original serves
            continue
    return twin


def noted(value: Any) -> list[Any]:
    """Return what an object holds as something to compare: numbers, texts and tensors, and the kinds and sizes of all else."""
    return [simple(held) for held in within(value, set())]


def within(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield an object and what it holds, however deep, but nothing twice, and nothing of what is shared."""
    if isinstance(value, PLAIN):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        yield value
        for part in parts(value):
            yield from within(part, seen)


def parts(value: Any) -> Iterable[Any]:
    """Return what an object holds itself."""
    if isinstance(value, (*SHARED, torch.Tensor, np.ndarray)):
        return ()
    if isinstance(value, dict | list | tuple | set | frozenset):
        entries = itertools.chain(*value.items()) if isinstance(value, dict) else value
        return entries if len(value) <= MOST else ()
    return vars(value).values() if hasattr(value, "__dict__") else ()


def simple(value: Any) -> Any:
    """Return a number, a text or a tensor as something to compare; of anything else its kind and size."""
    if isinstance(value, torch.Tensor | np.ndarray):
        array = torch.as_tensor(value).detach().cpu().contiguous()
        return str(array.dtype), tuple(array.shape), array.flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(value, PLAIN):
        return value
    return type(value), len(value) if isinstance(value, dict | list | tuple | set | frozenset) else None


def joined(parts: list[Any]) -> Any:
    """Return what an object said of each row, as one."""
    if isinstance(parts[0], torch.Tensor) and parts[0].ndim:
        return torch.cat(parts)
    return all(map(bool, parts))


def same(one: Any, other: Any) -> bool:
    """Return whether two answers are equal, infinite scores included."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        close = {"rtol": 1e-5, "atol": 1e-5, "equal_nan": True}
        return one.shape == other.shape and torch.allclose(one.float(), other.float(), **close)  # type: ignore[arg-type]
    return bool(one == other)


def named(one: Any) -> str:
    """Return the name of a class, or a function, with the package it is from."""
    kind = one if hasattr(one, "__name__") else type(one)
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "__main__" else f"{package}.{kind.__name__}"
