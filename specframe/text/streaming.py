"""Text that grows with every round, in whole characters."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from specframe.text.stopping import UNFINISHED, StopStrings, text_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def text_before(tokenizer: PreTrainedTokenizerBase | None, token_ids: Rows[int], stop: StopStrings | None) -> str:
    """Return generated tokens as text, cut before the stop string that ends them."""
    return text_of(tokenizer, token_ids)[: stop.place(token_ids) if stop else None]


LEAD = 8
"""Tokens decoded again before those whose text is not known: a decoder may treat a text's first tokens in its own way."""


class TextStream:
    """The text of one continuation, piece by piece: the pieces together are the text of all its tokens.

    Args:
        tokenizer: the target's; None: there is no text.
        stop: what may become one of its strings is held back until it is known.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, stop: StopStrings | None = None) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._ids: list[int] = []
        self._told = ""
        self._known, self._text = 0, ""
        """Tokens that end with a whole character, and their text."""

    def put(self, token_ids: Rows[int], last: bool) -> str:
        """Take the next tokens and return the text that is certain now; after the last, all that is left."""
        self._ids += token_ids
        if last:
            text = text_before(self._tokenizer, self._ids, self._stop)
        else:
            text = self._decoded().rstrip(UNFINISHED)
            text = text[: len(text) - (self._stop.begun(text) if self._stop else 0)]
        if not text.startswith(self._told):
            return ""  # the decoder changed what it said before
        piece, self._told = text[len(self._told) :], text
        return piece

    def _decoded(self) -> str:
        """Return the text of the tokens so far: what is known, and what the latest add to it."""
        leads = range(self._known - LEAD, 0, -LEAD)
        start = next((n for n in leads if text_of(self._tokenizer, self._ids[n : self._known])), 0)
        before, recent = (text_of(self._tokenizer, self._ids[start:end]) for end in (self._known, None))
        if recent.startswith(before):
            text = self._text + recent[len(before) :]
        else:  # the latest change how those before them are told
            text = text_of(self._tokenizer, self._ids)
        if not text.endswith(UNFINISHED):
            self._known, self._text = len(self._ids), text
        return text
