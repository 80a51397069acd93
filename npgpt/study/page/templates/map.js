/* The map: the gradient of one token's loss on its way back through the boxes. */
class GradientMap {
  constructor(section) {
    this.boxes = [...section.querySelectorAll(".box")];
    [this.tokens, this.block] = ["tokens", "block"].map((name) => section.querySelector(`#map-${name}`));
    this.block.addEventListener("change", () => this.place(0, Number(this.block.value)));
    section.querySelector("#map-play").addEventListener("click", () => this.play());
  }

  /* Show the tokens of a text; `flow`: for each loss, the gradient's norm at each stage. */
  show({tokens, stages, flow}) {
    this.stages = stages;
    this.tokens.replaceChildren(...tokens.map((text, i) => {
      const token = make("label", "token"), choice = Object.assign(make("input"), {type: "radio", name: "map-token"});
      choice.addEventListener("change", () => this.follow(flow[i - 1]));
      Object.assign(choice, {disabled: !flow[i - 1], checked: i === flow.length});
      token.append(choice, make("span", "text", text));
      return token;
    }));
    this.follow(flow.at(-1));
  }

  follow(norms) {
    this.norms = norms;
    this.place(0);
  }

  /* Show the norms from the loss back to a stage, those in a block for the block that was entered last. */
  place(step, block = this.stages.slice(step).find(({layer}) => layer !== null)?.layer) {
    clearTimeout(this.timer);
    const logs = this.norms.filter(Boolean).map(Math.log), part = scaled([Math.min(...logs), Math.max(...logs)], [0.08, 1]);
    if (block !== undefined) this.block.value = block;
    for (const box of this.boxes) {
      const at = this.stages.findIndex((stage) => stage.box === box.dataset.box && [null, block].includes(stage.layer));
      const norm = at >= step ? this.norms[at] : undefined;
      box.classList.toggle("here", at === step);
      box.style.setProperty("--part", norm ? part(Math.log(norm)) : 0);
      box.querySelector("output").textContent = norm?.toPrecision(2) ?? "";
    }
  }

  /* Run from the loss back to the embedding, in about five seconds. */
  play(step = this.stages.length - 1) {
    this.place(step);
    if (step === this.stages.length - 1) this.boxes.at(-1).scrollIntoView({block: "nearest"});
    if (step) this.timer = setTimeout(() => this.play(step - 1), Math.min(300, 6000 / this.stages.length));
  }
}
