//! A third host on the leg attacks a pair that serves: what it forges and what it recorded moves nothing, costs no
//! packet, makes the nodes send no more than without it, and is counted by its kind.

pub(super) mod forge;
mod plain;
mod story;

use std::{net::IpAddr, thread::JoinHandle, time::Duration};

use anyhow::{Context as _, Result};

use self::story::{Attack, Bounds};
use super::{Run, Scenario, named, stage};
use crate::{
    clock,
    measure::capture::{Capture, Direction, Filter},
    node::{Pair, Role},
    service::{Mode, PairSpec},
    topology::{self, NODES, OneArm, Options, ROUTER, SERVERS, VIP, VIP6, mac},
    traffic,
};

/// Port of HA datagrams.
const DATAGRAMS: u16 = 8_471;
/// Begins every authenticated word.
const MAGIC: &[u8] = b"1arm";
/// Where the attacker is.
const ATTACKER: &str = "cl";

/// Parts of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Adverts with priority 255 and an interval of 40.95 s, in an own name and in the other node's.
    Adverts,
    /// Adverts of other groups.
    Groups,
    /// Adverts and datagrams of this life of the nodes.
    Replay,
    /// Those of an earlier life of the Active.
    OldReplay,
    /// Claims of the pair's addresses.
    Conflicts,
    /// Adverts and datagrams in the other node's name, at speed.
    Flood,
    /// Claims of the other node's address, with adverts in multicast and in unicast.
    Neighbours,
    /// A pair without authentication.
    Plain,
    /// keepalived, for comparison.
    Keepalived,
}

impl Part {
    const ALL: [Self; 9] = [
        Self::Adverts,
        Self::Groups,
        Self::Replay,
        Self::OldReplay,
        Self::Conflicts,
        Self::Flood,
        Self::Neighbours,
        Self::Plain,
        Self::Keepalived,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Adverts => "adverts",
            Self::Groups => "groups",
            Self::Replay => "replay",
            Self::OldReplay => "old-replay",
            Self::Conflicts => "conflicts",
            Self::Flood => "flood",
            Self::Neighbours => "neighbours",
            Self::Plain => "plain",
            Self::Keepalived => "keepalived",
        }
    }
}

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "attack",
        about: "forged and replayed adverts and datagrams, forged ARP and ND, floods in the peer's name: nothing moves (--only: parts)",
        for_peers: false,
        run,
    }
}

fn run(run: &mut Run) -> Result<()> {
    let parts = named(&Part::ALL, Part::name, &run.wanted.only)?;
    let interval = run.wanted.interval.unwrap_or(Duration::from_millis(100));
    let spec = PairSpec {
        witness: Some(ROUTER),
        ..PairSpec::web_and_echo(Mode::Dnat, interval).in_both_families()
    };
    let spec = PairSpec {
        announce: vec![VIP.into(), VIP6.into()],
        ..spec
    };
    let options = Options {
        ipv6: true,
        ..Options::default()
    };
    let signed: Vec<Part> = parts
        .iter()
        .copied()
        .filter(|part| !matches!(part, Part::Neighbours | Part::Plain | Part::Keepalived))
        .collect();
    if !signed.is_empty() {
        run.with_lab("signed", options, |run, lab| {
            let _servers = traffic::start_servers(lab, &SERVERS)?;
            let mut pair = stage(run, lab, &spec)?;
            for part in signed {
                match part {
                    Part::Adverts => adverts(run, lab, &mut pair)?,
                    Part::Groups => groups(run, lab, &mut pair)?,
                    Part::Replay => replay(run, lab, &mut pair)?,
                    Part::OldReplay => old_replay(run, lab, &mut pair)?,
                    Part::Conflicts => conflicts(run, lab, &mut pair)?,
                    Part::Flood => flood(run, lab, &mut pair)?,
                    Part::Neighbours | Part::Plain | Part::Keepalived => {}
                }
            }
            pair.scrap()
        })?;
    }
    if parts.contains(&Part::Neighbours) {
        let spec = PairSpec::web_and_echo(Mode::Dnat, interval);
        run.with_lab("neighbours", Options::default(), |run, lab| {
            let _servers = traffic::start_servers(lab, &SERVERS)?;
            for transport in ["multicast", "unicast"] {
                neighbours(run, lab, &spec, transport)?;
            }
            Ok(())
        })?;
    }
    if parts.contains(&Part::Plain) {
        plain::onearm(run, interval)?;
    }
    if parts.contains(&Part::Keepalived) {
        plain::keepalived(run, interval)?;
    }
    Ok(())
}

