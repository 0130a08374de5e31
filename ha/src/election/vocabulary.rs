//! Words of the election: inputs (past tense), outputs (imperative), events and alarms.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::auth::{Freshness, Health, Kind, Signs};
use crate::units::{Centiseconds, MonoTime, Priority};

/// What the election is configured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Own priority, 3 to 254.
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
    /// Messages are authenticated; what is heard without [`PairMessage::said`] decides nothing then, unless the driver lets it
    /// in while authentication is being rolled out.
    pub authenticated: bool,
    /// What the operator wants of this node.
    pub stance: Stance,
}

/// What an operator wants of a node, beyond its configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stance {
    /// Nothing.
    #[default]
    Normal,
    /// Ownership is to stay where it is: neither priority nor health move it, to this node or from it. A node takes over from
    /// one that is silent or has released nevertheless. In plain VRRP a better peer that owns still wins.
    Hold,
    /// This node owns nothing, even if nobody does.
    Maintenance,
}

/// Why a hand-over was not begun, or not carried through; the owner owns as before then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unable {
    /// This node owns nothing that it could hand over.
    NotActive,
    /// This node does not wait for ownership: it has it, or takes no part.
    NotStandby,
    /// Without authentication nobody can be asked to hand over.
    NotAuthenticated,
    /// This node is in maintenance.
    InMaintenance,
    /// The dataplane does not know the peer's MAC on every leg.
    PeerLegsUnknown,
    /// The peer does not have the flows of this node: they would end.
    PeerLacksFlows,
    /// While it waited for that, an operator ordered that ownership stays where it is.
    Held,
    /// The peer did not prove lately that it hears this node.
    PeerSilent,
    /// The peer takes no part.
    PeerNotStandby,
    /// The peer does not own anything.
    PeerNotActive,
    /// The peer is in maintenance.
    PeerInMaintenance,
    /// The peer could not serve: this is all it can do.
    PeerUnfit(Health),
    /// The peer did not do what it was asked for in time.
    NoAnswer,
    /// The peer, which was asked to hand over, says why it does not.
    PeerRefuses(Refused),
}

/// Why an owner does not hand over to the peer that asks for it, as it says itself. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Refused {
    /// It does not know the MACs of the asking node's legs.
    LegsUnknown = 1,
    /// The asking node does not have its flows: it waits for that, or has waited in vain.
    LacksFlows = 2,
    /// The asking node could not serve.
    Unfit = 3,
    /// The asking node could not be armed.
    NoAnswer = 4,
    /// An operator wants ownership to stay where it is.
    Held = 5,
    /// Something else, or what this release does not know.
    Other = 255,
}

impl Refused {
    /// What a number on the wire means; `None`: nothing is refused.
    pub(crate) const fn of_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => return None,
            1 => Self::LegsUnknown,
            2 => Self::LacksFlows,
            3 => Self::Unfit,
            4 => Self::NoAnswer,
            5 => Self::Held,
            _ => Self::Other,
        })
    }

    /// What an owner that is `unable` says of it.
    pub(crate) const fn of(unable: Unable) -> Self {
        match unable {
            Unable::PeerLegsUnknown => Self::LegsUnknown,
            Unable::PeerLacksFlows => Self::LacksFlows,
            Unable::PeerUnfit(_) => Self::Unfit,
            Unable::NoAnswer => Self::NoAnswer,
            Unable::Held => Self::Held,
            Unable::NotActive
            | Unable::NotStandby
            | Unable::NotAuthenticated
            | Unable::InMaintenance
            | Unable::PeerSilent
            | Unable::PeerNotStandby
            | Unable::PeerNotActive
            | Unable::PeerInMaintenance
            | Unable::PeerRefuses(_) => Self::Other,
        }
    }
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

/// A message of the other node as far as the election cares: an advert or an HA datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairMessage {
    /// When it arrived: the kernel's receive time, not the time of reading.
    pub at: MonoTime,
    /// IP source; the peer's and the own one as [`Settings`] has them, whichever family or path the message came by.
    pub source: IpAddr,
    /// What its sender is or wants; without authentication as [`Kind::of_priority`] tells.
    pub kind: Kind,
    /// Its priority.
    pub priority: Priority,
    /// Its interval.
    pub interval: Centiseconds,
    /// Whether it lists the same addresses as this node does.
    pub same_addresses: bool,
    /// What it says beyond an advert, where adverts are authenticated.
    pub said: Option<Said>,
}

