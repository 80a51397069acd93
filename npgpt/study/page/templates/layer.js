/* One layer: a row for each line of the forward, with the lines of the backward that undo it. A row opens in place. */
class Layer {
  constructor(section) {
    const {typed, planted, ...data} = DATA.layers.find(({name}) => name === section.id);
    Object.assign(this, {section, name: data.name, data});
    const list = section.querySelector(".rows");
    this.rows = [...list.children];
    this.editor = new Editor(this, list, typed, planted);
    this.listen(list);
    for (const button of section.querySelectorAll(".level")) {
      button.addEventListener("click", () => this.editor.choose(Number(button.dataset.level)));
    }
    section.querySelector(".full").addEventListener("toggle", ({target}) => letScroll(target));
    section.querySelector(".reveal-all").addEventListener("click", () => this.editor.choose(0));
    this.editor.update();
    this.draw();
    whenSeen(section, () => {
      this.isSeen = true;
      this.draw();
    });
  }

  listen(list) {
    const rowOf = (target) => target.closest("textarea, .panel, a, button:not(.toggle)") ? null : target.closest(".row");
    list.addEventListener("click", (event) => {
      const row = rowOf(event.target), unit = event.target.closest("[data-line]");
      if (!row || event.detail > 1 || !getSelection().isCollapsed) return;       // the second click opens the editor
      this.toggle(row);
      history.replaceState(null, "", `#${this.name}:${unit?.dataset.line ?? linesOf(row)[0]}`);
    });
    list.addEventListener("dblclick", (event) => {
      const line = rowOf(event.target) && event.target.closest("[data-line]")?.dataset.line;
      if (line) this.editor.open(line);
    });
    list.addEventListener("keydown", (event) => {
      const row = rowOf(event.target);
      if (!row || event.key !== "e" || event.ctrlKey || event.metaKey || event.altKey) return;
      this.editor.open(linesOf(row).find((line) => this.editor.typed[line]));
      event.preventDefault();
    });
    oneTabStop(list, ".toggle");
  }

  toggle(row, isOpen = !row.matches(".open")) {
    row.classList.toggle("open", isOpen);
    row.querySelector(".toggle").setAttribute("aria-expanded", isOpen);
    if (isOpen) row.append(make("div", "panel"));
    else row.querySelector(".panel")?.remove();
    this.render(row);
  }

  /* Go to the line of an address, "b102", or to the nearest one above it. */
  open(address) {
    const before = (line) => line[0] === address[0] && Number(line.slice(1)) <= Number(address.slice(1));
    const line = this.rows.flatMap(linesOf).filter(before).sort((a, b) => a.slice(1) - b.slice(1)).at(-1);
    const row = this.reach(line);
    row.scrollIntoView({block: "start"});
    row.querySelector(".toggle").focus({preventScroll: true});  // the keyboard goes on from there
  }

  /* Open the row of a line. */
  reach(line) {
    const row = this.rows.find((row) => linesOf(row).includes(line)) ?? this.rows[0];
    if (!row.matches(".open")) this.toggle(row, true);
    return row;
  }

  /* Arrays */

  /* The steps of a line: one, or in a loop one for each turn. */
  executions(line) {
    return this.data.steps.filter((each) => each.line === line);
  }

  array(step, name) {
    const found = step?.arrays.find((each) => each[0] === name);
    return found && this.data.arrays[found[1]];
  }

  /* The gradient of a variable that a step of the forward makes, or of an argument: the last one of its name. */
  gradient(step, name) {
    const made = step.partners[name], gradient = `d${name}`;
    if (made !== undefined) return this.array(this.data.steps[made], gradient);
    if (step.line !== linesOf(this.rows[0])[0]) return null;
    return this.array(this.data.steps.findLast((each) => each.line[0] === "b" && this.array(each, gradient)), gradient);
  }

  /* Draw thumbnails of v and dv in each row: of up to four arrays, once the layer has been seen. */
  draw() {
    for (const row of this.rows) {
      const [line] = linesOf(row), [step] = this.executions(line), [left, right] = row.querySelectorAll(".thumbs");
      const shown = step?.arrays.filter(([name]) => this.array(step, name).shape.length || name in step.partners) ?? [];
      row.style.setProperty("--count", Math.min(shown.length, 5));
      if (!this.isSeen) continue;
      left.replaceChildren();
      right.replaceChildren();
      for (const [name] of shown.slice(0, 4)) {
        const gradient = this.gradient(step, name);
        left.append(thumbnail(name, this.array(step, name)));
        right.append(gradient ? thumbnail(`d${name}`, gradient) : make("figure", "none", "·"));
      }
      if (shown.length > 4) left.append(make("figure", "", `and ${shown.length - 4} more`));
    }
  }

