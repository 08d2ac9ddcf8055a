"""The traced forwards of one model: which forwards run as pieces, from when on, and when pieces are compiled."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir
from transformers.utils import logging as progress

from specframe.devices import kinds
from specframe.devices.out_of_memory import out_of_memory
from specframe.errors import ModelError, SpecframeWarning, sentence
from specframe.model import current_numerics
from specframe_std.layers.compile_ahead import begin
from specframe_std.layers.pieces import Piece, compile_piece
from specframe_std.layers.trace_check import require_agreement
from specframe_std.layers.traced_forward import TracedForward, trace

if TYPE_CHECKING:
    from specframe.contracts.model import ForwardOptions
    from specframe.model.runner import ModelRunner

TRACING_PAYS = 2_000
"""Forwards from which on pieces take the place of modules unasked. On a CPU a layer takes 0.25 s to trace, and 0.1 ms less in each
forward then (benchmarks/README.md): by then the modules have cost most of what tracing does."""

COMPILING_PAYS = 5_000
"""Forwards from which on pieces are compiled unasked, on a CPU, by another process while forwards go on. That takes a core 15
to 20 s, and saves ten layers 2.5 ms a forward (benchmarks/README.md). Those of an earlier process are taken at once."""

LOOKS = 100
"""Forwards between two looks for pieces that another process has compiled: a look hashes their code."""

SMALL_LAYER = 1_000_000
"""Weights of a layer up to which compiling shortens it on a CPU; larger ones are bound by their matrices."""

_log = logging.getLogger(__name__)


Kind = tuple[tuple[int, ...], bool]
"""What the forwards that share a trace have in common: the numbers of the hidden states that are taken, and whether pieces write
keys and values."""


@attrs.define(eq=False)
class Traces:
    """The traced forwards of one model."""

    _runner: ModelRunner
    _seen: Counter[Kind] = attrs.Factory(Counter)
    _made: dict[Kind, TracedForward | None] = attrs.Factory(dict)
    _agreeing: dict[tuple[Kind, bool, bool, bool], bool] = attrs.Factory(dict)
    """Whether a trace gives what the modules do, by whether it is compiled, for one row or several, for one token or several."""
    _code: dict[str, Callable[..., Any]] = attrs.Factory(dict)
    """The compiled code of pieces, by what they compute: traces share it."""
    _ahead: subprocess.Popen[bytes] | None = None
    """The process that compiles pieces while forwards go on, or None if none was begun."""

    def of(self, how: ForwardOptions, rows: int, width: int, hidden: tuple[int, ...]) -> TracedForward | None:
        """Return the forward to run as pieces, or None: see :meth:`specframe.contracts.model.Layers.of`.

        "auto" calls the modules until pieces have paid by now, and on a GPU: a server would pause for seconds, and its
        forwards are captured.
        """
        layers, device = how.layers, self._runner.device
        # pieces that are not compiled write in more time than stores do
        asked, kind = layers != "auto", (hidden, how.direct and layers == "compiled")
        self._seen[kind] = seen = self._seen[kind] + 1
        early = not asked and (seen <= TRACING_PAYS or device.type != "cpu")
        if early or not kinds.of(device).values or current_numerics.are_active():
            return None
        if (found := self._traced(kind, asked)) is None:
            return None
        if not found.tried and (layers == "compiled" or (not asked and self._are_compiled(seen, found))):
            self._compile(found, asked)
        return found if self._agrees(found, kind, rows == 1, width == 1, asked) else None

    def _traced(self, kind: Kind, asked: bool) -> TracedForward | None:
        """Return the trace of a kind of forwards, which is made once, or None if there can be none.

        Weights are merged where that was asked for, before anything is captured that would read them where they lay. On a CPU it
        saves nothing.
        """
        if (found := self._made.get(kind)) is not None and not found.holds:
            self._made.clear()
            self._agreeing.clear()
        if kind not in self._made:
            self._made[kind] = None
            try:
                self._made[kind] = trace(self._runner, kind[0], asked and self._runner.device.type != "cpu", kind[1])
            except Exception as error:  # whatever torch raises while code is written anew
                self._tell("traced", error, asked)
        return self._made[kind]

    def _are_compiled(self, seen: int, found: TracedForward) -> bool:
        """Return whether another process has compiled a trace's pieces, which one is begun for once that has paid."""
        if found.looks % LOOKS or self._runner.layer_weights > SMALL_LAYER:
            found.looks += 1
            return False
        found.looks += 1
        ended = self._ahead is not None and self._ahead.poll() is not None
        if not (left := [piece for piece in found.pieces if not compiled_file(piece).exists()]):
            return True
        try:
            if ended:
                raise ModelError("the process that was to compile them has ended without")
            if self._ahead is None and seen > COMPILING_PAYS:
                self._ahead = begin((piece.graph, compiled_file(piece)) for piece in left)
                weakref.finalize(self, self._ahead.kill)
        except Exception as error:  # whatever torch raises
            found.tried = True
            self._tell("compiled", error, asked=False)
        return False

    def _compile(self, found: TracedForward, asked: bool) -> None:
        """Compile the pieces of a trace, which stay as they are where that cannot be done.

        A bar of transformers shows how far it is, as for weights that are loaded.
        """
        began, found.tried = time.monotonic(), True
        try:
            left = [piece for piece in found.pieces if piece.text not in self._code]
            for piece in progress.tqdm(left, desc=f"Compiling the {self._runner.role}'s layers", leave=False):
                self._code[piece.text] = compile_piece(piece.graph, compiled_file(piece))
        except Exception as error:  # whatever a compiler raises
            self._tell("compiled", error, asked)
        else:
            found.take(self._code)
            _log.info("the %s's layers were compiled in %.2g s", self._runner.role, time.monotonic() - began)

    def _agrees(self, found: TracedForward, kind: Kind, one_row: bool, one_token: bool, asked: bool) -> bool:
        """Return whether a trace gives the logits of the modules, which is tried the first time that it is asked."""
        key = kind, found.compiled, one_row, one_token
        while key not in self._agreeing:
            self._agreeing[key] = True
            try:
                require_agreement(self._runner.tests, found, one_row, one_token)
            except Exception as error:  # whatever what was compiled raises
                if isinstance(error, RuntimeError) and out_of_memory(error):
                    del self._agreeing[key]  # this forward calls the modules, and a later one tries again
                    return False
                if found.leave_states():
                    _log.info(
                        "the %s's layers with states are called as they are: %s", self._runner.role, sentence(error)
                    )
                    del self._agreeing[key]
                    continue
                self._agreeing[key] = False
                self._tell("compiled" if found.compiled else "traced", error, asked)
        return self._agreeing[key]

    def _tell(self, what: str, error: Exception, asked: bool) -> None:
        """Say why the modules are called: in a warning where something else was asked for, else in the log."""
        text = f"the {self._runner.role}'s layers are not {what}, and run eagerly: {sentence(error)}"
        if asked:
            warnings.warn(text, SpecframeWarning, stacklevel=2)
        else:
            _log.info(text)


def compiled_file(piece: Piece) -> Path:
    """Return the file, beside Inductor's cache, that a piece is in once it was compiled."""
    about = f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()} {piece.text}"
    return Path(cache_dir()) / "specframe" / hashlib.sha256(about.encode()).hexdigest()
