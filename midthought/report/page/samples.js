// ---- the samples of one prompt side by side, aligned at the token where they diverge --------------------------------

/** What is compared: token ids, or texts of spans if there are no tokens. */
const symbols = (row) => (row.tokens ? row.tokens.columns.token_ids : row.spans.map(([, text]) => text));

function sharedLength(first, second) {
  const end = Math.min(first.length, second.length);
  let length = 0;
  while (length < end && first[length] === second[length]) length++;
  return length;
}

function sampleColumn(row, number, shared, reference, open) {
  const [kind, words] = verdict(row.right);
  const fork = row === reference ? -1 : sharedLength(symbols(row), symbols(reference));
  const body = row.tokens ? spanBoxes(row, shared, { foldPrompt: false }) : spanBoxes(row);
  const column = make("article", { className: "panel sample" },
    make("header", {}, make("button", { type: "button", className: "link", onclick: open }, `sample ${number}`), make("span", { className: kind }, words)),
    facts(row, { isShort: true }), errorBox(row), row.tokens ? make("p", { className: "by" }, row === reference ? "The others are compared with this one." : `Leaves the compared sample at token ${fork}.`) : null,
    tokensBox(body));
  const parting = [...column.querySelectorAll(".t")].find((element) => placeOf.get(element).token === fork);
  parting?.classList.add("fork");
  return column;
}

/** `reference`: the place among the rows of the sample that the others are compared with; default: the best reward. */
function samplesView(rows, numbers, reference, open, compareWith) {
  const rewards = rows.map((row) => row.reward?.total ?? -Infinity);
  const chosen = reference ?? rewards.indexOf(Math.max(...rewards));
  const shared = rows.slice(1).reduce((length, row) => Math.min(length, sharedLength(symbols(rows[0]), symbols(row))), symbols(rows[0]).length);
  const choice = make("select", { onchange: (event) => compareWith(Number(event.target.value)) }, ...rows.map((row, place) => make("option", { value: place, selected: place === chosen }, `sample ${place + 1}, reward ${row.reward ? short(row.reward.total) : "–"}`)));
  const prefix = rows[0].tokens ? make("p", { className: "support" }, `All ${rows.length} samples share their first ${shared.toLocaleString("en")} tokens; the columns start where they diverge.`) : null;
  const common = rows[0].tokens && shared ? make("details", { className: "shared" }, make("summary", {}, "Show the shared tokens"), tokensBox([])) : null;
  common?.addEventListener("toggle", () => {
    const box = common.querySelector(".tokens");
    if (!box.firstChild) { box.append(...tokenElements(rows[0], 0, shared)); box.dispatchEvent(new CustomEvent("filled", { bubbles: true })); }
  });
  const columns = rows.map((row, place) => sampleColumn(row, place + 1, shared, rows[chosen], () => open(numbers[place])));
  return { rows, element: make("div", {}, prefix, common, make("label", { className: "inline" }, "Compare with ", choice),
    make("div", { className: "samples", tabIndex: 0, attributes: { role: "group", "aria-label": `${rows.length} samples side by side` } }, ...columns)) };
}
