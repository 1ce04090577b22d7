// Requests to our own routes: event streams of runs and small JSON requests.
import { notice, t } from "./dom.js";

const RETRY_MS = 1500;

// Follows run `id`: step(record), state(name), end(run), fail(message). Returns a function that stops listening.
// The browser reconnects by itself with Last-Event-ID. If it gives up (the web process was down for long), the stream
// starts from the beginning: records that are shown already arrive again and must be ignored by their index.
export function follow(id, { step, state, end, fail }) {
  const path = `/api/runs/${encodeURIComponent(id)}`;
  let source = null, timer = 0;
  const listen = () => {
    source = new EventSource(`${path}/events`);
    const on = (kind, run) => source.addEventListener(kind, (event) => run?.(JSON.parse(event.data)));
    on("step", step);
    on("state", (data) => state?.(data.state));
    on("end", (run) => { source.close(); end(run); });
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(reconnect, RETRY_MS);
    });
  };
  const reconnect = async () => {
    try {
      await fetchJSON(path);
      listen();
    } catch (error) {
      if (error.status === 404) fail?.(t("This run was deleted."));
      else if (error.status === 401) fail?.(error.message);
      else timer = setTimeout(reconnect, RETRY_MS);
    }
  };
  listen();
  return () => { source.close(); clearTimeout(timer); };
}

// Returns JSON from one of our routes; `data` is sent as JSON. Throws an Error with the server's message and the HTTP
// `status`.
export async function fetchJSON(path, method = "GET", data = undefined) {
  const headers = { Accept: "application/json", ...(data && { "Content-Type": "application/json" }) };
  const response = await fetch(path, { method, headers, body: data && JSON.stringify(data) }).catch(() => {
    throw new Error(t("The workbench does not respond; is `speculoos up` still running?"));
  });
  const content = await response.json().catch(() => ({}));
  if (response.ok) return content;
  const { status } = response, loggedOut = status === 401 && t("You are logged out; reload this page to log in again.");
  throw Object.assign(new Error(loggedOut || content.error?.message || t("The workbench returned status {status}.", { status })), { status });
}

// The same, but an error is shown at the end of `box`, and the result is undefined.
export async function fetchOrShow(box, ...request) {
  return fetchJSON(...request).catch((error) => { box.append(notice(error.message, "bad")); });
}
