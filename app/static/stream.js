// Talking to our own routes: a run's records as they come, and small JSON requests.
const AGAIN_MS = 1500;

// Follows run `id`: step(record), state(name), end(run), fail(sentence). Returns a function that stops listening.
// The browser reconnects on its own with Last-Event-ID. Where it gives up (the web process was away for long), this
// begins anew: records that were shown come again and are to be ignored by their index.
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
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(look, AGAIN_MS);
    });
  };
  const look = async () => {
    try {
      await ask(`/api/runs/${encodeURIComponent(id)}`);
      listen();
    } catch (error) {
      if (error.status === 404) handlers.fail?.("This run is not stored any more.");
      else if (error.status === 401) handlers.fail?.("You are logged out; reload the page to log in and see the rest.");
      else timer = setTimeout(look, AGAIN_MS);
    }
  };
  listen();
  return () => { source.close(); clearTimeout(timer); };
}

// JSON from one of our routes; `given` is sent as JSON. Throws an Error whose message is the server's sentence, with the
// HTTP `status`.
async function ask(path, method = "GET", given = undefined) {
  let answer;
  const body = given === undefined ? {} : { body: JSON.stringify(given) };
  const headers = { Accept: "application/json", ...(given === undefined ? {} : { "Content-Type": "application/json" }) };
  try {
    answer = await fetch(path, { method, headers, ...body });
  } catch {
    throw new Error("The workbench does not answer; is `speculoos up` still running?");
  }
  const content = await answer.json().catch(() => ({}));
  if (answer.ok) return content;
  throw Object.assign(new Error(content.error?.message || `The workbench answered ${answer.status}.`), { status: answer.status });
}

export { follow, ask };
