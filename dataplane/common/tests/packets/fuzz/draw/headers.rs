//! Headers between the IP header and what follows, and questions of who has an address.

use crate::{
    fuzz::write,
    support::{
        frames::{Mac, arp, ip},
        setup::BROADCAST,
    },
};
use etherparse::ArpOperation;
use std::net::{IpAddr, Ipv6Addr};

/// So many words of options of the IPv4 header: nothing, record route, time stamps, a source route, one that breaks off.
pub fn options(words: usize, n: usize) -> Vec<u8> {
    let mut all = vec![1; words * 4];
    let len = u8::try_from(all.len()).expect("few").saturating_sub(1);
    if words > 1 {
        let head = match n % 8 {
            0 => [7, len, 4],
            1 => [68, len, 5],
            2 => [131, len, 4],
            3 => [137, 3, 4],
            4 => [148, 0, 0],
            5 => [7, len + 2, 4],
            _ => [1; 3],
        };
        all[1..4].copy_from_slice(&head);
    }
    all
}

/// More and longer extension headers: destination options, hop-by-hop options, routing, authentication.
pub fn lengthen(bytes: &mut Vec<u8>, n: usize) {
    let mut chain = Vec::new();
    let (mut next, mut first) = (bytes[20], 60);
    for k in 0..n - 3 {
        let (kind, units) = [(60, 0), (0, 1), (60, 8), (43, 2), (51, 4)][(n + k) % 5];
        let len = if kind == 51 {
            (units + 2) * 4
        } else {
            (units + 1) * 8
        };
        let mut header = vec![0; len];
        header[0] = next;
        header[1] = u8::try_from(units).expect("few");
        chain.splice(0..0, header);
        (next, first) = (kind, kind);
    }
    bytes[20] = first;
    let payload = u16::from_be_bytes([bytes[18], bytes[19]]) + u16::try_from(chain.len()).expect("few");
    bytes[18..20].copy_from_slice(&payload.to_be_bytes());
    bytes.splice(54..54, chain);
}

/// ARP, or a solicitation or advertisement.
pub fn resolve(asks: bool, mac: Mac, from: IpAddr, about: IpAddr, probe: bool) -> Vec<u8> {
    let (IpAddr::V6(from), IpAddr::V6(about)) = (from, about) else {
        let sender = if probe { ip("0.0.0.0") } else { from };
        let operation = if asks {
            ArpOperation::REQUEST
        } else {
            ArpOperation::REPLY
        };
        return arp(operation, (mac, sender), ([0; 6], about), BROADCAST);
    };
    let [.., a, b, c] = about.octets();
    let group = Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(a),
        u16::from_be_bytes([b, c]),
    );
    let sender = if probe { Ipv6Addr::UNSPECIFIED } else { from };
    let mut body = vec![if asks { 135 } else { 136 }, 0, 0, 0, 0, 0, 0, 0];
    body.extend(about.octets());
    if !probe {
        body.extend([1, 1]);
        body.extend(mac);
    }
    let mut packet = write::packet(sender.into(), group.into(), 58, &body, 2);
    packet[7] = 255;
    [&[0x33, 0x33, 0xff, a, b, c], &mac[..], &[0x86, 0xdd], &packet].concat()
}
