// ---- filters: which episodes are listed, and in which order --------------------------------------------------------

const form = document.querySelector(".filters");
const FIELDS = ["arm", "step", "answer", "stop", "tool", "low", "high", "sort", "text"];
let searchTexts = null;  // lower-case text of each episode, once the search has been used

const option = (value, label) => make("option", { value }, label);

function fillFilters() {
  const { arm, step, answer, stop, tool } = form.elements;
  const groups = { Training: INDEX.arms.filter((name) => name === "train"), Evaluation: INDEX.arms.filter((name) => name !== "train") };
  for (const [label, names] of Object.entries(groups))
    if (names.length) arm.append(make("optgroup", { label }, ...(names.length > 1 ? [option("evaluation", "all of evaluation")] : []), ...names.map((name) => option(name, name))));
  const steps = [...new Set(EPISODES.step)].sort((first, second) => first - second);
  step.append(...steps.map((each) => option(String(each), each ? String(each) : "0 (no training iteration)")));
  stop.append(...INDEX.stops.map((name) => option(name, (name || "not yet").replaceAll("_", " "))));
  tool.append(...INDEX.tools.map((name) => option(`tool:${name}`, name || "no such tool")));
  if (all().some((number) => change(number)))
    answer.append(option("gained", "wrong → right since before"), option("lost", "right → wrong since before"));
}

const state = () => Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value]));

function setState(values) {
  for (const name of FIELDS) form.elements[name].value = values[name] ?? "";
  if (!form.elements.sort.value) form.elements.sort.value = "order";
}

const TESTS = {
  arm: (number, wanted) => (wanted === "evaluation" ? armOf(number) !== "train" : armOf(number) === wanted),
  step: (number, wanted) => EPISODES.step[number] === Number(wanted),
  answer: (number, wanted) => ({
    right: EPISODES.right[number] === true, wrong: EPISODES.right[number] === false, unjudged: EPISODES.right[number] === null,
  })[wanted] ?? change(number) === wanted,
  stop: (number, wanted) => INDEX.stops[EPISODES.stop[number]] === wanted,
  tool: (number, wanted) => ({
    called: EPISODES.calls[number] > 0, silent: EPISODES.calls[number] === 0, failed: EPISODES.failed[number] > 0, repeated: EPISODES.repeated[number] > 0,
  })[wanted] ?? EPISODES.tools[number].some((tool) => `tool:${INDEX.tools[tool]}` === wanted),
  low: (number, wanted) => EPISODES.reward[number] !== null && EPISODES.reward[number] >= Number(wanted),
  high: (number, wanted) => EPISODES.reward[number] !== null && EPISODES.reward[number] <= Number(wanted),
  text: (number, wanted) => (searchTexts?.[number] ?? taskOf(number).join("\n").toLowerCase()).includes(wanted.trim().toLowerCase()),
};

/** Numbers of the groups of samples whose rewards differ most come first. */
function rewardSpread() {
  const rewards = new Map();
  for (const number of all()) {
    const group = `${EPISODES.arm[number]} ${EPISODES.step[number]} ${EPISODES.task[number]}`;
    if (!rewards.has(group)) rewards.set(group, []);
    rewards.get(group).push(number);
  }
  const spread = new Array(EPISODES.task.length).fill(0);
  for (const members of rewards.values()) {
    const values = members.map((number) => EPISODES.reward[number]).filter((value) => value !== null);
    const width = values.length ? Math.max(...values) - Math.min(...values) : 0;
    for (const number of members) spread[number] = width;
  }
  return (number) => -spread[number];
}

const ORDERS = {
  order: () => (number) => number,
  best: () => (number) => -(EPISODES.reward[number] ?? -Infinity),
  worst: () => (number) => EPISODES.reward[number] ?? Infinity,
  longest: () => (number) => -EPISODES.length[number],
  calls: () => (number) => -EPISODES.calls[number],
  slowest: () => (number) => -EPISODES.seconds[number],
  spread: rewardSpread,
};

function passing() {
  const wanted = Object.entries(state()).filter(([name, value]) => TESTS[name] && (name === "stop" ? form.elements.stop.selectedIndex > 0 : value !== ""));
  const found = all().filter((number) => wanted.every(([name, value]) => TESTS[name](number, value)));
  const key = (ORDERS[state().sort] || ORDERS.order)();
  const keys = new Map(found.map((number) => [number, key(number)]));
  return found.sort((first, second) => keys.get(first) - keys.get(second) || first - second);
}

/** Decodes the texts of all episodes, block by block, so that the page stays responsive. */
async function readSearchTexts(onBlock) {
  const texts = new Array(EPISODES.task.length).fill("");
  const numbers = new Map();
  for (const number of all()) numbers.set(`${EPISODES.block[number]} ${EPISODES.at[number]}`, number);
  for (let block = 0; block < DATA.num_blocks; block++) {
    (await inflatedJson(`texts-${block}`)).forEach((row, at) => {
      texts[numbers.get(`${block} ${at}`)] = [row.question, row.answer, row.task_id, ...row.spans.map(([, text]) => text)].join("\n").toLowerCase();
    });
    onBlock(block + 1);
  }
  searchTexts = texts;
}
