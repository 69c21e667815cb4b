// Templates: html`<p class=${name}>${text}</p>` describes nodes, render() makes or updates them.
//
// A value becomes a text node, never markup: nothing that an agent wrote can become an element. Only the literal parts
// of a template are parsed as HTML, by the one Trusted Types policy of the page. What a value may stand for:
//   <p>${child}</p>        text, a template, a node, or an array of those; null, undefined and false: nothing
//   <p class=${text}>      an attribute; null, undefined and false remove it, true sets it empty
//   <p .value=${x}>        a property
//   <p @click=${f}>        an event listener

/** @typedef {{strings: TemplateStringsArray, values: unknown[], key?: string}} Template */
/** @typedef {{kind: "child"|"attribute"|"property"|"event", path: number[], name: string}} Slot */
/** @typedef {{content: DocumentFragment, slots: Slot[]}} Parsed */

const MARK = "ⓢ";
/** @type {{createHTML: (text: string) => any}} */
const policy = /** @type {any} */ (globalThis).trustedTypes?.createPolicy("agentos", {
  createHTML: (/** @type {string} */ text) => text,
}) ?? { createHTML: (text) => text };

/** @type {WeakMap<TemplateStringsArray, Parsed>} */
const parsed = new WeakMap();

/** @param {TemplateStringsArray} strings @param {unknown[]} values @returns {Template} */
export function html(strings, ...values) {
  return { strings, values };
}

/** A template in a list that keeps its nodes as long as its key stays. @param {string|number} key @param {Template} template */
export function keyed(key, template) {
  template.key = String(key);
  return template;
}

/** @param {TemplateStringsArray} strings @returns {Parsed} */
function parse(strings) {
  const found = parsed.get(strings);
  if (found) return found;
  const template = document.createElement("template");
  template.innerHTML = policy.createHTML(mark(strings));
  /** @type {Slot[]} */
  const slots = [];
  collect(template.content, [], slots);
  const made = { content: template.content, slots };
  parsed.set(strings, made);
  return made;
}

/** The literal parts joined: a comment for a child, a numbered attribute for anything within a tag. @param {TemplateStringsArray} strings */
function mark(strings) {
  let text = "";
  let inTag = false;
  let quote = "";
  strings.forEach((part, index) => {
    for (const letter of part) {
      if (quote) quote = letter === quote ? "" : quote;
      else if (inTag && (letter === '"' || letter === "'")) quote = letter;
      else if (letter === "<") inTag = true;
      else if (letter === ">") inTag = false;
    }
    text += part;
    if (index === strings.length - 1) return;
    if (quote) throw new Error(`a value stands for a whole attribute, without quotes: ${part}`);
    text += inTag ? `"${MARK}"` : `<!--${MARK}-->`;
  });
  return text;
}

/** @param {Node} node @param {number[]} path @param {Slot[]} slots */
function collect(node, path, slots) {
  if (node instanceof Element) {
    for (const attribute of [...node.attributes]) {
      if (attribute.value !== MARK) continue;
      const kind = attribute.name[0] === "@" ? "event" : attribute.name[0] === "." ? "property" : "attribute";
      slots.push({ kind, path, name: kind === "attribute" ? attribute.name : attribute.name.slice(1) });
      node.removeAttribute(attribute.name);
    }
  }
  [...node.childNodes].forEach((child, index) => {
    if (child.nodeType === Node.COMMENT_NODE && child.nodeValue === MARK) {
      slots.push({ kind: "child", path: [...path, index], name: "" });
    } else {
      collect(child, [...path, index], slots);
    }
  });
}

/** Nodes made of one template. */
class Instance {
  /** @param {Template} template */
  constructor(template) {
    const { content, slots } = parse(template.strings);
    this.strings = template.strings;
    this.key = template.key;
    /** @type {Template|null} */
    this.shown = null;
    const fragment = /** @type {DocumentFragment} */ (document.importNode(content, true));
    const nodes = slots.map((slot) => slot.path.reduce((/** @type {Node} */ node, index) => node.childNodes[index], fragment));
    this.parts = slots.map((slot, index) => makePart(slot, nodes[index]));
    // Children come before their comment, so the first node and the last one are always the same.
    if (!fragment.firstChild || fragment.firstChild.nodeValue === MARK) fragment.prepend(document.createComment(""));
    this.first = /** @type {Node} */ (fragment.firstChild);
    this.last = /** @type {Node} */ (fragment.lastChild);
    this.update(template);
  }

  /** @param {Template} template */
  update(template) {
    if (template === this.shown) return;
    this.shown = template;
    this.parts.forEach((part, index) => part(template.values[index]));
  }

