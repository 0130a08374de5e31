//! The consumer of what programs say of flows: the ring buffer `FLOW_TELLS`.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use aya::maps::{MapData, PerCpuArray, RingBuf};
use onearm_dataplane_common::counter::Counter;
use onearm_dataplane_common::tell::{ENDED4, ENDED6, LOOK};

use super::record::{Place, Tell};
use crate::counters::summed;
use crate::error::Result;
use crate::flows::{FlowTable, entry4, entry6};
use crate::kernel_maps::Named;

/// What of [`TellRing`] the kernel holds.
pub(crate) struct TellMaps {
    pub(crate) ring: RingBuf<MapData>,
    pub(crate) counters: Named<PerCpuArray<MapData, u64>>,
}

/// What the programs say of flows, in the order in which it happened to each. They say nothing until [`TellRing::listen`].
///
/// A program never waits for room: what it finds none for is lost, and [`TellRing::lost`] counts it.
pub struct TellRing {
    maps: TellMaps,
    flows: Arc<FlowTable>,
}

impl fmt::Debug for TellRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TellRing")
    }
}

impl TellRing {
    pub(crate) fn new(maps: TellMaps, flows: Arc<FlowTable>) -> Self {
        Self { maps, flows }
    }

    /// Whether the programs write. A packet that tells nothing costs the same either way.
    pub fn listen(&self, wanted: bool) {
        self.flows.set_listening(wanted);
    }

    /// Takes what is there, at most `most` records, and returns how many that were; fewer than `most`: the ring was empty once.
    ///
    /// The kernel makes the descriptor readable when a record comes after that.
    pub fn drain(&mut self, most: usize, mut tell: impl FnMut(Tell)) -> usize {
        let mut taken = 0;
        while taken < most
            && let Some(record) = self.maps.ring.next()
        {
            taken += 1;
            if let Some(told) = parse(&record, &self.flows) {
                tell(told);
            } else {
                tracing::debug!(len = record.len(), "a record of another length in the ring");
            }
        }
        taken
    }

    /// Records the ring had no room for since the programs were loaded.
    ///
    /// # Errors
    /// [`crate::Error::MapAccess`].
    pub fn lost(&self) -> Result<u64> {
        let cpus = self.maps.counters.values(Counter::TellsLost.index())?;
        Ok(summed(&cpus))
    }
}

impl AsFd for TellRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.maps.ring.as_fd()
    }
}

impl Drop for TellRing {
    fn drop(&mut self) {
        self.listen(false);
    }
}

/// Reads a record as it lies in the ring.
fn parse(bytes: &[u8], flows: &FlowTable) -> Option<Tell> {
    let (words, _) = bytes.as_chunks();
    let word = |n: usize| words.get(n).map_or(0, |word| u64::from_ne_bytes(*word));
    #[expect(clippy::cast_possible_truncation, reason = "two numbers in one word")]
    let place = Place {
        v6: word(0) >> 32 != 0,
        at: word(0) as u32,
    };
    let forward = match words.len() {
        LOOK => return Some(Tell::Look(place)),
        ENDED4 => entry4(std::array::from_fn(|n| word(1 + n))),
        ENDED6 => entry6(std::array::from_fn(|n| word(1 + n))),
        _ => return None,
    };
    let record = flows.record(&forward, None);
    Some(Tell::Ended { place, record })
}

#[cfg(test)]
mod tests {
    use super::{Place, Tell, parse};
    use crate::flows::FlowState;
    use crate::flows::tests::{flow_table, pair, six};
    use crate::mapping::word_of;
    use crate::sync::Record;
    use onearm_dataplane_common::addr::{Addr4, Address};
    use onearm_dataplane_common::flow::FlowEntry;
    use onearm_dataplane_common::maps::proto;
    use onearm_dataplane_common::tell::place;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn records_become_what_they_tell_and_others_nothing() {
        let at = 0xffff_fff3;
        assert_eq!(
            parse(&bytes(&[place(true, at)]), &flow_table()),
            Some(Tell::Look(Place { v6: true, at }))
        );
        let (four, _) = pair(1, proto::TCP, FlowState::Closing, (3, 4));
        let (six, _) = six(pair(1, proto::TCP, FlowState::Closing, (3, 4)));
        let narrow = FlowEntry::<Addr4> {
            saddr: Addr4::narrow(four.saddr),
            daddr: Addr4::narrow(four.daddr),
            sport: four.sport,
            dport: four.dport,
            proto: four.proto,
            flags: four.flags,
            own: four.own,
            other: four.other,
            new_saddr: Addr4::narrow(four.new_saddr),
            new_daddr: Addr4::narrow(four.new_daddr),
            new_sport: four.new_sport,
            new_dport: four.new_dport,
            hop: four.hop,
            partner: four.partner,
            last_seen: four.last_seen,
            idle_ticks: four.idle_ticks,
            expected_ack: four.expected_ack,
            server: four.server,
            stats: four.stats,
            packets: four.packets,
            incarnation: four.incarnation,
            _rest: [],
        };
        let words4: Vec<u64> = (0..8).map(|n| word_of(&narrow, n)).collect();
        let words6: Vec<u64> = (0..16).map(|n| word_of(&six, n)).collect();
        for (v6, entry, words) in [(false, four, words4), (true, six, words6)] {
            let record = bytes(&[&[place(v6, 7)], &words[..]].concat());
            let told = Tell::Ended {
                place: Place { v6, at: 7 },
                record: Record::of(&entry, None),
            };
            assert_eq!(parse(&record, &flow_table()), Some(told));
        }
        for len in [0, 2, 8, 10, 16, 18] {
            assert_eq!(parse(&bytes(&vec![1; len]), &flow_table()), None, "{len} words");
        }
    }
}
