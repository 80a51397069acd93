/* A line's code, with a picture for each array. Of a number that is chosen the terms light up, and
   its sum is written out in `why`.
   data: {name, steps, arrays, parts} of a layer, or of a stop of the walk. within: the element in which
   it must fit; place: what is unique of its pictures; lead(shape): which matrix of an array is shown;
   choose, chosen: for lines that make too many arrays; labels: of the rows; first: the row of the number
   that is chosen at first, by default the largest one that the line makes. */
class Equation {
  constructor(data, step, why, {within, place, lead = () => [], choose, chosen, labels = [], first}) {
    Object.assign(this, {data, step, why, place, lead, labels, element: make("div", "equation"), heats: []});
    const made = (name) => madeBy(step, name, data), left = new Set(step.arrays.map(([name]) => name));
    for (const part of data.parts[step.line] ?? []) {
      const [name, isMade, flipped] = typeof part === "string" ? [] : part;
      if (isMade && made(name)) left.delete(name), this.picture(name, made(name), {isMade});
      else if (!isMade && name in step.at) this.picture(name, data.arrays[step.at[name]], {isFlipped: Boolean(flipped)});
      else this.code(flipped ?? name ?? part);
    }
    if (left.size) this.code(" → ");
    const names = [...left], isChoice = names.length > 3;
    if (isChoice) this.element.append(...choose(names));
    for (const name of isChoice ? [names[chosen]] : names) this.picture(name, made(name), {isMade: true});
    new ResizeObserver((_, observer) => this.element.isConnected ? fitTogether(this.heats, this.element)
      : observer.disconnect()).observe(within);
    const result = this.heats.find((heat) => heat.isMade && heat.name in step.from);
    if (result) this.choose(result, labels.length ? [result.rows > 1 ? first : 0, 0] : result.largestPlace());
  }

  code(text) {
    const last = this.element.querySelector(":scope > code:last-child");
    (last ?? this.element.appendChild(make("code"))).append(text);
  }

  picture(name, array, {isMade, isFlipped}) {
    const shown = isFlipped ? `${name}.T` : name, figure = this.element.appendChild(make("figure", "heat"));
    const shape = isFlipped ? [...array.shape.slice(0, -2), ...array.shape.slice(-2).reverse()] : array.shape;
    const count = this.heats.filter((heat) => heat.shown === shown).length, {heats, lead, place} = this;
    const forward = this.data.steps.filter(({line}) => line[0] === "f").flatMap(({arrays}) => arrays.map(([name]) => name));
    const isOfForward = forward.length ? forward.includes(name) : name[0] !== "d";      // none in the walk
    figure.append(make("figcaption", isOfForward ? "forward" : "backward", shown),
      make("small", "", this.labels.length ? "" : shapeText(shape)));
    const heat = new Heat(figure, name, array, {
      label: `${shown}${count ? ` (${count + 1})` : ""}, ${place}`, lead: lead(array.shape), isFlipped,
      labels: heats.some((each) => each.rows > 1) || !array.shape.length ? [] : this.labels,
    });
    heats.push(Object.assign(heat, {isMade, shown, onPick: (at) => this.choose(heat, at)}));
  }

  choose(heat, place) {
    const index = heat.index(place), entry = heat.entry(place);
    const found = heat.isMade ? {step: this.step, name: heat.name} : this.maker(heat.name);
    const origin = found?.step.from[found.name], parts = origin && partsOf(origin, index, entry);
    const used = heat.isMade && parts ? parts.slots.map(String) : [];
    for (const each of this.heats) {
      each.mark("chosen", (other) => each === heat && other === entry);
      each.mark("on", (other) => !each.isMade && used.includes(String([each.name, other])));
    }
    this.why.replaceChildren(...this.origin(heat, place, found, parts));
  }

  /* The step that made an array which this one reads, {step, name}: of its function, or of the forward,
     whose cache the backward has. */
  maker(name) {
    const {data: {steps}, step} = this, before = steps.slice(0, steps.indexOf(step));
    const made = (each) => each.arrays.find(([other, i]) => i === step.at[name] && other in each.from);
    const found = before.findLast((each) => made(each));
    return found && {step: found, name: made(found)[0]};
  }

  /* Where a number of a picture comes from. found: the step that made it; parts: see `partsOf`. */
  origin(heat, place, found, parts) {
    const index = heat.index(place), value = heat.value(place), {labels, data} = this;
    const label = (name, index) => labels.length && index.length ? `${name}[${labels[index[0]]}]` : entryName(name, index);
    const name = make("code", "", `${label(heat.name, index)} = ${rounded(numberOf(value))}`);
    if (!parts) return [name, make("p", "caption", heat.isMade ? "computed by this line" : "an input, or a constant")];
    const sum = make("div", "sum"), {step} = found;
    sum.append(...originElements(found.name, index, value, parts, (name) => data.arrays[step.at[name]], label));
    if (heat.isMade) return [sum];
    const link = make("a", "", `line ${step.line.slice(1)}`);
    link.href = `#${data.name}:${step.line}`;
    return [link, sum];
  }
}
