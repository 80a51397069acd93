const LAST_STEP = 2000;         // the server stops here

/* A tiny model that trains on the server while it is in view: its loss, and the gradient norm of each part. */
class Training {
  constructor(section) {
    this.section = section;
    this.now = section.querySelector(".now");
    this.button = section.querySelector("button");
    this.losses = [];
    this.norms = {};
    this.requests = new Requests("/train", (answer, sent) => this.add(answer, sent), (text) => {
      this.now.textContent = text;
      this.run(false);
    });
    this.button.addEventListener("click", () => {
      this.wanted = !this.wanted;
      this.run(this.seen);
    });
    this.wanted = !matchMedia("(prefers-reduced-motion: reduce)").matches;     // otherwise the button starts it
    this.draw();
    new IntersectionObserver(([{isIntersecting}]) => this.run(isIntersecting)).observe(section);
  }

  /* Ask for new steps twice a second while in view: the server trains only when asked. */
  run(seen) {
    this.seen = seen;
    clearInterval(this.timer);
    this.button.textContent = this.wanted ? "Pause" : "Train";
    if (!seen || !this.wanted || this.losses.length >= LAST_STEP) return;
    const ask = () => document.hidden || this.requests.send({since: this.losses.length});
    ask();
    this.timer = setInterval(ask, 500);
  }

  add({loss, norms}, {since}) {
    if (since !== this.losses.length) return;           // asked for twice, because the first answer took long
    this.losses.push(...loss);
    for (const [name, values] of Object.entries(norms)) (this.norms[name] ??= []).push(...values);
    this.draw();
    if (this.losses.length >= LAST_STEP) clearInterval(this.timer);
  }

  draw() {
    const {losses, norms} = this;
    line(this.section.querySelector(".loss-curve"), losses, 600, 150);
    if (losses.length) this.now.textContent = `step ${losses.length}: loss ${losses.at(-1).toFixed(3)} nats, initially ${losses[0].toFixed(3)}`;
    this.section.querySelector(".norms").replaceChildren(...Object.entries(norms).map(([name, values]) => {
      const row = make("li"), curve = svg("svg", {viewBox: "0 0 160 24", preserveAspectRatio: "none", "aria-hidden": true});
      row.append(make("code", "", name), curve, make("span", "", values.at(-1)?.toPrecision(2) ?? ""));
      line(curve, values, 160, 24);
      return row;
    }));
  }
}

/* Draw numbers as a line into an SVG, at most about one per pixel. */
function line(element, values, width, height) {
  const every = Math.ceil(values.length / width) || 1, kept = values.filter((_, i) => i % every === 0);
  const x = scaled([0, Math.max(kept.length - 1, 1)], [2, width - 2]);
  const y = scaled([Math.min(...kept), Math.max(...kept)], [height - 3, 3]);
  element.replaceChildren();
  svg("polyline", {points: kept.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" "), class: "curve"}, element);
}
