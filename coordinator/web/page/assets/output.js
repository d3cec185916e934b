// A run's output while it is emitted. Events that a rewind makes void are removed, and only the newest events are kept.
import { h, say } from "./dom.js";
import { count, json, plural } from "./format.js";

const MOST_EVENTS = 1000;
const TEXT_FIELDS = ["delta", "text", "token", "content", "word"];

export function output(id) {
  const list = h("div", { class: "output", id: "output", tabindex: "0", role: "log", "aria-label": "Output", "aria-live": "off" }), aside = h("span", { class: "aside" });
  const element = h("section", { class: "panel", "aria-label": "Output of the run" }, h("header", null, h("h2", null, "Output"), aside), list);
  let source = null, last = "", pending = [], dropped = 0, events = 0, ended = false, scheduled = 0;

  // Show many events at once: a run may emit hundreds in a second.
  function draw() {
    scheduled = 0;
    const atEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 30;
    for (const change of pending) change();
    pending = [];
    while (list.childElementCount > MOST_EVENTS) { list.firstChild.remove(); dropped++; }
    say(aside, [plural(events, "event"), dropped && `the newest ${count(MOST_EVENTS)} are shown`, !ended && "live"].filter(Boolean).join(", "));
    if (atEnd) list.scrollTop = list.scrollHeight;
  }
  function later(change) {
    pending.push(change);
    scheduled = scheduled || requestAnimationFrame(draw);
  }
  function rewind(to) {
    for (let one = list.lastChild; one && !(Number(one.dataset.number) <= to); one = list.lastChild) one.remove();
    events = Math.min(events, to);
    list.append(mark(to, "continued from its checkpoint"));
  }
  function listen(name, act) {
    source.addEventListener(name, (event) => {
      if (event.lastEventId) last = event.lastEventId;
      const data = JSON.parse(event.data);
      later(() => act(data));
    });
  }
  function open() {
    if (source || ended) return;
    source = new EventSource(`data/runs/${encodeURIComponent(id)}/output${last ? `?${new URLSearchParams({ after: last })}` : ""}`);
    listen("item", (data) => { events = data.number; list.append(item(data)); });
    listen("rewind", (data) => rewind(data.to));
    listen("gap", (data) => list.append(mark(events, `${plural(data.count, "event")} missing`)));
    source.addEventListener("end", () => { ended = true; close(); later(() => {}); });
  }
  function close() { source?.close(); source = null; }
  // A browser has few connections for one server, so a page that nobody sees closes its own.
  const onVisible = () => { if (document.hidden) close(); else open(); };
  document.addEventListener("visibilitychange", onVisible);
  onVisible();
  // A run that was revived emits again.
  function update(status, hasEnded) { if (ended && !hasEnded) { ended = false; open(); } }
  function destroy() { close(); cancelAnimationFrame(scheduled); document.removeEventListener("visibilitychange", onVisible); }
  return { element, update, destroy };
}

function item(data) {
  const number = { "data-number": String(data.number) };
  if (data.note) return h("div", { class: "note", ...number }, note(data.value));
  const words = textOf(data.value);
  return words === null ? h("div", { class: "value mono", ...number }, JSON.stringify(data.value)) : h("span", number, words);
}

// A text, or an object that has one text only, such as a token of a model, is shown as running text.
function textOf(value) {
  if (typeof value === "string") return value;
  if (value === null || typeof value !== "object" || Array.isArray(value)) return null;
  const names = Object.keys(value);
  return names.length === 1 && TEXT_FIELDS.includes(names[0]) && typeof value[names[0]] === "string" ? value[names[0]] : null;
}

function note(value) {
  const done = value.done === null ? "" : ` (${value.done}${value.total ? ` of ${value.total}` : ""})`;
  return json(value.text) + done;
}

function mark(number, text) { return h("div", { class: "mark-line", "data-number": String(number) }, text); }
