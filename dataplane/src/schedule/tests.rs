use super::{Candidate, maglev, wrr};
use onearm_dataplane_common::hash::sip13;
use proptest::prelude::*;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

fn servers(weights: &[u16]) -> Vec<Candidate> {
    (0_u32..)
        .zip(weights)
        .map(|(n, weight)| Candidate {
            addr: IpAddr::V4(Ipv4Addr::from(0xc0a8_640a + n)),
            port: 0,
            weight: *weight,
            up: true,
        })
        .collect()
}

fn count(table: &[u8], at: usize) -> usize {
    table.iter().filter(|entry| usize::from(**entry) == at).count()
}

fn moved(before: &[u8], after: &[u8]) -> usize {
    assert_eq!(before.len(), after.len());
    before.iter().zip(after).filter(|(b, a)| b != a).count()
}

/// Maglev of the paper without repair, the most direct way: full preference lists, one pass.
fn naive_maglev(key: [u64; 2], servers: &[Candidate]) -> Vec<u8> {
    // All up, equal weights: the module under test must agree with this.
    let size = maglev::table_size(servers.len());
    let table = maglev::table(key, &servers[..1]);
    assert!(table.iter().all(|entry| *entry == 0));
    let lists: Vec<Vec<usize>> = servers.iter().map(|s| preferences(key, s, size)).collect();
    let mut slots = vec![None; size];
    let mut next = vec![0; servers.len()];
    let mut filled = 0;
    loop {
        for (at, list) in lists.iter().enumerate() {
            while slots[list[next[at]]].is_some() {
                next[at] += 1;
            }
            slots[list[next[at]]] = Some(u8::try_from(at).unwrap());
            filled += 1;
            if filled == size {
                return slots.into_iter().map(Option::unwrap).collect();
            }
        }
    }
}

/// Where one server alone with a hundred others down would put itself: its permutation, read off the definition.
fn preferences(key: [u64; 2], server: &Candidate, size: usize) -> Vec<usize> {
    let identity = u64::from(u32::from(v4(server.addr))) << 16 | u64::from(server.port);
    let offset = sip13(key, identity, u64::MAX) % size as u64;
    let skip = sip13(key, identity, u64::MAX - 1) % (size as u64 - 1) + 1;
    (0..size as u64)
        .map(|n| usize::try_from((offset + n * skip) % size as u64).unwrap())
        .collect()
}

fn v4(addr: IpAddr) -> Ipv4Addr {
    match addr {
        IpAddr::V4(addr) => addr,
        IpAddr::V6(addr) => panic!("{addr}"),
    }
}

#[test]
fn a_permutation_visits_every_entry_once() {
    for server in servers(&[1; 20]) {
        let visited: HashSet<usize> = preferences(KEY, &server, 127).into_iter().collect();
        assert_eq!(visited.len(), 127);
    }
}

#[test]
fn table_sizes_are_primes_of_at_least_two_hundred_entries_a_server() {
    for servers in 1..=256 {
        let size = maglev::table_size(servers);
        assert!(size >= 200 * servers, "{servers} servers: {size}");
        assert!(
            (2..size)
                .take_while(|d| d * d <= size)
                .all(|d| !size.is_multiple_of(d)),
            "{size} is no prime"
        );
    }
}

#[test]
fn no_live_server_gives_no_table() {
    assert!(maglev::table(KEY, &[]).is_empty());
    assert!(wrr::sequence(&[]).is_empty());
    assert!(maglev::table(KEY, &servers(&[0, 0])).is_empty());
    let mut down = servers(&[1, 1]);
    for s in &mut down {
        s.up = false;
    }
    assert!(maglev::table(KEY, &down).is_empty());
    assert!(wrr::sequence(&down).is_empty());
}

#[test]
fn when_one_of_a_hundred_servers_goes_down_only_its_entries_move() {
    let up = servers(&[1; 100]);
    let before = maglev::table(KEY, &up);
    for gone in 0..100 {
        let mut after = up.clone();
        after[gone].up = false;
        let after = maglev::table(KEY, &after);
        assert_eq!(count(&after, gone), 0);
        assert_eq!(moved(&before, &after), count(&before, gone), "server {gone}");
        assert!(
            moved(&before, &after) * 100 <= before.len() + 100,
            "more than its share moved"
        );
    }
}

#[test]
fn when_one_of_a_hundred_servers_is_removed_fewer_than_one_percent_of_the_others_move() {
    fewer_than_one_percent_of_the_others_move(&[1; 100]);
}

/// One that has more than a hundredth itself moves at most as much of the others'.
#[test]
fn with_weights_too_a_server_that_is_removed_moves_little_of_the_others() {
    for weights in [[1, 3], [1, 10], [200, 255]] {
        let weights: Vec<u16> = weights.into_iter().cycle().take(100).collect();
        fewer_than_one_percent_of_the_others_move(&weights);
    }
}

fn fewer_than_one_percent_of_the_others_move(weights: &[u16]) {
    let all = servers(weights);
    let before = maglev::table(KEY, &all);
    for gone in (0..100).step_by(7) {
        let mut rest = all.clone();
        rest.remove(gone);
        let after = maglev::table(KEY, &rest);
        let name = |entry: u8| usize::from(entry) + usize::from(usize::from(entry) >= gone);
        let others = (before.iter().zip(&after))
            .filter(|(b, _)| usize::from(**b) != gone)
            .filter(|(b, a)| usize::from(**b) != name(**a))
            .count();
        let most = (before.len() / 100).max(count(&before, gone));
        assert!(
            others <= most,
            "{weights:?}: {others} of {} moved with server {gone}",
            before.len()
        );
    }
}

