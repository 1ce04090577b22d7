// Charts (app/widgets/charts.py): values at the pointer or by arrow keys, and a download as CSV.
import { button, el } from "./dom.js";
import { onMatch } from "./shell.js";

const SVG = "http://www.w3.org/2000/svg";

// Formats a number like app/widgets/charts.py, with one more digit.
function format(value, percent) {
  if (percent) return `${(100 * value).toFixed(1)}%`;
  if (value && (Math.abs(value) < 0.001 || Math.abs(value) >= 100000)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

class Chart {
  constructor(figure) {
    Object.assign(this, { figure, data: JSON.parse(figure.dataset.chart), svg: figure.querySelector(":scope > svg") });
    this.steps = [...new Set(this.data.points.flat().map(([x]) => x))].sort((a, b) => a - b);
    this.at = -1;
    this.tip = el("p", { class: "sp-chart-tip", role: "status", hidden: true });
    this.mark = document.createElementNS(SVG, "g");
    this.mark.setAttribute("class", "sp-chart-mark");
    this.svg.append(this.mark);
    this.svg.setAttribute("tabindex", "0");
    this.source = figure.dataset.chart;
    this.over = new AbortController();
    const listen = (kind, run) => this.svg.addEventListener(kind, run, { signal: this.over.signal });
    this.tools = button("link", "CSV", () => this.csv(), { title: "Download the values as CSV" });
    figure.querySelector("figcaption").append(this.tools);
    figure.append(this.tip);
    for (const kind of ["pointermove", "pointerdown"]) listen(kind, (event) => this.point(event));
    for (const kind of ["pointerleave", "blur"]) listen(kind, () => this.show(-1));
    listen("keydown", (event) => this.key(event));
  }

  // Whether Gradio replaced the chart, which removes the elements that were added here.
  get isGone() { return this.source !== this.figure.dataset.chart || !this.tip.isConnected || !this.tools.isConnected || !this.mark.isConnected; }

  // Creates the new chart with the same step marked.
  recreate() {
    const step = this.steps[this.at];
    this.over.abort();
    for (const node of [this.tip, this.tools, this.mark]) node.remove();
    const chart = new Chart(this.figure);
    chart.show(step === undefined ? -1 : chart.steps.indexOf(step));
    return chart;
  }

  x(step) { const [low, high] = this.data.x; return this.data.left + ((step - low) / (high - low || 1)) * (this.data.right - this.data.left); }

  y(value) { const [low, high] = this.data.y; return this.data.bottom - ((value - low) / (high - low || 1)) * (this.data.bottom - this.data.top); }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * this.svg.viewBox.baseVal.width;
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
    this.tip.hidden = at < 0;
    this.mark.replaceChildren();
    if (at < 0) return;
    const step = this.steps[at], { names, points, percent, unit, across, styles } = this.data;
    const found = names.map((name, i) => ({ name, style: styles[i], point: this.value(points[i], step) })).filter(({ point }) => point);
    const values = found.map(({ name, point }) => `${name} ${format(point[1], percent)}${unit ? ` ${unit}` : ""}`);
    this.tip.textContent = `${across} ${step.toLocaleString("en")}: ${values.join(", ")}`;
    const x = this.x(step);
    this.mark.append(this.shape("line", { class: "sp-chart-line", x1: x, x2: x, y1: this.data.top, y2: this.data.bottom }),
      ...found.map(({ style, point }) => this.shape("circle", { class: style, cx: this.x(point[0]), cy: this.y(point[1]), r: 4 })));
  }

  // The point of a line at `step`; with `near`, the closest one, within the range of the line.
  value(line, step) {
    const own = line.find(([x]) => x === step);
    if (own || !this.data.near || !line.length || step < line[0][0] || step > line.at(-1)[0]) return own;
    return line.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));
  }

  shape(name, attributes) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
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

onMatch(".sp-chart[data-chart]", (figure) => {
  let chart = new Chart(figure);
  const update = () => { if (figure.dataset.chart && chart.isGone) chart = chart.recreate(); };
  new MutationObserver(update).observe(figure, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-chart"] });
});
