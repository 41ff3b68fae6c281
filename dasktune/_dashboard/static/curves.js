// Learning curves: log axes, smoothing, the choice of metric and trials.
"use strict";
import { api, breathe, element, isSaved, number, plural } from "./api.js";
import { PALETTE, onTap, plot, smooth, source, tools } from "./charts.js";

const COLOURED = 8;

// Trials with the same curve become one line, which names them: otherwise the last one hides the others.
const merged = (all) => {
  const byValues = new Map();
  for (const curve of all) {
    const key = `${curve.steps}|${curve.values}`;
    if (!byValues.has(key)) byValues.set(key, { ...curve, trials: [] });
    byValues.get(key).trials.push(curve.trial);
  }
  return [...byValues.values()].map((curve) => {
    const more = curve.trials.length > 4 ? ` and ${curve.trials.length - 4} more` : "";
    return { ...curve, label: `${curve.trials.slice(0, 4).join(", ")}${more}` };
  });
};

export const curves = async (place, { study, status, say }) => {
  const metric = element("select", { "aria-label": "Metric" });
  const chosen = element("input", { type: "search", placeholder: "trials, such as 1,5,17", "aria-label": "Trials" });
  const [xLog, yLog] = [element("input", { type: "checkbox" }), element("input", { type: "checkbox" })];
  const weight = element("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, "aria-label": "Smoothing" });
  const chart = element("div", { class: "chart" });
  const note = element("p", { class: "under" });
  let shown = null;
  place.append(element("section", { class: "card" }, element("div", { class: "tools" },
    element("h2", {}, "Learning curves"), metric, !isSaved && chosen,
    element("label", {}, xLog, "log steps"), element("label", {}, yLog, "log values"),
    element("label", {}, "smoothing", weight)), chart, note));

  const load = async () => {
    const numbers = chosen.value.replace(/\s+/g, "");
    shown = await api(`curves/${study}`, { metric: metric.value || status.metrics[0], trials: /^[\d,]*$/.test(numbers) ? numbers : "" });
    const wanted = shown.metric;
    metric.replaceChildren(...shown.metrics.map((name) => element("option", { value: name, selected: name === wanted }, name)));
    note.textContent = shown.is_sample ? `${plural(shown.curves.length, "curve")} of ${plural(shown.total, "trial")}: the best, and others spread evenly. The first ${COLOURED} are coloured.` : "";
  };
  const draw = async () => {
    await breathe();
    const lines = merged(shown.curves.filter((curve) => curve.steps.length));
    if (!lines.length) { chart.replaceChildren(element("p", { class: "soft" }, "No reports of this metric yet.")); return; }
    const w = Number(weight.value);
    const columns = (some) => ({
      xs: some.map((each) => each.steps), ys: some.map((each) => smooth(each.values, w)), trial: some.map((each) => each.trial),
      label: some.map((each) => each.label), last: some.map((each) => number(each.values[each.values.length - 1])),
      colour: some.map((_, at) => PALETTE[at % PALETTE.length]),
    });
    const [bright, faint] = [lines.slice(0, COLOURED), lines.slice(COLOURED)];
    await plot(chart, { xLog: xLog.checked, yLog: yLog.checked, xLabel: "step", yLabel: shown.metric, height: 460 }, (figure) => {
      const [front, back] = [source(columns(bright)), source(columns(faint))];
      const places = { xs: { field: "xs" }, ys: { field: "ys" } };
      const grey = figure.multi_line({ ...places, source: back, line_color: "#8c959f", line_alpha: 0.35, line_width: 1 });
      const lit = figure.multi_line({ ...places, source: front, line_color: { field: "colour" }, line_width: 2.2, legend_group: "label" });
      // Bokeh sorts the names of a legend; ours stand by value, as the colours do.
      const place = (item) => bright.findIndex((each) => String(each.label) === String(item.label.value));
      for (const legend of figure.center.filter((part) => "items" in part)) legend.items = [...legend.items].sort((a, b) => place(a) - place(b));
      // A line of one point cannot be seen.
      const single = bright.map((each, at) => [each, at]).filter(([each]) => each.steps.length === 1);
      figure.scatter({ x: single.map(([each]) => each.steps[0]), y: single.map(([each]) => each.values[0]), size: 7, line_color: null, fill_color: single.map(([, at]) => PALETTE[at % PALETTE.length]) });
      for (const data of [front, back]) onTap(figure, data, (index) => { location.hash = `#/${study}/trial/${data.data.trial[index]}`; });
      tools(figure, [lit, grey], [["trials", "@label"], ["last", "@last"]], { line_policy: "nearest" });
    });
  };
  const again = async () => {
    note.textContent ||= "Loading…";
    try { await load(); say(null); await draw(); } catch (error) { note.textContent = ""; say(error); }
  };
  for (const input of [metric, chosen]) input.addEventListener("change", again);
  for (const input of [xLog, yLog, weight]) input.addEventListener("change", draw);
  await again();
  return { async update(_, isNew) { if (isNew && !chart.matches(":hover")) await again(); } };
};
