#![no_std]
#![no_main]
#![doc = "The XDP programs."]
use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};

/// Passes every frame. On the far end of a veth pair it gives XDP_TX and XDP_REDIRECT a receive context.
#[xdp]
pub fn xdp_pass(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_PASS
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}
