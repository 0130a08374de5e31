//! What the HA process is configured with. Checked here; where it comes from is the daemon's business.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{Centiseconds, Priority, Vrid};
use crate::wire::advert::ChecksumForm;
use crate::{announce, election, lease};

/// Most addresses an advert of ours lists; all others are the dataplane's business.
pub const MAX_LISTED: usize = 16;
/// Longest name of an interface.
const IFNAME_MAX: usize = 15;

/// How adverts travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// To 224.0.0.18.
    #[default]
    Multicast,
    /// To the peer's address.
    Unicast,
}

/// Settings of the HA process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Kernel interface the own address is on (of a VLAN leg: the VLAN device).
    pub ifname: String,
    /// Virtual router id.
    pub vrid: Vrid,
    /// Own priority, 1 to 254.
    pub priority: Priority,
    /// Own advertisement interval.
    pub advert_interval: Centiseconds,
    /// Whether a better Standby displaces a worse Active. Off by default.
    pub preempt: bool,
    /// Whether this node comes up first when both start together; true on exactly one node of a pair.
    pub preferred: bool,
    /// Own address on the leg.
    pub address: Ipv4Addr,
    /// The peer's address on the leg.
    pub peer: Ipv4Addr,
    /// Multicast or unicast.
    pub transport: Transport,
    /// Checksum of sent adverts.
    pub checksum: ChecksumForm,
    /// Addresses listed in adverts, 1 to [`MAX_LISTED`].
    pub announce: Vec<Ipv4Addr>,
    /// Gratuitous ARP a second, 1 to [`announce::Settings::MOST_RATE`]; default 200.
    pub announce_rate: u32,
    /// Gratuitous ARP for each address after a take-over, 1 to 10; default 3.
    pub announce_rounds: u8,
    /// Time between two refreshes of all addresses; zero: none.
    pub announce_refresh: Duration,
    /// Silence of the main process after which this node hands over; 120 ms to 60 s, default 200 ms.
    pub main_silence: Duration,
}

impl Config {
    /// Default of [`Self::announce_rate`].
    pub const ANNOUNCE_RATE: u32 = 200;
    /// Default of [`Self::announce_rounds`].
    pub const ANNOUNCE_ROUNDS: u8 = 3;
    /// Default of [`Self::announce_refresh`].
    pub const ANNOUNCE_REFRESH: Duration = Duration::from_mins(1);
    /// Default of [`Self::main_silence`].
    pub const MAIN_SILENCE: Duration = Duration::from_millis(200);

    /// Everything that is wrong, all at once; empty: fine.
    pub fn errors(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let mut check = |fine: bool, error: ConfigError| {
            if !fine {
                errors.push(error);
            }
        };
        let name = &self.ifname;
        let name_fine = !name.is_empty()
            && name.len() <= IFNAME_MAX
            && !name.contains(|c: char| c == '/' || c == '\0' || c.is_whitespace());
        check(name_fine, ConfigError::Ifname(name.clone()));
        let priority = self.priority.get();
        check(
            Priority::configured(priority).is_ok(),
            ConfigError::Priority(priority),
        );
        for address in [self.address, self.peer] {
            check(is_host(address), ConfigError::NotAHost(address));
        }
        check(self.address != self.peer, ConfigError::PeerIsSelf(self.peer));
        let listed = self.announce.len();
        check((1..=MAX_LISTED).contains(&listed), ConfigError::Listed(listed));
        for address in &self.announce {
            check(is_host(*address), ConfigError::NotAHost(*address));
            check(
                *address != self.address && *address != self.peer,
                ConfigError::ListedNode(*address),
            );
        }
        let rate = self.announce_rate;
        check(
            (1..=announce::Settings::MOST_RATE).contains(&rate),
            ConfigError::Rate(rate),
        );
        check(
            (1..=10).contains(&self.announce_rounds),
            ConfigError::Rounds(self.announce_rounds),
        );
        let silence = Duration::from_millis(120)..=Duration::from_mins(1);
        check(
            silence.contains(&self.main_silence),
            ConfigError::MainSilence(self.main_silence),
        );
        let interval = self.advert_interval.as_nanos();
        if let Err(error) = lease::check(lease::length(interval), interval) {
            check(false, ConfigError::Lease(error));
        }
        errors
    }

