//! Fragmenting an IPv4 packet (RFC 791 §3.2).

/// Ethernet header without a tag, and a tag, bytes.
const ETHERNET: usize = 14;
const TAG: usize = 4;
const VLAN: [u8; 2] = [0x81, 0x00];
const IPV4: [u8; 2] = [0x08, 0x00];
/// IPv4 header without options, bytes.
const HEADER: usize = 20;
const MORE: u16 = 0x2000;
const DONT: u16 = 0x4000;
const OFFSET: u16 = 0x1fff;
/// Bit of an option's type: it goes into every fragment.
const COPIED: u8 = 0x80;
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;

/// The frame's packet in pieces of at most `most` bytes each, in order; none if the frame is not fit for that.
pub(super) fn divide(frame: &[u8], most: usize) -> Vec<Vec<u8>> {
    pieces(frame, most).unwrap_or_default()
}

fn pieces(frame: &[u8], most: usize) -> Option<Vec<Vec<u8>>> {
    let l3 = match frame.get(12..14)? {
        t if t == VLAN => ETHERNET + TAG,
        _ => ETHERNET,
    };
    let packet = frame.get(l3..)?;
    let word = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    let (first, total, flags) = (*packet.first()?, usize::from(word(2)?), word(6)?);
    let ihl = usize::from(first & 15) * 4;
    let sane = frame.get(l3 - 2..l3)? == IPV4 && first >> 4 == 4 && ihl >= HEADER && flags & DONT == 0;
    let payload = packet.get(ihl..total).filter(|_| sane)?;
    let head = packet.get(..ihl)?;
    let later = [&head[..HEADER], &copied(&head[HEADER..])].concat();
    let mut all = Vec::new();
    let mut at = 0;
    while at < payload.len() {
        let header = if at == 0 { head } else { &later };
        let room = most.checked_sub(header.len())?;
        let last = payload.len() - at <= room;
        let len = if last { payload.len() - at } else { room & !7 };
        if len == 0 {
            return None;
        }
        let units = u16::try_from(at / 8).ok()?;
        let more = if last { flags & MORE } else { MORE };
        let offset = (flags & OFFSET).checked_add(units).filter(|n| *n <= OFFSET)?;
        all.push(piece(
            &frame[..l3],
            header,
            offset | more,
            &payload[at..at + len],
        )?);
        at += len;
    }
    Some(all)
}

fn piece(link: &[u8], header: &[u8], fragment: u16, payload: &[u8]) -> Option<Vec<u8>> {
    let mut header = header.to_vec();
    let total = u16::try_from(header.len() + payload.len()).ok()?;
    header[0] = 0x40 | u8::try_from(header.len() / 4).ok()?;
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[6..8].copy_from_slice(&fragment.to_be_bytes());
    header[10..12].fill(0);
    let checksum = checksum(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Some([link, &header, payload].concat())
}

fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks_exact(2)
        .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
    !onearm_dataplane_common::checksum::fold(words.sum())
}

/// The options that go into later fragments, padded.
fn copied(options: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(kind) = options.get(at).copied().filter(|kind| *kind != END_OF_OPTIONS) {
        if kind == NO_OPERATION {
            at += 1;
            continue;
        }
        let len = options.get(at + 1).map_or(0, |len| usize::from(*len));
        let Some(option) = options.get(at..at + len).filter(|_| len >= 2) else {
            break;
        };
        if kind & COPIED != 0 {
            all.extend(option);
        }
        at += len;
    }
    all.resize(all.len().next_multiple_of(4), END_OF_OPTIONS);
    all
}

#[cfg(test)]
mod tests {
    use super::{checksum, divide};
    use proptest::prelude::*;

    /// A packet with a tag or without, of the given options, flags word and payload.
    fn frame(tagged: bool, options: &[u8], fragment: u16, payload: &[u8]) -> Vec<u8> {
        let mut header = vec![
            0x45, 7, 0, 0, 0x12, 0x34, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        header.extend(options);
        header[0] = 0x40 | u8::try_from(header.len() / 4).unwrap();
        let total = u16::try_from(header.len() + payload.len()).unwrap();
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[6..8].copy_from_slice(&fragment.to_be_bytes());
        let sum = checksum(&header).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        let link: &[u8] = if tagged { &[0x81, 0, 0, 10, 8, 0] } else { &[8, 0] };
        [&[2; 12], link, &header, payload].concat()
    }

    /// (offset in bytes, more, payload) of a piece whose header is right.
    fn read(piece: &[u8], l3: usize) -> (usize, bool, Vec<u8>) {
        let packet = &piece[l3..];
        let ihl = usize::from(packet[0] & 15) * 4;
        assert_eq!(checksum(&packet[..ihl]), 0);
        let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        assert_eq!(usize::from(word(2)), packet.len());
        assert_eq!((word(4), packet[1], packet[8], packet[9]), (0x1234, 7, 64, 17));
        (
            usize::from(word(6) & 0x1fff) * 8,
            word(6) & 0x2000 != 0,
            packet[ihl..].to_vec(),
        )
    }

    proptest! {
        #[test]
        fn pieces_fit_and_make_the_packet_again(
            tagged: bool, len in 1_usize..9_000, most in 68_usize..1_500, offset in 0_u16..7_000, more: bool,
        ) {
            let payload: Vec<u8> = (0..len).map(|n| n.to_le_bytes()[0]).collect();
            // Padding behind the packet is no part of it.
            let whole = [frame(tagged, &[], offset | if more { 0x2000 } else { 0 }, &payload), vec![9; 6]].concat();
            let l3 = if tagged { 18 } else { 14 };
            let pieces = divide(&whole, most);
            let mut at = 0;
            for (n, piece) in pieces.iter().enumerate() {
                prop_assert!(piece.len() - l3 <= most && piece[..l3] == whole[..l3]);
                let (begins, goes_on, bytes) = read(piece, l3);
                prop_assert_eq!(begins, usize::from(offset) * 8 + at);
                let last = n + 1 == pieces.len();
                prop_assert_eq!(goes_on, !last || more);
                prop_assert!(last || bytes.len() % 8 == 0);
                prop_assert_eq!(&bytes, &payload[at..at + bytes.len()]);
                at += bytes.len();
            }
            prop_assert_eq!(at, len);
        }

        #[test]
        fn nothing_panics(bytes: Vec<u8>, most: u16) {
            divide(&bytes, usize::from(most));
        }
    }

    #[test]
    fn b72_options_that_are_to_be_copied_are_in_every_piece_and_no_other() {
        // Record route, which is not copied; router alert, which is.
        let options = [7, 7, 4, 0, 0, 0, 0, 1, 148, 4, 0, 0];
        let pieces = divide(&frame(false, &options, 0, &[5; 200]), 100);
        assert_eq!(pieces[0][34..46], options);
        assert!(pieces.len() > 2);
        for piece in &pieces[1..] {
            assert_eq!((piece[14], &piece[34..38]), (0x46, &[148, 4, 0, 0][..]));
            read(piece, 14);
        }
    }

    #[test]
    fn what_must_not_or_cannot_be_divided_is_not() {
        assert!(divide(&frame(false, &[], 0x4000, &[1; 100]), 68).is_empty());
        assert!(divide(&frame(false, &[], 0, &[1; 100]), 27).is_empty());
        let mut six = frame(false, &[], 0, &[1; 100]);
        six[12..14].copy_from_slice(&[0x86, 0xdd]);
        assert!(divide(&six, 68).is_empty());
        assert!(
            divide(&frame(false, &[], 8_190, &[1; 100]), 68).is_empty(),
            "beyond the longest"
        );
    }
}
