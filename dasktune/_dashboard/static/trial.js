// The page of one trial: sequences, curves, error, stages, and the lineage of its states.
"use strict";
import { api, breathe, change, duration, element, moment, number, plural } from "./api.js";
import { button } from "./changes.js";
import { PALETTE, plot, source, tools } from "./charts.js";
import { keepOpen } from "./overview.js";

const rows = (head, lines) => element("div", { class: "scroll" }, element("table", {},
  element("thead", {}, element("tr", {}, head.map((word) => element("th", {}, word)))),
  element("tbody", {}, lines.map((cells) => element("tr", {}, cells.map((cell) => element("td", { class: "n" }, cell)))))));
const card = (title, ...parts) => element("section", { class: "card" }, element("h2", {}, title), parts);
const terms = (pairs) => element("dl", {}, pairs.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
const links = (study, numbers, more) => [numbers.map((each, at) => [at ? ", " : "", element("a", { href: `#/${study}/trial/${each}` }, String(each))]), more > 0 ? ` and ${number(more)} more` : ""];

// The server has escaped all texts of its drawing; scripts would be refused by the policy as well.
const drawing = (markup) => {
  const parsed = new DOMParser().parseFromString(markup, "text/html").querySelector("svg");
  return parsed ? element("div", { class: "scroll" }, document.adoptNode(parsed)) : null;
};

export const trial = async (place, { study, status, words, say }) => {
  const wanted = Number(words[0]);
  const chart = element("div", { class: "chart" });
  const lineage = element("div");
  const { is_allowed: isAllowed } = await api(`pending/${study}`);
  let shown = null;

  // The trials, of other studies too, for which a stage was trained: its log is theirs as well.
  const sharers = (each) => {
    const others = each.trials.filter((trial) => each.study_id !== study || trial !== wanted);
    return others.length ? ["shared with ", links(each.study_id, others, 0), each.study_id === study ? "" : ` of ${each.study}`] : "for this trial";
  };
  const draw = async () => {
    shown = await api(`trial/${study}`, { number: wanted });
    const [where, line] = (shown.frames || "").split("\n");
    const failed = shown.state === "FAIL" && element("section", { class: "card", id: "error-of-trial" }, element("h2", { class: "bad" }, shown.message || "failed"),
      where && element("p", {}, element("code", {}, line || ""), element("span", { class: "under" }, ` ${where}`)),
      shown.traceback && element("details", {}, element("summary", {}, "traceback"), element("pre", {}, shown.traceback)),
      isAllowed && button("Train it again", null, () => change(`retry/${study}`, { trials: [wanted] })));
    const step = (at) => element("button", { type: "button", "aria-label": at < 0 ? "trial before" : "next trial", on: { click: () => { location.hash = `#/${study}/trial/${Math.max(0, wanted + at)}`; } } }, at < 0 ? "‹" : "›");
    const attributes = Object.entries(shown.user_attrs);
    const head = element("section", { class: "card" },
      element("div", { class: "tools" }, element("h2", {}, `Trial ${wanted} `, element("span", { class: shown.state }, status.state_words[shown.state])), step(-1), step(1)),
      terms([["value", (shown.values || []).map(number).join(", ") || "—"], ["steps", `${number(shown.steps)} of ${number(shown.max_steps)}`],
        ...(shown.until === null ? [] : [["asked for up to", number(shown.until)]]), ...(shown.seed ? [["seed", String(shown.seed)]] : []),
        ...Object.entries(shown.params).map(([name, value]) => [name, element("code", {}, value)]),
        ...attributes.map(([name, value]) => [name, JSON.stringify(value)])]));
    const sequences = card("Hyper-parameters by step", terms(Object.entries(shown.sequences).map(([name, text]) => [name, element("code", {}, text)])), shown.plot ? drawing(shown.plot) : element("p", { class: "under" }, "None of them changes."));
    const stages = card("Stages on its path", element("p", { class: "under" }, "All studies of the database that trained its states."),
      rows(["steps", "study", "for trials", "ended", "took", "worker", "status"], shown.stages.map((each) => [`${number(each.start)} to ${number(each.start + each.steps)}`, each.study,
        links(each.study_id, each.trials, 0), moment(each.ended), each.ended && each.started ? duration(each.ended - each.started) : "—", `${each.worker} ${each.kind}`, each.message ? element("span", { class: "bad" }, `${each.status}: ${each.message}`) : each.status])));
    const states = card("Stored states", shown.states.length ? rows(["step", "made by study", "on", "last used", "used now by", "size", "key"], shown.states.map((each) => [number(each.step), each.study || "—", moment(each.created), moment(each.used), element("span", { "data-used-at": each.step }, "…"), `${number(each.nbytes)} B`, element("code", {}, each.key.slice(0, 16))])) : element("p", { class: "under" }, "None is stored any more, or yet."));
    stages.id = "stages";
    const printed = shown.stages.filter((each) => each.log);
    const logs = card("Log", element("p", { class: "under" }, printed.length ? "What its stages printed, the last lines of each. Trials that share a stage share its log." : "Its stages have printed nothing."),
      printed.map((each, at) => element("details", { "data-key": `${each.started}|${each.worker}`, open: at === printed.length - 1 },
        element("summary", {}, `steps ${number(each.start)} to ${number(each.start + each.steps)}, ${each.status} `, element("span", { class: "under" }, sharers(each), ` on ${each.worker}`)),
        element("pre", {}, each.log))));
    logs.id = "logs";
    keepOpen(place, [head, ...(failed ? [failed] : []), element("div", { class: "two" }, element("section", { class: "card" }, element("h2", {}, "Curves"), chart), sequences), logs, lineage, stages, states]);
    await breathe();
    await showCurves();
  };
  const showCurves = async () => {
    const named = Object.entries(shown.curves).filter(([, [steps]]) => steps.length);
    if (!named.length) { chart.replaceChildren(element("p", { class: "soft" }, "No reports yet.")); return; }
    const parts = named.map(() => element("div"));
    chart.replaceChildren(...parts);
    for (const [at, [name, [steps, values]]] of named.slice(0, 6).entries()) {
      await breathe();
      await plot(parts[at], { yLabel: name, xLabel: at === named.length - 1 ? "step" : "", height: named.length > 1 ? 190 : 300 }, (figure) => {
        const data = source({ x: steps, y: values });
        const look = { x: { field: "x" }, y: { field: "y" }, source: data };
        figure.line({ ...look, line_color: PALETTE[at], line_width: 2 });
        const dots = figure.scatter({ ...look, size: 5, fill_color: PALETTE[at], line_color: null });
        tools(figure, [dots], [["step", "@x"], [name, "@y{0.[00000]}"]]);
      });
    }
  };
  const showLineage = async () => {
    const { users, compared, studies } = await api(`lineage/${study}`, { number: wanted });
    const others = studies - compared.length;
    const scope = element("p", { class: "under" }, `States are the same where code, config, data and seed are: looked at ${plural(compared.length, "study", "studies")} of this trainer (${compared.join(", ")})`,
      others ? `; ${plural(others, "study", "studies")} of other code or data can share no state with it.` : ": all of the database that are shown.");
    const shared = users.filter((each) => each.study_id !== study || each.trials > 1);
    const section = card("Who uses its states now", shared.length
      ? rows(["steps", "study", "trials"], shared.map((each) => [`${number(each.start)} to ${number(each.stop)}`, each.study, [`${number(each.trials)}: `, links(each.study_id, each.first, each.trials - each.first.length)]]))
      : element("p", { class: "under" }, "Only this trial."), scope);
    for (const cell of place.querySelectorAll("[data-used-at]")) {
      const step = Number(cell.dataset.usedAt);
      const through = users.filter((each) => each.start < step && step <= each.stop);
      cell.textContent = through.length ? through.map((each) => `${plural(each.trials, "trial")} of ${each.study}`).join(", ") : "nobody";
    }
    section.id = "lineage";
    lineage.replaceChildren(section);
  };
  const showPrediction = async () => {
    const { why, metric, trials, steps, medians, intervals } = await api(`prediction/${study}`, { number: wanted });
    if (why) return;
    const part = element("div", { id: "prediction" });
    chart.append(element("h3", {}, `Predicted ${metric}`), element("p", { class: "under" }, `The median, and the spans that hold it with 50% and 95% probability, from ${plural(trials, "trial")}`), part);
    await plot(part, { yLabel: metric, xLabel: "step", height: 230 }, (figure) => {
      for (const { ends } of [...intervals].reverse())
        figure.varea({ x: steps, y1: ends.map(([low]) => low), y2: ends.map(([, high]) => high), fill_color: PALETTE[1], fill_alpha: 0.22 });
      figure.line({ x: steps, y: medians, line_color: PALETTE[1], line_width: 2, line_dash: [6, 3] });
      const [known, values] = shown.curves[metric] || [[], []];
      figure.line({ x: known, y: values, line_color: PALETTE[0], line_width: 2 });
    });
  };
  await draw();
  showLineage().catch(say);
  if (shown.steps < shown.max_steps && shown.state !== "FAIL") showPrediction().catch(say);
  return { async update(_, isNew) { if (isNew && shown.state === "RUNNING") await draw(); } };
};
