// Second part of the report's script: the trajectory browser.

// ---- trajectories ----------------------------------------------------------------------------------------------

const VERDICTS = { true: ["right", "✓ right"], false: ["wrong", "✗ wrong"], null: ["unjudged", "– not judged"] };
const verdict = (row) => VERDICTS[String(row.right)];
const mark = (row) => make("span", { className: verdict(row)[0] }, `${verdict(row)[1].slice(0, 1)} ${row.arm}`);

const tasks = new Map();
for (const row of DATA.trajectories) {
  if (!tasks.has(row.task_id)) tasks.set(row.task_id, []);
  tasks.get(row.task_id).push(row);
}
const rowOf = (rows, arm) => rows.findLast((row) => row.arm === arm);
const textOf = (row) => [row.question, row.answer, ...(row.spans || []).map((span) => span.text)].join("\n").toLowerCase();

const form = document.querySelector(".filters");
const list = document.getElementById("list");
const detail = document.getElementById("detail");
let current = null;

function fillFilters() {
  const arms = [...new Set(DATA.trajectories.map((row) => row.arm))];
  for (const arm of arms) form.elements.arm.append(make("option", { value: arm }, arm));
  form.elements.arm.value = arms.includes("after") ? "after" : arms[arms.length - 1];
  const answers = [["", "any"], ["right", "right"], ["wrong", "wrong"]];
  if (arms.includes("before")) answers.push(["gained", "wrong before, right now"], ["lost", "right before, wrong now"]);
  for (const [value, label] of answers) form.elements.answer.append(make("option", { value }, label));
}

function passes(rows) {
  const row = rowOf(rows, form.elements.arm.value);
  if (!row) return false;
  const before = rowOf(rows, "before");
  const answer = form.elements.answer.value;
  const kept = {
    "": true,
    right: row.right === true,
    wrong: row.right === false,
    gained: row.right === true && before && before.right === false,
    lost: row.right === false && before && before.right === true,
  }[answer];
  if (!kept) return false;
  const calls = form.elements.calls.value;
  if (calls && (calls === "called") !== row.num_calls > 0) return false;
  const wanted = form.elements.text.value.trim().toLowerCase();
  return !wanted || textOf(row).includes(wanted);
}

function showList() {
  const found = [...tasks].filter(([, rows]) => passes(rows));
  const arm = form.elements.arm.value;
  const shown = [...new Set(["before", arm])];
  list.replaceChildren(...found.map(([taskId, rows]) => {
    const marks = shown.map((name) => rowOf(rows, name)).filter(Boolean).map(mark);
    const button = make("button", { type: "button", onclick: () => select(taskId) },
      make("span", { className: "what" }, rows[0].question || taskId), make("span", { className: "marks" }, ...marks));
    button.dataset.task = taskId;
    return make("li", {}, button);
  }));
  const total = [...tasks.values()].filter((rows) => rowOf(rows, arm)).length;
  document.getElementById("count").textContent = `${found.length} of ${total} questions in ${arm}`;
  if (!found.some(([taskId]) => taskId === current)) current = found.length ? found[0][0] : null;
  select(current);
}

function select(taskId) {
  current = taskId;
  for (const button of list.querySelectorAll("button"))
    button.setAttribute("aria-current", String(button.dataset.task === taskId));
  if (taskId === null) return detail.replaceChildren(make("p", { className: "nothing" }, "No episode passes these filters."));
  const rows = tasks.get(taskId);
  const right = rowOf(rows, form.elements.arm.value);
  const before = rowOf(rows, "before");
  const first = before && before !== right ? [before] : [];
  detail.replaceChildren(taskHead(rows[0]), make("div", { className: "panels" }, ...[...first, right].map((row) => panel(rows, row))));
}

const fact = (name, value) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
const plain = (value) => (typeof value === "string" ? value : typeof value === "number" ? short(value) : JSON.stringify(value));

