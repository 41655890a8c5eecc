// The log of a workload: loads its tail, follows it, goes over to a newer attempt when one begins.
"use strict";

(() => {
  const panel = document.getElementById("log");
  if (!panel) return;

  const MAX_CHARS = 2_000_000;
  const NEAR_END_PX = 40;
  const text = panel.querySelector(".log-text");
  const picker = panel.querySelector("[data-log-attempt]");
  const follow = panel.querySelector("[data-log-follow]");
  const wrap = panel.querySelector("[data-log-wrap]");
  const note = panel.querySelector("[data-log-note]");
  const download = panel.querySelector("[data-log-download]");
  let source = null;

  const stickToEnd = () => {
    if (follow.checked) text.scrollTop = text.scrollHeight;
  };

  const append = (more) => {
    text.append(more);
    if (text.textContent.length > MAX_CHARS) {
      text.textContent = text.textContent.slice(-MAX_CHARS / 2);
    }
    stickToEnd();
  };

  const say = (words) => {
    note.textContent = words;
    note.hidden = !words;
  };

  // An option is `replica:attempt`; without an attempt it follows that replica's newest.
  const query = (value) => {
    const [replica, attempt] = value.split(":");
    return `replica=${replica || 0}${attempt ? `&attempt=${attempt}` : ""}`;
  };

  const name = (replica, number) => ("hasReplicas" in panel.dataset
    ? panel.dataset.replica.replace("%(replica)s", replica).replace("%(attempt)s", number)
    : panel.dataset.attempt.replace("%s", number));

  const showAttempt = (replica, number) => {
    const value = `${replica}:${number}`;
    if (![...picker.options].some((option) => option.value === value)) {
      picker.add(new Option(name(replica, number), value), 1);
    }
    download.href = `${panel.dataset.logUrl}?download=1&${query(value)}`;
    download.hidden = false;
  };

  const open = () => {
    if (source) source.close();
    text.textContent = "";
    say("");
    let current = null;
    source = new EventSource(`${panel.dataset.logUrl}/stream?${query(picker.value)}`);
    source.addEventListener("attempt", (event) => {
      const { replica, number } = JSON.parse(event.data);
      if (current !== null && current !== number) {
        text.textContent = "";
      }
      current = number;
      showAttempt(replica, number);
    });
    source.addEventListener("text", (event) => {
      say("");
      append(JSON.parse(event.data).text);
    });
    source.addEventListener("away", (event) => {
      const news = JSON.parse(event.data);
      say(news.text);
      if (!text.textContent) append(news.lines.join("\n"));
    });
    source.addEventListener("end", () => source.close());
  };

  // Whoever scrolls up wants to read: following stops until they return to the end.
  text.addEventListener("scroll", () => {
    const isAtEnd = text.scrollHeight - text.scrollTop - text.clientHeight < NEAR_END_PX;
    if (follow.checked !== isAtEnd) follow.checked = isAtEnd;
  });
  follow.addEventListener("change", stickToEnd);
  wrap.addEventListener("change", () => {
    text.classList.toggle("wrap", wrap.checked);
    stickToEnd();
  });
  picker.addEventListener("change", open);
  // The list of replicas is redrawn while the log stays: its links are found by the document.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-show-log]");
    if (!link) return;
    event.preventDefault();
    const [replica, number] = link.dataset.showLog.split(":");
    showAttempt(replica, number);
    picker.value = link.dataset.showLog;
    open();
    panel.scrollIntoView();
    picker.focus();
  });
  window.addEventListener("pagehide", () => source && source.close());
  window.addEventListener("pageshow", (event) => event.persisted && open());

  // A workload that waits for its first start has no log yet; the live region says when it has.
  const start = () => {
    if (source === null && document.querySelector("[data-has-log]")) open();
  };
  document.addEventListener("htmx:afterSwap", start);
  start();
})();
