//! What onearm wants of the kernel, and what is there: plain data in the kernel's own terms.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    marks,
    name::{Family, IfName, LegSysctl},
};

/// What the daemon asks for. The whole of it each time; what is no longer named is taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Desired {
    /// The legs by interface name. No other interface is touched.
    pub legs: BTreeMap<IfName, Leg>,
    /// Addresses the pair owns: the kernel must not forward what arrives for them on any leg.
    pub owned: BTreeSet<IpAddr>,
    /// Refuse the node's own new connections to owned addresses at once: true on the Active, which cannot reach
    /// itself over the leg, false on the Standby, which goes over the leg to the Active.
    pub refuse_own: bool,
}

/// What is wanted of one leg.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Leg {
    /// Networks of balanced servers on this leg: the kernel must not forward what they send.
    pub guarded: BTreeSet<IpNet>,
    /// Settings of the interface. A setting this kernel does not have is a fault, not an error.
    pub sysctls: BTreeMap<LegSysctl, String>,
    /// Offload features by the kernel's names (`rx-gro`), on or off. One the device cannot change is a fault.
    pub offloads: BTreeMap<String, bool>,
    /// Hosts to be kept resolved on this leg: servers, routers. Gateways of routes by this leg need not be named.
    pub neighbours: BTreeSet<IpAddr>,
}

/// One policy rule of ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rule {
    /// Family whose packets it looks at.
    pub family: Family,
    /// Place among the rules; lower is asked first.
    pub priority: u32,
    /// Source network it is limited to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpNet>,
    /// Interface of arrival; `lo` stands for what the node itself sends. Absent only in a rule that is not as ours are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iif: Option<IfName>,
    /// What happens.
    pub action: RuleAction,
}

/// What a rule does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleAction {
    /// Ask a table; without an answer there, the next rule.
    Lookup(u32),
    /// Drop without a word.
    Blackhole,
    /// Anything else, by the kernel's number (`FR_ACT_*`); never desired.
    Other(u8),
}

/// One route in a table of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Route {
    /// Table number.
    pub table: u32,
    /// Destination.
    pub to: IpNet,
    /// What happens.
    pub kind: RouteKind,
}

/// Kind of a route in a table of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteKind {
    /// Drop without a word.
    Blackhole,
    /// Tell the sender at once.
    Unreachable,
    /// Anything else, by the kernel's number (`RTN_*`); never desired.
    Other(u8),
}

/// How the kernel holds a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holding {
    /// Managed by the kernel for us, and marked so.
    Ours,
    /// An entry the kernel made by itself, with a usable hardware address.
    Cached,
    /// An entry the kernel made by itself, not resolved.
    Unresolved,
    /// Somebody else's on purpose: permanent, not to be resolved, learned or managed by another program.
    Foreign,
    /// Desired only: an entry the kernel made by itself must go.
    Forgotten,
}

/// Kernel state within onearm's reach: desired, or as found.
///
/// As found, it holds marked rules and routes only, the legs that exist, the settings and offload features that were
/// asked about *and* can be changed, and the neighbours that were asked about or carry our mark.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Policy rules.
    pub rules: BTreeSet<Rule>,
    /// Routes in our tables.
    pub routes: BTreeSet<Route>,
    /// Legs by interface name.
    pub legs: BTreeMap<IfName, LegState>,
}

/// State of one leg.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LegState {
    /// Settings and their values.
    pub sysctls: BTreeMap<LegSysctl, String>,
    /// Offload features, as wanted by the user of the device (`ethtool -K`).
    pub offloads: BTreeMap<String, bool>,
    /// Neighbours.
    pub neighbours: BTreeMap<IpAddr, Holding>,
}

impl Desired {
    /// The kernel state that fulfils the desire, every named neighbour included.
    pub fn state(&self) -> State {
        let mut state = State::default();
        for (name, leg) in &self.legs {
            state.rules.extend(guard_rules(name, leg));
            let mut neighbours: BTreeMap<_, _> = leg.neighbours.iter().map(|a| (*a, Holding::Ours)).collect();
            if self.refuse_own {
                // After a take-over the kernel may still know the former Active as the owner.
                neighbours.extend(self.owned.iter().map(|a| (*a, Holding::Forgotten)));
            }
            let leg = LegState {
                sysctls: leg.sysctls.clone(),
                offloads: leg.offloads.clone(),
                neighbours,
            };
            state.legs.insert(name.clone(), leg);
        }
        for address in &self.owned {
            let to = IpNet::from(*address);
            state.routes.insert(Route {
                table: marks::TABLE_OWNED,
                to,
                kind: RouteKind::Blackhole,
            });
            state.routes.insert(Route {
                table: marks::TABLE_REFUSED,
                to,
                kind: RouteKind::Unreachable,
            });
        }
        if self.refuse_own {
            state.rules.extend(Family::BOTH.map(refuse_rule));
        }
        state
    }
}

impl State {
    /// What of it can be had from a kernel that does not speak IPv6.
    #[must_use]
    pub fn without_ipv6(mut self) -> Self {
        self.rules.retain(|rule| rule.family == Family::Ipv4);
        self.routes.retain(|route| route.to.addr().is_ipv4());
        for leg in self.legs.values_mut() {
            leg.neighbours.retain(|address, _| address.is_ipv4());
        }
        self
    }
}

/// The rules that keep the kernel from forwarding what arrives on a leg and belongs to the pair.
///
/// Never `iif LEG` alone (it would cut off containers behind the node) nor `from` without `iif` (it would silence the
/// node itself).
pub(crate) fn guard_rules(name: &IfName, leg: &Leg) -> Vec<Rule> {
    let owned = Family::BOTH.map(|family| Rule {
        family,
        priority: marks::PRIORITY_OWNED,
        from: None,
        iif: Some(name.clone()),
        action: RuleAction::Lookup(marks::TABLE_OWNED),
    });
    let sources = leg.guarded.iter().map(|network| Rule {
        family: Family::of(network.addr()),
        priority: marks::PRIORITY_SOURCES,
        from: Some(network.trunc()),
        iif: Some(name.clone()),
        action: RuleAction::Blackhole,
    });
    owned.into_iter().chain(sources).collect()
}

/// The rule that makes the Active refuse its own new connections to owned addresses.
///
/// The kernel's reverse-path filter also asks with `iif lo`, with the packet's destination as source; an
/// `unreachable` it met there would drop every packet an owned address sends to the node. A new connection's first
/// lookup has no source yet, and only that one matches `from 0.0.0.0/32`. A socket bound to an address escapes and
/// learns by failed address resolution. IPv6 has no reverse-path filter of the kernel's own, and no match on an unset
/// source.
fn refuse_rule(family: Family) -> Rule {
    Rule {
        family,
        priority: marks::PRIORITY_REFUSED,
        from: match family {
            Family::Ipv4 => Some(IpNet::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED))),
            Family::Ipv6 => None,
        },
        iif: Some(IfName::loopback()),
        action: RuleAction::Lookup(marks::TABLE_REFUSED),
    }
}
