/* Where a number comes from: its terms, and how they make it. */
const LEVELS = {"+": 0, "-": 0, "negative": 1, "·": 1, "/": 1, "^": 2};      // how tightly they bind
const OPERATIONS = {
  "+": (...terms) => terms.reduce((sum, each) => sum + each, 0), "-": (a, b) => a - b,
  "·": (a, b) => a * b, "/": (a, b) => a / b, "^": (a, b) => a ** b, "negative": (a) => -a,
  "max": Math.max, "abs": Math.abs, "log1p": Math.log1p, "expm1": Math.expm1, "exp": Math.exp, "log": Math.log, "sqrt": Math.sqrt, "sin": Math.sin,
  "cos": Math.cos, "tanh": Math.tanh,
};
const SHOWN = 3;                // terms of a longer sum of symbols
const numberOf = (value) => Number(String(value).replace("inf", "Infinity"));

/* An expression: {tree, slots: [[name, place]]}; `origin` is that of origins.py. */
function partsOf(origin, index, entry) {
  const number = origin.which?.[entry] ?? 0, slots = origin.slots[number];
  const placed = slots[entry] && !Array.isArray(slots) ? slots[entry] : slots.map(
    ([name, first, ...steps]) => [name, steps.reduce((at, step, i) => at + step * index[i], first)]);
  return {tree: origin.trees[number], slots: placed.map(([name, at]) => [origin.names[name], at])};
}

/* The value of a tree; leaf: the number of a slot -> its value. NaN if a function is not known. */
function evaluated(tree, leaf) {
  if (!Array.isArray(tree)) return typeof tree === "number" ? leaf(tree) : numberOf(tree);
  const [sign, ...parts] = tree;
  return OPERATIONS[sign]?.(...parts.map((each) => evaluated(each, leaf))) ?? NaN;
}

/* A tree as text, in brackets where it must be; leaf: the number of a slot -> its text. */
function written(tree, leaf, most = Infinity) {
  if (!Array.isArray(tree)) return typeof tree === "number" ? leaf(tree) : tree;
  const [sign, ...parts] = tree, level = LEVELS[sign];
  const within = (part, least) => {
    const text = written(part, leaf, most);
    return (LEVELS[part[0]] ?? 2) < least || text[0] === "-" ? `(${text})` : text;
  };
  if (sign === "negative") return `-${within(parts[0], 1)}`;
  if (sign === "+") {
    const texts = parts.map((each) => within(each, 1));
    if (texts.length > most) texts.splice(2, texts.length - 3, "…");
    return texts.join(" + ");
  }
  if (level === undefined) return `${sign}(${parts.map((each) => written(each, leaf, most)).join(", ")})`;
  const space = "·^".includes(sign) ? "" : " ";
  return [within(parts[0], level), sign, within(parts[1], level + "-/".includes(sign))].join(space);
}

/* A number with two digits, or with more. */
function rounded(value, digits = 2) {
  if (!Number.isFinite(value)) return String(value).replace("Infinity", "inf");
  const isFixed = digits === 2 && (Math.abs(value) >= 0.0995 || Math.abs(value) < 1e-9);
  return (isFixed ? value.toFixed(2) : String(Number(value.toPrecision(digits)))).replace(/^-0\.00$/, "0.00");
}

const entryName = (name, index) => index.length ? `${name}[${index.join(",")}]` : name;

/* A number as a sum, in symbols and in numbers, of as many digits as make the result.
   array(name): {shape, values} of an array in it; label(name, index): what an entry is called. */
function originElements(name, index, value, {tree, slots}, array, label = entryName) {
  const values = slots.map(([name, at]) => numberOf(array(name).values[at])), result = rounded(numberOf(value));
  const made = (digits) => evaluated(tree, (i) => numberOf(rounded(values[i], digits)));
  const fits = (digits) => [1, 1 + 1e-12].some((part) => rounded(made(digits) * part) === result);    // 0.805 - 1 is -0.195
  const digits = [2, 3, 4].find(fits) ?? 4, isExact = fits(digits) || Number.isNaN(made(4));
  const symbols = written(tree, (i) => label(slots[i][0], indexOf(slots[i][1], array(slots[i][0]).shape)), SHOWN);
  const texts = [symbols, written(tree, (i) => rounded(values[i], digits)), result];
  return texts.filter((text, i) => text !== texts[i - 1]).flatMap((text, i) => [
    make("code", "", i ? "" : label(name, index)), make("span", "", i < 2 || isExact ? "=" : "≈"), make("code", "", text)]);
}
