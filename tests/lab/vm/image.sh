#!/bin/bash
# Makes the image of the lab's VMs in folder $1: disk.raw, vmlinuz, initrd. Debian 12 with its cloud kernel (6.1) and all its
# modules. The text of this file is the recipe: a change makes a new image.
set -euo pipefail
out=$1 root=$1/root
packages=systemd,ifupdown,systemd-sysv,dbus,udev,kmod,zstd,initramfs-tools,linux-image-cloud-amd64
packages+=,iproute2,iputils-ping,iputils-arping,ethtool,nftables,tcpdump,curl,python3,procps,bpftool,nginx-light
mkdir -p "$root"
debootstrap --variant=minbase --include="$packages" bookworm "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"

echo vm >"$root/etc/hostname"
# Each boot makes its own: the MACs of bonds and tunnels come from it.
: >"$root/etc/machine-id"
ln -sf /etc/machine-id "$root/var/lib/dbus/machine-id"
printf '127.0.0.1 localhost vm\n::1 localhost\n' >"$root/etc/hosts"
printf 'LABEL=root / ext4 noatime 0 1\nLABEL=lab /lab ext4 ro 0 0\n' >"$root/etc/fstab"
mkdir -p "$root/lab" "$root/etc/systemd/system/serial-getty@ttyS0.service.d"
chroot "$root" passwd -q -d root
cat >"$root/etc/systemd/system/serial-getty@ttyS0.service.d/autologin.conf" <<'EOF'
[Service]
ExecStart=
ExecStart=-/sbin/agetty -o '-p -f -- \\u' --autologin root --keep-baud 115200 %I linux
EOF
cat >"$root/etc/systemd/system/lab-agent.service" <<'EOF'
[Unit]
Description=runs what the lab asks for
RequiresMountsFor=/lab
StartLimitIntervalSec=0
[Service]
ExecStart=/lab/onearm-lab vm agent /dev/virtio-ports/onearm.agent
Restart=always
RestartSec=200ms
OOMScoreAdjust=-1000
KillMode=process
[Install]
WantedBy=multi-user.target
EOF
chroot "$root" systemctl -q enable lab-agent.service
chroot "$root" systemctl -q set-default multi-user.target
# Nothing of the image's own may cost time or touch what a test does.
chroot "$root" systemctl -q mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
  fstrim.timer systemd-networkd.service getty@tty1.service systemd-journal-flush.service nginx.service
mkdir -p "$root/etc/systemd/journald.conf.d"
printf '[Journal]\nStorage=volatile\nForwardToConsole=no\n' >"$root/etc/systemd/journald.conf.d/lab.conf"

# The smallest initrd: what it takes to find the disk.
printf 'MODULES=list\nCOMPRESS=zstd\nRESUME=none\n' >"$root/etc/initramfs-tools/conf.d/lab"
printf 'virtio_pci\nvirtio_blk\n' >"$root/etc/initramfs-tools/modules"
chroot "$root" update-initramfs -u -k all
cp "$root"/boot/vmlinuz-* "$out/vmlinuz"
cp "$root"/boot/initrd.img-*-amd64 "$out/initrd"
rm -rf "$root"/boot/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale,info}/*
mkdir -p "$root/var/cache/apt/archives/partial" "$root/usr/share/man/man1"
mke2fs -q -t ext4 -L root -d "$root" "$out/disk.raw" 3G
rm -rf --one-file-system "$root"
