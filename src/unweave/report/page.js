"use strict";
// Draws every chart into its place. The tooltip shows text only: no string of the result is ever read as HTML.
(async () => {
  const { config, specs } = JSON.parse(document.getElementById("charts").textContent);
  const tip = document.getElementById("tip");

  const hide = () => { tip.hidden = true; };

  const show = (handler, event, item, value) => {
    if (value === null || value === undefined || value === "") return hide();
    const list = document.createElement("dl");
    for (const [name, text] of Object.entries(value)) {
      const term = list.appendChild(document.createElement("dt"));
      const detail = list.appendChild(document.createElement("dd"));
      term.textContent = name;
      detail.textContent = String(text);
    }
    tip.replaceChildren(list);
    tip.hidden = false;
    const margin = 12;
    const left = Math.min(event.clientX + margin, document.documentElement.clientWidth - tip.offsetWidth - margin);
    const above = event.clientY - tip.offsetHeight - margin;
    tip.style.left = `${Math.max(left, margin)}px`;
    tip.style.top = `${above > margin ? above : event.clientY + margin}px`;
  };

  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  const listed = () => document.querySelectorAll("details.on-paper");
  addEventListener("beforeprint", () => listed().forEach((element) => { element.open = true; }));
  addEventListener("afterprint", () => listed().forEach((element) => { element.open = false; }));
  document.addEventListener("scroll", hide, { passive: true });

  const options = {
    mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip: show, config,
  };
  for (const [id, spec] of Object.entries(specs)) {
    const place = document.getElementById(id);
    try {
      await vegaEmbed(place, spec, options);
    } catch (error) {
      place.textContent = "This chart could not be drawn; its numbers are in the table below.";
      console.error(error);
    }
  }
  document.documentElement.dataset.charts = "drawn";
})();
