"use strict";
// Search and questions over the service's own routes. Foreign text enters the page as text nodes only.

const PAGE_SIZE = 20;
const STEP = 4; // chunks that "earlier" and "later" add
const MAX_NEIGHBOURS = 20;

const $ = (id) => document.getElementById(id);
const form = $("search"), ask = $("ask");
const chosen = { episodes: new Set(), speakers: new Set() };
let newest = { search: 0, questions: 0 }; // an older answer that comes late is dropped
let offset = 0, seed = null;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const number = (value) => Number(value).toLocaleString("en");
const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;

// -- asking ------------------------------------------------------------------------------------------------------

class Refused extends Error {}

async function get(path, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Refused("The service does not answer. Is it still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) {
    await letIn(token !== null);
    return get(path, body);
  }
  if (!response.ok) throw new Refused(typeof answer.detail === "string" ? answer.detail : `Status ${response.status}.`);
  return answer;
}

let entering = null;
function letIn(wasWrong) {
  entering ??= new Promise((resolve) => {
    $("door-told").textContent = wasWrong ? "This is not the token." : "";
    $("door").showModal();
    $("key").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem("token", $("token").value.trim());
      $("token").value = "";
      $("door").close();
      entering = null;
      resolve();
    };
  });
  return entering;
}
$("door").addEventListener("cancel", (event) => event.preventDefault());

// -- words -------------------------------------------------------------------------------------------------------

const PLAIN = new Set("about and are but did does for from had has have her him his how its not our she than that the their them then there they this was were what when where which who why will with would you your".split(" "));
const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];

function marked(text, query) {
  const wanted = new Set(wordsOf(query).filter((word) => word.length > 2 && !PLAIN.has(word)));
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(/[\p{L}\p{N}]+/gu)) {
    if (!wanted.has(found[0].toLowerCase())) continue;
    parts.push(text.slice(end, found.index), make("mark", {}, found[0]));
    end = found.index + found[0].length;
  }
  return [...parts, text.slice(end)];
}

function dotFor(speaker) {
  let hash = 7;
  for (const letter of speaker) hash = (hash * 31 + letter.codePointAt(0)) % 3600;
  const dot = make("span", { class: "dot", "aria-hidden": "true" });
  dot.style.setProperty("--hue", String((hash * 137) % 360));
  return dot;
}

// -- search ------------------------------------------------------------------------------------------------------

function chosenSearch() {
  return {
    query: form.elements.query.value.trim(),
    mode: form.elements.mode.value,
    k: Number(form.elements.k.value),
    episodes: [...chosen.episodes],
    speakers: [...chosen.speakers],
  };
}

async function search({ remember = true } = {}) {
  const asked = chosenSearch(), turn = ++newest.search;
  const told = $("told");
  told.classList.remove("failed");
  if (!asked.query) {
    $("hits").replaceChildren();
    told.textContent = "";
    $("welcome").hidden = false;
    return;
  }
  if (remember) history.pushState(null, "", addressOf(asked));
  $("welcome").hidden = true;
  $("view-search").setAttribute("aria-busy", "true");
  const started = performance.now();
  try {
    const { hits } = await get("search", asked);
    if (turn !== newest.search) return;
    const best = Math.max(...hits.map((hit) => hit.score), 1e-9);
    const share = (hit) => asked.mode === "hybrid" ? null : hit.score / best; // fused ranks say nothing of how near
    $("hits").replaceChildren(...hits.map((hit) => hitElement(hit, asked.query, share(hit))));
    const milliseconds = Math.round(performance.now() - started);
    told.textContent = hits.length ? `${plural(hits.length, "result", "results")} in ${number(milliseconds)} ms` : "Nothing found. Try other words, or search by meaning.";
  } catch (error) {
    if (turn !== newest.search) return;
    $("hits").replaceChildren();
    fail(told, error);
  } finally {
    if (turn === newest.search) $("view-search").removeAttribute("aria-busy");
  }
}

function fail(place, error) {
  if (!(error instanceof Refused)) console.error(error);
  place.classList.add("failed");
  place.textContent = error instanceof Refused ? error.message : "The page failed; see the browser console.";
}

function hitElement(hit, query, share) {
  const context = make("div", { class: "context", hidden: true });
  const opener = make("button", { class: "plain", type: "button", "aria-expanded": "false" }, "Before and after");
  const show = () => toggleContext(hit.chunk_id, context, opener, query);
  opener.addEventListener("click", show);
  const item = make("li", { class: "hit", tabindex: "-1" },
    make("div", { class: "what" },
      make("div", { class: "said-by" }, dotFor(hit.speaker), make("b", {}, hit.speaker), make("span", {}, hit.episode), make("span", { class: "time" }, hit.time),
        scoreElement(hit.score, share)),
      make("p", { class: "words" }, ...marked(hit.transcript, query)),
      make("div", { class: "tools" }, opener,
        make("button", { class: "plain", type: "button", onclick: () => choose("episodes", hit.episode) }, "Only this episode"),
        make("button", { class: "plain", type: "button", onclick: () => choose("speakers", hit.speaker) }, "Only this speaker"),
        make("span", { class: "id" }, hit.chunk_id))),
    context);
  item.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target === item) show();
    if (event.key === "Escape" && !context.hidden) { show(); item.focus(); event.stopPropagation(); }
  });
  return item;
}

