"""A search of the sublayers that a target can spare while it drafts for itself: ``specframe heads search-skip``.

The target continues some prompts. A set of sublayers is rated by its match rate: how often the target without them, reading these
texts, foresees the next token that the target wrote. The search begins with sublayers spread over the layers and exchanges one or
two of them at random; it keeps what matches no worse (SWIFT, Xia et al. 2024, arXiv 2410.06916, of whose two kinds of moves these
are the random ones).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from specframe_std.partial.sublayers import KINDS, Removable, Sublayer, text_layers
from transformers import PreTrainedModel

from specframe import Pipeline
from specframe.errors import OptionError, literal
from specframe.model.twin import twin
from specframe.plugins.recipe import PLAIN
from specframe.value_checks import parse_value
from specframe_heads.training.continuations import ContinuationText, continued
from specframe_heads.training.session import given

LONGEST_DRAFT = 8
"""The longest draft for which a speed is expected: a chain of a part of the target rarely pays beyond it."""


@attrs.frozen
class Found:
    """A set of sublayers to leave out, and what is expected of it."""

    skip: frozenset[Sublayer]
    match_rate: float
    """The share of tokens that the target foresees without them."""
    cost: float
    """The weights that a drafting forward reads, of those that a verifying one reads."""

    @property
    def speed(self) -> tuple[float, int]:
        """The expected speed, plain decoding being 1, and the draft length that gives it, where forwards wait for weights.

        Each draft token is taken to match as often as any other: a round of K gives (1 - rate^(K+1)) / (1 - rate) tokens.
        """
        gains = [
            (sum(self.match_rate**place for place in range(length + 1)) / (1 + length * self.cost), length)
            for length in range(1, LONGEST_DRAFT + 1)
        ]
        return max(gains)


def skipped(text: str, sublayers: int) -> int:
    """Return how many of ``sublayers`` sublayers are left out, from a number of them or a share below 1.

    Raises:
        OptionError: it is neither, or leaves nothing in or nothing out.
    """
    value = parse_value(text)
    count = round(value * sublayers) if isinstance(value, float) and 0 < value < 1 else value
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count < sublayers:
        raise OptionError(
            f"--skip: expected a share of the {sublayers} sublayers, as in 0.4, or a number of them below that, got {literal(text)}"
        )
    return count


def found_by(
    target: str,
    prompts: str,
    told: Callable[[int, float], None],
    *,
    skip: str,
    rounds: int,
    max_prompt_tokens: int,
    max_new_tokens: int,
    batch_size: int,
    seed: int,
    device: str,
) -> Found:
    """Return what a search finds for a target and the prompts of a file; the arguments are the command's options."""
    asked = given("--prompts", prompts)
    pipe = Pipeline(target=target, drafter=PLAIN, batch_size=batch_size, device=device, generation_config=None)
    ids = [pipe.encode(one)[:max_prompt_tokens] for one in asked]
    written = [*continued(pipe, ids, max_new_tokens)]
    model = pipe.target_model
    pipe.close()
    search = SkipSearch(model, written)
    return search.run(skipped(skip, len(search.sublayers)), rounds, seed, told)


class SkipSearch:
    """A search over one target.

    Args:
        model: the target.
        texts: prompts with the target's own continuations.

    Raises:
        ModelError: sublayers of the target cannot be left out.
        OptionError: no text has a continuation.
    """

    def __init__(self, model: PreTrainedModel, texts: Sequence[ContinuationText]) -> None:
        self._texts = [one for one in texts if len(one.ids) > one.prompt]
        if not self._texts:
            raise OptionError("--prompts: expected prompts of which the target continues one at least, got none")
        self._model = model
        self.sublayers = [Sublayer(kind, layer) for layer in range(len(text_layers(model))) for kind in KINDS]
        self._removable = Removable(model, self.sublayers, f"the target ({type(model).__name__})")

    def run(
        self, count: int, rounds: int, seed: int, told: Callable[[int, float], None] = lambda done, rate: None
    ) -> Found:
        """Return the best set of ``count`` sublayers that was seen.

        Args:
            count: sublayers that are left out.
            rounds: sets that are tried after the first.
            seed: of the moves; the same seed finds the same set.
            told: called with the rounds done and the best match rate so far.
        """
        draws = random.Random(seed)
        best = self._spread(count)
        rate = self.match_rate(best)
        for done in range(1, rounds + 1):
            tried = self._moved(best, draws)
            if (found := self.match_rate(tried)) >= rate:
                best, rate = tried, found
            told(done, rate)
        return Found(best, rate, self._cost(best))

    def _spread(self, count: int) -> frozenset[Sublayer]:
        """Return sublayers at equal distances, none of the first layer while there are others."""
        inner = self.sublayers[len(KINDS) :] if count <= len(self.sublayers) - len(KINDS) else self.sublayers
        return frozenset(inner[place * len(inner) // count] for place in range(count))

    def _moved(self, held: frozenset[Sublayer], draws: random.Random) -> frozenset[Sublayer]:
        """Return a set with one or two sublayers exchanged."""
        inside, outside = sorted(held), sorted(set(self.sublayers) - held)
        moves = min(draws.choice((1, 2)), len(inside), len(outside))
        return held - {*draws.sample(inside, moves)} | {*draws.sample(outside, moves)}

    @torch.inference_mode()
    def match_rate(self, skip: frozenset[Sublayer]) -> float:
        """Return the share of the continuations' tokens that the target foresees without some sublayers."""
        model: Any = twin(self._removable.without(skip))
        device = next(self._model.parameters()).device
        right = tokens = 0
        for text in self._texts:
            ids_1T = torch.tensor([text.ids], device=device)
            chosen_T = model(input_ids=ids_1T, use_cache=False).logits[0, text.prompt - 1 : -1].argmax(-1)
            right += int((chosen_T == ids_1T[0, text.prompt :]).sum())
            tokens += len(chosen_T)
        return right / tokens

    def _cost(self, skip: frozenset[Sublayer]) -> float:
        """Return the share of the target's weights that is read without some sublayers; an embedding alone is looked up."""
        model: Any = self._model
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        weights = sum(weight.numel() for weight in model.parameters())
        if head is not None and embedding.weight is not head.weight:
            weights -= embedding.weight.numel()
        return 1 - sum(self._removable.weights(one) for one in skip) / weights
