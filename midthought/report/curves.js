"use strict";
// First part of every page's script: the curves' read-out. Texts of a run are foreign; they enter the page through
// textContent alone.
const DATA = JSON.parse(document.getElementById("data").textContent);

/** A new element: its properties, its class, then its children (nodes or texts; null is left out). */
function make(tag, properties = {}, ...children) {
  const { attributes = {}, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const short = (value) => String(Number(Number(value).toPrecision(3))).replace("-", "−");

// ---- curves ----------------------------------------------------------------------------------------------------

/** The value of a line at a step: the last one that was logged there, or the mean that includes it; a dash if there is none. */
function valueOf(line, step) {
  const place = line.has_means ? line.steps.findIndex((each) => each >= step) : line.steps.lastIndexOf(step);
  return place < 0 ? "–" : short(line.values[place]);
}

function nearest(steps, wanted) {
  let best = 0;
  for (let index = 1; index < steps.length; index++)
    if (Math.abs(steps[index] - wanted) < Math.abs(steps[best] - wanted)) best = index;
  return best;
}

function readOut(figure, chart) {
  const svg = figure.querySelector("svg");
  const output = figure.querySelector("output");
  const beside = figure.querySelectorAll(".legend b");  // the values of several lines are beside their labels
  const cursor = svg.querySelector(".cursor");
  const steps = [...new Set(chart.lines.flatMap((line) => line.steps))].sort((first, second) => first - second);
  let at = null;

  const show = () => {
    const step = steps[at ?? steps.length - 1];
    const values = chart.lines.map((line) => valueOf(line, step));
    output.replaceChildren(at === null ? (beside.length ? "" : "last ") : beside.length ? `step ${step} ` : `step ${step}: `, make("span", { className: beside.length ? "unseen" : "" }, values.join(" · ")));
    beside.forEach((each, line) => { each.textContent = values[line]; });
    if (at === null) return cursor.setAttribute("visibility", "hidden");
    const x = chart.left + ((step - chart.low) / (chart.high - chart.low)) * (chart.right - chart.left);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.setAttribute("visibility", "visible");
  };
  const move = (index) => { at = index; show(); };

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.width;
    move(nearest(steps, chart.low + ((x - chart.left) / (chart.right - chart.left)) * (chart.high - chart.low)));
  });
  svg.addEventListener("pointerleave", () => move(null));
  svg.addEventListener("blur", () => move(null));
  const pick = () => { if (at !== null) figure.dispatchEvent(new CustomEvent("pick", { detail: steps[at] })); };
  svg.addEventListener("click", pick);
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Enter") return pick();
    const last = steps.length - 1;
    const stride = Math.max(1, Math.round(steps.length / 50));
    const from = at === null ? last : at;
    const to = { ArrowLeft: from - stride, ArrowRight: from + stride, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    move(Math.min(Math.max(to, 0), last));
  });
  show();
}

document.querySelectorAll("[data-chart]").forEach((figure) => readOut(figure, DATA.charts[figure.dataset.chart]));
