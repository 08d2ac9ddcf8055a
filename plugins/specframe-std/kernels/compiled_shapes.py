"""Compiles the kernels of decode attention for an H100, on a machine without one, and prints what each takes of it.

    python plugins/specframe-std/kernels/compiled_shapes.py

It ends with 1 where registers spill, or where a multiprocessor has no room for two programs (for one, with heads of 256 numbers).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from specframe_std.attention import decode_kernel
from specframe_std.attention.tiles import Tiles
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGET = GPUTarget("cuda", 90, 32)
SHARED = 227 * 1024
"""Bytes of shared memory that the programs of a multiprocessor have."""
CALLS = (
    ("bf16", 1, 8, 4, 128, 128, 0),
    ("bf16", 8, 8, 24, 128, 128, 16),
    ("fp16", 8, 32, 6, 80, 80, 0),
    ("bf16", 8, 8, 12, 192, 128, 256),
    ("fp16", 8, 4, 64, 256, 256, 0),
    ("fp32", 8, 8, 24, 128, 128, 0),
)
"""Precision, rows, key heads, queries of each, sizes of keys and of values, slots of a page."""
BITS = {"bf16": 16, "fp16": 16, "fp32": 32}


def main() -> bool:
    """Compile all calls; return whether one takes too much."""
    faults = []
    for call in CALLS:
        kind, rows, heads, queries, size, wide, page = call
        tiles = Tiles.of(rows, heads, queries, 4096, size, wide, BITS[kind] // 8)
        own = "fp32" if tiles.parts > 1 else kind
        shapes = {"WIDE": wide, "V": tiles.value_size}
        more = {"GROUPS": heads, "SHARED": 2, "SIZE": size, "PAGE": page, "SPLIT": tiles.parts > 1, "M": tiles.queries}
        more |= {"N": tiles.keys, "D": tiles.key_size, "query_number": 1, "key_number": 1, "value_number": 1}
        pointers = dict.fromkeys(("query", "keys", "values"), kind) | dict.fromkeys(("outputs", "sums"), own)
        pointers |= {"used_B": "i32", "table": "i64"}
        found = [compiled(decode_kernel.attend_part, pointers, {**shapes, **more}, tiles.warps)]
        if tiles.parts > 1:
            pointers = {"parts": own, "sums": own, "outputs": kind}
            found.append(compiled(decode_kernel.combine, pointers, {**shapes, "PARTS": tiles.parts}, 4))
        for registers, spilt, shared in found:
            print(*call, tiles, f"registers {registers}, spilt {spilt} bytes, shared memory {shared} bytes")
            programs = 1 if size > 192 else 2  # of a multiprocessor
            if spilt or programs * shared > SHARED:
                faults.append(call)
    return bool(faults)


def compiled(kernel: Any, pointers: dict[str, str], constants: dict[str, int], warps: int) -> tuple[int, int, int]:
    """Return the registers of a thread, the bytes that it spills, and the bytes of shared memory of a program."""
    names = kernel.arg_names
    signature = dict.fromkeys(names, "i32") | dict.fromkeys(constants, "constexpr")
    signature |= {name: "*" + kind for name, kind in pointers.items()} | ({"scale": "fp32"} if "scale" in names else {})
    whole = [name for name in names if signature[name][0] == "*" or name.endswith(("_row", "_head", "_token", "_slot"))]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in whole},
    )
    made = triton.compile(source, target=TARGET, options={"num_warps": warps, "num_stages": decode_kernel.STAGES})
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(made.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        told = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True, check=True).stdout
    registers, spilt = map(int, re.search(r"REG:(\d+) STACK:(\d+)", told).groups())  # type: ignore[union-attr]
    return registers, spilt, made.metadata.shared


if __name__ == "__main__":
    sys.exit(main())
