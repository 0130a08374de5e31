#!/bin/bash
# Format, lints and docs with warnings denied; the README's length. (A test of onearm checks the example configurations.)
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=xtask/cargo.sh
$cargo clippy --version >/dev/null 2>&1 || { echo "make check: clippy is not installed for $($cargo --version); use a rustup toolchain >= 1.95 in PATH" >&2; exit 2; }
echo "check: format"; $cargo fmt --all --check
echo "check: lints"; $cargo clippy -q --locked --all-targets -- -D warnings
echo "check: docs"; RUSTDOCFLAGS="-D warnings" $cargo doc -q --locked --no-deps
echo "check: shell"; for s in xtask/*.sh .ci/run; do bash -n "$s"; done
[ "$(wc -l <README.md)" -le 120 ] || { echo "make check: README.md has more than 120 lines" >&2; exit 1; }
