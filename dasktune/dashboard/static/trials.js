// The table of all trials: rows are fetched and made only where the reader looks.
"use strict";
import { api, download, element, moment, number } from "./api.js";

const ROW = 30, PAGE = 100;

export const trials = async (place, { study, words, say }) => {
  const filter = element("input", { type: "search", value: words[0] || "", placeholder: "filter: lr>0.01 state=COMPLETE adam", "aria-label": "Filter" });
  const csv = element("button", { type: "button" }, "CSV");
  const count = element("span", { class: "soft" });
  const head = element("div", { class: "grid-head", role: "row" });
  const body = element("div", { style: { position: "relative" } });
  const table = element("div", { class: "table", role: "table", tabindex: 0, "aria-label": "Trials" }, head, body);
  place.append(element("section", { class: "card" }, element("div", { class: "tools" }, element("h2", {}, "Trials"), filter, count, csv), table));
  const look = { sort: "number", descending: "0" };
  let pages = new Map(), columns = [], total = 0, turn = 0;
  const query = () => ({ filter: filter.value, ...look });

  const fetchPage = async (index) => {
    if (pages.has(index)) return;
    pages.set(index, null);
    const now = turn;
    const answer = await api(`trials/${study}`, { ...query(), offset: index * PAGE, limit: PAGE });
    if (now !== turn) return;
    pages.set(index, answer.rows);
    total = answer.count;
    count.textContent = answer.count === answer.total ? number(answer.total) : `${number(answer.count)} of ${number(answer.total)}`;
    body.style.height = `${total * ROW}px`;
    if (String(answer.columns) !== String(columns)) { columns = answer.columns; measure(answer.rows); showHead(); }
    showRows();
  };
  const cell = (name, value) => (name === "ended" ? moment(value) : name === "number" ? String(value) : number(value));
  // Each row is a grid of its own, so the widths of the columns follow from the first rows fetched.
  let widths = "";
  const measure = (rows) => {
    const longest = (index) => Math.max(columns[index].length + 2, ...rows.map((cells) => cell(columns[index], cells[index]).length));
    widths = columns.map((_, index) => `minmax(${Math.max(64, Math.min(280, 8 * longest(index) + 22))}px, ${Math.max(64, Math.min(280, 8 * longest(index) + 22))}fr)`).join(" ");
  };
  const showHead = () => {
    head.style.gridTemplateColumns = widths;
    head.replaceChildren(...columns.map((name) => element("button", { type: "button", title: name, "data-sorted": look.sort === name ? (look.descending === "1" ? "down" : "up") : null,
      on: { click: () => { look.descending = look.sort === name && look.descending === "0" ? "1" : "0"; look.sort = name; again(); } } }, name)));
  };
  const showRows = () => {
    const first = Math.max(0, Math.floor(table.scrollTop / ROW) - 5);
    const last = Math.min(total, first + Math.ceil(table.clientHeight / ROW) + 10);
    const rows = [];
    for (let at = first; at < last; at += 1) {
      const page = pages.get(Math.floor(at / PAGE));
      if (page === undefined) fetchPage(Math.floor(at / PAGE)).catch(say);
      const cells = page && page[at % PAGE];
      if (cells) rows.push(element("a", { class: "grid-row", role: "row", href: `#/${study}/trial/${cells[0]}`, style: { top: `${at * ROW}px`, gridTemplateColumns: widths } },
        columns.map((name, index) => element("span", { class: name === "state" ? cells[index] : null, title: typeof cells[index] === "string" ? cells[index] : null }, cell(name, cells[index])))));
    }
    body.replaceChildren(...rows);
    body.style.minWidth = `${head.scrollWidth}px`;
  };
  const again = async (keeps = false) => {
    turn += 1;
    pages = new Map();
    if (!keeps) table.scrollTop = 0;
    try { await fetchPage(Math.floor(Math.max(0, Math.floor(table.scrollTop / ROW) - 5) / PAGE)); say(null); showHead(); } catch (error) { say(error); }
  };
  let waiting = 0;
  filter.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(again, 250); });
  csv.addEventListener("click", () => download(`csv/${study}`, query(), "trials.csv").catch(say));
  let frame = 0;
  table.addEventListener("scroll", () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(showRows); });
  await again();
  return { async update(_, isNew) { if (isNew) await again(true); } };
};
