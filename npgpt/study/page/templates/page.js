const layers = [...document.querySelectorAll(".layer")].map((section) => new Layer(section));
if (DATA.first) {
  new Hero(document.querySelector(".hero"), DATA.first);
  if (!DATA.own) new Training(document.getElementById("training"));
}
if (!DATA.own) new Model();
if (LIVE) {
  post("/progress", {}).then(({solved}) => layers.forEach((layer) => layer.solved(solved)), () => {});      // post has shown the error
}

/* The arrow keys step through the layer that has the focus, else through the one in the middle of the window. */
document.addEventListener("keydown", (event) => {
  const where = {ArrowLeft: "previous", ArrowRight: "next"}[event.key];
  if (!where || event.target.matches("input, textarea") || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const layer = layers.find(({section}) => section.contains(document.activeElement)) ?? layers.find(({section}) => {
    const box = section.getBoundingClientRect();
    return box.top < innerHeight / 2 && box.bottom > innerHeight / 2;
  });
  if (!layer) return;
  event.preventDefault();
  layer.go(where);
});

/* The address of a line: study.html#layernorm:b102; #layernorm:b102:predict also hides the backward */

function openAddress() {
  const [, name, line, predict] = location.hash.match(/^#(\w+):([fb]\d+)(:predict)?$/) ?? [];
  const layer = layers.find((layer) => layer.name === name);
  if (!layer) return;
  const [editor] = layer.editors, highest = layer.levels.at(-1);
  if (predict && editor.state.level !== highest) editor.choose(highest);
  layer.open(line);
}

addEventListener("hashchange", openAddress);
openAddress();

/* Commands to copy, theme, paper */

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", () => {
    const code = button.previousElementSibling;
    getSelection().selectAllChildren(code);         // to be copied by hand if the browser does not allow more
    navigator.clipboard?.writeText(code.textContent).then(() => {
      button.classList.add("done");
      document.getElementById("status").textContent = "Copied";
      setTimeout(() => button.classList.remove("done"), 1500);
    }, () => {});
  });
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const now = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});
addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details")) each.open = true;
});
