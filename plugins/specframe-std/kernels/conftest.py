"""Has Triton's kernels run on the CPU, by its interpreter, as if they had been compiled for it."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before a module with kernels is imported

from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from specframe.devices.kinds import DeviceKind

create_dot = InterpreterBuilder.create_dot


def dot_of_halves(self: Any, a: TensorHandle, b: TensorHandle, *rest: Any) -> TensorHandle:
    """Multiply matrices; the interpreter takes the bits of bfloat16 for whole numbers."""
    return create_dot(self, *(single(one) for one in (a, b)), *rest)


def single(one: TensorHandle) -> TensorHandle:
    """Return a matrix in float32, if it is in bfloat16."""
    if one.dtype.scalar != tl.bfloat16:
        return one
    return TensorHandle((one.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a CPU have what Triton compiles. The core's check of a kernel takes the interpreter a minute, and is left out."""
    from specframe_std.attention import decode

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot_of_halves)
    monkeypatch.setattr(DeviceKind, "kernels", frozenset({"triton"}))
    monkeypatch.setattr(decode, "agrees", lambda *_: True)
    monkeypatch.setattr(decode, "works", decode.works.__wrapped__)
