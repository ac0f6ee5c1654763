// The panels beside the map. Whatever a cluster says is set as text, never as HTML.

import { bytes, count, seconds } from "./cluster.js";

const GOOD_WHEN_FALSE = new Set(["Degraded", "Paused", "DataLoss", "Stalled"]);
const WORK = new Set(["Progressing", "Reconciling"]);
const THIN_SHOWN_MAX = 60, MOVES_SHOWN_MAX = 6, FLOWS_SHOWN_MAX = 8;
const PHASES = { Running: "good", Rebalancing: "busy", Forming: "busy", Pending: "busy" };

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const byId = (id) => document.getElementById(id);

export function showHeader(view) {
  const { phase, message, state } = view.cluster, mark = byId("phase");
  mark.textContent = state === "Active" ? phase : `${phase}, ${state}`;
  mark.className = `phase ${PHASES[phase] ?? "bad"}`;
  byId("message").textContent = byId("message").title = message;
  document.title = `${view.cluster.name}: ${phase} – Stele`;
}

export function showTiles(cluster, rates) {
  const { view } = cluster, last = rates.last, held = view.members.reduce((sum, each) => sum + (each.bytes ?? 0), 0);
  const plan = view.plans.find((each) => !each.finished && each.phase === "Running");
  const safe = view.partitions - cluster.thin.length;
  byId("tiles").replaceChildren(
    tile("members ready", `${view.cluster.ready}`, `/ ${view.cluster.desired}`, view.cluster.ready < view.cluster.desired),
    tile("partitions with all copies", count(safe), `/ ${count(view.partitions)}`, safe < view.partitions),
    tile("moving now", count(view.moving), view.waiting ? `+ ${count(view.waiting)} wait` : ""),
    tile("until done", plan ? seconds(plan.eta) : "–", ""),
    tile("requests per second", last ? count(last.reads + last.writes) : "–", ""),
    tile("99 of 100 within", last && last.p99 !== null ? `${milliseconds(last.p99)}` : "–", ""),
    tile("data, with all copies", bytes(held), ""),
  );
}

export function milliseconds(number) {
  return number < 10 ? `${number.toFixed(1)} ms` : number < 1000 ? `${number.toFixed(0)} ms` : `${(number / 1000).toFixed(1)} s`;
}

function tile(what, value, rest, bad) {
  const number = make("b", {}, value, " ", make("small", { textContent: rest }));
  return make("div", { className: bad ? "tile bad" : "tile" }, number, make("span", { textContent: what }));
}

export function showAttention(cluster, open) {
  const { view } = cluster, found = [];
  if (cluster.thin.length) {
    const lost = cluster.lost.size;
    const text = `${cluster.thin.length === 1 ? "1 partition has" : `${count(cluster.thin.length)} partitions have`} too few copies${lost ? `, ${lost} of them none` : ""}`;
    const chips = cluster.thin.slice(0, THIN_SHOWN_MAX).map((number) => link(`${number}`, () => open.partition(number)));
    const more = cluster.thin.length - chips.length;
    found.push(make("p", { className: "mark-thin", textContent: text }));
    found.push(make("div", { className: "chips" }, ...chips, more > 0 ? `and ${count(more)} more` : ""));
  }
  for (const each of cluster.members)
    if (cluster.away.has(each.index)) found.push(make("p", {}, link(each.name, () => open.member(each.name)), ` is ${each.state}`));
  for (const [message, types] of conditions(view))
    found.push(make("p", {}, make("b", { textContent: types.join(", ") }), `: ${message}`));
  if (!found.length) found.push(make("p", { className: "good", textContent: "✓ Nothing: all copies are there, and all members answer." }));
  replace(byId("attention"), found);
}

// Returns conditions that are not as they should be, by their messages; those that only say that work goes on
// are left out.
function conditions(view) {
  const found = new Map();
  for (const [type, status, , message] of view.cluster.conditions)
    if (!WORK.has(type) && status !== (GOOD_WHEN_FALSE.has(type) ? "False" : "True"))
      found.set(message, [...(found.get(message) ?? []), `${type} is ${status}`]);
  return found;
}

function link(text, onclick) {
  return make("button", { type: "button", textContent: text, onclick });
}

export function showMoves(cluster, open) {
  const { view } = cluster, found = [], plan = view.plans.find((each) => !each.finished && each.phase === "Running");
  if (plan) found.push(...planBar(plan));
  for (const each of view.sessions.slice(0, FLOWS_SHOWN_MAX)) found.push(flow(cluster, each));
  if (view.sessions.length > FLOWS_SHOWN_MAX) found.push(make("p", { className: "quiet", textContent: `and ${view.sessions.length - FLOWS_SHOWN_MAX} more copies` }));
  if (view.moving) found.push(steps(view), ...view.moves.slice(0, MOVES_SHOWN_MAX).map((each) => moveLine(cluster, each, open)));
  if (!found.length) found.push(make("p", { className: "quiet", textContent: "No data moves." }));
  replace(byId("moves"), found);
}

function planBar(plan) {
  const done = plan.planned ? plan.done / plan.planned : 0;
  const speed = plan.bytes ? `, ${bytes(plan.copied)} of ${bytes(plan.bytes)} at ${bytes(plan.rate)}/s` : "";
  const text = `${plan.done} of ${plan.planned} migrations${speed}; ${plan.eta === null ? "time left unknown" : `${seconds(plan.eta)} left`}`;
  return [make("p", { textContent: plan.reason }), bar(done), make("p", { className: "quiet", textContent: text })];
}

