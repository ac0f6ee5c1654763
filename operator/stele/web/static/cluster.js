// What the page knows of a cluster: the rows it has, brought up to date by each document, and what follows.

export const OWNER = 1, BACKUP = 2, COPY = 3, CATCH_UP = 4, LEAVES = 5;
const AWAY = new Set(["Unreachable", "Lost", "Left"]);
const COPYING = new Set(["START", "ATTACH", "COPY"]);

export class Cluster {
  constructor() {
    this.version = "";
    this.rows = [];
    this.view = null;
  }

  // Takes a document; returns whether who holds what has changed.
  take(view) {
    if (!view.base) this.rows = [];
    while (this.rows.length < view.partitions) this.rows.push([]);
    for (const [number, ...replicas] of view.rows) this.rows[number] = replicas;
    const moved = JSON.stringify(view.moves.map((each) => [each.partition, each.step]));
    const states = JSON.stringify(view.members.map((each) => [each.index, each.state, each.name]));
    const changed = this.version !== view.version || moved !== this._moved || states !== this._states;
    this.version = view.version;
    this._moved = moved;
    this._states = states;
    this.view = view;
    if (changed) this._derive();
    return changed;
  }

  _derive() {
    const { members, moves, parts, lost } = this.view;
    const known = new Map(members.map((each) => [each.index, each]));
    for (const row of this.rows)
      for (const index of row)
        if (index !== null && !known.has(index))
          known.set(index, { index, name: `(member ${index})`, state: "Left", gone: true });
    this.members = [...known.values()].sort((a, b) => a.index - b.index);
    this.place = new Map(this.members.map((each, place) => [each.index, place]));
    this.away = new Set(this.members.filter((each) => AWAY.has(each.state)).map((each) => each.index));
    this.move = new Map(moves.map((each) => [each.partition, each]));
    this._hold();
    this._count(parts, new Set(lost));
  }

  // Fills `held`: for each member a flat list of partition and role.
  _hold() {
    this.held = this.members.map(() => []);
    this.owned = new Array(this.members.length).fill(0);
    this.rows.forEach((row, partition) => {
      const move = this.move.get(partition);
      row.forEach((index, replica) => {
        if (index === null) return;
        const place = this.place.get(index);
        const leaves = move && move.leaves && move.source === index;
        this.held[place].push(partition, leaves ? LEAVES : replica ? BACKUP : OWNER);
        if (!replica) this.owned[place] += 1;
      });
      if (move && move.destination !== null && !row.includes(move.destination)) {
        const place = this.place.get(move.destination);
        if (place !== undefined) this.held[place].push(partition, COPYING.has(move.step) ? COPY : CATCH_UP);
      }
    });
  }

  // Fills `lacks`: copies that each partition lacks; all of them where it is lost.
  _count(parts, lost) {
    this.lacks = new Uint8Array(this.rows.length);
    this.thin = [];
    for (const [first, end, replicas] of parts)
      for (let partition = first; partition < end; partition += 1) {
        const live = this.rows[partition].filter((each) => each !== null && !this.away.has(each)).length;
        const lacks = lost.has(partition) ? replicas : Math.max(0, replicas - live);
        this.lacks[partition] = lacks;
        if (lacks) this.thin.push(partition);
      }
    this.lost = lost;
    this.thin.sort((a, b) => this.lacks[b] - this.lacks[a] || a - b);
  }

  // Returns partitions in the order of the map.
  order(thinFirst) {
    const numbers = Array.from(this.rows, (_, number) => number);
    if (!thinFirst) return numbers;
    return [...this.thin, ...numbers.filter((number) => !this.lacks[number])];
  }

  name(index) {
    const place = this.place.get(index);
    return place === undefined ? `member ${index}` : this.members[place].name;
  }

  // Says what a member has of a partition.
  role(index, partition) {
    const row = this.rows[partition], move = this.move.get(partition), at = row.indexOf(index);
    if (at >= 0) {
      const what = at ? `backup ${at}` : "owner";
      return move && move.leaves && move.source === index ? `${what}, which leaves` : what;
    }
    if (!move || move.destination !== index) return "has no copy";
    return COPYING.has(move.step) ? "copying" : "catching up";
  }
}

export function bytes(number) {
  if (number === undefined || number < 0) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (number < 1000) return `${unit === "B" ? number : number.toFixed(1)} ${unit}`;
    number /= 1000;
  }
  return `${number.toFixed(1)} TB`;
}

export function count(number) {
  return Math.round(number).toLocaleString("en").replaceAll(",", "\u202f");
}

export function seconds(number) {
  if (number === null || number === undefined || !isFinite(number)) return "unknown";
  if (number < 90) return `${Math.ceil(number)} s`;
  return number < 5400 ? `${Math.ceil(number / 60)} min` : `${(number / 3600).toFixed(1)} h`;
}
