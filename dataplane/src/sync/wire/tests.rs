use onearm_dataplane_common::addr::Addr;
use onearm_dataplane_common::flow::FlowKey;
use proptest::prelude::*;

use super::super::Record;
use super::super::plain::{record, six};
use super::*;

fn any_record() -> impl Strategy<Value = Record> {
    let numbers = (
        any::<[u8; 4]>(),
        any::<[u16; 5]>(),
        any::<[u32; 4]>(),
        any::<u64>(),
    );
    (any::<bool>(), any::<[[u8; 16]; 4]>(), any::<u8>(), numbers).prop_map(
        |(v6, addrs, proto, (bytes, shorts, words, incarnation))| {
            let addr = |n: usize| {
                if v6 {
                    // Not a mapped one.
                    let mut addr = addrs[n];
                    addr[0] |= 0x20;
                    return Addr::from_bytes(addr);
                }
                match u32::from_ne_bytes([addrs[n][0], addrs[n][1], addrs[n][2], addrs[n][3]]) {
                    0 => Addr::v4(1),
                    addr => Addr::v4(addr),
                }
            };
            Record {
                key: FlowKey::new(proto, addr(0), shorts[0], addr(1), shorts[1]),
                new_saddr: addr(2),
                new_daddr: addr(3),
                new_sport: shorts[2],
                new_dport: shorts[3],
                flags: bytes[0],
                client: bytes[1],
                server: bytes[2],
                leg: bytes[3],
                client_ack: words[0],
                server_ack: words[1],
                idle_ticks: words[2],
                packets: words[3],
                vlan: shorts[4],
                incarnation,
            }
        },
    )
}

fn all(bytes: &[u8]) -> Vec<Result<Said, Malformed>> {
    records(bytes).collect()
}

proptest! {
    #[test]
    fn a_record_is_read_as_it_was_written(flows in proptest::collection::vec(any_record(), 0..20)) {
        let mut bytes = Vec::new();
        let mut want = Vec::new();
        for flow in &flows {
            let before = bytes.len();
            push_flow(&mut bytes, flow);
            prop_assert!(bytes.len() - before <= longest_record());
            push_end(&mut bytes, &flow.key, flow.incarnation);
            want.push(Ok(Said::Flow(*flow)));
            want.push(Ok(Said::End(flow.key, flow.incarnation)));
        }
        prop_assert_eq!(all(&bytes), want);
    }

    #[test]
    fn a_message_is_read_as_it_was_written(
        at in (any::<u32>(), any::<u64>()).prop_map(|(stream, number)| At { stream, number }),
        words in any::<[u64; 4]>(), small in any::<(u16, u16, u8, u32)>(), known: bool,
        batch in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut classes = no_classes();
        for (n, class) in (0_u64..).zip(classes.iter_mut()) {
            *class = words[0].wrapping_mul(n);
        }
        let mut set = ClassSet::empty();
        set.0[..4].copy_from_slice(&words);
        for body in [
            Body::Opening(at, Opening {
                layout: small.0,
                readable_by: small.1,
                node: small.2,
                boot: words[0],
                key: [words[1], words[2]],
                places: [small.3, !small.3],
            }),
            Body::Batch(at, &batch),
            Body::Ack(Ack { at, total: known.then_some(words[0]), full: small.3 }),
            Body::Mark(at),
            Body::Digests(at, classes),
            Body::RepairBegin(at, set),
            Body::RepairEnd(at),
            Body::Ask,
            Body::Refuse(small.3, Refusal::Layout),
            Body::Refuse(small.3, Refusal::Owner),
            Body::Refuse(small.3, Refusal::Other(9)),
            Body::Judgement(Judgement {
                at,
                code: small.2,
                total: words[0],
                records: words[1],
                oldest_ms: words[2],
            }),
        ] {
            let mut bytes = body.emit();
            prop_assert_eq!(Body::parse(&bytes), Ok(body.clone()));
            // A later release says more; a batch has no end of its own.
            if !matches!(body, Body::Batch(..)) {
                bytes.extend([1, 2, 3]);
                prop_assert_eq!(Body::parse(&bytes), Ok(body.clone()));
                bytes.truncate(bytes.len() - 4);
                if body != Body::Ask {
                    prop_assert_eq!(Body::parse(&bytes), Err(Malformed));
                }
            }
        }
    }

    #[test]
    fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0_u8..12) {
        let mut bytes = bytes;
        for kind in [Some(kind), None] {
            if let (Some(kind), Some(first)) = (kind, bytes.first_mut()) {
                *first = kind;
            }
            if let Ok(body) = Body::parse(&bytes)
                && let Body::Batch(_, batch) = body
            {
                let read = all(batch);
                prop_assert!(read.len() <= batch.len());
                prop_assert!(read.iter().rev().skip(1).all(Result::is_ok));
            }
        }
    }
}

#[test]
fn a_record_of_another_release_is_read_as_far_as_it_is_known() {
    for flow in [record(7, 9), six(&record(7, 9))] {
        let mut bytes = Vec::new();
        push_flow(&mut bytes, &flow);
        let known = bytes.clone();
        // Longer.
        bytes.extend([1, 2, 3]);
        bytes[1] += 3;
        // Of a kind of its own, and a known one behind it.
        bytes.extend([0x55, 2, 0, 0]);
        bytes.extend(&known);
        // Shorter.
        let start = bytes.len();
        bytes.extend(&known[..known.len() - 1]);
        bytes[start + 1] -= 1;
        assert_eq!(
            all(&bytes),
            [Said::Flow(flow), Said::Unknown, Said::Flow(flow), Said::Short].map(Ok)
        );
        // Not whole.
        assert_eq!(all(&known[..known.len() - 1]), [Err(Malformed)]);
        assert_eq!(all(&known[..1]), [Err(Malformed)]);
    }
}

#[test]
fn the_bytes_of_a_flow_are_these() {
    let mut bytes = Vec::new();
    push_flow(&mut bytes, &record(1, 0x0100_0002_0000_0003));
    #[rustfmt::skip]
    assert_eq!(bytes, [
        1, 55,
        10, 0, 0, 1, 192, 168, 100, 100, 0x9c, 0x41, 0, 80, 6, // client, VIP, ports, protocol
        192, 168, 100, 100, 192, 168, 100, 10, 0x4e, 0x21, 0x1f, 0x90, // translation
        2, 3, 1, 255, // flags, seen by both sides, leg
        0, 0, 0, 11, 0, 0, 0, 12, 0, 0, 0x34, 0x63, 0, 0, 0, 5, // acknowledgements, idle time-out, packets
        0, 0, // VLAN
        1, 0, 0, 2, 0, 0, 0, 3,
    ]);
}
