//! What an operator is told of alarms, kernel events and refusals: words and remedies. Pure.

use onearm_dataplane::Event as Seen;
use onearm_ha::auth::Health;
use onearm_ha::election::Alarm;
use onearm_netcfg::{Event as KernelEvent, Fault, offload};
use serde::Serialize;

use crate::control::{HaStatus, NewEvent, Severity};

/// A value of another crate in words: its JSON without the punctuation of a program.
pub(crate) fn told(value: &impl Serialize) -> String {
    serde_json::to_string(value)
        .unwrap_or_default()
        .replace(['"', '{', '}'], "")
        .replace('_', " ")
        .replace(':', ": ")
}

/// What a node can do, as words of the status.
pub(crate) fn health(health: Health) -> Vec<String> {
    let bits = [
        Health::DATAPLANE,
        Health::RECEIVES,
        Health::LEGS,
        Health::WITNESS,
        Health::SERVERS,
        Health::SCRIPTS,
    ];
    let words = bits.into_iter().zip(HaStatus::FITNESS);
    let has = words.filter(|(bit, _)| health.has(*bit));
    has.map(|(_, word)| word.to_owned()).collect()
}

/// An alarm of the election.
pub(crate) fn alarm(alarm: Alarm) -> NewEvent {
    let (kind, remedy) = match alarm {
        Alarm::ForeignGroup { .. } => ("foreign-group", "give one of the two groups another vrid"),
        Alarm::LoopOrDuplicateAddress => (
            "loop-or-duplicate-address",
            "look for a loop in the switch, or another host with this node's address",
        ),
        Alarm::IntervalClamped { .. } => ("interval-clamped", "set the same advert_interval on both nodes"),
        Alarm::AddressListDiffers => ("address-list-differs", "compare pair.toml of the two nodes"),
        Alarm::FamilySilent { .. } => (
            "family-silent",
            "look for a switch or packet filter that drops the adverts of one IP version",
        ),
        Alarm::SendErrors => (
            "adverts-not-sent",
            "look for a packet filter or a fault of the leg on this node",
        ),
        Alarm::LeaseLapsed => (
            "lease-lapsed",
            "this machine stalled; look for starved CPU or a paused VM",
        ),
        Alarm::Overslept => (
            "overslept",
            "this machine stalled; look for starved CPU or a paused VM",
        ),
        Alarm::Contended => (
            "contended",
            "both nodes were Active at one time (event two-owners has the evidence): look for one-way loss between them",
        ),
        Alarm::UnprovedOwner => (
            "unproved-owner",
            "somebody replays adverts of this pair, or the peer does not hear this node: look at its counters",
        ),
        Alarm::Deaf => (
            "leg-deaf",
            "the leg receives nothing from anybody: look at its cable, switch port and filters",
        ),
        Alarm::Cloned => (
            "node-cloned",
            "a copy of this node's disk or memory is running: stop it",
        ),
        Alarm::AdvertsLost => (
            "adverts-lost",
            "the peer answers for the owned addresses, but its adverts do not arrive: let IP protocol 112 through every packet filter and switch between the nodes",
        ),
    };
    warning(kind, told(&alarm).replace('-', " "), remedy)
}

/// An event of netcfg.
pub(crate) fn kernel(event: &KernelEvent) -> NewEvent {
    match event {
        KernelEvent::Repaired(_) => warning(
            "kernel-repaired",
            told(event),
            "another program changes what onearm set; find out which",
        ),
        KernelEvent::FaultRaised(_) => warning(
            "kernel-fault",
            told(event),
            "it stays in the warnings of onearm status until it is gone",
        ),
        _ => NewEvent {
            severity: Severity::Info,
            kind: "kernel-fault-cleared",
            message: told(event),
            remedy: String::new(),
        },
    }
}

/// New flows that the programs refused; `None` for events that refuse nothing.
pub(crate) fn refused(seen: &Seen) -> Option<NewEvent> {
    let (kind, remedy) = match seen {
        Seen::TableFull { .. } => (
            "table-full",
            "raise limits.max_flows, or limits.max_flows6 where the service has an IPv6 address",
        ),
        Seen::HalfOpenFull { .. } => ("half-open-full", "a SYN flood, or raise limits.half_open"),
        Seen::HalfOpenEvicted { .. } => (
            "half-open-evicted",
            "a SYN flood, or raise limits.half_open; established connections are not touched",
        ),
        Seen::LimitReached { .. } => (
            "limit-reached",
            "raise the service's max_connections or max_new_per_second, or find out who calls: onearm services",
        ),
        Seen::NoPort { .. } => (
            "no-port",
            "give the service more snat addresses or a wider snat_ports",
        ),
        Seen::NoServer { .. } => ("no-server", "look at the servers' checks: onearm services"),
        _ => return None,
    };
    let what = if matches!(seen, Seen::HalfOpenEvicted { .. }) {
        "half-open flows give way"
    } else {
        "new flows are refused"
    };
    Some(warning(kind, format!("{what}: {}", told(seen)), remedy))
}

