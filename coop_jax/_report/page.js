"use strict";
// Draws a plan from the JSON in #data. Both charts share the range of steps that is
// shown, `view`; zooming and moving change it and draw again.
const data = JSON.parse(document.getElementById("data").textContent);
const WIDTH = 1200, LEFT = 64, RIGHT = 8, TOP = 8, BOTTOM = 22;
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function element(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0, scaled = size;
  while (Math.abs(scaled) >= 1024 && unit < 4) { scaled /= 1024; unit += 1; }
  return unit ? `${scaled.toFixed(1)} ${units[unit]}` : `${size} B`;
}

// Bytes alive per step and category; the fixed categories first.
function stacksOf(program) {
  const rows = data.fixed.map(([, size]) => new Array(program.steps.length).fill(size));
  for (const category of data.pool) {
    const row = new Array(program.steps.length + 2).fill(0);
    for (const box of program.boxes) {
      if (box.category !== category) continue;
      row[box.start] += box.size;
      row[Math.min(box.end, program.steps.length)] -= box.size;
    }
    for (let i = 1; i < row.length; i++) row[i] += row[i - 1];
    rows.push(row.slice(0, program.steps.length));
  }
  return rows;
}

const categories = [...data.fixed.map(([name]) => name), ...data.pool];
for (const program of [data.after, data.before]) {
  program.boxes = program.boxes.map((row) =>
    Object.fromEntries(data.columns.map((name, i) => [name, row[i]])));
  program.stacks = stacksOf(program);
  program.total = program.steps.map((_, i) =>
    program.stacks.reduce((sum, row) => sum + row[i], 0));
}
data.after.edges = Array.from({length: data.after.steps.length + 1}, (_, i) => i);
const length = Math.max(1, data.after.steps.length);
let view = [0, length], shown = data.after;

const x = (step) => LEFT + (step - view[0]) / (view[1] - view[0]) * (WIDTH - LEFT - RIGHT);
const stepAt = (pixel) => view[0] + (pixel - LEFT) / (WIDTH - LEFT - RIGHT) * (view[1] - view[0]);

function scale(svg, height, most) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  svg.replaceChildren();
  const y = (size) => height - BOTTOM - size / most * (height - TOP - BOTTOM);
  const unit = 2 ** Math.max(0, Math.floor(Math.log2(most / 5)));
  for (let size = 0; size <= most; size += unit) {
    element("line", {class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(size), y2: y(size)}, svg);
    element("text", {x: LEFT - 6, y: y(size) + 4, "text-anchor": "end"}, svg, bytes(size));
  }
  const clip = element("clipPath", {id: `${svg.id}-clip`}, svg);
  element("rect", {x: LEFT, y: 0, width: WIDTH - LEFT - RIGHT, height}, clip);
  for (let i = 0; i <= 8; i++) {
    const step = view[0] + i / 8 * (view[1] - view[0]);
    element("text", {x: x(step), y: height - 6, "text-anchor": i < 8 ? "middle" : "end"}, svg, Math.round(step));
  }
  const inside = element("g", {"clip-path": `url(#${svg.id}-clip)`}, svg);
  return {y, inside};
}

function stairs(edges, values, y) {
  return values.map((size, i) => `L${x(edges[i])},${y(size)}L${x(edges[i + 1])},${y(size)}`).join("");
}

function drawLive() {
  const svg = byId("live"), {after, before} = data;
  const most = 1.05 * Math.max(data.budget || 0, data.measured, ...after.total,
    data.isPlanned ? data.unplanned : 0, 1);
  const {y, inside} = scale(svg, 380, most);
  let below = new Array(after.steps.length).fill(0);
  categories.forEach((name, row) => {
    const top = below.map((size, i) => size + after.stacks[row][i]);
    const back = below.map((size, i) => `L${x(i + 1)},${y(size)}L${x(i)},${y(size)}`).reverse().join("");
    if (top.some((size, i) => size > below[i])) {
      const path = `M${x(0)},${y(below[0])}` + stairs(after.edges, top, y) + back + "Z";
      element("path", {d: path, fill: data.colors[name]}, inside);
    }
    below = top;
  });
  if (data.isPlanned) {
    const path = "M" + stairs(before.edges, before.total, y).slice(1);
    element("path", {class: "mark", d: path, stroke: "#555", "stroke-width": 1.4}, inside);
    level(inside, y, data.unplanned, "#555", "2 3");
  }
  level(inside, y, data.measured, "#000", "2 3");
  if (data.budget) level(inside, y, data.budget, "#000", "7 4");
  after.again.forEach((isAgain, step) => {
    if (isAgain) element("line", {class: "mark", x1: x(step + 0.5), x2: x(step + 0.5),
      y1: y(0), y2: y(0) - 8, stroke: data.colors.recomputed, "stroke-width": 1.5}, inside);
  });
  cross(svg, 380);
}

function level(parent, y, size, color, dashes) {
  element("line", {class: "mark", x1: LEFT, x2: WIDTH, y1: y(size), y2: y(size), stroke: color,
    "stroke-dasharray": dashes, "stroke-width": 1.3}, parent);
}

function cross(svg, height) {
  element("line", {class: "cross", y1: TOP, y2: height - BOTTOM, visibility: "hidden"}, svg);
}

function drawMap() {
  const {y, inside} = scale(byId("map"), 420, 1.02 * Math.max(1, shown.block));
  const edges = shown.edges;
  shown.boxes.forEach((box, i) => {
    const start = x(edges[box.start]), end = x(edges[Math.min(box.end, edges.length - 1)]);
    if (end < LEFT || start > WIDTH) return;
    element("rect", {class: "box", "data-box": i, x: start, width: Math.max(0.6, end - start),
      y: y(box.offset + box.size), height: Math.max(0.4, y(box.offset) - y(box.offset + box.size)),
      fill: data.colors[box.category]}, inside);
  });
  level(inside, y, shown.block, "#000", "none");
  cross(byId("map"), 420);
}

