// The overview: figures, the best value over time and over trials, who runs what, failures.
"use strict";
import { breathe, duration, element, isSaved, moment, number, plural } from "./api.js";
import { changes } from "./changes.js";
import { STATES, Scale, onTap, plot, source, tools } from "./charts.js";
import { STATE, STEPS, VALUES, tableOf } from "./table.js";

const MOST_DOTS = 2500;
const ORDER = Object.keys(STATES);

export const overview = async (place, { study, status }) => {
  const tiles = element("div", { class: "tiles" });
  const chart = element("div", { class: "chart" });
  const below = element("div");
  const changing = element("div");
  const table = await tableOf(study);
  const history = new History(table, status);
  const byTime = element("input", { type: "checkbox" });
  const note = element("p", { class: "under" });
  const which = element("select", { "aria-label": "Metric" }, status.metrics.map((name, at) => element("option", { value: at }, name)));
  const redraw = async () => {
    note.textContent = scale.words;
    await history.draw(chart, { byTime: byTime.checked, scale: scale.options, at: Number(which.value) });
  };
  const scale = new Scale(redraw);
  const fit = () => scale.fit(history.values(Number(which.value)), status.directions[Number(which.value)] === "maximize");
  byTime.addEventListener("change", redraw);
  which.addEventListener("change", () => { fit(); redraw(); });
  place.append(tiles, element("section", { class: "card", id: "history" },
    element("div", { class: "tools" }, element("h2", {}, "Best so far"),
      status.metrics.length > 1 && which,
      element("label", {}, byTime, "over time"), scale.labels), chart, note), below, changing);
  showTiles(tiles, status, study);
  showBelow(below, status, study);
  fit();
  await redraw();
  const tools = await changes(changing, { study });
  return {
    async update(now, isNew) {
      showTiles(tiles, now, study);
      showBelow(below, now, study);
      await tools?.update(now);
      if (isNew && (await table.refresh())) history.renew({ byTime: byTime.checked, at: Number(which.value) });
    },
  };
};

const showTiles = (place, status, study) => {
  const counts = status.trials;
  const all = Object.values(counts).reduce((a, b) => a + b, 0);
  const best = status.best;
  const saved = status.steps_requested ? Math.round(100 * (1 - status.steps_executed / status.steps_requested)) : 0;
  const params = best ? Object.entries(best.params || {}).map(([name, value]) => `${name} ${number(typeof value === "object" ? JSON.stringify(value) : value)}`).join(", ") : "";
  const workers = status.workers && status.is_alive ? `${number(status.workers.busy)} of ${number(status.workers.usable)} workers busy` : "";
  const tiles = [
    element("div", { class: "tile", id: "best" }, element("h2", {}, `best ${status.metric} (${status.direction})`),
      element("p", { class: "figure" }, best ? number(best.value) : "none yet"),
      best && element("p", { class: "under" }, element("a", { href: `#/${study}/trial/${best.number}` }, `trial ${best.number}`), `, ${plural(best.steps, "step")}`),
      element("p", { class: "under" }, params)),
    element("div", { class: "tile", id: "states" }, element("h2", {}, "trials"), element("p", { class: "figure" }, number(all)),
      element("div", { class: "bar" }, ORDER.map((state) => element("i", { class: `b-${state}`, style: { width: `${(100 * (counts[state] || 0)) / (all || 1)}%` } }))),
      element("p", { class: "under" }, ORDER.filter((state) => counts[state]).map((state, at) => [at ? ", " : "", element("a", { href: `#/${study}/trials/${encodeURIComponent(`state="${status.state_words[state]}"`)}`, class: state }, `${number(counts[state])} ${status.state_words[state]}`)]))),
    element("div", { class: "tile" }, element("h2", {}, "steps trained"), element("p", { class: "figure" }, number(status.steps_executed)),
      element("p", { class: "under" }, `of ${number(status.steps_requested)} asked for${saved > 0 && !status.is_alive ? `: ${saved}% saved` : ""}`),
      status.steps_repeated > 0 && element("p", { class: "under" }, `${number(status.steps_repeated)} of them repeated`)),
    isSaved ? element("div", { class: "tile" }, element("h2", {}, "worker time"),
      element("p", { class: "figure" }, duration(status.worker_seconds)), element("p", { class: "under" }, `in ${duration(status.wall_seconds)} of wall time`))
    : element("div", { class: "tile" }, element("h2", {}, status.is_alive ? "time left" : "last activity"),
      element("p", { class: "figure" }, status.is_alive ? (status.seconds_left === null ? "not known yet" : `about ${duration(status.seconds_left)}`) : `${duration(Math.max(0, status.read_at - status.last_activity))} ago`),
      element("p", { class: "under" }, workers || moment(status.last_activity)),
      status.driver_words && element("p", { class: "under" }, status.driver_words))];
  place.replaceChildren(...tiles);
};

