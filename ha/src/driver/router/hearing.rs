//! What is heard on the leg: adverts, ARP, Neighbour Discovery.

use std::net::IpAddr;

use super::Router;
use crate::announce;
use crate::config::{Config, Wire};
use crate::driver::voice::{Taken, Voice};
use crate::election::{Alarm, Election, Input, PairMessage};
use crate::units::{MonoTime, Vrid};
use crate::wire::advert::{ReceivedAdvert, parse_frame, virtual_link_local};
use crate::wire::arp::Arp;
use crate::wire::frame::{ETHERTYPE_ARP, Ethernet};
use crate::wire::ipv6::{ETHERTYPE_IPV6, IPV6_LEN, PROTOCOL_ICMPV6};
use crate::wire::ndp::{Kind, Message};
use crate::wire::{Address, Mac, ParseError};

/// One family may be silent for so long, or for ten intervals, while the other is heard. Nanoseconds.
const FAMILY_PATIENCE_NANOS: u64 = 3_000_000_000;

impl Router {
    pub(super) fn hear_advert(&mut self, now: MonoTime, at: MonoTime, frame: &[u8]) {
        let config = &self.config;
        let ipv6 = Ethernet::parse(frame).is_ok_and(|ethernet| ethernet.ethertype == ETHERTYPE_IPV6);
        let voice = &mut self.voice;
        let heard = if ipv6 {
            understand(config, voice, config.ipv6.as_ref(), (now, at), frame)
        } else {
            understand(config, voice, config.ipv4.as_ref(), (now, at), frame)
        };
        match heard {
            Ok((src_mac, source, taken)) => {
                // No code covers the Ethernet address: what is heard again may come from anybody's.
                if taken.proves_its_sender() && source == self.election.settings().peer {
                    self.peer_mac = Some(src_mac);
                    self.advert_heard_at = Some(at);
                    self.neighbour.learn(now, src_mac);
                    self.compare_families(now, ipv6);
                    self.reception.peer_heard(at, &self.config, &self.election);
                }
                hear(&mut self.election, now, taken);
            }
            Err(Unused::Spoiled(error)) => self.wire.count(error),
            Err(Unused::Misdirected) => self.wire.misdirected += 1,
            Err(Unused::OtherRouter) => self.wire.other_vrid += 1,
        }
    }

    /// The peer was heard in one family; it should be heard in both where there are two.
    fn compare_families(&mut self, now: MonoTime, ipv6: bool) {
        let interval = self.election.status().learned_interval_nanos;
        let patience = interval.saturating_mul(10).max(FAMILY_PATIENCE_NANOS);
        if self.config.ipv4.is_some() && self.config.ipv6.is_some() && self.families.hear(now, ipv6, patience)
        {
            self.alarms.push(Alarm::FamilySilent { ipv6: !ipv6 });
        }
    }

    pub(super) fn hear_other(&mut self, now: MonoTime, at: MonoTime, frame: &[u8]) {
        match Ethernet::parse(frame) {
            Ok(Ethernet {
                ethertype: ETHERTYPE_ARP,
                ..
            }) => self.hear_arp(now, frame),
            Ok(Ethernet {
                ethertype: ETHERTYPE_IPV6,
                payload,
                ..
            }) if payload.len() >= IPV6_LEN && payload[6] == PROTOCOL_ICMPV6 => {
                self.hear_neighbour(now, frame);
            }
            Ok(_) => self.hear_advert(now, at, frame),
            Err(error) => self.wire.count(error),
        }
    }

    /// The witness answers, or whoever has an address of the pair's.
    pub(super) fn hear_answer(&mut self, now: MonoTime, at: MonoTime, frame: &[u8]) {
        let answer = if let Ok(arp) = Arp::parse_frame(frame) {
            Some((IpAddr::V4(arp.sender), arp.sender_mac))
        } else {
            let message = Message::parse_frame(frame).ok();
            message.and_then(|(_, message)| Some((IpAddr::V6(message.target), message.mac?)))
        };
        let Some((address, mac)) = answer else { return };
        self.reception.answered(now, address, mac, &self.config);
        if self.config.listed().any(|listed| listed == address) && self.neighbour.is_at(mac) {
            self.election.handle(now, Input::OwnerAnswered(at));
        }
    }

    fn hear_arp(&mut self, now: MonoTime, frame: &[u8]) {
        match Arp::parse_frame(frame) {
            Ok(arp) => {
                if self
                    .config
                    .ipv4
                    .as_ref()
                    .is_some_and(|wire| wire.peer == arp.sender)
                {
                    self.neighbour.learn(now, arp.sender_mac);
                }
                self.doubt_claim(now, arp.sender.into(), arp.sender_mac);
            }
            Err(error) => self.wire.count(error),
        }
    }

