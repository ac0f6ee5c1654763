// Requests per second and latency, from counters that members report to the operator anyway.

const WINDOW_SECONDS = 3, SAMPLES_MAX = 300, KEPT_SECONDS = 10;

export class Rates {
  constructor() {
    this._before = [];
    this.samples = [];
    this.of = new Map();
  }

  take(view) {
    const at = view.seconds;
    if (this._before.length && at < this._before.at(-1).at) this._before = [];
    const members = new Map(view.members.filter((each) => each.counters).map((each) => [each.index, each]));
    const old = this._before.find((each) => at - each.at <= WINDOW_SECONDS + 1);
    this._before.push({ at, members });
    this._before = this._before.filter((each) => at - each.at <= KEPT_SECONDS);
    if (!old || at - old.at < 0.5) return;
    this._compare(old, at, members, view.bounds);
  }

  _compare(old, at, members, bounds) {
    const total = { at, reads: 0, writes: 0, errors: 0, p50: null, p99: null }, took = at - old.at;
    const durations = new Array(bounds.length + 1).fill(0);
    this.of = new Map();
    for (const [index, now] of members) {
      const before = old.members.get(index);
      if (!before || before.process !== now.process) continue;
      const [reads, writes, , errors] = now.counters.map((each, i) => Math.max(0, each - before.counters[i]) / took);
      this.of.set(index, reads + writes);
      total.reads += reads;
      total.writes += writes;
      total.errors += errors;
      now.durations.forEach((each, i) => (durations[i] += Math.max(0, each - (before.durations[i] || 0))));
    }
    total.p50 = quantile(durations, bounds, 0.5);
    total.p99 = quantile(durations, bounds, 0.99);
    this.samples.push(total);
    if (this.samples.length > SAMPLES_MAX) this.samples.shift();
  }

  get last() {
    return this.samples.at(-1);
  }
}

// Returns milliseconds, between two bounds in proportion, as Prometheus' histogram_quantile does.
export function quantile(counts, bounds, part) {
  const total = counts.reduce((a, b) => a + b, 0);
  if (!total) return null;
  let rank = part * total;
  for (let i = 0; i < counts.length; i += 1) {
    if (rank <= counts[i] && counts[i]) {
      const low = i ? bounds[i - 1] : 0, high = i < bounds.length ? bounds[i] : low;
      return 1000 * (low + ((high - low) * rank) / counts[i]);
    }
    rank -= counts[i];
  }
  return 1000 * bounds.at(-1);
}