/// Sends so many adverts of the highest priority in the nodes' names, from a thread.
///
/// # Errors
/// When the thread cannot be made.
pub(super) fn forge_adverts(lab: &OneArm, count: u64, a_second: u64) -> Result<JoinHandle<Result<()>>> {
    let frames = NODES.map(|short| worst(topology::address(short).into()).frame(mac(ATTACKER)));
    let ns = lab.ns(ATTACKER).clone();
    lab.ns(ATTACKER).thread("forger", move || {
        forge::send_all(&ns, &frames, count, a_second).map(drop)
    })
}

/// Which node is Active.
fn active(pair: &mut Pair) -> Result<usize> {
    Ok(usize::from(pair.nodes[1].role()? == Role::Active))
}

/// The worst advert there is: the highest priority, and silence to be expected for two minutes.
fn worst(from: IpAddr) -> forge::Advert {
    forge::Advert {
        from,
        vrid: 51,
        priority: 255,
        interval_cs: 4_095,
        addresses: vec![if from.is_ipv4() { VIP.into() } else { VIP6.into() }],
    }
}

fn adverts(run: &mut Run, lab: &OneArm, pair: &mut Pair) -> Result<()> {
    let senders = |short: &str| {
        [
            topology::address(short).into(),
            topology::link_local(short).into(),
        ]
    };
    for (whose, names) in [("in its own name", [ATTACKER; 2]), ("in the nodes' names", NODES)] {
        let mut frames: Vec<Vec<u8>> = names
            .iter()
            .flat_map(|short| senders(short))
            .map(|from: IpAddr| worst(from).frame(mac(ATTACKER)))
            .collect();
        frames.dedup();
        let attack = Attack {
            name: format!("one advert of priority 255 and 40.95 s, IPv4 and IPv6, {whose}"),
            count: frames.len() as u64,
            frames,
            a_second: 100,
            counters: &["authentication_plain_refused"],
            bounds: Bounds::NOTHING,
        };
        story::tell(run, lab, pair, &attack)?;
    }
    Ok(())
}

fn groups(run: &mut Run, lab: &OneArm, pair: &mut Pair) -> Result<()> {
    let own = worst(topology::address(ATTACKER).into());
    let own6 = worst(topology::link_local(ATTACKER).into());
    let other_vrid = |advert: &forge::Advert| forge::Advert {
        vrid: 52,
        ..advert.clone()
    };
    let other_list = |advert: &forge::Advert, address: IpAddr| forge::Advert {
        addresses: vec![address],
        ..advert.clone()
    };
    let stories = [
        (
            "adverts of another virtual router",
            vec![other_vrid(&own), other_vrid(&own6)],
            &["wire_other_vrid"][..],
        ),
        (
            "adverts of this virtual router that list other addresses",
            vec![
                other_list(&own, [192, 168, 100, 99].into()),
                other_list(&own6, topology::address6("mon").into()),
            ],
            &["authentication_plain_refused"][..],
        ),
    ];
    for (name, adverts, counters) in stories {
        let attack = Attack {
            name: name.to_owned(),
            frames: adverts.iter().map(|a| a.frame(mac(ATTACKER))).collect(),
            count: 40,
            a_second: 20,
            counters,
            bounds: Bounds::NOTHING,
        };
        story::tell(run, lab, pair, &attack)?;
    }
    Ok(())
}

