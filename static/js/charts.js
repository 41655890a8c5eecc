// Draws the charts of a page and appends what arrives live.
//
// Each `figure[data-chart]` names the element that holds its payload (see telemetry/charts.py).
// Samples come as `allot:samples` events. Colours are those of tokens.css, so light and dark
// pages share a figure. A missing value stays a gap; nothing is joined over it or set to 0.
"use strict";

(() => {
  const REDRAW_MS = 1000;
  const MAX_TABLE_ROWS = 300;
  const MAX_POINTS = 1000;
  const CHANGES_MS = 4000;
  const charts = new Map();

  const token = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const coloured = (trace) => ({
    ...trace,
    line: { ...trace.line, color: token(`--series-${trace.meta.series}`) },
  });

  const themed = (layout, width) => {
    const [text, dim, line] = [token("--text"), token("--text-dim"), token("--line")];
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line };
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: dim, family: token("--font"), size: 12 },
      hoverlabel: { bgcolor: token("--bg-raised"), bordercolor: line, font: { color: text } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: dim, activecolor: token("--accent") },
      // Upright, as many as there is room for.
      xaxis: { ...layout.xaxis, ...axis, tickangle: 0, nticks: Math.max(2, Math.floor(width / 80)) },
      yaxis: { ...layout.yaxis, ...axis },
    };
  };

  // Plotly knows no time zones: it is given the time on the wall of the chart's zone.
  const wallClock = (zone) => {
    const format = new Intl.DateTimeFormat("en-GB", {
      timeZone: zone,
      year: "numeric",
      month: "2-digit",
      day: "2-digit",
      hour: "2-digit",
      minute: "2-digit",
      second: "2-digit",
      hourCycle: "h23",
    });
    return (seconds) => {
      const part = {};
      for (const { type, value } of format.formatToParts(seconds * 1000)) part[type] = value;
      return `${part.year}-${part.month}-${part.day}T${part.hour}:${part.minute}:${part.second}`;
    };
  };

  // A line without a metric goes on by itself: a cost grows, a sample only tells how late it is.
  const valueOf = (line, at, values) =>
    line.metric ? values[line.metric] : line.amount + (Math.max(0, at - line.amount_at) / 3600) * line.per_hour;

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.plot = figure.querySelector(".chart-plot");
      this.empty = figure.querySelector(".chart-empty");
      this.table = figure.querySelector(".chart-table");
      this.isZoomed = false;
      this.drawnAt = 0;
      this.timer = null;
      this.load(JSON.parse(document.getElementById(figure.dataset.chart).textContent));
      this.table.addEventListener("toggle", () => this.fillTable());
      Plotly.newPlot(this.plot, this.traces(), this.layout(), {
        displaylogo: false,
        responsive: true,
        scrollZoom: false,
        locale: document.documentElement.lang,
        modeBarButtons: [["toImage"]],
      });
      allotZoom.start(figure.querySelector(".zoom"), this.plot, () => this.whole());
      this.plot.on("plotly_relayout", (change) => {
        if (this.isMoving) return;
        if (change["xaxis.autorange"]) this.isZoomed = false;
        else this.isZoomed = allotZoom.isPart(this.plot.layout.xaxis.range, this.whole());
      });
      this.plot.on("plotly_doubleclick", () => {
        this.isZoomed = false;
      });
      this.fillTable();
      if (this.payload.is_lazy) this.readAgain();
    }

    // Something was taken or given back: the rate at which a cost grows is another.
    changed(topic) {
      if (!this.payload.changes_with || this.payload.changes_with !== topic || this.isWaiting) return;
      this.isWaiting = true;
      setTimeout(() => {
        this.isWaiting = false;
        if (!document.hidden) this.readAgain();
      }, CHANGES_MS);
    }

    load(payload) {
      this.payload = payload;
      this.wall = wallClock(payload.zone);
      this.lastAt = payload.lines.map((line) => line.last_at);
    }

    traces() {
      return this.payload.figure.data.map(coloured);
    }

    // All of the period, which moves on with what arrives.
    whole() {
      if (!this.newestAt) return this.payload.figure.layout.xaxis.range;
      return [this.newestAt - this.payload.minutes * 60, this.newestAt].map(this.wall);
    }

    layout() {
      const layout = themed(this.payload.figure.layout, this.plot.clientWidth);
      layout.xaxis.range = [...(this.isZoomed && this.plot.layout ? this.plot.layout.xaxis.range : this.whole())];
      // A scale without a line would be invented.
      layout.yaxis.showticklabels = this.hasData();
      return layout;
    }

    hasData() {
      return this.payload.figure.data.some((trace) => trace.y.some((value) => value !== null));
    }

    append({ topic, at, values }) {
      let isMine = false;
      this.payload.lines.forEach((line, number) => {
        if (line.topic !== topic) return;
        isMine = true;
        this.appendTo(number, at, valueOf(line, at, values), line.scale);
      });
      if (!isMine) return;
      this.newestAt = Math.max(this.newestAt || 0, at);
      this.redrawSoon();
    }

    appendTo(number, at, value, scale) {
      const trace = this.payload.figure.data[number];
      const x = this.wall(at);
      const before = this.lastAt[number];
      if (before !== null && at < before + 0.001) return; // already there
      if (before !== null && at - before > this.payload.gap_s) {
        trace.x.push(this.wall(at - this.payload.gap_s / 2));
        trace.y.push(null);
        this.readAgain();
      }
      trace.x.push(x);
      trace.y.push(value === null || value === undefined ? null : value * scale);
      this.lastAt[number] = at;
      const oldest = this.wall(at - this.payload.minutes * 60);
      while (trace.x.length && trace.x[0] < oldest) {
        trace.x.shift();
        trace.y.shift();
      }
      // What is watched comes every second: the server has it thinned to what a chart can show.
      if (trace.x.length > MAX_POINTS) this.readAgain();
    }

    // After a silence the server may have what did not reach this page.
    async readAgain() {
      if (!this.payload.source || this.isReading) return;
      this.isReading = true;
      try {
        const answer = await fetch(this.payload.source, { headers: { Accept: "application/json" } });
        if (answer.ok) {
          const payload = await answer.json();
          // Only this page knows what it calls its lines.
          payload.figure.data.forEach((trace, number) => {
            trace.name = this.payload.figure.data[number].name;
          });
          this.load({ ...payload, is_lazy: false });
          this.redrawSoon();
        }
      } catch {
        // Still away: the next silence asks again.
      } finally {
        this.isReading = false;
      }
    }

    redrawSoon() {
      if (this.timer || document.hidden) return;
      const wait = Math.max(0, this.drawnAt + REDRAW_MS - Date.now());
      this.timer = setTimeout(() => {
        this.timer = null;
        this.redraw();
      }, wait);
    }

    async redraw() {
      this.drawnAt = Date.now();
      this.isMoving = true;
      await Plotly.react(this.plot, this.traces(), this.layout());
      this.isMoving = false;
      this.empty.hidden = this.hasData();
      this.fillTable();
    }

    fillTable() {
      if (!this.table.open) return;
      const { labels, figure } = this.payload;
      const byTime = new Map();
      figure.data.forEach((trace, number) => {
        trace.x.forEach((x, index) => {
          const second = x.slice(0, 19);
          const row = byTime.get(second) || new Array(figure.data.length).fill(null);
          row[number] = trace.y[index];
          byTime.set(second, row);
        });
      });
      const heads = [labels.time, ...figure.data.map((t) => `${t.name}, ${labels.unit}`)];
      const times = [...byTime.keys()].sort().reverse().slice(0, MAX_TABLE_ROWS);
      const number = new Intl.NumberFormat(document.documentElement.lang, {
        maximumSignificantDigits: 4,
      });
      const table = document.createElement("table");
      table.className = "table";
      const head = table.createTHead().insertRow();
      for (const text of heads) {
        const cell = document.createElement("th");
        cell.scope = "col";
        cell.textContent = text;
        head.append(cell);
      }
      const body = table.createTBody();
      for (const time of times) {
        const row = body.insertRow();
        const name = document.createElement("th");
        name.scope = "row";
        name.textContent = time.replace("T", " ");
        row.append(name);
        for (const value of byTime.get(time)) {
          row.insertCell().textContent = value === null ? labels.no_data : number.format(value);
        }
      }
      this.table.querySelector(".table-wrap").replaceChildren(table);
    }

    remove() {
      clearTimeout(this.timer);
      Plotly.purge(this.plot);
    }
  }

  const findCharts = () => {
    for (const [figure, chart] of charts) {
      if (figure.isConnected) continue;
      chart.remove();
      charts.delete(figure);
    }
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      if (!charts.has(figure)) charts.set(figure, new Chart(figure));
    }
  };

  document.addEventListener("allot:samples", ({ detail }) => {
    for (const chart of charts.values()) chart.append(detail);
  });
  document.addEventListener("allot:changed", ({ detail }) => {
    for (const chart of charts.values()) chart.changed(detail.topic);
  });
  const catchUp = () => {
    if (document.hidden) return;
    for (const chart of charts.values()) {
      chart.readAgain();
      chart.redrawSoon();
    }
  };
  document.addEventListener("visibilitychange", catchUp);
  document.addEventListener("allot:reconnected", catchUp);
  const recolour = () => {
    for (const chart of charts.values()) chart.redraw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  document.addEventListener("allot:theme", recolour);
  // Also after each exchange of a part of the page.
  document.addEventListener("htmx:load", findCharts);
  findCharts();
})();
