"""The bodies of requests, as OpenAI's API names their fields, and what they ask of specframe.

A sampling field left open takes the value of the target's generation config, as everywhere in specframe.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from specframe.errors import OptionError
from specframe.text.sampling import Sampling

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "suffix": (None, ""),
    "echo": (None, False),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
}
"""Fields of the API that are not supported, and the values with which they ask for nothing."""

MOST_TOKENS = 16
"""New tokens of a completion that does not say how many: the default of OpenAI's API."""

Text = Annotated[str, Field(min_length=1)]


class StreamOptions(BaseModel):
    """Options of a streamed answer."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    include_obfuscation: bool = False


class Asked(BaseModel):
    """The fields that completions and chat completions share."""

    model_config = ConfigDict(extra="forbid")
    model: str
    n: int = Field(1, ge=1, le=128)
    stream: bool = False
    stream_options: StreamOptions | None = None
    seed: int | None = Field(None, ge=0)
    stop: Text | list[Text] | None = None
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = None
    presence_penalty: float | None = None
    user: str | None = None
    """Accepted, and not used."""
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    speculation: Literal["on", "off"] = "on"
    """Whether tokens may be drafted for this request; the output is the same."""
    return_token_ids: bool = False
    """Whether choices hold ``token_ids``."""

    frequency_penalty: Any = None
    logit_bias: Any = None
    suffix: Any = None
    echo: Any = None
    tools: Any = None
    tool_choice: Any = None
    response_format: Any = None

    RENAMED: ClassVar[dict[str, str]] = {"min_tokens": "min_new_tokens"}
    PASSED: ClassVar[tuple[str, ...]] = (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "min_tokens",
    )

    def sampling(self) -> Sampling:
        """Return the sampling parameters.

        Raises:
            OptionError: a field is not supported, or does not accept its value.
        """
        for name, neutral in NEUTRAL.items():
            if (value := getattr(self, name)) not in neutral:
                raise OptionError(f"{name}: not supported here, expected it to be left out, got {value!r}")
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        given = {self.RENAMED.get(name, name): getattr(self, name) for name in self.PASSED}
        return Sampling(**given, stop=stop or None, samples=self.n, logprobs=self.top())

    def top(self) -> int | None:
        """Return the number of most likely tokens whose log-probabilities are asked for; None: no log-probabilities."""
        raise NotImplementedError


class Completion(Asked):
    """The body of a completion."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int = Field(MOST_TOKENS, ge=1)
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: int | None = None

    def sampling(self) -> Sampling:
        """Return the sampling parameters."""
        if self.best_of not in (None, self.n):
            raise OptionError(f"best_of: expected the value of n, {self.n}, or nothing, got {self.best_of}")
        return super().sampling()

    def top(self) -> int | None:
        """Return the number of most likely tokens told."""
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


class ChatCompletion(Asked):
    """The body of a chat completion."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)

    def top(self) -> int | None:
        """Return the number of most likely tokens told."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def prompts(self) -> list[Any]:
        """The messages, as the one prompt."""
        if wrong := next((one for one in self.messages if not isinstance(one.get("role"), str)), None):
            raise OptionError(f"messages: expected objects with role and content, got {wrong!r}")
        return [self.messages]

    @property
    def most(self) -> int | None:
        """New tokens at most; None: as many as the context has room for."""
        return self.max_completion_tokens or self.max_tokens
