"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);

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

/* Do something once an element is about to come into view. */
function whenSeen(element, action) {
  new IntersectionObserver(([{isIntersecting}], observer) => {
    if (!isIntersecting) return;
    observer.disconnect();
    action();
  }, {rootMargin: "400px"}).observe(element);
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

/* Whether the pointer moved, rather than the page below it. */
const pointer = {};
const hasMoved = ({clientX, clientY}) => clientX !== pointer.x || clientY !== pointer.y;
document.addEventListener("pointermove", ({clientX, clientY}) => Object.assign(pointer, {x: clientX, y: clientY}));

const LEAST = 26, MOST = 46;       // the width of a cell with a number, in pixels

/* A heat map in a figure, read with the pointer or the arrow keys. It shows {rows, columns, axes, part(r, c), label(r, c),
   number(r, c)}: axes: {row, column, rows: [text], columns: [text]}; part is from -1 to 1, null for no cell; number: what
   is written into a cell if it is wide enough, by default nothing.
   onPoint(place) is called with [row, column], or null. */
class Heat {
  constructor(figure, label) {
    this.figure = figure;
    this.cells = figure.appendChild(make("div", "cells"));
    this.cells.tabIndex = 0;
    this.cells.setAttribute("role", "img");
    this.cells.setAttribute("aria-label", `${label}; read them with the arrow keys`);
    this.output = figure.appendChild(make("output", "", "\u00a0"));
    this.cells.addEventListener("pointerover", (event) => event.target.place && hasMoved(event) && this.point(event.target.place));
    for (const event of ["pointerleave", "blur"]) this.cells.addEventListener(event, () => this.point(null));
    this.cells.addEventListener("pointerdown", ({target}) => target.place && this.point(target.place));
    this.cells.addEventListener("keydown", (event) => {
      const move = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
      if (!move) return;
      event.preventDefault();
      const [r, c] = this.at ?? [0, -move[1]], place = [r + move[0], c + move[1]];
      if (this.cell(place)) this.point(place);
    });
  }

  show(content) {
    const {rows, columns, axes, part, number} = this.content = content;
    this.figure.classList.toggle("axes", axes !== undefined);
    this.figure.style = `--rows: ${rows}; --columns: ${columns}`;
    this.cells.replaceChildren();
    const block = this.cells.appendChild(make("div", "block"));
    this.grid = Array.from({length: rows}, (_, r) => Array.from({length: columns}, (_, c) => {
      if (part(r, c) === null) return null;
      const cell = block.appendChild(make("i"));
      cell.style.gridArea = `${r + 1} / ${c + 1}`;
      cell.place = [r, c];
      cell.classList.toggle("negative", part(r, c) < 0);
      cell.style.setProperty("--part", Math.abs(part(r, c)));
      return cell;
    }));
    this.all = this.grid.flat().filter(Boolean);
    if (axes) this.cells.append(this.axis("down", axes.row, axes.rows), this.axis("column", axes.column, axes.columns));
    if (number) new ResizeObserver(() => this.fit()).observe(this.figure);
    this.fit();
    this.point(null);
  }

  /* Write the numbers, if there is room for them. */
  fit() {
    const {columns, number} = this.content, width = this.figure.clientWidth || Math.min(224, Math.max(96, 40 * columns));
    if (!number || !width) return;
    const wide = Math.min(MOST, Math.floor(width / columns)), fits = wide >= LEAST;
    this.cells.classList.toggle("numbers", fits);
    this.cells.style.setProperty("--wide", fits ? `${wide}px` : "");
    for (const each of this.all) each.textContent = fits ? number(...each.place, wide > 36) : "";
  }

  axis(kind, title, texts) {
    const axis = make("div", `axis ${kind}`);
    axis.setAttribute("aria-hidden", "true");
    axis.append(make("strong", "", title), ...texts.map((text) => make("span", "", text)));
    return axis;
  }

  cell(place) {
    return place && this.grid[place[0]]?.[place[1]];
  }

  point(place) {
    this.cell(this.at)?.classList.remove("at");
    this.at = place;
    this.cell(place)?.classList.add("at");
    this.output.textContent = place ? this.content.label(...place) : this.idle ?? "\u00a0";
    this.onPoint?.(place);
  }
}

const brief = (number) => typeof number === "number" ? String(Number(number.toPrecision(3))) : number;
const largestOf = (values) => Math.max(...values.filter(Number.isFinite).map(Math.abs), 0);

/* The heat map of the last two axes of an array, at an `index` of those before them (see `leadingIndex`). A value that is
   not finite is a string. Matrices of up to 8 x 8 have numbers. label: what is unique of it, by default its name; scale:
   the value of the strongest colour, by default the array's largest. */
class ArrayHeat extends Heat {
  constructor(figure, name, array, {label = name, scale, index = []} = {}) {
    super(figure, `Values of ${label}`);
    const {shape} = array, columns = shape.at(-1) ?? 1, rows = shape.length > 1 ? shape.at(-2) : 1;
    Object.assign(this, {name, shape});
    this.start = [...index, ...shape.slice(-2).map(() => 0)].reduce((flat, i, axis) => flat * shape[axis] + i, 0);
    this.values = array.values;
    this.isWhole = this.values.every(Number.isInteger);
    this.largest = scale || largestOf(this.values) || 1;
    this.power = !this.isWhole && (this.largest < 0.1 || this.largest >= 1000) ? Math.floor(Math.log10(this.largest)) : 0;
    this.show({
      rows, columns, part: (r, c) => this.part(this.value(r, c)),
      label: (r, c) => `${name}[${this.index([r, c]).join(", ")}] = ${this.value(r, c)}`,
      number: rows <= 8 && columns <= 8 ? (r, c, roomy) => this.number(this.value(r, c), roomy) : null,
    });
  }

  get idle() {
    return this.power ? `numbers × 10^${this.power}` : "\u00a0";
  }

  part(value) {
    if (typeof value !== "number") return value === "-inf" ? -1 : 1;
    return Math.max(-1, Math.min(1, value / this.largest));
  }

  number(value, roomy) {
    if (typeof value !== "number" || this.isWhole) return String(value);
    const scaled = value / 10 ** this.power, size = Math.abs(scaled);
    if (size < 0.005) return "0";
    const text = scaled.toFixed(size < 0.995 ? 2 : size < 9.95 ? 1 + roomy : roomy ? 1 : 0);
    return roomy ? text : text.replace(/^(-?)0\./, "$1.");
  }

  value(r, c) {
    return this.values[this.start + r * this.content.columns + c];
  }

  index([r, c]) {
    return indexOf(this.start + r * (this.shape.at(-1) ?? 1) + c, this.shape);
  }

  /* Give a class to exactly the cells whose index fulfils a condition. */
  mark(className, condition) {
    for (const cell of this.all) cell.classList.toggle(className, Boolean(condition(this.index(cell.place))));
  }
}

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
