const layers = [...document.querySelectorAll(".layer")].map((section) => new Layer(section));
const map = document.getElementById("map-play") && new GradientMap(document.getElementById("map"));
if (DATA.layers.length && !DATA.own) {
  new First(document.querySelector(".first"), () => map?.play());
}
map?.show(DATA.model);
if (!DATA.own) whenSeen(document.getElementById("model"), () => new Model((data) => map?.show(data)));

/* A click elsewhere, Escape, or a choice closes a menu. */
for (const menu of document.querySelectorAll(".menu")) {
  menu.addEventListener("keydown", ({key}) => {
    if (key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}
document.addEventListener("click", ({target}) => {
  for (const menu of document.querySelectorAll(".menu[open]")) {
    if (!menu.contains(target) || target.closest("nav a, .level")) menu.open = false;
  }
  if (target.closest("a")?.hash === location.hash) openAddress();      // then there is no hashchange
});

/* The address of a line: study.html#layernorm:b102 */

function openAddress() {
  const [, name, line] = location.hash.match(/^#(\w+):([fb]\d+)$/) ?? [];
  layers.find((layer) => layer.name === name)?.open(line);
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
      announce("Copied");
      setTimeout(() => button.classList.remove("done"), 1500);
    }, () => {});
  });
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const now = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not(.menu, [open])")];
  for (const each of opened) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of opened) each.open = false;
});
