#!/bin/bash
# One pair through faults of every kind, then the failover scenarios at both advert intervals.
set -uo pipefail
cd "$(dirname "$0")/.."
rc=0
target/release/onearm-lab run chaos --runs "${FAULTS:-200}" --seed "${SEED:-1}" || rc=1
for interval in 1s 10ms; do
  for s in failover-kill9 failover-link-cut failover-hang stop-clean; do
    target/release/onearm-lab run $s --interval $interval --runs "${RUNS:-5}" --seed "${SEED:-1}" || rc=1
  done
done
exit $rc
