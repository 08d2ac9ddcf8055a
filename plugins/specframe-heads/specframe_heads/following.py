"""A head that goes on learning while it drafts, for a target whose weights change: the policy of a reinforcement learning loop."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from specframe.errors import OptionError, literal
from specframe.model.twin import twin
from specframe.models.loading import unwrap_model
from specframe.models.pairs import choose
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry
from specframe.value_checks import number, unwrap_guards, whole
from specframe_heads.head import HeadDrafter
from specframe_heads.target import Target
from specframe_heads.training.continuations import ContinuationText
from specframe_heads.training.head_kinds import LEARNERS, learner_class
from specframe_heads.training.optimizers import Optimizers
from specframe_heads.training.training_batches import Reader

KINDS = {"eagle": "eagle3"} | {kind: kind for kind in LEARNERS if kind != "eagle3"}
"""The kind of head that each drafter runs and that can be trained."""
WARM = 5
"""Updates until the full rate: the head is trained already, and a loop makes only some updates in each of its steps."""


class Follower:
    """Trains the head of a drafter on what its target has written; whoever decodes with the drafter has the new weights at once.

    The drafter goes wherever a drafter is taken: ``Pipeline(model, follower.drafter)``,
    ``specframe.assisted(follower.drafter)``. Its tokens are the target's, whatever the head's weights are. The head is trained in
    float32, in a copy of its own; the weights that decode are written in their place, in their own precision.

    Args:
        drafter: a head by name, alias or directory, or a drafter with a head, as :class:`specframe.Pipeline` takes it.
        model: the target, as it is loaded; wrappers of PEFT and torch.compile are seen through.
        rate: learning rate.
        tokens: tokens of an update, about.
        places: the longest draft that is trained, where the head does not say it.

    Raises:
        OptionError: the drafter has no head of a kind that `specframe heads train` trains.
    """

    def __init__(
        self, drafter: Any, model: PreTrainedModel, *, rate: float = 3e-4, tokens: int = 4096, places: int = 4
    ) -> None:
        self._tokens, model = whole("tokens", tokens, 1), unwrap_model(model, "target")
        made = strategy(registry(), "drafter", choose(model, drafter)[1])
        self.drafter = cast(HeadDrafter, unwrap_guards(made))
        kind = KINDS.get(getattr(self.drafter, "name", ""))
        if kind is None:
            raise OptionError(
                f"drafter: expected a head of a kind that can be trained, {', '.join(KINDS)}, got {literal(drafter)}"
            )
        head, layers = self.drafter.made_for(model)
        found = learner_class(kind).like(Target(model), head, layers, whole("places", places, 1, 16))
        refusal = f"drafter: {self.drafter.checkpoint} has a shape that `specframe heads train` does not train"
        if found is None or not {*layers} <= {*found.layers}:
            raise OptionError(refusal)
        self._learner = found.to(model.device)
        try:
            self._pairs = [*self._with_the_head(head)]
            self.drafter.weights = torch.nn.ParameterList(one for *_, one in self._pairs)
            self._learner.begin_with({name: one for name, _, one in self._pairs})
        except (AttributeError, ValueError) as error:
            raise OptionError(f"{refusal}: {error}") from error
        self._optimizers = Optimizers(self._learner, number("rate", rate, 0, above=True), None, WARM)
        self.updates = 0
        """The updates so far."""

    def _with_the_head(self, head: Any) -> Iterator[tuple[str, torch.Tensor, torch.nn.Parameter]]:
        """Yield the name of each weight that is trained, the weight, and the one that decodes."""
        borrowed = {one.untyped_storage().data_ptr() for one in self._learner.target.model.parameters()}
        for name, weight in self._learner.named_parameters():
            if weight.requires_grad:
                one = operator.attrgetter(name.removeprefix("head."))(head)
                if one.untyped_storage().data_ptr() in borrowed:
                    one.data = one.data.clone()  # the target's own is not to be trained
                yield name, weight, one

    def learn(self, token_ids: Sequence[Sequence[int]], prompts: Sequence[int] | None = None) -> float:
        """Train the head on texts, each once, and return the mean loss.

        Gradients of the target are left as they are. An update whose gradients are not finite is left out.

        Args:
            token_ids: prompts, each with what the target wrote after it.
            prompts: the number of tokens of each prompt, or None for 0: a `dflash` head learns what follows them alone.

        Raises:
            OptionError: a text is no list of the target's token ids, or none has two tokens.
        """
        texts, losses = self._texts(token_ids, prompts), list[tuple[float, int]]()
        with torch.inference_mode(False), torch.enable_grad():
            model, learner = self._learner.target.model, self._learner
            reader = Reader(twin(model), learner.layers)  # in evaluation mode, with the layers as they are now
            half = model.dtype in (torch.float16, torch.bfloat16)
            for batch in batches(texts, self._tokens):
                with torch.autocast(model.device.type, torch.bfloat16, enabled=half):
                    loss = learner.loss(reader.read(batch), learner.places)
                self.updates += self._optimizers.step(self.updates, loss)
                losses.append((loss.item(), len(batch)))
        with torch.inference_mode():  # the drafter may have been made in it
            for _, weight, one in self._pairs:
                one.copy_(weight)
        return sum(loss * count for loss, count in losses) / len(texts)

    def save(self, folder: str | Path) -> None:
        """Write the head as `specframe heads train` does; its name as a drafter is the folder's."""
        self._learner.save(Path(folder))

    def _texts(self, given: Sequence[Sequence[int]], prompts: Sequence[int] | None) -> list[ContinuationText]:
        most, found = self._learner.target.vocabulary, list[ContinuationText]()
        lengths = [0] * len(given) if prompts is None else prompts
        if len(lengths) != len(given):
            raise OptionError(f"prompts: expected a number for each of {len(given)} texts, got {len(lengths)}")
        for place, (text, prompt) in enumerate(zip(given, lengths, strict=True)):
            ids = [int(token) for token in text]
            if any(not 0 <= token < most for token in ids):
                raise OptionError(f"token_ids: expected ids from 0 to {most - 1}, got others in text {place}")
            if len(ids) > 1:
                found.append(ContinuationText(ids, int(prompt)))
        if not found:
            raise OptionError("token_ids: expected texts of at least two tokens, got none")
        return found


def batches(texts: list[ContinuationText], tokens: int) -> Iterator[list[ContinuationText]]:
    """Yield texts of similar length, together with as many tokens as given, padding included, or one text alone."""
    left = sorted(texts, key=lambda text: len(text.ids))
    while left:
        count = max(1, tokens // len(left[-1].ids))
        yield left[-count:]
        del left[-count:]
