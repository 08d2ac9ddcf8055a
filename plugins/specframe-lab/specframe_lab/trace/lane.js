class Lane {
  constructor(panel, prompt) {
    this.panel = panel;
    this.prompt = prompt;
    this.cells = new Map();
    this.head = make("div", { class: "head" });
    this.strip = make("div", { class: "strip", role: "listbox", "aria-orientation": "horizontal" });
    this.mask = make("canvas", { class: "mask", role: "img" });
    this.element = make("div", { class: "lane" }, this.head, this.strip, this.mask);
  }

  show(frame, past) {
    const lane = frame.lanes.find((other) => other.prompt === this.prompt);
    const cached = lane && lane.slots.length > 0;
    this.element.classList.toggle("away", Boolean(lane) && lane.row === null);
    this.strip.hidden = !cached;
    this.head.replaceChildren(...this.heading(frame, cached ? lane : null, past));
    const before = past.length > 1 ? past[past.length - 2] : null;
    this.draw(cached ? lane : { slots: [], marks: "" }, before?.lanes.find((other) => other.prompt === this.prompt));
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
    if (score && score.bonus !== null && lane.row !== null && (lane.score || !score.finish)) {
      const when = lane.score ? "bonus" : "next input";
      const title = lane.score ? "The token that follows those accepted; it has no slot yet" : "Will be fed in the next pass";
      parts.push(make("span", { class: "chip bonus", title, text: `★ ${when} ${visible(score.bonus)}` }));
    }
    if (lane.shift) {
      const text = lane.shift > 0 ? `shifted ${lane.shift} →` : `← shifted ${-lane.shift}`;
      parts.push(make("span", { class: "chip shift", text }));
    }
    if (lane.carried) parts.push(make("span", { class: "chip shift", text: `↕ carried ${lane.carried}` }));
    if (score && score.finish) parts.push(make("span", { class: "chip", text: `■ complete (${score.finish})` }));
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

  draw(lane, before) {
    const held = new Map(before?.slots.map((cell, slot) => [cell, slot]));
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
      if (!element) {
        element = make("div", { role: "option", tabindex: "-1", "aria-selected": "false" });
        element.style.setProperty("--s", slot);
        this.strip.append(element);
        this.cells.set(key, element);
      }
      this.fill(element, lane, slot, held.get(key) ?? slot);
    }
  }

  fill(element, lane, slot, before) {
    const mark = lane.marks[slot], number = lane.slots[slot], cell = this.panel.scheme.cells[number];
    const fresh = element.dataset.slot === undefined ? " fresh" : "";
    element.className = `cell ${mark}${fresh}${before !== slot ? " went" : ""}`;
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
    const { queries, keys, start, sees, own: paths } = lane.score, style = getComputedStyle(this.strip);
    const width = parseFloat(style.getPropertyValue("--w")), height = 11, ratio = window.devicePixelRatio || 1;
    const colour = (name) => style.getPropertyValue(name);
    const lines = queries.map((query, i) => [query, sees ? query : start + i, i]).filter(([, order]) => order >= 0);
    this.mask.width = keys.length * width * ratio;
    this.mask.height = lines.length * height * ratio;
    this.mask.style.width = `${keys.length * width}px`;
    const pen = this.mask.getContext("2d");
    pen.scale(ratio, ratio);
    let faults = 0;
    const nodes = new Set((paths || []).flat());
    lines.forEach(([query, order, fed], line) => keys.forEach((key, slot) => {
      const cell = this.panel.scheme.cells[lane.slots[slot]];
      const on = !nodes.has(slot) || paths[fed].includes(slot);
      const own = Boolean(cell) && "kiarc".includes(lane.marks[slot]) && cell[1] <= order && on;
      const seen = sees ? sees[fed].includes(slot) : key >= 0 && key <= Math.max(query, 0), x = slot * width + 1, y = line * height + 1;
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
