"""Record a run round by round: which token sits in which slot of the target's cache, and what moves.

:func:`record` decodes prompts and returns a :class:`specframe_lab.trace.frames.SchemeTrace`, plain data. The recorder is an
observer, and it instruments the alignment (:mod:`specframe_testing.instrumentation.instrumented`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import numpy as np
import torch
from specframe_testing.instrumentation.instrumented import CallListener, Instrumented, TappedAlignment, listeners

from specframe.contracts.cache import Placement
from specframe.contracts.constraints import paths
from specframe.contracts.drafts import Acceptance, Block, Draft, Scores, Transfer
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request, Result
from specframe.contracts.roles import Alignment, Observer
from specframe.contracts.round import Batch, Sequence
from specframe.model.cached import CachedModel
from specframe.model.run import Run
from specframe.model.transformers_model import attention_windows
from specframe.pipeline import Pipeline
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry
from specframe.reference import reference_decode
from specframe_lab.comparison.comparison_observers import Branches
from specframe_lab.trace import frames as marks
from specframe_lab.trace.frames import Frame, Lane, Node, SchemeTrace, Score
from specframe_lab.trace.slot_book import NOTHING, SlotBook
from specframe_lab.trace.tree_drawing import limits
from specframe_lab.verify import encode


@attrs.frozen(eq=False)
class _Pass:
    """The latest pass of the target: every slot right after it, the sequence of each row, and the mask's token indices."""

    slots: dict[int, list[int]]
    rows: list[int]
    queries: list[list[int]]
    keys: list[list[int]]
    sees: list[list[list[int]]] | None = None
    """Where a tree was fed: per row, the slots that each fed token sees."""
    fed: list[list[int]] = attrs.Factory(list)
    """The slot of each fed token."""

    def row(self, prompt: int) -> int | None:
        """Return the row of a sequence, None when the pass left it out."""
        return self.rows.index(prompt) if prompt in self.rows else None


