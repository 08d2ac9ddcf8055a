let timer = null, syncing = false;

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

/* Scroll to where the most rows end, the rightmost of such places; the first step begins at slot 0. */
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
  const left = step === 0 ? 0 : Math.max(0, (best + 1) * width - group[0].box.clientWidth + 16);
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
