use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{
    marks,
    state::{Desired, Leg, RouteKind, RuleAction},
};

/// What the kernel does with each change, as far as the state shows it.
fn simulate(mut state: State, changes: &[Change]) -> State {
    for change in changes {
        match change.clone() {
            Change::AddRoute(route) => assert!(state.routes.insert(route), "{route:?} is there"),
            Change::RemoveRoute(route) => assert!(state.routes.remove(&route), "{route:?} is not there"),
            Change::AddRule(rule) => assert!(state.rules.insert(rule.clone()), "{rule:?} is there"),
            Change::RemoveRule(rule) => assert!(state.rules.remove(&rule), "{rule:?} is not there"),
            Change::SetSysctl { leg, key, old, new } => {
                assert_eq!(
                    state.legs.get_mut(&leg).unwrap().sysctls.insert(key, new),
                    Some(old)
                );
            }
            Change::SetOffload {
                leg,
                feature,
                old,
                new,
            } => {
                assert_eq!(
                    state.legs.get_mut(&leg).unwrap().offloads.insert(feature, new),
                    Some(old)
                );
            }
            Change::RemoveNeighbour { leg, address } => {
                let removed = state.legs.get_mut(&leg).unwrap().neighbours.remove(&address);
                assert_eq!(removed, Some(Holding::Ours));
            }
            Change::ForgetNeighbour { leg, address } => {
                let removed = state.legs.get_mut(&leg).unwrap().neighbours.remove(&address);
                assert_eq!(removed, Some(Holding::Cached));
            }
            Change::AddNeighbour {
                leg,
                address,
                replace,
            } => {
                let before = state
                    .legs
                    .get_mut(&leg)
                    .unwrap()
                    .neighbours
                    .insert(address, Holding::Ours);
                assert_eq!(before.is_some(), replace);
                assert_ne!(before, Some(Holding::Foreign), "an operator's entry was replaced");
            }
        }
    }
    state
}

fn names() -> impl Strategy<Value = IfName> {
    prop::sample::select(vec!["eth0", "eth1", "eth0.10"]).prop_map(|name| IfName::new(name).unwrap())
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    prop::sample::select(vec![
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.3",
        "2001:db8::1",
        "2001:db8::2",
    ])
    .prop_map(|text| text.parse().unwrap())
}

fn networks() -> impl Strategy<Value = ipnet::IpNet> {
    prop::sample::select(vec!["10.0.0.0/24", "10.1.0.0/16", "2001:db8::/64"])
        .prop_map(|text| text.parse().unwrap())
}

fn sysctls() -> impl Strategy<Value = BTreeMap<LegSysctl, String>> {
    let key = prop::sample::select(vec![
        "ipv4.conf.send_redirects",
        "ipv4.neigh.base_reachable_time_ms",
    ])
    .prop_map(|text| text.parse().unwrap());
    prop::collection::btree_map(key, "[0-2]", 0..3)
}

fn offloads() -> impl Strategy<Value = BTreeMap<String, bool>> {
    prop::collection::btree_map("rx-(gro|lro)", any::<bool>(), 0..3)
}

fn desires() -> impl Strategy<Value = Desired> {
    let leg = (
        prop::collection::btree_set(networks(), 0..3),
        sysctls(),
        offloads(),
        prop::collection::btree_set(addresses(), 0..4),
    )
        .prop_map(|(guarded, sysctls, offloads, neighbours)| Leg {
            guarded,
            sysctls,
            offloads,
            neighbours,
        });
    (
        prop::collection::btree_map(names(), leg, 0..3),
        prop::collection::btree_set(addresses(), 0..4),
        any::<bool>(),
    )
        .prop_map(|(legs, owned, refuse_own)| Desired {
            legs,
            owned,
            refuse_own,
        })
}

/// A kernel as some earlier desire, other programs and time have left it.
fn kernels() -> impl Strategy<Value = State> {
    let holding = prop::sample::select(vec![
        Holding::Ours,
        Holding::Cached,
        Holding::Unresolved,
        Holding::Foreign,
    ]);
    let leg = (
        sysctls(),
        offloads(),
        prop::collection::btree_map(addresses(), holding, 0..5),
    )
        .prop_map(|(sysctls, offloads, neighbours)| LegState {
            sysctls,
            offloads,
            neighbours,
        });
    let stray = Rule {
        family: crate::name::Family::Ipv4,
        priority: marks::PRIORITY_OWNED,
        from: None,
        iif: None,
        action: RuleAction::Other(8),
    };
    (
        desires(),
        prop::collection::btree_map(names(), leg, 0..4),
        any::<bool>(),
    )
        .prop_map(move |(earlier, legs, strays)| {
            let mut state = earlier.state();
            if strays {
                state.rules.insert(stray.clone());
                let to = "192.0.2.0/24".parse().unwrap();
                state.routes.insert(Route {
                    table: marks::TABLE_OWNED,
                    to,
                    kind: RouteKind::Other(1),
                });
            }
            state.legs = legs;
            state
        })
}

