// Asks for the cluster each second while somebody looks, and shows it.

import { draw } from "./chart.js";
import { Cluster, count } from "./cluster.js";
import { drawLegend, LEGEND, PartitionMap } from "./map.js";
import { make, milliseconds, showAttention, showHeader, showMembers, showMoves, showPlans, showTiles, showWhy } from "./panels.js";
import { Rates } from "./rates.js";

const POLL_MS = 1000, ANSWER_MS = 10000, EXPLAIN_MS = 5000;
const THEMES = ["system", "light", "dark"];
const byId = (id) => document.getElementById(id);

let key = "", cluster = new Cluster(), rates = new Rates();
// What is explained, and of which state of the cluster.
let about = "", explained = { at: 0, state: "" };

const map = new PartitionMap(byId("map"), {
  point: (strip, partition) => say(strip, partition),
  select: (strip, partition) => say(strip, partition),
  leave: () => say(map.at.strip, map.at.partition),
  open: (strip, partition) => explain(partition >= 0 ? `${partition}` : strip ? cluster.members[strip - 1].name : ""),
});
// What these are called with stays from the cluster before until another one is known.
const open = {
  partition: (number) => cluster.view && map.select(0, number, true),
  member: (name) => cluster.view && explain(name),
};

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(ANSWER_MS) });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.problem ?? `${answer.status}`);
  return found;
}

function place(name) {
  return `/v1/clusters/${name.split("/").map(encodeURIComponent).join("/")}`;
}

async function poll() {
  try {
    const names = (await ask("/v1/clusters")).map((each) => each.join("/"));
    choose(names);
    if (!key) throw new Error("There is no TabletCluster yet.");
    const asked = key, view = await ask(`${place(key)}?since=${cluster.version}`);
    if (asked === key) show(view);
    problem("");
  } catch (error) {
    problem(error.name === "TypeError" || error.name === "TimeoutError" ? "No answer from the operator; asking again." : error.message);
  }
}

function choose(names) {
  const list = byId("cluster");
  if (names.join() !== [...list.options].map((each) => each.value).join()) {
    const single = new Set(names.map((each) => each.split("/")[0])).size < 2;
    list.replaceChildren(...names.map((each) => make("option", { value: each, textContent: single ? each.split("/")[1] : each })));
  }
  const wanted = decodeURIComponent(location.hash.slice(1));
  change(names.includes(wanted) ? wanted : names.includes(key) ? key : names[0] ?? "");
  list.value = key;
}

function change(name) {
  if (name === key) return;
  [key, cluster, rates, about] = [name, new Cluster(), new Rates(), ""];
  map.clear();
}

function show(view) {
  const first = !cluster.view, changed = cluster.take(view);
  rates.take(view);
  showHeader(view);
  showTiles(cluster, rates);
  showAttention(cluster, open);
  showMoves(cluster, open);
  showMembers(cluster, rates, open);
  showPlans(view);
  if (changed) map.show(cluster);
  charts();
  if (first || (explained.state !== stateOf(view) && Date.now() - explained.at > EXPLAIN_MS)) explain(about);
  document.body.dataset.version = view.version;
}

function charts() {
  const last = rates.last;
  draw(byId("rate"), rates.samples, [["reads", "--read", true], ["writes", "--write", true]], compact);
  draw(byId("latency"), rates.samples, [["p50", "--p50"], ["p99", "--p99"]], (each) => (each ? milliseconds(each).replace(".0 ", " ") : "0"));
  keyed(byId("rate-now"), [["read", "reads", last && count(last.reads)], ["write", "writes", last && count(last.writes)]]);
  const shown = (each) => (last && last[each] !== null ? milliseconds(last[each]) : "–");
  keyed(byId("latency-now"), [["p50", "half", shown("p50")], ["p99", "99 of 100", shown("p99")]]);
}

function compact(number) {
  return number >= 10000 ? `${number / 1000}k` : `${number}`;
}

