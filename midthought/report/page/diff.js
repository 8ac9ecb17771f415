// ---- the same prompt in two episodes, as a difference of tokens or words -------------------------------------------

const MAX_EDITS = 1500;

/** Texts that are compared: those of tokens if both have them, otherwise words. Each has its author. */
function pieces(row, byToken) {
  if (byToken) return row.tokens.texts.map((text, token) => [text, row.tokens.authors[token]]);
  return row.spans.flatMap(([author, text]) => (text.match(/\s+|[^\s]+/g) || []).map((word) => [word, author]));
}

/**
 * Pairs [kind, text] with kind "same", "removed" or "added" (Myers, An O(ND) Difference Algorithm, 1986). With more than MAX_EDITS
 * edits, the part between the common beginning and end is shown as removed and added as a whole.
 */
function difference(first, second) {
  let start = 0;
  while (start < first.length && start < second.length && first[start] === second[start]) start++;
  let end = 0;
  while (end < first.length - start && end < second.length - start && first[first.length - 1 - end] === second[second.length - 1 - end]) end++;
  const inner = edits(first.slice(start, first.length - end), second.slice(start, second.length - end));
  const same = (texts) => texts.map((text) => ["same", text]);
  return [...same(first.slice(0, start)), ...inner, ...same(first.slice(first.length - end))];
}

function edits(first, second) {
  const most = Math.min(first.length + second.length, MAX_EDITS);
  const zero = most + 1;  // place of diagonal 0; reach[zero + diagonal] is the largest x on a diagonal
  const reach = new Int32Array(2 * most + 3);
  const trace = [];
  for (let depth = 0; depth <= most; depth++) {
    trace.push(reach.slice(zero - depth - 1, zero + depth + 2));
    for (let diagonal = -depth; diagonal <= depth; diagonal += 2) {
      const at = zero + diagonal;
      const isDown = diagonal === -depth || (diagonal !== depth && reach[at - 1] < reach[at + 1]);
      let x = isDown ? reach[at + 1] : reach[at - 1] + 1;
      while (x < first.length && x - diagonal < second.length && first[x] === second[x - diagonal]) x++;
      reach[at] = x;
      if (x >= first.length && x - diagonal >= second.length) return backtrack(trace, first, second);
    }
  }
  return [...first.map((text) => ["removed", text]), ...second.map((text) => ["added", text])];
}

function backtrack(trace, first, second) {
  const found = [];
  let x = first.length;
  let y = second.length;
  for (let depth = trace.length - 1; depth >= 0; depth--) {
    const reach = (diagonal) => trace[depth][depth + 1 + diagonal];
    const diagonal = x - y;
    const isDown = diagonal === -depth || (diagonal !== depth && reach(diagonal - 1) < reach(diagonal + 1));
    const before = isDown ? diagonal + 1 : diagonal - 1;
    const fromX = depth ? reach(before) : 0;
    const fromY = depth ? fromX - before : 0;
    while (x > fromX && y > fromY) {
      found.push(["same", first[x - 1]]);
      x--;
      y--;
    }
    if (depth) found.push(isDown ? ["added", second[y - 1]] : ["removed", first[x - 1]]);
    x = fromX;
    y = fromY;
  }
  return found.reverse();
}

/** Neighbors of one kind joined. */
function joined(parts) {
  const found = [];
  for (const [kind, text] of parts) {
    if (found.length && found.at(-1)[0] === kind) found.at(-1)[1].push(text);
    else found.push([kind, [text]]);
  }
  return found.map(([kind, texts]) => [kind, texts.join("")]);
}

const TAGS = { same: "span", removed: "del", added: "ins" };

function differenceBox(first, second) {
  const byToken = Boolean(first.tokens && second.tokens);
  const [texts, others] = [first, second].map((row) => pieces(row, byToken).filter(([, author]) => author !== "prompt").map(([text]) => text));
  const parts = joined(difference(texts, others));
  const box = make("div", { className: "text diff", dir: "auto", tabIndex: 0, attributes: { role: "group", "aria-label": "Differences" } });
  const shown = make("div", { className: "span policy" },
    make("p", { className: "by" }, make("b", {}, "after the prompt"), `${byToken ? "tokens" : "words"} that are `, make("del", {}, "removed"), make("ins", {}, "added")), box);
  inPieces(box, parts.length, 4000, "parts", (low, high) => box.append(...parts.slice(low, high).map(([kind, text]) => make(TAGS[kind], {}, visible(text.slice(0, MAX_LETTERS))))));
  return shown;
}

const labelOf = (number) => `${armOf(number)}${EPISODES.step[number] ? `, iteration ${EPISODES.step[number]}` : ""} · ${verdict(EPISODES.right[number])[1]} · reward ${EPISODES.reward[number] === null ? "–" : short(EPISODES.reward[number])}`;

/** What `number` is compared with first: its counterpart before training, else the episode before it with the same prompt. */
function otherOf(number, others) {
  if (EPISODES.before[number] !== null) return EPISODES.before[number];
  const place = others.indexOf(number);
  return others[place > 0 ? place - 1 : Math.min(1, others.length - 1)];
}

function diffView(first, second, numbers, [from, to], choose) {
  const select = (label, chosen, onchange) => make("label", { className: "inline" }, label, make("select", { onchange }, ...numbers.map((number) => make("option", { value: number, selected: number === chosen }, labelOf(number)))));
  const side = (row) => make("div", { className: "panel" }, facts(row), errorBox(row));
  return { rows: [], element: make("div", {},
    make("div", { className: "pair" }, select("From ", from, (event) => choose([Number(event.target.value), to])), select("To ", to, (event) => choose([from, Number(event.target.value)]))),
    make("div", { className: "panels" }, side(first), side(second)), differenceBox(first, second)) };
}
