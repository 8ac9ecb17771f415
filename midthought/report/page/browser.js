// ---- the trajectory browser: list, views and their state -----------------------------------------------------------

const detail = document.getElementById("detail");
const count = document.getElementById("count");
const colors = document.getElementById("colors");
const VIEWS = [["episode", "Episode"], ["samples", "Samples of this prompt"], ["diff", "Differences"]];
const shown = { number: null, view: "episode", color: null, token: null, pair: null, reference: null, rows: [], turn: 0 };

const timed = (name, start) => performance.measure(name, { start, end: performance.now() });

function remember() {
  const { number, view, color, token } = shown;
  writeAddress({ ...state(), episode: number === null ? "" : addressOf(number), view: view === "episode" ? "" : view, color: color ?? "", token });
}

// -- list ----------------------------------------------------------------------------------------------------------

/** `fromTop`: the first episode is shown even if the present one passes the filters, too. */
function showList({ fromTop = false } = {}) {
  const start = performance.now();
  const found = passing();
  setList(found);
  count.textContent = `${found.length.toLocaleString("en")} of ${EPISODES.task.length.toLocaleString("en")} episodes`;
  if (fromTop || !found.includes(shown.number)) select(found[0] ?? null);
  else setCurrent(shown.number);
  timed("filter", start);
}

/** Searches all texts: they are decoded at the first search, then the list is filtered again. */
async function search() {
  showList();
  if (searchTexts || !form.elements.text.value || search.isReading) return;
  search.isReading = true;
  await readSearchTexts((block) => { count.textContent = `reading texts, ${Math.round((100 * block) / DATA.num_blocks)} %`; });
  showList();
}

// -- views ---------------------------------------------------------------------------------------------------------

function select(number, changes = {}) {
  Object.assign(shown, { number, token: null, pair: null, reference: null }, changes);
  setCurrent(number);
  return show();
}

function tabs(number) {
  const counts = { samples: samplesOf(number).length, diff: samePrompt(number).length };
  return make("div", { className: "tabs", attributes: { role: "tablist", "aria-label": "Views of this prompt" } }, ...VIEWS.map(([name, label]) => make("button", {
    type: "button", id: `tab-${name}`, disabled: counts[name] < 2, onclick: () => { Object.assign(shown, { view: name, token: null }); show(); },
    attributes: { role: "tab", "aria-selected": String(name === shown.view), "aria-controls": "view", tabindex: name === shown.view ? 0 : -1 },
  }, counts[name] ? `${label} (${counts[name]})` : label)));
}

async function viewOf(number) {
  if (shown.view === "samples") {
    const numbers = samplesOf(number);
    const rows = await Promise.all(numbers.map(episode));
    const own = shown.reference ?? null;
    return samplesView(rows, numbers, own, (other) => select(other, { view: "episode" }), (place) => { shown.reference = place; show(); });
  }
  if (shown.view === "diff") {
    const numbers = samePrompt(number);
    const pair = shown.pair ?? [otherOf(number, numbers), number];
    const rows = await Promise.all(pair.map(episode));
    return diffView(...rows, numbers, pair, (chosen) => { shown.pair = chosen; show(); });
  }
  return episodeView(await episode(number), (token) => goTo(token));
}

async function show() {
  const start = performance.now();
  const turn = ++shown.turn;
  const { number } = shown;
  inspect(null);
  if (number === null) {
    detail.replaceChildren(make("p", { className: "nothing" }, "No episode passes these filters."));
    colors.hidden = true;
    return remember();
  }
  const enough = { samples: samplesOf(number).length, diff: samePrompt(number).length };
  if (enough[shown.view] < 2) shown.view = "episode";
  const [row, view] = await Promise.all([episode(number), viewOf(number)]);
  if (turn !== shown.turn) return;  // another episode was chosen meanwhile
  shown.rows = view.rows;
  const panel = make("div", { id: "view", attributes: { role: "tabpanel", "aria-labelledby": `tab-${shown.view}` } }, view.element);
  const hadFocus = detail.contains(document.activeElement) && document.activeElement.id;
  detail.replaceChildren(taskHead(row), tabs(number), panel);
  if (hadFocus) document.getElementById(hadFocus)?.focus();
  showColors();
  remember();
  timed("show", start);
  if (shown.token !== null) goTo(shown.token);
}

/** Shows a token of the episode, with its values. */
function goTo(token) {
  const find = () => [...detail.querySelectorAll(".t")].find((each) => placeOf.get(each).token === token);
  const next = () => detail.querySelector(".tokens .more");
  while (!find() && next()) next().click();
  if (!find()) for (const folded of detail.querySelectorAll(".tokens details")) folded.reveal();
  const element = find();
  if (element) pin(element);
}

function pin(element) {
  element.scrollIntoView({ block: "center" });
  inspect(element, { isPinned: true });
  shown.token = placeOf.get(element).token;
  remember();
}

// -- colors --------------------------------------------------------------------------------------------------------

