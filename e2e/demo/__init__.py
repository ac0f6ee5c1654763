"""The whole way once, on a real Kubernetes, with real data: `python -m e2e.demo --help`.

Loads real input into a cluster, lets clients read and write while members are added, killed and taken away
and the operator is killed in the middle of a move, then compares every record and every acknowledged write
with what every replica holds. Pure parts (`history`, `latency`, `inputs`, `judge`) know no cluster and are
tested alone.
"""
