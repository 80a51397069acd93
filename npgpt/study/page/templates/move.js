const FARTHEST = 100;       // limit of a number's absolute value

/* Change one entry of a layer's input: all arrays follow, and the loss has the slope that the gradient predicts. */
class Mover {
  constructor(layer) {
    this.layer = layer;
    this.element = layer.section.querySelector(".mover");
    this.requests = new Requests("/move", (answer, sent) => this.moved(answer, sent), (text) => this.say(text));
  }

  /* Make the entries of a heat map selectable if its array is an input of the layer. */
  attach(heat, array) {
    if (!this.layer.inputs.includes(heat.name) || array !== this.layer.array(0, heat.name)) return;
    heat.figure.classList.add("movable");
    heat.onPress = (place, event) => this.press(heat, place, event);
    heat.invite = "drag an entry, or press Enter, to change it";
    heat.rest();
    this.mark(heat);
  }

  /* Mark the chosen entry. */
  mark(heat) {
    if (!heat.figure.matches(".movable")) return;
    heat.mark("chosen", (index) => this.name === heat.name && String(index) === String(this.index));
  }

  press(heat, place, event) {
    if (heat.name !== this.name || String(heat.index(place)) !== String(this.index)) this.choose(heat, place);
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

  choose(heat, place) {
    this.reset();
    this.original = this.layer.ways.map(({steps, arrays}) => ({steps, arrays}));
    Object.assign(this, {name: heat.name, index: heat.index(place), value: heat.values[heat.flat(...place)]});
    this.show();
    this.update();
    if (LIVE) this.send();
  }

  show() {
    this.label = `${this.name}[${this.index.join(", ")}]`;
    this.field = make("input");
    Object.assign(this.field, {type: "number", step: 0.05, value: this.value, disabled: !LIVE});
    this.field.addEventListener("input", () => this.field.value !== "" && this.set(Number(this.field.value), true));
    this.field.addEventListener("keydown", (event) => event.stopPropagation());
    const row = make("p", "value"), label = make("label", "", `${this.label} = `);
    label.append(this.field);
    row.append(label, " ", makeButton("", "Reset", () => this.reset()));
    this.words = make("p", "slope");
    this.words.setAttribute("aria-live", "polite");
    this.plot = svg("svg", {viewBox: "0 0 300 130", role: "img"});
    this.element.replaceChildren(row, ...LIVE ? [this.words, this.plot] : [howToStart("change this number")]);
    this.element.hidden = false;
    this.element.parentElement.scrollTop = 0;
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
    this.layer.ways.forEach((way, i) => Object.assign(way, {steps: ways[i].steps, arrays: ways[i].arrays}));
    this.update();
    this.say(`loss = ${this.layer.loss} = ${brief(loss)}; the gradient says the slope is ${brief(slope)}`);
    if ([loss, slope].every(Number.isFinite)) this.draw(curve.filter((pair) => pair.every(Number.isFinite)), sent.value, loss, slope);
  }

  say(text) {
    this.words.textContent = text;
  }

  update() {
    for (const update of this.layer.heats) update();
  }

  /* Plot the loss against the number, and its tangent with the slope of the gradient. */
  draw(curve, value, loss, slope) {
    const [values, losses] = [0, 1].map((i) => curve.map((pair) => pair[i]));
    const [left, right] = [values[0], values.at(-1)], [low, high] = [Math.min(...losses), Math.max(...losses)];
    const x = scaled([left, right], [8, 292]), y = scaled([low, high], [100, 12]), reach = (right - left) * 0.3;
    this.plot.replaceChildren();
    this.plot.setAttribute("aria-label", `The loss for ${this.label} from ${brief(left)} to ${brief(right)}, and its slope at ${brief(value)}`);
    const points = curve.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ");
    svg("polyline", {points, class: "curve"}, this.plot);
    svg("line", {x1: x(value - reach), y1: y(loss - slope * reach), x2: x(value + reach), y2: y(loss + slope * reach), class: "tangent"}, this.plot);
    svg("circle", {cx: x(value), cy: y(loss), r: 4.5}, this.plot);
    for (const [at, anchor, text] of [[8, "start", brief(left)], [150, "middle", this.label], [292, "end", brief(right)]]) {
      svg("text", {x: at, y: 122, "text-anchor": anchor}, this.plot).textContent = text;
    }
  }

  /* Restore the original number. */
  reset() {
    if (!this.original) return;
    this.layer.ways.forEach((way, i) => Object.assign(way, this.original[i]));
    this.original = this.name = null;
    this.element.hidden = true;
    this.update();
  }
}

const brief = (number) => typeof number === "number" ? String(Number(number.toPrecision(3))) : number;
