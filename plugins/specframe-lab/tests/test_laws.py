"""Laws fitted to runs: planted coefficients, intervals, what was left out, the best draft on a device, and bad input."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from command_line import invoke
from specframe_lab.laws.acceptance_laws import AcceptanceLaw, acceptance_of
from specframe_lab.laws.budget_laws import budgets_of
from specframe_lab.laws.draft_choice import LONGEST, choose_drafts
from specframe_lab.laws.draft_table import TableDraft
from specframe_lab.laws.least_squares import resample
from specframe_lab.laws.measured_runs import MeasuredRun, read_runs
from specframe_lab.prediction.model_costs import ModelCosts
from specframe_lab.prediction.predict import acceptance_rate, predictions
from specframe_lab.prediction.profiles import PROFILES
from specframe_lab.report import report_page
from specframe_testing import zoo

from specframe.errors import OptionError

TOKENS, LAYERS, CONSTANT = 0.12, 0.4, 0.3
"""Planted: slopes of the acceptance length by log tokens and log layers, and its constant."""
FAMILY = [TableDraft(f"{d}-{t}", t, d) for d in (1, 2, 4) for t in (1000, 4000, 16000, 64000)]
K, PROMPTS, ROUNDS = 8, 60, 40


def planted(draft: TableDraft) -> float:
    """Return the acceptance length that a draft is given."""
    return TOKENS * float(np.log(draft.tokens)) + LAYERS * float(np.log(draft.layers)) + CONSTANT


def run(
    drafter: str,
    length: int,
    steps: Any,
    accepted: Any,
    size: int = 1,
    repeat: int = 0,
    speed: Any = None,
    align: str = "ragged",
) -> MeasuredRun:
    """Return a run."""
    scheme = json.dumps({"align": align, "drafter": drafter})
    return MeasuredRun(("a", "tiny"), scheme, drafter, length, size, repeat, np.array(steps), np.array(accepted), speed)


def drawn(drafts: Iterable[TableDraft], seed: int = 0, bend: float = 0.0) -> list[MeasuredRun]:
    """Return a run of every draft, whose prompts differ and whose draft tokens are accepted at random, on average as planted.

    Args:
        drafts: of the family.
        seed: of the draws.
        bend: what is added to the acceptance length for each squared logarithm of tokens over 8,000.
    """
    rng, found = np.random.default_rng(seed), []
    for draft in drafts:
        length = planted(draft) + bend * np.log(draft.tokens / 8000) ** 2
        chances = np.clip((length - 1) / K * rng.uniform(0.9, 1.1, PROMPTS), 0, 1)
        found.append(run(draft.name, K, np.full(PROMPTS, ROUNDS), rng.binomial(ROUNDS * K, chances)))
    return found


def acceptance(
    runs: Sequence[MeasuredRun], drafts: Sequence[TableDraft] = FAMILY, resamples: int = 400
) -> AcceptanceLaw:
    return acceptance_of(runs, drafts, None, resamples, 0)


def test_planted_coefficients_are_recovered() -> None:
    """Each coefficient lies in its interval and near the planted one, in the law by both and in those by one quantity."""
    found = acceptance(drawn(FAMILY))
    barrier = found.barrier
    assert barrier.names == ("tokens", "layers")
    assert barrier.coefficients_C == pytest.approx([TOKENS, LAYERS, CONSTANT], abs=0.08)
    for value, (low, high) in zip((TOKENS, LAYERS, CONSTANT), barrier.intervals, strict=True):
        assert low < value < high
        assert high - low < 0.4
    assert barrier.r2 is not None
    assert barrier.r2 > 0.99
    assert [*found.laws("tokens")] == [1, 2, 4]
    for layers, law in found.laws("tokens").items():
        assert law.coefficients_C == pytest.approx([TOKENS, CONSTANT + LAYERS * np.log(layers)], abs=0.25)
        assert law.intervals[0][0] < TOKENS < law.intervals[0][1]
    assert [*found.laws("layers")] == [1000, 4000, 16000, 64000]
    for law in found.laws("layers").values():
        assert law.intervals[0][0] < LAYERS < law.intervals[0][1]


def test_what_is_left_out_is_not_fitted() -> None:
    """A draft with the most tokens, or layers, changes nothing of what is predicted for it."""
    runs = drawn(FAMILY)
    for name in ("tokens", "layers"):
        most = max(getattr(draft, name) for draft in FAMILY)
        left = {draft.name for draft in FAMILY if getattr(draft, name) == most}
        changed = [attrs.evolve(one, accepted_P=one.accepted_P * 0) if one.drafter in left else one for one in runs]
        for alone in (False, True):
            before, after = (acceptance(found).held_out(name, alone) for found in (runs, changed))
            assert len(before) == len(left)
            assert [one.predicted for one in before] == [one.predicted for one in after]
            assert all(one.measured == 1 for one in after)
            assert all(one.predicted == pytest.approx(planted(one.draft), abs=0.3) for one in before)


@pytest.mark.wide
def test_laws_need_their_points() -> None:
    """One depth has no law by layers and none by both; laws through as many points as coefficients have no R2."""
    one_depth = [draft for draft in FAMILY if draft.layers == 2]
    found = acceptance(drawn(one_depth), one_depth)
    assert found.barrier is None
    assert found.laws("layers") == {}
    assert [*found.laws("tokens")] == [2]
    assert found.held_out("tokens") == []
    assert len(found.held_out("tokens", alone=True)) == 1
    two = acceptance(drawn(FAMILY[:2]), FAMILY[:2]).laws("tokens")[1]
    assert two.r2 is None
    assert two.misses == [False, False]


def test_resamples_draw_as_many_prompts() -> None:
    """Each resample has as many prompts, some of them twice, and a seed draws them again."""
    counts = resample(7, 50, 3)
    assert counts.shape == (50, 7)
    assert (counts.sum(1) == 7).all()
    assert counts.max() > 1
    assert (counts == resample(7, 50, 3)).all()
    assert (counts != resample(7, 50, 4)).any()


SIZES, LENGTHS = (1, 2, 4, 8, 16, 32), (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
BUDGET = (-0.7, float(np.log(12)))
"""Planted: slope and constant of log K by log batch size; at 32 rows K is 1."""


def best_length(size: int) -> float:
    """Return the draft length that is planted as the best."""
    return float(np.exp(BUDGET[0] * np.log(size) + BUDGET[1]))


def timed(sizes: Iterable[int] = SIZES, plain: float = 0.5, noise: float = 0.0) -> list[MeasuredRun]:
    """Return three repeats of every cell, whose speed falls with the distance to the planted length; and plain decoding."""
    rng, found = np.random.default_rng(1), []
    for size in sizes:
        for repeat in range(3):
            for length in LENGTHS:
                speed = size * float(np.exp(-((np.log(length / best_length(size))) ** 2))) * rng.normal(1, noise)
                stood = rng.binomial(5 * length, 0.5, 20)
                found.append(run("d", length, [5] * 20, stood, size, repeat, speed))
            found.append(run("none", 0, [0], [0], size, repeat, size * plain))
    return found


def test_a_batch_size_that_is_left_out_is_not_fitted() -> None:
    """Speeds of one batch size do not change what the law of the others predicts for it, and a wrong prediction costs speed."""
    runs = timed()
    turned = [
        attrs.evolve(one, speed=100.0 if one.draft_length == 16 else 1.0) if one.batch_size == 8 else one
        for one in runs
    ]
    (before,), (after,) = (budgets_of(found, 50, 0) for found in (runs, turned))
    at = SIZES.index(8)
    assert before.held_out[at].predicted == after.held_out[at].predicted
    assert (before.held_out[at].kept, after.held_out[at].kept) == (1, 0.01)
    assert after.best[at].at_edge


@pytest.mark.wide
def test_plain_decoding_may_be_the_best() -> None:
    """Where plain decoding is the fastest the best length is 0; it is no point of the law, and is in vLLM's list."""

    def faster(least: int) -> list[MeasuredRun]:
        return [
            attrs.evolve(one, speed=99.0) if one.drafter == "none" and one.batch_size > least else one
            for one in timed()
        ]

    (found,) = budgets_of(faster(8), 50, 0)
    assert [best.draft_length for best in found.best][-2:] == [0, 0]
    assert len(found.law.y_N) == 4
    assert found.law.coefficients_C == pytest.approx(BUDGET, abs=0.1)
    assert found.schedule == [[1, 1, 12], [2, 3, 8], [4, 7, 5], [8, 15, 3], [16, 32, 0]]
    assert budgets_of(faster(0), 9, 0)[0].law is None


