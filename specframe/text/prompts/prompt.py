"""One prompt, wherever it came from."""

from __future__ import annotations

from typing import Any

import attrs

Given = str | list[int] | list[dict[str, Any]]
"""What a pipeline takes as a prompt: a text, token ids, or the messages of a chat."""


@attrs.frozen
class Prompt:
    """One prompt, or why it cannot be had; ``text`` is then what stood in its place."""

    text: str
    """The prompt as results and displays show it; of token ids and messages, their JSON."""
    fault: str | None = None
    place: str = ""
    """Where it came from, for messages."""
    parameters: dict[str, Any] = attrs.Factory(dict)
    """What else its JSON line holds."""
    token_ids: list[int] | None = None
    """The prompt as token ids, where it was given so."""
    messages: list[dict[str, Any]] | None = None
    """The messages of a chat, where it was given so: whoever has the tokenizer puts them through its chat template."""

    @property
    def given(self) -> Given:
        """What a pipeline is handed: token ids, messages, or else the text; an empty text of a prompt that has a fault."""
        if self.fault:
            return ""
        return self.token_ids or self.messages or self.text


def checked(text: str, place: str) -> Prompt:
    """Return a prompt, with a fault if it is no text that a tokenizer can read."""
    fault = text_fault(text)
    return Prompt(text, fault and f"{place}: {fault}", place)


def text_fault(text: str) -> str | None:
    """Return why no tokenizer can read a text, or None when one can."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "expected text, got half of a surrogate pair or a byte that is not UTF-8"
    return None
