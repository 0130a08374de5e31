//! Without authentication: what the protocol allows a stranger, measured, beside keepalived.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use anyhow::Result;

use super::{ATTACKER, active, forge, worst};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{echo, owners::Sampler, udp::UdpProber},
    node::{Kind, Pair},
    scenario::{Run, failover},
    service::{Mode, PairSpec},
    topology::{self, NODES, OneArm, Options, SERVERS, VIP, mac},
    traffic,
};

/// Longest interval a node without authentication learns, unless ten of its own are longer.
const LONGEST: Duration = Duration::from_secs(3);
/// How long keepalived is looked at: the advert darkens it for 131 s.
const LOOK: Duration = Duration::from_secs(15);

/// What one forged advert did.
struct Harm {
    outage: Nanos,
    lost: usize,
    two_owners: usize,
    /// Longest time in which nobody answered for the VIP.
    ownerless: Nanos,
}

/// Forges one advert in the name of `from` that lists `addresses`, and looks on for `span`.
fn harm(lab: &OneArm, from: &str, addresses: &[Ipv4Addr], span: Duration) -> Result<Harm> {
    let sampler = Sampler::start(lab, VIP, MS)?;
    let udp = UdpProber::start(lab.ns("out"), SocketAddrV4::new(VIP, echo::PORT), MS)?;
    clock::observe(Duration::from_millis(500));
    let begun = clock::now();
    let frame = forge::Advert {
        addresses: addresses.iter().copied().map(IpAddr::from).collect(),
        ..worst(topology::address(from).into())
    }
    .frame(mac(ATTACKER));
    forge::send_all(lab.ns(ATTACKER), &[frame], 1, 1)?;
    clock::observe(span);
    let over = clock::now();
    let series = udp.stop()?;
    let owners = sampler.stop()?;
    Ok(Harm {
        outage: series.longest_gap(begun - 2 * MS, over),
        lost: series.lost(begun - 2 * MS, over),
        two_owners: owners.disputed(begun, over).len(),
        ownerless: owners.longest_silence(begun, over),
    })
}

pub(super) fn onearm(run: &mut Run, interval: Duration) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, interval).without_authentication();
    run.with_lab("plain", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = super::stage(run, lab, &spec)?;
        let stranger = harm(lab, ATTACKER, &[VIP], Duration::from_secs(4))?;
        run.report.check(
            "plain: one advert of priority 255 and 40.95 s from a stranger's address has no effect",
            stranger.lost == 0 && stranger.two_owners == 0,
            format!(
                "{} packets lost, two owners {} ms",
                stranger.lost, stranger.two_owners
            ),
        );
        let peer = NODES[1 - active(&mut pair)?];
        let clamp = LONGEST.max(interval * 10);
        // Three intervals as learned, the skew of the lowest priority, and the listening after a take-over.
        let bound = clamp * 4 + Duration::from_secs(2);
        let found = harm(lab, peer, &[VIP], bound + Duration::from_secs(2))?;
        run.report
            .figure("plain_forged_in_the_peers_name_outage_ms", ms(found.outage));
        run.report.check(
            format!(
                "plain: the same in the peer's name costs no more than {} s",
                bound.as_secs()
            ),
            found.outage <= clock::nanos(bound) && found.two_owners == 0,
            format!(
                "{:.0} ms, {} packets lost, two owners {} ms",
                ms(found.outage),
                found.lost,
                found.two_owners
            ),
        );
        let mut told = String::new();
        for node in pair.nodes.iter().filter_map(|node| node.as_onearm()) {
            told.push_str(&node.ask(&["events"])?.to_string());
        }
        let names = ["foreign-group", "interval-clamped"];
        run.report.check(
            "plain: events tell of the stranger and of the interval",
            names.iter().all(|name| told.contains(name)),
            names
                .iter()
                .map(|name| format!("{name}: {}", told.contains(name)))
                .collect::<Vec<_>>()
                .join(", "),
        );
        pair.scrap()
    })
}

pub(super) fn keepalived(run: &mut Run, interval: Duration) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, interval);
    let options = Options {
        forwarding: true,
        ..Options::default()
    };
    run.with_lab("keepalived", options, |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = Pair::prepare(Kind::Keepalived, lab, &spec, &run.wanted.bin_dir)?;
        pair.start()?;
        lab.forget_neighbours()?;
        failover::wait_served(lab, SocketAddrV4::new(VIP, echo::PORT))?;
        let found = harm(lab, ATTACKER, &spec.owned(), LOOK)?;
        // A node that is no master goes on to translate what neighbours that have not noticed yet send it.
        run.report
            .figure("keepalived_ownerless_ms_of_15000", ms(found.ownerless));
        run.report.check(
            "keepalived: the same advert from a stranger takes the VIP off both nodes",
            found.ownerless > clock::nanos(LOOK) / 2,
            format!(
                "nobody answered for it in {:.0} ms of {} s, the longest gap of a running flow is {:.0} ms",
                ms(found.ownerless),
                LOOK.as_secs(),
                ms(found.outage)
            ),
        );
        pair.scrap()
    })
}
