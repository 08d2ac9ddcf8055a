"""The report: its arithmetic, its files, and its page in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import browsing, needs_chromium
from browser import faults as faults_of
from specframe_lab.comparison import comparison_figures as f
from specframe_lab.comparison.compare import ComparisonSettings, compare
from specframe_lab.comparison.comparison_results import Comparison
from specframe_lab.comparison.comparison_tables import tables
from specframe_lab.comparison.digits import texts
from specframe_lab.comparison.schemes import Case
from specframe_lab.comparison.summary import columns, findings, summary
from specframe_lab.grid import checked, expand
from specframe_lab.report import plots
from specframe_lab.report.images import png
from specframe_lab.report.report_page import html, write_report
from specframe_testing import zoo

from specframe.pipeline import Pipeline

pytest.importorskip("matplotlib")

SECONDS = {"draft": 1.0, "verify": 2.0, "accept": 0.5, "align": 0.25, "schedule": 0.05, "prefill": 0.2}


def line(rate: float, **more: Any) -> dict[str, Any]:
    """Return what one run gave."""
    figures = {
        "tokens_per_second": rate,
        "stage_seconds": SECONDS,
        "realign_share": SECONDS["align"] / sum(SECONDS.values()),
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.25,
        "grouping_rate": 0.5,
        "padding_share": 0.1,
        "filler_share": 0.2,
        "peak_kv_bytes": 2_000_000,
        "acceptance_histogram": {"0": 1, "2": 3},
    }
    return {
        "lossless": True,
        "figures": figures,
        "drafted_by_position": [4, 4],
        "accepted_by_position": [3, 3],
        "longest_wait": 2,
        "latencies": [1.0, 2.0, 3.0, None],
        "tokens_digest": "same",
        "token_ids": [[1, 2, 3], [4, 5]],
        **more,
    }


def case(scheme: str, size: int) -> Case:
    drafter = "none" if scheme == "plain" else "draft"
    cell = {"target": "t", "drafter": drafter, "align": scheme, "batch_size": size, "dtype": "float32", "seed": 0}
    cell |= {"schedule": "continuous", "kv": "slab"}
    return Case(scheme, cell, plain=scheme == "plain")


def made(results: dict[tuple[str, int], list[dict[str, Any]]]) -> Comparison:
    """Return a comparison of these lines."""
    cases = {cell: case(*cell) for cell in results}
    about = {"command": "specframe compare", "started": "today", "settings": {}, "environment": {}, "refused": []}
    lines = {cases[cell].key: dict(enumerate(runs)) for cell, runs in results.items()}
    return Comparison(about, list(cases.values()), lines)


def test_an_interval_is_students():
    """It is of logarithms, and holds the median; of values that can be 0 it is their own and ends at 0; one value has none."""
    error = 4.303 / 3**0.5
    assert f.interval([1.1, 1.0, 1.21]) == pytest.approx((1.1, 1.1 ** (1 - error), 1.1 ** (1 + error)))
    assert f.interval([0.0, 0.2, 0.1]) == pytest.approx((0.1, 0.0, 0.1 + 0.1 * error))
    assert f.share_interval([1.1, 1.0, 1.2]) == pytest.approx((1.1, 1.1 - 0.1 * error, 1.1 + 0.1 * error))
    assert f.interval([1.0] * 7 + [9.0] * 5)[:2] == (1.0, 1.0)
    for values in ([3.0], [3.0, 3.0, 3.0]):
        assert f.interval(values) == (3.0, 3.0, 3.0)
    assert f.spread([3.0, 1.0, 2.0, 10.0]) == (2.5, 1.0, 10.0)
    assert np.isnan(f.interval([])).all()


@pytest.mark.wide
def test_percentiles_are_numpys_and_leave_out_what_failed():
    values = [0.1 * n for n in range(1, 11)]
    assert f.percentiles([None, *values]) == pytest.approx([0.55, 0.91, 0.991])
    assert f.percentiles(values) == np.percentile(values, (50, 90, 99)).tolist()
    assert np.isnan(f.percentiles([None])).all()


def test_tokens_per_second_are_told_and_drawn_against_memory():
    """By the device's memory where every run has it, else by that of caches; states and device are shown beside these."""
    cells = [(name, size) for name in ("plain", "ragged") for size in (1, 2)]
    for known in (4, 3):
        lines = {}
        for place, cell in enumerate(cells):
            one = line(10 + place, **({"peak_device_bytes": 5_000_000 + place} if place < known else {}))
            one["figures"] |= {"peak_kv_bytes": 2_000_000 + place, "state_bytes": 500_000 * (cell[0] == "ragged")}
            lines[cell] = [one, one]
        found = made(lines)
        shown = tables(found)
        least = 5_000_000 if known == 4 else 2_000_000
        wanted = [(*cell, least + place, *[10.0 + place] * 3, 2) for place, cell in enumerate(cells)]
        assert sorted(shown["memory"].rows) == sorted(wanted)
        assert [row[2] for row in shown["state_bytes"].rows] == [500_000] * 2
        assert len(shown["peak_device_bytes"].rows) == known
        told = {row[:2]: row[-1] for row in summary(found, shown)}
        assert told["ragged", "1"] == "2.00 / 5.00"
        assert told["ragged", "2"] == ("2.00 / 5.00" if known == 4 else "2.00")
        assert columns(found)[-1] == "KV/device MB"
        axes = plots.draw(shown, ["plain", "ragged"])["memory"].axes[0]
        assert axes.get_xlabel() == "most memory (MB); numbers: batch size"
        assert {text.get_text() for text in axes.texts} == {"1", "2"}