def test_speeds_of_two_files_are_not_compared() -> None:
    """Each file has budgets of its own; one batch size, or one length at each, has none."""
    later = [
        attrs.evolve(one, setting=("b", "tiny"), speed=900 if one.draft_length == 16 else one.speed) for one in timed()
    ]
    other = [
        attrs.evolve(one, scheme='{"align": "eqspec"}', speed=one.batch_size)
        for one in timed()
        if one.draft_length == 4
    ]
    both = budgets_of([*timed(), *other, *later], 20, 0)
    assert [one.drafter for one in both] == ["d under ragged", "d under eqspec", "d under ragged"]
    best = [[best.draft_length for best in one.best] for one in both]
    assert best == [[12, 8, 5, 3, 2, 1], [4] * 6, [16] * 6]
    assert budgets_of(timed([4]), 20, 0) == []
    assert budgets_of([one for one in timed() if one.draft_length == 4], 20, 0) == []


def costs(layers: int) -> ModelCosts:
    """Return the costs of a model with ``layers`` layers of 100 million weights."""
    return ModelCosts(layers, 32000, 100_000_000 * layers, 0, 1, 2048 * layers, 4096 * layers, 2)


def test_the_best_draft_and_budget_are_those_of_the_cost_model() -> None:
    """For each volume and batch size no other depth, and no other draft length, is predicted to be faster."""
    found = acceptance(drawn(FAMILY))
    law = found.barrier
    asked: Any = {"tokens": [1000, 10**9], "layers": [1, 2, 4, 8], "batch_sizes": [1, 256], "context": 64}
    choices = choose_drafts(found, costs(40), costs, PROFILES["h100"], **asked)
    assert [(one.batch_size, one.tokens) for one in choices] == [(1, 1000), (1, 10**9), (256, 1000), (256, 10**9)]
    for one in choices:
        speeds = {}
        for layers in asked["layers"]:
            rate = acceptance_rate(K, min(law.at(one.tokens, layers), K + 1))
            for other in predictions(
                costs(40), costs(layers), PROFILES["h100"],
                batch_sizes=[one.batch_size], draft_lengths=range(1, LONGEST + 1), context=64, acceptance=rate,
            ):  # fmt: skip
                speeds[layers, other.draft_length] = other.tokens_per_second
        assert one.tokens_per_second == pytest.approx(max(speeds.values()))
        assert speeds[one.layers, one.draft_length] == max(speeds.values())
        assert one.acceptance == law.at(one.tokens, one.layers)
        assert one.speed_interval[0] <= one.speed <= one.speed_interval[1]
    assert choices[0].draft_length > choices[2].draft_length


