// Moves the running costs of a page with each live sample of what they pay for.
"use strict";

document.addEventListener("allot:samples", ({ detail }) => {
  const format = new Intl.NumberFormat(document.documentElement.lang, {
    minimumFractionDigits: 2,
    maximumFractionDigits: 2,
  });
  for (const element of document.querySelectorAll("[data-cost-topic]")) {
    const { costTopic, costAmount, costPerHour, costAt } = element.dataset;
    if (costTopic !== detail.topic) continue;
    const hours = Math.max(0, detail.at - Number(costAt)) / 3600;
    element.textContent = format.format(Number(costAmount) + hours * Number(costPerHour));
  }
});
