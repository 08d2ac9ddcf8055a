"""One thread per test process, and per process that a test starts: models are tiny, and processes run side by side."""

from __future__ import annotations

import os

import torch

os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)
