//! The legs of the node, and the legs the pair asks for.

use std::collections::HashMap;

use super::findings::Findings;
use crate::config::{Attach, Leg, NodeConfig, PairFile, Parsed, Role};

pub(super) fn judge(
    node: &Parsed<NodeConfig>,
    file: &PairFile,
    of_node: &mut Findings,
    of_pair: &mut Findings,
) {
    own(node, of_node);
    if node.is_draft() {
        return;
    }
    let pair = &file.parsed.config;
    let mut named = |field: String, name: &str, what: &str| match node.config.leg(name) {
        None => {
            let known: Vec<&str> = node.config.legs.iter().map(|leg| &*leg.name).collect();
            let message = format!("{} has no leg of that name", node.source.name());
            of_pair.error(
                "unknown-leg",
                field,
                message,
                format!("its legs are: {}", known.join(", ")),
            );
        }
        Some(Leg { role: Role::Peer, .. }) => {
            let message = format!("{what} cannot live on a leg of role \"peer\"");
            of_pair.error("leg-role", field, message, "name a leg of another role");
        }
        Some(_) => {}
    };
    for (index, gateway) in pair.gateways.iter().enumerate() {
        named(
            format!("{}.leg", file.gateway_path(index)),
            &gateway.leg,
            "a gateway address",
        );
    }
    for (index, service) in pair.services.iter().enumerate() {
        if let Some(leg) = &service.leg {
            named(format!("{}.leg", file.service_path(index)), leg, "a VIP");
        }
    }
    let mut of_vip: HashMap<_, (&str, usize)> = HashMap::new();
    for (index, service) in pair.services.iter().enumerate() {
        let Some(leg) = &service.leg else { continue };
        let (first, at) = of_vip.entry(service.vip).or_insert((leg, index));
        if *first != leg {
            let message = format!("{} puts the same VIP on leg \"{first}\"", file.service_path(*at));
            let field = format!("{}.leg", file.service_path(index));
            of_pair.error("vip-on-two-legs", field, message, "a VIP lives on one leg");
        }
    }
}

fn own(node: &Parsed<NodeConfig>, findings: &mut Findings) {
    let mut names: HashMap<&str, usize> = HashMap::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (index, leg) in node.config.legs.iter().enumerate() {
        if let Some(first) = names.insert(&leg.name, index) {
            let message = format!("leg[{first}] has the same name");
            findings.error(
                "duplicate-leg",
                format!("leg[{index}].name"),
                message,
                "give each leg a name of its own",
            );
        }
        if let Some(first) = places.insert(&leg.interface, index) {
            let message = format!("leg[{first}] is the same interface and VLAN");
            findings.error(
                "duplicate-leg",
                format!("leg[{index}].interface"),
                message,
                "remove one of them",
            );
        }
    }
    programs(&node.config, findings);
    if !node.is_draft() && !node.config.legs.iter().any(|leg| leg.role.holds_vips()) {
        findings.error(
            "no-service-leg",
            "leg",
            "no leg has role \"service\" or \"outside\"",
            "VIPs and adverts need one",
        );
    }
}

/// Where programs can be attached, so that each gets the frames of its leg and every frame gets out.
fn programs(node: &NodeConfig, findings: &mut Findings) {
    let traffic = || {
        node.legs
            .iter()
            .enumerate()
            .filter(|(_, leg)| leg.role.carries_traffic())
    };
    for (index, leg) in traffic() {
        if leg.attach == Attach::Native && leg.vlan.is_some() {
            findings.error(
                "attach-native",
                format!("leg[{index}].attach"),
                "a VLAN has no driver of its own",
                "write \"auto\" or \"generic\"",
            );
        } else if leg.attach == Attach::Native && node.is_generic() {
            let message = "another leg is a VLAN or generic: what a native program sends by that leg is lost";
            findings.error(
                "attach-native",
                format!("leg[{index}].attach"),
                message,
                "write \"auto\" for all legs",
            );
        }
        let of_vlan = traffic().find(|(_, other)| other.parent.as_ref() == Some(&leg.interface));
        if let Some((other, _)) = of_vlan {
            let message = format!(
                "leg[{other}] is a VLAN of it: this leg's program would get the VLAN's frames as well"
            );
            findings.error(
                "vlan-beside-untagged",
                format!("leg[{index}].interface"),
                message,
                "make the untagged network a VLAN on the switch, too",
            );
        }
    }
}
