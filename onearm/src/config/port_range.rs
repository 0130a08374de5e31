use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use onearm_types::NodeId;

/// Ports from `first` to `last`, both included; never empty, never port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// Why a text is no port range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortRangeError {
    /// Not `N` or `N-M`.
    #[error("not a port or a range of ports")]
    Form,
    /// A number is not 1 to 65535.
    #[error("a port is 1 to 65535")]
    Port,
    /// The first port is greater than the last.
    #[error("the first port is greater than the last")]
    Order,
}

impl PortRange {
    /// Ports `first` to `last`, native byte order, both included.
    ///
    /// # Errors
    /// [`PortRangeError::Port`] for port 0, [`PortRangeError::Order`] when `first > last`.
    pub const fn new(first: u16, last: u16) -> Result<Self, PortRangeError> {
        if first == 0 {
            Err(PortRangeError::Port)
        } else if first > last {
            Err(PortRangeError::Order)
        } else {
            Ok(Self { first, last })
        }
    }

    /// First port.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// Last port.
    pub const fn last(self) -> u16 {
        self.last
    }

    /// Number of ports, 1 to 65,535.
    pub const fn count(self) -> u32 {
        self.last as u32 - self.first as u32 + 1
    }

    /// Whether both have a port in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// The node's half of the range: node 1 has the lower half, and the odd port if there is one, node 2 the rest. `None`
    /// for node 2 of a single port.
    pub const fn half(self, node: NodeId) -> Option<Self> {
        let middle = self.first + (self.last - self.first) / 2;
        match node.get() {
            1 => Some(Self {
                first: self.first,
                last: middle,
            }),
            _ if middle < self.last => Some(Self {
                first: middle + 1,
                last: self.last,
            }),
            _ => None,
        }
    }

    /// Number of aligned power-of-two blocks that make up the range, 1 to 30.
    pub fn blocks(self) -> usize {
        let (mut next, end) = (u32::from(self.first), u32::from(self.last) + 1);
        let mut blocks = 0;
        while next < end {
            // Aligned at `next`, and not longer than what is left.
            let size = (1 << next.trailing_zeros()).min(1 << (end - next).ilog2());
            next += size;
            blocks += 1;
        }
        blocks
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl FromStr for PortRange {
    type Err = PortRangeError;

    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let port = |digits: &str| {
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                Err(PortRangeError::Form)
            } else {
                digits.parse().map_err(|_| PortRangeError::Port)
            }
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Self::new(port(first)?, port(last)?)
    }
}

impl TryFrom<String> for PortRange {
    type Error = PortRangeError;
    fn try_from(text: String) -> Result<Self, PortRangeError> {
        text.parse()
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> Self {
        range.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_is_read_as_people_write_it_and_nothing_else_is() {
        for (text, range) in [
            ("80", (80, 80)),
            ("1-65535", (1, 65_535)),
            ("8000-8100", (8000, 8100)),
        ] {
            assert_eq!(text.parse(), PortRange::new(range.0, range.1));
        }
        for (text, error) in [
            ("", PortRangeError::Form),
            ("-", PortRangeError::Form),
            ("80-", PortRangeError::Form),
            ("+80", PortRangeError::Form),
            ("80 - 90", PortRangeError::Form),
            ("1-2-3", PortRangeError::Form),
            ("0", PortRangeError::Port),
            ("0-5", PortRangeError::Port),
            ("65536", PortRangeError::Port),
            ("99999999999999999999", PortRangeError::Port),
            ("90-80", PortRangeError::Order),
        ] {
            assert_eq!(text.parse::<PortRange>(), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn prop_halves_are_equal_disjoint_and_all_of_it(first in 1..=u16::MAX, last in 1..=u16::MAX) {
            prop_assume!(first <= last);
            let range = PortRange::new(first, last).unwrap();
            let [one, two] = [1, 2].map(|id| range.half(NodeId::new(id).unwrap()));
            let one = one.unwrap();
            prop_assert_eq!(one.first, first);
            if let Some(two) = two {
                prop_assert!(one.last + 1 == two.first && two.last == last);
                prop_assert!(one.count() - two.count() <= 1);
            } else {
                prop_assert_eq!(first, last);
            }
            prop_assert_eq!(range.to_string().parse(), Ok(range));
            prop_assert!((1..=30).contains(&range.blocks()));
        }
    }
}
