"""What ends a sequence besides its stop ids and its length, looked at token by token inside a block."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from specframe.contracts.requests import StopCheck

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder puts where the bytes of a character are not complete."""

MOST_BYTES = 4
"""Bytes of a character in UTF-8, at most, and so its tokens."""

SILENT = 32
"""Tokens without text (special ones) that may lie among those of a stop string."""


class StopStrings:
    """Ends a sequence with the token that completes one of some strings in the generated text.

    The text is what the tokenizer makes of the generated tokens, special ones left out: that of the result. So a string may begin
    in one block and end in another, and begin or end inside a token; what the prompt holds does not count.

    Args:
        tokenizer: the target's.
        strings: at least one, none empty.
        after: generated tokens among which none may end.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Rows[str], after: int = 0) -> None:
        self._tokenizer, self.strings, self._after = tokenizer, tuple(strings), after
        self._reach = MOST_BYTES * max(map(len, self.strings)) + SILENT

    def first(self, ids: np.ndarray, prompt_length: int, fresh: int) -> int | None:
        """Return the first fresh token that completes a string."""
        new = ids[prompt_length:].tolist()
        recent = text_of(self._tokenizer, new[-fresh - self._reach :])
        if not any(one in recent for one in self.strings):
            return None
        known = len(new) - fresh
        return next((n for n in range(fresh) if self.place(new[: known + n + 1]) is not None), None)

    def place(self, token_ids: Rows[int]) -> int | None:
        """Return where in the text of generated tokens the string begins that is the first to be complete, or None."""
        unasked = text_of(self._tokenizer, token_ids[: self._after]).rstrip(UNFINISHED) if self._after else ""
        return first_complete(text_of(self._tokenizer, token_ids), self.strings, len(unasked))

    def begun(self, text: str) -> int:
        """Return how many of the last characters of ``text`` may be the beginning of a string."""
        longest = max(map(len, self.strings)) - 1
        ends = (text[-count:] for count in range(min(longest, len(text)), 0, -1))
        return next((len(end) for end in ends if any(one.startswith(end) for one in self.strings)), 0)


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


def stop_strings(checks: Rows[StopCheck]) -> StopStrings | None:
    """Return the one among some checks that looks for strings."""
    return next((check for check in checks if isinstance(check, StopStrings)), None)


def first_complete(text: str, strings: Rows[str], start: int = 0) -> int | None:
    """Return where the string begins that ends first in ``text`` beyond the first ``start`` characters, or None."""
    found = ((text.find(one, max(0, start + 1 - len(one))), len(one)) for one in strings)
    ends = [(place + length, place) for place, length in found if place >= 0]
    return min(ends)[1] if ends else None


def text_of(tokenizer: PreTrainedTokenizerBase | None, token_ids: Rows[int]) -> str:
    """Return generated tokens as text, special tokens left out; none without a tokenizer."""
    return "" if tokenizer is None else str(tokenizer.decode(list(token_ids), skip_special_tokens=True))