function scoreElement(score, share) {
  if (share === null) return null;
  const bar = make("span", { class: "bar", "aria-hidden": "true" });
  bar.style.setProperty("--share", `${Math.round(100 * Math.min(1, Math.max(0, share)))}%`);
  return make("span", { class: "score", title: `score ${score}` }, make("span", { class: "unseen" }, "score "), score.toPrecision(3), bar);
}

async function toggleContext(id, place, opener, query) {
  place.hidden = !place.hidden;
  opener.setAttribute("aria-expanded", String(!place.hidden));
  if (!place.hidden && !place.childElementCount) await fillContext(id, place, query, STEP, STEP);
}

async function fillContext(id, place, query, before, after) {
  try {
    const { chunks, position } = await get(`context?${new URLSearchParams({ id, before, after })}`);
    const turns = chunks.map((chunk, index) => {
      const isNew = index === 0 || chunks[index - 1].speaker !== chunk.speaker;
      return make("li", { class: index === position ? "turn itself" : "turn" },
        make("span", { class: "time" }, index === 0 || chunks[index - 1].time !== chunk.time ? chunk.time : ""),
        make("p", {}, isNew ? make("b", {}, chunk.speaker) : null, ...(index === position ? marked(chunk.transcript, query) : [chunk.transcript])));
    });
    const more = (words, wanted, hasMore) => hasMore ? make("button", { class: "plain more", type: "button", onclick: wanted }, words) : null;
    place.replaceChildren(...[
      more("Earlier", () => fillContext(id, place, query, Math.min(before + STEP, MAX_NEIGHBOURS), after), position >= before && before < MAX_NEIGHBOURS),
      make("ol", { "aria-label": "What was said before and after" }, ...turns),
      more("Later", () => fillContext(id, place, query, before, Math.min(after + STEP, MAX_NEIGHBOURS)), chunks.length - 1 - position >= after && after < MAX_NEIGHBOURS),
    ].filter(Boolean));
  } catch (error) {
    place.replaceChildren(make("p", {}, error instanceof Refused ? error.message : "The page failed."));
  }
}

// -- filters -----------------------------------------------------------------------------------------------------

function choose(kind, name) {
  chosen[kind].add(name);
  showChosen();
  search();
}

function showChosen() {
  const remove = (kind, name) => { chosen[kind].delete(name); showChosen(); form.elements.query.focus(); search(); };
  $("chosen").replaceChildren(...Object.entries(chosen).flatMap(([kind, names]) => [...names].map((name) =>
    make("li", {}, make("button", { type: "button", "aria-label": `Remove the filter ${name}`, onclick: () => remove(kind, name) }, make("b", {}, name), make("i", { "aria-hidden": "true" }, "×"))))));
}

async function suggest(kind, letters, list) {
  const { items } = await get(`${kind}?${new URLSearchParams({ contains: letters, limit: 50 })}`);
  list.replaceChildren(...items.map((item) => make("option", { value: item.name, label: plural(item.num_chunks, "chunk", "chunks") })));
  return items;
}

for (const picker of document.querySelectorAll(".picker")) {
  const kind = picker.dataset.kind, input = picker.querySelector("input"), list = picker.querySelector("datalist");
  const take = async () => {
    const letters = input.value.trim();
    if (!letters) return;
    const items = await suggest(kind, letters, list).catch(() => []);
    const name = items.find((item) => item.name === letters)?.name ?? (items.length === 1 ? items[0].name : null);
    if (name === null) {
      input.setCustomValidity(items.length ? "Several names hold these letters; take one of them." : "No name holds these letters.");
      input.reportValidity();
      return;
    }
    input.value = "";
    choose(kind, name);
  };
  input.addEventListener("focus", () => suggest(kind, input.value.trim(), list).catch(() => {}));
  input.addEventListener("input", async () => {
    input.setCustomValidity("");
    const letters = input.value.trim();
    const items = await suggest(kind, letters, list).catch(() => []);
    if (input.value.trim() === letters && [...list.options].some((option) => option.value === letters) && items.length === 1) take();
  });
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); take(); } });
  input.addEventListener("change", take);
}

// -- questions ---------------------------------------------------------------------------------------------------

