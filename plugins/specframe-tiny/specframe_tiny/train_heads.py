"""Train heads for the embedded target: drafters that read the features of ``tiny``.

    python -m specframe_tiny.train_heads --work WORK_DIR                    # all heads: on one CPU core about two hours
    python -m specframe_tiny.train_heads --work WORK_DIR eagle3 medusa

The work is done by ``specframe heads train``, of the plugin specframe-heads: the target continues snippets of the training modules
greedily, and each head is trained on these texts, which all of them share. What was cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

from specframe_tiny import FOLDER
from specframe_tiny.train import encode, spaced, split_corpus, windows

SHORT, LONG = (5120, 64, 11), (256, 896, 12)
"""Snippets that the target continues: how many, their tokens, and what they are drawn by. Without long ones a head's rotary
positions would never have been far from the beginning, and after some hundred tokens nothing of its drafts would be accepted."""
HELD_OUT = (128, 96)
"""Snippets of held-out modules: how many, and their tokens."""
NEW = 128
"""Tokens of a continuation."""

KINDS = {
    "eagle3": ("--steps", "6000", "--rate", "2e-3"),
    "medusa": ("--steps", "1500", "--vocabulary", "1400"),
    "clover2": ("--steps", "1500"),
    "dflash": ("--steps", "1500", "--layers", "2"),
}
"""The heads, with the options of their training. Medusa with the whole vocabulary, or DFlash with five layers, would have more than
3 MB."""
COMMON = ("--places", "4", "--step-tokens", "1024", "--batch-size", "64", "--max-new-tokens", str(NEW))
FILES = ("config.json", "model.safetensors", "figures.json")


def write_ids(file: Path, rows: Iterable[list[int]]) -> None:
    """Write prompts as token ids, one per line."""
    file.write_text("".join(" ".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")


def write_prompts(work: Path) -> None:
    """Write the snippets of training modules and of held-out modules."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "target" / "tokenizer.json"))
    stream, held_stream = (encode(tokenizer, sources) for sources in split_corpus())
    snippets = [
        row for count, length, salt in (SHORT, LONG) for row in windows(stream, count, length, 0, salt).tolist()
    ]
    write_ids(work / "prompts.ids", snippets)
    write_ids(work / "held_out.ids", spaced(held_stream, *HELD_OUT).tolist())


def train(kind: str, work: Path, out: Path) -> None:
    """Train one head, and put its files into ``out``."""
    from specframe.cli import cli

    files = ("--data", work / "prompts.ids", "--held-out", work / "held_out.ids", "--continuations", work / "texts")
    given = ["heads", "train", kind, "--target", "tiny", "--out", work / kind, *files, *COMMON, *KINDS[kind]]
    cli.main(list(map(str, given)), standalone_mode=False)
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(work / kind / name, out / name)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    for verifier in (one["verifier"] for one in (config.get("speculators_config"),) if one):
        verifier["name_or_path"] = "tiny"  # the folder is another one on every machine
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Train the heads that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"heads to train; without any: {', '.join(KINDS)}")
    parser.add_argument("--work", type=Path, required=True, help="directory for texts and checkpoints")
    parser.add_argument("--out", type=Path, help="where a folder for each head is written  [default: WORK/heads]")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.kinds) - set(KINDS)):
        parser.error(f"unknown head {unknown[0]}: expected one of {', '.join(KINDS)}")
    options.work.mkdir(parents=True, exist_ok=True)
    write_prompts(options.work)
    for kind in options.kinds or KINDS:
        train(kind, options.work, (options.out or options.work / "heads") / kind)


if __name__ == "__main__":
    main()
