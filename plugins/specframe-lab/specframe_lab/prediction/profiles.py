"""Device profiles: how fast a device computes and reads, published or measured."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
import transformers

from specframe import Pipeline
from specframe.devices import kinds
from specframe.errors import OptionError, literal, sentence
from specframe.value_checks import number, whole
from specframe_lab.prediction.forward_times import Load

GPU_LAYER = 170e-6
"""Seconds that a decoder layer of transformers takes on a GPU however little it computes, with its forward captured as a graph:
some sixty kernels of less than three microseconds each. Measured on an H100 (benchmarks/README.md), where rounds of 36 and of 28
layers give the same; it is taken for the others, as such kernels do not wait for memory."""

SMALLEST, LARGEST, LONG_ENOUGH = 1024, 16384, 0.02
"""Rows of the square matrices that are multiplied: twice as many until a product takes these seconds, on any device."""
SIDE, MATRIX_BYTES = 1024, 1 << 28
"""Rows and columns of the matrices that are read, like those of a small model, and their bytes: far more than caches hold."""
LAYERS, ROUNDS = 6, 16
"""Layers of the model by which the time of a layer is measured, and the rounds that it decodes."""


def pairs(given: Any) -> tuple[tuple[int, float], ...]:
    """Return pairs of rows and seconds as a profile holds them."""
    return tuple((int(rows), float(seconds)) for rows, seconds in given)


ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
"""The rows that the matrix is multiplied with: tokens of a forward, up to 32 rows with three drafted tokens each."""


@attrs.frozen
class DeviceProfile:
    """A device as a roofline has it."""

    flops: float
    """Operations per second of a large matrix product, a product and a sum being two."""
    bandwidth: float
    """Bytes per second that weights are read with."""
    layer_overhead: float
    """Seconds that a decoder layer takes however little it computes."""

    products: tuple[tuple[int, float], ...] = attrs.field(default=(), converter=pairs)
    """Rows of a matrix, with the seconds that their product with a matrix of weights takes for each weight, as they were measured,
    from few rows to many. Where there are none, other figures give the time."""

    def seconds(self, load: Load) -> float:
        """Return the time of a forward.

        It is the time of its reads or of its operations, whichever is longer, and its layers' overhead. Where products were
        measured, it is theirs, and the time of other reads: kernels for few rows reach neither bound on some devices.
        """
        took = max(load.bytes / self.bandwidth, load.operations / self.flops)
        if self.products:
            took = load.weights * self._per_weight(load.tokens) + (load.bytes - load.weight_bytes) / self.bandwidth
        return took + load.layers * self.layer_overhead

    def _per_weight(self, rows: int) -> float:
        """Return the seconds of a product for each weight, between those that were measured, or in proportion beyond them."""
        measured_rows, seconds = zip(*self.products, strict=True)
        inside = min(max(rows, measured_rows[0]), measured_rows[-1])
        return float(np.interp(inside, measured_rows, seconds)) * max(1.0, rows / measured_rows[-1])


PROFILES = {
    "h100": DeviceProfile(989e12, 3.35e12, GPU_LAYER),
    "h200": DeviceProfile(989e12, 4.8e12, GPU_LAYER),
    "a100": DeviceProfile(312e12, 2.04e12, GPU_LAYER),
    "b200": DeviceProfile(2250e12, 8.0e12, GPU_LAYER),
}
"""Dense bfloat16 products and memory bandwidth as the maker publishes them, of the SXM modules with the most memory."""


def read_profile(given: str) -> DeviceProfile:
    """Return a profile by its name, or that of a JSON file.

    Raises:
        OptionError: it is neither, or a value of the file is missing or no number above 0.
    """
    if given.lower() in PROFILES:
        return PROFILES[given.lower()]
    name = f"--device-profile: {given}"
    try:
        found = json.loads(Path(given).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OptionError(f"--device-profile: expected {', '.join(PROFILES)} or a file, got {literal(given)}") from None
    except (OSError, ValueError) as error:
        raise OptionError(f"{name} cannot be read: {sentence(error)}") from error
    keys, measures = ["flops", "bandwidth", "layer_overhead"], "products"
    if not isinstance(found, Mapping) or (missing := [key for key in keys if key not in found]):
        lacks = missing[0] if isinstance(found, Mapping) else "an object"
        raise OptionError(f"{name} lacks {lacks}: expected an object with {', '.join(keys)}")
    if unknown := sorted(set(found) - {*keys, measures}):
        raise OptionError(f"{name} has {literal(unknown[0])}: expected {', '.join(keys)} and {measures} alone")
    values = {key: number(f"{name}: {key}", found[key], 0, above=key != "layer_overhead") for key in keys}
    return DeviceProfile(**values, products=read_products(f"{name}: {measures}", found.get(measures, [])))


def read_products(name: str, given: Any) -> list[tuple[int, float]]:
    """Return the products of a file; raise :class:`OptionError` for what is none."""
    for pair in given if isinstance(given, list) else [None]:
        if not isinstance(pair, list) or len(pair) != 2:
            raise OptionError(f"{name}: expected a list of pairs of rows and seconds, got {literal(pair)}")
        whole(f"{name}: rows", pair[0], 1)
        number(f"{name}: seconds", pair[1], 0, above=True)
    if [rows for rows, _ in given] != sorted({rows for rows, _ in given}):
        raise OptionError(f"{name}: expected rows from few to many, got {literal([rows for rows, _ in given])}")
    return [(rows, seconds) for rows, seconds in given]


def assumed(given: str) -> str:
    """Return a sentence that names the device which times are modelled for, and whose figures those are."""
    if given.lower() in PROFILES:
        return (
            f"device profile: {given.lower()}, its maker's figures and not this machine's; --device-profile takes another, or a "
            "file that `specframe predict --measure` wrote"
        )
    return f"device profile: {given}"


def write_profile(profile: DeviceProfile) -> str:
    """Return the text of a profile's file."""
    return json.dumps(attrs.asdict(profile), indent=1) + "\n"


