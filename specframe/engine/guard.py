"""Guards around strategies: results are checked against the contract, and errors name the strategy and its distribution.

:func:`guarded` puts an object around each strategy of a composition. It looks at types, shapes, dtypes and devices, which the
host knows, in every round. Numbers are looked at where that costs no synchronisation: on a CPU, and where they come to the host
anyway. What is at fault is told in one sentence; what the strategy raised is its cause. Built-in strategies are guarded alike.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Never

import attrs
import numpy as np
import torch

from specframe.contracts.cache import Dense, KVShape, KVStore, Paged, Placement
from specframe.contracts.drafts import Block, Budget, Draft, Outcome, RoundReport, Scores, Verdict
from specframe.contracts.engine import Engine, Value
from specframe.contracts.layout import Layout
from specframe.contracts.pool import Pool
from specframe.contracts.roles import Attend, AttentionFacts
from specframe.contracts.round import Batch
from specframe.contracts.run import Run
from specframe.devices import kinds
from specframe.engine.blame import called, got, steps, told
from specframe.engine.retry import out_of_memory
from specframe.errors import ContractError, SpecframeError
from specframe.plugins.compose import Composition

Call = tuple["Guard", str, float]
"""A call of a strategy: whose, of which member, since when (seconds of ``time.monotonic``)."""


@attrs.define
class Running:
    """The calls of strategies that are under way, the innermost one of each thread."""

    _calls: dict[int, Call | None] = attrs.Factory(dict)

    @property
    def now(self) -> Call | None:
        """The call that has run longest; None: no call is under way."""
        return min((call for call in [*self._calls.values()] if call), key=lambda call: call[2], default=None)

    def put(self, call: Call | None) -> Call | None:
        """Make a call this thread's, None when the thread is in none; return the call that the thread was in before.

        Every call of a strategy passes here twice, so nothing is locked or compared: one entry of a dictionary is one thread's.
        """
        thread = threading.get_ident()
        outer = self._calls.get(thread)
        self._calls[thread] = call
        return outer


RUNNING = Running()
"""The calls of this process, for whoever wants to tell where a run hangs."""


def passes(error: BaseException) -> bool:
    """Return whether an error is passed on unchanged: specframe's own errors, warnings turned into errors, and lack of memory."""
    if isinstance(error, SpecframeError | Warning | MemoryError):
        return True
    return isinstance(error, RuntimeError) and out_of_memory(error)


