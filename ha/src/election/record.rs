//! Counters and status of the election, and the memory that keeps alarms rare.

use serde::{Deserialize, Serialize};

use super::vocabulary::{Alarm, LegFault, Role, Stance};
use crate::auth::Health;
use crate::units::{MonoTime, Priority};

/// Times something happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElectionCounters {
    /// Adverts of kind owner that left.
    pub adverts_sent: u64,
    /// Claims (adverts that ask) that left.
    pub claims_sent: u64,
    /// Preempting adverts that left.
    pub preempts_sent: u64,
    /// Releases (priority 0) that left.
    pub releases_sent: u64,
    /// Adverts that could not be sent.
    pub send_errors: u64,
    /// Valid adverts of the peer, releases included.
    pub adverts_received: u64,
    /// Releases of the peer.
    pub releases_received: u64,
    /// Adverts with the own source address.
    pub own_source_received: u64,
    /// Adverts of others than the peer.
    pub foreign_received: u64,
    /// Adverts of the peer with another address list.
    pub address_list_differed: u64,
    /// Adverts of the peer whose interval was clamped.
    pub interval_clamped: u64,
    /// Messages of another owner heard as Active.
    pub contended: u64,
    /// Messages of the owner before, that came when this node had taken over after it.
    pub late_owner: u64,
    /// Times the lease ended before it was renewed.
    pub lease_lapsed: u64,
    /// Times a Standby was late for its own deadline and waited anew.
    pub overslept: u64,
    /// Claims given up because a better claim was heard.
    pub claims_lost: u64,
    /// Times this node became Active.
    pub became_active: u64,
    /// Messages with a right code whose sender has not proved to be there now.
    pub unproved_received: u64,
    /// Times the wait was over and this node did not take over, because its leg received nothing.
    pub deaf: u64,
    /// Times the peer answered for an owned address while none of its adverts arrived.
    pub owner_answered: u64,
    /// Messages of a peer that hears a clone of this node.
    pub cloned: u64,
    /// Times everything was handed over in order, to a peer that was armed.
    pub handed_over: u64,
    /// Times the peer armed this node.
    pub armed: u64,
}

/// What an operator sees of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElectionStatus {
    /// Role now.
    pub role: Role,
    /// Since when.
    pub since: MonoTime,
    /// What is wrong with the leg.
    pub leg_fault: Option<LegFault>,
    /// The main process is silent, so this node takes no part.
    pub main_silent: bool,
    /// Adverts cannot be sent at the moment.
    pub send_failing: bool,
    /// Own priority, lowered while another leg has failed; without authentication also while something tracked is missing.
    pub priority: Priority,
    /// Priority of the peer's last advert.
    pub peer_priority: Option<Priority>,
    /// The peer said last that it owns the addresses, or without authentication seemed to.
    pub peer_owns: bool,
    /// When the peer was last heard.
    pub peer_heard_at: Option<MonoTime>,
    /// Interval the Standby goes by: the peer's, clamped. Nanoseconds.
    pub learned_interval_nanos: u64,
    /// Last deadline ordered for the lease cell; [`MonoTime::ZERO`] without a lease.
    pub lease_deadline: MonoTime,
    /// Epoch of an Active's term, else the highest known.
    pub epoch: u64,
    /// The last time another owner was heard while this node owned.
    pub contention: Option<Contention>,
    /// What this node can do.
    pub health: Health,
    /// With authentication, what the peer said last it can do.
    pub peer_health: Option<Health>,
    /// What the operator wants of this node.
    pub stance: Stance,
    /// What the peer's operator wants of that, where authenticated messages tell.
    pub peer_stance: Option<Stance>,
    /// Since when a hand-over, ordered on either node, has waited until the Standby has the flows.
    #[serde(default)]
    pub waits_since: Option<MonoTime>,
}

/// Another owner, heard while this node owned: what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contention {
    /// Its first message.
    pub first_at: MonoTime,
    /// Its last one so far.
    pub last_at: MonoTime,
    /// How many there were.
    pub messages: u64,
    /// Its priority.
    pub priority: Priority,
    /// With authentication, the epoch it owns under.
    pub epoch: Option<u64>,
    /// The own epoch.
    pub own_epoch: u64,
    /// When the own term began.
    pub own_since: MonoTime,
    /// This node let go at it.
    pub gave_way: bool,
}

/// A message after a longer pause belongs to another contention. Nanoseconds.
pub(super) const CONTENTION_PAUSE_NANOS: u64 = 3_000_000_000;

/// Least time between two alarms of one kind. Nanoseconds.
const ALARM_EVERY_NANOS: u64 = 60_000_000_000;

/// When each kind of alarm was last raised.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AlarmMemory([Option<MonoTime>; 13]);

impl AlarmMemory {
    /// Whether `alarm` may be raised now; remembers that it was.
    pub(super) fn admit(&mut self, now: MonoTime, alarm: Alarm) -> bool {
        let kind = match alarm {
            Alarm::ForeignGroup { .. } => 0,
            Alarm::LoopOrDuplicateAddress => 1,
            Alarm::IntervalClamped { .. } => 2,
            Alarm::AddressListDiffers => 3,
            Alarm::SendErrors => 4,
            Alarm::LeaseLapsed => 5,
            Alarm::Overslept => 6,
            Alarm::Contended => 7,
            Alarm::FamilySilent { .. } => 8,
            Alarm::UnprovedOwner => 9,
            Alarm::Deaf => 10,
            Alarm::Cloned => 11,
            Alarm::AdvertsLost => 12,
        };
        let last: &mut Option<MonoTime> = &mut self.0[kind];
        if last.is_some_and(|at| now.since(at) < ALARM_EVERY_NANOS) {
            return false;
        }
        *last = Some(now);
        true
    }
}
