/* The whole model */

const MODEL = DATA.model;
const tokens = [...document.querySelectorAll(".token")];
const quoted = (i) => `“${MODEL.tokens[i]}” (${i})`;
const shade = (value, largest) => largest ? Math.sqrt(value / largest) : 0;
let chosenToken = MODEL.pulls.length;         // the last one that has something to show

function showToken(i) {
  const row = MODEL.pulls[i - 1] ?? [], largest = Math.max(...row, 0), most = row.indexOf(largest);
  tokens.forEach((token, j) => {
    token.classList.toggle("here", j === i);
    token.classList.toggle("shaded", j in row);
    token.style.setProperty("--part", j in row ? shade(row[j], largest) : 0);
  });
  const loss = MODEL.losses[i - 1];
  document.getElementById("model-readout").textContent = i === 0
    ? "The first token is only read: nothing predicts it."
    : `“${MODEL.tokens[i]}”: loss ${loss}, probability ${(100 * Math.exp(-loss)).toPrecision(2)} %`
      + (row.length ? `; largest gradient norm ${largest}, on “${MODEL.tokens[most]}” at position ${most}` : "");
}

tokens.forEach((token, i) => {
  token.addEventListener("pointerover", (event) => event.pointerType === "mouse" && showToken(i));
  token.addEventListener("focus", () => showToken(i));
  token.addEventListener("click", () => showToken(chosenToken = i));
});
document.getElementById("model-tokens").addEventListener("pointerleave", () => showToken(chosenToken));
showToken(chosenToken);

const texts = (from, count) => MODEL.tokens.slice(from, from + count);
const largestPull = Math.max(...MODEL.pulls.flat(), 0);
const pulledColumns = Math.max(...MODEL.pulls.map((row) => row.length));
new Heat(document.getElementById("model-pulls"), "Gradient norms, a row for each loss, a column for each token").show({
  rows: MODEL.pulls.length, columns: pulledColumns,
  axes: {row: "loss of ↓", column: "gradient on →", rows: texts(1, MODEL.pulls.length), columns: texts(0, pulledColumns)},
  part: (r, c) => c in MODEL.pulls[r] ? shade(MODEL.pulls[r][c], largestPull) : null,
  label: (r, c) => `loss of ${quoted(r + 1)} on ${quoted(c)}: ${MODEL.pulls[r][c]}`,
});

const T = MODEL.tokens.length - 1;
const heads = document.getElementById("model-heads");
const attention = new Heat(document.getElementById("model-attention"), "Attention weights");
const chooseHead = MODEL.maps.map(([layer, head, text]) => {
  const weights = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  if (head === 0) heads.appendChild(make("div", "layer-row")).append(make("span", "", `block ${layer}`));
  const button = heads.lastChild.appendChild(make("button"));
  button.type = "button";
  button.setAttribute("aria-label", `Block ${layer}, head ${head}`);
  const canvas = button.appendChild(make("canvas"));
  canvas.width = canvas.height = T;
  const context = canvas.getContext("2d"), image = context.createImageData(T, T);
  weights.forEach((weight, i) => image.data.set([124, 77, 220, 255 * shade(weight, 255)], 4 * i));
  context.putImageData(image, 0, 0);
  const choose = () => {
    document.getElementById("model-head").textContent = `Block ${layer}, head ${head}`;
    attention.show({
      rows: T, columns: T, axes: {row: "query ↓", column: "key →", rows: texts(0, T), columns: texts(0, T)},
      part: (r, c) => shade(weights[r * T + c], 255),
      label: (r, c) => `${quoted(r)} looks at ${quoted(c)}: ${(weights[r * T + c] / 255).toFixed(2)}`,
    });
    for (const each of heads.querySelectorAll("button")) each.setAttribute("aria-pressed", each === button);
  };
  button.addEventListener("click", choose);
  return choose;
});
chooseHead[0]();
