"""lm-eval's models ``hf-specframe`` and ``hf``: seconds and tokens per second of ``generate_until``.

    python benchmarks/evaluation.py [--pair embedded] [--batches 1,4,8] [--rounds 3] [--new 48] [--output FILE.json]

Needs lm-eval (``make test-lm-eval`` makes an environment with it). Contexts are parts of held-out modules of the standard
library. Both models answer them in turn, by processor time of one thread, of which the medians over the rounds count; answers
have to be equal to the byte. A token counts if it is in an answer: what is decoded beyond a stop string is cut.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
import torch
from contenders import held_out_prompts
from grow import load_pair
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from specframe_std.lm_eval import SpecframeLM

UNTIL = {"one": ["\n\n"], "several": ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]}
"""Stop strings: one, and those of HumanEval, of which each row may have another."""


def answered(lm: HFLM, contexts: list[str], until: list[str], new: int) -> tuple[list[str], float]:
    """Return the answers, and the processor time that they took."""
    asked = {"until": until, "max_gen_toks": new}
    begun = time.process_time()
    answers = lm.generate_until([Instance("generate_until", {}, (one, asked), 0) for one in contexts], True)
    return answers, time.process_time() - begun


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", default="embedded", show_default=True)
@click.option("--batches", default="1,4,8", show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--contexts", default=16, show_default=True)
@click.option("--new", default=48, show_default=True, help="Most new tokens of an answer.")
@click.option("--drafter", default="", help="A drafter's name with options; the pair's draft model unless it is given.")
@click.option("--draft-length", default="auto", show_default=True)
@click.option("--output", type=click.Path(path_type=Path))
def main(
    pair: str, batches: str, rounds: int, contexts: int, new: int, drafter: str, draft_length: str, output: Path | None
) -> None:
    """Answer with both models and print a table."""
    torch.set_num_threads(1)
    target, draft, tokenizer = load_pair(pair, torch.device("cpu"), torch.float32)
    texts = tokenizer.batch_decode(held_out_prompts(tokenizer, contexts))
    length = int(draft_length) if draft_length.isdigit() else draft_length
    given: Any = {"pretrained": target, "tokenizer": tokenizer}
    models = {
        "hf": HFLM(**given),
        "hf-specframe": SpecframeLM(drafter=drafter or draft, draft_length=length, **given),
    }
    found = []
    click.echo(f"{'batch':>5}  {'until':<8}{'model':<13}{'seconds':>8}{'tokens/s':>10}")
    for batch in map(int, batches.split(",")):
        for name, until in UNTIL.items():
            times: dict[str, list[float]] = {model: [] for model in models}
            answers = []
            for _ in range(rounds):
                for model, lm in models.items():
                    lm.batch_size_per_gpu = batch
                    texts_of, seconds = answered(lm, texts, until, new)
                    times[model].append(seconds)
                    answers.append(texts_of)
            if any(one != answers[0] for one in answers):
                raise SystemExit(f"batch {batch}, {name}: other answers than those of hf")
            tokens = sum(map(len, tokenizer(answers[0], add_special_tokens=False).input_ids))
            for model, taken in times.items():
                seconds = statistics.median(taken)
                found.append({"batch": batch, "until": name, "model": model, "seconds": seconds, "tokens": tokens})
                click.echo(f"{batch:>5}  {name:<8}{model:<13}{seconds:>8.2f}{tokens / seconds:>10.1f}")
    if output:
        output.write_text(json.dumps({"pair": pair, "new": new, "contexts": contexts, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
