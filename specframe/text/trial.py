"""Trial of a user's processors and criteria on the prompt: can each be called for one row and one position at a time?"""

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

from specframe.devices import kinds
from specframe.errors import SpecframeWarning
from specframe.text.formulas import FORMULAS

if TYPE_CHECKING:
    from specframe.text.sampling import Sampling

ROW_BY_ROW = frozenset(
    {
        *FORMULAS,
        hf.EncoderNoRepeatNGramLogitsProcessor,
        hf.EncoderRepetitionPenaltyLogitsProcessor,
        hf.EosTokenCriteria,
        hf.MaxLengthCriteria,
        hf.PrefixConstrainedLogitsProcessor,
        hf.WatermarkLogitsProcessor,
        MaxTimeCriteria,
        StopStringCriteria,
    }
)
"""Classes of transformers that depend only on each row's ids. A subclass may depend on more, so that it is tried."""

SHARED = (torch.nn.Module, PreTrainedTokenizerBase)
"""Types shared with the trial copy of an object, not copied: they are large, and calls do not change them."""

PLAIN = (type(None), str, bytes, int, float)
"""Types compared by value."""

MOST = 10_000
"""Most entries of a container compared one by one, to bound the time. Of a larger container only its size is compared."""

ALL = slice(None)

TRIED = 2
"""Tokens added to the prompt, one by one, for further trial calls."""


def unfit(processors: Iterable[Any], criteria: Iterable[Any], ids_BS: torch.Tensor, vocabulary: int) -> list[str]:
    """Return the processors and criteria that have to be called once per token with all rows, each with the reason.

    Args:
        processors, criteria: the user's objects, possibly among others.
        ids_BS: the prompts, (B, S).
        vocabulary: number of token ids that have a score.
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
    """Warn of each given processor or criterion that has to be called once per token. The trial uses one prompt."""
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
    """Return why an object cannot be called for one row and one position at a time; None if no reason shows.

    A copy is called with the prompt, then again with the prompt, then with each row alone. All calls are repeated with a few
    tokens added to the prompt.
    """
    devices = [ids_BS.device] if kinds.of(ids_BS.device).generators else []
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
        except Exception as error:  # a user's object may raise any error when it is called differently
            return f"raises {type(error).__name__} when it is called for one row alone, or twice"
    return None


def longer(ids_BS: torch.Tensor, vocabulary: int) -> Iterator[torch.Tensor]:
    """Yield the prompt, then the prompt with random tokens added, some rows getting equal tokens."""
    generator = torch.Generator().manual_seed(0)
    yield ids_BS
    for _ in range(TRIED):
        drawn_B1 = torch.randint(vocabulary, (len(ids_BS), 1), generator=generator).to(ids_BS)
        drawn_B1[1::3] = drawn_B1[0]
        ids_BS = torch.cat([ids_BS, drawn_B1], dim=1)
        yield ids_BS


def twin_of(one: Any) -> Any:
    """Return a copy of an object for trial calls. Its attributes are copied, too, if they can be."""
    twin = copy.copy(one)
    if not hasattr(twin, "__dict__"):
        return twin
    shared = {id(held): held for held in within(vars(twin), set()) if isinstance(held, SHARED)}
    for name, value in vars(twin).items():
        try:
            vars(twin)[name] = copy.deepcopy(value, dict(shared))
        except Exception:  # locks, files and foreign objects cannot be copied: the copy shares the original
            continue
    return twin


def noted(value: Any) -> list[Any]:
    """Return an object's state in comparable form: numbers, texts and tensors by value, all else by type and size."""
    return [simple(held) for held in within(value, set())]


def within(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield an object and all objects inside it, each once. Objects inside shared ones are left out."""
    if isinstance(value, PLAIN):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        yield value
        for part in parts(value):
            yield from within(part, seen)


def parts(value: Any) -> Iterable[Any]:
    """Return the direct parts of an object."""
    if isinstance(value, (*SHARED, torch.Tensor, np.ndarray)):
        return ()
    if isinstance(value, dict | list | tuple | set | frozenset):
        entries = itertools.chain(*value.items()) if isinstance(value, dict) else value
        return entries if len(value) <= MOST else ()
    return vars(value).values() if hasattr(value, "__dict__") else ()


def simple(value: Any) -> Any:
    """Return a value in comparable form: numbers, texts and tensors by value, anything else by type and size."""
    if isinstance(value, torch.Tensor | np.ndarray):
        array = torch.as_tensor(value).detach().cpu().contiguous()
        return str(array.dtype), tuple(array.shape), array.flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(value, PLAIN):
        return value
    return type(value), len(value) if isinstance(value, dict | list | tuple | set | frozenset) else None


def joined(parts: list[Any]) -> Any:
    """Return the answers for single rows as one answer."""
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
    """Return the name of an object's class, or of a function, with its package."""
    kind = one if hasattr(one, "__name__") else type(one)
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "__main__" else f"{package}.{kind.__name__}"
