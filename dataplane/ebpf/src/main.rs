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
    addr::{Addr, Addr4, Address},
    answer::answer,
    arp::arp,
    create::create,
    direct::{direct, direct_forward},
    egress::may_leave,
    evict,
    fragment::fragment,
    icmp_error::icmp_error,
    miss::{forward, miss},
    mss::mss,
    nd::nd,
    receive::{lookup, receive, receive6, walk_extensions, walk_options},
    relay::relay,
    schedule::schedule,
    search,
    transit::transit,
    work::Step,
};

/// Passes every frame. On the far end of a veth pair it gives XDP_TX and XDP_REDIRECT a receive context.
#[xdp(frags)]
pub fn xdp_pass(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_PASS
}

/// Turns a decision into a verdict. `A`: the family of the packet, whose programs it goes on to.
#[inline(always)]
fn verdict<A: Address>(ctx: &XdpContext, step: Step) -> u32 {
    match step {
        Step::Pass => xdp_action::XDP_PASS,
        Step::Drop => xdp_action::XDP_DROP,
        Step::Transmit => xdp_action::XDP_TX,
        Step::Redirect(leg) => maps::redirect(ctx, leg),
        Step::Next(phase) => maps::go_on(ctx, phase, A::V6),
    }
}

/// Entry of every frame.
#[xdp(frags)]
#[inline(always)]
pub fn onearm_xdp(ctx: XdpContext) -> u32 {
    let step = receive(&mut Frame(&ctx), ctx.ingress_ifindex() as u32, &Kernel);
    verdict::<Addr4>(&ctx, step)
}

/// See `Phase::Receive6`.
#[xdp(frags)]
#[inline(always)]
pub fn onearm_receive6(ctx: XdpContext) -> u32 {
    let step = receive6(&mut Frame(&ctx), ctx.ingress_ifindex() as u32, &Kernel);
    verdict::<Addr>(&ctx, step)
}

/// Programs that run a phase on what the one before left.
macro_rules! phases {
    ($($name:ident: $family:ty = |$frame:pat_param, $work:ident| $run:expr;)+) => {
        $(
            /// See `Phase`.
            #[xdp(frags)]
            #[inline(always)]
            pub fn $name(ctx: XdpContext) -> u32 {
                let Some($work) = maps::work() else {
                    return xdp_action::XDP_DROP;
                };
                let $frame = &mut Frame(&ctx);
                let step = $run;
                verdict::<$family>(&ctx, step)
            }
        )+
    };
}

phases! {
    onearm_arp: Addr4 = |frame, work| arp(frame, work, &Kernel);
    onearm_miss: Addr4 = |frame, work| miss::<Addr4, _, _>(frame, work, &Kernel);
    onearm_schedule: Addr4 = |_, work| schedule(work, &Kernel);
    onearm_evict: Addr4 = |_, work| {
        maps::repeat(evict::begin::<Addr4, _>(work, &Kernel), maps::look_for_room::<Addr4>);
        evict::end::<Addr4, _>(work, &Kernel)
    };
    onearm_create: Addr4 = |_, work| create::<Addr4, _>(work, &Kernel);
    onearm_forward: Addr4 = |frame, work| forward::<Addr4, _, _>(frame, work, &Kernel);
    onearm_direct: Addr4 = |frame, work| direct::<Addr4, _, _>(frame, work, &Kernel);
    onearm_direct_forward: Addr4 = |frame, work| direct_forward::<Addr4, _, _>(frame, work, &Kernel);
    onearm_mss: Addr4 = |frame, work| mss::<Addr4, _, _>(frame, work, &Kernel);
    onearm_answer: Addr4 = |frame, work| answer::<Addr4, _, _>(frame, work, &Kernel);
    onearm_transit: Addr4 = |frame, work| transit::<Addr4, _, _>(frame, work, &Kernel);
    onearm_relay: Addr4 = |frame, work| relay::<Addr4, _, _>(frame, work, &Kernel);
    onearm_search: Addr4 = |_, work| {
        maps::repeat(search::begin(work, &Kernel), maps::look_for_port::<Addr4>);
        search::end(work, &Kernel)
    };
    onearm_extensions6: Addr = |frame, work| walk_extensions(frame, work);
    onearm_lookup6: Addr = |frame, work| lookup::<Addr, _, _>(frame, work, &Kernel);
    onearm_options: Addr4 = |frame, work| walk_options(frame, work);
    onearm_lookup: Addr4 = |frame, work| lookup::<Addr4, _, _>(frame, work, &Kernel);
    onearm_fragment: Addr4 = |frame, work| fragment::<Addr4, _, _>(frame, work, &Kernel);
    onearm_icmp: Addr4 = |frame, work| icmp_error::<Addr4, _, _>(frame, work, &Kernel);
    onearm_nd: Addr = |frame, work| nd(frame, work, &Kernel);
    onearm_miss6: Addr = |frame, work| miss::<Addr, _, _>(frame, work, &Kernel);
    onearm_schedule6: Addr = |_, work| schedule(work, &Kernel);
    onearm_evict6: Addr = |_, work| {
        maps::repeat(evict::begin::<Addr, _>(work, &Kernel), maps::look_for_room::<Addr>);
        evict::end::<Addr, _>(work, &Kernel)
    };
    onearm_create6: Addr = |_, work| create::<Addr, _>(work, &Kernel);
    onearm_forward6: Addr = |frame, work| forward::<Addr, _, _>(frame, work, &Kernel);
    onearm_direct6: Addr = |frame, work| direct::<Addr, _, _>(frame, work, &Kernel);
    onearm_direct_forward6: Addr = |frame, work| direct_forward::<Addr, _, _>(frame, work, &Kernel);
    onearm_mss6: Addr = |frame, work| mss::<Addr, _, _>(frame, work, &Kernel);
    onearm_answer6: Addr = |frame, work| answer::<Addr, _, _>(frame, work, &Kernel);
    onearm_transit6: Addr = |frame, work| transit::<Addr, _, _>(frame, work, &Kernel);
    onearm_relay6: Addr = |frame, work| relay::<Addr, _, _>(frame, work, &Kernel);
    onearm_search6: Addr = |_, work| {
        maps::repeat(search::begin(work, &Kernel), maps::look_for_port::<Addr>);
        search::end(work, &Kernel)
    };
    onearm_fragment6: Addr = |frame, work| fragment::<Addr, _, _>(frame, work, &Kernel);
    onearm_icmp6: Addr = |frame, work| icmp_error::<Addr, _, _>(frame, work, &Kernel);
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
