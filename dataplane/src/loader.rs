//! Loading the embedded object: sizes first, maps next, programs last.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, available_parallelism};

use aya::maps::{MapError, ProgramArray};
use aya::programs::{Program, ProgramError, Xdp};
use aya::{Ebpf, EbpfError, EbpfLoader};
use onearm_dataplane_common::flow::{Bucket4, Bucket6};
use onearm_dataplane_common::maps::{self, Node, STRAY_SERVER, Server, WAYS, server};
use onearm_dataplane_common::phase;
use onearm_types::NodeId;

use crate::dataplane::Dataplane;
use crate::error::{Error, Result};
use crate::flows::FlowTable;
use crate::kernel::{KernelRelease, judge_map, judge_program, tail};
use crate::kernel_maps::KernelMaps;
use crate::next_hops::Mirror;
use crate::persistence;
use crate::sys;
use crate::tables::Registry;

/// `make bpf` puts the object here; empty if it has not run.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/onearm-xdp.o"));

/// Flows every table has room for, and the most of [`Limits`].
const FLOWS: (u32, u32) = (1_000, 100_000_000);
/// Most clients that may stay with their server.
const MOST_CLIENTS: u32 = 1_000_000;
/// Share of the table's entries that the flows of [`Limits`] fill, in percent. A table that is filled refuses the first one above
/// that; one in which flows come and go at that load refuses one in 750 (at 80 %, none of a million).
pub(crate) const LOAD_PERCENT: u64 = 86;
/// How often a program is given to the verifier while signals end its work; libbpf's number.
const LOAD_ATTEMPTS: u32 = 5;
/// Half-open time-out: ten seconds.
const HALF_OPEN_NS: u64 = 10_000_000_000;
/// Time-out after FIN of both sides or a RST: thirty seconds.
const CLOSING_NS: u64 = 30_000_000_000;

/// `limits` of `pair.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// IPv4 flows their table must hold, 0 to 100,000,000. Memory: 158.2 bytes a flow, 79.1 an affinity.
    pub max_flows: u32,
    /// IPv6 flows their table must hold, 0 to 100,000,000. Memory: 307 bytes a flow, 153.5 an affinity.
    pub max_flows6: u32,
    /// Most half-open flows of both families at one time, 1 to the greater of the two.
    pub half_open: u32,
    /// Affinities of servers that answer their clients themselves, about, 0 to the greater of the two; 0 = none is kept.
    /// They come on top of the flows, in each family's table.
    pub dsr_flows: u32,
    /// Clients that may stay with their server, about, 0 to 1,000,000. Memory: 32 to 64 bytes each.
    pub persistent_clients: u32,
}

impl Limits {
    /// # Errors
    /// [`Error::Limit`] if one is out of its range.
    fn check(self) -> Result<()> {
        let within = |limit, value: u32, (min, max): (u32, u32)| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            let (value, min, max) = (u64::from(value), u64::from(min), u64::from(max));
            Err(Error::Limit {
                limit,
                value,
                min,
                max,
            })
        };
        within("limits.max_flows", self.max_flows, (0, FLOWS.1))?;
        within("limits.max_flows6", self.max_flows6, (0, FLOWS.1))?;
        let most = self.max_flows.max(self.max_flows6).max(FLOWS.0);
        within("limits.dsr_flows", self.dsr_flows, (0, most))?;
        within(
            "limits.persistent_clients",
            self.persistent_clients,
            (0, MOST_CLIENTS),
        )?;
        within("limits.half_open", self.half_open, (1, most))
    }

    /// Bytes of the tables of IPv4 and IPv6 flows.
    pub fn table_bytes(self) -> [u64; 2] {
        let bytes = |flows, bucket: usize| u64::from(self.buckets(flows)) * bucket as u64;
        [
            bytes(self.max_flows, size_of::<Bucket4>()),
            bytes(self.max_flows6, size_of::<Bucket6>()),
        ]
    }

    /// Buckets of the table of a family that is to hold `flows`.
    fn buckets(self, flows: u32) -> u32 {
        buckets(flows.max(FLOWS.0), self.dsr_flows.min(flows))
    }
}

