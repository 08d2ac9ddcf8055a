"""The bodies of requests, as OpenAI's API names their fields, and what they ask of specframe.

A sampling field left open takes the value of the target's generation config, as everywhere in specframe.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specframe.errors import OptionError, literal
from specframe.text.sampling import Sampling

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "suffix": (None, ""),
    "echo": (None, False),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
    "moderation": (None,),
}
"""Fields of the API that are not supported, and the values with which they ask for nothing."""

MOST_TOKENS = 16
"""New tokens of a completion that does not say how many: the default of OpenAI's API."""

Text = Annotated[str, Field(min_length=1)]
Usage = Literal["none", "last", "each"]
"""Which chunks of a stream report the numbers of tokens."""


class Body(BaseModel):
    """An object of a request. A field that is null counts as left out, as in OpenAI's API; one of another name is refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _given(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if value is not None or name not in cls.model_fields}


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    """With ``include_usage``: whether every chunk reports the numbers of tokens so far, as in vLLM."""
    include_obfuscation: bool = False


class CompletionOptions(Body):
    """The fields that completions and chat completions share."""

    model: str
    n: int = Field(1, ge=1, le=128)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    seed: int | None = Field(None, ge=0)
    stop: Text | list[Text] | None = None
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    """Whether an answer goes on after the target's end-of-sequence tokens, as in vLLM."""
    speculation: Literal["on", "off"] = "on"
    """Whether tokens may be drafted for this request; the output is the same."""
    return_token_ids: bool = False
    """Whether choices hold ``token_ids``."""

    # accepted and not used: they say who asks, how the answer is billed and kept, or what is likely to be in it
    user: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    metadata: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    prediction: Any = None
    parallel_tool_calls: Any = None

    suffix: Any = None
    echo: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    modalities: Any = None
    audio: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    moderation: Any = None

    RENAMED: ClassVar[dict[str, str]] = {"min_tokens": "min_new_tokens"}
    PASSED: ClassVar[tuple[str, ...]] = (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "min_tokens",
    )
    DRAWN: ClassVar[tuple[str, ...]] = ("top_p", "top_k", "min_p")
    """Fields without effect at a temperature of 0, which many clients send all the same."""

    DONE: ClassVar[frozenset[str]] = frozenset()
    """Fields of :data:`NEUTRAL` that this body supports."""

    def sampling(self) -> Sampling:
        """Return the sampling parameters.

        Raises:
            OptionError: a field is not supported, or does not accept its value.
        """
        for name, neutral in NEUTRAL.items():
            if name not in self.DONE and (value := getattr(self, name)) not in neutral:
                raise OptionError(f"{name}: not supported here, expected it to be left out, got {value!r}")
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        given = {self.RENAMED.get(name, name): getattr(self, name) for name in self.PASSED}
        if self.temperature == 0:
            given |= dict.fromkeys(self.DRAWN)
        bias = [((token,), value) for token, value in (self.logit_bias or {}).items()]
        return Sampling(**given, sequence_bias=bias, stop=stop or None, samples=self.n, logprobs=self.top())

    def top(self) -> int | None:
        """Return the number of most likely tokens whose log-probabilities are asked for, or None for no log-probabilities."""
        raise NotImplementedError

    @property
    def usage(self) -> Usage:
        """Which chunks of a stream report the numbers of tokens."""
        options = self.stream_options
        if not options.include_usage:
            return "none"
        return "each" if options.continuous_usage_stats else "last"


class Completion(CompletionOptions):
    """The body of a completion."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int = Field(MOST_TOKENS, ge=0)
    echo: bool = False
    """Whether choices begin with the prompt, and log-probabilities with those of its tokens."""
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: int | None = None

    DONE: ClassVar[frozenset[str]] = frozenset({"echo"})

    def sampling(self) -> Sampling:
        """Return the sampling parameters."""
        if self.best_of not in (None, self.n):
            raise OptionError(f"best_of: expected the value of n, {self.n}, or nothing, got {self.best_of}")
        if not (self.max_tokens or self.echo):
            raise OptionError("max_tokens: expected at least 1 without echo, got 0")
        return super().sampling()

    def top(self) -> int | None:
        """Return the number of most likely tokens reported."""
        return self.logprobs

    @property
    def prompts(self) -> list[Any]:
        """The prompts, each a text or a list of token ids."""
        several = isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int)
        return list(self.prompt) if several else [self.prompt]

    @property
    def most(self) -> int | None:
        """New tokens at most."""
        return self.max_tokens


class ChatCompletion(CompletionOptions):
    """The body of a chat completion."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)

    def top(self) -> int | None:
        """Return the number of most likely tokens reported."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def prompts(self) -> list[Any]:
        """The messages, as the one prompt."""
        return [[message(one) for one in self.messages]]

    @property
    def most(self) -> int | None:
        """New tokens at most, or None for as many as the context has room for."""
        return self.max_completion_tokens or self.max_tokens


def message(given: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its content as one text, as chat templates expect it.

    Raises:
        OptionError: it has no role, or a part of its content is no text.
    """
    if not isinstance(given.get("role"), str):
        raise OptionError(f"messages: expected objects with role and content, got {literal(given)}")
    parts = given.get("content")
    if not isinstance(parts, list):
        return given
    if wrong := [part for part in parts if not is_text(part)]:
        raise OptionError(f"messages: expected content of type text, got {literal(wrong[0])}")
    return given | {"content": "\n".join(part["text"] for part in parts)}


def is_text(part: Any) -> bool:
    """Return whether a part of a message's content is a text."""
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