proptest! {
    #[test]
    fn a_state_differs_from_itself_in_nothing(desired in desires(), kernel in kernels()) {
        prop_assert_eq!(diff(&desired.state(), &desired.state()), vec![]);
        prop_assert_eq!(diff(&kernel, &kernel), vec![]);
    }

    #[test]
    fn the_changes_lead_to_the_desired_state_and_nothing_is_left_to_do(desired in desires(), kernel in kernels()) {
        let desired = desired.state();
        let reached = simulate(kernel.clone(), &diff(&desired, &kernel));
        prop_assert_eq!(&reached.rules, &desired.rules);
        prop_assert_eq!(&reached.routes, &desired.routes);
        for (leg, found) in &kernel.legs {
            let (reached, wanted) = (&reached.legs[leg], desired.legs.get(leg).cloned().unwrap_or_default());
            for (key, value) in &found.sysctls {
                prop_assert_eq!(&reached.sysctls[key], wanted.sysctls.get(key).unwrap_or(value));
            }
            for (feature, value) in &found.offloads {
                prop_assert_eq!(&reached.offloads[feature], wanted.offloads.get(feature).unwrap_or(value));
            }
            for (address, holding) in &wanted.neighbours {
                let foreign = found.neighbours.get(address) == Some(&Holding::Foreign);
                let now = reached.neighbours.get(address);
                match holding {
                    Holding::Ours if foreign => prop_assert_eq!(now, Some(&Holding::Foreign)),
                    Holding::Ours => prop_assert_eq!(now, Some(&Holding::Ours)),
                    _ => prop_assert_ne!(now, Some(&Holding::Cached)),
                }
            }
        }
        prop_assert_eq!(diff(&desired, &reached), vec![]);
    }

    #[test]
    fn nothing_of_others_is_ever_removed(desired in desires(), kernel in kernels()) {
        let reached = simulate(kernel.clone(), &diff(&desired.state(), &kernel));
        for (leg, found) in &kernel.legs {
            let foreign = |state: &LegState| -> BTreeSet<_> {
                state.neighbours.iter().filter(|(_, h)| **h == Holding::Foreign).map(|(a, _)| *a).collect()
            };
            prop_assert_eq!(foreign(found), foreign(&reached.legs[leg]));
        }
    }

    /// A packet must never meet a moment without its guard: at each step every rule and route that is in the old and
    /// the new state is there, and a table is asked only once it is filled.
    #[test]
    fn guards_wanted_before_and_after_stand_all_the_time(desired in desires(), kernel in kernels()) {
        let desired = desired.state();
        let changes = diff(&desired, &kernel);
        for step in 0..=changes.len() {
            let between = simulate(kernel.clone(), &changes[..step]);
            prop_assert!(desired.rules.intersection(&kernel.rules).all(|rule| between.rules.contains(rule)));
            prop_assert!(desired.routes.intersection(&kernel.routes).all(|route| between.routes.contains(route)));
            let added = between.rules.difference(&kernel.rules).count();
            prop_assert!(added == 0 || desired.routes.is_subset(&between.routes));
        }
    }

    /// A kernel without IPv6 is asked for nothing it cannot give.
    #[test]
    fn without_ipv6_nothing_of_it_is_asked_for(desired in desires(), kernel in kernels()) {
        for change in diff(&desired.state().without_ipv6(), &kernel.without_ipv6()) {
            let ipv4 = match change {
                Change::AddRoute(route) | Change::RemoveRoute(route) => route.to.addr().is_ipv4(),
                Change::AddRule(rule) | Change::RemoveRule(rule) => rule.family == crate::name::Family::Ipv4,
                Change::AddNeighbour { address, .. }
                | Change::ForgetNeighbour { address, .. }
                | Change::RemoveNeighbour { address, .. } => address.is_ipv4(),
                Change::SetSysctl { .. } | Change::SetOffload { .. } => true,
            };
            prop_assert!(ipv4);
        }
    }
}