function bar(part) {
  const fill = make("i");
  fill.style.width = `${Math.round(100 * Math.min(1, part))}%`;
  return make("div", { className: "bar" }, fill);
}

function flow(cluster, each) {
  const rate = each.seconds > 0 ? each.copied / each.seconds : 0, left = each.bytes - each.copied;
  const ends = `${cluster.name(each.source)} → ${cluster.name(each.destination)}`;
  const limit = each.limit ? `, limit ${bytes(each.limit)}/s` : "";
  const speed = rate && left > 0 ? `${bytes(rate)}/s${limit}, ${seconds(left / rate)} left` : each.stage.toLowerCase();
  const what = `${each.partitions} ${each.partitions === 1 ? "partition" : "partitions"}, ${bytes(each.copied)} of about ${bytes(each.bytes)}${each.engine ? ` by ${each.engine}` : ""}`;
  return make("div", { className: "flow", title: each.why },
    make("div", { className: "ends" }, make("b", { textContent: ends }), make("span", { className: "quiet", textContent: speed })),
    bar(each.bytes ? each.copied / each.bytes : 0), make("span", { className: "quiet", textContent: what }));
}

function steps(view) {
  const counts = new Map();
  for (const each of view.moves) counts.set(each.step, (counts.get(each.step) ?? 0) + 1);
  const text = [...counts].map(([step, number]) => `${number} ${step.toLowerCase().replace("_", " ")}`).join(", ");
  return make("p", { className: "flow quiet", textContent: `steps: ${text}` });
}

function moveLine(cluster, each, open) {
  const from = each.source === null ? "a new copy" : `from ${cluster.name(each.source)}`;
  const to = each.destination === null ? "" : ` to ${cluster.name(each.destination)}`;
  const number = link(`${each.partition}`, () => open.partition(each.partition));
  return make("div", { className: "ends" }, number, ` ${each.type.toLowerCase()} ${from}${to}, ${each.step.toLowerCase().replace("_", " ")}, ${seconds(each.seconds)}`);
}

export function showMembers(cluster, rates, open) {
  const head = row("th", ["Member", "State", "", "Owner of", "Backup of", "Data", "Free", "Requests/s", "Node", "Zone"], [3, 4, 5, 6, 7]);
  const rows = cluster.members.map((each) => {
    const place = cluster.place.get(each.index), owned = cluster.owned[place], held = cluster.held[place].length / 2;
    const notes = [each.drain && "drain", each.lite && "lite", each.weight > 1 && `weight ${each.weight}`, each.restarts > 0 && `${each.restarts} restarts`];
    const rate = rates.of.get(each.index);
    const line = row("td", [each.gone ? each.name : link(each.name, () => open.member(each.name)), each.state, notes.filter(Boolean).join(", "),
      count(owned), count(held - owned), bytes(each.bytes), bytes(each.free), rate === undefined ? "–" : count(rate), each.node ?? "", each.zone ?? ""], [3, 4, 5, 6, 7]);
    if (each.state !== "Active") line.children[1].className = cluster.away.has(each.index) ? "state-bad" : "state-busy";
    return line;
  });
  replace(byId("members"), [make("thead", {}, head), make("tbody", {}, ...rows)]);
}

function row(tag, cells, numbers) {
  return make("tr", {}, ...cells.map((each, i) => make(tag, { className: numbers.includes(i) ? "n" : "" }, each)));
}

export function showPlans(view) {
  const head = row("th", ["Began", "Phase", "Done", "Why"], [2]);
  const rows = view.plans.map((each) => {
    const began = each.started ? new Date(each.started).toLocaleTimeString() : "–";
    const failed = each.failed ? `, ${each.failed} rolled back` : "", size = each.copied ? `, ${bytes(each.copied)}` : "";
    const refused = each.refused ? ` Refused: ${each.refused}, such as ${each.refusals[0]?.[2] ?? ""}` : "";
    const line = row("td", [began, each.phase, `${each.done} / ${each.planned}`, `${each.reason}${size}${failed}.${refused}`], [2]);
    line.title = each.name;
    line.lastChild.className = "wide";
    return line;
  });
  if (!rows.length) rows.push(row("td", ["None yet", "", "", ""], []));
  replace(byId("plans"), [make("thead", {}, head), make("tbody", {}, ...rows)]);
}

// Replaces what is there, unless it is the same, or has the focus and would lose it.
function replace(element, children) {
  const holder = make("div", {}, ...children);
  if (element.dataset.shown === holder.innerHTML) return;
  const at = [...element.querySelectorAll("button")].indexOf(document.activeElement);
  element.dataset.shown = holder.innerHTML;
  element.replaceChildren(...holder.childNodes);
  if (at >= 0) element.querySelectorAll("button")[at]?.focus();
}

export function showWhy(title, facts) {
  byId("why-title").textContent = title;
  const before = [...byId("why").children].map((each) => each.textContent);
  if (before.join("\n") === facts.join("\n")) return;
  byId("why").replaceChildren(...facts.map((each) => make("li", { textContent: each })));
}
