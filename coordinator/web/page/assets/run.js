// One run: its story, its output, its effects, its checkpoint, its children and its transcript.
import { get, mayChange } from "./api.js";
import { cancelTree, changeRuns, grant, sendSignal } from "./changes.js";
import { h, panel, pill, toast } from "./dom.js";
import { ago, bytes, cause, count, duration, json, moment, plural, reason, unix } from "./format.js";
import { now } from "./live.js";
import { output } from "./output.js";
import { conversation } from "./transcript.js";

const GRANT = "coordinator.grant"; // the topic of the signals by which grants reach a run
const ENDED = ["completed", "failed", "cancelled", "dead"];
const COLOURS = { released: "cancelled", stopped: "cancelled", retried: "failed", rejected: "failed", failed: "failed", recovered: "dead", forced: "dead", revived: "queued" };

export function run(root, params, id) {
  const content = h("div", { class: "page" });
  content.style.display = "contents";
  root.append(content);
  let data = null, asking = null, again = 0, stopped = false, talk = null, said = null, shown = "";

  async function load() {
    if (asking) return;
    asking = new AbortController();
    try {
      data = await get(`runs/${encodeURIComponent(id)}`, null, asking.signal);
      const text = JSON.stringify([data.run, data.checkpoint, data.children]);
      if (text !== shown) { shown = text; render(); }
    } catch (error) {
      if (error.name !== "AbortError" && !data) content.replaceChildren(h("div", { class: "title" }, h("h1", null, "Run")), h("div", { class: "panel empty" }, error.message));
    } finally { asking = null; }
    clearTimeout(again);
    if (!stopped) again = setTimeout(load, data && ENDED.includes(data.run.status) ? 10000 : 2000);
  }

  function render() {
    const view = data.run, open = new Set([...content.querySelectorAll("details[open][data-name]")].map((one) => one.dataset.name));
    const parts = [header(data, load), facts(view, data.checkpoint), timeline(view), error(view), waits(view), effects(view)];
    if (data.checkpoint.output) {
      said = said || output(id);
      said.update(view.status, ENDED.includes(view.status));
      parts.push(said.element);
    }
    parts.push(...values(view, data.checkpoint), children(data));
    if (view.messages || data.checkpoint.unfinished?.length) {
      talk = talk || conversation(id);
      talk.update(view.messages);
      parts.push(talk.element);
    }
    content.replaceChildren(...parts.filter(Boolean));
    for (const one of content.querySelectorAll("details[data-name]")) if (open.has(one.dataset.name)) one.open = true;
  }

  function update(board) { if (board.events?.some((event) => event.run === id)) load(); }
  load();
  return { update, destroy: () => { stopped = true; clearTimeout(again); asking?.abort(); said?.destroy(); } };
}

function header(data, load) {
  const view = data.run;
  const actions = h("div", { class: "bar" });
  const add = (text, action, danger) => actions.append(h("button", { type: "button", class: danger ? "danger" : null, onclick: async () => { if (await action()) load(); } }, text));
  if (mayChange()) {
    const ended = ENDED.includes(view.status);
    if (!ended) add("Send a signal…", () => sendSignal(view.id, view.waiting?.topics || []));
    if (!ended && (view.spent || view.budget || view.waiting?.topics?.includes(GRANT))) add("Grant…", () => grant(view.id));
    if (!ended) add("Cancel…", () => changeRuns("cancel", [view.id]), true);
    if (data.children.some((child) => !ended || !ENDED.includes(child.status) || child.children)) add("Cancel the tree…", () => cancelTree(view.id), true);
    if (["failed", "dead", "cancelled"].includes(view.status)) { add("Revive…", () => changeRuns("revive", [view.id])); add("Revive from the start…", () => changeRuns("revive_from_start", [view.id])); if (view.effects.length) add("Revive and forget effects…", () => changeRuns("revive_without_effects", [view.id]), true); }
    if (ended) add("Discard…", async () => { const done = await changeRuns("discard", [view.id]); if (done) location.hash = "#/runs"; return false; }, true);
  }
  const copy = h("button", { type: "button", class: "quiet", "aria-label": "Copy the run id", onclick: () => navigator.clipboard?.writeText(view.id).then(() => toast("Run id copied.")) }, "Copy");
  return h("div", null, h("div", { class: "title" }, h("h1", null, view.kind), pill(view.status, view.cancelling ? "cancelling" : view.status), h("span", { class: "mono soft" }, view.id), copy, actions), view.why && h("p", { class: "whybox" }, reason(view)));
}

