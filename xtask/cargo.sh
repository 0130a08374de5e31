#!/bin/bash
# Runs the cargo that builds host code: the one in PATH if it is 1.95 or later, else Debian's.
#   cargo.sh --path    prints which      cargo.sh --bindir   the folder it lies in      cargo.sh ARGS…   runs it
set -euo pipefail
pick() {
  local v
  if v=$(cargo --version 2>/dev/null | awk '{print $2}') && [ -n "$v" ] &&
    [ "$(printf '%s\n1.95.0\n' "$v" | sort -V | head -n 1)" = 1.95.0 ]; then command -v cargo; else echo /usr/bin/cargo; fi
}
c=$(pick)
case "${1:-}" in
  --path) echo "$c" ;;
  --bindir) dirname "$c" ;;
  *) [ "$c" != /usr/bin/cargo ] || export RUSTC=/usr/bin/rustc; exec "$c" "$@" ;;
esac
