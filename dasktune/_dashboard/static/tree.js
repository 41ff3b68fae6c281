// The stage tree: folded where nothing is shared, drawn on a canvas as far as it is in view.
"use strict";
import { api, element, number, plural } from "./api.js";

const [ROW, LEFT, RIGHT, TOP] = [22, 10, 190, 30];
const MANY = 4;
const SHADES = ["s1", "s2", "s3", "s4", "s5"];

export const tree = async (place, { study }) => {
  const canvas = element("canvas", { role: "img", tabindex: 0 });
  const view = element("div", { class: "table", style: { border: "0" } }, canvas);
  const tip = document.getElementById("tip");
  const zoom = element("input", { type: "range", min: 1, max: 40, step: 0.1, value: 1, "aria-label": "Zoom" });
  const from = element("input", { type: "range", min: 0, max: 1, step: 0.001, value: 0, "aria-label": "First step" });
  const unfold = element("button", { type: "button" }, "unfold all");
  const fold = element("button", { type: "button" }, "fold");
  const note = element("p", { class: "under", id: "tree-words" }, "Loading…");
  const spacer = element("div");
  place.append(element("section", { class: "card" }, element("div", { class: "tools" }, element("h2", {}, "Stage tree"),
    element("label", {}, "zoom", zoom), element("label", {}, "from", from), unfold, fold), note, view));
  view.append(spacer);
  let data = null, children = [], tops = [], open = new Set(), rows = 0, items = [], end = 1, shades = {};

  const load = async () => {
    data = await api(`tree/${study}`);
    const count = data.parent.length;
    children = Array.from({ length: count }, () => []);
    tops = [];
    data.parent.forEach((above, at) => (above < 0 ? tops : children[above]).push(at));
    const turn = (a, b) => (data.trials[a][0] ?? 0) - (data.trials[b][0] ?? 0);
    tops.sort(turn);
    for (const below of children) below.sort(turn);
    end = data.stop.reduce((most, stop) => Math.max(most, stop), 1);
    const shared = data.passing.filter((trials) => trials > 1).length;
    note.textContent = `${plural(count, "stage")} of ${plural(data.count, "trial")}: ${shared ? `${number(shared)} serve several trials` : "nothing is shared, so the trials are folded"}. Bars are stronger the more trials share them. Branches of one trial each are folded; a click opens them, or a trial's page.`;
    arrange();
  };
  // Rows from the top: branches of one trial each become one row where there are many.
  const arrange = () => {
    items = [];
    rows = 0;
    const stack = [];
    const push = (list, key) => {
      const alone = list.filter((at) => data.passing[at] <= 1 && !children[at].length);
      const isFolded = alone.length >= MANY && !open.has(key);
      const shown = isFolded ? list.filter((at) => data.passing[at] > 1 || children[at].length) : list;
      if (isFolded) stack.push({ folded: alone, key });
      for (let at = shown.length - 1; at >= 0; at -= 1) stack.push({ node: shown[at] });
    };
    push(tops, -1);
    while (stack.length) {
      const { node, folded, key } = stack.pop();
      if (folded) {
        const [start, stop] = folded.reduce(([a, b], at) => [Math.min(a, data.start[at]), Math.max(b, data.stop[at])], [Infinity, 0]);
        items.push({ folded, key, row: rows, start, stop });
        rows += 1;
        continue;
      }
      const below = children[node];
      items.push({ node, row: rows, start: data.start[node], stop: data.stop[node] });
      if (below.length) push(below, node);
      // The first branch goes on in the row of its stem.
      if (!below.length) rows += 1;
    }
    spacer.style.height = `${rows * ROW + TOP + 10}px`;
    view.style.height = `min(${rows * ROW + TOP + 24}px, 75vh)`;
    const css = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    css.setAttribute("class", "dt");
    document.body.append(css);
    for (const name of [...SHADES, "rest"]) {
      const mark = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      mark.setAttribute("class", name);
      css.append(mark);
      shades[name] = getComputedStyle(mark).fill;
    }
    css.remove();
    draw();
  };
  const scale = () => {
    const width = view.clientWidth - LEFT - (innerWidth < 700 ? 90 : RIGHT);
    const shown = end / Number(zoom.value);
    const first = Number(from.value) * (end - shown);
    return { x: (step) => LEFT + (width * (step - first)) / shown, first, shown, width };
  };
  const shadeOf = (trials) => SHADES[trials < 2 ? 0 : Math.min(4, 1 + Math.floor((3.99 * Math.log(trials / 2 + 0.01)) / Math.log(Math.max(2.1, data.count / 2))))] || SHADES[1];
  const draw = () => {
    const ratio = devicePixelRatio || 1;
    const [width, height] = [view.clientWidth, view.clientHeight];
    Object.assign(canvas, { width: width * ratio, height: height * ratio });
    Object.assign(canvas.style, { position: "sticky", top: 0, width: `${width}px`, height: `${height}px`, marginBottom: `-${height}px` });
    canvas.setAttribute("aria-label", note.textContent);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const look = getComputedStyle(document.documentElement);
    const [ink, soft, edge] = ["--ink", "--soft", "--edge"].map((name) => look.getPropertyValue(name));
    const { x, first, shown, width: inner } = scale();
    const offset = view.scrollTop;
    const y = (row) => TOP + row * ROW - offset;
    pen.font = "11px system-ui, sans-serif";
    pen.strokeStyle = edge;
    pen.fillStyle = soft;
    const unit = 10 ** Math.floor(Math.log10(shown / 5 || 1));
    const tick = Math.max(1, [1, 2, 5, 10].map((each) => each * unit).find((each) => shown / each <= 10) || 1);
    for (let step = Math.ceil(first / tick) * tick; step <= first + shown; step += tick) {
      pen.beginPath(); pen.moveTo(x(step), TOP - 4); pen.lineTo(x(step), height); pen.stroke();
      pen.fillText(number(step), x(step) - 4, 12);
    }
    pen.fillText("step", x(first + shown) + 12, 12);
    pen.save();
    pen.beginPath(); pen.rect(0, TOP - 6, width, height); pen.clip();
    const rowOf = new Map(items.filter((item) => item.node !== undefined).map((item) => [item.node, item.row]));
    for (const item of items) {
      const above = item.node === undefined ? item.key : data.parent[item.node];
      const at = y(item.row);
      const aboveRow = above >= 0 ? rowOf.get(above) : item.row;
      if (at < -ROW && y(aboveRow) < -ROW) continue;
      if (y(aboveRow) > height + ROW) continue;
      if (aboveRow !== item.row) { pen.strokeStyle = soft; pen.beginPath(); pen.moveTo(x(item.start), y(aboveRow) + ROW / 2); pen.lineTo(x(item.start), at + ROW / 2); pen.stroke(); }
      if (at < -ROW || at > height) continue;
      const [left, right] = [Math.max(x(item.start), -5), Math.min(x(item.stop), LEFT + inner + 2)];
      if (item.folded) {
        pen.fillStyle = shades.rest;
        pen.fillRect(left, at + 4, Math.max(3, right - left), ROW - 8);
        pen.fillStyle = ink;
        pen.fillText(`+ ${plural(item.folded.length, "trial")}`, right + 7, at + 15);
        continue;
      }
      const trained = Math.min(x(data.trained[item.node]), LEFT + inner + 2);
      if (trained > left) { pen.fillStyle = shades[shadeOf(data.passing[item.node])]; pen.fillRect(left, at + 4, Math.max(2, trained - left - 1), ROW - 8); }
      if (trained < right) { pen.strokeStyle = soft; pen.setLineDash([3, 2]); pen.strokeRect(Math.max(left, trained) + 0.5, at + 4.5, Math.max(1, right - Math.max(left, trained) - 2), ROW - 9); pen.setLineDash([]); }
      if (!children[item.node].length && data.trials[item.node].length) {
        const [one] = data.trials[item.node];
        const more = data.passing[item.node] - 1;
        pen.fillStyle = ink;
        pen.fillText(`trial ${one}${more > 0 ? ` and ${more} more` : ""}`, right + 7, at + 15);
      }
    }
    pen.restore();
  };
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top + view.scrollTop - TOP) / ROW);
    const { x } = scale();
    const at = event.clientX - box.left;
    const inRow = items.filter((item) => item.row === row);
    return inRow.find((item) => x(item.start) <= at && at <= x(item.stop)) || inRow.filter((item) => at > x(item.stop)).pop();
  };
  const words = (item) => {
    if (item.folded) return `${plural(item.folded.length, "trial")} that share nothing below: ${item.folded.slice(0, 12).map((at) => data.trials[at][0]).join(", ")}…\na click unfolds them`;
    const at = item.node;
    const more = data.passing[at] - data.trials[at].length;
    return `steps ${number(item.start)} to ${number(item.stop)}, trained to ${number(data.trained[at])}\n${plural(data.passing[at], "trial")}: ${data.trials[at].join(", ")}${more > 0 ? ` and ${more} more` : ""}\n${data.values[at]}`;
  };
  canvas.addEventListener("pointermove", (event) => {
    const item = under(event);
    tip.hidden = !item;
    canvas.style.cursor = item ? "pointer" : "";
    if (!item) return;
    tip.textContent = words(item);
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - 370))}px`;
    tip.style.top = `${event.clientY + 18}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => {
    const item = under(event);
    if (!item) return;
    tip.hidden = true;
    if (item.folded) { open.add(item.key); arrange(); } else if (data.trials[item.node].length) location.hash = `#/${study}/trial/${data.trials[item.node][0]}`;
  });
  unfold.addEventListener("click", () => { open = new Set([-1, ...data.parent.keys()]); arrange(); });
  fold.addEventListener("click", () => { open = new Set(); arrange(); });
  let frame = 0;
  const soon = () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(draw); };
  for (const input of [zoom, from]) input.addEventListener("input", soon);
  view.addEventListener("scroll", soon);
  new ResizeObserver(soon).observe(view);
  await load();
  let last = Date.now();
  return { async update(_, isNew) { if (isNew && Date.now() - last > 10000) { last = Date.now(); await load(); } } };
};
