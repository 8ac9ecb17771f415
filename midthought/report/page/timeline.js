// ---- timeline: when an episode sampled and when its tools ran ------------------------------------------------------

const milliseconds = (seconds) => (seconds < 1 ? `${short(seconds * 1000)} ms` : `${short(seconds)} s`);

/** [kind, seconds, label] in order. Of sampling only the total is recorded: it is divided by the numbers of sampled tokens. */
function periods(row) {
  const events = row.events || [];
  const sampled = row.spans.filter(([author]) => author === "policy").reduce((sum, [, , length]) => sum + length, 0);
  const perToken = (row["time/engine_seconds"] || 0) / Math.max(sampled, 1);
  const found = [];
  let token = 0;
  let done = 0;
  for (const [author, , length] of row.spans) {
    token += length;
    if (author !== "policy") continue;
    found.push(["policy", length * perToken, `${length} tokens sampled`]);
    for (; done < events.length && (events[done].token === undefined || events[done].token < token); done++)
      found.push(["tool", events[done]["time/seconds"] || 0, `${done + 1}. ${events[done].tool_name || "no tool"}`]);
  }
  return found;
}

function timeline(row) {
  const found = periods(row);
  const total = found.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!total) return null;
  const words = `${milliseconds(row["time/engine_seconds"] || 0)} sampling, ${milliseconds(row["time/tool_seconds"] || 0)} in tools`;
  const bar = make("div", { className: "bar", attributes: { role: "img", "aria-label": `Timeline: ${words}` } });
  for (const [kind, seconds, label] of found) {
    const part = make("span", { className: kind, title: `${label}, ${milliseconds(seconds)}` });
    part.style.flexGrow = seconds / total;
    bar.append(part);
  }
  return make("figure", { className: "timeline" }, bar, make("figcaption", {}, words,
    make("small", {}, "Sampling includes waiting for the engine; only its total is recorded, divided here by the sampled tokens.")));
}

/** The calls with arguments, result and time; a button leads to the token after which the result was inserted. */
function calls(row, goTo) {
  if (!(row.events || []).length) return null;
  return make("ol", { className: "events", attributes: { "aria-label": "Tool calls" } }, ...row.events.map((event, place) => {
    const seconds = event["time/seconds"];
    const metadata = Object.keys(event.metadata || {}).length ? make("code", {}, visible(JSON.stringify(event.metadata))) : null;
    const result = typeof event.result === "string" ? event.result : event.result == null ? "" : JSON.stringify(event.result);
    return make("li", {},
      make("p", {}, make("b", {}, `${place + 1}. ${visible(event.tool_name || "no tool")}`), make("span", { className: event.outcome === "ok" ? "right" : "wrong" }, event.outcome),
        typeof seconds === "number" ? milliseconds(seconds) : null,
        row.tokens && event.token !== undefined ? make("button", { type: "button", className: "link", onclick: () => goTo(event.token) }, `token ${event.token}`) : null),
      make("code", {}, visible(JSON.stringify(event.parameters))),
      result ? make("details", {}, make("summary", {}, `result, ${result.length.toLocaleString("en")} characters`), make("div", { className: "text", dir: "auto" }, visible(result.slice(0, MAX_LETTERS)))) : null,
      metadata);
  }));
}
