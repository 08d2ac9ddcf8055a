"""Guards of drafters and draft-length policies."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import torch

from specframe.contracts.drafts import Budget, Draft, Numbers, StoppingRule, Transfer
from specframe.contracts.reports import Outcome, RoundReport
from specframe.contracts.round import Batch
from specframe.engine.error_words import value_words
from specframe.engine.guards.base import Guard, on_host, readable, writes
from specframe.engine.guards.numbers import draft_fault


class GuardedDrafter(Guard):
    """A drafter, guarded."""

    kind = "drafter"
    waits = False
    """Whether it may wait for the device, to look at ids there too: a run that is checked may."""

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return the drafter's draft after checking it."""
        draft = self._with_batch("propose", batch, budget)
        if not isinstance(draft, Draft):
            self._refuse("propose", "a specframe.contracts.drafts.Draft", value_words(draft))
        tokens_BN, rows = draft.tokens_BN, len(batch)
        shape: tuple[int, ...] = getattr(tokens_BN, "shape", ())
        right = len(shape) == 2 and shape[0] == rows and shape[1] <= budget.nodes
        words = f"(B, N) = ({rows}, {budget.nodes} at most)" if budget.nodes else f"(B, N) = ({rows}, 0)"
        self._tensor("propose", "tokens_BN", tokens_BN, words, right, batch.tokens_BS)
        if draft.logits_BNV is not None:
            shape = tuple(tokens_BN.shape)
            self._floats("propose", "logits_BNV", draft.logits_BNV, shape, "(B, N, V)", batch.tokens_BS)
        self._check_tree(batch, draft, budget)
        if draft.nodes and (self.waits or readable(tokens_BN)):
            tokens, parents, counts = on_host(tokens_BN), on_host(draft.parents_BN), on_host(draft.counts_B)
            self._sound("propose", draft_fault(draft, tokens, parents, counts, self._vocabulary))
        return draft

    def check_numbers(self, transfer: Transfer, numbers: Numbers) -> None:
        """Check the draft's numbers, which have come from a device."""
        drafted: Any = numbers.drafted
        fault = draft_fault(transfer.draft, drafted, numbers.parents, numbers.counts, self._vocabulary)
        self._sound("propose", fault)

    def _check_tree(self, batch: Batch, draft: Draft, budget: Budget) -> None:
        """Check the shapes of a draft's tensors, and its depth."""
        rows, nodes, like = len(batch), draft.nodes, batch.tokens_BS
        if draft.counts_B is not None:
            right = getattr(draft.counts_B, "shape", None) == (rows,)
            self._tensor("propose", "counts_B", draft.counts_B, f"(B,) = ({rows},)", right, like)
        if draft.counts is not None:
            self._numbers("propose", "counts", draft.counts, rows, nodes, f"N = {nodes}")
        if type(draft.depth) is not int or not 0 <= draft.depth <= min(budget.depth, nodes):
            self._refuse("propose", f"a depth from 0 to {min(budget.depth, nodes)}", value_words(draft.depth))
        if (parents_BN := draft.parents_BN) is not None:
            right = getattr(parents_BN, "shape", None) in ((rows, nodes), (1, nodes))
            self._tensor("propose", "parents_BN", parents_BN, f"(B, N) = ({rows}, {nodes})", right, like)
        elif draft.depth != nodes:
            self._refuse("propose", f"a depth of N = {nodes} for a chain", draft.depth)

    def observe(self, outcome: Outcome) -> None:
        """Let the drafter learn."""
        self._with_batch_of(outcome)

    def _with_batch_of(self, outcome: Outcome) -> None:
        before = writes(outcome.batch)
        self._call("observe", outcome)
        if writes(outcome.batch) != before:
            self._fail("observe() must not write to the batch, and it did")


class GuardedStopping:
    """The stopping rule of a budget, whose answers are checked. Other processes are sent the rule alone."""

    def __init__(self, rule: StoppingRule, policy: GuardedPolicy) -> None:
        self._rule, self._policy = rule, policy

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._rule,)

    def goes_on(self, batch: Batch, place: int, logits_BV: torch.Tensor) -> np.ndarray:
        """Return the rule's answer after checking it."""
        return self._policy.goes_on(self._rule, batch, place, logits_BV)


def _itself(rule: StoppingRule) -> StoppingRule:
    return rule


class GuardedPolicy(Guard):
    """A draft-length policy, guarded."""

    kind = "draft-length policy"

    def budget(self, batch: Batch) -> Budget:
        """Return the policy's budget after checking it."""
        budget, most = self._with_batch("budget", batch), self.__wrapped__.maximum
        if not isinstance(budget, Budget):
            self._refuse("budget", "a specframe.contracts.drafts.Budget", value_words(budget))
        for name, given, bound in (("depth", budget.depth, most.depth), ("nodes", budget.nodes, most.nodes)):
            if type(given) is not int or not 0 <= given <= bound:
                self._refuse("budget", f"a {name} from 0 to its maximum of {bound}", value_words(given))
        for own, name, bound in (("depths_B", "depth", budget.depth), ("nodes_B", "nodes", budget.nodes)):
            if (given_B := getattr(budget, own)) is not None:
                self._numbers("budget", own, given_B, len(batch), bound, f"its {name} of {bound}")
        if budget.stopping is None:
            return budget
        return attrs.evolve(budget, stopping=GuardedStopping(budget.stopping, self))

    def goes_on(self, rule: StoppingRule, batch: Batch, place: int, logits_BV: torch.Tensor) -> np.ndarray:
        """Return which rows draft a token, by the policy's stopping rule, after checking the answer."""
        member = "the stopping rule's goes_on"
        on_B: np.ndarray = self._watched(member, rule.goes_on, batch, place, logits_BV)
        if not isinstance(on_B, np.ndarray) or on_B.dtype != bool or on_B.shape != (len(batch),):
            got = f"one of {on_B.dtype}, {on_B.shape}" if isinstance(on_B, np.ndarray) else value_words(on_B)
            self._refuse(member, f"an array of numpy of bool, (B,) = ({len(batch)},)", got)
        return on_B

    def observe(self, report: RoundReport) -> None:
        """Let the policy learn."""
        self._call("observe", report)
