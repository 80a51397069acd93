/* The first screen: one linear layer and its gradients. The numbers of x and weight can be dragged.
   Its lines are in DATA.first: code -> {shape, from}. */
const LIMIT = 3, NUDGE = 1e-3, BEAT = 700, FIRST = ["dweight", 2];
const INPUTS = {
  x: {shape: [2, 3], values: [0.9, -0.5, 0.3, -1.1, 1.2, 0.8]},
  weight: {shape: [3, 2], values: [-0.5, -0.8, 1.1, 0.3, -0.6, 0.9]},
};
const FORWARD = {y: "x @ weight"}, LOSS = "((y - 1) ** 2).mean()";

/* The entry of what a line computes, as an expression. */
const entryParts = ({shape, from}, entry) => partsOf(from, indexOf(entry, shape), entry);

/* Compute the lines {name: code}, in order; return all arrays, name -> {shape, values}. */
function computed(lines, arrays) {
  const all = {...arrays};
  for (const [name, code] of Object.entries(lines)) {
    const line = DATA.first[code];
    all[name] = {...line, values: Array.from({length: sizeOf(line.shape)}, (_, entry) => {
      const {tree, slots} = entryParts(line, entry);
      return evaluated(tree, (i) => all[slots[i][0]].values[slots[i][1]]);
    })};
  }
  return all;
}

/* What is wrong with a gradient's number, given the slope that was measured; nothing if they agree. */
function fault(said, slope) {
  if (Math.abs(said - slope) < 1e-6) return "";
  if (Math.min(Math.abs(said), Math.abs(slope)) < 1e-6) return `off by ${rounded(said - slope)}`;
  const ratio = Math.abs(said / slope), part = Math.max(ratio, 1 / ratio).toFixed(1);
  return said * slope < 0 ? "the sign is wrong" : `${part} times too ${ratio > 1 ? "large" : "small"}`;
}

/* Arrays with another value of one entry. */
const changed = (arrays, name, entry, value) =>
  ({...arrays, [name]: {...arrays[name], values: arrays[name].values.with(entry, value)}});

class First {
  constructor(section) {
    this.inputs = INPUTS;
    this.one = (selector) => section.querySelector(selector);
    this.all = (selector) => [...section.querySelectorAll(selector)];
    this.heats = this.all("figure").map((figure) => {
      const name = figure.dataset.of, heat = new Heat(figure, name, INPUTS[name] ?? {shape: [1, 1], values: [0]});
      heat.onPick = (place) => this.pick([name, heat.entry(place)]);
      if (name in INPUTS) this.listen(heat);
      return heat;
    });
    for (const each of this.all("input")) each.addEventListener("change", () => this.pick(FIRST));
    this.one("#play").addEventListener("click", () => this.play(0));
    this.pick(FIRST);
  }

  /* Let the numbers of an input be dragged, or changed with + and -. */
  listen(heat) {
    const {name, cells} = heat;
    let entry, start;
    cells.addEventListener("pointerdown", ({target, clientY, pointerId}) => {
      if (!target.place) return;
      cells.setPointerCapture(pointerId);
      entry = heat.entry(target.place);
      start = this.inputs[name].values[entry] + clientY / 60;
      this.pick([name, entry]);
    });
    cells.addEventListener("pointermove", ({clientY, pointerId}) => {
      if (cells.hasPointerCapture(pointerId)) this.pick([name, entry], start - clientY / 60);
    });
    cells.addEventListener("keydown", ({key}) => {
      const step = {"+": 0.1, "-": -0.1}[key], [of, at] = this.picked;
      if (step && of === name) this.pick(this.picked, this.inputs[name].values[at] + step);
    });
  }

  /* Choose a number, and give it another value. */
  pick([name, entry], value) {
    this.picked = [name, entry];
    if (value !== undefined) {
      const rounded = Math.round(100 * Math.max(-LIMIT, Math.min(LIMIT, value))) / 100;
      this.inputs = changed(this.inputs, name, entry, rounded);
    }
    this.draw();
  }

  /* The loss with another value of an entry of x, weight or y. */
  loss(name, entry, value) {
    const arrays = changed(this.arrays, name, entry, value);
    return computed({...name === "y" ? {} : FORWARD, loss: LOSS}, arrays).loss.values[0];
  }

  measured(name, entry) {
    const at = this.arrays[name].values[entry];
    const [up, down] = [NUDGE, -NUDGE].map((nudge) => this.loss(name, entry, at + nudge));
    return (up - down) / (2 * NUDGE);
  }

