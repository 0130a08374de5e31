//! The server's end of L3 DSR without a tunnel device: one small program on one interface.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsFd;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray};
use aya::{Ebpf, EbpfLoader};
use ipnet::IpNet;
use onearm_dataplane_common::addr::Addr;
use onearm_dataplane_common::decap::{MAX_FROM, MAX_VIPS, PROGRAM, Settings, TALLIES};

use crate::attach::{Attached, LegAttach};
use crate::error::{Error, Result};
use crate::loader::{again_if_interrupted, refused_object, refused_program, unusable, xdp};
use crate::tables::{bits, wide};

/// `make bpf` puts the object here; empty if it has not run.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/onearm-decap.o"));

/// What is taken out of its tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecapSpec {
    /// Addresses the server holds on its loopback: inner destinations. 1 to 4,096 of them, of either family.
    pub vips: Vec<IpAddr>,
    /// Prefixes of outer sources, at most 1,024; empty = any, which lets everybody who reaches the server send to the VIPs
    /// past the balancer, under any source address.
    pub from: Vec<IpNet>,
    /// UDP port of GUE (variant 1), not 0; `None` = only IPIP and IP6IP6.
    pub gue_port: Option<u16>,
}

impl DecapSpec {
    fn check(&self) -> Result<()> {
        let within = |limit, value: u64, min, max| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(Error::Limit {
                limit,
                value,
                min,
                max,
            })
        };
        within("vips", self.vips.len() as u64, 1, u64::from(MAX_VIPS))?;
        within("from", self.from.len() as u64, 0, u64::from(MAX_FROM))?;
        let port = u64::from(self.gue_port.unwrap_or(u16::MAX));
        within("gue port", port, 1, u64::from(u16::MAX))
    }
}

/// The program on its interface. Dropped, or with the end of the process, it is gone from there.
pub struct Decapsulator {
    attached: Attached,
    tally: PerCpuArray<MapData, u64>,
}

impl Decapsulator {
    /// Loads the program and puts it on an interface.
    ///
    /// # Errors
    /// [`Error::NoObject`] in a build without eBPF; [`Error::Limit`]; [`Error::CreateMap`], [`Error::Verifier`] with what
    /// the kernel lacks; [`Error::InterfaceTaken`], [`Error::NoSuchInterface`], [`Error::AttachNative`],
    /// [`Error::AttachGeneric`].
    pub fn attach(leg: &LegAttach, spec: &DecapSpec) -> Result<Self> {
        if OBJECT.is_empty() {
            return Err(Error::NoObject);
        }
        spec.check()?;
        let mut ebpf = EbpfLoader::new().load(OBJECT).map_err(refused_object)?;
        let settings = Settings {
            gue_port: spec.gue_port.unwrap_or(0).to_be(),
            listed_only: u16::from(!spec.from.is_empty()),
        };
        let mut array: Array<_, Settings> = map(&mut ebpf, "SETTINGS")?;
        array
            .set(0, settings, 0)
            .map_err(|e| access("SETTINGS", "write", e))?;
        let mut vips: HashMap<_, Addr, u32> = map(&mut ebpf, "VIPS")?;
        for vip in &spec.vips {
            vips.insert(wide(*vip), 1, 0)
                .map_err(|e| access("VIPS", "insert", e))?;
        }
        let mut from: LpmTrie<_, Addr, u32> = map(&mut ebpf, "FROM")?;
        for prefix in &spec.from {
            let (len, network) = bits(*prefix);
            from.insert(&Key::new(len, network), 1, 0)
                .map_err(|e| access("FROM", "insert", e))?;
        }
        let tally = ebpf
            .take_map("TALLY")
            .ok_or(Error::MissingMap { map: "TALLY" })
            .and_then(|map| PerCpuArray::try_from(map).map_err(|e| access("TALLY", "open", e)))?;
        let program = xdp(&mut ebpf, PROGRAM)?;
        again_if_interrupted(|| program.load()).map_err(|error| refused_program(PROGRAM, error))?;
        let attached = Attached::new(program.fd().map_err(unusable)?.as_fd(), leg)?;
        Ok(Self { attached, tally })
    }

    /// Where and how the program is attached.
    pub const fn attached(&self) -> &Attached {
        &self.attached
    }

    /// What happened to packets, by stable names; bytes without outer headers.
    ///
    /// # Errors
    /// [`Error::MapAccess`].
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>> {
        (0..)
            .zip(TALLIES)
            .map(|(index, name)| {
                let cpus = self
                    .tally
                    .get(&index, 0)
                    .map_err(|e| access("TALLY", "read", e))?;
                Ok((name, cpus.iter().fold(0, |sum: u64, n| sum.wrapping_add(*n))))
            })
            .collect()
    }

    /// Takes the program off its interface.
    ///
    /// # Errors
    /// [`Error::Detach`].
    pub fn detach(self) -> Result<()> {
        self.attached.detach()
    }
}

fn map<'a, M>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<M>
where
    M: TryFrom<&'a mut aya::maps::Map, Error = MapError>,
{
    let map = ebpf.map_mut(name).ok_or(Error::MissingMap { map: name })?;
    M::try_from(map).map_err(|e| access(name, "open", e))
}

fn access(map: &'static str, operation: &'static str, source: MapError) -> Error {
    Error::MapAccess {
        map,
        operation,
        source: Box::new(source),
    }
}
