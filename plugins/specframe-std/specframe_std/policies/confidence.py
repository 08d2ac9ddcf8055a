"""The drafter's confidence: how likely a token is accepted by the distribution that it will be drawn from, calibrated online.

Tensor names carry their shape: B rows, K places of a draft, F features, V vocabulary.
"""

from __future__ import annotations

import attrs
import numpy as np
import torch

from specframe.contracts.reports import Progress
from specframe.contracts.round import Batch

SURE = 12.0
"""The greatest logit taken of a probability: beyond it float32 distinguishes probabilities near 1 no more."""
PRIOR = np.array([0.0, 1.0, 0.0])
"""Weights of 1, the likeliest token's logit and the entropy, before anything is measured: that token's own probability."""
PRIOR_OF_BOTH = np.array([0.0, 0.5, 0.0, 0.5])
"""The same with the logit of the row's earlier acceptance as well: halfway between both estimates."""
TRUST = np.array([2.0, 8.0, 8.0, 8.0])
"""Draft tokens whose evidence each weight of the prior counts as."""
WINDOW = 2000
"""Draft tokens of a place after which what was seen counts half."""
TOGETHER = 8
"""Rounds whose tokens are fitted at once: a fit takes as long as that of one round alone."""
BINS = 10
"""Bins of predicted probabilities, for the comparison with what was accepted."""


@attrs.frozen(eq=False)
class Evidence:
    """The tokens of a round's draft, the first K places of it."""

    features_BKF: np.ndarray
    """The features of each token's distribution."""
    tested_BK: np.ndarray
    """Whether the token was tested, since all before it were accepted."""
    stood_BK: np.ndarray
    """Whether it was accepted."""

    def widened(self, places: int) -> Evidence:
        """Return the evidence with ``places`` places; further ones were not tested."""
        more = ((0, 0), (0, places - self.tested_BK.shape[1]))
        parts = np.pad(self.tested_BK, more), np.pad(self.stood_BK, more)
        return Evidence(np.pad(self.features_BKF, (*more, (0, 0))), *parts)


class Calibration:
    """A logistic curve of the features for each place, fitted online by Newton's steps (the Laplace approximation).

    Args:
        places: of the longest draft.
        prior: weights of the features before anything is measured, (F,).
    """

    def __init__(self, places: int, prior: np.ndarray = PRIOR) -> None:
        self.weights_KF = np.tile(prior, (places, 1))
        self._trust_FF = np.diag(TRUST[: len(prior)])
        self._seen_KFF = np.zeros((places, len(prior), len(prior)))
        self._waiting = list[Evidence]()
        self.bins = np.zeros((BINS, 3))
        """By bins of the predicted probability: the sum of it, the accepted tokens, and the tested ones."""

    def add(self, evidence: Evidence | None) -> None:
        """Take in a round; the curves are fitted anew after every :data:`TOGETHER` of them."""
        if evidence is not None:
            self._waiting.append(evidence.widened(len(self.weights_KF)))
        if len(self._waiting) == TOGETHER:
            parts = zip(*(attrs.astuple(one, recurse=False) for one in self._waiting), strict=True)
            self._fit(*(np.concatenate(part) for part in parts))
            self._waiting.clear()

    def _fit(self, features_BKF: np.ndarray, tested_BK: np.ndarray, stood_BK: np.ndarray) -> None:
        rates_BK = 1 / (1 + np.exp(-(features_BKF * self.weights_KF).sum(-1)))
        self._compare(rates_BK[tested_BK], stood_BK[tested_BK])
        self._seen_KFF *= 0.5 ** (tested_BK.sum(0) / WINDOW)[:, None, None]
        weighted_BKF = features_BKF * (tested_BK * rates_BK * (1 - rates_BK))[..., None]
        self._seen_KFF += np.einsum("bkf,bkg->kfg", weighted_BKF, features_BKF)
        pull_KF = np.einsum("bk,bkf->kf", tested_BK * (stood_BK - rates_BK), features_BKF)
        self.weights_KF = self.weights_KF + np.linalg.solve(self._seen_KFF + self._trust_FF, pull_KF[..., None])[..., 0]

    def _compare(self, rates: np.ndarray, stood: np.ndarray) -> None:
        bins = np.minimum((rates * BINS).astype(int), BINS - 1)
        self.bins += np.stack([np.bincount(bins, of_each, BINS) for of_each in (rates, stood, None)], axis=1)


