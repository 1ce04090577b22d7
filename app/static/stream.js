// Requests to our own routes: event streams of runs and small JSON requests.
const RETRY_MS = 1500;

// Follows run `id`: step(record), state(name), end(run), fail(message). Returns a function that stops listening.
// The browser reconnects by itself with Last-Event-ID. If it gives up (the web process was down for long), the stream
// starts from the beginning: records that are shown already arrive again and must be ignored by their index.
function follow(id, handlers) {
  let source = null, timer = 0;
  const listen = () => {
    source = new EventSource(`/api/runs/${encodeURIComponent(id)}/events`);
    source.addEventListener("step", (event) => handlers.step?.(JSON.parse(event.data)));
    source.addEventListener("state", (event) => handlers.state?.(JSON.parse(event.data).state));
    source.addEventListener("end", (event) => {
      source.close();
      handlers.end?.(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(reconnect, RETRY_MS);
    });
  };
  const reconnect = async () => {
    try {
      await ask(`/api/runs/${encodeURIComponent(id)}`);
      listen();
    } catch (error) {
      if (error.status === 404) handlers.fail?.("This run was deleted.");
      else if (error.status === 401) handlers.fail?.("You are logged out; reload this page to log in again.");
      else timer = setTimeout(reconnect, RETRY_MS);
    }
  };
  listen();
  return () => { source.close(); clearTimeout(timer); };
}

// Returns JSON from one of our routes; `given` is sent as JSON. Throws an Error with the server's message and the HTTP
// `status`.
async function ask(path, method = "GET", given = undefined) {
  let response;
  const body = given === undefined ? {} : { body: JSON.stringify(given) };
  const headers = { Accept: "application/json", ...(given === undefined ? {} : { "Content-Type": "application/json" }) };
  try {
    response = await fetch(path, { method, headers, ...body });
  } catch {
    throw new Error("The workbench does not respond; is `speculoos up` still running?");
  }
  const content = await response.json().catch(() => ({}));
  if (response.ok) return content;
  throw Object.assign(new Error(content.error?.message || `The workbench returned status ${response.status}.`), { status: response.status });
}

export { follow, ask };
