//! Frames between the lab and the agent inside a VM.
//!
//! ```text
//! length of what follows (u32 LE) | kind (u8) | number of the command (u32 LE) | payload
//! ```

use std::io::{self, Read, Write};

/// Longest payload of a frame, in bytes; a longer one is a broken stream.
const LONGEST: usize = 1 << 20;
/// Payload of a frame that carries a stream, in bytes, at most.
pub(super) const CHUNK: usize = 32 << 10;
/// Kind and number.
const HEAD: usize = 5;

/// What a frame says. Numbers are the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// To the agent: answer.
    Ping = 0,
    /// To the agent: start the command of the payload (JSON array of strings).
    Start = 1,
    /// To the agent: bytes for its standard input.
    Input = 2,
    /// To the agent: its standard input ends.
    InputEnds = 3,
    /// To the agent: kill it.
    Kill = 4,
    /// From the agent: the answer to [`Kind::Ping`], with its payload.
    Pong = 16,
    /// From the agent: bytes of standard output.
    Out = 17,
    /// From the agent: bytes of standard error.
    Err = 18,
    /// From the agent: it ended with this status (i32 LE; 128 + signal).
    Ended = 19,
    /// From the agent: it could not be started, and why.
    Refused = 20,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Ping,
        Self::Start,
        Self::Input,
        Self::InputEnds,
        Self::Kill,
        Self::Pong,
        Self::Out,
        Self::Err,
        Self::Ended,
        Self::Refused,
    ];

    fn from_wire(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    /// Which command it is about.
    pub(super) number: u32,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    pub(super) fn new(kind: Kind, number: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            kind,
            number,
            payload: payload.into(),
        }
    }

    /// Writes it whole.
    ///
    /// # Errors
    /// Of the stream, or when the payload is longer than a frame carries.
    pub(super) fn send(&self, to: &mut impl Write) -> io::Result<()> {
        let length = self.payload.len();
        if length > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "payload too long"));
        }
        let length = u32::try_from(length + HEAD).map_err(io::Error::other)?;
        let mut bytes = Vec::with_capacity(self.payload.len() + HEAD + 4);
        bytes.extend(length.to_le_bytes());
        bytes.push(self.kind as u8);
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(&self.payload);
        to.write_all(&bytes)?;
        to.flush()
    }

    /// Reads one.
    ///
    /// # Errors
    /// Of the stream, at its end, or when it is broken.
    pub(super) fn receive(from: &mut impl Read) -> io::Result<Self> {
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "a broken frame");
        let mut word = [0; 4];
        from.read_exact(&mut word)?;
        let length = u32::from_le_bytes(word) as usize;
        if !(HEAD..=LONGEST + HEAD).contains(&length) {
            return Err(broken());
        }
        let mut kind = [0; 1];
        from.read_exact(&mut kind)?;
        let kind = Kind::from_wire(kind[0]).ok_or_else(broken)?;
        from.read_exact(&mut word)?;
        let mut payload = vec![0; length - HEAD];
        from.read_exact(&mut payload)?;
        Ok(Self {
            kind,
            number: u32::from_le_bytes(word),
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_read_is_the_frame_sent() {
        for kind in Kind::ALL {
            for length in [0, 1, CHUNK, LONGEST] {
                let frame = Frame::new(kind, 7, vec![0x5a; length]);
                let mut bytes = Vec::new();
                frame.send(&mut bytes).unwrap();
                assert_eq!(Frame::receive(&mut bytes.as_slice()).unwrap(), frame);
            }
        }
    }

    #[test]
    fn a_broken_stream_is_an_error_and_takes_no_memory() {
        let too_long = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0];
        let too_short = [1, 0, 0, 0, 0];
        let no_kind = [5, 0, 0, 0, 99, 0, 0, 0, 0];
        for bytes in [&too_long[..], &too_short, &no_kind] {
            let error = Frame::receive(&mut &bytes[..]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }
}