class Trace(Observer, CallListener):
    """Records one run."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.requests: dict[int, Request] = {}
        self.caches: list[CachedModel] = []
        self.book = SlotBook(0, self.before_forward)
        self._others: list[SlotBook] = []
        self._round = 1
        self._pass: _Pass | None = None
        self._by_rule: tuple[np.ndarray, np.ndarray] | None = None
        self._chances: list[list[float]] = []

    def around(self, alignment: Alignment) -> TappedAlignment:
        """Return the alignment with instrumentation."""
        return TappedAlignment(alignment, self)

    def opening(self, rows: int) -> SlotBook:
        """Return a book for a cache."""
        return SlotBook(rows, self.before_forward)

    def started(self, run: Run) -> None:
        """Take the books of the caches that the run has opened, the target's first."""
        self.caches = [*run.caches]  # the run lets go of its own list when it ends
        heard = [listener for cached in self.caches for listener in listeners(cached.layout)]
        self.book, *self._others = [listener for listener in heard if isinstance(listener, SlotBook)]

    def before_forward(self, book: SlotBook, batch: Batch, block: Block, placement: Placement) -> None:
        """Note a forward pass that is about to run."""
        if book is self.book and self._pass is None:
            self.settle()
        book.write(batch, block, placement, self._round)
        if book is self.book:
            slots = {prompt: list(held) for prompt, held in book.slots.items()}
            keys_BS = placement.key_index_BS.expand(len(batch), -1)  # read now: a layout may write to it later
            self._pass = _Pass(slots, book.batch, placement.index_BT.tolist(), keys_BS.tolist())
            if block.parents_BT is not None:
                sees = [
                    [slots_T.nonzero()[:, 0].tolist() for slots_T in row]
                    for row in placement.seen().expand(len(batch), -1, -1)
                ]
                self._pass = attrs.evolve(self._pass, sees=sees, fed=placement.slots_BT.tolist())

    def by_rule(self, acceptance: Acceptance, batch: Batch, draft: Draft, scores: Scores) -> None:
        """Note the target's probability of each node of a tree."""
        if draft.parents_BN is not None:
            rows_B1 = torch.arange(len(batch), device=draft.tokens_BN.device)[:, None]
            chances_BTV = scores.logits_BTV.float().softmax(-1)
            self._chances = chances_BTV[rows_B1, draft.above_BN + 1, draft.tokens_BN].tolist()

    def committed(self, batch: Batch, order: list[Sequence], by_rule: Acceptance, stands: Transfer) -> None:
        """Note the part of the draft that the acceptance rule accepted."""
        self._by_rule = by_rule.accepted_B.cpu().numpy(), by_rule.tokens_BT.cpu().numpy()

    def round(self, report: RoundReport) -> None:
        """Note the pass and its outcome."""
        assert self._pass is not None, "a round feeds the target"
        seen, self._pass = self._pass, None
        self._name_drafted(report, seen)
        lanes = []
        for prompt, slots in sorted(seen.slots.items()):
            row = seen.row(prompt)
            score = None if row is None else self._score(report, seen, row)
            lanes.append(self._lane(prompt, row, slots, score, report.prefill))
            if score is not None and score.tree:
                self.book.close_tree(prompt, score.path[: score.committed])
        self.frames.append(Frame(report.number, "read" if report.prefill else "score", report.draft.depth, lanes))
        for row, sequence in enumerate(report.sequences):
            self.requests[sequence.request.index] = sequence.request
            self.book.cached[sequence.request.index] = int(report.lengths[row] + report.gained[row]) - 1
        self._round = report.number + 1

    def settle(self) -> None:
        """Record the cache before the next pass or at the end, and the moves since the last pass."""
        if not self.frames:
            return
        book, last = self.book, self.frames[-1]
        lanes = []
        for prompt, slots in sorted(book.slots.items()):
            lane = self._lane(prompt, book.batch.index(prompt) if prompt in book.batch else None, list(slots))
            came_from = book.moved_from.get(prompt)
            lanes.append(attrs.evolve(lane, shift=book.offsets.get(prompt, 0), came_from=came_from))
        elsewhere = sum(other.shifted + other.carried for other in self._others)
        self.frames.append(Frame(last.round, "settle", last.draft_length, lanes, book.shifted, book.carried, elsewhere))
        for used in (book, *self._others):
            used.reset()

    def _name_drafted(self, report: RoundReport, seen: _Pass) -> None:
        """Fill in the draft tokens, whose cells were written before the pool knew them."""
        drafted = report.draft.tokens_BN.tolist()
        for cell in self.book.cells:
            if cell.token == NOTHING:
                row = seen.rows.index(cell.prompt)
                node = cell.order - int(report.lengths[row]) if cell.node == NOTHING else cell.node
                cell.token = drafted[row][node]

    def _score(self, report: RoundReport, seen: _Pass, row: int) -> Score:
        assert self._by_rule is not None, "an alignment commits every round"
        host, (by_rule, accepted_BT) = report.detail.host, self._by_rule
        accepted, tokens_BT = host.accepted, host.tokens
        length, gained, end = int(report.lengths[row]), int(report.gained[row]), int(accepted[row]) + 1
        path_BT = report.acceptance.path_BT
        tree = self._tree(report, seen, row) if report.draft.parents_BN is not None else []
        leaks, blind = (
            self._tree_faults(seen, row, tree) if tree else self._faults(seen, row, length + report.draft.depth)
        )
        return Score(
            length=length,
            drafted=report.draft.nodes,
            by_rule=int(by_rule[row]),
            committed=int(accepted[row]),
            accepted=int(report.accepted[row]),
            tokens=tokens_BT[row, :gained].tolist(),
            altered=bool((tokens_BT[row, :end] != accepted_BT[row, :end]).any()),
            finish=report.sequences[row].finish_reason,
            queries=seen.queries[row],
            keys=seen.keys[row],
            leaks=leaks,
            blind=blind,
            tree=tree,
            path=[] if path_BT is None else path_BT[row, : int(by_rule[row])].tolist(),
            sees=seen.sees[row] if seen.sees else None,
        )

    def _tree(self, report: RoundReport, seen: _Pass, row: int) -> list[Node]:
        """Return the nodes of a row's tree."""
        draft, path_BT = report.draft, report.acceptance.path_BT
        assert path_BT is not None
        path = path_BT[row, : int(report.accepted[row])].tolist()
        parents, tokens = draft.above_BN[row].tolist(), draft.tokens_BN[row].tolist()
        slots = seen.fed[row][1:]  # the row's last token comes first
        nodes = []
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            place = path.index(node) if node in path else None
            moved = None if place in (None, node) else slots[0] + (place or 0)
            nodes.append(Node(token, parent, self._chances[row][node], slots[node], place, moved))
        return nodes

    def _tree_faults(self, seen: _Pass, row: int, tree: list[Node]) -> tuple[int, int]:
        """Count slots as :meth:`_faults` does, for a tree: a node's are the row's tokens and its own path."""
        assert seen.sees is not None
        slots, first = seen.slots[seen.rows[row]], {node.slot for node in tree}
        prefix = {
            s for s, number in enumerate(slots) if number != NOTHING and s not in first and self.book.newest(number)
        }
        wanted = [prefix | {tree[node].slot for node in path} for path in paths(node.parent for node in tree)]
        return self._wrong(list(map(set, seen.sees[row])), wanted)

    def _faults(self, seen: _Pass, row: int, end: int) -> tuple[int, int]:
        """Count slots that some query sees and should not, and slots that one should see and does not.

        ``end`` is the number of the row's tokens, the draft's included, that the pass ended with.
        """
        queries, keys, slots = seen.queries[row], seen.keys[row], seen.slots[seen.rows[row]]
        own = {
            slot: self.book.cells[number].order
            for slot, number in enumerate(slots)
            if number != NOTHING and self.book.newest(number) and self.book.cells[number].order < end
        }
        orders = {order: query for order, query in enumerate(queries, start=end - len(queries)) if order >= 0}
        visible = [{slot for slot, key in enumerate(keys) if 0 <= key <= max(query, 0)} for query in orders.values()]
        wanted = [{slot for slot, place in own.items() if place <= order} for order in orders]
        return self._wrong(visible, wanted)

    @staticmethod
    def _wrong(visible: list[set[int]], wanted: list[set[int]]) -> tuple[int, int]:
        """Return how many slots some query sees that it should not, and how many some query should see and does not."""
        leaks = {slot for seen, own in zip(visible, wanted, strict=True) for slot in seen - own}
        blind = {slot for seen, own in zip(visible, wanted, strict=True) for slot in own - seen}
        return len(leaks), len(blind)

    def _lane(
        self, prompt: int, row: int | None, slots: list[int], score: Score | None = None, prefill: bool = False
    ) -> Lane:
        last = max((slot for slot, number in enumerate(slots) if number != NOTHING), default=-1)
        found = [
            (marks.PADDING if slot < last else marks.EMPTY) if number == NOTHING else self._mark(number, score, prefill)
            for slot, number in enumerate(slots)
        ]
        standing = [
            self.book.cells[n] for n, mark in zip(slots, found, strict=True) if mark in (marks.KEPT, marks.INPUT)
        ]
        newest = max(standing, key=lambda cell: cell.order, default=None)
        drift = newest.position - newest.order if newest else 0
        return Lane(prompt, row, slots, "".join(found), drift, score=score)

    def _mark(self, number: int, score: Score | None, prefill: bool) -> str:
        cell = self.book.cells[number]
        length = self.book.cached[cell.prompt] if score is None else score.length
        if not self.book.newest(number):
            return marks.STALE
        if score is None or cell.round < self._round:
            return marks.KEPT if cell.order < length else marks.STALE
        place = cell.order - length
        if prefill or place < 0:
            return marks.INPUT
        if cell.node != NOTHING:
            if cell.node not in score.path:
                return marks.REJECTED
            place = score.path.index(cell.node)
        if place < score.accepted:
            return marks.ACCEPTED
        return marks.CUT if place < score.by_rule else marks.REJECTED


