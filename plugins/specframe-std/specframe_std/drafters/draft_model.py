"""A draft language model with a KV cache that lives as long as its sequences."""

from __future__ import annotations

import weakref

import attrs
import numpy as np
import torch

from specframe.contracts.drafts import Block, Budget, Draft, Scores, Transfer
from specframe.contracts.reports import Outcome
from specframe.contracts.round import Batch, Bounded, Kept, Sequence
from specframe.devices.kinds import constant
from specframe.errors import CompositionError
from specframe.model.cached import CachedModel
from specframe.model.run import Run
from specframe.row_map import RowMap
from specframe.text.sampling import apply_processors, is_unshaped, one_hot_greedy_rows
from specframe_std.drafters.speculating import Speculating, places, spread
from specframe_std.trees.chains import GrowingChain
from specframe_std.trees.growth import Frontier
from specframe_std.trees.tree_options import Trees

SHORT_GAP = 16
"""Most tokens of a row that the forward which begins a draft reads. A wider gap, after many rounds that drafted nothing, is read as
a prompt is, in chunks whose masks fit into memory; a narrow one is not worth a forward of its own."""
IDLE = 8
"""Rounds without a draft after which prompts are read no more until a draft is asked for: where plain decoding is faster the draft
model then takes no time at all. A few plain rounds between others are no reason to read later, when fewer rows have a gap."""


