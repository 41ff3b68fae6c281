// Plots by BokehJS, on canvas, in the colours of the page.
"use strict";
import { breathe, element, isSaved, unpacked } from "./api.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const PALETTE = ["#d55e00", "#0072b2", "#009e73", "#b8558c", "#c98a00", "#56b4e9", "#7a5195", "#2f4b7c", "#a05195", "#ff7c43"];
export const STATES = { COMPLETE: "#2c9a55", RUNNING: "#3f86bd", PAUSED: "#c98a00", PRUNED: "#9aa4ae", FAIL: "#c8372d" };

// Each script of BokehJS is a task of its own: they take long to start, and the page shows figures meanwhile.
const script = (src) => new Promise((done, fail) => {
  document.head.append(element("script", { src, on: { load: done, error: () => fail(new Error(`${src} cannot be loaded`)) } }));
});
const load = async (name) => { await script(isSaved ? URL.createObjectURL(await unpacked(name)) : name); await breathe(); };
let loading = null;
export const ready = () => {
  // A figure without data yet is no reason for a warning.
  loading ??= load("bokeh.min.js").then(() => load("bokeh-api.min.js")).then(() => Bokeh.set_log_level("error"));
  return loading;
};

// A figure in an element. `draw(figure)` adds glyphs; the element keeps its last figure only.
export const plot = async (place, options, draw) => {
  if (isSaved && !document.getElementById("bokeh.min.js")) {
    place.replaceChildren(element("p", { class: "soft" }, "Plots are in reports that are written where Bokeh is installed: pip install 'dasktune[dashboard]'"));
    return;
  }
  await ready();
  const { xLog, yLog, xTime, xLabel, yLabel, height = 320, buttons = "pan,box_zoom,wheel_zoom,reset,save", xRange, yRange } = options;
  const made = Bokeh.Plotting.figure({
    height, sizing_mode: "stretch_width", tools: buttons, toolbar_location: "above",
    x_axis_type: xTime ? "datetime" : xLog ? "log" : "auto",
    y_axis_type: yLog ? "log" : "auto",
    ...(xRange ? { x_range: xRange } : {}), ...(yRange ? { y_range: yRange } : {}),
    background_fill_color: null, border_fill_color: null, outline_line_color: null,
    min_border: 4, output_backend: "canvas", lod_threshold: 4000,
  });
  const [ink, soft, edge] = [colour("--ink"), colour("--soft"), colour("--edge")];
  for (const [axis, label] of [[made.below[0], xLabel], [made.left[0], yLabel]]) {
    Object.assign(axis, {
      axis_label: label || "", axis_label_text_color: soft, axis_label_text_font_style: "normal",
      axis_label_text_font_size: "12px", major_label_text_color: ink, major_label_text_font_size: "11px",
      axis_line_color: edge, major_tick_line_color: edge, minor_tick_line_color: null,
    });
  }
  for (const grid of made.center) if ("grid_line_color" in grid) grid.grid_line_color = edge;
  await breathe();
  draw(made);
  for (const legend of made.center.filter((part) => "label_text_color" in part))
    Object.assign(legend, { label_text_color: ink, background_fill_color: colour("--card"), background_fill_alpha: 0.75, border_line_color: null, label_text_font_size: "11px", padding: 4, spacing: 0, click_policy: "hide" });
  made.toolbar.logo = null;
  made.toolbar.stylesheets = [`.bk-divider { background-color: ${edge} !important; } :host { --icon-color: ${soft}; }`];
  const target = element("div", { style: { width: "100%" } });
  place.replaceChildren(target);
  await breathe();
  // First the empty figure, then its data: two tasks, each of which is short.
  const data = new Map(made.renderers.map(({ data_source: columns }) => [columns, columns.data]));
  for (const [columns, filled] of data) columns.data = Object.fromEntries(Object.keys(filled).map((name) => [name, []]));
  place.shown = await Bokeh.Plotting.show(made, target);
  await breathe();
  for (const [columns, filled] of data) columns.data = filled;
};

export const source = (data) => new Bokeh.ColumnDataSource({ data });

// The words at a mark under the pointer, and the marks that can be clicked.
export const tools = (figure, renderers, tooltips, more = {}) => {
  figure.add_tools(new Bokeh.HoverTool({ renderers, tooltips, ...more }), new Bokeh.TapTool({ renderers }));
};

// The scale of values: where a few are so far from the others that the best cannot be told apart, a
// log axis if that tells them apart, else the range without those few. The reader may choose otherwise.
export class Scale {
  constructor(redraw) {
    this.isLog = element("input", { type: "checkbox" });
    this.hasAll = element("input", { type: "checkbox", checked: true });
    this.all = element("label", { hidden: true }, this.hasAll, "outliers");
    this.labels = [element("label", {}, this.isLog, "log axis"), this.all];
    this.range = null;
    for (const input of [this.isLog, this.hasAll]) input.addEventListener("change", redraw);
  }

  // Chooses a scale for values, of which the greatest are the best if `isUp`.
  fit(values, isUp) {
    const known = values.filter(Number.isFinite).map((value) => (isUp ? -value : value)).sort((a, b) => a - b);
    const quantile = (share) => known[Math.min(known.length - 1, Math.floor(share * known.length))];
    const [best, worst, fence] = [known[0], known[known.length - 1], quantile(0.75) + 1.5 * (quantile(0.75) - quantile(0.25))];
    const isWide = known.length > 3 && worst - best > 4 * (fence - best) && fence > best;
    const arePositive = values.every((value) => !Number.isFinite(value) || value > 0);
    this.isLog.disabled = !arePositive;
    const decades = (a, b) => Math.abs(Math.log10(Math.abs(a / b)));
    const helpsLog = isWide && arePositive && fence * best > 0 && 3 * decades(fence, best) > decades(worst, best);
    this.isLog.checked = helpsLog;
    this.hasAll.checked = !isWide || helpsLog;
    this.all.hidden = !isWide;
    const edges = [best - 0.05 * (fence - best), fence].map((value) => (isUp ? -value : value));
    this.range = isWide ? edges.sort((a, b) => a - b) : null;
  }

  get options() {
    const isPart = this.range && !this.hasAll.checked && !this.isLog.checked;
    return { yLog: this.isLog.checked, ...(isPart ? { yRange: this.range } : {}) };
  }

  // How many values are outside of the plot, in words.
  get words() {
    return this.options.yRange ? "Values that are far worse than most are outside of the plot: see “outliers”." : "";
  }
}

// Calls `act(index)` when a mark is clicked.
export const onTap = (figure, data, act) => {
  data.selected.properties.indices.change.connect(() => {
    const [first] = data.selected.indices;
    if (first !== undefined) act(first);
  });
};

// The running average with weight w for what came before, corrected for its start at 0.
export const smooth = (values, weight) => {
  if (!weight) return values;
  let last = 0;
  return values.map((value, at) => {
    last = weight * last + (1 - weight) * value;
    return last / (1 - weight ** (at + 1));
  });
};
