// All kinds of failures, each with the user's own line first.
"use strict";
import { element } from "./api.js";
import { failure } from "./overview.js";

export const failures = async (place, { study, status }) => {
  let shown = "";
  const draw = (now) => {
    const text = JSON.stringify(now.failures);
    if (text === shown) return;
    shown = text;
    place.replaceChildren(element("section", { class: "card", id: "failed" }, element("h2", {}, "Failures"),
      now.failures.length ? now.failures.map((each) => failure(each, study)) : element("p", { class: "soft" }, "Nothing has failed.")));
  };
  draw(status);
  return { update: draw };
};
