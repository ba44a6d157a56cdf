"""A self-contained page of a front: hover shows a point, a click copies the code that loads its model."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stimulus_moo import MissingDependency
from stimulus_moo.fronts.files import state_file

if TYPE_CHECKING:
    from stimulus_moo.fronts.front import Front

_STYLE = """
:root { --paper: #ffffff; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --accent: #0969da; --code: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0d1117; --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --accent: #4493f8; --code: #151b23; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 960px; padding: 16px; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4em; margin: 0 0 4px; }
p { margin: 4px 0 12px; color: var(--soft); }
#plot { width: 100%; height: min(70vh, 560px); overflow: hidden; }
#point { border: 1px solid var(--line); border-radius: 6px; padding: 12px; margin-top: 12px; }
select { font: inherit; max-width: 100%; min-height: 40px; }
pre { background: var(--code); padding: 10px; border-radius: 6px; overflow-x: auto; margin: 8px 0;
  font-size: 14px; white-space: pre-wrap; overflow-wrap: anywhere; }
button { font: inherit; color: var(--paper); background: var(--accent); border: 0; border-radius: 6px;
  padding: 8px 14px; min-height: 40px; cursor: pointer; }
table { border-collapse: collapse; }
td, th { text-align: left; padding: 2px 14px 2px 0; font-variant-numeric: tabular-nums; }
"""

_SCRIPT = """
const plot = document.getElementById("plot"), dark = window.matchMedia("(prefers-color-scheme: dark)");
const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let chosen = null;
function layout() {
  const axis = name => ({title: {text: name}, gridcolor: ink("--line"), zerolinecolor: ink("--line"),
    linecolor: ink("--line"), color: ink("--soft"), automargin: true});
  const base = {paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: ink("--ink")},
    margin: {l: 50, r: 16, t: 16, b: 50}, showlegend: false, hovermode: "closest"};
  if (front.names.length == 2) return {...base, xaxis: axis(front.names[0]), yaxis: axis(front.names[1])};
  const eye = window.innerWidth < 600 ? 2.1 : 1.5;
  if (front.names.length == 3) return {...base, margin: {l: 0, r: 0, t: 0, b: 0}, scene: {xaxis: axis(front.names[0]),
    yaxis: axis(front.names[1]), zaxis: axis(front.names[2]), camera: {eye: {x: eye, y: eye, z: eye}}}};
  return {...base, margin: {l: 60, r: 60, t: 60, b: 20}};
}
function traces() {
  const f = front.names.map((_, s) => front.points.map(p => p.losses[s]));
  const color = front.points.map(p => p.best ? ink("--accent") : ink("--soft"));
  const text = front.points.map(p => p.text);
  const marks = {mode: "markers", marker: {size: front.names.length == 3 ? 6 : 12, color}, text, hoverinfo: "text"};
  if (front.names.length == 2) {
    const order = front.points.map((_, k) => k).filter(k => front.points[k].best).sort((a, b) => f[0][a] - f[0][b]);
    return [{x: order.map(k => f[0][k]), y: order.map(k => f[1][k]), mode: "lines", hoverinfo: "skip",
      line: {color: ink("--accent"), width: 1}}, {...marks, x: f[0], y: f[1]}];
  }
  if (front.names.length == 3) return [{...marks, type: "scatter3d", x: f[0], y: f[1], z: f[2]}];
  return [{type: "parcoords", line: {color: front.points.map(p => p.best ? 1 : 0), cmin: 0, cmax: 1,
    colorscale: [[0, ink("--line")], [1, ink("--accent")]]},
    dimensions: front.names.map((name, s) => ({label: name, values: f[s]}))}];
}
function show(k) {
  chosen = front.points[k];
  const rows = front.names.map((name, s) =>
    `<tr><td>${name}</td><td>${chosen.shown[s]}</td><td>${chosen.weights[s].toFixed(3)}</td></tr>`).join("");
  document.getElementById("about").innerHTML = `<b>Point ${chosen.number}</b>` +
    `<table><tr><th>objective</th><th>loss</th><th>weight</th></tr>${rows}</table>`;
  document.getElementById("code").textContent = chosen.code;
  document.getElementById("picker").value = k;
  document.getElementById("copied").textContent = "";
}
async function copy() {
  let done = false;
  try { await navigator.clipboard.writeText(chosen.code); done = true; } catch (error) {
    const area = document.createElement("textarea");
    area.value = chosen.code; document.body.append(area); area.select();
    done = document.execCommand("copy"); area.remove();
  }
  document.getElementById("copied").textContent = done ? "Copied." : "Copy the code above by hand.";
}
const picker = document.getElementById("picker");
front.points.forEach((p, k) => picker.add(new Option(`Point ${p.number}: ${p.shown.join(", ")}`, k)));
picker.addEventListener("change", () => show(Number(picker.value)));
document.getElementById("copy").addEventListener("click", copy);
Plotly.newPlot(plot, traces(), layout(), {responsive: true, displaylogo: false, displayModeBar: false});
plot.on("plotly_click", event => { show(event.points[0].pointNumber); copy(); });
dark.addEventListener("change", () => Plotly.react(plot, traces(), layout()));
show(0);
"""


def page(front: Front, folder: Path) -> str:
    """Return the page as one HTML text; ``folder`` is where the files of the front are.

    Raises:
        MissingDependency: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingDependency("the page of a front needs plotly: pip install 'stimulus-moo[lab]'") from None
    names = [html.escape(name) for name in front.names]
    data = {"names": names, "points": _points(front, folder, names)}
    count, best = len(front), int(front.nondominated.sum())
    written = json.dumps(data).replace("</", "<\\/")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><link rel="icon" href="data:,"><title>Pareto front</title><style>{_STYLE}</style></head>'
        f"<body><h1>Pareto front</h1><p>{count} models, {best} of them nondominated. Every point is a trained model: "
        "click one, or pick it below, to copy the code that loads it.</p>"
        '<div id="plot"></div><div id="point"><label>Model <select id="picker"></select></label>'
        '<div id="about"></div><pre id="code"></pre><button id="copy">Copy the code</button> '
        f'<span id="copied" role="status"></span></div><script>{get_plotlyjs()}</script>'
        f"<script>const front = {written};\n{_SCRIPT}</script></body></html>\n"
    )


def _points(front: Front, folder: Path, names: list[str]) -> list[dict[str, Any]]:
    best = np.asarray(front.nondominated)
    found = []
    for k, point in enumerate(front.points):
        shown = [f"{loss:.4g}" for loss in point.losses]
        lines = [f"{name} {value}, weight {w:.3f}" for name, value, w in zip(names, shown, point.weights, strict=True)]
        path = json.dumps(str((folder / state_file(point.number)).resolve()))
        found.append(
            {
                "number": point.number,
                "losses": point.losses,
                "weights": point.weights,
                "best": bool(best[k]),
                "shown": shown,
                "text": f"<b>Point {point.number}</b><br>" + "<br>".join(lines),
                "code": f"import torch\n\nmodel.load_state_dict(torch.load({path}, weights_only=True))",
            }
        )
    return found
