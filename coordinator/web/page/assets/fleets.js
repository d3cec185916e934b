// Fleets: processes by code version, the last roll, and the doctor.
import { get } from "./api.js";
import { h, panel } from "./dom.js";
import { ago, bytes, count, duration, moment, plural, slotUse } from "./format.js";
import { now } from "./live.js";

export function fleets(root) {
  const list = h("div"), report = h("div", { class: "empty" }, "The doctor examines every key of the namespace for damage. It only reads.");
  list.style.display = "contents";
  const button = h("button", { type: "button", onclick: examine }, "Examine now");
  root.append(h("div", { class: "title" }, h("h1", null, "Fleets")), list, panel("Doctor", button, report));
  let again = 0, stopped = false;
  async function load() {
    try {
      const data = await get("fleets");
      list.replaceChildren(...(data.fleets.length ? data.fleets.map(fleet) : [panel("No fleets", null, h("div", { class: "empty" }, "No worker is registered: start some with 'workers start'."))]));
    } catch (error) { list.replaceChildren(h("div", { class: "panel empty" }, error.message)); }
    if (!stopped) again = setTimeout(load, 1000);
  }
  async function examine() {
    button.disabled = true;
    report.textContent = "Examining…";
    try {
      const found = await get("doctor");
      report.replaceChildren(h("p", null, found.healthy ? `No problems in ${plural(found.runs, "run")} and ${plural(found.keys, "key")}.` : `${plural(found.found, "problem")}: 'coordinator doctor --repair' repairs them.`), h("ul", null, found.findings.map((one) => h("li", null, one.sentence, one.remedy && h("span", { class: "faint" }, ` (${one.remedy})`)))));
    } catch (error) { report.textContent = error.message; }
    button.disabled = false;
  }
  load();
  return { update() {}, destroy: () => { stopped = true; clearTimeout(again); } };
}

function fleet(one) {
  const versions = new Map();
  for (const process of one.processes) versions.set(process.code, (versions.get(process.code) || 0) + 1);
  const spread = [...versions].map(([code, number]) => `${number} × ${code || "no version"}`).join(", ");
  const rows = one.processes.map((p) => h("tr", { class: "row" }, h("td", { class: "mono" }, `${p.host}:${p.pid}`), h("td", null, state(p)), h("td", { class: "mono" }, p.code), h("td", { class: "num" }, slotUse(p)), h("td", { class: "num" }, bytes(p.memory)), h("td", { class: "num soft" }, `${duration(p.lease_age)} ago`), h("td", { class: "why", title: p.routes.join(" ") }, kinds(p))));
  const table = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Processes" }, h("table", null, h("thead", null, h("tr", null, h("th", null, "Process"), h("th", null, "State"), h("th", null, "Code"), h("th", { class: "num" }, "Slots"), h("th", { class: "num" }, "Memory"), h("th", { class: "num" }, "Heartbeat"), h("th", null, "Takes"))), h("tbody", null, rows)));
  return panel(one.name || "default", `${plural(one.processes.length, "process").replace("processs", "processes")}, ${plural(one.supervisors.length, "supervisor")}: ${spread}`, roll(one.roll), table);
}

// The kinds that a process takes, with their queue unless it is the default one. The schemas are in the title.
function kinds(p) { return [...new Set(p.routes.map((route) => route.replace(/@[^@]*$/, "").replace(/^default:/, "")))].join(", "); }

function state(p) {
  const text = p.condemned ? "gone" : p.expired ? "lease expired" : p.draining ? "draining" : "working";
  return h("span", { class: text === "working" ? "pill running" : `tag ${text === "draining" ? "warn" : "bad"}` }, text);
}

function roll(one) {
  if (!one) return null;
  const parts = Object.entries(one.parts), replaced = parts.reduce((sum, [, part]) => sum + part.replaced, 0), total = parts.reduce((sum, [, part]) => sum + part.total, 0);
  const fill = h("i");
  fill.style.width = `${total ? (100 * replaced) / total : one.under_way ? 0 : 100}%`;
  const bad = parts.filter(([, part]) => part.reason).map(([name, part]) => h("p", { class: "lost" }, `${name}: ${part.state}: ${part.reason}`));
  return h("div", { class: "body" }, h("div", { class: "bar" }, h("b", null, one.under_way ? "Roll in progress" : "Last roll"), h("span", { class: "soft" }, `${count(replaced)} of ${count(total)} replaced`), h("div", { class: "meter grow" }, fill), h("span", { class: "faint", title: moment(one.asked) }, `${one.by ? `by ${one.by}, ` : ""}${ago(one.asked, now())}`)), bad);
}
