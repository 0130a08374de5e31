//! Weighted Maglev hashing (Eisenbud et al., NSDI 2016, §3.4), with repair for servers that are down.
//!
//! The table is populated from all *configured* servers and depends on health only in a second step: the entries of
//! servers that are down are dealt out to the others, by the others' own permutations. So a server that goes down moves
//! exactly its own entries, and when it comes back exactly those return. Plain Maglev would move some entries of
//! healthy servers too.
//!
//! Sizes are primes about a factor of two apart, chosen by the number of configured servers: within a step the size
//! stays, so adding or removing a server moves little more than its share; crossing a step moves most entries (new flows
//! only: established ones are in the flow table).

use std::net::IpAddr;

use onearm_dataplane_common::addr::Addr;
use onearm_dataplane_common::hash::{sip13, sip13_wide};

use super::{Candidate, entry};

/// Second word of the hashes, apart from any the programs use with the same key (those end in a protocol number).
const OFFSET: u64 = u64::MAX;
const SKIP: u64 = u64::MAX - 1;

/// Entries per server at least. With 100, a hundredth server that is taken out of the configuration moves 1.5 % of the
/// others' entries, with 200 less than one percent.
const ENTRIES_PER_SERVER: usize = 200;
/// Primes just below powers of two. The last is the cap: 256 servers × 200 fit.
const SIZES: [usize; 9] = [251, 509, 1_021, 2_039, 4_093, 8_191, 16_381, 32_749, 65_521];

/// Entries of the table for `servers` configured servers: the smallest size with at least 200 for each.
pub fn table_size(servers: usize) -> usize {
    let wanted = servers * ENTRIES_PER_SERVER;
    *SIZES
        .iter()
        .find(|size| **size >= wanted)
        .unwrap_or(&SIZES[SIZES.len() - 1])
}

/// Builds the table; empty if no server is live.
///
/// `key` is the pair's key.
///
/// # Panics
/// If there are more than 256 servers.
pub fn table(key: [u64; 2], servers: &[Candidate]) -> Vec<u8> {
    if !servers.iter().any(Candidate::is_live) {
        return Vec::new();
    }
    let size = table_size(servers.len());
    let permutations: Vec<Permutation> = servers.iter().map(|s| Permutation::new(key, s, size)).collect();
    let mut slots: Vec<Option<u8>> = vec![None; size];
    deal(&mut slots, &permutations, servers, |s| s.weight > 0);
    for slot in &mut slots {
        if slot.is_some_and(|at| !servers[usize::from(at)].up) {
            *slot = None;
        }
    }
    deal(&mut slots, &permutations, servers, Candidate::is_live);
    slots
        .into_iter()
        .map(|slot| slot.expect("a live server takes every free entry"))
        .collect()
}

/// Fills every free entry: servers take turns in proportion to their weight, each taking the first free entry of its
/// permutation.
fn deal(
    slots: &mut [Option<u8>],
    permutations: &[Permutation],
    servers: &[Candidate],
    takes_part: impl Fn(&Candidate) -> bool,
) {
    let mut free = slots.iter().filter(|slot| slot.is_none()).count();
    let mut players: Vec<(usize, Permutation)> = (servers.iter().zip(permutations).enumerate())
        .filter(|(_, (server, _))| takes_part(server))
        .map(|(at, (_, permutation))| (at, *permutation))
        .collect();
    let weight = |at: usize| u32::from(servers[at].weight);
    let Some(heaviest) = players.iter().map(|(at, _)| weight(*at)).max() else {
        return;
    };
    // Half a turn each at the start: the light ones are rounded to the nearest, not down.
    let mut credits = vec![heaviest / 2; players.len()];
    while free > 0 {
        for ((at, permutation), credit) in players.iter_mut().zip(&mut credits) {
            *credit += weight(*at);
            if *credit < heaviest || free == 0 {
                continue;
            }
            *credit -= heaviest;
            let position = loop {
                let position = permutation.next();
                if slots[position].is_none() {
                    break position;
                }
            };
            slots[position] = Some(entry(*at));
            free -= 1;
        }
    }
}

/// A server's order of preference over the entries: every entry once, because the size is prime.
#[derive(Clone, Copy)]
struct Permutation {
    at: usize,
    skip: usize,
    size: usize,
}

impl Permutation {
    fn new(key: [u64; 2], server: &Candidate, size: usize) -> Self {
        let identity = match server.addr {
            IpAddr::V4(addr) => u64::from(u32::from(addr)) << 16 | u64::from(server.port),
            IpAddr::V6(addr) => sip13_wide(
                key,
                Addr::from_bytes(addr.octets()),
                Addr::NONE,
                u64::from(server.port),
            ),
        };
        let size64 = size as u64;
        // Both remainders are below the size, which is a usize.
        let below = |value: u64, bound: u64| usize::try_from(value % bound).unwrap_or_default();
        Self {
            at: below(sip13(key, identity, OFFSET), size64),
            skip: below(sip13(key, identity, SKIP), size64 - 1) + 1,
            size,
        }
    }

    fn next(&mut self) -> usize {
        let now = self.at;
        self.at = (self.at + self.skip) % self.size;
        now
    }
}
