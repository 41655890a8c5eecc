// Plotly's own words and dates in Russian, as data; charts ask for them by the page's language.
"use strict";

Plotly.register({
  moduleType: "locale",
  name: "ru",
  dictionary: {
    "Autoscale": "Автоматический масштаб",
    "Click to enter X axis title": "Название оси X",
    "Click to enter Y axis title": "Название оси Y",
    "Double-click on legend to isolate one trace": "Двойной щелчок по легенде оставит одну линию",
    "Double-click to zoom back out": "Двойной щелчок вернёт исходный масштаб",
    "Download plot": "Сохранить график",
    "Download plot as a PNG": "Сохранить график как PNG",
    "Pan": "Сдвигать",
    "Reset": "Сбросить",
    "Reset axes": "Исходный масштаб",
    "Snapshot succeeded": "Снимок сохранён",
    "Sorry, there was a problem downloading your snapshot!": "Снимок не удалось сохранить",
    "Taking snapshot - this may take a few seconds": "Снимок готовится, это займёт несколько секунд",
    "Zoom": "Увеличить",
    "Zoom in": "Увеличить",
    "Zoom out": "Уменьшить",
  },
  format: {
    days: ["воскресенье", "понедельник", "вторник", "среда", "четверг", "пятница", "суббота"],
    shortDays: ["вс", "пн", "вт", "ср", "чт", "пт", "сб"],
    months: [
      "январь", "февраль", "март", "апрель", "май", "июнь",
      "июль", "август", "сентябрь", "октябрь", "ноябрь", "декабрь",
    ],
    shortMonths: ["янв", "фев", "мар", "апр", "мая", "июн", "июл", "авг", "сен", "окт", "ноя", "дек"],
    date: "%d.%m.%Y",
    dayMonth: "%-d %b",
    dayMonthYear: "%-d %b %Y",
    year: "%Y",
    month: "%b %Y",
    decimal: ",",
    thousands: "\u00a0",
  },
});
