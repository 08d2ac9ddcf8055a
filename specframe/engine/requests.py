"""Prompts become requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any

from specframe.contracts.requests import Request, Result, SequenceMetrics, StopCheck
from specframe.errors import ModelError, OptionError, PromptError, sentence, shown
from specframe.forward.runner import ModelRunner
from specframe.text.chat import is_chat, rendered
from specframe.text.generation import Settings
from specframe.text.prompts import text_fault
from specframe.text.stopping import Criteria, StopStrings
from specframe.values import entries

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Prompt = str | Rows[int] | Rows[Mapping[str, Any]]
"""A text, token ids, or the messages of a chat."""


def listed(prompts: Any) -> list[Any]:
    """Return prompts as a list; each of them is looked at later.

    Raises:
        OptionError: what is given is one prompt, or has no order.
    """
    expected = "expected a list of prompts, each a text, a list of token ids or a list of messages"
    held = None if isinstance(prompts, str | bytes | Mapping | Set) else entries(prompts)
    asked = held or []
    if held is None or (asked and all(map(is_token_id, asked))):
        hint = ": put it in a list" if isinstance(prompts, str) or asked else ""
        raise OptionError(f"prompts: {expected}, got {shown(prompts)}{hint}")
    return asked


def token_ids(prompt: Any) -> list[int]:
    """Return a prompt's token ids as plain numbers; raise :class:`PromptError` unless it is a list of whole numbers."""
    held = None if isinstance(prompt, bytes | Mapping | Set) else entries(plain(prompt))
    if held is None:
        raise PromptError(f"expected a text, a list of token ids or a list of messages, got {shown(prompt)}")
    ids = [plain(token) for token in held]
    if wrong := [token for token in ids if not is_token_id(token)]:
        raise PromptError(f"the prompt holds {shown(wrong[0])}: expected token ids, which are whole numbers")
    return ids


def plain(value: Any) -> Any:
    """Return the entries of an array or a tensor as Python numbers; return anything else unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def is_token_id(value: Any) -> bool:
    """Return whether a value, or the one that a tensor without dimensions holds, is a whole number."""
    return isinstance(plain(value), int) and not isinstance(plain(value), bool)


class Intake:
    """Turns prompts and what is asked of them into requests.

    Args:
        runner: the target.
        tokenizer: its tokenizer; None: prompts are token ids.
        stop_token_ids: ids that end every continuation.
    """

    def __init__(
        self, runner: ModelRunner, tokenizer: PreTrainedTokenizerBase | None, stop_token_ids: frozenset[int]
    ) -> None:
        self._runner, self._tokenizer, self._stop_token_ids = runner, tokenizer, stop_token_ids

    def take(
        self,
        prompts: Iterable[Prompt],
        max_new_tokens: int,
        arrivals: Iterable[float],
        settings: Iterable[Settings | OptionError],
    ) -> tuple[list[Request], list[Result]]:
        """Return a request per continuation asked for, and the results of the prompts that cannot be decoded.

        Args:
            prompts: texts, or lists of token ids.
            max_new_tokens: tokens generated per prompt, where its settings do not say.
            arrivals: seconds after the start of the run at which each may first be seen.
            settings: how each is decoded, or why it cannot be.
        """
        requests: list[Request] = []
        failed: list[Result] = []
        for index, (prompt, arrival, how) in enumerate(zip(prompts, arrivals, settings, strict=True)):
            try:
                if isinstance(how, OptionError):
                    raise how
                asked = self._samples(index, self.encode(prompt), max_new_tokens, arrival, how)
            except (PromptError, OptionError) as error:
                failed.append(Result(index, "", [], "error", SequenceMetrics(), error=str(error)))
            else:
                requests += asked
        return requests, failed

    def encode(self, prompt: Prompt) -> list[int]:
        """Return a prompt's token ids; raise :class:`PromptError` when it cannot be decoded."""
        ids = token_ids(prompt) if is_ids(prompt) else tokenized(prompt, self._tokenizer)
        if not ids:
            raise PromptError("the prompt is empty: expected at least one token")
        if len(ids) >= self._runner.context:
            raise PromptError(
                f"the prompt has {len(ids)} tokens: expected fewer than the target's context of {self._runner.context}"
            )
        if not 0 <= min(ids) <= max(ids) < self._runner.vocabulary:
            outside = next(token for token in ids if not 0 <= token < self._runner.vocabulary)
            raise PromptError(
                f"the prompt holds token id {outside}: expected ids from 0 to {self._runner.vocabulary - 1}"
            )
        return ids

    def _samples(self, index: int, ids: list[int], new: int, arrival: float, settings: Settings) -> list[Request]:
        """Return the requests for all samples of one prompt."""
        stops, sampling = self._stop_token_ids, settings.sampling
        new = sampling.max_new_tokens or new
        limit = min(len(ids) + new, self._runner.context)
        return [
            Request(
                index,
                ids,
                new,
                stops,
                plan=settings.plan(len(ids), limit, sorted(stops), self._runner.device),
                stream=index + (sample << 32),
                arrival=arrival,
                stop_checks=self._stop_checks(settings),
                max_time=settings["max_time"],
                sample=sample,
                logprobs=sampling.logprobs,
            )
            for sample in range(sampling.samples)
        ]

    def _stop_checks(self, settings: Settings) -> tuple[StopCheck, ...]:
        checks: list[StopCheck] = []
        if strings := settings["stop_strings"]:
            if self._tokenizer is None:
                raise ModelError(
                    "stop: expected a target with a tokenizer, got a loaded model without one: pass tokenizer="
                )
            checks.append(StopStrings(self._tokenizer, strings, settings["min_new_tokens"] or 0))
        if settings.sampling.criteria:
            checks.append(Criteria(settings.sampling.criteria, device=self._runner.device))
        return tuple(checks)


def is_ids(prompt: Prompt) -> bool:
    """Return whether a prompt needs no tokenizer, being neither a text nor the messages of a chat."""
    return not isinstance(prompt, str) and not is_chat(prompt)


def tokenized(prompt: Any, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """Return the token ids of a text or of messages, none of a blank text; raise :class:`PromptError` where that cannot be."""
    if tokenizer is None:
        raise ModelError(
            "the target was given as a loaded model without a tokenizer: pass tokenizer=, or prompts as token ids"
        )
    if is_chat(prompt):
        return rendered(prompt, tokenizer)
    if fault := text_fault(prompt):
        raise PromptError(fault)
    try:
        return list(tokenizer(prompt).input_ids) if prompt.strip() else []
    except Exception as error:  # a tokenizer may raise anything, and the other prompts go on
        raise PromptError(f"the target's tokenizer cannot read the prompt: {sentence(error)}") from error
