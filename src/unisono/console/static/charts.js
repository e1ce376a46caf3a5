// Charts over time on uPlot, in the colours of the page's theme.

import uPlot from "/console/uplot.js";

const HEIGHT = 170;

// The value of a colour of the style sheet, as a canvas takes it: pairs of light and dark are resolved.
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

// `lines`: [{ label, colour: "--line-1", format }]. Gives a function that shows columns: [seconds, values…].
export function chart(holder, lines, signal) {
  let plot;
  let shown = [[], ...lines.map(() => [])];

  function build() {
    plot?.destroy();
    const font = "12px system-ui, sans-serif";
    const axis = { font, stroke: colour("--text-quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    plot = new uPlot(
      {
        width: Math.max(240, holder.clientWidth),
        height: HEIGHT,
        cursor: { y: false, points: { size: 6 } },
        scales: { y: { range: (_, low, high) => [0, Math.max(high ?? 0, 0.001) * 1.1] } },
        axes: [
          { ...axis, values: "{HH}:{mm}:{ss}", space: 80 },
          { ...axis, size: 56, values: (_, values) => values.map((value) => lines[0].format(value)) },
        ],
        series: [
          { label: "time", value: (_, at) => (at === null ? "–" : new Date(at * 1000).toLocaleTimeString("en-GB")) },
          ...lines.map((line) => ({
            label: line.label,
            stroke: colour(line.colour),
            width: 1.8,
            dash: line.dash,
            points: { show: false },
            value: (_, value) => line.format(value),
          })),
        ],
      },
      shown,
      holder,
    );
  }

  const observer = new ResizeObserver(() => plot?.setSize({ width: Math.max(240, holder.clientWidth), height: HEIGHT }));
  observer.observe(holder);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", build, { signal });
  addEventListener("themechange", build, { signal });
  signal.addEventListener("abort", () => {
    observer.disconnect();
    plot?.destroy();
  });
  return (columns) => {
    shown = columns;
    if (plot) plot.setData(columns);
    else build();
  };
}
