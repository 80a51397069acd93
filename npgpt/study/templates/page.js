"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/* A heat map in a figure, read with the pointer or the arrow keys. It shows {rows, columns, group, block, part(r, c),
   label(r, c)}: a gap follows each `group` rows and each `block` columns; part is from -1 to 1, or null for no cell. */
class Heat {
  constructor(figure, label) {
    this.cells = figure.appendChild(make("div", "cells"));
    this.cells.tabIndex = 0;
    this.cells.setAttribute("role", "img");
    this.cells.setAttribute("aria-label", `${label}; the arrow keys read them`);
    this.output = figure.appendChild(make("output", "", "\u00a0"));
    for (const event of ["pointerover", "pointerdown"]) {
      this.cells.addEventListener(event, ({target}) => target.place && this.point(target.place));
    }
    for (const event of ["pointerleave", "blur"]) this.cells.addEventListener(event, () => this.point(null));
    this.cells.addEventListener("keydown", (event) => {
      const move = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      const [r, c] = this.at ?? [0, -move[1]], place = [r + move[0], c + move[1]];
      if (this.cell(place)) this.point(place);
    });
  }

  show({rows, columns, group = rows, block = columns, part, label}) {
    const line = (i, size) => i + Math.floor(i / size) + 1;        // a gap is a track of the grid as well
    const tracks = (count, size) => Array(count / size).fill(`repeat(${size}, var(--size))`).join(" 4px ");
    this.label = label;
    this.cells.style = `--rows: ${rows}; --columns: ${columns}; grid-template: ${tracks(rows, group)} / ${tracks(columns, block)}`;
    this.cells.replaceChildren();
    this.grid = [];
    for (let r = 0; r < rows; r++) {
      this.grid.push([]);
      for (let c = 0; c < columns; c++) {
        const value = part(r, c);
        if (value === null) continue;
        const cell = this.grid[r][c] = this.cells.appendChild(make("i", value < 0 ? "negative" : ""));
        cell.style = `--part: ${Math.abs(value)}; grid-area: ${line(r, group)} / ${line(c, block)}`;
        cell.place = [r, c];
      }
    }
    this.point(null);
  }

  cell(place) {
    return place && this.grid[place[0]]?.[place[1]];
  }

  point(place) {
    this.cell(this.at)?.classList.remove("at");
    this.at = place;
    this.cell(place)?.classList.add("at");
    this.output.textContent = place ? this.label(...place) : "\u00a0";
  }
}

/* An array of any number of axes: the last one is the columns, all others are rows; with four, the first one becomes
   blocks side by side. A value that is not finite is a string. */
function arrayHeat(name, {shape, values}) {
  const wide = shape.length === 4 ? shape[0] : 1, last = shape.at(-1) ?? 1, rows = values.length / last / wide;
  const largest = Math.max(...values.filter(Number.isFinite).map(Math.abs), 0) || 1;
  const at = (r, c) => Math.floor(c / last) * rows * last + r * last + c % last;
  const part = (v) => typeof v === "number" ? v / largest : v === "-inf" ? -1 : 1;
  const index = (i) => shape.reduceRight(([rest, found], length) =>
    [Math.floor(rest / length), [rest % length, ...found]], [i, []])[1].join(", ");
  return {
    rows, columns: wide * last, group: shape.length > 2 ? shape.at(-2) : rows, block: last,
    part: (r, c) => part(values[at(r, c)]), label: (r, c) => `${name}[${index(at(r, c))}] = ${values[at(r, c)]}`,
  };
}

/* One layer: two panes of code, a stepper, and a panel about the line under the pointer. */
class Layer {
  constructor(section) {
    this.section = section;
    this.data = DATA.layers[section.dataset.layer];
    this.units = [...section.querySelectorAll(".unit.active")];
    this.buttons = [...section.querySelectorAll("[data-go]")];
    for (const button of this.buttons) button.addEventListener("click", () => this.go(button.dataset.go));
    for (const pane of section.querySelectorAll(".code")) this.listen(pane);
    this.step(0);
  }

