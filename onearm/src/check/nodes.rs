use super::families;
use super::findings::Findings;
use crate::config::{NodeConfig, Parsed};

/// Judges the files of both nodes side by side; findings go to the second.
pub fn lint_nodes(first: &Parsed<NodeConfig>, second: &mut Parsed<NodeConfig>) {
    if first.is_draft() || second.is_draft() {
        return;
    }
    let mut findings = Findings::default();
    let (one, two) = (&first.config, &second.config);
    let other = first.source.name();
    if one.id == two.id {
        findings.error(
            "same-id",
            "id",
            format!("{other} has the same id"),
            "one node is 1, the other 2",
        );
    }
    if one.name == two.name {
        findings.error(
            "same-name",
            "name",
            format!("{other} has the same name"),
            "give each node a name of its own",
        );
    }
    for (key, address) in two.peer.addresses() {
        if one.peer.addresses().any(|(_, same)| same == address) {
            let message = format!("{other} names the same peer");
            let remedy = "each node names the other one's address";
            findings.error("same-peer", key, message, remedy);
        }
    }
    if families(one) != families(two) {
        let message = format!(
            "adverts over {} here, over {} in {other}",
            families(two).join(" and "),
            families(one).join(" and ")
        );
        let remedy = "name the peer by addresses of the same families in both files: the nodes order themselves by them";
        findings.error("peer-families", "peer.address", message, remedy);
    }
    let cabled = match (one.peer.link, two.peer.link) {
        (Some(one), Some(two)) => one.own == two.peer && one.peer == two.own,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    if !cabled {
        let message = format!("{other} has other addresses on the peer link");
        let remedy = "link_address of each node is own_link_address of the other";
        findings.error("link-differs", "peer.link_address", message, remedy);
    }
    for (index, leg) in two.legs.iter().enumerate() {
        match one.leg(&leg.name) {
            None => {
                let message = format!("{other} has no leg of that name");
                findings.error(
                    "legs-differ",
                    format!("leg[{index}].name"),
                    message,
                    "both nodes have the same legs",
                );
            }
            Some(theirs) if theirs.role != leg.role => {
                let message = format!(
                    "role \"{}\" here, \"{}\" in {other}",
                    leg.role.as_str(),
                    theirs.role.as_str()
                );
                findings.error(
                    "legs-differ",
                    format!("leg[{index}].role"),
                    message,
                    "a leg has one role on both nodes",
                );
            }
            Some(_) => {}
        }
    }
    for leg in one.legs.iter().filter(|leg| two.leg(&leg.name).is_none()) {
        let message = format!("{other} has a leg \"{}\", this file has not", leg.name);
        findings.error("legs-differ", "leg", message, "both nodes have the same legs");
    }
    findings.file(second);
}

/// Families the adverts of a node go over, in order.
fn families(node: &NodeConfig) -> Vec<&'static str> {
    node.peer
        .addresses()
        .map(|(_, address)| families::name(address))
        .collect()
}