#[test]
fn weights_three_to_one_give_three_to_one() {
    let table = maglev::table(KEY, &servers(&[3, 1]));
    let share = count(&table, 0) * 100 / table.len();
    assert!((74..=76).contains(&share), "{share} %");
    let sequence = wrr::sequence(&servers(&[3, 1]));
    assert_eq!(sequence, [0, 0, 1, 0]);
}

#[test]
fn round_robin_is_smooth() {
    // The example of nginx's commit that introduced it.
    assert_eq!(wrr::sequence(&servers(&[5, 1, 1])), [0, 0, 1, 0, 2, 0, 0]);
    assert_eq!(wrr::sequence(&servers(&[100, 100])), [0, 1]);
}

#[test]
fn a_round_robin_sequence_is_capped() {
    let sequence = wrr::sequence(&servers(&[u16::MAX, 1, 7_919]));
    assert!(sequence.len() <= wrr::MAX_SEQUENCE);
    assert!(count(&sequence, 1) >= 1);
    let ratio = count(&sequence, 0) * 100 / count(&sequence, 2);
    assert!((780..=880).contains(&ratio), "{ratio}");
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let one = (any::<u32>(), any::<u16>(), 0_u16..20, prop::bool::weighted(0.8));
    prop::collection::hash_set(any::<(u32, u16)>(), 1..40).prop_flat_map(move |ids| {
        let n = ids.len();
        (Just(ids), prop::collection::vec(one.clone(), n)).prop_map(|(ids, rest)| {
            (ids.into_iter().zip(rest))
                .map(|((addr, port), (_, _, weight, up))| Candidate {
                    addr: Ipv4Addr::from(addr).into(),
                    port,
                    weight,
                    up,
                })
                .collect()
        })
    })
}

proptest! {

    #[test]
    fn equal_weights_agree_with_maglev_of_the_paper(n in 1_usize..40, key in any::<[u64; 2]>()) {
        let servers = servers(&vec![1; n]);
        prop_assert_eq!(maglev::table(key, &servers), naive_maglev(key, &servers));
    }

    #[test]
    fn maglev_shares_follow_the_weights_and_the_dead_get_nothing(set in candidates(), key in any::<[u64; 2]>()) {
        let table = maglev::table(key, &set);
        let live: Vec<_> = set.iter().filter(|s| s.up && s.weight > 0).collect();
        prop_assert_eq!(table.is_empty(), live.is_empty());
        prop_assume!(!live.is_empty());
        prop_assert_eq!(table.len(), maglev::table_size(set.len()));
        let weights: usize = live.iter().map(|s| usize::from(s.weight)).sum();
        for (at, server) in set.iter().enumerate() {
            if !server.up || server.weight == 0 {
                prop_assert_eq!(count(&table, at), 0);
            } else if set.iter().all(|s| s.up) {
                let fair = table.len() * usize::from(server.weight) / weights;
                prop_assert!(count(&table, at).abs_diff(fair) <= 2 + live.len() / 8, "{} not {}", count(&table, at), fair);
            }
        }
    }

    #[test]
    fn a_server_going_down_moves_no_entry_of_another(set in candidates(), key in any::<[u64; 2]>(), at in any::<prop::sample::Index>()) {
        let mut up = set;
        let at = at.index(up.len());
        for s in &mut up {
            s.up = true;
        }
        let before = maglev::table(key, &up);
        let mut down = up.clone();
        down[at].up = false;
        let after = maglev::table(key, &down);
        prop_assume!(!before.is_empty() && !after.is_empty());
        for (b, a) in before.iter().zip(&after) {
            prop_assert!(usize::from(*b) == at || a == b);
        }
    }

    #[test]
    fn the_order_of_the_keys_halves_matters_and_tables_repeat(set in candidates(), key in any::<[u64; 2]>()) {
        prop_assert_eq!(maglev::table(key, &set), maglev::table(key, &set));
    }

    #[test]
    fn round_robin_ratios_are_exact_and_evenly_spread(set in candidates()) {
        let sequence = wrr::sequence(&set);
        let live: Vec<usize> = (0..set.len()).filter(|at| set[*at].up && set[*at].weight > 0).collect();
        prop_assert_eq!(sequence.is_empty(), live.is_empty());
        let total: usize = live.iter().map(|at| usize::from(set[*at].weight)).sum();
        for at in live {
            let weight = usize::from(set[at].weight);
            prop_assert_eq!(count(&sequence, at) * total, weight * sequence.len());
            // In every prefix a server is less than a turn ahead of its fair share (only one that is owed is chosen), and
            // not long behind.
            let mut seen = 0;
            for (turn, entry) in (1..).zip(&sequence) {
                seen += usize::from(usize::from(*entry) == at);
                prop_assert!(seen * total < turn * weight + total, "server {} ahead at turn {}", at, turn);
                prop_assert!(seen * total + 3 * total > turn * weight, "server {} behind at turn {}", at, turn);
            }
        }
    }
}
