"""Options for sampling and for the end of continuations. Parameters in a prompt's JSON line win over the options."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import attrs
import click

from specframe.cli.option_types import Number, TextType
from specframe.errors import SpecframeError, SpecframeWarning, literal
from specframe.text.prompts.prompt import Prompt
from specframe.value_checks import MOST_SAMPLES
from specframe_std.command_options.options import refuse_idle, whole, with_options

if TYPE_CHECKING:
    from specframe.text.sampling import Sampling


NEAR = 0.8
"""Similarity from which a key counts as a misspelt parameter: 1: equal, 0: no letter in common. At 0.8 one or two letters of
a usual name may be wrong."""

MOST_IDS = 1_000_000
"""Most ids of prompts that are looked at for one that is given twice: their hashes take 100 MB."""


def number(name: str, meaning: str, kind: Number) -> Callable[..., Any]:
    """Return an option that takes a number."""
    return click.option(name, metavar="X", type=kind, help=meaning)


SHARE = Number(0, 1, above=True)
"""A probability above 0."""

SAMPLING = (
    number(
        "--temperature", "Above 0: sample, from logits divided by it. Default: 0, the most likely token.", Number(0)
    ),
    whole("--top-k", "Sample from the N most likely tokens."),
    number("--top-p", "Sample from the most likely tokens that make up this probability.", SHARE),
    number("--min-p", "Sample from tokens at least this probable, relative to the most likely.", Number(0, 1)),
    number("--typical-p", "Sample from the most typical tokens that make up this probability.", SHARE),
    number("--repetition-penalty", "Divide the scores of tokens that occurred by this.", Number(0, above=True)),
    number("--presence-penalty", "Subtract this from the scores of tokens that were generated before.", Number()),
    number("--frequency-penalty", "Subtract this from a token's score as often as it was generated.", Number()),
    whole("--min-new-tokens", "End no continuation before this many tokens."),
    click.option(
        "--stop",
        metavar="TEXT",
        type=TextType(),
        multiple=True,
        allow_from_autoenv=False,
        help="End with this text; may be given more than once.",
    ),
    number("--max-time", "End a continuation this many seconds after its start.", Number(0, above=True)),
    whole("--logprobs", "Write log-probabilities, and those of the N most likely tokens.", least=0),
    whole("--samples", "Continuations of every prompt, at most 10,000.", 1, most=MOST_SAMPLES),
)
"""Options for the parameters of `specframe.Sampling`."""

sampling_options = with_options(SAMPLING)


def take_options(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the sampling options from a command's options and return them; options not given are None."""
    if ctx := click.get_current_context(silent=True):
        refuse_idle(ctx, "logprobs", "output", "log-probabilities are written to its file and shown nowhere else")
    known = sampling_options(click.Command("sampling")).params
    given = {option.name: options.pop(option.name) for option in known}
    return {name: list(value) or None if isinstance(value, tuple) else value for name, value in given.items()}


class SamplingFlags:
    """The sampling parameters of prompts: a prompt's own win over the command's.

    Args:
        given: the command's.

    Raises:
        OptionError: an option of the command does not accept its value.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        from specframe.text.sampling import Sampling

        named = {name: value for name, value in given.items() if value is not None}
        self._common, self._names = Sampling().with_parameters(named), Sampling.parameters()

    def of(self, prompt: Prompt) -> tuple[Prompt, Sampling]:
        """Return a prompt and its sampling parameters; one with wrong parameters has a fault, like an unreadable prompt."""
        known = {name: value for name, value in prompt.parameters.items() if name in self._names}
        if not known:
            return prompt, self._common
        try:
            return prompt, self._common.with_parameters(known)
        except SpecframeError as error:
            return attrs.evolve(prompt, fault=f"{prompt.place}: {error}"), self._common

    def survey(self, prompts: Iterable[Prompt]) -> tuple[int, int]:
        """Read all prompts once; return how many they are and how many continuations.

        It warns of misspelt parameters, and of an ``id`` that an earlier prompt has: two results are then found by it.
        """
        count = total = 0
        ids, repeated = set[int](), list[str]()
        places: dict[str, str] = {}
        for prompt in prompts:
            count += 1
            for name in prompt.parameters:
                places.setdefault(name, prompt.place)
            if (own := prompt.parameters.get("id")) is not None and len(ids) < MOST_IDS and prompt.turn == 1:
                if (hashed := hash(repr(own))) in ids and not repeated:
                    repeated.append(f"{prompt.place}: an earlier prompt has the id {literal(own)} as well")
                ids.add(hashed)
            checked, how = self.of(prompt)
            total += 1 if checked.fault else how.samples
        name_misspelt(places, self._names)
        for line in repeated:
            warnings.warn(f"{line}: results are distinguished by their index alone", SpecframeWarning, stacklevel=2)
        return count, total


def name_misspelt(places: dict[str, str], known: list[str]) -> None:
    """Warn of each key of prompts that looks like a misspelt parameter; other keys belong to the data set.

    Args:
        places: the keys, with the place of the first prompt that has each.
        known: the names of the parameters.
    """
    for key, place in places.items():
        if key not in known and (nearest := difflib.get_close_matches(str(key), known, n=1, cutoff=NEAR)):
            warnings.warn(
                f"{place}: the key {key!r} is no parameter and has no effect; did you mean {nearest[0]!r}?",
                SpecframeWarning,
                stacklevel=2,
            )
