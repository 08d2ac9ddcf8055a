"""Text that grows with every round, in whole characters."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from specframe.stopping import before_stop, may_begin

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder puts where the bytes of a character are not complete."""


def text_of(tokenizer: PreTrainedTokenizerBase | None, token_ids: Rows[int], strings: Rows[str] = ()) -> str:
    """Return generated tokens as text, special tokens left out and cut before the first stop string."""
    if tokenizer is None:
        return ""
    return before_stop(str(tokenizer.decode(list(token_ids), skip_special_tokens=True)), strings)


class TextStream:
    """The text of one continuation, piece by piece: the pieces together are the text of all its tokens.

    Args:
        tokenizer: the target's; None: there is no text.
        strings: stop strings; what may become one is held back until it is known.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, strings: Rows[str] = ()) -> None:
        self._tokenizer, self._strings = tokenizer, strings
        self._ids: list[int] = []
        self._told = ""

    def put(self, token_ids: Rows[int], last: bool) -> str:
        """Take the next tokens and return the text that is certain now; after the last, all that is left."""
        self._ids += token_ids
        text = text_of(self._tokenizer, self._ids, self._strings)
        if not last:
            text = text.rstrip(UNFINISHED)
            text = text[: len(text) - may_begin(text, self._strings)]
        if not text.startswith(self._told) or len(text) < len(self._told):
            return ""  # a decoder that changed what it said before: the last piece cannot mend it
        piece, self._told = text[len(self._told) :], text
        return piece
