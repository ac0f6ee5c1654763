"""Benchmarks that a person starts: `python -m e2e.bench NAME [--quick] [--json FILE]`, `--help` lists them.

A benchmark measures this program beside others on one machine in one run and prints ratios, because seconds
say little about another machine. It is one module with

    TITLE: str                                  one line for `--help`
    def run(report: Report, quick: bool) -> None

and one line in `BENCHES` of `e2e/bench/cli.py`. `run` puts facts, sections of rows and goals into the report
as it goes: after Ctrl-C, or when something outside fails, what was measured until then is printed all the
same. Processes are ended by `with` blocks; whatever may hang has a limit in seconds with a name.

| file | what it is |
| --- | --- |
| `report.py` | the result as one value: drawn as tables, written as JSON |
| `timing.py` | median of samples, ratios, exponents of growth |
| `machine.py` | what the machine is: cores, memory, versions, commit |
| `cli.py` | arguments, interruption, exit codes |
| `planning.py` | planning beside Hazelcast and Infinispan |
| `planning_cases.py`, `planners.py` | its cases; our planner and theirs behind one interface |
| `peers.py`, `java/` | builds the Java side once into the cache and talks to its process |
| `talk.py` | a process that answers a line of JSON to each line of input |
| `master.py`, `master_rig.py`, `master_page.py` | the master: what is measured; its cluster; its page |
| `plots.py` | what pages with pictures have in common |
| `copy_bench.py`, `copy_plots.py` | copying: its sections and goals; the page with pictures |
| `copy_ways.py`, `copy_work.py` | the ways of copying, on the kind cluster or here; what runs there |
| `copy_join.py`, `copy_rig.py`, `secured_rig.py` | a member joins three; our cluster, open and closed |
| `copy_load.py` | clients of both |
| `seed.py`, `seed_plots.py` | members leave, join, stop and are lost: what is measured; pictures |
| `seed_cases.py`, `seed_systems.py`, `seed_rig.py` | its events; Stele and Hazelcast; our cluster |
| `paced.py` | a member that joins under writes, with a bandwidth limit |
| `quality.py` | judges any plan without our planner's help: replays it, counts copies, bound and spreads |
"""
