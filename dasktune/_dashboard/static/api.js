// Answers to the page's questions, from the server or from the file itself, and small functions that all parts share.
"use strict";

const KEPT = "dasktune-token";

// A report is this page with the answers in it: nothing can change, and some answers are left out.
const saved = document.getElementById("answers");
export const isSaved = saved !== null;
const answers = isSaved && JSON.parse(saved.textContent);
const savedAnswer = (path, query) => {
  const question = Object.entries(query).map(([name, value]) => `${name}=${value}`).join("&");
  const answer = answers[question ? `${path}?${question}` : path];
  if (answer === undefined) throw new Error(answers.left_out || `this report has no answer to ${path}`);
  return answer;
};

// The token comes after the # of the address, which browsers never send; it stays in this tab.
export const takeToken = () => {
  const match = /token=([\w-]+)/.exec(location.hash);
  if (match) {
    sessionStorage.setItem(KEPT, match[1]);
    const rest = location.hash.replace(/[#&]?token=[\w-]+&?/, "").replace(/^#/, "");
    history.replaceState(null, "", rest.startsWith("/") ? `#${rest}` : "#/");
  }
  return sessionStorage.getItem(KEPT);
};

export class Refused extends Error {}

const request = async (question, options = {}) => {
  const headers = { "X-Dasktune-Token": sessionStorage.getItem(KEPT) || "", ...options.headers };
  const answer = await fetch(`api/${question}`, { ...options, headers });
  if (answer.status === 401) throw new Refused("the token is missing or wrong");
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({ error: answer.statusText }));
    throw new Error(error || answer.statusText);
  }
  return answer;
};

export const api = async (path, query = {}) => {
  if (isSaved) return savedAnswer(path, query);
  const words = new URLSearchParams(query).toString();
  return (await request(words ? `${path}?${words}` : path)).json();
};
export const change = async (path, document) =>
  (await request(`change/${path}`, { method: "POST", body: JSON.stringify(document) })).json();

export const save = (text, name) => {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};

// Texts become text nodes: nothing from the database is ever read as HTML.
export const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (key === "style") Object.assign(made.style, value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
};

// Numbers and times are written here: the first toLocaleString() of a page takes 100 ms.
export const number = (value) => {
  if (value === null || value === undefined) return "—";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return Math.abs(value) < 1e21 ? String(value).replace(/\B(?=(\d{3})+$)/g, ",") : String(value);
  return String(Number(value.toPrecision(5)));
};

export const duration = (seconds) => {
  if (seconds === null || seconds === undefined) return "—";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  for (const [size, unit, part, rest] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"]])
    if (whole >= size) return `${Math.floor(whole / size)} ${unit} ${Math.floor((whole % size) / part)} ${rest}`;
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
};

export const moment = (seconds) => {
  if (!seconds) return "—";
  const local = new Date(seconds * 1000);
  local.setMinutes(local.getMinutes() - local.getTimezoneOffset());
  return local.toISOString().slice(0, 19).replace("T", " ");
};

// The caller yields to the browser, so that several plots are several short tasks.
export const breathe = () => new Promise((done) => setTimeout(done, 0));

// A file within this file: compressed, and written as base64.
export const unpacked = async (id) => {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Blob([await new Response(stream).arrayBuffer()], { type: "text/javascript" });
};

export const plural = (amount, noun, several = `${noun}s`) => `${number(amount)} ${amount === 1 ? noun : several}`;
