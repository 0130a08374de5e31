//! The owned set as the nodes tell it: which addresses the owner answers for, where each lives, and by which configuration.
//!
//! Told in parts, one record each, when a session begins and whenever it changes; a set counts once all of its parts are there.
//! A node that owns nothing says so by a part that belongs to none. All of it is what the peer says of *itself*: what this node
//! makes of it is decided elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::wire::{MOST_LEGS, is_printable};

/// Most addresses of a set: those of a pair.
pub(crate) const MOST: usize = 8_192;
/// Most addresses of a part: with the longest texts it fits into a record.
const MOST_IN_PART: usize = 1_024;
/// Highest VLAN id.
const MOST_VLAN: u16 = 4_094;

/// The addresses one node owns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnedSet {
    /// Digest of the configuration they come from, hexadecimal.
    pub(crate) digest: String,
    /// Each once.
    pub(crate) addresses: BTreeMap<IpAddr, Place>,
}

/// Where an address lives, in names that both nodes know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Name of the leg.
    pub(crate) leg: String,
    /// VLAN id of that leg, where its interface has one.
    pub(crate) vlan: Option<u16>,
    /// Ownership group.
    pub(crate) group: u8,
    /// Hosts route through the address.
    pub(crate) router: bool,
}

impl OwnedSet {
    /// Whether it is one that a node could have told.
    pub(crate) fn is_fit(&self) -> bool {
        is_printable(&self.digest)
            && self.addresses.len() <= MOST
            && self.addresses.values().all(Place::is_fit)
    }

    /// What a file still says of it, months later perhaps: which of this node's own addresses were owned. Connections to others died
    /// with the process that had them, and only the peer can tell that it owns those still.
    pub(crate) fn among(mut self, own: &BTreeSet<IpAddr>) -> Self {
        self.addresses.retain(|address, _| own.contains(address));
        self
    }
}

impl Place {
    fn is_fit(&self) -> bool {
        is_printable(&self.leg) && self.vlan.is_none_or(is_vlan)
    }
}

fn is_vlan(id: u16) -> bool {
    (1..=MOST_VLAN).contains(&id)
}

/// Body of a record: so many addresses of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Which part, from 0.
    number: u16,
    /// Parts in all; 0: the node owns nothing.
    of: u16,
    /// As in [`OwnedSet`].
    digest: String,
    /// Legs and their VLANs.
    legs: Vec<(String, Option<u16>)>,
    /// Index of the leg, group, whether it is a router's, address.
    addresses: Vec<(u8, u8, bool, IpAddr)>,
}

impl Part {
    /// Reads one; `None` where it is none by its contents.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(bytes).ok()?;
        let fits = if read.of == 0 {
            read.number == 0 && read.addresses.is_empty()
        } else {
            read.number < read.of
                && usize::from(read.of) <= MOST / MOST_IN_PART
                && is_printable(&read.digest)
                && read.legs.len() <= MOST_LEGS
                && read.addresses.len() <= MOST_IN_PART
                && read
                    .legs
                    .iter()
                    .all(|(name, vlan)| is_printable(name) && vlan.is_none_or(is_vlan))
                && read
                    .addresses
                    .iter()
                    .all(|(leg, ..)| usize::from(*leg) < read.legs.len())
        };
        fits.then_some(read)
    }
}

/// A set in parts, or that there is none. What is beyond [`MOST`] addresses or [`MOST_LEGS`] legs is left out.
pub(crate) fn parts(set: Option<&OwnedSet>) -> Vec<Part> {
    let Some(set) = set else {
        return vec![Part {
            number: 0,
            of: 0,
            digest: String::new(),
            legs: Vec::new(),
            addresses: Vec::new(),
        }];
    };
    let legs: BTreeSet<_> = set.addresses.values().map(|at| (&at.leg, at.vlan)).collect();
    let legs: Vec<_> = legs.into_iter().take(MOST_LEGS).collect();
    let number_of = |at: &Place| legs.binary_search(&(&at.leg, at.vlan)).ok();
    let numbered = set
        .addresses
        .iter()
        .filter_map(|(address, at)| {
            let leg = u8::try_from(number_of(at)?).ok()?;
            Some((leg, at.group, at.router, *address))
        })
        .take(MOST);
    let numbered: Vec<_> = numbered.collect();
    // A set without addresses has a part, too.
    let count = numbered.len().div_ceil(MOST_IN_PART).max(1);
    let of = u16::try_from(count).unwrap_or(u16::MAX);
    (0..of)
        .map(|number| Part {
            number,
            of,
            digest: set.digest.clone(),
            legs: legs.iter().map(|(name, vlan)| ((*name).clone(), *vlan)).collect(),
            addresses: numbered
                .iter()
                .skip(usize::from(number) * MOST_IN_PART)
                .take(MOST_IN_PART)
                .copied()
                .collect(),
        })
        .collect()
}

/// What the parts of a set come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The peer owns nothing.
    OwnsNothing,
    /// The peer owns these.
    Owns(OwnedSet),
}

/// Puts the parts of one session together. Pure.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    next: u16,
    set: OwnedSet,
}

