// What a study has cost, and who ran what when: a part of reports, whose drawings are in the file.
"use strict";

const drawn = document.getElementById("costs");
drawn?.remove();

// The words of a <title> are shown at once, also on a touch screen; without this, browsers show them later.
const tip = document.getElementById("tip");
for (const title of drawn?.querySelectorAll("svg.dt title") || []) {
  const owner = title.parentNode;
  owner.setAttribute("aria-label", title.textContent);
  owner.dataset.tip = title.textContent;
  title.remove();
}
const show = (event) => {
  const owner = event.target.closest("[data-tip]");
  tip.hidden = !owner;
  if (!owner) return;
  tip.textContent = owner.dataset.tip;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4))}px`;
  const below = event.clientY + 18;
  tip.style.top = `${below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : below}px`;
};
for (const event of ["pointermove", "pointerdown", "pointerleave"]) drawn?.addEventListener(event, show);

export const costs = (place) => { place.append(drawn); return {}; };
