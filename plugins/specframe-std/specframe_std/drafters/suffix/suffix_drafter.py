"""Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975): what followed the row's last tokens most often is proposed.

Tensors and arrays end with their shape: B rows, N nodes.
"""

from __future__ import annotations

import numpy as np

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.reports import Outcome
from specframe.contracts.round import Batch
from specframe.devices.kinds import on_device
from specframe.errors import OptionError, literal
from specframe.model.run import Run
from specframe.value_checks import number, whole
from specframe_std.drafters.suffix.engines import ENGINES, SuffixEngine
from specframe_std.drafters.suffix.history import History
from specframe_std.drafters.suffix.speculation import Most, Reach, Speculation
from specframe_std.trees.tree_options import Trees

DEEPEST = 256
"""Tokens of the deepest tree of suffixes: each response costs a walk of this many tokens for each of its own."""

NOTHING = Speculation()
"""For rows that draft nothing."""


class SuffixDrafter:
    """Proposes what followed the row's last tokens most often, in its own text and in earlier responses.

    Of every match length, from one token on, the most frequent continuation is followed; a token's probability is its share of
    the occurrences, and what has the greatest sum of probabilities is proposed. The longer the match, the more is proposed: rows
    draft unequal numbers of tokens, and a row without a match none. The responses of all runs of a pipeline are looked up. Needs
    no draft model.

    Options:
        tree: "chain"; "dynamic": a tree of the likeliest continuations, under every rule that takes trees.
        nodes: nodes of the tree; without it 16.
        factor: tokens proposed at most, for each token of the match, from 0 to 256.
        offset: tokens proposed at most beyond those.
        least: the probability below which a token is not proposed, from 0 to 1.
        depth: tokens of a match and of what follows it, together at most; from 2 to 256.
        requests: how many responses are looked up, the latest ones; with 0 only the row's own text.
        memory: a file from which responses are read, and to which they are written when no row is left; with workers the file has
            the responses of the last one.
        engine: "own", or "arctic": the trees of the package arctic-inference, which looks responses up while they grow.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"chain", "budget", "match"})

    def __init__(
        self,
        tree: str = "chain",
        nodes: int | None = None,
        factor: float = 1.0,
        offset: float = 0.0,
        least: float = 0.1,
        depth: int = 64,
        requests: int = 10_000,
        memory: str | None = None,
        engine: str = "own",
    ) -> None:
        if tree not in ("chain", "dynamic"):
            raise OptionError(f"tree: expected chain or dynamic, got {literal(tree)}")
        self._trees = Trees(tree, nodes=nodes)
        self.needs = frozenset() if self._trees.chain else frozenset({"tree", "move"})
        self.offers = self._trees.offers | {"budget", "match"}
        reach = Reach(
            number("factor", factor, 0, DEEPEST),
            number("offset", offset, 0, DEEPEST),
            number("least", least, 0, 1),
            whole("depth", depth, 2, DEEPEST),
            not self._trees.chain,
        )
        requests = whole("requests", requests, 0, 10_000_000)
        if engine not in ENGINES:
            raise OptionError(f"engine: expected {' or '.join(ENGINES)}, got {literal(engine)}")
        self._engine: SuffixEngine = ENGINES[engine](reach, requests)
        self._memory = None if memory is None else History(memory, requests)
        self._found: list[Speculation] = []
        """What was found for each row of the latest batch."""
        for response in self._memory.responses if self._memory else ():
            self._engine.learn(response)

    def budget(self, depth: int | None = None) -> Budget | None:
        """Return the budget of a tree, or None: a chain of any length."""
        return None if self._trees.chain else self._trees.budget(depth)

    def start(self, run: Run) -> None:
        """Raise :class:`OptionError` where the memory is another target's."""
        if self._memory:
            self._memory.require(run.runner.vocabulary)

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return the tokens found for each row; they are certain, so there are no logits."""
        self._found = self._find(batch, budget)
        count = max(len(one.tokens) for one in self._found)
        if not count:
            return Draft(batch.tokens_BS[:, :0])
        if self._trees.chain:
            return drafted(self._found, batch, count, None)
        return drafted(self._found, batch, budget.nodes, min(budget.depth, budget.nodes))

    def matches(self) -> np.ndarray:
        """Return how many of each row's last tokens were found where the latest draft was, (B,), 0 where nothing was."""
        return np.array([one.match for one in self._found])

    def _find(self, batch: Batch, budget: Budget) -> list[Speculation]:
        found = [NOTHING] * len(batch)
        if not budget.depth:
            return found
        depths_B = [budget.depth] * len(batch) if budget.depths_B is None else budget.depths_B.tolist()
        nodes_B = depths_B
        if not self._trees.chain:
            nodes_B = [budget.nodes] * len(batch) if budget.nodes_B is None else budget.nodes_B.tolist()
        rows = [
            row for row, one in enumerate(batch.sequences) if one.request.speculate and depths_B[row] and nodes_B[row]
        ]
        if rows:
            most = [Most(nodes_B[row], depths_B[row]) for row in rows]
            for row, one in zip(rows, self._engine.find(batch, rows, most), strict=True):
                found[row] = one
        return found

    def observe(self, outcome: Outcome) -> None:
        """Take the responses of sequences that have ended, but not of those that were aborted."""
        for sequence in outcome.ended:
            complete = sequence.finish_reason in ("eos", "stop", "length")
            self._engine.end(sequence, complete)
            if self._memory and complete:
                self._memory.add(sequence.token_ids)
        if self._memory and all(sequence.finished for sequence in outcome.batch.sequences):
            self._memory.write()


def drafted(found: list[Speculation], batch: Batch, nodes: int, depth: int | None) -> Draft:
    """Return what was found as a draft of ``nodes`` nodes, a chain unless it has a depth; what a row has not is padding."""
    counts = np.array([len(one.tokens) for one in found])
    tokens, parents = np.zeros((len(found), nodes), np.int64), np.full((len(found), nodes), -1)
    for row, one in enumerate(found):
        tokens[row, : counts[row]], parents[row, : counts[row]] = one.tokens, one.parents
    parts = [counts[:, None], tokens] if depth is None else [counts[:, None], tokens, parents]
    sent_BX = on_device(np.concatenate(parts, axis=1), batch.tokens_BS.device)
    counts_B, tokens_BN = sent_BX[:, 0], sent_BX[:, 1 : nodes + 1]
    if depth is None:
        return Draft(tokens_BN, counts_B=counts_B, counts=counts)
    return Draft(tokens_BN, parents_BN=sent_BX[:, nodes + 1 :], counts_B=counts_B, counts=counts, depth=depth)
