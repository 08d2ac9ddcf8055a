"""A package written here, built and installed from its folder, adds a drafter and an alignment that runs then use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "stranger"
version = "0.3"
dependencies = ["specframe"]

[project.entry-points.specframe]
stranger = "stranger"

[tool.setuptools]
py-modules = ["stranger"]
"""

MODULE = '''
"""A drafter that repeats a token, and an alignment that counts."""

import torch

from specframe import hookimpl
from specframe.contracts.drafts import Draft
from specframe.contracts.cache import Placement


class Stutter:
    """Proposes the last token over and over."""

    needs = frozenset()
    offers = frozenset({"chain"})

    def __init__(self, times=8):
        self.times = times

    def start(self, run):
        pass

    def propose(self, batch, budget):
        return Draft(batch.last_tokens(1).repeat(1, min(budget.depth, self.times)))

    def observe(self, outcome):
        pass


class Counting:
    """Slot = position, and every commit is counted."""

    needs = frozenset({"scatter"})
    offers = frozenset({"lossless"})
    scheduler = "continuous"
    kv = "slab"
    commits = 0

    def start(self, run):
        pass

    def layout(self, store, rows, capacity):
        return Places(store, capacity)

    def commit(self, batch, draft, transfer):
        Counting.commits += 1
        return transfer


class Places:
    static = True

    def __init__(self, store, capacity):
        self.store, self.spare = store, capacity

    def arrange(self, batch):
        self.store.arrange(batch.sequences)

    def place(self, batch, block):
        order_BT = batch.lengths_B[:, None] + torch.arange(block.start, block.end)
        slots_BT = order_BT.where(order_BT >= 0, self.spare)
        return Placement(order_BT, slots_BT, order_BT, torch.arange(batch.longest + block.end)[None])

    def settle(self, batch, kept):
        pass


@hookimpl
def specframe_register_drafters(register):
    register("stutter", Stutter)


@hookimpl
def specframe_register_alignments(register):
    register("counting", "stranger:Counting")
'''

USE = """
import json, sys
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

torch.set_num_threads(1)
from specframe.cli import cli
from specframe.pipeline import Pipeline
from specframe.plugins.registry import registry
from specframe.reference import reference_decode
from specframe_testing import zoo

model = zoo.build("llama")
prompts = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]
import stranger
pipe = Pipeline(target=model, drafter="stutter,times=2", align="counting", batch_size=2, draft_length=4)
found = [result.token_ids for result in pipe.generate(prompts, max_new_tokens=6)]
stops = {zoo.EOS}
seen = {
    "exact": found == [reference_decode(model, prompt, 6, stops) for prompt in prompts],
    "drafted": pipe.report.num_draft_tokens,
    "commits": stranger.Counting.commits,
    "distribution": registry().entry("alignment", "counting").distribution,
    "where": stranger.__file__,
}

words = Tokenizer(WordLevel({f"w{number}": number for number in range(zoo.VOCABULARY)}, unk_token="w1"))
words.pre_tokenizer = Whitespace()
PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0", pad_token="w0").save_pretrained("model")
model.save_pretrained("model")
options = ["--target", "./model", "--drafter", "stutter", "--align", "counting", "--max-new-tokens", "6"]
cli(["run", *options, "--output", "out.jsonl", "w5 w6 w7", "w8"], prog_name="specframe", standalone_mode=False)
lines = [json.loads(line) for line in open("out.jsonl")]
seen["run"] = [line["token_ids"] for line in sorted(lines, key=lambda line: line["index"])] == found[:2]
seen["more commits"] = stranger.Counting.commits
json.dump(seen, open("seen.json", "w"))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return a folder into which the package was installed from its source."""
    pytest.importorskip("setuptools", reason="the package is built with it")
    source, target = tmp_path_factory.mktemp("stranger"), tmp_path_factory.mktemp("site")
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "stranger.py").write_text(MODULE)
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_a_strangers_strategies_are_used(site, tmp_path):
    """An installed package's drafter and alignment decode right, through the pipeline and through ``specframe run``."""
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(USE)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["where"].startswith(str(site))
    assert seen["distribution"] == "stranger"
    assert seen["exact"]
    assert seen["drafted"] > 0
    assert 0 < seen["commits"] < seen["more commits"]
    assert seen["run"]


def test_a_stranger_not_asked_for_is_not_loaded(site, tmp_path):
    """Narrowed to the standard plugins, a process knows nothing of the stranger."""
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "SPECFRAME_PLUGINS": "std"}
    code = """
import sys
from specframe.plugins.registry import registry
print(registry().names("alignment"), "stranger" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "ragged" in done.stdout
    assert "counting" not in done.stdout
    assert done.stdout.strip().endswith("False")