async function showQuestions() {
  const turn = ++newest.questions, told = $("counted"), shuffle = ask.elements.shuffle.checked;
  const about = ask.elements.about.value.trim();
  const asked = { size: PAGE_SIZE, shuffle, offset, contains: ask.elements.contains.value.trim(), episodes: about ? [about] : [] };
  if (shuffle && seed !== null) asked.seed = seed;
  told.classList.remove("failed");
  $("view-questions").setAttribute("aria-busy", "true");
  try {
    const batch = await get("qa/batch", asked);
    if (turn !== newest.questions) return;
    seed = batch.seed;
    $("pairs").replaceChildren(...batch.questions.map(pairElement));
    told.textContent = `${plural(batch.num_available, "question", "questions")}${shuffle ? `, drawn by seed ${batch.seed}` : ""}`;
    const last = Math.min(offset + PAGE_SIZE, batch.num_available);
    document.querySelector(".pages").hidden = batch.num_available <= PAGE_SIZE;
    $("place").textContent = `${number(offset + 1)} to ${number(last)}`;
    $("previous").disabled = offset === 0;
    $("next").disabled = last >= batch.num_available;
  } catch (error) {
    if (turn !== newest.questions) return;
    $("pairs").replaceChildren();
    document.querySelector(".pages").hidden = true;
    fail(told, error);
  } finally {
    if (turn === newest.questions) $("view-questions").removeAttribute("aria-busy");
  }
}

function pairElement(pair) {
  const labels = Object.entries(pair.labels).filter(([name, value]) => !["episode", "quote"].includes(name) && ["string", "number", "boolean"].includes(typeof value));
  const context = make("div", { class: "context", hidden: true });
  const proof = make("button", { class: "plain", type: "button", "aria-expanded": "false" }, "Where it was said");
  proof.addEventListener("click", () => toggleContext(pair.evidence[0], context, proof, ""));
  return make("li", { class: "pair" },
    make("div", { class: "what" },
      make("div", { class: "labels" }, pair.episode ? make("b", {}, pair.episode) : null, ...labels.map(([name, value]) => make("span", {}, `${name.replaceAll("_", " ")}: ${value}`))),
      make("p", { class: "question" }, pair.question),
      make("details", {}, make("summary", {}, "Answer"), make("p", { class: "answer" }, pair.answer)),
      make("div", { class: "tools" }, pair.evidence.length ? proof : null,
        make("button", { class: "plain", type: "button", onclick: () => searchFor(pair.labels.quote ?? pair.question) }, "Search for it"))),
    context);
}

function searchFor(words) {
  form.elements.query.value = String(words).slice(0, 2000);
  for (const names of Object.values(chosen)) names.clear();
  showChosen();
  show("search");
  search();
}

const leaf = (step) => () => { offset = Math.max(0, offset + step); showQuestions(); $("main").focus(); window.scrollTo(0, 0); };
$("previous").addEventListener("click", leaf(-PAGE_SIZE));
$("next").addEventListener("click", leaf(PAGE_SIZE));

let typing;
ask.addEventListener("submit", (event) => event.preventDefault());
ask.addEventListener("input", (event) => {
  clearTimeout(typing);
  if (event.target === ask.elements.about) suggest("episodes", ask.elements.about.value.trim(), $("about-names")).catch(() => {});
  typing = setTimeout(() => { offset = 0; seed = null; showQuestions(); }, 200);
});
$("about").addEventListener("focus", () => suggest("episodes", $("about").value.trim(), $("about-names")).catch(() => {}));

// -- the address holds the search --------------------------------------------------------------------------------

function addressOf(asked) {
  const words = new URLSearchParams({ q: asked.query, mode: asked.mode, k: asked.k });
  for (const name of asked.episodes) words.append("episode", name);
  for (const name of asked.speakers) words.append("speaker", name);
  return `#search?${words}`;
}

function show(view) {
  for (const name of ["search", "questions"]) $(`view-${name}`).hidden = name !== view;
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function readAddress() {
  const [view, rest = ""] = location.hash.slice(1).split(/\?(.*)/s);
  if (view === "questions") {
    show("questions");
    showQuestions();
    return;
  }
  show("search");
  const words = new URLSearchParams(rest);
  form.elements.query.value = words.get("q") ?? "";
  if ([...form.elements.mode].some((radio) => radio.value === words.get("mode"))) form.elements.mode.value = words.get("mode");
  if ([...form.elements.k.options].some((option) => option.value === words.get("k"))) form.elements.k.value = words.get("k");
  chosen.episodes = new Set(words.getAll("episode"));
  chosen.speakers = new Set(words.getAll("speaker"));
  showChosen();
  search({ remember: false });
}

window.addEventListener("popstate", readAddress);
form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
form.addEventListener("change", (event) => { if (["mode", "k"].includes(event.target.name)) search(); });

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, dialog") || $("view-search").hidden) return;
  const hits = [...$("hits").children], at = hits.findIndex((hit) => hit.contains(document.activeElement));
  const to = { j: at + 1, k: at - 1 }[event.key];
  if (event.key === "/") { form.elements.query.focus(); form.elements.query.select(); event.preventDefault(); }
  else if (to !== undefined && hits[to]) { hits[to].focus(); event.preventDefault(); }
});

get("stats").then((stats) => {
  document.querySelector("footer").hidden = sessionStorage.getItem("token") !== null; // a link carries no token
  $("stats").textContent = `${plural(stats.num_chunks, "chunk", "chunks")} · ${plural(stats.num_episodes, "episode", "episodes")} · ${plural(stats.num_speakers, "speaker", "speakers")}`;
}).catch((error) => { $("stats").textContent = error.message; });
readAddress();
