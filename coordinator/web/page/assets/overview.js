// The overview: counts, kinds, the board of workers on which runs move, and the latest changes.
import { get } from "./api.js";
import { h, hue, keyed, panel, pill, say } from "./dom.js";
import { STATUSES, bytes, cause, clock, count, duration, plural, rate, seconds, slotUse } from "./format.js";
import { live, now } from "./live.js";
import { grouped, plot } from "./plot.js";

const GONE_MS = 6000;
const link = (params) => `#/runs?${new URLSearchParams(params)}`;

export function overview(root) {
  const stats = h("section", { class: "panel stats", "aria-label": "Runs by status" });
  const tiles = new Map(STATUSES.map((status) => {
    const number = h("b", null, "–");
    const tile = h("a", { class: "stat zero", href: link({ status }) }, number, h("span", { class: `pill ${status}` }, status));
    stats.append(tile);
    return [status, { tile, number }];
  }));
  const total = h("b", null, "0.0"), chart = plot();
  stats.append(h("div", { class: "rate" }, h("p", null, total, "runs ended per second"), chart));
  const attention = h("ul", { class: "attention", "aria-label": "Needs attention", hidden: true });
  const rows = h("tbody"), noKinds = empty("There are no runs yet. Enqueue one: coordinator enqueue KIND name=text");
  const kinds = panel("Kinds", "Plots: the last 2 minutes", h("div", { class: "scroll", tabindex: "0" }, h("table", null, h("thead", null, h("tr", null, ...["Kind", "Queue"].map((name) => h("th", null, name)), ...["Queued", "Oldest", "Running", "Ended/s", "Workers"].map((name) => h("th", { class: "num" }, name)))), rows)), noKinds);
  const lines = h("tbody"), longer = h("span", { class: "aside" });
  const groups = h("section", { class: "panel", "aria-label": "Groups with waiting runs", hidden: true }, h("header", null, h("h2", null, "Groups with waiting runs"), longer), h("div", { class: "scroll", tabindex: "0" }, h("table", null, h("thead", null, h("tr", null, ...["Group", "Kind"].map((name) => h("th", null, name)), ...["Places taken", "Waiting", "Longest wait"].map((name) => h("th", { class: "num" }, name)))), lines)));
  const names = h("tbody"), further = h("span", { class: "aside" });
  const limits = h("section", { class: "panel", "aria-label": "External calls", hidden: true }, h("header", null, h("h2", null, "External calls"), further), h("div", { class: "scroll", tabindex: "0" }, h("table", null, h("thead", null, h("tr", null, ...["Name", "Limit"].map((name) => h("th", null, name)), ...["Under way", "Waiting", "A new call waits"].map((name) => h("th", { class: "num" }, name)))), names)));
  const cards = h("div", { class: "board", id: "board" }), fleet = h("span", { class: "aside" }), noWorkers = empty("No worker is running. Start some: workers start app:runs");
  const workers = h("section", { class: "panel", "aria-label": "Workers" }, h("header", null, h("h2", null, "Workers"), fleet), cards, noWorkers);
  const list = h("ol", { class: "events", id: "events" });
  const noEvents = empty("Changes of runs appear here as they happen.");
  const side = panel("Changes", null, list, noEvents);
  root.append(h("h1", { class: "unseen" }, "Overview"), stats, attention, h("div", { class: "columns" }, h("div", null, workers, kinds, groups, limits), side));
  const board = new WorkerBoard(cards);

  let findings = [], stopped = false, examining = 0;
  // The server keeps one report for all viewers, and examines only a small namespace on its own.
  async function examine() {
    let pause = 60000;
    try {
      const report = await get("doctor", { cheap: "1" });
      findings = report.examined && !report.healthy ? [`the doctor found ${plural(report.found, "problem")} ${duration(report.age)} ago: ${report.findings[0]?.sentence || ""}`] : [];
    } catch { findings = []; pause = 5000; }
    if (!stopped) examining = setTimeout(examine, pause);
  }

  function update(data) {
    const sentences = [...(data.attention || []), ...findings];
    keyed(attention, sentences.map((text) => ({ text })), (item) => item.text, (item) => h("li", null, item.text));
    attention.hidden = !sentences.length;
    if (!data.counts) return;
    groups.hidden = !data.groups.length;
    say(longer, data.more_groups ? `and ${plural(data.more_groups, "more group")}` : "");
    keyed(lines, data.groups, (g) => `${g.kind} ${g.group}`, groupRow, updateGroup);
    limits.hidden = !data.limits.length;
    say(further, data.more_limits ? `and ${plural(data.more_limits, "more limit")}` : "");
    keyed(names, data.limits, (l) => l.name, limitRow, updateLimit);
    for (const [status, { tile, number }] of tiles) {
      say(number, count(data.counts[status]));
      tile.classList.toggle("zero", !data.counts[status]);
    }
    say(total, rate(data.rate));
    chart.draw(grouped(data.history, 3), 40);
    keyed(rows, data.queues, (q) => `${q.queue} ${q.kind}`, queueRow, updateQueue);
    const slots = data.processes.reduce((sum, one) => sum + one.slots, 0);
    const coordinators = data.coordinators.filter((one) => one.age < 5).length;
    say(fleet, `${plural(data.processes.length + data.more_processes, "process").replace("processs", "processes")}, ${plural(slots, "slot")}, ${plural(coordinators, "coordinator")}`);
    board.update(data.processes);
    noWorkers.hidden = data.processes.length > 0;
    noKinds.hidden = data.queues.length > 0;
    noEvents.hidden = data.events.length > 0;
    keyed(list, data.events, (e) => `${e.run} ${e.status} ${e.at} ${e.attempt}`, eventRow);
  }
  const ticking = setInterval(() => board.tick(), 1000);
  if (live.board) update(live.board);
  examine();
  return { update, destroy: () => { stopped = true; clearInterval(ticking); clearTimeout(examining); } };
}