function keyed(element, entries) {
  element.replaceChildren(...entries.flatMap(([name, text, value]) => [make("i", { className: `key ${name}` }), `${text} ${value ?? "–"}`]));
}

function say(strip, partition) {
  const member = strip ? cluster.members[strip - 1] : null;
  byId("here").textContent = partition < 0 ? member?.name ?? "all members" : sentence(member, partition);
}

function sentence(member, partition) {
  const keyspace = cluster.view.parts.find(([first, end]) => partition >= first && partition < end)?.[3];
  const holders = cluster.rows[partition].filter((each) => each !== null).map((each) => cluster.name(each)).join(", ");
  const here = member ? `${member.name}: ${cluster.role(member.index, partition)}; ` : "";
  const lacks = cluster.lacks[partition] ? `; lacks ${cluster.lacks[partition]} copies` : "";
  return `Partition ${partition}${keyspace ? ` of ${keyspace}` : ""}: ${here}held by ${holders || "no member"}${lacks}`;
}

function stateOf(view) {
  return `${view.version} ${view.cluster.phase}`;
}

async function explain(what) {
  if (what !== about) showWhy("Why", ["…"]);
  about = what;
  explained = { at: Date.now(), state: cluster.view ? stateOf(cluster.view) : "" };
  const title = /^\d+$/.test(what) ? `Why partition ${what}` : what ? `Why ${what}` : `Why ${key.split("/")[1]}`;
  try {
    const { facts } = await ask(`${place(key)}/why?about=${encodeURIComponent(what)}`);
    if (about === what) showWhy(title, facts);
  } catch (error) {
    if (about === what) showWhy(title, [error.message]);
  }
}

function problem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
  document.body.classList.toggle("stale", Boolean(text));
}

function setTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  byId("theme").textContent = { system: "◐ System", light: "○ Light", dark: "● Dark" }[name];
  try {
    localStorage.setItem("theme", name);
  } catch {
    // Without storage, the next visit begins as the system is.
  }
  recolour();
}

function theme() {
  return document.documentElement.dataset.theme ?? "system";
}

function recolour() {
  byId("legend").querySelectorAll("canvas").forEach((each, i) => drawLegend(each, LEGEND[i][0]));
  if (cluster.view) {
    map.later();
    charts();
  }
}

const actions = {
  "/": () => byId("partition").focus(),
  "?": () => byId("help").showModal(),
  m: () => byId("map").focus(),
  w: () => explain(""),
  u: () => byId("order").click(),
  t: () => byId("theme").click(),
  "+": () => map.zoom(1),
  "-": () => map.zoom(-1),
};

function listen() {
  byId("legend").append(...LEGEND.map(([, text]) => make("li", {}, make("canvas"), text)));
  byId("theme").onclick = () => setTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  byId("help-open").onclick = actions["?"];
  byId("smaller").onclick = actions["-"];
  byId("larger").onclick = actions["+"];
  byId("order").onclick = () => {
    map.thinFirst = !map.thinFirst;
    byId("order").setAttribute("aria-pressed", `${map.thinFirst}`);
    map.layout();
  };
  byId("cluster").onchange = (event) => (location.hash = encodeURIComponent(event.target.value));
  addEventListener("hashchange", poll);
  byId("jump").onsubmit = jump;
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, select") || byId("help").open;
    if (typing || event.ctrlKey || event.altKey || event.metaKey || !actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  addEventListener("resize", () => cluster.view && charts());
}

function jump(event) {
  event.preventDefault();
  const number = Number(byId("partition").value);
  if (!cluster.view || byId("partition").value.trim() === "" || !(number in cluster.rows)) return;
  map.select(map.at.strip, number, true);
  byId("map").focus();
}

function stored() {
  try {
    const name = localStorage.getItem("theme");
    return THEMES.includes(name) ? name : "system";
  } catch {
    return "system";
  }
}

async function run() {
  listen();
  setTheme(stored());
  for (;;) {
    if (!document.hidden) await poll();
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

export { map };
globalThis.steleMap = map;
run();
