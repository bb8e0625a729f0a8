"use strict";
// What sitsd says at /page.json, drawn. Names come from processes: they are only ever text nodes.

const POLL_MS = 2000;
const HEAT_PX = 112;
const LANE_PX = 15;
const KNOB_PX = 30;
const TABLE_STEP_S = 30;
const RUNS_SHOWN = 60;
const SHORTEST_S = 60;
const CAUSE_COLOURS = {
  neighbour_cpu: "#d1495b", own_quota: "#a05195", memory: "#7a5fc0", engine_stopped: "#c2410c",
  network: "#2b7bba", slow_reader: "#2a9d8f", batch: "#c98a04", queue: "#8f7a1b",
  application: "#6b7f3a", unknown: "#75808f", none: "#3a9a62",
};

const byId = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text, never markup. */
function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// ---- figures as people read them; "–" is not known

function figure(value) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && Math.abs(value) < 10) return String(Number(value.toPrecision(2)));
  return Math.round(value).toLocaleString("en");
}
function ms(value) {
  if (value === null || value === undefined) return "–";
  return value < 1000 ? `${Number(value.toPrecision(value < 100 ? 2 : 3))} ms` : `${Number((value / 1000).toPrecision(3))} s`;
}
function percent(share) {
  if (share === null || share === undefined) return "–";
  return `${Number((share * 100).toFixed(share > 0.1 ? 1 : 2))}%`;
}
function clock(seconds, withSeconds = true) {
  const options = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (withSeconds) options.second = "2-digit";
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", options);
}
function counted(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}
function duration(seconds) {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1) return `${Math.floor(seconds)} s`;
  if (minutes < 60) return `${minutes} min`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1440)} days`;
}
function injectedText({ what, value, left_s, reason }) {
  return `${what} ${figure(value)}, ${duration(Math.ceil(left_s))} more${reason ? `: ${reason}` : ""}`;
}
function changeText(change) {
  const shown = (value) => (value === null ? "none" : typeof value === "number" ? figure(value) : String(value));
  const whose = change.kind === "knob" ? "" : `${change.target} `;
  return `${whose}${change.knob} ${shown(change.from)} → ${shown(change.to)}`;
}

// ---- histograms: pairs of bucket and count

function added(columns, which) {
  const totals = new Map();
  for (const column of columns) {
    for (const [bucket, count] of column[which]) totals.set(bucket, (totals.get(bucket) || 0) + count);
  }
  return totals;
}
function edges(bounds, bucket) {
  const above = bounds[bounds.length - 1] * Math.SQRT2;
  return [bucket > 0 ? bounds[bucket - 1] : bounds[0] / Math.SQRT2, bucket < bounds.length ? bounds[bucket] : above];
}
function middle(bounds, bucket) {
  const [low, high] = edges(bounds, bucket);
  return Math.sqrt(low * high);
}
function quantile(columns, which, bounds, q) {
  const totals = [...added(columns, which)].sort((a, b) => a[0] - b[0]);
  const rank = q * totals.reduce((sum, [, count]) => sum + count, 0);
  let seen = 0;
  for (const [bucket, count] of totals) {
    seen += count;
    if (seen >= rank) return middle(bounds, bucket);
  }
  return null;
}

/** The knobs that had more than one value, and the others with theirs. */
function movement(columns) {
  const values = new Map();
  for (const column of columns) {
    for (const [name, value] of Object.entries(column.knobs)) {
      if (!values.has(name)) values.set(name, new Set());
      values.get(name).add(value);
    }
  }
  const names = [...values.keys()].sort();
  return {
    moving: names.filter((name) => values.get(name).size > 1),
    steady: names.filter((name) => values.get(name).size === 1).map((name) => `${name} ${figure([...values.get(name)][0])}`),
  };
}

// ---- drawing

function palette() {
  const style = getComputedStyle(document.documentElement);
  const names = ["text", "muted", "line", "surface", "shade", "accent", "calm-low", "calm-high", "late-low", "late-high"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}
function mix(low, high, share) {
  const [from, to] = [rgb(low), rgb(high)];
  return `rgb(${from.map((value, at) => Math.round(value + (to[at] - value) * share)).join(" ")})`;
}
function gutter(width) {
  return width < 520 ? 88 : 140;
}
/** A canvas made ready for sharp drawing at this height; null while it has no width. */
function surface(canvas, height) {
  const width = canvas.clientWidth;
  if (!width) return null;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = '11px system-ui, "DejaVu Sans", sans-serif';
  pen.textBaseline = "middle";
  return { pen, width, height, left: gutter(width), plot: width - gutter(width) };
}
function label(pen, text, right, y, colour, room) {
  let shown = text;
  while (shown.length > 2 && pen.measureText(shown).width > room) shown = `${shown.slice(0, -2)}…`;
  pen.fillStyle = colour;
  pen.textAlign = "right";
  pen.fillText(shown, right, y);
}

/** What is known is shaded; where nothing is known the paper shows. */
function ground(pen, view, left, cell, y, tall, colours) {
  pen.fillStyle = colours.shade;
  view.columns.forEach((column, place) => {
    if (column) pen.fillRect(left + place * cell, y, cell + 0.5, tall);
  });
}

function drawHeat(canvas, view, which, bounds, slo) {
  const area = surface(canvas, HEAT_PX);
  if (!area) return;
  const { pen, left, plot, height } = area;
  const colours = palette();
  const used = [...added(view.columns.filter(Boolean), which).keys()];
  const sloBucket = bounds.findIndex((bound) => bound >= slo);
  const at = sloBucket < 0 ? bounds.length : sloBucket;
  let low = Math.min(at - 3, ...used);
  let high = Math.max(at + 2, ...used);
  low = Math.max(0, low);
  high = Math.min(bounds.length, Math.max(high, low + 7));
  const row = height / (high - low + 1);
  const cell = plot / view.columns.length;
  const most = Math.max(1, ...view.columns.filter(Boolean).flatMap((column) => column[which].map(([, count]) => count)));
  ground(pen, view, left, cell, 0, height, colours);
  view.columns.forEach((column, place) => {
    for (const [bucket, count] of column ? column[which] : []) {
      const kind = middle(bounds, bucket) > slo ? "late" : "calm";
      pen.fillStyle = mix(colours[`${kind}-low`], colours[`${kind}-high`], Math.log1p(count) / Math.log1p(most));
      const y = height - (Math.min(high, Math.max(low, bucket)) - low + 1) * row;
      pen.fillRect(left + place * cell, y, Math.max(1, cell - (cell > 4 ? 1 : 0)), Math.max(1, row - 1));
    }
  });
  const heightOf = (value) => {
    const bottom = Math.log2(edges(bounds, low)[0]);
    const top = Math.log2(edges(bounds, high)[1]);
    return height - ((Math.log2(value) - bottom) / (top - bottom)) * height;
  };
  const sloY = heightOf(slo);
  for (const value of [1, 10, 100, 1000, 10000]) {
    const y = heightOf(value);
    if (y > 7 && y < height - 6 && Math.abs(y - sloY) > 13) label(pen, ms(value), left - 8, y, colours.muted, left - 10);
  }
  pen.strokeStyle = colours.text;
  pen.setLineDash([4, 3]);
  pen.beginPath();
  pen.moveTo(left, sloY);
  pen.lineTo(left + plot, sloY);
  pen.stroke();
  label(pen, `SLO ${ms(slo)}`, left - 8, Math.min(height - 7, Math.max(7, sloY)), colours.text, left - 10);
}

function drawCauses(canvas, view, causes) {
  const area = surface(canvas, Math.max(1, causes.length) * LANE_PX);
  if (!area) return;
  const { pen, left, plot } = area;
  const colours = palette();
  const cell = plot / view.columns.length;
  (causes.length ? causes : ["none"]).forEach((cause, lane) => {
    const y = lane * LANE_PX;
    label(pen, causes.length ? cause : "nothing at risk", left - 8, y + LANE_PX / 2, colours.text, left - 10);
    ground(pen, view, left, cell, y + 1, LANE_PX - 2, colours);
    pen.fillStyle = CAUSE_COLOURS[cause] || CAUSE_COLOURS.unknown;
    view.columns.forEach((column, place) => {
      const share = column && column.risk[cause];
      if (!share) return;
      const tall = Math.max(3, (LANE_PX - 2) * Math.sqrt(Math.min(1, share)));
      pen.fillRect(left + place * cell, y + LANE_PX - 1 - tall, Math.max(1, cell - (cell > 4 ? 1 : 0)), tall);
    });
  });
}

function drawKnobs(canvas, view, knobs, decisions) {
  const area = surface(canvas, LANE_PX + knobs.length * KNOB_PX);
  if (!area) return;
  const { pen, left, plot } = area;
  const colours = palette();
  const cell = plot / view.columns.length;
  label(pen, "decisions", left - 8, LANE_PX / 2, colours.text, left - 10);
  ground(pen, view, left, cell, 1, LANE_PX - 2, colours);
  const many = new Map();
  for (const { place } of decisions) many.set(place, (many.get(place) || 0) + 1);
  const most = Math.max(...many.values());
  pen.fillStyle = colours.accent;
  for (const [place, count] of many) {
    const tall = Math.max(4, ((LANE_PX - 2) * Math.log1p(count)) / Math.log1p(most));
    pen.fillRect(left + place * cell, LANE_PX - 1 - tall, Math.max(2, cell - 1), tall);
  }
  knobs.forEach((name, lane) => {
    const values = view.columns.map((column) => (column && name in column.knobs ? column.knobs[name] : null));
    const known = values.filter((value) => value !== null);
    const top = Math.max(...known);
    const base = Math.min(...known);
    const y0 = LANE_PX + lane * KNOB_PX;
    const yOf = (value) => y0 + KNOB_PX - 6 - (top > base ? (value - base) / (top - base) : 0.5) * (KNOB_PX - 12);
    label(pen, name, left - 8, y0 + 10, colours.text, left - 10);
    label(pen, known.length ? figure(known[known.length - 1]) : "–", left - 8, y0 + 22, colours.muted, left - 10);
    pen.strokeStyle = colours.line;
    pen.beginPath();
    pen.moveTo(left, y0 + KNOB_PX - 0.5);
    pen.lineTo(left + plot, y0 + KNOB_PX - 0.5);
    pen.stroke();
    pen.strokeStyle = colours.text;
    pen.lineWidth = 1.5;
    pen.beginPath();
    let drawing = false;
    values.forEach((value, place) => {
      if (value === null) { drawing = false; return; }
      const y = yOf(value);
      if (drawing) pen.lineTo(left + place * cell, y);
      else pen.moveTo(left + place * cell, y);
      pen.lineTo(left + (place + 1) * cell, y);
      drawing = true;
    });
    pen.stroke();
    pen.lineWidth = 1;
  });
}

function drawAxis(canvas, view) {
  const area = surface(canvas, 20);
  if (!area) return;
  const { pen, left, plot } = area;
  const colours = palette();
  const span = view.end - view.start;
  const every = [60, 120, 300, 600, 900].find((step) => (plot * step) / span >= 44) || 1800;
  pen.textAlign = "center";
  for (let at = Math.ceil(view.start / every) * every; at < view.end; at += every) {
    const x = left + ((at - view.start) / span) * plot;
    pen.fillStyle = colours.line;
    pen.fillRect(Math.round(x), 0, 1, 5);
    pen.fillStyle = colours.muted;
    if (x > left + 16 && x < left + plot - 16) pen.fillText(clock(at, false), x, 13);
  }
}

function drawGpu(canvas, gpu) {
  const area = surface(canvas, Math.max(1, gpu.rows.length) * LANE_PX);
  if (!area) return;
  const { pen, left, plot } = area;
  const colours = palette();
  gpu.rows.forEach((row, lane) => {
    label(pen, row.name, left - 8, (lane + 0.5) * LANE_PX, colours.text, left - 10);
    const cell = plot / Math.max(1, row.sm_percent.length);
    row.sm_percent.forEach((busy, place) => {
      pen.fillStyle = busy === null ? colours.shade : mix(colours["calm-low"], colours["calm-high"], Math.min(1, busy / 100));
      pen.fillRect(left + place * cell, lane * LANE_PX + 1, Math.max(1, cell), LANE_PX - 2);
    });
  });
}

// ---- what was received

/** Columns of every engine, by number; more than the longest range is dropped. */
class Store {
  constructor() { this.columns = new Map(); this.decisions = new Map(); this.newest = -1; }

  take(answer) {
    if (answer.step < this.newest - 2) { this.columns.clear(); this.newest = -1; }
    for (const decision of answer.decisions) this.decisions.set(decision.id, decision);
    for (const [id, { at_s }] of this.decisions) if (at_s < answer.now_s - answer.kept * answer.step_s) this.decisions.delete(id);
    // newest first, as they come
    answer.decisions = [...this.decisions.values()].sort((a, b) => b.id - a.id);
    for (const [name, columns] of Object.entries(answer.columns)) {
      if (!this.columns.has(name)) this.columns.set(name, new Map());
      const mine = this.columns.get(name);
      for (const column of columns) {
        mine.set(column.number, column);
        this.newest = Math.max(this.newest, column.number);
      }
      for (const number of mine.keys()) if (number < answer.step - answer.kept) mine.delete(number);
    }
    for (const name of this.columns.keys()) if (!(name in answer.columns)) this.columns.delete(name);
  }

  /** The last `seconds` of an engine: a place for every column, null where there is none. */
  view(answer, engine, seconds) {
    const places = Math.round(seconds / answer.step_s);
    const first = answer.step - places;
    const mine = this.columns.get(engine) || new Map();
    return {
      first,
      columns: Array.from({ length: places }, (_, place) => mine.get(first + place) || null),
      start: answer.zero_s + first * answer.step_s,
      end: answer.zero_s + answer.step * answer.step_s,
      step: answer.step_s,
    };
  }
}

// ---- an engine's card

class EngineCard {
  constructor(name) {
    this.name = name;
    this.place = null;
    this.cause = el("span", { class: "cause" });
    this.tiles = el("dl", { class: "tiles" });
    this.detail = el("span", { class: "muted" });
    const chart = (title) => {
      const canvas = el("canvas", { role: "img", "aria-label": title });
      const note = el("span");
      return { title, canvas, note, parts: [el("h3", {}, title, note), canvas] };
    };
    this.ttft = chart("Time to first token");
    this.gap = chart("Chunk gap");
    this.causes = chart("At risk, by cause");
    this.knobs = chart("Knobs and decisions");
    this.axisCanvas = el("canvas", { "aria-hidden": "true" });
    this.axis = el("div", { class: "axis", role: "slider", tabindex: "0", "aria-label": `${name}: moment shown`, "aria-valuemin": "0" }, this.axisCanvas);
    this.cross = el("div", { class: "cross", hidden: "" });
    this.charts = el("div", { class: "charts" }, ...this.ttft.parts, ...this.gap.parts, ...this.causes.parts, ...this.knobs.parts, this.axis, this.cross);
    this.readout = el("p", { class: "readout" });
    this.blame = el("div", { class: "blame" });
    this.tableBody = el("tbody");
    this.details = el("details", {}, el("summary", {}, "As a table"), this.table());
    const title = `engine-${EngineCard.count++}`;
    this.root = el("section", { class: "card engine", "aria-labelledby": title },
      el("div", { class: "head" }, el("h2", { id: title }, name), this.cause, this.detail),
      this.tiles, this.charts, this.readout,
      el("div", { class: "legend" },
        el("span", {}, el("i", { class: "calm" }), "within the SLO, few to many"),
        el("span", {}, el("i", { class: "late" }), "over it")),
      this.blame, this.details);
    this.charts.addEventListener("pointermove", (event) => this.point(event));
    this.charts.addEventListener("pointerleave", () => { if (document.activeElement !== this.axis) this.choose(null); });
    this.axis.addEventListener("keydown", (event) => this.key(event));
    this.details.addEventListener("toggle", () => this.fillTable());
    new ResizeObserver(() => this.draw()).observe(this.charts);
  }

  table() {
    const heads = ["From", "TTFT P50", "P99", "Gap P50", "P99", "Good", "At risk", "Decisions"];
    return el("div", { class: "scroll", role: "region", "aria-label": `${this.name}: figures by half minute`, tabindex: "0" },
      el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))), this.tableBody));
  }

  update(engine, answer, view) {
    Object.assign(this, { engine, answer, view });
    this.decisions = answer.decisions
      .filter((each) => each.engine === this.name && each.at_s >= view.start && each.at_s < view.end)
      .map((each) => ({ ...each, place: Math.floor((each.at_s - view.start) / view.step) }));
    const dot = el("span", { class: "dot" });
    dot.style.background = CAUSE_COLOURS[engine.cause] || CAUSE_COLOURS.unknown;
    const said = engine.cause === "none" ? "nothing at risk" : `${engine.cause}: ${engine.cause_meaning}`;
    this.cause.replaceChildren(dot, el("span", {}, engine.found ? said : "not found"));
    this.detail.textContent = engine.detail;
    this.fillTiles();
    this.fillBlame();
    this.draw();
    if (this.details.open) this.fillTable();
  }

  fillTiles() {
    const { engine } = this;
    const tile = (name, value, notes, bad = false) => el("div", {},
      el("dt", {}, name),
      el("dd", { class: bad ? "bad" : null }, value, ...[notes].flat().map((note) => el("small", {}, note))));
    const late = (which) => engine[which].p99 !== null && engine[which].p99 > engine.slo[which];
    const against = (which) => [`${late(which) ? "over the " : ""}SLO ${ms(engine.slo[which])}`, `P50 ${ms(engine[which].p50)}`];
    const short = engine.attainment !== null && engine.attainment < engine.slo.attainment;
    this.tiles.replaceChildren(
      tile("Good streams", percent(engine.attainment), `promised ${percent(engine.slo.attainment)}${short ? ", short" : ""}`, short),
      tile("TTFT P99", ms(engine.ttft_ms.p99), against("ttft_ms"), late("ttft_ms")),
      tile("Gap P99", ms(engine.gap_ms.p99), against("gap_ms"), late("gap_ms")),
      tile("Running", figure(engine.running), `${figure(engine.waiting)} waiting`),
      tile("Requests/s", figure(engine.requests_per_s), `${figure(engine.chunks_per_s)} chunks/s`),
      tile("KV cache", percent(engine.kv_use), engine.cpu_weight ? `CPU weight ${figure(engine.cpu_weight.value)}` : ""),
    );
  }

  fillBlame() {
    const found = this.engine.blame.filter((each) => each.wait_ms >= 1).slice(0, 5);
    if (!found.length) { this.blame.replaceChildren(); return; }
    const rows = found.map((each) => el("tr", {},
      el("th", { scope: "row", class: "mono" }, each.command),
      el("td", { class: "mono" }, each.cgroup),
      el("td", { class: "number" }, ms(each.wait_ms))));
    this.blame.replaceChildren(el("table", {},
      el("caption", {}, "Had the CPU while it waited, last 30 s"),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Command"), el("th", { scope: "col" }, "Control group"), el("th", { scope: "col", class: "number" }, "Waited"))),
      el("tbody", {}, ...rows)));
  }

  draw() {
    if (!this.view) return;
    const { view, engine, answer } = this;
    const seen = view.columns.filter(Boolean);
    const causes = [...new Set(seen.flatMap((column) => Object.keys(column.risk)))].sort();
    const { moving, steady } = movement(seen);
    const span = duration(view.end - view.start);
    for (const [chart, which, slo] of [[this.ttft, "ttft", engine.slo.ttft_ms], [this.gap, "gap", engine.slo.gap_ms]]) {
      const bounds = answer.bounds_ms[which];
      drawHeat(chart.canvas, view, which, bounds, slo);
      const said = `P50 ${ms(quantile(seen, which, bounds, 0.5))}, P99 ${ms(quantile(seen, which, bounds, 0.99))}`;
      chart.note.textContent = `${said} over ${span}`;
      chart.canvas.setAttribute("aria-label", `${chart.title} of ${this.name}, last ${span}: ${said}, SLO ${ms(slo)}`);
    }
    drawCauses(this.causes.canvas, view, causes);
    const shares = causes.map((cause) => `${cause} ${percent(seen.reduce((sum, column) => sum + (column.risk[cause] || 0), 0) / Math.max(1, seen.length))}`);
    this.causes.note.textContent = shares.join(", ");
    this.causes.canvas.setAttribute("aria-label", `Time at risk of ${this.name}, last ${span}: ${shares.join(", ") || "none"}`);
    drawKnobs(this.knobs.canvas, view, moving, this.decisions);
    const unmoved = steady.length ? `, not moved: ${steady.join(", ")}` : "";
    this.knobs.note.textContent = `${counted(this.decisions.length, "decision")}${unmoved}`;
    this.knobs.canvas.setAttribute("aria-label", `Knobs of ${this.name} that moved: ${moving.map((name) => `${name} ${figure((seen[seen.length - 1] || { knobs: {} }).knobs[name])}`).join(", ") || "none"}; ${counted(this.decisions.length, "decision")} in ${span}`);
    drawAxis(this.axisCanvas, view);
    this.axis.setAttribute("aria-valuemax", String(view.columns.length - 1));
    this.choose(this.place);
  }

  /** Show one column under the charts, or the newest where none is chosen. */
  choose(place) {
    this.place = place;
    const newest = this.view.columns.findLastIndex(Boolean);
    const shown = place ?? (newest < 0 ? this.view.columns.length - 1 : newest);
    const width = this.charts.clientWidth;
    const cell = (width - gutter(width)) / this.view.columns.length;
    this.cross.hidden = place === null;
    this.cross.style.left = `${gutter(width) + (shown + 0.5) * cell}px`;
    const text = this.moment(shown);
    this.readout.replaceChildren(el("strong", {}, clock(this.view.start + shown * this.view.step)), ` ${text}`);
    this.axis.setAttribute("aria-valuenow", String(shown));
    this.axis.setAttribute("aria-valuetext", `${clock(this.view.start + shown * this.view.step)} ${text}`);
  }

  moment(place) {
    const column = this.view.columns[place];
    if (!column) return "nothing known";
    const { ttft, gap } = this.answer.bounds_ms;
    const parts = [
      `TTFT P99 ${ms(quantile([column], "ttft", ttft, 0.99))}`,
      `gap P99 ${ms(quantile([column], "gap", gap, 0.99))}`,
      `${column.good} of ${column.ended} good`,
      ...Object.entries(column.risk).map(([cause, share]) => `${cause} ${percent(share)}`),
      ...movement(this.view.columns.filter(Boolean)).moving.filter((name) => name in column.knobs).map((name) => `${name} ${figure(column.knobs[name])}`),
    ];
    const decided = this.decisions.filter((each) => each.place === place);
    if (decided.length) parts.push(`${counted(decided.length, "decision")}, the last ${decided[0].action.map(changeText).join(", ") || "nothing"}`);
    return parts.join(" · ");
  }

  point(event) {
    if (!this.view) return;
    const box = this.charts.getBoundingClientRect();
    const left = gutter(box.width);
    const place = Math.floor(((event.clientX - box.left - left) / (box.width - left)) * this.view.columns.length);
    this.choose(place >= 0 && place < this.view.columns.length ? place : null);
  }

  key(event) {
    if (!this.view) return;
    const last = this.view.columns.length - 1;
    const now = this.place ?? last;
    const places = {
      ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1,
      PageDown: now - 12, PageUp: now + 12, Home: 0, End: last,
    };
    if (event.key === "Escape") this.choose(null);
    else if (event.key in places) this.choose(Math.min(last, Math.max(0, places[event.key])));
    else return;
    event.preventDefault();
  }

  fillTable() {
    if (!this.view || !this.details.open) return;
    const { ttft, gap } = this.answer.bounds_ms;
    const size = Math.max(1, Math.round(TABLE_STEP_S / this.view.step));
    const rows = [];
    for (let first = this.view.columns.length - size; first >= 0; first -= size) {
      const seen = this.view.columns.slice(first, first + size).filter(Boolean);
      const sum = (name) => seen.reduce((total, column) => total + column[name], 0);
      const risks = new Map();
      for (const column of seen) for (const [cause, share] of Object.entries(column.risk)) risks.set(cause, (risks.get(cause) || 0) + share / seen.length);
      const decided = this.decisions.filter((each) => each.place >= first && each.place < first + size).length;
      const cells = [
        ms(quantile(seen, "ttft", ttft, 0.5)), ms(quantile(seen, "ttft", ttft, 0.99)),
        ms(quantile(seen, "gap", gap, 0.5)), ms(quantile(seen, "gap", gap, 0.99)),
        `${sum("good")} of ${sum("ended")}`,
        [...risks].map(([cause, share]) => `${cause} ${percent(share)}`).join(", ") || "–",
        String(decided),
      ];
      rows.push(el("tr", {}, el("th", { scope: "row" }, clock(this.view.start + first * this.view.step)), ...cells.map((cell) => el("td", {}, cell))));
    }
    this.tableBody.replaceChildren(...rows);
  }
}
EngineCard.count = 0;

// ---- the page

const store = new Store();
const cards = new Map();
const causesSaid = new Map();
let last = null;
let shownDecisions = "";
let problemsShown = null;

function show(answer) {
  last = answer;
  const { sits } = answer;
  const mode = byId("mode");
  mode.textContent = sits.mode;
  mode.dataset.mode = sits.mode;
  document.title = `sits ${sits.mode}: ${location.host}`;
  const fact = (name, value, bad) => el("div", {}, el("dt", {}, name), el("dd", { class: bad ? "bad" : null }, value));
  byId("facts").replaceChildren(
    fact("node", location.host),
    fact("up", duration(sits.uptime_s)),
    fact("controller", sits.controller_alive ? "runs" : "does not run", !sits.controller_alive),
    fact("reacts in", ms(sits.reaction_ms)),
    ...(sits.injected ? [fact("injected", injectedText(sits.injected))] : []),
    fact("updated", clock(answer.now_s)));
  showProblems(sits.problems);
  showEngines(answer);
  showNeighbours(answer.neighbours);
  showGpus(answer.gpus);
  showDecisions(answer.decisions);
}

function showProblems(problems) {
  const text = problems.join("\n");
  if (text === problemsShown) return;
  problemsShown = text;
  const section = byId("problems");
  section.hidden = problems.length === 0;
  section.replaceChildren(...problems.map((problem) => el("p", {}, problem)));
}

/** How many seconds are shown: what was asked for, or less where sitsd began later than that. */
function range(answer) {
  const began_s = Math.max(SHORTEST_S, Math.ceil(answer.sits.uptime_s / 60) * 60);
  return Math.min(Number(byId("range").value), began_s);
}

function showEngines(answer) {
  const holder = byId("engines");
  const names = answer.engines.map((engine) => engine.name);
  for (const [name, card] of cards) if (!names.includes(name)) { card.root.remove(); cards.delete(name); }
  if (!names.length) holder.replaceChildren(el("p", { class: "nothing" }, "The policy names no engine."));
  else holder.querySelector(":scope > .nothing")?.remove();
  for (const engine of answer.engines) {
    if (!cards.has(engine.name)) {
      cards.set(engine.name, new EngineCard(engine.name));
      holder.append(cards.get(engine.name).root);
    }
    cards.get(engine.name).update(engine, answer, store.view(answer, engine.name, range(answer)));
    const before = causesSaid.get(engine.name);
    if (before !== undefined && before !== engine.cause) byId("spoken").textContent = engine.cause === "none" ? `${engine.name}: nothing at risk` : `${engine.name}: ${engine.cause}, ${engine.cause_meaning}`;
    causesSaid.set(engine.name, engine.cause);
  }
}

function showNeighbours(neighbours) {
  const section = byId("neighbours");
  section.hidden = neighbours.length === 0;
  const sorted = [...neighbours].sort((a, b) => Number(b.found) - Number(a.found));
  section.querySelector("tbody").replaceChildren(...sorted.map((each) => el("tr", {},
    el("th", { scope: "row" }, each.name),
    el("td", { class: "number" }, each.found ? figure(each.used_cores) : "not found"),
    el("td", { class: "number" }, each.quota_cores === null ? (each.idle ? "idle" : "none") : figure(each.quota_cores)))));
}

function showGpus(gpus) {
  const section = byId("gpus");
  section.hidden = gpus.length === 0;
  section.querySelector("div").replaceChildren(...gpus.map((gpu) => {
    const said = gpu.rows.map((row) => `${row.name} ${figure(row.sm_percent[row.sm_percent.length - 1])}%`).join(", ");
    const canvas = el("canvas", { role: "img", "aria-label": `${gpu.device}, share of SM time by process, now: ${said}` });
    requestAnimationFrame(() => drawGpu(canvas, gpu));
    return el("div", { class: "gpu" }, el("h3", {}, gpu.device), canvas, el("p", { class: "muted" }, said));
  }));
}

/** Runs of decisions on the same knobs of an engine, for the same cause, as one entry each. */
function runs(decisions) {
  const found = [];
  for (const decision of decisions) {
    const kind = JSON.stringify([decision.engine, decision.cause, decision.mode, decision.action.map((change) => [change.target, change.knob])]);
    const run = found[found.length - 1];
    if (run && run.kind === kind) {
      run.first = decision;
      run.count += 1;
    } else found.push({ kind, last: decision, first: decision, count: 1 });
  }
  return found;
}

function showDecisions(decisions) {
  const holder = byId("decisions");
  const key = decisions.map((each) => `${each.id} ${each.ack} ${each.verdict}`).join();
  if (key === shownDecisions && holder.firstChild) return;
  shownDecisions = key;
  if (!decisions.length) { holder.replaceChildren(el("p", { class: "muted" }, "None in the last half hour.")); return; }
  holder.replaceChildren(el("ol", { class: "decisions" }, ...runs(decisions).slice(0, RUNS_SHOWN).map(({ last: each, first, count }) => {
    const dot = el("span", { class: "dot" });
    dot.style.background = CAUSE_COLOURS[each.cause] || CAUSE_COLOURS.unknown;
    const verdict = each.verdict ? el("span", { class: each.verdict === "worse" ? "bad" : each.verdict === "better" ? "good" : null }, each.verdict) : null;
    const changes = each.action.map((change, at) => changeText({ ...change, from: (first.action[at] || change).from }));
    const when = count > 1 ? `${clock(first.at_s)} to ${clock(each.at_s)}` : clock(each.at_s);
    return el("li", {},
      el("div", { class: "when" }, el("time", {}, when), el("span", {}, each.engine), el("span", { class: "cause" }, dot, each.cause), el("span", {}, each.ack), verdict),
      ...changes.map((change) => el("div", { class: "what mono" }, change)),
      el("div", { class: "why" }, count > 1 ? `${count} times; at last: ${each.reason}` : each.reason));
  })));
}

async function ask() {
  const after = Math.max(-1, store.newest - 2);
  const answer = await fetch(`/page.json?after=${after}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

async function poll() {
  try {
    if (!document.hidden && byId("pause").getAttribute("aria-pressed") === "false") {
      const answer = await ask();
      store.take(answer);
      show(answer);
    }
  } catch (error) {
    if (error instanceof TypeError || error.message.startsWith("status")) {
      showProblems([`sitsd does not answer${last ? ` since ${clock(last.now_s)}` : ""}: what is shown is from then`]);
    } else { throw error; }
  } finally {
    setTimeout(poll, POLL_MS);
  }
}

function redraw() {
  if (last) showEngines(last);
  if (last) showGpus(last.gpus);
}

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  redraw();
}

byId("range").addEventListener("change", redraw);
byId("pause").addEventListener("click", (event) => {
  const on = event.currentTarget.getAttribute("aria-pressed") === "false";
  event.currentTarget.setAttribute("aria-pressed", String(on));
});
byId("theme").addEventListener("change", (event) => {
  try { localStorage.setItem("sits-theme", event.target.value); } catch { /* kept for this visit only */ }
  setTheme(event.target.value);
});
try {
  const kept = localStorage.getItem("sits-theme");
  if (kept === "light" || kept === "dark") { byId("theme").value = kept; setTheme(kept); }
} catch { /* no storage: the system's theme */ }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
poll();
