//! Records of a batch.

use onearm_dataplane_common::addr::{Addr, Addr4};
use onearm_dataplane_common::flow::FlowKey;

use super::super::Record;
use super::{Malformed, Reader};

/// Kinds of records: of IPv4; with [`V6`], of IPv6.
const FLOW: u8 = 1;
const END: u8 = 2;
const V6: u8 = 0x80;

/// Bytes of the longest record with kind and length.
pub(crate) const fn longest_record() -> usize {
    2 + 4 * 16 + 39
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The flow is like this.
    Flow(Record),
    /// The flow of this key and incarnation is gone.
    End(FlowKey, u64),
    /// Something this release does not know.
    Unknown,
    /// Shorter than its kind.
    Short,
}

/// The records of a batch; an error is the last item, if the bytes end within a record.
pub(crate) fn records(bytes: &[u8]) -> impl Iterator<Item = Result<Said, Malformed>> {
    let mut r = Reader(bytes);
    std::iter::from_fn(move || {
        if r.0.is_empty() {
            return None;
        }
        let next = next(&mut r);
        if next.is_err() {
            r.0 = &[];
        }
        Some(next)
    })
}

fn next(r: &mut Reader<'_>) -> Result<Said, Malformed> {
    let kind = r.u8()?;
    let len = r.u8()?;
    let mut body = Reader(r.take(usize::from(len))?);
    let v6 = kind & V6 != 0;
    let said = match kind & !V6 {
        FLOW => flow(&mut body, v6).map(Said::Flow),
        END => key(&mut body, v6).and_then(|key| Ok(Said::End(key, body.u64()?))),
        _ => Ok(Said::Unknown),
    };
    Ok(said.unwrap_or(Said::Short))
}

/// A record's flow as it is.
pub(crate) fn push_flow(w: &mut Vec<u8>, record: &Record) {
    let v6 = record.is_v6();
    frame(w, FLOW, v6, |w| {
        push_key(w, &record.key, v6);
        push_addr(w, record.new_saddr, v6);
        push_addr(w, record.new_daddr, v6);
        w.extend(record.new_sport.to_ne_bytes());
        w.extend(record.new_dport.to_ne_bytes());
        w.extend([record.flags, record.client, record.server, record.leg]);
        for word in [
            record.client_ack,
            record.server_ack,
            record.idle_ticks,
            record.packets,
        ] {
            w.extend(word.to_be_bytes());
        }
        w.extend(record.vlan.to_be_bytes());
        w.extend(record.incarnation.to_be_bytes());
    });
}

/// A flow's end.
pub(crate) fn push_end(w: &mut Vec<u8>, key: &FlowKey, incarnation: u64) {
    let v6 = !key.saddr.is_v4();
    frame(w, END, v6, |w| {
        push_key(w, key, v6);
        w.extend(incarnation.to_be_bytes());
    });
}

fn frame(w: &mut Vec<u8>, kind: u8, v6: bool, body: impl FnOnce(&mut Vec<u8>)) {
    w.extend([kind | if v6 { V6 } else { 0 }, 0]);
    let start = w.len();
    body(w);
    let len = w.len() - start;
    debug_assert!(len + 2 <= longest_record());
    w[start - 1] = u8::try_from(len).unwrap_or(u8::MAX);
}

fn push_key(w: &mut Vec<u8>, key: &FlowKey, v6: bool) {
    push_addr(w, key.saddr, v6);
    push_addr(w, key.daddr, v6);
    // As in the packet.
    w.extend(key.sport.to_ne_bytes());
    w.extend(key.dport.to_ne_bytes());
    w.push(key.proto);
}

fn push_addr(w: &mut Vec<u8>, addr: Addr, v6: bool) {
    if v6 {
        w.extend(addr.bytes());
    } else {
        let addr: Addr4 = if addr.is_none() { 0 } else { addr.as_v4() };
        w.extend(addr.to_ne_bytes());
    }
}

fn flow(r: &mut Reader<'_>, v6: bool) -> Result<Record, Malformed> {
    let key = key(r, v6)?;
    Ok(Record {
        key,
        new_saddr: addr(r, v6)?,
        new_daddr: addr(r, v6)?,
        new_sport: u16::from_ne_bytes(r.array()?),
        new_dport: u16::from_ne_bytes(r.array()?),
        flags: r.u8()?,
        client: r.u8()?,
        server: r.u8()?,
        leg: r.u8()?,
        client_ack: r.u32()?,
        server_ack: r.u32()?,
        idle_ticks: r.u32()?,
        packets: r.u32()?,
        vlan: r.u16()?,
        incarnation: r.u64()?,
    })
}

fn key(r: &mut Reader<'_>, v6: bool) -> Result<FlowKey, Malformed> {
    let (saddr, daddr) = (addr(r, v6)?, addr(r, v6)?);
    let (sport, dport) = (u16::from_ne_bytes(r.array()?), u16::from_ne_bytes(r.array()?));
    Ok(FlowKey::new(r.u8()?, saddr, sport, daddr, dport))
}

/// An IPv4 address of nobody stands for none.
fn addr(r: &mut Reader<'_>, v6: bool) -> Result<Addr, Malformed> {
    if v6 {
        return r.array().map(Addr::from_bytes);
    }
    let addr = Addr4::from_ne_bytes(r.array()?);
    Ok(if addr == 0 { Addr::NONE } else { Addr::v4(addr) })
}
