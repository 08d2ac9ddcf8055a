"""Guards around strategies: results are checked against the contract, and errors name the strategy and its distribution.

:data:`TABLE` says what is asked of each member: type, shape, dtype and device of what it returns, which the host knows, in every
round. Numbers are looked at where that costs no synchronisation: on a CPU at once, and on other devices when the round's transfer
brings them to the host. One sentence names what is at fault; what the strategy raised is its cause. Built-in strategies are
guarded alike.
"""

from __future__ import annotations

import weakref
from typing import Any, cast

import attrs
import numpy as np
import torch

from specframe.contracts.cache import DenseView, KVBackend, KVStore, KVView, PagedView, Placement, Window
from specframe.contracts.constraints import Drafted
from specframe.contracts.drafts import Acceptance, Block, Budget, Check, Draft, Numbers, Scores, Transfer
from specframe.contracts.engine import Engine
from specframe.contracts.roles import Layout
from specframe.contracts.round import Batch, Sequence
from specframe.contracts.states import PrefixStates, StateStore
from specframe.devices import kinds
from specframe.engine.error_words import value_words
from specframe.engine.guards.guard import (
    BATCH,
    GUARDS,
    OUTCOME,
    STORES,
    ArrayForm,
    ArrayPart,
    Fault,
    Guard,
    Look,
    arrays,
    calls,
    refuse,
)
from specframe.engine.guards.numbers import acceptance_fault, beyond, draft_fault, first_beyond, unlike_draft
from specframe.engine.pool import Pool
from specframe.plugins.compose import FIELDS, Composition
from specframe.plugins.protocols import members_of

FLOATS = frozenset(one for one in vars(torch).values() if isinstance(one, torch.dtype) and one.is_floating_point)
WHOLE = frozenset(np.dtype(order + code) for order in "<>" for code in np.typecodes["AllInteger"])
IDS = ArrayForm(torch.Tensor, "a tensor", frozenset({torch.long}), "whole numbers, torch.int64")
LOGITS = ArrayForm(torch.Tensor, "a tensor", FLOATS, "floats")
MASKS = ArrayForm(torch.Tensor, "a tensor", frozenset({torch.int32}), "32 bits a number, torch.int32", "")
COUNTS = ArrayForm(np.ndarray, "an array of numpy", WHOLE, "whole numbers", None)


def sizes_of_draft(guard: Guard, draft: Draft, batch: Batch, budget: Budget) -> dict[str, Any]:
    """Return the sizes of a draft within a budget."""
    shape: Any = getattr(draft.tokens_BN, "shape", ())
    most = budget.nodes
    nodes = shape[1] if len(shape) == 2 and shape[1] <= most else most
    told = f"{most} at most" if most else 0
    return {"B": len(batch.sequences), "N": nodes, "most": told, "device": batch.tokens_BS.device}


def sizes_by_draft(guard: Guard, returned: Any, batch: Batch, draft: Draft, *_: Any) -> dict[str, Any]:
    """Return the sizes of what is said of a draft."""
    depth, device = draft.depth, batch.tokens_BS.device
    sizes = {"B": len(batch.sequences), "K": depth, "K + 1": depth + 1, "device": device}
    return sizes if draft.parents_BN is None else {**sizes, "path_BT": True}


def sizes_of_scores(guard: Guard, scores: Scores, batch: Batch, draft: Draft) -> dict[str, Any] | None:
    """Return the sizes of scores, or None for a batch that leaves something to read."""
    nodes = draft.tokens_BN.shape[1]
    return None if batch.left else {"B": len(batch.sequences), "N + 1": nodes + 1, "device": batch.tokens_BS.device}


def sizes_of_choice(guard: Guard, chosen: Any, batch: Batch, offset: int, logits_BV: torch.Tensor) -> dict[str, Any]:
    """Return the sizes of what is chosen from logits."""
    return {"B": logits_BV.shape[0], "device": logits_BV.device}


def sizes_of_places(guard: Guard, placed: Placement, batch: Batch, block: Block) -> dict[str, Any]:
    """Return the sizes of a block's places."""
    return {"B": batch.lengths_B.shape[0], "T": block.ids_BT.shape[1], "device": batch.tokens_BS.device}


