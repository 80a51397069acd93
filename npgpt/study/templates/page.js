"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/* Colours: mixed from those of the style sheet, so that they follow the theme. */

const probe = document.body.appendChild(make("span"));
probe.hidden = true;

function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
}

function mix(from, to, amount) {
  return from.map((value, i) => Math.round(value + (to[i] - value) * amount));
}

function css(rgb) {
  return `rgb(${rgb.join(" ")})`;
}

/* A heat map on a canvas. What it shows is {rows, columns, group, block, value(r, c), label(r, c), largest, signed}: a
   gap stands after each `group` rows and each `block` columns; value is a number, a string for what is not finite, or
   null for nothing. */
class Heat {
  constructor(figure, height) {
    this.canvas = figure.querySelector("canvas");
    this.output = figure.querySelector("output");
    this.height = height;
    this.cell = null;
    this.canvas.addEventListener("pointermove", (event) => this.point(this.at(event)));
    this.canvas.addEventListener("pointerdown", (event) => this.point(this.at(event)));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("blur", () => this.point(null));
    this.canvas.addEventListener("keydown", (event) => {
      const move = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
      if (!move || !this.shown) return;
      event.preventDefault();
      event.stopPropagation();
      const [r, c] = this.cell ?? [0, -move[1]];
      this.point([Math.min(Math.max(r + move[0], 0), this.shown.rows - 1),
                  Math.min(Math.max(c + move[1], 0), this.shown.columns - 1)]);
    });
  }

  show(shown) {
    this.shown = shown;
    this.cell = null;
    this.output.textContent = "\u00a0";
    this.draw();
  }

  /* Where the row or column i begins. */
  place(i, group) {
    return i * this.size + (group ? Math.floor(i / group) * 4 : 0);
  }

  draw() {
    if (!this.shown) return;
    const {rows, columns, group, block, value, largest, signed} = this.shown;
    const width = this.canvas.parentElement.clientWidth || 280;
    this.size = Math.max(3, Math.min(26, Math.floor(width / columns), Math.floor(this.height / rows)));
    const across = this.place(columns - 1, block) + this.size, down = this.place(rows - 1, group) + this.size;
    const scale = devicePixelRatio || 1;
    this.canvas.width = across * scale;
    this.canvas.height = down * scale;
    this.canvas.style.width = `${across}px`;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const [zero, plus, minus] = [colour("zero"), colour(signed ? "positive" : "amount"), colour("negative")];
    const space = this.size > 5 ? 1 : 0;
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++) {
        const v = value(r, c);
        if (v === null) continue;
        const part = typeof v === "string" ? (v === "-inf" ? -1 : 1) : largest ? v / largest : 0;
        context.fillStyle = css(mix(zero, part < 0 ? minus : plus, Math.abs(part)));
        context.fillRect(this.place(c, block), this.place(r, group), this.size - space, this.size - space);
      }
    }
    if (this.cell) {
      context.strokeStyle = css(colour("ink"));
      context.lineWidth = 2;
      const [r, c] = this.cell;
      context.strokeRect(this.place(c, block), this.place(r, group), this.size - space, this.size - space);
    }
  }

  at(event) {
    if (!this.shown) return null;
    const {rows, columns, group, block} = this.shown, box = this.canvas.getBoundingClientRect();
    const scale = box.width / parseFloat(this.canvas.style.width);
    const find = (at, n, gap) => {
      for (let i = n - 1; i >= 0; i--) if (at >= this.place(i, gap)) return i;
      return 0;
    };
    return [find((event.clientY - box.top) / scale, rows, group), find((event.clientX - box.left) / scale, columns, block)];
  }

  point(cell) {
    if (!this.shown) return;
    this.cell = cell;
    const v = cell && this.shown.value(...cell);
    this.output.textContent = cell && v !== null ? this.shown.label(...cell) : "\u00a0";
    this.draw();
  }
}

/* An array of any number of axes: the last one is the columns, those before it are counted through, and of four the
   first stands side by side. */
function arrayHeat(name, array) {
  const shape = array.shape, wide = shape.length === 4 ? shape[0] : 1, last = shape.at(-1) ?? 1;
  const rows = array.values.length / last / wide;
  const at = (r, c) => Math.floor(c / last) * rows * last + r * last + c % last;
  const index = (i) => {
    const found = [];
    for (const length of shape.toReversed()) {
      found.unshift(i % length);
      i = Math.floor(i / length);
    }
    return found.join(", ");
  };
  return {
    rows, columns: wide * last, group: shape.length > 2 ? shape.at(-2) : 0, block: wide > 1 ? last : 0, signed: true,
    largest: Math.max(...array.values.filter((v) => typeof v === "number").map(Math.abs), 0),
    value: (r, c) => array.values[at(r, c)],
    label: (r, c) => `${name}[${index(at(r, c))}] = ${array.values[at(r, c)]}`,
  };
}

