//! What the programs want to be known: a ring buffer, read by one task.

use std::fmt;
use std::io;
use std::net::IpAddr;

use aya::maps::{MapData, RingBuf};
use onearm_dataplane_common::addr::Addr;
use onearm_dataplane_common::event::{Event as Record, kind};
use serde::Serialize;
use tokio::io::unix::AsyncFd;

use crate::error::{Error, Result};
use crate::next_hops::Mac;
use crate::sys;
use crate::tables::narrow;

/// Something a program saw. Each kind comes at most about once a second for one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A packet was dropped because an on-link address is not resolved: resolve it.
    NeighbourWanted {
        /// Leg.
        leg: u32,
        /// Address.
        addr: IpAddr,
    },
    /// A packet was dropped because its next hop is not resolved.
    NextHopWanted {
        /// Leg it came in by.
        leg: u32,
        /// Where it was to go.
        addr: IpAddr,
        /// Index of the next hop.
        next_hop: u32,
    },
    /// Somebody else sent ARP with an owned sender address.
    AddressConflict {
        /// Leg.
        leg: u32,
        /// The owned address.
        addr: IpAddr,
        /// Who.
        mac: Mac,
    },
    /// New flows are refused: no free entry in the flow table.
    TableFull {
        /// Stats index of the service.
        service: u32,
    },
    /// New flows are refused: too many half-open ones.
    HalfOpenFull {
        /// Stats index of the service.
        service: u32,
    },
    /// New flows are refused: no free source port.
    NoPort {
        /// Stats index of the service.
        service: u32,
        /// Server.
        server: IpAddr,
    },
    /// New flows are refused: no live server.
    NoServer {
        /// Stats index of the service.
        service: u32,
        /// VIP.
        vip: IpAddr,
    },
    /// Half-open flows give way to new ones: their budget is used up.
    HalfOpenEvicted {
        /// Stats index of the service whose flow needed the room.
        service: u32,
    },
    /// New flows are refused: the service's `max_connections` or `max_new_per_second`.
    LimitReached {
        /// Stats index of the service.
        service: u32,
        /// VIP.
        vip: IpAddr,
    },
    /// A packet that a leg's interface put together (LRO, GRO) is refused: too long for its way, or meant for a tunnel.
    SuperPacket {
        /// Leg.
        leg: u32,
    },
    /// A packet was dropped because a leg's driver split its headers.
    HeadersInPieces {
        /// Leg.
        leg: u32,
    },
    /// A kind this version does not know.
    Unknown {
        /// Its number.
        kind: u32,
    },
}

/// An event with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timed {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

impl Timed {
    fn of(record: &Record) -> Self {
        let addr = narrow(record.addr);
        let leg = record.leg;
        let event = match record.kind {
            kind::NEIGHBOUR_WANTED => Event::NeighbourWanted { leg, addr },
            kind::NEXT_HOP_WANTED => Event::NextHopWanted {
                leg,
                addr,
                next_hop: record.detail,
            },
            kind::ADDRESS_CONFLICT => Event::AddressConflict {
                leg,
                addr,
                mac: record.mac,
            },
            kind::TABLE_FULL => Event::TableFull {
                service: record.detail,
            },
            kind::HALF_OPEN_FULL => Event::HalfOpenFull {
                service: record.detail,
            },
            kind::NO_PORT => Event::NoPort {
                service: record.detail,
                server: addr,
            },
            kind::NO_SERVER => Event::NoServer {
                service: record.detail,
                vip: addr,
            },
            kind::HALF_OPEN_EVICTED => Event::HalfOpenEvicted {
                service: record.detail,
            },
            kind::LIMIT_REACHED => Event::LimitReached {
                service: record.detail,
                vip: addr,
            },
            kind::SUPER_PACKET => Event::SuperPacket { leg },
            kind::HEADERS_IN_PIECES => Event::HeadersInPieces { leg },
            other => Event::Unknown { kind: other },
        };
        Self {
            time_ns: record.time,
            event,
        }
    }

    /// Reads a record as it lies in the ring; `None` if it is too short.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let record = Record {
            kind: word(0)?,
            leg: word(4)?,
            addr: Addr::from_bytes(*bytes.get(8..)?.first_chunk()?),
            detail: word(24)?,
            mac: *bytes.get(28..)?.first_chunk()?,
            _pad: [0; 6],
            time: u64::from_ne_bytes(*bytes.get(40..)?.first_chunk()?),
        };
        Some(Self::of(&record))
    }
}

