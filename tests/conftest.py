"""What tests set because their models are tiny.

One thread per test process, and per process that a test starts, unless OMP_NUM_THREADS says more. Tokens are laid in one row as
those of large models are, although it never pays.
"""

from __future__ import annotations

import os

import torch

from specframe.forward import unpadded

os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
unpadded.LAYING_OUT = 0
