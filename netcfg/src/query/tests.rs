use super::*;
use crate::state::Rule;

fn rules(family: Family, rules: &[(u32, RuleAction)]) -> Vec<RuleMessage> {
    let message = |&(priority, action): &(u32, RuleAction)| RuleMessage {
        protocol: 2,
        rule: Rule {
            family,
            priority,
            from: None,
            iif: None,
            action,
        },
    };
    rules.iter().map(message).collect()
}

#[test]
fn rules_of_others_before_the_guards_and_a_late_local_table_are_faults() {
    let (local, main) = (RuleAction::Lookup(255), RuleAction::Lookup(254));
    let family = Family::Ipv4;
    let before = |priority| Fault::RuleBeforeGuards { family, priority };
    let behind = Fault::LocalBehindGuards { family };
    for (found, faults) in [
        (&[(0, local), (32766, main)][..], vec![]),
        // Another product moved the local table; l3mdev rule of VRFs.
        (&[(100, local), (32766, main)], vec![]),
        (
            &[(0, local), (1000, RuleAction::Other(1)), (32766, main)],
            vec![before(1000)],
        ),
        (
            &[(0, local), (50, RuleAction::Lookup(100)), (1110, main)],
            vec![before(50), before(1110)],
        ),
        (&[(2000, local), (32766, main)], vec![behind.clone()]),
        (&[(32766, main)], vec![behind]),
        (&[], vec![]),
    ] {
        assert_eq!(
            rule_faults(&rules(family, found)),
            faults.into_iter().collect(),
            "{found:?}"
        );
    }
}