class Guard:
    """Guard of a strategy: checks its calls, and has all members of the strategy."""

    kind: ClassVar[str]

    def __init__(self, inner: Any) -> None:
        self.__wrapped__ = inner
        self._vocabulary = 2**62
        """Token ids are below it; unknown before a run starts."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def start(self, run: Run) -> None:
        """Let the strategy prepare for a run."""
        self._vocabulary = run.runner.vocabulary
        self._call("start", run)

    def _call(self, member: str, *arguments: Any) -> Any:
        """Call a member of the strategy."""
        return self._watched(member, getattr(self.__wrapped__, member), *arguments)

    def _watched(self, member: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the strategy's; what it raises becomes a sentence."""
        outer = RUNNING.put((self, member, time.monotonic()))
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:  # a stranger's method may raise anything
            if passes(error):
                raise
            owner, member = store_of(error) or (self, member)
            raise ContractError(f"{called(owner.kind, owner)}: {member}() raised {told(error, owner)}") from error
        finally:
            RUNNING.put(outer)

    def _with_batch(self, member: str, batch: Batch, *arguments: Any) -> Any:
        """Call a member that is handed a batch, which it must not write to."""
        before = versions(batch)
        returned = self._call(member, batch, *arguments)
        if versions(batch) != before:
            self._fail(f"{member}() must not write to the batch, and it did")
        return returned

    def _fail(self, what: str) -> Never:
        raise ContractError(f"{called(self.kind, self)}: {what}")

    def _refuse(self, member: str, asked: str, returned: Any) -> Never:
        self._fail(f"{member}() must return {asked}, got {returned}")

    def _tensor(self, member: str, name: str, given: Any, shape: str, right: bool, like: torch.Tensor) -> None:
        """Check one tensor: token ids or counts on the device of ``like``; ``right`` is whether its shape is the one in words."""
        if not isinstance(given, torch.Tensor):
            self._refuse(member, f"{name} as a tensor", got(given))
        if given.dtype != torch.long:
            self._refuse(member, f"{name} of whole numbers, torch.int64", given.dtype)
        if not right:
            self._refuse(member, f"{name} of shape {shape}", tuple(given.shape))
        if given.device != like.device:
            self._refuse(member, f"{name} on {like.device}, as the batch", given.device)

    def _floats(self, member: str, name: str, given: Any, shape: tuple[int, ...], letters: str) -> None:
        """Check logits: floats with the dimensions ``shape`` and a last dimension for the vocabulary."""
        if not isinstance(given, torch.Tensor):
            self._refuse(member, f"{name} as a tensor", got(given))
        if not given.is_floating_point():
            self._refuse(member, f"{name} of floats", given.dtype)
        if given.ndim != len(shape) + 1 or given.shape[:-1] != shape:
            self._refuse(member, f"{name} of shape {letters} = ({', '.join(map(str, shape))}, V)", tuple(given.shape))

    def _verdict(self, member: str, verdict: Any, batch: Batch, draft: Draft, vocabulary: int) -> None:
        """Check a verdict: its shapes now, its numbers as soon as they are on the host."""
        if not isinstance(verdict, Verdict):
            self._refuse(member, "a specframe.contracts.drafts.Verdict", got(verdict))
        rows, drafted = len(batch), draft.depth
        width = drafted + 1
        accepted_B, tokens_BT, like = verdict.accepted_B, verdict.tokens_BT, batch.tokens_BS
        right = getattr(accepted_B, "shape", None) == (rows,)
        self._tensor(member, "accepted_B", accepted_B, f"(B,) = ({rows},)", right, like)
        right = getattr(tokens_BT, "shape", None) == (rows, width)
        self._tensor(member, "tokens_BT", tokens_BT, f"(B, K + 1) = ({rows}, {width})", right, like)

        if draft.parents_BN is not None:
            right = getattr(verdict.path_BT, "shape", None) == (rows, drafted)
            self._tensor(member, "path_BT", verdict.path_BT, f"(B, K) = ({rows}, {drafted})", right, like)

        def check(accepted: np.ndarray, tokens: np.ndarray) -> None:
            if accepted.min() < 0 or accepted.max() > drafted:
                wrong = accepted[(accepted < 0) | (accepted > drafted)]
                self._refuse(member, f"accepted_B from 0 to K = {drafted}", wrong[0])
            standing = tokens[np.arange(width) <= accepted[:, None]]
            if standing.min() < 0 or standing.max() >= vocabulary:
                wrong = standing[(standing < 0) | (standing >= vocabulary)]
                self._refuse(member, f"token ids from 0 to {vocabulary - 1} in tokens_BT", wrong[0])

        verdict.once_on_host(check)


