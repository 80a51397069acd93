/* A backward with editable lines. A unit of its rows has the class "typed" while it shows the reader's
   text. Without a server a line takes only its planted mistake, whose verdict comes with the page.
   planted: line -> {text, answer}. */
class Editor {
  constructor(layer, list, planted) {
    Object.assign(this, {layer, planted});
    this.units = [...list.querySelectorAll(".backward [data-line]")];
    this.texts = this.checked = {};         // line -> the reader's text; never changed in place
    this.answer = null;
    this.requests = new Requests("/check", (answer) => this.judged(answer),
      (text) => this.judged({verdict: "error", text: text[0].toUpperCase() + text.slice(1), lines: [], arrays: {}}));
    this.later = debounced(300, () => this.check());
  }

  unit(line) {
    return this.units.find((unit) => unit.dataset.line === line);
  }

  /* The text of a statement of the backward; none of its `def`. */
  text(line) {
    const code = [...this.unit(line)?.querySelectorAll(".source code") ?? []].map((each) => each.textContent);
    return /^(def|async|@)/.test(code[0] ?? "def") ? undefined : code.join("\n");
  }

  /* Give a line another text; "", or its own, gives it back. */
  change(line, text) {
    const {[line]: _, ...texts} = this.texts;
    this.texts = ["", this.text(line).trim()].includes(text.trim()) ? texts : {...texts, [line]: text};
    this.update();
  }

  /* The judge */

  check() {
    if (this.texts === this.checked) return;
    this.checked = this.texts;
    const [line] = Object.keys(this.texts);
    this.isWaiting = Boolean(LIVE && line);
    if (this.isWaiting) this.requests.send({layer: this.layer.name, edits: this.texts});
    else this.answer = line ? this.planted[line].answer : null;
    announce(this.isWaiting ? "" : this.answer?.text ?? "");
    this.update();
  }

  /* Replace a line by its planted mistake. */
  break(line) {
    if (!LIVE) this.texts = {};
    this.change(line, this.planted[line].text);
    this.check();
  }

  judged(answer) {
    if (!Object.keys(this.texts).length) return;            // undone in the meantime
    this.answer = answer;
    this.isWaiting = Boolean(this.requests.next);
    announce(answer.text);
    this.update();
  }

  get isPending() {
    return this.texts !== this.checked || this.isWaiting;
  }

  /* Display */

  update() {
    for (const unit of this.units) {
      const {line} = unit.dataset, typed = line in this.texts;
      const verdicts = (this.answer?.lines ?? []).filter((each) => each.line === line).map(({verdict}) => verdict);
      const isWrong = verdicts.includes("WRONG") || typed && !LIVE && this.answer?.verdict === "wrong";
      unit.classList.toggle("typed", typed);
      unit.classList.toggle("right", typed && !isWrong && verdicts[0] === "ok");
      unit.classList.toggle("wrong", isWrong);
      if (typed) (unit.querySelector(".own code") ?? this.row(unit, "own", "code")).textContent = this.texts[line];
    }
    this.layer.refresh();
  }

  /* Add a numbered row to a unit, and return the element for its text. */
  row(unit, className, tag) {
    const row = unit.appendChild(make("div", `line ${className}`));
    row.append(make("span", "number", unit.dataset.line.slice(1)));
    return row.appendChild(make(tag));
  }

  /* Turn a line into a text field. Enter checks and closes it, Escape discards the edit. */
  open(line) {
    const unit = this.unit(line);
    if (!LIVE || !this.text(line) || unit.matches(".editing")) return;
    this.layer.reach(line);
    const before = this.texts[line] ?? this.text(line);
    const field = this.row(unit, "field", "textarea");
    unit.classList.add("editing");
    field.setAttribute("aria-label", `Line ${line.slice(1)} of the backward of ${this.layer.name}`);
    Object.assign(field, {value: before, rows: before.split("\n").length, spellcheck: false, autocapitalize: "off", autocomplete: "off"});
    field.addEventListener("input", () => {
      field.rows = field.value.split("\n").length;
      this.change(line, field.value);
      this.later();
    });
    field.addEventListener("keydown", (event) => {
      const {key, shiftKey, isComposing} = event;
      if (isComposing || key !== "Escape" && (key !== "Enter" || shiftKey)) return;
      event.preventDefault();
      if (key === "Escape") this.change(line, before);
      this.check();
      unit.closest(".row").querySelector(".toggle").focus({preventScroll: true});
    });
    field.addEventListener("blur", () => {
      unit.classList.remove("editing");
      field.parentElement.remove();
    });
    field.focus({preventScroll: true});
  }

