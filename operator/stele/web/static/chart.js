// A small chart of lines over time.

const LEFT = 46, BOTTOM = 16, SPAN_SECONDS = 120;

export function draw(canvas, samples, lines, format) {
  const ratio = devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  const width = Math.max(120, box.width), height = Math.max(60, box.height);
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const ink = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  ink.scale(ratio, ratio);
  ink.font = "11px system-ui, sans-serif";
  const plot = { left: LEFT, right: width - 4, top: 6, bottom: height - BOTTOM };
  const now = samples.length ? samples.at(-1).at : 0;
  const shown = samples.filter((each) => now - each.at <= SPAN_SECONDS);
  const top = nice(Math.max(0, ...shown.flatMap((each) => lines.map(([name]) => each[name] ?? 0))));
  axes(ink, plot, top, style, format);
  const x = (at) => plot.right - ((now - at) / SPAN_SECONDS) * (plot.right - plot.left);
  const y = (value) => plot.bottom - (value / top) * (plot.bottom - plot.top);
  for (const [name, colour, fill] of lines) line(ink, shown, name, x, y, style.getPropertyValue(colour), fill && plot.bottom);
}

function nice(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return power * [1, 2, 5, 10].find((each) => each * power >= most);
}

function axes(ink, plot, top, style, format) {
  ink.strokeStyle = style.getPropertyValue("--line");
  ink.fillStyle = style.getPropertyValue("--quiet");
  ink.textAlign = "right";
  ink.textBaseline = "middle";
  for (const part of [0, 0.5, 1]) {
    const at = Math.round(plot.bottom - part * (plot.bottom - plot.top)) + 0.5;
    ink.beginPath();
    ink.moveTo(plot.left, at);
    ink.lineTo(plot.right, at);
    ink.stroke();
    ink.fillText(format(part * top), plot.left - 6, at);
  }
  ink.textBaseline = "bottom";
  ink.fillText("now", plot.right, plot.bottom + BOTTOM);
  ink.textAlign = "left";
  ink.fillText(`${SPAN_SECONDS} s ago`, plot.left, plot.bottom + BOTTOM);
}

function line(ink, samples, name, x, y, colour, base) {
  const points = samples.filter((each) => each[name] !== null).map((each) => [x(each.at), y(each[name])]);
  if (!points.length) return;
  ink.beginPath();
  points.forEach(([px, py], i) => (i ? ink.lineTo(px, py) : ink.moveTo(px, py)));
  ink.strokeStyle = ink.fillStyle = colour;
  ink.lineWidth = 1.75;
  ink.lineJoin = "round";
  ink.stroke();
  if (!base) return;
  ink.lineTo(points.at(-1)[0], base);
  ink.lineTo(points[0][0], base);
  ink.globalAlpha = 0.12;
  ink.fill();
  ink.globalAlpha = 1;
}