function facts(view, checkpoint) {
  const at = now(), list = h("dl", { class: "facts" });
  const add = (name, value) => { if (value) list.append(h("div", null, h("dt", null, name), h("dd", null, value))); };
  const time = (iso) => iso && h("span", { title: ago(unix(iso), at) }, moment(unix(iso)));
  const c = view.counters || {};
  const counts = [c.releases && plural(c.releases, "release"), c.recoveries && `${count(c.recoveries)} recover${c.recoveries === 1 ? "y" : "ies"}`, c.failures && plural(c.failures, "failure"), c.strikes && plural(c.strikes, "strike")].filter(Boolean).join(", ");
  add("Attempt", `${view.attempt}${c.life > 1 ? `, life ${c.life}` : ""}${counts ? `, ${counts}` : ""}`);
  add("Queue", view.queue + (view.schema ? `, schema ${view.schema}` : ""));
  add("Created", time(view.created)); add("Started", time(view.started)); add("Due", time(view.due)); add("Ended", time(view.ended));
  if (view.started && view.status === "running") add("Running for", duration(at - unix(view.started)));
  if (view.started && view.ended) add("Time used", duration((view.used || 0) + (view.status === "completed" ? unix(view.ended) - unix(view.started) : 0)));
  const latest = view.story.at(-1); // of a run that has not completed, the story names its last worker
  add("Worker", view.owner || view.ended_by || latest?.worker); add("Code", view.code || (view.owner || view.ended_by ? "" : latest?.code));
  add("Checkpoint", view.checkpointed && `${[view.iteration && `turn ${view.iteration}`, view.messages && plural(view.messages, "message")].filter(Boolean).join(", ") || "state"}, ${ago(unix(view.checkpointed), at)}`);
  add("Note", view.note && note(view.note)); add("Key", view.key);
  add("Group", view.group && h("a", { href: `#/runs?${new URLSearchParams({ status: view.status, kind: view.kind, group: view.group })}` }, view.group));
  add("Waits for a place", view.held && `${count(view.held.taken)} of ${view.held.at_once === null ? "an unknown number of" : count(view.held.at_once)} places taken, ${plural(view.held.before, "run")} before it`);
  add("Spent", view.spent && amounts(view.spent, view.budget, checkpoint.granted));
  add("Budget", view.budget && `${limits(view.budget)}, then ${view.budget.then === "wait" ? "it waits for a grant" : "it fails"}`);
  add("Granted", checkpoint.granted && limits(checkpoint.granted));
  add("Parent", view.parent && h("a", { class: "mono", href: `#/runs/${encodeURIComponent(view.parent)}` }, view.parent));
  add("Signals not received", Object.entries(view.signals || {}).map(([topic, number]) => `${count(number)} ${topic}`).join(", "));
  for (const [name, value] of Object.entries(view.meta || {})) add(`Meta ${name}`, json(value));
  return panel("Facts", null, list);
}

function note(one) {
  const known = one.done !== null && one.done !== undefined, whole = one.total !== null && one.total !== undefined;
  return known ? `${one.text} (${count(one.done)}${whole ? ` of ${count(one.total)}` : ""})` : one.text;
}

const UNITS = { usd: (n) => `${Number(n.toFixed(6))} USD`, tokens: (n) => plural(n, "token"), requests: (n) => plural(n, "request") };

function limits(amount) { return Object.entries(UNITS).filter(([name]) => amount[name]).map(([name, say]) => say(amount[name])).join(", "); }

