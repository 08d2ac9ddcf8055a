"""``specframe compare``: which runs it makes, in which order, and what happens when they are cut short."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from command_line import invoke
from specframe_lab import grid_models
from specframe_lab.commands.dry_run_command import duration, in_time
from specframe_lab.comparison import compare as comparing
from specframe_lab.comparison import modelled_time
from specframe_lab.comparison.compare import ComparisonSettings, compare, steps
from specframe_lab.comparison.comparison_figures import bitwise_price, equality
from specframe_lab.comparison.comparison_observers import Branches, Positions
from specframe_lab.comparison.comparison_results import ABOUT, RESULTS, Comparison
from specframe_lab.comparison.comparison_tables import tables
from specframe_lab.comparison.forecast import Forecast, forecast
from specframe_lab.comparison.modelled_time import modelled_seconds
from specframe_lab.comparison.oracle import READING
from specframe_lab.comparison.schemes import cases
from specframe_lab.comparison.shared_parts import with_shared_parts
from specframe_lab.comparison.summary import summary
from specframe_lab.grid import checked, expand
from specframe_lab.grid_models import LoadedModels
from specframe_lab.prediction.profiles import DeviceProfile
from specframe_lab.report import report_page
from specframe_testing import fakes, harness, zoo
from specframe_testing.device.captured_graphs import SimRecording

from specframe import Pipeline
from specframe.engine.local_engine import LocalEngine
from specframe.models import loading as models

GRID = {"align": "ragged,exspec", "schedule": ["continuous"], "kv": ["slab"], "batch_size": [2]}
PROMPTS = ["ab", "def f(x):", "x = 1"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The folders of a saved target and of a draft that often agrees with it; one token is one character."""
    _, target, _, drafter = zoo.save_pair(tmp_path_factory.mktemp("pair"))
    return {"target": target, "drafter": drafter}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a working folder of its own, and draws nothing: that is tested elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report_page, "write_report", lambda comparison, tables, folder: Path(folder, "report.html"))


def command(pair: dict[str, str], *more: str) -> list[str]:
    """Return the arguments of a small comparison."""
    named = [text for option, value in pair.items() for text in (f"--{option}", value)]
    sizes = ["--batch-size", "2", "--repeats", "2", "--max-new-tokens", "6", "--align", "ragged,exspec"]
    return ["compare", *named, *sizes, "--output", "out", *more, *PROMPTS]


def lines(folder: str = "out") -> list[dict]:
    """Return the results of a comparison."""
    return [json.loads(line) for line in (Path(folder) / RESULTS).read_text(encoding="utf-8").splitlines()]


def runs(found: list[dict]) -> list[tuple[str, int, int]]:
    """Return what was run, in order: scheme, batch size, repeat."""
    return [(line["scheme"], line["cell"]["batch_size"], line["repeat"]) for line in found]


def interrupted_after(count: int):
    """Return a progress callback that interrupts after ``count`` runs."""
    seen = []

    def progress(step, line) -> None:
        seen.extend([step] if line is not None else [])
        if len(seen) == count:
            raise KeyboardInterrupt

    return progress


@pytest.mark.wide
def test_cells_that_are_the_same_run_once(pair: dict[str, str]):
    """What is left to another choice counts as that choice; without a draft, its length does not matter."""
    drafters = f"none,{pair['drafter']}"
    found = cases(expand({**pair, "drafter": drafters, "schedule": [None, "continuous"], "draft_length": "3,5"}))
    assert [case.scheme for case in found] == ["plain", "plain", "drafter · K 3", "drafter · K 5"]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("--schedule", "same-length,window=0"), "window: expected a whole number of at least 1, got 0"),
        (("--batch-size", "1,,2"), "expected a value between two commas"),
        (("--drafter", "nobody"), "unknown drafter or model 'nobody'"),
        (("--arrivals", "nowhere"), "arrivals: expected poisson:RATE, gamma:RATE, constant:RATE or a file of seconds"),
        (("--prompts", "nowhere"), "--prompts: nowhere cannot be read"),
        (("--slo", "itl:3"), "--slo: expected ttft, tpot, e2el with milliseconds, as in "),
        (("--clock", "sun"), "--clock: expected one of wall, passes, got 'sun'"),
    ],
)
def test_bad_values_are_refused_before_any_model_loads(
    pair: dict[str, str], monkeypatch: pytest.MonkeyPatch, wrong: tuple[str, str], message: str
):
    monkeypatch.setattr(models, "load_model", lambda *_: pytest.fail("a model was loaded"))
    result = invoke(*command(pair, *wrong))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("out").exists()


