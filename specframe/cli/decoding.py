"""The continuations of a run: prompts are read, decoded and forgotten."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any

import attrs

from specframe.cli.results import Key, Record, record
from specframe.cli.sampling import SamplingFlags
from specframe.errors import OptionError
from specframe.text.chat import as_chat, require_template
from specframe.text.prompts.prompt import Prompt

if TYPE_CHECKING:
    from specframe.cli.display import Display
    from specframe.cli.signals import Screen
    from specframe.contracts.requests import Request, Result
    from specframe.pipeline import Pipeline
    from specframe.text.generation import GenerationSettings
    from specframe.text.sampling import Sampling


@attrs.frozen(eq=False)
class Work:
    """The work of a run: prompts, the parameters of each, and the continuations that exist already."""

    prompts: Iterable[Prompt]
    """Looped over anew by each that needs them."""
    parameters: SamplingFlags
    max_new_tokens: int
    total: int
    """Total number of continuations."""
    done: Set[Key]
    """Keys of the continuations that exist already."""
    chat: bool = False
    """Whether texts are messages of a chat."""


@attrs.define(eq=False)
class Open:
    """A prompt of which continuations are being decoded."""

    prompt: Prompt
    samples: int
    left: int
    """Continuations that have not finished."""


class Decoding:
    """Decodes the missing continuations of a run's prompts, of which it holds those that are being decoded.

    Args:
        pipe: the pipeline.
        work: what is asked for.
        display: is shown the pieces of continuations with ``stream``.
        screen: guards what is shown.

    Raises:
        OptionError: no prompt can be decoded with its parameters, or the target has no chat template.
    """

    def __init__(self, pipe: Pipeline, work: Work, display: Display, stream: bool, screen: Screen) -> None:
        self.pipe, self.greedy = pipe, True
        self.inherited: dict[str, Any] = {}
        """What the prompts read so far take from the generation config."""
        self._work, self._display, self._stream, self._screen = work, display, stream, screen
        self._open: dict[int, Open] = {}
        self._latest: tuple[Sampling, GenerationSettings | OptionError] | None = None
        if work.chat:
            require_template(pipe.tokenizer)
        pipe.requests.warn_of_settings()
        self._require_settings()

    def _require_settings(self) -> None:
        """Raise the first fault of parameters if all prompts have one."""
        first = None
        for prompt in self._work.prompts:
            found = self._settings(self._work.parameters.of(prompt)[1])
            if not isinstance(found, OptionError):
                return
            first = first or found
        if first:
            raise first

    def _settings(self, how: Sampling) -> GenerationSettings | OptionError:
        """Return how a prompt with these parameters is decoded, or why it cannot be."""
        if self._latest is None or self._latest[0] is not how:
            self._latest = how, self.pipe.requests.setting(how, self._work.max_new_tokens)
        return self._latest[1]

    @property
    def first(self) -> float:
        """The first prompt that was scheduled and has not finished; infinite where there is none."""
        return next(iter(self._open), math.inf)

    def records(self) -> Iterator[Record]:
        """Yield the record of each missing continuation when it finishes."""
        for result in self._results():
            one = self._open[result.index]
            one.left -= 1
            if not one.left:
                del self._open[result.index]
            if (result.index, result.sample) not in self._work.done:
                yield record(result, one.prompt, one.samples)

    def _results(self) -> Iterator[Result]:
        """Yield continuations as they finish; with ``stream``, show their pieces before."""
        if not self._stream:
            yield from self.pipe.decode_fed(self._asked())
            return
        for chunk in self.pipe.stream_fed(self._asked()):
            with self._screen.showing():
                self._display.piece(chunk, self._open[chunk.index].prompt)
            if chunk.result:
                yield chunk.result

    def _asked(self) -> Iterator[list[Request | Result]]:
        """Yield the requests of one prompt after the other, but of those that are complete."""
        for index, given in enumerate(self._work.prompts):
            prompt, how = self._work.parameters.of(given)
            settings = self._settings(how)
            if not isinstance(settings, OptionError):
                self.greedy = self.greedy and settings.greedy
                self.inherited |= settings.inherited
            if all((index, sample) in self._work.done for sample in range(how.samples)):
                continue
            text = as_chat(prompt.given) if self._work.chat else prompt.given
            asked = self.pipe.requests.of(index, text, self._work.max_new_tokens, settings)
            self._open[index] = Open(prompt, how.samples, len(asked))
            yield asked
