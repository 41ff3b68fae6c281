// Requests with the token, and small functions that all parts of the page share.
"use strict";

const KEPT = "dasktune-token";

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

const request = async (path, query, options = {}) => {
  const words = new URLSearchParams(query).toString();
  const headers = { "X-Dasktune-Token": sessionStorage.getItem(KEPT) || "", ...options.headers };
  const answer = await fetch(`api/${path}${words ? `?${words}` : ""}`, { ...options, headers });
  if (answer.status === 401) throw new Refused("the token is missing or wrong");
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({ error: answer.statusText }));
    throw new Error(error || answer.statusText);
  }
  return answer;
};

export const api = async (path, query) => (await request(path, query)).json();
export const download = async (path, query, name) => {
  const url = URL.createObjectURL(await (await request(path, query)).blob());
  const link = element("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};
export const change = async (path, document) =>
  (await request(`change/${path}`, {}, { method: "POST", body: JSON.stringify(document) })).json();

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

export const number = (value) => {
  if (value === null || value === undefined) return "—";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
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

export const moment = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString() : "—");

// The caller yields to the browser, so that several plots are several short tasks.
export const breathe = () => new Promise((done) => setTimeout(done, 0));

export const plural = (amount, noun, several = `${noun}s`) => `${number(amount)} ${amount === 1 ? noun : several}`;
