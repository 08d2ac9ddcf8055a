"""Faults a user can mend. Each message is one sentence naming the thing, what was expected and what was got."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable

LONGEST = 1000
"""Characters of a message at most: as much as can be read at once; what is cut is in the middle, of a name or a value."""


class SpecframeError(Exception):
    """A fault in what was asked for; the command line prints its message and exits with status 2.

    Its message is one line, whatever the names and values in it are.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


class SpecframeWarning(RuntimeWarning):
    """What goes on in another way than was asked for; the command line prints its message."""


class PluginError(SpecframeError):
    """A plugin that cannot be loaded or that claims a name already taken."""


class ContractError(PluginError, AssertionError):
    """A strategy that does not keep what its role's contract asks; for a suite that tests it, an assertion that fails."""


class UnknownNameError(SpecframeError):
    """A strategy, alias or option that nothing provides."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        nearest = difflib.get_close_matches(name, self.known, n=1, cutoff=0.5)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        expected = f"expected one of {', '.join(self.known)}" if self.known else "there is none of any name"
        super().__init__(f"unknown {kind} {name!r}: {expected}{hint}")


class OptionError(SpecframeError, ValueError):
    """A value outside of what an option accepts."""


class CompositionError(SpecframeError):
    """Strategies that cannot work together; the message says which would."""


class ModelError(SpecframeError):
    """A model that cannot be found, loaded or used as asked."""


class PromptError(SpecframeError):
    """One prompt that cannot be decoded; the others go on."""


class InvariantError(SpecframeError):
    """An invariant that a run did not keep: which one, in which round, for which row.

    Args:
        invariant: "position", "mask", "cache", "bonus", "stop" or "row".
        round: number of the round, from 1.
        row: row of the batch.
        index: which prompt the row answers.
        detail: what was expected and what was got.
    """

    def __init__(self, invariant: str, round: int, row: int, index: int, detail: str) -> None:
        self.invariant, self.round, self.row, self.index = invariant, round, row, index
        super().__init__(f"round {round}, row {row} (prompt {index}): invariant {invariant!r} is broken: {detail}")


def one_line(text: str) -> str:
    """Return a text on one line of readable length: what cannot be printed, such as a line break, as an escape."""
    text = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def sentence(error: BaseException) -> str:
    """Return an error's text as part of a sentence."""
    return textwrap.shorten(str(error) or type(error).__name__, 400, placeholder=" ...").rstrip(".")


SHOWN = 60
"""Characters of a value that an error shows at most."""


def shown(value: object) -> str:
    """Return a value as part of a sentence, with its type where that is not plain from it."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    try:
        text = repr(value)
    except Exception:  # a stranger's object may raise anything
        return f"an object of type {type(value).__name__}"
    text = text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
    text = one_line(text)
    plain = value is None or isinstance(value, str | bytes | int | float | list | tuple | dict)
    return text if plain else f"{text} ({type(value).__name__})"
