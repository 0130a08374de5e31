//! A flow without anything that is an index of this node.

use onearm_dataplane_common::addr::Addr;
use onearm_dataplane_common::flow::{FlowEntry, FlowKey, State, flags, is_proved, seen, state};
use onearm_dataplane_common::maps::{Port, mode, proto};
use onearm_dataplane_common::table::is_published;

/// [`seen`] bits there are.
const SEEN: u8 =
    seen::OPENED | seen::CONFIRMED | seen::FIN | seen::RST | seen::FIN_FIRST | seen::COUNTED | seen::AGAIN;

/// A place of the flow table where a flow's forward entry may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The table of IPv6 flows.
    pub v6: bool,
    /// Bucket << 4 | way, in that family's table.
    pub at: u32,
}

/// What a flow is known by on both nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The key of the client's packets: protocol, client, VIP.
    pub key: FlowKey,
}

/// State of a flow as far as the peer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coarse {
    /// Carrying traffic.
    Established,
    /// FIN of both sides, or a RST.
    Closing,
}

/// A flow without anything that is an index of this node: what both nodes understand.
///
/// Addresses are general ([`Addr`], IPv4 mapped), ports stand as in the packet (network byte order).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Key of the client's packets: protocol, client, VIP.
    pub key: FlowKey,
    /// [`FlowEntry::new_saddr`] of the client's direction; [`Addr::NONE`] in a tunnel from the leg's own address, which each
    /// node has for itself.
    pub new_saddr: Addr,
    /// [`FlowEntry::new_daddr`] of the client's direction: the server.
    pub new_daddr: Addr,
    /// [`FlowEntry::new_sport`] of the client's direction.
    pub new_sport: Port,
    /// [`FlowEntry::new_dport`] of the client's direction.
    pub new_dport: Port,
    /// [`FlowEntry::flags`] of the client's direction.
    pub flags: u8,
    /// [`seen`] bits of the client.
    pub client: u8,
    /// [`seen`] bits of the server.
    pub server: u8,
    /// [`FlowEntry::expected_ack`] of the client's direction.
    pub client_ack: u32,
    /// [`FlowEntry::expected_ack`] of the server's direction; 0 if that has none.
    pub server_ack: u32,
    /// [`FlowEntry::idle_ticks`].
    pub idle_ticks: u32,
    /// [`FlowEntry::packets`] of the client's direction.
    pub packets: u32,
    /// Leg by which the client is reached; [`Record::NO_LEG`] if its route says so.
    pub leg: u8,
    /// VLAN by which the client is reached, 0 to 4,094; 0 = untagged.
    pub vlan: u16,
    /// [`FlowEntry::incarnation`].
    pub incarnation: u64,
}

/// What the programs and the sweep say of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// Something happened at this place.
    Look(Place),
    /// A flow was removed from this place.
    Ended {
        /// Where its forward entry was.
        place: Place,
        /// What it was.
        record: Record,
    },
}

impl Record {
    /// Value of [`Record::leg`].
    pub const NO_LEG: u8 = u8::MAX;

    /// Of both entries of a flow; those of servers that answer themselves have one. The client is where its route leads.
    pub fn of(forward: &FlowEntry, reply: Option<&FlowEntry>) -> Self {
        Self {
            key: forward.key(),
            new_saddr: forward.new_saddr,
            new_daddr: forward.new_daddr,
            new_sport: forward.new_sport,
            new_dport: forward.new_dport,
            flags: forward.flags,
            client: forward.own,
            server: forward.other,
            client_ack: forward.expected_ack,
            server_ack: reply.map_or(0, |reply| reply.expected_ack),
            idle_ticks: forward.idle_ticks,
            packets: forward.packets,
            leg: Self::NO_LEG,
            vlan: 0,
            incarnation: forward.incarnation,
        }
    }

