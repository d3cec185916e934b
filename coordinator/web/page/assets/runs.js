// The list of runs: filters, pages, and changes of many runs.
import { Failed, get, mayChange } from "./api.js";
import { changeMatching, changeRuns } from "./changes.js";
import { h, panel, pill, say, toast } from "./dom.js";
import { STATUSES, ago, count, plural, reason, unix } from "./format.js";
import { live, now } from "./live.js";

const AGES = { "": "Any time", 3600: "Last hour", 86400: "Last day", 604800: "Last week" };
export const ACTIONS = { cancel: ["queued", "delayed", "waiting", "running"], revive: ["failed", "dead", "cancelled"], discard: ["completed", "failed", "cancelled", "dead"] };

export function runs(root, params) {
  const state = { status: params.get("status") || "", kind: params.get("kind") || "", queue: params.get("queue") || "", group: params.get("group") || "", key: params.get("key") || "", meta: params.get("meta") || "", age: params.get("age") || "" };
  let cursor = "", loading = null, seen = new Set();
  const chosen = new Set();

  const segments = h("div", { class: "segments", role: "group", "aria-label": "Status" });
  const counts = new Map();
  for (const status of ["", ...STATUSES]) {
    const small = h("small");
    counts.set(status, small);
    segments.append(h("button", { type: "button", "aria-pressed": String(state.status === status), onclick: () => choose("status", status) }, status || "all", small));
  }
  const names = h("datalist", { id: "kinds" }), queues = h("datalist", { id: "queues" });
  const field = (name, label, more) => h("input", { name, placeholder: label, "aria-label": label, value: state[name], onchange: (event) => choose(name, event.target.value.trim()), spellcheck: "false", autocomplete: "off", ...more });
  const ages = h("select", { "aria-label": "Created", onchange: (event) => choose("age", event.target.value) }, Object.entries(AGES).map(([value, text]) => h("option", { value, selected: value === state.age }, text)));
  const filters = h("div", { class: "bar filters" }, field("kind", "Kind", { list: "kinds" }), field("queue", "Queue", { list: "queues" }), field("group", "Group"), field("key", "Key"), field("meta", "Meta: name=value"), ages, names, queues);
  const bulk = h("div", { class: "bar" });
  const selection = h("div", { class: "selection", hidden: true });
  const body = h("tbody"), more = h("div", { class: "more-row" });
  const all = h("input", { type: "checkbox", "aria-label": "Select all runs of this list", onchange: (event) => selectAll(event.target.checked) });
  const head = h("tr", null, mayChange() && h("th", null, all), ...["Run", "Kind", "Status"].map((name) => h("th", null, name)), h("th", { class: "num wide" }, "Attempt"), h("th", { class: "num" }, "Created"), h("th", { class: "wide" }, "Why"));
  const table = panel("Runs", null, selection, h("div", { class: "scroll" }, h("table", null, h("thead", null, head), body)), more);
  root.append(h("div", { class: "title" }, h("h1", null, "Runs"), bulk), segments, filters, table);
  showBulk();

  function choose(name, value) {
    const next = { ...state, [name]: value };
    location.hash = `#/runs?${new URLSearchParams(Object.entries(next).filter(([, text]) => text))}`;
  }
  function query() {
    const found = { ...state };
    delete found.age;
    if (state.age) found.since = String(now() - Number(state.age));
    return Object.fromEntries(Object.entries(found).filter(([, text]) => text));
  }
  function showBulk() {
    if (!mayChange() || !state.status) return;
    for (const [action, statuses] of Object.entries(ACTIONS)) {
      if (!statuses.includes(state.status)) continue;
      bulk.append(h("button", { type: "button", onclick: async () => {
        const { age, ...filter } = state;
        if (age) filter.since = now() - Number(age);
        if (await changeMatching(action, filter)) load(true);
      } }, `${action[0].toUpperCase()}${action.slice(1)} all matching…`));
    }
  }
  function showSelection() {
    selection.hidden = !chosen.size;
    if (!chosen.size) return;
    selection.replaceChildren(h("span", null, `${plural(chosen.size, "run")} selected`), h("span", { class: "grow" }), ...Object.keys(ACTIONS).map((action) => h("button", { type: "button", onclick: async () => { if (await changeRuns(action, [...chosen])) load(true); } }, action)), h("button", { type: "button", class: "quiet", onclick: () => selectAll(false) }, "Clear"));
  }
  function selectAll(on) {
    for (const box of body.querySelectorAll("input[type=checkbox]")) { box.checked = on; if (on) chosen.add(box.value); else chosen.delete(box.value); }
    all.checked = on;
    showSelection();
  }
  function row(run) {
    const box = mayChange() && h("td", null, h("input", { type: "checkbox", value: run.id, "aria-label": `Select run ${run.id}`, onchange: (event) => { if (event.target.checked) chosen.add(run.id); else chosen.delete(run.id); showSelection(); } }));
    return h("tr", { class: "row" }, box, h("td", null, h("a", { class: "mono", title: run.id, href: `#/runs/${encodeURIComponent(run.id)}` }, run.id)), h("td", null, h("span", { class: "kind" }, run.kind), run.queue !== "default" && h("span", { class: "faint" }, ` ${run.queue}`), run.group && h("span", { class: "tag" }, run.group)), h("td", null, pill(run.status, run.cancelling ? "cancelling" : run.status)), h("td", { class: "num wide" }, run.attempt > 1 ? h("b", null, String(run.attempt)) : String(run.attempt)), h("td", { class: "num soft" }, ago(unix(run.created), now())), h("td", { class: "why", title: run.why }, reason(run)));
  }
  async function load(again) {
    loading?.abort();
    const asking = loading = new AbortController();
    if (again) { cursor = ""; seen = new Set(); chosen.clear(); showSelection(); }
    more.replaceChildren("Loading…");
    try {
      const page = await get("runs", { ...query(), ...(cursor ? { cursor } : {}) }, asking.signal);
      if (again) body.replaceChildren();
      for (const run of page.runs) if (!seen.has(run.id)) { seen.add(run.id); body.append(row(run)); }
      cursor = page.cursor;
      showMore(page);
    } catch (error) {
      if (error.name === "AbortError") return;
      more.replaceChildren(h("span", null, error.message), h("button", { type: "button", onclick: () => load(again) }, "Try again"));
      if (!(error instanceof Failed)) toast(String(error), true);
    }
  }
  function showMore(page) {
    const text = seen.size ? `${plural(seen.size, "run")} shown` : "No runs match.";
    const next = cursor && h("button", { type: "button", id: "more", onclick: () => load(false) }, page.runs.length ? "Show more" : "Search further");
    const hint = !state.status && page.scanned > seen.size ? "The newest runs of all statuses: choose a status to page through all of them." : cursor && page.scanned > page.runs.length ? `${count(page.scanned)} runs examined.` : "";
    more.replaceChildren(...[next, h("span", null, text), hint && h("span", null, hint)].filter(Boolean));
  }
  function update(board) {
    for (const [status, small] of counts) if (status) say(small, count(board.counts?.[status]));
    const known = (values) => [...new Set(values)].sort();
    if (board.queues && names.childElementCount !== known(board.queues.map((q) => q.kind)).length) {
      names.replaceChildren(...known(board.queues.map((q) => q.kind)).map((value) => h("option", { value })));
      queues.replaceChildren(...known(board.queues.map((q) => q.queue)).map((value) => h("option", { value })));
    }
  }
  load(true);
  if (live.board) update(live.board);
  return { update, refresh: () => load(true), destroy: () => loading?.abort() };
}
