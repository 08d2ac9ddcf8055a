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
  const head = make("tr", {}, make("th", { scope: "col", text: "number" }));
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
    const alike = new Map();
    for (const panel of panels) {
      const text = panel.scheme.outputs[index].join();
      alike.set(text, [...(alike.get(text) ?? []), panel]);
    }
    alike.forEach((group) => {
      const [panel] = group, tokens = panel.scheme.outputs[index], place = panel.parted[index];
      const good = tokens.slice(0, place), rest = place === Infinity ? [] : tokens.slice(place);
      const own = data.reference ? ": the target's own text" : "";
      const said = place === Infinity ? own : `: parts from the target's own text at token ${place}`;
      const asked = make("span", { class: "asked", text: plain(prompt) });
      block.append(
        make("div", {}, make("b", { text: group.map((one) => one.scheme.name).join(", ") }), said),
        make("pre", {}, asked, plain(good), make("span", { class: "parted", text: plain(rest) })),
      );
    });
    return block;
  });
  $("outputs").replaceChildren(...blocks);
}
