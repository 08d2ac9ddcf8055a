"""The public surface, frozen: a change here is a change for users and belongs in the changelog."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from specframe_testing import fakes

import specframe
from specframe import Pipeline, assisted
from specframe.cli import cli
from specframe.contracts.requests import Chunk, Request, Result, SequenceMetrics
from specframe.engine.request_factory import RequestFactory, RequestOptions
from specframe.errors import UnknownNameError
from specframe.observe.counts import RunReport
from specframe.plugins.compose import compose
from specframe.plugins.entries import OTHERS, ROLES
from specframe.plugins.recipe import DEFAULTS, Recipe
from specframe.plugins.registry import OWN, registry
from specframe.text.sampling import Sampling

PIPELINE = {
    "target": "auto", "drafter": "auto", "align": "auto", "schedule": None, "accept": "auto", "verify": "auto", "kv": None,
    "batch_size": 8, "draft_length": "auto", "device": "auto", "dtype": "auto", "seed": 0,
}  # fmt: skip


def isolated(code: str, **environment: str) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.wide
def test_names():
    """The package offers these names and no others."""
    assert specframe.__all__ == ["Pipeline", "Sampling", "SpecframeError", "accelerate", "assisted", "hookimpl"]
    assert all(hasattr(specframe, name) for name in specframe.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Pipelines'"):
        specframe.Pipelines  # noqa: B018 - the access is the test


@pytest.mark.wide
def test_pipeline_signature():
    """The pipeline's positional options and their defaults are stable; others are by keyword only."""
    parameters = list(inspect.signature(specframe.Pipeline).parameters.values())
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [(p.name, p.default) for p in positional] == list(PIPELINE.items())
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} >= {"tokenizer", "observers"}
    assert not [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


@pytest.mark.wide
@pytest.mark.parametrize("method", ["generate", "chat", "as_completed", "stream"])
def test_generate_signature(method):
    """Prompts and the number of new tokens come first; what else is asked for is given by keyword."""
    parameters = list(inspect.signature(getattr(specframe.Pipeline, method)).parameters.values())[1:]
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [(p.name, p.default) for p in positional] == [
        ("chats" if method == "chat" else "prompts", inspect.Parameter.empty),
        ("max_new_tokens", 64),
    ]
    (asked,) = [p for p in parameters if p.kind not in (p.POSITIONAL_OR_KEYWORD,)]
    assert (asked.kind, asked.annotation) == (asked.VAR_KEYWORD, "Unpack[RequestOptions]")
    made = inspect.signature(RequestFactory.make).parameters.values()
    by_keyword = {p.name: p.default for p in made if p.kind is p.KEYWORD_ONLY}
    assert by_keyword == {"arrivals": None, "sort": False, "sampling": None}
    parameters = {field.name for field in attrs.fields(Sampling)} - {"max_new_tokens"}
    assert {*by_keyword, *parameters} == set(RequestOptions.__annotations__)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "near"), [("smapling", "sampling"), ("temprature", "temperature"), ("max_tokens", "max_new_tokens")]
)
@pytest.mark.parametrize("method", ["generate", "as_completed", "stream", "chat"])
def test_what_is_not_asked_for_by_a_keyword_is_refused(method, name, near, monkeypatch):
    """A keyword that no method of a pipeline has is an error at the call, with the nearest name."""
    monkeypatch.setattr("specframe.pipeline.require_template", lambda tokenizer: None)
    with pytest.raises(UnknownNameError, match=f"unknown argument '{name}': .*; did you mean '{near}'"):
        getattr(specframe.Pipeline(fakes.fake_target(), None), method)([[1]], **{name: None})


