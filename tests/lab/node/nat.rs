//! NAT by nftables for the peers, which only move addresses.

use std::{fmt::Write as _, path::Path};

use anyhow::Result;

use crate::{
    netns::Namespace,
    service::{Mode, PairSpec, Service},
};

/// Makes the kernel of `ns` balance as the services say: DNAT to a hash of client and port, or at random for `wrr`; for
/// Both-NAT and clients of the servers' own network the source becomes the first one of the service, else the node's own
/// address. What belongs to no connection of a service with such a source is dropped: the other node may know it.
pub(crate) fn install(ns: &Namespace, spec: &PairSpec, dir: &Path) -> Result<()> {
    ns.sysctl("net.ipv4.ip_forward", "1")?;
    ns.sysctl("net.ipv4.conf.all.send_redirects", "0")?;
    ns.sysctl("net.ipv4.conf.eth0.send_redirects", "0")?;
    let file = dir.join("nat.nft");
    std::fs::write(&file, ruleset(spec))?;
    ns.exec(&["nft", "-f", &file.display().to_string()]).map(drop)
}

/// Removes it.
pub(crate) fn remove(ns: &Namespace) -> Result<()> {
    if ns.run("nft list tables")?.contains("table ip lab") {
        ns.run("nft delete table ip lab")?;
    }
    Ok(())
}

fn ruleset(spec: &PairSpec) -> String {
    let mut pre = String::new();
    let mut post = String::new();
    let mut input = String::new();
    for service in &spec.services {
        for port in &service.ports {
            let Service { vip, protocol, .. } = service;
            let targets: Vec<String> = service
                .servers
                .iter()
                .flat_map(|s| {
                    std::iter::repeat_n(
                        format!("{} . {}", s.address, s.port.unwrap_or(*port)),
                        s.weight as usize,
                    )
                })
                .enumerate()
                .map(|(i, target)| format!("{i} : {target}"))
                .collect();
            let choice = if service.scheduler == "wrr" {
                "numgen random".to_owned()
            } else {
                format!("jhash ip saddr . {protocol} sport")
            };
            // Writing to a String cannot fail.
            writeln!(
                pre,
                "    ip daddr {vip} {protocol} dport {port} dnat ip to {choice} mod {} map {{ {} }}",
                targets.len(),
                targets.join(", ")
            )
            .ok();
            let source = if service.mode == Mode::BothNat {
                ""
            } else {
                " ip saddr 192.168.100.0/24"
            };
            let translation = match service.snat.first() {
                Some(address) => format!("snat ip to {address}"),
                None => "masquerade".to_owned(),
            };
            writeln!(
                post,
                "    meta l4proto {protocol} ct original ip daddr {vip} ct original proto-dst {port} ct status dnat{source} {translation}"
            ).ok();
            if !service.snat.is_empty() {
                writeln!(
                    input,
                    "    ip daddr {vip} {protocol} dport {port} drop\n    ip daddr {vip} {protocol} sport {port} drop"
                )
                .ok();
            }
        }
    }
    let guard = if input.is_empty() {
        String::new()
    } else {
        format!(
            "  chain in {{\n    type filter hook input priority filter;\n{input}  }}\n  chain through {{\n    \
             type filter hook forward priority filter;\n    ct state invalid drop\n  }}\n"
        )
    };
    format!(
        "table ip lab {{\n  chain pre {{\n    type nat hook prerouting priority dstnat;\n{pre}  }}\n  chain post {{\n    \
         type nat hook postrouting priority srcnat;\n{post}  }}\n{guard}}}"
    )
}
