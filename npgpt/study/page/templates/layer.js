/* One layer: a row for each line of the forward, with the lines of the backward that undo it. A row opens in place. */
class Layer {
  constructor(section) {
    const {planted, ...data} = DATA.layers.find(({name}) => name === section.id);
    Object.assign(this, {section, name: data.name, data});
    const list = section.querySelector(".rows");
    this.rows = [...list.children];
    this.editor = new Editor(this, list, planted);
    this.listen(list);
    section.querySelector(".full")?.addEventListener("toggle", ({target}) => letScroll(target));
    this.editor.update();
  }

  listen(list) {
    const rowOf = (target) => target.closest("textarea, .panel, a, button:not(.toggle)") ? null : target.closest(".row");
    list.addEventListener("click", (event) => {
      const row = rowOf(event.target), unit = event.target.closest("[data-line]");
      if (!row || !getSelection().isCollapsed) return;
      this.toggle(row);
      history.replaceState(null, "", `#${this.name}:${unit?.dataset.line ?? linesOf(row)[0]}`);
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

  /* Show this view of the layer's backward, not the other one. */
  show() {
    const {lesson} = this.section.dataset;
    for (const each of document.querySelectorAll(`[data-lesson="${lesson}"]`)) each.hidden = each !== this.section;
    this.section.scrollIntoView();
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

  /* The gradient of a variable that a step of the forward makes, or of an argument: the last one of its name. */
  gradient(step, name) {
    const made = step.partners[name], gradient = `d${name}`;
    if (made !== undefined) return madeBy(this.data.steps[made], gradient, this.data);
    if (step.line !== linesOf(this.rows[0])[0]) return null;
    return madeBy(this.data.steps.findLast((each) => each.line[0] === "b" && madeBy(each, gradient, this.data)), gradient, this.data);
  }

  /* Draw thumbnails of v and dv in each row: of up to four arrays. */
  draw() {
    for (const row of this.rows) {
      const [line] = linesOf(row), [step] = this.executions(line), [left, right] = row.querySelectorAll(".thumbs");
      const shown = step?.arrays.filter(([name]) => madeBy(step, name, this.data).shape.length || name in step.partners) ?? [];
      row.style.setProperty("--count", Math.min(shown.length, 5));
      for (const [name] of shown.slice(0, 4)) {
        const gradient = this.gradient(step, name);
        left.append(thumbnail(name, madeBy(step, name, this.data)));
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
    const buttons = () => [...panel.querySelectorAll("button, select")], focused = buttons().indexOf(document.activeElement);
    const {at: undone} = row.dataset, lines = [...linesOf(row), ...undone ? [undone] : []];
    const steps = lines.flatMap((line) => this.executions(line));
    const shapes = steps.flatMap((step) => [...Object.values(step.at), ...step.arrays.map(([, i]) => i)]).map((i) => this.data.arrays[i].shape);
    const leads = shapes.map((shape) => shape.slice(0, -2)).sort((a, b) => b.length - a.length || sizeOf(b) - sizeOf(a));
    row.leads = leads[0] ?? [];         // the axes before the last two, of the array that has the most
    const places = Array.from({length: sizeOf(row.leads)}, (_, i) => `[${indexOf(i, row.leads).join(", ")}]`);
    panel.replaceChildren(...this.chooser(row, "slice", "matrix", places), ...lines.map((line) => this.item(row, line)).filter(Boolean));
    letScroll(panel);
    buttons()[focused]?.focus({preventScroll: true});
  }

  /* A line: its equation of pictures, and words about it. */
  item(row, line) {
    const {editor} = this, isTyped = line in editor.texts;
    const turns = this.executions(line), step = turns[row.turn ?? 0] ?? turns[0];
    if (!step && !editor.planted[line] && !editor.text(line)) return null;
    const item = make("div", `item ${line[0] === "f" ? "forward" : "backward"}`), words = make("div", "words");
    const why = make("div", "why");
    why.setAttribute("aria-live", "polite");
    if (isTyped) item.append(editor.judgedFigures(line, row));
    else if (step) item.append(new Equation(this.data, step, why, this.shown(row, step)).element);
    words.append(...this.chooser(row, "turn", "turn of the loop", turns.map((_, i) => i + 1)));
    words.append(isTyped ? editor.verdictElement(line) : why);
    const tools = editor.tools(line);
    if (tools.childElementCount) words.append(tools);
    if (!isTyped) words.append(...this.explained(line));
    item.append(words);
    return item.textContent ? item : null;
  }

  /* What an equation in a row shows: see `Equation`. */
  shown(row, step) {
    const [first] = linesOf(row), beside = linesOf(row).includes(step.line) ? "" : `, beside line ${first.slice(1)}`;
    return {
      within: row.querySelector(".panel"), place: `line ${step.line.slice(1)}${beside}`, chosen: row[step.line] ?? 0,
      choose: (names) => this.chooser(row, step.line, "array", names), lead: (shape) => leadingIndex(shape, row.leads, row.slice ?? 0),
    };
  }

  /* A list that chooses one of several texts; the row keeps its number under a key. */
  chooser(row, key, title, texts) {
    const label = make("label", "chooser", `${title} `), list = label.appendChild(make("select"));
    list.append(...texts.map((text, i) => new Option(text, i)));
    list.selectedIndex = row[key] ?? 0;
    list.addEventListener("change", () => {
      row[key] = list.selectedIndex;
      this.render(row);
    });
    return texts.length > 1 ? [label] : [];
  }

  /* The check of each gradient that a line makes, and its derivation after those it builds on. */
  explained(line) {
    const checked = this.data.lines[line] ?? [];
    const before = (section) => this.data.built_on[section] ?? [];
    const sections = new Set(checked.flatMap(({section}) => [...before(section), section]));
    const words = checked.slice(0, 4).map(({verdict, finding}) => make("p", `finding ${verdict}`, finding));
    const found = [...document.querySelectorAll(`[data-lesson="${this.section.dataset.lesson}"] .derivation section`)]
      .filter(({dataset}) => sections.has(dataset.variable))
      .flatMap((each) => [...each.cloneNode(true).childNodes]);
    return [...words, ...found];
  }
}

/* The array of a name that a step makes. */
function madeBy(step, name, {arrays}) {
  const found = step?.arrays.find((each) => each[0] === name);
  return found && arrays[found[1]];
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
