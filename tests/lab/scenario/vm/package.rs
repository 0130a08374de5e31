//! The package in a VM in the place of lb1.

use std::time::Duration;

use anyhow::Result;

use super::{Run, agent, files, seconds_since, wait_for};
use crate::{
    clock,
    node::onearm::{node_toml, pair_toml},
    service::{Mode, PairSpec},
    topology::{OneArm, Options, ROUTER, VIP, address, colons, mac},
    traffic,
    vm::{Image, Leg, Spec, Vm},
};

/// Where `make deb` puts it.
const PACKAGES: &str = "target/deb";
/// Requests of a client.
const REQUESTS: usize = 50;
/// A start, stop, installation or removal ends within this in an emulated machine.
const LIMIT: Duration = Duration::from_mins(1);
/// Everything of the kernel the daemon borrows from.
const STATE: &str = "ip rule; ip -6 rule; ip route show table all; ip -6 route show table all | grep -v 'proto kernel'; \
     for f in $(find /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf /proc/sys/net/ipv4/ip_forward -type f -perm -u=r | grep -v -e stable_secret | sort); do echo $f $(cat $f); done; \
     ethtool -k eth0 | sort; tc qdisc show dev eth0; tc filter show dev eth0 egress; ip -d link show eth0 | grep -o 'xdp.*'; ip maddr show dev eth0 | grep inet | sort";

pub(super) fn run(run: &mut Run) -> Result<()> {
    run.with_lab("package", Options::default(), |run, lab| {
        let _web = traffic::start_servers(lab, &["s1", "s2", "s3", "rem", "out"])?;
        let mut vm = boot(run, lab)?;
        vm.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1")?;
        vm.run("ip link set eth0 up")?;
        vm.run(&format!("ip addr add {}/24 dev eth0", address("lb1")))?;
        vm.run(&format!("ip route add default via {ROUTER}"))?;
        let start = clock::now();
        install(run, &mut vm)?;
        let before = vm.script(STATE, LIMIT)?.stdout;
        configure(run, &mut vm)?;
        serve(run, lab, &mut vm, "after the start")?;
        look(run, &mut vm)?;
        crash(run, &mut vm)?;
        serve(run, lab, &mut vm, "after the crash")?;
        watchdog(run, &mut vm)?;
        stop(run, lab, &mut vm, &before)?;
        remove(run, &mut vm, &before)?;
        run.report.figure("package_s", seconds_since(start));
        vm.power_off()
    })
}

/// A VM in the place of lb1, with the package at hand.
pub(super) fn boot(run: &mut Run, lab: &OneArm) -> Result<Vm> {
    lab.remove_leg("lb1")?;
    let agent = agent(run);
    let mut spec = Spec::new("lb1", &agent);
    spec.legs.push(Leg {
        switch: lab.switch(),
        port: "lb1".to_owned(),
        mac: mac("lb1"),
    });
    for package in files(PACKAGES, "_amd64.deb")? {
        spec.files.push((package, "onearm.deb".to_owned()));
    }
    let image = Image::get(false)?;
    let start = clock::now();
    let vm = Vm::boot(lab.lab(), &image, &spec)?;
    run.report.figure("boot_s", seconds_since(start));
    Ok(vm)
}

/// One command that must end well.
fn good(run: &mut Run, vm: &mut Vm, what: &str, script: &str) -> Result<()> {
    let done = vm.script(script, LIMIT)?;
    run.report.check(
        what,
        done.code == 0,
        format!(
            "exit code {} {}{}",
            done.code,
            done.stdout.trim(),
            done.stderr.trim()
        ),
    );
    Ok(())
}

fn install(run: &mut Run, vm: &mut Vm) -> Result<()> {
    good(run, vm, "the package installs", "dpkg -i /lab/onearm.deb")?;
    good(
        run,
        vm,
        "nothing is started before there is a configuration",
        "systemctl is-enabled -q onearmd && ! systemctl is-active -q onearmd && ! systemctl is-failed -q onearmd && systemctl start onearmd && ! systemctl is-active -q onearmd",
    )
}

fn configure(run: &mut Run, vm: &mut Vm) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, Duration::from_secs(1));
    vm.write("/etc/onearm/node.toml", &node_toml(0, &spec, None))?;
    vm.write("/etc/onearm/pair.toml", &pair_toml(&spec))?;
    good(
        run,
        vm,
        "without a key it is refused",
        "onearm check; test $? = 3",
    )?;
    good(
        run,
        vm,
        "a key is made for the daemon's user alone",
        "onearm key new && test \"$(stat -c '%U %a' /etc/onearm/pair.key)\" = 'onearm 600'",
    )?;
    good(run, vm, "its configuration is accepted", "onearm check")?;
    let start = clock::now();
    good(
        run,
        vm,
        "the service starts",
        "systemctl start onearmd || { journalctl -u onearmd -n 30 --no-pager; exit 1; }",
    )?;
    run.report.figure("start_s", seconds_since(start));
    Ok(())
}

