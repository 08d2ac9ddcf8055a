"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const steps = Math.max(...data.schemes.map((scheme) => scheme.frames.length));
const SIGNS = { k: "", i: "●", a: "✓", r: "✗", c: "⊘", s: "✗", p: "", e: "" };
const KINDS = {
  k: "cached", i: "input of this pass", a: "accepted draft token", r: "rejected draft token",
  c: "not rejected, but does not stand", s: "stale", p: "padding", e: "empty",
};
const LEGEND = [
  ["k", "Cached: a token of the row, read in an earlier pass."],
  ["i", "Input: fed in this pass; it is the row's last token, which had no slot yet."],
  ["a", "Accepted: a draft token that the target agrees with."],
  ["r", "Rejected: a draft token that the target would not have chosen."],
  ["c", "Not rejected, and yet it does not stand: cut by the scheme, or past the row's end."],
  ["s", "Stale: left over from a rejected token; the mask must hide it."],
  ["p", "Padding: a slot before or between the row's tokens that holds none of them."],
  ["e", "Empty: past the row's end, in reach of the pass because another row is longer."],
];
const FIGURES = [
  ["moved", "slots moved", "Cached tokens that changed slot or row, so far"],
  ["bytes", "bytes moved", "Their keys and values in the target's cache, over all layers, so far"],
  ["padding", "padding now", "Padding slots in the rows of the batch"],
  ["stale", "stale now", "Slots of rejected tokens in the rows of the batch"],
  ["empty", "empty now", "Slots past a row's end in the rows of the batch"],
];
let step = 0, timer = null, syncing = false;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function svg(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

function visible(token) {
  const text = data.texts[token] ?? `#${token}`;
  return text.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll("\r", "␍");
}

function plain(tokens) {
  return tokens.map((token) => data.texts[token] ?? `#${token}`).join("");
}

function bytes(count) {
  if (count >= 1e6) return `${(count / 1e6).toFixed(1)} MB`;
  return count >= 1e3 ? `${(count / 1e3).toFixed(1)} kB` : `${count} B`;
}

/* The first generated token that is not the target's own, per prompt; Infinity where all are. */
function partings(scheme) {
  return data.prompts.map((prompt, index) => {
    if (!data.reference) return Infinity;
    const got = scheme.outputs[index], own = data.reference[index];
    const place = got.findIndex((token, i) => token !== own[i]);
    if (place >= 0) return place;
    return got.length < own.length ? got.length : Infinity;
  });
}

class Panel {
  constructor(scheme) {
    this.scheme = scheme;
    this.parted = partings(scheme);
    const promise = scheme.lossless ? ["yes", "✓ lossless"] : ["no", "≠ not lossless"];
    this.caption = make("p", { class: "caption", "aria-live": "polite" });
    this.counters = make("dl", { class: "counters" });
    this.slots = Math.max(1, ...scheme.frames.flatMap((frame) => frame.lanes.map((lane) => lane.slots.length)));
    this.track = make("div", { class: "track" });
    this.ruler = make("div", { class: "ruler", "aria-hidden": "true" });
    for (let slot = 0; slot < this.slots; slot++) {
      this.ruler.append(make("span", { text: slot, style: `--s:${slot}` }));
    }
    this.lanes = data.prompts.map((_, prompt) => new Lane(this, prompt));
    this.track.append(this.ruler, ...this.lanes.map((lane) => lane.element));
    const label = `Cache slots of ${scheme.name}, scrollable`;
    this.box = make("div", { class: "box", tabindex: "0", role: "region", "aria-label": label }, this.track);
    this.box.addEventListener("scroll", () => follow(this.box), { passive: true });
    this.box.addEventListener("click", (event) => this.inspect(event));
    this.note = make("p", { class: "inspect", "aria-live": "polite", text: "Select a slot to read what it holds." });
    this.element = make(
      "section", { class: "scheme", "aria-label": scheme.name },
      make(
        "header", {}, make("h2", { text: scheme.name }), make("span", { class: `badge ${promise[0]}`, text: promise[1] }),
        make("p", { class: "about", text: scheme.about }),
      ),
      this.caption, this.counters, this.box, this.note,
    );
  }

  frame() {
    return this.scheme.frames[Math.min(step, this.scheme.frames.length - 1)];
  }

  show() {
    const frame = this.frame(), over = step >= this.scheme.frames.length;
    this.caption.replaceChildren(
      make("b", { text: over ? `Done after round ${frame.round}.` : where(frame) }), ` ${frame.caption}`,
    );
    this.count(frame.totals);
    for (const lane of this.lanes) lane.show(frame, this.scheme.frames.slice(0, step + 1));
    this.note.textContent = "Select a slot to read what it holds.";
  }

  count(totals) {
    const parts = FIGURES.map(([name, label, title]) => {
      const value = name === "bytes" ? bytes(totals.bytes) : totals[name];
      const cell = make("div", { title }, make("dt", { text: label }), make("dd", { text: value }));
      if (!totals[name]) cell.className = "none";
      return cell;
    });
    const chart = make("div", { class: "chart" }, this.chart());
    this.counters.replaceChildren(...parts, chart);
  }

  /* Tokens gained per round above the line, slots moved below it. */
  chart() {
    const rounds = Math.ceil(steps / 2), frames = this.scheme.frames, height = 22;
    const width = Math.max(4, Math.min(16, Math.floor(180 / rounds)));
    const gained = (frame) => frame.lanes.reduce((sum, lane) => sum + (lane.score ? lane.score.gained : 0), 0);
    const all = data.schemes.flatMap((scheme) => scheme.frames);
    const most = [Math.max(1, ...all.map(gained)), Math.max(1, ...all.map((frame) => frame.moved))];
    const picture = svg("svg", {
      width: rounds * width + 88, height: 2 * height + 4, role: "img",
      "aria-label": `Tokens gained and slots moved per round of ${this.scheme.name}`,
    });
    frames.forEach((frame, index) => {
      const below = index % 2, value = below ? frame.moved : gained(frame), size = (value / most[below]) * height;
      const x = Math.floor(index / 2) * width, now = Math.floor(index / 2) === Math.floor(step / 2);
      picture.append(svg("rect", {
        x, y: below ? height + 2 : height - size, width: width - 1, height: size, opacity: now ? 1 : 0.45,
        fill: below ? "var(--moved)" : "var(--accepted)",
      }));
    });
    picture.append(
      svg("line", { x1: 0, x2: rounds * width, y1: height + 1, y2: height + 1, stroke: "var(--line)" }),
      svg("text", { x: rounds * width + 6, y: height - 5 }, "tokens gained"),
      svg("text", { x: rounds * width + 6, y: height + 16 }, "slots moved"),
    );
    return picture;
  }

  /* Where each row's tokens end. */
  ends() {
    const lanes = this.frame().lanes.filter((lane) => lane.row !== null);
    return lanes.map((lane) => lane.marks.replace(/e+$/, "").length);
  }

  inspect(event) {
    const element = event.target.closest(".cell");
    if (element) this.note.textContent = element.title;
  }
}

class Lane {
  constructor(panel, prompt) {
    this.panel = panel;
    this.prompt = prompt;
    this.cells = new Map();
    this.head = make("div", { class: "head" });
    this.strip = make("div", { class: "strip", role: "img" });
    this.mask = make("canvas", { class: "mask", role: "img" });
    this.element = make("div", { class: "lane" }, this.head, this.strip, this.mask);
  }

  show(frame, past) {
    const lane = frame.lanes.find((other) => other.prompt === this.prompt);
    const cached = lane && lane.slots.length > 0;
    this.element.classList.toggle("away", Boolean(lane) && lane.row === null);
    this.strip.hidden = !cached;
    this.head.replaceChildren(...this.heading(frame, cached ? lane : null, past));
    this.draw(cached ? lane : { slots: [], marks: "" });
    this.strip.setAttribute("aria-label", cached ? this.describe(lane) : "no slots");
    this.mask.hidden = !(cached && lane.score && $("mask").getAttribute("aria-pressed") === "true");
    if (!this.mask.hidden) this.drawMask(lane);
  }

  heading(frame, lane, past) {
    const parts = [make("strong", { text: `Prompt ${this.prompt}` })];
    if (!lane) {
      const seen = past.some((other) => other.lanes.some((one) => one.prompt === this.prompt));
      const finish = this.panel.scheme.finish[this.prompt], count = this.panel.scheme.outputs[this.prompt].length;
      const text = seen ? `complete (${finish}): ${count} tokens; its row is free` : "waiting for a row";
      return [...parts, make("span", { class: "idle", text })];
    }
    parts.push(make("span", { class: "row", text: lane.row === null ? "outside of this batch" : `row ${lane.row}` }));
    const score = lane.score ?? this.lastScore(past);
    if (lane.score && score.drafted) parts.push(this.verdict(score));
    if (score && score.bonus !== null && lane.row !== null) {
      const when = lane.score ? "bonus" : "next input";
      const title = lane.score ? "The token that follows those accepted; it has no slot yet" : "Will be fed in the next pass";
      parts.push(make("span", { class: "chip bonus", title, text: `★ ${when} ${visible(score.bonus)}` }));
    }
    if (lane.shift) {
      const text = lane.shift > 0 ? `shifted ${lane.shift} →` : `← shifted ${-lane.shift}`;
      parts.push(make("span", { class: "chip shift", text }));
    }
    if (lane.carried) parts.push(make("span", { class: "chip shift", text: `↕ carried ${lane.carried}` }));
    if (lane.score && lane.score.finish) parts.push(make("span", { class: "chip", text: `■ complete (${lane.score.finish})` }));
    if (this.length(lane) > data.prompts[this.prompt].length + this.panel.parted[this.prompt]) {
      parts.push(make("span", { class: "chip wrong", text: "≠ no longer the target's own text" }));
    }
    return parts;
  }

  lastScore(past) {
    for (const frame of [...past].reverse()) {
      const lane = frame.lanes.find((other) => other.prompt === this.prompt);
      if (lane && lane.score) return lane.score;
    }
    return null;
  }

  verdict(score) {
    const text = `accepted ${score.accepted} of ${score.drafted}`;
    const signs = [..."a".repeat(score.accepted), ..."c".repeat(score.judged - score.accepted)];
    while (signs.length < score.drafted) signs.push("r");
    const marks = signs.map((kind) => make("span", { class: kind, text: SIGNS[kind] }));
    return make("span", { class: "row" }, `${text} `, make("span", { class: "verdict", "aria-hidden": "true" }, ...marks));
  }

  /* Tokens of the row that stand in this frame. */
  length(lane) {
    const orders = lane.slots.map((cell, slot) => ("kia".includes(lane.marks[slot]) ? this.panel.scheme.cells[cell][1] : -1));
    return 1 + Math.max(-1, ...orders);
  }

  describe(lane) {
    const counts = {};
    for (const mark of lane.marks) counts[mark] = (counts[mark] ?? 0) + 1;
    const parts = Object.entries(counts).map(([mark, count]) => `${count} ${KINDS[mark]}`);
    return `Prompt ${this.prompt}, ${lane.slots.length} slots: ${parts.join(", ")}`;
  }

  draw(lane) {
    const wanted = new Map();
    lane.slots.forEach((cell, slot) => wanted.set(cell < 0 ? `none ${slot}` : cell, slot));
    for (const [key, element] of this.cells) {
      if (!wanted.has(key)) {
        element.remove();
        this.cells.delete(key);
      }
    }
    for (const [key, slot] of wanted) {
      let element = this.cells.get(key);
      const before = element ? element.dataset.slot : String(slot);
      if (!element) {
        element = make("div");
        element.style.setProperty("--s", slot);
        this.strip.append(element);
        this.cells.set(key, element);
      }
      this.fill(element, lane, slot, before);
    }
  }

  fill(element, lane, slot, before) {
    const mark = lane.marks[slot], number = lane.slots[slot], cell = this.panel.scheme.cells[number];
    const fresh = element.dataset.slot === undefined ? " fresh" : "";
    element.className = `cell ${mark}${fresh}${before !== String(slot) ? " went" : ""}`;
    element.dataset.slot = slot;
    element.dataset.sign = SIGNS[mark];
    element.style.setProperty("--s", slot);
    if (!cell) {
      element.title = `slot ${slot}: ${KINDS[mark]}`;
      return;
    }
    const [token, order, position, round] = cell, off = position !== order, text = visible(token);
    element.replaceChildren(
      make("span", { class: text.length > 5 ? "text long" : "text", text }),
      make("span", { class: off ? "pos off" : "pos", text: off ? `${position}≠${order}` : position }),
    );
    const parting = data.prompts[this.prompt].length + this.panel.parted[this.prompt];
    if ("kia".includes(mark) && order >= parting) element.classList.add("odd");
    const wrong = off ? `, though ${order} tokens come before it` : "";
    element.title = `slot ${slot}: “${text}”, ${KINDS[mark]}, position ${position}${wrong}, written in round ${round}`;
  }

  /* One line per fed token: filled where it may look, a ring at its own slot; faults have a cross. */
  drawMask(lane) {
    const { queries, keys, start } = lane.score, style = getComputedStyle(this.strip);
    const width = parseFloat(style.getPropertyValue("--w")), height = 11, ratio = window.devicePixelRatio || 1;
    const colour = (name) => style.getPropertyValue(name);
    const lines = queries.map((query, i) => [query, start + i]).filter(([, order]) => order >= 0);
    this.mask.width = keys.length * width * ratio;
    this.mask.height = lines.length * height * ratio;
    this.mask.style.width = `${keys.length * width}px`;
    const pen = this.mask.getContext("2d");
    pen.scale(ratio, ratio);
    let faults = 0;
    lines.forEach(([query, order], line) => keys.forEach((key, slot) => {
      const cell = this.panel.scheme.cells[lane.slots[slot]];
      const own = Boolean(cell) && "kiarc".includes(lane.marks[slot]) && cell[1] <= order;
      const seen = key >= 0 && key <= Math.max(query, 0), x = slot * width + 1, y = line * height + 1;
      pen.fillStyle = seen ? colour(own ? "--input" : "--wrong") : colour("--kept");
      pen.globalAlpha = seen ? 1 : 0.5;
      pen.fillRect(x, y, width - 2, height - 2);
      pen.globalAlpha = 1;
      if (seen !== own) {
        faults += 1;
        pen.fillStyle = seen ? "#fff" : colour("--wrong");
        pen.font = "bold 10px sans-serif";
        pen.fillText(seen ? "×" : "?", x + width / 2 - 4, y + height - 3);
      } else if (own && cell[1] === order) {
        pen.fillStyle = "#fff";
        pen.beginPath();
        pen.arc(x + width / 2 - 1, y + height / 2 - 1, 2.5, 0, 7);
        pen.fill();
      }
    }));
    const fault = faults ? `; ${faults} places are wrong` : "";
    this.mask.setAttribute("aria-label", `Mask: ${lines.length} fed tokens over ${keys.length} slots${fault}`);
  }
}

function where(frame) {
  const what = { read: "reading prompts.", score: "the target's pass.", settle: "after the pass." }[frame.phase];
  return `Round ${frame.round}, ${what}`;
}

function follow(box) {
  if (syncing || !together()) return;
  syncing = true;
  for (const panel of panels) if (panel.box !== box) panel.box.scrollLeft = box.scrollLeft;
  requestAnimationFrame(() => { syncing = false; });
}

function go(to, scroll = true) {
  step = Math.min(Math.max(0, to), steps - 1);
  for (const panel of panels) panel.show();
  const rounds = Math.ceil(steps / 2), half = step % 2 ? "after the pass" : "the target's pass";
  $("slider").value = step;
  $("slider").setAttribute("aria-valuetext", `Round ${Math.floor(step / 2) + 1} of ${rounds}, ${half}`);
  $("where").textContent = `Round ${Math.floor(step / 2) + 1} of ${rounds} · ${half}`;
  $("first").disabled = $("back").disabled = step === 0;
  $("last").disabled = $("next").disabled = step === steps - 1;
  if (scroll) center();
}

/* Scroll to where the most rows end, the rightmost of such places. */
function center() {
  const width = parseFloat(getComputedStyle(panels[0].track).getPropertyValue("--w"));
  const shown = Math.floor(panels[0].box.clientWidth / width);
  for (const group of together() ? [panels] : panels.map((panel) => [panel])) scrollTo(group, width, shown);
}

/* Whether all panels show the same slots: where there is room for few of them, each goes its own way. */
function together() {
  return panels[0].box.clientWidth > 600 || $("small").getAttribute("aria-pressed") === "true";
}

function scrollTo(group, width, shown) {
  const ends = group.flatMap((panel) => panel.ends());
  const near = (end) => ends.filter((other) => other <= end && other > end - shown + 2).length;
  const best = ends.reduce((one, end) => (near(end) > near(one) || (near(end) === near(one) && end > one) ? end : one), 0);
  const left = Math.max(0, (best + 1) * width - group[0].box.clientWidth + 16);
  syncing = true;
  for (const other of group) other.box.scrollLeft = left;
  requestAnimationFrame(() => { syncing = false; });
}

function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => (step < steps - 1 ? go(step + 1) : play(false)), 1600) : null;
  $("play").textContent = on ? "Pause" : "Play";
  for (const panel of panels) panel.caption.setAttribute("aria-live", on ? "off" : "polite");
}