  listen(pane) {
    const units = this.units.filter((unit) => pane.contains(unit));
    const unitOf = (event) => event.target.closest(".unit.active");
    units[0].tabIndex = 0;            // one stop of the tab key; the arrow keys move from there
    pane.addEventListener("pointerover", (event) => {
      if (event.pointerType === "mouse" && unitOf(event)) this.show(unitOf(event).dataset.line);
    });
    pane.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.show(...this.base));
    pane.addEventListener("click", (event) => unitOf(event) && this.stay(unitOf(event).dataset.line));
    pane.addEventListener("focusin", (event) => unitOf(event) && this.show(unitOf(event).dataset.line));
    pane.addEventListener("focusout", (event) => pane.contains(event.relatedTarget) || this.show(...this.base));
    pane.addEventListener("keydown", (event) => {
      const at = units.indexOf(unitOf(event));
      const to = {ArrowUp: at - 1, ArrowDown: at + 1}[event.key];
      if (at < 0) return;
      if (event.key === "Enter" || event.key === " ") this.stay(units[at].dataset.line);
      else if (to !== undefined) units[to]?.focus();
      else return;
      event.preventDefault();
    });
  }

  /* Show a line also while nothing is under the pointer; if it is a step, the stepper goes there. */
  stay(line) {
    const [step] = this.executions(line);
    if (step !== undefined) this.step(step);
    else this.show(...this.base = [line]);
  }

  go(where) {
    const last = this.data.steps.length - 1;
    this.step({first: 0, previous: this.at - 1, next: this.at + 1, last}[where]);
  }

  step(i) {
    const steps = this.data.steps;
    if (i < 0 || i >= steps.length) return;
    this.at = i;
    this.base = [steps[i].line, i];
    for (const unit of this.units) {
      const now = unit.dataset.line === steps[i].line;
      unit.classList.toggle("now", now);
      if (now) unit.setAttribute("aria-current", "step");
      else unit.removeAttribute("aria-current");
    }
    this.section.querySelector(".count").textContent = `step ${i + 1} of ${steps.length}`;
    for (const button of this.buttons) {
      const back = ["first", "previous"].includes(button.dataset.go);
      button.disabled = back ? i === 0 : i === steps.length - 1;
    }
    this.show(...this.base);
  }

  /* The steps of a line: several if it is in a loop. */
  executions(line) {
    return this.data.steps.map((each, i) => i).filter((i) => this.data.steps[i].line === line);
  }

  /* The line that belongs to a variable of a step, and the step that made its array there: that of the same turn of a
     loop, else the last. */
  partner(step, entry) {
    const [line, turn] = this.data.steps[step]?.partners[entry.name] ?? [entry.partner, -1];
    const steps = this.executions(line);
    return [line, turn < 0 ? steps.findLast((i) => this.array(i, entry.other)) : steps[turn]];
  }

  array(step, name) {
    const found = this.data.steps[step]?.arrays.find((each) => each[0] === name);
    return found && this.data.arrays[found[1]];
  }

  show(line, step = this.executions(line)[0], name) {
    const entries = this.data.lines[line];
    const entry = entries.find((each) => each.name === name)
      ?? entries.find((each) => this.array(step, each.name)) ?? entries[0];
    const partners = entries.map((each) => this.partner(step, each)[0]);
    for (const unit of this.units) {
      unit.classList.toggle("here", unit.dataset.line === line);
      unit.classList.toggle("lit", unit.dataset.line !== line && partners.includes(unit.dataset.line));
    }
    const [side, other] = line[0] === "f" ? ["forward", "backward"] : ["backward", "forward"];
    this.section.querySelector(".where").textContent = `· ${side}, line ${line.slice(1)}`;
    const card = this.fill(".here", entry.name, this.array(step, entry.name), side);
    if (entries.length > 1) {
      const tabs = make("div", "tabs");
      card.prepend(tabs);
      for (const each of entries) {
        const tab = tabs.appendChild(make("button", "", each.name));
        tab.type = "button";
        tab.setAttribute("aria-pressed", each === entry);
        tab.addEventListener("click", () => this.show(line, step, each.name));
      }
    }
    const array = this.array(this.partner(step, entry)[1], entry.other);
    this.fill(".there", array ? entry.other : "", array, other);
    this.explain(entry);
  }

  fill(selector, name, array, side) {
    const card = this.section.querySelector(`.card${selector}`);
    card.replaceChildren();
    if (!name) return card;
    card.append(make("h4", side, name));
    if (!array) {
      card.append(make("p", "facts", "This line has no array of its own for it."));
      return card;
    }
    const shape = array.shape.length ? array.shape.join(" × ") : "one number";
    card.append(make("p", "facts", `${shape} · ${array.low} to ${array.high} · norm ${array.norm}`));
    new Heat(card.appendChild(make("figure", "heat")), `Values of ${name}`).show(arrayHeat(name, array));
    const histogram = card.appendChild(make("div", "histogram"));
    histogram.setAttribute("aria-hidden", "true");
    const most = Math.max(...array.counts, 1);
    for (const count of array.counts) histogram.appendChild(make("i")).style.height = `${100 * count / most}%`;
    const edges = card.appendChild(make("div", "edges"));
    for (const edge of array.edges) edges.append(make("span", "", String(edge)));
    return card;
  }

  explain(entry) {
    const why = this.section.querySelector(".why");
    why.replaceChildren(make("p", `finding ${entry.verdict ?? "none"}`,
      entry.finding ?? `${entry.name} is an intermediate result, not the gradient of a variable of the forward.`));
    why.scrollTop = 0;
    const section = entry.section && this.section.querySelector(`.derivation [data-variable="${entry.section}"]`);
    if (section) why.append(...section.cloneNode(true).childNodes);
  }
}

