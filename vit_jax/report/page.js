"use strict";
// Texts of runs reach the page by textContent only, and reach Plotly through plain().
const DATA = JSON.parse(document.getElementById("data").textContent);
const SYMBOLS = {circle: "●", square: "■", diamond: "◆", "triangle-up": "▲", "triangle-down": "▼", cross: "✚", x: "✖", "triangle-left": "◀", "triangle-right": "▶", star: "★"};
const OPEN = {circle: "○", square: "□", diamond: "◇", "triangle-up": "△", "triangle-down": "▽", "triangle-left": "◁", "triangle-right": "▷", star: "☆"};
const LINES = {solid: "━", dash: "╍", dot: "┅", dashdot: "╍"};
const plain = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const number = value => typeof value === "number" ? (Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(5)))) : String(value);
const shown = value => value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// ---- Plots

const library = (async () => {
  const encoded = document.getElementById("plotly");
  const bytes = Uint8Array.from(atob(encoded.textContent.replace(/-/g, "+").replace(/_/g, "/")), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = element("script", await new Response(stream).text());
  script.nonce = document.currentScript?.nonce || encoded.nonce;
  document.head.append(script);
  return window.Plotly || window.moduleName;
})();

function hover(panel, trace, i) {
  const run = DATA.runs[trace.runs?.[i]], lines = [];
  if (run) lines.push(`<b>${plain(run.name)}</b>`);
  if (trace.series !== run?.name) lines.push(plain(trace.series));
  if (run && run.seed !== null && run.seed !== undefined) lines.push(`seed ${plain(run.seed)}`);
  const [x, y] = panel.rows.length ? [panel.rows[Math.round(trace.x[i])], trace.y[i]] : [trace.x[i], trace.y[i]];
  if (!panel.rows.length || x !== trace.series) lines.push(panel.rows.length ? plain(x) : `${plain(panel.x)}: ${number(x)}`);
  const interval = trace.low?.[i] != null ? ` [${number(trace.low[i])}, ${number(trace.high[i])}]` : "";
  const name = plain(panel.rows.length ? panel.x : panel.y);
  lines.push(`${trace.n?.[i] > 1 ? `mean of ${trace.n[i]} runs: ` : ""}${name}: ${number(y)}${interval}`);
  if (run) lines.push("<i>click: config, curves, log</i>");
  return lines.join("<br>");
}

function toPlotly(panel, trace, dark, hidden) {
  const colour = trace.colour[dark ? 1 : 0], rows = panel.rows.length > 0;
  const made = {
    name: plain(trace.series), visible: hidden.has(trace.series) ? false : true, showlegend: false,
    text: trace.x.map((_, i) => hover(panel, trace, i)), hovertemplate: "%{text}<extra></extra>",
    customdata: trace.x.map((_, i) => trace.runs?.[i] ?? null),
  };
  const at = trace.at ?? trace.x;
  const [x, y] = rows ? [trace.y, at] : [at, trace.y];
  const isCurve = ["curve", "chance"].includes(trace.kind), faint = trace.kind === "runs";
  if (trace.low) {
    const bars = {type: "data", symmetric: false, thickness: 1.3, width: 3,
      array: trace.high.map((end, i) => end === null ? 0 : end - trace.y[i]), arrayminus: trace.low.map((end, i) => end === null ? 0 : trace.y[i] - end)};
    made[rows ? "error_x" : "error_y"] = bars;
  }
  const single = trace.x.length === 1;
  return {...made, type: "scatter", x, y,
    mode: faint || (rows && !isCurve) || trace.kind === "end" ? "markers" : isCurve && !single ? "lines" : "lines+markers",
    line: {color: colour, dash: trace.dash, width: isCurve ? 1.6 : 2},
    marker: {color: colour, symbol: trace.kind === "end" ? "x" : trace.symbol, size: faint ? 7 : 9, opacity: faint ? 0.5 : 1,
      line: {width: trace.symbol.endsWith("-open") ? 2 : 1, color: trace.symbol.endsWith("-open") ? colour : css("--plot-surface")}}};
}

function layoutOf(panel, width) {
  const rows = panel.rows.length, axis = {gridcolor: css("--plot-grid"), linecolor: css("--plot-muted"), zeroline: false, automargin: true, color: css("--plot-ink"), fixedrange: matchMedia("(pointer: coarse)").matches};
  const longest = Math.max(8, Math.floor(width / 18));
  const names = panel.rows.map(name => plain(name.length > longest ? `${name.slice(0, longest / 2)}…${name.slice(-longest / 2)}` : name));
  const wrap = (text, length) => String(text).split(" ").reduce((lines, word) => (lines.at(-1) + word).length < length ? [...lines.slice(0, -1), `${lines.at(-1)} ${word}`.trim()] : [...lines, word], [""]).filter(Boolean).map(plain);
  const title = panel.title ? wrap(panel.title, width / 8) : [];
  const xaxis = {...axis, title: {text: wrap(panel.x, width / 9).join("<br>"), standoff: 8}, showgrid: true, nticks: Math.max(3, Math.floor(width / 70))};
  const xs = panel.traces.flatMap(trace => trace.x);
  if (panel.log_x) {
    const places = [...new Set(panel.traces.filter(trace => trace.kind === "means").flatMap(trace => trace.x))].sort((a, b) => a - b);
    Object.assign(xaxis, {type: "log"});
    if (places.length > 0 && places.length <= width / 55) Object.assign(xaxis, {tickvals: places, ticktext: places.map(x => Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 3}).format(x))});
  } else if (xs.every(x => typeof x === "number") && !rows) Object.assign(xaxis, {tickformat: "~s"});
  const yaxis = rows ? {...axis, tickvals: panel.rows.map((_, i) => i), ticktext: names, range: [rows - 0.5, -0.5], showgrid: false} : {...axis, title: {text: panel.title.endsWith(panel.y) ? "" : wrap(panel.y, 30).join("<br>"), standoff: 6}, ...(panel.log_y ? {type: "log"} : panel.from_zero ? {rangemode: "tozero"} : {})};
  return {
    title: {text: title.map(line => `<b>${line}</b>`).join("<br>"), x: 0, xref: "container", xanchor: "left", yref: "container", y: 1, yanchor: "top", pad: {t: 6, l: 4}, font: {size: 13}},
    height: rows ? 80 + 30 * rows + 17 * title.length : 285 + 17 * title.length, margin: {l: 48, r: 14, t: 14 + 17 * title.length, b: 44},
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest", hoverdistance: 14,
    font: {family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--plot-ink")},
    hoverlabel: {bgcolor: css("--card"), bordercolor: css("--soft"), font: {color: css("--ink"), size: 12}, align: "left", namelength: -1}, xaxis, yaxis,
  };
}

