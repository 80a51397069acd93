/* A backward with editable lines. A unit of its pane has the class "hidden" while its line is a question, and "typed" while
   it shows the learner's text. Without a server, and in the long way, lines can only be hidden and revealed. */
class Editor {
  constructor(layer, pane, typed) {
    Object.assign(this, {layer, pane, typed});
    this.units = [...pane.querySelectorAll("[data-line]")];
    this.state = this.checked = {level: 0, texts: {}, shown: []};     // texts: line -> the learner's; never changed in place
    this.history = [];
    this.answer = null;
    this.version = 0;           // counts the changes
    this.listeners = [];
    this.requests = new Requests("/check", (answer) => this.judged(answer),
      (text) => this.judged({verdict: "error", text: text[0].toUpperCase() + text.slice(1), lines: [], arrays: {}}));
    this.later = debounced(1000, () => this.check());
    for (const button of pane.querySelectorAll(".level")) {
      button.addEventListener("click", () => this.choose(Number(button.dataset.level)));
    }
    pane.querySelector(".predict").addEventListener("click", () => this.choose(0));
  }

  /* The text of the lines */

  unit(line) {
    return this.units.find((unit) => unit.dataset.line === line);
  }

  /* Whether the level hides a line that the learner has not asked to see. */
  isAsked(unit) {
    const {level, shown} = this.state;
    return Number(unit.dataset.level ?? Infinity) <= level && !shown.includes(unit.dataset.line);
  }

  text(line) {
    const {text, stub} = this.typed[line];
    return this.state.texts[line] ?? (this.isAsked(this.unit(line)) ? stub : text);
  }

  isTyped(line) {
    return line in this.state.texts;
  }

  get edits() {
    return Object.keys(this.state.texts).length;
  }

  get hidden() {
    return this.units.filter((unit) => unit.matches(".hidden"));
  }

  /* Changes */

  change(state) {
    this.state = {...this.state, ...state};
    this.update();
  }

  type(line, text) {
    const {text: whole, stub} = this.typed[line], texts = {...this.state.texts, [line]: text};
    if (["", (this.isAsked(this.unit(line)) ? stub : whole).trim()].includes(text.trim())) delete texts[line];
    this.change({texts});
    this.later();
  }

  /* Start a level, which hides its lines; or leave it, which shows all lines. */
  choose(level) {
    if (level === this.state.level) level = 0;
    if (level) for (const details of this.layer.section.querySelectorAll("details")) details.open = false;
    this.change({level, texts: {}, shown: []});
    this.check();
  }

  /* Show the package's line. The level can then no longer be solved. */
  reveal(line) {
    const {level, texts: {[line]: _, ...texts}, shown} = this.state;
    this.change({texts, shown: level ? [...shown, line] : shown});
    this.check();
  }

  reset(line) {
    const {[line]: _, ...others} = this.state.texts;
    this.change(this.isTyped(line) ? {texts: others} : {texts: {}, shown: []});
    this.check();
  }

  get canUndo() {
    return this.history.length > 0 || this.state !== this.checked;
  }

  /* Return to the previously checked state. */
  undo() {
    if (!this.canUndo) return;
    this.state = this.checked = this.state === this.checked ? this.history.pop() : this.checked;
    this.send();
    this.update();
  }

  /* The judge */

  check() {
    if (this.state === this.checked) return;
    this.history.push(this.checked);
    this.checked = this.state;
    this.send();
    this.update();
  }

  send() {
    this.isWaiting = LIVE !== null && this.edits > 0;
    if (!this.isWaiting) this.answer = null;
    else {
      const {level, texts: edits, shown} = this.state;
      this.requests.send({layer: this.layer.name, level, edits, shown});
    }
  }

  judged(answer) {
    if (!this.edits) return;            // undone in the meantime
    this.answer = answer;
    this.isWaiting = Boolean(this.requests.next);
    document.getElementById("status").textContent = answer.text;        // for screen readers
    if (answer.solved) this.layer.solved([answer.solved]);
    this.update();
  }

  get isPending() {
    return this.state !== this.checked || this.isWaiting;
  }

  /* "ok" or "WRONG", for a line with several names the worst; undefined if not judged. */
  verdict(line) {
    const found = (this.answer?.lines ?? []).filter((each) => each.line === line).map((each) => each.verdict);
    return found.includes("WRONG") ? "WRONG" : found[0];
  }

  /* Display */

  update() {
    this.version++;
    for (const unit of this.units) {
      const {line} = unit.dataset, verdict = this.verdict(line), typed = this.isTyped(line);
      unit.classList.toggle("typed", typed);
      unit.classList.toggle("hidden", this.isAsked(unit) && !(typed && verdict === "ok"));
      unit.classList.toggle("right", typed && verdict === "ok");
      unit.classList.toggle("wrong", verdict === "WRONG");
      if (typed) (unit.querySelector(".own code") ?? this.row(unit, "own", "code")).textContent = this.state.texts[line];
    }
    const left = this.hidden.length, reveal = this.pane.querySelector(".predict");
    reveal.hidden = !left;
    reveal.textContent = `Reveal all ${left}`;
    for (const button of this.pane.querySelectorAll(".level")) {
      button.setAttribute("aria-pressed", Number(button.dataset.level) === this.state.level);
    }
    this.layer.show(...this.layer.current);
    for (const listener of this.listeners) listener();
  }

