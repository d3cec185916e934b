// Changes of runs, each behind a dialog that says what will happen. A change of many runs is tried without effect first.
import { post } from "./api.js";
import { h, toast } from "./dom.js";
import { count, plural } from "./format.js";

const WORDS = {
  cancel: { verb: "Cancel", done: "cancelled or asked to stop", says: "Runs that wait are cancelled at once. The workers of running runs are asked to stop them." },
  revive: { verb: "Revive", done: "requeued", says: "They continue from their last checkpoint." },
  revive_from_start: { verb: "Revive from the start", done: "requeued", says: "Their checkpoints are dropped." },
  revive_without_effects: { verb: "Revive and forget effects", done: "requeued", says: "They continue from their last checkpoint. Their effects are forgotten, so they may be repeated." },
  discard: { verb: "Discard", done: "discarded", says: "They are removed with their results and checkpoints. This can't be undone." },
};

export function ask(title, content, verb, danger) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-label": title }, h("form", { method: "dialog" }, h("h2", null, title), ...content, h("div", { class: "bar" }, h("button", { value: "no", type: "submit" }, "Back"), h("button", { value: "yes", type: "submit", class: danger ? "danger" : "primary", id: "confirm" }, verb))));
    dialog.addEventListener("close", () => { resolve(dialog.returnValue === "yes"); dialog.remove(); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

function report(action, answer) {
  const word = WORDS[action];
  if (answer.changed) toast(`${plural(answer.changed, "run")} ${word.done}.`);
  if (answer.failed) toast(`${plural(answer.failed, "run")} not changed: ${answer.errors[0]?.detail || ""}`, true);
  if (!answer.changed && !answer.failed) toast("No runs matched.");
}

export async function changeRuns(action, ids) {
  const word = WORDS[action];
  const sure = await ask(`${word.verb} ${plural(ids.length, "run")}?`, [h("p", null, word.says)], word.verb, action !== "revive");
  if (!sure) return false;
  try { report(action, await post("changes", { action, ids })); return true; } catch (error) { toast(error.message, true); return false; }
}

export async function changeMatching(action, filter) {
  const word = WORDS[action];
  try {
    const dry = await post("changes", { action, filter, dry_run: true });
    if (!dry.matched) { toast("No runs match."); return false; }
    const list = h("ul", null, dry.sample.map((id) => h("li", { class: "mono" }, id)), dry.matched > dry.sample.length && h("li", null, `and ${plural(dry.matched - dry.sample.length, "more run")}`));
    const sure = await ask(`${word.verb} ${plural(dry.matched, "run")}?`, [h("p", null, word.says), list], word.verb, action !== "revive");
    if (!sure) return false;
    report(action, await post("changes", { action, filter, expected: dry.matched }));
    return true;
  } catch (error) { toast(error.message, true); return false; }
}

// Cancel a run and all runs below it, after they were counted.
export async function cancelTree(id) {
  try {
    const dry = await post("changes", { action: "cancel_tree", ids: [id], dry_run: true });
    const list = h("ul", null, dry.sample.map((one) => h("li", { class: "mono" }, one)), dry.matched > dry.sample.length && h("li", null, `and ${plural(dry.matched - dry.sample.length, "more run")}`));
    const sure = await ask(`Cancel a tree of ${plural(dry.matched, "run")}?`, [h("p", null, "The run and all runs below it that have not ended are cancelled, as well as runs that they enqueue meanwhile."), list], "Cancel the tree", true);
    if (!sure) return false;
    const answer = await post("changes", { action: "cancel_tree", ids: [id] });
    toast(`${plural(answer.changed, "run")} cancelled or asked to stop${answer.ended ? `, ${count(answer.ended)} had ended before` : ""}.`);
    return true;
  } catch (error) { toast(error.message, true); return false; }
}

export async function grant(run) {
  const fields = [["usd", "Dollars", "0.01"], ["tokens", "Tokens", "1"], ["requests", "Requests", "1"]].map(([name, label, step]) => [name, label, h("input", { name, type: "number", min: "0", step })]);
  const sure = await ask("Grant more than the budget", fields.map(([, label, input]) => h("label", null, label, input)), "Grant");
  if (!sure) return false;
  const body = Object.fromEntries(fields.map(([name, , input]) => [name, Number(input.value) || 0]));
  try { await post("grants", { run, ...body }); toast("Granted."); return true; } catch (error) { toast(error.message, true); return false; }
}

export async function sendSignal(run, topics) {
  const topic = h("input", { name: "topic", required: true, value: topics[0] || "", spellcheck: "false" });
  const payload = h("textarea", { name: "payload", spellcheck: "false", placeholder: '{"ok": true}' });
  const sure = await ask("Send a signal", [h("label", null, "Topic", topic), h("label", null, "Payload as JSON; empty for none", payload)], "Send");
  if (!sure) return false;
  let value = null;
  try { if (payload.value.trim()) value = JSON.parse(payload.value); } catch { toast("The payload is not JSON.", true); return false; }
  try { await post("signals", { run, topic: topic.value.trim(), payload: value }); toast("Signal sent."); return true; } catch (error) { toast(error.message, true); return false; }
}
