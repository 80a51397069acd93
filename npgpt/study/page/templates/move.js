const FARTHEST = 100;       // limit of a number's absolute value

/* Change one entry of a layer's input: all arrays follow, and the loss has the slope that the gradient predicts. */
class Mover {
  constructor(layer) {
    this.layer = layer;
    this.element = make("div", "mover");
    this.requests = new Requests("/move", (answer, sent) => this.moved(answer, sent), (text) => this.words.textContent = text);
  }

  /* Make the entries of a heat map in a row selectable if its array is an input of the layer. */
  attach(heat, array, row) {
    if (!this.layer.inputs.includes(heat.name) || array !== this.layer.array(this.layer.data.steps[0], heat.name)) return;
    heat.figure.classList.add("movable");
    heat.onPress = (place, event) => this.press(heat, place, event, row);
    if (LIVE) heat.invite = "drag an entry, or press Enter";
    heat.rest();
    this.mark(heat);
  }

  /* Mark the chosen entry. */
  mark(heat) {
    if (!heat.figure.matches(".movable")) return;
    heat.mark("chosen", (index) => this.name === heat.name && String(index) === String(this.index));
  }

  press(heat, place, event, row) {
    if (heat.name !== this.name || String(heat.index(place)) !== String(this.index)) this.choose(heat, place, row);
    if (event.type === "keydown") this.field.focus();
    else if (LIVE) this.drag(heat.cells, event);
  }

  /* Dragging up increases the number, by 1 per 100 pixels. The captured pointer selects no other line. */
  drag(cells, {pointerId, clientY}) {
    const from = this.value;
    cells.setPointerCapture(pointerId);
    cells.onpointermove = (event) => event.clientY !== clientY && this.set(from + (clientY - event.clientY) / 100);
    cells.onlostpointercapture = () => cells.onpointermove = null;
  }

  choose(heat, place, row) {
    this.reset();
    this.row = row;
    row.querySelector(".panel").append(this.element);
    this.original = this.layer.ways.map((way) => ({...way}));
    Object.assign(this, {name: heat.name, index: heat.index(place), value: heat.value(...place)});
    this.label = `${this.name}[${this.index.join(", ")}]`;
    this.field = make("input");
    Object.assign(this.field, {type: "number", step: 0.05, value: this.value, disabled: !LIVE});
    this.field.addEventListener("input", () => this.field.value !== "" && this.set(Number(this.field.value), true));
    const number = make("p", "value"), label = make("label", "", `${this.label} = `);
    label.append(this.field);
    number.append(label, " ", makeButton("", "Reset", () => this.reset()));
    this.words = make("p", "slope");
    this.words.setAttribute("aria-live", "polite");
    this.plot = svg("svg", {viewBox: "0 0 300 130", role: "img"});
    const start = make("p", "start", `This page is a file. To change this number, run ${START}.`);
    this.element.replaceChildren(number, ...LIVE ? [this.words, this.plot] : [start]);
    this.element.hidden = false;
    this.layer.moved();
    if (LIVE) this.send();
  }

  set(value, isTyped = false) {
    this.value = Number(Math.max(-FARTHEST, Math.min(FARTHEST, value)).toFixed(3));
    if (!isTyped) this.field.value = this.value;
    this.send();
  }

  send() {
    const {name, index, value} = this;
    this.requests.send({layer: this.layer.name, name, index, value});
  }

  moved({ways, loss, slope, curve}, sent) {
    if (sent.name !== this.name || sent.index !== this.index) return;
    this.layer.ways.forEach((way, i) => Object.assign(way, ways[i]));
    this.layer.moved();
    this.words.textContent = `loss = ${this.layer.loss} = ${brief(loss)}; the gradient says the slope is ${brief(slope)}`;
    if ([loss, slope].every(Number.isFinite)) {
      plotLoss(this.plot, this.label, curve.filter((pair) => pair.every(Number.isFinite)), sent.value, loss, {tangent: slope});
    }
  }

  /* Restore the original number. */
  reset() {
    if (!this.original) return;
    this.layer.ways.forEach((way, i) => Object.assign(way, this.original[i]));
    this.original = this.name = null;
    this.element.hidden = true;
    this.layer.moved();
  }
}

const brief = (number) => typeof number === "number" ? String(Number(number.toPrecision(3))) : number;

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