def line(one: MeasuredRun) -> str:
    """Return a run as a comparison has it."""
    cell = {"target": one.setting[1], "drafter": one.drafter, "align": "ragged"}
    cell |= {"draft_length": str(one.draft_length or 5), "batch_size": one.batch_size}
    counts = {"spec_steps": one.steps_P.tolist(), "accepted": one.accepted_P.tolist()}
    figures = {"tokens_per_second": one.speed or 1.0}
    return json.dumps({"cell": cell, "plain": not one.draft_length, "repeat": one.repeat, "figures": figures, **counts})


def write(file: Path, runs: Iterable[MeasuredRun]) -> str:
    """Write runs as a comparison does; return the file's name."""
    file.write_text("".join(f"{line(one)}\n" for one in runs))
    return str(file)


def table(file: Path, drafts: Iterable[TableDraft]) -> str:
    """Write a table of drafts; return the file's name."""
    rows = [f"{draft.name},{draft.tokens},{draft.layers}" for draft in drafts]
    file.write_text("\n".join(["drafter,tokens,layers", *rows]) + "\n")
    return str(file)


@pytest.mark.quick
def test_results_of_a_real_comparison_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `compare` and `run` write of the same run has the same counts; policies and failed runs are left out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report_page, "write_report", lambda comparison, tables, folder: Path(folder, "report.html"))
    options = [*zoo.save_pair(tmp_path / "pair"), "--draft-length", "2", "--batch-size", "2", "--max-new-tokens", "12"]
    options += ["--align", "ragged"]
    prompts = ["ab", "def f(x):", "x = 1", "import os", "zz"]
    for command in (["compare", "--repeats", "1", "--warm-up", "0", "--output", "c"], ["run", "--output", "o.jsonl"]):
        ran = invoke(*command, *options, *prompts)
        assert ran.exit_code == 0, ran.output
    results = tmp_path / "c" / "results.jsonl"
    drafted = [one for one in read_runs([str(results)]) if one.draft_length]
    (single,) = read_runs(["o.jsonl"])
    assert [(one.draft_length, one.batch_size) for one in drafted] == [(2, 2)]
    assert drafted[0].steps_P.sum() > 0
    assert drafted[0].speed
    assert single.speed is None
    assert (single.draft_length, single.batch_size) == (2, 2)
    assert single.steps_P.tolist() == drafted[0].steps_P.tolist()
    assert single.accepted_P.tolist() == drafted[0].accepted_P.tolist()
    assert single.accepted_P.tolist() != single.accepted_P.tolist()[::-1]  # another order would be seen
    figures = [json.loads(text)["figures"] for text in results.read_text().splitlines()]
    assert drafted[0].accepted_P.sum() == sum(one["num_accepted_draft_tokens"] for one in figures)
    policy = results.read_text().splitlines()[-1].replace('"draft_length": "2"', '"draft_length": "goodput"')
    results.write_text(policy + '\n{"cell": {}, "plain": true, "error": "no memory"}\n')
    with pytest.raises(OptionError, match="expected results of runs with a draft length in numbers"):
        read_runs([str(results)])


