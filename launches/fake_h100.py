"""Inductor's code for an H100, written on a machine without one, and the kernels that it launches.

``torch.cuda`` reports a device that is not there. A piece is traced on the CPU, its inputs become fake tensors of that device,
and Inductor is stopped once its code is written: nothing is compiled by Triton, nothing is tuned, nothing is run. The split of a
product inside of cuBLAS, which is a kernel more, is not seen. Import this before anything that imports Inductor.
"""

from __future__ import annotations

import re
import types
from collections import Counter
from typing import Any

import torch
import torch._dynamo.device_interface as interfaces
import torch._functorch.config as functorch_config
import torch._inductor.config as config
import torch._inductor.fx_passes.fuse_attention as fuse_attention
import torch._inductor.fx_passes.misc_patterns as misc_patterns
import torch._inductor.fx_passes.pad_mm as pad_mm
import torch._inductor.fx_passes.reinplace as reinplace
import torch._inductor.graph as graph
import torch._subclasses.fake_tensor as fake_tensor
import triton
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.virtualized import V
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from triton.backends.compiler import GPUTarget

H100 = types.SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    total_memory=80 * 2**30,
    L2_cache_size=50 * 2**20,
    gcnArchName="",
    uuid="0",
)
"""The properties that Inductor asks of a device."""

ANSWERS: dict[str, Any] = {
    "is_available": True,
    "device_count": 1,
    "current_device": 0,
    "get_device_properties": H100,
    "get_device_capability": (9, 0),
    "get_device_name": H100.name,
    "is_bf16_supported": True,
    "is_initialized": True,
    "is_tf32_supported": True,
    "synchronize": None,
    "_lazy_init": None,
    "get_rng_state": torch.zeros(1),
    "set_rng_state": None,
    "get_rng_state_all": [],
    "_exchange_device": 0,
    "_maybe_exchange_device": 0,
}
"""The answers of the functions of ``torch.cuda``, by their names."""

INTERFACE = (
    "is_available",
    "device_count",
    "current_device",
    "get_device_properties",
    "synchronize",
    "is_bf16_supported",
)
"""Those that Dynamo's interface to devices has of its own."""


class Guard:
    """Makes a device the current one, of which there is only one."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


class WrittenError(Exception):
    """The code is written: nothing is to be done with it."""


def answering(value: Any) -> Any:
    """Return a function of whatever arguments that has one answer."""
    return lambda *_, **__: value


def driver() -> Any:
    """Return what answers Triton's questions about the device."""
    told = {
        "max_shared_mem": H100.shared_memory_per_block_optin,
        "multiprocessor_count": H100.multi_processor_count,
        "warpSize": H100.warp_size,
        "sm_clock_rate": 1,
        "mem_clock_rate": 1,
        "mem_bus_width": 5120,
    }
    return types.SimpleNamespace(
        get_current_target=answering(GPUTarget("cuda", 90, 32)),
        get_active_torch_device=answering(torch.device("cuda", 0)),
        get_current_device=answering(0),
        get_current_stream=answering(0),
        get_device_capability=answering((9, 0)),
        utils=types.SimpleNamespace(get_device_properties=answering(told)),
    )


def install() -> None:
    """Have this process believe that there is an H100."""
    own = interfaces.CudaInterface
    for name, answer in ANSWERS.items():
        setattr(torch.cuda, name, answering(answer))
        if name in INTERFACE:
            setattr(own, name, staticmethod(answering(answer)))
    torch.cuda.random.get_rng_state, torch.cuda.random.set_rng_state = answering(torch.zeros(1)), answering(None)
    for name in ("_cuda_getDevice", "_cuda_exchangeDevice", "_cuda_maybeExchangeDevice", "_cuda_setDevice"):
        setattr(torch._C, name, answering(0))
    own.Worker.current_device = staticmethod(answering(0))
    own.Worker.get_device_properties, own.device = staticmethod(answering(H100)), Guard
    fake_tensor.init_gpu_context = answering(None)
    # patterns that are made by tracing on the device
    fuse_attention._sfdp_init = pad_mm._pad_mm_init = misc_patterns._misc_patterns_init = answering(None)
    reinplace._inplace_generalized_scatter = lambda made, *_: made  # it copies on the device, to find a shape
    triton.runtime.driver.set_active(driver())
    config.compile_threads, config.fx_graph_cache, config.triton.autotune_at_compile_time = 1, False, False
    config.combo_kernels, functorch_config.enable_autograd_cache = True, False


def launches(module: torch.fx.GraphModule) -> Counter[str]:
    """Return the kernels that a piece launches, by their kind: Triton's, and products by name."""
    inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    written: list[str] = []

    def stop(self: Any) -> None:
        written.append(self.codegen()[0].value)
        raise WrittenError

    before, graph.GraphLowering._compile_to_module = graph.GraphLowering._compile_to_module, stop
    try:
        compile_fx(torch.fx.GraphModule(module, module.graph), inputs, inner_compile=moved)
    except Exception:
        if not written:
            raise
    finally:
        graph.GraphLowering._compile_to_module = before
    return counted(written[0])


def moved(module: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
    """Compile a graph as if its inputs were on the device."""
    mode = torch._guards.detect_fake_mode(inputs)
    with mode:
        given = [
            torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device="cuda:0")
            if isinstance(one, torch.Tensor)
            else one
            for one in inputs
        ]
        for node in module.graph.nodes:
            if node.kwargs.get("device") is not None:
                node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*given)
    for node, value in zip([one for one in module.graph.nodes if one.op == "placeholder"], given, strict=True):
        node.meta["val"] = value
    with V.set_fake_mode(mode):
        return compile_fx_inner(module, given, **options)


def counted(code: str) -> Counter[str]:
    """Return the launches of a module that Inductor has written."""
    found = Counter[str]()
    for line in code[code.index("def call(") :].splitlines():
        if re.search(r"triton_\w+\.run\(", line):
            found["triton"] += 1
        elif one := re.search(r"extern_kernels\.(\w+)\(", line) or re.search(r"= (torch\.ops\.[\w.]+)\(", line):
            found[one[1]] += 1
    return found
