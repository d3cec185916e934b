// Requests to the server that served this page. Addresses are relative, so the page may be mounted under any path.

export const session = { role: "read", csrf: "", namespace: "", server: "", version: "" };

export class Failed extends Error {}

async function read(response) {
  let body = null;
  try { body = await response.json(); } catch { /* not JSON: a proxy has answered */ }
  if (!response.ok) throw new Failed(body?.detail || `The server answered with status ${response.status}.`);
  return body;
}

async function send(path, options) {
  let response;
  try { response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options }); }
  catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failed("The web server can't be reached.");
  }
  return read(response);
}

export function get(path, params, signal) {
  const query = params ? `?${new URLSearchParams(params)}` : "";
  return send(`data/${path}${query}`, { signal });
}

export function post(path, body) {
  return send(`data/${path}`, { method: "POST", headers: { "content-type": "application/json", "x-csrf-token": session.csrf }, body: JSON.stringify(body) });
}

export async function openSession() { Object.assign(session, await get("session")); }

export const mayChange = () => session.role === "all";