@pytest.mark.wide
def test_the_command_prints_laws(tmp_path: Path) -> None:
    """Tables and JSON have what was fitted and left out, budgets, vLLM's list and the fastest drafts, beside what is published."""
    results, budgets = write(tmp_path / "a.jsonl", drawn(FAMILY)), write(tmp_path / "b.jsonl", timed())
    drafts = ("--drafts", table(tmp_path / "drafts.csv", FAMILY))
    pair = ("--target", "tiny", "--drafter", "tiny-draft", "--device-profile", "h100", "--batch-size", "1,8")
    shown = invoke("laws", results, budgets, *drafts, *pair, "--resamples", "50")
    assert shown.exit_code == 0, shown.output
    for text in (
        "Mean acceptance length at draft length 8, 60 prompts",
        "tokens, published",
        "Measured less the law by both",
        "The most tokens left out of the fit by tokens alone",
        "The most layers left out of the fit by both",
        "Best draft length of d under ragged",
        "num_speculative_tokens_per_batch_size of vLLM: [[1, 1, 12], [2, 3, 8],",
        "The fastest draft on the device",
    ):
        assert text in shown.stdout
    assert "arXiv 2505.07858" in shown.stderr
    found = json.loads(invoke("laws", results, budgets, *drafts, *pair, "--resamples", "50", "--json").stdout)
    assert found["acceptance"]["barrier"]["coefficients"]["tokens"] == pytest.approx(TOKENS, abs=0.05)
    assert len(found["acceptance"]["barrier"]["residuals"]) == len(FAMILY)
    assert [len(found["acceptance"]["held_out"][name]["barrier"]) for name in ("tokens", "layers")] == [3, 4]
    assert found["budgets"][0]["best"][0]["draft_length"] == 12
    assert [one["batch_size"] for one in found["choices"]] == [1, 8]
    assert found["published"]["layers"] == [0.74, 4.61]
    alone = invoke("laws", budgets, "--resamples", "50")
    assert alone.exit_code == 0
    assert "Mean acceptance length" not in alone.stdout