  /* What can be done with a line now. */
  tools(line) {
    const tools = make("div", "tools"), isTyped = line in this.texts;
    const add = (text, action) => tools.append(makeButton(text.split(" ")[0].toLowerCase(), text, action));
    if (LIVE && this.text(line)) add("Edit", () => this.open(line));
    if (!isTyped && this.planted[line]) add("Break it", () => this.break(line));
    if (isTyped) add("Repair", () => (this.change(line, ""), this.check()));
    return tools;
  }

  /* The verdict in words. It is inserted as text, never as markup. */
  verdictElement(line) {
    const {answer} = this, box = make("div", "said");
    const say = (className, text) => box.appendChild(make("p", className, text));
    if (this.isPending || !answer) {
      say("verdict pending", "Checking …");
      return box;
    }
    const verdict = say(`verdict ${answer.verdict}`, answer.text.replace(/^wrong: /, ""));
    if (answer.verdict === "wrong") verdict.prepend(make("strong", "", "✗ WRONG "));
    for (const {name, verdict, said} of answer.lines.filter((each) => each.line === line)) {
      const text = said.filter((each) => !answer.text.includes(each)).join("; ");
      if (verdict === "WRONG" && text) say("evidence", `${name}: ${text}`);
    }
    if (answer.first && answer.first !== line) {
      box.append(makeButton("reveal", `Go to line ${answer.first.slice(1)}, the first wrong line`,
        () => this.layer.reach(answer.first).scrollIntoView({block: "nearest"})));
    }
    if (answer.output) say("evidence", "Your code printed:").after(make("pre", "", answer.output));
    return box;
  }

  /* An edited line's array, the true one, and their difference, whose largest entry is marked. */
  judgedFigures(line, row) {
    const [step] = this.layer.executions(line), trio = make("div", "trio");
    const found = this.isPending ? [] : this.answer?.arrays[line] ?? [];
    const say = (text) => trio.appendChild(make("p", "caption", text));
    if (!found.length && !this.isPending) say("This line has no wrong array to show.");
    for (const {name, given} of found) {
      const right = madeBy(step, name, this.layer.data), fits = String(given.shape) === String(right?.shape);
      const off = fits ? right.values.map((value, i) => given.values[i] - value) : [], sizes = off.map(Math.abs);
      const most = Math.max(...sizes), worst = sizes.findIndex((size) => !(size < most * (1 - 1e-9)));
      const picture = (title, array, more = {}) => {
        const lead = fits ? indexOf(worst, array.shape).slice(0, -2) : leadingIndex(array.shape, row.leads, row.slice ?? 0);
        const figure = trio.appendChild(make("figure", "heat")), at = lead.length ? ` at [${lead.join(", ")}]` : "";
        figure.append(make("figcaption", "", title), make("small", "", `${shapeText(array.shape)}${at}`));
        const heat = new Heat(figure, title, array, {label: `${title}, line ${line.slice(1)}`, lead, ...more});
        new ResizeObserver(() => heat.fit()).observe(figure);
        return heat;
      };
      picture(`${name} of this line`, given, {most: right && largestOf(right.values)});
      if (right) picture(`the true ${name}`, right);
      if (fits) picture(`difference, at most ${brief(most)}`, {shape: right.shape, values: off}).mark("most", (each) => each === worst);
      else say(right ? `The shapes differ: ${shapeText(given.shape)}, not ${shapeText(right.shape)}.`
        : "The page's line has no array of this name.");
    }
    return trio;
  }
}