impl Gathered {
    /// Takes a part, and gives the word that is whole with it. A part that does not follow the one before it is
    /// passed over, with what it was to be a part of.
    pub(crate) fn take(&mut self, part: Part) -> Option<Word> {
        if part.of == 0 {
            *self = Self::default();
            return Some(Word::OwnsNothing);
        }
        if part.number == 0 {
            *self = Self::default();
            self.set.digest.clone_from(&part.digest);
        } else if part.number != self.next || part.digest != self.set.digest {
            *self = Self::default();
            return None;
        }
        for (leg, group, router, address) in part.addresses {
            let Some((name, vlan)) = part.legs.get(usize::from(leg)) else {
                continue;
            };
            let at = Place {
                leg: name.clone(),
                vlan: *vlan,
                group,
                router,
            };
            self.set.addresses.insert(address, at);
        }
        self.next = part.number + 1;
        (self.next == part.of).then(|| Word::Owns(std::mem::take(self).set))
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Message, Unfit};
    use super::*;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    fn place(leg: &str) -> Place {
        Place {
            leg: leg.to_owned(),
            vlan: None,
            group: 0,
            router: false,
        }
    }

    fn set(addresses: usize) -> OwnedSet {
        let of = |n: usize| {
            let address: IpAddr = if n.is_multiple_of(2) {
                std::net::Ipv4Addr::from(0x0a00_0000 + u32::try_from(n).unwrap()).into()
            } else {
                std::net::Ipv6Addr::from(0xfd00_1234_5678_9abc_def0_1234_0000_0000 + n as u128).into()
            };
            let vlan = n.is_multiple_of(3).then_some(4_094);
            let at = Place {
                vlan,
                router: n.is_multiple_of(5),
                ..place(&format!("{:-<64}", n % 7))
            };
            (address, at)
        };
        OwnedSet {
            digest: "ab".repeat(32),
            addresses: (0..addresses).map(of).collect(),
        }
    }

    /// As the peer hears it.
    fn told(parts: Vec<Part>) -> Vec<Word> {
        let mut gathered = Gathered::default();
        let mut heard = Vec::new();
        for part in parts {
            let mut record = Vec::new();
            assert!(
                Message::Owned(part).emit(&mut record),
                "a part fits into a record"
            );
            match Message::parse(&record).unwrap().0.unwrap() {
                Message::Owned(part) => heard.extend(gathered.take(part)),
                other => panic!("{other:?}"),
            }
        }
        heard
    }

    #[test]
    fn a_set_of_any_size_arrives_whole_and_so_does_none() {
        for n in [0, 1, 1_024, 1_025, 4_000, MOST] {
            let told_set = set(n);
            assert_eq!(told(parts(Some(&told_set))), [Word::Owns(told_set)], "{n}");
        }
        assert_eq!(told(parts(None)), [Word::OwnsNothing]);
        let [Word::Owns(beyond)] = &told(parts(Some(&set(MOST + 5))))[..] else {
            panic!("it is cut, not lost")
        };
        assert_eq!(beyond.addresses.len(), MOST);
    }

    #[test]
    fn a_set_with_a_part_missing_counts_for_nothing_and_the_next_one_does() {
        let mut cut = parts(Some(&set(3_000)));
        cut.remove(1);
        let again = set(2_000);
        let mut said = cut;
        said.extend(parts(Some(&again)));
        assert_eq!(told(said), [Word::Owns(again)]);
    }

    #[test]
    fn a_part_that_contradicts_itself_is_none() {
        let good = parts(Some(&set(3))).remove(0);
        let spoiled: [fn(&mut Part); 7] = [
            |part| part.number = 1,
            |part| part.of = 9,
            |part| part.digest = "\u{1b}[2J".to_owned(),
            |part| part.legs.clear(),
            |part| part.legs[0].0.clear(),
            |part| part.legs[0].1 = Some(4_095),
            |part| part.of = 0,
        ];
        for (n, spoil) in spoiled.into_iter().enumerate() {
            let mut part = good.clone();
            spoil(&mut part);
            let mut record = Vec::new();
            assert!(Message::Owned(part).emit(&mut record));
            assert_eq!(Message::parse(&record).unwrap().0, Err(Unfit::Malformed), "{n}");
        }
    }

    static SETS: LazyLock<[OwnedSet; 3]> = LazyLock::new(|| {
        let digest = "cd".repeat(32);
        [set(1_500), set(3_000), OwnedSet { digest, ..set(3_000) }]
    });
    static PARTS: LazyLock<[Vec<Part>; 3]> =
        LazyLock::new(|| [0, 1, 2].map(|which| parts(Some(&SETS[which]))));

    proptest! {
        /// Whatever order parts of several sets come in: what counts as whole is one of them, or none.
        #[test]
        fn nothing_is_put_together_that_was_not_told(order in proptest::collection::vec((0_usize..3, 0_usize..4), 0..24)) {
            let mut gathered = Gathered::default();
            for (which, number) in order {
                let heard = PARTS[which].get(number).and_then(|part| gathered.take(part.clone()));
                if let Some(Word::Owns(heard)) = heard {
                    prop_assert!(heard.addresses.iter().all(|(address, at)| SETS[1].addresses.get(address) == Some(at)));
                    prop_assert!(SETS.iter().any(|set| set.digest == heard.digest));
                }
            }
        }
    }
}