function taskHead(row) {
  const labels = Object.entries(row.labels || {}).map(([name, value]) => fact(name.replaceAll("_", " "), plain(value)));
  return make("div", { className: "task" }, make("p", { className: "ask" }, row.question || ""),
    make("dl", {}, fact("right answer", row.answer || "–"), ...labels, fact("task", row.task_id)));
}

function panel(rows, row) {
  const box = make("article", { className: "panel" });
  const fill = (shown) => {
    const choice = make("select", { onchange: (event) => fill(rows[event.target.value]), attributes: { "aria-label": "Episode shown" } });
    rows.forEach((other, index) => {
      const again = rows.filter((row) => row.arm === other.arm).length > 1 ? ` · step ${other.step}` : "";
      choice.append(make("option", { value: index, selected: other === shown }, other.arm + again));
    });
    const [kind, words] = verdict(shown);
    box.replaceChildren(
      make("header", {}, choice, make("span", { className: kind }, words)), facts(shown),
      ...(shown.error ? [make("p", { className: "error" }, shown.error)] : []), ...spans(shown), ...events(shown));
  };
  fill(row);
  return box;
}

function facts(row) {
  const parts = Object.entries((row.reward || {}).parts || {}).map(([name, value]) => `${name} ${short(value)}`);
  return make("dl", { className: "facts" },
    fact("calls", String(row.num_calls || 0)),
    row.reward ? fact("reward", short(row.reward.total) + (parts.length ? ` = ${parts.join(" + ")}` : "")) : null,
    fact("ended", row.stop_reason || "not yet"), fact("step", String(row.step)), fact("policy", String(row.policy_version ?? "–")));
}

/** The spans in order; a long prompt is folded. Tool spans carry the outcome where there is one call to each. */
function spans(row) {
  const all = row.spans || [];
  const results = all.filter((span) => span.kind === "tool");
  const calls = results.length === (row.events || []).length ? row.events : [];
  return all.map((span) => {
    const event = calls[results.indexOf(span)];
    const by = [make("b", {}, span.kind), `${span.num_tokens} token${span.num_tokens === 1 ? "" : "s"}`,
      event ? make("span", { className: event.outcome === "ok" ? "" : "failed" }, `${event.tool_name || "no tool"}: ${event.outcome}`) : null];
    const text = make("div", { className: "text" }, span.text);
    const kind = ["prompt", "policy", "tool", "reply"].includes(span.kind) ? span.kind : "reply";
    const folded = span.kind === "prompt" && span.text.length > 600;
    return make("div", { className: `span ${kind}` },
      ...(folded ? [make("details", {}, make("summary", {}, ...by), text)] : [make("p", { className: "by" }, ...by), text]));
  });
}

function events(row) {
  if (!(row.events || []).length) return [];
  return [make("ol", { className: "events", attributes: { "aria-label": "Tool calls" } }, ...row.events.map((event, index) => {
    const seconds = event["time/seconds"];
    const metadata = Object.keys(event.metadata || {}).length ? ` → ${JSON.stringify(event.metadata)}` : "";
    const time = typeof seconds === "number" ? ` · ${short(seconds * 1000)} ms` : "";
    return make("li", {}, `${index + 1}. ${event.tool_name || "no tool"} · ${event.outcome}${time} `,
      make("code", {}, JSON.stringify(event.parameters) + metadata));
  }))];
}

list.addEventListener("keydown", (event) => {
  const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!way) return;
  const buttons = [...list.querySelectorAll("button")];
  const next = buttons[buttons.indexOf(document.activeElement) + way];
  if (!next) return;
  event.preventDefault();
  next.focus();
  select(next.dataset.task);
});

if (tasks.size) {
  document.getElementById("browser").hidden = false;
  fillFilters();
  form.addEventListener("input", showList);
  form.addEventListener("submit", (event) => event.preventDefault());
  showList();
}
