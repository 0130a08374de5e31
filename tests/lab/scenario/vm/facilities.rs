//! What later tests build on: two VMs on one switch, and everything their kernel can make of a leg.

use std::time::Duration;

use anyhow::Result;

use super::{Run, agent, seconds_since};
use crate::{
    Lab, Switch, clock,
    switch::Variant,
    vm::{Image, Leg, Spec, Vm},
};

const LIMIT: Duration = Duration::from_mins(1);

/// A thing made on both VMs (`{me}` and `{you}` are 1 and 2) and the address that answers through it.
const DEVICES: [(&str, &str, &str); 6] = [
    (
        "VLAN",
        "ip link add link eth0 name v100 type vlan id 100; ip addr add 10.1.0.{me}/24 dev v100; ip link set v100 up",
        "10.1.0.{you}",
    ),
    (
        "IPIP",
        "ip link add t4 type ipip local 10.0.0.{me} remote 10.0.0.{you}; ip addr add 10.2.0.{me}/24 dev t4; ip link set t4 up",
        "10.2.0.{you}",
    ),
    (
        "IP6IP6",
        "ip link add t6 type ip6tnl mode ip6ip6 local fd00::{me} remote fd00::{you}; ip addr add fd01::{me}/64 dev t6 nodad; ip link set t6 up",
        "fd01::{you}",
    ),
    (
        "GUE",
        "ip link del t4; modprobe fou; ip fou add port 6080 gue; ip link add g4 type ipip local 10.0.0.{me} remote 10.0.0.{you} ttl 64 encap gue encap-sport auto encap-dport 6080; \
         ip addr add 10.3.0.{me}/24 dev g4; ip link set g4 up",
        "10.3.0.{you}",
    ),
    (
        "bond",
        "ip link add b0 type bond mode active-backup miimon 100; ip link set eth1 down; ip link set eth1 master b0; ip link set b0 up; ip addr add 10.4.0.{me}/24 dev b0",
        "10.4.0.{you}",
    ),
    (
        "netem",
        "tc qdisc add dev eth0 root netem delay 40ms",
        "10.0.0.{you}",
    ),
];

pub(super) fn run(run: &mut Run) -> Result<()> {
    let lab = Lab::new()?;
    let switch = Switch::create(lab.namespace("sw")?, Variant::Learning)?;
    let image = Image::get(false)?;
    let agent = agent(run);
    let start = clock::now();
    let mut vms = Vec::new();
    for name in ["a", "b"] {
        let mut spec = Spec::new(name, &agent);
        for index in 0..2 {
            spec.legs.push(Leg {
                switch: &switch,
                port: format!("{name}{index}"),
                mac: [2, 0, 0, 0, index, name.as_bytes()[0]],
            });
        }
        vms.push(Vm::start(&lab, &image, &spec)?);
    }
    for vm in &mut vms {
        vm.wait_up()?;
    }
    run.report.figure("boot_two_s", seconds_since(start));
    let outcome = check(run, &lab, &mut vms);
    if outcome.is_err() || !run.report.passed {
        run.keep_files(&lab, "vm")?;
    }
    outcome?;
    for vm in vms {
        vm.power_off()?;
    }
    Ok(())
}

fn check(run: &mut Run, lab: &Lab, vms: &mut [Vm]) -> Result<()> {
    for (vm, me) in vms.iter_mut().zip(1..) {
        vm.run("ip link set eth0 up")?;
        vm.run(&format!("ip addr add 10.0.0.{me}/24 dev eth0"))?;
        vm.run(&format!("ip addr add fd00::{me}/64 dev eth0 nodad"))?;
    }
    for (what, script, target) in DEVICES {
        let mut said = String::new();
        for (vm, me) in vms.iter_mut().zip(1..) {
            let done = vm.script(&format!("set -e; {}", filled(script, me)), LIMIT)?;
            said.push_str(&done.stderr);
        }
        if let Some(vm) = vms.first_mut() {
            let ping = format!("ping -q -c 3 -i 0.2 -w 20 {}", filled(target, 1));
            let done = vm.script(&ping, LIMIT)?;
            said.push_str(&done.stdout);
            let last = said.trim().lines().last().unwrap_or_default().to_owned();
            let delayed = what != "netem" || round_trip(&done.stdout).is_some_and(|ms| ms >= 80.0);
            run.report.check(
                format!("{what} can be made and answers"),
                done.code == 0 && delayed,
                last,
            );
        }
    }
    let Some(vm) = vms.first_mut() else { return Ok(()) };
    commands(run, lab, vm)?;
    time(run, vm)
}

