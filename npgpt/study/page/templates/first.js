/* The first screen: one linear layer and its gradients. The numbers of x and weight can be dragged. */
const LIMIT = 3, NUDGE = 1e-3, BEAT = 700, FIRST = ["weight", 1, 0];
const transposed = (a) => a[0].map((_, j) => a.map((row) => row[j]));
const size = (a) => `${a.length} × ${a[0].length}`;
const digits = (value) => value.toFixed(2).replace("-0.00", "0.00");

/* Compute a line such as "2 * x.T @ dy": an array, or a sentence if the shapes do not fit. */
function matmul(line, arrays) {
  const [, twice, ...names] = line.match(/^(2 \* )?(\S+) @ (\S+)$/);
  const [a, b] = names.map((name) => name.endsWith(".T") ? transposed(arrays[name.slice(0, -2)]) : arrays[name]);
  const misfit = `${names[0]} (${size(a)}) @ ${names[1]} (${size(b)}): ${a[0].length} columns do not fit ${b.length} rows`;
  return a[0].length !== b.length ? misfit : a.map((row) => transposed(b).map((column) =>
    row.reduce((sum, each, k) => sum + each * column[k], 0) * (twice ? 2 : 1)));
}

/* What is wrong with a gradient's number, given the slope that was measured; nothing if they agree. */
function fault(said, slope) {
  if (Math.abs(said - slope) < 1e-6) return "";
  if (Math.min(Math.abs(said), Math.abs(slope)) < 1e-6) return `off by ${digits(said - slope)}`;
  const ratio = Math.abs(said / slope), part = Math.max(ratio, 1 / ratio).toFixed(1);
  return said * slope < 0 ? "the sign is wrong" : `${part} times too ${ratio > 1 ? "large" : "small"}`;
}

class First {
  constructor(section, onPlayed) {
    this.numbers = {x: [[0.9, -0.5, 0.3], [-1.1, 1.2, 0.8]], weight: [[-0.5, -0.8], [1.1, 0.3], [-0.6, 0.9]]};
    this.one = (selector) => section.querySelector(selector);
    this.all = (selector) => [...section.querySelectorAll(selector)];
    this.onPlayed = onPlayed;
    for (const [name, [{length: columns}]] of Object.entries(this.numbers)) {
      const cells = this.all(`[data-of=${name}] span`);
      cells.forEach((cell, n) => this.listen(cell, [name, Math.floor(n / columns), n % columns], cells[n - 1], cells[n + 1]));
    }
    for (const each of this.all("input")) each.addEventListener("change", () => this.pick(this.picked[0] === "weight" ? this.picked : FIRST));
    this.one("#play").addEventListener("click", () => this.play(0));
    this.pick(FIRST);
  }

  /* Let a number be dragged, and changed with the arrow keys, which also move to its neighbours. */
  listen(cell, place, before, after) {
    const value = () => this.numbers[place[0]][place[1]][place[2]];
    cell.addEventListener("focus", () => this.pick(place));
    cell.addEventListener("pointerdown", ({clientY, pointerId}) => {
      cell.setPointerCapture(pointerId);
      cell.start = value() + clientY / 60;
    });
    cell.addEventListener("pointermove", ({clientY, pointerId}) => {
      if (cell.hasPointerCapture(pointerId)) this.pick(place, cell.start - clientY / 60);
    });
    cell.addEventListener("keydown", (event) => {
      const step = {ArrowUp: 0.1, "+": 0.1, ArrowDown: -0.1, "-": -0.1}[event.key];
      const next = {ArrowLeft: before, ArrowRight: after}[event.key];
      if (event.altKey || event.ctrlKey || event.metaKey || !(step || next)) return;
      event.preventDefault();
      if (step) this.pick(place, value() + step);
      else next.focus();
    });
  }

  /* Select a number, and give it another value. */
  pick([name, i, j], value = this.numbers[name][i][j]) {
    this.picked = [name, i, j];
    this.numbers[name][i][j] = Math.round(100 * Math.max(-LIMIT, Math.min(LIMIT, value))) / 100;
    this.draw();
  }

