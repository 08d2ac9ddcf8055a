"""Compiles pieces of traced forwards in a process of its own, while these forwards go on.

``python -m specframe_std.layers.compile_ahead THREADS`` reads the pieces from standard input, and writes the file of each.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from specframe_std.layers.pieces import compile_piece

NICE = 10
"""Added to the process's niceness: the forwards that go on come first."""


def begin(pieces: Iterable[tuple[torch.fx.GraphModule, Path]]) -> subprocess.Popen[bytes]:
    """Return the process that compiles pieces, each into its file.

    Raises:
        Exception: whatever torch raises for code that cannot be pickled.
    """
    options = Options(ops_filter=None)  # operators of any library
    sent = [(base64.b64encode(GraphPickler.dumps(graph, options)).decode(), str(path)) for graph, path in pieces]
    with tempfile.TemporaryFile("w+") as file:  # a pipe would be full before the process reads
        json.dump(sent, file)
        file.seek(0)
        return subprocess.Popen(
            [sys.executable, "-m", __name__, str(torch.get_num_threads())],  # the code is written for this number
            stdin=file,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends it with the process that has begun it, not by itself
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )


def main() -> None:
    """Compile what comes by standard input."""
    os.nice(NICE)
    torch.set_num_threads(int(sys.argv[1]))
    for code, path in json.load(sys.stdin):
        mode = FakeTensorMode(shape_env=ShapeEnv())
        graph = cast(torch.fx.GraphModule, GraphPickler.loads(base64.b64decode(code), mode))
        compile_piece(graph, Path(path))


if __name__ == "__main__":
    main()