fn filled(text: &str, me: u32) -> String {
    text.replace("{me}", &me.to_string())
        .replace("{you}", &(3 - me).to_string())
}

/// Least time in `rtt min/avg/max/mdev = 80.1/…`, in ms.
fn round_trip(ping: &str) -> Option<f64> {
    ping.rsplit("= ").next()?.split('/').next()?.parse().ok()
}

fn commands(run: &mut Run, lab: &Lab, vm: &mut Vm) -> Result<()> {
    let done = vm.script("echo out; echo err >&2; exit 7", LIMIT)?;
    run.report.check(
        "output, error and exit code come back",
        (done.code, done.stdout.as_str(), done.stderr.as_str()) == (7, "out\n", "err\n"),
        format!("{done:?}"),
    );
    let killed = vm.script("kill -9 $$", LIMIT)?;
    run.report
        .check("an end by a signal is told", killed.code == 128 + 9, killed.code);
    let (sent, back) = (lab.dir().join("sent"), lab.dir().join("back"));
    let bytes: Vec<u8> = (0..5_000_000).map(|_| run.random().to_le_bytes()[0]).collect();
    std::fs::write(&sent, &bytes)?;
    let start = clock::now();
    vm.channel().copy_in(&sent, "/root/there/file", "600", LIMIT)?;
    vm.channel().copy_out("/root/there/file", &back, LIMIT)?;
    run.report.figure("copy_10_mb_s", seconds_since(start));
    run.report.check(
        "5 MB go in and come out whole",
        std::fs::read(&back)? == bytes,
        back.display(),
    );
    std::fs::remove_file(sent)?;
    std::fs::remove_file(back)?;
    let hung = vm.script("sleep 60", Duration::from_secs(1));
    let left = vm.script("pgrep -x sleep", LIMIT)?;
    run.report.check(
        "a command that does not end is given up and killed",
        hung.is_err() && left.code == 1,
        format!("pgrep: {}", left.code),
    );
    Ok(())
}

fn time(run: &mut Run, vm: &mut Vm) -> Result<()> {
    let uptime = |vm: &mut Vm| -> Result<f64> {
        let text = vm.run("cat /proc/uptime")?;
        Ok(text.split_whitespace().next().unwrap_or_default().parse()?)
    };
    let before = uptime(vm)?;
    vm.pause()?;
    let pause = Duration::from_secs(5);
    clock::observe(pause);
    vm.resume()?;
    let passed = uptime(vm)? - before;
    run.report.check(
        "a paused VM's clock stands still",
        passed < pause.as_secs_f64(),
        format!("{passed:.2} s passed inside while it was paused for 5 s"),
    );
    vm.set_carrier(0, false)?;
    let carrier = vm.run("cat /sys/class/net/eth0/carrier")?;
    vm.set_carrier(0, true)?;
    run.report.check(
        "a leg's carrier can be taken",
        carrier.trim() == "0",
        carrier.trim(),
    );
    vm.run("touch /root/first")?;
    let start = clock::now();
    vm.save("kept")?;
    vm.run("rm /root/first")?;
    vm.load("kept")?;
    run.report.figure("save_load_s", seconds_since(start));
    let found = vm.script("test -e /root/first", LIMIT)?;
    run.report.check(
        "a VM returns to the state kept, and answers",
        found.code == 0,
        found.code,
    );
    Ok(())
}
