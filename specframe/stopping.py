"""What ends a sequence besides its stop ids and its length, looked at token by token inside a block."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from transformers import StoppingCriteria, StoppingCriteriaList, StopStringCriteria

from specframe.errors import OptionError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class StopCheck(Protocol):
    """Finds where in a block a sequence ends."""

    def first(self, ids: np.ndarray, prompt_length: int, fresh: int) -> int | None:
        """Return the first of the last ``fresh`` tokens at which the sequence ends, counted from 0, or None.

        Args:
            ids: the sequence's tokens, prompt included, (L,).
            prompt_length: how many of them are the prompt's.
            fresh: how many of them this round added.
        """


class StopStrings:
    """Ends a sequence with the token that completes one of some strings in the generated text.

    A string may begin in one block and end in another, begin or end inside a token; transformers' ``StopStringCriteria`` tells,
    asked about all places of a block at once. What the prompt holds does not count.

    Args:
        tokenizer: the target's.
        strings: at least one, none empty.
        after: generated tokens before which no string is looked for.

    Raises:
        OptionError: no token of the tokenizer can complete one of the strings.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Rows[str], after: int = 0) -> None:
        self.strings, self._after = tuple(strings), after
        try:
            self._criterion = StopStringCriteria(tokenizer, list(self.strings))
        except ValueError as error:
            raise OptionError(
                f"stop: expected strings that the tokenizer's tokens can end, got {list(self.strings)}"
            ) from error

    def first(self, ids: np.ndarray, prompt_length: int, fresh: int) -> int | None:
        """Return the first fresh token that completes a string."""
        width = self._criterion.maximum_token_len
        unknown = np.iinfo(np.int32).max  # no token's id: it matches nothing
        shown = np.concatenate([np.full(width, unknown), ids])
        shown[width : width + prompt_length] = unknown
        windows = np.lib.stride_tricks.sliding_window_view(shown, width)[-fresh:]
        ends = self._criterion(torch.from_numpy(windows.copy()), None).numpy()
        ends &= np.arange(len(ids) - fresh, len(ids)) + 1 - prompt_length > self._after
        return int(ends.argmax()) if ends.any() else None


class Criteria:
    """Ends a sequence where a user's transformers ``StoppingCriteria`` say so.

    Each is called for each new token with the exact prefix, (1, L), and ``None`` for the scores, as ``generate`` does.

    Args:
        criteria: the user's objects.
        lead: ids shown before the sequence's own.
        device: where they expect the ids.
    """

    def __init__(
        self, criteria: Rows[StoppingCriteria], lead: Rows[int] = (), device: torch.device | str = "cpu"
    ) -> None:
        self._criteria, self._lead, self._device = StoppingCriteriaList(criteria), list(lead), device

    def first(self, ids: np.ndarray, prompt_length: int, fresh: int) -> int | None:
        """Return the first fresh token after which one of the criteria holds."""
        shown_1L = torch.from_numpy(np.concatenate([np.array(self._lead, dtype=np.int64), ids]))[None].to(self._device)
        for place in range(fresh):
            if bool(self._criteria(shown_1L[:, : shown_1L.shape[1] - fresh + 1 + place], None).all()):
                return place
        return None


def stop_strings(checks: Rows[StopCheck]) -> tuple[str, ...]:
    """Return all strings that some checks look for."""
    return tuple(one for check in checks if isinstance(check, StopStrings) for one in check.strings)


def before_stop(text: str, strings: Rows[str]) -> str:
    """Return text up to the stop string that is complete first; all of it when it holds none."""
    ends = [(place + len(one), place) for one in strings if (place := text.find(one)) >= 0]
    return text[: min(ends)[1]] if ends else text


def may_begin(text: str, strings: Rows[str]) -> int:
    """Return how many of the last characters of ``text`` may be the beginning of a stop string."""
    longest = max(map(len, strings), default=1) - 1
    for count in range(min(longest, len(text)), 0, -1):
        if any(one.startswith(text[-count:]) for one in strings):
            return count
    return 0
