"""``specframe trace``: what is recorded is true, and the page shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from browser import browsing, faults, needs_chromium
from command_line import invoke
from specframe_lab.trace.frames import Frame, SchemeTrace
from specframe_lab.trace.trace_page import render
from specframe_lab.trace.trace_recorder import record
from specframe_testing import fakes, harness, zoo

ALIGNMENTS = [
    *("ragged", "eqspec", "exspec", "rollback", "masking", "padding"),
    *("masking,positions=content", "padding,mask=content,positions=content,bonus=target"),
]
LENGTHS = (7, 1, 13, 4, 9)


TARGET = fakes.fake_target(eos=7)
PROMPTS = harness.random_prompts(LENGTHS, 61, seed=3)


def traced(align: str, prompts: list[list[int]] = PROMPTS, new: int = 14, **options: Any) -> SchemeTrace:
    """Return the trace of a fake pair's run."""
    given = {"batch_size": 3, "draft_length": 4, "drafter": fakes.fake_draft(TARGET), **options}
    return record(prompts, new, target=TARGET, align=align, **given)


def passes(trace: SchemeTrace) -> list[Frame]:
    return [frame for frame in trace.frames if frame.phase != "settle"]


@pytest.mark.wide
@pytest.mark.parametrize("align", ALIGNMENTS)
def test_results_follow_from_the_frames(align: str) -> None:
    """The tokens gained in the frames, joined, are the run's results; the lengths before each pass fit."""
    trace = traced(align)
    gained: dict[int, list[int]] = {}
    for frame in passes(trace):
        for lane in frame.lanes:
            if lane.score:
                tokens = gained.setdefault(lane.prompt, [])
                assert lane.score.length == LENGTHS[lane.prompt] + len(tokens)
                assert lane.score.accepted <= lane.score.committed <= lane.score.by_rule <= lane.score.drafted
                assert len(lane.score.tokens) - lane.score.accepted in (0, 1)
                tokens += lane.score.tokens
    assert [gained[index] for index in range(len(LENGTHS))] == trace.outputs
    assert [frame.round for frame in passes(trace)] == list(range(1, len(passes(trace)) + 1))
    assert all((a.phase == "settle") != (b.phase == "settle") for a, b in zip(trace.frames, trace.frames[1:]))


def text_of(token: int) -> str:
    return "</script><b>" if token == 3 else f" t{token}\n"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of four schemes, with text that would break out of it."""
    schemes = [traced(align) for align in ("ragged", "eqspec", "exspec", "padding")]
    path = tmp_path_factory.mktemp("page") / "trace.html"
    path.write_text(render(schemes, {"target": "<fake>"}, text_of), encoding="utf-8")
    return path


@pytest.mark.wide
def test_page_is_self_contained(page: Path) -> None:
    """Nothing is fetched, and text of tokens cannot end the data."""
    html = page.read_text(encoding="utf-8")
    assert "/*" not in html.partition("<style>")[0]
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|url\((?!data:)|fetch\(|XMLHttp""", html)
    links = set(re.findall(r"https?://[^\s\"']+", html)) - {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert links == set()
    assert html.count("</script>") == 2
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])
    assert data["texts"]["3"] == "</script><b>"
    assert [scheme["name"] for scheme in data["schemes"]] == ["ragged", "eqspec", "exspec", "padding"]


