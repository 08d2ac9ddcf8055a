"""How much of the core a plain run passes through: ``python tests/short_path.py``.

A run is plain with a draft model, the alignment ``ragged`` and the store ``slab``; it is counted without captured graphs, and with
them, as on a GPU. Printed are the Python frames between ``Pipeline.generate`` and a model's ``forward``, and of each package the
lines of its functions' bodies that the run reaches.
"""

from __future__ import annotations

import ast
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import specframe

PACKAGE = Path(specframe.__file__).parent
PACKAGES = ("contracts", "engine", "model", "kv")
"""Those that a round goes through."""
PROMPTS = [[5, 9, 3, 11], [7], [2, 4, 6]]


def decode_plainly(graphs: str) -> list[int]:
    """Decode a few prompts twice; return the number of frames between this function and each call of a model, torch's left out."""
    from specframe_testing import fakes, harness

    target, found = fakes.fake_target(), list[int]()

    def count(*_: Any) -> None:
        frames = [one for one in traceback.extract_stack() if not one.filename.endswith("torch/nn/modules/module.py")]
        found.append([one.name for one in frames[::-1]].index("decode_plainly") - 1)

    pipe = harness.pipeline(
        target, fakes.fake_draft(target), align="ragged", kv="slab", batch_size=2, draft_length=3, graphs=graphs
    )
    handles = [model.register_forward_pre_hook(count) for model in (target, pipe.parts.draft)]
    for _ in range(2):
        list(pipe.generate(PROMPTS, 12))
    for handle in handles:
        handle.remove()
    return found


def bodies(source: str) -> set[int]:
    """Return the first line of each statement in a function's body, docstrings left out."""

    def statements() -> Iterator[ast.stmt]:
        for function in ast.walk(ast.parse(source)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from (one for child in function.body for one in ast.walk(child) if isinstance(one, ast.stmt))

    return {
        one.lineno for one in statements() if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
    }


def main() -> None:
    """Decode, and print both figures."""
    import coverage

    for graphs in ("off", "on"):
        measured = coverage.Coverage(include=[f"{PACKAGE}/*"], data_file=None, config_file=False)
        decode_plainly(graphs)
        with measured.collect(), torch.inference_mode():
            frames = decode_plainly(graphs)
        print(f"graphs {graphs}; frames from generate to a forward: {min(frames)} to {max(frames)}")
        data, total = measured.get_data(), [0, 0]
        for name in PACKAGES:
            reached = lines = 0
            for path in (PACKAGE / name).rglob("*.py"):
                body = bodies(path.read_text(encoding="utf-8"))
                lines += len(body)
                reached += len(body.intersection(data.lines(str(path)) or ()))
            total = [total[0] + reached, total[1] + lines]
            print(f"{name:<10} {reached:>5} of {lines:>5} lines of bodies: {reached / lines:.0%}")
        print(f"{'in all':<10} {total[0]:>5} of {total[1]:>5} lines of bodies: {total[0] / total[1]:.0%}")


if __name__ == "__main__":
    main()
