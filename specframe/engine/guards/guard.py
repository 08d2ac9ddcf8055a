"""The guard of a strategy: one class, whose methods a table's entries say what to ask of."""

from __future__ import annotations

import operator
import re
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Container
from typing import Any, ClassVar, Never

import attrs
import torch

from specframe.devices.out_of_memory import out_of_memory
from specframe.engine.error_words import error_text, strategy_name, value_words
from specframe.engine.guards.numbers import Fault
from specframe.errors import ContractError, SpecframeError
from specframe.observe.watch import Stage, Watch
from specframe.value_checks import Wrapper


class Guard(Wrapper):
    """Guard of a strategy, or of what one has made: checks its calls, and has all other members of it.

    Args:
        inner: the strategy, or what it has made.
        owner: the guard of the strategy that has made it, which errors name, or None if it is a strategy itself.
        below: the token ids, or slots, that it returns are below it. Unknown before a run starts.
    """

    kind: ClassVar[str]
    """The role, or what the strategy has made."""

    def __init__(self, inner: Any, owner: Guard | None = None, below: int = 2**62) -> None:
        super().__init__(inner)
        self._owner, self._below = owner, below
        self._waits = False
        """Whether it may synchronise, to look at ids on the device, too: a run that is checked may."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self.kind, self.__wrapped__), {**vars(self), "_owner": None}  # an owner holds its run


GUARDS: dict[str, type[Guard]] = {}
"""The guards by kind, made of the table in :mod:`specframe.engine.guards.guard_table`."""


def _remade(kind: str, inner: Any) -> Guard:
    return GUARDS[kind](inner)


RUNNING: dict[int, tuple[Guard, str, float] | None] = {}
"""The calls of strategies that are under way, the innermost one of each thread: the guard, the member, and since when (seconds of
``time.monotonic``). Nothing is locked, as one entry is one thread's."""


def longest_running() -> tuple[Guard, str, float] | None:
    """Return the call that has run longest, to report where a run hangs, or None if no call is under way."""
    return min((call for call in [*RUNNING.values()] if call), key=lambda call: call[2], default=None)


Look = Callable[..., Fault | str | None]
"""Looks at what a member returned, of the guard, that and the arguments: None, what there must be, or that and what there is."""

WRITES = ("tokens_BS._version", "lengths_B._version", "streams_B._version")
BATCH: Any = operator.attrgetter(*WRITES)
"""Returns how often a batch's tensors were written to, as torch counts it on the host."""
OUTCOME: Any = operator.attrgetter(*(f"batch.{one}" for one in WRITES))


