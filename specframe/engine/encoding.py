"""Prompts become token ids."""

from __future__ import annotations

from collections.abc import Mapping, Set
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any

from specframe.contracts.model import Model
from specframe.contracts.requests import Request
from specframe.errors import ModelError, OptionError, PromptError, literal, sentence
from specframe.text.chat import is_chat, render
from specframe.text.prompts import text_fault
from specframe.value_checks import entries

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONGEST = 16
"""Characters of a token at most, nearly always. Twice a context of such tokens is enough of a text to see that it does not fit: the
tokens where it is cut may change with what follows, but not half of them."""

Prompt = str | Rows[int] | Rows[Mapping[str, Any]]
"""A text, token ids, or the messages of a chat."""


def as_list(prompts: Any) -> list[Any]:
    """Return prompts as a list; each of them is looked at later.

    Raises:
        OptionError: what is given is one prompt, or has no order.
    """
    expected = "expected a list of prompts, each a text, a list of token ids or a list of messages"
    held = None if isinstance(prompts, str | bytes | Mapping | Set) else entries(prompts)
    asked = held or []
    if held is None or (asked and all(map(is_token_id, asked))):
        hint = ": put it in a list" if isinstance(prompts, str) or asked else ""
        raise OptionError(f"prompts: {expected}, got {literal(prompts)}{hint}")
    return asked


def token_ids(prompt: Any) -> list[int]:
    """Return a prompt's token ids as plain numbers; raise :class:`PromptError` unless it is a list of whole numbers."""
    held = None if isinstance(prompt, bytes | Mapping | Set) else entries(plain(prompt))
    if held is None:
        raise PromptError(f"expected a text, a list of token ids or a list of messages, got {literal(prompt)}")
    ids = [plain(token) for token in held]
    if wrong := [token for token in ids if not is_token_id(token)]:
        raise PromptError(f"the prompt holds {literal(wrong[0])}: expected token ids, which are whole numbers")
    return ids


def plain(value: Any) -> Any:
    """Return the entries of an array or a tensor as Python numbers; return anything else unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def is_token_id(value: Any) -> bool:
    """Return whether a value, or the one that a tensor without dimensions holds, is a whole number."""
    return isinstance(plain(value), int) and not isinstance(plain(value), bool)


def is_ids(prompt: Prompt) -> bool:
    """Return whether a prompt needs no tokenizer, being neither a text nor the messages of a chat."""
    return not isinstance(prompt, str) and not is_chat(prompt)


def encode_prompt(prompt: Any, tokenizer: PreTrainedTokenizerBase | None, context: int = 0) -> list[int]:
    """Return the token ids of a text or of messages, none of a blank text.

    Args:
        prompt: the text or the messages.
        tokenizer: the target's.
        context: the target's longest sequence, for which only the beginning of a text that is far longer is read; 0: all is read.

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