const layers = [...document.querySelectorAll(".layer")].map((section) => new Layer(section));

/* The arrow keys step through the layer that has the focus, else through the one in the middle of the window. */
document.addEventListener("keydown", (event) => {
  const where = {ArrowLeft: "previous", ArrowRight: "next"}[event.key];
  if (!where || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const layer = layers.find(({section}) => section.contains(document.activeElement)) ?? layers.find(({section}) => {
    const box = section.getBoundingClientRect();
    return box.top < innerHeight / 2 && box.bottom > innerHeight / 2;
  });
  if (!layer) return;
  event.preventDefault();
  layer.go(where);
});

/* The whole model */

const MODEL = DATA.model;
const tokens = [...document.querySelectorAll(".token")];
const quoted = (i) => `“${MODEL.tokens[i]}” (${i})`;
const shade = (value, largest) => largest ? Math.sqrt(value / largest) : 0;
let chosenToken = MODEL.pulls.length;         // the last one that has something to show

function showToken(i) {
  const row = MODEL.pulls[i - 1] ?? [], largest = Math.max(...row, 0), most = row.indexOf(largest);
  tokens.forEach((token, j) => {
    token.classList.toggle("here", j === i);
    token.classList.toggle("shaded", j in row);
    token.classList.toggle("dark", j in row && shade(row[j], largest) > 0.55);
    token.style.setProperty("--part", j in row ? shade(row[j], largest) : 0);
  });
  const loss = MODEL.losses[i - 1];
  document.getElementById("model-readout").textContent = i === 0
    ? "The first token is only read: nothing predicts it."
    : `“${MODEL.tokens[i]}”: loss ${loss}, probability ${(100 * Math.exp(-loss)).toPrecision(2)} %`
      + (row.length ? `; largest gradient norm ${largest}, on “${MODEL.tokens[most]}” at position ${most}` : "");
}

tokens.forEach((token, i) => {
  token.addEventListener("pointerover", (event) => event.pointerType === "mouse" && showToken(i));
  token.addEventListener("focus", () => showToken(i));
  token.addEventListener("click", () => showToken(chosenToken = i));
});
document.getElementById("model-tokens").addEventListener("pointerleave", () => showToken(chosenToken));
showToken(chosenToken);

const largestPull = Math.max(...MODEL.pulls.flat(), 0);
new Heat(document.getElementById("model-pulls"), "Gradient norms, a row for each loss, a column for each token").show({
  rows: MODEL.pulls.length, columns: Math.max(...MODEL.pulls.map((row) => row.length)),
  part: (r, c) => c in MODEL.pulls[r] ? shade(MODEL.pulls[r][c], largestPull) : null,
  label: (r, c) => `loss of ${quoted(r + 1)} on ${quoted(c)}: ${MODEL.pulls[r][c]}`,
});

const T = MODEL.tokens.length - 1;
const heads = document.getElementById("model-heads");
const attention = new Heat(document.getElementById("model-attention"), "Attention weights");
const chooseHead = MODEL.maps.map(([layer, head, text]) => {
  const weights = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  if (head === 0) heads.appendChild(make("div", "layer-row")).append(make("span", "", `block ${layer}`));
  const button = heads.lastChild.appendChild(make("button"));
  button.type = "button";
  button.setAttribute("aria-label", `Block ${layer}, head ${head}`);
  const canvas = button.appendChild(make("canvas"));
  canvas.width = canvas.height = T;
  const context = canvas.getContext("2d"), image = context.createImageData(T, T);
  weights.forEach((weight, i) => image.data.set([124, 77, 220, 255 * shade(weight, 255)], 4 * i));
  context.putImageData(image, 0, 0);
  const choose = () => {
    document.getElementById("model-head").textContent = `Block ${layer}, head ${head}`;
    attention.show({
      rows: T, columns: T, part: (r, c) => shade(weights[r * T + c], 255),
      label: (r, c) => `${quoted(r)} looks at ${quoted(c)}: ${(weights[r * T + c] / 255).toFixed(2)}`,
    });
    for (const each of heads.querySelectorAll("button")) each.setAttribute("aria-pressed", each === button);
  };
  button.addEventListener("click", choose);
  return choose;
});
chooseHead[0]();

/* Theme, paper */

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const now = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});
addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details")) each.open = true;
});
