// Draws the charts of the page as SVG, at the width that each has, and shows values under the pointer.
"use strict";

const EVERY_MS = 3000; // a live page looks for news
const COLOURS = 8, LEGEND_LIMIT = 16, TIP_LIMIT = 12, PRINTED_WIDTH = 380;
const ALL = -1; // the colour of what is of all workers together
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

let CHARTS, FIGURES, END_S; // of the page as it is now
function take() {
  CHARTS = JSON.parse(document.getElementById("charts").textContent);
  FIGURES = [...document.querySelectorAll(".charts figure")];
  END_S = Math.max(0, ...CHARTS.filter((chart) => chart.isTime).flatMap((chart) => chart.curves.map((curve) => curve.x.at(-1) ?? 0)));
}

function svg(parent, name, attributes, words) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  return parent.appendChild(made);
}

function html(parent, name, words = "", kind = "") {
  const made = document.createElement(name);
  made.textContent = words;
  if (kind) made.className = kind;
  return parent.appendChild(made);
}

const colourOf = (curve) => (curve.colour === ALL ? "var(--all)" : `var(--c${curve.colour % COLOURS})`);
const dashOf = (curve) => (curve.colour === ALL ? "" : DASHES[Math.floor(curve.colour / COLOURS) % DASHES.length]);

function figure(value, digits = 4) {
  if (value === null) return "-";
  return value.toLocaleString("en", Math.abs(value) < 1000 ? { maximumSignificantDigits: digits } : { maximumFractionDigits: 0 });
}

const compact = (value) => value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 4 });

function clock(seconds) { // 42.3 s, 12:05 min, 3:20:00 h
  if (seconds < 120) return `${figure(seconds)} s`;
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  const shown = parts[0] ? parts : parts.slice(1);
  return shown.map((part, at) => (at ? String(part).padStart(2, "0") : part)).join(":") + (parts[0] ? " h" : " min");
}

function ticks(low, high, count, isTime) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough);
  if (isTime && rough > 1) step = TIME_STEPS.find((one) => one >= rough) || 86400 * Math.ceil(rough / 86400);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(at * step || 0);
  return found;
}

function range(chart) {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const curve of chart.curves) {
    for (let at = 0; at < curve.x.length; at++) {
      if (curve.y[at] === null) continue;
      left = Math.min(left, curve.x[at]); right = Math.max(right, curve.x[at]);
      low = Math.min(low, curve.y[at]); high = Math.max(high, curve.y[at]);
    }
  }
  if (left > right) return null;
  if (chart.target !== null) { low = Math.min(low, chart.target); high = Math.max(high, chart.target); }
  const room = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
  return { left: 0, right: Math.max(right, chart.isTime ? END_S : 0, 1e-9), low: chart.fromZero ? 0 : low - room, high: high + room };
}

function path(curve, x, y, steps) {
  let drawn = "", isOpen = false;
  for (let at = 0; at < curve.x.length; at++) {
    if (curve.y[at] === null) { isOpen = false; continue; }
    const [across, up] = [x(curve.x[at]).toFixed(1), y(curve.y[at]).toFixed(1)];
    drawn += !isOpen ? `M${across} ${up}` : steps ? `H${across}V${up}` : `L${across} ${up}`;
    isOpen = true;
  }
  return drawn;
}

// The point that belongs to a place: of steps the last one before it, otherwise the nearest.
function pointAt(curve, place, steps) {
  let low = 0, high = curve.x.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (curve.x[middle] <= place) low = middle; else high = middle - 1;
  }
  const next = low + 1;
  if (!steps && next < curve.x.length && curve.x[next] - place < place - curve.x[low]) return next;
  return low;
}

function start(place, chart, width, height) {
  for (const old of place.querySelectorAll("svg, .legend, .tip, small")) old.remove();
  const legend = html(place, "div", "", "legend");
  const box = svg(place, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.title, tabindex: 0 });
  const tip = html(place, "div", "", "tip");
  tip.hidden = true;
  return { legend, box, tip };
}

function legendEntry(legend, name, colour, isBox) {
  const entry = html(legend, "span");
  const sign = html(entry, "i", "", isBox ? "box" : "");
  sign.style.background = colour;
  entry.append(name);
}

function showTip(place, tip, head, rows, across, up) {
  tip.replaceChildren();
  html(tip, "b", head);
  for (const [name, value, colour] of rows.slice(0, TIP_LIMIT)) {
    const row = html(tip, "div");
    html(row, "span", name).style.color = colour;
    html(row, "span", value);
  }
  if (rows.length > TIP_LIMIT) html(tip, "div", `and ${rows.length - TIP_LIMIT} more`);
  tip.hidden = false;
  const most = place.clientWidth - tip.offsetWidth;
  tip.style.left = `${Math.max(0, Math.min(across + 14 > most ? across - tip.offsetWidth - 14 : across + 14, most))}px`;
  tip.style.top = `${up}px`;
}

