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

/* A heat map in a figure, read with the pointer or the arrow keys: `blocks` of rows and columns side by side, which wrap.
   It shows {rows, columns, blocks, group, axes, part(r, c), label(r, c)}: columns count on from block to block; a gap
   follows each `group` rows; axes: {row, column, rows: [text], columns: [text]}; part is from -1 to 1, null for no cell.
   onPoint(place) is called with [row, column], or null. */
class Heat {
  constructor(figure, label) {
    this.figure = figure;
    this.onPoint = () => {};
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

  show({rows, columns, blocks = 1, group = rows, axes, part, label}) {
    this.label = label;
    this.figure.classList.toggle("axes", axes !== undefined);
    this.cells.style = `--rows: ${rows}; --columns: ${columns}; --blocks: ${blocks}; --half: ${Math.ceil(blocks / 2)}`;
    this.cells.replaceChildren();
    this.grid = Array.from({length: rows}, () => []);
    const groups = Array(rows / group).fill(`repeat(${group}, var(--size))`).join(" 4px ");   // a gap is a track as well
    for (let b = 0; b < blocks; b++) {
      const block = this.cells.appendChild(make("div", "block"));
      block.style.gridTemplateRows = groups;
      for (let r = 0; r < rows; r++) {
        for (let c = b * columns; c < (b + 1) * columns; c++) {
          const value = part(r, c);
          if (value === null) continue;
          const cell = this.grid[r][c] = block.appendChild(make("i", value < 0 ? "negative" : ""));
          cell.style = `--part: ${Math.abs(value)}; grid-area: ${r + Math.floor(r / group) + 1} / ${c % columns + 1}`;
          cell.place = [r, c];
        }
      }
    }
    if (axes) this.cells.append(this.axis("row", axes.row, axes.rows), this.axis("column", axes.column, axes.columns));
    this.point(null);
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
    this.output.textContent = place ? this.label(...place) : "\u00a0";
    this.onPoint(place);
  }

  /* Light up cells, a list of places; no others. */
  light(places) {
    for (const cell of this.cells.querySelectorAll(".on")) cell.classList.remove("on");
    for (const place of places) this.cell(place)?.classList.add("on");
  }
}

/* The heat map of an array of any number of axes: the last one is the columns, those before it are the rows; with three
   or more, the first one becomes blocks. A value that is not finite is a string. */
class ArrayHeat extends Heat {
  constructor(card, name, {shape, values}) {
    super(card.appendChild(make("figure", "heat")), `Values of ${name}`);
    this.shape = shape;
    this.columns = shape.at(-1) ?? 1;
    const blocks = shape.length > 2 ? shape[0] : 1, rows = this.rows = values.length / this.columns / blocks;
    const largest = Math.max(...values.filter(Number.isFinite).map(Math.abs), 0) || 1;
    const part = (v) => typeof v === "number" ? v / largest : v === "-inf" ? -1 : 1;
    this.show({
      rows, columns: this.columns, blocks, group: shape.length > 3 ? shape.at(-2) : rows,
      part: (r, c) => part(values[this.flat(r, c)]),
      label: (r, c) => `${name}[${this.index([r, c]).join(", ")}] = ${values[this.flat(r, c)]}`,
    });
  }

  flat(r, c) {
    return (Math.floor(c / this.columns) * this.rows + r) * this.columns + c % this.columns;
  }

  index(place) {
    return this.shape.reduceRight(([rest, found], length) =>
      [Math.floor(rest / length), [rest % length, ...found]], [this.flat(...place), []])[1];
  }

  place(index) {
    const flat = index.reduce((sum, i, axis) => sum * this.shape[axis] + i, 0);
    const row = Math.floor(flat / this.columns), block = Math.floor(row / this.rows);
    return [row % this.rows, block * this.columns + flat % this.columns];
  }

  /* The places of a row (axis -2 has the index i) or a column (axis -1 has it) of the matrix at index `lead`. */
  vector(lead, axis, i) {
    const length = this.shape.at(axis === -1 ? -2 : -1);
    return Array.from({length}, (_, n) => this.place([...lead, ...(axis === -1 ? [n, i] : [i, n])]));
  }
}
