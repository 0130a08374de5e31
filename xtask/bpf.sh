#!/bin/bash
# Builds the eBPF objects into target/bpf/objects with Debian's compiler. Without that toolchain it says so and
# leaves no object: the host code then builds all the same and refuses to load at run time.
set -euo pipefail
cd "$(dirname "$0")/.."
llvm=/usr/lib/llvm-22/bin linker=target/tools/bin/bpf-linker
if ! [ -x /usr/bin/cargo ] || ! [ -d /usr/lib/rustlib/bpfel-unknown-none ] || ! [ -x $linker ]; then
  echo "bpf: no BPF toolchain here (make setup installs it); building without eBPF objects" >&2
  [ "${1:-}" != --required ] || exit 2
  exit 0
fi
export RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=aya_ebpf,onearm_xdp PATH="$PWD/target/tools/bin:$llvm:$PATH"
export CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER=bpf-linker
export CARGO_TARGET_BPFEL_UNKNOWN_NONE_RUSTFLAGS='--cfg=bpf_target_arch="x86_64" -Ctarget-cpu=v3 -Cdebuginfo=2 -Clink-arg=--btf'
/usr/bin/cargo build -q -p onearm-dataplane-ebpf --profile bpf --target bpfel-unknown-none --target-dir target/bpf
mkdir -p target/bpf/objects
# Debug information was needed for BTF only.
for bin in onearm-xdp onearm-bench onearm-decap; do
  $llvm/llvm-objcopy --strip-debug target/bpf/bpfel-unknown-none/bpf/$bin target/bpf/objects/$bin.new
  cmp -s target/bpf/objects/$bin.new target/bpf/objects/$bin.o 2>/dev/null || cp target/bpf/objects/$bin.new target/bpf/objects/$bin.o
  rm target/bpf/objects/$bin.new
done