function toggle(button, force) {
  const on = force ?? button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(on));
  $("schemes").classList.toggle("small", $("small").getAttribute("aria-pressed") === "true");
  $("schemes").classList.toggle("beside", $("beside").getAttribute("aria-pressed") === "true");
  layOut();
}

/* All tracks are equally wide so that slots line up; in the overview they are as wide as there is room for. */
function layOut() {
  const slots = Math.max(...panels.map((panel) => panel.slots));
  const small = $("small").getAttribute("aria-pressed") === "true";
  const room = Math.min(...panels.map((panel) => panel.box.clientWidth)) - 18;
  const width = Math.max(4, Math.min(16, Math.floor((10 * room) / slots) / 10));
  if (small) $("schemes").style.setProperty("--w", `${width}px`);
  else $("schemes").style.removeProperty("--w");
  $("schemes").classList.toggle("tiny", small && width < 9);
  for (const panel of panels) {
    panel.track.style.setProperty("--n", slots);
    [...panel.ruler.children].forEach((mark, slot) => { mark.hidden = small && slot % (width < 7 ? 10 : 5) > 0; });
  }
  document.body.classList.add("still");
  go(step);
  requestAnimationFrame(() => document.body.classList.remove("still"));
}

function legend() {
  const items = LEGEND.map(([mark, text]) => {
    const cell = make("div", { class: `cell ${mark}`, "data-sign": SIGNS[mark] });
    if (!"pe".includes(mark)) cell.append(make("span", { class: "text", text: "·tok" }), make("span", { class: "pos", text: 7 }));
    return make("li", {}, make("div", { class: "strip", "aria-hidden": "true" }, cell), make("span", { text }));
  });
  const moved = make("div", { class: "cell k went" }, make("span", { class: "text", text: "·tok" }), make("span", { class: "pos", text: 7 }));
  const off = make("div", { class: "cell k" }, make("span", { class: "text", text: "·tok" }), make("span", { class: "pos off", text: "9≠7" }));
  const odd = make("div", { class: "cell k odd" }, make("span", { class: "text", text: "·tok" }), make("span", { class: "pos", text: 7 }));
  const more = [
    [moved, "Moved: in another slot than one step before."],
    [off, "Fed at position 9 although 7 tokens come before it: the position ids have drifted."],
    [odd, "Part of a text that is no longer the target's own."],
    [make("span", { class: "chip bonus", text: "★" }), "The token that comes after those accepted: the bonus token. It is fed in the next pass."],
    [make("span", { class: "mark", style: "background:var(--input)" }), "Mask: the line's token looks at this slot; a dot is its own slot."],
    [make("span", { class: "mark", style: "background:var(--wrong);color:#fff;text-align:center;line-height:14px", text: "×" }),
      "Mask: it looks at a slot that should be hidden; a question mark: it misses one."],
  ];
  for (const [sample, text] of more) {
    items.push(make("li", {}, make("div", { class: "strip", "aria-hidden": "true" }, sample), make("span", { text })));
  }
  $("legend").replaceChildren(...items);
}

