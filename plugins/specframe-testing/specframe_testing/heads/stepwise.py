"""Small heads for tests: made for a small model, trained on a few of its texts, and written as published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from specframe_heads.backbone import configured
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_heads.stepwise import writing
from specframe_heads.stepwise.step_head import HeadLayers, StepHead, sizes
from specframe_heads.stepwise.steps import Clover, Clover2, Hydra, Medusa, Steps
from specframe_heads.target import Target
from specframe_heads.training.continuations import ContinuationText
from specframe_heads.training.training_batches import Lesson, Reader
from transformers import PreTrainedModel

from specframe.reference import reference_decode

PLACES = 3
KINDS = ("medusa", "medusa of vLLM", "hydra", "hydra++", "clover", "clover2")


def overfitted(
    folder: Path, kind: str, model: PreTrainedModel, prompts: Sequence[list[int]], tokens: int, steps: int
) -> Path:
    """Write a head that foresees much of a model's continuations of a few prompts, and return its folder.

    Args:
        folder: where it is written.
        kind: one of :data:`KINDS`.
        model: the target.
        prompts: token ids.
        tokens: of a continuation.
        steps: of training; many of them make a head that is always right on these texts.
    """
    head, number = new(kind, Target(model)), numbers(kind, Target(model))
    texts = [ContinuationText([*one, *reference_decode(model, list(one), tokens)], len(one)) for one in prompts]
    lesson = Reader(model, [number]).read(texts)
    fit(head, lesson, number, steps)
    write(folder, kind, head, Target(model))
    return folder


def new(kind: str, target: Target) -> StepHead:
    """Return a head with random weights."""
    size, vocabulary = target.hidden, target.vocabulary
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        lm_head = target.head("the head", size).detach()
        steps: Steps
        backbone = None
        if kind.startswith("medusa"):
            steps = Medusa(size, vocabulary, PLACES, bias=kind == "medusa")
        elif kind.startswith("hydra"):
            embedding = target.embedding("the head", size).detach()
            steps = Hydra(size, vocabulary, PLACES, 2 if kind == "hydra++" else 1, embedding)
            backbone = layers(target, 1, norm=True) if kind == "hydra++" else None
        elif kind == "clover":
            steps, backbone = Clover(size, heads(target), PLACES, lm_head), layers(target, 1, norm=False)
        else:
            steps = Clover2(size, heads(target), PLACES, lm_head, lm_head)
            backbone = layers(target, 2, norm=True, enter=True)
        return StepHead(steps, DraftVocabulary(None, vocabulary), backbone)


def heads(target: Target) -> int:
    """Return the number of query heads of a head's layers."""
    return int(sizes(target)["num_attention_heads"])


def layers(target: Target, count: int, norm: bool, enter: bool = False) -> HeadLayers:
    """Return layers with random weights."""
    config = configured("the head", sizes(target) | {"num_hidden_layers": count})
    made = HeadLayers(config, norm, enter)
    made.embed_tokens.weight = torch.nn.Parameter(target.model.get_output_embeddings().weight.detach(), False)
    return made


def numbers(kind: str, target: Target) -> int:
    """Return the number of the hidden state that a kind reads."""
    return target.layers + kind.startswith("clover")


def fit(head: StepHead, lesson: Lesson, number: int, steps: int) -> None:
    """Train a head on one lesson."""
    optimizer = torch.optim.Adam([one for one in head.parameters() if one.requires_grad], 0.02)
    for _ in range(steps):
        states_BTD = head.states(lesson.hidden[number][:, :-1].clone(), lesson.after_BT)
        total = torch.zeros(())
        for place, logits_BTV in enumerate(head.steps.unrolled(states_BTD, lesson.after_BT)):
            wanted_BT = lesson.ahead(lesson.logits_BTV, place).argmax(-1)
            losses_BT = F.cross_entropy(logits_BTV.transpose(1, 2), wanted_BT, reduction="none")
            total = total + (losses_BT * lesson.counts(place)).mean()
        total.backward()
        optimizer.step()
        optimizer.zero_grad()


def write(folder: Path, kind: str, head: StepHead, target: Target) -> None:
    """Write a head as its authors do."""
    config: dict[str, Any] = {"base_model_name_or_path": "somewhere"}
    if kind == "medusa":  # two heads is what uploaded configurations say of five
        tensors, config = writing.tensors_of(head, writing.MEDUSA_AUTHORS), config | {"medusa_num_heads": 2}
    elif kind == "medusa of vLLM":
        tensors = writing.tensors_of(head, writing.MEDUSA)
        config |= {"model_type": "medusa", "num_heads": PLACES, "vocab_size": target.vocabulary}
    elif kind.startswith("hydra"):
        tensors, config = writing.tensors_of(head, writing.HYDRA), config | {"hydra_num_heads": PLACES}
    else:
        rules = writing.CLOVER if kind == "clover" else writing.CLOVER2
        tensors = writing.tensors_of(head, rules)
        architecture = "Clover" if kind == "clover" else "Clover2Model"
        config = {**sizes(target), "architectures": [architecture], "clover_num_heads": PLACES}
    writing.write(folder, config, tensors, torch.float32)