function showColors() {
  const found = present(shown.rows);
  colors.hidden = !found.length;
  if (!found.length) return;
  const names = found.map((quantity) => quantity.name);
  const wanted = shown.color === "author" || names.includes(shown.color) ? shown.color : ["advantage", "sampled_logprob"].find((name) => names.includes(name));
  const choice = colors.querySelector("select");
  choice.replaceChildren(option("author", "author"), ...found.map((quantity) => option(quantity.name, quantity.label)));
  choice.value = wanted ?? "author";
  repaint();
}

function repaint() {
  const start = performance.now();
  const quantity = QUANTITIES.get(colors.querySelector("select").value);
  const isColored = quantity.name !== "author";
  const range = isColored ? valueRange(shown.rows, quantity) : null;
  paint(detail, isColored ? quantity : null, range);
  detail.classList.toggle("colored", Boolean(range));
  const [low, high] = range || [];
  const reach = range && Math.max(Math.abs(low - quantity.center), Math.abs(high - quantity.center));
  const ends = !range ? [] : quantity.scale === "diverging" ? [quantity.center - reach, quantity.center + reach] : quantity.scale === "reversed" ? [high, low] : [low, high];
  colors.querySelector(".scale").className = `scale ${range ? quantity.scale : ""}`;
  colors.querySelectorAll(".scale span").forEach((each, place) => { each.textContent = range ? short(ends[place]) : ""; });
  colors.querySelector(".meaning").textContent = quantity.meaning;
  timed("color", start);
}

// -- start ---------------------------------------------------------------------------------------------------------

function apply(address) {
  setState(address);
  const number = episodeAt(address.episode);
  Object.assign(shown, { number, view: address.view || "episode", color: address.color || null, token: address.token === undefined ? null : Number(address.token), pair: null, reference: null });
  setList(passing());
  count.textContent = `${listed.numbers.length.toLocaleString("en")} of ${EPISODES.task.length.toLocaleString("en")} episodes`;
  shown.number ??= listed.numbers[0] ?? null;
  setCurrent(shown.number);
  if (address.text) search();
  return show();
}

/** Lists the training episodes of the recorded iteration that is nearest to a step of a curve; prompts whose samples' rewards differ most come first. */
function showIteration(wanted) {
  const steps = [...new Set(all().filter((number) => armOf(number) === "train").map((number) => EPISODES.step[number]))].sort((first, second) => first - second);
  if (!steps.length) return;
  const step = steps[nearest(steps, wanted)];
  apply({ arm: "train", step: String(step), sort: "spread", color: shown.color ?? "" });
  document.getElementById("trajectories").scrollIntoView();
}

function watchKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const view = VIEWS[Number(event.key) - 1];
    if (event.key === "/") form.elements.text.focus();
    else if (event.key === "j") select(neighbor(1));
    else if (event.key === "k") select(neighbor(-1));
    else if (view && !document.getElementById(`tab-${view[0]}`)?.disabled) { shown.view = view[0]; show(); }
    else if (event.key === "Escape") inspect(null);
    else return;
    event.preventDefault();
  });
  detail.addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way || event.target.getAttribute("role") !== "tab") return;
    const enabled = [...detail.querySelectorAll("[role=tab]:not([disabled])")];
    enabled[(enabled.indexOf(event.target) + way + enabled.length) % enabled.length].click();
  });
}

async function start() {
  INDEX = await inflatedJson("index");
  EPISODES = INDEX.columns;
  if (!EPISODES.task?.length) return;
  document.getElementById("browser").hidden = false;
  fillFilters();
  let waiting = 0;
  form.addEventListener("input", (event) => {
    clearTimeout(waiting);
    if (event.target.name === "text") waiting = setTimeout(search, 120);
    else showList({ fromTop: event.target.name === "sort" });
  });
  form.addEventListener("reset", () => setTimeout(() => { setState({}); showList(); }));
  form.addEventListener("submit", (event) => event.preventDefault());
  colors.querySelector("select").addEventListener("change", (event) => { shown.color = event.target.value; repaint(); remember(); });
  detail.addEventListener("filled", () => { if (!colors.hidden) repaint(); });
  watchTokens(detail, (found) => { shown.token = shown.view === "episode" && found ? found.token : null; remember(); });
  watchList((number) => select(number));
  watchKeys();
  for (const figure of document.querySelectorAll("[data-iterations] [data-chart]"))
    figure.addEventListener("pick", (event) => showIteration(event.detail));
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-step]");
    if (link) showIteration(Number(link.dataset.step));
  });
  window.addEventListener("hashchange", () => { const address = readAddress(); if (address) apply(address); });
  const address = readAddress();
  const arms = INDEX.arms;
  await apply(address ?? { arm: ["after.sampled", "after"].find((name) => arms.includes(name)) ?? "" });
  if (address) document.getElementById("trajectories").scrollIntoView();
  performance.mark("ready");
}

start();