FIELDS = {
    Result: [
        *["index", "text", "token_ids", "finish_reason", "metrics", "error", "prompt_tokens", "latency"],
        *["sample", "logprobs", "top_logprobs"],
    ],
    Chunk: ["index", "sample", "text", "token_ids", "result"],
    Sampling: [
        *["temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty"],
        *["min_new_tokens", "bad_words_ids", "suppress_tokens", "forced_eos", "processors"],
        *["stop", "criteria", "max_new_tokens", "max_time", "logprobs", "samples"],
        *["frequency_penalty", "sequence_bias"],
    ],
    SequenceMetrics: ["num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "acceptance_histogram"],
    Request: ["index", "prompt_ids", "max_new_tokens", "stop_token_ids"],
    RunReport: [
        *["sequences", "errors", "tokens", "seconds", "rounds"],
        *["num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"],
        *["mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram", "stage_seconds"],
        *["padding_share", "grouping_rate", "target_forwards", "draft_forwards", "peak_kv_bytes"],
        *["host_syncs", "h2d_copies", "prefix_hit_tokens", "tokens_computed", "filler_share", "state_bytes"],
    ],
}


@pytest.mark.wide
@pytest.mark.parametrize("record", FIELDS, ids=lambda record: record.__name__)
def test_fields(record):
    """What users read keeps its names and their order; new fields come after them."""
    names = [field.name for field in attrs.fields(record)]
    assert names[: len(FIELDS[record])] == FIELDS[record]


@pytest.mark.wide
def test_roles_and_hooks():
    """The eight roles and their hooks keep their names."""
    assert list(ROLES) == [
        *["drafter", "verifier", "acceptance rule", "alignment", "scheduler", "KV backend", "draft-length policy"],
        "attention backend",
    ]
    hooks = [*ROLES.values(), *OTHERS.values()]
    assert hooks == [
        "specframe_register_" + name
        for name in [
            *["drafters", "verifiers", "acceptance_rules", "alignments", "schedulers", "kv_backends"],
            *["draft_length_policies", "attention_backends", "observers", "executors", "commands", "checkpoints"],
            "constraints",
            "state_kinds",
            "options",
            "position_kinds",
        ]
    ]


def test_import_is_light():
    """Importing the package, and its pytest plugin, imports neither torch nor transformers."""
    code = "import sys, specframe, specframe_testing.pytest_plugin; print({'torch', 'transformers'} & set(sys.modules))"
    assert isolated(code) == "set()"


BOTH = frozenset({
    "model", "none", "chain", "tree", "block", "fixed", "greedy", "dynamic", "first", "paged", "pool", "window", "decode",
    "packed", "flex",
})  # fmt: skip
"""Names of strategies that are words of the core, too: a kind of thing, plain decoding, a draft without branches, the first, a kind
of view, the sequences of a run, what a layer sees, what a tokenizer does, kernels of a device, ..."""


def names_in(source: str, names: set[str]) -> set[str]:
    """Return the names that a module has in a text, alone or before options, or in quotes or backquotes within a text."""
    texts = [
        one.value for one in ast.walk(ast.parse(source)) if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]
    quoted = {found for text in texts for found in re.findall(r"""[`'"]([\w.-]+)[,`'"]""", text)}
    return names & (quoted | {text.partition(",")[0] for text in texts})


@pytest.mark.wide
def test_no_strategys_name_in_the_core():
    """No module of the core has the name of a plugin's strategy or model: defaults are registered by plugins."""
    known = registry()
    roles = {entry.name for kind in ROLES for entry in known.of(kind) if entry.distribution != OWN}
    names = (roles | known.models.keys()) - BOTH
    assert {"ragged", "goodput", "slab", "tiny"} <= names
    core = Path(specframe.__file__).parent
    exempt = {core / "plugins" / "missing_packages.py"}  # what to install for a name that nothing offers
    paths = set(core.rglob("*.py")) - exempt
    sources = {path: path.read_text(encoding="utf-8") for path in paths}
    found = {str(path): names_in(source, names) for path, source in sources.items()}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.wide
@pytest.mark.parametrize("line", ["make('ragged,x=1')", '"""Asks for ``ragged``."""'])
def test_names_are_found(line):
    """A strategy's name is found alone, with options and quoted in a docstring; the word itself may be used."""
    assert names_in(line, {"ragged", "slab"}) == {"ragged"}
    assert not names_in('"""Prompts of ragged lengths."""', {"ragged"})


OPTIONS = attrs.asdict(DEFAULTS, recurse=False)


def defaults(function: Any) -> dict[str, Any]:
    """Return the defaults of a function's parameters."""
    found = {name: one.default for name, one in inspect.signature(function).parameters.items()}
    return {name: value for name, value in found.items() if value is not inspect.Parameter.empty}


@pytest.mark.wide
def test_a_pipeline_takes_the_options_of_a_recipe() -> None:
    """The signature has the recipe's options, in the same order, with the same defaults."""
    assert list(defaults(Pipeline).items()) == list(OPTIONS.items())


@pytest.mark.wide
def test_the_command_line_has_the_recipes_defaults() -> None:
    """Options of ``run`` that a recipe has, too, have its defaults; all of a recipe's are there but for objects."""
    above = cli.context_class(cli, info_name="specframe", **cli.context_settings)
    given = cli.get_command(above, "run").make_context("run", [], parent=above).params
    found = {name: value for name, value in given.items() if name in OPTIONS}
    left_open = {"align": "alignment", "verify": "verifier", "executor": "executor"}
    resolved = {name: registry().default(purpose) for name, purpose in left_open.items()}
    assert found == {name: OPTIONS[name] for name in found} | resolved
    assert set(OPTIONS) - set(found) == {"tokenizer", "observers"}


@pytest.mark.wide
@pytest.mark.parametrize("name", ["draft_length", "align", "accept", "kv"])
def test_the_drop_in_has_the_recipes_defaults(name: str) -> None:
    """Strategies inside ``generate`` default to those of a pipeline."""
    assert defaults(assisted)[name] == OPTIONS[name]


@pytest.mark.wide(but=["{'accept': 'gumbel'}-False-gumbel-goodput"])
@pytest.mark.parametrize(
    ("given", "greedy", "rule", "length"),
    [
        ({}, True, "greedy", "goodput"),
        ({}, False, "block", "5"),
        ({"accept": "gumbel"}, False, "gumbel", "goodput"),
        ({"accept": "rejection"}, True, "rejection", "5"),
        ({"draft_length": 3}, False, "block", 3),
    ],
    ids=str,
)
def test_what_auto_stands_for(given: dict[str, Any], greedy: bool, rule: str, length: Any) -> None:
    """The acceptance rule follows the temperature, and the draft length the acceptance rule, unless they are named."""
    asked = Recipe(drafter="prompt-lookup", **given)
    use = compose(registry(), asked, asked.drafter)
    use = use if greedy else use.sampling(registry(), asked)
    assert asked.rule(greedy) == rule
    assert type(use.rule) is registry().entry("acceptance rule", rule).factory
    assert asked.length(use.rule, asked.drafter) == length