def logit(rates: np.ndarray) -> np.ndarray:
    """Return the logits of probabilities, no greater than :data:`SURE`."""
    found: np.ndarray = np.log(rates) - np.log1p(-np.minimum(rates, 1 - 1e-9))
    return found.clip(-SURE, SURE)


def distribution_features(logits_BV: torch.Tensor) -> np.ndarray:
    """Return 1, the logit of the likeliest token's probability, and the entropy in nats, (B, 3), on the host."""
    logits_BV = logits_BV.float()
    logs_BV = logits_BV - logits_BV.logsumexp(-1, keepdim=True)
    entropy_B = -(logs_BV.exp() * logs_BV.clamp(min=-100.0)).sum(-1)  # 0 times minus infinity is nan
    found_2B = torch.stack([logs_BV.amax(-1), entropy_B]).double().cpu().numpy()
    found_2B = np.nan_to_num(found_2B, nan=-SURE, neginf=-SURE)
    return np.stack([np.ones(len(logits_BV)), logit(np.exp(found_2B[0])), found_2B[1].clip(min=0)], axis=-1)


@attrs.define(eq=False)
class ConfidenceStop:
    """Ends a row's draft where the calibrated probability that its next token and all before it are accepted becomes too small.

    One is made for each round. It looks at the distribution of a token before the token is drawn.
    """

    weights_KF: np.ndarray
    """Of the calibration."""
    least: float
    """The least probability that a token and all before it are accepted for its row to draft it."""
    rows: dict[tuple[int, int], int]
    """The row of each request in the batch, by its key."""
    own_BK: np.ndarray | None = None
    """The logits of each row's acceptance before, (B, K), a feature, or None if it is none."""
    together: float = 0.0
    """The least sum of these probabilities over the rows that go on for the draft to have another step."""
    _drafting: list[int] = attrs.Factory(list)
    _features: list[np.ndarray] = attrs.Factory(list)
    _stands_B: np.ndarray | float = 1.0

    def goes_on(self, batch: Batch, place: int, logits_BV: torch.Tensor) -> np.ndarray:
        """Return which rows draft a token at a place, (B,)."""
        if not self._features:
            self._drafting = [self.rows[one.request.key] for one in batch.sequences]
        features_BF = distribution_features(logits_BV)
        if self.own_BK is not None:
            features_BF = np.concatenate([features_BF, self.own_BK[self._drafting, place, None]], axis=-1)
        self._features.append(features_BF)
        self._stands_B = self._stands_B / (1 + np.exp(-(features_BF @ self.weights_KF[place])))
        on_B = np.asarray(self._stands_B >= self.least)
        return on_B if float((self._stands_B * on_B).sum()) >= self.together else np.zeros_like(on_B)

    def evidence(self, report: Progress) -> Evidence | None:
        """Return what the round says of the features, or None if the rule was not asked. Tokens after a row's end are left out."""
        if not self._features:
            return None
        rows, places_K = self._drafting, np.arange(len(self._features))
        sequences = [report.sequences[row] for row in rows]
        accepted_B, drafted_B = report.accepted[rows], report.drafted[rows]
        room_B = np.array([one.limit for one in sequences]) - report.lengths[rows] - 1
        ended_B = np.array([one.finished for one in sequences])
        reached_B = np.minimum(accepted_B + 1, np.minimum(drafted_B, room_B))
        tested_BK = places_K < np.where(ended_B, accepted_B, reached_B)[:, None]
        return Evidence(np.stack(self._features, axis=1), tested_BK, places_K < accepted_B[:, None])