/// The consumer. Events the ring had no room for are counted by the programs (`event_lost`).
pub struct Events {
    ring: RingBuf<MapData>,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

impl Events {
    pub(crate) fn new(ring: RingBuf<MapData>) -> Self {
        Self { ring }
    }

    /// The next event that is there already.
    pub fn try_next(&mut self) -> Option<Timed> {
        loop {
            let record = self.ring.next()?;
            if let Some(event) = Timed::parse(&record) {
                return Some(event);
            }
            tracing::debug!(len = record.len(), "short record in the ring");
        }
    }

    /// Makes a stream of it; call it inside a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the descriptor cannot be polled.
    pub fn into_stream(self) -> Result<EventStream> {
        let fd = sys::poll_ring(self.ring).map_err(|source| Error::Kernel {
            operation: "polling the event ring",
            source,
        })?;
        Ok(EventStream { fd })
    }
}

/// The consumer as a task awaits it.
pub struct EventStream {
    fd: AsyncFd<RingBuf<MapData>>,
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventStream")
    }
}

impl EventStream {
    /// The next event. Cancel-safe: an event is taken from the ring in the same poll that returns it.
    ///
    /// # Errors
    /// [`Error::Kernel`] if polling fails.
    pub async fn next(&mut self) -> Result<Timed> {
        let failed = |source: io::Error| Error::Kernel {
            operation: "polling the event ring",
            source,
        };
        loop {
            let mut ready = self.fd.readable_mut().await.map_err(failed)?;
            while let Some(record) = ready.get_inner_mut().next() {
                if let Some(event) = Timed::parse(&record) {
                    return Ok(event);
                }
            }
            ready.clear_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, Timed};
    use onearm_dataplane_common::event::{Event as Record, kind};
    use std::net::IpAddr;

    fn bytes(record: &Record) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(record.kind.to_ne_bytes());
        bytes.extend(record.leg.to_ne_bytes());
        bytes.extend(record.addr.bytes());
        bytes.extend(record.detail.to_ne_bytes());
        bytes.extend(record.mac);
        bytes.extend([0; 6]);
        bytes.extend(record.time.to_ne_bytes());
        bytes
    }

    #[test]
    fn every_kind_of_record_becomes_its_event() {
        let addr: IpAddr = "2001:db8:100::100".parse().unwrap();
        let mac = [2, 0, 0, 0, 0, 7];
        let table = [
            (kind::NEIGHBOUR_WANTED, Event::NeighbourWanted { leg: 3, addr }),
            (
                kind::NEXT_HOP_WANTED,
                Event::NextHopWanted {
                    leg: 3,
                    addr,
                    next_hop: 9,
                },
            ),
            (
                kind::ADDRESS_CONFLICT,
                Event::AddressConflict { leg: 3, addr, mac },
            ),
            (kind::TABLE_FULL, Event::TableFull { service: 9 }),
            (kind::HALF_OPEN_FULL, Event::HalfOpenFull { service: 9 }),
            (
                kind::NO_PORT,
                Event::NoPort {
                    service: 9,
                    server: addr,
                },
            ),
            (
                kind::NO_SERVER,
                Event::NoServer {
                    service: 9,
                    vip: addr,
                },
            ),
            (kind::HALF_OPEN_EVICTED, Event::HalfOpenEvicted { service: 9 }),
            (
                kind::LIMIT_REACHED,
                Event::LimitReached {
                    service: 9,
                    vip: addr,
                },
            ),
            (kind::SUPER_PACKET, Event::SuperPacket { leg: 3 }),
            (kind::HEADERS_IN_PIECES, Event::HeadersInPieces { leg: 3 }),
            (99, Event::Unknown { kind: 99 }),
        ];
        for (kind, event) in table {
            let record = Record {
                kind,
                leg: 3,
                addr: crate::tables::wide(addr),
                detail: 9,
                mac,
                _pad: [0; 6],
                time: 17,
            };
            assert_eq!(Timed::parse(&bytes(&record)), Some(Timed { time_ns: 17, event }));
        }
    }

    #[test]
    fn a_short_record_is_none() {
        let whole = bytes(&Record::default());
        for len in 0..whole.len() {
            assert_eq!(Timed::parse(&whole[..len]), None, "length {len}");
        }
    }
}
