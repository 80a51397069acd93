/* One layer: two panes of code, a stepper, and a panel about the line under the pointer. */
class Layer {
  constructor(section) {
    this.section = section;
    this.panes = section.querySelector(".panes");
    this.arrows = section.querySelector(".arrows");
    const {typed, ...data} = DATA.layers.find(({name}) => name === section.id);
    Object.assign(this, data, {heats: [], done: new Set()});       // name, inputs, loss, levels, ways
    this.mover = new Mover(this);
    this.editors = [...section.querySelectorAll(".code.backward")].map((pane, i) =>
      new Editor(this, pane, i ? {} : typed));
    this.buttons = [...section.querySelectorAll("[data-go]")];
    for (const button of this.buttons) button.addEventListener("click", () => this.go(button.dataset.go));
    for (const pane of section.querySelectorAll(".code")) this.listen(pane);
    const actions = {edit: (line) => this.editor.open(line), undo: () => this.editor.undo(),
      reset: (line) => this.editor.reset(line), reveal: (line) => this.editor.reveal(line)};
    for (const button of section.querySelectorAll("[data-choose], [data-do]")) {
      const {choose, do: what} = button.dataset;
      button.addEventListener("click", () => what ? actions[what](this.base[0]) : this.choose(Number(choose)));
    }
    this.pencil = makeButton("pencil", undefined, () => this.editor.open(this.pencil.closest(".unit").dataset.line));
    this.pencil.append(section.querySelector("[data-do=edit] svg").cloneNode(true));
    this.pencil.title = "Edit this line";
    this.pencil.tabIndex = -1;          // the key e does the same
    new ResizeObserver(() => this.drawArrows()).observe(this.panes);
    this.way(0);
    this.step(0);
  }

