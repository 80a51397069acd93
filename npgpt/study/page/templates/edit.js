/* A backward with editable lines. A unit of its rows has the class "hidden" while its line is a question, and "typed" while
   it shows the learner's text. Without a server a line takes only its planted mistakes, whose verdicts come
   with the page. planted: line -> [{text, answer}, …]. */
class Editor {
  constructor(layer, list, typed, planted) {
    Object.assign(this, {layer, list, typed, planted});
    this.units = [...list.querySelectorAll(".backward [data-line]")];
    this.state = this.checked = {level: 0, texts: {}, shown: []};     // texts: line -> the learner's; never changed in place
    this.guesses = {};          // hidden line -> the last choice
    this.answer = null;
    this.requests = new Requests("/check", (answer) => this.judged(answer),
      (text) => this.judged({verdict: "error", text: text[0].toUpperCase() + text.slice(1), lines: [], arrays: {}}));
    this.later = debounced(300, () => this.check());
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
    this.guesses = {};
    this.change({level, texts: {}, shown: []});
    this.check();
  }

  /* Show the package's line. */
  reveal(line) {
    const {texts: {[line]: _, ...texts}, shown} = this.state;
    this.change({texts, shown: [...shown, line]});
    this.check();
  }

  reset(line) {
    const {[line]: _, ...texts} = this.state.texts;
    this.change({texts});
    this.check();
  }

  /* The judge */

  check() {
    if (this.state === this.checked) return;
    this.checked = this.state;
    this.send();
    this.update();
  }

  send() {
    const {texts: edits} = this.state;
    this.isWaiting = LIVE !== null && Object.keys(edits).length > 0;
    if (this.isWaiting) this.requests.send({layer: this.layer.name, edits});
    else {
      const [[line, text] = []] = Object.entries(edits);
      this.answer = line ? this.planted[line].find((each) => each.text === text).answer : null;
      announce(this.answer?.text ?? "");
    }
  }

  /* Replace a line by its planted mistake. */
  break(line) {
    this.change({texts: {...LIVE ? this.state.texts : {}, [line]: this.planted[line][0].text}});
    this.check();
  }

  judged(answer) {
    if (!Object.keys(this.state.texts).length) return;            // undone in the meantime
    this.answer = answer;
    this.isWaiting = Boolean(this.requests.next);
    announce(answer.text);
    this.update();
  }

  get isPending() {
    return this.state !== this.checked || this.isWaiting;
  }

  /* Display */

