// The dashboard: one state a round comes as a server-sent event, and is drawn.

import { chart, colour, count, draw, gantt, make, size, span, strip } from "./draw.js";

const at = (id) => document.getElementById(id);
const SHOWN_MS = 5 * 60 * 1000;
const LATE_MS = 10_000;
const LISTS = ["recent", "slow", "failed", "refused"];
let state = null;
let list = "recent";
let heard = 0;

function theme(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem("theme", name);
}
const wanted = new URLSearchParams(location.search).get("theme") ?? localStorage.getItem("theme");
theme(wanted ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
at("theme").addEventListener("click", () => {
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
});

function header({ status, health }) {
  const pill = at("verdict");
  pill.className = `pill ${status ? health.verdict : "lost"}`;
  pill.textContent = status ? (status.ready ? health.verdict : "not serving") : "no router";
  at("model").textContent = status?.model ?? "";
  at("meta").textContent = status ? `router ${status.router}, ${status.policy}, up ${span(status.uptime_s * 1000)}` : "";
  const reasons = [...health.reasons, ...(status && !status.ready ? [status.reason] : [])];
  at("reasons").hidden = !reasons.length;
  at("reasons").textContent = reasons.join(" · ");
}

function figure(label, value, unit, alert = false) {
  const number = make("b", { text: value });
  number.append(make("span", { text: unit }));
  return make("div", { class: alert ? "figure alert" : "figure" }, make("i", { text: label }), number);
}

function figures({ status, points, workers = [] }) {
  const last = points.at(-1) ?? {};
  const latest = (field) => points.findLast((point) => point[field] !== null)?.[field];
  const kv = Math.max(0, ...workers.map((worker) => worker.kv_used ?? 0));
  const refused = last.refused ?? 0;
  at("figures").replaceChildren(
    figure("goodput", count(last.goodput), "requests/s"),
    figure("first token, p50", ...split(span(latest("ttft_p50")))),
    figure("first token, p99", ...split(span(latest("ttft_p99")))),
    figure("per token, p50", ...split(span(latest("tpot_p50")))),
    figure("running", count(status?.active), `of ${status?.active_max ?? "–"}`),
    figure("queued", count(status?.queued), `of ${status?.queued_max ?? "–"}`),
    figure("refused", count(refused), "requests/s", refused > 0),
    figure("KV pressure", `${Math.round(kv * 100)}`, "% at most", kv > 0.85),
  );
}

/** A row for each model, where there are several. */
function models({ status }) {
  const rows = status?.models ?? [];
  at("by-model").hidden = rows.length < 2;
  at("models").tBodies[0].replaceChildren(...rows.map((row) => make("tr", { "data-model": row.model }, ...[
    row.model, row.ready ? row.closed || "ready" : `not serving: ${row.reason}`, count(row.prefill_ready), count(row.decode_ready),
    `${row.active} / ${row.active_max}`, count(row.queued), row.drained_per_s === null ? "–" : count(row.drained_per_s), `${Math.round(row.kv_used * 100)} %`,
  ].map((text) => make("td", { text })))));
}

/** A row for each tier of each store, where there is one. */
function stores({ stores: rows = [] }) {
  at("by-store").hidden = !rows.length;
  at("stores").tBodies[0].replaceChildren(...rows.map((row) => {
    const held = `${size(row.bytes)} of ${size(row.bytes_max)}`, ttl = `kept for ${span(row.ttl_s * 1000)} after the last use`;
    const texts = [`${row.worker} (${row.role})`, row.tier, row.state, held, ...["pinned", "hits", "written", "skipped", "evicted", "expired", "damaged"].map((field) => count(row[field]))];
    return make("tr", { "data-store": `${row.worker}-${row.tier}`, title: ttl }, ...texts.map((text, i) => make("td", { text, ...(text === "failed" || (i === 10 && row.damaged) ? { class: "failed" } : {}) })));
  }));
}

const split = (text) => { const [value, unit = ""] = text.split(" "); return [value, unit]; };

function gauge(label, share, text) {
  const bar = make("div", {}, make("div", { style: { width: `${Math.min(100, share * 100)}%`, height: "6px" } }));
  const hot = share > 0.85 ? "gauge hot" : "gauge";
  return make("div", { class: hot }, make("span", { text: label }), bar, make("span", { text }));
}

function worker(row) {
  const bad = ["gone", "ejected", "suspect", "down"].includes(row.state);
  const kind = bad ? "bad" : row.state === "ready" ? "" : "off";
  const head = make("header", {}, make("strong", { text: row.role === "mixed" ? `${row.name} (mixed)` : row.name }));
  const [condition, why] = row.reason || !row.verdict ? [row.state, row.reason] : [row.verdict, row.verdict_reason];
  head.append(make("span", { class: "state", title: why, text: why ? `${condition}: ${why}` : condition }));
  const card = make("li", { class: `worker ${row.role} ${kind}`, "data-worker": row.name, title: row.model }, head);
  if (state?.status?.models?.length > 1) head.append(make("span", { class: "state", text: row.model }));
  if (row.state === "gone") return card;
  card.append(gauge("requests", row.requests / Math.max(1, row.requests_max), `${row.requests} / ${row.requests_max}`));
  if (row.role !== "decode") card.append(gauge("prompt", row.queued_tokens / 8192, `${count(row.queued_tokens)} tok`));
  card.append(gauge("KV", row.kv_used, `${Math.round(row.kv_used * 100)} %`));
  if (row.accepted >= 0) card.append(gauge("drafts", row.accepted, `${row.tokens_per_output.toFixed(1)} tok a step`));
  return card;
}

let moved = new Map();

function fleet({ workers = [], pairs = [] }) {
  for (const [role, id] of [["prefill", "prefills"], ["decode", "decodes"]]) {
    const rows = workers.filter((row) => (row.role === "mixed" ? "decode" : row.role) === role).map(worker);
    at(id).replaceChildren(...(rows.length ? rows : [make("li", { class: "empty", text: "none" })]));
  }
  wires(pairs);
}

/** A wire for each pair, wider the more it moved since the last round. */
function wires(pairs) {
  const svg = at("wires"), box = svg.getBoundingClientRect(), now = new Map();
  svg.replaceChildren();
  for (const pair of pairs) {
    const ends = [pair.prefill, pair.decode].map((name) => document.querySelector(`[data-worker="${CSS.escape(name)}"]`));
    if (!ends[0] || !ends[1] || !box.width) continue;
    const [y1, y2] = ends.map((node) => { const r = node.getBoundingClientRect(); return r.top + r.height / 2 - box.top; });
    const name = `${pair.prefill}>${pair.decode}`;
    now.set(name, pair.bytes);
    const fresh = pair.bytes - (moved.get(name) ?? pair.bytes);
    const kind = pair.state !== "closed" ? "open" : fresh > 0 ? "live" : "";
    const thick = 1.3 + (fresh > 0 ? Math.min(5, Math.log2(1 + fresh / 65536)) : 0);
    const half = box.width / 2;
    svg.append(draw("path", { class: kind, "stroke-width": thick, d: `M2 ${y1}C${half} ${y1} ${half} ${y2} ${box.width - 2} ${y2}` }));
  }
  moved = now;
}

function charts({ points, unix_ms: now }) {
  const first = points[0]?.unix_ms ?? now;
  const from = Math.min(now - 60_000, Math.max(first, now - SHOWN_MS));
  const shown = points.filter((point) => point.unix_ms >= from);
  const both = (what) => [{ field: `${what}_p99`, colour: "--dim" }, { field: `${what}_p50`, colour: what === "ttft" ? "--p" : "--d", area: true }];
  chart(at("c-ttft"), shown, both("ttft"), from, now);
  chart(at("c-tpot"), shown, both("tpot"), from, now);
  chart(at("c-rate"), shown, [{ field: "goodput", colour: "--good", area: true }, { field: "refused", colour: "--warn" }, { field: "failed", colour: "--bad" }], from, now);
  chart(at("c-load"), shown, [{ field: "active", colour: "--note", area: true }, { field: "queued", colour: "--warn" }], from, now);
  chart(at("c-roles"), shown, [{ field: "prefill", colour: "--p" }, { field: "decode", colour: "--d" }], from, now);
}

function lists() {
  at("lists").replaceChildren(...LISTS.map((name) => make("button", {
    type: "button", "aria-pressed": String(name === list), text: name === "slow" ? "slowest 1 %" : name,
    onclick: () => { list = name; lists(); requests(state); },
  })));
}

function requests({ requests: kept = {} }) {
  const rows = kept[list] ?? [];
  at("no-requests").hidden = rows.length > 0;
  at("requests").hidden = !rows.length;
  at("requests").tBodies[0].replaceChildren(...rows.map(request));
}

function request(row) {
  const open = () => story(row.request_id);
  const most = row.outcome === "ended" || row.outcome === "closed"
    ? `${row.longest_phase.replace("_", " ")}${row.longest_worker ? ` on ${row.longest_worker}` : ""}: ${span(row.longest_ms)}`
    : row.sentence;
  const cell = make("td", {}, strip(row.phases ?? [], row.total_ms), make("small", { text: most }));
  const texts = [
    row.request_id, row.code || row.outcome, span(row.ago_ms), span(row.total_ms),
    row.ttft_ms ? span(row.ttft_ms) : "–", row.tpot_ms ? span(row.tpot_ms) : "–",
    `${row.prompt_tokens} / ${row.completion_tokens}`,
  ];
  const cells = texts.map((text, i) => make("td", { text, ...(i === 1 ? { class: row.outcome } : {}) }));
  return make("tr", { tabindex: "0", onclick: open, onkeydown: (event) => event.key === "Enter" && open() }, ...cells, cell);
}

async function story(id) {
  const answer = await fetch(`/api/explain/${encodeURIComponent(id)}`);
  const told = await answer.json();
  at("story-title").textContent = id;
  const { timeline } = told;
  at("gantt").replaceChildren();
  at("gantt").style.height = "0";
  at("story-attempts").replaceChildren(...(told.attempts ?? []).map(attempt));
  if (told.error) at("story-why").textContent = told.error;
  else if (!timeline?.phases) at("story-why").textContent = "It still runs.";
  else {
    const worst = timeline.phases.reduce((a, b) => (b.ms > a.ms ? b : a));
    const share = Math.round((100 * worst.ms) / Math.max(timeline.total_ms, 1e-3));
    const where = worst.worker ? ` on ${worst.worker}` : "";
    at("story-why").textContent = `${timeline.outcome}${timeline.code ? ` (${timeline.code})` : ""} after ${span(timeline.total_ms)}; most of it, ${share} %, was ${worst.phase.replace("_", " ")}${where}.`;
  }
  if (!at("story").open) at("story").showModal();
  if (timeline?.phases) gantt(at("gantt"), timeline);
}

function attempt(each) {
  const box = make("div", {}, make("h3", { text: `Attempt ${each.attempt}: ${each.state}${each.outcome ? ` (${each.outcome})` : ""}` }));
  box.append(make("ul", {}, ...each.sentences.map((text) => make("li", { text }))));
  if (each.candidates.length) {
    const rows = each.candidates.map((c) => make("tr", {}, make("td", { text: c.role }), make("td", { text: c.name }), make("td", { text: c.score.map((part) => Number(part.toPrecision(4))).join("  ") })));
    const head = make("tr", {}, ...["candidate", "", "score, lower is better"].map((text) => make("th", { text })));
    box.append(make("table", {}, head, ...rows));
  }
  return box;
}

function pairs({ pairs: rows = [] }) {
  const from = [...new Set(rows.map((row) => row.prefill))], to = [...new Set(rows.map((row) => row.decode))];
  at("no-pairs").hidden = rows.length > 0;
  const most = Math.max(1, ...rows.map((row) => row.bytes));
  const head = make("tr", {}, make("th"), ...to.map((text) => make("th", { text })));
  const body = from.map((prefill) => make("tr", {}, make("th", { text: prefill }), ...to.map((decode) => {
    const row = rows.find((each) => each.prefill === prefill && each.decode === decode);
    if (!row) return make("td", { text: "–" });
    const trouble = [[row.retries, "retries"], [row.digest_mismatches, "damaged"], [row.failures, "failed"]].filter(([n]) => n).map(([n, what]) => `${n} ${what}`).join(", ");
    const cell = make("td", {
      class: row.state === "closed" ? "" : "open", title: `${row.handoffs} handoffs${trouble ? `, ${trouble}` : ""}; link ${size(row.bytes_per_s)}/s`,
      style: { background: `color-mix(in srgb, var(--transfer) ${Math.round(5 + (38 * row.bytes) / most)}%, transparent)` },
      text: size(row.bytes),
    });
    cell.append(make("small", { text: trouble || (row.state === "closed" ? `${row.handoffs} handoffs` : row.state), style: trouble ? { color: colour("--bad") } : {} }));
    return cell;
  })));
  at("pairs").replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
}

function queue({ queue: rows = [] }) {
  at("no-queue").hidden = rows.length > 0;
  at("queue").replaceChildren(...rows.map((row) => make("li", {},
    make("span", { text: row.request_id }), make("span", { class: "dim", text: `${row.class}, ${row.prompt_tokens} tokens` }),
    make("span", { text: span(row.waited_ms) }), make("span", { class: "dim", text: row.waits_for }))));
}

function events({ events: rows }) {
  at("no-events").hidden = rows.length > 0;
  at("events").replaceChildren(...[...rows].reverse().map((row) => make("li", {},
    make("time", { text: new Date(row.unix_ms).toLocaleTimeString("en-GB") }), make("code", { text: row.event }),
    make("span", { class: row.level, text: row.sentence }))));
}

function render(next) {
  state = next;
  heard = Date.now();
  for (const part of [header, figures, models, fleet, charts, requests, pairs, stores, queue, events]) part(next);
  document.body.dataset.rounds = String(Number(document.body.dataset.rounds ?? 0) + 1);
}

function silence() {
  if (!heard || Date.now() - heard < LATE_MS) return;
  at("verdict").className = "pill lost";
  at("verdict").textContent = `no news for ${span(Date.now() - heard)}`;
}

lists();
new EventSource("/api/stream").onmessage = (event) => render(JSON.parse(event.data));
setInterval(silence, 1000);
addEventListener("resize", () => state && (charts(state), wires(state.pairs ?? [])));
const asked = new URLSearchParams(location.search).get("request");
if (asked) story(asked);
