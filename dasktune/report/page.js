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
    rows.sort((a, b) => (up ? 1 : -1) * order(value(a, head.cellIndex), value(b, head.cellIndex)));
    body.append(...rows);
  });
}
