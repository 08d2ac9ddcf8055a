"""Prompts become token ids."""

from __future__ import annotations

from collections.abc import Mapping, Set
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any

from specframe.contracts.model import Model
from specframe.contracts.requests import Request
from specframe.errors import ModelError, OptionError, PromptError, literal, sentence
from specframe.text.chat import is_chat, render
from specframe.text.prompts.prompt import text_fault
from specframe.value_checks import entries

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONGEST = 16
"""Characters of a token at most, nearly always. Twice a context of such tokens is enough of a text to see that it does not fit: the
tokens where it is cut may change with what follows, but not half of them."""

Prompt = str | Rows[int] | Rows[Mapping[str, Any]]
"""A text, token ids, or the messages of a chat."""

KINDS = "a text, a list of token ids or a list of messages"
NO_LISTS = (bytes, bytearray, Mapping, Set)
"""Types with entries that are no list of prompts or token ids: bytes would be taken for ids."""


def as_list(prompts: Any) -> list[Any]:
    """Return prompts as a list; one text, one list of token ids and the messages of one chat are a list of one prompt.

    Raises:
        OptionError: something cannot be a prompt, or what is given has no order.
    """
    held = None if isinstance(prompts, NO_LISTS) else [prompts] if isinstance(prompts, str) else entries(prompts)
    if held is None:
        raise OptionError(f"prompts: expected a prompt or a list of them, each {KINDS}, got {literal(prompts)}")
    if held and (all(map(is_token_id, held)) or all(map(is_message, held))):
        held = [held]
    for place, prompt in enumerate(held):
        try:
            held[place] = token_ids(prompt) if is_ids(prompt) else prompt
        except PromptError as error:
            raise OptionError(f"prompts: number {place} cannot be a prompt: {error}") from None
    return held


def is_message(value: Any) -> bool:
    """Return whether a value is a message of a chat, and not an entry of a data set, say."""
    return isinstance(value, Mapping) and "role" in value


def token_ids(prompt: Any) -> list[int]:
    """Return a prompt's token ids as plain numbers; raise :class:`PromptError` unless it is a list of whole numbers."""
    held = None if isinstance(prompt, NO_LISTS) else entries(plain(prompt))
    if held is None:
        raise PromptError(f"expected {KINDS}, got {literal(prompt)}")
    ids = [plain(token) for token in held]
    if wrong := [token for token in ids if not is_token_id(token)]:
        raise PromptError(f"the prompt holds {literal(wrong[0])}: expected token ids, which are whole numbers")
    return ids


def plain(value: Any) -> Any:
    """Return the entries of an array or a tensor as Python numbers; return anything else unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def is_token_id(value: Any) -> bool:
    """Return whether a value, or the one that a tensor without dimensions holds, is a whole number."""
    return type(value) is int or (isinstance(plain(value), int) and not isinstance(plain(value), bool))


def is_ids(prompt: Prompt) -> bool:
    """Return whether a prompt needs no tokenizer, being neither a text nor the messages of a chat."""
    return not isinstance(prompt, str) and not is_chat(prompt)


def encode_prompt(prompt: Any, tokenizer: PreTrainedTokenizerBase | None, context: int = 0) -> list[int]:
    """Return the token ids of a text or of messages, none of a blank text.

    Args:
        prompt: the text or the messages.
        tokenizer: the target's.
        context: the target's longest sequence, for which only the beginning of a text that is far longer is read, or 0 to read all.

    Raises:
        PromptError: the tokenizer cannot read it, or it cannot fit into the context.
    """
    if tokenizer is None:
        raise ModelError(
            "the target was given as a loaded model without a tokenizer: pass tokenizer=, or prompts as token ids"
        )
    if is_chat(prompt):
        return render(prompt, tokenizer)
    if fault := text_fault(prompt):
        raise PromptError(fault)
    beginning = prompt[: 2 * LONGEST * context] if context else prompt
    try:
        if len(beginning) < len(prompt) and (least := len(tokenizer(beginning).input_ids)) > 2 * context:
            about = least * len(prompt) // len(beginning)
            raise PromptError(
                f"the prompt has about {about} tokens: expected fewer than the target's context of {context}"
            )
        return list(tokenizer(prompt).input_ids) if prompt.strip() else []
    except PromptError:
        raise
    except Exception as error:  # a tokenizer may raise anything, and the other prompts go on
        raise PromptError(f"the target's tokenizer cannot read the prompt: {sentence(error)}") from error


def duplicate_key(request: Request) -> str:
    """Return the sentence that refuses a request with the key of another one."""
    return f"request {request.index}, sample {request.sample}: expected a key of its own, got that of an unfinished request"


def require_ids(ids: Rows[int], runner: Model) -> None:
    """Raise :class:`PromptError` unless a model can read these token ids and go on."""
    if not ids:
        raise PromptError("the prompt is empty: expected at least one token")
    if len(ids) >= runner.context:
        raise PromptError(
            f"the prompt has {len(ids)} tokens: expected fewer than the target's context of {runner.context}"
        )
    if not 0 <= min(ids) <= max(ids) < runner.vocabulary:
        outside = next(token for token in ids if not 0 <= token < runner.vocabulary)
        raise PromptError(f"the prompt holds token id {outside}: expected ids from 0 to {runner.vocabulary - 1}")