/// What both nodes say for a while: adverts and HA datagrams, as they are on the wire, but from the attacker's port.
fn recorded(lab: &OneArm, pair: &Pair) -> Result<Vec<Vec<u8>>> {
    let captures = [
        Capture::start(lab.switch().ns(), None, Filter::All)?,
        Capture::start(lab.switch().ns(), None, Filter::UdpTo(DATAGRAMS))?,
    ];
    clock::observe(pair.spec().interval * 10 + Duration::from_millis(200));
    let mut frames = Vec::new();
    for capture in captures {
        let said = capture.stop()?.frames.into_iter().filter(|captured| {
            captured.direction == Direction::In
                && captured.port.starts_with("p-lb")
                && captured.bytes.windows(MAGIC.len()).any(|four| four == MAGIC)
        });
        frames.extend(said.map(|captured| forge::sent_by(captured.bytes, mac(ATTACKER))));
    }
    frames.sort();
    frames.dedup();
    anyhow::ensure!(frames.len() > 5, "only {} messages recorded", frames.len());
    Ok(frames)
}

/// Everything recorded, twenty times over.
fn repetition(what: &str, frames: Vec<Vec<u8>>) -> Attack {
    Attack {
        name: format!("{what}, recorded and sent again"),
        count: (frames.len() * 20) as u64,
        frames,
        a_second: 500,
        counters: &[
            "authentication_repeated",
            "authentication_own_name",
            "election_unproved",
        ],
        bounds: Bounds::NOTHING,
    }
}

fn replay(run: &mut Run, lab: &OneArm, pair: &mut Pair) -> Result<()> {
    let frames = recorded(lab, pair)?;
    story::tell(
        run,
        lab,
        pair,
        &repetition("adverts and HA datagrams of this life of the nodes", frames),
    )
}

fn old_replay(run: &mut Run, lab: &OneArm, pair: &mut Pair) -> Result<()> {
    let frames = recorded(lab, pair)?;
    let first = active(pair)?;
    let patience = pair.patience();
    // Both begin another life, one after the other.
    for index in [first, 1 - first] {
        pair.nodes[index].sigkill_all();
        pair.nodes[index].reap(Duration::from_secs(10))?;
        pair.nodes[1 - index].wait_role(Role::Active, patience)?;
        pair.nodes[index].start()?;
        pair.nodes[index].wait_role(Role::Standby, patience)?;
        pair.nodes[index].wait_checked(patience)?;
    }
    story::tell(
        run,
        lab,
        pair,
        &repetition(
            "adverts and HA datagrams of an earlier life of both nodes",
            frames,
        ),
    )
}

fn conflicts(run: &mut Run, lab: &OneArm, pair: &mut Pair) -> Result<()> {
    const CLAIMS: u64 = 10_000;
    let to = mac(NODES[active(pair)?]);
    let addresses: [IpAddr; 2] = [VIP.into(), VIP6.into()];
    let claims = |to: Option<[u8; 6]>| -> Vec<Vec<u8>> {
        addresses
            .iter()
            .map(|address| forge::claim(to, mac(ATTACKER), *address))
            .collect()
    };
    // Ten in a second at most, and those that the bounds held back.
    let announcements = 60;
    let alone = Attack {
        name: format!("{CLAIMS} claims of the VIPs that the Active alone hears"),
        frames: claims(Some(to)),
        count: CLAIMS,
        a_second: 10_000,
        counters: &["announce_conflicts"],
        bounds: Bounds {
            announcements,
            ..Bounds::NOTHING
        },
    };
    story::tell(run, lab, pair, &alone)?;
    let everybody = Attack {
        name: format!("{CLAIMS} claims of the VIPs that everybody hears"),
        frames: claims(None),
        bounds: Bounds {
            announcements,
            // Whoever believes the claims sends to the attacker until the VIP's owner is heard again: nobody but the network
            // can help that. The last word is the owner's.
            outage: Duration::from_secs(11),
            aftermath: Duration::from_secs(11),
        },
        ..alone
    };
    story::tell(run, lab, pair, &everybody)?;
    lab.forget_neighbours()
}

