"""The loop of training: lessons, updates and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import torch

from specframe_heads.training.continuations import ContinuationText
from specframe_heads.training.learner import Learner
from specframe_heads.training.optimizers import Optimizers
from specframe_heads.training.training_batches import Reader, drawn

CHECKPOINT = "checkpoint.pt"
"""The file with all that a training needs to go on."""
KEPT_EVERY = 100
"""Steps between checkpoints: at most these are done again after an interruption."""


@attrs.frozen
class TrainingPlan:
    """The extent of a training."""

    steps: int
    tokens: int
    """Tokens of a step, about: its texts are of similar length, and have this many together."""
    rate: float = 2e-3
    seed: int = 0
    bf16: bool = False
    """Compute lessons and losses in bfloat16 where torch's autocast does. Weights and their updates stay in float32."""


Told = Callable[[int, float], None]
"""Called after each step with the number of steps and the loss, smoothed."""


def train(
    learner: Learner,
    texts: Sequence[ContinuationText],
    plan: TrainingPlan,
    work: Path,
    told: Told = lambda step, loss: None,
) -> None:
    """Train a head, from the last checkpoint on where there is one.

    The texts of a step are drawn by (seed, step): a training that was cut off sees what one that was not would have seen.

    Args:
        learner: the head; it has the trained weights in the end.
        texts: to train on.
        plan: how much, and how fast.
        work: the folder of the checkpoint.
        told: called after every step.
    """
    ordered = sorted(texts, key=lambda text: len(text.ids))
    reader, optimizers = Reader(learner.target.model, learner.layers), Optimizers(learner, plan.rate, plan.steps)
    first, smooth = restored(learner, optimizers, work), float("nan")
    for step in range(first, plan.steps):
        one = drawn(ordered, 1, plan.seed, step)[0]
        with torch.autocast(learner.target.device.type, torch.bfloat16, enabled=plan.bf16):
            lesson = reader.read(drawn(ordered, max(1, round(plan.tokens / len(one.ids))), plan.seed, step))
            loss = learner.loss(lesson, learner.places_at(step / plan.steps))
        optimizers.step(step, loss)
        smooth = loss.item() if smooth != smooth else 0.98 * smooth + 0.02 * loss.item()
        told(step + 1, smooth)
        if (step + 1) % KEPT_EVERY == 0 or step + 1 == plan.steps:
            keep(learner, optimizers, step + 1, work)


def begin(learner: Learner, work: Path) -> None:
    """Have a learner begin with the weights of the checkpoint in a folder.

    Raises:
        ValueError: the checkpoint is of a head of another shape.
        OSError: there is none.
    """
    learner.begin_with(torch.load(work / CHECKPOINT, weights_only=True)["weights"])


def keep(learner: Learner, optimizers: Optimizers, step: int, work: Path) -> None:
    """Write a checkpoint."""
    work.mkdir(parents=True, exist_ok=True)
    weights = {name: weight for name, weight in learner.named_parameters() if weight.requires_grad}
    partial = work / "checkpoint.partial"
    torch.save({"weights": weights, "optimizers": optimizers.state(), "step": step}, partial)
    partial.replace(work / CHECKPOINT)


def restored(learner: Learner, optimizers: Optimizers, work: Path) -> int:
    """Read the checkpoint, if there is one, and return the number of steps done."""
    if not (work / CHECKPOINT).exists():
        return 0
    saved = torch.load(work / CHECKPOINT, weights_only=True)
    learner.load_state_dict(saved["weights"], strict=False)
    optimizers.load(saved["optimizers"])
    return int(saved["step"])
