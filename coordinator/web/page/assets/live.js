// The live board: one stream from the server, shared by all parts of the page. The browser reconnects by itself.

export const live = { board: null, offset: 0 };
const listeners = new Set();
let source = null, state = "connecting", lastMessage = 0;

export function now() { return Date.now() / 1000 + live.offset; }

export function subscribe(listener) { listeners.add(listener); return () => listeners.delete(listener); }

export function connect(onState) {
  const tell = (next) => { if (next !== state) { state = next; onState(state); } };
  const open = () => {
    source?.close();
    source = new EventSource("data/live");
    lastMessage = Date.now();
    source.addEventListener("board", (event) => {
      lastMessage = Date.now();
      live.board = JSON.parse(event.data);
      if (live.board.now) live.offset = live.board.now - Date.now() / 1000;
      tell(live.board.error ? "server lost" : "live");
      for (const listener of listeners) listener(live.board);
    });
    source.onerror = () => { tell("reconnecting"); if (source.readyState === EventSource.CLOSED) setTimeout(open, 1500); };
  };
  open();
  // A connection that died without a sign: the server sends a board at least once a second while it can reach its store.
  setInterval(() => { if (Date.now() - lastMessage > 15000) { tell("reconnecting"); open(); } }, 5000);
  onState(state);
}
