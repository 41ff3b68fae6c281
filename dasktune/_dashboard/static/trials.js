// The table of all trials: rows are made only where the reader looks.
"use strict";
import { element, moment, number, save } from "./api.js";
import { NUMBER, STATE, tableOf, toCsv } from "./table.js";

const ROW = 30;

export const trials = async (place, { study, words, status, say }) => {
  const filter = element("input", { type: "search", value: words[0] || "", placeholder: "filter: lr>0.01 state=complete adam", "aria-label": "Filter" });
  const csv = element("button", { type: "button" }, "CSV");
  const count = element("span", { class: "soft" });
  const head = element("div", { class: "grid-head", role: "row" });
  const body = element("div", { style: { position: "relative" } });
  const view = element("div", { class: "table", role: "table", tabindex: 0, "aria-label": "Trials" }, head, body);
  place.append(element("section", { class: "card" }, element("div", { class: "tools" }, element("h2", {}, "Trials"), filter, count, csv), view));
  const table = await tableOf(study);
  const look = { sort: "number", isDescending: false };
  let now = status, rows = [], widths = "";

  const cell = (name, value) => (name === "ended" ? moment(value) : name === "number" ? String(value) : number(value));
  // Each row is a grid of its own, so the widths of the columns follow from the first rows.
  const measure = () => {
    const longest = (name, at) => Math.max(name.length + 2, ...rows.slice(0, 100).map((cells) => cell(name, cells[at]).length));
    const pixels = table.columns.map((name, at) => Math.max(64, Math.min(280, 8 * longest(name, at) + 22)));
    widths = pixels.map((width) => `minmax(${width}px, ${width}fr)`).join(" ");
  };
  const showHead = () => {
    head.style.gridTemplateColumns = widths;
    head.replaceChildren(...table.columns.map((name) => element("button", { type: "button", title: name, "data-sorted": look.sort === name ? (look.isDescending ? "down" : "up") : null,
      on: { click: () => { Object.assign(look, { isDescending: look.sort === name && !look.isDescending, sort: name }); select(); } } }, name)));
  };
  const showRows = () => {
    const first = Math.max(0, Math.floor(view.scrollTop / ROW) - 5);
    const shown = rows.slice(first, first + Math.ceil(view.clientHeight / ROW) + 10);
    body.replaceChildren(...shown.map((cells, index) => element("a", { class: "grid-row", role: "row", href: `#/${study}/trial/${cells[NUMBER]}`, style: { top: `${(first + index) * ROW}px`, gridTemplateColumns: widths } },
      table.columns.map((name, at) => element("span", { class: at === STATE ? table.stateOf(cells[NUMBER]) : null, title: typeof cells[at] === "string" ? cells[at] : null }, cell(name, cells[at]))))));
    body.style.minWidth = `${head.scrollWidth}px`;
  };
  const select = (keeps = false) => {
    try { rows = table.selected({ filter: filter.value, ...look }, now); say(null); } catch (error) { say(error); return; }
    count.textContent = rows.length === table.rows.size ? number(rows.length) : `${number(rows.length)} of ${number(table.rows.size)}`;
    if (!keeps) { view.scrollTop = 0; measure(); }
    showHead();
    body.style.height = `${rows.length * ROW}px`;
    showRows();
  };
  let waiting = 0;
  filter.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(select, 250); });
  csv.addEventListener("click", () => save(toCsv(table.columns, rows), "trials.csv"));
  let frame = 0;
  view.addEventListener("scroll", () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(showRows); });
  select();
  return {
    async update(newest, isNew) {
      const isOther = isNew || newest.is_alive !== now.is_alive;
      now = newest;
      if (isNew) await table.refresh();
      if (isOther) select(true);
    },
  };
};
