// The charts of a page share one range and one crosshair; below those of a node stand bands that show
// who ran when (`bands-data`, see scheduling/views/bands.py), on the same axis of time.
"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const [ROW, GAP, MIN_NAME] = [16, 3, 56];
  const [LANE, MOST_LANES] = [8, 14];
  const plots = () => [...document.querySelectorAll("[data-synced] .chart-plot")].filter((plot) => plot.data);

  const make = (name, attributes, text) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  // Times on the axis have no zone; as UTC they can be calculated with.
  const time = (text) => Date.parse(`${String(text).replace(" ", "T").slice(0, 23)}Z`);

  // ---------------------------------------------------------------- bands

  let source = { rows: {}, bands: [] };
  let readAt = 0;
  const readBands = () => {
    const element = document.getElementById("bands-data");
    if (!element) return;
    source = JSON.parse(element.textContent);
    readAt = Date.now();
  };
  // What still runs ends now, and now goes on.
  const endOf = (band) => (band.to ? time(band.to) : time(source.now) + Date.now() - readAt);

  // A row of many at one time is as high as it needs to be.
  const heightOf = (key) => {
    const parts = source.bands.filter((band) => band.places[key]).map(({ places }) => places[key][1] - places[key][0]);
    const lanes = key === "node" && parts.length ? Math.round(1 / Math.min(...parts)) : 1;
    return Math.max(ROW, LANE * Math.min(lanes, MOST_LANES));
  };

  const drawBand = (svg, band, [low, high], [y, tall], scale) => {
    const from = Math.max(scale(time(band.from)), scale.left);
    const to = Math.min(scale(endOf(band)), scale.right);
    if (to <= from) return;
    const height = (high - low) * tall;
    const top = y + tall - high * tall;
    const group = make(band.url ? "a" : "g", band.url ? { href: band.url, tabindex: "-1" } : {});
    group.append(make("title", {}, band.title));
    group.append(
      make("rect", { x: from, y: top, width: to - from, height, class: `part series-${band.series} round-${band.round}` }),
    );
    if (to - from > MIN_NAME && height >= 10) {
      const room = Math.floor((to - from - 8) / 6.5);
      const name = band.name.length > room ? `${band.name.slice(0, room - 1)}…` : band.name;
      group.append(make("text", { x: from + 4, y: top + height / 2 + 4 }, name));
    }
    svg.append(group);
  };

  const drawBands = (plot) => {
    const box = plot.closest(".charted")?.querySelector(".bands");
    const layout = plot._fullLayout;
    if (!box || !layout) return;
    const rows = source.rows[box.dataset.bands] || [];
    const { l, w, r } = layout._size;
    const [first, last] = layout.xaxis.range.map(time);
    const scale = (at) => l + ((at - first) / (last - first)) * w;
    [scale.left, scale.right] = [l, l + w];
    const svg = make("svg", { width: l + w + r });
    let y = 0;
    for (const [key, label] of rows) {
      const tall = heightOf(key);
      svg.append(make("rect", { x: l, y, width: w, height: tall, class: "band-ground" }));
      svg.append(make("text", { x: l - 6, y: y + 12, "text-anchor": "end", class: "band-label" }, label));
      for (const band of source.bands) if (band.places[key]) drawBand(svg, band, band.places[key], [y, tall], scale);
      y += tall + GAP;
    }
    svg.setAttribute("height", y);
    box.replaceChildren(svg);
  };

  // ---------------------------------------------------------------- one range, one crosshair

  let isPassingOn = false;
  const passOn = async (from, act) => {
    if (isPassingOn) return;
    isPassingOn = true;
    try {
      await Promise.all(plots().filter((plot) => plot !== from).map(act));
    } finally {
      isPassingOn = false;
    }
  };

  const follow = (plot) => {
    if (plot.dataset.followed) return;
    plot.dataset.followed = "yes";
    const box = plot.closest(".charted")?.querySelector(".bands");
    if (box) plot.after(box);
    plot.on("plotly_afterplot", () => drawBands(plot));
    plot.on("plotly_relayout", (change) => {
      if (change["xaxis.range[0]"] !== undefined) {
        const range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
        passOn(plot, (other) => Plotly.relayout(other, { "xaxis.range[0]": range[0], "xaxis.range[1]": range[1] }));
      } else if (change["xaxis.autorange"]) {
        passOn(plot, (other) => Plotly.relayout(other, { "xaxis.autorange": true }));
      }
    });
    plot.on("plotly_hover", ({ xvals }) => passOn(plot, (other) => Plotly.Fx.hover(other, { xval: xvals[0] })));
    plot.on("plotly_unhover", () => passOn(plot, (other) => Plotly.Fx.unhover(other)));
    drawBands(plot);
  };

  const start = () => {
    readBands();
    for (const plot of plots()) follow(plot);
    plots().forEach(drawBands);
  };
  document.addEventListener("htmx:afterSwap", start);
  start();
})();