  /* The panel of an open row */

  refresh() {
    for (const row of this.rows) if (row.matches(".open")) this.render(row);
  }

  render(row) {
    const panel = row.querySelector(".panel");
    if (!panel) return;
    const buttons = () => [...panel.querySelectorAll("button")], at = buttons().indexOf(document.activeElement);
    const steps = linesOf(row).flatMap((line) => this.executions(line));
    const shapes = steps.flatMap((step) => [...Object.values(step.at), ...step.arrays.map(([, i]) => i)]).map((i) => this.data.arrays[i].shape);
    const leads = shapes.map((shape) => shape.slice(0, -2)).sort((a, b) => b.length - a.length || sizeOf(b) - sizeOf(a));
    row.leads = leads[0] ?? [];         // the axes before the last two, of the array that has the most
    panel.replaceChildren(...this.slices(row), ...linesOf(row).map((line) => this.item(row, line)).filter(Boolean));
    letScroll(panel);
    buttons()[at]?.focus({preventScroll: true});
  }

  /* Buttons that choose the matrix that is shown of arrays with more than two axes. */
  slices(row) {
    const count = sizeOf(row.leads), at = row.slice ?? 0;
    if (count === 1) return [];
    const bar = make("p", "tabs slices"), go = (step, text, label) => {
      const button = bar.appendChild(makeButton("", text, () => {
        row.slice = (at + step + count) % count;
        this.render(row);
      }));
      button.setAttribute("aria-label", label);
    };
    go(-1, "‹", "previous matrix");
    bar.append(` [${indexOf(at, row.leads).join(", ")}] of ${shapeText(row.leads)} `);
    go(1, "›", "next matrix");
    return [bar];
  }

  /* A line: its equation of pictures, and words about it. */
  item(row, line) {
    const {editor} = this, unit = editor.unit(line), isTyped = line in editor.state.texts, isHidden = unit?.matches(".hidden");
    const turns = this.executions(line), step = turns[row.turn ?? 0] ?? turns[0];
    if (!step && !unit?.dataset.level && !editor.typed[line]) return null;
    const item = make("div", `item ${line[0] === "f" ? "forward" : "backward"}`), words = make("div", "words");
    if (isTyped) item.append(editor.judgedFigures(line, row));
    else if (step) item.append(this.equation(row, step, isHidden));
    if (turns.length > 1) words.append("turn of the loop: ", this.tabs(row, "turn", turns.map((_, i) => i + 1)));
    words.append(...isTyped ? editor.verdictElements(line) : isHidden ? editor.question(line) : this.explained(line));
    const tools = editor.tools(line);
    if (tools.childElementCount) words.append(tools);
    item.append(words);
    return item.textContent ? item : null;
  }

  /* The line's code, with a picture for each array; onlyMade: only those that it assigns. */
  equation(row, step, onlyMade) {
    const equation = make("div", "equation"), heats = [], number = step.line.slice(1), count = {};
    const picture = (shown, array) => {
      if (!array.shape.length) {
        const one = equation.appendChild(make("span", "one", shown));
        one.append(make("small", "", brief(array.values[0])));
        return;
      }
      count[shown] = (count[shown] ?? 0) + 1;
      const figure = equation.appendChild(make("figure", "heat"));
      figure.append(make("figcaption", "", shown), make("small", "", shapeText(array.shape)));
      const heat = new ArrayHeat(figure, shown, array, {
        label: `${shown}${count[shown] > 1 ? ` (${count[shown]})` : ""}, line ${number}`,
        index: leadingIndex(array.shape, row.leads, row.slice ?? 0),
      });
      heats.push(heat);
    };
    const made = (name) => this.array(step, name), read = (name) => this.data.arrays[step.at[name]];
    const code = (text) => {
      const last = equation.querySelector(":scope > code:last-child");
      (last ?? equation.appendChild(make("code"))).append(text);
    };
    const left = new Set(step.arrays.map(([name]) => name));
    for (const part of onlyMade ? [] : this.data.parts[step.line] ?? []) {
      const [name, isMade, flipped] = typeof part === "string" ? [] : part;
      if (isMade && this.array(step, name)) left.delete(name), picture(name, made(name));
      else if (!isMade && name in step.at) picture(flipped ?? name, flipped ? withAxesSwapped(read(name)) : read(name));
      else code(flipped ?? name ?? part);
    }
    if (left.size && !onlyMade) code(" → ");
    const names = [...left], isChoice = names.length > 3;        // too many to be shown at once
    if (isChoice) equation.append(this.tabs(row, step.line, names));
    for (const name of isChoice ? [names[row[step.line] ?? 0]] : names) picture(name, made(name));
    this.connect(equation, heats);
    return equation;
  }

