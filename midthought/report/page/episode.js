// ---- one episode: its facts, timeline, tokens and calls ------------------------------------------------------------

const fact = (name, value) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
const plain = (value) => (typeof value === "string" ? visible(value) : typeof value === "number" ? short(value) : JSON.stringify(value));

function taskHead(row) {
  const labels = Object.entries(row.labels || {}).map(([name, value]) => fact(name.replaceAll("_", " "), plain(value)));
  const ask = visible(row.question || "");
  const question = ask.length > 700
    ? make("details", {}, make("summary", {}, `${ask.slice(0, 300)} …`), make("p", { className: "ask", dir: "auto" }, ask.slice(0, MAX_LETTERS)))
    : make("p", { className: "ask", dir: "auto" }, ask);
  return make("div", { className: "task" }, question,
    make("dl", {}, fact("expected answer", visible(String(row.answer || "–").slice(0, 500))), ...labels, fact("task", visible(row.task_id))));
}

function rewardWords(row) {
  const parts = Object.entries((row.reward || {}).parts || {}).map(([name, value]) => `${name.replaceAll("_", " ")} ${value === null ? "–" : short(value)}`);
  return row.reward ? short(row.reward.total) + (parts.length ? ` = ${parts.join(" + ")}` : "") : "–";
}

/** Mean of a column over the policy's tokens that have a value; undefined if none has. */
function mean(row, name) {
  const values = [...(row.tokens?.columns[name] ?? [])].filter((value) => !Number.isNaN(value));
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : undefined;
}

function facts(row, { isShort = false } = {}) {
  const advantage = mean(row, "advantages");
  const more = isShort ? [] : [fact("iteration", String(row.step)), fact("policy version", String(row.policy_version ?? "–"))];
  return make("dl", { className: "facts" },
    fact("reward", rewardWords(row)), advantage === undefined ? null : fact("mean advantage", exact(advantage)),
    fact("calls", String(row.num_calls ?? (row.events || []).length)),
    fact("sampled", `${numTokens(row, "policy").toLocaleString("en")} tokens`),
    fact("ended", (row.stop_reason || "not yet").replaceAll("_", " ")), ...more);
}

const errorBox = (row) => (row.error ? make("p", { className: "error" }, visible(row.error).slice(0, MAX_LETTERS)) : null);
const noTokens = "The page has no values of its tokens: the run did not record them (checkpoint.record_episodes=16 does), or the page was full.";

const tokensBox = (children) => make("div", { className: "tokens", tabIndex: 0, attributes: { role: "group", "aria-label": "Tokens. Left and right arrow keys move from token to token and show the values of each." } }, ...children);

function episodeView(row, goTo) {
  const [kind, words] = verdict(row.right);
  return {
    rows: [row],
    element: make("article", { className: "panel" },
      make("header", {}, make("h3", {}, visible(`${row.arm}${row.step ? `, iteration ${row.step}` : ""}`)), make("span", { className: kind }, words)),
      facts(row), errorBox(row), timeline(row), row.tokens ? null : make("p", { className: "support" }, noTokens),
      tokensBox(spanBoxes(row)), calls(row, goTo)),
  };
}
