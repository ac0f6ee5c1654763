// The map: a strip of cells for each member, one cell for each partition, in lines as wide as the window.
//
// The canvas is as large as what is visible, and a frame draws what is held there: its work does not grow with
// the number of members. `work` counts the cells of the last frame.

import { BACKUP, CATCH_UP, COPY, LEAVES, OWNER } from "./cluster.js";

const GUTTER = 138, PAD = 10, SIZES = [2, 3, 4, 5, 6, 8, 10, 12, 14, 18], TOP = 4, GAP_FROM = 4, LABEL = 34;
const THIN = -1, LOST = -2, MOVES = -3;
const FILLS = { [OWNER]: "--owner", [BACKUP]: "--backup", [COPY]: "--copy", [CATCH_UP]: "--catch",
  [LEAVES]: "--leave", [THIN]: "--thin", [LOST]: "--lost", [MOVES]: "--copy" };

export const LEGEND = [[OWNER, "owner"], [BACKUP, "backup"], [COPY, "copying"], [CATCH_UP, "catching up"],
  [LEAVES, "leaves"], [THIN, "lacks copies"], [LOST, "lost"]];

export class PartitionMap {
  constructor(element, events) {
    this._scroll = element;
    this._space = element.querySelector(".map-space");
    this._canvas = element.querySelector("canvas");
    this._events = events;
    this._size = 0;
    this.thinFirst = false;
    this.work = 0;
    this.frames = 0;
    // The selection: strip 0 is of all members, others of one each; -1 is a member's name.
    this.at = { strip: 0, partition: -1 };
    element.addEventListener("scroll", () => this.later());
    element.addEventListener("pointermove", (event) => this._point(event, false));
    element.addEventListener("pointerleave", () => events.leave());
    element.addEventListener("click", (event) => this._point(event, true));
    element.addEventListener("keydown", (event) => this._key(event));
    for (const name of ["focus", "blur"]) element.addEventListener(name, () => this.later());
    new ResizeObserver(() => this.layout()).observe(element);
  }

  show(cluster) {
    this._cluster = cluster;
    // Members leave, and another cluster of the same name may have fewer partitions.
    const { strip, partition } = this.at;
    if (strip > cluster.members.length || partition >= cluster.rows.length) this._unselect();
    this.layout();
  }

  // Shows nothing until there is a cluster again.
  clear() {
    if (!this._cluster) return;
    this._cluster = null;
    this._unselect();
    this.later();
  }

  _unselect() {
    this.at = { strip: 0, partition: -1 };
    this._events.leave();
  }

  zoom(step) {
    const at = SIZES.indexOf(this._cell);
    this._size = SIZES[Math.min(SIZES.length - 1, Math.max(0, at + step))];
    this.layout();
  }

  layout() {
    const cluster = this._cluster;
    if (!cluster || !cluster.members) return;
    this._numbers = cluster.order(this.thinFirst);
    this._positions = new Uint32Array(this._numbers.length);
    this._numbers.forEach((number, position) => (this._positions[number] = position));
    this._width = Math.max(300, this._scroll.clientWidth);
    this._cell = this._size || this._fitting();
    const { columns, strip } = this._measure(this._cell);
    this._columns = columns;
    this._strip = strip;
    this._total = TOP + strip * (cluster.members.length + 1);
    this._space.style.height = `${this._total}px`;
    this.later();
  }

  _measure(cell) {
    const columns = Math.max(1, Math.floor((this._width - GUTTER) / cell));
    const lines = Math.max(1, Math.ceil(this._numbers.length / columns));
    return { columns, strip: Math.max(LABEL, lines * cell) + PAD };
  }

  // The largest cells with which all members fit into the window, or the smallest that can still be seen.
  _fitting() {
    const most = Math.max(260, innerHeight * 0.56), strips = this._cluster.members.length + 1;
    const fits = SIZES.filter((cell) => this._measure(cell).strip * strips <= most);
    return fits.at(-1) ?? (this._numbers.length > 4096 ? SIZES[0] : SIZES[1]);
  }

  later() {
    if (this._waits) return;
    this._waits = true;
    requestAnimationFrame(() => {
      this._waits = false;
      this._draw();
    });
  }