    /// Who sends from an owned address, or advertises one, claims it. A probe (no source) claims nothing yet: the
    /// dataplane answers it.
    fn hear_neighbour(&mut self, now: MonoTime, frame: &[u8]) {
        match Message::parse_frame(frame) {
            Ok((src_mac, message)) => {
                let claimed = match message.kind {
                    Kind::Solicitation => message.src,
                    Kind::Advertisement { .. } => message.target,
                };
                let at = message.mac.unwrap_or(src_mac);
                if self.config.ipv6.as_ref().is_some_and(|wire| wire.peer == claimed) {
                    self.neighbour.learn(now, at);
                }
                self.doubt_claim(now, claimed.into(), at);
            }
            Err(error) => self.wire.count(error),
        }
    }

    /// Somebody at `mac` says that `address` is there.
    fn doubt_claim(&mut self, now: MonoTime, address: IpAddr, mac: Mac) {
        if self.announcer.owns(address) && Some(mac) != self.mac {
            self.announcer.handle(now, announce::Input::ConflictSeen(address));
        }
    }
}

/// Why an advert is not used.
enum Unused {
    /// It is none.
    Spoiled(ParseError),
    /// Addressed neither to the group nor to this node.
    Misdirected,
    /// Of another virtual router: another id, or a family this node has no part in (RFC 9568 §5.2.3: the same id in the
    /// other family is another router).
    OtherRouter,
}

/// Gives the election what was heard.
pub(super) fn hear(election: &mut Election, now: MonoTime, taken: Taken) {
    match taken {
        Taken::Message(message) => election.handle(now, Input::Received(message)),
        Taken::Repeated => election.handle(now, Input::Repeated),
        Taken::Dropped => {}
    }
}

/// Reads an advert of the family of `wire` that arrived at `at`; with the sender's Ethernet address and, as the election
/// knows it, IP address.
fn understand<A: Address>(
    config: &Config,
    voice: &mut Option<Voice>,
    wire: Option<&Wire<A>>,
    (now, at): (MonoTime, MonoTime),
    frame: &[u8],
) -> Result<(Mac, IpAddr, Taken), Unused> {
    let ReceivedAdvert {
        src_mac,
        src,
        dst,
        advert,
    } = parse_frame::<A>(frame).map_err(Unused::Spoiled)?;
    let Some(wire) = wire else {
        return Err(Unused::OtherRouter);
    };
    if dst != A::GROUP && dst != wire.address {
        return Err(Unused::Misdirected);
    }
    if advert.vrid != config.vrid {
        return Err(Unused::OtherRouter);
    }
    let source = config.speaker(src.into());
    let plain = PairMessage {
        same_addresses: owned_in(&advert.addresses, config.vrid) == owned_in(&wire.announce, config.vrid),
        ..PairMessage::plain(at, source, advert.priority, advert.interval)
    };
    let taken = match voice {
        Some(voice) => voice.hear_advert(now, &advert, plain),
        None => Taken::Message(plain),
    };
    Ok((src_mac, source, taken))
}

/// The addresses of a list in order, without the one that only makes it begin as IPv6 lists do: FRR lists without it.
fn owned_in<A: Address>(listed: &[A], vrid: Vrid) -> Vec<A> {
    let filler = IpAddr::V6(virtual_link_local(vrid));
    let mut addresses: Vec<_> = listed.iter().copied().filter(|a| (*a).into() != filler).collect();
    addresses.sort_unstable();
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::advert::with_link_local;

    #[test]
    fn b24_lists_are_compared_without_their_order_and_the_filling_of_ipv6() {
        let vrid = Vrid::new(51).unwrap();
        let of = |listed: &[&str]| -> Vec<std::net::Ipv6Addr> {
            listed.iter().map(|a| a.parse().unwrap()).collect()
        };
        let ours = owned_in(&with_link_local(vrid, &of(&["2001:db8::2", "2001:db8::1"])), vrid);
        assert_eq!(ours, owned_in(&of(&["2001:db8::1", "2001:db8::2"]), vrid));
        assert_ne!(ours, owned_in(&of(&["2001:db8::1"]), vrid));
        let own_first = of(&["fe80::1", "2001:db8::1", "2001:db8::2"]);
        assert_ne!(
            ours,
            owned_in(&own_first, vrid),
            "a link-local address that is configured counts"
        );
        let ipv4 = [[192, 0, 2, 2], [192, 0, 2, 1]].map(std::net::Ipv4Addr::from);
        assert_eq!(owned_in(&ipv4, vrid), [ipv4[1], ipv4[0]]);
    }
}
