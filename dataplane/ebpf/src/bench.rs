#![no_std]
#![no_main]
#![doc = "Programs to measure with and against: a wrapper that builds another frame each time, and the least a balancer must do."]

use aya_ebpf::{
    bindings::xdp_action,
    helpers::{bpf_ktime_get_ns, bpf_xdp_adjust_head},
    macros::{map, xdp},
    maps::{Array, LruHashMap, PerCpuArray, ProgramArray},
    programs::XdpContext,
};
use onearm_dataplane_common::{
    bench::{Bench, MARK, flow, random},
    checksum::{fold, halves},
    flow::FlowKey4,
    maps::proto,
    packet::{Packet, mac_number},
    wire::{eth, ip, tcp, udp},
};

#[path = "frame.rs"]
mod frame;
use frame::Frame;

#[map]
static BENCH: Array<Bench> = Array::with_max_entries(1, 0);
/// The program under test.
#[map]
static SUBJECT: ProgramArray = ProgramArray::with_max_entries(1, 0);
/// As much as a flow: translation, hop, time.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Value([u64; 4]);
#[map]
static LRU: LruHashMap<FlowKey4, Value> = LruHashMap::with_max_entries(1 << 20, 0);

/// Builds the next frame and goes on with the program under test.
#[xdp(frags)]
pub fn bench_wrapper(ctx: XdpContext) -> u32 {
    if build(&ctx).is_none() {
        return xdp_action::XDP_ABORTED;
    }
    // SAFETY: a valid context; a missing program is no error for the kernel.
    unsafe { SUBJECT.tail_call(&ctx, 0) };
    xdp_action::XDP_ABORTED
}

/// Builds the next frame and sends it: for test runs with live frames.
#[xdp(frags)]
pub fn bench_generate(ctx: XdpContext) -> u32 {
    match build(&ctx).and_then(|()| wait()) {
        Some(()) => xdp_action::XDP_TX,
        None => xdp_action::XDP_ABORTED,
    }
}

/// Reads of the clock at most, before sixteen frames go.
const PATIENCE: u32 = 4_096;

/// Keeps the pace.
#[inline(always)]
fn wait() -> Option<()> {
    // SAFETY: one thread runs the generator.
    let bench = unsafe { &mut *BENCH.get_ptr_mut(0)? };
    if bench.pace == 0 || bench.count & 15 != 0 {
        return Some(());
    }
    for _ in 0..PATIENCE {
        // SAFETY: no argument.
        if unsafe { bpf_ktime_get_ns() } >= bench.due {
            break;
        }
    }
    bench.due += bench.pace;
    Some(())
}

/// Frames that have come to `bench_sink`.
#[map]
static SUNK: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Counts and drops IPv4 frames that carry the mark, in a tunnel or not; passes all others.
#[xdp(frags)]
pub fn bench_sink(ctx: XdpContext) -> u32 {
    if !is_marked(&ctx) {
        return xdp_action::XDP_PASS;
    }
    if let Some(sunk) = SUNK.get_ptr_mut(0) {
        // SAFETY: this CPU's value.
        unsafe { *sunk += 1 };
    }
    xdp_action::XDP_DROP
}

#[inline(always)]
fn is_marked(ctx: &XdpContext) -> bool {
    let packet = Frame(ctx);
    let Some(head) = packet.window::<{ L4 + udp::LEN }>(0) else {
        return false;
    };
    if head.u16::<{ eth::TYPE }>() != eth::IPV4 {
        return false;
    }
    let tos = match head.u8::<{ L3 + ip::PROTO }>() {
        proto::TCP | proto::UDP | proto::IPIP => head.u8::<{ L3 + ip::TOS }>(),
        _ => 0,
    };
    tos == MARK
}