def sizes_of_masks(guard: Guard, masks: Any, states: Any, drafted: Drafted) -> dict[str, Any]:
    """Return the sizes of masks, which are on the host."""
    words = -(-guard._below // 32)
    return {"B": len(states), "T": drafted.count, "ceil(V / 32)": words, "device": torch.device("cpu")}


draft_arrays = arrays(
    ArrayPart("tokens_BN", IDS, "B, N", told="B, most"),
    ArrayPart("logits_BNV", LOGITS, "B, N, V", optional=True),
    ArrayPart("counts_B", IDS, "B", optional=True),
    ArrayPart("counts", COUNTS, "B", optional=True, most="N"),
    ArrayPart("parents_BN", IDS, "B, N", optional=True, shared=True),
    sizes=sizes_of_draft,
)
score_arrays = arrays(ArrayPart("logits_BTV", LOGITS, "B, N + 1, V"), sizes=sizes_of_scores)
chosen_arrays = arrays(ArrayPart("token ids", IDS, "B"), sizes=sizes_of_choice)
acceptance_arrays = arrays(
    ArrayPart("accepted_B", IDS, "B"),
    ArrayPart("tokens_BT", IDS, "B, K + 1"),
    ArrayPart("path_BT", IDS, "B, K", optional=True),
    sizes=sizes_by_draft,
)
place_arrays = arrays(ArrayPart("positions_BT, slots_BT, index_BT", IDS, "B, T", shared=True), sizes=sizes_of_places)
budget_arrays = arrays(
    ArrayPart("depths_B", COUNTS, "B", optional=True, most="budget.depth"),
    ArrayPart("nodes_B", COUNTS, "B", optional=True, most="budget.nodes"),
    sizes=lambda _, budget, batch: {"B": len(batch), "budget.depth": budget.depth, "budget.nodes": budget.nodes},
)
mask_arrays = arrays(ArrayPart("masks", MASKS, "B, T, ceil(V / 32)"), sizes=sizes_of_masks)


def look_at_draft(guard: Guard, draft: Draft, batch: Batch, budget: Budget) -> Any:
    """Return the fault of a draft's depth, and of its numbers where they can be read."""
    tokens_BN, nodes = draft.tokens_BN, draft.tokens_BN.shape[1]
    if type(draft.depth) is not int or not 0 <= draft.depth <= min(budget.depth, nodes):
        return f"a depth from 0 to {min(budget.depth, nodes)}", value_words(draft.depth)
    if draft.parents_BN is None and draft.depth != nodes:
        return f"a depth of N = {nodes} for a chain", draft.depth
    if not nodes or not (guard._waits or readable(tokens_BN)):
        return None
    parents, counts = on_host(draft.parents_BN), on_host(draft.counts_B)
    return draft_fault(draft, on_host(tokens_BN), parents, counts, guard._below)


def look_at_acceptance(guard: Guard, acceptance: Acceptance, batch: Batch, draft: Draft, scores: Scores) -> Any:
    """Return the fault of the numbers of a rule's result where they can be read."""
    if not readable(acceptance.tokens_BT):
        return None
    accepted, tokens, path = acceptance.accepted_B.numpy(), acceptance.tokens_BT.numpy(), on_host(acceptance.path_BT)
    drafted, parents = draft.tokens_BN.numpy() if draft.nodes else None, on_host(draft.parents_BN)
    return rule_fault(draft, accepted, tokens, path, drafted, parents, scores.logits_BTV.shape[-1])


def rule_fault(
    draft: Draft, accepted: Any, tokens: Any, path: Any, drafted: Any, parents: Any, vocabulary: int
) -> Fault | None:
    """Return the fault of a rule's result: of its numbers, or of accepted tokens that are not the draft's, which the cache has."""
    fault = acceptance_fault(draft, accepted, tokens, path, parents, vocabulary)
    return unlike_draft(accepted, tokens, path, drafted) if fault is None and draft.nodes else fault


def look_at_committed(guard: Guard, commit_point: Any, batch: Batch, draft: Draft, transfer: Transfer) -> Any:
    """Return the fault of what an alignment commits: what it was given, or an acceptance result of its own."""
    if not isinstance(commit_point, Transfer) or not (commit_point is transfer or commit_point.committed):
        return "the specframe.contracts.drafts.Transfer it was given, or transfer.of(acceptance)"
    if not commit_point.committed:
        return None
    if not isinstance(commit_point.acceptance, Acceptance):
        return "a specframe.contracts.drafts.Acceptance", value_words(commit_point.acceptance)
    if fault := acceptance_arrays(guard, commit_point.acceptance, batch, draft):
        return fault
    numbers = commit_point.host  # whoever changes an acceptance result has asked for it anyway
    return (
        committed_fault(guard, commit_point, numbers, on_host(draft.parents_BN)) if readable(draft.tokens_BN) else None
    )


def committed_fault(guard: Guard, commit_point: Transfer, numbers: Numbers, parents: Any) -> Fault | None:
    """Return the fault of the numbers of an alignment's own acceptance result."""
    return acceptance_fault(commit_point.draft, numbers.accepted, numbers.tokens, numbers.path, parents, guard._below)


def look_at_budget(guard: Guard, budget: Budget, batch: Batch) -> Any:
    """Return the fault of a budget, by the policy's maximum."""
    maximum = guard.__wrapped__.maximum
    for name, given, most in (("depth", budget.depth, maximum.depth), ("nodes", budget.nodes, maximum.nodes)):
        if type(given) is not int or not 0 <= given <= most:
            return f"a {name} from 0 to its maximum of {most}", value_words(given)
    own = budget.depths_B is not None or budget.nodes_B is not None
    return budget_arrays(guard, budget, batch) if own else None


def guard_rule(guard: Guard, budget: Budget, batch: Batch) -> Budget:
    """Return a budget with a guard around its stopping rule."""
    rule = budget.stopping
    return budget if rule is None else attrs.evolve(budget, stopping=GUARDS["stopping rule"](rule, guard))


def guard_layout(guard: Guard, layout: Any, store: KVStore, *_: int) -> Guard:
    """Return a layout in its guard, which knows how many slots there are."""
    return GUARDS["layout"](layout, guard, 2**62 if store.slots is None else store.slots)


def look_at_answer(guard: Guard, on_B: Any, batch: Batch, *_: Any) -> Any:
    """Return the fault of which rows draft a token, by a stopping rule."""
    if isinstance(on_B, np.ndarray) and on_B.dtype == bool and on_B.shape == (len(batch),):
        return None
    got = f"one of {on_B.dtype}, {on_B.shape}" if isinstance(on_B, np.ndarray) else value_words(on_B)
    return f"an array of numpy of bool, (B,) = ({len(batch)},)", got


def look_at_slots(guard: Guard, placed: Placement, *_: Any) -> Any:
    """Return the fault of slots that there are not, where they can be read."""
    most = guard._below - 1
    if not readable(placed.slots_BT) or not beyond(slots := placed.slots_BT.numpy(), most):
        return None
    return f"slots_BT from 0 to {most}" if most < 2**62 - 1 else "slots_BT of 0 and more", first_beyond(slots, most)


def look_at_batch(guard: Guard, batch: Any, pool: Pool) -> Any:
    """Return the fault of a batch: there is one as long as anything is unfinished, which the pool has made."""
    if batch is None:
        return f"a batch while {pool.unfinished} sequences are unfinished" if pool.unfinished else None
    if not (isinstance(batch, Batch) and batch.sequences):
        return "a batch that pool.batch() made, or None"
    return None if batch is pool.latest else ("the batch that pool.batch() made last, or None", "another one")


def look_at_states(guard: Guard, store: Any, *_: Any) -> Any:
    """Return the fault of a store of states."""
    return has("a store", members_of(PrefixStates if "prefix" in guard.offers else StateStore))(guard, store)


def attend(self: Guard, query: torch.Tensor, view: KVView, scaling: float | None, window: Window) -> torch.Tensor:
    """Return the values attended to after checking them; called too often to be watched."""
    output: Any = self.__wrapped__.attend(query, view, scaling, window)
    rows, heads, width, _ = query.shape
    shape, dtype = (rows, width, heads, view.values.shape[-1]), getattr(output, "dtype", None)
    if dtype != query.dtype or getattr(output, "shape", None) != shape:
        asked = f"values of shape (B, T, H, D) = {shape} in {str(query.dtype)[6:]}"
        refuse(self, "plan.attend", (asked, value_words(output) + (f" in {str(dtype)[6:]}" if dtype else "")))
    return output


def watch_store(guard: Guard, store: Any, *_: Any) -> Any:
    """Have looked at what a store says of cached tokens, and at the first view of it, where its methods can be replaced."""
    STORES[store] = guard
    if hasattr(store, "__dict__"):
        watch_first_view(guard, store)
        if hasattr(type(store), "reserve"):
            watch_reserve(guard, store)
    return store


def watch_first_view(guard: Guard, store: Any) -> None:
    """Have the first view looked at that a store hands out, of what it wrote or code of a forward did."""
    write, expect = store.write, store.expect
    extent = "S"  # the slots attended to, once a forward has announced them

    def watch_no_more() -> None:
        # whoever holds a method may call it again; a store that held itself would keep its memory
        for name in ("write", "expect", "view"):
            vars(store).pop(name, None)

    def expect_until(placement: Placement) -> None:
        nonlocal extent
        attended = placement.attended_BS
        extent = str((placement.key_index_BS if attended is None else attended).shape[1])
        expect(placement)

    def write_once(layer: int, keys: torch.Tensor, values: torch.Tensor) -> Any:
        watch_no_more()
        view = write(layer, keys, values)
        if (fault := view_fault(view, extent, keys, values)) is not None:
            refuse(guard, "store.write", fault, view)
        return view

    def view_once(layer: int) -> Any:
        watch_no_more()
        view = store.view(layer)
        if not isinstance(view, DenseView) or extent not in ("S", str(view.keys.shape[2])):
            refuse(guard, "store.view", f"a DenseView of {extent} slots", view)
        return view

    store.write, store.expect = write_once, expect_until
    if hasattr(type(store), "places"):
        store.view = view_once


def view_fault(view: Any, extent: str, keys: torch.Tensor, values: torch.Tensor) -> Fault | str | None:
    """Return what is wrong with a store's view of ``extent`` slots, those of these keys and values among them."""
    if not isinstance(view, DenseView | PagedView):
        return "a DenseView or PagedView of specframe.contracts.cache"
    for name, fed in {"keys": keys, "values": values}.items() if isinstance(view, DenseView) else ():
        (rows, heads, _, size), given = fed.shape, getattr(view, name)
        shape = tuple(getattr(given, "shape", ()))
        if len(shape) != 4 or (*shape[:2], shape[3]) != (rows, heads, size) or extent not in ("S", str(shape[2])):
            asked = f"{name} of shape (B, H, S, D) = ({rows}, {heads}, {extent}, {size})"
            return asked, str(shape or value_words(given))
    return None


def watch_reserve(guard: Guard, store: Any) -> None:
    """Have looked at what a store says of cached tokens, for as long as it lives."""
    held = weakref.ref(store)

    def reserve(sequence: Sequence, tokens: int) -> int | None:
        one: Any = held()
        cached = type(one).reserve(one, sequence, tokens)
        if cached is not None and (type(cached) is not int or not 0 <= cached <= tokens):
            refuse(guard, "store.reserve", f"a number of tokens from 0 to {tokens}, or None", cached)
        return cached

    store.reserve = reserve


def has(what: str, members: Any) -> Look:
    """Return the check that what a strategy has made has all members."""

    def lacking(guard: Guard, made: Any, *_: Any) -> str | None:
        found = [name for name in members if not hasattr(made, name)]
        among = f", {' and '.join(found)} among them" if len(found) < len(members) else ""
        return f"{what} with {', '.join(members)}{among}" if found else None

    return lacking


def readable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's numbers can be read without synchronisation."""
    return not kinds.of(tensor.device).queues


def on_host(tensor: torch.Tensor | None) -> Any:
    """Return a tensor's numbers as an array, or None for None."""
    return None if tensor is None else tensor.cpu().numpy()


def know(guard: Guard, returned: Any, vocabulary: int) -> Any:
    """Note the number of token ids, and return what the member returned."""
    guard._below = vocabulary
    return returned


START = calls("start", then=lambda guard, returned, run: know(guard, returned, run.runner.vocabulary))

TABLE: dict[str, list[Any]] = {
    "drafter": [
        START,
        calls("propose", draft_arrays, look_at_draft, returns=Draft, keeps=BATCH),
        calls("prepare", keeps=BATCH),
        calls("draw", draft_arrays, look_at_draft, returns=Draft, keeps=BATCH),
        calls("observe", keeps=OUTCOME),
    ],
    "verifier": [START, calls("score", score_arrays, returns=Scores, keeps=BATCH)],
    "acceptance rule": [
        START,
        calls("choose", chosen_arrays, keeps=BATCH),
        calls("accept", acceptance_arrays, look_at_acceptance, returns=Acceptance, keeps=BATCH),
    ],
    "alignment": [
        START,
        calls("layout", has("a layout", members_of(Layout)), then=guard_layout),
        calls("commit", look_at_committed, keeps=BATCH),
    ],
    "layout": [
        calls("layout.arrange"),
        calls("layout.place", place_arrays, look_at_slots, returns=Placement),
        calls("layout.commit"),
    ],
    "scheduler": [
        calls("rows", lambda _, rows, size: None if type(rows) is int and rows > 0 else "a whole number of at least 1"),
        calls("next_batch", look_at_batch),
    ],
    "KV backend": [
        calls("open", has("a store", members_of(KVStore)), then=watch_store),
        calls(
            "of_drafts", has("a KV backend", members_of(KVBackend)), then=lambda _, made, own: guard("KV backend", made)
        ),
        calls("open_states", look_at_states),
    ],
    "draft-length policy": [
        START,
        calls("budget", look_at_budget, returns=Budget, keeps=BATCH, then=guard_rule),
        calls("observe"),
    ],
    "stopping rule": [calls("the stopping rule's goes_on", look_at_answer)],
    "executor": [
        calls("open", has("an engine", members_of(Engine))),
        calls("broadcast", lambda _, got, own: None if type(got) is type(own) else f"rank 0's {type(own).__name__}"),
    ],
    "attention backend": [
        calls("suits", lambda _, suits, facts: None if isinstance(suits, bool) else "true or false"),
        calls(
            "plan",
            lambda _, plan, placement: (
                None if plan is None or callable(getattr(plan, "attend", None)) else "an object with attend, or None"
            ),
            then=lambda guard, plan, placement: None if plan is None else GUARDS["plan"](plan, guard),
        ),
    ],
    "plan": [attend],
    "constraint": [
        calls("begin", then=lambda guard, state, _, vocabulary, *tokenizer: know(guard, state, vocabulary)),
        calls("masks", mask_arrays),
        calls("advance"),
    ],
}
"""What is asked of the members of each role, of executors and constraints, and of what alignments and others make."""

GUARDS |= {
    kind: type("Guard", (Guard,), {"kind": kind, **{one.__name__: one for one in members}})
    for kind, members in TABLE.items()
}


def guard(kind: str, strategy: Any) -> Any:
    """Return a strategy inside its guard; a guarded strategy is returned unchanged."""
    return strategy if isinstance(strategy, Guard) else GUARDS[kind](strategy)


def guard_all(use: Composition, checked: bool = False) -> Composition:
    """Return the composition with a guard around each of its strategies; a ``checked`` run may synchronise."""
    made = {field: guard(kind, getattr(use, field)) for kind, field in FIELDS.items() if kind != "attention backend"}
    made["drafter"]._waits = checked
    attends: Any = use.attention
    several = tuple(guard("attention backend", one) for one in (attends if isinstance(attends, tuple) else (attends,)))
    made["attention"] = several if isinstance(attends, tuple) else several[0]
    return Composition(**made, names=use.names)


def numbers_check(use: Composition) -> Check:
    """Return what checks the numbers of a transfer, as the guards of a composition do: the draft's, the rule's, the alignment's."""
    drafter, rule, alignment = (cast(Guard, one) for one in (use.drafter, use.rule, use.alignment))

    def check(transfer: Transfer, numbers: Numbers) -> None:
        draft, drafted, parents = transfer.draft, cast(np.ndarray, numbers.drafted), numbers.parents
        accepted, tokens, path = numbers.by_rule, numbers.rule_tokens, numbers.rule_path
        if fault := draft_fault(draft, drafted, parents, numbers.counts, drafter._below):
            refuse(drafter, "propose", fault)
        if fault := rule_fault(draft, accepted, tokens, path, drafted, parents, rule._below):
            refuse(rule, "accept", fault)
        if transfer.committed and (fault := committed_fault(alignment, transfer, numbers, parents)):
            refuse(alignment, "commit", fault)

    return check