/* One layer: two panes of code, a stepper, and a panel about the line that is pointed at. */
class Layer {
  constructor(section) {
    this.section = section;
    this.data = DATA.layers[section.dataset.layer];
    this.units = new Map();
    for (const unit of section.querySelectorAll(".unit.active")) this.units.set(unit.dataset.line, unit);
    this.count = section.querySelector(".count");
    this.where = section.querySelector(".where");
    this.buttons = [...section.querySelectorAll("[data-go]")];
    for (const button of this.buttons) button.addEventListener("click", () => this.go(button.dataset.go));
    for (const pane of section.querySelectorAll(".code")) this.listen(pane);
    this.step(0);
  }

  listen(pane) {
    const units = [...pane.querySelectorAll(".unit.active")];
    if (units.length) units[0].tabIndex = 0;            // one stop of the tab key; the arrows do the rest
    pane.addEventListener("pointerover", (event) => {
      const unit = event.target.closest(".unit.active");
      if (event.pointerType === "mouse" && unit) this.show(unit.dataset.line);
    });
    pane.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") this.show(this.base.line, this.base.step);
    });
    pane.addEventListener("click", (event) => {
      const unit = event.target.closest(".unit.active");
      if (unit) this.stay(unit.dataset.line);
    });
    pane.addEventListener("focusin", (event) => {
      const unit = event.target.closest(".unit.active");
      if (!unit) return;
      for (const each of units) each.tabIndex = each === unit ? 0 : -1;
      this.show(unit.dataset.line);
    });
    pane.addEventListener("focusout", (event) => {
      if (!pane.contains(event.relatedTarget)) this.show(this.base.line, this.base.step);
    });
    pane.addEventListener("keydown", (event) => {
      const at = units.indexOf(event.target.closest(".unit.active"));
      const to = {ArrowUp: at - 1, ArrowDown: at + 1}[event.key];
      if (at < 0) return;
      if (event.key === "Enter" || event.key === " ") this.stay(units[at].dataset.line);
      else if (to !== undefined) units[to]?.focus();
      else return;
      event.preventDefault();
    });
  }

  /* Make a line the one that is shown while nothing is pointed at, and the stepper's place if it is a step. */
  stay(line) {
    const step = this.data.steps.findIndex((each) => each.line === line);
    if (step >= 0) this.step(step);
    else {
      this.base = {line};
      this.show(line);
    }
  }

  go(where) {
    const last = this.data.steps.length - 1;
    this.step({first: 0, previous: this.at - 1, next: this.at + 1, last}[where]);
  }

  step(i) {
    const steps = this.data.steps;
    if (i < 0 || i >= steps.length) return;
    this.at = i;
    this.base = {line: steps[i].line, step: i};
    for (const [line, unit] of this.units) {
      unit.classList.toggle("now", line === steps[i].line);
      if (line === steps[i].line) unit.setAttribute("aria-current", "step");
      else unit.removeAttribute("aria-current");
    }
    this.count.textContent = `step ${i + 1} of ${steps.length}`;
    for (const button of this.buttons) {
      const back = ["first", "previous"].includes(button.dataset.go);
      button.disabled = back ? i === 0 : i === steps.length - 1;
    }
    this.show(steps[i].line, i);
  }

  /* The steps of a line: several, if it stands in a loop. */
  executions(line) {
    return this.data.steps.map((each, i) => i).filter((i) => this.data.steps[i].line === line);
  }

  /* The line that belongs to a variable of a step, and the step that made its array there: that of the same turn of a
     loop, else the last. */
  partner(step, entry) {
    const [line, turn] = this.data.steps[step]?.partners[entry.name] ?? [entry.partner, -1];
    const steps = this.executions(line).filter((i) => this.array(i, entry.other));
    return {line, step: turn < 0 ? steps.at(-1) : this.executions(line)[turn]};
  }

  array(step, name) {
    const found = this.data.steps[step]?.arrays.find((each) => each[0] === name);
    return found && this.data.arrays[found[1]];
  }

  show(line, step, name) {
    this.shown = [line, step, name];
    const entries = this.data.lines[line] ?? [];
    step ??= this.executions(line)[0];
    const entry = entries.find((each) => each.name === name)
      ?? entries.find((each) => this.array(step, each.name)) ?? entries[0];
    const partners = new Set(entries.map((each) => this.partner(step, each).line).filter(Boolean));
    for (const [key, unit] of this.units) {
      unit.classList.toggle("here", key === line);
      unit.classList.toggle("lit", partners.has(key) && key !== line);
    }
    if (!entry) return;
    const side = line[0] === "f" ? "forward" : "backward";
    this.where.textContent = `· ${side}, line ${line.slice(1)}`;
    const choose = (chosen) => this.show(line, step, chosen);
    this.fill(".here", entry.name, this.array(step, entry.name), side, entries, choose);
    const partner = this.partner(step, entry), array = this.array(partner.step, entry.other);
    this.fill(".there", array ? entry.other : "", array, side === "forward" ? "backward" : "forward", [], choose);
    this.explain(entry);
  }

  fill(selector, name, array, side, entries, choose) {
    const card = this.section.querySelector(`.card${selector}`);
    card.replaceChildren();
    if (!name) return;
    if (entries.length > 6) {
      const select = card.appendChild(make("select"));
      select.setAttribute("aria-label", "Variable");
      for (const each of entries) select.add(new Option(each.name, each.name, false, each.name === name));
      select.addEventListener("change", () => {
        choose(select.value);
        card.querySelector("select").focus();
      });
    } else if (entries.length > 1) {
      const tabs = card.appendChild(make("div", "tabs"));
      for (const each of entries) {
        const tab = tabs.appendChild(make("button", "", each.name));
        tab.type = "button";
        tab.setAttribute("aria-pressed", each.name === name);
        tab.addEventListener("click", () => choose(each.name));
      }
    }
    card.append(make("h4", side, name));
    if (!array) {
      card.append(make("p", "facts", "Its values stand elsewhere: it is filled, or used, part by part."));
      return;
    }
    const shape = array.shape.length ? array.shape.join(" × ") : "one number";
    card.append(make("p", "facts", `${shape} · ${array.low} to ${array.high} · norm ${array.norm}`));
    const figure = card.appendChild(make("figure", "heat"));
    const canvas = figure.appendChild(make("canvas"));
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Values of ${name}; the arrow keys read them`);
    figure.append(make("output", "", "\u00a0"));
    new Heat(figure, innerWidth < 960 ? 96 : 150).show(arrayHeat(name, array));
    const most = Math.max(...array.counts, 1);
    const histogram = card.appendChild(make("div", "histogram"));
    histogram.setAttribute("aria-hidden", "true");
    for (const count of array.counts) histogram.appendChild(make("i")).style.height = `${100 * count / most}%`;
    const edges = card.appendChild(make("div", "edges"));
    for (const edge of array.edges) edges.append(make("span", "", String(edge)));
  }

  explain(entry) {
    const why = this.section.querySelector(".why");
    const certificate = make("p", `certificate ${entry.verdict === "WRONG" ? "WRONG" : entry.verdict ? "" : "none"}`,
      entry.certificate ?? `${entry.name} is not the gradient of a variable: this line stands on the way to one.`);
    why.replaceChildren(certificate);
    why.scrollTop = 0;
    const section = entry.section && this.section.querySelector(`.derivation [data-variable="${entry.section}"]`);
    if (section) why.append(...section.cloneNode(true).childNodes);
  }
}

const layers = [...document.querySelectorAll(".layer")].map((section) => new Layer(section));

/* The arrow keys belong to the layer that has the focus, else to the one that fills most of the window. */
function currentLayer() {
  const focused = layers.find((layer) => layer.section.contains(document.activeElement));
  if (focused) return focused;
  const visible = (layer) => {
    const box = layer.section.getBoundingClientRect();
    return Math.min(box.bottom, innerHeight) - Math.max(box.top, 0);
  };
  const best = layers.reduce((a, b) => (visible(b) > visible(a) ? b : a));
  return visible(best) > innerHeight / 3 ? best : null;
}

document.addEventListener("keydown", (event) => {
  const where = {ArrowLeft: "previous", ArrowRight: "next"}[event.key];
  if (!where || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const layer = currentLayer();
  if (!layer) return;
  event.preventDefault();
  layer.go(where);
});

/* The whole model */

const MODEL = DATA.model;
const tokens = [...document.querySelectorAll(".token")];
const largestPull = Math.max(...MODEL.pulls.flat(), 0);
let chosenToken = MODEL.pulls.length;         // the last one of which there is something to show

function shade(value, largest) {
  return largest ? Math.sqrt(value / largest) : 0;
}

function showToken(i) {
  const row = MODEL.pulls[i - 1] ?? [], largest = Math.max(...row, 0);
  const [zero, amount, ink, paper] = ["zero", "amount", "ink", "paper"].map(colour);
  tokens.forEach((token, j) => {
    token.classList.toggle("here", j === i);
    const part = j in row ? shade(row[j], largest) : null;
    token.style.background = part === null ? "" : css(mix(zero, amount, part));
    token.style.color = part === null ? "" : css(part > 0.55 ? paper : ink);
    token.querySelector(".loss").style.color = part === null ? "" : "inherit";
  });
  const readout = document.getElementById("model-readout");
  if (i === 0) readout.textContent = "The first token is only read: nothing predicts it.";
  else {
    const loss = MODEL.losses[i - 1], most = row.indexOf(largest);
    readout.textContent = `“${MODEL.tokens[i]}”: loss ${loss}, probability ${(100 * Math.exp(-loss)).toPrecision(2)} %`
      + (row.length ? `; it pulls most at “${MODEL.tokens[most]}”, position ${most}, gradient norm ${largest}` : "");
  }
}

tokens.forEach((token, i) => {
  token.addEventListener("pointerover", (event) => event.pointerType === "mouse" && showToken(i));
  token.addEventListener("focus", () => showToken(i));
  token.addEventListener("click", () => showToken(chosenToken = i));
});
document.getElementById("model-tokens").addEventListener("pointerleave", () => showToken(chosenToken));

const quoted = (i) => `“${MODEL.tokens[i]}” (${i})`;
const T = MODEL.tokens.length - 1;
const pulls = new Heat(document.getElementById("model-pulls"), 440);
const attention = new Heat(document.getElementById("model-attention"), 440);

function showPulls() {
  pulls.show({
    rows: MODEL.pulls.length, columns: Math.max(...MODEL.pulls.map((row) => row.length)), signed: false,
    largest: 1, value: (r, c) => r < MODEL.pulls.length && c in MODEL.pulls[r] ? shade(MODEL.pulls[r][c], largestPull) : null,
    label: (r, c) => `loss of ${quoted(r + 1)} on ${quoted(c)}: ${MODEL.pulls[r][c]}`,
  });
}

const maps = MODEL.maps.map(([layer, head, text]) =>
  ({layer, head, weights: Uint8Array.from(atob(text), (char) => char.charCodeAt(0))}));

function showHead(i) {
  const {layer, head, weights} = maps[i];
  document.querySelector("#model-attention figcaption").textContent = `Block ${layer}, head ${head}`;
  attention.show({
    rows: T, columns: T, signed: false, largest: 1, value: (r, c) => shade(weights[r * T + c], 255),
    label: (r, c) => `${quoted(r)} looks at ${quoted(c)}: ${(weights[r * T + c] / 255).toFixed(2)}`,
  });
  document.querySelectorAll("#model-heads button").forEach((button, j) => button.setAttribute("aria-pressed", i === j));
}

function drawThumbnails() {
  const [zero, amount] = [colour("zero"), colour("amount")];
  document.querySelectorAll("#model-heads canvas").forEach((canvas, i) => {
    const context = canvas.getContext("2d"), image = context.createImageData(T, T);
    maps[i].weights.forEach((weight, j) => image.data.set([...mix(zero, amount, shade(weight, 255)), 255], 4 * j));
    context.putImageData(image, 0, 0);
  });
}

let headsRow = null;
maps.forEach(({layer, head}, i) => {
  if (head === 0) {
    headsRow = document.getElementById("model-heads").appendChild(make("div", "layer-row"));
    headsRow.append(make("span", "", `block ${layer}`));
  }
  const button = headsRow.appendChild(make("button"));
  button.type = "button";
  button.setAttribute("aria-label", `Block ${layer}, head ${head}`);
  const canvas = button.appendChild(make("canvas"));
  canvas.width = canvas.height = T;
  button.addEventListener("click", () => showHead(i));
});

showToken(chosenToken);
showPulls();
showHead(0);
drawThumbnails();

/* Theme, window, paper */

function redraw() {
  for (const layer of layers) layer.show(...layer.shown);
  for (const heat of [pulls, attention]) heat.draw();
  drawThumbnails();
  showToken(chosenToken);
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
document.getElementById("theme").addEventListener("click", () => {
  const now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  redraw();
});
dark.addEventListener("change", redraw);
let width = innerWidth;
addEventListener("resize", () => {
  if (width !== innerWidth) redraw();       // the height of a phone's window changes while it scrolls
  width = innerWidth;
});
addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details")) each.open = true;
});
