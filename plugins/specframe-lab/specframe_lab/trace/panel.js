class Panel {
  constructor(scheme) {
    this.scheme = scheme;
    this.parted = partings(scheme);
    const promise = scheme.lossless ? ["yes", "✓ lossless"] : ["no", "≠ not lossless"];
    this.caption = make("p", { class: "caption", "aria-live": "polite" });
    this.counters = make("dl", { class: "counters" });
    this.picture = make("div", { class: "chart" });
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
    this.box.addEventListener("focusin", (event) => this.inspect(event));
    this.box.addEventListener("keydown", (event) => this.walk(event));
    const trees = { class: "trees", tabindex: "0", role: "region", "aria-label": `Trees of ${scheme.name}, scrollable` };
    this.trees = make("pre", trees);
    this.note = make("p", { class: "inspect", text: SELECT });
    this.element = make(
      "section", { class: "scheme", "aria-label": scheme.name },
      make(
        "header", {}, make("h2", { text: scheme.name }), make("span", { class: `badge ${promise[0]}`, text: promise[1] }),
        make("p", { class: "about", text: scheme.about }),
      ),
      this.caption, make("div", { class: "counts" }, this.counters, this.picture), this.box, this.trees, this.note,
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
    this.trees.textContent = (frame.trees || []).join("\n");
    this.trees.hidden = !frame.trees?.length;
    for (const lane of this.lanes) lane.show(frame, this.scheme.frames.slice(0, step + 1));
    const masked = $("mask").getAttribute("aria-pressed") === "true" && frame.phase === "settle";
    this.note.textContent = `${masked ? "A mask belongs to a pass: one step back or on. " : ""}${SELECT}`;
    this.offer();
  }

  count(totals) {
    const parts = FIGURES.map(([name, label, title]) => {
      const value = name === "bytes" ? bytes(totals.bytes) : totals[name];
      const cell = make("div", { title }, make("dt", { text: label }), make("dd", { text: value }));
      if (!totals[name]) cell.className = "none";
      return cell;
    });
    this.counters.replaceChildren(...parts);
    this.picture.replaceChildren(this.chart());
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
    if (!element) return;
    this.looked?.setAttribute("aria-selected", "false");
    this.looked = element;
    element.setAttribute("aria-selected", "true");
    this.note.textContent = element.title;
    this.offer();
  }

  /* The tab key reaches one slot of a panel: the one looked at last, or the first. */
  offer() {
    const cells = [...this.box.querySelectorAll(".strip:not([hidden]) .cell")];
    const own = cells.includes(this.looked) ? this.looked : cells[0];
    for (const cell of cells) cell.tabIndex = cell === own ? 0 : -1;
  }

  /* Arrow keys go from slot to slot and from line to line; Escape gives them back to the steps. */
  walk(event) {
    const cell = event.target.closest(".cell");
    const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Escape: [0, 0] }[event.key];
    if (!cell || !way || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Escape") return this.box.focus();
    const strips = [...this.box.querySelectorAll(".strip:not([hidden])")];
    const strip = strips[strips.indexOf(cell.parentElement) + way[0]];
    const slot = Number(cell.dataset.slot) + way[1];
    const near = (one) => Math.abs(Number(one.dataset.slot) - slot);
    const found = [...(strip?.children ?? [])].reduce((best, one) => (best && near(best) <= near(one) ? best : one), null);
    found?.focus();
  }
}
