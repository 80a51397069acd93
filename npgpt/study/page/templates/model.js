/* The whole model on a text */

const modelPart = (name) => document.getElementById(`model-${name}`);
const shade = (value, largest) => largest ? Math.sqrt(value / largest) : 0;

const percent = (part) => `${Number((100 * part).toPrecision(2))} %`;

class Model {
  constructor(onShow) {
    this.pulls = new Heat(modelPart("pulls"), "Gradient norms, one row per loss, one column per token");
    this.attention = new Heat(modelPart("attention"), "Attention weights");
    modelPart("tokens").addEventListener("pointerleave", () => this.showToken(this.chosen));
    this.show(DATA.model);
    const field = modelPart("text"), error = modelPart("error"), requests = new Requests("/text", (answer) => {
      error.textContent = "";
      this.show(answer);
      onShow(answer);
    }, (text) => error.textContent = text);
    field.addEventListener("input", debounced(400, () => requests.send({text: field.value})));
    field.disabled = !LIVE;
  }

  /* Show the results for a text: `data` comes with the page, or from the server. */
  show(data) {
    this.data = data;
    modelPart("count").textContent = data.tokens.length;
    modelPart("loss").textContent = data.loss.toFixed(3);
    modelPart("left-out").replaceChildren(...data.left_out.map((sentence) => make("p", "caption", sentence)));
    this.showTokens();
    this.showNext();
    this.showLens();
    this.showPulls();
    this.showAttention();
  }

  quoted(i) {
    return `“${this.data.tokens[i]}” (${i})`;
  }

  showTokens() {
    const {tokens, losses, norms} = this.data, largest = largestOf(norms);
    this.tokens = tokens.map((text, i) => {
      const token = makeButton("token", undefined, () => this.showToken(this.chosen = i));
      token.append(make("span", "text", text), make("span", "loss", i ? losses[i - 1].toFixed(2) : "–"));
      if (Number.isFinite(norms[i])) {
        const bar = token.appendChild(make("span", "norm"));
        bar.style.setProperty("--part", largest ? norms[i] / largest : 0);
        bar.title = `norm of the gradient of the mean loss: ${norms[i]}`;
      }
      token.addEventListener("pointerover", (event) => event.pointerType === "mouse" && this.showToken(i));
      token.addEventListener("focus", () => this.showToken(i));
      return token;
    });
    modelPart("tokens").replaceChildren(...this.tokens);
    oneTabStop(modelPart("tokens"), "button");
    this.showToken(this.chosen = this.data.pulls.length);       // the last token with gradients
  }

  showToken(i) {
    const {tokens, pulls, losses, norms} = this.data;
    const row = pulls[i - 1] ?? [], largest = Math.max(...row, 0), most = row.indexOf(largest), loss = losses[i - 1];
    this.tokens.forEach((token, j) => {
      token.classList.toggle("here", j === i);
      token.classList.toggle("shaded", j in row);
      token.style.setProperty("--part", j in row ? shade(row[j], largest) : 0);
    });
    modelPart("readout").textContent = (i === 0
      ? "The first token is not predicted."
      : `“${tokens[i]}”: loss ${loss}, probability ${percent(Math.exp(-loss))}`
        + (row.length ? `; largest gradient norm ${largest}, for “${tokens[most]}” at position ${most}` : ""))
      + (!Number.isFinite(norms[i]) ? "" : `; gradient norm of the mean loss: ${norms[i]}`);
  }

  /* What comes next: a bar for each of the likeliest tokens. */
  showNext() {
    const {next} = this.data;
    modelPart("bars").replaceChildren(...next.map(([text, probability]) => {
      const row = make("li"), bar = make("span", "probability");
      bar.style.setProperty("--part", probability / next[0][1]);
      row.append(make("code", "", text), bar, make("span", "percent", percent(probability)));
      return row;
    }));
  }

  /* What each block would predict: one row per block, one cell per token, marked if it is correct. */
  showLens() {
    const {tokens, lens} = this.data;
    const row = (title, cells) => {
      const row = make("tr");
      row.append(make(title ? "th" : "td", "", title), ...cells);
      return row;
    };
    const cell = (layer) => ([text, probability, right], i) => {
      const cell = make("td", probability === right ? "right" : "", text);
      cell.style.setProperty("--part", probability);
      cell.title = `${layer}, after ${this.quoted(i)}: “${text}” ${percent(probability)}, correct: ${this.quoted(i + 1)} ${percent(right)}`;
      return cell;
    };
    const name = (i) => i ? `block ${i - 1}` : "embedding";
    modelPart("lens").replaceChildren(
      row("", tokens.slice(0, -1).map((text) => make("th", "", text))),
      ...lens.map((cells, i) => row(name(i), cells.map(cell(name(i))))));
  }

  showPulls() {
    const {tokens, pulls} = this.data, largest = Math.max(...pulls.flat(), 0);
    const columns = Math.max(...pulls.map((row) => row.length));
    this.pulls.show({
      rows: pulls.length, columns,
      axes: {row: "loss of ↓", column: "gradient on →", rows: tokens.slice(1, 1 + pulls.length), columns: tokens.slice(0, columns)},
      part: (r, c) => c in pulls[r] ? shade(pulls[r][c], largest) : null,
      label: (r, c) => `gradient norm of the loss of ${this.quoted(r + 1)} for ${this.quoted(c)}: ${pulls[r][c]}`,
    });
  }

  showAttention() {
    const T = this.data.tokens.length - 1, heads = modelPart("heads");
    heads.replaceChildren();
    this.heads = this.data.maps.map(([layer, head, text]) => {
      const weights = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
      if (head === 0) heads.appendChild(make("div", "layer-row")).append(make("span", "", `block ${layer}`));
      const button = makeButton("", undefined, () => this.showHead(layer, head));
      button.setAttribute("aria-label", `Block ${layer}, head ${head}`);
      const canvas = button.appendChild(make("canvas"));
      canvas.width = canvas.height = T;
      const context = canvas.getContext("2d"), image = context.createImageData(T, T);
      weights.forEach((weight, i) => image.data.set([124, 77, 220, 255 * shade(weight, 255)], 4 * i));
      context.putImageData(image, 0, 0);
      heads.lastChild.append(button);
      return {layer, head, weights, button};
    });
    oneTabStop(heads, "button");
    this.showHead(...this.head ?? [0, 0]);
  }

  showHead(layer, head) {
    this.head = [layer, head];          // kept when the text changes
    const {weights} = this.heads.find((each) => each.layer === layer && each.head === head);
    const T = this.data.tokens.length - 1, texts = this.data.tokens.slice(0, T);
    modelPart("head").textContent = `Block ${layer}, head ${head}`;
    this.attention.show({
      rows: T, columns: T, axes: {row: "query ↓", column: "key →", rows: texts, columns: texts},
      part: (r, c) => shade(weights[r * T + c], 255),
      label: (r, c) => `${this.quoted(r)} attends to ${this.quoted(c)}: ${(weights[r * T + c] / 255).toFixed(2)}`,
    });
    for (const each of this.heads) each.button.setAttribute("aria-pressed", each.layer === layer && each.head === head);
  }
}
