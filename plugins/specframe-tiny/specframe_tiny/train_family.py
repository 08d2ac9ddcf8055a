"""Train a family of drafts for the embedded target: every depth after every volume of training tokens.

    python -m specframe_tiny.train_family --work WORK_DIR           # four depths, six volumes: 20 minutes of one CPU core

``specframe laws`` fits how acceptance grows with tokens and with layers to such a family. The drafts have the shape of the embedded
draft but for their layers, and start from the target's embeddings. Two thirds of their lessons are the target's own greedy
continuations of training snippets, the others training snippets as they are. No lesson is seen twice: training tokens are different
tokens. A depth takes one run: the rate stays constant, and weights are saved whenever the tokens seen are the next power of two.
``drafts.csv`` has tokens and layers of each draft, ``prompts.jsonl`` has held-out snippets.

Lessons and finished depths are kept in the work directory: what was cut off goes on with the depth that was not finished.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from specframe_tiny import FOLDER
from specframe_tiny.train import (
    DRAFT,
    SEED,
    Model,
    TinyOptimizers,
    distillation_loss,
    encode,
    export,
    once,
    roll_out,
    spaced,
    split_corpus,
    teach,
    windows,
)

DEPTHS = (1, 2, 3, 5)
"""Layers of the drafts; the target has ten."""
SMALLEST, LARGEST = 2**15, 2**20
"""Training tokens of the first and of the last draft of a depth; those between are the powers of two."""
PROMPT, NEW = 64, 64
"""Tokens of a snippet, and of the target's continuation of it. A lesson has both: a power of two, as are the lessons of a step, so
that steps end at the volumes."""
STEP = 8
"""Lessons of an update: 1,024 tokens, since an update by Muon takes as long as 500 tokens, whatever it learns from."""
RATES, WARM_UP = (6e-3, 2e-3), 8
"""Rates of Muon and AdamW, those of the embedded draft, and the updates over which they rise: a quarter of the smallest volume."""
SNIPPETS = (128, 96)
"""Held-out snippets: how many, and their tokens."""
Lessons = list[torch.Tensor]
"""Token ids, the target's likeliest tokens after each, and their probabilities."""


def volumes(largest: int = LARGEST, smallest: int = SMALLEST) -> list[int]:
    """Return the powers of two from the smallest volume to the largest."""
    return [2**power for power in range(smallest.bit_length() - 1, largest.bit_length())]


def make_lessons(target: Model, stream: torch.Tensor, count: int) -> Lessons:
    """Return ``count`` lessons in an order that mixes continuations and snippets."""
    continued = roll_out(target, stream, count - count // 3, PROMPT, NEW, salt=4)
    ids = torch.cat([continued, windows(stream, count // 3, PROMPT + NEW, 0, salt=5)])
    ids = ids[torch.randperm(count, generator=torch.Generator().manual_seed(SEED))]
    return [ids, *teach(target, ids)]


def grown(draft: Model, lessons: Lessons, stops: list[int]) -> Iterator[tuple[int, Model]]:
    """Train a draft on lessons in their order; yield the tokens seen and a copy of it at each of ``stops``, in tokens.

    The rate does not fall: a draft that is saved on the way is what a run of as many tokens at that rate would have given.
    """
    updates = stops[-1] // (STEP * lessons[0].shape[1])
    # rates fall after a quarter of the steps
    optimizers = TinyOptimizers(draft, *RATES, steps=4 * updates, warm_up=WARM_UP)
    seen = 0
    for step, parts in enumerate(zip(*(part.split(STEP) for part in lessons), strict=True)):
        loss = distillation_loss(draft, *parts)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizers.step(step)
        seen += parts[0].numel()
        if seen in stops:
            print(f"{draft.config.num_hidden_layers} layers, {seen:,} tokens: loss {loss.item():.4f}", flush=True)
            yield seen, copy.deepcopy(draft)
        if seen >= stops[-1]:
            return


def new_draft(target: Model, layers: int) -> Model:
    """Return an untrained draft with the target's embeddings."""
    config = copy.deepcopy(DRAFT)
    config.num_hidden_layers, config.layer_types = layers, ["full_attention"] * layers
    torch.manual_seed(SEED)
    draft: Model = Qwen3ForCausalLM(config)
    draft.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    return draft


def write_prompts(tokenizer: Tokenizer, stream: torch.Tensor, file: Path) -> None:
    """Write held-out snippets as prompts."""
    lines = [json.dumps({"prompt": tokenizer.decode(ids)}) for ids in spaced(stream, *SNIPPETS).tolist()]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Train the depths that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="directory for lessons and drafts")
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS, metavar="LAYERS")
    parser.add_argument("--tokens", type=int, default=LARGEST, help="the largest volume, a power of two")
    options = parser.parse_args(arguments)
    stops = volumes(options.tokens)
    if not stops or stops[-1] != options.tokens:
        parser.error(f"--tokens: expected a power of two, at least {SMALLEST}, got {options.tokens}")
    options.work.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(FOLDER / "target" / "tokenizer.json"))
    stream, held_out = (encode(tokenizer, sources) for sources in split_corpus())
    write_prompts(tokenizer, held_out, options.work / "prompts.jsonl")
    target = AutoModelForCausalLM.from_pretrained(FOLDER / "target", dtype=torch.float32).eval()
    count = options.tokens // (PROMPT + NEW)
    lessons = once(options.work / f"lessons-{options.tokens}.pt", lambda: make_lessons(target, stream, count))
    rows = []
    for layers in options.depths:
        names = [(seen, f"{layers}-layers-{seen}-tokens") for seen in stops]
        if not all((options.work / name / "config.json").exists() for _, name in names):
            for (_, name), (_, draft) in zip(names, grown(new_draft(target, layers), lessons, stops), strict=True):
                export(draft, tokenizer, options.work / name)
        rows += [(str(options.work / name), seen, layers) for seen, name in names]
    with (options.work / "drafts.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("drafter", "tokens", "layers"), *rows])


if __name__ == "__main__":
    main()
