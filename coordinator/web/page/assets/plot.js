// Small plots as SVG: one column for each group of seconds.
import { svg } from "./dom.js";

const HEIGHT = 30;

export function plot(className) {
  const columns = svg("path", { class: "columns_" }), floor = svg("path", { class: "floor", d: `M0 ${HEIGHT}H100` });
  const element = svg("svg", { class: `plot ${className || ""}`, viewBox: `0 0 100 ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, floor, columns);
  // Draw the numbers at the right end of a plot for `size` numbers.
  element.draw = (numbers, size) => {
    const top = Math.max(1, ...numbers), step = 100 / size, first = size - numbers.length;
    const parts = numbers.map((number, i) => {
      if (!number) return "";
      const height = Math.max(1.5, ((HEIGHT - 1) * number) / top), left = (first + i) * step;
      return `M${left.toFixed(2)} ${HEIGHT}v-${height.toFixed(2)}h${(step * 0.78).toFixed(2)}v${height.toFixed(2)}z`;
    });
    columns.setAttribute("d", parts.join(""));
  };
  return element;
}

// Sums of groups of numbers, from the newest on; the oldest group may have fewer.
export function grouped(numbers, size) {
  const found = [];
  for (let end = numbers.length; end > 0; end -= size) found.unshift(numbers.slice(Math.max(0, end - size), end).reduce((a, b) => a + b, 0));
  return found;
}