function draw() { drawLive(); drawMap(); }

// What a person reads when pointing

function tipFor(box) {
  const lines = [box.name + (box.type ? `  ${box.type}` : ""),
    `${bytes(box.size)} (${box.size.toLocaleString("en-US")} bytes) at offset ${bytes(box.offset)}`];
  if (box.source) lines.push(box.source);
  const kinds = box.category === box.kind ? box.kind : `${box.category}, ${box.kind}`;
  lines.push(`${kinds}; steps ${box.start} to ${box.end - 1}`);
  return lines.join("\n");
}

function tipAt(step) {
  const {after} = data;
  const lines = [`step ${step}: ${after.steps[step]}`, `${bytes(after.total[step])} alive`];
  categories.forEach((name, row) => {
    if (after.stacks[row][step]) lines.push(`  ${bytes(after.stacks[row][step]).padStart(10)}  ${name}`);
  });
  const alive = after.boxes.filter((box) => box.start <= step && step < box.end);
  alive.sort((a, b) => b.size - a.size);
  if (alive.length) lines.push("largest:");
  for (const box of alive.slice(0, 5))
    lines.push(`  ${bytes(box.size).padStart(10)}  ${box.name}  ${box.source}`);
  return lines.join("\n");
}

function showTip(event, text) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const right = event.clientX + 16 + tip.offsetWidth > window.innerWidth;
  tip.style.left = `${Math.max(4, right ? event.clientX - tip.offsetWidth - 12 : event.clientX + 16)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 4))}px`;
}

function hideTip() {
  byId("tip").hidden = true;
  document.querySelectorAll(".cross").forEach((line) => line.setAttribute("visibility", "hidden"));
  document.querySelectorAll(".hot").forEach((box) => box.classList.remove("hot"));
}

function moveCross(pixel) {
  document.querySelectorAll(".cross").forEach((line) => {
    line.setAttribute("x1", pixel);
    line.setAttribute("x2", pixel);
    line.setAttribute("visibility", "visible");
  });
}

const pixelOf = (svg, event) => {
  const frame = svg.getBoundingClientRect();
  return (event.clientX - frame.left) / frame.width * WIDTH;
};

let drag = null;
for (const svg of [byId("live"), byId("map")]) {
  svg.addEventListener("mousemove", (event) => {
    const pixel = pixelOf(svg, event);
    if (drag) {
      const moved = (drag.pixel - pixel) / (WIDTH - LEFT - RIGHT) * (drag.view[1] - drag.view[0]);
      setView(drag.view[0] + moved, drag.view[1] + moved);
      return;
    }
    hideTip();
    const step = Math.floor(stepAt(pixel));
    if (pixel < LEFT || step < 0 || step >= data.after.steps.length) return;
    moveCross(pixel);
    const hit = event.target.dataset ? event.target.dataset.box : undefined;
    if (svg.id === "live") showTip(event, tipAt(step));
    else if (hit !== undefined) {
      event.target.classList.add("hot");
      showTip(event, tipFor(shown.boxes[Number(hit)]));
    }
  });
  svg.addEventListener("mouseleave", hideTip);
  svg.addEventListener("mousedown", (event) => {
    event.preventDefault();
    drag = {pixel: pixelOf(svg, event), view: [...view]};
  });
  svg.addEventListener("dblclick", () => setView(0, length));
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const around = stepAt(pixelOf(svg, event)), factor = event.deltaY < 0 ? 0.8 : 1.25;
    setView(around - (around - view[0]) * factor, around + (view[1] - around) * factor);
  }, {passive: false});
}
window.addEventListener("mouseup", () => { drag = null; });

function setView(start, end) {
  const width = Math.min(length, Math.max(4, end - start));
  start = Math.min(Math.max(0, start), length - width);
  if (length <= 4) start = 0;
  view = length <= 4 ? [0, length] : [start, start + width];
  draw();
}

function choose(program, on, off) {
  shown = program;
  byId(on).classList.add("on");
  byId(off).classList.remove("on");
  drawMap();
}
byId("show-after").addEventListener("click", () => choose(data.after, "show-after", "show-before"));
byId("show-before").addEventListener("click", () => choose(data.before, "show-before", "show-after"));

// Text around the charts

byId("summary").textContent = data.summary;
byId("table").textContent = data.table;
document.title = data.title;
function legend(label, color, dashes) {
  const entry = document.createElement("span"), swatch = document.createElement("i");
  if (dashes) { swatch.className = "line"; swatch.style.borderTopStyle = dashes; swatch.style.borderTopColor = color; }
  else swatch.style.background = color;
  entry.append(swatch, label);
  byId("legend").append(entry);
}
categories.forEach((name, row) => {
  if (data.after.stacks[row].some((size) => size)) legend(name, data.colors[name]);
});
if (data.isPlanned) { legend("as written, modelled", "#555", "solid"); legend("as written, measured", "#555", "dotted"); }
if (data.budget) legend("budget", "#000", "dashed");
legend("planned, measured", "#000", "dotted");
for (const row of [["bytes", "operation", "type", "category", "source"], ...data.peak]) {
  const line = document.createElement("tr");
  row.forEach((text, i) => {
    const cell = document.createElement(row[0] === "bytes" ? "th" : "td");
    cell.textContent = i === 0 && row[0] !== "bytes" ? bytes(text) : text;
    if (i === 0) cell.className = "bytes";
    line.append(cell);
  });
  byId("peak").append(line);
}
draw();
