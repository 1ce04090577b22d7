// Charts (app/widgets/charts.py): values at the pointer or by arrow keys, and a download as CSV.
import { el, svg } from "./dom.js";
import { onMatch } from "./shell.js";

// Formats a number like app/widgets/charts.py, with one more digit.
function format(value, percent) {
  if (percent) return `${(100 * value).toFixed(1)}%`;
  if (value && (Math.abs(value) < 0.001 || Math.abs(value) >= 100000)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    const listen = (kind, run) => figure.addEventListener(kind, (event) => { if (event.target.closest(".sp-chart > svg")) run(event); });
    for (const kind of ["pointermove", "pointerdown"]) listen(kind, (event) => this.point(event));
    for (const kind of ["pointerout", "focusout"]) listen(kind, () => this.show(-1));
    listen("keydown", (event) => this.key(event));
    figure.addEventListener("click", (event) => { if (event.target.closest("figcaption button")) this.csv(); });
    // Gradio writes a new chart over the old one: the same step stays marked.
    this.observer = new MutationObserver(() => this.read());
    this.observer.observe(figure, { childList: true, subtree: true, attributeFilter: ["data-chart", "hidden"] });
    this.read();
  }

  read() {
    if (!this.figure.dataset.chart) return;
    const step = this.steps?.[this.at];
    this.data = JSON.parse(this.figure.dataset.chart);
    this.steps = [...new Set(this.data.points.flat().map(([x]) => x))].sort((a, b) => a - b);
    this.show(step === undefined ? -1 : this.steps.indexOf(step));
  }

  x(step) { const [low, high] = this.data.x; return this.data.left + ((step - low) / (high - low || 1)) * (this.data.right - this.data.left); }

  y(value) { const [low, high] = this.data.y; return this.data.bottom - ((value - low) / (high - low || 1)) * (this.data.bottom - this.data.top); }

  point(event) {
    const picture = this.figure.querySelector(":scope > svg"), box = picture.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * picture.viewBox.baseVal.width;
    const distance = (step) => Math.abs(this.x(step) - at);
    this.show(this.steps.reduce((best, step, i) => (distance(step) < distance(this.steps[best]) ? i : best), 0));
  }

  key(event) {
    const last = this.steps.length - 1;
    const to = { ArrowLeft: Math.max(0, this.at - 1), ArrowRight: Math.min(last, this.at + 1), Home: 0, End: last, Escape: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.show(to);
  }

  // Marks step number `at` and shows its values; -1 removes the mark.
  show(at) {
    this.at = at;
    const tip = this.figure.querySelector(".sp-chart-tip"), mark = this.figure.querySelector(".sp-chart-mark");
    tip.hidden = at < 0;
    mark.replaceChildren();
    if (at >= 0) {
      const step = this.steps[at], x = this.x(step), { names, points, percent, unit, across, styles } = this.data;
      const shown = names.map((name, i) => ({ name, style: styles[i], point: this.value(points[i], step) })).filter(({ point }) => point);
      const values = shown.map(({ name, point }) => `${name} ${format(point[1], percent)}${unit ? ` ${unit}` : ""}`);
      tip.textContent = `${across} ${step.toLocaleString("en")}: ${values.join(", ")}`;
      mark.append(svg("line", { class: "sp-chart-line", x1: x, x2: x, y1: this.data.top, y2: this.data.bottom }),
        ...shown.map(({ style, point }) => svg("circle", { class: style, cx: this.x(point[0]), cy: this.y(point[1]), r: 4 })));
    }
    this.observer.takeRecords();
  }

  // The point of a line at `step`; with `near`, the closest one, within the range of the line.
  value(line, step) {
    const exact = line.find(([x]) => x === step);
    if (exact || !this.data.near || !line.length || step < line[0][0] || step > line.at(-1)[0]) return exact;
    return line.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));
  }

  csv() {
    const { points, across, names, title } = this.data;
    const cell = (text) => (/[",\n]/.test(text) ? `"${String(text).replace(/"/g, '""')}"` : text);
    const columns = points.map((line) => new Map(line));
    const rows = this.steps.map((step) => [step, ...columns.map((column) => column.get(step) ?? "")]);
    const text = [[across, ...names].map((name) => cell(/^[=+\-@]/.test(name) ? `'${name}` : name)), ...rows].map((row) => row.join(",")).join("\n");
    const name = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "chart";
    el("a", { href: `data:text/csv;charset=utf-8,${encodeURIComponent(`${text}\n`)}`, download: `${name}.csv` }).click();
  }
}

onMatch(".sp-chart[data-chart]", (figure) => new Chart(figure));
