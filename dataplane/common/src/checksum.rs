//! Internet checksums, changed in place (RFC 1624, equation 3) or made anew.

/// Sum of the changes of several 16-bit fields, to be applied to any checksum that covers them.
///
/// Fields are taken as they stand in the packet: ones' complement addition does not mind the byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change(u32);

impl Change {
    /// Nothing changes.
    #[inline(always)]
    pub const fn new() -> Self {
        Self(0)
    }

    /// A 16-bit field changes.
    #[inline(always)]
    #[must_use]
    pub const fn u16(self, old: u16, new: u16) -> Self {
        Self(self.0 + !old as u32 + new as u32)
    }

    /// A 32-bit field changes.
    #[inline(always)]
    #[must_use]
    pub const fn u32(self, old: u32, new: u32) -> Self {
        self.u16(old as u16, new as u16)
            .u16((old >> 16) as u16, (new >> 16) as u16)
    }

    /// The changes of both.
    #[inline(always)]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The new value of a checksum field. At most 2^15 fields may have changed.
    #[inline(always)]
    #[must_use]
    pub const fn apply(self, checksum: u16) -> u16 {
        !fold(!checksum as u32 + self.0)
    }

    /// The same for the UDP field: 0 says "no checksum" and stays, a result of 0 is sent as 0xffff (RFC 768).
    #[inline(always)]
    #[must_use]
    pub const fn apply_udp(self, checksum: u16) -> u16 {
        if checksum == 0 {
            return 0;
        }
        match self.apply(checksum) {
            0 => 0xffff,
            new => new,
        }
    }
}

/// Folds a sum of 16-bit words into 16 bits.
#[inline(always)]
pub const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The two halves of a word, added.
#[inline(always)]
pub const fn halves(word: u32) -> u32 {
    (word & 0xffff) + (word >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn whole(words: &[u16]) -> u16 {
        !fold(words.iter().map(|w| u32::from(*w)).sum())
    }

    proptest! {
        #[test]
        fn b48_a_changed_checksum_equals_one_made_anew(
            old in prop::collection::vec(prop_oneof![Just(0u16), Just(0xffff), any::<u16>()], 12),
            new in prop::array::uniform4(prop_oneof![Just(0u16), Just(0xffff), Just(0xfffe), any::<u16>()]),
        ) {
            let mut changed: Vec<u16> = old.clone();
            changed[..4].copy_from_slice(&new);
            let change = Change::new()
                .u32(u32::from(old[0]) | u32::from(old[1]) << 16, u32::from(new[0]) | u32::from(new[1]) << 16)
                .u16(old[2], new[2])
                .u16(old[3], new[3]);
            // A sum of nothing but zeros does not occur in a packet.
            prop_assume!(old.iter().any(|w| *w != 0) && changed.iter().any(|w| *w != 0));
            prop_assert_eq!(change.apply(whole(&old)), whole(&changed));
        }

        #[test]
        fn b46_no_udp_checksum_stays_none_and_a_sum_of_zero_is_sent_as_ffff(old: u16, new: u16, checksum in 1u16..) {
            let change = Change::new().u16(old, new);
            prop_assert_eq!(change.apply_udp(0), 0);
            let want = change.apply(checksum);
            prop_assert_eq!(change.apply_udp(checksum), if want == 0 { 0xffff } else { want });
        }
    }
}