class GuardedDrafter(Guard):
    """A drafter, guarded."""

    kind = "drafter"
    _waits = False

    def start(self, run: Run) -> None:
        """Let the drafter prepare for a run. A run with checks may wait for the device, to look at ids there too."""
        self._waits = hasattr(run, "checks")
        super().start(run)

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return the drafter's draft after checking it."""
        draft = self._with_batch("propose", batch, budget)
        if not isinstance(draft, Draft):
            self._refuse("propose", "a specframe.contracts.drafts.Draft", got(draft))
        tokens_BN, rows = draft.tokens_BN, len(batch)
        shape: tuple[int, ...] = getattr(tokens_BN, "shape", ())
        right = len(shape) == 2 and shape[0] == rows and shape[1] <= budget.nodes
        words = f"(B, N) = ({rows}, {budget.nodes} at most)" if budget.nodes else f"(B, N) = ({rows}, 0)"
        self._tensor("propose", "tokens_BN", tokens_BN, words, right, batch.tokens_BS)
        if draft.logits_BNV is not None:
            self._floats("propose", "logits_BNV", draft.logits_BNV, tuple(tokens_BN.shape), "(B, N, V)")
        if tokens_BN.numel() and (self._waits or not kinds.of(tokens_BN.device).queues):
            least, most = map(int, tokens_BN.aminmax())
            if least < 0 or most >= self._vocabulary:
                asked = f"token ids from 0 to {self._vocabulary - 1} in tokens_BN"
                self._refuse("propose", asked, least if least < 0 else most)
        self._check_tree(batch, draft, budget)
        return draft

    def _check_tree(self, batch: Batch, draft: Draft, budget: Budget) -> None:
        """Check the shapes of a draft's tensors, and their values if that needs no synchronisation."""
        rows, nodes, like = len(batch), draft.nodes, batch.tokens_BS
        if draft.counts_B is not None:
            right = getattr(draft.counts_B, "shape", None) == (rows,)
            self._tensor("propose", "counts_B", draft.counts_B, f"(B,) = ({rows},)", right, like)
        if type(draft.depth) is not int or not 0 <= draft.depth <= min(budget.depth, nodes):
            self._refuse("propose", f"a depth from 0 to {min(budget.depth, nodes)}", got(draft.depth))
        if (parents_BN := draft.parents_BN) is None:
            return
        right = getattr(parents_BN, "shape", None) in ((rows, nodes), (1, nodes))
        self._tensor("propose", "parents_BN", parents_BN, f"(B, N) = ({rows}, {nodes})", right, like)
        if nodes and (self._waits or not kinds.of(parents_BN.device).queues):
            places_N = torch.arange(nodes, device=parents_BN.device)
            if bool(((parents_BN >= places_N) | (parents_BN < -1)).any()):
                self._refuse("propose", "parents_BN that are -1 or an earlier node", parents_BN.tolist()[0])

    def observe(self, outcome: Outcome) -> None:
        """Let the drafter learn."""
        self._with_batch_of(outcome)

    def _with_batch_of(self, outcome: Outcome) -> None:
        before = versions(outcome.batch)
        self._call("observe", outcome)
        if versions(outcome.batch) != before:
            self._fail("observe() must not write to the batch, and it did")


class GuardedVerifier(Guard):
    """A verifier, guarded."""

    kind = "verifier"

    def score(self, batch: Batch, draft: Draft) -> Scores:
        """Return the verifier's scores after checking them; logits of a batch that leaves something to read are not looked at."""
        scores = self._with_batch("score", batch, draft)
        if not isinstance(scores, Scores):
            self._refuse("score", "a specframe.contracts.drafts.Scores", got(scores))
        if not batch.left:
            self._floats("score", "logits_BTV", scores.logits_BTV, (len(batch), draft.nodes + 1), "(B, N + 1, V)")
        return scores


class GuardedRule(Guard):
    """An acceptance rule, guarded."""

    kind = "acceptance rule"

    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return the rule's choice after checking it."""
        chosen_B = self._with_batch("choose", batch, offset, logits_BV)
        rows = len(logits_BV)
        right = getattr(chosen_B, "shape", None) == (rows,)
        self._tensor("choose", "token ids", chosen_B, f"(B,) = ({rows},)", right, logits_BV)
        return chosen_B

    def judge(self, batch: Batch, draft: Draft, scores: Scores) -> Verdict:
        """Return the rule's verdict after checking it."""
        verdict = self._with_batch("judge", batch, draft, scores)
        self._verdict("judge", verdict, batch, draft, scores.logits_BTV.shape[-1])
        return verdict


class GuardedAlignment(Guard):
    """An alignment, guarded, as its layouts are."""

    kind = "alignment"

    def layout(self, store: KVStore, rows: int, capacity: int) -> Layout:
        """Return the alignment's layout, guarded."""
        layout = self._call("layout", store, rows, capacity)
        if lacking := [name for name in ("arrange", "place", "keep") if not callable(getattr(layout, name, None))]:
            asked = f"a layout with arrange, place and keep, {' and '.join(lacking)} among them"
            self._refuse("layout", asked, got(layout))
        return GuardedLayout(layout, self)

    def commit(self, batch: Batch, draft: Draft, verdict: Verdict) -> Verdict:
        """Return the committed verdict after checking it."""
        stands = self._with_batch("commit", batch, draft, verdict)
        if stands is not verdict:
            self._verdict("commit", stands, batch, draft, self._vocabulary)
        return stands


