"""Several drafters in one batch: each row drafts by the first that is sure of it.

Tensors and arrays end with their shape: B rows, N nodes, V vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.reports import Outcome
from specframe.contracts.roles import Drafter, MatchingDrafter, SizedDrafter
from specframe.contracts.round import Batch
from specframe.devices.kinds import on_device
from specframe.errors import CompositionError, OptionError, literal
from specframe.model.run import Run
from specframe.plugins.registry import registry
from specframe.value_checks import whole
from specframe_std.drafters.worth import Worth

CATCH_UP = 0.05
"""Share by which steps have to be worth more than found tokens: who takes steps again has first to read what it lacks."""


class First:
    """Proposes, for each row and round, the draft of the first of several drafters that is sure enough.

    A drafter that looks rows up is sure where at least ``match`` of the row's last tokens were found; every other drafter is always
    sure, and so is the last one. Rows of one batch may have drafts of different drafters. All of them receive every outcome, and
    drafters with a cache catch up when they draft again.

    A draft that was looked up is there for nothing, and steps of a draft model take time from all rows. With ``weigh``, a drafter
    that takes steps drafts where its tokens are expected to be worth them in addition to what was found; elsewhere the rows have
    what was found for them, sure or not (:mod:`specframe_std.drafters.worth`).

    Options:
        of: the drafters, separated by "|", each with its options; models and heads may be named as for --drafter.
        match: tokens that have to match, at least 1.
        weigh: "on" or "off": whether steps are weighed, or taken for every row that no drafter before is sure of.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"budget", "chain", "logits"})

    def __init__(self, of: str = "suffix|model", match: int = 4, weigh: str = "on") -> None:
        names = [part.strip() for part in of.split("|")]
        if len(names) < 2 or not all(names):
            raise OptionError(f"of: expected at least two drafters with | between them, got {literal(of)}")
        if weigh not in ("on", "off"):
            raise OptionError(f"weigh: expected 'on' or 'off', got {literal(weigh)}")
        self._match, self._weigh, self._worth = whole("match", match, 1), weigh == "on", Worth()
        self._weighs, self._hollow = self._weigh, False
        self._parts: list[Drafter] = [registry().make("drafter", name) for name in names]
        self.needs = frozenset().union(*(part.needs for part in self._parts))
        offers = frozenset().union(*(part.offers for part in self._parts))
        self._trees = "tree" in offers
        self.offers = frozenset({"budget", "tree" if self._trees else "chain"}) | offers & {"logits"}

    def budget(self, depth: int | None = None) -> Budget | None:
        """Return the greatest of its drafters' budgets, or None for chains of any length."""
        sized = [cast(SizedDrafter, part) for part in self._parts if "budget" in part.offers]
        found = [own for part in sized if (own := part.budget(depth)) is not None]
        if not found:
            return None
        return Budget(max(own.depth for own in found), max(own.nodes for own in found))

    def start(self, run: Run) -> None:
        """Start all drafters.

        Raises:
            CompositionError: one has a model whose layers keep a state, which cannot catch up by as many tokens as each row lacks.
        """
        self._vocabulary = run.runner.vocabulary
        self._logits = "logits" in run.rule.needs
        for part in self._parts:
            part.start(run)
        self._worth.start(run)
        self._hollow = run.runner.device.type == "meta"
        self._weighs = self._weigh and not self._hollow
        if any(cache.runner.state_layers for cache in run.caches if cache is not run.target):
            raise CompositionError(
                "drafter 'first' has a draft model with layers that keep a state, which rows drafted for by others cannot follow: "
                "expected one whose layers attend"
            )

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Ask one drafter after the other, each for the rows that none before it was sure of."""
        left_B = np.array([sequence.request.speculate for sequence in batch.sequences])
        if budget.depths_B is not None:
            left_B &= budget.depths_B > 0
        chosen, unsure = list[tuple[np.ndarray, Draft]](), list[Draft]()
        self._worth.begin(len(batch))
        for number, part in enumerate(self._parts):
            own = only(budget, left_B, "tree" in part.offers)
            if self._weighs and unsure:
                own = self._weighed(number, own, left_B, own_counts(unsure[-1], budget))
            draft = part.propose(batch, own)
            if not draft.nodes:
                continue
            if self._hollow:  # no row is ever left out for the drafters that follow
                chosen.append((left_B & self._turn(number, len(batch)), draft))
                continue
            sure_B = left_B if part is self._parts[-1] else left_B & self._sure(part, batch)
            if "match" in part.offers:
                unsure.append(draft)
            if sure_B.any():
                chosen.append((sure_B, draft))
                self._worth.add(number, np.where(sure_B, own_counts(draft, budget), 0))
            left_B = left_B & ~sure_B
        if left_B.any() and unsure:
            chosen.append((left_B, unsure[-1]))
            self._worth.add("unsure", np.where(left_B, own_counts(unsure[-1], budget), 0))
        if not chosen:
            return Draft(batch.tokens_BS[:, :0])
        return self._merged(batch, budget, chosen)

    def _weighed(self, number: int, own: Budget, left_B: np.ndarray, found_B: np.ndarray) -> Budget:
        """Return as much of a drafter's budget as is worth its steps in addition to the tokens that were found for each row.

        A drafter that looks rows up takes no steps.
        """
        part = self._parts[number]
        if "match" in part.offers or not own.depth:
            return own
        most_B = np.where(left_B, own.depth if own.depths_B is None else own.depths_B, 0)
        worth, depth = self._worth.stepped(number, most_B, "stops" in part.offers)
        if worth <= (1 + CATCH_UP) * self._worth.found("unsure", np.where(left_B, found_B, 0)):
            return Budget(0)
        return shallower(own, depth)

    def _turn(self, number: int, rows: int) -> np.ndarray:
        """Return the rows that have a drafter's draft in a plan of memory, where all drafters take all their steps, (B,)."""
        return np.arange(rows) % len(self._parts) == len(self._parts) - 1 - number

    def _sure(self, part: Drafter, batch: Batch) -> np.ndarray:
        if "match" not in part.offers:
            return np.ones(len(batch), dtype=bool)
        return cast(MatchingDrafter, part).matches() >= self._match

    def observe(self, outcome: Outcome) -> None:
        """Report to all drafters, and learn what their drafts gain."""
        if outcome.transfer is not None:
            goes_on_B = np.array([not sequence.finished for sequence in outcome.batch.sequences])
            self._worth.stood(outcome.transfer.host.accepted, goes_on_B)
        for part in self._parts:
            part.observe(outcome)

    def _merged(self, batch: Batch, budget: Budget, chosen: list[tuple[np.ndarray, Draft]]) -> Draft:
        """Return one draft of the rows' own ones: chains are trees where others are, and what a row has not is padding."""
        nodes, device = max(draft.nodes for _, draft in chosen), batch.tokens_BS.device
        trees = any(draft.parents_BN is not None for _, draft in chosen)
        most_B = np.zeros(len(batch), dtype=np.int64)
        for rows_B, draft in chosen:
            most_B[rows_B] = (own_counts(draft, budget))[rows_B]
        masks = on_device(np.stack([rows_B for rows_B, _ in chosen] + [most_B]), device)
        counts_B, tokens_BN = masks[-1], batch.tokens_BS.new_zeros(len(batch), nodes)
        parents_BN = torch.full_like(tokens_BN, -1)
        for mask_B, (_, draft) in zip(masks, chosen, strict=False):
            here_B1, pad = mask_B[:, None] > 0, (0, nodes - draft.nodes)
            tokens_BN = F.pad(draft.tokens_BN, pad).where(here_B1, tokens_BN)
            parents_BN = F.pad(draft.above_BN, pad, value=-1).where(here_B1, parents_BN)
            if draft.counts_B is not None:
                counts_B = draft.counts_B.minimum(counts_B).where(here_B1[:, 0], counts_B)
        logits_BNV = self._merged_logits(tokens_BN, masks, chosen) if self._logits else None
        if not trees:
            return Draft(tokens_BN, logits_BNV, counts_B=counts_B, counts=most_B)
        depth = max(draft.depth for _, draft in chosen)
        return Draft(tokens_BN, logits_BNV, parents_BN, counts_B, most_B, depth)

    def _merged_logits(
        self, tokens_BN: torch.Tensor, masks: torch.Tensor, chosen: list[tuple[np.ndarray, Draft]]
    ) -> torch.Tensor | None:
        """Return the logits that tokens were drawn by: of those that are certain, 0 for the token and -inf for all others."""
        drawn = [
            (mask_B, draft) for mask_B, (_, draft) in zip(masks, chosen, strict=False) if draft.logits_BNV is not None
        ]
        if not drawn:
            return None
        like: Any = drawn[0][1].logits_BNV
        found_BNV = like.new_full((*tokens_BN.shape, self._vocabulary), float("-inf"))
        found_BNV.scatter_(2, tokens_BN[..., None], 0.0)
        for mask_B, draft in drawn:
            own_BNV = cast(torch.Tensor, draft.logits_BNV)
            own_BNV = F.pad(own_BNV, (0, self._vocabulary - own_BNV.shape[-1]), value=float("-inf"))
            here_B11 = mask_B[:, None, None] > 0
            found_BNV[:, : draft.nodes] = own_BNV.where(here_B11, found_BNV[:, : draft.nodes])
        return found_BNV


