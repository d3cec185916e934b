// Build elements. Data reaches the page only as text: nothing here, or elsewhere, parses data as HTML.

export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(tag, props, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Set the text of an element, and leave the element alone if the text is the same.
export function say(element, text) {
  const value = String(text ?? "");
  if (element.textContent !== value) element.textContent = value;
}

// Keep the children of a parent in step with a list: one element for each key, made once and then updated.
export function keyed(parent, items, key, make, update) {
  const known = parent.keyed || (parent.keyed = new Map());
  const left = new Set(known.keys());
  let before = null;
  for (const item of items) {
    const name = key(item);
    left.delete(name);
    let element = known.get(name);
    if (!element) { element = make(item); known.set(name, element); }
    update?.(element, item);
    const next = before ? before.nextSibling : parent.firstChild;
    if (element !== next) parent.insertBefore(element, next);
    before = element;
  }
  for (const name of left) { known.get(name).remove(); known.delete(name); }
}

export function panel(title, aside, ...content) {
  return h("section", { class: "panel", "aria-label": title }, h("header", null, h("h2", null, title), aside && h("span", { class: "aside" }, aside)), ...content);
}

export function pill(status, text) { return h("span", { class: `pill ${status}` }, text || status); }

export function toast(text, bad) {
  const element = h("div", { class: bad ? "toast bad" : "toast" }, text);
  document.getElementById("toasts").append(element);
  setTimeout(() => element.remove(), bad ? 8000 : 4000);
}

export function hue(text) {
  let sum = 7;
  for (const letter of String(text)) sum = (sum * 31 + letter.codePointAt(0)) % 360;
  return sum;
}
