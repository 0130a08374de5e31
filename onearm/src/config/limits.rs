//! Every limit of the files, by name. A value at the limit is accepted, the next one refused; both are tested.

use std::ops::RangeInclusive;
use std::time::Duration;

use onearm_ha::units::Priority;

/// Longest file in bytes.
pub const FILE_BYTES: usize = 4 * 1024 * 1024;
/// Longest file of which *all* syntax errors are reported; of a longer one the first only (an error list is many times
/// the size of what it complains about).
pub const FILE_BYTES_RECOVERED: usize = 256 * 1024;
/// Most different service VIPs.
pub const VIPS: usize = 4_000;
/// Most services.
pub const SERVICES: usize = 4_000;
/// Most servers of all services.
pub const SERVERS: usize = 16_384;
/// Most servers of one service.
pub const SERVERS_PER_SERVICE: usize = 256;
/// Most ports and ranges in the list of one service.
pub const PORTS_PER_SERVICE: usize = 64;
/// Most aligned port blocks of all services: the keys the dataplane needs. A single port is one, a range up to 30.
pub const PORT_BLOCKS: usize = 65_536;
/// Most SNAT sources of one service.
pub const SNAT_PER_SERVICE: usize = 16;
/// Most SNAT sources of all services, counted per service.
pub const SNAT_SOURCES: usize = 8_192;
/// Most different owned addresses of all kinds.
pub const OWNED: usize = 8_192;
/// Most gateway addresses.
pub const GATEWAYS: usize = 256;
/// Most prefixes in one list (`direct`, `hairpin`, `mode_for.clients`), and most elements of `mode_for`.
pub const PREFIXES_PER_LIST: usize = 64;
/// Most prefixes in all lists of one kind.
pub const PREFIXES: usize = 4_096;
/// Most addresses in `ha.announce`.
pub const ANNOUNCE: usize = 16;
/// Most legs of a node.
pub const LEGS: usize = 64;
/// Longest name of a node, leg, service or server in characters.
pub const NAME_CHARS: usize = 63;
/// Longest name of an interface in bytes (the kernel's).
pub const INTERFACE_BYTES: usize = 15;

/// `priority`; 0 and 255 have a meaning of their own in VRRP (RFC 9568 §6.1), 1 and 2 between the nodes of a pair.
pub const PRIORITY: RangeInclusive<u64> = Priority::LEAST.get() as u64..=Priority::MOST.get() as u64;
/// `leg.vlan`.
pub const VLAN: RangeInclusive<u64> = 1..=4_094;
/// `ha.vrid` (RFC 9568 §6.1).
pub const VRID: RangeInclusive<u64> = 1..=255;
/// `ha.advert_interval`: the wire has 12 bits of centiseconds.
pub const ADVERT_INTERVAL: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_millis(40_950);
/// `ha.announce_rate`, announcements per second.
pub const ANNOUNCE_RATE: RangeInclusive<u64> = 1..=onearm_ha::announce::Settings::MOST_RATE as u64;
/// `ha.announce_refresh`.
pub const ANNOUNCE_REFRESH: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(24);
/// `limits.max_flows`.
pub const MAX_FLOWS: RangeInclusive<u64> = 1_024..=16_000_000;
/// `limits.half_open`.
pub const HALF_OPEN: RangeInclusive<u64> = 64..=16_000_000;
/// `limits.dsr_flows`.
pub const DSR_FLOWS: RangeInclusive<u64> = 0..=16_000_000;
/// `limits.persistent_clients`.
pub const PERSISTENT_CLIENTS: RangeInclusive<u64> = 1_024..=1_000_000;
/// `service.persistence`: clients are noted every five seconds.
pub const PERSISTENCE: RangeInclusive<Duration> = Duration::from_secs(30)..=Duration::from_hours(7 * 24);
/// `service.idle_timeout`.
pub const IDLE_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(7 * 24);
/// `service.sync_after`, where it is a time.
pub const SYNC_AFTER: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(1);
/// `service.mss_clamp`: the least Linux goes down to, and what a jumbo frame holds.
pub const MSS_CLAMP: RangeInclusive<u64> = 88..=9_000;
/// `service.max_connections`, `max_new_per_second`, `max_per_source`.
pub const SERVICE_LIMIT: RangeInclusive<u64> = 1..=16_000_000;
/// `check.interval`.
pub const CHECK_INTERVAL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_hours(1);
/// `check.timeout`.
pub const CHECK_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_mins(1);
/// `check.rise` and `check.fall`.
pub const CHECK_COUNT: RangeInclusive<u64> = 1..=100;
/// `ha.track.hold`.
pub const TRACK_HOLD: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_hours(1);
/// Most elements of `ha.track.scripts`.
pub const TRACK_SCRIPTS: usize = 32;
/// `ha.hooks.timeout`.
pub const HOOK_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_mins(5);
/// Most words of a command, the path included.
pub const COMMAND_WORDS: usize = 64;
/// Longest word of a command in bytes.
pub const COMMAND_BYTES: usize = 4_095;
/// `server.weight`.
pub const WEIGHT: RangeInclusive<u64> = 0..=255;
/// Any port.
pub const PORT: RangeInclusive<u64> = 1..=65_535;