class GuardedLayout:
    """Guard of a layout; errors name the layout's alignment."""

    def __init__(self, inner: Any, alignment: Guard) -> None:
        self.__wrapped__, self._alignment = inner, alignment

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def arrange(self, batch: Batch) -> None:
        """Let the layout follow the batch."""
        self._alignment._watched("layout.arrange", self.__wrapped__.arrange, batch)

    def place(self, batch: Batch, block: Block) -> Placement:
        """Return the layout's placement after checking it."""
        width = block.width
        placed = self._alignment._watched("layout.place", self.__wrapped__.place, batch, block)
        if not isinstance(placed, Placement):
            self._alignment._refuse("layout.place", "a specframe.contracts.cache.Placement", got(placed))
        for name in ("positions_BT", "slots_BT", "order_BT"):
            given = getattr(placed, name)
            right = getattr(given, "shape", None) in ((len(batch.lengths_B), width), (1, width))
            words = f"(B, T) = ({len(batch.lengths_B)}, {width})"
            self._alignment._tensor("layout.place", name, given, words, right, batch.tokens_BS)
        return placed

    def keep(self, batch: Batch, kept: np.ndarray, path_BT: torch.Tensor | None = None) -> None:
        """Let the layout forget."""
        self._alignment._watched("layout.keep", self.__wrapped__.keep, batch, kept, path_BT)


class GuardedScheduler(Guard):
    """A scheduler, guarded."""

    kind = "scheduler"

    def rows(self, batch_size: int) -> int:
        """Return the number of rows after checking it."""
        rows = self._call("rows", batch_size)
        if type(rows) is not int or rows < 1:
            self._refuse("rows", "a whole number of at least 1", got(rows))
        return rows

    def next_batch(self, pool: Pool) -> Batch | None:
        """Return the scheduler's batch after checking that there is one as long as anything is unfinished."""
        batch = self._call("next_batch", pool)
        if batch is None and pool.unfinished:
            self._refuse("next_batch", f"a batch while {pool.unfinished} sequences are unfinished", None)
        if batch is not None and not (isinstance(batch, Batch) and len(batch)):
            self._refuse("next_batch", "a batch that pool.batch() made, or None", got(batch))
        return batch


class GuardedBackend(Guard):
    """A KV backend, guarded, as its stores are where they first hand out keys and values."""

    kind = "KV backend"

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> KVStore:
        """Return the backend's store after looking for its members."""
        store: Any = self._call("open", shapes, rows, capacity, device)
        members = sorted(n for n in {*vars(KVStore), *KVStore.__annotations__} if not n.startswith("_"))
        if lacking := [name for name in members if not hasattr(store, name)]:
            without = "" if len(lacking) == len(members) else f" without {', '.join(lacking)}"
            self._refuse("open", f"a store with {', '.join(members)}", f"{got(store)}{without}")
        STORES[store] = self
        self._look_once(store)
        return store

    def _look_once(self, store: Any) -> None:
        """Have the first view that a store hands out looked at, where its ``write`` can be replaced for so long."""
        write = store.write

        def checked(layer: int, keys: torch.Tensor, values: torch.Tensor) -> Any:
            vars(store).pop("write", None)  # a forward under way may hold it for its further layers
            view = write(layer, keys, values)
            if not isinstance(view, Dense | Paged):
                self._refuse("store.write", "a Dense or Paged view of specframe.contracts.cache", got(view))
            if isinstance(view, Dense):
                for name, given, fed in (("keys", view.keys, keys), ("values", view.values, values)):
                    self._look_at(name, given, fed)
            return view

        if hasattr(store, "__dict__"):
            store.write = checked

    def _look_at(self, name: str, given: Any, fed: torch.Tensor) -> None:
        """Check the shape of all slots' keys or values against the shape of the written ones."""
        rows, heads, _, size = fed.shape
        shape = tuple(getattr(given, "shape", ()))
        if len(shape) != 4 or (shape[0], shape[1], shape[3]) != (rows, heads, size):
            words = f"{name} of shape (B, H, S, D) = ({rows}, {heads}, S, {size})"
            self._refuse("store.write", words, shape or got(given))


STORES: weakref.WeakKeyDictionary[Any, GuardedBackend] = weakref.WeakKeyDictionary()
"""The open stores, each with its KV backend."""


