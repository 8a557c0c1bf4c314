"use strict";
// Polls /api/state, keeps the points of the window, and redraws. All text is set by textContent, never as HTML.

const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7b5ea7"];
const KEEP_S = 900;
const state = { since: 0, points: new Map(), charts: new Map(), listed: [], windowS: 300 };

const byId = (id) => document.getElementById(id);
const make = (tag, text, parent) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
};

function format(value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  if (unit === "bytes") {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = 0;
    while (Math.abs(value) >= 1024 && power < units.length - 1) { value /= 1024; power += 1; }
    return `${value.toFixed(power ? 1 : 0)} ${units[power]}`;
  }
  if (unit === "s" && Math.abs(value) < 1) return `${(value * 1000).toPrecision(3)} ms`;
  const text = Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(4)).toString();
  return unit === "s" ? `${text} s` : unit === "per s" ? `${text}/s` : text;
}

function addPoints(points) {
  for (const point of points) {
    state.since = Math.max(state.since, point.time_s);
    for (const [chart, series] of Object.entries(point.values)) {
      if (!state.points.has(chart)) state.points.set(chart, new Map());
      const known = state.points.get(chart);
      for (const [name, value] of Object.entries(series)) {
        if (!known.has(name)) known.set(name, []);
        known.get(name).push([point.time_s, value]);
      }
    }
  }
  for (const chart of state.points.values()) {
    for (const [name, values] of chart) {
      while (values.length && values[0][0] < state.since - KEEP_S) values.shift();
      if (!values.length) chart.delete(name);
    }
  }
}

function drawChart(chart) {
  const series = state.points.get(chart.id);
  if (!series || !series.size) return;
  let view = state.charts.get(chart.id);
  if (!view) {
    const figure = make("figure", undefined, byId("charts"));
    figure.id = `chart-${chart.id}`;
    make("figcaption", chart.title, figure);
    make("p", chart.help, figure);
    const canvas = make("div", undefined, figure);
    canvas.setAttribute("role", "img");
    view = { figure, canvas, values: make("dl", undefined, figure), plot: null, names: "" };
    state.charts.set(chart.id, view);
  }
  const names = [...series.keys()].sort();
  view.values.replaceChildren();
  const last = [];
  names.forEach((name, index) => {
    const values = series.get(name);
    const text = format(values[values.length - 1][1], chart.unit);
    make("dt", name, view.values).style.setProperty("--series", COLORS[index % COLORS.length]);
    make("dd", text, view.values);
    last.push(`${name} ${text}`);
  });
  view.canvas.setAttribute("aria-label", `${chart.title}, last values: ${last.join(", ")}`);
  if (typeof uPlot === "undefined") return; // without the library the last values remain
  const begin = state.since - state.windowS;
  const tables = names.map((name) => {
    const shown = series.get(name).filter((point) => point[0] >= begin);
    return [shown.map((point) => point[0]), shown.map((point) => point[1])];
  }).filter((table) => table[0].length);
  if (!tables.length) return;
  const data = uPlot.join(tables, tables.map((table) => table.map(() => 1)));
  const key = `${names.join("\n")}\n${tables.length}`;
  if (view.plot && view.names !== key) { view.plot.destroy(); view.plot = null; }
  if (!view.plot) {
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
    const grid = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    view.names = key;
    view.plot = new uPlot({
      width: view.canvas.clientWidth || 320,
      height: 180,
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: true } },
      axes: [axis, { ...axis, size: 84, values: (_, ticks) => ticks.map((tick) => format(tick, chart.unit)) }],
      series: [{}, ...tables.map((_, index) => ({ stroke: COLORS[index % COLORS.length], width: 2, spanGaps: true, points: { show: false } }))],
    }, data, view.canvas);
  } else {
    view.plot.setData(data);
  }
  view.plot.setScale("x", { min: begin, max: state.since });
}

function drawTargets(targets) {
  const list = byId("targets");
  list.replaceChildren();
  for (const target of targets) {
    const item = make("li", undefined, list);
    const trouble = target.error || target.problems.join("; ");
    item.className = trouble ? "bad" : "";
    make("span", target.name, item);
    make("small", trouble ? `${target.role}: ${trouble}` : `${target.role}, up`, item);
  }
}

function drawCuts(cuts) {
  const body = byId("cuts");
  body.replaceChildren();
  for (const cut of cuts.slice(-20).reverse()) {
    const row = make("tr", undefined, body);
    make("td", new Date(cut.time_s * 1000).toLocaleTimeString(), row);
    make("td", cut.target, row);
    make("td", cut.model, row);
    make("td", String(cut.cut), row);
  }
}

async function poll() {
  const status = byId("status");
  try {
    const response = await fetch(`/api/state?since=${state.since}`);
    const answer = await response.json();
    if (answer.now_s < state.since) { state.since = 0; state.points.clear(); } // the clock went back: begin again
    addPoints(answer.points);
    drawTargets(answer.targets);
    state.listed = answer.charts;
    state.listed.forEach(drawChart);
    drawCuts(answer.cuts);
    byId("predict").hidden = !answer.can_predict;
    byId("explain").hidden = !answer.can_explain;
    const down = answer.targets.filter((target) => target.error || target.problems.length).length;
    const text = down ? `${down} of ${answer.targets.length} processes have a problem` : `${answer.targets.length} processes up`;
    if (status.textContent !== text) status.textContent = text;
    status.className = down ? "lost" : "";
  } catch (error) {
    status.textContent = "the dashboard does not answer";
    status.className = "lost";
  }
  setTimeout(poll, 1000);
}

function redraw() {
  for (const view of state.charts.values()) {
    if (view.plot) { view.plot.destroy(); view.plot = null; }
  }
  state.listed.forEach(drawChart);
}

byId("window").addEventListener("change", (event) => { state.windowS = Number(event.target.value); redraw(); });
byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  byId("theme").textContent = isDark ? "Dark" : "Light";
  byId("theme").setAttribute("aria-pressed", String(!isDark));
  redraw();
});
addEventListener("resize", redraw);

async function submit(event, request) {
  event.preventDefault();
  const output = event.target.parentElement.querySelector("output");
  output.textContent = "…";
  try {
    const response = await request();
    output.textContent = JSON.stringify(await response.json(), null, 1);
  } catch (error) {
    output.textContent = String(error.message || error);
  }
}

byId("explain").querySelector("form").addEventListener("submit", (event) => submit(event, () =>
  fetch(`/api/explain?id=${encodeURIComponent(event.target.id.value.trim())}`)));
byId("predict").querySelector("form").addEventListener("submit", (event) => submit(event, () =>
  fetch("/api/predict", { method: "POST", body: JSON.stringify({ model: event.target.model.value.trim(), body: JSON.parse(event.target.body.value) }) })));
poll();
