// What the reader may change, if the page was started so: stop, retry, queue.
"use strict";
import { api, change, element, number, plural } from "./api.js";

// Sends a change, and says in a line what follows from it or why it is refused.
export const button = (words, question, act) => {
  const said = element("span", { class: "under", role: "status" });
  const made = element("button", { type: "button", on: { click: async () => {
    if (question && !confirm(question)) return;
    made.disabled = true;
    try { said.className = "under"; said.textContent = (await act()).said; }
    catch (error) { said.className = "bad"; said.textContent = error.message; }
    made.disabled = false;
  } } }, words);
  return element("p", { class: "tools" }, made, said);
};

const inputOf = (name, documents) => {
  const [domain] = documents;
  if (documents.length === 1 && domain.domain === "Choice") {
    const options = domain.options.map((option) => element("option", { value: JSON.stringify(option) }, String(option)));
    return element("select", { "aria-label": name }, element("option", { value: "" }, "drawn"), options);
  }
  const ranges = documents.map((each) => (each.domain === "Choice" ? each.options.join(", ") : `${number(each.low)} to ${number(each.high)}`));
  return element("input", { "aria-label": name, placeholder: ranges.join(" or ") });
};

const valueOf = (text) => {
  try { return JSON.parse(text); } catch { return text; }
};

export const changes = async (place, { study }) => {
  const { is_allowed: isAllowed, domains } = await api(`pending/${study}`);
  if (!isAllowed) return null;
  const waits = element("p", { class: "under", id: "pending" });
  const showWaits = async () => {
    const { queued, retry } = await api(`pending/${study}`);
    const words = [queued.length ? `${plural(queued.length, "trial")} queued for the next new tuner: ${queued.map((point) => JSON.stringify(point)).join(", ")}` : "", retry.length ? `${plural(retry.length, "failed trial")} for the next run to train again` : ""].filter(Boolean);
    waits.textContent = words.join("; ");
    clear.hidden = !queued.length;
  };
  const send = (name, document) => async () => { const answer = await change(`${name}/${study}`, document()); await showWaits(); return answer; };
  const fields = Object.entries(domains).map(([name, documents]) => [name, inputOf(name, documents)]);
  const params = () => Object.fromEntries(fields.filter(([, input]) => input.value.trim() !== "").map(([name, input]) => [name, valueOf(input.value.trim())]));
  const clear = button("Forget the queue", null, send("unqueue", () => ({})));
  const stop = button("Stop the run", "Save what runs, and end the run?", send("stop", () => ({})));
  const again = button("Train failed trials again", null, send("retry", () => ({})));
  const queue = fields.length ? [element("h3", {}, "Queue a trial"), element("p", { class: "under" }, "The next new tuner that draws configurations tries it first. Empty fields are drawn."),
    element("div", { class: "tools" }, fields.map(([name, input]) => element("label", {}, name, input))), button("Queue it", null, send("enqueue", () => ({ params: params() })))] : [];
  place.append(element("section", { class: "card", id: "changes" }, element("h2", {}, "Change this study"), waits, stop, again, queue, clear));
  const update = (status) => { stop.hidden = !status.is_alive; again.hidden = !status.trials.FAIL; };
  await showWaits();
  update(await api(`overview/${study}`));
  return { update };
};