SCROLLED = "[...document.querySelectorAll('.box')].map((one) => one.scrollLeft)"
FRAMES = """<!DOCTYPE html><link rel="icon" href="data:,">
<iframe src="{page}" style="border:0;width:360px;height:800px"></iframe>
<iframe src="{page}#step=4&mask&beside" style="border:0;width:1200px;height:800px"></iframe>
<pre id="seen"></pre>
<script>
onload = () => {{
  const use = (frame) => {{
    const inside = frame.contentDocument, all = (selector) => [...inside.querySelectorAll(selector)];
    const captions = () => all(".caption").map((one) => one.textContent);
    const press = (key) => inside.body.dispatchEvent(new KeyboardEvent("keydown", {{ key, bubbles: true }}));
    const out = () => all("body *").filter((one) => !one.closest(".box, .scroll, svg")
      && one.getBoundingClientRect().right > frame.clientWidth + 0.5).map((one) => one.outerHTML.slice(0, 80));
    const seen = {{ start: captions(), boxes: all(".box").filter((one) => one.scrollWidth > one.clientWidth).length }};
    inside.getElementById("next").click();
    seen.next = captions();
    press("ArrowRight");
    seen.arrow = captions();
    press("ArrowLeft");
    seen.left = captions();
    const slider = inside.getElementById("slider");
    slider.value = slider.max;
    slider.dispatchEvent(new Event("input"));
    seen.end = captions();
    seen.disabled = inside.getElementById("next").disabled;
    slider.value = 3;
    slider.dispatchEvent(new Event("input"));
    seen.went = all(".scheme").map((one) => one.querySelectorAll(".went").length > 0);
    press("Home");
    press("m");
    all(".cell")[0].click();
    seen.note = all(".inspect")[0].textContent;
    seen.masks = all("canvas.mask").filter((one) => !one.hidden).length;
    press("o");
    seen.overview = inside.getElementById("small").getAttribute("aria-pressed");
    press("o");
    seen.out = out();
    seen.page = inside.documentElement.scrollWidth;
    seen.width = frame.contentWindow.innerWidth;
    seen.unnamed = all("button, input, [role=img], [role=region]").filter((one) =>
      !(one.hidden || one.textContent.trim() || one.getAttribute("aria-label") || one.getAttribute("aria-labelledby"))).length;
    seen.cells = all(".cell").length;
    const slots = () => all(".strip:not([hidden]) .cell"), focused = () => inside.activeElement;
    const walk = (key) => focused().dispatchEvent(new KeyboardEvent("keydown", {{ key, bubbles: true, cancelable: true }}));
    const place = () => `${{all(".strip").indexOf(focused().parentElement)}} ${{focused().dataset.slot}}`;
    const note = () => focused().closest(".scheme").querySelector(".inspect").textContent === focused().title;
    seen.reached = slots().filter((one) => one.tabIndex === 0).length;
    const before = inside.getElementById("where").textContent;
    slots()[0].focus();
    seen.walk = [[place(), note()]];
    for (const key of ["ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowUp"]) {{
      walk(key);
      seen.walk.push([place(), note()]);
    }}
    seen.stayed = inside.getElementById("where").textContent === before;
    walk("Escape");
    seen.escaped = focused().className;
    seen.dl = all("dl").flatMap((one) => [...one.children]).filter((one) =>
      one.tagName !== "DIV" || [...one.children].map((part) => part.tagName).join() !== "DT,DD").length;
    seen.heads = all("th").filter((one) => !one.textContent.trim() || !one.scope).length;
    const labels = all("section, nav, [role=region]").map((one) => one.getAttribute("aria-label")
      ?? inside.getElementById(one.getAttribute("aria-labelledby")).textContent);
    seen.landmarks = [labels.length - new Set(labels).size, all("body > *").filter((one) =>
      !["HEADER", "NAV", "MAIN", "SECTION", "SCRIPT"].includes(one.tagName)).length];
    seen.faint = all(".cell .pos").filter((one) => frame.contentWindow.getComputedStyle(one).opacity < 1).length;
    seen.bold = all("#outputs b, .cell b").filter((one) => one.textContent === "").length;
    return seen;
  }};
  document.getElementById("seen").textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(use));
}};
</script>"""


