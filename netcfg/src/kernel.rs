//! The way to the kernel: sockets for rtnetlink and ethtool.

use std::path::Path;

use crate::{
    error::Error,
    name::Family,
    netlink::{
        Requests,
        ethtool::Ethtool,
        link::{self, LinkMessage},
        neighbour::{self, NeighbourMessage},
        route::{self, RouteMessage},
        rule::{self, RuleMessage},
    },
};

/// Asks and changes the kernel of the network namespace in which it was opened.
///
/// Every call blocks until the kernel has answered: microseconds as a rule, seconds when a driver holds the lock all
/// interfaces share. Not for a thread that must answer in time.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) requests: Requests,
    ethtool: Option<Ethtool>,
}

impl Kernel {
    /// Opens the sockets.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn open() -> Result<Self, Error> {
        Ok(Self {
            requests: Requests::route()?,
            ethtool: None,
        })
    }

    /// Ethtool's socket, opened when first needed.
    pub(crate) fn ethtool(&mut self) -> Result<&mut Ethtool, Error> {
        match &mut self.ethtool {
            Some(ethtool) => Ok(ethtool),
            none => Ok(none.insert(Ethtool::open()?)),
        }
    }

    /// Whether the kernel speaks IPv6 (`ipv6.disable=1` takes it away; what is asked of it then is refused).
    pub(crate) fn has_ipv6() -> bool {
        Path::new("/proc/sys/net/ipv6").exists()
    }

    pub(crate) fn links(&mut self) -> Result<Vec<LinkMessage>, Error> {
        self.requests
            .list(&link::list(), link::read)
            .map_err(failed("links"))
    }

    pub(crate) fn neighbours(&mut self) -> Result<Vec<NeighbourMessage>, Error> {
        let mut all = Vec::new();
        for family in Family::BOTH {
            let neighbours = self
                .requests
                .list(&neighbour::list(family), neighbour::read)
                .map_err(failed("neighbours"))?;
            all.extend(
                neighbours
                    .into_iter()
                    .filter(|neighbour| Family::of(neighbour.address) == family),
            );
        }
        Ok(all)
    }

    pub(crate) fn rules(&mut self) -> Result<Vec<RuleMessage>, Error> {
        let mut all = Vec::new();
        for family in Family::BOTH {
            let rules = self
                .requests
                .list(&rule::list(family), rule::read)
                .map_err(failed("rules"))?;
            // Asked for a family it does not speak, the kernel tells of all it does.
            all.extend(rules.into_iter().filter(|rule| rule.rule.family == family));
        }
        Ok(all)
    }

    /// Routes of one table, both families.
    pub(crate) fn routes(&mut self, table: u32) -> Result<Vec<RouteMessage>, Error> {
        let mut all = Vec::new();
        for family in Family::BOTH {
            let routes = self
                .requests
                .list(&route::list(family, table), route::read)
                .map_err(failed("routes"))?;
            let ours = |route: &RouteMessage| route.table == table && Family::of(route.to.addr()) == family;
            all.extend(routes.into_iter().filter(ours));
        }
        Ok(all)
    }
}

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::List { what, source }
}
