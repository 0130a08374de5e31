//! Frames in the kernel.

use aya_ebpf::{
    helpers::{bpf_xdp_adjust_head, bpf_xdp_adjust_tail, bpf_xdp_get_buff_len},
    programs::{TcContext, XdpContext},
};
use onearm_dataplane_common::packet::{MAX_OFFSET, Packet};

/// A received frame.
pub struct Frame<'c>(pub &'c XdpContext);

/// The four bytes that user space puts before a frame.
#[inline(always)]
pub fn note(ctx: &XdpContext) -> Option<*mut u32> {
    let start = ctx.metadata();
    if start + size_of::<u32>() > ctx.data() {
        None
    } else {
        Some(start as *mut u32)
    }
}

#[inline(always)]
fn checked(data: usize, data_end: usize, offset: usize, len: usize) -> Option<*mut u8> {
    // One pointer, compared and used as such, or the verifier loses track of it.
    let start = data + (offset & MAX_OFFSET);
    if start + len > data_end {
        None
    } else {
        Some(start as *mut u8)
    }
}

// SAFETY: the verifier checks it.
unsafe impl Packet for Frame<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        // SAFETY: a valid context.
        unsafe { bpf_xdp_get_buff_len(self.0.ctx) as usize }
    }

    #[inline(always)]
    fn holds(&self, len: usize) -> bool {
        len <= self.0.data_end() - self.0.data() || len <= self.len()
    }

    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        checked(self.0.data(), self.0.data_end(), offset, len)
    }

    #[inline(always)]
    fn note(&self) -> u32 {
        // SAFETY: checked just now.
        note(self.0).map_or(0, |note| unsafe { *note })
    }

    #[inline(always)]
    fn move_start(&mut self, by: isize) -> bool {
        // SAFETY: a valid context; packet pointers are taken anew afterwards.
        unsafe { bpf_xdp_adjust_head(self.0.ctx, -by as i32) == 0 }
    }

    #[inline(always)]
    fn set_len(&mut self, len: usize) -> bool {
        let by = len as i64 - self.len() as i64;
        // SAFETY: a valid context; packet pointers are taken anew afterwards.
        by == 0 || unsafe { bpf_xdp_adjust_tail(self.0.ctx, by as i32) == 0 }
    }
}

/// A frame on its way out of the kernel; read only.
#[allow(dead_code, reason = "the measuring object has no egress gate")]
pub struct Egress<'c>(pub &'c TcContext);

// SAFETY: the verifier checks it.
unsafe impl Packet for Egress<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.0.len() as usize
    }

    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        checked(self.0.data(), self.0.data_end(), offset, len)
    }

    #[inline(always)]
    fn move_start(&mut self, _by: isize) -> bool {
        false
    }

    #[inline(always)]
    fn set_len(&mut self, _len: usize) -> bool {
        false
    }
}