  /** All nodes now: those of a child at the top level may have changed. */
  live() {
    const range = [];
    for (let node = /** @type {Node?} */ (this.first); node; node = node.nextSibling) {
      range.push(node);
      if (node === this.last) break;
    }
    return range;
  }

  remove() {
    for (const node of this.live()) node.parentNode?.removeChild(node);
  }
}

/** @param {Slot} slot @param {Node} node @returns {(value: unknown) => void} */
function makePart(slot, node) {
  if (slot.kind === "child") return childPart(node);
  const element = /** @type {Element} */ (node);
  if (slot.kind === "event") return eventPart(element, slot.name);
  /** @type {any} */
  let last;
  let first = true;
  const set = setters[slot.kind];
  return (value) => {
    if (!first && value === last) return;
    set(element, slot.name, value);
    first = false;
    last = value;
  };
}

/** One listener for all handlers: most are new functions each time that a template is shown.
 * @param {Element} element @param {string} name @returns {(value: any) => void} */
function eventPart(element, name) {
  /** @type {((event: Event) => void)|null|undefined|false} */
  let handler;
  element.addEventListener(name, (event) => handler && handler(event));
  return (value) => {
    handler = value;
  };
}

const setters = {
  /** @param {Element} element @param {string} name @param {any} value */
  attribute(element, name, value) {
    if (value === null || value === undefined || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : String(value));
  },
  /** @param {any} element @param {string} name @param {any} value */
  property(element, name, value) {
    element[toProperty(name)] = value;
  },
};

/** HTML lowers names of attributes: `.scroll-top` is the property scrollTop. @param {string} name */
function toProperty(name) {
  return name.replace(/-([a-z])/g, (_, letter) => letter.toUpperCase());
}

/** The child before `end`, a comment. @param {Node} end */
function childPart(end) {
  /** @type {(Instance|Text|Node)[]} */
  let shown = [];
  return (/** @type {unknown} */ value) => {
    const wanted = (Array.isArray(value) ? value.flat() : [value]).filter((one) => one !== null && one !== undefined && one !== false);
    shown = reconcile(shown, wanted, end);
  };
}

/** @param {unknown} one @returns {one is Template} */
function isTemplate(one) {
  return typeof one === "object" && one !== null && "strings" in one;
}

/** @param {(Instance|Text|Node)[]} old @param {unknown[]} wanted @param {Node} end */
function reconcile(old, wanted, end) {
  const byKey = new Map();
  for (const one of old) if (one instanceof Instance && one.key !== undefined) byKey.set(one.key, one);
  const kept = new Set();
  const made = wanted.map((want, index) => {
    if (want instanceof Node) return want;
    if (isTemplate(want)) {
      const before = want.key !== undefined ? byKey.get(want.key) : old[index];
      if (before instanceof Instance && before.strings === want.strings && before.key === want.key && !kept.has(before)) {
        kept.add(before);
        before.update(want);
        return before;
      }
      return new Instance(want);
    }
    const before = old[index];
    const text = String(want);
    if (before instanceof Text && !kept.has(before)) {
      kept.add(before);
      if (before.data !== text) before.data = text;
      return before;
    }
    return document.createTextNode(text);
  });
  const staying = new Set(made);
  for (const one of old) if (!staying.has(one)) removeOne(one);
  place(made, end);
  return made;
}

/** @param {Instance|Text|Node} one */
function removeOne(one) {
  if (one instanceof Instance) one.remove();
  else one.parentNode?.removeChild(one);
}

/** Put the nodes before `end` in this order; a node that is there already isn't touched. @param {(Instance|Text|Node)[]} items @param {Node} end */
function place(items, end) {
  const parent = /** @type {Node} */ (end.parentNode);
  let next = end;
  for (let index = items.length - 1; index >= 0; index -= 1) {
    const item = items[index];
    const nodes = item instanceof Instance ? item.live() : [item];
    for (let at = nodes.length - 1; at >= 0; at -= 1) {
      if (nodes[at].nextSibling !== next || nodes[at].parentNode !== parent) parent.insertBefore(nodes[at], next);
      next = nodes[at];
    }
  }
}

/** @type {WeakMap<Element, (value: unknown) => void>} */
const roots = new WeakMap();

/** Show a template as the only content of `container`. @param {Template} template @param {Element|ShadowRoot} container */
export function render(template, container) {
  const element = /** @type {Element} */ (container);
  let root = roots.get(element);
  if (!root) {
    const end = document.createComment("");
    element.replaceChildren(end);
    root = childPart(end);
    roots.set(element, root);
  }
  root(template);
}
