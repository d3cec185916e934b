// Schedules: their rules, their next fire times, and the runs of their last ones. The first columns are those that a phone shows.
import { get } from "./api.js";
import { h, panel, pill } from "./dom.js";
import { ago, count, duration, json, moment, unix } from "./format.js";

export function schedules(root) {
  const body = h("tbody"), empty = h("div", { class: "empty", hidden: true }, "There are no schedules. Set one: coordinator schedule set NAME '0 3 * * *' KIND");
  root.append(h("div", { class: "title" }, h("h1", null, "Schedules")), panel("All schedules", null, h("div", { class: "scroll", tabindex: "0" }, h("table", null, h("thead", null, h("tr", null, h("th", null, "Schedule"), h("th", { class: "num" }, "Next"), ...["Last run", "When", "Kind"].map((name) => h("th", null, name)), h("th", { class: "num" }, "Fired"), h("th", { class: "num" }, "Skipped"), h("th", null, "Rules"))), body)), empty));
  let again = 0, stopped = false;
  const open = new Map(); // the schedules whose fire times are shown
  function toggle(name) {
    if (open.has(name)) open.delete(name); else open.set(name, null);
    clearTimeout(again);
    load();
  }
  async function load() {
    try {
      const data = await get("schedules");
      const names = [...open.keys()], fires = await Promise.all(names.map((name) => get(`schedules/${encodeURIComponent(name)}`).catch(() => null)));
      names.forEach((name, i) => { if (open.has(name)) open.set(name, fires[i]); });
      const focused = document.activeElement?.dataset?.schedule;
      empty.hidden = data.schedules.length > 0;
      body.replaceChildren(...data.schedules.flatMap((one) => [row(one, data.now, open.has(one.name), toggle), open.has(one.name) && detail(open.get(one.name), data.now)].filter(Boolean)));
      if (focused) body.querySelector(`button[data-schedule="${CSS.escape(focused)}"]`)?.focus();
    } catch (error) { empty.hidden = false; empty.textContent = error.message; }
    if (!stopped) again = setTimeout(load, 3000);
  }
  load();
  return { update() {}, destroy: () => { stopped = true; clearTimeout(again); } };
}

function detail(fires, now) {
  const content = fires ? [h("h3", null, "Next"), h("p", null, fires.next.length ? fires.next.map((at) => h("span", { class: "fire" }, `${moment(at)} (${ago(at, now)})`)) : h("span", { class: "faint" }, "none")), h("h3", null, "Last"), h("ul", { class: "tree fires" }, fires.last.map((one) => fired(one, now)))] : ["Loading…"];
  return h("tr", { class: "detail" }, h("td", { colSpan: 8 }, content));
}

function fired(one, now) {
  const run = one.run;
  const took = run?.ended && run.started ? duration(run.ended - run.started) : "";
  return h("li", null, h("div", null, h("span", { class: "fire", title: ago(one.at, now) }, moment(one.at)), run ? [pill(run.status), h("a", { class: "mono", href: `#/runs/${encodeURIComponent(run.id)}` }, run.id), h("span", { class: "faint" }, took)] : h("span", { class: "faint" }, "no run: skipped, missed, or no longer kept")));
}

function row(one, now, isOpen, toggle) {
  const fold = h("button", { type: "button", class: "fold", "data-schedule": one.name, "aria-expanded": String(isOpen), "aria-label": `Fire times of ${one.name}`, onclick: () => toggle(one.name) }, isOpen ? "▾" : "▸");
  const state = one.trouble ? h("span", { class: "tag bad", title: one.trouble }, one.trouble.slice(0, 60)) : one.paused ? h("span", { class: "tag warn" }, "paused") : one.late ? h("span", { class: "tag bad" }, "late") : null;
  const inputs = Object.keys(one.inputs || {}).length ? json(one.inputs) : "";
  const last = one.last ? h("a", { href: `#/runs/${encodeURIComponent(one.last)}`, title: one.last }, one.last_run ? pill(one.last_run.status) : h("span", { class: "mono" }, one.last)) : h("span", { class: "faint" }, "never");
  return h("tr", { class: "row" }, h("td", null, fold, h("span", { class: "kind" }, one.name), " ", state), h("td", { class: "num soft" }, one.next ? h("span", { title: moment(unix(one.next)) }, ago(unix(one.next), now)) : ""), h("td", null, last), h("td", { class: "mono" }, one.when, one.tz && one.tz !== "UTC" && h("span", { class: "faint" }, ` ${one.tz}`)), h("td", { title: inputs }, one.kind, one.queue !== "default" && h("span", { class: "faint" }, ` ${one.queue}`)), h("td", { class: "num" }, count(one.fired)), h("td", { class: "num" }, count(one.skipped)), h("td", { class: "faint" }, [`overlap ${one.overlap}`, `catch up ${one.catch_up}`, one.jitter && `jitter ${one.jitter} s`].filter(Boolean).join(", ")));
}