function amounts(spent, budget, granted) {
  const lines = [];
  for (const [name, say] of Object.entries(UNITS)) {
    const most = budget?.[name] === null || budget?.[name] === undefined ? null : budget[name] + (granted?.[name] || 0), used = spent[name] || 0;
    if (!used && most === null) continue;
    const text = h("div", null, most === null ? say(used) : `${say(used)} of ${say(most)}`);
    if (most !== null) {
      const fill = h("i", { class: used >= most ? "over" : null });
      fill.style.width = `${most ? Math.min(100, (100 * used) / most) : 100}%`;
      text.append(h("div", { class: "meter", role: "img", "aria-label": `${Math.round(most ? (100 * used) / most : 100)} % of the budget` }, fill));
    }
    lines.push(text);
  }
  return lines.length ? lines : "nothing";
}

const EFFECTS = { done: ["completed", "done"], begun: ["running", "begun"], unknown: ["failed", "outcome unknown"] };

function effects(view) {
  if (!view.effects.length) return null;
  const unknown = view.effects.filter((one) => one.state === "unknown").length;
  const rows = view.effects.map((one) => h("li", null, h("div", null, pill(...EFFECTS[one.state]), h("span", { class: "mono" }, one.name))));
  return panel("Effects", view.more_effects ? `${count(view.more_effects)} more` : plural(view.effects.length, "effect"), unknown > 0 && h("p", { class: "hint" }, "An effect with an unknown outcome was begun, and its attempt ended before it was done. It is not repeated on its own: look at the other system first."), h("ul", { class: "tree", id: "effects" }, rows));
}

function timeline(view) {
  const created = unix(view.created), end = unix(view.ended) || now(), span = Math.max(0.001, end - created);
  const place = (at) => Math.max(0, Math.min(100, ((at - created) / span) * 100));
  const bars = h("div", { class: "gantt", role: "img", "aria-label": "Attempts over time" });
  const bar = (from, to, name, title) => {
    const element = h("span", { class: name, title });
    element.style.left = `${place(from)}%`;
    element.style.width = `${Math.max(0, place(to) - place(from))}%`;
    bars.append(element);
  };
  const items = [entry(created, "queued", "created", [])];
  for (const one of view.story) {
    const from = unix(one.started), to = unix(one.ended);
    if (one.how === "revived") { items.push(entry(to, "queued", `${one.said}, for life ${one.life}`, [])); continue; }
    if (from) bar(from, to, COLOURS[one.how] || "running", `attempt ${one.attempt}: ${one.said}`);
    if (one.lost > 0.05) bar(to - one.lost, to, "lost", `at most ${duration(one.lost)} of work lost`);
    items.push(entry(from || to, "running", `attempt ${one.attempt}`, [one.worker && `on ${one.worker}`, one.code && `code ${one.code}`]));
    items.push(entry(to, COLOURS[one.how] || "queued", `${one.said}`, [`after ${duration(one.seconds)}`, `saved: ${one.saved_said || "nothing"}`], one.lost > 0.05 && `at most ${duration(one.lost)} of work lost`));
  }
  const last = view.story.at(-1)?.attempt || 0;
  if (view.started && view.attempt > last) {
    const from = unix(view.started), to = unix(view.ended) || (view.status === "running" ? now() : unix(view.waiting?.since) || now());
    bar(from, to, view.status === "completed" ? "completed" : "running", `attempt ${view.attempt}`);
    const skipped = view.attempt - last - 1, before = unix(view.story.at(-1)?.ended) || created;
    if (skipped > 0) bar(before, from, "wait", `${plural(skipped, "attempt")} that ended with a wait, and the waits`);
    items.push(entry(from, "running", `attempt ${view.attempt}`, [view.owner || view.ended_by ? `on ${view.owner || view.ended_by}` : "", view.code && `code ${view.code}`, view.cause && cause(view.woken ? `wake ${view.woken}` : view.cause), skipped > 0 && `${plural(skipped, "attempt")} before ended with a wait`]));
  }
  if (view.waiting) { bar(unix(view.waiting.since), now(), "wait", "waits"); items.push(entry(unix(view.waiting.since), "waiting", view.wait_said || "waits", [view.waiting.until && `until ${moment(unix(view.waiting.until))}`])); }
  if (view.ended && view.status !== "failed") items.push(entry(unix(view.ended), view.status, view.status, [view.status === "completed" && `after ${duration(unix(view.ended) - created)} in all`]));
  const lost = view.story.reduce((sum, one) => sum + one.lost, 0);
  return panel("Story", lost > 0.05 ? `at most ${duration(lost)} of work lost in all` : `${plural(view.attempt, "attempt")}`, bars, h("div", { class: "scale" }, h("span", null, moment(created)), h("span", null, duration(span)), h("span", null, moment(end))), h("ol", { class: "story" }, items));
}

