/* The whole model on a text */

const modelPart = (name) => document.getElementById(`model-${name}`);
const shade = (value, largest) => largest ? Math.sqrt(value / largest) : 0;
const percent = (part) => `${Number((100 * part).toPrecision(2))}%`;

/* The rows of a table of shaded cells: columns: texts; rows: [name, [{text, part, title, isRight}]]. */
function shadedRows(columns, rows) {
  const head = make("tr");
  head.append(make("td"), ...columns.map((text) => make("th", "", text)));
  return [head, ...rows.map(([name, cells]) => {
    const row = make("tr");
    row.append(make("th", "", name), ...cells.map(({text, part, title, isRight}) => {
      const cell = make("td", isRight ? "right" : "", text);
      cell.style.setProperty("--part", part);
      cell.title = title;
      return cell;
    }));
    return row;
  })];
}

class Model {
  constructor() {
    modelPart("heads").addEventListener("change", () => this.showAttention());
    modelPart("tokens").addEventListener("pointerleave", () => this.showToken(this.chosen));
  }

  /* Show the results for a text: `data` comes with the page, or from the server. */
  show(data) {
    this.data = data;
    modelPart("count").textContent = data.tokens.length;
    modelPart("loss").textContent = data.loss.toFixed(3);
    modelPart("left-out").textContent = data.pulls.length < data.losses.length
      ? `Gradients are shown for the first ${data.pulls.length} losses: the others would take too long.` : "";
    this.showTokens();
    this.showNext();
    this.showLens();
    this.showAttention();
  }

  quoted(i) {
    return `“${this.data.tokens[i]}” (${i})`;
  }

  showTokens() {
    const {tokens, losses, pulls} = this.data;
    this.tokens = tokens.map((text, i) => {
      const token = makeButton("token", undefined, () => this.showToken(this.chosen = i));
      token.append(make("span", "text", text), make("span", "loss", i ? losses[i - 1].toFixed(2) : "–"));
      token.addEventListener("pointerover", (event) => event.pointerType === "mouse" && this.showToken(i));
      token.addEventListener("focus", () => this.showToken(i));
      return token;
    });
    modelPart("tokens").replaceChildren(...this.tokens);
    oneTabStop(modelPart("tokens"), "button");
    this.showToken(this.chosen = pulls.length);                 // the last token with gradients
  }

  showToken(i) {
    const {tokens, pulls, losses} = this.data;
    const row = pulls[i - 1] ?? [], largest = Math.max(...row, 0), loss = losses[i - 1];
    this.tokens.forEach((token, j) => {
      token.classList.toggle("here", j === i);
      token.classList.toggle("shaded", j in row);
      token.style.setProperty("--part", j in row ? shade(row[j], largest) : 0);
    });
    modelPart("readout").textContent = i === 0 ? "The first token is not predicted."
      : `“${tokens[i]}”: loss ${loss}, probability ${percent(Math.exp(-loss))}`
        + (row.length ? `; largest gradient norm ${largest}, for ${this.quoted(row.indexOf(largest))}` : "");
  }

  showNext() {
    modelPart("next").textContent = this.data.next.map(([text, part]) => `“${text}” ${percent(part)}`).join(", ");
  }

  /* What each block would predict: one row per block, one cell per token, marked if it is correct. */
  showLens() {
    const {tokens, lens} = this.data, name = (i) => i ? `block ${i - 1}` : "embedding";
    modelPart("lens").replaceChildren(...shadedRows(tokens.slice(0, -1), lens.map((cells, layer) => [name(layer),
      cells.map(([text, part, right], i) => ({text, part, isRight: part === right, title: `${name(layer)}, after `
        + `${this.quoted(i)}: “${text}” ${percent(part)}, correct: ${this.quoted(i + 1)} ${percent(right)}`}))])));
  }

  /* The attention of one head, which a list chooses. */
  showAttention() {
    const {maps, tokens} = this.data, texts = tokens.slice(0, -1), T = texts.length, list = modelPart("heads");
    const at = Math.max(0, list.selectedIndex);         // kept when the text changes
    list.replaceChildren(...maps.map(([layer, head], i) => new Option(`block ${layer}, head ${head}`, i)));
    list.selectedIndex = at;
    const weights = Uint8Array.from(atob(maps[at][2]), (char) => char.charCodeAt(0));
    modelPart("attention").replaceChildren(...shadedRows(texts, texts.map((text, r) => [text, texts.map((_, c) => {
      const part = weights[r * T + c] / 255, shown = part.toFixed(2).replace(/^0/, "");
      return {text: part < 0.005 ? "" : shown, part, title: `${this.quoted(r)} reads ${this.quoted(c)}: ${shown}`};
    })])));
  }
}
