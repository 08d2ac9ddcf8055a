"""The text of generated tokens, and stop checks beyond stop ids and length: stop strings and criteria, evaluated for each token."""

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
"""Character that a tokenizer decodes incomplete UTF-8 bytes to."""

MOST_BYTES = 4
"""Most bytes of a character in UTF-8, and so the most tokens that one character takes."""

SILENT = 32
"""Most special tokens, which have no text, between the tokens of a stop string."""


class StopStrings:
    """Stop check that ends a sequence at the token that completes a stop string in the generated text.

    The text is the result's: the decoded generated tokens without special tokens. A stop string may span blocks, and may begin
    or end inside a token. The prompt's text is not searched.

    Args:
        tokenizer: the target's tokenizer.
        strings: at least one stop string, none of them empty.
        after: number of first generated tokens that are not searched.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Rows[str], after: int = 0) -> None:
        self._tokenizer, self.strings, self._after = tokenizer, tuple(strings), after
        self._reach = MOST_BYTES * max(map(len, self.strings)) + SILENT

    def first(self, ids: np.ndarray, prompt_length: int, fresh: int) -> int | None:
        """Return the index of the first fresh token that completes a stop string, or None."""
        new = ids[prompt_length:].tolist()
        recent = text_of(self._tokenizer, new[-fresh - self._reach :])
        if not any(one in recent for one in self.strings):
            return None
        known = len(new) - fresh
        return next((n for n in range(fresh) if self.place(new[: known + n + 1]) is not None), None)

    def place(self, token_ids: Rows[int]) -> int | None:
        """Return the start, in the generated text, of the stop string that is completed first, or None."""
        unasked = text_of(self._tokenizer, token_ids[: self._after]).rstrip(UNFINISHED) if self._after else ""
        return first_complete(text_of(self._tokenizer, token_ids), self.strings, len(unasked))

    def begun(self, text: str) -> int:
        """Return the number of last characters of ``text`` that may be the beginning of a stop string."""
        longest = max(map(len, self.strings)) - 1
        ends = (text[-count:] for count in range(min(longest, len(text)), 0, -1))
        return next((len(end) for end in ends if any(one.startswith(end) for one in self.strings)), 0)


class Criteria:
    """Stop check that evaluates a user's transformers ``StoppingCriteria``.

    Each criterion is called for each new token, as ``generate`` does: with the exact prefix, (1, L), and ``None`` as scores.

    Args:
        criteria: the user's objects.
        lead: ids put before the sequence's tokens in the prefix.
        device: device of the prefix.
    """

    def __init__(
        self, criteria: Rows[StoppingCriteria], lead: Rows[int] = (), device: torch.device | str = "cpu"
    ) -> None:
        self._criteria, self._lead, self.device = StoppingCriteriaList(criteria), list(lead), device

    def first(self, ids: np.ndarray, prompt_length: int, fresh: int) -> int | None:
        """Return the index of the first fresh token after which a criterion holds, or None."""
        shown_1L = torch.from_numpy(np.concatenate([np.array(self._lead, dtype=np.int64), ids]))[None].to(self.device)
        for place in range(fresh):
            if bool(self._criteria(shown_1L[:, : shown_1L.shape[1] - fresh + 1 + place], None).all()):
                return place
        return None


def stop_strings(checks: Rows[StopCheck]) -> StopStrings | None:
    """Return the check for stop strings among the checks, or None."""
    return next((check for check in checks if isinstance(check, StopStrings)), None)


def first_complete(text: str, strings: Rows[str], start: int = 0) -> int | None:
    """Return the start of the string that ends first in ``text``, its end beyond the first ``start`` characters, or None."""
    found = ((text.find(one, max(0, start + 1 - len(one))), len(one)) for one in strings)
    ends = [(place + length, place) for place, length in found if place >= 0]
    return min(ends)[1] if ends else None


def text_of(tokenizer: PreTrainedTokenizerBase | None, token_ids: Rows[int]) -> str:
    """Return the text of generated tokens without special tokens; empty without a tokenizer."""
    return "" if tokenizer is None else str(tokenizer.decode(list(token_ids), skip_special_tokens=True))


def text_before(tokenizer: PreTrainedTokenizerBase | None, token_ids: Rows[int], stop: StopStrings | None) -> str:
    """Return the text of generated tokens, cut before its stop string."""
    return text_of(tokenizer, token_ids)[: stop.place(token_ids) if stop else None]
