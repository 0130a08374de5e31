//! What is said, and what comes back.

/// Bytes of a word.
pub(super) const LEN: usize = 32;

/// One word. A question names nobody as server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// Which set of connections.
    pub(super) set: u64,
    /// Which connection of the set.
    pub(super) connection: u32,
    /// Which word of the connection, from 1.
    pub(super) number: u64,
    /// Whether the server shall close the connection after its answer.
    pub(super) last: bool,
    /// Who answers; 0 in a question.
    pub(super) server: u8,
    /// Which of the server's connections this is; 0 in a question, and of UDP.
    pub(super) serial: u32,
}

impl Word {
    /// As bytes, with a check of them.
    pub(super) fn emit(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[0..8].copy_from_slice(&self.set.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.connection.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.number.to_be_bytes());
        bytes[20] = u8::from(self.last);
        bytes[21] = self.server;
        bytes[24..28].copy_from_slice(&self.serial.to_be_bytes());
        let check = check(&bytes[..28]);
        bytes[28..].copy_from_slice(&check.to_be_bytes());
        bytes
    }

    /// Reads one; nothing if a byte is not as it was.
    pub(super) fn parse(bytes: &[u8; LEN]) -> Option<Self> {
        let four = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let eight = |at: usize| u64::from(four(at)) << 32 | u64::from(four(at + 4));
        (four(28) == check(&bytes[..28])).then(|| Self {
            set: eight(0),
            connection: four(8),
            number: eight(12),
            last: bytes[20] != 0,
            server: bytes[21],
            serial: four(24),
        })
    }
}

/// FNV-1a.
fn check(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| {
        (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD: Word = Word {
        set: 0x1234_5678_9abc_def0,
        connection: 77,
        number: 0x1_0000_0003,
        last: true,
        server: 2,
        serial: 41,
    };

    #[test]
    fn a_word_reads_back() {
        assert_eq!(Word::parse(&WORD.emit()), Some(WORD));
    }

    #[test]
    fn a_word_with_any_changed_byte_does_not_read() {
        for at in 0..LEN {
            let mut bytes = WORD.emit();
            bytes[at] ^= 0x20;
            assert_eq!(Word::parse(&bytes), None, "byte {at}");
        }
    }
}