def measured(device: torch.device, dtype: torch.dtype) -> DeviceProfile:
    """Return the profile of a device: by a large matrix product, matrices that a few rows are multiplied with, and a small model.

    The matrices are together larger than caches are, and are read one after the other, as a forward reads weights.
    """
    with torch.inference_mode():
        size = SMALLEST
        while (took := product_seconds(size, device, dtype)) < LONG_ENOUGH and size < LARGEST:
            size *= 2
        weights = torch.ones(MATRIX_BYTES // dtype.itemsize // SIDE**2, SIDE, SIDE, device=device, dtype=dtype)
        products = [(rows, products_of_rows(rows, weights) / weights.numel()) for rows in ROWS]
    return DeviceProfile(
        2 * size**3 / took, dtype.itemsize / products[0][1], layer_seconds(device, dtype, products[0][1]), products
    )


def product_seconds(size: int, device: torch.device, dtype: torch.dtype) -> float:
    """Return the time of a product of two square matrices."""
    square = torch.ones(size, size, device=device, dtype=dtype)
    return fastest(lambda: square @ square, device, 3)


def products_of_rows(rows: int, matrices: torch.Tensor) -> float:
    """Return the time of the products of a few rows with matrices (N, I, O), one after the other."""
    few = matrices.new_ones(rows, matrices.shape[2])
    return fastest(lambda: [torch.nn.functional.linear(few, one) for one in matrices], matrices.device, 5)


def layer_seconds(device: torch.device, dtype: torch.dtype, per_weight: float) -> float:
    """Return what a decoder layer takes in a round of plain decoding apart from its products, each ``per_weight`` seconds a weight.

    The model is larger than caches are: apart from its products a layer takes longer after weights have passed through these.
    """
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=SIDE,
        intermediate_size=2 * SIDE,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        eos_token_id=None,
    )
    with torch.device(device):
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    pipe = Pipeline(target=model, drafter=None, batch_size=1, draft_length="1", generation_config=None)
    short, long = (fastest(functools.partial(decode, pipe, new), device, 5) for new in (2, 2 + ROUNDS))
    weights = sum(weight.numel() for layer in model.model.layers for weight in layer.parameters())
    return max(0.0, (long - short) / ROUNDS - weights * per_weight) / LAYERS


def decode(pipe: Pipeline, new: int) -> None:
    """Decode ``new`` tokens after a prompt of one."""
    list(pipe.generate([[1]], new))


def fastest(run: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the least seconds that a function takes: what else a machine does only adds to them."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        kinds.of(device).synchronise(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds)
