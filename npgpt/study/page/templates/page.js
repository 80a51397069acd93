const layers = [...document.querySelectorAll(".layer")].map((section) => new Layer(section));
if (DATA.layers.length && !DATA.own) new First(document.querySelector(".first"));
const walk = DATA.layers.length && !DATA.own ? new Walk(document.getElementById("walk")) : null;
walk?.show(DATA.model);
const model = DATA.own ? null : new Model();
model?.show(DATA.model);

/* The reader's own text, on the live page */
const textField = document.getElementById("walk-text");
if (textField) {
  const error = document.getElementById("walk-error"), requests = new Requests("/text", (answer) => {
    error.textContent = "";
    walk.show(answer);
    model.show(answer);
  }, (text) => error.textContent = text);
  textField.addEventListener("input", debounced(400, () => requests.send({text: textField.value})));
}

document.addEventListener("click", ({target}) => {
  if (target.closest("a")?.hash === location.hash) openAddress();      // then there is no hashchange
});

/* The address of a line: study.html#layernorm:b102 */

function openAddress() {
  const [, name, line] = location.hash.match(/^#(\w+)(?::([fb]\d+))?$/) ?? [];
  const layer = layers.find((layer) => layer.name === name);
  layer?.show();
  if (line) layer?.open(line);
}

addEventListener("hashchange", openAddress);
addEventListener("load", () => {
  for (const layer of layers) layer.draw();
  openAddress();
});
