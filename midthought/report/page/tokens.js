// ---- tokens: one element each, colored by a quantity; pointing at one shows all its values --------------------------

const MAX_TOKENS = 2500;
const MAX_LETTERS = 20000;
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const placeOf = new WeakMap();  // element → { row, token }
const inspector = document.getElementById("token");
const inspected = { element: null, isPinned: false };

/** Text with its control characters as visible escapes, so that none of them changes how other text is shown. */
const visible = (text) => text.replace(HIDDEN, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** Appends items to a box piece by piece: the first piece, and a button behind the box that appends the next one. */
function inPieces(box, total, size, unit, append) {
  let shown = 0;
  const button = make("button", { type: "button", className: "more", onclick: () => more() });
  const more = () => {
    const end = Math.min(shown + size, total);
    append(shown, end);
    shown = end;
    button.textContent = `Show the next ${Math.min(size, total - shown).toLocaleString("en")} of ${total.toLocaleString("en")} ${unit}`;
    if (shown < total) box.after(button);
    else button.remove();
  };
  more();
}

/** The elements of some tokens. Colors are given by `paint`. */
function tokenElements(row, start, end) {
  const elements = [];
  for (let token = start; token < end; token++) {
    const text = row.tokens.texts[token];
    const element = document.createElement("span");
    element.className = text.includes("\n") ? "t nl" : text ? "t" : "t part";
    element.textContent = text ? visible(text) : "▫";
    placeOf.set(element, { row, token });
    elements.push(element);
  }
  return elements;
}

/** Colors the token elements below `root`; `range` as of `valueRange`. A quantity of null removes the colors. */
function paint(root, quantity, range) {
  for (const element of root.querySelectorAll(".t")) {
    const { row, token } = placeOf.get(element);
    const share = quantity && range ? strength(valueAt(row.tokens, quantity, token), quantity, range) : null;
    element.classList.toggle("plus", share !== null && share > 0);
    element.classList.toggle("minus", share !== null && share < 0);
    if (share) element.style.setProperty("--share", Math.abs(share).toFixed(2));
  }
}

/** A span of tokens, or of text without tokens, with a line that says who wrote it. */
function spanBox(author, notes, isFolded, fill) {
  const kind = ["prompt", "policy", "tool", "reply"].includes(author) ? author : "reply";
  const by = [make("b", {}, author), ...notes];
  const text = make("div", { className: "text", dir: "auto" });
  if (!isFolded) {
    const box = make("div", { className: `span ${kind}` }, make("p", { className: "by" }, ...by), text);
    fill(text);
    return box;
  }
  const details = make("details", {}, make("summary", {}, ...by), text);
  details.reveal = () => {
    details.open = true;
    if (!text.firstChild) fill(text);
  };
  details.addEventListener("toggle", () => { if (details.open) details.reveal(); });
  return make("div", { className: `span ${kind}` }, details);
}

/** The spans of an episode from token `from` on. A long prompt is folded; its tokens are created when it is opened. */
function spanBoxes(row, from = 0, { foldPrompt = true } = {}) {
  const results = row.spans.filter(([author]) => author === "tool").length === (row.events || []).length ? [...row.events] : [];
  let end = 0;
  const boxes = [];
  for (const [author, text, length] of row.spans) {
    const event = author === "tool" ? results.shift() : null;
    const first = Math.max(end, from);
    end += length;
    if (row.tokens && end <= from) continue;
    const notes = [`${length.toLocaleString("en")} token${length === 1 ? "" : "s"}`];
    if (event) notes.push(make("span", { className: event.outcome === "ok" ? "" : "failed" }, `${event.tool_name || "no tool"}: ${event.outcome}`));
    const last = end;
    const fill = (box) => row.tokens
      ? inPieces(box, last - first, MAX_TOKENS, "tokens", (low, high) => { box.append(...tokenElements(row, first + low, first + high)); box.dispatchEvent(new CustomEvent("filled", { bubbles: true })); })
      : inPieces(box, text.length, MAX_LETTERS, "characters", (low, high) => box.append(visible(text.slice(low, high))));
    boxes.push(spanBox(author, notes, foldPrompt && author === "prompt" && text.length > 400, fill));
  }
  return boxes;
}

// -- the inspector ------------------------------------------------------------------------------------------------

function inspect(element, { isPinned = false } = {}) {
  inspected.element?.classList.remove("now");
  inspected.element = element;
  inspected.isPinned = isPinned;
  inspector.hidden = !element;
  if (!element) return;
  element.classList.add("now");
  const { row, token } = placeOf.get(element);
  const facts = DATA.quantities.map((quantity) => {
    let value = valueAt(row.tokens, quantity, token);
    if (quantity.name === "text") value = visible(JSON.stringify(value)).slice(0, 300);
    if (quantity.name === "in_loss") value = value ? "in the loss" : "not in the loss";
    return value === undefined ? null : make("div", {}, make("dt", {}, quantity.label), make("dd", { className: quantity.name === "text" ? "mono" : "" }, exact(value)));
  });
  const head = make("p", {}, `Token ${token} of ${row.tokens.count}`);
  inspector.replaceChildren(head, make("dl", {}, ...facts));
  place(element);
}

/** Puts the inspector next to the token, inside the window. */
function place(element) {
  const box = element.getClientRects()[0] || element.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = inspector;
  const left = Math.min(Math.max(8, box.left), window.innerWidth - width - 8);
  const below = box.bottom + 8 + height <= window.innerHeight;
  inspector.style.left = `${left}px`;
  inspector.style.top = `${below ? box.bottom + 8 : Math.max(8, box.top - height - 8)}px`;
}

/** Makes the tokens below `root` answer to pointer and keyboard. `onPin` gets the pinned token, or null. */
function watchTokens(root, onPin) {
  root.addEventListener("pointerover", (event) => {
    if (inspected.isPinned) return;
    inspect(event.target.closest(".t"));
  });
  root.addEventListener("pointerleave", () => { if (!inspected.isPinned) inspect(null); });
  root.addEventListener("click", (event) => {
    const element = event.target.closest(".t");
    if (!element) return;
    const isSame = inspected.isPinned && element === inspected.element;
    inspect(element, { isPinned: !isSame });
    onPin(isSame ? null : placeOf.get(element));
  });
  root.addEventListener("keydown", (event) => {
    if (!event.target.closest(".tokens")) return;
    if (event.key === "Escape") return inspect(null);
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const elements = [...event.target.closest(".tokens").querySelectorAll(".t")].filter((each) => each.offsetParent);
    const from = elements.indexOf(inspected.element);
    const next = elements[from < 0 ? (way > 0 ? elements.findIndex((each) => placeOf.get(each).row.tokens.authors[placeOf.get(each).token] === "policy") : elements.length - 1) : from + way];
    if (!next) return;
    inspect(next, { isPinned: true });
    next.scrollIntoView({ block: "nearest" });
    place(next);
    onPin(placeOf.get(next));
  });
}

window.addEventListener("scroll", () => { if (inspected.element) place(inspected.element); }, { passive: true });
