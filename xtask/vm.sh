#!/bin/bash
# vm.sh [SCENARIO…]: the runs in VMs, all of them or those named. The package and the release binaries are there already.
set -euo pipefail
cd "$(dirname "$0")/.."
tests=target/vm/tests
rm -rf $tests
mkdir -p $tests
# Programs of the tests that need root, without what only a debugger reads.
built=$(xtask/cargo.sh test --locked --no-run -p onearm-dataplane --test '*' 2>&1) || { echo "$built" >&2; exit 1; }
while read -r source program; do
  strip -o "$tests/$(basename "$source" .rs)" "$program"
done < <(sed -n 's/^ *Executable \(tests\/[^ ]*\) (\(.*\))$/\1 \2/p' <<<"$built")
rc=0
for scenario in ${*:-vm-bpf vm-package vm-shutdown vm-smoke vm-faults vm-devices vm-modes}; do target/release/onearm-lab run "$scenario" || rc=1; done
exit $rc