function summary() {
  const last = data.schemes.map((scheme) => scheme.frames[scheme.frames.length - 1]);
  const equal = panels.map((panel) => panel.parted.filter((place) => place === Infinity).length);
  const rows = [
    ["promises the target's own text", (i) => (data.schemes[i].lossless ? "yes" : "no")],
    ["prompts with the target's own text", (i) => (data.reference ? `${equal[i]} of ${data.prompts.length}` : "not asked for")],
    ["tokens generated", (i) => last[i].totals.tokens],
    ["passes of the target", (i) => last[i].round],
    ["tokens per pass", (i) => (last[i].totals.tokens / last[i].round).toFixed(2)],
    ["cached tokens moved to another slot", (i) => last[i].totals.shifted],
    ["cached tokens moved to another row", (i) => last[i].totals.carried],
    ["bytes moved, target's cache", (i) => bytes(last[i].totals.bytes)],
    ["bytes moved, draft model's cache", (i) => bytes(last[i].totals.draft_bytes)],
    ["padding slots, over all passes", (i) => last[i].totals.padding_so_far],
    ["stale slots, over all passes", (i) => last[i].totals.stale_so_far],
    ["empty slots, over all passes", (i) => last[i].totals.empty_so_far],
    ["slots of all rows, over all passes", (i) => last[i].totals.places_so_far],
  ];
  const head = make("tr", {}, make("th", { scope: "col", text: "" }));
  for (const scheme of data.schemes) head.append(make("th", { scope: "col", text: scheme.name }));
  const body = rows.map(([label, value]) => {
    const row = make("tr", {}, make("th", { scope: "row", text: label }));
    data.schemes.forEach((_, i) => row.append(make("td", { text: value(i) })));
    return row;
  });
  $("summary").replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
}