function drawCurves(place, chart, width) {
  const height = Math.round(Math.min(260, Math.max(170, width * 0.5)));
  const { legend, box, tip } = start(place, chart, width, height);
  if (chart.together > 1) html(place.querySelector("figcaption"), "small", `, a point is ${chart.together} windows`);
  const extent = range(chart);
  if (!extent) { svg(box, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "nothing recorded"); return; }
  const [l, r, t, b] = [52, width - 14, 24, height - 36];
  const x = (value) => l + ((value - extent.left) / (extent.right - extent.left)) * (r - l);
  const y = (value) => b - ((value - extent.low) / (extent.high - extent.low)) * (b - t);
  for (const tick of ticks(extent.low, extent.high, 4, false)) {
    svg(box, "line", { x1: l, x2: r, y1: y(tick), y2: y(tick), stroke: "var(--line)" });
    svg(box, "text", { x: l - 7, y: y(tick) + 4, "text-anchor": "end" }, compact(tick));
  }
  for (const tick of ticks(extent.left, extent.right, width / 110, chart.isTime)) {
    svg(box, "line", { x1: x(tick), x2: x(tick), y1: b, y2: b + 4, stroke: "var(--quiet)" });
    const anchor = x(tick) > r - 16 ? "end" : "middle";
    svg(box, "text", { x: x(tick), y: b + 16, "text-anchor": anchor }, chart.isTime ? clock(tick) : compact(tick));
  }
  svg(box, "line", { x1: l, x2: r, y1: b, y2: b, stroke: "var(--quiet)" });
  svg(box, "text", { x: 0, y: 11 }, chart.y);
  svg(box, "text", { x: r, y: height - 4, "text-anchor": "end" }, chart.x);
  for (const mark of chart.marks) svg(box, "line", { x1: x(mark), x2: x(mark), y1: b - 7, y2: b, stroke: "var(--ink)" });
  if (chart.target !== null) {
    const level = y(chart.target);
    svg(box, "line", { x1: l, x2: r, y1: level, y2: level, stroke: "var(--c5)", "stroke-dasharray": "5 4" });
    svg(box, "text", { x: r, y: level - 5, "text-anchor": "end" }, `target ${figure(chart.target)}`);
  }
  for (const curve of chart.curves) {
    const style = { fill: "none", stroke: colourOf(curve), "stroke-width": 1.7, "stroke-dasharray": dashOf(curve) };
    svg(box, "path", { d: path(curve, x, y, chart.steps), "stroke-linejoin": "round", ...style });
    const known = curve.y.filter((value) => value !== null).length;
    if (chart.dots || (known < 8 && !chart.steps)) {
      curve.x.forEach((value, at) => {
        if (curve.y[at] !== null) svg(box, "circle", { cx: x(value), cy: y(curve.y[at]), r: 2.6, fill: colourOf(curve) });
      });
    }
  }
  if (chart.curves.length > 1 && chart.curves.length <= LEGEND_LIMIT) {
    for (const curve of chart.curves) legendEntry(legend, curve.name, colourOf(curve), false);
  }
  if (chart.marks.length) legendEntry(legend, "marks: a new plan", "var(--ink)", false);

  const line = svg(box, "line", { y1: t, y2: b, stroke: "var(--quiet)", visibility: "hidden" });
  const dots = chart.curves.map((curve) => svg(box, "circle", { r: 3.5, fill: colourOf(curve), visibility: "hidden" }));
  let shown = null; // the place on the axis that is shown
  const hide = () => {
    tip.hidden = true;
    for (const one of [line, ...dots]) one.setAttribute("visibility", "hidden");
  };
  const show = (value) => {
    shown = Math.min(Math.max(value, extent.left), extent.right);
    const points = chart.curves.map((curve) => (curve.x.length ? pointAt(curve, shown, chart.steps) : -1));
    const near = points.map((at, number) => (at < 0 ? Infinity : Math.abs(chart.curves[number].x[at] - shown)));
    const nearest = near.indexOf(Math.min(...near));
    const there = chart.steps ? shown : chart.curves[nearest].x[points[nearest]];
    line.setAttribute("x1", x(there)); line.setAttribute("x2", x(there)); line.setAttribute("visibility", "visible");
    const rows = [];
    chart.curves.forEach((curve, number) => {
      const at = points[number], known = at >= 0 && curve.y[at] !== null;
      dots[number].setAttribute("visibility", known ? "visible" : "hidden");
      if (!known) return;
      dots[number].setAttribute("cx", x(chart.steps ? Math.max(there, curve.x[at]) : curve.x[at]));
      dots[number].setAttribute("cy", y(curve.y[at]));
      rows.push([curve.name, figure(curve.y[at]), colourOf(curve)]);
    });
    const head = chart.isTime ? clock(there) : `${figure(there)} ${chart.x}`;
    const scale = box.clientWidth / width;
    showTip(place, tip, head, rows, x(there) * scale, box.offsetTop || place.clientHeight - box.clientHeight + 18);
  };
  const pointed = (event) => {
    const seen = box.getBoundingClientRect();
    const across = ((event.clientX - seen.left) / seen.width) * width;
    show(extent.left + ((across - l) / (r - l)) * (extent.right - extent.left));
  };
  box.addEventListener("pointermove", pointed);
  box.addEventListener("pointerdown", pointed);
  box.addEventListener("pointerleave", hide);
  box.addEventListener("blur", hide);
  box.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    show((shown === null ? extent.left : shown) + (way * (extent.right - extent.left)) / 50);
  });
}

