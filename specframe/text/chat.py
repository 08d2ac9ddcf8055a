"""Prompts given as chat messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specframe.errors import OptionError, PromptError, sentence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def is_chat(prompt: Any) -> bool:
    """Return whether a prompt is a list of messages, each a mapping with a role and a content."""
    return isinstance(prompt, list | tuple) and bool(prompt) and all(isinstance(one, Mapping) for one in prompt)


def as_chat(prompt: Any) -> Any:
    """Return a text as the messages of a chat: one, of the user; a blank text, messages and token ids stay as they are."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) and prompt.strip() else prompt


def require_template(tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Raise :class:`OptionError` unless there is a chat template."""
    if not getattr(tokenizer, "chat_template", None):
        got = "a target without a tokenizer" if tokenizer is None else "one without"
        raise OptionError(f"chat: expected a target whose tokenizer has a chat template, got {got}")


def render(messages: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token ids of the messages under the tokenizer's chat template, up to the start of the answer.

    Raises:
        PromptError: the tokenizer has no chat template, or its template refuses the messages.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError(
            "the prompt is a list of messages, and the target's tokenizer has no chat template: expected a text or token ids"
        )
    chat = [dict(one) for one in messages]
    try:
        return list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
    except Exception as error:  # a template is code from the checkpoint and may raise any error
        raise PromptError(f"the target's chat template refuses the messages: {sentence(error)}") from error