async function drawPanel(box, panel, hidden) {
  const Plotly = await library, dark = isDark();
  const traces = panel.traces.map(trace => toPlotly(panel, trace, dark, hidden));
  traces.sort((a, b) => (a.mode === "markers" && !a.error_x ? 0 : 1) - (b.mode === "markers" && !b.error_x ? 0 : 1));
  const fresh = !box.classList.contains("js-plotly-plot");
  await Plotly.react(box, traces, layoutOf(panel, box.clientWidth), {responsive: true, displaylogo: false, displayModeBar: false});
  if (fresh) box.on("plotly_click", event => {
    const run = event.points.map(point => point.customdata).find(found => found !== null && found !== undefined);
    if (run !== undefined) openRun(run);
  });
  box.dataset.drawn = dark ? "dark" : "light";
}

const charts = [];

function makeChart(panels, legend, place) {
  const hidden = new Set(), boxes = panels.map(() => element("div", undefined, {class: "panel"}));
  const draw = () => Promise.all(boxes.map((box, i) => drawPanel(box, panels[i], hidden)));
  place.classList.toggle("single", panels.length === 1);
  place.classList.toggle("pairs", panels.length % 2 === 0);
  place.replaceChildren(...boxes);
  panels.forEach((panel, i) => { boxes[i].style.minHeight = `${layoutOf(panel, 400).height}px`; });
  const series = new Map(panels.flatMap(panel => panel.traces).map(trace => [trace.series, trace]).reverse());
  if (series.size > 1) for (const [name, trace] of [...series].reverse()) {
    const button = element("button", undefined, {type: "button", "aria-pressed": "true"});
    const symbol = trace.symbol.endsWith("-open") ? OPEN[trace.symbol.replace("-open", "")] ?? "○" : SYMBOLS[trace.symbol];
    const mark = element("span", LINES[trace.dash] + symbol, {class: "mark", "aria-hidden": "true"});
    mark.style.setProperty("--light", trace.colour[0]);
    mark.style.setProperty("--dark", trace.colour[1]);
    button.append(mark, " ", name);
    button.addEventListener("click", () => {
      if (!hidden.delete(name)) hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      draw();
    });
    legend.append(button);
  }
  return {place, draw, drawn: false};
}