/// What the programs saw of the way a leg's interface works; `None` for other events. `interface`: of a leg by its number.
pub(crate) fn of_interface(seen: &Seen, interface: impl Fn(u32) -> String) -> Option<NewEvent> {
    match seen {
        Seen::SuperPacket { leg } => {
            let name = interface(*leg);
            Some(warning(
                "super-packet",
                format!(
                    "{name} puts packets together, and they are refused where their way takes less than the leg, and before tunnels"
                ),
                &format!(
                    "ethtool -K {name} lro off rx-gro-hw off gro off; where the sender is a host of this machine, ethtool -K … tso off gso off on its end"
                ),
            ))
        }
        Seen::HeadersInPieces { leg } => {
            let name = interface(*leg);
            Some(warning(
                "headers-in-pieces",
                format!("the driver of {name} splits headers from what follows: such packets are refused"),
                &format!("ethtool -G {name} tcp-data-split off, or attach = \"generic\" for the leg"),
            ))
        }
        _ => None,
    }
}

/// A fault of netcfg that stays in the warnings of `onearm status`.
pub(crate) fn fault(fault: &Fault) -> String {
    let Fault::OffloadFixed {
        leg,
        feature,
        active: true,
    } = fault
    else {
        return told(fault);
    };
    let what = if offload::for_tags().contains_key(feature) {
        "frames of other VLANs look like the leg's own"
    } else {
        "packets come put together, and are refused where their way takes less than the leg, and before tunnels"
    };
    format!(
        "{leg}: {feature} is on and the device cannot switch it off (ethtool -K {leg} {feature} off): {what}; switch it off where the \
         device is made, in the hypervisor or on the host"
    )
}

/// Counters by name: the fields of a struct of numbers.
pub(crate) fn counted<T: Serialize>(counters: &T) -> impl Iterator<Item = (String, u64)> + use<T> {
    let named = match serde_json::to_value(counters) {
        Ok(serde_json::Value::Object(named)) => named,
        _ => serde_json::Map::new(),
    };
    named
        .into_iter()
        .filter_map(|(name, n)| Some((name, n.as_u64()?)))
}

fn warning(kind: &'static str, message: String, remedy: &str) -> NewEvent {
    NewEvent::new(Severity::Warning, kind, message, remedy)
}

#[cfg(test)]
mod tests {
    use super::{alarm, fault, kernel, of_interface, refused};
    use crate::control::Severity;
    use onearm_dataplane::Event as Seen;
    use onearm_ha::election::Alarm;
    use onearm_netcfg::{Event as KernelEvent, Fault, IfName};

    #[test]
    fn a_missing_leg_is_not_blamed_on_another_program() {
        let leg = IfName::new("lan0").unwrap();
        let raised = kernel(&KernelEvent::FaultRaised(Fault::LegMissing { leg: leg.clone() }));
        assert_eq!(
            (raised.severity, raised.kind),
            (Severity::Warning, "kernel-fault")
        );
        assert!(!raised.remedy.contains("another program"), "{}", raised.remedy);
        assert!(raised.message.contains("lan0"), "{}", raised.message);
        let cleared = kernel(&KernelEvent::FaultCleared(Fault::LegMissing { leg }));
        assert_eq!((cleared.severity, &*cleared.remedy), (Severity::Info, ""));
    }

    #[test]
    fn what_an_interface_should_not_do_is_told_with_the_setting() {
        let interface = |leg| format!("eth{leg}");
        for (seen, setting) in [
            (Seen::SuperPacket { leg: 1 }, "ethtool -K eth1 lro off"),
            (
                Seen::HeadersInPieces { leg: 1 },
                "ethtool -G eth1 tcp-data-split off",
            ),
        ] {
            let notice = of_interface(&seen, interface).unwrap();
            assert!(notice.remedy.contains(setting), "{}", notice.remedy);
            assert!(notice.message.contains("eth1"), "{}", notice.message);
        }
        assert_eq!(of_interface(&Seen::TableFull { service: 3 }, interface), None);
        let leg = IfName::new("lan0").unwrap();
        let of = |feature: &str| {
            fault(&Fault::OffloadFixed {
                leg: leg.clone(),
                feature: feature.to_owned(),
                active: true,
            })
        };
        assert!(of("rx-lro").contains("ethtool -K lan0 rx-lro off): packets come put together"));
        assert!(of("rx-vlan-hw-parse").contains("frames of other VLANs"));
        assert!(!fault(&Fault::LegMissing { leg }).contains(['{', '"', '_']));
    }

    #[test]
    fn warnings_are_words_with_a_remedy() {
        for notice in [
            alarm(Alarm::Contended),
            alarm(Alarm::LeaseLapsed),
            refused(&Seen::TableFull { service: 3 }).unwrap(),
        ] {
            assert!(!notice.remedy.is_empty());
            assert!(!notice.message.contains(['{', '"', '_']), "{}", notice.message);
        }
        assert_eq!(refused(&Seen::Unknown { kind: 9 }), None);
    }
}
