// Schedules: their rules, their next fire time, and their last run.
import { get } from "./api.js";
import { h, panel, pill } from "./dom.js";
import { ago, count, json, moment, unix } from "./format.js";

export function schedules(root) {
  const body = h("tbody"), empty = h("div", { class: "empty", hidden: true }, "There are no schedules.");
  root.append(h("div", { class: "title" }, h("h1", null, "Schedules")), panel("All schedules", null, h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, ...["Schedule", "When", "Kind"].map((name) => h("th", null, name)), h("th", { class: "num" }, "Next"), h("th", null, "Last run"), h("th", { class: "num" }, "Fired"), h("th", { class: "num" }, "Skipped"), h("th", null, "Rules"))), body)), empty));
  let again = 0, stopped = false;
  async function load() {
    try {
      const data = await get("schedules");
      empty.hidden = data.schedules.length > 0;
      body.replaceChildren(...data.schedules.map((one) => row(one, data.now)));
    } catch (error) { empty.hidden = false; empty.textContent = error.message; }
    if (!stopped) again = setTimeout(load, 3000);
  }
  load();
  return { update() {}, destroy: () => { stopped = true; clearTimeout(again); } };
}

function row(one, now) {
  const state = one.trouble ? h("span", { class: "tag bad", title: one.trouble }, one.trouble.slice(0, 60)) : one.paused ? h("span", { class: "tag warn" }, "paused") : one.late ? h("span", { class: "tag bad" }, "late") : null;
  const inputs = Object.keys(one.inputs || {}).length ? json(one.inputs) : "";
  const last = one.last ? h("a", { href: `#/runs/${encodeURIComponent(one.last)}`, title: one.last }, one.last_run ? pill(one.last_run.status) : h("span", { class: "mono" }, one.last)) : h("span", { class: "faint" }, "never");
  return h("tr", { class: "row" }, h("td", null, h("span", { class: "kind" }, one.name), " ", state), h("td", { class: "mono" }, one.when, one.tz && one.tz !== "UTC" && h("span", { class: "faint" }, ` ${one.tz}`)), h("td", { title: inputs }, one.kind, one.queue !== "default" && h("span", { class: "faint" }, ` ${one.queue}`)), h("td", { class: "num soft" }, one.next ? h("span", { title: moment(unix(one.next)) }, ago(unix(one.next), now)) : ""), h("td", null, last), h("td", { class: "num" }, count(one.fired)), h("td", { class: "num" }, count(one.skipped)), h("td", { class: "faint" }, [`overlap ${one.overlap}`, `catch up ${one.catch_up}`, one.jitter && `jitter ${one.jitter} s`].filter(Boolean).join(", ")));
}
