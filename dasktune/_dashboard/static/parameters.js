// Hyper-parameters against the value: importance, slices, parallel coordinates.
"use strict";
import { api, breathe, element, number, plural } from "./api.js";
import { Scale, onTap, plot, source, tools } from "./charts.js";

// The server sends no more trials than these.
const MOST_PLOTTED = 1000;
const MOST_LINES = 300;
const MOST_TICKS = 10;
const isNumber = (value) => typeof value === "number";

// The scale of a hyper-parameter: numbers, on a log axis if they span two decades; else its options.
const scaleOf = (column) => {
  const known = column.filter((value) => value !== null);
  const numbers = known.length > 0 && known.every(isNumber);
  if (!numbers) {
    const options = [...new Set(known.map(String))].sort();
    return { options, place: (value) => (value === null ? null : options.indexOf(String(value))), low: -0.5, high: options.length - 0.5 };
  }
  const [low, high] = known.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  const isLog = low > 0 && high / low >= 50;
  return { isLog, low, high, place: (value) => value, share: (value) => (high === low ? 0.5 : isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low)) };
};
// Short words of options for the ticks of an axis: long ones, such as sequences, lose what all begin with.
const tickWords = (options) => {
  const [first, last] = [options[0] || "", options[options.length - 1] || ""];
  let same = 0;
  while (options.length > 1 && same < first.length && first[same] === last[same]) same += 1;
  const from = Math.max(...options.map((words) => words.length)) > 22 && same > 6 ? same - 1 : 0;
  return options.map((words) => {
    const rest = from ? `…${words.slice(from)}` : words;
    return rest.length > 22 ? `${rest.slice(0, 21)}…` : rest;
  });
};
const shareOf = (scale, value) => (value === null ? null : scale.options ? (scale.options.length > 1 ? scale.place(value) / (scale.options.length - 1) : 0.5) : scale.share(value));

// A colour from blue (bad) over grey to orange (good) by rank.
const shade = (share) => {
  const [from, to] = share < 0.5 ? [[60, 100, 160], [150, 150, 150]] : [[150, 150, 150], [213, 94, 0]];
  const part = share < 0.5 ? 2 * share : 2 * share - 1;
  return `rgb(${from.map((value, at) => Math.round(value + part * (to[at] - value))).join()})`;
};