def test_numbers_of_a_column_have_the_same_decimals():
    """Three digits of the largest count, two of the smallest, as far as three more decimals; other kinds have their own."""
    assert texts([("a", 3.5), ("b", 3.294), ("c", 12.0)]) == [("a", "3.5"), ("b", "3.3"), ("c", "12.0")]
    assert texts([(3.5,), (3.294,)]) == [("3.50",), ("3.29",)]
    assert texts([(1500.0,), (0.5,)]) == [("1,500.00",), ("0.50",)]
    assert texts([(0.25,), (1e-9,)]) == [("0.250000",), ("0.000000",)]
    assert texts([(float("nan"), None, True, 7)]) == [("-", "-", "yes", "7")]
    assert texts([((1.0, 0.25, float("nan")),), ((0.5, 10.0, 2.0),)]) == [
        ("1.00 / 0.25 / -",),
        ("0.50 / 10.00 / 2.00",),
    ]
    assert texts([("ttft", 0.012), ("per user", 345.6)], ["ttft", "per user"]) == [
        ("ttft", "0.0120"),
        ("per user", "346"),
    ]
    assert texts([(0.0,), (0.0,)]) == [("0",), ("0",)]


FAST, UNSURE, SLOW = (1.1, 1.5), (0.9, 1.2), (0.6, 0.9)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("points", "faster", "slower", "words"),
    [
        ({1: FAST, 4: FAST}, 4, None, "above 4, the largest measured"),
        ({1: SLOW, 4: SLOW}, None, 1, "none, slower at every batch size"),
        ({1: FAST, 4: SLOW}, 1, 4, "between 1 and 4"),
        ({1: SLOW, 2: FAST, 4: SLOW}, 2, 4, "between 2 and 4"),
        ({1: FAST, 2: SLOW, 4: FAST}, 4, None, "above 4, the largest measured"),
        ({1: FAST, 4: UNSURE}, 1, None, "above 1 (not told apart at 4)"),
        ({1: FAST, 2: UNSURE, 4: SLOW}, 1, 4, "between 1 and 4 (not told apart at 2)"),
        ({1: UNSURE, 4: SLOW}, None, 4, "none, slower at 4 (not told apart at 1)"),
        ({1: UNSURE, 4: UNSURE}, None, None, "not known, at no batch size told apart from plain decoding"),
    ],
)
def test_break_even_is_told_as_far_as_intervals_say(points, faster, slower, words):
    """It lies between a batch size at which a scheme surely is faster and one at which it surely is slower; no line is drawn."""
    rows = [("eqspec", batch, 1.0, *ends, 3) for batch, ends in points.items()]
    assert f.break_even(rows) == [("eqspec", faster, slower, words)]
    alone = [(*row[:5], 1) for row in rows]
    assert f.break_even(alone) == [("eqspec", None, None, "not known, at no batch size told apart from plain decoding")]


