// Moves the running costs of a page with each live sample of what they pay for.
"use strict";

(() => {
  const NUMBER = /\d[\d.,\s]*\d|\d/;

  // As the server writes it: a small amount has enough digits to tell it from nothing.
  const written = (amount) => {
    const digits = amount >= 0.01 || amount === 0 ? 2 : 4;
    return new Intl.NumberFormat(document.documentElement.lang, {
      minimumFractionDigits: digits,
      maximumFractionDigits: digits,
    }).format(amount);
  };

  document.addEventListener("allot:samples", ({ detail }) => {
    for (const element of document.querySelectorAll("[data-cost-topic]")) {
      const { costTopic, costAmount, costPerHour, costAt } = element.dataset;
      if (costTopic !== detail.topic) continue;
      const hours = Math.max(0, detail.at - Number(costAt)) / 3600;
      const amount = Number(costAmount) + hours * Number(costPerHour);
      element.textContent = element.textContent.replace(NUMBER, written(amount));
    }
  });
})();