function outputs() {
  const blocks = data.prompts.map((prompt, index) => {
    const block = make("div", { class: "output" }, make("h3", { text: `Prompt ${index}` }));
    panels.forEach((panel) => {
      const tokens = panel.scheme.outputs[index], place = panel.parted[index];
      const good = tokens.slice(0, place), rest = place === Infinity ? [] : tokens.slice(place);
      const said = place === Infinity ? "" : ` parts from the target's own text at token ${place}`;
      const asked = make("span", { class: "asked", text: plain(prompt) });
      block.append(
        make("div", {}, make("b", { text: panel.scheme.name }), said),
        make("pre", {}, asked, plain(good), make("span", { class: "parted", text: plain(rest) })),
      );
    });
    return block;
  });
  $("outputs").replaceChildren(...blocks);
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.id === "slider" && event.key !== "m" && event.key !== "o") return;
  const actions = {
    ArrowRight: () => go(step + 1), ArrowLeft: () => go(step - 1), Home: () => go(0), End: () => go(steps - 1),
    p: () => play(!timer), m: () => toggle($("mask")), o: () => toggle($("small")), s: () => toggle($("beside")),
  };
  const right = { ArrowRight: 120, ArrowLeft: -120 }[event.key];
  const action = event.shiftKey && right ? () => event.target.closest(".box")?.scrollBy(right, 0) : actions[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

const panels = data.schemes.map((scheme) => new Panel(scheme));
for (const [name, value] of Object.entries(data.facts)) {
  $("facts").append(make("div", {}, make("dt", { text: name }), make("dd", { text: value })));
}
$("schemes").append(...panels.map((panel) => panel.element));
$("slider").max = steps - 1;
$("beside").hidden = data.schemes.length < 2;
$("slider").addEventListener("input", () => { play(false); go(Number($("slider").value)); });
$("first").addEventListener("click", () => go(0));
$("back").addEventListener("click", () => go(step - 1));
$("next").addEventListener("click", () => go(step + 1));
$("last").addEventListener("click", () => go(steps - 1));
$("play").addEventListener("click", () => play(!timer));
for (const name of ["mask", "small", "beside"]) $(name).addEventListener("click", () => toggle($(name)));
document.addEventListener("keydown", keys);
window.addEventListener("resize", () => layOut());
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => layOut());
const asked = new URLSearchParams(location.hash.slice(1));
step = Number(asked.get("step")) || 0;
for (const name of ["mask", "small", "beside"]) if (asked.has(name)) toggle($(name), true);
legend();
summary();
outputs();
layOut();
