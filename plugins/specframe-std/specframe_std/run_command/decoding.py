"""The continuations of a run: prompts are read, decoded and forgotten."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any

import attrs

from specframe.errors import OptionError
from specframe.text.chat import as_chat, require_template
from specframe.text.prompts.prompt import Prompt
from specframe_std.run_command.results import Key, Record, record
from specframe_std.run_command.sampling import SamplingFlags

if TYPE_CHECKING:
    from specframe.cli.signals import Screen
    from specframe.contracts.requests import Request, Result
    from specframe.pipeline import Pipeline
    from specframe.text.generation import GenerationSettings
    from specframe.text.sampling import Sampling
    from specframe_std.run_command.display import Display


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

    index: int
    prompt: Prompt
    samples: int
    settings: GenerationSettings | OptionError
    given: Any
    """What the target is given: of a later turn of a chat, the messages before its own as well, once they are known."""
    left: int = 0
    """Continuations that have not finished."""
    later: Open | None = None
    """The turn after it, which follows its first continuation."""

    def follow(self, before: Open, answer: Result) -> None:
        """Take over the messages of the turn before and its answer, or the answer's error."""
        if answer.error:
            self.settings = OptionError(f"the turn before it failed: {answer.error}")
        elif not self.prompt.fault:
            self.given = [*before.given, {"role": "assistant", "content": answer.text}, *self.given]


class Decoding:
    """Decodes the missing continuations of a run's prompts, of which it holds those that are being decoded.

    Args:
        pipe: the pipeline.
        work: what is asked for.
        display: receives the text of continuations with ``stream``.
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
        self._ready: deque[Open] = deque()
        """Turns whose earlier turns have been answered."""
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
            if one.later and not result.sample:
                one.later.follow(one, result)
                self._ready.append(one.later)
            if not one.left:
                del self._open[result.index]
            if (result.index, result.sample) not in self._work.done:
                yield record(result, one.prompt, one.samples)

    def _results(self) -> Iterator[Result]:
        """Yield continuations as they finish; with ``stream``, show their text before."""
        if not self._stream:
            yield from self.pipe.decode_fed(self._asked())
            return
        for chunk in self.pipe.stream_fed(self._asked()):
            with self._screen.showing():
                self._display.piece(chunk, self._open[chunk.index].prompt)
            if chunk.result:
                yield chunk.result

    def _asked(self) -> Iterator[list[Request | Result]]:
        """Yield the requests of one prompt after the other, but of those that are complete; none while answers are waited for."""
        for turns in chats(self._opened(*numbered) for numbered in enumerate(self._work.prompts)):
            if all((one.index, sample) in self._work.done for one in turns for sample in range(one.samples)):
                continue
            self._open |= {one.index: one for one in turns}
            for one, later in itertools.pairwise(turns):
                one.later = later
            yield self._requests(turns[0])
            while self._ready:
                yield self._requests(self._ready.popleft())
        while self._open:
            yield self._requests(self._ready.popleft()) if self._ready else []

    def _opened(self, index: int, given: Prompt) -> Open:
        prompt, how = self._work.parameters.of(given)
        settings = self._settings(how)
        if not isinstance(settings, OptionError):
            self.greedy = self.greedy and settings.greedy
            self.inherited |= settings.inherited
        text = as_chat(prompt.given) if self._work.chat else prompt.given
        return Open(index, prompt, how.samples, settings, text)

    def _requests(self, one: Open) -> list[Request | Result]:
        asked = self.pipe.requests.of(one.index, one.given, self._work.max_new_tokens, one.settings)
        one.left = len(asked)
        return asked


def chats(turns: Iterable[Open]) -> Iterator[list[Open]]:
    """Yield the turns of one chat after the other; most prompts are one alone."""
    held: list[Open] = []
    for one in turns:
        if held and one.prompt.turn == 1:
            yield held
            held = []
        held.append(one)
    if held:
        yield held