/// Buckets of a flow table: two entries a flow and one an affinity.
fn buckets(flows: u32, affinities: u32) -> u32 {
    let entries = (u64::from(flows) * 2 + u64::from(affinities)) * 100;
    let buckets = entries.div_ceil(WAYS as u64 * LOAD_PERCENT);
    u32::try_from(buckets)
        .unwrap_or(maps::MAX_FLOW_BUCKETS)
        .min(maps::MAX_FLOW_BUCKETS)
}

/// What loading needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Sizes.
    pub limits: Limits,
    /// This node.
    pub node: NodeId,
    /// Key of the Maglev hash, the same on both nodes of the pair.
    pub pair_key: [u64; 2],
    /// Size of the ring of [`crate::sync::TellRing`], bytes: rounded up to a power of two, at most 2^30. A flow that is
    /// established takes 16.
    pub tell_bytes: u32,
}

impl Options {
    /// Room in the ring for 262,144 flows that are established.
    pub const TELL_BYTES: u32 = 1 << 22;
}

impl Dataplane {
    /// Loads the programs and makes all maps; attaches nothing. Until a leg is attached no packet is touched, and until
    /// the lease cell is written every leg acts as a Standby. Takes about a second with a million flows; call it from a
    /// thread that may block.
    ///
    /// # Errors
    /// [`Error::NoObject`] in a build without eBPF; [`Error::Limit`]; [`Error::CreateMap`] and [`Error::Verifier`] with
    /// the kernel's release and what it lacks; [`Error::MissingMap`], [`Error::MissingProgram`] and [`Error::Object`]
    /// when the object is not of this version.
    pub fn load(options: &Options) -> Result<Self> {
        if OBJECT.is_empty() {
            return Err(Error::NoObject);
        }
        options.limits.check()?;
        let buckets4 = options.limits.buckets(options.limits.max_flows);
        let buckets6 = options.limits.buckets(options.limits.max_flows6);
        let clients = persistence::buckets(options.limits.persistent_clients);
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("FLOWS4", buckets4)
            .map_max_entries("FLOWS6", buckets6)
            .map_max_entries("CLIENT_SERVERS", clients)
            .map_max_entries("FLOW_TELLS", ring_bytes(options.tell_bytes))
            .load(OBJECT)
            .map_err(refused_object)?;
        let map_bytes = ebpf.maps().filter_map(|(_, map)| memory(map)).sum();
        load_programs(&mut ebpf)?;
        // What the verifier and the linker were given takes more than everything that stays.
        sys::trim_heap();
        fill_phases(&mut ebpf)?;
        let (maps, flows) = KernelMaps::take(&mut ebpf)?;
        xdp(&mut ebpf, phase::MAIN)?;

        let random = || {
            sys::random_u64().map_err(|source| Error::Kernel {
                operation: "getrandom",
                source,
            })
        };
        let node = Node {
            flow_hash_key: [random()?, random()?],
            pair_hash_key: options.pair_key,
            flow_buckets: buckets4,
            flow6_buckets: buckets6,
            half_open_budget: options.limits.half_open,
            relay_to_peer: 0,
            half_open_ticks: ticks(HALF_OPEN_NS),
            closing_ticks: ticks(CLOSING_NS),
            dsr_ways: ways(options.limits.dsr_flows, buckets4.max(buckets6)),
            client_bucket_mask: clients - 1,
            incarnation_base: u64::from(options.node.get()) << 56,
            snat_shift: 0,
        };
        maps.node.write(0, &node);
        // A flow of it goes on as one of a server that was removed.
        let stray = Server {
            flags: server::MOVES,
            ..Server::default()
        };
        maps.servers.write(u32::from(STRAY_SERVER), &stray);
        let flows = FlowTable::new(flows, &node);
        Ok(Self::assemble(
            ebpf,
            maps,
            flows,
            Registry::new(options.pair_key),
            Mirror::new(),
            node,
            map_bytes,
        ))
    }
}

/// Bytes of a ring buffer: a power of two, at least the largest page.
fn ring_bytes(wanted: u32) -> u32 {
    wanted.clamp(1 << 16, 1 << 30).next_power_of_two()
}

/// Ways of a bucket that affinities may fill: twice their mean, since they do not spread evenly. At most half of them.
fn ways(affinities: u32, buckets: u32) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "sixteen")]
    const HALF: u32 = WAYS as u32 / 2;
    if affinities == 0 {
        return 0;
    }
    (2 * affinities.div_ceil(buckets)).min(HALF)
}

