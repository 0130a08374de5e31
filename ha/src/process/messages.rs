//! What the two processes tell each other: one JSON value a packet.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::announce::{AnnounceCounters, OwnedAddress};
use crate::auth::{Health, Spoken};
use crate::config::Config;
use crate::driver::{DriverCounters, Grants, PathView, PeerVoice, TermTimes, VoiceCounters, WireCounters};
use crate::election::{Alarm, ElectionCounters, ElectionStatus, Entry, LegFault, Transition, Unable};
use crate::units::MonoTime;
use crate::wire::Mac;

/// Most addresses of one [`ToHa::Owned`].
pub const OWNED_PER_MESSAGE: usize = 512;

/// Most entries of one [`ToMain::Recorded`]; one takes less than 600 bytes.
pub const RECORDED_PER_MESSAGE: usize = 64;

/// From the main process to the HA process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToHa {
    /// The main process is alive and means it: sent by the part of it that does the work, every
    /// [`super::HEARTBEAT_NANOS`].
    Heartbeat,
    /// First, or other, settings. Must have no [`Config::errors`]; one that has is refused with
    /// [`ToMain::ConfigRefused`].
    Configure(Box<Config>),
    /// A part of the owned set; the set is complete with the part that has `more = false`. See [`owned_messages`].
    Owned {
        /// At most [`OWNED_PER_MESSAGE`], in order of announcement.
        addresses: Vec<OwnedAddress>,
        /// Whether another part follows.
        more: bool,
    },
    /// The dataplane saw somebody else claim this owned address.
    ConflictSeen(IpAddr),
    /// What this node can do, as far as the main process knows: all bits but those of legs, witness and reception.
    Health(Health),
    /// Give ownership to the peer.
    HandOver {
        /// Even if the peer cannot take over: a peer that can is armed first.
        force: bool,
    },
    /// Ask the peer for ownership.
    TakeOver,
    /// Whether the programs know the peer's MAC on every leg. `true` until told otherwise.
    PeerLegs(bool),
    /// Whether the peer has this node's flows. `true` until told otherwise.
    PeerHasFlows(bool),
    /// [`ToMain::Flush`] of that number is done.
    Flushed(u64),
    /// Hand over if Active, then end; said once more: at once.
    Stop,
    /// Descriptors come with this packet: the map of the lease cell first if `lease` is set, then the XDP links, to be
    /// held instead of the ones before.
    Links {
        /// Whether the first descriptor is the lease map.
        lease: bool,
    },
}

/// The packets that carry the owned set `addresses`.
pub fn owned_messages(addresses: &[OwnedAddress]) -> Vec<ToHa> {
    let parts: Vec<_> = addresses.chunks(OWNED_PER_MESSAGE).collect();
    if parts.is_empty() {
        return vec![ToHa::Owned {
            addresses: Vec::new(),
            more: false,
        }];
    }
    let last = parts.len() - 1;
    parts
        .iter()
        .enumerate()
        .map(|(number, part)| ToHa::Owned {
            addresses: part.to_vec(),
            more: number != last,
        })
        .collect()
}

/// From the HA process to the main process. None of it is repeated when lost, except that a later [`Self::State`]
/// tells everything anew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToMain {
    /// Everything there is to know; on every change of role or leg, and every [`super::STATE_NANOS`]: the HA
    /// process's heartbeat.
    State(Box<HaState>),
    /// The role changed. To be logged by the main process: the HA thread writes no log.
    Transition(Transition),
    /// An operator may have to act.
    Alarm(Alarm),
    /// What [`ToHa::HandOver`] or [`ToHa::TakeOver`] asked for is not done.
    HandOverRefused(Unable),
    /// What was asked for waits until the Standby has the flows (`true`), or no more.
    HandOverWaits(bool),
    /// Have the peer told of all flows, and answer with [`ToHa::Flushed`] when it has them: it is to own them at once.
    Flush(u64),
    /// What was recorded, in order. Entries of a message that gets lost are missing: the numbers tell.
    Recorded {
        /// Entries told before the first of these, since the router began.
        from: u64,
        /// At most [`RECORDED_PER_MESSAGE`].
        entries: Vec<Entry>,
    },
    /// A configuration was not taken over, and why.
    ConfigRefused(Vec<String>),
}

/// The HA process as an operator sees it. All moments are of `CLOCK_MONOTONIC`, comparable with the main process's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HaState {
    /// When this was written.
    pub at: MonoTime,
    /// Role, leg fault, priorities, learned interval, lease deadline; `None` before the first configuration.
    pub election: Option<ElectionStatus>,
    /// Counters of the election.
    pub election_counters: ElectionCounters,
    /// Counters of the announcements.
    pub announce_counters: AnnounceCounters,
    /// Counters of received frames.
    pub wire_counters: WireCounters,
    /// Counters of the thread.
    pub driver_counters: DriverCounters,
    /// The leg's Ethernet address when last read.
    pub mac: Option<Mac>,
    /// What is wrong with the leg.
    pub leg_fault: Option<LegFault>,
    /// What is wrong with other legs, by interface.
    pub other_faults: Vec<(String, LegFault)>,
    /// With authentication, what this node said last.
    pub last_word: Option<Spoken>,
    /// With authentication, the peer's speech.
    pub peer_voice: Option<PeerVoice>,
    /// With authentication, the paths of HA datagrams.
    #[serde(default)]
    pub paths: Vec<PathView>,
    /// When an advert of the peer arrived last, by whose sender it is proved as far as messages tell.
    #[serde(default)]
    pub advert_heard_at: Option<MonoTime>,
    /// Counters of authenticated messages.
    pub voice_counters: VoiceCounters,
    /// The peer's Ethernet address, from its last advert.
    pub peer_mac: Option<Mac>,
    /// Number of owned addresses.
    pub owned: usize,
    /// What the kernel granted.
    pub grants: Grants,
    /// How the last term as Active began.
    #[serde(default)]
    pub term: Option<TermTimes>,
    /// Descriptors held (XDP links).
    pub held: usize,
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn an_owned_set_is_cut_into_parts_and_an_empty_one_is_told() {
        let longest = |n: u16| OwnedAddress {
            address: Ipv6Addr::from([0xfd12, 0x3456, 0x789a, 0xbcde, 0xf012, 0x3456, 0x789a, 0xf000 | n])
                .into(),
            router: false,
            leg: 0,
        };
        let addresses: Vec<_> = (0..1_250).map(longest).collect();
        let messages = owned_messages(&addresses);
        let mut joined = Vec::new();
        for (number, message) in messages.iter().enumerate() {
            let ToHa::Owned { addresses, more } = message else {
                panic!("{message:?}")
            };
            assert_eq!(*more, number != 2);
            assert!(serde_json::to_vec(message).unwrap().len() <= super::super::MESSAGE_MAX);
            joined.extend_from_slice(addresses);
        }
        assert_eq!(joined, addresses);
        assert_eq!(
            owned_messages(&[]),
            [ToHa::Owned {
                addresses: Vec::new(),
                more: false
            }]
        );
    }
}