  /* The loss with another value of one number. */
  loss([name, i, j], value) {
    const changed = this.numbers[name].map((row, r) => r === i ? row.with(j, value) : row);
    const y = matmul("x @ weight", {...this.numbers, [name]: changed});
    return y.flat().reduce((sum, each) => sum + (each - 1) ** 2, 0) / 4;
  }

  measured(...place) {
    const losses = [NUDGE, -NUDGE].map((nudge) => this.loss(place, this.numbers[place[0]][place[1]][place[2]] + nudge));
    return (losses[0] - losses[1]) / (2 * NUDGE);
  }

  draw() {
    const {picked, picked: [name, i, j], numbers: {x, weight}} = this, at = this.numbers[name][i][j];
    const y = matmul("x @ weight", {x, weight}), dy = y.map((row) => row.map((each) => (each - 1) / 2));
    const line = matmul(this.one(":checked").value, {x, y, dy}), isArray = Array.isArray(line);
    const dweight = isArray ? line : weight.map((row) => row.map(() => null));
    const arrays = {x, weight, y, dx: matmul("dy @ weight.T", {dy, weight}), dweight, dy};
    for (const [each, array] of Object.entries(arrays)) this.fill(each, array);
    this.one("#first-loss").textContent = digits(this.loss(picked, at));

    const misfit = !isArray ? line : size(line) === size(weight) ? ""
      : `its shape is ${size(line)}, but weight is ${size(weight)}: it is transposed`;
    const right = !misfit && weight.every((row, r) => row.every((_, c) => !fault(line[r][c], this.measured("weight", r, c))));
    this.one(".mark").replaceWith(make("strong", right ? "mark" : "mark wrong", right ? "✓ right" : "✗ WRONG"));

    const unfit = name === "weight" && misfit, said = arrays[`d${name}`][i][j], measured = this.measured(...picked);
    const wrong = unfit || fault(said, measured);
    this.one(".says").replaceChildren(make("code", "", unfit ? "dweight" : `d${name}[${i}, ${j}]`),
      unfit ? ": " : ` says ${digits(said)}; measured slope ${digits(measured)}: `,
      make("strong", wrong ? "wrong" : "", wrong ? `✗ WRONG, ${wrong}` : "✓ right"));
    const curve = Array.from({length: 61}, (_, n) => n / 10 - LIMIT).map((value) => [value, this.loss(picked, value)]);
    plotLoss(this.one(".slope"), `${name}[${i}, ${j}]`, curve, at, this.loss(picked, at),
      unfit ? {measured} : wrong ? {measured, wrong: said} : {tangent: said});
  }

  fill(name, array) {
    const [picked, i, j] = this.picked, values = array.flat(), most = Math.max(...values.map(Math.abs), 0.5);
    this.one(`[data-of=${name}] small`).textContent = size(array);
    this.one(`[data-of=${name}]`).style.setProperty("--columns", array[0].length);
    this.all(`[data-of=${name}] span`).forEach((cell, n) => {
      const isPicked = name.replace("d", "") === picked && n === i * array[0].length + j;
      cell.textContent = values[n] === null ? "–" : digits(values[n]);
      cell.style = `--part: ${Math.abs(values[n]) / most}; --colour: var(--${values[n] < 0 ? "negative" : "positive"})`;
      cell.classList.toggle("picked", isPicked);
      if (!this.numbers[name]) return;
      cell.setAttribute("aria-valuenow", values[n]);
      if (name === picked) cell.tabIndex = isPicked ? 0 : -1;       // one tab stop for each array
    });
  }

  /* Let the gradient run from right to left: its arrays appear in order, and then it goes on. */
  play(step) {
    clearTimeout(this.timer);
    ["dloss", "dy", "dweight", "dx"].forEach((name, n) => this.all(`[data-of=${name}]`).forEach(({classList}) => {
      classList.toggle("gone", n > step);
      classList.toggle("now", n === step);
    }));
    if (step < 4) this.timer = setTimeout(() => this.play(step + 1), BEAT);
    else this.onPlayed();
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