fn flood(run: &mut Run, lab: &OneArm, pair: &mut Pair) -> Result<()> {
    const A_SECOND: u64 = 12_000;
    const SECONDS: u64 = 5;
    // A word of the right form under a wrong code: it takes a look at the code to tell.
    let words: Vec<Vec<u8>> = recorded(lab, pair)?
        .into_iter()
        .filter_map(|frame| {
            let at = frame.windows(MAGIC.len()).position(|four| four == MAGIC)?;
            frame.get(at..).map(<[u8]>::to_vec)
        })
        .collect();
    let word = words.first().context("a word")?;
    let mut forged = Vec::new();
    for number in 0..64_u8 {
        let mut word = word.clone();
        // Its sequence number and its code.
        for at in [31, word.len() - 1] {
            if let Some(byte) = word.get_mut(at) {
                *byte = byte.wrapping_add(number + 1);
            }
        }
        for (to, from) in [(0, 1), (1, 0)] {
            if let Some(node) = word.get_mut(7) {
                *node = u8::try_from(from + 1)?;
            }
            let [to, from] = [NODES[to], NODES[from]];
            forged.push(forge::datagram(
                (mac(to), topology::address(to)),
                (mac(ATTACKER), topology::address(from)),
                DATAGRAMS,
                &word,
            ));
        }
    }
    let datagrams = Attack {
        name: format!("{A_SECOND} datagrams a second to each node in the other's name"),
        frames: forged,
        // Every second one is for the same node.
        count: 2 * A_SECOND * SECONDS,
        a_second: 2 * A_SECOND,
        counters: &["authentication_wrong_code"],
        bounds: Bounds::NOTHING,
    };
    story::tell(run, lab, pair, &datagrams)?;
    let adverts = Attack {
        name: format!("{A_SECOND} adverts a second in the nodes' names"),
        frames: NODES
            .iter()
            .map(|short| worst(topology::address(short).into()).frame(mac(ATTACKER)))
            .collect(),
        count: A_SECOND * SECONDS,
        a_second: A_SECOND,
        counters: &["authentication_plain_refused"],
        ..datagrams
    };
    story::tell(run, lab, pair, &adverts)
}

fn neighbours(run: &mut Run, lab: &OneArm, spec: &PairSpec, transport: &str) -> Result<()> {
    let mut pair = Pair::prepare(run.wanted.kind, lab, spec, &run.wanted.bin_dir)?;
    for node in &pair.nodes {
        let onearm = node.as_onearm().context("only onearm's file is known here")?;
        let text = crate::node::onearm::pair_toml(spec);
        onearm.write_pair(&text.replacen("auth = ", &format!("transport = \"{transport}\", auth = "), 1))?;
    }
    pair.start()?;
    lab.forget_neighbours()?;
    super::failover::wait_served(lab, std::net::SocketAddrV4::new(VIP, crate::measure::echo::PORT))?;
    // A question in the other node's name makes the kernel believe at once where it is.
    let frames = [(0, 1), (1, 0)]
        .iter()
        .map(|(to, of)| {
            let [to, of] = [NODES[*to], NODES[*of]];
            forge::question(
                mac(to),
                (mac(ATTACKER), topology::address(of)),
                topology::address(to),
            )
        })
        .collect();
    let attack = Attack {
        name: format!("1,000 claims a second of the nodes' own addresses, adverts in {transport}"),
        frames,
        count: 5_000,
        a_second: 1_000,
        counters: &[],
        bounds: Bounds::NOTHING,
    };
    story::tell(run, lab, &mut pair, &attack)?;
    pair.scrap()
}
