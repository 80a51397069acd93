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

/* Whether the pointer moved, rather than the page below it. */
const pointer = {};
const hasMoved = ({clientX, clientY}) => clientX !== pointer.x || clientY !== pointer.y;
document.addEventListener("pointermove", ({clientX, clientY}) => Object.assign(pointer, {x: clientX, y: clientY}));

const LEAST = 26, MOST = 46;       // the width of a cell with a number, in pixels

/* A heat map in a figure, read with the pointer or the arrow keys: `blocks` of rows and columns side by side, which wrap.
   It shows {rows, columns, blocks, group, axes, part(r, c), label(r, c), number(r, c)}: columns count on from block to
   block; a gap follows each `group` rows; axes: {row, column, rows: [text], columns: [text]}; part is from -1 to 1, null
   for no cell; number: what is written into a cell if it is wide enough, by default nothing.
   onPoint(place) is called with [row, column], or null; onPress(place, event) when a cell is pressed or entered. */
class Heat {
  constructor(figure, label) {
    this.figure = figure;
    this.onPoint = () => {};
    this.onPress = () => {};
    this.cells = figure.appendChild(make("div", "cells"));
    this.cells.tabIndex = 0;
    this.cells.setAttribute("role", "img");
    this.cells.setAttribute("aria-label", `${label}; read them with the arrow keys`);
    this.output = figure.appendChild(make("output", "", "\u00a0"));
    this.cells.addEventListener("pointerover", (event) => event.target.place && hasMoved(event) && this.point(event.target.place));
    for (const event of ["pointerleave", "blur"]) this.cells.addEventListener(event, () => this.point(null));
    this.cells.addEventListener("pointerdown", (event) => {
      if (!event.target.place) return;
      this.point(event.target.place);
      this.onPress(event.target.place, event);
    });
    this.cells.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.at) this.onPress(this.at, event);
      const move = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      const [r, c] = this.at ?? [0, -move[1]], place = [r + move[0], c + move[1]];
      if (this.cell(place)) this.point(place);
    });
  }

  show(content) {
    const {rows, columns, blocks = 1, group = rows, axes, part} = this.content = {blocks: 1, ...content};
    this.figure.classList.toggle("axes", axes !== undefined);
    this.cells.style = `--rows: ${rows}; --columns: ${columns}; --blocks: ${blocks}; --half: ${Math.ceil(blocks / 2)}`;
    this.cells.replaceChildren();
    this.grid = Array.from({length: rows}, () => []);
    const groups = Array(rows / group).fill(`repeat(${group}, var(--tall))`).join(" 4px ");   // a gap is a track as well
    for (let b = 0; b < blocks; b++) {
      const block = this.cells.appendChild(make("div", "block"));
      block.style.gridTemplateRows = groups;
      for (let r = 0; r < rows; r++) {
        for (let c = b * columns; c < (b + 1) * columns; c++) {
          if (part(r, c) === null) continue;
          const cell = this.grid[r][c] = block.appendChild(make("i"));
          cell.style.gridArea = `${r + Math.floor(r / group) + 1} / ${c % columns + 1}`;
          cell.place = [r, c];
        }
      }
    }
    if (axes) this.cells.append(this.axis("row", axes.row, axes.rows), this.axis("column", axes.column, axes.columns));
    if (content.number) new ResizeObserver(() => this.fit()).observe(this.figure);
    this.paint();
    this.fit();
    this.point(null);
  }

  /* Colour the cells. */
  paint() {
    for (const cell of this.grid.flat()) {
      const value = this.content.part(...cell.place);
      cell.classList.toggle("negative", value < 0);
      cell.style.setProperty("--part", Math.abs(value));
    }
  }

  /* Write the numbers, with as many blocks side by side as leave room for them; none if a single block does not fit. */
  fit() {
    const {columns, blocks, number} = this.content, width = this.figure.clientWidth;
    if (!number || !width) return;
    const wide = (across) => Math.min(MOST, Math.floor((width - 5 * (across - 1)) / (across * columns)));
    let lines = 1;
    while (lines < blocks && wide(Math.ceil(blocks / lines)) < LEAST) lines++;
    const across = Math.ceil(blocks / lines), cell = wide(across);
    if (cell < LEAST) lines = 0;
    this.cells.classList.toggle("numbers", lines > 0);
    this.cells.style.setProperty("--wide", lines ? `${cell}px` : "");
    this.cells.style.setProperty("--widest", `${across * columns * cell + 5 * (across - 1) + 1}px`);
    for (const each of this.grid.flat()) each.textContent = lines ? number(...each.place, cell > 36) : "";
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
    this.rest();
    this.onPoint(place);
  }

  /* Show the label of the selected cell, or the figure's own text. */
  rest() {
    this.output.textContent = this.at ? this.content.label(...this.at) : this.idle ?? "\u00a0";
  }
}

