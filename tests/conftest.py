"""One thread per test process, and per process that a test starts, unless OMP_NUM_THREADS says more: models are tiny."""

from __future__ import annotations

import os

import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
