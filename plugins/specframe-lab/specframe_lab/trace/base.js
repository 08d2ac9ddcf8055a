"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const steps = Math.max(...data.schemes.map((scheme) => scheme.frames.length));
const SIGNS = { k: "", i: "●", a: "✓", r: "✗", c: "⊘", s: "✗", p: "", e: "" };
const KINDS = {
  k: "cached", i: "input of this pass", a: "accepted draft token", r: "rejected draft token",
  c: "not rejected, but does not stand", s: "stale", p: "padding", e: "empty",
};
const FIGURES = [
  ["moved", "slots moved", "Cached tokens that changed slot or row, so far"],
  ["bytes", "bytes moved", "Their keys and values in the target's cache, over all layers, so far"],
  ["padding", "padding now", "Padding slots in the rows of the batch"],
  ["stale", "stale now", "Slots of rejected tokens in the rows of the batch"],
  ["empty", "empty now", "Slots past a row's end in the rows of the batch"],
];
const SELECT = "Select a slot to read what it holds: click it, or go to it with Tab and the arrow keys.";
let step = 0;

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

function where(frame) {
  const what = { read: "reading prompts.", score: "the target's pass.", settle: "after the pass." }[frame.phase];
  return `Round ${frame.round}, ${what}`;
}
