//! Every mode, family and protocol with real clients and servers: data, errors, fragments, small links, options.

mod cells;
mod table;

use std::{fs, net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};

use self::{
    cells::Bench,
    table::{Cell, FAMILIES, FEATURES, Feature, PROTOCOLS},
};
use super::{Run, Scenario};
use crate::{
    clock,
    node::{Kind, Pair},
    process::Process,
    service::{Mode, PairSpec, Service},
    topology::{self, Family, NODES, OneArm, Options, ROUTER, ROUTER_LINK_LOCAL, SERVERS, VIP, VIP6},
    traffic,
};

/// UDP port of a service whose servers do not listen.
const DEAF_PORT: u16 = 7799;
/// UDP port of a service whose servers answer late.
const LATE_PORT: u16 = 7798;
/// TCP port of a service whose servers answer with an ICMP error.
const PROHIBITED_PORT: u16 = 8083;

/// VLAN of tagged legs.
const VLAN: u16 = 100;
/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "modes",
        about: "each mode, family, protocol: data, ICMP errors, fragments, small links, options (docs/modes.md)",
        for_peers: true,
        run: |run| {
            let untagged: Vec<_> = FEATURES.into_iter().filter(|f| *f != Feature::Vlan).collect();
            let vlans = topology::vlans_exist()?;
            if !vlans {
                run.report
                    .note("this kernel has no VLAN devices: cells of VLANs are checked by vm-modes alone");
            }
            for mode in Mode::ALL {
                for family in FAMILIES {
                    // The peers are set up for NAT of IPv4 alone.
                    if run.wanted.kind != Kind::Onearm && (mode.is_direct() || family == Family::V6) {
                        continue;
                    }
                    one(run, mode, family, &untagged, None);
                    if run.wanted.kind == Kind::Onearm && vlans {
                        one(run, mode, family, &[Feature::Vlan], Some(VLAN));
                    }
                }
            }
            Ok(())
        },
    }
}

/// Cells of `features` of one mode and family. What keeps the pair from serving fails each of them.
fn one(run: &mut Run, mode: Mode, family: Family, features: &[Feature], vlan: Option<u16>) {
    let tag = if vlan.is_some() { "-vlan" } else { "" };
    let part = format!("{}-{}{tag}", mode.word(), family.word());
    let options = Options {
        ipv6: family == Family::V6,
        vlan,
        ..Options::default()
    };
    let mut judged = Vec::new();
    let outcome = run.with_lab(&part, options, |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        prepare_hosts(lab, mode)?;
        let tunnel_ends = if mode == Mode::L3Dsr {
            end_tunnels(run, lab)?
        } else {
            Vec::new()
        };
        let mut pair = Pair::prepare(
            run.wanted.kind,
            lab,
            &PairSpec {
                vlan,
                ..spec(run, mode, family)
            },
            &run.wanted.bin_dir,
        )?;
        pair.start()?;
        lab.forget_neighbours()?;
        let bench = Bench::new(lab, mode, family)?;
        for protocol in PROTOCOLS {
            for feature in features.iter().copied() {
                let found = match table::cell(family, protocol, feature) {
                    Cell::Checked => bench.check(protocol, feature),
                    Cell::NotApplicable(why) => {
                        run.report.note(format!(
                            "{}: n/a because {why}",
                            table::name(mode, family, protocol, feature)
                        ));
                        continue;
                    }
                };
                let name = table::name(mode, family, protocol, feature);
                run.report.check(
                    name,
                    found.is_ok(),
                    found.err().map(|e| format!("{e:#}")).unwrap_or_default(),
                );
                judged.push((protocol, feature));
            }
        }
        if run.wanted.kind == Kind::Onearm && !tunnel_ends.is_empty() {
            tunnel_ends_count(run, &pair, &part, tunnel_ends)?;
        }
        pair.scrap()
    });
    if let Err(error) = outcome {
        let mut failed = false;
        for protocol in PROTOCOLS {
            for feature in features.iter().copied() {
                let applies = !matches!(table::cell(family, protocol, feature), Cell::NotApplicable(_));
                if applies && !judged.contains(&(protocol, feature)) {
                    failed = true;
                    run.report.check(
                        table::name(mode, family, protocol, feature),
                        false,
                        format!("{error:#}"),
                    );
                }
            }
        }
        if !failed {
            run.report
                .check(format!("{part}: torn down"), false, format!("{error:#}"));
        }
    }
}