  /* In a matmul, an entry lights up the row and the column whose product it is. */
  connect(equation, heats) {
    const [made, a, b] = heats, codes = [...equation.querySelectorAll(":scope > code")].map(({textContent}) => textContent);
    if (heats.length !== 3 || codes.join("|") !== " = | @ ") return;
    made.onPoint = (place) => {
      const index = place && made.index(place);
      for (const [heat, axis] of [[a, -2], [b, -1]]) {
        heat.mark("on", (other) => index && String(other.slice(0, -2)) === String(index.slice(0, -2)) && other.at(axis) === index.at(axis));
      }
    };
  }

  /* Buttons that choose one of some texts; the row keeps its number under a key. */
  tabs(row, key, texts) {
    const tabs = make("div", "tabs");
    tabs.append(...texts.map((text, i) => {
      const button = makeButton("", text, () => {
        row[key] = i;
        this.render(row);
      });
      button.setAttribute("aria-pressed", i === (row[key] ?? 0));
      return button;
    }));
    return tabs;
  }

  /* A line in numbers, if there is such an example. */
  worked(line) {
    const lines = this.data.worked[line];
    return lines ? [make("p", "caption", "The line with smaller arrays:"), make("pre", "worked", lines.join("\n"))] : [];
  }

  /* The check of each gradient that a line makes, and its derivation after those it builds on. */
  explained(line) {
    const checked = this.data.lines[line] ?? [];
    const before = (section) => this.data.built_on[section] ?? [];
    const sections = new Set(checked.flatMap(({section}) => [...before(section), section]));
    const {guesses, typed} = this.editor, right = line in guesses && guesses[line] === typed[line].text;
    const words = right ? [make("p", "verdict right", "✓ right")] : [];
    words.push(...checked.slice(0, 4).map(({verdict, finding}) => make("p", `finding ${verdict}`, finding)));
    const found = [...this.section.querySelectorAll(".derivation section")]
      .filter(({dataset}) => sections.has(dataset.variable))
      .flatMap((each) => [...each.cloneNode(true).childNodes]);
    return [...words, ...this.worked(line), ...found];
  }
}

const linesOf = (row) => [...row.querySelectorAll("[data-line]")].map((unit) => unit.dataset.line);
const sizeOf = (shape) => shape.reduce((product, length) => product * length, 1);
const shapeText = (shape) => shape.join(" × ");

/* A picture of the last two axes of an array, or its number. Its colours are transparent, so that they fit any theme. */
function thumbnail(name, {shape, values}) {
  const figure = make("figure", "", name);
  if (!shape.length) {
    figure.append(make("small", "", brief(values[0])));
    return figure;
  }
  figure.title = `${name}, ${shapeText(shape)}`;
  const canvas = figure.appendChild(make("canvas")), width = canvas.width = shape.at(-1) || 1;
  const height = canvas.height = shape.length > 1 ? shape.at(-2) : 1, largest = largestOf(values) || 1;
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    image.data.set([...values[i] < 0 ? [42, 91, 216] : [205, 40, 66], 255 * Math.min(1, Math.abs(values[i]) / largest)], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return figure;
}

/* An array with its last two axes exchanged. */
function withAxesSwapped({shape, values}) {
  const [rows, columns] = shape.slice(-2), size = rows * columns;
  return {shape: [...shape.slice(0, -2), columns, rows], values: values.map((_, i) => {
    const at = i % size;
    return values[i - at + (at % rows) * columns + Math.floor(at / rows)];
  })};
}
