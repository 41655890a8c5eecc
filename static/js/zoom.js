// Buttons that zoom and move a chart, so that nothing needs dragging (templates/telemetry/_zoom.html).
"use strict";

const allotZoom = (() => {
  const ZOOM = { in: 0.5, out: 2 };
  const SHIFT = { earlier: -0.5, later: 0.5 };

  // Times on the axis have no zone; as UTC they can be calculated with.
  const time = (text) => Date.parse(`${String(text).replace(" ", "T").slice(0, 19)}Z`);
  const wall = (ms) => new Date(ms).toISOString().slice(0, 19);

  const after = (action, range, whole) => {
    const [first, last] = whole.map(time);
    if (action === "whole") return [first, last];
    const [from, to] = range.map(time);
    const width = Math.min((to - from) * (ZOOM[action] || 1), last - first);
    const middle = (from + to) / 2 + (SHIFT[action] || 0) * (to - from);
    const begin = Math.max(first, Math.min(middle - width / 2, last - width));
    return [begin, begin + width];
  };

  return {
    // `whole()` is the range beyond which there is nothing.
    start(toolbar, plot, whole) {
      toolbar.hidden = false;
      toolbar.addEventListener("click", ({ target }) => {
        const action = target.closest("[data-zoom]")?.dataset.zoom;
        if (!action) return;
        const [from, to] = after(action, plot.layout.xaxis.range, whole()).map(wall);
        Plotly.relayout(plot, { "xaxis.range[0]": from, "xaxis.range[1]": to });
      });
    },
    // Whether a range shows less than the whole.
    isPart(range, whole) {
      const width = ([from, to]) => time(to) - time(from);
      return width(range) < 0.98 * width(whole);
    },
  };
})();
