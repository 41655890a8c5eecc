// Every GPU as a square that is filled by what is held, in the tint of who holds it; a node without
// GPUs as two bars.
//
// One socket (scheduling/streams.py) brings, once a second at most, what changed on the nodes that are
// on the screen. A hidden or paused page asks for nothing; after a gap it gets what it lacks at once.
"use strict";

(() => {
  const source = document.getElementById("squares-data");
  if (!source) return;
  const SVG = "http://www.w3.org/2000/svg";
  const [SIZE, GAP, STROKE, PER_ROW] = [22, 5, 4, 4];
  const PITCH = SIZE + STROKE + 1 + GAP;
  const RETRY_MS = [250, 500, 1000, 2000, 4000, 8000];
  const WATCH_MS = 250;
  const NOT_LOGGED_IN = 4401;
  // `squares.PartState`, and what is drawn over the tint of such a part.
  const [IDLE, LENT, BESIDE] = [1, 2, 3];
  const OVER = { [IDLE]: "url(#idle-hatch)", [LENT]: "url(#lent-dots)", [BESIDE]: "url(#lent-dots)" };

  const data = JSON.parse(source.textContent);
  const words = data.words;
  const language = document.documentElement.lang;
  const decimal = new Intl.NumberFormat(language, { maximumFractionDigits: 3 });
  const tenth = new Intl.NumberFormat(language, { maximumFractionDigits: 1 });
  const gpus = (milli) => decimal.format(milli / 1000);

  const make = (name, attributes) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };

  // ---------------------------------------------------------------- squares

  const squares = new Map();
  const unhealthy = new Set(data.unhealthy);

  const drawParts = (square) => {
    square.fill.replaceChildren();
    let from = SIZE;
    for (const [project, milli, state] of square.parts) {
      const height = (milli / 1000) * SIZE;
      from -= height;
      const [, series, round] = data.projects[project] || [words.others, 0, 0];
      const place = { x: 0, y: from.toFixed(2), width: SIZE, height: height.toFixed(2) };
      square.fill.append(make("rect", { ...place, class: `part series-${series} round-${round}` }));
      if (OVER[state]) square.fill.append(make("rect", { ...place, fill: OVER[state] }));
    }
  };

  const drawUse = (square) => {
    const percent = square.use[0];
    const height = percent === null ? 0 : (Math.min(percent, 100) / 100) * SIZE;
    square.stroke.setAttribute("y", (SIZE - height).toFixed(1));
    square.stroke.setAttribute("height", height.toFixed(1));
    square.ground.classList.toggle("unmeasured", percent === null);
  };

  const nodes = new Map();
  for (const link of document.querySelectorAll("[data-node]")) {
    const node = Number(link.dataset.node);
    const svg = link.querySelector("svg");
    nodes.set(node, { link, svg, keys: [] });
  }
  for (const key of Object.keys(data.use)) nodes.get(Number(key.split(".")[0]))?.keys.push(key);
  for (const { link, svg, keys } of nodes.values()) {
    if (!keys.length) continue;
    const columns = Math.min(keys.length, PER_ROW);
    const rows = Math.ceil(keys.length / PER_ROW);
    svg.setAttribute("width", columns * PITCH - GAP);
    svg.setAttribute("height", rows * (SIZE + GAP) - GAP);
    keys.forEach((key, number) => {
      const x = (number % PER_ROW) * PITCH;
      const y = Math.floor(number / PER_ROW) * (SIZE + GAP);
      const group = make("g", { transform: `translate(${x} ${y})`, "data-gpu": key });
      const ground = make("rect", { width: SIZE, height: SIZE, rx: 2, class: "ground" });
      if (unhealthy.has(key)) ground.classList.add("unhealthy");
      const fill = make("g", {});
      const rail = make("rect", { x: SIZE + 1, width: STROKE, height: SIZE, class: "rail" });
      const stroke = make("rect", { x: SIZE + 1, width: STROKE, class: "use" });
      group.append(ground, fill, rail, stroke);
      svg.append(group);
      const square = { key, link, ground, fill, stroke, use: data.use[key], parts: data.parts[key] || [] };
      squares.set(key, square);
      drawParts(square);
      drawUse(square);
    });
  }

  // ---------------------------------------------------------------- nodes without GPUs

  const share = (amount, total) => `${total ? Math.min((100 * amount) / total, 100) : 0}%`;
  // In the same order: held cores, held memory, and then what is used of both.
  const showHost = (node, amounts) => {
    const each = (selector, show) => {
      for (const place of document.querySelectorAll(`[data-host="${node}"]`)) {
        data.sizes[node].forEach((size, number) => {
          show(place.querySelectorAll(selector)[number], amounts[number], amounts[number + 2], size);
        });
      }
    };
    each('[data-figure="held"]', (element, held, _used, [, scale]) => {
      element.textContent = tenth.format(held / scale);
    });
    each('[data-figure="used"]', (element, _held, used, [, scale]) => {
      element.textContent = used === null ? words.no_data : tenth.format(used / scale);
    });
    each('[data-width="held"]', (element, held, _used, [total]) => {
      element?.setAttribute("width", share(held, total));
    });
    each('[data-width="used"]', (element, _held, used, [total]) => {
      element?.setAttribute("width", share(used ?? 0, total));
    });
  };

  // ---------------------------------------------------------------- sums, table, health

  const bar = document.querySelector("#cluster-bar svg");
  const showTotals = ([total, held, idle, used, lent, beside]) => {
    if (!bar) return;
    const texts = { total: gpus(total), held: gpus(held), idle: gpus(idle), lent: gpus(lent) };
    texts.used = used === null ? "—" : gpus(used);
    for (const [name, text] of Object.entries(texts)) {
      const element = document.querySelector(`[data-sum="${name}"]`);
      if (element.textContent !== text) element.textContent = text;
    }
    const width = (amount) => share(amount, total);
    // As _bar.html draws it, where what is zero is left out.
    const part = (name, attributes) => {
      const found = bar.querySelector(`.bar-${name}`);
      if (found) return found;
      const made = make("rect", { class: `bar-${name}`, height: "100%", ...attributes });
      bar.insertBefore(made, bar.querySelector(".bar-used"));
      return made;
    };
    const draw = (element, from, amount) => {
      element.setAttribute("x", width(from));
      element.setAttribute("width", width(amount));
    };
    draw(part("used", { y: "25%", height: "50%" }), 0, Math.min(used || 0, held + beside));
    draw(part("allocated"), 0, held);
    draw(part("lent", { fill: "url(#dots)" }), held - lent, lent);
    draw(part("beside", { fill: "url(#dots)" }), held, beside);
  };

  const percentOf = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 0 });
  const table = document.getElementById("squares-table");
  const fillTable = () => {
    if (!table.open) return;
    for (const [node, { keys }] of nodes) {
      const row = table.querySelector(`[data-row="${node}"]`);
      if (!row) continue;
      const parts = keys.flatMap((key) => squares.get(key).parts);
      const known = keys.map((key) => squares.get(key).use[0]).filter((value) => value !== null);
      const sum = (list) => list.reduce((a, b) => a + b, 0);
      const held = (is) => gpus(sum(parts.filter(([, , state]) => is(state)).map(([, milli]) => milli)));
      const cells = row.querySelectorAll("td");
      cells[2].textContent = held((state) => state !== BESIDE);
      cells[3].textContent = held((state) => state === IDLE);
      cells[4].textContent = held((state) => state === LENT);
      cells[5].textContent = known.length ? percentOf.format(sum(known) / known.length / 100) : words.no_data;
    }
  };

  const heard = new Map(Object.entries(data.heard).map(([node, at]) => [Number(node), at]));
  const health = [...document.querySelectorAll("[data-health]")].map((item) => ({
    item,
    node: Number(item.dataset.health),
    age: item.querySelector(".age"),
    icon: item.querySelector("use"),
  }));
  // Ages are of the server's clock, which need not be this machine's.
  let ahead = Date.now() / 1000 - data.at;
  const unit = (name) => new Intl.NumberFormat(language, { style: "unit", unit: name, unitDisplay: "short" });
  const [seconds, minutes, hours] = [unit("second"), unit("minute"), unit("hour")];
  const ageText = (age) => {
    if (age < 90) return seconds.format(Math.round(age));
    return age < 5400 ? minutes.format(Math.round(age / 60)) : hours.format(Math.round(age / 3600));
  };
  const showHealth = () => {
    const now = Date.now() / 1000 - ahead;
    for (const { item, node, age, icon } of health) {
      const at = heard.get(node);
      const seconds = at === undefined ? Infinity : Math.max(now - at, 0);
      const isStale = seconds > data.stale_s;
      if (item.classList.toggle("stale", isStale) !== icon.href.baseVal.endsWith("#warning")) {
        icon.setAttribute("href", icon.href.baseVal.replace(/#.*/, isStale ? "#warning" : "#circle"));
      }
      const text = at === undefined ? words.never : ageText(seconds);
      if (age.textContent !== text) age.textContent = text;
    }
  };

  // ---------------------------------------------------------------- what is under the pointer

  const card = document.getElementById("square-card");
  const describe = ({ key, use, parts, link }) => {
    const [percent, memory, temperature, power] = use;
    const gib = (mib) => tenth.format(mib / 1024);
    const lines = [`${link.querySelector("span").textContent} · GPU ${key.split(".")[1]}`];
    const figures = [percent === null ? words.no_data : `${percent} %`];
    if (memory !== null) figures.push(`${gib(memory)} / ${gib(data.memory[key])} ${words.gib}`);
    if (temperature !== null) figures.push(`${temperature} °C`);
    if (power !== null) figures.push(`${power} W`);
    lines.push(figures.join(" · "));
    for (const [project, milli, state] of parts) {
      const name = data.projects[project]?.[0] || words.others;
      lines.push([`${gpus(milli)} ${name}`, words.states[state]].filter(Boolean).join(" · "));
    }
    if (!parts.length) lines.push(words.free);
    if (unhealthy.has(key)) lines.push(words.unhealthy);
    return lines.join("\n");
  };
  let pointed = null;
  const showCard = () => {
    card.hidden = !pointed;
    if (pointed) card.textContent = describe(pointed);
  };
  document.addEventListener("pointermove", (event) => {
    const group = event.target.closest?.("[data-gpu]");
    pointed = group ? squares.get(group.dataset.gpu) : null;
    showCard();
    if (!pointed) return;
    const [width, height] = [card.offsetWidth, card.offsetHeight];
    card.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
    card.style.top = `${Math.min(event.clientY + 14, innerHeight - height - 8)}px`;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    pointed = null;
    showCard();
  });

  // ---------------------------------------------------------------- the socket

  const state = document.getElementById("squares-state");
  const pause = document.getElementById("squares-pause");
  state.hidden = false;
  pause.hidden = false;
  let socket = null;
  let retries = 0;
  let isPaused = false;
  const onScreen = new Set();

  const showState = (name) => {
    state.dataset.state = name === "live" ? "open" : "away";
    if (state.textContent !== words[name]) state.textContent = words[name];
  };
  const say = (wish) => {
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(wish));
  };
  const sayPause = () => say({ pause: isPaused || document.hidden });

  const hear = (message) => {
    if (message.type !== "squares") return;
    ahead = Date.now() / 1000 - message.at;
    for (const [key, use] of Object.entries(message.use)) {
      const square = squares.get(key);
      if (!square) continue;
      square.use = use;
      drawUse(square);
    }
    for (const [key, parts] of Object.entries(message.parts)) {
      const square = squares.get(key);
      if (!square) continue;
      square.parts = parts;
      drawParts(square);
    }
    for (const [node, amounts] of Object.entries(message.hosts)) if (data.sizes[node]) showHost(node, amounts);
    for (const [node, at] of Object.entries(message.heard)) heard.set(Number(node), at);
    showTotals(message.totals);
    showHealth();
    fillTable();
    showCard();
  };

  let watchTimer = null;
  const watchSoon = () => {
    if (watchTimer) return;
    watchTimer = setTimeout(() => {
      watchTimer = null;
      say({ watch: [...onScreen] });
    }, WATCH_MS);
  };
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const node = Number(target.dataset.node);
      if (isIntersecting) onScreen.add(node);
      else onScreen.delete(node);
    }
    watchSoon();
  });
  for (const { link } of nodes.values()) observer.observe(link);
  // The table shows every node.
  table.addEventListener("toggle", () => {
    if (table.open) {
      observer.disconnect();
      for (const node of nodes.keys()) onScreen.add(node);
      watchSoon();
    } else {
      for (const { link } of nodes.values()) observer.observe(link);
    }
    fillTable();
  });

  const connect = () => {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    socket = new WebSocket(`${scheme}://${location.host}${data.url}`);
    socket.addEventListener("open", () => {
      retries = 0;
      showState(isPaused ? "paused" : "live");
      sayPause();
      say({ watch: [...onScreen] });
    });
    socket.addEventListener("message", (event) => hear(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => {
      socket = null;
      if (event.code === NOT_LOGGED_IN) {
        location.reload();
        return;
      }
      showState("away");
      const wait = RETRY_MS[Math.min(retries, RETRY_MS.length - 1)];
      retries += 1;
      setTimeout(connect, wait * (0.75 + Math.random() / 2));
    });
  };

  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? words.resume : words.pause;
    if (socket?.readyState === WebSocket.OPEN) showState(isPaused ? "paused" : "live");
    sayPause();
  });
  document.addEventListener("visibilitychange", sayPause);

  setInterval(() => {
    if (!document.hidden && !isPaused) showHealth();
  }, 1000);
  showHealth();
  connect();
})();