/// Loads all programs, on every processor: looking at them is most of a start, and the kernel does it for each alone.
fn load_programs(ebpf: &mut Ebpf) -> Result<()> {
    let programs = Mutex::new(ebpf.programs_mut());
    let next = || programs.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((name, program)) = next() {
            match program {
                Program::Xdp(program) => again_if_interrupted(|| program.load()),
                Program::SchedClassifier(program) => again_if_interrupted(|| program.load()),
                _ => Ok(()),
            }
            .map_err(|error| refused_program(name, error))?;
        }
        Ok(())
    };
    let others = available_parallelism().map_or(0, |n| n.get() - 1);
    thread::scope(|scope| {
        let others: Vec<_> = (0..others).map(|_| scope.spawn(work)).collect();
        let own = work();
        others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .fold(own, Result::and)
    })
}

/// A signal to this process, whatever it is, ends the verifier's work with `EAGAIN` (kernel/bpf/verifier.c, `do_check`).
pub(crate) fn again_if_interrupted(
    mut load: impl FnMut() -> std::result::Result<(), ProgramError>,
) -> std::result::Result<(), ProgramError> {
    for _ in 1..LOAD_ATTEMPTS {
        match load() {
            Err(ProgramError::LoadError { io_error, .. }) if io_error.kind() == io::ErrorKind::WouldBlock => {
            }
            done => return done,
        }
    }
    load()
}

/// Puts the programs of the phases where the tail calls look for them.
fn fill_phases(ebpf: &mut Ebpf) -> Result<()> {
    const MAP: &str = "PHASES";
    for (phase, name) in phase::PHASES {
        let program = xdp(ebpf, name)?
            .fd()
            .and_then(|fd| Ok(fd.try_clone()?))
            .map_err(unusable)?;
        let map = ebpf.map_mut(MAP).ok_or(Error::MissingMap { map: MAP })?;
        ProgramArray::try_from(map)
            .and_then(|mut phases| phases.set(phase, &program, 0))
            .map_err(|source| Error::MapAccess {
                map: MAP,
                operation: "write",
                source: Box::new(source),
            })?;
    }
    Ok(())
}

/// Ticks of the flow clock, rounded up.
fn ticks(ns: u64) -> u32 {
    u32::try_from(ns.div_ceil(1 << maps::TICK_SHIFT)).unwrap_or(u32::MAX)
}

/// An XDP program of the object.
pub(crate) fn xdp<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut Xdp> {
    match ebpf.program_mut(name) {
        Some(Program::Xdp(program)) => Ok(program),
        _ => Err(Error::MissingProgram { program: name }),
    }
}

/// A program that cannot be used for a reason that is not the verifier's.
pub(crate) fn unusable(error: ProgramError) -> Error {
    Error::Object {
        source: Box::new(error.into()),
    }
}

pub(crate) fn refused_object(error: EbpfError) -> Error {
    match error {
        EbpfError::MapError(MapError::CreateError { name, io_error }) => Error::CreateMap {
            map: name,
            kernel: KernelRelease::current(),
            feature: judge_map(&io_error),
            source: io_error,
        },
        other => Error::Object {
            source: Box::new(other),
        },
    }
}

pub(crate) fn refused_program(name: &str, error: ProgramError) -> Error {
    match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => {
            let log = verifier_log.to_string();
            Error::Verifier {
                program: name.to_owned(),
                kernel: KernelRelease::current(),
                feature: judge_program(&io_error, &log),
                log_tail: tail(&log),
                source: io_error,
            }
        }
        other => unusable(other),
    }
}