@pytest.mark.wide
def test_requests_have_a_table_of_their_own(pair: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    """On the clock of passes all repeats are alike; another objective only writes the report again."""
    options = ["--arrivals", "gamma:0.5,burstiness=0.5", "--clock", "passes", "--max-concurrency", "2"]
    result = invoke(*command(pair, *options, "--slo", "ttft:1000000"))
    assert result.exit_code == 0, result.output
    assert "ttft P50/P90/P99 passes" in result.stdout
    assert "good requests/pass" in result.stdout
    assert "100.0%" in result.stdout
    found = lines()
    plain = [line for line in found if line["scheme"] == "plain" and line["cell"]["batch_size"] == 2]
    kept = plain[0]["requests"]
    assert all(line["requests"] == kept for line in plain)
    assert all(served["tokens"] == [1] * 6 and served["chunks"] == sorted(served["chunks"]) for served in kept)
    monkeypatch.setattr(models, "load_model", lambda *_: pytest.fail("a model was loaded"))
    other = invoke(*command(pair, *options, "--slo", "ttft:1"))
    assert other.exit_code == 0
    assert "100.0%" not in other.stdout.partition("good requests/pass")[2]
    assert lines() == found


LAB = {
    "compare": [],
    "verify": [],
    "trace": ["--output", "out.html"],
    "reproduce": ["--output", "out", "--max-prompt-tokens", "999"],
}


@pytest.mark.wide
@pytest.mark.parametrize("name", LAB)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (" ", "prompt 1: the prompt is empty: expected at least one token"),
        ("a" * 200, "prompt 1: the prompt has 200 tokens: expected fewer than the target's context of 160"),
        ("\udcff", "expected text, got half of a surrogate pair or a byte that is not UTF-8"),
    ],
)
def test_prompts_that_cannot_be_decoded_are_refused(
    pair: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str, bad: str, message: str
):
    """By every command that compares, in one sentence, before anything is decoded; no result and no page is left behind."""
    for decoder in ("specframe.pipeline.Pipeline.generate", "specframe_lab.verify.reference_decode"):
        monkeypatch.setattr(decoder, lambda *_, **__: pytest.fail("something was decoded"))
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ["ab", bad]))
    named = [text for option, value in pair.items() for text in (f"--{option}", value)]
    result = invoke(name, *named, "--prompts", "prompts.jsonl", *LAB[name])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert message in result.stderr
    assert not [path for path in Path().rglob("*") if path.is_file() and path.name != "prompts.jsonl"]


@pytest.mark.wide
def test_rules_that_cannot_sample_are_left_out_up_front(pair: dict[str, str]):
    """Such cells are named once, whatever their number, and only plain sampling and the rules that draw are run."""
    asked = ["--temperature", "0.8", "--repeats", "1", "--batch-size", "1,2", "--align", "ragged"]
    result = invoke(*command(pair, *asked, "--accept", "greedy,gumbel"))
    assert result.exit_code == 0
    refused = [text for text in result.stderr.splitlines() if text.startswith("left out: ")]
    assert refused == [
        "left out: accept greedy, 2 combinations: acceptance rule 'greedy' always takes the most likely token, so that "
        "temperature 0.8 has no effect: choose a rule that samples, such as gumbel, block or rejection"
    ]
    assert {line["cell"]["accept"] for line in lines()} == {"gumbel"}