  _draw() {
    const ratio = devicePixelRatio || 1, height = Math.min(this._total, this._scroll.clientHeight || this._total);
    const canvas = this._canvas;
    if (canvas.width !== Math.round(this._width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(this._width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${this._width}px`;
      canvas.style.height = `${height}px`;
    }
    const ink = canvas.getContext("2d");
    ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    ink.clearRect(0, 0, this._width, height);
    if (!this._cluster) return;
    this._style = getComputedStyle(document.documentElement);
    this.work = 0;
    const top = this._scroll.scrollTop - TOP, first = Math.max(0, Math.floor(top / this._strip));
    const end = Math.min(this._cluster.members.length + 1, Math.ceil((top + height) / this._strip));
    for (let strip = first; strip < end; strip += 1) this._drawStrip(ink, strip, strip * this._strip - top);
    this.frames += 1;
  }

  _drawStrip(ink, strip, y) {
    const cluster = this._cluster;
    this._label(ink, strip, y);
    this._ground(ink, y, strip ? "--none" : "--strip");
    if (strip) {
      const held = cluster.held[strip - 1], dim = cluster.away.has(cluster.members[strip - 1].index);
      // By role, so that the colour changes seldom.
      for (const role of [BACKUP, OWNER, LEAVES, COPY, CATCH_UP])
        this._cells(ink, y, role, held.filter((each, i) => i % 2 === 0 && held[i + 1] === role));
      if (dim) this._veil(ink, y);
    } else {
      this._cells(ink, y, MOVES, [...cluster.move.keys()].filter((each) => !cluster.lacks[each]));
      this._cells(ink, y, THIN, cluster.thin.filter((each) => !cluster.lost.has(each)));
      this._cells(ink, y, LOST, [...cluster.lost]);
    }
    if (this.at.partition >= 0) this._ring(ink, strip, y);
  }

  _label(ink, strip, y) {
    const member = strip ? this._cluster.members[strip - 1] : null;
    ink.textBaseline = "top";
    ink.fillStyle = this._colour("--text");
    ink.font = "600 13px system-ui, sans-serif";
    ink.fillText(fitted(ink, member ? member.name : "all members", GUTTER - 14), 4, y + 1);
    ink.font = "11.5px system-ui, sans-serif";
    const away = member && this._cluster.away.has(member.index);
    ink.fillStyle = this._colour(away || (!strip && this._cluster.thin.length) ? "--thin" : "--quiet");
    ink.fillText(fitted(ink, this._words(member), GUTTER - 14), 4, y + 18);
    if (strip === this.at.strip && this.at.partition < 0 && document.activeElement === this._scroll) {
      ink.strokeStyle = this._colour("--focus");
      ink.lineWidth = 2;
      ink.strokeRect(1, y - 2, GUTTER - 10, LABEL);
    }
  }

  _words(member) {
    const thin = this._cluster.thin.length, moving = this._cluster.move.size;
    if (!member) return thin ? `${thin} lack copies` : moving ? `${moving} moving` : "all copies there";
    const place = this._cluster.place.get(member.index), owned = this._cluster.owned[place];
    const held = this._cluster.held[place].length / 2;
    const state = member.state && member.state !== "Active" ? `${member.state} · ` : "";
    return member.lite ? `${state}lite` : `${state}${owned} + ${held - owned}`;
  }

  // The cells of a whole strip, as a rectangle per line and gaps over it.
  _ground(ink, y, colour) {
    const cell = this._cell, count = this._numbers.length, whole = Math.floor(count / this._columns);
    const rest = count % this._columns, lines = whole + (rest ? 1 : 0);
    ink.fillStyle = this._colour(colour);
    ink.fillRect(GUTTER, y, this._columns * cell, whole * cell);
    ink.fillRect(GUTTER, y + whole * cell, rest * cell, cell);
    if (cell < GAP_FROM) return;
    ink.fillStyle = this._colour("--grid");
    for (let column = 1; column <= Math.min(this._columns, count); column += 1)
      ink.fillRect(GUTTER + column * cell - 1, y, 1, lines * cell);
    for (let line = 1; line <= lines; line += 1)
      ink.fillRect(GUTTER, y + line * cell - 1, this._columns * cell, 1);
  }

  _cells(ink, y, role, partitions) {
    if (!partitions.length) return;
    const size = this._cell, inner = size < GAP_FROM ? size : size - 1;
    ink.fillStyle = this._colour(FILLS[role]);
    for (const partition of partitions) {
      const [x, line] = this._cellAt(partition);
      ink.fillRect(x, y + line, inner, inner);
    }
    this.work += partitions.length;
    if (size < 6) return;
    ink.fillStyle = ink.strokeStyle = this._colour("--card");
    ink.lineWidth = Math.max(1.5, size / 8);
    for (const partition of partitions) {
      const [x, line] = this._cellAt(partition);
      shape(ink, role, x, y + line, inner);
    }
  }

  _veil(ink, y) {
    ink.globalAlpha = 0.55;
    ink.fillStyle = this._colour("--card");
    ink.fillRect(GUTTER, y, this._columns * this._cell, this._strip - PAD);
    ink.globalAlpha = 1;
  }

  _ring(ink, strip, y) {
    const [x, line] = this._cellAt(this.at.partition), here = strip === this.at.strip;
    const holds = !strip || this._cluster.role(this._cluster.members[strip - 1].index, this.at.partition) !== "has no copy";
    if (!here && !holds) return;
    const wide = Math.max(this._cell, 5);
    ink.strokeStyle = this._colour(here ? "--focus" : "--ring");
    ink.lineWidth = here ? 2.5 : 1.5;
    ink.strokeRect(x - 1.5, y + line - 1.5, wide + 2, wide + 2);
  }

  _cellAt(partition) {
    const position = this._positions[partition];
    return [GUTTER + (position % this._columns) * this._cell, Math.floor(position / this._columns) * this._cell];
  }

  _colour(name) {
    return this._style.getPropertyValue(name);
  }

  _point(event, click) {
    if (!this._cluster) return;
    const box = this._scroll.getBoundingClientRect();
    const x = event.clientX - box.left - GUTTER, y = event.clientY - box.top + this._scroll.scrollTop - TOP;
    const strip = Math.floor(y / this._strip);
    if (strip < 0 || strip > this._cluster.members.length) return;
    const column = Math.floor(x / this._cell), line = Math.floor((y - strip * this._strip) / this._cell);
    const within = x >= 0 && column < this._columns && line >= 0;
    const partition = x < 0 ? -1 : this._numbers[line * this._columns + column];
    if ((x >= 0 && !within) || partition === undefined) return;
    if (click) this.select(strip, partition, true);
    else this._events.point(strip, partition);
  }

  // Selects a cell, and scrolls there; `opens`: explain it, too.
  select(strip, partition, opens) {
    this.at = { strip, partition };
    const [, line] = partition < 0 ? [0, 0] : this._cellAt(partition), top = TOP + strip * this._strip + line;
    const { scrollTop, clientHeight } = this._scroll;
    if (top < scrollTop) this._scroll.scrollTop = top - PAD;
    else if (top + LABEL > scrollTop + clientHeight) this._scroll.scrollTop = top + LABEL + PAD - clientHeight;
    this.later();
    this._events.select(strip, partition);
    if (opens) this._events.open(strip, partition);
  }

  _key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || !this._cluster) return;
    const { strip, partition } = this.at, last = this._numbers.length - 1;
    const position = partition < 0 ? -1 : this._positions[partition];
    const to = { ArrowLeft: position - 1, ArrowRight: position + 1, Home: 0, End: last,
      PageUp: Math.max(0, position - this._columns), PageDown: position + this._columns }[event.key];
    if (to !== undefined) this.select(strip, to < 0 ? -1 : this._numbers[Math.min(last, to)], false);
    else if (event.key === "ArrowUp") this.select(Math.max(0, strip - 1), partition, false);
    else if (event.key === "ArrowDown") this.select(Math.min(this._cluster.members.length, strip + 1), partition, false);
    else if (event.key === "Enter") this._events.open(strip, partition);
    else return;
    event.preventDefault();
  }
}

// A sign within a cell, for those who do not tell the colours apart.
export function shape(ink, role, x, y, size) {
  if (role === BACKUP) ink.fillRect(x + size * 0.32, y + size * 0.32, size * 0.36, size * 0.36);
  if (role === LEAVES) ink.fillRect(x + size * 0.2, y + size * 0.2, size * 0.6, size * 0.6);
  const lines = { [COPY]: [[0.5, 0.15, 0.5, 0.85], [0.15, 0.5, 0.85, 0.5]], [CATCH_UP]: [[0.15, 0.85, 0.85, 0.15]],
    [THIN]: [[0.2, 0.5, 0.8, 0.5]], [LOST]: [[0.2, 0.2, 0.8, 0.8], [0.8, 0.2, 0.2, 0.8]] }[role];
  for (const [ax, ay, bx, by] of lines ?? []) {
    ink.beginPath();
    ink.moveTo(x + ax * size, y + ay * size);
    ink.lineTo(x + bx * size, y + by * size);
    ink.stroke();
  }
}

export function drawLegend(canvas, role) {
  const ratio = devicePixelRatio || 1, style = getComputedStyle(document.documentElement), ink = canvas.getContext("2d");
  canvas.width = canvas.height = 12 * ratio;
  ink.scale(ratio, ratio);
  ink.fillStyle = style.getPropertyValue(FILLS[role]);
  ink.fillRect(0, 0, 12, 12);
  ink.fillStyle = ink.strokeStyle = style.getPropertyValue("--card");
  ink.lineWidth = 1.5;
  shape(ink, role, 0, 0, 12);
}

function fitted(ink, text, width) {
  if (ink.measureText(text).width <= width) return text;
  while (text && ink.measureText(`${text}…`).width > width) text = text.slice(0, -1);
  return `${text}…`;
}