def record(
    prompts: Iterable[Any],
    max_new_tokens: int = 24,
    *,
    name: str = "",
    make: Callable[..., Pipeline] = Pipeline,
    **options: Any,
) -> SchemeTrace:
    """Decode prompts and return what happened in the target's cache.

    Args:
        prompts: strings, or lists of token ids: one small batch.
        max_new_tokens: most tokens generated per prompt.
        name: what to call the scheme; the alignment's name unless given.
        make: makes the pipeline from those options.
        options: those of :class:`specframe.Pipeline`.

    Raises:
        OptionError: a prompt that cannot be decoded; nothing has been decoded then.
    """
    given = options.pop("align", "ragged")
    alignment = strategy(registry(), "alignment", given)
    trace = Trace()
    branches = Branches()
    observers = [*options.pop("observers", ()), trace, branches]
    pipe = make(**options, align=trace.around(alignment), observers=observers)
    use = pipe.parts.composition
    pipe.parts.composition = attrs.evolve(use, rule=Instrumented(use.rule, trace, accept="by_rule"))
    results = list(pipe.generate(encode(pipe, list(prompts), None), max_new_tokens))
    found = summed(trace, pipe, alignment, results, name or str(given))
    found.branches = {place: stood for place, (_, stood) in sorted(branches.counts.items()) if stood}
    return found


def summed(trace: Trace, pipe: Pipeline, alignment: Alignment, results: list[Result], name: str) -> SchemeTrace:
    """Return a finished run's trace with what is known of the scheme and of its results."""
    trace.settle()
    requests = [trace.requests[result.index] for result in results]
    sizes = {cached.runner.role: slot_bytes(cached) for cached in trace.caches}
    config, states = pipe.target_model.config.get_text_config(), trace.caches[0].runner.state_layers
    windows = attention_windows(config, "target", states.values()).values()
    return SchemeTrace(
        name=name,
        about=(inspect.getdoc(alignment) or "").partition("\n\n")[0].replace("\n", " "),
        lossless=pipe.composition.lossless,
        slot_bytes=sizes["target"],
        draft_slot_bytes=sizes.get("draft", 0),
        windows=sorted({window for window in windows if isinstance(window, int)}),
        tree=limits(pipe.composition.drafter, pipe.composition.policy.maximum),
        cells=trace.book.cells,
        frames=trace.frames,
        prompts=[request.prompt_ids for request in requests],
        outputs=[result.token_ids for result in results],
        finish=[result.finish_reason for result in results],
        reference=references(pipe, requests),
    )


def slot_bytes(cached: CachedModel) -> int:
    """Return the bytes of one token's keys and values, over all layers."""
    shapes = cached.runner.kv_shapes
    return sum(shape.heads * (shape.key_size + shape.value_size) * shape.dtype.itemsize for shape in shapes)


def references(pipe: Pipeline, requests: list[Request]) -> list[list[int]] | None:
    """Return the target's own greedy continuation of each request, or None if tokens are drawn at random."""
    if not all(request.plan.greedy for request in requests):
        return None
    return [
        reference_decode(pipe.target_model, request.prompt_ids, request.max_new_tokens, request.stop_token_ids)
        for request in requests
    ]
