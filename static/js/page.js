// Small things on every page: colours, dialogs, times that keep themselves current, copying.
"use strict";

(() => {
  const MEDIA = { system: "(prefers-color-scheme: dark)", light: "not all", dark: "all" };
  const YEAR_S = 365 * 24 * 3600;
  const TICK_MS = 1000;

  // ---------------------------------------------------------------- colours

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("[data-theme-switch]") || !event.submitter) return;
    event.preventDefault();
    const theme = event.submitter.value;
    const secure = location.protocol === "https:" ? "; secure" : "";
    document.cookie = `allot_theme=${theme}; path=/; max-age=${YEAR_S}; samesite=lax${secure}`;
    document.getElementById("dark-colours").media = MEDIA[theme];
    for (const button of document.querySelectorAll("[data-theme-switch] button")) {
      button.setAttribute("aria-pressed", String(button.value === theme));
    }
    document.dispatchEvent(new CustomEvent("allot:theme"));
  });

  // ---------------------------------------------------------------- dialogs

  // A link with `data-dialog` leads to a page of its own; with scripts its content opens over this one.
  document.addEventListener("htmx:afterSwap", ({ detail }) => {
    if (detail.target.id !== "dialog-slot") return;
    const dialog = detail.target.querySelector("dialog");
    if (!dialog) return;
    dialog.removeAttribute("open");
    dialog.showModal();
    dialog.querySelector("[autofocus]")?.focus();
  });

  document.addEventListener("click", (event) => {
    const cancel = event.target.closest("[data-cancel]");
    const dialog = cancel?.closest("dialog");
    if (!dialog || !dialog.matches(":modal")) return;
    event.preventDefault();
    dialog.close();
  });

  // Menus close when one clicks elsewhere or presses Escape.
  const menus = () => document.querySelectorAll("details.topmenu[open], details.user-menu[open]");
  document.addEventListener("click", (event) => {
    for (const menu of menus()) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of menus()) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });

  // ---------------------------------------------------------------- parts that come after the page

  // What asks for itself once says so when nothing comes.
  for (const failed of ["htmx:responseError", "htmx:sendError"]) {
    document.addEventListener(failed, ({ detail }) => {
      const part = detail.elt;
      if (!part.dataset.unanswered) return;
      part.removeAttribute("aria-busy");
      part.querySelector("p").textContent = part.dataset.unanswered;
      document.getElementById("announcer").textContent = part.dataset.unanswered;
    });
  }

  // ---------------------------------------------------------------- times

  const language = document.documentElement.lang || "en";
  const unit = (name) => new Intl.NumberFormat(language, { style: "unit", unit: name, unitDisplay: "short" });
  const UNITS = { d: unit("day"), h: unit("hour"), min: unit("minute"), s: unit("second") };
  const WORDS = document.body.dataset;
  const NO_BREAK = "\u00a0";

  const span = (count, name) => `${count}${NO_BREAK}${WORDS[`unit${name[0].toUpperCase()}${name.slice(1)}`] || UNITS[name].format(count)}`;

  // As formats.duration on the server: at most two units.
  const duration = (seconds) => {
    const whole = Math.max(Math.floor(seconds), 0);
    if (whole < 60) return span(whole, "s");
    if (whole < 3600) return span(Math.floor(whole / 60), "min");
    const [large, largeS, small, smallS] =
      whole < 86400 ? ["h", 3600, "min", 60] : ["d", 86400, "h", 3600];
    const rest = Math.floor((whole % largeS) / smallS);
    const first = span(Math.floor(whole / largeS), large);
    return rest ? `${first} ${span(rest, small)}` : first;
  };

  const tick = () => {
    if (document.hidden) return;
    for (const time of document.querySelectorAll("time.since, time.ago, time.until")) {
      const passed = (Date.now() - Date.parse(time.dateTime)) / 1000;
      const seconds = time.classList.contains("until") ? -passed : passed;
      let text = duration(seconds);
      if (time.classList.contains("ago")) {
        if (seconds < 2) continue;
        text = WORDS.ago.replace("%(time)s", text);
      }
      if (time.textContent !== text) time.textContent = text;
    }
  };
  setInterval(tick, TICK_MS);

  // ---------------------------------------------------------------- lists and copying

  // Filters apply as soon as one is chosen.
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-apply]");
    if (form && event.target.matches("select, input[type=checkbox]")) form.requestSubmit();
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    document.getElementById("announcer").textContent = button.dataset.copied;
  });

  // The banners are asked for again now and then, while somebody looks.
  setInterval(() => {
    const banners = document.getElementById("banners");
    if (banners && !document.hidden) htmx.trigger(banners, "look");
  }, 10000);
})();
