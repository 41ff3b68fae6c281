"use strict";
// The words of a <title> are shown at once, also on a touch screen; without this, browsers show them later.
const tip = document.getElementById("tip");
for (const title of document.querySelectorAll("svg.dt title")) {
  const owner = title.parentNode;
  owner.setAttribute("aria-label", title.textContent);
  owner.dataset.tip = title.textContent;
  title.remove();
}
const show = (event) => {
  const owner = event.target.closest && event.target.closest("[data-tip]");
  tip.hidden = !owner;
  if (!owner) return;
  tip.textContent = owner.dataset.tip;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4)) + "px";
  const below = event.clientY + 18;
  tip.style.top = (below + box.height > innerHeight ? event.clientY - box.height - 10 : below) + "px";
};
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
document.addEventListener("scroll", () => { tip.hidden = true; }, true);

// A click on a heading sorts by its column: numbers by size, words by the alphabet.
const value = (row, column) => {
  const cell = row.cells[column];
  const text = cell.dataset.sort === undefined ? cell.textContent.trim() : cell.dataset.sort;
  const figure = Number(text.replaceAll(",", ""));
  return text === "" || Number.isNaN(figure) ? text : figure;
};
const order = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
for (const head of document.querySelectorAll(".trials th")) {
  head.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows];
    rows.sort((a, b) => {
      const [left, right] = [value(a, head.cellIndex), value(b, head.cellIndex)];
      return left === "" || right === "" ? (left === "") - (right === "") : (up ? 1 : -1) * order(left, right);
    });
    body.append(...rows);
  });
}

// The filter keeps the rows that hold all its words; the CSV file holds the rows that are shown.
const table = document.querySelector(".trials");
if (table) {
  const filter = document.getElementById("filter");
  const rows = [...table.tBodies[0].rows];
  const texts = new Map(rows.map((row) => [row, [...row.cells].flatMap((cell) => [cell.textContent, cell.dataset.sort]).join(" ").toLowerCase()]));
  const sift = () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => texts.get(row).includes(word));
    const count = rows.filter((row) => !row.hidden).length;
    document.getElementById("shown").textContent = `${count.toLocaleString("en")} shown`;
  };
  const plain = (cell) => (cell.dataset.sort === undefined ? cell.textContent.trim() : cell.dataset.sort);
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  filter.addEventListener("input", sift);
  document.getElementById("csv").addEventListener("click", () => {
    const shown = [table.tHead.rows[0], ...[...table.tBodies[0].rows].filter((row) => !row.hidden)];
    const text = shown.map((row) => [...row.cells].map((cell) => quoted(plain(cell))).join(",") + "\n").join("");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = "trials.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  document.querySelector(".tools").hidden = false;
  sift();
}