  update() {
    this.list.classList.toggle("asks", this.state.level > 0);
    for (const unit of this.units) {
      const {line} = unit.dataset, typed = line in this.state.texts;
      const verdicts = (this.answer?.lines ?? []).filter((each) => each.line === line).map(({verdict}) => verdict);
      const isWrong = verdicts.includes("WRONG") || typed && !LIVE && this.answer?.verdict === "wrong", isRight = typed && !isWrong && verdicts[0] === "ok";
      unit.classList.toggle("typed", typed);
      unit.classList.toggle("hidden", this.isAsked(unit) && !isRight);
      unit.classList.toggle("right", isRight);
      unit.classList.toggle("wrong", isWrong);
      if (typed) (unit.querySelector(".own code") ?? this.row(unit, "own", "code")).textContent = this.state.texts[line];
    }
    const {section} = this.layer, reveal = section.querySelector(".reveal-all");
    const left = this.units.filter((unit) => unit.matches(".hidden")).length;
    reveal.hidden = !left;
    reveal.textContent = `Reveal all ${left}`;
    for (const button of section.querySelectorAll(".level")) {
      button.setAttribute("aria-pressed", Number(button.dataset.level) === this.state.level);
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
    if (!LIVE || !this.typed[line] || unit.matches(".editing")) return;
    this.layer.reach(line);
    const {text, stub} = this.typed[line], before = this.state.texts[line] ?? (this.isAsked(unit) ? stub : text);
    const field = this.row(unit, "field", "textarea");
    unit.classList.add("editing");
    field.setAttribute("aria-label", `Line ${line.slice(1)} of the backward of ${this.layer.name}`);
    Object.assign(field, {value: before, rows: 1, spellcheck: false, autocapitalize: "off", autocomplete: "off"});
    const grow = () => {
      field.style.height = "";
      field.style.height = `${field.scrollHeight}px`;
    };
    new ResizeObserver(grow).observe(field.parentElement);
    field.addEventListener("input", () => {
      grow();
      this.type(line, field.value);
    });
    field.addEventListener("keydown", (event) => {
      const {key, shiftKey, isComposing} = event;
      if (isComposing || key !== "Escape" && (key !== "Enter" || shiftKey)) return;
      event.preventDefault();
      if (key === "Enter") this.check();
      else this.type(line, before);
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
    const tools = make("div", "tools"), isTyped = line in this.state.texts, isHidden = this.unit(line)?.matches(".hidden");
    const add = (text, action) => tools.append(makeButton(text.split(" ")[0].toLowerCase(), text, action));
    if (LIVE && this.typed[line]) add(isHidden ? "Type it" : "Edit", () => this.open(line));
    if (!isTyped && !isHidden && this.planted[line]) add("Break it", () => this.break(line));
    if (isTyped) add("Repair", () => this.reset(line));
    if (isHidden) add("Show me", () => this.reveal(line));
    return tools;
  }

  /* The question that hides a line: a choice of lines that look right, and a hint. */
  question(line) {
    const unit = this.unit(line), asked = make("p", "asking"), wrong = this.planted[line] ?? [], {text} = this.typed[line] ?? {};
    asked.append(...unit.querySelector(".question span:last-child").cloneNode(true).childNodes);
    const guess = wrong.find((each) => each.text === this.guesses[line]), choice = make("div", "choice");
    if (wrong.length > 1) {
      for (const each of [text, ...wrong.slice(-2).map((mistake) => mistake.text)].sort()) {
        const button = choice.appendChild(makeButton(each === guess?.text ? "wrong" : "", each, () => {
          this.guesses[line] = each;
          announce(each === text ? "Right" : wrong.find((mistake) => mistake.text === each).answer.text);
          if (each === text) return this.reveal(line);
          this.layer.refresh();
        }));
        if (each === guess?.text) button.append(make("strong", "", " ✗ WRONG"));
      }
    }
    const hint = unit.dataset.hint ? [make("p", "", unit.dataset.hint)] : [];
    const more = (title, words) => {
      const details = make("details", "hint");
      details.append(make("summary", "", title), ...words);
      return words.length ? [details] : [];
    };
    return [asked, choice, ...guess ? [make("p", "verdict wrong", guess.answer.text)] : [],
      ...more("Hint", hint), ...more("A worked example", this.layer.worked(line))];
  }

  /* The verdict in words. It is inserted as text, never as markup. */
  verdictElements(line) {
    const {answer} = this, box = make("div", "said");
    const say = (className, text) => box.appendChild(make("p", className, text));
    if (this.isPending || !answer) {
      say("verdict pending", "Checking …");
      return [box];
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
    return [box];
  }

  /* An edited line's array, the true one, and their difference, whose largest entry is marked. */
  judgedFigures(line, row) {
    const {layer} = this, [step] = layer.executions(line), found = this.isPending ? [] : this.answer?.arrays[line] ?? [];
    const names = found.length ? found.map(({name}) => name) : (step?.arrays ?? []).map(([name]) => name).slice(0, 1);
    const trio = make("div", "trio");
    if (!this.isPending && !found.length) trio.append(make("p", "caption", "This line has no wrong array to show."));
    else for (const name of names) {
      const given = found.find((each) => each.name === name)?.given, number = line.slice(1);
      const right = layer.array(step, name) ?? null, largest = right && largestOf(right.values);
      const comparable = given && right && String(given.shape) === String(right.shape);
      const difference = comparable && {shape: right.shape, values: right.values.map((value, i) => given.values[i] - value)};
      const off = difference ? difference.values.map((value) => Number.isFinite(value) ? Math.abs(value) : Infinity) : [];
      const most = Math.max(...off, 0), isEqual = most <= 1e-3 * largest;
      const worst = isEqual ? null : indexOf(off.findIndex((value) => value >= most * (1 - 1e-9)), right.shape);
      for (const [title, array, missing, scale] of [
        [`${name} of this line`, given, "", largest],
        [`the true ${name}`, right, "The page's line has no array of this name.", undefined],
        ["difference", isEqual ? null : difference, comparable ? "none in four digits" : given && right ? `The shapes differ: ${shapeText(given.shape)}, not ${shapeText(right.shape)}.` : "", undefined],
      ]) {
        const figure = trio.appendChild(make("figure", "heat"));
        figure.append(make("figcaption", "", title));
        if (!array) figure.append(make("p", "caption", missing));
        else {
          const index = worst ? worst.slice(0, -2) : leadingIndex(array.shape, row.leads, row.slice ?? 0);
          figure.append(make("small", "", `${shapeText(array.shape)}${index.length ? ` at [${index.join(", ")}]` : ""}`));
          const heat = new ArrayHeat(figure, title, array, {label: `${title}, line ${number}`, scale, index});
          if (array !== difference) continue;
          figure.querySelector("small").append(most < Infinity ? `, at most ${brief(most)}` : ", not finite");
          heat.mark("most", (each) => String(each) === String(worst));
        }
      }
    }
    return trio;
  }
}