@pytest.mark.slow
@needs_chromium
def test_page_in_a_browser(page: Path, tmp_path: Path) -> None:
    """It steps by button, key and slider, fits all screens, and breaks no rule of accessibility."""
    (tmp_path / "frames.html").write_text(FRAMES.format(page=page.as_uri()), encoding="utf-8")
    with browsing() as seen:
        seen.goto((tmp_path / "frames.html").as_uri())
        told = seen.inner_text("#seen")
        seen.set_viewport_size({"width": 400, "height": 900})
        seen.goto(page.as_uri())
        assert seen.evaluate(SCROLLED) == [0] * 4
        seen.click("#last")
        assert max(seen.evaluate(SCROLLED)) > 0
        seen.click("#first")
        assert seen.evaluate(SCROLLED) == [0] * 4
        for button in ("#next", "#next", "#mask"):
            seen.click(button)
        assert seen.locator("canvas.mask:not([hidden])").count() > 0
        assert faults(seen) == []
    narrow, wide = json.loads(told)
    assert narrow["start"][0].startswith("Round 1, reading prompts. The target reads 3 prompts")
    assert wide["start"][0].startswith("Round 3, the target's pass.")
    for seen in (narrow, wide):
        assert seen["page"] == seen["width"]
        assert seen["out"] == []
        assert seen["boxes"] > 0
        assert len(seen["start"]) == 4
        for before, after in (("start", "next"), ("next", "arrow"), ("arrow", "end")):
            assert seen[before][0] != seen[after][0]
        assert seen["left"] == seen["next"]
        assert all("The run is over." in text for text in seen["end"])
        assert seen["disabled"]
        assert seen["went"][:2] == [False, True]
        assert seen["note"].startswith("slot 0: ")
        assert seen["overview"] == "true"
        assert (seen["unnamed"], seen["bold"]) == (0, 0)
        assert seen["cells"] > 20
        assert seen["reached"] == 4  # one slot of each panel
        assert [where for where, _ in seen["walk"]] == ["0 0", "0 1", "0 2", "1 2", "1 1", "0 1", "0 1"]
        assert all(told for _, told in seen["walk"])
        assert (seen["stayed"], seen["escaped"]) == (True, "box")
        assert (seen["dl"], seen["heads"], seen["landmarks"], seen["faint"]) == (0, 0, [0, 0], 0)
    assert (narrow["masks"] > 0, wide["masks"]) == (True, 0)  # the wide page began with masks, so that m hid them


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name a saved target and a draft that often agrees with it; one token is one character."""
    return [*zoo.save_pair(tmp_path_factory.mktemp("pair")), "--max-new-tokens", "8"]


@pytest.mark.quick
def test_command(pair: list[str], tmp_path: Path) -> None:
    """One page with both schemes on the same prompts, the command that made it, and a line per scheme."""
    path = tmp_path / "trace.html"
    result = invoke("trace", *pair, "ab", "def f(x):", "--output", str(path))
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["ragged", "eqspec"]
    assert all("2 of 2" in line for line in lines[1:3])
    assert lines[-1] == str(path)
    html = path.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])
    assert len(data["prompts"]) == 2
    assert "".join(data["texts"][str(token)] for token in data["prompts"][1]) == "def f(x):"
    assert data["facts"]["command"].startswith("specframe trace --target")
    assert (data["facts"]["batch size"], data["facts"]["draft length"]) == ("3", "4")


@pytest.mark.wide(
    but=["given1---output: t.pdf ends in .pdf: expected a name that ends in .html, since a page is written"]
)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["--output", "no/trace.html"],
            "--output: no/trace.html cannot be written: expected a file in a folder that exists",
        ),
        (
            ["--output", "t.pdf"],
            "--output: t.pdf ends in .pdf: expected a name that ends in .html, since a page is written",
        ),
        (["--align", "eqspek"], "unknown alignment 'eqspek'"),
        (["--draft-length", "0"], "--draft-length: expected a whole number of at least 1"),
        (["a"] * 17, "prompts: expected at most 16, for a page that can be looked at, got 17"),
        ([""], "prompt 0: the prompt is empty: expected at least one token"),
    ],
)
def test_command_refuses(pair: list[str], given: list[str], said: str, tmp_path: Path, monkeypatch: Any) -> None:
    """What cannot be traced is refused in one sentence, and no page is written."""
    monkeypatch.chdir(tmp_path)
    result = invoke("trace", *pair, *given)
    assert result.exit_code != 0
    assert said in result.output
    assert not list(tmp_path.iterdir())


def tree_trace(align: str) -> SchemeTrace:
    """Return the trace of a run whose drafts are trees of which some paths are accepted."""
    target = fakes.fake_target()
    asked = harness.requests(harness.random_prompts([5, 1, 8], 61), 9)
    drafter = fakes.ScriptedTree(harness.truth(target, asked), {0: 3, 1: 0, 2: 2})
    prompts = [request.prompt_ids for request in asked]
    return record(prompts, 9, make=harness.pipeline, target=target, draft=drafter, align=align, batch_size=3)


@pytest.mark.wide
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec"])
def test_a_tree_is_drawn(align: str) -> None:
    """A trace has each node with its parent, the target's probability, its slot and what became of it; no query looks elsewhere."""
    trace = tree_trace(align)
    assert trace.outputs == trace.reference
    scores = [lane.score for frame in trace.frames for lane in frame.lanes if lane.score and lane.score.tree]
    assert scores
    assert all((score.leaks, score.blind) == (0, 0) for score in scores)
    whole = next(score for score in scores if score.accepted == 3)
    assert [node.parent for node in whole.tree] == [-1, -1, 0, 1, 1, 3]
    assert [node.place for node in whole.tree] == [None, 0, None, 1, None, 2]
    assert [node.chance > 0.99 for node in whole.tree] == [False, True, False, True, False, True]
    first = whole.tree[0].slot
    assert [node.moved for node in whole.tree] == [None, first, None, first + 1, None, first + 2]
    assert trace.branches[1, 1] > 0
    assert (1, 0) not in trace.branches


@pytest.mark.slow
@needs_chromium
def test_a_page_of_trees_in_a_browser(tmp_path: Path) -> None:
    """At a round with trees, with the slots that a node sees, it fits other screens and breaks no rule of accessibility."""
    (tmp_path / "trees.html").write_text(render([tree_trace("ragged"), tree_trace("eqspec")], {}, text_of), "utf-8")
    with browsing() as seen:
        seen.goto((tmp_path / "trees.html").as_uri())
        for _ in range(30):
            if seen.locator(".trees:not([hidden])").count() == 2:
                break
            seen.click("#next")
        assert seen.inner_text(".trees").startswith("Prompt 0: ")
        seen.locator(".strip:not([hidden]) .cell").last.click()
        assert faults(seen) == []