const showBelow = (place, status, study) => {
  const parts = [];
  if (!isSaved && status.waits.length) parts.push(element("section", { class: "card" }, element("h2", {}, "Waits for"),
    status.waits.map((wait) => element("p", { class: "under" }, wait.text, wait.since ? `, since ${duration(status.read_at - wait.since)}` : ""))));
  if (!isSaved && status.running.length) {
    const shown = status.running.slice(0, 200);
    const rows = shown.map((stage) => {
      const [from, to] = [stage.start, stage.stop];
      const at = stage.step === null ? from : stage.step;
      return element("tr", {},
        element("td", {}, stage.trials.map((each, index) => [index ? ", " : "", element("a", { href: `#/${study}/trial/${each}` }, String(each))])),
        element("td", { class: "n" }, `${number(from)} to ${number(to)}`),
        element("td", { style: { minWidth: "120px" } }, element("div", { class: "bar", title: `at step ${at}` }, element("i", { class: "b-RUNNING", style: { width: `${(100 * (at - from)) / Math.max(1, to - from)}%` } }))),
        element("td", { class: "n" }, duration(stage.seconds)), element("td", {}, element("code", {}, stage.worker)));
    });
    const head = ["trials", "steps", "", "since", "worker"].map((word) => element("th", {}, word));
    const title = status.is_alive ? "Runs now" : "Ran when the driver ended";
    parts.push(element("section", { class: "card", id: "running" }, element("h2", {}, title),
      element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, rows))),
      status.running.length > shown.length && element("p", { class: "under" }, `and ${number(status.running.length - shown.length)} more`)));
  }
  if (status.failures.length) parts.push(element("section", { class: "card", id: "failed" }, element("h2", {}, "Failures"), status.failures.slice(0, 5).map((each) => failure(each, study)),
    status.failures.length > 5 && element("p", { class: "under" }, element("a", { href: `#/${study}/failures` }, `all ${status.failures.length} kinds`))));
  keepOpen(place, parts);
};

// Replaces parts without closing the details that the reader has opened.
export const keepOpen = (place, parts) => {
  const open = new Set([...place.querySelectorAll("details[open]")].map((each) => each.dataset.key));
  place.replaceChildren(...parts);
  for (const each of place.querySelectorAll("details")) if (open.has(each.dataset.key)) each.open = true;
};

// One kind of failure: the user's own line first, then whom it concerns, then the traceback.
export const failure = (each, study) => {
  const [where, line] = (each.frames || "").split("\n");
  const listed = each.trials.slice(0, 12).map((number, at) => [at ? ", " : "", element("a", { href: `#/${study}/trial/${number}` }, String(number))]);
  const more = each.trials.length > 12 ? ` and ${each.trials.length - 12} more` : "";
  return element("details", { "data-key": `${each.message}|${each.step}` },
    element("summary", {}, element("b", { class: "bad" }, each.message || "no message"),
      element("div", { class: "under" }, each.is_final ? "" : "tried again: ", plural(each.trials.length, "trial"), ": ", listed, more,
        each.step === null ? "" : `, after step ${number(each.step)}`, each.tries ? `, tried ${plural(each.tries, "time")}` : ""),
      where && element("div", { class: "under" }, element("code", {}, line || ""), " ", where)),
    each.traceback && element("pre", {}, each.traceback));
};

// The plot of the values of all trials.
class History {
  constructor(table, status) {
    Object.assign(this, { table, words: status.state_words, directions: status.directions, metrics: status.metrics, data: null });
  }

  columns({ byTime, at }) {
    const points = [];
    for (const [trial, cells] of this.table.rows) {
      const [value, ended] = [cells[VALUES + at], cells.at(-1)];
      const x = byTime ? ended && ended * 1000 : trial;
      if (value !== null && x !== null) points.push([x, value, trial, cells[STATE], cells[STEPS]]);
    }
    points.sort((a, b) => a[0] - b[0]);
    const isUp = this.directions[at] === "maximize";
    const line = { x: [], y: [] };
    let best = null;
    for (const [x, y, , state] of points) {
      if (state === "FAIL") continue;
      if (best === null || (isUp ? y > best : y < best)) {
        if (best !== null) { line.x.push(x); line.y.push(best); }
        best = y;
        line.x.push(x); line.y.push(best);
      }
    }
    if (best !== null) { line.x.push(points[points.length - 1][0]); line.y.push(best); }
    // The line is that of all trials; of very many dots only some are drawn, the best among them.
    const step = Math.max(1, points.length / MOST_DOTS);
    const marked = new Set(line.x);
    let next = 0;
    const dots = points.filter((point, at) => { if (at >= next) { next += step; return true; } return marked.has(point[0]) && point[3] !== "FAIL"; });
    const column = (index) => dots.map((point) => point[index]);
    return { dots: { x: column(0), y: column(1), trial: column(2), state: dots.map((point) => this.words[point[3]]), steps: column(4), fill: dots.map((point) => STATES[point[3]]) }, line };
  }

  values(at) { return [...this.table.rows.values()].map((cells) => cells[VALUES + at]); }

  async draw(place, { byTime, scale, at }) {
    await breathe();
    const { dots, line } = this.columns({ byTime, at });
    if (!dots.x.length) { place.replaceChildren(element("p", { class: "soft" }, "No trial has a value yet.")); this.data = null; return; }
    await plot(place, { xTime: byTime, ...scale, xLabel: byTime ? "end of the trial's last stage" : "trial", yLabel: this.metrics[at] }, (figure) => {
      this.data = { dots: source(dots), line: source(line), place };
      const marks = figure.scatter({ x: { field: "x" }, y: { field: "y" }, source: this.data.dots, size: 5, fill_color: { field: "fill" }, line_color: null, fill_alpha: 0.55 });
      figure.line({ x: { field: "x" }, y: { field: "y" }, source: this.data.line, line_width: 2.5, line_color: "#d55e00" });
      tools(figure, [marks], [["trial", "@trial"], [this.metrics[at], "@y{0.[00000]}"], ["steps", "@steps"], ["state", "@state"]]);
      onTap(figure, this.data.dots, (index) => { location.hash = `#/${this.table.study}/trial/${this.data.dots.data.trial[index]}`; });
    });
  }

  renew(options) {
    const { dots, line } = this.columns(options);
    if (this.data === null) return;
    this.data.dots.data = dots;
    this.data.line.data = line;
  }
}