class GuardedPolicy(Guard):
    """A draft-length policy, guarded."""

    kind = "draft-length policy"

    def budget(self, batch: Batch) -> Budget:
        """Return the policy's budget after checking it."""
        budget, most = self._with_batch("budget", batch), self.__wrapped__.maximum
        if not isinstance(budget, Budget):
            self._refuse("budget", "a specframe.contracts.drafts.Budget", got(budget))
        for name, given, bound in (("depth", budget.depth, most.depth), ("nodes", budget.nodes, most.nodes)):
            if type(given) is not int or not 0 <= given <= bound:
                self._refuse("budget", f"a {name} from 0 to its maximum of {bound}", got(given))
        return budget

    def observe(self, report: RoundReport) -> None:
        """Let the policy learn."""
        self._call("observe", report)


class GuardedExecutor(Guard):
    """An executor, guarded."""

    kind = "executor"

    def open(self, *given: Any) -> Engine:
        """Return the executor's engine after looking for its members."""
        engine = self._call("open", *given)
        if lacking := [name for name in ENGINE if not hasattr(engine, name)]:
            self._refuse("open", f"an engine with {', '.join(ENGINE)}, {' and '.join(lacking)} among them", got(engine))
        return engine

    def agree(self, value: Value) -> Value:
        """Return the executor's value after checking that it is of the same type."""
        agreed = self._call("agree", value)
        if type(agreed) is not type(value):
            self._refuse("agree", f"rank 0's {type(value).__name__}", got(agreed))
        return agreed


ENGINE = ("abort", "add", "close", "idle", "peak_kv_bytes", "step")
"""The members of :class:`specframe.contracts.engine.Engine`."""


class GuardedAttention(Guard):
    """An attention backend, guarded where it is asked and plans."""

    kind = "attention backend"

    def suits(self, facts: AttentionFacts) -> bool:
        """Return whether it suits a model after checking that it says so."""
        suits = self._call("suits", facts)
        if not isinstance(suits, bool):
            self._refuse("suits", "true or false", got(suits))
        return suits

    def plan(self, placement: Placement) -> Attend | None:
        """Return the backend's plan after checking that it attends."""
        plan = self._call("plan", placement)
        if plan is not None and not callable(getattr(plan, "attend", None)):
            self._refuse("plan", "an object with attend, or None", got(plan))
        return plan


GUARDS: dict[str, type[Guard]] = {
    one.kind: one
    for one in (
        GuardedDrafter,
        GuardedVerifier,
        GuardedRule,
        GuardedAlignment,
        GuardedScheduler,
        GuardedBackend,
        GuardedPolicy,
        GuardedExecutor,
        GuardedAttention,
    )
}
"""The guard of each role, and that of executors."""


def guard(kind: str, strategy: Any) -> Any:
    """Return a strategy inside its guard; a guarded strategy is returned unchanged."""
    return strategy if isinstance(strategy, Guard) else GUARDS[kind](strategy)


def guarded(use: Composition) -> Composition:
    """Return the composition with a guard around each of its strategies."""
    return Composition(
        drafter=guard("drafter", use.drafter),
        verifier=guard("verifier", use.verifier),
        rule=guard("acceptance rule", use.rule),
        alignment=guard("alignment", use.alignment),
        scheduler=guard("scheduler", use.scheduler),
        policy=guard("draft-length policy", use.policy),
        kv=guard("KV backend", use.kv),
        attention=(
            tuple(guard("attention backend", one) for one in use.attention)
            if isinstance(use.attention, tuple)
            else guard("attention backend", use.attention)
        ),
        names=use.names,
    )


def versions(batch: Batch) -> tuple[int, ...]:
    """Return how often each of a batch's tensors was written to, as torch counts it on the host."""
    return written(batch.tokens_BS), written(batch.lengths_B), written(batch.streams_B)


def written(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written to; 0 for a tensor made in inference mode, where torch does not count."""
    return 0 if tensor.is_inference() else tensor._version


def store_of(error: BaseException) -> tuple[Guard, str] | None:
    """Return the KV backend's guard and the member when an error comes from one of its stores."""
    for step in steps(error):
        code, values = step.tb_frame.f_code, step.tb_frame.f_locals
        owner = values.get(code.co_varnames[0]) if code.co_argcount else None
        if hasattr(owner, "write") and owner in STORES:
            return STORES[owner], f"store.{code.co_name}"
    return None
