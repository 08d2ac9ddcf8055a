"""Drafters that predict all tokens of a draft in one pass over a block of masks.

The pass gives logits for every place, of which a tree is grown without a further pass. A dynamic one is DDTree's: the nodes whose
paths are the likeliest, a path's probability being the product of its tokens'.

Tensor names carry their shape: B rows, K draft tokens, T tokens fed, V vocabulary, H hidden size, R rank of the Markov head.
"""

from __future__ import annotations

import attrs
import torch

from specframe.contracts.cache import KVShape
from specframe.contracts.drafts import Block, Budget, Draft
from specframe.contracts.reports import Outcome
from specframe.contracts.round import Batch, Kept
from specframe.errors import OptionError
from specframe.model.run import Run
from specframe.value_checks import number
from specframe_heads.blocks.block_cache import HeadCache, HeadRunner
from specframe_heads.blocks.block_weights import BlockHead
from specframe_heads.blocks.markov import MarkovHead, confident, scheduled
from specframe_heads.blocks.net import sight
from specframe_heads.features import on_path, uncached
from specframe_heads.head import HeadDrafter, nothing
from specframe_heads.place_by_place import Step, at_once, drawn


class DFlashDrafter(HeadDrafter):
    """Proposes the tokens of one pass over a block of masks, which reads the target's features: DFlash (arXiv 2602.06036).

    The cache has keys and values of every token whose features are known: all of a row but its last. They are written when the
    drafter receives a round's outcome, with those of rejected tokens, which the next draft drops. The block's own are dropped, too.
    A row has no further state, so rows that trade places and samples that start from one prompt need nothing of their own.

    Options:
        checkpoint: an alias, a directory or a hub id, in the format of speculators, z-lab or DeepSpec.
        shift: added to the numbers of the hidden states that the head is fed, for finding out whether a format is read rightly.
        tree, branch, nodes, top: the shape of the draft, as for ``eagle``; all levels of a dynamic tree together have room for the
            likeliest nodes, so that none is missed.
    """

    name = "dflash"
    head: BlockHead
    wide = True
    _runner: HeadRunner | None = None

    def start(self, run: Run) -> None:
        """Make the head for the run's target and open its cache."""
        self.make(run)
        run.target.capture(self.layers, past=False)
        if self._runner is None or self._runner.module is not self.head.net:  # stores that stay open are of one head
            self._runner = HeadRunner(self.head.net, self._kv_shapes(), run.runner.device, run.runner.vocabulary)
        self._cache = HeadCache(run, self._runner, self.head.facts.block)

    def _kv_shapes(self) -> list[KVShape]:
        config, dtype = self.head.net.config, self.head.net.norm.weight.dtype
        return [KVShape(config.num_key_value_heads, config.head_dim, config.head_dim, dtype)] * config.num_hidden_layers

    def observe(self, outcome: Outcome) -> None:
        """Write the keys and values of the tokens that the target has read."""
        if not (hidden := outcome.scores.hidden):
            return
        batch, features_BTF = outcome.batch, torch.cat([hidden[layer] for layer in self.layers], dim=-1)
        if outcome.transfer:  # `outcome.before` has rows at their limit too short, and others may start from them
            batch = attrs.evolve(batch, lengths_B=self._ends_B, lengths=outcome.lengths)
        if batch.prefill:
            width = features_BTF.shape[1]
            counts = (uncached(batch) - batch.left).clip(0, width)
            block = Block(batch.last_tokens(width, -batch.left), -batch.left - width, counts=counts)
        else:
            features_BTF = on_path(outcome, features_BTF)
            width = features_BTF.shape[1]
            block = Block(batch.last_tokens(width, width - 1), -1)
            self._cache.commit(batch, Kept(-1))  # the block that the draft came from
        placement, write = self._cache.place(batch, block)
        self.head.net.remember(self.head.fuse(features_BTF), placement.positions_BT, write)

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return a chain or a tree within the budget, at most as deep as the block that the head was trained with is long."""
        self._ends_B = batch.lengths_B.clone()  # those of the pool grow before the outcome comes
        count = min(budget.depth, self.head.longest)
        if count == 0:
            return nothing(batch)
        self._cache.commit(batch, Kept(-1))  # what was rejected
        return self._drafted(batch, attrs.evolve(budget, depth=count), self._states(batch, count))

    def _states(self, batch: Batch, count: int) -> torch.Tensor:
        """Return the states (B, K, H) of the slots that predict the draft's tokens.

        The block is as long as those that the head was trained with, however short the draft: slots see the masks after them.
        """
        facts, net, whole = self.head.facts, self.head.net, self.head.longest
        masks_BT = batch.tokens_BS.new_full((len(batch), whole - facts.anchored), facts.mask)
        block = Block(torch.cat([batch.last_tokens(1), masks_BT], dim=1), -1)
        placement, write = self._cache.place(batch, block, drafts=True)
        embedded_BTH = self.head.embed(block.ids_BT)
        seen = sight(placement.key_index_BS, placement.index_BT, net.windows, facts.reach, embedded_BTH.dtype)
        return net(embedded_BTH, placement.positions_BT, seen, write)[:, -whole:][:, :count]

    def _drafted(self, batch: Batch, budget: Budget, states_BKH: torch.Tensor) -> Draft:
        """Return the draft whose tokens the slots' states give."""
        return drawn(self, batch, budget, *at_once(self.head.head(states_BKH)))