BAD: dict[str, tuple[str, str]] = {
    "no results": (
        "empty.jsonl",
        "expected results of runs with a draft length in numbers, as in --draft-length 4, got none",
    ),
    "no file": ("nowhere.jsonl", "'nowhere.jsonl' cannot be read: No such file or directory"),
    "older results": ("older.jsonl", "older.jsonl line 1 is no result without 'spec_steps'"),
    "no column": (
        "a.jsonl --drafts lacks.csv",
        "--drafts: lacks.csv lacks tokens: expected the columns drafter, tokens, layers",
    ),
    "twice": ("a.jsonl --drafts twice.csv", "has '1-1000' twice"),
    "other drafts": (
        "a.jsonl --drafts other.csv",
        "expected drafters that the results have (1-1000, 1-16000, 1-4000 and 9 more)",
    ),
    "other prompts": (
        "prompts.jsonl --drafts all.csv",
        "expected runs of the same prompts, got some of 59 and some of 60 prompts",
    ),
    "no draft": ("silent.jsonl --drafts all.csv", "--drafts: 1-1000 has not drafted in any round"),
    "no model": ("a.jsonl --drafts all.csv --device-profile h100 --drafter none", "--drafter: expected a draft model"),
    "idle": ("a.jsonl --drafts all.csv --draft-layers 3", "--draft-layers: expected --device-profile with it"),
}


@pytest.mark.wide
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be fitted is named in one sentence, with exit status 2."""
    monkeypatch.chdir(tmp_path)
    runs = drawn(FAMILY)
    write(Path("a.jsonl"), runs)
    fewer = attrs.evolve(runs[0], steps_P=runs[0].steps_P[1:], accepted_P=runs[0].accepted_P[1:])
    write(Path("prompts.jsonl"), [fewer, *runs[1:]])
    write(Path("silent.jsonl"), [attrs.evolve(runs[0], steps_P=runs[0].steps_P * 0), *runs[1:]])
    Path("older.jsonl").write_text(line(runs[0]).replace("spec_steps", "steps") + "\n")
    Path("empty.jsonl").write_text("")
    others = [TableDraft("x", 1, 1), TableDraft("y", 2, 1)]
    for name, drafts in {"all": FAMILY, "twice": FAMILY[:1] * 2, "other": others}.items():
        table(Path(f"{name}.csv"), drafts)
    Path("lacks.csv").write_text("drafter,layers\nx,1\n")
    arguments, sentence = BAD[case]
    found = invoke("laws", *arguments.split())
    assert found.exit_code == 2, found.output
    assert sentence in found.output
    assert found.stdout == ""


ROOT = Path(__file__).parents[3]
RESAMPLED = re.compile(r"-?[\d.]+ to -?[\d.]+|\*|\b(yes|no)\b")
"""What comes from resamples: their draws may be others with another version of numpy."""


def certain(text: str) -> list[str]:
    """Return the words of tables but for those that come from resamples."""
    return RESAMPLED.sub("", text).split()


@pytest.mark.wide
def test_the_page_shows_what_the_committed_results_give() -> None:
    """The tables of docs/laws.md are those that the command prints of the results in benchmarks/results."""
    results = ROOT / "benchmarks" / "results"
    files = [str(results / f"laws-{name}.jsonl") for name in ("acceptance", "speed")]
    table = ("--drafts", str(results / "laws-drafts.csv"))
    device = ("--device-profile", str(results / "laws-profile.json"), "--dtype", "float32")
    pair = ("--target", "tiny", "--drafter", "tiny-draft", "--batch-size", "1,8,32")
    page = (ROOT / "docs" / "laws.md").read_text(encoding="utf-8")
    shown = certain(" ".join(re.findall(r"```text\n(Mean acceptance.*?)```", page, flags=re.DOTALL)))
    assert len(shown) > 100
    assert shown == certain(invoke("laws", *files, *table).stdout)
    shown = certain(" ".join(re.findall(r"```text\n(The fastest draft.*?)```", page, flags=re.DOTALL)))
    assert shown == certain(invoke("laws", files[0], *table, *device, *pair).stdout.split("\n\n")[-2])