const nearby = new IntersectionObserver(entries => {
  for (const entry of entries) {
    const chart = charts.find(one => one.place === entry.target);
    if (entry.isIntersecting && chart && !chart.drawn) { chart.drawn = true; chart.draw(); }
  }
}, {rootMargin: "600px"});
for (const figure of document.querySelectorAll("figure.chart")) {
  const chart = makeChart(DATA.charts[figure.dataset.chart], figure.querySelector(".legend"), figure.querySelector(".panels"));
  charts.push(chart);
  nearby.observe(chart.place);
}
library.catch(error => {
  for (const figure of document.querySelectorAll("figure.chart")) figure.querySelector(".panels").textContent = `This browser cannot draw the plot (${error.message}); the files below show it.`;
});
const redraw = () => charts.filter(chart => chart.drawn).forEach(chart => chart.draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.getElementById("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  redraw();
});

// ---- Tables

const cellText = cell => (cell.querySelector("summary") ?? cell).textContent.trim();
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => row.cells[column].dataset.value ?? cellText(row.cells[column]);
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => {
      const x = key(a), y = key(b);
      if ((x === "") !== (y === "")) return x === "" ? 1 : -1;  // Empty cells come last in both directions.
      const order = x !== "" && !isNaN(x) && !isNaN(y) ? x - y : x.localeCompare(y, "en", {numeric: true});
      return down ? -order : order;
    });
    table.tBodies[0].append(...rows);
  }));
  const button = table.closest(".scroll").nextElementSibling?.querySelector(".csv");
  button?.addEventListener("click", () => {
    // A text that begins like a formula would run in a spreadsheet.
    const quoted = text => `"${(/^[=+@\t\r]|^-(?![\d.])/.test(text) ? `'${text}` : text).replace(/"/g, '""')}"`;
    const rows = [...table.rows].filter(row => !row.hidden).map(row => [...row.cells].map(cell => quoted(cellText(cell))).join(","));
    const link = element("a", undefined, {download: `${table.dataset.title.replace(/[^\w.-]+/g, "-")}.csv`});
    link.href = URL.createObjectURL(new Blob([rows.join("\r\n") + "\r\n"], {type: "text/csv"}));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
document.getElementById("filter")?.addEventListener("input", event => {
  const words = event.target.value.toLowerCase().split(/\s+/);
  for (const row of document.getElementById("all").tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  }
});

const marked = new ResizeObserver(entries => {
  for (const {target} of entries) target.classList.toggle("cut", target.scrollWidth > target.clientWidth + 1);
});
document.querySelectorAll("main .scroll").forEach(scroll => marked.observe(scroll));

// ---- One run

const dialog = document.getElementById("run");

function keyTable(rows, heads) {
  const table = element("table", undefined, {class: "keys"});
  if (heads) {
    const row = table.createTHead().insertRow();
    heads.forEach(head => row.append(element("th", head, {scope: "col"})));
  }
  const body = table.createTBody();
  for (const [name, ...values] of rows) {
    const row = body.insertRow();
    row.append(element("th", name, {scope: "row"}), ...values.map(value => element("td", shown(value))));
  }
  const scroll = element("div", undefined, {class: "scroll", tabindex: "0"});
  scroll.append(table);
  return scroll;
}

function part(title, content, open = false) {
  const made = element("details");
  made.open = open;
  made.append(element("summary", title), content);
  return made;
}

const configOf = run => ({...DATA.config, ...run.settings});
const comparedOf = run => ({...Object.fromEntries(Object.entries(run.labels).map(([name, value]) => [`label ${name}`, value])), ...configOf(run)});
const same = (a, b) => JSON.stringify(a ?? null) === JSON.stringify(b ?? null);

// The runs with the fewest different settings; the seed alone counts less than any other setting.
function neighbours(run) {
  const mine = comparedOf(run);
  return DATA.runs.filter(other => other !== run).map(other => {
    const theirs = comparedOf(other), keys = DATA.compared.filter(key => !same(mine[key], theirs[key]));
    return {other, keys, distance: keys.filter(key => key !== "seed").length + (keys.includes("seed") ? 0.5 : 0)};
  }).sort((a, b) => a.distance - b.distance).slice(0, 3);
}

function differences(run) {
  const near = neighbours(run), keys = [...new Set(near.flatMap(one => one.keys))].sort();
  if (!near.length) return null;
  if (!keys.length) return element("p", "The runs nearest to it have the same settings.", {class: "note"});
  const values = key => [run, ...near.map(one => one.other)].map(one => comparedOf(one)[key]);
  const table = keyTable(keys.map(key => [key, ...values(key)]), ["setting", "this run", ...near.map(one => one.other.name)]);
  [...table.querySelectorAll("tbody tr")].forEach((row, i) => values(keys[i]).forEach((value, j) => {
    if (j && !same(value, values(keys[i])[0])) row.cells[j + 1].classList.add("best");
  }));
  return table;
}

async function openRun(number) {
  const run = DATA.runs[number], body = document.getElementById("run-body");
  document.getElementById("run-name").textContent = run.name;
  body.replaceChildren();
  const top = element("p", undefined, {class: "chips"});
  top.append(element("span", run.state, {class: `chip ${run.state.replace(" ", "-")}`}));
  if (run.url) {
    top.append(element("a", "folder", {href: run.url}), ...run.files.map(file => element("a", file, {href: run.url + file})));
  }
  body.append(top);
  if (run.why) body.append(element("p", run.why, {class: "warning"}));
  const log = element("pre", run.log.join("\n") || "This run has no log.txt.", {class: "log", tabindex: "0"});
  const failed = run.state !== "finished";
  if (failed && run.log.length) body.append(part("End of the log", log, true));
  const different = differences(run);
  if (different) body.append(part("Differences from the nearest runs", different, true));
  const names = Object.keys(run.curves), panels = element("div", undefined, {class: "panels"});
  if (names.length) body.append(part("Curves", panels, true));
  const rows = DATA.metrics.map((name, i) => [name, run.figures[i]]).filter(([, value]) => value !== null);
  if (rows.length) body.append(part("Figures", keyTable(rows), !names.length));
  const sorted = mapping => Object.entries(mapping).filter(([, value]) => value !== null).sort(([a], [b]) => a < b ? -1 : 1);
  if (Object.keys(run.labels).length) body.append(part("Labels of the sweep", keyTable(sorted(run.labels))));
  body.append(part("Config", keyTable(sorted(configOf(run)))), part("Environment", keyTable(sorted({...DATA.environment, ...run.environment}))));
  if (!failed || !run.log.length) body.append(part("End of the log", log));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  const look = {colour: ["#3355d8", "#5b8dff"], symbol: "circle", dash: "solid"};
  const charts = names.map(name => ({title: name, x: "step", y: "", log_x: false, log_y: false, rows: [], traces: [
    {series: name, ...look, kind: "curve", x: run.curves[name][0], y: run.curves[name][1]}]}));
  await makeChart(charts, element("div"), panels).draw();
}

document.addEventListener("click", event => {
  const button = event.target.closest("button.open");
  if (button) openRun(Number(button.dataset.run));
});
document.getElementById("close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close(); });