class DSpark(DFlashDrafter):
    """DFlash with a Markov head, which corrects each slot by the token before it, and a confidence head: DSpark (2607.05147).

    Drafts of a row can end where the confidence head expects a rejection. It is asked in the order of the tokens, and decides
    on a token by the tokens before it alone, so every lossless rule stays lossless.

    Options:
        checkpoint: an alias, a directory or a hub id, in the format of speculators or DeepSpec.
        confidence: a row's draft ends before the first token whose chance of acceptance is smaller, as the head predicts.
        token_cost: DSpark's scheduler: the time of one more token in the target's pass, in units of a pass without any. Only
            tokens that are worth it are proposed; a row's draft depends on the other rows. 0: no scheduler.
        shift: added to the numbers of the hidden states that the head is fed, for finding out whether a format is read rightly.
        tree, branch, nodes, top: the shape of the draft, as for ``dflash``; a draft that ends early is a chain.
    """

    name = "dspark"

    def __init__(
        self,
        checkpoint: str,
        confidence: float = 0.0,
        token_cost: float = 0.0,
        shift: int = 0,
        tree: str = "chain",
        branch: str | int | None = None,
        nodes: int | None = None,
        top: int | None = None,
    ) -> None:
        super().__init__(checkpoint, shift, tree, branch, nodes, top)
        self._least, self._token_cost = number("confidence", confidence, 0, 1), number("token_cost", token_cost, 0)
        if self._shortens and not self.trees.chain:
            option = "confidence" if self._least else "token_cost"
            raise OptionError(f"{option}: expected a chain with it, got a {self.trees.kind} tree")

    def start(self, run: Run) -> None:
        """Make the head; raise :class:`OptionError` where a confidence is asked for and it has no head for that."""
        super().start(run)
        if self._shortens and self.head.confidence is None:
            raise OptionError(
                f"{self.checkpoint} has no confidence head: expected one for the options confidence and token_cost, or none of them"
            )

    @property
    def _shortens(self) -> bool:
        return bool(self._least or self._token_cost)

    def _drafted(self, batch: Batch, budget: Budget, states_BKH: torch.Tensor) -> Draft:
        if self.head.markov:
            draft = drawn(self, batch, budget, *corrected(self.head.markov, self.head.head(states_BKH), states_BKH))
        else:
            draft = super()._drafted(batch, budget, states_BKH)
        return self._shortened(batch, draft, states_BKH) if self._shortens else draft

    def _shortened(self, batch: Batch, draft: Draft, states_BKH: torch.Tensor) -> Draft:
        """Return the draft with as many tokens per row as are worth it; the others are padding."""
        before_BK = torch.cat([batch.last_tokens(1), draft.tokens_BN[:, :-1]], dim=1)
        chances_BK = self.head.chances(states_BKH, before_BK)
        counts_B = confident(chances_BK, self._least)
        if self._token_cost:
            counts_B = counts_B.minimum(scheduled(chances_BK, self._token_cost))
        return Draft(draft.tokens_BN, draft.logits_BNV, counts_B=counts_B)


def corrected(markov: MarkovHead, logits_BKV: torch.Tensor, states_BKH: torch.Tensor) -> tuple[Step, torch.Tensor]:
    """Return the step of a head whose slots' logits have a Markov head's bias, and its states before the first place."""

    def step(place: int, before_BFR: torch.Tensor, tokens_BF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        width = tokens_BF.shape[1]
        hidden_BFH = states_BKH[:, place, None].expand(-1, width, -1)
        after_BFR, bias_BFV = markov.step(before_BFR.expand(-1, width, -1), tokens_BF, hidden_BFH)
        return logits_BKV[:, place, None] + bias_BFV, after_BFR

    return step, markov.initial(len(states_BKH))[:, None]