def only(budget: Budget, rows_B: np.ndarray, trees: bool) -> Budget:
    """Return a budget for some of the rows alone, no deeper than theirs, for a drafter of chains or of trees."""
    if not budget.depth or not rows_B.any():
        return Budget(0)
    nodes = budget.nodes if trees else budget.depth
    if rows_B.all() and budget.depths_B is None and budget.nodes_B is None:
        return Budget(budget.depth, nodes)
    depths_B = np.where(rows_B, budget.depth if budget.depths_B is None else budget.depths_B, 0)
    nodes_B = np.where(rows_B, nodes if budget.nodes_B is None else budget.nodes_B, 0) if trees else depths_B
    return Budget(int(depths_B.max()), int(nodes_B.max()), depths_B, nodes_B)


def shallower(budget: Budget, depth: int) -> Budget:
    """Return a budget no deeper than ``depth``, with as many nodes for each level."""
    if depth >= budget.depth:
        return budget
    nodes = max(depth, budget.nodes * depth // budget.depth)
    if budget.depths_B is None or budget.nodes_B is None:
        return Budget(depth, nodes)
    return Budget(depth, nodes, np.minimum(budget.depths_B, depth), np.minimum(budget.nodes_B, nodes))


def own_counts(draft: Draft, budget: Budget) -> np.ndarray:
    """Return the most nodes of each row that may be real, on the host, (B,)."""
    counts_B = np.full(len(draft.tokens_BN), draft.nodes) if draft.counts is None else draft.counts
    most_B = budget.depths_B if draft.parents_BN is None else budget.nodes_B
    least_B: np.ndarray = counts_B if most_B is None else np.minimum(counts_B, most_B)
    return least_B
