"""Print the kernels of every distinct piece of the architectures that can be traced, as a Markdown table.

PYTHONPATH=launches:tests python launches/table.py
"""

from __future__ import annotations

import architectures
import fake_h100
import torch
from specframe_std.layers.traced_forward import trace

from specframe.errors import SpecframeError
from specframe.model.runner import ModelRunner


def main() -> None:
    """Print a row for each architecture: the kernels of the piece between two layers, and those of all pieces."""
    fake_h100.install()
    print("| architecture | between two layers | all pieces |\n| --- | ---: | --- |")
    for name in sorted(architectures.NAMES):
        try:
            with torch.device("cpu"):
                found = trace(
                    ModelRunner(architectures.build(name).to(torch.bfloat16), "target"), merges=True, writes=True
                )
            told = [sum(fake_h100.launches(piece.graph).values()) for piece in found.pieces]
        except SpecframeError:
            continue
        except Exception as error:  # whatever Inductor raises
            print(f"| {name} | - | {type(error).__name__} |", flush=True)
            continue
        print(f"| {name} | {told[1] if len(told) > 2 else ''} | {', '.join(map(str, told))} |", flush=True)


if __name__ == "__main__":
    main()
