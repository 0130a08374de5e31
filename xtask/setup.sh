#!/bin/bash
# Brings a Debian 12 machine to the state `make demo` and `make test` need. Idempotent; called by them.
#   setup.sh          what building and the lab need
#   setup.sh deb      what `make deb` needs beside that
#   setup.sh vm       what `make vm` needs beside that
# Installs by apt only, simulates first, starts and enables no daemon, and removes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
stop() { echo "make setup: $*" >&2; exit 2; }
step=${1:-base}

[ "$(id -u)" = 0 ] || stop "needs root (network namespaces, BPF, apt-get); run it as root."
command -v apt-get >/dev/null || stop "needs apt-get: only Debian 12 and later are supported."
unshare --net true 2>/dev/null || stop "this machine cannot make a network namespace; the lab and the tests need them."

BUILD="rustc-web cargo-web libstd-rust-web-dev-bpf gcc libc6-dev make pkg-config llvm-22-dev ca-certificates git"
LAB="iproute2 iputils-ping iputils-arping procps ethtool bpftool tcpdump nftables curl python3 iperf3 nginx-light keepalived conntrackd conntrack ucarp frr"
UNITS="nginx.service keepalived.service conntrackd.service frr.service ucarp.service"
case $step in
  base) wanted="$BUILD $LAB" ;;
  deb) wanted="$BUILD binutils dpkg" ;;
  vm) wanted="$BUILD qemu-system-x86 qemu-utils debootstrap e2fsprogs binutils" ;;
  *) stop "no step of the name $step; there are base, deb and vm" ;;
esac

missing=""
for p in $wanted; do
  [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$p" 2>/dev/null | cut -c1-2)" = ii ] || missing="$missing $p"
done

if [ -n "$missing" ]; then
  echo "setup: installing$missing"
  export DEBIAN_FRONTEND=noninteractive
  # Parts of QEMU come from one release: where some is there from backports, the rest comes from there, by a list of our own.
  options=""
  case "$step $(dpkg-query -W -f='${Version}' qemu-utils 2>/dev/null || true)" in
    vm*~bpo12+*)
      sources=$PWD/target/apt
      mkdir -p "$sources/lists/partial"
      printf 'deb http://deb.debian.org/%s main\n' "debian bookworm" "debian bookworm-updates" "debian-security bookworm-security" "debian bookworm-backports" >"$sources/list"
      options="-o Dir::Etc::sourcelist=$sources/list -o Dir::Etc::sourceparts=$sources/none -o Dir::State::lists=$sources/lists -t bookworm-backports"
      ;;
  esac
  # shellcheck disable=SC2086
  apt-get $options update -qq || stop "apt-get update failed; the packages$missing cannot be installed."
  # shellcheck disable=SC2086
  plan=$(apt-get $options install -s --no-install-recommends $missing) || stop "apt-get cannot install$missing: $(echo "$plan" | tail -n 3 | tr '\n' ' ')"
  removed=$(echo "$plan" | awk '$1=="Remv"{print $2}' | tr '\n' ' ')
  [ -z "$removed" ] || stop "apt-get would remove $removed; Debian's own rustc, cargo and rustup conflict with rustc-web and cargo-web. Remove them yourself first (a rustup in your home folder can stay)."
  # No daemon may start: policy-rc.d refuses starts, a mask refuses systemd; both go again afterwards.
  masked="" policy=/usr/sbin/policy-rc.d
  unmask() {
    for u in $masked; do rm -f "/etc/systemd/system/$u"; done
    [ -z "${policy_ours:-}" ] || rm -f "$policy"
    for u in $masked; do systemctl disable -q "$u" >/dev/null 2>&1 || true; done
  }
  trap unmask EXIT
  if [ ! -e "$policy" ]; then printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod 755 "$policy"; policy_ours=1; fi
  mkdir -p /etc/systemd/system
  for u in $UNITS; do
    if [ ! -e "/lib/systemd/system/$u" ] && [ ! -e "/etc/init.d/${u%.service}" ] && [ ! -e "/etc/systemd/system/$u" ]; then
      ln -s /dev/null "/etc/systemd/system/$u"; masked="$masked $u"
    fi
  done
  # shellcheck disable=SC2086
  apt-get $options install -y -qq --no-install-recommends $missing >target-setup.log 2>&1 || { tail -n 20 target-setup.log >&2; stop "apt-get install failed (whole log: target-setup.log)."; }
  rm -f target-setup.log
  unmask; trap - EXIT
fi

# A tool from its sources, into target/tools: tool NAME VERSION SECONDS FLAGS…
tool() {
  local name=$1 version=$2 seconds=$3
  shift 3
  "target/tools/bin/$name" --version >/dev/null 2>&1 && return
  echo "setup: building $name (about $seconds s)"
  mkdir -p target/tools
  PATH="$(xtask/cargo.sh --bindir):/usr/lib/llvm-22/bin:$PATH" LLVM_SYS_221_PREFIX=/usr/lib/llvm-22 CARGO_TARGET_DIR=target/tools/build \
    "$(xtask/cargo.sh --path)" install -q "$name" --version "$version" --locked --no-default-features "$@" --root target/tools \
    || stop "$name could not be built; see the messages above."
  rm -rf target/tools/build
}
case $step in
  base) tool bpf-linker '^0.13' 90 --features llvm-22 ;;
  deb) tool cargo-deb '^3.8' 60 ;;
esac