const largestOf = (values) => Math.max(...values.filter(Number.isFinite).map(Math.abs), 0);

/* The heat map of an array of any number of axes: the last one is the columns, those before it are the rows; with three
   or more, the first one becomes blocks. A value that is not finite is a string. Matrices of up to 8 x 8 have numbers.
   scale: the value of the strongest colour, by default the array's largest. */
class ArrayHeat extends Heat {
  constructor(card, name, array, scale) {
    super(card.appendChild(make("figure", "heat")), `Values of ${name}`);
    const {shape} = array;
    this.name = name;
    this.shape = shape;
    this.columns = shape.at(-1) ?? 1;
    this.scale = scale;
    const blocks = shape.length > 2 ? shape[0] : 1, rows = this.rows = array.values.length / this.columns / blocks;
    const group = shape.length > 3 ? shape.at(-2) : rows;
    this.take(array);
    this.show({
      rows, columns: this.columns, blocks, group,
      part: (r, c) => this.part(this.values[this.flat(r, c)]),
      label: (r, c) => `${name}[${this.index([r, c]).join(", ")}] = ${this.values[this.flat(r, c)]}`,
      number: group <= 8 && this.columns <= 8 ? (r, c, roomy) => this.number(this.values[this.flat(r, c)], roomy) : null,
    });
  }

  get idle() {
    return [this.power ? `numbers × 10^${this.power}` : "", this.invite].filter(Boolean).join("; ") || "\u00a0";
  }

  /* Take the values of another array of the same shape. */
  take({values}) {
    this.values = values;
    this.largest = this.scale || largestOf(values) || 1;
    this.power = this.largest < 0.1 || this.largest >= 1000 ? Math.floor(Math.log10(this.largest)) : 0;
  }

  update(array) {
    this.take(array);
    this.paint();
    this.fit();
    this.rest();
  }

  part(value) {
    if (typeof value !== "number") return value === "-inf" ? -1 : 1;
    return Math.max(-1, Math.min(1, value / this.largest));
  }

  number(value, roomy) {
    if (typeof value !== "number") return value;
    const scaled = value / 10 ** this.power, size = Math.abs(scaled);
    if (size < 0.005) return "0";
    const text = scaled.toFixed(size < 0.995 ? 2 : size < 9.95 ? 1 + roomy : roomy ? 1 : 0);
    return roomy ? text : text.replace(/^(-?)0\./, "$1.");
  }

  flat(r, c) {
    return (Math.floor(c / this.columns) * this.rows + r) * this.columns + c % this.columns;
  }

  index(place) {
    return this.shape.reduceRight(([rest, found], length) =>
      [Math.floor(rest / length), [rest % length, ...found]], [this.flat(...place), []])[1];
  }

  /* Give a class to exactly the cells whose index fulfils a condition. */
  mark(className, condition) {
    for (const cell of this.grid.flat()) cell.classList.toggle(className, condition(this.index(cell.place)));
  }
}
