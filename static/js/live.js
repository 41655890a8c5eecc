// One socket per page. It subscribes to the topics that the page shows and re-requests what changed.
//
// `data-live="topic topic"` on an element with `hx-get` and `hx-trigger="changed"` makes it ask for itself
// again when one of the topics changes; `data-topic` alone subscribes (charts listen to `allot:samples`).
// While the page is hidden nothing is asked for; after a gap everything is asked for once, and so it is when
// a connection first listens: what changed since the page was made was told to nobody.
"use strict";

(() => {
  const MIN_GAP_MS = 700;
  const RETRY_MS = [250, 500, 1000, 2000, 4000, 8000];
  const NOT_LOGGED_IN = 4401;
  const RESUBSCRIBE_MS = 50;

  let socket = null;
  let retries = 0;
  let wasOpen = false;
  let isListening = false;
  let missedWhileHidden = false;
  let subscribeTimer = null;
  const pending = new Map();

  const regions = () => document.querySelectorAll("[data-live]");
  const topicsOf = (element) => (element.dataset.live || "").split(" ").filter(Boolean);

  const wanted = () => {
    const topics = new Set();
    for (const region of regions()) topicsOf(region).forEach((topic) => topics.add(topic));
    for (const element of document.querySelectorAll("[data-topic]")) topics.add(element.dataset.topic);
    return [...topics].sort();
  };

  const showState = (state) => {
    for (const element of document.querySelectorAll("[data-live-state]")) {
      element.hidden = false;
      element.dataset.state = state;
      element.textContent = state === "open" ? document.body.dataset.liveOpen : document.body.dataset.liveAway;
    }
  };

  // The first change is shown at once, those that follow closely together.
  const refresh = (region) => {
    const key = region.id;
    if (pending.has(key)) return;
    const since = Date.now() - Number(region.dataset.refreshedAt || 0);
    const wait = Math.max(MIN_GAP_MS - since, 0);
    const timer = setTimeout(() => {
      pending.delete(key);
      const current = document.getElementById(key);
      if (current) htmx.trigger(current, "changed");
    }, wait);
    pending.set(key, timer);
  };

  const refreshAll = () => {
    for (const region of regions()) refresh(region);
    document.dispatchEvent(new CustomEvent("allot:reconnected"));
  };

  // A page that nobody sees asks for no measuring every second.
  const say = () => {
    if (socket && socket.readyState === WebSocket.OPEN) {
      socket.send(JSON.stringify({ subscribe: wanted(), hidden: document.hidden }));
    }
  };
  const subscribe = () => {
    clearTimeout(subscribeTimer);
    subscribeTimer = setTimeout(say, RESUBSCRIBE_MS);
  };

  const listens = () => {
    if (isListening) return;
    isListening = true;
    if (document.hidden) missedWhileHidden = true;
    else for (const region of regions()) refresh(region);
    if (wasOpen) document.dispatchEvent(new CustomEvent("allot:reconnected"));
    wasOpen = true;
  };

  const hear = (message) => {
    if (message.type === "subscribed") listens();
    if (message.type === "samples") {
      document.dispatchEvent(new CustomEvent("allot:samples", { detail: message }));
      return;
    }
    if (message.type !== "changed") return;
    document.dispatchEvent(new CustomEvent("allot:changed", { detail: message }));
    if (document.hidden) {
      missedWhileHidden = true;
      return;
    }
    for (const region of regions()) {
      if (topicsOf(region).includes(message.topic)) refresh(region);
    }
  };

  const connect = () => {
    if (!wanted().length) return;
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    socket = new WebSocket(`${scheme}://${location.host}${document.body.dataset.liveUrl}`);
    socket.addEventListener("open", () => {
      retries = 0;
      showState("open");
      isListening = false;
      say();
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

  document.addEventListener("visibilitychange", () => {
    subscribe();
    if (document.hidden || !missedWhileHidden) return;
    missedWhileHidden = false;
    refreshAll();
  });

  document.addEventListener("htmx:beforeRequest", ({ detail }) => {
    if (detail.elt.matches("[data-live]")) detail.elt.dataset.refreshedAt = String(Date.now());
  });

  // What is the same stays as it is: no flicker, no lost selection. Times keep themselves current.
  const plain = (element) => {
    const copy = element.cloneNode(true);
    copy.removeAttribute("class");
    copy.removeAttribute("data-refreshed-at");
    copy.querySelectorAll("time.ago, time.since").forEach((time) => (time.textContent = ""));
    copy.querySelectorAll("details[open][id]").forEach((details) => details.removeAttribute("open"));
    copy.querySelectorAll("input[name=csrfmiddlewaretoken]").forEach((input) => input.remove());
    return copy.innerHTML;
  };

  // What the person was doing survives the exchange: open folds, the place in a list, the focus.
  const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]";
  const remember = () => {
    const state = { open: [], scrolled: [], focus: null };
    for (const { id } of document.querySelectorAll("[data-live] details[open][id]")) state.open.push(id);
    document.querySelectorAll("[data-live] .scrolling").forEach(({ scrollTop }) => state.scrolled.push(scrollTop));
    const focused = document.activeElement;
    const anchor = focused && !focused.id && focused.closest("[data-live] [id]");
    if (anchor) state.focus = [anchor.id, [...anchor.querySelectorAll(FOCUSABLE)].indexOf(focused)];
    return state;
  };
  const restore = ({ open, scrolled, focus }) => {
    for (const id of open) {
      const details = document.getElementById(id);
      if (details) details.open = true;
    }
    document.querySelectorAll("[data-live] .scrolling").forEach((box, index) => {
      box.scrollTop = scrolled[index] || 0;
    });
    const anchor = focus && document.getElementById(focus[0]);
    anchor?.querySelectorAll(FOCUSABLE)[focus[1]]?.focus({ preventScroll: true });
  };

  let remembered = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const region = event.detail.target;
    if (!region || !region.matches || !region.matches("[data-live]")) return;
    const answer = new DOMParser().parseFromString(event.detail.serverResponse, "text/html");
    const ids = [region.id, ...(region.dataset.also || "").split(" ").filter(Boolean)];
    const isSame = (id) => {
      const [fresh, shown] = [answer.getElementById(id), document.getElementById(id)];
      return fresh && shown && plain(fresh) === plain(shown);
    };
    // Without our region it is another page, such as an error or the login.
    if (!answer.getElementById(region.id) || ids.every(isSame)) {
      event.detail.shouldSwap = false;
      return;
    }
    remembered = remember();
  });

  document.addEventListener("htmx:afterSwap", () => {
    if (remembered) restore(remembered);
    remembered = null;
    subscribe();
  });

  connect();
})();
