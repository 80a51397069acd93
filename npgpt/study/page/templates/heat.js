"use strict";

const DATA = JSON.parse(document.querySelector("script#data").textContent);

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function makeButton(className, text, action) {
  const button = make("button", className, text);
  button.type = "button";
  button.addEventListener("click", action);
  return button;
}

/* Make elements of a container one tab stop, which the arrow keys move; once more if they are new. */
function oneTabStop(container, selector) {
  const all = () => [...container.querySelectorAll(selector)];
  const stopAt = (one) => all().forEach((each) => each.tabIndex = each === one ? 0 : -1);
  stopAt(all()[0]);
  if (container.hasOneTabStop) return;
  container.hasOneTabStop = true;
  container.addEventListener("focusin", ({target}) => target.matches(selector) && stopAt(target));
  container.addEventListener("keydown", (event) => {
    const step = {ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1}[event.key], at = all().indexOf(event.target);
    if (!step || at < 0) return;
    event.preventDefault();
    all()[at + step]?.focus();
  });
}

/* Let the keyboard scroll what is too wide. */
function letScroll(element) {
  for (const part of element.querySelectorAll("math[display=block], .scroll")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
  }
}

const LEAST = 26, MOST = 46;       // the width of a cell with a number, in pixels
const WIDE = 240;                  // of a matrix whose cells could be wider
const NUMBERED = 20;               // rows and columns of a matrix with numbers

const brief = (number) => typeof number === "number" ? String(Number(number.toPrecision(3))) : number;
const largestOf = (values) => Math.max(...values.filter(Number.isFinite).map(Math.abs), 0);

/* A matrix of an array as a heat map in a figure: of its last two axes, exchanged if `isFlipped`, at
   the index `lead` of those before them. A value that is not finite is a string. label: what is unique
   of it, by default its name; most: the value of the strongest colour, by default the array's largest;
   labels: of the rows. A number is chosen with a click or the arrow keys: onPick([row, column]). */
class Heat {
  constructor(figure, name, array, {label = name, most, lead = [], isFlipped = false, labels = []} = {}) {
    Object.assign(this, {figure, name, most, lead, isFlipped, labels});
    this.cells = figure.appendChild(make("div", "cells"));
    this.cells.tabIndex = 0;
    this.cells.setAttribute("role", "img");
    this.cells.setAttribute("aria-label", `Values of ${label}; read them with the arrow keys`);
    this.output = figure.appendChild(make("output"));
    this.show(array);
    this.listen();
  }

  show({shape, values}) {
    const isNew = String(shape) !== String(this.shape), rows = shape.at(-2) ?? 1, columns = shape.at(-1) ?? 1;
    Object.assign(this, {shape, values, isWhole: values.every(Number.isInteger)});
    [this.rows, this.columns] = this.isFlipped ? [columns, rows] : [rows, columns];
    this.largest = this.most || largestOf(values) || 1;
    this.power = !this.isWhole && values.length > 1 && (this.largest < 0.1 || this.largest >= 1000) ? Math.floor(Math.log10(this.largest)) : 0;
    if (isNew) this.draw();
    for (const cell of this.all) {
      const size = numberOf(this.value(cell.place)) / this.largest;
      cell.classList.toggle("negative", size < 0);
      cell.style.setProperty("--part", this.all.length > 1 && Math.min(1, Math.abs(size)) || 0);    // one has no scale
    }
    this.point(isNew ? null : this.at);
  }

  draw() {
    this.figure.style.setProperty("--columns", this.columns);
    this.all = Array.from({length: this.rows * this.columns}, (_, n) =>
      Object.assign(make("i"), {place: [Math.floor(n / this.columns), n % this.columns]}));
    this.cells.replaceChildren(...this.all);
    this.labels.forEach((text, r) => this.cells.insertBefore(make("b", "", text), this.all[r * this.columns]));
    this.cells.classList.toggle("labelled", this.labels.length > 0);
  }