@pytest.mark.wide
def test_calibration_adds_repeats():
    """Bins are added up over repeats, empty ones are left out, and runs without a calibration show nothing."""
    repeats = [line(1, calibration=[[0.5, 1, 4], [0, 0, 0]]), line(1, calibration=[[0.25, 0, 2], [0, 0, 0]]), line(1)]
    found = tables(made({("plain", 1): [line(1, calibration=None)], ("ragged", 1): repeats}))
    assert found["calibration"].rows == [("ragged", 1, pytest.approx(0.75 / 6), pytest.approx(1 / 6), 6)]
    assert png(plots.draw(found, ["plain", "ragged"])["calibration"]).startswith(b"\x89PNG")


def counting(rate: float, passes: int, **seconds: float) -> dict[str, Any]:
    """Return a line of a run of 100 tokens with its passes of the target, and the seconds of some stages."""
    one = line(rate)
    one["figures"] |= {
        "tokens": 100,
        "target_forwards": passes,
        "stage_seconds": {"draft": 1.0, "verify": 1.0} | seconds,
    }
    return one


def test_schemes_are_held_against_the_fastest_and_the_page_says_why():
    """Ratios are taken within a repeat, those that are not told apart are named, and reasons are tokens and seconds of a pass."""
    spread = (1.0, 1.02, 0.98)
    found = made(
        {
            ("plain", 1): [line(20)],
            ("plain", 4): [counting(60, 100, draft=0.0, verify=4.0)] * 3,
            ("ragged", 4): [counting(100 * x, 25) for x in spread],
            ("eqspec", 4): [counting(80 * x, 25, align=0.5) for x in spread],
            ("rollback", 4): [counting(50 * x, 50, draft=2.0, verify=2.0) for x in spread],
            ("exspec", 4): [counting(x, 25) for x in (99, 70, 130)],
        }
    )
    _, why, _, told, *_ = findings(found, tables(found))
    assert told == (
        "At batch size 4 ragged is 1.25 (1.25 to 1.25) times as fast as eqspec, 2.00 (2.00 to 2.00) times as fast as rollback; "
        "exspec cannot be told apart from it. A pass and what goes with it takes 1.25 times as long with eqspec: 20% of it moving "
        "rows, 0% with ragged. A pass of the target gives 2.0 tokens with rollback, 4.0 with ragged."
    )
    assert why == (
        "A pass of the target gives 4.0 tokens with ragged at batch size 4, 1.0 with plain decoding, and takes 2.00 times as long "
        "with all that goes with it: 50% the target's passes, 50% drafting."
    )


def test_nothing_but_zeros_is_a_sentence():
    """Where no batch had rows of one length the figure is not drawn: the page, the findings and the PDF say so instead."""
    lines = {cell: [line(100)] for cell in (("plain", 2), ("ragged", 2), ("exspec", 2))}
    for one in lines.values():
        one[0]["figures"]["grouping_rate"] = 0.0
    found = made(lines)
    shown = tables(found)
    assert "grouping_rate" not in plots.draw(shown, found.schemes)
    sentence = "ragged and exspec formed no batch of several rows of one length."
    assert sentence in findings(found, shown)
    assert f'<ul class="nothing"><li>{sentence}</li></ul>' in html(found, shown, {})
    lines["exspec", 2][0]["figures"]["grouping_rate"] = 0.5
    assert "grouping_rate" in plots.draw(tables(made(lines)), found.schemes)


@pytest.mark.wide(but=["sizes0"])
@pytest.mark.parametrize("sizes", [(1, 2), (1, 2, 4)])
def test_no_line_is_drawn_between_two_batch_sizes(sizes: tuple[int, ...]):
    """Two points are points; three and more are joined."""
    found = made({(name, size): [line(100)] * 2 for name in ("plain", "ragged") for size in sizes})
    drawn = plots.draw(tables(found), found.schemes)
    for name in ("throughput", "memory"):
        styles = {one.get_linestyle() for one in drawn[name].axes[0].lines if one.get_label()[:1] != "_"}
        styles |= {bar.lines[0].get_linestyle() for bar in drawn[name].axes[0].containers}
        assert (styles == {"None"}) == (len(sizes) == 2), (name, styles)


