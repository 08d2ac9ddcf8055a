"""The environment of a run: versions of its software, and its devices."""

from __future__ import annotations

import platform
from typing import Any

import torch
import transformers

import specframe
from specframe.devices import kinds
from specframe.models import loading as models


def environment(devices: set[str]) -> dict[str, Any]:
    """Return the versions and the device names of a run."""
    return {
        "specframe": specframe.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": ", ".join(sorted({device_name(models.pick_device(device)) for device in devices})),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def device_name(device: torch.device) -> str:
    """Return the product name of a device."""
    if title := kinds.of(device).title(device):
        return title
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"CPU {names[0] if names else platform.processor() or platform.machine()}"