export const parameters = async (place, { study, status, say }) => {
  const which = element("select", { "aria-label": "Metric" }, status.metrics.map((name, at) => element("option", { value: at }, name)));
  const importance = element("div", { class: "chart", id: "importance" }, element("p", { class: "soft" }, "computing…"));
  const slices = element("div", { class: "slices" });
  const lines = element("div", { class: "chart", id: "parallel" });
  const note = element("p", { class: "under" });
  let data = null, isFirst = true;
  const redraw = async () => { await drawSlices(); await drawLines(); };
  const valueScale = new Scale(redraw);
  const fit = () => valueScale.fit(data.values[Number(which.value)], status.directions[Number(which.value)] === "maximize");
  place.append(element("section", { class: "card" }, element("h2", {}, "Importance"), importance),
    element("section", { class: "card" }, element("div", { class: "tools" }, element("h2", {}, "Slices"), status.metrics.length > 1 && which, valueScale.labels), note, slices),
    element("section", { class: "card" }, element("h2", {}, "Parallel coordinates"), element("p", { class: "under" }, "Each line is a trial: orange for the best, blue for the worst."), lines));

  const drawSlices = async () => {
    const at = Number(which.value);
    const names = Object.keys(data.params);
    const parts = names.map(() => element("div", { class: "chart" }));
    slices.replaceChildren(...parts);
    const isSample = data.number.length >= MOST_PLOTTED;
    note.textContent = data.number.length < data.total ? `${plural(data.number.length, "trial")} of ${number(data.total)}: ${isSample ? "the best, and others spread evenly" : "those with a value"}` : "";
    for (const [index, name] of names.entries()) {
      await breathe();
      const column = data.params[name];
      const scale = scaleOf(column);
      const kept = column.map((value, row) => row).filter((row) => column[row] !== null && data.values[at][row] !== null);
      const points = { x: kept.map((row) => scale.place(column[row])), y: kept.map((row) => data.values[at][row]), trial: kept.map((row) => data.number[row]), words: kept.map((row) => number(column[row])) };
      await plot(parts[index], { xLog: scale.isLog, ...valueScale.options, xLabel: name, yLabel: index ? "" : status.metrics[at], height: 230, buttons: "pan,box_zoom,reset" }, (figure) => {
        const shown = source(points);
        const marks = figure.scatter({ x: { field: "x" }, y: { field: "y" }, source: shown, size: 4, fill_color: "#3f86bd", fill_alpha: 0.45, line_color: null });
        if (scale.options) {
          // Of many options some have a label, all have their words under the pointer.
          const every = Math.ceil(scale.options.length / MOST_TICKS);
          const ticks = scale.options.map((_, tick) => tick).filter((tick) => tick % every === 0);
          const words = tickWords(scale.options);
          figure.below[0].ticker = new Bokeh.FixedTicker({ ticks });
          figure.below[0].major_label_overrides = new Map(ticks.map((tick) => [tick, words[tick]]));
          const letters = ticks.reduce((sum, tick) => sum + words[tick].length + 2, 0);
          if (letters > 40) figure.below[0].major_label_orientation = ticks.length > 4 ? "vertical" : 0.5;
          if (letters > 40) figure.height = 310;
        }
        tools(figure, [marks], [["trial", "@trial"], [name, "@words"], [status.metrics[at], "@y{0.[00000]}"]]);
        onTap(figure, shown, (row) => { location.hash = `#/${study}/trial/${points.trial[row]}`; });
      });
    }
  };
  const drawLines = async () => {
    await breathe();
    const at = Number(which.value);
    const names = Object.keys(data.params);
    const scales = names.map((name) => scaleOf(data.params[name]));
    const value = scaleOf(data.values[at]);
    const kept = data.number.map((_, row) => row).filter((row) => data.values[at][row] !== null).slice(0, MOST_LINES);
    const isUp = status.directions[at] === "maximize";
    const ranked = [...kept].sort((a, b) => (isUp ? 1 : -1) * (data.values[at][a] - data.values[at][b]));
    const xs = [...names.keys(), names.length];
    const ys = ranked.map((row) => [...names.map((name, index) => shareOf(scales[index], data.params[name][row]) ?? NaN), shareOf(value, data.values[at][row])]);
    await plot(lines, { height: 380, buttons: "reset,save" }, (figure) => {
      const shown = source({ xs: ranked.map(() => xs), ys, colour: ranked.map((_, row) => shade(row / Math.max(1, ranked.length - 1))), trial: ranked.map((row) => data.number[row]), value: ranked.map((row) => number(data.values[at][row])) });
      const marks = figure.multi_line({ xs: { field: "xs" }, ys: { field: "ys" }, source: shown, line_color: { field: "colour" }, line_alpha: 0.55, line_width: 1.2 });
      figure.below[0].ticker = new Bokeh.FixedTicker({ ticks: xs });
      const ends = (scale) => (scale.options ? `${scale.options.length} options` : `${number(scale.low)} to ${number(scale.high)}${scale.isLog ? ", log" : ""}`);
      figure.below[0].major_label_overrides = new Map([...names.map((name, index) => [index, `${name}\n${ends(scales[index])}`]), [names.length, `${status.metrics[at]}\n${ends(value)}`]]);
      if (innerWidth < 700) figure.below[0].major_label_orientation = 0.8;
      figure.left[0].visible = false;
      tools(figure, [marks], [["trial", "@trial"], [status.metrics[at], "@value"]], { line_policy: "interp" });
      onTap(figure, shown, (row) => { location.hash = `#/${study}/trial/${shown.data.trial[row]}`; });
    });
  };
  const showImportance = async () => {
    const { names, shares, why, trials } = await api(`importance/${study}`);
    if (why) { importance.replaceChildren(element("p", { class: "soft" }, why)); return; }
    importance.replaceChildren(element("p", { class: "under" }, `PED-ANOVA of Optuna over ${plural(trials, "complete trial")}: which hyper-parameters tell the best trials from the others`),
      element("table", {}, names.map((name, at) => element("tr", {}, element("td", {}, name), element("td", { style: { width: "70%" } }, element("div", { class: "bar" }, element("i", { class: "b-RUNNING", style: { width: `${100 * shares[at]}%` } }))), element("td", { class: "n" }, shares[at].toFixed(2))))));
  };
  const all = async () => {
    data = await api(`points/${study}`);
    if (!data.number.length) { slices.replaceChildren(element("p", { class: "soft" }, "No trial has a value yet.")); return; }
    if (isFirst) fit();
    isFirst = false;
    await redraw();
  };
  which.addEventListener("change", () => { fit(); redraw(); });
  await all();
  showImportance().catch((error) => importance.replaceChildren(element("p", { class: "soft" }, error.message)));
  let last = Date.now();
  return { async update(_, isNew) { if (isNew && Date.now() - last > 15000 && !place.matches(":hover")) { last = Date.now(); await all(); showImportance().catch(say); } } };
};