#[inline(always)]
fn build(ctx: &XdpContext) -> Option<()> {
    // SAFETY: one thread runs the wrapper.
    let bench = unsafe { &mut *BENCH.get_ptr_mut(0)? };
    let excess = Frame(ctx).len() as i64 - i64::from(bench.len);
    // Always, so that a program which makes the frame longer pays for that alone.
    // SAFETY: a valid context; packet pointers are taken afterwards.
    if unsafe { bpf_xdp_adjust_head(ctx.ctx, excess as i32) } != 0 {
        return None;
    }
    bench.count += 1;
    let blind = bench.blind != 0 && bench.count & 3 == 0;
    let n = if bench.sequential != 0 {
        let n = bench.next;
        bench.next = if n + 1 >= bench.flows { 0 } else { n + 1 };
        n
    } else {
        if !blind {
            bench.next = random(bench.next);
        }
        ((bench.next >> 32) * bench.flows) >> 32
    };
    let (addr, port) = flow(bench.ports, bench.base, n);
    let port = port.to_be();
    let packet = Frame(ctx);
    let frame = packet.window::<64>(0)?;
    frame.set_u64::<0>(bench.template[0]);
    frame.set_u64::<8>(bench.template[1]);
    frame.set_u64::<16>(bench.template[2]);
    frame.set_u64::<24>(bench.template[3]);
    frame.set_u64::<32>(bench.template[4]);
    frame.set_u64::<40>(bench.template[5]);
    frame.set_u64::<48>(bench.template[6]);
    frame.set_u64::<56>(bench.template[7]);
    if bench.vary_destination != 0 {
        frame.set_u32::<{ L3 + ip::DADDR }>(addr);
        frame.set_u16::<{ L4 + tcp::DPORT }>(port);
    } else {
        frame.set_u32::<{ L3 + ip::SADDR }>(addr);
        frame.set_u16::<{ L4 + tcp::SPORT }>(port);
    }
    frame.set_u16::<{ L3 + ip::CHECKSUM }>(!fold(bench.ip_sum + halves(addr)));
    let mut covered = bench.tcp_sum + halves(addr) + u32::from(port);
    if blind {
        let guess = (bench.next >> 7) as u32;
        frame.set_u32::<{ L4 + tcp::ACK_SEQ }>(guess);
        frame.set_u8::<{ L4 + tcp::FLAGS }>(tcp::ACK);
        covered = bench.blind_sum + halves(guess) + halves(addr) + u32::from(port);
    }
    let sum = !fold(covered);
    if bench.datagrams != 0 {
        frame.set_u16::<{ L4 + udp::CHECKSUM }>(if sum == 0 { 0xffff } else { sum });
    } else {
        frame.set_u16::<{ L4 + tcp::CHECKSUM }>(sum);
    }
    Some(())
}

const L3: usize = eth::LEN;
const L4: usize = L3 + ip::LEN;

/// Nothing: what the wrapper costs by itself.
#[xdp(frags)]
pub fn bench_null(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_TX
}

/// Parses and sends back.
#[xdp(frags)]
pub fn bench_parse(ctx: XdpContext) -> u32 {
    match parse(&ctx) {
        Some(key) if key.dport != 0 => send_back(&ctx),
        Some(_) => xdp_action::XDP_DROP,
        None => xdp_action::XDP_PASS,
    }
}

/// Parses, looks one flow up in the kernel's LRU hash (makes it if it is new), sends back.
#[xdp(frags)]
pub fn bench_lru(ctx: XdpContext) -> u32 {
    let Some(key) = parse(&ctx) else {
        return xdp_action::XDP_PASS;
    };
    // SAFETY: only one word is looked at.
    match unsafe { LRU.get(&key) } {
        Some(value) if value.0[0] == 7 => return xdp_action::XDP_DROP,
        Some(_) => {}
        None => {
            if LRU.insert(&key, &Value([1, 0, 0, 0]), 0).is_err() {
                return xdp_action::XDP_DROP;
            }
        }
    }
    send_back(&ctx)
}

#[inline(always)]
fn parse(ctx: &XdpContext) -> Option<FlowKey4> {
    let packet = Frame(ctx);
    let frame = packet.window::<{ L4 + tcp::LEN }>(0)?;
    let protocol = frame.u8::<{ L3 + ip::PROTO }>();
    let plain = frame.u16::<{ eth::TYPE }>() == eth::IPV4
        && frame.u8::<{ L3 + ip::VERSION_IHL }>() == 0x45
        && frame.u16::<{ L3 + ip::FRAGMENT }>() & ip::FRAGMENT_MASK == 0
        && (protocol == proto::TCP || protocol == proto::UDP);
    plain.then(|| {
        FlowKey4::new(
            protocol,
            frame.u32::<{ L3 + ip::SADDR }>(),
            frame.u16::<{ L4 + tcp::SPORT }>(),
            frame.u32::<{ L3 + ip::DADDR }>(),
            frame.u16::<{ L4 + tcp::DPORT }>(),
        )
    })
}

#[inline(always)]
fn send_back(ctx: &XdpContext) -> u32 {
    let packet = Frame(ctx);
    let Some(header) = packet.window::<{ eth::LEN }>(0) else {
        return xdp_action::XDP_DROP;
    };
    let (dst, src) = (header.mac::<{ eth::DST }>(), header.mac::<{ eth::SRC }>());
    if mac_number(src) == 0 {
        return xdp_action::XDP_DROP;
    }
    header.set_mac::<{ eth::DST }>(src);
    header.set_mac::<{ eth::SRC }>(dst);
    xdp_action::XDP_TX
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}
