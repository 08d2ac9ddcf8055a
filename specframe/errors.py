"""Errors that a user can fix. Each message is one sentence: the thing, the expected value and the value got."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable

LONGEST = 1000
"""Most characters of a message, as many as can be read at once. A longer message is cut in the middle."""


class SpecframeError(Exception):
    """Base of all errors in what the user asked for. The command line prints the message and exits with status 2.

    The message is always one line, also with line breaks in the names and values in it.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


class SpecframeWarning(RuntimeWarning):
    """Warning that the work goes on differently from what was asked for. The command line prints the message."""


class PluginError(SpecframeError):
    """A plugin cannot be loaded, or it claims a name already taken."""


class ContractError(PluginError, AssertionError):
    """A strategy breaks its role's contract. In a conformance suite the error counts as a failed assertion."""


class UnknownNameError(SpecframeError):
    """No strategy, alias or option has the name."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        expected = (
            f"expected one of {', '.join(self.known)}"
            if self.known
            else "expected one that an installed plugin registers, and none does"
        )
        super().__init__(f"unknown {kind} {name!r}: {expected}{nearest(name, self.known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that asks for the known name most like this one, or nothing if none is like it."""
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


class OptionError(SpecframeError, ValueError):
    """An option does not accept its value."""


class CompositionError(SpecframeError):
    """Strategies cannot work together; the message names strategies that can."""


class ModelError(SpecframeError):
    """A model cannot be found, loaded or used as asked."""


class PromptError(SpecframeError):
    """One prompt cannot be decoded; the other prompts go on."""


def one_line(text: str) -> str:
    """Return a text as one line of readable length; unprintable characters, such as line breaks, become escapes."""
    text = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def sentence(error: BaseException) -> str:
    """Return an error's text as part of a sentence."""
    return textwrap.shorten(str(error) or type(error).__name__, 400, placeholder=" ...").rstrip(".")


SHOWN = 60
"""Most characters of a value shown in an error, so that the sentence stays readable."""


def literal(value: object) -> str:
    """Return a value as part of a sentence, with its type if the text does not show the type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    try:
        text = repr(value)
    except Exception:  # a user's object may raise any error
        return f"an object of type {type(value).__name__}"
    text = text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
    text = one_line(text)
    plain = value is None or isinstance(value, str | bytes | int | float | list | tuple | dict)
    return text if plain else f"{text} ({type(value).__name__})"
