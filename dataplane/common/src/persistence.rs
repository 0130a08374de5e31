//! Clients that stay with their server: source hash with persistence.
//!
//! The hash alone leads a client to the same server on both nodes, until servers come and go. User space notes in map
//! `CLIENT_SERVERS` which server a client has, as it sweeps the flow table: only flows whose server has answered count, so that
//! packets with invented sources note nobody, and packets of known flows cost nothing. Programs only read: a new flow of a
//! client that is noted goes to its server while that is up, weight 0 or not.

use crate::{
    hash,
    maps::{Addr, Node, Server, server},
    tables::{Tables, ticks_since},
};

/// Clients in one bucket.
pub const WAYS: usize = 8;

/// What a service asks for, as one word: ticks that a client stays after its last flow (low 32 bits, 0 = no client stays), and
/// how many of the last bits of an address its clients have in common with others of one network (next 8 bits).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule(pub u64);

impl Rule {
    /// `host_bits`: 0 to 128, of 32 in IPv4.
    #[inline(always)]
    pub const fn new(ticks: u32, host_bits: u8) -> Self {
        Self(ticks as u64 | (host_bits as u64) << 32)
    }

    /// Time that a client stays, in ticks; 0 = none does.
    #[inline(always)]
    pub const fn ticks(self) -> u32 {
        self.0 as u32
    }

    /// The address without its host bits: all clients with the same one have the same server.
    #[inline(always)]
    pub const fn network(self, client: Addr) -> Addr {
        let host_bits = (self.0 >> 32) as u8;
        let [a, b, c, d] = client.0;
        Addr([
            a & mask(host_bits, 96),
            b & mask(host_bits, 64),
            c & mask(host_bits, 32),
            d & mask(host_bits, 0),
        ])
    }
}

/// Mask for the word of an address that has `after` bits behind it.
#[inline(always)]
const fn mask(host_bits: u8, after: u8) -> u32 {
    let bits = host_bits.saturating_sub(after);
    let mask = if bits >= 32 { 0 } else { u32::MAX << (bits & 31) };
    mask.to_be()
}

/// Value of map `CLIENT_SERVERS`. A lookup that finds nobody touches one cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Who: [`fingerprint`]; 0 = free. Zero while the way's value is written.
    pub clients: [u64; WAYS],
    /// [`Noted`] as one word.
    pub values: [u64; WAYS],
}

/// The server of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Index into `SERVERS`.
    pub server: u16,
    /// Tick when the client was last known to have a flow there.
    pub seen: u32,
}

impl Noted {
    /// As it stands in a bucket.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.server as u64 | (self.seen as u64) << 32
    }

    /// From a bucket.
    #[inline(always)]
    pub const fn of(word: u64) -> Self {
        Self {
            server: word as u16,
            seen: (word >> 32) as u32,
        }
    }

    /// Whether its time is not over.
    #[inline(always)]
    pub const fn stays(self, rule: Rule, now: u32) -> bool {
        ticks_since(now, self.seen) <= rule.ticks()
    }
}

/// A client of a service, never 0. `network` is [`Rule::network`]. The bucket is [`bucket`].
#[inline(always)]
pub const fn fingerprint(key: [u64; 2], stats: u32, network: Addr) -> u64 {
    hash::sip13_wide(key, network, Addr::NONE, stats as u64 | 0x7374_6179 << 32) | 1
}

/// Index of the bucket of a client.
#[inline(always)]
pub const fn bucket(fingerprint: u64, mask: u32) -> u32 {
    (fingerprint >> 32) as u32 & mask
}

/// The server that a client stays with, if it is up.
#[inline(always)]
pub fn server<'t, T: Tables>(
    tables: &'t T,
    node: &Node,
    rule: Rule,
    stats: u32,
    network: Addr,
    now: u32,
) -> Option<(u16, &'t Server)> {
    if rule.ticks() == 0 {
        return None;
    }
    let client = fingerprint(node.flow_hash_key, stats, network);
    let noted = find(
        tables.client_servers(bucket(client, node.client_bucket_mask))?,
        client,
    )?;
    if !noted.stays(rule, now) {
        return None;
    }
    let found = tables.server(u32::from(noted.server))?;
    let up = server::USED | server::UP;
    (found.flags & up == up).then_some((noted.server, found))
}

#[expect(unsafe_code, reason = "a map value that user space writes meanwhile")]
#[inline(always)]
fn find(bucket: *const Bucket, client: u64) -> Option<Noted> {
    for way in 0..WAYS {
        // SAFETY: whole words of a map value. The client is read again: it is 0 while its value changes.
        unsafe {
            let who = (&raw const (*bucket).clients[way]).cast::<u64>();
            if who.read_volatile() == client {
                let word = (&raw const (*bucket).values[way]).read_volatile();
                return (who.read_volatile() == client).then_some(Noted::of(word));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_rule_keeps_the_network_alone() {
        let four = |a: [u8; 4]| Addr::v4(u32::from_ne_bytes(a));
        let network = |bits| Rule::new(9, bits).network(four([10, 1, 2, 255]));
        assert_eq!(network(0), four([10, 1, 2, 255]));
        assert_eq!(network(8), four([10, 1, 2, 0]));
        assert_eq!(network(9), four([10, 1, 2, 0]));
        assert_eq!(network(24), four([10, 0, 0, 0]));
        assert_eq!(network(31), four([0, 0, 0, 0]));
        assert_eq!(Rule::new(9, 31).ticks(), 9);
        assert_eq!(Rule::default().network(four([1, 2, 3, 4])), four([1, 2, 3, 4]));
    }

    proptest! {
        #[test]
        fn the_network_is_the_address_with_its_last_bits_cleared(address: u128, host_bits in 0..=128u8) {
            let want = address.checked_shr(u32::from(host_bits)).and_then(|n| n.checked_shl(u32::from(host_bits)));
            let got = Rule::new(1, host_bits).network(Addr::from_bytes(address.to_be_bytes()));
            prop_assert_eq!(u128::from_be_bytes(got.bytes()), want.unwrap_or(0));
        }

        #[test]
        fn a_word_holds_a_note_whole(server: u16, seen: u32) {
            let noted = Noted { server, seen };
            prop_assert_eq!(Noted::of(noted.word()), noted);
        }
    }
}
