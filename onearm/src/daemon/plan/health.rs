//! What the checks changed between two states of the tables. Pure.

use std::collections::HashMap;

use onearm_dataplane::{ServerChange, Tables};

/// Servers of both tables whose health differs, with their health in `after`, in its order.
pub(crate) fn turned(before: &Tables, after: &Tables) -> Vec<ServerChange> {
    let known: HashMap<_, bool> = before
        .services
        .iter()
        .flat_map(|service| service.servers.iter().map(|s| ((&*service.name, s.id), s.up)))
        .collect();
    let servers = after
        .services
        .iter()
        .flat_map(|service| service.servers.iter().map(move |s| (service, s)));
    servers
        .filter(|(service, s)| known.get(&(&*service.name, s.id)).is_some_and(|up| *up != s.up))
        .map(|(service, s)| ServerChange {
            service: service.name.clone(),
            server: s.id,
            weight: None,
            up: Some(s.up),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tables;
    use super::turned;
    use crate::config::{PairConfig, Source, parse_pair};
    use onearm_dataplane::Tables;
    use onearm_types::NodeId;

    const PAIR: &str = include_str!("../../../../etc/examples/pair.toml");

    fn pair() -> PairConfig {
        parse_pair(Source::new("pair.toml", PAIR)).parsed.config
    }

    /// Servers up by service and server.
    fn with(up: [[bool; 2]; 2]) -> Tables {
        let node = NodeId::new(1).unwrap();
        tables(
            node,
            &pair(),
            |_| 0,
            Vec::new(),
            |service, server| up[service][server],
        )
    }

    fn told(before: [[bool; 2]; 2], after: [[bool; 2]; 2]) -> Vec<(String, u8, Option<bool>)> {
        let last = |addr: std::net::IpAddr| match addr {
            std::net::IpAddr::V4(addr) => addr.octets()[3],
            std::net::IpAddr::V6(addr) => addr.octets()[15],
        };
        turned(&with(before), &with(after))
            .into_iter()
            .map(|c| (c.service, last(c.server.addr), c.up))
            .collect()
    }

    #[test]
    fn each_server_that_turned_is_told_once_for_its_service_and_no_other() {
        let all = [[true; 2]; 2];
        assert_eq!(
            told(all, [[true, true], [true, false]]),
            [("dns".to_owned(), 11, Some(false))]
        );
        assert_eq!(
            told([[false; 2]; 2], [[false, true], [false, false]]),
            [("web".to_owned(), 11, Some(true))]
        );
        assert_eq!(told(all, all), []);
    }

    #[test]
    fn a_server_that_is_new_has_not_turned() {
        let mut before = with([[true; 2]; 2]);
        before.services[0].servers.truncate(1);
        let after = with([[true, false], [true, true]]);
        assert_eq!(turned(&before, &after), []);
        assert_eq!(turned(&Tables::default(), &after), []);
    }
}
