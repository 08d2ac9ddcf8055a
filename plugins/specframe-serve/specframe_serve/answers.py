"""The JSON of answers, as OpenAI's API spells it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from specframe.contracts.requests import FinishReason, Result
from specframe.text.stopping import text_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REASONS: dict[FinishReason, str] = {
    "eos": "stop",
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "error": "error",
}
"""The API's words for the ends of sequences."""

Json = dict[str, Any]


def error(status: int, message: str, param: str | None = None) -> Json:
    """Return the body of an error; half surrogate pairs in its message, which a request may hold, become escapes."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    message = message.encode("utf-8", "backslashreplace").decode()
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def event(body: Json | str) -> str:
    """Return a server-sent event."""
    return f"data: {body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)}\n\n"


@attrs.frozen
class Echo:
    """A prompt that the choices of its answer begin with."""

    given: str | list[int]
    """A text, or token ids."""
    ids: list[int]


@attrs.frozen
class Answer:
    """The shape of one request's answer: a completion, or a chat completion.

    Args:
        model: the name under which the target is served.
        chat: whether it is a chat completion.
        ids: whether choices hold token ids.
        tokenizer: the target's.
        samples: choices of each prompt.
        echoed: the prompts, where choices begin with them.
    """

    model: str
    chat: bool
    ids: bool
    tokenizer: PreTrainedTokenizerBase | None
    samples: int = 1
    echoed: Sequence[Echo] = ()
    head: Json = attrs.field(init=False)

    @head.default
    def _new(self) -> Json:
        name = "chatcmpl" if self.chat else "cmpl"
        return {"id": f"{name}-{uuid.uuid4().hex}", "created": int(time.time()), "model": self.model}

    def whole(self, results: list[Result], prompt_tokens: int) -> Json:
        """Return the body of an answer that is not streamed; ``results`` in the order of choices."""
        choices = []
        for place, result in enumerate(results):
            text = self._before(place) + result.text
            said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            choices.append(self._choice(place, said, result.token_ids, result))
        kind = "chat.completion" if self.chat else "text_completion"
        used = self.usage(prompt_tokens, sum(len(result.token_ids) for result in results))
        return {**self.head, "object": kind, "choices": choices, **used}

    def _choice(self, place: int, said: Json, token_ids: list[int], result: Result | None) -> Json:
        """Return a choice, or a part of one that has no result yet."""
        reason = REASONS[result.finish_reason] if result else None
        told = self._logprobs(place, result) if result else None
        ids = {"token_ids": token_ids} if self.ids else {}
        return {"index": place, **said, "logprobs": told, "finish_reason": reason, **ids}

    def piece(self, place: int, text: str, token_ids: list[int], result: Result | None) -> Json:
        """Return a chunk of a streamed answer; log-probabilities come with the last chunk of each choice."""
        said = {"delta": {"content": text}} if self.chat else {"text": text}
        return self._chunk([self._choice(place, said, token_ids, result)])

    def _before(self, place: int) -> str:
        """Return the text that a choice begins with: its prompt's, where that is echoed."""
        if not self.echoed:
            return ""
        given = self.echoed[place // self.samples].given
        return given if isinstance(given, str) else text_of(self.tokenizer, given)

    def opening(self, choices: int) -> Iterable[Json]:
        """Yield the chunks that begin a streamed answer: in a chat completion they name the role, and prompts are echoed."""
        for place in range(choices if self.echoed else 0):
            yield self.piece(place, self._before(place), [], None)
        for place in range(choices if self.chat else 0):
            yield self._chunk([{"index": place, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])

    def closing(self, prompt_tokens: int, tokens: int) -> Json:
        """Return the chunk with the usage, which has no choice."""
        return self._chunk([]) | self.usage(prompt_tokens, tokens)

    @staticmethod
    def usage(prompt_tokens: int, tokens: int) -> Json:
        """Return the entry with the numbers of tokens read and generated."""
        total = prompt_tokens + tokens
        return {"usage": {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": total}}

    def _chunk(self, choices: list[Json]) -> Json:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self.head, "object": kind, "choices": choices}

    def _logprobs(self, place: int, result: Result) -> Json | None:
        if result.logprobs is None:
            return None
        echoed = self.echoed[place // self.samples].ids if self.echoed else []
        texts = [text_of(self.tokenizer, [token]) for token in [*echoed, *result.token_ids]]
        tops = result.top_logprobs or [{} for _ in texts]
        if self.chat:
            places = zip(texts, result.logprobs, tops, strict=True)
            return {"content": [self._place(*one) for one in places]}
        named = [top and self._named(top) for top in tops]
        starts = [sum(map(len, texts[:place])) for place in range(len(texts))]
        return {
            "tokens": texts,
            "token_logprobs": result.logprobs,
            "top_logprobs": named if result.top_logprobs else None,
            "text_offset": starts,
        }

    def _named(self, top: dict[int, float]) -> dict[str, float]:
        """Return log-probabilities by text; of tokens with the same text, such as parts of a character, the most likely has it."""
        return {text_of(self.tokenizer, [token]): value for token, value in reversed(top.items())}

    def _place(self, text: str, logprob: float, top: dict[int, float]) -> Json:
        others = [spelled(text_of(self.tokenizer, [token]), value) for token, value in top.items()]
        return spelled(text, logprob) | {"top_logprobs": others}


def spelled(text: str, logprob: float) -> Json:
    """Return a token's text and log-probability."""
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
