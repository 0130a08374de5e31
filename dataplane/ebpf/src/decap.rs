#![no_std]
#![no_main]
#![doc = "The decapsulator of a server without a tunnel device: a thin shell around `onearm_dataplane_common::decap`."]

use aya_ebpf::{
    bindings::xdp_action,
    macros::{map, xdp},
    maps::{Array, HashMap, LpmTrie, PerCpuArray, lpm_trie::Key},
    programs::XdpContext,
};
use onearm_dataplane_common::{
    addr::Addr,
    decap::{MAX_FROM, MAX_VIPS, Settings, TALLIES, Tally, Told, Verdict, decapsulate},
};

#[path = "frame.rs"]
mod frame;
use frame::Frame;

#[map]
static SETTINGS: Array<Settings> = Array::with_max_entries(1, 0);
#[map]
static VIPS: HashMap<Addr, u32> = HashMap::with_max_entries(MAX_VIPS, 0);
#[map]
static FROM: LpmTrie<Addr, u32> = LpmTrie::with_max_entries(MAX_FROM, 1);
#[map]
static TALLY: PerCpuArray<u64> = PerCpuArray::with_max_entries(TALLIES.len() as u32, 0);

struct Kernel;

impl Told for Kernel {
    #[inline(always)]
    fn settings(&self) -> Option<Settings> {
        SETTINGS.get(0).copied()
    }

    #[inline(always)]
    fn is_vip(&self, addr: Addr) -> bool {
        // SAFETY: only whether it is there counts.
        unsafe { VIPS.get(&addr) }.is_some()
    }

    #[inline(always)]
    fn is_listed(&self, source: Addr) -> bool {
        FROM.get(&Key::new(128, source)).is_some()
    }

    #[inline(always)]
    fn tally(&self, what: Tally, n: u64) {
        if let Some(tally) = TALLY.get_ptr_mut(what as u32) {
            // SAFETY: this CPU's own value.
            unsafe { *tally += n }
        }
    }
}

/// Takes outer headers off what is for a VIP of this server.
#[xdp(frags)]
pub fn onearm_decap(ctx: XdpContext) -> u32 {
    match decapsulate(&mut Frame(&ctx), &Kernel) {
        Verdict::Pass => xdp_action::XDP_PASS,
        Verdict::Drop => xdp_action::XDP_DROP,
    }
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}
