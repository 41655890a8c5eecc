// Draws the chart of an analysis; the list beside it is its legend.
//
// The figure comes from the server with places in the palette for colours. Eyes open and close
// groups and the address keeps them; a group under the pointer or focus stands out. Buttons zoom,
// so nothing needs dragging.
"use strict";

(() => {
  const FAINT = 0.25;
  const ZOOM = { in: 0.5, out: 2 };
  const SHIFT = { earlier: -0.5, later: 0.5 };

  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colourOf = ({ series, key }) => {
    if (series) return token(`--series-${series}`);
    return token(key === "unallocated" ? "--bar-empty" : "--line-strong");
  };

  // Its words and dates: plotly-locale.js.
  const language = document.documentElement.lang || "en";

  const coloured = (trace) => {
    const color = colourOf(trace.meta);
    const marker = { ...trace.marker, color };
    if (trace.marker.pattern?.shape) {
      marker.pattern = { ...trace.marker.pattern, bgcolor: color, fgcolor: token("--bg"), size: 6, solidity: 0.35 };
    }
    return trace.line ? { ...trace, marker, line: { ...trace.line, color } } : { ...trace, marker };
  };

  const themed = (layout) => {
    const [text, dim, line] = [token("--text"), token("--text-dim"), token("--line")];
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line };
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: dim, family: token("--font"), size: 12 },
      hoverlabel: { ...layout.hoverlabel, bgcolor: token("--bg-raised"), bordercolor: line, font: { color: text } },
      xaxis: { ...layout.xaxis, ...axis },
      yaxis: { ...layout.yaxis, ...axis },
    };
  };

  const start = (figure) => {
    const plot = figure.querySelector(".chart-plot");
    const data = JSON.parse(document.getElementById(figure.dataset.analytics).textContent);
    data.data = data.data.map((trace) => ({
      ...data.shared,
      ...trace,
      marker: { ...data.shared.marker, ...trace.marker },
    }));
    const list = document.getElementById("series-list");
    const keys = data.data.map((trace) => trace.meta.key);
    const whole = data.layout.xaxis.range;

    Plotly.newPlot(plot, data.data.map(coloured), themed(data.layout), {
      displayModeBar: false,
      responsive: true,
      scrollZoom: false,
      locale: language,
    });

    // ------------------------------------------------------------ eyes

    const rememberHidden = () => {
      const closed = [...list.querySelectorAll('.eye[aria-pressed="false"]')];
      const hidden = closed.map((eye) => eye.closest("li").dataset.key).join(",");
      const address = new URL(location.href);
      if (hidden) address.searchParams.set("hide", hidden);
      else address.searchParams.delete("hide");
      history.replaceState(history.state, "", address);
      for (const link of document.querySelectorAll(".presets a")) {
        const target = new URL(link.href);
        if (hidden) target.searchParams.set("hide", hidden);
        else target.searchParams.delete("hide");
        link.href = target;
      }
    };

    for (const eye of list.querySelectorAll(".eye")) {
      eye.hidden = false;
      eye.addEventListener("click", () => {
        const isShown = eye.getAttribute("aria-pressed") !== "true";
        eye.setAttribute("aria-pressed", String(isShown));
        const number = keys.indexOf(eye.closest("li").dataset.key);
        data.data[number].visible = isShown;
        Plotly.restyle(plot, { visible: isShown }, [number]);
        rememberHidden();
      });
    }

    // ------------------------------------------------------------ standing out

    let outstanding = null;
    const standOut = (key) => {
      if (key === outstanding) return;
      outstanding = key;
      const opacities = keys.map((one) => (key === null || one === key ? 1 : FAINT));
      Plotly.restyle(plot, { opacity: opacities });
    };
    for (const item of list.querySelectorAll("li[data-key]")) {
      item.addEventListener("pointerenter", () => standOut(item.dataset.key));
      item.addEventListener("pointerleave", () => standOut(null));
      item.addEventListener("focusin", () => standOut(item.dataset.key));
      item.addEventListener("focusout", () => standOut(null));
    }

    // ------------------------------------------------------------ zoom

    const zoom = figure.querySelector(".zoom");
    zoom.hidden = false;
    // Times on the axis have no zone; as UTC they can be calculated with.
    const time = (text) => Date.parse(`${String(text).replace(" ", "T").slice(0, 19)}Z`);
    const wall = (ms) => new Date(ms).toISOString().slice(0, 19);
    zoom.addEventListener("click", ({ target }) => {
      const action = target.closest("[data-zoom]")?.dataset.zoom;
      if (!action) return;
      if (action === "whole") {
        Plotly.relayout(plot, { "xaxis.range": [...whole] });
        return;
      }
      const [first, last] = whole.map(time);
      const [from, to] = plot.layout.xaxis.range.map(time);
      const width = Math.min((to - from) * (ZOOM[action] || 1), last - first);
      const middle = (from + to) / 2 + (SHIFT[action] || 0) * (to - from);
      const begin = Math.max(first, Math.min(middle - width / 2, last - width));
      Plotly.relayout(plot, { "xaxis.range": [wall(begin), wall(begin + width)] });
    });

    const recolour = () => Plotly.react(plot, data.data.map(coloured), themed({ ...data.layout, xaxis: { ...data.layout.xaxis, range: [...plot.layout.xaxis.range] } }));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
    document.addEventListener("allot:theme", recolour);
  };

  document.querySelectorAll("figure[data-analytics]").forEach(start);
})();