def test_tokens_per_round_are_told_by_category():
    """The page has a row for each cell, with the means of categories and both means of all; other prompts have no table."""
    one = line(100, spec_steps=[10, 10, 30], accepted=[10, 20, 90])
    found = made({("plain", 1): [line(100)], ("ragged", 1): [one]})
    assert "by category" not in html(found, tables(found), {})
    found.about["categories"] = [["math", 1], ["math", 2], ["qa", 1]]
    page = html(found, tables(found), {})
    cells = ["2.00", "3.00", "4.00", "3.40", "3.00"]
    assert "".join(f"<td>{cell}</td>" for cell in ["1", *cells]) in page
    for name in ("math", "math, turn 2", "qa", "all, by rounds (micro)", "all, by categories (macro)"):
        assert f'<th scope="col">{name}</th>' in page


def test_headline_where_nothing_is_faster():
    found = made({("plain", 4): [line(100)], ("plain", 1): [line(50)], ("eqspec", 4): [line(80)]})
    assert findings(found, tables(found))[0].startswith(
        "Nothing beats plain decoding here: at best, eqspec is 0.80 times as fast as plain decoding at batch size 4 (one run, "
    )
    noisy = made(
        {("plain", 4): [line(100)] * 3, ("plain", 1): [line(50)] * 3, ("eqspec", 4): [line(92), line(106), line(211)]}
    )
    first, *others = findings(noisy, tables(noisy))
    assert first.startswith(
        "No scheme is told apart from plain decoding as faster: at best, eqspec is 1.06 times as fast as "
    )
    assert others[-1] == (
        "The machine was noisy: eqspec, batch size 4 gave between 92 and 211 tokens per second in 3 repeats. A machine with "
        "nothing else to do, or more --repeats, makes intervals narrower."
    )


@pytest.mark.wide
def test_prompts_that_failed_are_not_equal():
    """A run in which a prompt has no continuation counts for nothing, though plain decoding failed on it as well."""
    failed = line(100, token_ids=[[], [4, 5]])
    failed["figures"] = {**failed["figures"], "errors": 1}
    found = made({("plain", 1): [failed], ("ragged", 1): [failed]})
    assert f.equality(found) == []
    first, count, *others = findings(found, tables(found))
    assert first == "Nothing could be measured."
    assert count == "2 of 2 combinations could not be run."
    assert "ragged, batch size 1 could not be run: 1 prompt could not be decoded." in others
    assert {row[4] for row in summary(found, tables(found))} == {"failed"}


