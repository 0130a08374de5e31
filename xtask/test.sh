#!/bin/bash
# test.sh [unit|prop|fuzz|bpf|netns|lab] [FILTER]: one tier, or all of them. N=cases sets the length of property tests, the
# filter limits them to tests with that word in their name. SECONDS_TO_GO: of fuzz; ONEARM_FUZZ_SEED repeats a run of it.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=xtask/cargo.sh
tier=${1:-all} filter=${2:-}
unit() { $cargo test -q --locked; }
prop() { PROPTEST_CASES=${N:-2000} $cargo test -q --locked --release --lib --tests -- ${filter:+"$filter"}; }
fuzz() {
  ONEARM_FUZZ_SECONDS=${SECONDS_TO_GO:?} $cargo test -q --locked --release -p onearm-dataplane-common --test packets \
    fuzzing::fuzz -- --ignored --nocapture
}
# Tests that need root fail, never skip, when they cannot do what they need; each enters a namespace of its own.
# (expiry_costs… measures, and wants a machine of its own.)
bpf() { $cargo test -q --locked -p onearm-dataplane -- --ignored --skip expiry_costs; }
netns() { $cargo test -q --locked -p onearm-ha -p onearm-netcfg -p onearm -p onearm-tests -- --ignored; }
lab() {
  $cargo build -q --release --locked
  for scenario in smoke authentication stream rollout handover tracking paths two-arms ipv6 metrics owned-set persistence promiscuous b130-foreign-links; do target/release/onearm-lab run $scenario; done
  target/release/onearm-lab run sessions --only both-nat,1k,kill,switchover --peers onearm --interval 100ms
}
case $tier in
  all) unit; bpf; netns; lab ;;
  unit | prop | fuzz | bpf | netns | lab) $tier ;;
  *) echo "make test: T is unit, prop, fuzz, bpf, netns or lab, not '$tier'" >&2; exit 2 ;;
esac
