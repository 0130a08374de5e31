//! What a namespace's kernel state looks like to the usual tools, to be compared before and after.

use anyhow::Result;

use crate::netns::Namespace;

/// Output of the tools, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelState {
    parts: Vec<(&'static str, String)>,
}

/// What is asked. Neighbours are not: they live on their own.
const QUESTIONS: [&str; 9] = [
    "ip -d link show eth0",
    "ip addr show",
    "ip rule show",
    "ip -6 rule show",
    "ip route show table all",
    "ip -6 route show table all",
    "ethtool -k eth0",
    "bpftool net",
    "nft list ruleset",
];

/// Sysctls below these are compared.
const SYSCTLS: &str = "^net\\.(ipv4|ipv6|core|bridge)\\.";

impl KernelState {
    /// Reads the state of `ns`.
    ///
    /// # Errors
    /// When a tool fails.
    pub fn read(ns: &Namespace) -> Result<Self> {
        let mut parts = Vec::new();
        for question in QUESTIONS {
            parts.push((question, ns.run(question)?));
        }
        let output = ns.output(&["sysctl", "-a", "--pattern", SYSCTLS])?;
        parts.push(("sysctl", String::from_utf8_lossy(&output.stdout).into_owned()));
        Ok(Self { parts })
    }

    /// Lines that one side has and the other has not, as `tool: - old` and `tool: + new`.
    pub fn differences(&self, later: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for ((tool, before), (_, after)) in self.parts.iter().zip(&later.parts) {
            let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
            found.extend(
                old.iter()
                    .filter(|l| !new.contains(l))
                    .map(|l| format!("{tool}: - {}", l.trim())),
            );
            found.extend(
                new.iter()
                    .filter(|l| !old.contains(l))
                    .map(|l| format!("{tool}: + {}", l.trim())),
            );
            if old != new && old.len() != new.len() && found.is_empty() {
                found.push(format!("{tool}: {} lines, then {}", old.len(), new.len()));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(rule: &str) -> KernelState {
        KernelState {
            parts: vec![("ip rule show", rule.to_owned())],
        }
    }

    #[test]
    fn equal_states_do_not_differ() {
        assert!(
            state("0: from all lookup local\n")
                .differences(&state("0: from all lookup local\n"))
                .is_empty()
        );
    }

    #[test]
    fn a_rule_that_stayed_is_named() {
        let found = state("a\n").differences(&state("a\nb\n"));
        assert_eq!(found, ["ip rule show: + b"]);
        assert_eq!(state("a\nb\n").differences(&state("a\n")), ["ip rule show: - b"]);
    }

    #[test]
    fn a_line_that_came_twice_is_noticed() {
        assert_eq!(
            state("a\n").differences(&state("a\na\n")),
            ["ip rule show: 1 lines, then 2"]
        );
    }
}