  draw() {
    const line = this.one(":checked").value, [name, entry] = this.picked, variable = name.replace(/^d/, "");
    const lines = {...FORWARD, loss: LOSS, dy: "2 * (y - 1) / 4", dweight: line, dx: "dy @ weight.T"};
    const arrays = this.arrays = computed(lines, this.inputs), {weight, dweight} = arrays;
    const at = arrays[variable].values[entry], loss = this.loss(variable, entry, at);
    const code = DATA.first[lines[name]], parts = code ? entryParts(code, entry) : {slots: []};
    for (const heat of this.heats) this.fill(heat, arrays[heat.name], parts);
    this.one("#first-loss").textContent = rounded(loss);
    this.explain(parts);

    const misfit = String(dweight.shape) === String(weight.shape) ? ""
      : `its shape is ${shapeText(dweight.shape)}, but weight is ${shapeText(weight.shape)}: it is transposed`;
    const right = !misfit && dweight.values.every((value, i) => !fault(value, this.measured("weight", i)));
    this.one(".mark").replaceWith(make("strong", right ? "mark" : "mark wrong", right ? "✓ right" : "✗ WRONG"));

    const unfit = variable === "weight" && misfit, said = arrays[`d${variable}`].values[entry];
    const measured = this.measured(variable, entry), label = entryName(variable, indexOf(entry, arrays[variable].shape));
    const wrong = unfit || fault(said, measured);
    this.one(".says").replaceChildren(make("code", "", unfit ? "dweight" : `d${label}`),
      unfit ? ": " : ` says ${rounded(said)}; measured slope ${rounded(measured)}: `,
      make("strong", wrong ? "wrong" : "", wrong ? `✗ WRONG, ${wrong}` : "✓ right"));
    const curve = Array.from({length: 61}, (_, n) => n / 10 - LIMIT).map((value) => [value, this.loss(variable, entry, value)]);
    plotLoss(this.one(".slope"), label, curve, at, loss,
      unfit ? {measured} : wrong ? {measured, wrong: said} : {tangent: said});
  }

  fill(heat, array, {slots}) {
    const [picked, entry] = this.picked, {name, figure} = heat, bare = (each) => each.replace(/^d/, "");
    heat.show(array);
    heat.fit(MOST);
    heat.mark("chosen", (each) => name === picked && each === entry);
    heat.mark("picked", (each) => name !== picked && bare(name) === bare(picked) && each === entry);
    heat.mark("on", (each) => slots.some(([of, at]) => of === name && at === each));
    figure.querySelector("small").textContent = shapeText(array.shape);
  }

  /* Say where the chosen number comes from. */
  explain({tree, slots}) {
    const [name, entry] = this.picked, {shape, values} = this.arrays[name], index = indexOf(entry, shape);
    const sum = make("div", "sum");
    if (tree) sum.append(...originElements(name, index, values[entry], {tree, slots}, (of) => this.arrays[of]));
    else sum.append(make("code", "", `${entryName(name, index)} = ${rounded(values[entry])}`));
    this.one(".why").replaceChildren(sum, make("p", "caption", this.one(`[data-of=${name}]`).dataset.say));
  }

  /* Let the gradient run from right to left: its arrays appear in order, and then it goes on. */
  play(step) {
    clearTimeout(this.timer);
    ["dloss", "dy", "dweight", "dx"].forEach((name, n) => this.all(`[data-of=${name}]`).forEach(({classList}) => {
      classList.toggle("gone", n > step);
      classList.toggle("now", n === step);
    }));
    if (step < 4) this.timer = setTimeout(() => this.play(step + 1), BEAT);
  }
}

/* Plot the loss against a number, and lines through its value with these slopes, {className: slope}. */
function plotLoss(plot, label, curve, value, loss, slopes) {
  const [values, losses] = [0, 1].map((i) => curve.map((pair) => pair[i])), [left, right] = [values[0], values.at(-1)];
  const x = scaled([left, right], [8, 292]), y = scaled([Math.min(...losses), Math.max(...losses)], [100, 12]);
  plot.replaceChildren();
  plot.setAttribute("aria-label", `The loss for ${label} from ${brief(left)} to ${brief(right)}, and its slope at ${brief(value)}`);
  svg("polyline", {points: curve.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "), class: "curve"}, plot);
  for (const [name, slope] of Object.entries(slopes)) {
    const [a, b] = [-0.2, 0.2].map((part) => part * (right - left));
    svg("line", {x1: x(value + a), y1: y(loss + slope * a), x2: x(value + b), y2: y(loss + slope * b), class: name}, plot);
  }
  svg("circle", {cx: x(value), cy: y(loss), r: 4.5}, plot);
  for (const [at, anchor, text] of [[8, "start", brief(left)], [150, "middle", `loss against ${label}`], [292, "end", brief(right)]]) {
    svg("text", {x: at, y: 122, "text-anchor": anchor}, plot).textContent = text;
  }
}
