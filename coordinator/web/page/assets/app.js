// The frame of the page: pages by address, keyboard, theme and connection.
import { openSession, session } from "./api.js";
import { h, toast } from "./dom.js";
import { fleets } from "./fleets.js";
import { connect, subscribe } from "./live.js";
import { overview } from "./overview.js";
import { run } from "./run.js";
import { runs } from "./runs.js";
import { schedules } from "./schedules.js";

const PAGES = { "": ["Overview", overview, "o"], runs: ["Runs", runs, "r"], schedules: ["Schedules", schedules, "s"], fleets: ["Fleets", fleets, "f"] };
const main = document.getElementById("main"), nav = document.getElementById("nav"), find = document.getElementById("find-id");
let page = null;

function show() {
  const [path, query] = (location.hash.slice(1) || "/").split("?"), [, name = "", part] = path.split("/"), id = part && decoded(part);
  const known = PAGES[name] ? name : "";
  page?.destroy();
  main.replaceChildren();
  nav.replaceChildren(...Object.entries(PAGES).map(([key, [title]]) => h("a", { href: `#/${key}`, "aria-current": key === known ? "page" : null }, title)));
  const params = new URLSearchParams(query || "");
  page = known === "runs" && id ? run(main, params, id) : PAGES[known][1](main, params);
  document.title = `${id || PAGES[known][0]} · ${session.namespace || "runs"}`;
  window.scrollTo(0, 0);
}

// An address that a person typed may have a percent sign that is not followed by two digits.
function decoded(text) { try { return decodeURIComponent(text); } catch { return text; } }

function theme(next, chosen) {
  document.documentElement.dataset.theme = next;
  if (chosen) try { localStorage.setItem("coordinator-theme", next); } catch { /* storage may be off */ }
}

function chosenTheme() {
  try { const known = localStorage.getItem("coordinator-theme"); if (known === "dark" || known === "light") return known; } catch { /* storage may be off */ }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function switchTheme() { theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", true); }

function help() {
  const rows = [["g o", "Overview"], ["g r", "Runs"], ["g s", "Schedules"], ["g f", "Fleets"], ["/", "Open a run by its id"], ["j, k", "Next and previous row"], ["Enter", "Open the row"], ["x", "Select the row"], ["t", "Light or dark"], ["?", "This help"]];
  const dialog = h("dialog", { "aria-label": "Keyboard" }, h("h2", null, "Keyboard"), h("dl", null, rows.flatMap(([key, text]) => [h("dt", null, h("kbd", null, key)), h("dd", null, text)])), h("form", { method: "dialog", class: "bar" }, h("button", null, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function moveRow(step) {
  const links = [...main.querySelectorAll("tbody tr.row")].filter((row) => row.querySelector("a"));
  const at = links.findIndex((row) => row.contains(document.activeElement));
  links[Math.max(0, Math.min(links.length - 1, at + step))]?.querySelector("a").focus();
}

let pending = "";
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.matches("input, select, textarea")) { if (event.key === "Escape") event.target.blur(); return; }
  const key = event.key;
  if (pending === "g") {
    pending = "";
    const target = Object.entries(PAGES).find(([, entry]) => entry[2] === key);
    if (target) { location.hash = `#/${target[0]}`; event.preventDefault(); return; }
  }
  if (key === "g") { pending = "g"; setTimeout(() => { pending = ""; }, 1200); }
  else if (key === "/") { find.focus(); event.preventDefault(); }
  else if (key === "?") help();
  else if (key === "t") switchTheme();
  else if (key === "j" || key === "k") { moveRow(key === "j" ? 1 : -1); event.preventDefault(); }
  else if (key === "x") document.activeElement.closest("tr.row")?.querySelector("input[type=checkbox]")?.click();
}

function connection(state) {
  const element = document.getElementById("connection");
  element.className = `connection ${state === "live" ? "live" : state === "connecting" ? "" : "lost"}`;
  element.replaceChildren(h("span", null, state));
  element.title = session.server;
}

theme(chosenTheme());
document.getElementById("theme").addEventListener("click", switchTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(chosenTheme()));
document.getElementById("find").addEventListener("submit", (event) => { event.preventDefault(); if (find.value.trim()) location.hash = `#/runs/${encodeURIComponent(find.value.trim())}`; find.blur(); });
document.addEventListener("keydown", onKey);
window.addEventListener("hashchange", show);
subscribe((board) => page?.update(board));
try { await openSession(); } catch (error) { toast(error.message, true); }
document.getElementById("namespace").textContent = session.namespace || "runs";
show();
connect(connection);
