//! What needs devices that not every kernel has: VLAN legs on one arm and on two, beside the untagged network of their
//! interface; tunnel devices on servers, and their reverse-path filters.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{Run, Scenario, failover, modes, stage, two_arms};
use crate::{
    clock::{self, MS, Nanos},
    measure::{echo, echo::Echo, udp::UdpProber},
    node::Role,
    service::{Mode, PairSpec},
    topology::{self, NODES, OneArm, Options, SERVERS, VIP, VIP6},
    traffic,
};

/// VLAN of tagged legs.
const VLAN: u16 = 100;
/// Requests of a client.
const REQUESTS: usize = 100;

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "devices",
        about: "VLAN legs on two arms, and beside the untagged network of their interface; servers' tunnel devices (vm-devices)",
        for_peers: false,
        run: |run| {
            ensure!(
                topology::vlans_exist()?,
                "this kernel has no VLAN devices; `vm-devices` runs this on one that has"
            );
            two_arms::both_nat(run, Some(VLAN))?;
            two_arms::dnat(run, Some(VLAN))?;
            beside_untagged(run)?;
            tunnel_filters(run)
        },
    }
}

/// Address of a node in the untagged network.
fn untagged(node: &str) -> SocketAddr {
    let [.., last] = topology::address(node).octets();
    ([192, 168, 200, last], echo::PORT).into()
}

/// The leg is a VLAN of an interface whose untagged network is in use, too: neither sees the other.
fn beside_untagged(run: &mut Run) -> Result<()> {
    let options = Options {
        ipv6: true,
        vlan: Some(VLAN),
        ..Options::default()
    };
    let spec = PairSpec {
        vlan: Some(VLAN),
        ..PairSpec::web_and_echo(Mode::BothNat, run.interval()).in_both_families()
    };
    run.with_lab("beside-untagged", options, |run, lab| {
        let mut echoes = Vec::new();
        lab.switch().leave_vlan("mon", VLAN)?;
        lab.ns("mon").run("ip addr add 192.168.200.60/24 dev eth0")?;
        for (node, tag) in NODES.into_iter().zip(1..) {
            lab.switch().add_untagged(node)?;
            let address = untagged(node);
            lab.ns(node)
                .run(&format!("ip addr add {}/24 dev eth0", address.ip()))?;
            echoes.push(Echo::bound(lab.ns(node), address, tag)?);
        }
        for (server, tag) in SERVERS.into_iter().zip(1..) {
            let address = (topology::address6(server), echo::PORT).into();
            echoes.push(Echo::bound(lab.ns(server), address, tag)?);
        }
        let _web = traffic::start_servers(lab, &SERVERS)?;
        let mut probers = Vec::new();
        for node in NODES {
            probers.push((node, UdpProber::start(lab.ns("mon"), untagged(node), 5 * MS)?));
        }
        let mut pair = stage(run, lab, &spec)?;
        failover::wait_served(lab, (VIP6, echo::PORT))?;
        tagged_requests(run, lab, "first")?;
        nobody_answers(run, lab)?;
        pair.nodes[0].ask_to_stop();
        pair.nodes[1].wait_role(Role::Active, pair.patience())?;
        tagged_requests(run, lab, "second")?;
        nobody_answers(run, lab)?;
        pair.scrap()?;
        for (node, prober) in probers {
            let series = prober.stop()?;
            let lost = series.lost(0, Nanos::MAX);
            run.report.check(
                format!(
                    "beside-untagged: datagrams of the untagged network to {node} are answered all the time"
                ),
                lost == 0,
                format!("{lost} of {} lost", series.attempts.len()),
            );
        }
        Ok(())
    })
}

fn tagged_requests(run: &mut Run, lab: &OneArm, active: &str) -> Result<()> {
    for host in [VIP.to_string(), format!("[{VIP6}]")] {
        let answers = traffic::curl(lab, "out", &host, REQUESTS, active)?;
        run.report.check(
            format!("beside-untagged: {active} Active: {REQUESTS} of {REQUESTS} requests to {host}"),
            answers.good() == REQUESTS,
            format!("{} failed {}", answers.failed, answers.complaint),
        );
    }
    Ok(())
}

/// In the untagged network nobody has the VIPs.
fn nobody_answers(run: &mut Run, lab: &OneArm) -> Result<()> {
    let mut answered = Vec::new();
    for vip in [VIP.to_string(), VIP6.to_string()] {
        let ping = ["ping", "-q", "-c", "2", "-i", "0.2", "-W", "1", &vip];
        if lab.ns("mon").output(&ping)?.status.success() {
            answered.push(vip);
        }
    }
    run.report.check(
        "beside-untagged: the VIPs are not answered for in the untagged network",
        answered.is_empty(),
        answered.join(" "),
    );
    Ok(())
}

/// B70: a strict filter on a server's tunnel device drops what the pair sends, without a word, and so does a loose one on a
/// device without an address.
fn tunnel_filters(run: &mut Run) -> Result<()> {
    let mode = Mode::L3Dsr;
    let spec = PairSpec::web_and_echo(mode, run.interval());
    run.with_lab("b70", Options::default(), |run, lab| {
        let _web = traffic::start_servers(lab, &SERVERS)?;
        modes::prepare_hosts(lab, mode)?;
        let mut echoes = Vec::new();
        for (server, tag) in SERVERS.into_iter().zip(1..) {
            let ns = lab.ns(server);
            let local = topology::address(server);
            ns.run(&format!("ip link add tun9 type ipip local {local}"))
                .context("servers need the tunnel device ipip")?;
            ns.run("ip link set tun9 up")?;
            ns.sysctl("net.ipv4.conf.tun9.rp_filter", "0")?;
            echoes.push(Echo::bound(ns, (VIP, echo::PORT).into(), tag)?);
        }
        let mut pair = stage(run, lab, &spec)?;
        for (filter, has_address, passes) in [
            ("0", false, true),
            ("1", false, false),
            ("2", false, false),
            ("1", true, false),
            ("2", true, true),
        ] {
            for server in SERVERS {
                let ns = lab.ns(server);
                ns.sysctl("net.ipv4.conf.tun9.rp_filter", filter)?;
                ns.run("ip addr flush dev tun9")?;
                if has_address {
                    ns.run(&format!("ip addr add {VIP}/32 dev tun9"))?;
                }
            }
            let (device, word, health) = (
                if has_address { "with" } else { "without" },
                if passes { "passes" } else { "drops" },
                if passes { "up" } else { "down" },
            );
            let node = pair.nodes[0].as_onearm().context("a node of onearm")?;
            let judged = node.wait_health("web", &[health; SERVERS.len()], Duration::from_secs(10))?;
            run.report.check(
                format!(
                    "b70: rp_filter {filter} on tunnel devices {device} an address: servers are {health}"
                ),
                judged == [health; SERVERS.len()],
                judged.join(" "),
            );
            let prober = UdpProber::start(lab.ns("out"), (VIP, echo::PORT), 5 * MS)?;
            clock::observe(Duration::from_secs(1));
            let series = prober.stop()?;
            let answered = series.attempts.len() - series.lost(0, Nanos::MAX);
            run.report.check(
                format!(
                    "b70: rp_filter {filter} on tunnel devices {device} an address {word} what the pair sends"
                ),
                answered == if passes { series.attempts.len() } else { 0 },
                format!("{answered} of {} answered", series.attempts.len()),
            );
        }
        pair.scrap()
    })
}
