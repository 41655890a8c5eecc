// Draws the chart of an analysis; the list beside it is its legend.
//
// The figure comes from the server with places in the palette for colours. Eyes open and close
// groups and the address keeps them; a group under the pointer or focus stands out. Buttons zoom,
// so nothing needs dragging.
"use strict";

(() => {
  const FAINT = 0.25;

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

  const themed = (layout, width) => {
    const [text, dim, line] = [token("--text"), token("--text-dim"), token("--line")];
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line };
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: dim, family: token("--font"), size: 12 },
      hoverlabel: { ...layout.hoverlabel, bgcolor: token("--bg-raised"), bordercolor: line, font: { color: text } },
      // Upright, as many as there is room for.
      xaxis: { ...layout.xaxis, ...axis, tickangle: 0, nticks: Math.max(2, Math.floor(width / 80)) },
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
    const whole = [...data.layout.xaxis.range];

    Plotly.newPlot(plot, data.data.map(coloured), themed(data.layout, plot.clientWidth), {
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

    allotZoom.start(figure.querySelector(".zoom"), plot, () => whole);

    const recolour = () => Plotly.react(plot, data.data.map(coloured), themed({ ...data.layout, xaxis: { ...data.layout.xaxis, range: [...plot.layout.xaxis.range] } }, plot.clientWidth));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
    document.addEventListener("allot:theme", recolour);
  };

  document.querySelectorAll("figure[data-analytics]").forEach(start);
})();