def calls(
    called: str,
    *looks: Look,
    returns: type = object,
    keeps: Callable[[Any], Any] = type,
    then: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Return the method of a guard that calls a member of the strategy and looks at what it returns.

    It is one function, as guards are called several times a round.

    Args:
        called: what errors call the member; the last word is its name.
        looks: look at what it returned.
        returns: the type of that.
        keeps: what of the first argument stays as it was: of a batch how often it was written to.
        then: returns what the guard returns, of the arguments of looks, or None for what the member returned.
    """
    member = re.split(r"\W", called)[-1]
    running, thread_id, now = RUNNING, threading.get_ident, time.monotonic

    def method(self: Any, *arguments: Any) -> Any:
        owner, thread = self._owner or self, thread_id()
        try:
            before = keeps(arguments[0])
        except RuntimeError:  # torch does not count in inference mode
            before = None
        outer = running.get(thread)
        running[thread] = owner, called, now()
        try:
            returned = getattr(self.__wrapped__, member)(*arguments)
        except (Exception, SystemExit) as error:  # a third party's method may raise anything
            if (told := named_error(error, owner, called)) is error:
                raise
            raise told from error
        finally:
            running[thread] = outer
        if before is not None and keeps(arguments[0]) != before:
            raise error_of(owner, f"{called}() must not write to the batch, and it did")
        if not isinstance(returned, returns):
            refuse(self, called, f"a {returns.__module__}.{returns.__qualname__}", returned)
        for look in looks:
            if (fault := look(self, returned, *arguments)) is not None:
                refuse(self, called, fault, returned)
        return returned if then is None else then(self, returned, *arguments)

    method.__name__ = member
    return method


def refuse(guard: Guard, member: str, fault: Fault | str, returned: Any = None) -> Never:
    """Raise an error that names the strategy, the member, what it must return and what it returned."""
    asked, got = (fault, value_words(returned)) if isinstance(fault, str) else fault
    raise error_of(guard._owner or guard, f"{member}() must return {asked}, got {got}")


def error_of(guard: Guard, what: str) -> ContractError:
    """Return an error that names a guard's strategy."""
    return ContractError(f"{strategy_name(guard.kind, guard)}: {what}")


@attrs.frozen
class ArrayForm:
    """What an array is made of, each with the words that ask for it."""

    of: Any
    called: str
    dtypes: Container[Any]
    words: str
    place: str | None = ", as the batch"
    """What follows the device in errors, or None if it is an array of the host."""


@attrs.frozen
class ArrayPart:
    """An array that a member returns, or attributes of what it returns that mostly are one array, separated by a comma.

    Shapes are letters, as in the names of the contracts: B rows, N nodes. A letter whose size is not known may be of any.
    """

    name: str
    form: ArrayForm
    shape: str
    optional: bool = False
    """Whether it may be None, unless the sizes of the call have its name."""
    shared: bool = False
    """Whether one row may be given for all."""
    most: str = ""
    """The letter or word whose size the numbers are up to, of an array of the host."""
    told: str = ""
    """The letters whose sizes errors report, or "" for those of the shape."""

    def fault(self, name: str, given: Any, sizes: dict[str, Any]) -> Fault | None:
        """Return what is wrong with an array, or None for nothing."""
        form = self.form
        if not isinstance(given, form.of):
            return f"{name} as {form.called}", value_words(given)
        if given.dtype not in form.dtypes:
            return f"{name} of {form.words}", given.dtype
        shape, letters = tuple(given.shape), self.shape.split(", ")
        asked = tuple(map(sizes.get, letters, shape))
        if len(shape) != len(letters) or (shape != asked and not (self.shared and shape == (1, *asked[1:]))):
            comma, letters = "," * (len(letters) == 1), self.told.split(", ") if self.told else letters
            told = ", ".join(str(sizes.get(one, one)) for one in letters)
            return f"{name} of shape ({self.shape}{comma}) = ({told}{comma})", shape
        if self.most and (wrong := given[(given < 0) | (given > sizes[self.most])]).size:
            return f"{name} from 0 to {self.most} = {sizes[self.most]}", wrong[0]
        if form.place is not None and given.device != sizes["device"]:
            return f"{name} on {sizes['device']}{form.place}", given.device
        return None


def arrays(*parts: ArrayPart, sizes: Callable[..., dict[str, Any] | None]) -> Look:
    """Return what looks at the arrays that a member returns.

    Args:
        parts: the arrays.
        sizes: returns the sizes of letters, and the device, of the arguments of looks, or None if they are not looked at.
    """

    fields = [(one, one.name.split(", "), one.shape.split(", "), one.form.dtypes, one.optional) for one in parts]

    def look(guard: Guard, value: Any, batch: Any, *arguments: Any) -> Fault | None:
        if (known := sizes(guard, value, batch, *arguments)) is None:
            return None
        size_of = known.get
        for part, names, letters, dtypes, optional in fields:
            checked: Any = None if optional and names[0] not in known else part
            for name in names:
                given = getattr(value, name, value)  # what it returns may be the array
                if given is checked:
                    continue
                if isinstance(given, torch.Tensor) and given.dtype in dtypes and given.ndim == len(letters):
                    shape = given.shape  # what is right is seen here, without another call
                    if shape == tuple(map(size_of, letters, shape)) and given.device == known.get("device"):
                        checked = given
                        continue
                if (fault := part.fault(name, given, known)) is not None:
                    return fault
                checked = given
        return None

    return look


def named_error(error: BaseException, guard: Guard | None = None, member: str = "") -> BaseException:
    """Return the error that names the strategy whose member raised one, or that one where it is not a strategy's.

    Plans and stores are called too often for a function around each call: what they raise finds its strategy by the frames that it
    came through. So does what observers raise, which are called at stages and forwards inside of calls of strategies.
    """
    lacking = isinstance(error, RuntimeError) and out_of_memory(error)
    if lacking or isinstance(error, PASSING) or not isinstance(error, Exception | SystemExit):
        return error
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code, values = frame.f_code, frame.f_locals
        called = values.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(called, Stage | Watch):
            return error
        if isinstance(called, Guard) and called.kind == "plan":
            guard, member = called._owner or called, f"plan.{code.co_name}"
            break
        if hasattr(called, "write") and called in STORES:
            guard, member = STORES[called], f"store.{code.co_name}"
            break
    if guard is None:
        return error
    told = error_of(guard, f"{member}() raised {error_text(error, guard)}")
    told.__cause__ = error
    return told


PASSING = SpecframeError, Warning, MemoryError
"""Errors that pass, as a lack of a device's memory does: those that are sentences, and warnings turned into errors."""

STORES: weakref.WeakKeyDictionary[Any, Guard] = weakref.WeakKeyDictionary()
"""The open stores, each with the guard of its KV backend."""
