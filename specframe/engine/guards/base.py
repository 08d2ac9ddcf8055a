"""The base of guards: a strategy's calls, and what their results are checked for."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Never

import numpy as np
import torch

from specframe.contracts.drafts import Draft, Verdict
from specframe.contracts.round import Batch
from specframe.contracts.run import Run
from specframe.devices import kinds
from specframe.engine.error_words import error_text, steps, strategy_name, value_words
from specframe.engine.guards.calls import RUNNING, passes
from specframe.engine.guards.numbers import Fault
from specframe.errors import ContractError
from specframe.observe.watch import Stage, Watch
from specframe.value_checks import Wrapper


class Guard(Wrapper):
    """Guard of a strategy: checks its calls, and has all members of the strategy."""

    kind: ClassVar[str]

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._vocabulary = 2**62
        """Token ids are below it; unknown before a run starts."""

    def start(self, run: Run) -> None:
        """Let the strategy prepare for a run."""
        self._vocabulary = run.runner.vocabulary
        self._call("start", run)

    def _call(self, member: str, *arguments: Any) -> Any:
        """Call a member of the strategy."""
        return self._watched(member, getattr(self.__wrapped__, member), *arguments)

    def _watched(self, member: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the strategy's; what it raises becomes a sentence."""
        thread = threading.get_ident()
        outer = RUNNING.get(thread)
        RUNNING[thread] = self, member, time.monotonic()
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:  # a stranger's method may raise anything
            if passes(error) or of_observer(error):
                raise
            owner, member = part_of(error) or (self, member)
            raise ContractError(
                f"{strategy_name(owner.kind, owner)}: {member}() raised {error_text(error, owner)}"
            ) from error
        finally:
            RUNNING[thread] = outer

    def _with_batch(self, member: str, batch: Batch, *arguments: Any) -> Any:
        """Call a member that is handed a batch, which it must not write to."""
        before = writes(batch)
        returned = self._watched(member, getattr(self.__wrapped__, member), batch, *arguments)
        if writes(batch) != before:
            self._fail(f"{member}() must not write to the batch, and it did")
        return returned

    def _fail(self, what: str) -> Never:
        raise ContractError(f"{strategy_name(self.kind, self)}: {what}")

    def _refuse(self, member: str, asked: str, returned: Any) -> Never:
        self._fail(f"{member}() must return {asked}, got {returned}")

    def _tensor(self, member: str, name: str, given: Any, shape: str, right: bool, like: torch.Tensor) -> None:
        """Check one tensor: token ids or counts on the device of ``like``; ``right`` is whether its shape is the one in words."""
        if not isinstance(given, torch.Tensor):
            self._refuse(member, f"{name} as a tensor", value_words(given))
        if given.dtype != torch.long:
            self._refuse(member, f"{name} of whole numbers, torch.int64", given.dtype)
        if not right:
            self._refuse(member, f"{name} of shape {shape}", tuple(given.shape))
        if given.device != like.device:
            self._refuse(member, f"{name} on {like.device}, as the batch", given.device)

    def _numbers(self, member: str, name: str, given: Any, rows: int, most: int, words: str) -> None:
        """Check one number for each row, on the host: from 0 to ``most``, which ``words`` tell."""
        if not isinstance(given, np.ndarray):
            self._refuse(member, f"{name} as an array of numpy", value_words(given))
        if given.dtype.kind not in "iu":
            self._refuse(member, f"{name} of whole numbers", given.dtype)
        if given.shape != (rows,):
            self._refuse(member, f"{name} of shape (B,) = ({rows},)", given.shape)
        if (wrong := given[(given < 0) | (given > most)]).size:
            self._refuse(member, f"{name} from 0 to {words}", wrong[0])

    def _floats(
        self, member: str, name: str, given: Any, shape: tuple[int, ...], letters: str, like: torch.Tensor
    ) -> None:
        """Check logits: floats on the device of ``like``, of the dimensions ``shape`` and a last one for the vocabulary."""
        if not isinstance(given, torch.Tensor):
            self._refuse(member, f"{name} as a tensor", value_words(given))
        if not given.is_floating_point():
            self._refuse(member, f"{name} of floats", given.dtype)
        if given.ndim != len(shape) + 1 or given.shape[:-1] != shape:
            self._refuse(member, f"{name} of shape {letters} = ({', '.join(map(str, shape))}, V)", tuple(given.shape))
        if given.device != like.device:
            self._refuse(member, f"{name} on {like.device}, as the batch", given.device)

    def _verdict(self, member: str, verdict: Any, batch: Batch, draft: Draft) -> None:
        """Check a verdict, but for its numbers."""
        if not isinstance(verdict, Verdict):
            self._refuse(member, "a specframe.contracts.drafts.Verdict", value_words(verdict))
        rows, drafted = len(batch), draft.depth
        width = drafted + 1
        accepted_B, tokens_BT, like = verdict.accepted_B, verdict.tokens_BT, batch.tokens_BS
        right = getattr(accepted_B, "shape", None) == (rows,)
        self._tensor(member, "accepted_B", accepted_B, f"(B,) = ({rows},)", right, like)
        right = getattr(tokens_BT, "shape", None) == (rows, width)
        self._tensor(member, "tokens_BT", tokens_BT, f"(B, K + 1) = ({rows}, {width})", right, like)
        if draft.parents_BN is not None or verdict.path_BT is not None:
            right = getattr(verdict.path_BT, "shape", None) == (rows, drafted)
            self._tensor(member, "path_BT", verdict.path_BT, f"(B, K) = ({rows}, {drafted})", right, like)

    def _sound(self, member: str, fault: Fault | None) -> None:
        """Refuse what a member returned if its numbers have a fault."""
        if fault is not None:
            self._refuse(member, *fault)


