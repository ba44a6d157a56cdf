// Draws the report's figures from the data in the page. Everything is drawn when it comes near the screen, again when a
// switch, the legend or the theme changes, and all of it before printing.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const darkQuery = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const AXES = { iterations: "Iterations", samples: "Samples drawn", gradients: "Gradient evaluations", passes: "Passes", seconds: "Seconds" };
  const OTHERS = [["#0068a8", "#5aa9e6"], ["#d04a00", "#ff8a4c"], ["#00795a", "#2fc79b"], ["#9b1030", "#ff6b81"],
    ["#6638b0", "#b794f6"], ["#b07a00", "#f5c242"], ["#4c5a68", "#a9b7c6"], ["#c43a8c", "#ff9ad5"]];
  const hidden = data.experiments.map(() => new Set());
  const drawn = new Set();
  let printing = false;

  const dark = () => darkQuery.matches && !printing;
  const colour = (pair) => pair[dark() ? 1 : 0];
  const faint = (pair, alpha) => {
    const hex = colour(pair);
    return `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;
  };
  // plotly reads a little HTML in texts: names are shown as they are
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const narrow = (chart) => !printing && chart.clientWidth < 480;

  function layout(chart, x, y) {
    const height = { radar: [380, 560, 480] }[chart.closest("figure").dataset.kind] || [320, 380, 235];
    const pair = chart.closest(".panels").classList.contains("n2");
    const ink = dark() ? "#e6e9ee" : "#1b1f24", soft = dark() ? "#9aa5b1" : "#57606a";
    const axis = (given) => ({
      gridcolor: dark() ? "#2a323c" : "#e3e6ea", zeroline: false, linecolor: soft, tickcolor: soft, automargin: true,
      tickfont: { size: 11, color: soft }, ...given, title: { text: plain(given.title || ""), font: { size: 12, color: soft }, standoff: 8 },
    });
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
      font: { family: "system-ui, sans-serif", size: 12, color: ink }, margin: { l: 48, r: 10, t: 10, b: 40 },
      dragmode: touch ? false : "zoom", height: height[printing ? 2 : narrow(chart) ? 0 : 1],
      width: printing ? (pair ? 470 : 960) : undefined, autosize: !printing,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink },
      hoverlabel: { bgcolor: dark() ? "#252c36" : "#ffffff", bordercolor: soft, font: { size: 13, color: ink }, align: "left", namelength: -1 },
      xaxis: axis(x), yaxis: axis(y),
    };
  }
  function scaled(given, log, lists) {
    if (!log) return { ...given, type: "linear", exponentformat: "SI" };
    const values = lists.flat().filter((value) => value > 0);
    const decades = Math.log10(values.reduce((a, b) => Math.max(a, b), 1e-300) / values.reduce((a, b) => Math.min(a, b), Infinity));
    return { ...given, type: "log", exponentformat: "power", dtick: decades > 2.2 ? Math.ceil(decades / 8) : undefined };
  }

  function line(entry, x, y, text, extra) {
    return {
      type: "scatter", mode: "lines+markers", name: plain(entry.label), x, y,
      line: { color: colour(entry.color), dash: entry.dash, width: entry.width },
      marker: { symbol: entry.symbol, size: 7, maxdisplayed: 7, color: colour(entry.color) },
      hovertemplate: `<b>${plain(entry.label)}</b><br>${text}<extra></extra>`, ...extra,
    };
  }
  function band(entry, x, low, high) {
    return {
      type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false, fill: "toself", line: { width: 0 },
      fillcolor: faint(entry.color, dark() ? 0.2 : 0.14), x: x.concat([...x].reverse()), y: high.concat([...low].reverse()),
    };
  }
  function shown(experiment) {
    return data.experiments[experiment].entries.filter((_, i) => !hidden[experiment].has(i));
  }

  function curves(key, chart, figure, experiment) {
    const column = key === "loss" ? Number(chart.dataset.column) : 0, axis = figure.dataset.axis, traces = [], bands = [], ends = [];
    for (const entry of shown(experiment)) {
      const at = entry[key] && entry[key][axis];
      if (!at) continue;
      const from = at.mean ? at : entry[key].iterations;
      ends.push(at.x[at.x.length - 1]);
      let text = `${AXES[axis]}: %{x:,.${axis === "seconds" ? 2 : 0}f}<br>${key === "loss" ? "Loss" : "Stationarity"}: %{y:.4g}`, extra = {};
      if (from.low) {
        bands.push(band(entry, at.x, from.low[column], from.high[column]));
        extra = { customdata: from.low[column].map((low, i) => [low, from.high[column][i]]) };
        text += "<br>Seeds: %{customdata[0]:.4g} to %{customdata[1]:.4g}";
      }
      traces.push(line(entry, at.x, from.mean[column], text, extra));
    }
    const uneven = axis !== "iterations" && Math.max(...ends) > 4 * Math.min(...ends);
    const y = { title: key === "loss" ? "Loss" : "Stationarity" }, x = { title: AXES[axis] + (uneven ? " (log scale)" : "") };
    return [[...bands, ...traces], layout(chart, scaled(x, uneven, traces.map((t) => t.x)), scaled(y, figure.dataset.scale === "log", traces.map((t) => t.y)))];
  }

  function weights(chart, figure, experiment) {
    const column = Number(chart.dataset.column), raw = [], smooth = [];
    for (const entry of shown(experiment)) {
      const at = entry.weights;
      if (!at) continue;
      raw.push({ type: "scatter", mode: "lines", x: at.x, y: at.raw[column], hoverinfo: "skip", line: { color: faint(entry.color, 0.1), width: 1 } });
      smooth.push(line(entry, at.x, at.smooth[column], "Iteration %{x:,.0f}<br>λ, smoothed: %{y:.3f}"));
    }
    return [[...raw, ...smooth], layout(chart, scaled({ title: "Iterations" }), { title: "λ", rangemode: "tozero" })];
  }

  function radar(chart, figure, experiment) {
    const tasks = data.experiments[experiment].tasks, many = tasks.length > 12, most = narrow(chart) ? 10 : 20, plan = layout(chart, {}, {});
    const close = (list) => [...list, list[0]];
    const names = tasks.map((task, i) => (many ? String(i + 1) : plain(task.length > most ? task.slice(0, most - 1) + "…" : task)));
    const traces = shown(experiment).filter((entry) => entry.normalised).map((entry) => ({
      ...line(entry, undefined, undefined, "%{text}: %{r:.3f} of the largest"), type: "scatterpolar", mode: "lines",
      r: close(entry.normalised), theta: close(names.map((_, i) => (360 * i) / names.length)), text: close(tasks.map(plain)),
    }));
    const soft = plan.xaxis.tickfont.color, grid = plan.xaxis.gridcolor;
    delete plan.xaxis; delete plan.yaxis;
    plan.margin = { l: narrow(chart) ? 66 : 130, r: narrow(chart) ? 66 : 130, t: 34, b: 34 };
    plan.polar = {
      bgcolor: "rgba(0,0,0,0)",
      radialaxis: { range: [0, 1.02], gridcolor: grid, linecolor: grid, tickfont: { size: 10, color: soft }, tickvals: [0.25, 0.5, 0.75, 1], angle: 90, tickangle: 90 },
      angularaxis: { gridcolor: grid, linecolor: soft, direction: "clockwise", tickmode: "array", tickfont: { size: many ? 9 : 12, color: soft }, tickvals: names.map((_, i) => (360 * i) / names.length), ticktext: names },
    };
    return [traces, plan];
  }

  function heat(key, chart, figure, experiment) {
    const tasks = data.experiments[experiment].tasks;
    const rows = shown(experiment).filter((entry) => (key === "normalised" ? entry.normalised : entry.weights)).reverse();
    const z = rows.map((entry) => (key === "normalised" ? entry.normalised : entry.weights.mean));
    const many = tasks.length > 12, at = tasks.map((_, i) => i), names = tasks.map(plain);
    const ticks = many && narrow(chart) ? { tickmode: "auto", nticks: 8, title: "Task number, from 0" } : { tickmode: "array", tickvals: at, ticktext: names, tickangle: many ? -90 : undefined };
    const plan = layout(chart, { ...ticks, showgrid: false }, { showgrid: false, tickmode: "array", tickvals: rows.map((_, i) => i), ticktext: rows.map((entry) => plain(entry.label)) });
    plan.margin.r = 0;
    return [[{
      type: "heatmap", x: at, y: rows.map((_, i) => i), z, text: rows.map((entry) => names.map((name) => `<b>${plain(entry.label)}</b><br>${name}`)),
      colorscale: "Cividis", colorbar: { thickness: 10, tickfont: plan.xaxis.tickfont, outlinewidth: 0 },
      hovertemplate: "%{text}: %{z:.4g}<extra></extra>", xgap: 1, ygap: 1,
    }], plan];
  }

  function study(chart, figure) {
    const about = data.studies[Number(figure.closest("section").dataset.study)][Number(chart.dataset.column)];
    const lines = [], bands = [];
    about.series.forEach((series, i) => {
      const entry = { label: series.name, color: OTHERS[i % OTHERS.length], dash: "solid", symbol: "circle", width: 2.2, ...series };
      const trace = line(entry, series.x, series.y, "%{x:.4g}, %{y:.4g}", { legendgroup: String(i) });
      if (series.mode === "markers") Object.assign(trace, { mode: "markers", marker: { symbol: entry.symbol, size: 8, color: colour(entry.color) } });
      if (series.low && series.high) bands.push({ ...band(entry, series.x, series.low, series.high), legendgroup: String(i) });
      lines.push(trace);
    });
    const [x, y] = ["x", "y"].map((key) => scaled({ title: (about[key] || {}).label || "" }, (about[key] || {}).log, about.series.map((series) => series[key] || [])));
    const plan = layout(chart, x, y);
    Object.assign(plan, { showlegend: true, legend: { orientation: "h", y: -0.2, yanchor: "top", font: { size: 12 } } });
    return [[...bands, ...lines], plan];
  }

  const KINDS = {
    loss: (...given) => curves("loss", ...given), stationarity: (...given) => curves("stationarity", ...given),
    normalised: (...given) => heat("normalised", ...given), shares: (...given) => heat("shares", ...given),
    weights, radar, chart: study,
  };
  const config = (chart) => ({
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    displayModeBar: touch || printing || narrow(chart) ? false : "hover", modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  });

  function draw(chart) {
    const figure = chart.closest("figure"), section = chart.closest("section");
    const [traces, plan] = KINDS[figure.dataset.kind](chart, figure, Number(section.dataset.experiment));
    drawn.add(chart);
    return Plotly.react(chart, traces, plan, config(chart));
  }
  const charts = () => [...document.querySelectorAll(".chart")];
  const redraw = (within) => charts().filter((chart) => drawn.has(chart) && within.contains(chart)).forEach(draw);
  const drawAll = () => Promise.all(charts().map(draw));

  function toggle(section, chip, alone) {
    const chips = [...section.querySelectorAll(".chip[data-entry]")], off = hidden[Number(section.dataset.experiment)];
    const at = Number(chip.dataset.entry);
    if (!chip.dataset.entry) off.clear();
    else if (alone) chips.forEach((_, i) => (i === at ? off.delete(i) : off.add(i)));
    else if (!off.delete(at)) off.add(at);
    chips.forEach((one, i) => one.setAttribute("aria-pressed", String(!off.has(i))));
    redraw(section);
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.classList.contains("chip")) toggle(button.closest("section"), button, event.detail > 1 || event.altKey);
    const group = button.closest(".switch");
    if (!group) return;
    group.querySelectorAll("button").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
    const figure = group.closest("figure");
    figure.dataset[group.dataset.set] = button.dataset.value;
    redraw(figure);
  });
  document.addEventListener("change", (event) => {
    const figure = event.target.closest("figure");
    if (!figure || !event.target.dataset.set) return;
    figure.querySelectorAll(".chart").forEach((chart) => (chart.dataset.column = event.target.value));
    redraw(figure);
  });
  darkQuery.addEventListener("change", () => redraw(document));
  addEventListener("beforeprint", () => {
    printing = true;
    document.querySelectorAll("details").forEach((one) => (one.open = true));
    drawAll();
  });
  addEventListener("afterprint", () => { printing = false; redraw(document); });

  const near = new IntersectionObserver((seen) => seen.forEach((one) => {
    if (!one.isIntersecting) return;
    near.unobserve(one.target);
    draw(one.target);
  }), { rootMargin: "800px" });
  charts().forEach((chart) => near.observe(chart));
  window.stimulusReport = { drawAll, data };
})();