  /* Add a numbered row to a unit, and return the element for its text. */
  row(unit, className, tag) {
    const row = unit.appendChild(make("div", `row ${className}`));
    row.append(make("span", "number", unit.dataset.line.slice(1)));
    return row.appendChild(make(tag));
  }

  /* Turn a line into a text field. Enter checks and closes it, Escape discards the edit. */
  open(line) {
    const unit = this.unit(line);
    if (!this.typed[line] || unit.matches(".editing")) return;
    this.layer.stay(line);
    if (!LIVE) {
      this.layer.section.querySelector(".why").prepend(howToStart("edit this line"));
      return;
    }
    const field = this.row(unit, "field", "textarea"), before = this.text(line);
    unit.classList.add("editing");
    unit.setAttribute("role", "group");
    field.setAttribute("aria-label", `Line ${line.slice(1)} of the backward of ${this.layer.name}`);
    const leave = (action) => {
      action();
      unit.focus({preventScroll: true});
    };
    typing(field, before, {
      onInput: (text) => this.type(line, text),
      onEnter: () => leave(() => this.check()),
      onEscape: () => leave(() => this.type(line, before)),
    });
    field.addEventListener("blur", () => {
      unit.classList.remove("editing");
      unit.setAttribute("role", "button");
      field.parentElement.remove();
    });
    field.focus({preventScroll: true});
  }

  /* Fill the panel for an edited line: its array, the true one, their difference, and the verdict. */
  fill(line, chosen) {
    const {layer, answer} = this, found = answer?.arrays[line] ?? [];
    const entry = found.find(({name}) => name === chosen) ?? found[0];
    fillJudged(["here", "there", "difference"].map((kind) => layer.card(kind)), entry);
    if (found.length > 1) layer.tabs(found, entry, (name) => layer.show(line, undefined, name));
    const why = layer.section.querySelector(".why");
    why.replaceChildren(...this.verdictElements(line));
    const hint = this.unit(line).dataset.hint;
    if (hint && this.unit(line).matches(".hidden")) why.append(hintElement(hint));
  }

  /* The verdict in words. It is inserted as text, never as markup. */
  verdictElements(line) {
    const {answer} = this, {shown} = this.state;
    if (this.isPending) return [make("p", "verdict pending", "Checking …")];
    if (!answer) return [];
    const elements = [make("p", `verdict ${answer.verdict}`, answer.text)];
    for (const {name, verdict, said} of answer.lines.filter((each) => each.line === line)) {
      const text = said.filter((each) => !answer.text.includes(each)).join("; ");
      if (verdict === "WRONG" && text) elements.push(make("p", "evidence", `${name}: ${text}`));
    }
    if (answer.first && answer.first !== line) {
      elements.push(makeButton("reveal", `Go to line ${answer.first.slice(1)}, the first wrong line`,
        () => this.layer.stay(answer.first)));
    }
    if (answer.verdict === "right" && shown.length) {
      elements.push(make("p", "evidence", `${shown.length === 1 ? "One line was" : `${shown.length} lines were`} shown to you, so this level does not count as solved.`));
    }
    if (answer.solved) elements.push(make("p", "solved", `✓ Solved: ${answer.solved}`));
    if (answer.output) elements.push(make("p", "evidence", "Your code printed:"), make("pre", "", answer.output));
    if (answer.seed !== undefined) elements.push(make("p", "caption", `Random test cases: seed ${answer.seed}.`));
    return elements;
  }
}

/* Fill three cards: the line's array, the true one, and their difference, coloured on the scale of the true one. */
function fillJudged([here, there, difference], entry) {
  for (const [card, title, kind, missing] of [
    [here, "computed by this line", "given", "This line computes no such array."],
    [there, "the true gradient", "true", "No such array."],
    [difference, "difference", "difference", entry?.given && entry.true ? "The shapes differ." : "Nothing to compare."],
  ]) {
    card.replaceChildren();
    if (!entry) continue;
    const array = entry[kind];
    card.append(make("h4", "backward", kind === "difference" ? "difference" : entry.name));
    card.append(make("p", "facts", array ? kind === "difference" ? `at most ${largestOf(array.values)}` : `${title} · ${shown(array.shape)}` : missing));
    if (array) new ArrayHeat(card, kind === "difference" ? "difference" : entry.name, array, entry.true && largestOf(entry.true.values));
  }
}

function hintElement(text) {
  const hint = make("details", "hint");
  hint.append(make("summary", "", "Hint"), make("p", "", text));
  return hint;
}

/* A text field that grows with its text. Its keys do not step through the page. */
function typing(field, text, {onInput, onEnter, onEscape}) {
  const grow = () => {
    field.style.height = "";
    field.style.height = `${field.scrollHeight}px`;
  };
  Object.assign(field, {value: text, rows: 1, spellcheck: false, autocapitalize: "off", autocomplete: "off"});
  requestAnimationFrame(grow);
  new ResizeObserver(grow).observe(field.parentElement);
  field.addEventListener("input", () => {
    grow();
    onInput(field.value);
  });
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    const action = event.key === "Enter" && !event.shiftKey ? onEnter : event.key === "Escape" ? onEscape : null;
    if (!action || event.isComposing) return;
    event.preventDefault();
    action();
  });
}
