//! Templates for the wrapper program.

use onearm_dataplane_common::{
    addr::Addr4,
    bench::{Bench, TEMPLATE_WORDS},
    checksum::halves,
    maps::Mac,
};

/// Bytes of every frame.
const LEN: u8 = 64;

/// What all frames of a run have in common; address and port of one side vary.
pub(crate) struct Template {
    pub(crate) to_mac: Mac,
    pub(crate) from_mac: Mac,
    /// The side that does not vary: address, port (native order).
    pub(crate) fixed: (Addr4, u16),
    /// First address of the side that varies, native order.
    pub(crate) base: u32,
    /// The destination varies.
    pub(crate) vary_destination: bool,
    /// TCP flags.
    pub(crate) flags: u8,
}

impl Template {
    /// The map entry.
    pub(crate) fn bench(&self, flows: u32, sequential: bool) -> Bench {
        let mut frame = [0u8; LEN as usize];
        frame[0..6].copy_from_slice(&self.to_mac);
        frame[6..12].copy_from_slice(&self.from_mac);
        frame[12..14].copy_from_slice(&[8, 0]);
        let total = u16::from(LEN - 14);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        // "Do not fragment": TCP finds out what its path takes (RFC 1191).
        frame[20..24].copy_from_slice(&[0x40, 0, 64, 6]);
        let (addr, port) = if self.vary_destination { (26, 34) } else { (30, 36) };
        frame[addr..addr + 4].copy_from_slice(&self.fixed.0.to_ne_bytes());
        frame[port..port + 2].copy_from_slice(&self.fixed.1.to_be_bytes());
        frame[46] = 0x50;
        frame[47] = self.flags;
        frame[48] = 0x20;
        let sum = |bytes: &[u8]| -> u32 {
            bytes
                .chunks_exact(2)
                .map(|pair| u32::from(u16::from_ne_bytes([pair[0], pair[1]])))
                .sum()
        };
        let pseudo = halves(self.fixed.0) + u32::from(6u16.to_be()) + u32::from((total - 20).to_be());
        let mut template = [0; TEMPLATE_WORDS];
        for (word, bytes) in template.iter_mut().zip(frame.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Bench {
            template,
            flows: u64::from(flows),
            sequential: u64::from(sequential),
            next: if sequential { 0 } else { 88_172_645_463_325_252 },
            base: self.base,
            len: u32::from(LEN),
            vary_destination: u32::from(self.vary_destination),
            ip_sum: fold_once(sum(&frame[14..34])),
            tcp_sum: fold_once(pseudo + sum(&frame[34..])),
            ..Bench::default()
        }
    }
}

/// Small enough to add a few words to.
fn fold_once(sum: u32) -> u32 {
    (sum & 0xffff) + (sum >> 16)
}