/// What an authenticated message says beyond an advert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// What it proves about now.
    pub freshness: Freshness,
    /// How long ago this node sent the newest message that the sender has heard; [`u64::MAX`]: it has heard none. Nanoseconds.
    pub unheard_nanos: u64,
    /// An owner's own, else the highest its sender knows of.
    pub epoch: u64,
    /// What the sender can do.
    pub health: Health,
    /// It hears two of this node's name.
    pub hears_twins: bool,
    /// What it says of hand-overs.
    pub signs: Signs,
    /// It was overtaken by a later message of its sender: what that one says of its sender counts.
    #[serde(default)]
    pub is_late: bool,
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
    /// A valid message of this virtual router was received.
    Received(PairMessage),
    /// A message of the peer came again, or one of an earlier state of it: its sender may be a node that was put back to a
    /// snapshot, which is to hear of the owner before it takes over.
    Repeated,
    /// The leg received a frame, whatever it was, at this moment.
    LegReceived(MonoTime),
    /// Hosts of the leg's network are asked for signs of life from now on (`true`), or none is known (`false`).
    ReceptionAsked(bool),
    /// This node can do this now.
    HealthChanged(Health),
    /// Whether the witness's answer is waited for with doubt. Only an answer or [`Input::HealthChanged`] ends a doubt.
    WitnessDoubted(bool),
    /// The witness has been silent for some time, and to what it was asked at this moment it gave no answer in time either.
    WitnessLeftUnanswered(MonoTime),
    /// At this moment the peer's Ethernet address answered that an owned address is there: it holds a lease.
    OwnerAnswered(MonoTime),
    /// An advert was given to the kernel without error, with carrier. `now` is after the send.
    AdvertLeft {
        /// Which.
        kind: Kind,
        /// The `now` the send was decided at.
        decided_at: MonoTime,
    },
    /// An advert could not be sent.
    AdvertFailed,
    /// Everything received so far has been handled and [`super::Election::deadline`] may have passed.
    DeadlineReached,
    /// The operator wants the peer to own the addresses.
    HandOverOrdered {
        /// Even if the peer cannot take over: a peer that can is armed first.
        force: bool,
    },
    /// The operator wants this node to own the addresses: the peer is to hand over.
    TakeOverOrdered,
    /// Whether the dataplane knows the peer's MAC on every leg: without it nothing is handed over in order. `true` until told.
    PeerLegsKnown(bool),
    /// Whether the peer has this node's flows: an operator's hand-over waits for that for some seconds, a peer that is better by its
    /// priority alone until it does. `true` until told.
    PeerHasFlows(bool),
    /// [`Output::Flush`] of that number is done: the peer has all flows it was told of.
    Flushed(u64),
    /// The process is to end (also: the main process ended): once what is owned is handed over, or, given again, at once.
    StopOrdered,
    /// No heartbeat of the main process for too long.
    MainFellSilent,
    /// The main process is heard again.
    MainSpokeAgain,
    /// Other settings, with the same address and peer.
    Reconfigured(Settings),
}

/// What is to be done, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Send an advert now.
    SendAdvert {
        /// Why.
        kind: Kind,
        /// Priority field.
        priority: Priority,
        /// Interval field.
        interval: Centiseconds,
        /// Under which epoch it is said.
        epoch: u64,
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
    /// Say on every path what this node is, at once.
    Speak,
    /// From now on, or no more, leave what has no flow to the peer.
    Yield(bool),
    /// Have the peer told of all flows there are, and [`Input::Flushed`] given when it has them. Counted on.
    Flush(u64),
    /// Act until then on what the peer passes on; [`MonoTime::ZERO`]: no more.
    Arm {
        /// `CLOCK_MONOTONIC`.
        until: MonoTime,
    },
    /// Pass on to the peer, until then, what is not this node's to act on, whatever the main process knows;
    /// [`MonoTime::ZERO`]: no more.
    Relay {
        /// `CLOCK_MONOTONIC`.
        until: MonoTime,
    },
    /// Tell the main process: nothing is handed over.
    RefuseHandOver(Unable),
    /// Tell the main process: what was ordered waits until the Standby has the flows, or no more.
    ShowWaiting(bool),
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
    /// The peer asks, and has not heard this node for as long as it waits.
    PeerHearsNothing,
    /// The peer can do more than this node.
    PeerIsHealthier,
    /// The leg receives nothing.
    Deaf,
    /// The peer hears a clone of this node beside it.
    Cloned,
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
    /// Epoch after it: the own one of an Active, else the highest known.
    pub epoch: u64,
    /// When this node learnt of the cause: the release, that the peer is silent, the fault.
    #[serde(default)]
    pub known_at: MonoTime,
    /// When the peer was heard last, if ever.
    #[serde(default)]
    pub heard_at: Option<MonoTime>,
    /// What it said then that it is or wants.
    #[serde(default)]
    pub peer_said: Option<Kind>,
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
    /// Another owner was heard while this node owned; [`super::Contention`] has the evidence.
    Contended,
    /// Somebody with the pair's key, who cannot be shown to be there now, says that it owns the addresses.
    UnprovedOwner,
    /// The wait is over, but the leg receives nothing from anybody: this node does not take over.
    Deaf,
    /// The peer hears two nodes of this one's name: its disk or its memory was cloned. Neither owns while the peer can.
    Cloned,
    /// The peer answers for the owned addresses, but none of its adverts arrive: a packet filter, or a switch, drops them.
    AdvertsLost,
}

impl PairMessage {
    /// Its sender has said something else since, which was heard before.
    pub(crate) fn is_late(&self) -> bool {
        self.said.is_some_and(|said| said.is_late)
    }

    /// An advert that is not authenticated, and lists what this node lists.
    pub fn plain(at: MonoTime, source: IpAddr, priority: Priority, interval: Centiseconds) -> Self {
        Self {
            at,
            source,
            kind: Kind::of_priority(priority),
            priority,
            interval,
            same_addresses: true,
            said: None,
        }
    }

    /// Whether its sender is known to be the peer, as far as messages tell.
    pub(crate) fn proves_its_sender(&self) -> bool {
        self.said.is_none_or(|said| said.freshness != Freshness::Unproved)
    }
}