@pytest.mark.wide
def test_a_dry_run_says_what_would_be_run(pair: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    """Every cell with its runs, what is left out and why, the tokens and the time; nothing is loaded or written."""
    monkeypatch.setattr(models, "load_model", lambda *_: pytest.fail("a model was loaded"))
    result = invoke(*command(pair, "--dry-run", "--kv", "slab,dynamic"))
    assert result.exit_code == 0, result.stderr
    assert "left out: align ragged, kv dynamic: alignment 'ragged' needs 'scatter' to be offered" in result.stderr
    rows = [tuple(line.split("  ")) for line in result.stdout.partition("\n\n")[0].splitlines()]
    cells = [[part.strip() for part in row if part.strip()] for row in rows]
    assert cells[1:] == [
        ["plain · slab", "continuous", "slab", "1", "1", "0"],
        ["plain · slab", "continuous", "slab", "2", "2", "0"],
        ["ragged · slab", "continuous", "slab", "2", "2", "0"],
        ["exspec · slab", "continuous", "slab", "2", "2", "0"],
        ["exspec · dynamic", "continuous", "dynamic", "2", "2", "0"],
    ]
    assert f"9 of 9 runs to make: at most {9 * len(PROMPTS) * 6} new tokens" in result.stdout
    told = r"\nabout [\d.]+ s of decoding, modelled by the shapes of the models, .* out holds no run"
    assert re.search(told, result.stdout)
    assert not Path("out").exists()


@pytest.mark.wide
def test_a_dry_run_goes_by_what_is_measured(pair: dict[str, str]):
    """Runs that are there are not run again; the others take what theirs took, or the mean; another comparison is reported."""
    cells = checked(expand({**pair, **GRID, "draft_length": "5"}))
    with pytest.raises(KeyboardInterrupt):
        compare(cells, ComparisonSettings(PROMPTS, 6, repeats=2), "out", progress=interrupted_after(5))
    planned = cases(cells.cells)
    asked = comparing.about(cells, planned, ComparisonSettings(PROMPTS, 6, repeats=2), "")
    found = forecast(list(steps(planned, 2)), "out", asked)
    took = {(line["scheme"], line["cell"]["batch_size"]): line["figures"]["seconds"] for line in lines()}
    assert [(step.case.scheme, step.repeat) for step in found.missing] == [("ragged", 1), ("plain", 1)]
    assert found.seconds == pytest.approx(took["ragged", 2] + took["plain", 2])
    kept = {path: path.read_bytes() for path in Path("out").iterdir()}
    told = (
        f"about {in_time(found.seconds)} of decoding, by the 5 runs in out; loading models and warming up come on top"
    )
    assert show(found) == told
    assert {path: path.read_bytes() for path in Path("out").iterdir()} == kept
    fewer = attrs.evolve(found, lines={key: line for key, line in found.lines.items() if "exspec" in line["scheme"]})
    known = [line["figures"]["seconds"] for line in fewer.lines.values()]
    assert fewer.seconds == pytest.approx(5 * sum(known) / len(known))
    assert show(attrs.evolve(found, steps=[])) == "out holds all of them: only the report would be written again"
    other = comparing.about(cells, planned, ComparisonSettings(PROMPTS, 7, repeats=2), "")
    told = "out would be refused: it holds another comparison, made with max new"
    assert show(forecast([], "out", other)).startswith(told)
    Path("out", ABOUT).write_text("[]")
    assert show(forecast([], "out", asked)) == "out would be refused: it holds something else"


def show(found: Forecast) -> str:
    """Return how long a forecast says that it takes."""
    return duration(found, "out", lambda case: ComparisonSettings(PROMPTS, 6, repeats=2))


def test_modelled_time_goes_by_rows_and_repeats(monkeypatch: pytest.MonkeyPatch):
    """Time goes by tokens, repeats and rows where a pass costs as much; an unknown device has no estimate."""
    overhead = DeviceProfile(flops=1e30, bandwidth=1e30, layer_overhead=1.0)
    monkeypatch.setattr(modelled_time, "profile_of", lambda device, dtype: overhead)

    def seconds(new: int, repeats: int, rows: int) -> float | None:
        planned = cases(expand({"target": "tiny", "drafter": "tiny-draft", "batch_size": [rows]}))
        timed = [step for step in steps(planned, repeats) if step.case.batch_size == rows]
        settings = ComparisonSettings(["a"] * 8, new, repeats, warm_up=0)
        return modelled_seconds(timed, lambda case: settings)

    usual = seconds(100, 1, 4)
    assert seconds(100, 3, 4) == pytest.approx(3 * usual)
    assert seconds(200, 1, 4) == pytest.approx(2 * usual, rel=0.05)  # prompts are read once
    assert seconds(100, 1, 8) == pytest.approx(usual / 2)
    monkeypatch.setattr(modelled_time, "profile_of", lambda device, dtype: None)
    assert seconds(100, 1, 4) is None


@pytest.mark.wide
@pytest.mark.parametrize(
    ("seconds", "words"), [(3.04, "3.0 s"), (119, "119.0 s"), (120, "2.0 minutes"), (9000, "2.5 hours")]
)
def test_durations_have_a_unit_that_is_read_at_once(seconds: float, words: str):
    """A long comparison is given in minutes or hours."""
    assert in_time(seconds) == words


def test_each_at_its_best_has_its_own_parts_in_rows_and_labels(pair: dict[str, str]):
    """With the option each alignment has what it asks for, and names and rows tell it; what is asked for by name stays."""
    given = with_shared_parts(expand({**pair, "align": "exspec", "schedule": "fixed", "kv": "paged", "batch_size": 2}))
    assert [(cell["schedule"], cell["kv"]) for cell in given] == [("fixed", "paged")]
    few = ["--repeats", "1", "--max-new-tokens", "2", "--warm-up", "0"]
    result = invoke(*command(pair, "--each-at-its-best", *few))
    assert result.exit_code == 0, result.output
    schemes = ["plain · continuous · slab", "ragged · continuous · slab", "exspec · same-length · dynamic"]
    assert {line["scheme"] for line in lines()} == set(schemes)
    rows = {line.split("  ")[0]: line for line in result.stdout.splitlines()}
    assert re.search(r"  2 +same-length +dynamic +", rows[schemes[2]])
    assert (
        "ragged on continuous and slab; exspec on same-length and dynamic. Without --each-at-its-best" in result.stdout
    )
    shared = invoke(*command(pair, *few, "--output", "shared"))
    assert {(line["cell"]["schedule"], line["cell"]["kv"]) for line in lines("shared")} == {("continuous", "slab")}
    assert "All schemes have scheduler continuous and KV backend slab; --each-at-its-best takes what" in shared.stdout


@pytest.mark.wide
def test_an_interrupted_comparison_ends_with_the_same_cells(pair: dict[str, str]):
    """Runs that are there are not run again; a line cut short is."""
    grid, settings = checked(expand({**pair, **GRID})), ComparisonSettings(PROMPTS, 6, repeats=2)
    whole = compare(grid, settings, "whole")
    with pytest.raises(KeyboardInterrupt):
        compare(grid, settings, "cut", progress=interrupted_after(5))
    assert len(lines("cut")) == 5 < len(lines("whole")) == 7
    first = lines("cut")
    with open(f"cut/{RESULTS}", "a", encoding="utf-8") as file:
        file.write('{"scheme": "exspec", "cel')
    numbers = []
    again = compare(grid, settings, "cut", progress=lambda step, line: numbers.append(step.number))
    assert min(numbers) == 6
    assert lines("cut")[:5] == first
    assert runs(lines("cut")) == runs(lines("whole"))
    assert [line["tokens_digest"] for line in lines("cut")] == [line["tokens_digest"] for line in lines("whole")]
    assert [case.key for case in again.cases] == [case.key for case in whole.cases]


@pytest.mark.wide
def test_a_folder_takes_one_comparison_only(pair: dict[str, str]):
    compare(checked(expand({**pair, **GRID})), ComparisonSettings(PROMPTS, 6, 1), "out")
    before = Path("out", RESULTS).read_bytes()
    for change, message in (
        (["--align", "ragged,eqspec"], "made with 4 cells of which 3 are among the 4 now asked for"),
        (["--max-new-tokens", "7"], "made with max new tokens 6 where 7 is now asked for"),
        (["--repeats", "3"], "made with repeats 1 where 3 is now asked for"),
        (["--sort"], "made with sort False where True is now asked for"),
        (["another"], "made with prompts 3 "),
    ):
        result = invoke(*command(pair, "--repeats", "1", *change))
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
        assert Path("out", RESULTS).read_bytes() == before


def test_load_options_tell_models_and_plain_decoding_apart(
    pair: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value of a grid has models of its own, and schemes on them are held against plain decoding of the same."""
    loaded: list[dict[str, object]] = []
    monkeypatch.setattr(grid_models.models, "load_model", lambda *_, options: loaded.append(options) or object())
    grid = checked(expand({**pair, "load_options": "none,none,use_safetensors=true"}))
    models_of = LoadedModels()
    assert len({id(models_of.target(cell)) for cell in [*grid.cells, *grid.cells]}) == 2
    assert loaded == [{}, {"use_safetensors": True}]
    made = cases(grid.cells)
    plain = [case.cell.get("load_options") for case in made if case.plain and case.batch_size == 1]
    assert plain == [None, "none,use_safetensors=true"]
    assert len({case.scheme for case in made}) == 4


@pytest.mark.wide
def test_branches_of_trees_are_counted() -> None:
    """Each path counts the children of its nodes, within the row's limit; of a depth one child at most is accepted."""
    target = fakes.fake_target()
    asked = harness.requests(harness.random_prompts([5, 1, 8], 61), 9)
    drafter = fakes.ScriptedTree(harness.truth(target, asked), {0: 3, 1: 0, 2: 2})
    branches = Branches()
    positions = Positions()
    pipe = harness.pipeline(target, drafter, batch_size=3, observers=[branches, positions])
    harness.check(pipe, asked)
    counts = {(depth, branch): (reached, stood) for depth, branch, reached, stood in branches.lines()}
    assert {depth for depth, _ in counts} == {1, 2, 3}
    right = {1: 2, 2: 1, 3: 1}  # the branch of the script's path at each depth
    for (depth, branch), (reached, stood) in counts.items():
        assert stood == (positions.accepted[depth - 1] if branch == right[depth] else 0)
        assert stood <= reached <= positions.drafted[depth - 1]
    assert counts[1, 1][0] == counts[1, 2][0] == positions.drafted[0]
    assert counts[3, 1][1] > 0
    assert sum(stood for _, stood in counts.values()) == pipe.report.num_accepted_draft_tokens


@pytest.mark.quick
def test_a_line_holds_one_run(pair: dict[str, str]):
    """Counts are of the run alone: warming up leaves no trace."""
    settings = ComparisonSettings(PROMPTS, 6, 2, arrivals=[0, 0.1, 0.05], arrivals_as="given")
    compare(checked(expand({**pair, "batch_size": [2]})), settings, "out")
    for line in lines():
        figures = line["figures"]
        assert figures["sequences"] == len(line["latencies"]) == 3
        assert all(latency > 0 for latency in line["latencies"])
        assert line["by_branch"] == []
        assert line["calibration"] is None
        assert sum(line["drafted_by_position"]) == figures["num_draft_tokens"]
        assert sum(line["accepted_by_position"]) == figures["num_accepted_draft_tokens"]
        assert line["reached_by_position"][:1] == line["drafted_by_position"][:1]
        assert line["reached_by_position"][1:] <= line["accepted_by_position"][:-1]
        for ids, rounds in zip(line.get("token_ids", ()), line.get("rounds", ()), strict=True):
            assert [one[0] for one in rounds] == sorted({one[0] for one in rounds})
            assert rounds[0][:2] == [0, READING]
            assert len(ids) - 1 <= rounds[-1][0] + rounds[-1][2] <= len(ids)
        assert figures["tokens_per_second"] == pytest.approx(figures["tokens"] / figures["seconds"])
        assert sum(figures["stage_shares"].values()) == pytest.approx(1)
        if line["repeat"] == 0:
            assert sum(map(len, line["token_ids"])) == figures["tokens"]
        else:
            assert "token_ids" not in line
    assert len({line["tokens_digest"] for line in lines()}) == 1
    assert runs(lines()) == [("plain", 1, 0), ("plain", 2, 0), ("ragged", 2, 0), ("ragged", 2, 1), ("plain", 2, 1)]


def test_a_warm_up_is_short_where_nothing_is_recorded() -> None:
    """On a device without graphs a warm-up run has the first prompts and few tokens."""
    recipe = types.SimpleNamespace(graphs="auto")
    pipe: Any = types.SimpleNamespace(device=torch.device("cpu"), recipe=recipe, encode=list)
    assert comparing.short_run(pipe, [[1], [2, 3], [4, 5, 6]], 2, 999) == ([[1], [2, 3]], comparing.WARM_UP_TOKENS)


def test_what_is_timed_replays_what_warming_up_has_recorded(pair: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    """Where a device records forwards, the run that counts has the caches of the short one, and hardly records."""
    usual, made = Pipeline.generate, list[int]()

    def noted(self: Pipeline, *args: Any, **options: Any) -> Any:
        before = SimRecording.made
        yield from usual(self, *args, **options)
        made.append(SimRecording.made - before)

    monkeypatch.setattr(Pipeline, "generate", noted)
    monkeypatch.setattr(LocalEngine, "_defers", lambda *_: False)  # rows are as many in each round
    prompts = ["a", "def", "return the longest of all of them"]
    grid = expand({**pair, "batch_size": [2], "device": ["sim"], "draft_length": [3]})
    compare(checked(grid), ComparisonSettings(prompts, 12, 1, warm_up=2), "out")
    assert not any("error" in line for line in lines())
    plain, ragged = made[1:4], made[4:]  # the first one is the reference, which is not timed
    for first, second, counted in (plain, ragged):
        assert first + second > 2 * counted


@pytest.mark.wide
def test_with_a_temperature_plain_decoding_samples(pair: dict[str, str]):
    """Ids are compared where a rule draws what plain sampling draws, and left out where they depend on the draft."""
    grid = checked(expand({**pair, "accept": "gumbel,rejection", "batch_size": [2]}))
    settings = ComparisonSettings(PROMPTS, 6, 1, temperature=1.2)
    comparison = compare(grid, settings, "out")
    assert {line["cell"]["accept"] for line in lines() if line["plain"]} == {"gumbel"}
    assert not any("error" in line for line in lines())
    rows = equality(comparison)
    assert [row[:4] for row in rows] == [("plain", 2, 3, 3), ("gumbel", 2, 3, 3)]


@pytest.mark.wide
def test_a_cell_that_fails_says_why_and_the_others_go_on(pair: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    """It is not run in later repeats, is tried again the next time, and the command exits with status 1."""
    measure, tried = comparing.measure, []

    def failing(step, *others):
        if step.case.scheme == "exspec":
            tried.append(str(step.case))
            raise MemoryError("no room for more rows")
        return measure(step, *others)

    with monkeypatch.context() as patched:
        patched.setattr(comparing, "measure", failing)
        result = invoke(*command(pair, "--batch-size", "1"))
    assert result.exit_code == 1
    assert tried == ["exspec, batch size 1"]
    assert "exspec, batch size 1 could not be run: MemoryError: no room for more rows." in result.stdout
    failed = [("plain", False), ("ragged", False), ("exspec", True), ("exspec", True), ("ragged", False)]
    assert [(line["scheme"], "error" in line) for line in lines()] == [*failed, ("plain", False)]
    assert invoke(*command(pair, "--batch-size", "1")).exit_code == 0
    assert not any("error" in line for line in lines())
    assert sorted(runs(lines())) == sorted((s, 1, r) for s in ("plain", "ragged", "exspec") for r in (0, 1))


@pytest.mark.wide
def test_bitwise_runs_every_scheme_twice_and_tells_the_price(pair: dict[str, str]):
    """Each scheme, plain decoding too, is run as it is and bitwise, held against its own kind, and the price is their ratio."""
    told = invoke(*command(pair, "--bitwise", "--repeats", "1"))
    assert told.exit_code == 0, told.output
    names = ["plain", "ragged", "exspec"]
    timed = [line for line in lines() if line["cell"]["batch_size"] == 2]
    assert sorted(line["scheme"] for line in timed) == sorted([*names, *(f"{name} · bitwise" for name in names)])
    assert {line["cell"].get("bitwise") for line in timed} == {None, True}
    assert re.search(r"Bitwise equality takes this many times the time: plain [\d.]+ at batch size 2, ", told.output)
    planned = cases(expand({**pair, **GRID, "bitwise": [False, True]}))
    rates = {"plain": 8, "plain · bitwise": 4, "ragged": 20, "ragged · bitwise": 4}
    made = {case.key: {0: {"figures": {"tokens_per_second": rates.get(case.scheme, 1)}}} for case in planned}
    assert bitwise_price(Comparison({}, planned, made)) == [
        ("plain · bitwise", 2, 2, 2, 2, 1),
        ("ragged · bitwise", 2, 5, 5, 5, 1),
        ("exspec · bitwise", 2, 1, 1, 1, 1),
    ]


TURNS = [{"category": "c", "turns": ["x = [", "and"]}, {"category": "d", "turns": ["import os"]}]


def test_later_turns_follow_the_target_s_own_answers() -> None:
    """Every cell decodes a second turn after the answer that plain decoding gave to the first, and its category has that turn."""
    Path("set.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in TURNS))
    more = ["--batch-size", "2", "--repeats", "1", "--max-new-tokens", "4", "--align", "ragged", "--warm-up", "0"]
    result = invoke("compare", "--prompts", "mt-bench@set.jsonl", *more)
    assert result.exit_code == 0, result.output
    about = json.loads(Path("comparison", ABOUT).read_text())
    assert about["categories"] == [["c", 1], ["c", 2], ["d", 1]]
    assert re.fullmatch(r"3 \(\w+\); mt-bench, 2 entries with the SHA-256 \w{16}, .*", about["settings"]["prompts"])
    pipe = Pipeline(drafter="none")
    chat = [{"role": "user", "content": "x = ["}]
    first = next(pipe.generate([chat], 4))
    chat += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "and"}]
    second = next(pipe.generate([chat], 4))
    found = [json.loads(line)["token_ids"] for line in Path("comparison", RESULTS).read_text().splitlines()]
    assert [ids[:2] for ids in found] == [[first.token_ids, second.token_ids]] * len(found)
    other = invoke("verify", "--prompts", "mt-bench@set.jsonl", "--max-new-tokens", "2", "--align", "ragged")
    assert other.exit_code == 0, other.output
    assert "later turns of chats: 1 left out" in other.output


def test_transformers_beside(pair: dict[str, str]) -> None:
    """At each timed batch size plain decoding by generate has a case, padded prompts with the same tokens, too."""
    grid = checked(expand({**pair, "batch_size": [2], "align": ["ragged"]}))
    settings = ComparisonSettings(PROMPTS, 6, 2, transformers=True)
    found = compare(grid, settings, "out")
    names = [(case.scheme, case.batch_size) for case in found.timed]
    assert names == [("plain", 2), ("transformers", 2), ("ragged", 2)]
    by_name = {case.scheme: found.runs(case) for case in found.timed}
    assert by_name["transformers"][0]["token_ids"] == by_name["plain"][0]["token_ids"]
    shown = tables(found)
    rates = {name: [line["figures"]["tokens_per_second"] for line in runs.values()] for name, runs in by_name.items()}
    ratios = [one / other for one, other in zip(rates["ragged"], rates["transformers"], strict=True)]
    speed_up = {row[0]: row[2] for row in shown["speed_up_over_transformers"].rows}
    assert speed_up["ragged"] == pytest.approx(sum(ratios) / 2)
    assert [*speed_up] == ["plain", "ragged"]
    (row,) = (row for row in summary(found, shown) if row[0] == "transformers")
    assert (row[2:4], row[10]) == (("-", "-"), "-")
    for option in ("--arrivals=poisson:3", "--temperature=0.5"):
        refused = invoke(*command(pair, "--transformers", option))
        assert re.search(r"--transformers: expected no --(arrivals|temperature) with it", refused.output)