function drawBars(place, chart, width) {
  const row = chart.rows.length > 24 ? 12 : 22, [l, r] = [Math.min(130, width * 0.36), width - 14];
  const b = 6 + row * chart.rows.length, height = b + 40;
  const { legend, box, tip } = start(place, chart, width, height);
  if (!chart.rows.length) { svg(box, "text", { x: width / 2, y: 20, "text-anchor": "middle" }, "nothing recorded"); return; }
  const sums = chart.rows.map((one) => one.values.reduce((sum, value) => sum + value, 0));
  const most = Math.max(...sums) || 1;
  const x = (value) => l + (value / most) * (r - l);
  for (const tick of ticks(0, most, width / 130, false)) {
    svg(box, "line", { x1: x(tick), x2: x(tick), y1: 0, y2: b, stroke: "var(--line)" });
    svg(box, "text", { x: x(tick), y: b + 15, "text-anchor": "middle" }, compact(tick));
  }
  svg(box, "text", { x: r, y: height - 5, "text-anchor": "end" }, chart.x);
  chart.rows.forEach((one, number) => {
    const top = 3 + row * number;
    svg(box, "text", { x: l - 7, y: top + row / 2 + 3, "text-anchor": "end" }, one.name);
    let from = 0;
    one.values.forEach((value, part) => {
      const shape = { x: x(from), y: top + 1, width: Math.max(x(from + value) - x(from), 0), height: row - 4 };
      svg(box, "rect", { ...shape, fill: `var(--p${part})` });
      from += value;
    });
    const rows = one.values.map((value, part) => [chart.parts[part], `${figure(value)} µs`, "inherit"]);
    const all = svg(box, "rect", { x: 0, y: top, width, height: row, fill: "transparent" });
    const show = (event) => {
      const seen = place.getBoundingClientRect();
      showTip(place, tip, one.name, rows, event.clientX - seen.left, event.clientY - seen.top + 12);
    };
    all.addEventListener("pointermove", show);
    all.addEventListener("pointerdown", show);
  });
  box.addEventListener("pointerleave", () => { tip.hidden = true; });
  chart.parts.forEach((part, number) => legendEntry(legend, part, `var(--p${number})`, true));
}

function drawAll(width) {
  FIGURES.forEach((place, number) => {
    const chart = CHARTS[number];
    (chart.parts ? drawBars : drawCurves)(place, chart, width || Math.max(place.clientWidth, 200));
  });
}

let drawnFor = 0;
function fit() {
  const width = FIGURES.length ? FIGURES[0].clientWidth : 0;
  if (width !== drawnFor) { drawnFor = width; drawAll(); }
}
addEventListener("resize", fit);
addEventListener("beforeprint", () => { drawnFor = PRINTED_WIDTH; drawAll(PRINTED_WIDTH); });
addEventListener("afterprint", fit);
take();
fit();

// A live page takes in the news, unless nobody looks or somebody reads a value.
async function renew() {
  const main = document.querySelector("main");
  if (!("live" in main.dataset)) return;
  if (!document.hidden && !document.querySelector(".tip:not([hidden])")) {
    try {
      const answer = await fetch(location.href);
      if (!answer.ok) throw new Error(answer.statusText);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const [open, top] = [[...main.querySelectorAll("details")].map((one) => one.open), scrollY];
      fresh.querySelectorAll("details").forEach((one, number) => { one.open = open[number] ?? false; });
      document.getElementById("charts").replaceWith(fresh.getElementById("charts"));
      main.replaceWith(fresh.querySelector("main"));
      take();
      drawAll();
      scrollTo(scrollX, top);
    } catch { main.dataset.live = "away"; } // it may come back
  }
  setTimeout(renew, EVERY_MS);
}
setTimeout(renew, EVERY_MS);
