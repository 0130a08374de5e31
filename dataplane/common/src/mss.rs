//! The largest segment that a SYN or SYN-ACK asks for, lowered to a service's `mss_clamp` (RFC 9293 §3.7.1). It is never
//! raised, and never added: without the option the other side sends the least every host must take.

use crate::{
    checksum::Change,
    counter::Counter,
    header::Header,
    maps::{STRAY_SERVICE, proto},
    packet::{MAX_OFFSET, Packet},
    phase::Phase,
    tables::{Tables, discard},
    wire::tcp,
    work::{Arrival, Step, Work},
};

/// Bytes of options a segment may have.
const MOST_OPTIONS: usize = 40;

/// True for a packet that says what segments its sender takes. What only joins a flow has no TCP flags.
#[inline(always)]
pub const fn tells<A>(arrival: &Arrival<A>) -> bool {
    arrival.tcp_flags & tcp::SYN != 0 && arrival.key.proto == proto::TCP
}

/// What segments of a flow may have at most, for a packet that [`tells`]; 0 = as it says. `stats`: of the flow.
#[inline(always)]
pub fn limit<A, T: Tables>(tables: &T, arrival: &Arrival<A>, stats: u16) -> u16 {
    if !tells(arrival) || stats >= STRAY_SERVICE {
        return 0;
    }
    tables
        .service(arrival.slot, u32::from(stats))
        .map_or(0, |service| service.mss)
}

/// What [`Phase::Mss`] needs: the limit, and the phase after it.
#[inline(always)]
pub const fn note(work: &mut Work, limit: u16, then: Phase) {
    work.mss = limit;
    work.then_direct = matches!(then, Phase::Direct) as u8;
}

/// [`Phase::Mss`].
#[inline(always)]
pub fn mss<A: Header, P: Packet, T: Tables>(packet: &mut P, work: &mut Work, tables: &T) -> Step {
    work.clamped = 1;
    let l4 = work.arrival.l4 as usize;
    let Some(header) = packet.window::<{ tcp::LEN }>(l4) else {
        return discard(tables, Counter::Internal);
    };
    let whole = work.arrival.l3 as usize + work.arrival.total as usize;
    let stated = l4 + (usize::from(header.u8::<{ tcp::OFFSET }>()) >> 4 << 2);
    let end = if stated < whole { stated } else { whole };
    // In memory, or each length an option could have would be verified on its own.
    work.cursor.set((l4 + tcp::LEN) as u64);
    for _ in 0..MOST_OPTIONS {
        let at = work.cursor.get() as usize;
        if at >= end || at > MAX_OFFSET {
            break;
        }
        let Some(option) = packet.window::<2>(at) else {
            break;
        };
        let kind = option.u8::<0>();
        if kind == tcp::END_OF_OPTIONS {
            break;
        }
        if kind == tcp::NO_OPERATION {
            work.cursor.set((at + 1) as u64);
            continue;
        }
        let len = option.u8::<1>() as usize;
        if len < 2 || at + len > end {
            break;
        }
        if kind == tcp::MSS && len == tcp::MSS_LEN {
            lower(packet, work, tables, at);
            break;
        }
        work.cursor.set((at + len) as u64);
    }
    Step::Next(if work.then_direct == 0 {
        Phase::Forward
    } else {
        Phase::Direct
    })
}

/// The option at `at`.
#[inline(always)]
fn lower<P: Packet, T: Tables>(packet: &P, work: &Work, tables: &T, at: usize) {
    let l4 = work.arrival.l4 as usize;
    let (Some(option), Some(header)) = (
        packet.window::<{ tcp::MSS_LEN }>(at),
        packet.window::<{ tcp::LEN }>(l4),
    ) else {
        return;
    };
    let before = option.u16::<2>();
    if u16::from_be(before) <= work.mss {
        return;
    }
    let after = work.mss.to_be();
    option.set_u16::<2>(after);
    let change = if (at - l4) & 1 == 0 {
        Change::new().u16(before, after)
    } else {
        // Its bytes lie in two words of the sum.
        Change::new().u16(before.swap_bytes(), after.swap_bytes())
    };
    header.set_u16::<{ tcp::CHECKSUM }>(change.apply(header.u16::<{ tcp::CHECKSUM }>()));
    tables.count(Counter::MssLowered);
}