def members_of(protocol: type) -> list[str]:
    """Return the names of the members that a protocol declares."""
    return sorted(name for name in {*vars(protocol), *protocol.__annotations__} if not name.startswith("_"))


def readable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's numbers can be read without a wait."""
    return not kinds.of(tensor.device).queues


def on_host(tensor: torch.Tensor | None) -> Any:
    """Return a tensor's numbers as an array; None as None."""
    return None if tensor is None else tensor.cpu().numpy()


def writes(batch: Batch) -> int:
    """Return how often a batch's tensors were written to, as torch counts it on the host; 0 for tensors made in inference mode."""
    try:
        return batch.tokens_BS._version + batch.lengths_B._version + batch.streams_B._version
    except RuntimeError:  # torch does not count in inference mode
        return 0


class GuardedPart(Wrapper):
    """Guard of what a strategy makes, whose calls come too often to be watched: what they raise finds its strategy by the frames.

    Args:
        inner: what the strategy has made.
        owner: the strategy.
        name: what errors call it.
    """

    def __init__(self, inner: Any, owner: Guard, name: str) -> None:
        super().__init__(inner)
        self.owner, self.part = owner, name


def part_of(error: BaseException) -> tuple[Guard, str] | None:
    """Return a strategy's guard and the member when an error comes from what it made: a KV backend's store, an attention's plan."""
    for step in steps(error):
        code, values = step.tb_frame.f_code, step.tb_frame.f_locals
        owner = values.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(owner, GuardedPart):
            return owner.owner, f"{owner.part}.{code.co_name}"
        if hasattr(owner, "write") and owner in STORES:
            return STORES[owner], f"store.{code.co_name}"
    return None


def of_part(error: BaseException) -> BaseException:
    """Return an error that is told as that of a strategy where it comes from what that has made, and else as it is."""
    found = part_of(error)
    if found is None or not isinstance(error, Exception | SystemExit) or passes(error):
        return error
    owner, member = found
    told_of = ContractError(f"{strategy_name(owner.kind, owner)}: {member}() raised {error_text(error, owner)}")
    told_of.__cause__ = error
    return told_of


def of_observer(error: BaseException) -> bool:
    """Return whether an error comes from an observer, which is told of stages and forwards inside of calls of strategies."""
    return any(step.tb_frame.f_code in TELLING for step in steps(error))


TELLING = frozenset({Stage.__enter__.__code__, Watch.forward.__code__, Watch.fed.__code__})
"""The functions that call observers while strategies are called."""

STORES: weakref.WeakKeyDictionary[Any, Guard] = weakref.WeakKeyDictionary()
"""The open stores, each with the guard of its KV backend."""
