// What a study has cost, and who ran what when: a part of reports, whose figures are in the file.
"use strict";
import { api } from "./api.js";
import { plot, source, tools } from "./charts.js";

const COLOURS = { trained: "#0072b2", stopped: "#009e73", running: "#7badd6", lost: "#c98a00", failed: "#d55e00", superseded: "#b8558c" };
const OTHER = "#8c959f";
const ROW = 24;

const drawn = document.getElementById("costs");
drawn?.remove();

export const costs = async (place, { study }) => {
  place.append(drawn);
  const { words, since, workers, bars } = await api(`attempts/${study}`);
  const part = drawn.querySelector("#workers");
  part.hidden = !workers.length;
  if (part.hidden) return {};
  part.querySelector("p").textContent = `${words}.`;
  const end = 1000 * bars.stop.reduce((most, stop) => Math.max(most, stop), since);
  await plot(part.querySelector(".chart"), { xTime: true, xLabel: "time (UTC)", height: 134 + ROW * workers.length, xRange: [1000 * since, end], yRange: [workers.length - 0.4, -1.6] }, (figure) => {
    const data = source({ ...bars, start: bars.start.map((at) => 1000 * at), stop: bars.stop.map((at) => 1000 * at), colour: bars.status.map((status) => COLOURS[status] || OTHER) });
    const marks = figure.hbar({ y: { field: "worker" }, left: { field: "start" }, right: { field: "stop" }, height: 0.7, source: data, fill_color: { field: "colour" }, line_color: "black", line_alpha: 0.35, line_width: 0.5, legend_group: "status" });
    for (const legend of figure.center.filter((part) => "items" in part)) legend.orientation = "horizontal";
    figure.left[0].ticker = new Bokeh.FixedTicker({ ticks: workers.map((_, at) => at) });
    figure.left[0].major_label_overrides = new Map(workers.entries());
    tools(figure, [marks], [["status", "@status"], ["", "@words"]]);
  });
  return {};
};
