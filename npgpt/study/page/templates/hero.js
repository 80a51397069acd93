/* The first screen: one editable line of a backward, the same as in its layer below. */
class Hero {
  constructor(section, {layer: name, line, arrays}) {
    const {editors: [editor]} = layers.find((layer) => layer.name === name);
    Object.assign(this, {editor, line, known: arrays});
    this.field = section.querySelector("textarea");
    this.cards = [...section.querySelectorAll(".card")];
    this.verdict = section.querySelector(".verdicts");
    this.verified = this.verdict.textContent.trim();
    this.buttons = Object.fromEntries([...section.querySelectorAll("[data-hero]")].map((each) => [each.dataset.hero, each]));
    typing(this.field, editor.text(line), {
      onInput: (text) => editor.type(line, text),
      onEnter: () => editor.check(),
      onEscape: () => {
        editor.undo();
        this.field.value = editor.text(line);
      },
    });
    this.field.readOnly = !LIVE;
    const actions = {break: () => this.break(), undo: () => editor.undo(), reset: () => editor.reset(line)};
    for (const [what, button] of Object.entries(this.buttons)) button.addEventListener("click", actions[what]);
    editor.listeners.push(() => this.update());
    this.update();
  }

  /* Plant a mistake: remove the first "- name" of the line, or else double the result, of several the first. */
  break() {
    const {text} = this.editor.typed[this.line], without = text.replace(/ - \w+/, "");
    const doubled = text.replace(/= (.+)$/s, /^[^=]*,/.test(text) ? "= 2 * $1" : "= 2 * ($1)");
    this.editor.type(this.line, without !== text ? without : doubled);
    this.editor.check();
  }

  update() {
    const {editor, line} = this, typed = editor.isTyped(line), text = editor.text(line);
    if (this.field.value.trim() !== text.trim() && document.activeElement !== this.field) this.field.value = text;
    this.buttons.break.disabled = !LIVE;
    this.buttons.undo.disabled = !LIVE || !editor.canUndo;
    this.buttons.reset.disabled = !LIVE || !typed;
    const shown = typed ? editor.answer?.arrays[line] ?? [] : this.known;
    if (shown !== this.shown) {
      fillJudged(this.cards, shown[0]);
      this.shown = shown;
    }
    this.verdict.replaceChildren(...typed ? editor.verdictElements(line) : [make("p", "verdict right", this.verified)]);
  }
}
