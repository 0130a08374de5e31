//! A machine that shuts down hands over before its network goes down.

use std::{fs, net::SocketAddrV4, time::Duration};

use anyhow::{Context as _, Result};

use super::{Run, package, seconds_since, wait_for};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{echo, owners::Sampler, udp::UdpProber},
    node::{
        Node as _, Role,
        onearm::{OnearmNode, node_toml, pair_toml},
    },
    scenario::failover,
    service::{Mode, PairSpec},
    topology::{OneArm, Options, ROUTER, SERVERS, VIP, address},
    traffic,
    vm::Vm,
};

/// A command in the emulated machine, or its end, within this.
const LIMIT: Duration = Duration::from_mins(2);
/// What the service may take of a shutdown (`TimeoutStopSec` of its unit).
const STOP_S: f64 = 10.0;
/// An ordered end of an emulated owner darkens a client for less than this; its silence would for longer than 300 ms.
const OUTAGE: Nanos = 50 * MS;
/// Both units say on the console, which outlives the machine's journal, when they are down, in seconds since its start.
const TELL: &str = r"
for unit in onearmd networking; do
    mkdir -p /run/systemd/system/$unit.service.d
    cat >/run/systemd/system/$unit.service.d/tell.conf <<END
[Service]
ExecStop=+/bin/sh -c 'read now rest </proc/uptime; echo lab: $unit stops \$\$now >/dev/ttyS0'
ExecStopPost=+/bin/sh -c 'read now rest </proc/uptime; echo lab: $unit is down \$\$now >/dev/ttyS0'
END
done
systemctl daemon-reload";

pub(super) fn run(run: &mut Run) -> Result<()> {
    let interval = run.wanted.interval.unwrap_or(Duration::from_millis(100));
    let spec = PairSpec::web_and_echo(Mode::Dnat, interval);
    run.with_lab("shutdown", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut other = OnearmNode::prepare(lab, 1, &spec, &run.wanted.bin_dir)?;
        let mut vm = package::boot(run, lab)?;
        furnish(&mut vm, &spec, &other)?;
        vm.script("systemctl start onearmd", LIMIT)?
            .good("start the service")?;
        wait_for(
            &mut vm,
            "lb1 to be Active",
            "onearm status --json | grep -Eq '\"state\": ?\"active\"'",
            LIMIT,
        )?;
        other.start()?;
        clock::wait_for(
            "lb2 to be Standby and checked",
            LIMIT,
            Duration::from_millis(50),
            || Ok((other.role()? == Role::Standby).then_some(())),
        )?;
        other.wait_checked(LIMIT)?;
        lab.forget_neighbours()?;
        failover::wait_served(lab, SocketAddrV4::new(VIP, echo::PORT))?;
        shut_down(run, lab, vm, &mut other)
    })
}

/// A Debian machine as an administrator leaves it: the leg in ifupdown's hands, the package configured and enabled.
fn furnish(vm: &mut Vm, spec: &PairSpec, other: &OnearmNode) -> Result<()> {
    vm.write(
        "/etc/network/interfaces.d/eth0",
        &format!(
            "auto eth0\niface eth0 inet static\n  address {}/24\n  gateway {ROUTER}\n",
            address("lb1")
        ),
    )?;
    vm.script("systemctl restart networking", LIMIT)?
        .good("bring the leg up")?;
    vm.script("dpkg -i /lab/onearm.deb", LIMIT)?
        .good("install the package")?;
    vm.channel()
        .copy_in(&other.key_file(), "/etc/onearm/pair.key", "600", LIMIT)?;
    vm.run("chown onearm: /etc/onearm/pair.key")?;
    vm.write("/etc/onearm/node.toml", &node_toml(0, spec, None))?;
    vm.write("/etc/onearm/pair.toml", &pair_toml(spec))?;
    vm.script(TELL, LIMIT)?.good("have the units tell").map(drop)
}

fn shut_down(run: &mut Run, lab: &OneArm, mut vm: Vm, other: &mut OnearmNode) -> Result<()> {
    let owners = Sampler::start(lab, VIP, MS)?;
    let client = UdpProber::start(lab.ns("out"), SocketAddrV4::new(VIP, echo::PORT), MS)?;
    clock::observe(Duration::from_millis(300));
    let begun = clock::now();
    vm.script("systemctl --no-block poweroff", LIMIT)?
        .good("shut down")?;
    clock::wait_for("the machine to be off", LIMIT, Duration::from_millis(100), || {
        Ok((!vm.is_running()?).then_some(()))
    })?;
    run.report.figure("shutdown_s", seconds_since(begun));
    clock::observe(Duration::from_secs(1));
    let end = clock::now();
    let (series, owners) = (client.stop()?, owners.stop()?);
    let outage = series.longest_gap(begun, end);
    run.report.figure("outage_ms", ms(outage));
    run.report.count("lost", series.lost(begun, end));
    run.report.check(
        format!("a shutdown darkens the client for less than {} ms", ms(OUTAGE)),
        outage < OUTAGE,
        format!(
            "{} ms, {} of {} lost",
            ms(outage),
            series.lost(begun, end),
            series.attempts.len()
        ),
    );
    run.report.check(
        "at no instant two answer for the VIP",
        owners.shared(begun, end) == 0,
        format!("{} ms", owners.shared(begun, end)),
    );
    let status = other.ask(&["status"])?;
    let armed = &status["ha"]["counters"]["election_armed"];
    run.report.check(
        "ownership was handed over in order",
        other.role()? == Role::Active && *armed == 1,
        format!("{:?}, armed {armed} times", other.role()?),
    );
    let console = fs::read_to_string(vm.console_log()).context("cannot read the console")?;
    let told = |what: &str| -> Result<f64> {
        let line = console
            .lines()
            .find_map(|line| line.split_once(&format!("lab: {what} ")));
        let (_, at) = line.with_context(|| format!("the console does not tell that {what}"))?;
        at.trim().parse().with_context(|| format!("no time: {at}"))
    };
    let (stops, down) = (told("onearmd stops")?, told("onearmd is down")?);
    run.report.check(
        format!("the service stops within {STOP_S} s"),
        down - stops < STOP_S,
        format!("{:.2} s", down - stops),
    );
    let network = told("networking stops")?;
    run.report.check(
        "the network goes down after it",
        network >= down,
        format!("{:.2} s later", network - down),
    );
    Ok(())
}
