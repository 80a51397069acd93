/* The walk from one token's loss back to its embedding: a stop for each layer on the way. */
class Walk {
  constructor(section) {
    this.section = section;
    [this.way, this.stop] = [".way", ".stop"].map((each) => section.querySelector(each));
    [this.back, this.next, this.where] = ["back", "next", "at"].map((each) => section.querySelector(`#walk-${each}`));
    this.back.addEventListener("click", () => this.go(this.at - 1));
    this.next.addEventListener("click", () => this.go(this.at + 1));
    section.addEventListener("keydown", (event) => {
      const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (!step || event.defaultPrevented || event.target.matches("input")) return;
      event.preventDefault();
      this.go(this.at + step);
    });
  }

  /* Begin the walk for a text: `data` is that of the model. */
  show({tokens, losses, walk}) {
    this.section.classList.toggle("empty", !walk.length);
    this.stops = walk;
    this.text = `after “${tokens.slice(0, -1).join("")}” came “${tokens.at(-1)}”, which had `
      + `a probability of ${percent(Math.exp(-losses.at(-1)))}`;
    this.way.replaceChildren(...walk.map(({title}, i) => {
      const button = makeButton("", "", () => this.go(i));
      button.setAttribute("aria-label", `${i + 1}: ${title}`);
      return button;
    }));
    if (walk.length) this.go(0);
  }

  go(at) {
    if (!this.stops[at]) return;
    this.at = at;
    const stop = this.stops[at], {title, says, line, labels, first, drawing} = stop, next = this.stops[at + 1];
    [...this.way.children].forEach((each, i) => {
      each.classList.toggle("done", i <= at);
      each.setAttribute("aria-current", i === at ? "step" : "false");
    });
    this.where.textContent = `${at + 1} of ${this.stops.length}: ${this.text}.`;
    this.back.disabled = !at;
    this.next.disabled = !next;
    this.next.textContent = next ? `Next: ${next.title} →` : "The end";
    const code = make("p"), why = make("div", "why"), words = make("div", "words"), both = make("div", "item backward");
    const link = make(document.getElementById(line.address.split(":")[0]) ? "a" : "span", "", `line ${line.number} of ${line.file}`);
    link.href = `#${line.address}`;
    code.append(make("code", "", line.text), " ", link);
    why.setAttribute("aria-live", "polite");
    words.append(code, why, ...this.checked(stop));
    const {element} = new Equation(stop.data, stop.data.steps[0], why, {within: this.stop, place: title, labels, first});
    both.append(...drawing ? [branchDrawing(drawing)] : [], element, words);
    this.stop.replaceChildren(make("h3", "", title), make("p", "", says), both);
  }

  /* The number to check: by the backward, and measured. */
  checked({checked, made, labels, first, data}) {
    if (!checked) return [];
    const [claimed, measured] = checked;
    const name = data.arrays[0].shape.length ? `${made}[${labels[first]}]` : made, check = make("p");
    const isRight = Math.abs(claimed - measured) <= 0.01 * Math.abs(measured);
    check.append("Check it: the backward says ", make("code", "", `${name} = ${rounded(claimed, 3)}`),
      `; moved by ±0.001, this number changes the loss with the slope ${rounded(measured, 3)}: `,
      make("strong", isRight ? "mark" : "wrong", isRight ? "✓ right" : "✗ WRONG"));
    return [check];
  }
}

/* The residual stream and a branch: the forward above, the backward below. */
function branchDrawing({v, out, norm, layer}) {
  const picture = svg("svg", {viewBox: "0 0 460 205", class: "branch", role: "img", "aria-label":
    `${v} goes along the stream, and through ${norm} and ${layer}; both add up to ${out}. d${out} comes back both ways.`});
  const part = (kind, d, [cx, cy], boxes, texts) => {
    const group = svg("g", {class: kind}, picture);
    const write = (x, y, text) => svg("text", {x, y, "text-anchor": "middle"}, group).append(text);
    svg("path", {d}, group);
    svg("circle", {cx, cy, r: 12}, group);
    write(cx, cy + 5, "+");
    for (const x of boxes) svg("rect", {x: x - 50, y: 68, width: 100, height: 32, rx: 6}, group);
    for (const each of texts) write(...each);
  };
  part("forward", "M64 30H388M80 30C80 75 95 84 120 84H330C352 84 352 60 352 42", [352, 30], [170, 282],
    [[170, 89, norm], [282, 89, layer], [34, 35, v], [424, 35, out]]);
  part("backward", "M388 135H102m9-6-9 6 9 6M366 135C366 175 350 182 330 182H130C105 182 92 170 88 150m-3 10 3-10 9 6",
    [88, 135], [], [[34, 140, `d${v}`], [424, 140, `d${out}`], [232, 127, `d${out}, unchanged`], [232, 202, `d${v}_normed`]]);
  return picture;
}