class ModelDrafter:
    """Proposes a small language model's own continuation, or a tree of continuations, chosen as the acceptance rule asks.

    After a round the cache may lack the last two tokens of a row (the last draft token is never fed when it is proposed, and
    the bonus token is the target's). Every row is therefore fed exactly its last two tokens first and one token after that:
    K + 1 tokens a round in one shape, whatever was accepted; for a row that lacks only one, the other is written again in its
    own place. A tree's nodes are fed level by level, each time with those before them; those that were accepted stay in the cache.
    Prompts that come after :data:`IDLE` rounds in which the policy has asked for no draft are read when it asks for one, and so are
    a run's first prompts, unless the policy is "steady". Those whose samples copy their rows are read before.

    Options:
        tree: "chain"; "static": a tree of a fixed shape; "dynamic": a tree whose shape follows the draft model's probabilities.
        branch: the static tree: the children of the nodes of each depth, as in 3/2/1, or a JSON file with a list of rank lists, as
            Medusa's medusa_choices; without it the likeliest nodes are taken.
        nodes: nodes of the tree; without it 16, or those of branch.
        top: nodes that each level of a dynamic tree runs, and children of each; all levels together
            have room for as many as the tree has nodes. Without it as many as have room, up to 10.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"chain", "logits", "budget", "steady", "stops", "deferred", "captured"})

    def __init__(
        self, tree: str = "chain", branch: str | int | None = None, nodes: int | None = None, top: int | None = None
    ) -> None:
        self._trees = Trees(tree, branch, nodes, top)
        self.needs, self.offers = self._trees.needs, self._trees.offers | {"logits", "budget", "steady", "deferred"}
        self.offers |= {"stops", "captured"} if self._trees.chain else set()
        self._fed_BN: torch.Tensor | None = None
        self._idle = 0
        """Rounds since a draft was last asked for; unless it is in every round, a run begins as if it had been long ago."""
        self._begun = False
        """Whether a round of the run was decoded."""

    def budget(self, depth: int | None = None) -> Budget | None:
        """Return the budget of a tree, or None: a chain of any length.

        Raises:
            OptionError: the levels of a dynamic tree take more slots of a row than the tree's nodes, which the cache has not.
        """
        if self._trees.chain:
            return None
        found = self._trees.budget(depth)
        self._trees.require_room(found)
        return found

    def open(self, run: Run) -> CachedModel:
        """Return the draft model with its cache."""
        if run.draft_model is None:
            raise CompositionError("drafter 'model' needs a draft language model: pass one as --drafter or drafter=")
        return run.open_cache(run.draft_model)

    def start(self, run: Run) -> None:
        """Open the cache; raise :class:`CompositionError` for trees of a draft model that keeps states."""
        self._cache = self.open(run)
        if self._cache.runner.state_layers and not self._trees.chain:
            raise CompositionError(
                "a tree is drafted by feeding tokens again, and the draft model has layers that keep a state: expected tree=chain, "
                "or a draft model whose layers attend"
            )
        self._rule = run.rule
        self._logits = "logits" in run.rule.needs
        self._samples = "samples" in run.rule.offers
        self._vocabulary = min(run.runner.vocabulary, self._cache.runner.vocabulary)
        self._row_map = RowMap(run.rows)
        self._cached = np.zeros(run.rows, dtype=np.int64)
        self._speculating = Speculating()
        self._idle, self._begun = 0 if run.steady else IDLE, False
        self._bounded = False
        layout, offers = self._cache.layout, run.kv.offers
        # what is not read in order has no places of its own elsewhere, and what is cached for later prompts has to be read
        self._may_wait = layout.static and not self._cache.runner.state_layers and "prefix" not in offers
        self._waiting: weakref.WeakSet[Sequence] = weakref.WeakSet()
        """The sequences of whose prompts something was not read."""

    def observe(self, outcome: Outcome) -> None:
        """Read the prefill chunk that the target has read, and keep a tree's accepted path; all else follows from lengths."""
        if outcome.transfer is None:
            if (batch := self._speculating.batch(outcome.batch)) and not self._waits(batch):
                self._cache.read(batch)
        elif self._cache.runner.state_layers:
            if batch := self._speculating.batch(outcome.batch):
                self._cache.commit(batch, Kept(-2))  # where the next draft begins
        elif self._fed_BN is not None and outcome.transfer.acceptance.path_BT is not None:
            self._keep(outcome.before, outcome.transfer, self._fed_BN)

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return ``budget.depth`` tokens per row, with the logits they were drawn by where the acceptance rule needs them."""
        draft_length, self._fed_BN = budget.depth, None
        drafting = self._speculating.batch(batch)
        if drafting is None:
            return Draft(batch.tokens_BS[:, :0])
        whole, batch = batch, drafting
        budget = budget if batch is whole else budget.of(places(whole))
        cached = self._stands(batch)
        if batch.prefill and self._waits(batch):
            cached[:] = 0
        elif batch.prefill:
            self._cache.read(batch, left=1)
            cached[:] = batch.lengths - 1
        else:
            self._begun = True
            self._idle += not draft_length
        if draft_length == 0:
            if self._cache.runner.state_layers and not (batch.prefill or batch.starts):
                self._cache.feed(batch, Block(batch.last_tokens(2), -2))  # rows of other gaps could not be fed together
                cached[:] = batch.lengths
            self._cache.follow(batch)
            return Draft(whole.tokens_BS[:, :0])

        self._idle = 0
        missed_B = batch.lengths - cached
        width = max(2, int(missed_B.max()))
        if width > SHORT_GAP:
            self._cache.commit(batch, Kept(-width))
            own = missed_B if self._cache.layout.static else None  # cells of other layouts are in one rectangle
            self._cache.read(attrs.evolve(batch, uncached=width, uncached_rows=own), left=2)
            width = 2
        self._cache.commit(batch, Kept(-width))
        own_B = (
            np.full(len(batch), draft_length) if budget.depths_B is None else np.minimum(budget.depths_B, draft_length)
        )
        self._beyond_B, self._width = np.maximum(own_B - 1, 0), width
        draft = self.draw(batch, budget)
        # a row that is to draft nothing may be given another drafter's tokens, which are where its own draft is cached
        cached[:] = batch.lengths + (self._beyond_B if self._trees.chain else 0)
        return draft if batch is whole else spread(draft, whole)

    def prepare(self, batch: Batch, budget: Budget) -> int | None:
        """Return how many tokens of each row are fed first."""
        if not self._trees.chain or self._cache.runner.state_layers or self._speculating.batch(batch) is not batch:
            return None
        cached, width = self._stands(batch), 0
        if budget.depth:
            if (width := max(2, int((batch.lengths - cached).max()))) > SHORT_GAP:
                return None
            cached[:] = batch.lengths + budget.depth - 1
        self._fed_BN, self._width, self._begun = None, width, True
        self._idle = 0 if budget.depth else self._idle + 1
        return width

    def keep(self, batch: Batch, draft: Draft, scores: Scores) -> None:
        """Nothing to keep: lengths tell all."""

    def _stands(self, batch: Batch) -> np.ndarray:
        """Return how many tokens of each row are cached for sure."""
        self._row_map.arrange(batch.sequences).apply_host(self._cached)
        cached = self._cached[: len(batch)]
        # what was rejected is no part of it; where the host has not known lengths, all but the last draft token may be accepted,
        # and of a tree the accepted path but for its last node is cached
        bounded = self._bounded or isinstance(batch, Bounded) or not self._trees.chain
        if not (batch.prefill or batch.starts):
            self._bounded = isinstance(batch, Bounded)
        return np.minimum(cached, batch.lengths - (2 if bounded else 1), out=cached)

    def _waits(self, batch: Batch) -> bool:
        """Return whether these prompts are not read now: nothing was drafted for a while, or a chunk was not read before."""
        late = self._may_wait and self._idle >= IDLE
        if not self._begun and any(sequence.forks for sequence in batch.sequences):
            late = False  # each sample would read the prompt by itself
        if not late and self._waiting.isdisjoint(batch.sequences):
            return False
        self._waiting.update(batch.sequences)
        return True

    def draw(self, batch: Batch, budget: Budget) -> Draft:
        """Return a draft within the budget, after feeding the last tokens of each row, as many as were prepared for."""
        if not budget.depth:
            return Draft(batch.tokens_BS[:, :0])
        grow = self._chain if self._trees.chain else self._tree
        return grow(batch, budget, self._width)

    def _chain(self, batch: Batch, budget: Budget, width: int) -> Draft:
        """Return a chain."""
        plain = not (self._logits or self._samples) and is_unshaped(batch)
        # tokens are chosen from the logits as they are, which nobody else wants to see
        if budget.stopping is None and plain:
            return Draft(self._cache.extend(batch, batch.last_tokens(width), budget.depth, self._choose))

        chain = GrowingChain(batch, budget)

        def choose(batch: Batch, offset: int, logits_B1V: torch.Tensor) -> torch.Tensor:
            logits_B1V = apply_processors(batch, chain.tokens_BK, logits_B1V[..., : self._vocabulary])
            if not chain.goes_on(logits_B1V):
                return chain.tokens_BK[:, :0]
            if self._samples:
                logits_B1V = one_hot_greedy_rows(batch, logits_B1V)
            token_B1 = self._choose(batch, offset, logits_B1V)
            chain.add(token_B1, logits_B1V if self._logits else None)
            return token_B1

        self._cache.extend(batch, batch.last_tokens(width), budget.depth, choose)
        return chain.draft

    def _tree(self, batch: Batch, budget: Budget, width: int) -> Draft:
        """Return a tree within the budget."""

        def run(level: Frontier) -> torch.Tensor:
            self._cache.commit(batch, Kept(0))
            block = Block(level.tokens_BM, 0, level.parents_BM)
            logits_BFV = self._cache.feed(batch, block, keep=level.width).logits_BTV
            return apply_processors(batch, level.tokens_BM, logits_BFV[..., : self._vocabulary], level.parents_BM)

        first_B1V = self._cache.feed(batch, Block(batch.last_tokens(width), -width)).logits_BTV
        first_B1V = apply_processors(batch, batch.tokens_BS[:, :0], first_B1V[..., : self._vocabulary])
        grown = self._trees.grow(batch, budget, self._rule, first_B1V, run)
        self._fed_BN, self._depth, self._ends_B = grown.fed_BN, grown.draft.depth, batch.lengths_B.clone()
        return grown.draft

    def _keep(self, whole: Batch, transfer: Transfer, fed_BN: torch.Tensor) -> None:
        """Keep the accepted path but for its last node: it may have no children, and was not fed then."""
        accepted_B, path_BT, rows = transfer.acceptance.accepted_B, transfer.acceptance.path_BT, places(whole)
        batch = self._speculating.batch(whole)
        assert batch is not None
        assert path_BT is not None
        if batch is not whole:
            index_B = constant(tuple(rows), path_BT.device)
            accepted_B, path_BT = accepted_B[index_B], path_BT[index_B]
        batch = attrs.evolve(batch, lengths_B=self._ends_B)  # rows at their limit are shorter on the device by now
        most_B = self._beyond_B
        self._cached[: len(batch)] = batch.lengths + most_B  # at most
        # the path of a row that others drafted for may be longer than this tree, and name nodes that it has not
        own_BT = path_BT[:, : self._depth - 1].clamp(max=fed_BN.shape[1] - 1)
        beyond_B = (accepted_B - 1).clamp(min=0).minimum(constant(tuple(most_B.tolist()), path_BT.device))

        def on_host() -> np.ndarray:
            return np.minimum(np.maximum(transfer.host.accepted[rows] - 1, 0), most_B)

        self._cache.commit(batch, Kept(beyond_B, fed_BN.gather(1, own_BT), on_host))

    def _choose(self, batch: Batch, offset: int, logits_B1V: torch.Tensor) -> torch.Tensor:
        logits_BV = logits_B1V.squeeze(1)
        if logits_BV.shape[1] > self._vocabulary:
            logits_BV = logits_BV[:, : self._vocabulary]
        return self._rule.choose(batch, offset, logits_BV).unsqueeze(1)
