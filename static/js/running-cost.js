// Moves the running costs of a page with each live sample of what they pay for.
"use strict";

(() => {
  const NUMBER = /\d[\d.,\s]*\d|\d/;

  const SMALLEST_SHOWN = 0.01;

  const written = (amount) =>
    new Intl.NumberFormat(document.documentElement.lang, {
      minimumFractionDigits: 2,
      maximumFractionDigits: 2,
    }).format(amount);

  document.addEventListener("allot:samples", ({ detail }) => {
    for (const element of document.querySelectorAll("[data-cost-topic]")) {
      const { costTopic, costAmount, costPerHour, costAt } = element.dataset;
      if (costTopic !== detail.topic) continue;
      const hours = Math.max(0, detail.at - Number(costAt)) / 3600;
      const amount = Number(costAmount) + hours * Number(costPerHour);
      // Below that the server's own words stay.
      if (amount < SMALLEST_SHOWN) continue;
      element.textContent = element.textContent.replace("< ", "").replace(NUMBER, written(amount));
    }
  });
})();
