#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![allow(
    internal_features,
    reason = "atomic operations have no stable name on this target"
)]
#![doc = "The XDP programs and the egress gate: thin shells around `onearm_dataplane_common`."]

mod frame;
mod maps;

use aya_ebpf::{
    bindings::xdp_action,
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};
use frame::{Egress, Frame};
use maps::Kernel;
use onearm_dataplane_common::{
    answer::answer,
    arp::arp,
    create::create,
    egress::may_leave,
    evict::evict,
    miss::{self, miss},
    receive::receive,
    relay::relay,
    schedule::schedule,
    search,
    transit::transit,
    work::{Step, Work},
};

/// Passes every frame. On the far end of a veth pair it gives XDP_TX and XDP_REDIRECT a receive context.
#[xdp(frags)]
pub fn xdp_pass(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_PASS
}

/// Turns a decision into a verdict.
#[inline(always)]
fn verdict(ctx: &XdpContext, step: Step) -> u32 {
    match step {
        Step::Pass => xdp_action::XDP_PASS,
        Step::Drop => xdp_action::XDP_DROP,
        Step::Transmit => xdp_action::XDP_TX,
        Step::Redirect(leg) => maps::redirect(leg),
        Step::Next(phase) => maps::go_on(ctx, phase),
    }
}

/// Runs a phase on what the one before left.
#[inline(always)]
fn phase(ctx: XdpContext, run: impl FnOnce(&mut Frame<'_>, &mut Work, &Kernel) -> Step) -> u32 {
    let Some(work) = maps::work() else {
        return xdp_action::XDP_DROP;
    };
    let step = run(&mut Frame(&ctx), work, &Kernel);
    verdict(&ctx, step)
}

/// Entry of every frame.
#[xdp(frags)]
pub fn onearm_xdp(ctx: XdpContext) -> u32 {
    let step = receive(&mut Frame(&ctx), ctx.ingress_ifindex() as u32, &Kernel);
    verdict(&ctx, step)
}

/// See `Phase::Arp`.
#[xdp(frags)]
pub fn onearm_arp(ctx: XdpContext) -> u32 {
    phase(ctx, |frame, work, kernel| arp(frame, work, kernel))
}

/// See `Phase::Miss`.
#[xdp(frags)]
pub fn onearm_miss(ctx: XdpContext) -> u32 {
    phase(ctx, |frame, work, kernel| miss(frame, work, kernel))
}

/// See `Phase::Schedule`.
#[xdp(frags)]
pub fn onearm_schedule(ctx: XdpContext) -> u32 {
    phase(ctx, |_, work, kernel| schedule(work, kernel))
}

/// See `Phase::Evict`.
#[xdp(frags)]
pub fn onearm_evict(ctx: XdpContext) -> u32 {
    phase(ctx, |_, work, kernel| evict(work, kernel))
}

/// See `Phase::Create`.
#[xdp(frags)]
pub fn onearm_create(ctx: XdpContext) -> u32 {
    phase(ctx, |_, work, kernel| create(work, kernel))
}

/// See `Phase::Search`.
#[xdp(frags)]
pub fn onearm_search(ctx: XdpContext) -> u32 {
    let Some(work) = maps::work() else {
        return xdp_action::XDP_DROP;
    };
    maps::repeat(search::begin(work, &Kernel));
    phase(ctx, |_, work, kernel| search::end(work, kernel))
}

/// See `Phase::Forward`.
#[xdp(frags)]
pub fn onearm_forward(ctx: XdpContext) -> u32 {
    phase(ctx, |frame, work, kernel| miss::forward(frame, work, kernel))
}

/// See `Phase::Answer`.
#[xdp(frags)]
pub fn onearm_answer(ctx: XdpContext) -> u32 {
    phase(ctx, |frame, work, kernel| answer(frame, work, kernel))
}

/// See `Phase::Transit`.
#[xdp(frags)]
pub fn onearm_transit(ctx: XdpContext) -> u32 {
    phase(ctx, |frame, work, kernel| transit(frame, work, kernel))
}

/// See `Phase::Relay`.
#[xdp(frags)]
pub fn onearm_relay(ctx: XdpContext) -> u32 {
    phase(ctx, |frame, work, kernel| relay(frame, work, kernel))
}

/// Drops what must not leave the kernel without a lease (clsact egress).
#[classifier]
pub fn egress_gate(ctx: TcContext) -> i32 {
    const UNSPEC: i32 = -1;
    const SHOT: i32 = 2;
    if ctx.pull_data(64).is_err() {
        // Shorter than that: whatever is there is linear.
    }
    if may_leave(&Egress(&ctx), &Kernel) {
        UNSPEC
    } else {
        SHOT
    }
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}
