"""The text of a growing row, in the tokens of two vocabularies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

WINDOW = 64
"""Characters before a place at which text grows that are encoded with it: enough for the tokens that it may change."""

TAIL = 8
"""Tokens decoded with those that follow them, so that these get the text they have in a sequence."""

PARTIAL = "\N{REPLACEMENT CHARACTER}"
"""Character that a tokenizer decodes incomplete UTF-8 bytes to."""

MOST_BYTES = 4
"""Bytes of a character in UTF-8, at most, and so tokens that may have to wait for the rest of one."""


@attrs.frozen(eq=False)
class Codec:
    """A tokenizer, and the special tokens that have no text."""

    tokenizer: Any
    silent: frozenset[int]

    @property
    def lead(self) -> list[int]:
        """The token that a text begins with, if the tokenizer puts one there."""
        begin = self.tokenizer.bos_token_id
        return [begin] if begin is not None and begin in self.tokenizer("").input_ids else []

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens, without any that mark its beginning or end."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens, to the letter."""
        voiced = [token for token in ids if token not in self.silent]
        return str(self.tokenizer.decode(voiced, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def growth(self, text: str, added: str) -> tuple[list[int], list[int]]:
        """Return the last tokens of ``text`` that are others once ``added`` follows, and those that take their place."""
        before = text[-WINDOW:]
        old, new = self.encode(before), self.encode(before + added)
        shared = common(old, new)
        return old[shared:], new[shared:]

    def after(self, ids: list[int], more: list[int]) -> str:
        """Return the text that tokens add to a sequence, as far as its characters are complete."""
        tail = ids[-TAIL:]
        return self.decode(tail + more)[len(self.decode(tail)) :].rstrip(PARTIAL)


def codecs(target: Any, draft: Any) -> tuple[Codec, Codec]:
    """Return the codecs of two tokenizers.

    A special token that both know is written as such in the text between them; others, and those that begin a text, are left out.
    """
    specials = [special_tokens(tokenizer) for tokenizer in (target, draft)]
    shared = specials[0].keys() & specials[1].keys() - {str(target.bos_token), str(draft.bos_token)}
    first, second = (frozenset(i for token, i in known.items() if token not in shared) for known in specials)
    return Codec(target, first), Codec(draft, second)


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Return a tokenizer's special tokens and their ids."""
    added = {str(token): i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))


@attrs.define(eq=False)
class Transcript:
    """The text of a row's own tokens, in whole characters."""

    codec: Codec
    count: int = 0
    """Tokens read."""
    text: str = ""
    _recent: list[int] = attrs.Factory(list)
    _told: int = 0

    @property
    def held(self) -> list[int]:
        """The last tokens, whose text is not complete yet: they begin a character."""
        return self._recent[self._told :]

    def read(self, ids: list[int]) -> str:
        """Take the next tokens and return what they add to the text."""
        self.count += len(ids)
        self._recent += ids
        known = self.codec.decode(self._recent[: self._told])
        last = len(self._recent)
        for end in range(last, max(self._told, last - MOST_BYTES), -1):
            text = self.codec.decode(self._recent[:end])
            if not text.endswith(PARTIAL):
                piece = text[len(known) :]
                self.text += piece
                start = max(0, end - TAIL)
                self._recent, self._told = self._recent[start:], end - start
                return piece
        return ""

    def tokens(self, added: str) -> list[int]:
        """Return the tokens that follow the row's own where the text goes on with ``added``, or nothing if it cannot.

        Where the row's last tokens would be others with that text after them, it is encoded by itself, after a line's end.
        """
        for before in (self.text, "\n"):
            replaced, new = self.codec.growth(before, added)
            count = len(self.held)
            if not replaced and new[:count] == self.held:
                return new[count:]
        return []


@attrs.define(eq=False)
class Translation:
    """A text in the tokens of a vocabulary, encoded anew only where it grows."""

    codec: Codec
    ids: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.ids = self.codec.lead

    def grow(self, text: str, added: str) -> None:
        """Let ``added`` follow ``text``, the text so far."""
        replaced, new = self.codec.growth(text, added)
        kept = len(self.ids) - len(replaced)
        if self.ids[kept:] == replaced:
            self.ids[kept:] = new
        else:  # the window cut through a token that is longer than it
            self.ids = self.codec.lead + self.codec.encode(text + added)


def common(one: list[int], other: list[int]) -> int:
    """Return how many tokens two lists begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
