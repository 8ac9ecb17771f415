// ---- list: a row per episode; only the visible rows are in the page ------------------------------------------------

const ROW_HEIGHT = 62;
const list = document.getElementById("list");
const listed = { numbers: [], current: -1 };

const VERDICTS = { true: ["right", "✓ right"], false: ["wrong", "✗ wrong"], null: ["unjudged", "– not judged"] };
const verdict = (right) => VERDICTS[String(right ?? null)];

function listItem(position) {
  const number = listed.numbers[position];
  const [kind, words] = verdict(EPISODES.right[number]);
  const reward = EPISODES.reward[number];
  const where = armOf(number) === "train" || armOf(number) === "validation" ? `${armOf(number)} ${EPISODES.step[number]}` : armOf(number);
  const facts = [reward === null ? null : `reward ${short(reward)}`, EPISODES.calls[number] ? `${EPISODES.calls[number]} call${EPISODES.calls[number] > 1 ? "s" : ""}` : null];
  const item = make("div", { className: "item", id: `item-${position}`, attributes: {
    role: "option", "aria-selected": String(number === listed.current), "aria-setsize": listed.numbers.length, "aria-posinset": position + 1,
  } },
    make("span", { className: "what" }, visible(taskOf(number)[1]) || taskOf(number)[0]),
    make("span", { className: "marks" }, make("span", { className: kind, title: words }, words.slice(0, 1)), make("b", {}, visible(where)), ...facts.filter(Boolean)
      .map((fact) => make("span", {}, fact)), EPISODES.recorded[number] ? null : make("span", {}, "text")));
  item.style.top = `${position * ROW_HEIGHT}px`;
  item.dataset.number = number;
  return item;
}

function drawList() {
  const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - 4);
  const last = Math.min(listed.numbers.length, first + Math.ceil(list.clientHeight / ROW_HEIGHT) + 8);
  const items = [];
  for (let position = first; position < last; position++) items.push(listItem(position));
  list.firstElementChild.replaceChildren(...items);
  const position = listed.numbers.indexOf(listed.current);
  if (position >= first && position < last) list.setAttribute("aria-activedescendant", `item-${position}`);
  else list.removeAttribute("aria-activedescendant");
}

function setList(numbers) {
  listed.numbers = numbers;
  list.firstElementChild.style.height = `${numbers.length * ROW_HEIGHT}px`;
  list.scrollTop = 0;
  drawList();
}

function setCurrent(number) {
  listed.current = number;
  const top = listed.numbers.indexOf(number) * ROW_HEIGHT;
  if (top >= 0 && (top < list.scrollTop || top + ROW_HEIGHT > list.scrollTop + list.clientHeight))
    list.scrollTop = Math.max(0, top - list.clientHeight / 2);
  drawList();
}

const neighbor = (way) => listed.numbers[Math.min(Math.max(listed.numbers.indexOf(listed.current) + way, 0), listed.numbers.length - 1)];

function watchList(select) {
  list.addEventListener("scroll", drawList, { passive: true });
  list.addEventListener("click", (event) => {
    const item = event.target.closest(".item");
    if (item) select(Number(item.dataset.number));
  });
  list.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(list.clientHeight / ROW_HEIGHT) - 1);
    const way = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (way === undefined || !listed.numbers.length) return;
    event.preventDefault();
    select(neighbor(way));
  });
}
