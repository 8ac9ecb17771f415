// ---- deep links: filters, episode, view and token are in the part of the address after # ------------------------------

/** An episode's address stays the same if the page is written again with more episodes: arm/iteration/sample/task. */
function addressOf(number) {
  return [armOf(number), EPISODES.step[number], samplesOf(number).indexOf(number), taskOf(number)[0]].join("/");
}

function episodeAt(address) {
  const [arm, step, sample, ...task] = (address || "").split("/");
  const found = all().filter((number) => armOf(number) === arm && EPISODES.step[number] === Number(step) && taskOf(number)[0] === task.join("/"));
  return found[Number(sample)] ?? found[0] ?? null;
}

function readAddress() {
  const text = location.hash.slice(1);
  return text.includes("=") ? Object.fromEntries(new URLSearchParams(text)) : null;
}

/** Browsers limit how often an address is changed: it is written when nothing else has changed for a moment. */
function writeAddress(values) {
  clearTimeout(writeAddress.waiting);
  writeAddress.waiting = setTimeout(() => setAddress(values), 100);
}

function setAddress(values) {
  const entries = Object.entries(values).filter(([name, value]) => value !== "" && value !== null && value !== undefined && !(name === "sort" && value === "order"));
  history.replaceState(null, "", `#${new URLSearchParams(entries)}`);
}
