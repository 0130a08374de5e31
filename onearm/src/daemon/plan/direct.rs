//! Servers that answer clients themselves, as far as the kernel's state concerns them. Pure.

use onearm_netcfg::{LegPicture, Picture};

use crate::config::{Leg, Mode, PairConfig};

use super::mirror;

/// A warning for each `dsr` server that is on no leg's network now: its new clients are dropped.
pub(crate) fn off_link(configured: &[Leg], pair: &PairConfig, picture: &Picture) -> Vec<String> {
    let legs = configured.iter().filter(|leg| leg.role.carries_traffic());
    let networks: Vec<_> = legs
        .filter_map(|leg| mirror::leg_picture(leg, picture))
        .flat_map(LegPicture::connected)
        .collect();
    let services = pair.services.iter().filter(|s| s.has_mode(Mode::Dsr));
    services
        .flat_map(|service| service.servers.iter().map(move |server| (service, server)))
        .filter(|(_, server)| !networks.iter().any(|net| net.contains(&server.address)))
        .map(|(service, server)| {
            format!(
                "server {} ({}) of service {} is on no leg's network: mode \"dsr\" does not reach it; use \"l3-dsr\"",
                server.name, server.address, service.name
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::off_link;
    use crate::config::{Source, parse_node, parse_pair};
    use onearm_netcfg::{IfName, LegPicture, Picture};

    const NODE: &str = include_str!("../../../../etc/examples/node-lb1.toml");
    const PAIR: &str = include_str!("../../../../etc/examples/pair.toml");

    #[test]
    fn a_dsr_server_behind_a_router_is_warned_of() {
        let legs = parse_node(Source::new("node.toml", NODE)).config.legs;
        let pair = |text: &str| parse_pair(Source::new("pair.toml", text)).parsed.config;
        let leg = LegPicture {
            addresses: ["192.168.100.2/24".parse().unwrap()].into(),
            ..LegPicture::default()
        };
        let mut picture = Picture::default();
        picture.legs.insert(IfName::new(&legs[0].interface).unwrap(), leg);
        let far = PAIR.replacen("192.168.100.11", "10.20.0.11", 1);
        assert!(
            off_link(&legs, &pair(&far), &picture).is_empty(),
            "routed in dnat"
        );
        let far = far.replacen("mode = \"dnat\"", "mode = \"dsr\"", 1);
        let warnings = off_link(&legs, &pair(&far), &picture);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("server s2 (10.20.0.11) of service web"));
    }
}