/// What can be seen of the running daemon.
fn look(run: &mut Run, vm: &mut Vm) -> Result<()> {
    good(
        run,
        vm,
        "both processes run as user onearm",
        "for p in $(cat /sys/fs/cgroup/system.slice/onearmd.service/cgroup.procs); do stat -c %U /proc/$p; done | sort | uniq -c | grep -x ' *2 onearm'",
    )?;
    good(
        run,
        vm,
        "the program is attached natively",
        "ip -d link show eth0 | grep -q 'prog/xdp '",
    )
}

fn serve(run: &mut Run, lab: &OneArm, vm: &mut Vm, when: &str) -> Result<()> {
    wait_for(
        vm,
        "the node to be Active with healthy servers",
        "onearm status --json | grep -Eq '\"state\": ?\"active\"' && ! onearm services --json | grep -q '\"pending\"'",
        LIMIT,
    )?;
    lab.forget_neighbours()?;
    for asker in ["out", "s1"] {
        let answers = traffic::curl(lab, asker, &VIP.to_string(), REQUESTS, "vm")?;
        run.report.check(
            format!("{asker} is served through the VIP {when}"),
            answers.good() == REQUESTS,
            format!(
                "{} of {REQUESTS}; {:?} {}",
                answers.good(),
                answers.by_server,
                answers.complaint
            ),
        );
    }
    let neighbour = lab.ns("rt").run(&format!("ip neigh show {VIP} dev eth0"))?;
    run.report.check(
        format!("ARP for the VIP was answered by the VM's leg {when}"),
        neighbour.contains(&colons(mac("lb1"))),
        neighbour.trim(),
    );
    Ok(())
}

fn crash(run: &mut Run, vm: &mut Vm) -> Result<()> {
    good(
        run,
        vm,
        "both processes are killed",
        "systemctl kill -s KILL onearmd",
    )?;
    wait_for(
        vm,
        "systemd to start it again",
        "test \"$(systemctl show -P NRestarts onearmd)\" = 1 && systemctl is-active -q onearmd",
        LIMIT,
    )
}

fn watchdog(run: &mut Run, vm: &mut Vm) -> Result<()> {
    let asked = "systemctl show -P WatchdogTimestampMonotonic onearmd";
    let first = vm.script(asked, LIMIT)?.stdout;
    wait_for(
        vm,
        "the next sign of life to systemd",
        &format!("test \"$({asked})\" -gt {}", first.trim()),
        LIMIT,
    )?;
    good(
        run,
        vm,
        "it tells systemd that it lives",
        "test \"$(systemctl show -P NRestarts onearmd)\" = 1",
    )
}

fn stop(run: &mut Run, lab: &OneArm, vm: &mut Vm, before: &str) -> Result<()> {
    let start = clock::now();
    good(
        run,
        vm,
        "the service stops in order",
        "systemctl stop onearmd && test \"$(systemctl show -P Result onearmd)\" = success && test ! -s /sys/fs/cgroup/system.slice/onearmd.service/cgroup.procs",
    )?;
    run.report.figure("stop_s", seconds_since(start));
    let answers = traffic::curl(lab, "out", &VIP.to_string(), 1, "vm")?;
    run.report.check(
        "nobody answers for the VIP after the stop",
        answers.good() == 0,
        format!("{} answers", answers.good()),
    );
    same(run, vm, before, "a stop puts everything back")
}

fn remove(run: &mut Run, vm: &mut Vm, before: &str) -> Result<()> {
    good(
        run,
        vm,
        "it starts again",
        "systemctl start onearmd && systemctl is-active -q onearmd",
    )?;
    good(
        run,
        vm,
        "an upgrade restarts it and keeps its configuration",
        "dpkg -i /lab/onearm.deb && systemctl is-active -q onearmd && test -s /etc/onearm/node.toml",
    )?;
    // A crash without a restart leaves guard rules for the removal to find.
    good(
        run,
        vm,
        "it is killed for good",
        "mkdir -p /run/systemd/system/onearmd.service.d && printf '[Service]\\nRestart=no\\n' >/run/systemd/system/onearmd.service.d/no.conf \
         && systemctl daemon-reload && systemctl kill -s KILL onearmd; while systemctl is-active -q onearmd; do sleep 0.1; done; ip rule | grep -q blackhole",
    )?;
    good(
        run,
        vm,
        "the package is removed while it ran no more",
        "dpkg -r onearm",
    )?;
    same(run, vm, before, "a removal puts back what a crash left")?;
    good(
        run,
        vm,
        "a purge leaves only the operator's files",
        "dpkg -P onearm && test ! -e /var/lib/onearm && test -s /etc/onearm/node.toml && test -z \"$(find / -xdev -name 'onearmd*' -not -path '/run/*' -not -path '/proc/*')\"",
    )
}

/// The kernel is as it was `before`.
fn same(run: &mut Run, vm: &mut Vm, before: &str, what: &str) -> Result<()> {
    let after = vm.script(STATE, LIMIT)?.stdout;
    let gone = before.lines().filter(|l| !after.lines().any(|a| a == *l));
    let new = after.lines().filter(|l| !before.lines().any(|b| b == *l));
    let differences: Vec<String> = gone
        .map(|l| format!("- {l}"))
        .chain(new.map(|l| format!("+ {l}")))
        .collect();
    run.report
        .check(what, differences.is_empty(), differences.join("; "));
    Ok(())
}