    pub(crate) const fn election(&self) -> election::Settings {
        election::Settings {
            priority: self.priority,
            interval: self.advert_interval,
            preempt: self.preempt,
            preferred: self.preferred,
            address: self.address,
            peer: self.peer,
        }
    }

    pub(crate) fn announcements(&self) -> announce::Settings {
        announce::Settings {
            rate: self.announce_rate,
            rounds: self.announce_rounds,
            refresh_nanos: nanos(self.announce_refresh),
        }
    }

    pub(crate) fn main_silence_nanos(&self) -> u64 {
        nanos(self.main_silence)
    }

    /// Whether `other` is the same router on the same leg, so that a running election can go on with it.
    pub(crate) fn same_router(&self, other: &Self) -> bool {
        self.ifname == other.ifname
            && self.vrid == other.vrid
            && self.address == other.address
            && self.peer == other.peer
            && self.transport == other.transport
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Neither unspecified, loopback, group nor broadcast.
const fn is_host(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || address.is_broadcast())
}

/// One thing wrong with a [`Config`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No interface can have this name.
    #[error("{0:?} is no name of an interface")]
    Ifname(String),
    /// Priority 0 or 255.
    #[error("a priority is 1 to 254, not {0}")]
    Priority(u8),
    /// An address no host can have.
    #[error("{0} is no address of a host")]
    NotAHost(Ipv4Addr),
    /// Own and peer address are the same.
    #[error("the peer's address {0} is this node's own")]
    PeerIsSelf(Ipv4Addr),
    /// Too few or too many listed addresses.
    #[error("an advert lists 1 to {MAX_LISTED} addresses, not {0}")]
    Listed(usize),
    /// A node's own address is listed as floating.
    #[error("{0} belongs to a node and cannot float")]
    ListedNode(Ipv4Addr),
    /// Announcements too slow or too fast.
    #[error("1 to {most} announcements a second are possible, not {0}", most = announce::Settings::MOST_RATE)]
    Rate(u32),
    /// Too few or too many rounds.
    #[error("1 to 10 announcements of each address are possible, not {0}")]
    Rounds(u8),
    /// Out of range.
    #[error("the main process may be silent for 120 ms to 60 s, not {0:?}")]
    MainSilence(Duration),
    /// The lease would outlive the peer's patience.
    #[error(transparent)]
    Lease(lease::LeaseTooLong),
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Config {
        Config {
            ifname: "eth0".into(),
            vrid: Vrid::new(51).unwrap(),
            priority: Priority::configured(150).unwrap(),
            advert_interval: Centiseconds::new(10).unwrap(),
            preempt: false,
            preferred: true,
            address: Ipv4Addr::new(192, 168, 100, 2),
            peer: Ipv4Addr::new(192, 168, 100, 3),
            transport: Transport::Multicast,
            checksum: ChecksumForm::PseudoHeader,
            announce: vec![Ipv4Addr::new(192, 168, 100, 100)],
            announce_rate: Config::ANNOUNCE_RATE,
            announce_rounds: Config::ANNOUNCE_ROUNDS,
            announce_refresh: Config::ANNOUNCE_REFRESH,
            main_silence: Config::MAIN_SILENCE,
        }
    }

    #[test]
    fn the_sample_is_fine_and_survives_json() {
        let config = sample();
        assert_eq!(config.errors(), []);
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), config);
    }

    #[test]
    fn everything_wrong_is_told_at_once() {
        let config = Config {
            ifname: "a name/with everything wrong".into(),
            priority: Priority::OWNER,
            peer: Ipv4Addr::new(192, 168, 100, 2),
            announce: vec![Ipv4Addr::new(224, 0, 0, 18), Ipv4Addr::new(192, 168, 100, 2)],
            announce_rate: 0,
            announce_rounds: 11,
            main_silence: Duration::ZERO,
            ..sample()
        };
        let errors = config.errors();
        assert_eq!(errors.len(), 8, "{errors:?}");
        assert!(errors.contains(&ConfigError::PeerIsSelf(config.peer)));
    }

    #[test]
    fn an_advert_lists_one_to_sixteen_addresses() {
        for (count, fine) in [(0, false), (1, true), (16, true), (17, false)] {
            let announce = (0..count).map(|n| Ipv4Addr::new(10, 0, 0, n + 1)).collect();
            assert_eq!(
                Config { announce, ..sample() }.errors().is_empty(),
                fine,
                "{count}"
            );
        }
    }
}
