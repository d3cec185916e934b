// A run's transcript as a conversation. Tool calls and long texts are folded.
import { get } from "./api.js";
import { h, toast } from "./dom.js";
import { count, json, plural } from "./format.js";

const LONG = 700;

export function conversation(id) {
  const list = h("div", { class: "talk" }), older = h("div", { class: "more-row", hidden: true }), aside = h("span", { class: "aside" });
  const element = h("section", { class: "panel", "aria-label": "Transcript" }, h("header", null, h("h2", null, "Transcript"), aside), older, list);
  let first = null, next = 0, wanted = 0, busy = false;

  const page = (start, more) => get(`runs/${encodeURIComponent(id)}/messages`, { start: String(start), ...more });
  // Show the newest messages first; older ones on request. The server sends 100 messages at once, so more than one page may be new.
  async function update(total) {
    aside.textContent = plural(total, "message");
    wanted = total;
    if (busy) return;
    busy = true;
    try {
      while (first === null || wanted !== next) {
        if (first === null || wanted < next) { list.replaceChildren(); first = next = Math.max(0, wanted - 100); }
        const told = wanted, answer = await page(next);
        if (wanted === told) wanted = answer.total; // no newer number has arrived meanwhile
        list.append(...answer.messages.map(bubbleOf));
        next += answer.messages.length;
        if (!answer.messages.length) break;
      }
      showOlder();
    } catch (error) { first = null; list.replaceChildren(h("p", { class: "faint" }, error.message)); } finally { busy = false; }
  }
  function showOlder() {
    older.hidden = !first;
    if (first) older.replaceChildren(h("button", { type: "button", onclick: more }, "Show older messages"), `${count(first)} more`);
  }
  async function more() {
    const start = Math.max(0, first - 100);
    try {
      const answer = await page(start);
      list.prepend(...answer.messages.filter((one) => one.number < first).map(bubbleOf));
      first = start;
      showOlder();
    } catch (error) { toast(error.message, true); }
  }
  // The server cuts long texts. A button asks for the whole message.
  function bubbleOf(one) {
    const element = message(one.message, one.number);
    if (one.cut) element.querySelector(".said").append(h("button", { type: "button", class: "whole", "aria-label": `Show all of message ${one.number + 1}`, onclick: () => showAll(element, one.number) }, "Show all"));
    return element;
  }
  async function showAll(element, number) {
    try {
      const [one] = (await page(number, { full: "1" })).messages;
      if (!one) { toast("The message is no longer stored.", true); return; }
      const whole = message(one.message, one.number);
      for (const fold of whole.querySelectorAll("details")) fold.open = true;
      element.replaceWith(whole);
      whole.tabIndex = -1; // the button is gone, so the message gets the focus
      whole.focus();
    } catch (error) { toast(error.message, true); }
  }
  return { element, update };
}

function message(value, number) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return bubble("message", "", [text(json(value))], "", number);
  const role = String(value.role || value.type || "message"), known = ["system", "user", "assistant", "tool"].includes(role) ? role : "other";
  const parts = content(value.content ?? value.text ?? value.parts);
  for (const call of Array.isArray(value.tool_calls) ? value.tool_calls : []) parts.push(toolCall(call));
  const rest = Object.fromEntries(Object.entries(value).filter(([name]) => !["role", "content", "text", "parts", "tool_calls", "type"].includes(name)));
  if (!parts.length) parts.push(text(json(value)));
  else if (Object.keys(rest).length && known === "other") parts.push(folded("more fields", json(rest)));
  const name = known === "tool" ? value.name || value.tool_call_id || "" : "";
  return bubble(role, known, parts, name, number);
}

function bubble(role, known, parts, name, number) {
  return h("div", { class: `message ${known}`, "data-number": String(number ?? "") }, h("div", { class: "role" }, role, name && h("div", { class: "mono" }, String(name).slice(0, 24))), h("div", { class: "said" }, parts));
}

function content(value) {
  if (value === undefined || value === null || value === "") return [];
  if (typeof value === "string") return [long(value)];
  if (!Array.isArray(value)) return [text(json(value))];
  return value.map((part) => {
    if (typeof part === "string") return long(part);
    if (part && typeof part.text === "string") return long(part.text);
    if (part && (part.type === "tool_use" || part.type === "tool_call")) return toolCall(part);
    if (part && part.type === "tool_result") return folded("tool result", typeof part.content === "string" ? part.content : json(part.content ?? part));
    return folded(String(part?.type || "part"), json(part));
  });
}

function toolCall(call) {
  const name = call?.function?.name || call?.name || "tool", args = call?.function?.arguments ?? call?.input ?? call?.args ?? {};
  let shown = args;
  if (typeof args === "string") try { shown = JSON.parse(args); } catch { /* shown as it is */ }
  const brief = typeof shown === "object" ? JSON.stringify(shown) : String(shown);
  return h("details", null, h("summary", null, h("b", null, name), ` ${brief.slice(0, 90)}${brief.length > 90 ? "…" : ""}`), h("pre", { tabindex: "0" }, json(shown)));
}

function text(value) { return h("div", { class: "text" }, value); }

function long(value) { return value.length <= LONG ? text(value) : h("details", null, h("summary", null, `${value.slice(0, 160).replace(/\s+/g, " ")}… (${count(value.length)} characters)`), text(value)); }

function folded(title, value) { return h("details", null, h("summary", null, title), h("pre", { tabindex: "0" }, value)); }