function empty(text) { return h("div", { class: "empty", hidden: true }, text); }

function groupRow(g) {
  const cells = ["taken", "held", "waited"].map(() => h("td", { class: "num" }));
  const row = h("tr", { class: "row" }, h("td", null, h("a", { class: "kind", href: link({ status: "queued", kind: g.kind, group: g.group }) }, g.group)), h("td", { class: "soft" }, g.kind), ...cells);
  row.cells_ = cells;
  return row;
}

function updateGroup(row, g) {
  const [taken, held, waited] = row.cells_;
  say(taken, g.at_once === null ? "no limit known" : `${count(g.taken)} of ${count(g.at_once)}${g.rate ? `, ${g.rate} starts` : ""}`);
  say(held, count(g.held));
  say(waited, duration(g.waited));
}

function limitRow(l) {
  const cells = [h("td", { class: "soft" }), ...["held", "waiting", "wait"].map(() => h("td", { class: "num" }))];
  const row = h("tr", { class: "row" }, h("td", null, l.name), ...cells);
  row.cells_ = cells;
  return row;
}

function updateLimit(row, l) {
  const [limit, held, waiting, wait] = row.cells_;
  say(limit, l.limit);
  say(held, count(l.held));
  say(waiting, count(l.waiting));
  waiting.classList.toggle("faint", !l.waiting);
  say(wait, l.wait ? duration(l.wait) : "");
}

// A number with the plot of its last two minutes.
function trend() {
  const number = h("span"), spark = plot("spark");
  return { number, spark, cell: h("td", { class: "num" }, h("div", { class: "trend" }, spark, number)) };
}

function queueRow(q) {
  const cells = { queued: trend(), age: trend(), running: h("td", { class: "num" }), rate: trend(), workers: h("td", { class: "num" }) };
  const row = h("tr", { class: "row" }, h("td", null, h("a", { class: "kind", href: link({ kind: q.kind, queue: q.queue }) }, q.kind)), h("td", { class: "soft" }, q.queue), cells.queued.cell, cells.age.cell, cells.running, cells.rate.cell, cells.workers);
  row.cells_ = cells;
  return row;
}

function updateQueue(row, q) {
  const cells = row.cells_;
  say(cells.queued.number, count(q.queued));
  cells.queued.cell.classList.toggle("faint", !q.queued);
  say(cells.age.number, q.age === null ? "–" : duration(q.age));
  cells.age.cell.classList.toggle("faint", q.age === null);
  say(cells.running, count(q.running));
  cells.running.classList.toggle("faint", !q.running);
  say(cells.rate.number, rate(q.rate));
  const tag = q.paused ? "paused" : q.workers ? "" : "no worker";
  if (row.tag_ !== `${tag}${q.workers}`) {
    row.tag_ = `${tag}${q.workers}`;
    cells.workers.replaceChildren(tag ? h("span", { class: q.paused ? "tag warn" : "tag bad" }, tag) : String(q.workers));
  }
  cells.queued.spark.draw(q.depths, 40);
  cells.age.spark.draw(q.ages, 40);
  cells.rate.spark.draw(grouped(q.history, 3), 40);
}

function eventRow(e) {
  const more = [e.status === "running" ? `attempt ${e.attempt} on ${e.where || e.worker}` : "", e.cause && cause(e.cause), e.reason].filter(Boolean).join(", ");
  return h("li", null, h("time", null, clock(e.at)), h("span", { class: "what" }, pill(e.status), h("a", { href: `#/runs/${encodeURIComponent(e.run)}`, title: e.run }, e.kind)), more && h("span", { class: "more", title: more }, more));
}

// Cards of processes, with a chip for each run. A chip that changes its card flies there.
class WorkerBoard {
  constructor(root) { this.root = root; this.chips = new Map(); this.gone = new Map(); this.cards = new Map(); this.first = true; }

