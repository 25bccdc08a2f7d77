// The document's nodes. Names come from other machines: they are only ever set as text.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const make = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

// Sets what has changed and nothing else: what is selected, or read aloud, stays.
function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function mark(node, name, value) {
  const text = String(value);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

// Children that follow a list: each item keeps the node that was made for its key.
function follow(parent, items, keyOf, build, update) {
  const before = parent.kept || new Map();
  const kept = new Map();
  for (const item of items) {
    const key = String(keyOf(item));
    const node = before.get(key) || build(item);
    update(node, item);
    kept.set(key, node);
  }
  for (const [key, node] of before) if (!kept.has(key)) node.remove();
  [...kept.values()].forEach((node, place) => {
    if (parent.children[place] !== node)
      parent.insertBefore(node, parent.children[place] || null);
  });
  parent.kept = kept;
}

// Figures with their names; those that are not known are not there.
function figures(parent, pairs) {
  follow(
    parent,
    pairs.filter(([, text]) => text !== null),
    ([name]) => name,
    ([name]) => make("div", {}, make("dt", {}, name), make("dd")),
    (node, [, text]) => put(node.lastChild, text),
  );
  parent.hidden = parent.children.length === 0;
}

// 0 stands for what is not known.
const known = (number, words) => (number > 0 ? words(number) : null);
