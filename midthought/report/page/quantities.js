// ---- quantities of a token: their values and colors ------------------------------------------------------------

const QUANTITIES = new Map(DATA.quantities.map((each) => [each.name, each]));
const isColored = (quantity) => quantity.scale !== "none";

/** The value of a quantity at a token; undefined if the token has none. */
function valueAt(tokens, quantity, token) {
  const { columns, policy } = tokens;
  if (quantity.name === "token_id") return columns.token_ids[token];
  if (quantity.name === "text") return tokens.texts[token];
  if (quantity.name === "author") return tokens.authors[token];
  const place = policy[token];
  if (place < 0) return quantity.name === "in_loss" ? 0 : undefined;
  if (quantity.name === "in_loss") return columns.in_loss[place];
  if (quantity.name === "policy_version") return columns.policy_versions[place];
  const value = columns[quantity.column]?.[place];
  const other = quantity.minus ? columns[quantity.minus]?.[place] : 0;
  return value === undefined || other === undefined || Number.isNaN(value - other) ? undefined : value - other;
}

/** Quantities that at least one token of these episodes has. */
const present = (rows) => DATA.quantities.filter((quantity) => isColored(quantity) && rows.some(({ tokens }) => {
  if (!tokens) return false;
  if (!quantity.column) return true;
  for (let token = 0; token < tokens.count; token++) if (valueAt(tokens, quantity, token) !== undefined) return true;
  return false;
}));

/** [low, high] of a quantity over the tokens of some episodes, without the most extreme 1 % at both ends; null without values. */
function valueRange(rows, quantity) {
  const values = [];
  for (const { tokens } of rows) {
    if (!tokens) continue;
    for (let token = 0; token < tokens.count; token++) {
      const value = valueAt(tokens, quantity, token);
      if (value !== undefined && Number.isFinite(value)) values.push(value);
    }
  }
  if (!values.length) return null;
  const sorted = Float64Array.from(values).sort();
  const cut = Math.floor(sorted.length / 100);
  return [sorted[cut], sorted[sorted.length - 1 - cut]];
}

/** Strength of a token's color, from -1 to 1; null if it has none. */
function strength(value, quantity, [low, high]) {
  if (value === undefined) return null;
  const within = (share) => Math.min(Math.max(share, -1), 1);
  if (quantity.scale === "diverging") {
    const reach = Math.max(Math.abs(low - quantity.center), Math.abs(high - quantity.center));
    return reach ? within((value - quantity.center) / reach) : Math.sign(value - quantity.center);
  }
  if (high === low && quantity.name === "in_loss") return value;
  if (high === low) return value === low ? 0.35 : (value > low) === (quantity.scale === "sequential") ? 1 : 0;
  const share = (value - low) / (high - low);
  return within(Math.max(quantity.scale === "reversed" ? 1 - share : share, 0));
}

function exact(value) {
  if (value === undefined || value === null) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return String(value).replace("-", "−");
  return (Math.abs(value) < 1e-3 ? value.toExponential(3) : value.toPrecision(5)).replaceAll("-", "−");
}