    /// The client's direction; without indexes and times.
    pub fn forward(&self) -> FlowEntry {
        FlowEntry {
            saddr: self.key.saddr,
            daddr: self.key.daddr,
            sport: self.key.sport,
            dport: self.key.dport,
            proto: self.key.proto,
            flags: self.flags,
            own: self.client,
            other: self.server,
            new_saddr: self.new_saddr,
            new_daddr: self.new_daddr,
            new_sport: self.new_sport,
            new_dport: self.new_dport,
            idle_ticks: self.idle_ticks,
            expected_ack: self.client_ack,
            packets: self.packets,
            incarnation: self.incarnation,
            ..FlowEntry::default()
        }
    }

    /// The server's direction; without indexes, times and packets.
    pub fn reply(&self) -> FlowEntry {
        let key = self.reply_key();
        FlowEntry {
            saddr: key.saddr,
            daddr: key.daddr,
            sport: key.sport,
            dport: key.dport,
            proto: key.proto,
            flags: self.flags | flags::REPLY,
            own: self.server,
            other: self.client,
            new_saddr: self.key.daddr,
            new_daddr: self.key.saddr,
            new_sport: self.key.dport,
            new_dport: self.key.sport,
            idle_ticks: self.idle_ticks,
            expected_ack: self.server_ack,
            incarnation: self.incarnation,
            ..FlowEntry::default()
        }
    }

    /// What the flow is known by.
    pub const fn identity(&self) -> Identity {
        Identity { key: self.key }
    }

    /// Key of the server's packets. Means nothing if servers answer their clients themselves.
    pub const fn reply_key(&self) -> FlowKey {
        FlowKey::new(
            self.key.proto,
            self.new_daddr,
            self.new_dport,
            self.new_saddr,
            self.new_sport,
        )
    }

    /// The table it belongs to.
    pub const fn is_v6(&self) -> bool {
        !self.key.saddr.is_v4()
    }

    /// The server answers its client itself: the flow has one entry.
    pub const fn is_direct(&self) -> bool {
        self.flags & flags::DIRECT != 0
    }

    /// Value of [`mode`].
    pub const fn mode(&self) -> u8 {
        (self.flags & flags::MODE_MASK) >> flags::MODE_SHIFT
    }

    /// Ownership group, 0 to 15.
    pub const fn group(&self) -> u8 {
        self.flags >> flags::GROUP_SHIFT
    }

    /// State, if the flow is proved ([`is_proved`]): the peer is never told of others.
    pub const fn coarse(&self) -> Option<Coarse> {
        let proto = self.key.proto;
        if !is_proved(proto, self.flags, self.client, self.server, self.packets) {
            return None;
        }
        match state(proto, self.client, self.server) {
            State::HalfOpen => None,
            State::Established => Some(Coarse::Established),
            State::Closing => Some(Coarse::Closing),
        }
    }

    /// Whether a flow can be made of it. What [`Record::of`] a proved flow gives always passes.
    ///
    /// # Errors
    /// What contradicts itself.
    pub const fn check(&self) -> Result<(), &'static str> {
        let key = &self.key;
        let v4 = key.saddr.is_v4();
        let own_source = self.mode() == mode::L3_DSR && self.new_saddr.is_none();
        if !is_published(self.incarnation) {
            return Err("incarnation");
        }
        if key.proto != proto::TCP && key.proto != proto::UDP {
            return Err("protocol");
        }
        if key.saddr.is_special() || key.daddr.is_special() || self.new_daddr.is_special() {
            return Err("address of nobody");
        }
        if key.daddr.is_v4() != v4 || self.new_daddr.is_v4() != v4 {
            return Err("addresses of two families");
        }
        if !own_source && (self.new_saddr.is_v4() != v4 || self.new_saddr.is_special()) {
            return Err("source");
        }
        if key.dport == 0 || (!self.is_direct() && self.new_dport == 0) {
            return Err("port");
        }
        if self.flags & flags::REPLY != 0 || (self.is_direct() && self.flags & flags::HAIRPIN != 0) {
            return Err("flags");
        }
        if (self.client | self.server) & !SEEN != 0 || self.client & seen::OPENED == 0 {
            return Err("seen");
        }
        if self.vlan > 4_094 {
            return Err("VLAN");
        }
        if self.coarse().is_none() {
            return Err("state");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
