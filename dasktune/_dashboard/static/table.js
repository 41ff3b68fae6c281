// All trials of a study: rows that are brought up to date by what has changed, filtered and sorted here.
"use strict";
import { api, isSaved } from "./api.js";

// The places of columns that have the same place in every study; those of values follow them, the end is last.
export const [NUMBER, STATE, STEPS, VALUES] = [0, 1, 2, 3];

const TERM = /^([^<>=!]+)(<=|>=|!=|==|=|<|>)(.*)$/;
const COMPARE = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b };
const textOf = (cell) => (cell === null ? "" : String(cell));
const numberOf = (cell) => (typeof cell === "number" ? cell : typeof cell === "string" && cell.trim() !== "" && !Number.isNaN(Number(cell)) ? Number(cell) : null);
const isEqual = (cell, text) => (typeof cell === "number" && numberOf(text) !== null ? cell === numberOf(text) : textOf(cell).toLowerCase() === text.toLowerCase());

export const placeOf = (name, columns) => {
  const at = columns.indexOf(name);
  if (at < 0) throw new Error(`unknown column '${name}'; known: ${columns.join(", ")}`);
  return at;
};

// The conditions of a filter such as `lr>0.01 state="waiting to go on" adam`; a row must meet them all.
export const conditions = (text, columns) => (text.match(/(?:"[^"]*"|[^\s"])+/g) || []).map((quoted) => {
  const word = quoted.replaceAll('"', "");
  const [, name, sign, given] = TERM.exec(word) || [];
  if (name === undefined) return (cells) => cells.some((cell) => textOf(cell).toLowerCase().includes(word.toLowerCase()));
  const at = placeOf(name, columns);
  if (!(sign in COMPARE)) return (cells) => isEqual(cells[at], given) === (sign !== "!=");
  const bound = numberOf(given);
  if (bound === null) throw new Error(`${word}: a number must follow ${sign}, got '${given}'`);
  return (cells) => numberOf(cells[at]) !== null && COMPARE[sign](numberOf(cells[at]), bound);
});

// Rows by a column: numbers first, then texts; empty cells last in both directions.
export const sorted = (rows, at, isDescending) => {
  const keyOf = (cell) => (typeof cell === "number" ? cell : String(cell));
  const turn = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  const filled = rows.filter((cells) => cells[at] !== null).sort((a, b) => (isDescending ? -1 : 1) * turn(keyOf(a[at]), keyOf(b[at])));
  return [...filled, ...rows.filter((cells) => cells[at] === null)];
};

// A text that begins like a formula gets a quote before it, so that no spreadsheet runs it.
const csvOf = (cell) => {
  const text = typeof cell === "string" && /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : textOf(cell);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
export const toCsv = (columns, rows) => [columns, ...rows].map((cells) => `${cells.map(csvOf).join(",")}\r\n`).join("");

class Table {
  constructor(study) { Object.assign(this, { study, version: 0, columns: [], values: 0, rows: new Map() }); }

  // Reads what has changed; returns whether something has.
  async refresh() {
    if (isSaved && this.version) return false;
    const news = await api(`trials/${this.study}`, { since: this.version });
    if (this.version && String(news.columns) !== String(this.columns)) {
      Object.assign(this, { version: 0, rows: new Map() });
      return this.refresh();
    }
    Object.assign(this, { version: news.version, columns: news.columns, values: news.values });
    for (const cells of news.rows) this.rows.set(cells[NUMBER], cells);
    return news.rows.length > 0;
  }

  // The filtered and sorted rows; their states are those words that all parts of the page use.
  selected({ filter, sort, isDescending }, status) {
    const withdrawn = new Set(status.withdrawn.trials);
    const wordOf = (cells) => status.state_words[cells[STATE]] + (withdrawn.has(cells[NUMBER]) ? ", rests on a withdrawn metric" : "");
    const rows = [...this.rows.values()].map((cells) => cells.with(STATE, wordOf(cells)));
    const holds = conditions(filter, this.columns);
    return sorted(rows.filter((cells) => holds.every((test) => test(cells))), placeOf(sort, this.columns), isDescending);
  }

  stateOf(trial) { return this.rows.get(trial)[STATE]; }
}

// The table of a study that all parts of the page share, brought up to date.
const tables = new Map();
export const tableOf = async (study) => {
  if (!tables.has(study)) tables.set(study, new Table(study));
  const table = tables.get(study);
  await table.refresh();
  return table;
};