DRAWN = set(plots.PAINTERS) - {"bitwise_price", "request_goodput", "acceptance_by_branch", "calibration"}
DRAWN -= {"state_bytes", "peak_device_bytes", "grouping_rate", "speed_up_over_transformers"}
"""The figures of a comparison of chains with arrivals at no particular time, of models without states, on a CPU, in which no batch
has rows of one length.
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of a random pair and its report."""
    place = tmp_path_factory.mktemp("report")
    target = zoo.build("llama")
    draft = zoo.good_draft(target)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9], [10, 11]]

    class Loaded:
        """Stands in for models on disk."""

        def pipeline(self, cell, observers=()):
            drafter = None if cell["drafter"] == "none" else draft
            return Pipeline(**{**cell, "target": target, "drafter": drafter}, observers=observers)

    grid = checked(
        expand({"target": "tiny", "drafter": "tiny-draft", "align": "ragged,exspec,masking", "batch_size": [1, 3]})
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("specframe_lab.comparison.compare.LoadedModels", Loaded)
        with torch.random.fork_rng(devices=[]):
            found = compare(grid, ComparisonSettings(prompts, 10, 2), place, "specframe compare --target '<b>&' ")
    write_report(found, tables(found), place)
    return place


@pytest.mark.wide
def test_every_figure_is_there_as_png_svg_and_csv(folder: Path):
    """All that was measured is drawn; bitwise equality, objectives, trees and ``generate`` were not asked for."""
    drawn = {path.stem for path in (folder / "figures").glob("*.png")}
    assert drawn == {path.stem for path in (folder / "figures").glob("*.svg")} == DRAWN
    assert {path.stem for path in (folder / "figures").glob("*.csv")} == {
        *plots.PAINTERS,
        "acceptance_by_category",
        "acceptance_by_turn",
        "break_even",
        "oracle",
        "request_rates",
        "side_by_side",
    }
    for path in (folder / "figures").iterdir():
        start = path.read_bytes()[:8]
        assert path.suffix != ".png" or start == b"\x89PNG\r\n\x1a\n"
        assert path.suffix != ".svg" or start == b"<?xml ve"


@pytest.mark.slow
def test_pdf_holds_findings_cells_figures_and_numbers(tmp_path: Path):
    """Every finding, every cell and every number is in it as text, a failure too, beside a page for each figure."""
    from specframe_lab.report import pdf

    cells = [(name, size) for name in ("plain", "ragged") for size in (1, 2)]
    found = made({**{cell: [line(100)] for cell in cells}, ("exspec", 2): [{"error": "no room"}]})
    pages = list(pdf.drawn(found, tables(found)))
    said = "\n".join(text.get_text() for page in pages for text in page.texts)
    for sentence in findings(found, tables(found))[1:]:
        assert sentence in said
    assert "command: specframe compare" in said
    assert re.search(r"exspec +2 +continuous +slab +failed", said)
    titles = [page._suptitle.get_text().partition("\n")[0] for page in pages if page._suptitle]
    assert titles == [tables(found)[name].title for name in plots.draw(tables(found), found.schemes)]
    path = pdf.write_pdf(found, tables(found), tmp_path)
    assert path.read_bytes().startswith(b"%PDF")
    assert path.read_bytes().count(b"/Type /Page ") == len(pages)


LOOK = """() => {
  const out = [...document.querySelectorAll("body *")].filter((one) =>
    !one.closest(".scroll") && !one.closest("svg") && one.getBoundingClientRect().right > innerWidth + 0.5);
  const sizes = [...document.querySelectorAll("figure > svg")].map((one) => one.getBoundingClientRect());
  const boxes = [...document.querySelectorAll(".scroll")].filter((one) => one.scrollWidth > one.clientWidth);
  return {page: document.documentElement.scrollWidth, out: out.map((one) => one.outerHTML.slice(0, 80)),
    smallest: Math.min(...sizes.map((one) => Math.min(one.width, one.height))), scrolling: boxes.length,
    summary: boxes.includes(document.querySelector(".scroll")),
    hint: getComputedStyle(document.querySelector(".hint")).display};
}"""


@pytest.mark.slow
@needs_chromium
def test_page_in_a_browser(folder: Path):
    """Nothing is said on the console, at 360 px only tables scroll, in their boxes, and it is accessible."""
    with browsing() as page:
        page.goto((folder / "report.html").as_uri())
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        looks = {}
        for width in (360, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            looks[width] = page.evaluate(LOOK)
        page.reload()
        assert faults_of(page) == []
    narrow, wide = looks[360], looks[1280]
    assert (narrow["page"], narrow["out"]) == (360, [])
    assert (wide["page"], wide["out"]) == (1280, [])
    assert (narrow["summary"], narrow["hint"]) == (True, "block")  # it scrolls, and says so
    assert (wide["summary"], wide["hint"]) == (False, "none")
    assert narrow["scrolling"] > 0
    assert min(narrow["smallest"], wide["smallest"]) > 100


@pytest.mark.wide
def test_a_page_needs_nothing_but_itself(folder: Path) -> None:
    """Nothing is fetched, no script runs, and what a command was given cannot end the markup."""
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)|<(script|iframe|object|embed|base)", text)
    assert "<pre>specframe compare --target &#x27;&lt;b&gt;&amp;&#x27; </pre>" in text


def test_axes_are_named():
    """An axis that doubles from tick to tick says so, and a ratio says to what."""
    sizes = [(name, size) for name in ("plain", "ragged") for size in (1, 2)]
    drawn = plots.draw(tables(made({cell: [line(1)] for cell in sizes})), ["plain", "ragged"])
    for name, figure in drawn.items():
        axes = figure.axes[-1]
        assert (axes.get_xscale() == "log") == ("logarithmic" in axes.get_xlabel()), name
    assert drawn["speed_up"].axes[0].get_ylabel() == "times plain decoding"
    assert [one.get_ylabel() for one in drawn["latency"].axes] == ["P50 (s), n = 4", "P90 (s), n = 4"]
