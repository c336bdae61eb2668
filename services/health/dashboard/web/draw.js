// Drawing without libraries: elements, numbers for people, line charts, the timeline of a request.

const SVG = "http://www.w3.org/2000/svg";

export const PHASES = {
  intake: "--intake", held: "--queue", queue: "--queue", prefill: "--p", transfer: "--transfer",
  first_token: "--first", decode: "--d", retry: "--bad", recovery: "--recovery",
};

/** An element; `text` is never parsed as markup. */
export function make(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "text") node.textContent = value;
    else if (name === "style") Object.assign(node.style, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function draw(tag, attributes = {}, text = "") {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text) node.textContent = text;
  return node;
}

export const colour = (name) => `var(${name})`;

/** Milliseconds as a person says them. */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export function size(bytes) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (bytes < 1024 || unit === "GiB") return `${bytes < 10 && unit !== "B" ? bytes.toFixed(1) : Math.round(bytes)} ${unit}`;
    bytes /= 1024;
  }
  return "";
}

export const count = (value) =>
  value === null || value === undefined ? "–" : value < 10 ? String(Math.round(value * 10) / 10) : Math.round(value).toLocaleString("en");

/** A round number not below `value`: 1, 2 or 5 times a power of ten. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/** `series`: {field, colour, area}. Points without a value break the line. */
export function chart(svg, points, series, from, until) {
  const { width, height } = svg.getBoundingClientRect();
  svg.replaceChildren();
  if (!width) return;
  const left = 34, bottom = 16, top = 6;
  const values = points.flatMap((point) => series.map(({ field }) => point[field] ?? 0));
  const most = ceiling(Math.max(1e-3, ...values) || 1);
  const x = (point) => left + ((point.unix_ms - from) / (until - from)) * (width - left - 2);
  const y = (value) => top + (1 - value / most) * (height - top - bottom);
  for (const share of [0, 0.5, 1]) {
    const at = y(most * share);
    svg.append(draw("line", { class: "grid", x1: left, x2: width, y1: at, y2: at }));
    svg.append(draw("text", { x: left - 6, y: at + 3.5, "text-anchor": "end" }, count(most * share)));
  }
  const minutes = Math.round((until - from) / 60000);
  svg.append(draw("text", { x: left, y: height - 2 }, `${minutes} min ago`));
  svg.append(draw("text", { x: width, y: height - 2, "text-anchor": "end" }, "now"));
  for (const { field, colour: name, area } of series) {
    const known = points.filter((point) => point[field] !== null && point[field] !== undefined);
    if (!known.length) continue;
    const path = known.map((point, i) => `${i ? "L" : "M"}${x(point).toFixed(1)} ${y(point[field]).toFixed(1)}`).join("");
    if (area) {
      const floor = y(0);
      svg.append(draw("path", { class: "area", fill: colour(name), d: `${path}L${x(known.at(-1)).toFixed(1)} ${floor}L${x(known[0]).toFixed(1)} ${floor}Z` }));
    }
    svg.append(draw("path", { class: "line", stroke: colour(name), d: path }));
    const last = known.at(-1);
    svg.append(draw("circle", { cx: x(last), cy: y(last[field]), r: 2.6, fill: colour(name) }));
  }
}

/** The phases of one request, a row each, on one axis of time. */
export function gantt(svg, timeline) {
  const wide = Math.min(920, document.documentElement.clientWidth - 70);
  const left = wide < 500 ? 92 : 150, right = 84, row = 26, top = 4;
  const many = timeline.moves > 0;
  const phases = timeline.phases.filter((phase) => phase.ms > 0 || phase.phase !== "transfer");
  const height = top + phases.length * row + 22;
  svg.setAttribute("viewBox", `0 0 ${wide} ${height}`);
  svg.style.height = `${height}px`;
  svg.replaceChildren();
  const scale = (wide - left - right) / Math.max(timeline.total_ms, 1e-3);
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const at = left + share * timeline.total_ms * scale;
    svg.append(draw("line", { class: "grid", x1: at, x2: at, y1: top, y2: height - 18 }));
    svg.append(draw("text", { x: at, y: height - 4, "text-anchor": "middle" }, span(share * timeline.total_ms)));
  }
  phases.forEach((phase, index) => {
    const y = top + index * row;
    const label = phase.phase.replace("_", " ") + (many ? ` ${phase.attempt}` : "");
    svg.append(draw("text", { class: "name", x: 0, y: y + 16 }, label));
    if (wide >= 500) svg.append(draw("text", { x: 82, y: y + 16 }, phase.worker));
    const start = left + phase.start_ms * scale, length = Math.max(2, phase.ms * scale);
    svg.append(draw("rect", { x: start, y: y + 4, width: length, height: row - 9, rx: 3, fill: colour(PHASES[phase.phase] ?? "--dim") }));
    svg.append(draw("text", { x: start + length + 6, y: y + 16 }, span(phase.ms)));
  });
}

/** A thin strip of the phases, in their colours and shares. */
export function strip(phases, total) {
  const bar = make("div", { class: "strip" });
  for (const phase of phases) {
    const share = total ? (100 * phase.ms) / total : 0;
    if (share < 0.3) continue;
    bar.append(make("div", { title: `${phase.phase}: ${span(phase.ms)}`, style: { width: `${share}%`, background: colour(PHASES[phase.phase] ?? "--dim") } }));
  }
  return bar;
}