  update(processes) {
    const here = new Set(processes.map((one) => one.id));
    for (const [id, card] of this.cards) {
      if (here.has(id) || this.gone.has(id)) continue;
      this.gone.set(id, { card, process: { ...card.process, state: "gone", runs: [] }, until: Date.now() + GONE_MS });
    }
    for (const [id, ghost] of this.gone) if (here.has(id) || Date.now() > ghost.until) this.gone.delete(id);
    const shown = [...processes, ...[...this.gone.values()].map((ghost) => ghost.process)];
    shown.sort((a, b) => (a.fleet + a.host).localeCompare(b.fleet + b.host) || a.pid - b.pid || a.id.localeCompare(b.id));
    const places = this.first ? new Map() : this.measure(processes);
    keyed(this.root, shown, (one) => one.id, (one) => this.make(one), (card, one) => this.show(card, one));
    for (const [id, card] of this.cards) if (!card.isConnected) this.cards.delete(id);
    const owned = new Set(processes.flatMap((one) => one.runs.map((run) => run.id)));
    for (const [id, chip] of this.chips) if (!owned.has(id)) { chip.remove(); this.chips.delete(id); }
    this.fly(places);
    this.first = false;
  }

  // Where each chip is that will change its card.
  measure(processes) {
    const places = new Map();
    for (const one of processes) for (const run of one.runs) {
      const chip = this.chips.get(run.id);
      if (chip && chip.home !== one.id) places.set(run.id, chip.getBoundingClientRect());
    }
    return places;
  }

  fly(places) {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    for (const [id, from] of places) {
      const chip = this.chips.get(id);
      if (!chip) continue;
      const to = chip.getBoundingClientRect();
      chip.classList.add("landed");
      setTimeout(() => chip.classList.remove("landed"), 2500);
      if (!still) chip.animate([{ transform: `translate(${from.left - to.left}px, ${from.top - to.top}px)`, zIndex: 4 }, { transform: "none", zIndex: 4 }], { duration: 450, easing: "cubic-bezier(.2,.8,.2,1)" });
    }
  }

  make(one) {
    const parts = { code: h("span", { class: "code faint mono", title: one.code }, one.code), slots: h("div", { class: "slots" }), use: h("span"), memory: h("span"), say: h("span", { class: "say" }) };
    const card = h("article", { class: "card", "aria-label": `Process ${one.pid} on ${one.host}` }, h("header", null, h("span", { class: "state" }), h("span", { class: "where", title: `${one.host}:${one.pid}` }, `${one.host}:${one.pid}`), parts.code), parts.slots, h("footer", null, parts.use, parts.memory, parts.say));
    card.dataset.pid = one.pid;
    card.parts = parts;
    this.cards.set(one.id, card);
    if (!this.first) { card.classList.add("fresh"); setTimeout(() => card.classList.remove("fresh"), 3000); }
    return card;
  }

  show(card, one) {
    card.process = one;
    for (const state of ["working", "draining", "silent", "gone"]) card.classList.toggle(state, one.state === state);
    card.classList.toggle("tight", one.slots > 24);
    const parts = card.parts;
    say(parts.use, one.state === "gone" ? "" : slotUse(one, " slots"));
    say(parts.memory, one.state === "gone" ? "" : bytes(one.memory));
    say(parts.say, one.state === "working" ? (one.lease_age > one.lease / 2 ? `heartbeat ${duration(one.lease_age)} ago` : "") : one.state === "silent" ? `no heartbeat for ${duration(one.lease_age)}` : one.state);
    for (const run of one.runs) {
      let chip = this.chips.get(run.id);
      if (!chip) { chip = this.makeChip(run); this.chips.set(run.id, chip); }
      chip.home = one.id;
      chip.run = run;
      say(chip.again, run.attempt > 1 ? `×${run.attempt}` : "");
      chip.again.hidden = !(run.attempt > 1);
      if (chip.parentNode !== parts.slots) parts.slots.insertBefore(chip, parts.slots.querySelector(".free"));
    }
    const free = Math.max(0, Math.min(24, one.slots - one.runs.length)), present = parts.slots.querySelectorAll(".free");
    for (let i = present.length; i < (one.state === "gone" ? 0 : free); i++) parts.slots.append(h("span", { class: "free" }));
    for (let i = one.state === "gone" ? 0 : free; i < present.length; i++) present[i].remove();
    this.tick(one.runs.map((run) => this.chips.get(run.id)));
  }

  makeChip(run) {
    const time = h("i"), again = h("span", { class: "again", title: "attempt" });
    const chip = h("a", { class: "chip", href: `#/runs/${encodeURIComponent(run.id)}`, title: `${run.kind || "run"} ${run.id}` }, h("b", null, run.kind || run.id), again, time);
    chip.dataset.run = run.id;
    chip.time = time;
    chip.again = again;
    chip.style.setProperty("--hue", hue(run.kind || ""));
    return chip;
  }

  tick(chips) {
    const at = now();
    for (const chip of chips || this.chips.values()) if (chip?.run?.started) say(chip.time, seconds(Math.max(0, at - chip.run.started)));
  }
}
