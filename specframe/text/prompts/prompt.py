"""A prompt, from any source, and several that are read when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

Given = str | list[int] | list[dict[str, Any]]
"""Type of a pipeline's prompt: a text, token ids, or the messages of a chat."""


@attrs.frozen
class Prompt:
    """One prompt. A prompt that cannot be read has a ``fault``, and its ``text`` is the original input."""

    text: str
    """The prompt as shown in results and displays; token ids and messages are shown as JSON."""
    fault: str | None = None
    place: str = ""
    """The prompt's place in its source, for messages."""
    parameters: dict[str, Any] = attrs.Factory(dict)
    """Other entries of the prompt's JSON line."""
    token_ids: list[int] | None = None
    """The prompt as token ids, if given in this form."""
    messages: list[dict[str, Any]] | None = None
    """The messages of a chat, if given in this form. The pipeline applies the chat template to them."""
    turn: int = 1
    """The turn of a chat; a later one follows the answer to the prompt before it, and ``messages`` has its own message alone."""

    @property
    def given(self) -> Given:
        """The pipeline's input: token ids, messages, or else the text; an empty text if the prompt has a fault."""
        if self.fault:
            return ""
        return self.token_ids or self.messages or self.text


@attrs.frozen(eq=False)
class Prompts:
    """Prompts, read anew by each loop over them. One loop at a time: all read the same open file.

    Args:
        read: returns an iterator of the prompts from the first on.
        about: what reports say of a set with a name, or "" if it has none.
    """

    _read: Callable[[], Iterator[Prompt]]
    about: str = ""

    def __iter__(self) -> Iterator[Prompt]:
        """Read the prompts from the first on."""
        return self._read()


def checked_prompt(text: str, place: str) -> Prompt:
    """Return a prompt; it has a fault if no tokenizer can read the text."""
    fault = text_fault(text)
    return Prompt(text, fault and f"{place}: {fault}", place)


def text_fault(text: str) -> str | None:
    """Return why no tokenizer can read a text, or None if the text is fine."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "expected text, got half of a surrogate pair or a byte that is not UTF-8"
    return None
