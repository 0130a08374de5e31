//! Words of the election: inputs (past tense), outputs (imperative), events and alarms.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::units::{Centiseconds, MonoTime, Priority};

/// What the election is configured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Own priority, 1 to 254.
    pub priority: Priority,
    /// Own advertisement interval.
    pub interval: Centiseconds,
    /// Whether a better Standby displaces a worse Active.
    pub preempt: bool,
    /// Whether this node is the one to come up first when both start together; exactly one node of a pair is.
    pub preferred: bool,
    /// Own address on the leg, source of every advert. Of a node with adverts in both families one address (IPv4)
    /// stands for both: what is compared must be the same on every wire.
    pub address: IpAddr,
    /// The peer's address on the leg; adverts from any other source decide nothing.
    pub peer: IpAddr,
}

/// Where a node stands (RFC 9568 §6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Takes no part: no usable leg, stopped, or the main process is silent.
    Initialize,
    /// Waits (RFC 9568: Backup).
    Standby,
    /// Owns the addresses.
    Active,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Initialize => "initialize",
            Self::Standby => "standby",
            Self::Active => "active",
        })
    }
}

/// Why the leg cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum LegFault {
    /// Nothing has been read of the leg yet.
    #[error("leg not read yet")]
    Unknown,
    /// There is no interface of that name.
    #[error("interface missing")]
    Missing,
    /// The interface is administratively down.
    #[error("interface down")]
    Down,
    /// No carrier (cable, switch port).
    #[error("no carrier")]
    NoCarrier,
    /// The node's own address is not on the interface.
    #[error("own address missing")]
    NoAddress,
    /// The interface has no Ethernet address, or its sockets cannot be opened.
    #[error("interface not usable")]
    NotUsable,
}

/// An advert as far as the election cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeardAdvert {
    /// When it arrived: the kernel's receive time, not the time of reading.
    pub at: MonoTime,
    /// IP source; the peer's and the own one as [`Settings`] has them, whichever family the advert came in.
    pub source: IpAddr,
    /// Its priority.
    pub priority: Priority,
    /// Its interval.
    pub interval: Centiseconds,
    /// Whether it lists the same addresses as this node does.
    pub same_addresses: bool,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// The leg has carrier and the own address.
    LegBecameUsable,
    /// The leg lost carrier, address or itself.
    LegFailed(LegFault),
    /// A leg beside that of the adverts cannot be used: this node serves worse than one with all its legs.
    OtherLegFailed,
    /// All legs beside that of the adverts can be used again.
    OtherLegsRecovered,
    /// A valid advert of this virtual router was received.
    AdvertReceived(HeardAdvert),
    /// An advert was given to the kernel without error, with carrier. `now` is after the send.
    AdvertLeft {
        /// Which.
        kind: AdvertKind,
        /// The `now` the send was decided at.
        decided_at: MonoTime,
    },
    /// An advert could not be sent.
    AdvertFailed,
    /// Everything received so far has been handled and [`super::Election::deadline`] may have passed.
    DeadlineReached,
    /// The operator wants the peer to own the addresses.
    HandOverOrdered,
    /// The process is to end (also: the main process ended).
    StopOrdered,
    /// No heartbeat of the main process for too long.
    MainFellSilent,
    /// The main process is heard again.
    MainSpokeAgain,
    /// Other settings, with the same address and peer.
    Reconfigured(Settings),
}

/// What an advert says beyond its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AdvertKind {
    /// "I own the addresses." Credits the lease.
    Owner,
    /// "Does anybody own the addresses?" ([`Priority::CLAIM`])
    Claim,
    /// "I am better, let go" (preemption).
    Preempt,
    /// "I own them no longer." ([`Priority::RELEASE`])
    Release,
}

/// What is to be done, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Send an advert now.
    SendAdvert {
        /// Why.
        kind: AdvertKind,
        /// Priority field.
        priority: Priority,
        /// Interval field.
        interval: Centiseconds,
        /// To be returned in [`Input::AdvertLeft`].
        decided_at: MonoTime,
    },
    /// Write this deadline into the lease cell.
    RenewLease {
        /// `CLOCK_MONOTONIC`; may already have passed.
        deadline: MonoTime,
    },
    /// Write "no lease" into the lease cell.
    ClearLease,
    /// The lease is held: announce every owned address.
    StartAnnouncing,
    /// Somebody else claimed the addresses for a while: announce them again.
    AnnounceAgain,
    /// Ownership ended: announce nothing more, drop what is queued.
    StopAnnouncing,
    /// Log and tell the main process.
    ReportTransition(Transition),
    /// Log and tell the main process.
    RaiseAlarm(Alarm),
}

/// Why the role changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// The leg became usable, or the main process is heard again: listen.
    BeganListening,
    /// Nobody was heard for the whole wait.
    WaitEnded,
    /// The peer released.
    PeerReleased,
    /// The peer is better and owns, or wants to own.
    BetterAdvert,
    /// The lease ended before it could be renewed: the process had stalled.
    LeaseLapsed,
    /// The lease ended because adverts could not be sent.
    SendErrors,
    /// The operator's order.
    HandOver,
    /// The process is stopping.
    Stop,
    /// The main process is silent.
    MainSilent,
    /// The leg failed.
    LegFailed(LegFault),
}

/// A change of role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// Role before.
    pub prev: Role,
    /// Role after.
    pub next: Role,
    /// Why.
    pub event: Event,
    /// When.
    pub at: MonoTime,
}

/// Something an operator may have to act on; each kind is raised at most once a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Alarm {
    /// Somebody who is not the peer uses this virtual router id on this segment.
    ForeignGroup {
        /// Its address.
        source: IpAddr,
    },
    /// An advert with the own source address came in: a loop, or somebody else has the node's address.
    LoopOrDuplicateAddress,
    /// The peer advertised an interval far longer than ours; it was clamped.
    IntervalClamped {
        /// As advertised.
        advertised: Centiseconds,
    },
    /// The peer lists other addresses.
    AddressListDiffers,
    /// The peer is heard over one family only, though it should send over both.
    FamilySilent {
        /// It is IPv6 that is not heard.
        ipv6: bool,
    },
    /// Adverts cannot be sent.
    SendErrors,
    /// The process stalled past its own lease.
    LeaseLapsed,
    /// The process stalled past its own wait.
    Overslept,
    /// An owner with a worse priority and this node advertised at the same time.
    Contended,
}
