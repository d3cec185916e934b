// Numbers, durations and times as short text.

export const STATUSES = ["queued", "running", "waiting", "delayed", "completed", "failed", "cancelled", "dead"];

const CAUSES = { recover: "after its worker was lost", release: "after its worker released it", retry: "for a retry", revive: "after a revive" };

export function cause(word) {
  if (word === "wake signal coordinator.grant") return "woken by a grant";
  return CAUSES[word] || (word.startsWith("wake") ? `woken by ${word.slice(5) || "its condition"}` : `after ${word}`);
}

export function count(number) { return Number(number || 0).toLocaleString("en-US"); }

export function duration(seconds) {
  const s = Math.max(0, Number(seconds) || 0);
  if (s < 0.095) return `${Math.round(s * 1000)} ms`;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

export function seconds(s) { return s < 60 ? `${Math.floor(s)}s` : s < 3600 ? `${Math.floor(s / 60)}m` : `${Math.floor(s / 3600)}h`; }

export function unix(iso) { return iso ? Date.parse(iso) / 1000 : 0; }

export function clock(at) { return at ? new Date(at * 1000).toLocaleTimeString("en-GB") : ""; }

export function moment(at) {
  if (!at) return "";
  const date = new Date(at * 1000), today = new Date();
  const day = date.toDateString() === today.toDateString() ? "" : `${date.toISOString().slice(0, 10)} `;
  return day + date.toLocaleTimeString("en-GB");
}

// Why a run has its status. The times that the server names in its sentence are shown like all others.
export function reason(view) { return (view.why || "").replace(/\b(since|until) (\d{4}-\d\d-\d\dT[\d:.]+\+00:00)/g, (_, word, iso) => `${word} ${moment(unix(iso))}`); }

export function ago(at, now) { return at ? (at > now ? `in ${duration(at - now)}` : `${duration(now - at)} ago`) : ""; }

export function bytes(number) {
  if (!number) return "";
  const mebibytes = number / 2 ** 20;
  if (mebibytes < 1) return `${Math.max(1, Math.round(number / 1024))} KiB`;
  return mebibytes < 1000 ? `${Math.round(mebibytes)} MiB` : `${(mebibytes / 1024).toFixed(1)} GiB`;
}

export function rate(number) { return number >= 100 ? count(Math.round(number)) : Number(number || 0).toFixed(1); }

// The server says which runs are beyond the slots: their outcomes are being recorded.
export function slotUse(process, noun = "") { return `${process.busy ?? 0} of ${process.slots}${noun}${process.finishing ? `, ${process.finishing} finishing` : ""}`; }

export function plural(number, noun) { return `${count(number)} ${noun}${number === 1 ? "" : "s"}`; }

export function json(value) { return typeof value === "string" ? value : JSON.stringify(value, null, 2); }
