// Routes of the page, the choice of the study, and the pulse that asks for changes.
"use strict";
import { Refused, api, element, isSaved, moment, number, takeToken } from "./api.js";
import { ready } from "./charts.js";
import { costs } from "./costs.js";
import { curves } from "./curves.js";
import { failures } from "./failures.js";
import { overview } from "./overview.js";
import { parameters } from "./parameters.js";
import { tree } from "./tree.js";
import { trial } from "./trial.js";
import { trials } from "./trials.js";

const PARTS = {
  overview: ["Overview", overview], curves: ["Curves", curves], parameters: ["Hyper-parameters", parameters],
  trials: ["Trials", trials], tree: ["Stage tree", tree], failures: ["Failures", failures], trial: ["", trial],
  ...(isSaved ? { costs: ["Costs", costs] } : {}),
};
const BUSY_SECONDS = 2, IDLE_SECONDS = 10;
const main = document.getElementById("main");
const picker = document.getElementById("study");
const title = document.getElementById("name");
const tabs = document.getElementById("tabs");
const pulse = document.getElementById("pulse");

// What is shown: its route, what the database last said, and the part that draws it.
const page = { study: null, name: "", words: [], status: null, part: null, version: -1, timer: 0, turn: 0, isLost: false };

const route = () => {
  const [study, name, ...words] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return { study: study ? Number(study) : null, name: name in PARTS ? name : "overview", words };
};

export const say = (error) => {
  document.getElementById("error")?.remove();
  if (error) main.prepend(element("div", { id: "error", role: "alert" }, error.message || String(error)));
};

const locked = () => {
  main.replaceChildren(document.getElementById("locked").content.cloneNode(true));
  main.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const given = event.target.address.value.trim();
    const token = (/token=([\w-]+)/.exec(given) || [null, given])[1];
    location.hash = `#token=${token}`;
    start();
  });
};

const attempt = async (work) => {
  try {
    await work();
    return true;
  } catch (error) {
    if (error instanceof Refused) locked();
    else say(error);
    return false;
  }
};

const showTabs = () => {
  tabs.replaceChildren(...Object.entries(PARTS).filter(([, [words]]) => words).map(([name, [words]]) =>
    element("a", { href: `#/${page.study}/${name}`, "aria-current": name === page.name ? "page" : null }, words)));
};

// The studies to choose from; of a page with several stores, with the store of each.
const showChoice = (studies) => {
  const isOfSeveral = new Set(studies.map((each) => each.database)).size > 1;
  picker.replaceChildren(...studies.map(({ id, study, database }) =>
    element("option", { value: id }, isOfSeveral ? `${study} (${database})` : study)));
};

// Each part of a study's page says which study it is: by the choice if there are several, else by its name.
const showName = (name) => {
  picker.hidden = isSaved || !name || picker.options.length < 2;
  title.hidden = isSaved || !name || !picker.hidden;
  title.textContent = title.title = name;
};

const showPulse = (status) => {
  if (isSaved) return;
  pulse.textContent = status.driver_words || "has not been run";
  pulse.title = pulse.textContent;
  pulse.className = status.is_alive ? "alive" : status.driver && ["failed", "dead"].includes(status.driver.state) ? "dead" : "";
};

const beat = async () => {
  clearTimeout(page.timer);
  const turn = page.turn;
  if (isSaved) return;
  if (page.study !== null && !document.hidden) {
    const isDone = await attempt(async () => {
      const status = await api(`overview/${page.study}`);
      if (turn !== page.turn) return;
      if (page.isLost) say(null);
      page.isLost = false;
      page.status = status;
      showPulse(status);
      const isNew = status.version !== page.version;
      page.version = status.version;
      await page.part?.update?.(status, isNew);
    });
    page.isLost ||= !isDone;
  }
  if (turn === page.turn) page.timer = setTimeout(beat, 1000 * (page.status?.is_alive ? BUSY_SECONDS : IDLE_SECONDS));
};

const show = async () => {
  const wanted = route();
  const turn = ++page.turn;
  if (wanted.study === null) {
    await attempt(listing);
    return;
  }
  Object.assign(page, wanted);
  picker.value = String(page.study);
  showTabs();
  const loading = element("p", { class: "soft", id: "loading", role: "status" }, "Loading…");
  main.replaceChildren(loading);
  await attempt(async () => {
    const status = await api(`overview/${page.study}`);
    if (turn !== page.turn) return;
    page.status = status;
    page.version = status.version;
    showPulse(status);
    document.title = `${status.study} · dasktune`;
    showName(status.study);
    const place = element("div");
    main.replaceChildren(loading, place);
    const [, make] = PARTS[page.name];
    page.part = await make(place, { study: page.study, status, words: page.words, say });
  });
  loading.remove();
  if (turn === page.turn) page.timer = setTimeout(beat, 1000 * BUSY_SECONDS);
};

const listing = async () => {
  clearTimeout(page.timer);
  const { studies, database } = await api("studies");
  showChoice(studies);
  if (studies.length === 1) {
    location.replace(`#/${studies[0].id}/overview`);
    return;
  }
  tabs.replaceChildren();
  pulse.textContent = "";
  pulse.className = "";
  Object.assign(page, { study: null, part: null, status: null });
  showName("");
  document.title = "dasktune";
  const isOfSeveral = new Set(studies.map((each) => each.database)).size > 1;
  const names = (each) => [element("td", {}, element("a", { href: `#/${each.id}/overview` }, each.study)),
    isOfSeveral && element("td", {}, each.database)];
  const rows = studies.map((each) => each.error ? element("tr", {}, names(each),
    element("td", { colspan: 5, class: "bad wrap" }, `cannot be read: ${each.error}`)) : element("tr", {}, names(each),
    element("td", { class: each.is_alive ? "alive-dot" : "" }, each.is_alive ? "runs" : ""),
    element("td", { class: "n" }, number(Object.values(each.trials).reduce((a, b) => a + b, 0))),
    element("td", {}, `${each.direction} ${each.metric}`),
    element("td", { class: "n" }, each.best ? number(each.best.value) : "—"),
    element("td", {}, moment(each.last_activity))));
  const head = ["study", ...(isOfSeveral ? ["database"] : []), "", "trials", "objective", "best", "last activity"].map((word) => element("th", {}, word));
  main.replaceChildren(element("section", { class: "card" },
    element("h2", {}, studies.length ? "Studies" : "This database holds no study yet"), element("p", { class: "under" }, database),
    element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, rows)))));
};

const start = async () => {
  if (!isSaved && !takeToken()) {
    locked();
    return;
  }
  ready().catch(say);
  await attempt(async () => {
    const { studies } = await api("studies");
    showChoice(studies);
    await show();
  });
};

picker.addEventListener("change", () => { location.hash = `#/${picker.value}/${page.name || "overview"}`; });
addEventListener("hashchange", () => (location.hash.includes("token=") ? start() : show()));
document.addEventListener("visibilitychange", () => { if (!document.hidden) beat(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
start();