  listen(pane) {
    const units = [...pane.querySelectorAll("[data-line]")];
    const unitOf = (event) => event.target.closest("textarea, .pencil") ? null : event.target.closest("[data-line]");
    units[0].tabIndex = 0;            // one tab stop; the arrow keys move from there
    pane.addEventListener("scroll", () => this.drawArrows());
    pane.addEventListener("pointerover", (event) => {
      if (event.pointerType === "mouse" && unitOf(event) && hasMoved(event)) this.show(unitOf(event).dataset.line);
    });
    pane.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.show(...this.base));
    let pressed;
    pane.addEventListener("click", (event) => {
      if (event.detail > 1 || !unitOf(event)) return;
      pressed = unitOf(event);
      this.press(pressed);
    });
    // The first click may have scrolled another line under the pointer: edit the line that was clicked first.
    pane.addEventListener("dblclick", (event) => unitOf(event) && this.editor.open(pressed.dataset.line));
    pane.addEventListener("focusin", (event) => {
      if (!unitOf(event)) return;
      this.show(unitOf(event).dataset.line);
      // Not while a mouse button is down: it would be released over another line.
      if (unitOf(event).matches(":focus-visible")) this.bring(unitOf(event).dataset.line);
    });
    pane.addEventListener("focusout", (event) => pane.contains(event.relatedTarget) || this.show(...this.base));
    pane.addEventListener("keydown", (event) => {
      const at = units.indexOf(unitOf(event));
      const to = {ArrowUp: at - 1, ArrowDown: at + 1}[event.key];
      if (at < 0) return;
      if (event.key === "Enter" || event.key === " ") this.press(units[at]);
      else if (["e", "F2"].includes(event.key) && !event.ctrlKey && !event.metaKey) this.editor.open(units[at].dataset.line);
      else if (to !== undefined) units[to]?.focus({preventScroll: true});
      else return;
      event.preventDefault();
    });
  }

  /* The forms of the backward */

  /* Switch to one of the layer's backwards: the one used in training, or the long way. */
  way(i) {
    const panes = [...this.section.querySelectorAll(".code")];
    for (const pane of panes.slice(1)) pane.hidden = Number(pane.dataset.way) !== i;
    this.backward = panes[1 + i];
    this.editor = this.editors[i];
    this.data = this.ways[i];
    this.units = panes.filter((pane) => !pane.hidden).flatMap((pane) => [...pane.querySelectorAll("[data-line]")]);
  }

  /* Switch forms, and stay at the same variable if it has a line there. */
  choose(i) {
    const [side] = this.base[0], {name} = this.entry;
    this.way(i);
    const {lines} = this.data;
    const line = Object.keys(lines).find((each) => each[0] === side && lines[each].some((entry) => entry.name === name));
    this.stay(line ?? this.data.steps[0].line);
    this.backward.querySelector(`[data-choose="${i}"]`).focus();
  }

  /* Update the toolbar for the current line. */
  updateControls() {
    const {editor, base: [line]} = this, number = line.slice(1), unit = editor.unit(line);
    const button = (what) => this.section.querySelector(`[data-do=${what}]`);
    button("edit").disabled = !LIVE || !editor.typed[line];
    button("undo").disabled = !editor.canUndo;
    button("reset").disabled = !editor.edits && !editor.state.shown.length;
    button("reset").querySelector("span").textContent = editor.isTyped(line) ? `Reset line ${number}` : "Reset all";
    button("reveal").disabled = !unit?.matches(".hidden, .typed");
  }

  /* Mark solved levels, given names such as "linear level 1". */
  solved(names) {
    for (const name of names) this.done.add(name);
    const done = this.levels.filter((level) => this.done.has(`${this.name} level ${level}`));
    for (const button of this.editors[0].pane.querySelectorAll(".level")) {
      button.classList.toggle("done", done.includes(Number(button.dataset.level)));
    }
    const mark = this.section.querySelector(".badge.solved");
    mark.hidden = !done.length;
    mark.textContent = `✓ solved: level ${done.join(", ")}`;
  }

  /* The hidden unit of this line or its partner, or the one that the derivation would give away. */
  secret(line, entry, partner) {
    const makes = (unit, name) => this.data.lines[unit.dataset.line].some((each) => each.name === name);
    return this.editor.hidden.find((unit) => [line, partner].includes(unit.dataset.line))
      ?? this.editor.hidden.find((unit) => makes(unit, `d${entry.section}`));
  }

  /* Steps and lines */

  press(unit) {
    const {line} = unit.dataset, hidden = unit.matches(".hidden");
    if (hidden && !LIVE) this.editor.reveal(line);
    this.stay(line);
    if (hidden && LIVE && this.editor.typed[line]) this.editor.open(line);
    if (this.data === this.ways[0]) history.replaceState(null, "", `#${this.name}:${line}`);
  }

  /* Go to the line of an address, "b102", or to the nearest active line above it. */
  open(address) {
    this.way(0);
    const unit = this.units.findLast(({dataset: {line}}) =>
      line[0] === address[0] && Number(line.slice(1)) <= Number(address.slice(1)));
    this.section.scrollIntoView();
    if (unit) this.stay(unit.dataset.line);
  }

  /* Keep a line selected; if it is a step, move the stepper there. */
  stay(line) {
    const [step] = this.executions(line);
    if (step !== undefined) this.step(step);
    else this.show(...this.base = [line]);
    this.bring(line);
  }

  go(where) {
    this.step({first: 0, previous: this.at - 1, next: this.at + 1, last: this.data.steps.length - 1}[where]);
    this.bring(this.base[0]);
  }

  step(i) {
    const steps = this.data.steps;
    if (i < 0 || i >= steps.length) return;
    this.at = i;
    this.base = [steps[i].line, i];
    for (const unit of this.units) {
      unit.ariaCurrent = unit.dataset.line === steps[i].line ? "step" : null;
    }
    this.section.querySelector(".count").textContent = `step ${i + 1} of ${steps.length}`;
    for (const button of this.buttons) {
      button.disabled = i === (["first", "previous"].includes(button.dataset.go) ? 0 : steps.length - 1);
    }
    this.show(...this.base);
  }

  /* Scroll a line and the panes into view; `light` does it for its partner. */
  bring(line) {
    scrollInPane(this.unit(line));
    this.panes.scrollIntoView({block: "nearest"});
  }

  unit(line) {
    return this.units.find((unit) => unit.dataset.line === line);
  }

  /* The steps of a line: several in a loop. */
  executions(line) {
    return this.data.steps.map((each, i) => i).filter((i) => this.data.steps[i].line === line);
  }

  /* The partner line of a variable of a step, and the step that made its array. */
  partner(step, entry) {
    const {steps} = this.data, made = steps[step]?.partners[entry.name];
    if (made !== undefined) return [steps[made].line, made];
    return [entry.partner, this.executions(entry.partner).findLast((i) => this.array(i, entry.other))];
  }

  array(step, name) {
    const found = this.data.steps[step]?.arrays.find((each) => each[0] === name);
    return found && this.data.arrays[found[1]];
  }

  /* Display */

  show(line, step = this.executions(line)[0], name) {
    this.current = [line, step, name];
    this.updateControls();
    const all = [line, step, name, this.backward.dataset.way, this.editor.version].join();
    if (all === this.shown) return;         // an element must not be replaced between press and release
    this.shown = all;
    const entries = this.data.lines[line] ?? [BARE];
    const entry = this.entry = entries.find((each) => each.name === name)
      ?? entries.find((each) => this.array(step, each.name)) ?? entries[0];
    const [partner, from] = this.partner(step, entry);
    this.light(line, entries.flatMap((each) => each.lit ?? [this.partner(step, each)[0]]), entry.lit?.[0] ?? partner);
    if (this.editor.typed[line]) this.unit(line).append(this.pencil);
    else this.pencil.remove();
    const [side, other] = line[0] === "f" ? ["forward", "backward"] : ["backward", "forward"];
    this.section.querySelector(".where").textContent = `· ${side}, line ${line.slice(1)}`;
    const judged = this.editor.isTyped(line);
    this.section.querySelector(".detail").classList.toggle("judged", judged);
    this.heats = [];
    if (judged) this.editor.fill(line, name);
    else this.fillCards(line, step, entry, partner, from, side, other);
  }

  fillCards(line, step, entry, partner, from, side, other) {
    const secret = this.secret(line, entry, partner), isSecret = (each) => secret && secret.dataset.line === each;
    const entries = this.data.lines[line] ?? [BARE];
    const here = this.fill("here", entry.name, () => this.array(step, entry.name), side, isSecret(line));
    if (entries.length > 1) this.tabs(entries, entry, (each) => this.show(line, step, each));
    const array = this.array(from, entry.other);
    const there = this.fill("there", array ? entry.other : "", () => this.array(from, entry.other), other, isSecret(partner));
    const factors = this.fillFactors(isSecret(line) ? [] : this.data.steps[step]?.factors ?? [], step);
    if (here) {
      here.onPoint = (place) => {
        const index = place && here.index(place);
        if (there && String(there.shape) === String(here.shape)) there.mark("on", (other) => String(other) === String(index));
        factors.forEach(({heat, axis}, side) => heat.mark("on", (other) => index         // a row and a column
          && String(other.slice(0, -2)) === String(index.slice(0, -2)) && other.at(axis) === index.at(side ? -1 : -2)));
      };
    }
    if (secret) this.ask(secret);
    else this.explain(entry);
  }

  /* Highlight the line, its partners, and the uses of its variable. Scroll to the partner. */
  light(line, partners, partner) {
    const {uses} = this.entry, used = uses.flatMap(([use, share]) => [use, share]);
    for (const unit of this.units) {
      const each = unit.dataset.line;
      unit.classList.toggle("here", each === line);
      unit.classList.toggle("lit", each !== line && partners.includes(each));
      unit.classList.toggle("use", each !== line && used.includes(each));
      if (each === partner && each[0] !== line[0]) scrollInPane(unit);
    }
    const variable = line[0] === "f" ? this.entry.name : this.entry.other;
    for (const word of this.panes.querySelectorAll(".word")) word.classList.remove("word");
    for (const [use, share, name] of uses) {
      markWord(this.unit(use), variable, true);
      markWord(this.unit(share), name, false);
    }
    this.drawArrows();
  }

  /* Draw arrows from each use of the variable to its contribution to the gradient, if the panes are side by side. */
  drawArrows() {
    this.arrows.replaceChildren();
    if (getComputedStyle(this.arrows).display === "none") return;
    const box = this.panes.getBoundingClientRect();
    const pairs = this.entry.uses.filter(([use, share]) => this.unit(use) && this.unit(share));
    for (const [i, [use, share]] of pairs.entries()) {
      const spread = 6 * (i - (pairs.length - 1) / 2);          // two arrows to one line stay apart
      const [a, b] = [this.unit(use), this.unit(share)];
      const x1 = a.closest(".code").getBoundingClientRect().right - box.left;
      const x2 = b.closest(".code").getBoundingClientRect().left - box.left - 1;
      const y1 = middle(a) - box.top, y2 = middle(b) - box.top + spread, bend = (x2 - x1) * 0.7;
      svg("path", {d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}m-6 -4l6 4l-6 4`}, this.arrows);
    }
  }

  tabs(entries, chosen, choose) {
    const tabs = make("div", "tabs");
    this.card("here").prepend(tabs);
    for (const each of entries) {
      const tab = tabs.appendChild(makeButton("", each.name, () => choose(each.name)));
      tab.setAttribute("aria-pressed", each === chosen);
    }
  }

  card(kind) {
    return this.section.querySelector(`.card.${kind}`);
  }

  /* Show an array in a card. get(): the current array, which changes when a number is moved. */
  fill(kind, name, get, side, secret) {
    const card = this.card(kind), array = get();
    card.replaceChildren();
    if (!name) return null;
    card.append(make("h4", side, name));
    if (!array || secret) {
      const shape = array ? `${shown(array.shape)} · ` : "";
      card.append(make("p", "facts", secret ? `${shape}hidden until you reveal its line` : "This line has no separate array for it."));
      return null;
    }
    const facts = card.appendChild(make("p", "facts"));
    const write = ({shape, low, high}) => facts.textContent = `${shown(shape)} · ${low} to ${high}`;
    write(array);
    return this.heat(card, name, get, write);
  }

  /* A heat map that is updated when a number is moved; onMoved(array) is called then. */
  heat(card, name, get, onMoved = () => {}) {
    const heat = new ArrayHeat(card, name, get());
    this.heats.push(() => {
      heat.update(get());
      onMoved(get());
      this.mover.mark(heat);
    });
    this.mover.attach(heat, get());
    return heat;
  }

  /* The two factors of a matmul, {heat, axis} each: the axis of the product's rows or columns. */
  fillFactors(factors, step) {
    const card = this.card("factors");
    card.replaceChildren();
    this.section.querySelector(".detail").classList.toggle("product", factors.length > 0);
    return factors.map(([name, , flipped], side) => {
      const get = () => this.data.arrays[this.data.steps[step].factors[side][1]];
      const part = card.appendChild(make("div"));
      part.append(make("h4", "", `${side ? "@" : "="} ${name}${flipped ? ".T" : ""}`), make("p", "facts", shown(get().shape)));
      return {heat: this.heat(part, name, get), axis: (side === 0) === flipped ? -1 : -2};
    });
  }

  explain(entry) {
    const why = this.section.querySelector(".why");
    why.replaceChildren(make("p", `finding ${entry.verdict ?? "none"}`,
      entry.finding ?? `${entry.name} is an intermediate result, not the gradient of a forward variable.`));
    why.parentElement.scrollTop = 0;
    const section = entry.section && this.section.querySelector(`.derivation [data-variable="${entry.section}"]`);
    if (section) why.append(...section.cloneNode(true).childNodes);
  }

  /* Show a hidden line's question instead of an explanation, its hint, and a button that reveals it. */
  ask(unit) {
    const why = this.section.querySelector(".why"), question = unit.querySelector(".question span:last-child");
    const asked = make("p", "asking");
    asked.append(`Line ${unit.dataset.line.slice(1)}: `, ...question.cloneNode(true).childNodes);
    why.replaceChildren(asked);
    if (unit.dataset.hint) why.append(hintElement(unit.dataset.hint));
    const {line} = unit.dataset;
    if (LIVE && this.editor.typed[line]) why.append(makeButton("reveal", "Type this line", () => this.editor.open(line)));
    why.append(makeButton("reveal", "Show this line", () => {
      this.editor.reveal(line);
      this.press(unit);
      unit.focus({preventScroll: true});
    }));
  }
}

/* The entry of a line that assigns no array. */
const BARE = {name: "", other: "", partner: null, section: null, verdict: null, uses: [], finding: "This line assigns no array."};

const shown = (shape) => shape.length ? shape.join(" × ") : "one number";

/* Scroll only a pane, so that one of its lines is visible. */
function scrollInPane(unit) {
  const pane = unit.closest(".code"), header = pane.querySelector(".side").offsetHeight, margin = unit.offsetHeight;
  const lowest = unit.offsetTop + unit.offsetHeight + margin - pane.clientHeight, highest = unit.offsetTop - header - margin;
  pane.scrollTop = Math.min(Math.max(pane.scrollTop, lowest), highest);
}

/* The vertical position of a line on the screen, clamped to its pane. */
function middle(unit) {
  const pane = unit.closest(".code").getBoundingClientRect();
  return Math.min(Math.max(unit.getBoundingClientRect().top + 10, pane.top + 36), pane.bottom - 8);
}

/* Mark the first occurrence of a name in a line, right of the "=" if `used`. */
function markWord(unit, name, used) {
  const words = [...unit?.querySelectorAll(".row:not(.question) code span") ?? []];
  const from = used ? words.findIndex((word) => word.textContent === "=") + 1 : 0;
  words.find((word, i) => i >= from && word.textContent === name)?.classList.add("word");
}
