// ---- store: the index of all episodes, and blocks that are decoded when an episode is shown ------------------------

const MAX_BLOCKS = 16;
const blocks = new Map();

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

async function inflated(id) {
  const packed = new Blob([fromBase64(document.getElementById(id).textContent.trim())]);
  const stream = packed.stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const inflatedJson = async (id) => JSON.parse(new TextDecoder().decode(await inflated(id)));

/** A column of 4-byte numbers from its four planes of bytes, which start at `offset`. */
function column(bytes, offset, length, Type) {
  const joined = new Uint8Array(4 * length);
  for (let plane = 0; plane < 4; plane++)
    for (let at = 0; at < length; at++) joined[4 * at + plane] = bytes[offset + plane * length + at];
  return new Type(joined.buffer);
}

const numTokens = (row, author) => row.spans.reduce((sum, [by, , length]) => sum + (!author || by === author ? length : 0), 0);

/** Gives the rows of a block their tokens: columns of T tokens (`text_lengths`, `token_ids`) and of the P policy tokens. */
function addTokens(rows, bytes) {
  const recorded = rows.filter((row) => row.segment_lengths);
  const counts = { token: recorded.map((row) => numTokens(row)), policy: recorded.map((row) => numTokens(row, "policy")) };
  const sums = { token: 0, policy: 0 };
  for (const kind of ["token", "policy"]) for (const count of counts[kind]) sums[kind] += count;
  const columns = {};
  let offset = 0;
  for (const [name, kind, isFloat] of DATA.columns) {
    columns[name] = column(bytes, offset, sums[kind], isFloat ? Float32Array : Int32Array);
    offset += 4 * sums[kind];
  }
  const at = { token: 0, policy: 0 };
  recorded.forEach((row, place) => {
    row.tokens = { count: counts.token[place], columns: {} };
    for (const [name, kind, isFloat] of DATA.columns)
      if (!isFloat || row.columns.includes(name))
        row.tokens.columns[name] = columns[name].subarray(at[kind], at[kind] + counts[kind][place]);
    for (const kind of ["token", "policy"]) at[kind] += counts[kind][place];
    addPlaces(row);
  });
}

/** Text, author and number among the policy's tokens of each token. */
function addPlaces(row) {
  const { tokens } = row;
  const lengths = tokens.columns.text_lengths;
  tokens.texts = new Array(tokens.count);
  tokens.authors = new Array(tokens.count);
  tokens.policy = new Int32Array(tokens.count).fill(-1);
  let token = 0;
  let policy = 0;
  for (const [author, text, length] of row.spans) {
    let start = 0;
    for (const end = token + length; token < end; token++) {
      tokens.texts[token] = text.slice(start, start + lengths[token]);
      tokens.authors[token] = author;
      if (author === "policy") tokens.policy[token] = policy++;
      start += lengths[token];
    }
  }
}

async function decoded(number) {
  const [rows, bytes] = await Promise.all([inflatedJson(`texts-${number}`), inflated(`numbers-${number}`)]);
  addTokens(rows, bytes);
  return rows;
}

/** The episode with this number in the index, with its texts and tokens. */
async function episode(number) {
  const block = EPISODES.block[number];
  if (!blocks.has(block)) blocks.set(block, decoded(block));
  const rows = blocks.get(block);
  blocks.delete(block);
  blocks.set(block, rows);  // the latest used is the last
  if (blocks.size > MAX_BLOCKS) blocks.delete(blocks.keys().next().value);
  return (await rows)[EPISODES.at[number]];
}

let INDEX = { tasks: [], arms: [], stops: [], parts: [], tools: [] };
let EPISODES = { task: [] };

const taskOf = (number) => INDEX.tasks[EPISODES.task[number]];
const armOf = (number) => INDEX.arms[EPISODES.arm[number]];
const all = () => Array.from(EPISODES.task.keys());
const samePrompt = (number) => all().filter((other) => EPISODES.task[other] === EPISODES.task[number]);
const samplesOf = (number) =>
  samePrompt(number).filter((other) => EPISODES.arm[other] === EPISODES.arm[number] && EPISODES.step[other] === EPISODES.step[number]);

/** `gained`: wrong before, right now; `lost`: the opposite; otherwise null. Greedy is compared with greedy, sampled with sampled. */
function change(number) {
  const before = EPISODES.before[number];
  if (before === null || EPISODES.right[before] === EPISODES.right[number]) return null;
  if (EPISODES.right[before] === null || EPISODES.right[number] === null) return null;
  return EPISODES.right[number] ? "gained" : "lost";
}