function entry(at, status, title, details, lost) {
  const more = details.filter(Boolean).join(", ");
  return h("li", { class: status }, h("time", null, moment(at)), h("div", null, title, more && h("p", null, more), lost && h("p", { class: "lost" }, lost)));
}

function error(view) {
  const failure = view.killed || view.error;
  if (!failure) return null;
  return panel("Error", failure.type, h("div", { class: "body" }, h("p", null, failure.message), failure.traceback && h("pre", { class: "error", tabindex: "0" }, failure.traceback)));
}

function waits(view) {
  const children = view.waiting?.children;
  if (!children) return null;
  return panel("Waits for children", `${count(children.ended)} of ${count(children.count)} ended`, h("ul", { class: "tree" }, children.open.map((one) => h("li", null, h("div", null, pill(one.status), h("span", { class: "kind" }, one.kind), h("a", { class: "mono", href: `#/runs/${encodeURIComponent(one.run)}` }, one.run), h("span", { class: "soft" }, one.why))))));
}

function values(view, checkpoint) {
  const block = (name, value) => panel(name, null, h("div", { class: "body" }, h("pre", { tabindex: "0" }, json(value))));
  const found = [block("Inputs", view.inputs_text)];
  if (view.status === "completed") found.push(block("Result", checkpoint.result === null ? "None" : checkpoint.result));
  if (checkpoint.state !== null) found.push(block("State", checkpoint.state));
  else if (checkpoint.size > 4 * 2 ** 20) found.push(panel("State", null, h("div", { class: "empty" }, `The checkpoint has ${bytes(checkpoint.size)}: too large to show here.`)));
  const parts = [h("div", { class: "two" }, found)];
  if (checkpoint.phases.length) parts.push(panel("Phases", plural(checkpoint.phases.length, "phase"), h("div", { class: "body" }, checkpoint.phases.map((phase) => h("details", { "data-name": `phase ${phase.name}` }, h("summary", null, phase.name), h("pre", { tabindex: "0" }, json(phase.output)))))));
  return parts;
}

function children(data) {
  if (!data.children.length) return null;
  return panel("Children", data.more ? `the first ${count(data.children.length)} children` : plural(data.children.length, "child").replace("childs", "children"), h("ul", { class: "tree" }, data.children.map(branch)));
}

function branch(child) {
  const below = h("ul", { hidden: true });
  const fold = h("button", { type: "button", class: "fold", "aria-label": `Children of run ${child.id}`, "aria-expanded": "false", disabled: !child.children, onclick: async () => {
    below.hidden = !below.hidden;
    fold.setAttribute("aria-expanded", String(!below.hidden));
    fold.textContent = below.hidden ? "▸" : "▾";
    if (!below.childElementCount) try { below.append(...(await get(`runs/${encodeURIComponent(child.id)}`)).children.map(branch)); } catch (error) { toast(error.message, true); }
  } }, child.children ? "▸" : "·");
  const took = child.ended && child.started ? duration(child.ended - child.started) : "";
  return h("li", null, h("div", null, fold, pill(child.status), h("span", { class: "kind" }, child.kind), h("a", { class: "mono", href: `#/runs/${encodeURIComponent(child.id)}` }, child.id), child.attempt > 1 && h("span", { class: "tag" }, `attempt ${child.attempt}`), h("span", { class: "faint" }, took)), below);
}
