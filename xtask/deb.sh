#!/bin/bash
# Builds target/deb/onearm_VERSION_amd64.deb from the release binaries, checks what it holds, and prints its path.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "make deb: $*" >&2; exit 1; }
tool=target/tools/bin/cargo-deb
[ -x $tool ] || fail "cargo-deb is not built (xtask/setup.sh deb builds it)"
[ -s target/bpf/objects/onearm-xdp.o ] || fail "there are no eBPF objects; a package without them could not balance (make bpf)"

mkdir -p target/deb
rm -f target/deb/onearm_*.deb
# The date of the files: that of the commit, so that the same commit gives the same package.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
PATH="$(xtask/cargo.sh --bindir):$PATH" $tool -q -p onearm --no-build --no-strip --locked --output target/deb/ >/dev/null
deb=$(echo target/deb/onearm_*_amd64.deb)
[ -f "$deb" ] || fail "cargo-deb made no package"

# Mode, owner and path of everything that must be there, and nothing else.
want="-rw-r--r-- 0/0 ./usr/lib/systemd/system/onearmd.service
-rwxr-xr-x 0/0 ./usr/bin/onearm
-rwxr-xr-x 0/0 ./usr/sbin/onearm-decap
-rwxr-xr-x 0/0 ./usr/sbin/onearmd
-rw-r--r-- 0/0 ./usr/lib/sysusers.d/onearm.conf
-rw-r--r-- 0/0 ./usr/share/doc/onearm/changelog.Debian.gz
-rw-r--r-- 0/0 ./usr/share/doc/onearm/configuration.md
-rw-r--r-- 0/0 ./usr/share/doc/onearm/copyright"
for example in etc/examples/*; do want="$want
-rw-r--r-- 0/0 ./usr/share/doc/onearm/examples/$(basename "$example")"; done
has=$(dpkg-deb --fsys-tarfile "$deb" | tar -tv --numeric-owner | awk '!/^d/ {print $1, $2, $6}')
diff <(sort <<<"$want") <(sort <<<"$has") >&2 || fail "$deb does not hold what it should (<: missing, >: not expected)"
control=$(mktemp -d)
trap 'rm -rf "$control"' EXIT
dpkg-deb -e "$deb" "$control"
# A configuration file of the package would be a configuration nobody wrote.
[ ! -s "$control/conffiles" ] || fail "$deb has conffiles: $(cat "$control/conffiles")"
for script in postinst prerm postrm; do
  [ -x "$control/$script" ] || fail "$deb has no $script"
  sh -n "$control/$script" || fail "$script is no shell script"
  ! grep -q '#DEBHELPER#' "$control/$script" || fail "$script was not completed"
done
# The C library asked for is the one the binaries need.
asked=$(sed -n 's/^Depends:.*libc6 (>= \([0-9.]*\)).*/\1/p' "$control/control")
needed=$(objdump -T target/release/onearmd target/release/onearm | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 | cut -d_ -f2)
[ "$(printf '%s\n%s\n' "$needed" "$asked" | sort -V | tail -n 1)" = "$asked" ] || fail "the binaries need libc6 $needed, the package asks for $asked"
# Not for Debian's archive: no address there, no bug to close. try-restart is what deb-systemd-invoke cannot do.
if command -v lintian >/dev/null; then
  lintian --fail-on error,warning --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog,initial-upload-closes-no-bugs,maintainer-script-calls-systemctl,no-manual-page \
    "$deb" >&2 || fail "lintian complains"
fi
echo "$deb"