/// Bytes of kernel memory a map holds, as the kernel accounts for them in the descriptor's `memlock`.
fn memory(map: &aya::maps::Map) -> Option<u64> {
    use aya::maps::Map;
    let (Map::Array(data)
    | Map::HashMap(data)
    | Map::LruHashMap(data)
    | Map::LpmTrie(data)
    | Map::PerCpuArray(data)
    | Map::ProgramArray(data)
    | Map::RingBuf(data)
    | Map::DevMap(data)) = map
    else {
        return None;
    };
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", data.fd().as_fd().as_raw_fd())).ok()?;
    info.lines()
        .find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{
        LOAD_ATTEMPTS, Limits, again_if_interrupted, buckets, refused_object, refused_program, ring_bytes,
        ways,
    };
    use crate::error::Error;
    use crate::kernel::Feature;
    use aya::EbpfError;
    use aya::maps::MapError;
    use aya::programs::ProgramError;
    use onearm_dataplane_common::maps::MAX_FLOW_BUCKETS;
    use std::io;

    #[test]
    fn a_flow_takes_at_most_160_bytes_or_320_of_ipv6() {
        for flows in [10_000, 123_456, 1_000_000, 4_000_000, 100_000_000] {
            let limits = Limits {
                max_flows: flows,
                max_flows6: flows,
                half_open: 1,
                dsr_flows: 0,
                persistent_clients: 0,
            };
            let [four, six] = limits.table_bytes();
            assert!(
                four <= u64::from(flows) * 160 && six <= u64::from(flows) * 320,
                "{four} {six}"
            );
            let entries = u64::from(buckets(flows, 0)) * 16;
            assert!(
                u64::from(flows) * 2 * 100 <= entries * 86,
                "{flows} flows in {entries} entries"
            );
        }
        assert_eq!((buckets(1_000_000, 0), buckets(1_000, 0)), (145_349, 146));
        let most = buckets(100_000_000, 100_000_000);
        assert!(most > 21_000_000 && most < MAX_FLOW_BUCKETS, "{most} is not cut");
    }

    #[test]
    fn a_program_whose_verification_a_signal_ended_is_loaded_again_and_no_other_is() {
        let refused = |errno| {
            move || {
                Err(ProgramError::LoadError {
                    io_error: io::Error::from_raw_os_error(errno),
                    verifier_log: aya_obj::VerifierLog::new(String::new()),
                })
            }
        };
        let after = |interruptions: u32, then: i32| {
            let mut tries = 0;
            let result = again_if_interrupted(|| {
                tries += 1;
                match tries {
                    n if n <= interruptions => refused(libc::EAGAIN)(),
                    _ if then == 0 => Ok(()),
                    _ => refused(then)(),
                }
            });
            (tries, result.is_ok())
        };
        assert_eq!(after(0, 0), (1, true));
        assert_eq!(after(2, 0), (3, true));
        assert_eq!(after(1, libc::EINVAL), (2, false));
        assert_eq!(after(u32::MAX, 0), (LOAD_ATTEMPTS, false));
    }

    #[test]
    fn a_ring_has_a_size_the_kernel_takes() {
        assert_eq!(
            [0, 1 << 22, (1 << 22) + 1, u32::MAX].map(ring_bytes),
            [1 << 16, 1 << 22, 1 << 23, 1 << 30]
        );
    }

    #[test]
    fn affinities_have_ways_of_their_own_and_leave_half_of_each_bucket() {
        assert_eq!(buckets(1_000_000, 250_000), 163_518);
        assert_eq!((ways(0, 256), ways(250_000, 262_144), ways(1, 256)), (0, 2, 2));
        assert_eq!((ways(1_000_000, 262_144), ways(u32::MAX / 2, 256)), (8, 8));
    }

    #[test]
    fn limits_out_of_range_are_refused_by_name() {
        for (max_flows, half_open, limit) in [
            (100_000_001, 1, "limits.max_flows"),
            (1_000, 1_001, "limits.half_open"),
        ] {
            let limits = Limits {
                max_flows,
                max_flows6: 0,
                half_open,
                dsr_flows: 0,
                persistent_clients: 0,
            };
            let error = limits.check().unwrap_err();
            assert!(
                matches!(error, Error::Limit { limit: l, .. } if l == limit),
                "{error}"
            );
        }
        assert!(
            Limits {
                max_flows: 1_000,
                max_flows6: 1_000,
                half_open: 1_000,
                dsr_flows: 1_000,
                persistent_clients: 1_000_000,
            }
            .check()
            .is_ok()
        );
    }

    #[test]
    fn b141_a_refused_map_or_program_names_itself_the_kernel_and_the_feature() {
        let io_error = io::Error::from_raw_os_error(libc::EPERM);
        let error = refused_object(EbpfError::MapError(MapError::CreateError {
            name: "FLOWS4".into(),
            io_error,
        }));
        let Error::CreateMap {
            map, kernel, feature, ..
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!((map.as_str(), *feature), ("FLOWS4", Feature::Permission));
        assert!(error.to_string().contains(&kernel.to_string()), "{error}");
        let other = refused_program("onearm_xdp", ProgramError::UnexpectedProgramType);
        assert!(matches!(other, Error::Object { .. }));
    }
}
