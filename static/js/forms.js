/* Comfort for the workload forms. Everything here also works without it, by buttons of the form itself. */
"use strict";

(() => {
  const root = document.documentElement;
  root.classList.add("scripted");

  const number = (text) => Number.parseFloat(text.trim().replace(",", "."));

  /* The share of a GPU: buttons and slider write into the one number field, and follow it. */
  function fractionOf(element) {
    const box = element.closest("[data-fraction]");
    return box && { box, field: document.getElementById(box.dataset.fraction), slider: box.querySelector("[type=range]") };
  }

  function followNumber(part) {
    const value = number(part.field.value);
    if (value >= 0) part.slider.value = value;
    for (const button of part.box.querySelectorAll("[data-part]")) {
      button.setAttribute("aria-pressed", String(number(button.dataset.part) === value));
    }
  }

  function write(part, text) {
    part.field.value = text;
    followNumber(part);
    part.field.dispatchEvent(new Event("input", { bubbles: true }));
  }

  function prepare() {
    for (const box of document.querySelectorAll("[data-fraction]")) {
      const part = fractionOf(box);
      part.slider.hidden = false;
      followNumber(part);
    }
  }

  function move(button) {
    const row = button.closest("li");
    const other = button.dataset.move === "-1" ? row.previousElementSibling : row.nextElementSibling;
    if (!other) return;
    if (button.dataset.move === "-1") other.before(row);
    else other.after(row);
    button.focus();
    const announcer = document.getElementById("announcer");
    if (announcer) announcer.textContent = [...row.parentElement.children].map((item, place) =>
      `${place + 1}. ${item.querySelector("strong").textContent.trim()}`).join(", ");
    row.dispatchEvent(new Event("change", { bubbles: true }));
  }

  document.addEventListener("click", (event) => {
    const part = event.target.closest("[data-part]");
    if (part) {
      event.preventDefault();
      write(fractionOf(part), part.dataset.part);
      return;
    }
    const mover = event.target.closest("[data-move]");
    if (mover) {
      event.preventDefault();
      move(mover);
    }
  });

  document.addEventListener("input", (event) => {
    const part = event.target.closest("[data-fraction]") && fractionOf(event.target);
    if (!part) return;
    if (event.target === part.slider) {
      const comma = part.box.querySelector("[data-part]").dataset.part.includes(",");
      const text = String(number(part.slider.value));
      write(part, comma ? text.replace(".", ",") : text);
    } else if (event.isTrusted) {
      followNumber(part);
    }
  });

  /* A link of the error summary leads to the control itself, not only to its place. */
  document.addEventListener("click", (event) => {
    const link = event.target.closest(".error-links a, .wrong a");
    const target = link && document.getElementById(link.hash.slice(1));
    if (!target) return;
    event.preventDefault();
    target.scrollIntoView({ block: "center" });
    const inner = target.matches("input, select, textarea") ? target : target.querySelector("input:checked, input, select, textarea");
    (inner || target).focus();
  });

  /* Two quick clicks send one form; the server would see that they are one anyway. */
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.id !== "workload-form") return;
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
  });
  window.addEventListener("pageshow", () => {
    const form = document.getElementById("workload-form");
    if (form) delete form.dataset.sent;
  });

  document.addEventListener("htmx:afterSettle", prepare);
  prepare();
  const summary = document.getElementById("error-summary");
  if (summary) summary.focus();
})();
