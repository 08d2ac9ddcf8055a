"""Compatibility check of processors and criteria on the prompt: can each be called for one row and one position at a time?"""

from __future__ import annotations

import copy
import io
import pickle
import types
import warnings
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any

import torch
from transformers import MaxTimeCriteria, PreTrainedTokenizerBase, StopStringCriteria
from transformers import generation as hf

from specframe.devices import kinds
from specframe.errors import SpecframeWarning
from specframe.text.processor_formulas import FORMULAS
from specframe_std.generated_stop_strings import GeneratedStopStrings

if TYPE_CHECKING:
    from specframe.text.sampling import Sampling

ROW_BY_ROW = frozenset(
    {
        *FORMULAS,
        GeneratedStopStrings,
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
"""Classes, most of them of transformers, that depend only on each row's ids. A subclass may depend on more, so that it is tried."""

SHARED = (types.FunctionType, type, torch.nn.Module, PreTrainedTokenizerBase)
"""Types shared with the checked copy of an object, not copied: calls do not change them, and models are large."""

PLAIN = (type(None), str, bytes, int, float, dict, list, tuple, set, frozenset)
"""Types that are always written: to ask each entry of a long list how it is written would take longer than all else."""

ALL = slice(None)


def unfit(processors: Iterable[Any], criteria: Iterable[Any], ids_BS: torch.Tensor, vocabulary: int) -> list[str]:
    """Return the processors and criteria that have to be called once per token with all rows, each with the reason.

    Args:
        processors, criteria: the user's objects, possibly among others.
        ids_BS: the prompts, (B, S).
        vocabulary: number of token ids that have a score.
    """
    ways: list[tuple[Any, Callable[..., Any]]] = [
        (processors, shown_scores(ids_BS, vocabulary)),
        (criteria, lambda one, ids_BS, rows: one(ids_BS[rows], None)),
    ]
    found = []
    for own, show in ways:
        for one in own:
            if type(one) not in ROW_BY_ROW and (why := fault(one, show, ids_BS, vocabulary)):
                found.append(f"{class_name(one)}, which {why}")
    return found


def shown_scores(ids_BS: torch.Tensor, vocabulary: int) -> Callable[[Any, torch.Tensor, slice], Any]:
    """Return a function that calls a processor with some rows of prefixes, and with the same scores each time."""
    drawn_BV = torch.randn(len(ids_BS), vocabulary, generator=torch.Generator().manual_seed(0))
    scores_BV = drawn_BV.to(ids_BS.device)
    return lambda one, ids_BS, rows: one(ids_BS[rows], scores_BV[rows].clone())


def warn_of_unfit(
    asked: Iterable[Sampling], prompt_ids: Rows[int], vocabulary: int, device: torch.device | str
) -> None:
    """Warn of each given processor or criterion that has to be called once per token. The check uses one prompt."""
    distinct = {id(one): one for one in asked}.values()
    processors = {id(one): one for sampling in distinct for one in sampling.processors}.values()
    criteria = {id(one): one for sampling in distinct for one in sampling.criteria}.values()
    for found in unfit(processors, criteria, torch.tensor([prompt_ids], device=device), vocabulary):
        warnings.warn(
            f"{found}: it is called for drafted tokens, too, so its tokens may be others than one token at a time gives",
            SpecframeWarning,
            stacklevel=4,
        )


def splits(processor: Any, ids_BS: torch.Tensor, vocabulary: int) -> bool:
    """Return whether a processor that cannot be called for one row alone can be, once it is :func:`split` by rows."""
    rows, shown = len(ids_BS), shown_scores(ids_BS, vocabulary)
    if type(processor) in ROW_BY_ROW or rows == 1 or not of_rows(processor, rows):
        return False
    if fault(processor, shown, ids_BS, vocabulary) is None:
        return False
    return fault(processor, shown, ids_BS, vocabulary, by_rows=True) is None


def split(one: Any, row: int, rows: int) -> Any:
    """Return a copy of an object that holds one row's entry of each list, tuple and tensor with ``rows`` entries."""
    part = copy.copy(one)
    vars_of(part).update({name: held[row : row + 1] for name, held in of_rows(one, rows).items()})
    return part


def of_rows(one: Any, rows: int) -> dict[str, Any]:
    """Return the attributes of an object that have an entry for each of ``rows`` rows."""
    sized = {name: held for name, held in vars_of(one).items() if isinstance(held, list | tuple | torch.Tensor)}
    return {name: held for name, held in sized.items() if getattr(held, "ndim", 1) and len(held) == rows}


def fault(
    one: Any,
    show: Callable[[Any, torch.Tensor, slice], Any],
    ids_BS: torch.Tensor,
    vocabulary: int,
    by_rows: bool = False,
) -> str | None:
    """Return why an object cannot be called for one row and one position at a time, or None if no reason shows.

    A copy is called with two prefixes, the prompt and the prompt with one token more: with all rows, with each row alone, and with
    all rows again. Its answers for a prefix have to be the same each time, and so has what it holds after both. With ``by_rows``
    each row alone is shown to the object's part for this row.
    """
    devices = [ids_BS.device] if kinds.of(ids_BS.device).generators else []
    prefixes, rows = (ids_BS, longer(ids_BS, vocabulary)), len(ids_BS)
    with torch.random.fork_rng(devices=devices):
        try:
            twin = copy_of(one)
            first = [show(twin, shown_BS, ALL) for shown_BS in prefixes]
            parts = [split(copy_of(one), n, rows) if by_rows else twin for n in range(rows)]
            held = State([*map(vars_of, [twin, *parts])]).written
            alone = [[show(parts[n], shown_BS, slice(n, n + 1)) for n in range(rows)] for shown_BS in prefixes]
            again = [show(twin, shown_BS, ALL) for shown_BS in prefixes]
            if State([*map(vars_of, [twin, *parts])]).written != held or not all(map(same, first, again)):
                return "changes from call to call"
            if rows > 1 and not all(map(same, first, map(join_answers, alone))):
                return "compares rows"
        except Exception as error:  # a user's object may raise any error when it is called differently
            return f"raises {type(error).__name__} when it is called for one row alone, or twice"
    return None


def longer(ids_BS: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Return the prompts with a random token added to each; some rows get equal tokens."""
    drawn_B1 = torch.randint(vocabulary, (len(ids_BS), 1), generator=torch.Generator().manual_seed(0)).to(ids_BS)
    drawn_B1[1::3] = drawn_B1[0]
    return torch.cat([ids_BS, drawn_B1], dim=1)


class State(pickle.Pickler):
    """What an object holds, as bytes: two states are equal where their bytes are, and a copy is made of them.

    Functions, classes, models and what cannot be written (locks, files, foreign objects) are kept as they are: a copy shares them.
    """

    def __init__(self, held: Any) -> None:
        self._buffer, self._shared = io.BytesIO(), dict[int, Any]()
        super().__init__(self._buffer)
        self.dump(held)
        self.written = self._buffer.getvalue()

    def persistent_id(self, part: Any) -> int | None:
        """Return the number by which a part is shared, or None for a part that is written."""
        if isinstance(part, PLAIN) or not (isinstance(part, SHARED) or unwritable(part)):
            return None
        self._shared[id(part)] = part
        return id(part)

    def copy(self) -> Any:
        """Return a copy of what was written."""
        reader = pickle.Unpickler(io.BytesIO(self.written))
        reader.persistent_load = self._shared.__getitem__  # type: ignore[method-assign]
        return reader.load()


def unwritable(part: Any) -> bool:
    """Return whether nothing says how an object is written."""
    try:
        part.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
    except Exception:  # a foreign object may raise any error
        return True
    return False


def vars_of(one: Any) -> dict[str, Any]:
    """Return an object's attributes."""
    return vars(one) if hasattr(one, "__dict__") else {}


def copy_of(one: Any) -> Any:
    """Return a copy of an object for the check's calls."""
    twin = copy.copy(one)
    vars_of(twin).update(State(vars_of(one)).copy())
    return twin


def join_answers(parts: list[Any]) -> Any:
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


def class_name(one: Any) -> str:
    """Return the name of an object's class, or of a function, with its package."""
    kind = one if hasattr(one, "__name__") else type(one)
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "__main__" else f"{package}.{kind.__name__}"
