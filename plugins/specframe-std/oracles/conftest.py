"""Lets the comparisons use what the tests are made of."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path += [str(ROOT / "tests"), str(ROOT / "plugins/specframe-std/tests")]