/// B70: a server that takes nothing out of its tunnel is down, though it answers at its own address.
fn tunnel_ends_count(run: &mut Run, pair: &Pair, part: &str, mut ends: Vec<Process>) -> Result<()> {
    let node = pair.nodes[0].as_onearm().context("a node of onearm")?;
    let limit = Duration::from_secs(5);
    let before = node.wait_health("web", &["up"; 3], limit)?;
    drop(ends.remove(0));
    let after = node.wait_health("web", &["down", "up", "up"], limit)?;
    run.report.check(
        format!("{part}: b70 a server whose tunnel ends nowhere is down"),
        before == ["up"; 3] && after == ["down", "up", "up"],
        format!("{} before, {} after", before.join(" "), after.join(" ")),
    );
    Ok(())
}

fn spec(run: &Run, mode: Mode, family: Family) -> PairSpec {
    let mut spec = PairSpec::web_and_echo(mode, run.interval());
    spec.services.extend([
        Service::new("deaf", "udp", DEAF_PORT, mode, &SERVERS),
        Service::new("late", "udp", LATE_PORT, mode, &SERVERS),
        Service {
            checked: false,
            ..Service::new("prohibited", "tcp", PROHIBITED_PORT, mode, &SERVERS)
        },
    ]);
    spec.of_family(family)
}

/// Errors without a limit of their rate; servers with the VIP of their own where they answer past the pair.
pub(super) fn prepare_hosts(lab: &OneArm, mode: Mode) -> Result<()> {
    for short in lab.names() {
        lab.ns(short).sysctl("net.ipv4.icmp_ratelimit", "0")?;
        lab.ns(short).sysctl("net.ipv6.icmp.ratelimit", "0")?;
    }
    for server in SERVERS {
        let ns = lab.ns(server);
        for (family, protocol) in [("ip", "icmp"), ("ip6", "icmpv6")] {
            let rules = format!(
                "table {family} lab {{\n chain input {{\n type filter hook input priority 0;\n \
                 tcp dport {PROHIBITED_PORT} reject with {protocol} type admin-prohibited\n }}\n}}"
            );
            ns.exec(&["nft", &rules])?;
        }
        if !mode.is_direct() {
            continue;
        }
        for (key, value) in [("arp_ignore", "1"), ("arp_announce", "2"), ("rp_filter", "0")] {
            for which in ["all", "eth0"] {
                ns.sysctl(&format!("net.ipv4.conf.{which}.{key}"), value)?;
            }
        }
        ns.run(&format!("ip addr add {VIP}/32 dev lo"))?;
        ns.run(&format!("ip route replace default via {ROUTER}"))?;
        if lab.has_ipv6() {
            ns.run(&format!("ip addr add {VIP6}/128 dev lo nodad"))?;
            ns.run(&format!(
                "ip -6 route replace default via {ROUTER_LINK_LOCAL} dev eth0"
            ))?;
        }
    }
    Ok(())
}

/// Starts on each server what takes packets of the pair out of their tunnel.
pub(super) fn end_tunnels(run: &Run, lab: &OneArm) -> Result<Vec<Process>> {
    let program = run.wanted.bin_dir.join("onearm-decap").display().to_string();
    let mut ends = Vec::new();
    for server in SERVERS {
        let mut argv = vec![program.clone(), "--interface".to_owned(), "eth0".to_owned()];
        let mut option = |name: &str, address: IpAddr| argv.extend([name.to_owned(), address.to_string()]);
        option("--vip", VIP.into());
        for node in NODES {
            option("--from", topology::address(node).into());
        }
        if lab.has_ipv6() {
            option("--vip", VIP6.into());
            for node in NODES {
                option("--from", topology::address6(node).into());
            }
        }
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let log = lab.lab().dir().join(format!("decap-{server}.log"));
        let mut end = lab.ns(server).spawn(&argv, &[], &log)?;
        let what = format!("the tunnel's end on {server}");
        clock::wait_for(&what, Duration::from_secs(10), Duration::from_millis(10), || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            ensure!(end.is_running()?, "onearm-decap of {server} ended: {said}");
            Ok(said.starts_with("on eth0").then_some(()))
        })?;
        ends.push(end);
    }
    Ok(ends)
}

/// The VIP of `family`.
fn vip(family: Family) -> IpAddr {
    match family {
        Family::V4 => VIP.into(),
        Family::V6 => VIP6.into(),
    }
}