  listen() {
    const {cells} = this;
    cells.addEventListener("pointermove", ({target}) => target.place && this.point(target.place));
    for (const event of ["pointerleave", "focus", "blur"]) cells.addEventListener(event, () => this.point(null));
    cells.addEventListener("click", ({target}) => target.place && this.pick(target.place));
    cells.addEventListener("keydown", (event) => {
      const move = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
      if (!move) return;
      event.preventDefault();
      const [r, c] = this.at ?? move.map((each) => -each), to = [r + move[0], c + move[1]];
      if (this.all.some(({place}) => String(place) === String(to))) this.pick(to);
    });
  }

  pick(place) {
    this.point(place);
    this.onPick?.(place);
  }

  /* Read out a number, or none. */
  point(place) {
    this.at = place;
    for (const cell of this.all) cell.classList.toggle("at", String(cell.place) === String(place));
    this.output.textContent = place ? `${entryName(this.name, this.index(place))} = ${this.value(place)}`
      : this.power ? `numbers × 10^${this.power}` : "\u00a0";
  }

  /* Choose the size of the cells, and write the numbers if there is room for them. */
  fit(wide = Math.floor(Math.min(MOST, this.figure.clientWidth / this.columns)), rows = this.rows) {
    if (!wide) return;
    const fits = wide >= LEAST && this.rows <= NUMBERED && this.columns <= NUMBERED;
    this.cells.classList.toggle("numbers", fits);
    this.cells.style.setProperty("--wide", `${wide}px`);
    this.cells.style.setProperty("--tall", `${fits ? Math.max(17, Math.min(24, 260 / rows)) : Math.min(16, wide)}px`);
    for (const cell of this.all) cell.textContent = fits ? this.number(this.value(cell.place), wide > 36) : "";
  }

  number(value, roomy) {
    if (typeof value !== "number" || this.isWhole) return String(value);
    if (this.all.length === 1) return rounded(value);
    const scaled = value / 10 ** this.power, size = Math.abs(scaled);
    if (size < 0.005) return "0";
    const text = scaled.toFixed(size < 0.995 ? 2 : size < 9.95 ? 1 + roomy : roomy ? 1 : 0);
    return roomy ? text : text.replace(/^(-?)0\./, "$1.");
  }

  /* The index in the array, and the place among its values, of what is shown at [row, column]. */
  index([r, c]) {
    return [...this.lead, ...this.isFlipped ? [c, r] : [r, c]].slice(this.lead.length + 2 - this.shape.length);
  }

  entry(place) {
    return flatIndex(this.index(place), this.shape);
  }

  value(place) {
    return this.values[this.entry(place)];
  }

  largestPlace() {
    const size = ({place}) => Math.abs(numberOf(this.value(place))) || 0;
    return this.all.reduce((best, each) => size(each) > size(best) ? each : best).place;
  }

  /* Give a class to exactly the cells of entries that fulfil a condition. */
  mark(className, condition) {
    for (const cell of this.all) cell.classList.toggle(className, Boolean(condition(this.entry(cell.place))));
  }
}

/* Give the matrices of an equation cells of one size: with numbers, if the equation is then not
   higher than most of the screen. */
function fitTogether(heats, equation) {
  const width = equation.parentElement.clientWidth, columns = heats.map((heat) => heat.columns);
  const rows = Math.max(...heats.map((heat) => heat.rows)), widest = Math.max(...columns);
  const fit = (most) => heats.forEach((heat) => heat.fit(Math.floor(Math.min(MOST, most, width / widest)), rows));
  fit(Math.max(LEAST, Math.min(WIDE, width / 2) / widest));
  if (equation.clientHeight > 0.7 * innerHeight) {
    fit(Math.max(7, (width - 30 * heats.length) / columns.reduce((sum, each) => sum + each, 0)));
  }
}

const flatIndex = (index, shape) => index.reduce((flat, i, axis) => flat * shape[axis] + i, 0);

/* The index in a shape of the entry number `flat`. */
function indexOf(flat, shape) {
  return shape.reduceRight(([rest, found], length) => [Math.floor(rest / length), [rest % length, ...found]], [flat, []])[1];
}

/* Which matrix of an array is shown if matrix number `slice` is shown of an array with the axes `leads` before its last
   two: as in broadcasting. */
function leadingIndex(shape, leads, slice) {
  const lead = shape.slice(0, -2), at = indexOf(slice, leads).slice(leads.length - lead.length);
  return lead.map((length, i) => Math.min(length - 1, at[i] ?? 0));
}
