//! The crate's one error.

use std::io;

use aya::EbpfError;
use aya::maps::MapError;

use crate::attach::FallbackReason;
use crate::kernel::{Feature, KernelRelease};

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong between user space and the programs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This binary was built without the eBPF toolchain and carries no programs.
    #[error("this build carries no eBPF programs: build with `make` on a machine where `make setup` has run")]
    NoObject,
    /// The embedded object is not what this binary expects.
    #[error("the embedded eBPF object cannot be used")]
    Object {
        /// From the loader.
        #[source]
        source: Box<EbpfError>,
    },
    /// The embedded object lacks a map.
    #[error("the embedded eBPF object has no map {map}")]
    MissingMap {
        /// Its name.
        map: &'static str,
    },
    /// The embedded object lacks a program.
    #[error("the embedded eBPF object has no program {program}")]
    MissingProgram {
        /// Its name.
        program: &'static str,
    },
    /// A leg finds no place in map `LEGS`.
    #[error("no place in map LEGS for interface {ifindex}, VLAN {vlan}: take one of the other legs out")]
    LegNotPlaced {
        /// Interface.
        ifindex: u32,
        /// VLAN id; 0 = untagged.
        vlan: u16,
    },
    /// The kernel does not make a map.
    #[error("kernel {kernel} does not make map {map} ({feature})")]
    CreateMap {
        /// Its name.
        map: String,
        /// Kernel release.
        kernel: KernelRelease,
        /// What is missing or forbidden.
        feature: Feature,
        /// From the kernel.
        #[source]
        source: io::Error,
    },
    /// The kernel's verifier does not accept a program.
    #[error("kernel {kernel} does not load program {program} ({feature}); the verifier says:\n{log_tail}")]
    Verifier {
        /// Its name.
        program: String,
        /// Kernel release.
        kernel: KernelRelease,
        /// What is missing or forbidden.
        feature: Feature,
        /// Last lines of the verifier's log.
        log_tail: String,
        /// From the kernel.
        #[source]
        source: io::Error,
    },
    /// A limit is out of its range.
    #[error("{limit} = {value} is out of range ({min} to {max})")]
    Limit {
        /// Which.
        limit: &'static str,
        /// As given.
        value: u64,
        /// Smallest allowed.
        min: u64,
        /// Largest allowed.
        max: u64,
    },
    /// A map cannot be brought into this process's memory.
    #[error("mapping {map} into memory failed")]
    Map {
        /// Its name.
        map: &'static str,
        /// From the kernel.
        #[source]
        source: io::Error,
    },
    /// A descriptor given as the lease map is of something else.
    #[error("the descriptor is not of the map LEASE")]
    NotTheLeaseMap {
        /// From the kernel, if it told.
        #[source]
        source: Option<Box<MapError>>,
    },
    /// Reading or writing a map.
    #[error("{operation} in map {map} failed")]
    MapAccess {
        /// Its name.
        map: &'static str,
        /// `insert`, `remove`, `read`.
        operation: &'static str,
        /// From the kernel.
        #[source]
        source: Box<MapError>,
    },
    /// No descriptor left.
    #[error("duplicating a descriptor failed")]
    Descriptor {
        /// From the kernel.
        #[source]
        source: io::Error,
    },
    /// No random numbers, no clock or no grace period from the kernel.
    #[error("{operation} failed")]
    Kernel {
        /// What was asked.
        operation: &'static str,
        /// From the kernel.
        #[source]
        source: io::Error,
    },
    /// The interface is not there (any more).
    #[error("interface {interface} (index {ifindex}) does not exist")]
    NoSuchInterface {
        /// Its name as given.
        interface: String,
        /// Kernel interface index.
        ifindex: u32,
    },
    /// The leg already carries our program.
    #[error("interface {interface} (index {ifindex}) is attached already")]
    AttachedAlready {
        /// Its name as given.
        interface: String,
        /// Kernel interface index.
        ifindex: u32,
    },
    /// Another XDP program is on the interface (or on a device above it).
    #[error(
        "interface {interface} (index {ifindex}) carries another XDP program, or a device above it does: \
         find it with `bpftool net` and remove it, or attach to the lower device first"
    )]
    InterfaceTaken {
        /// Its name as given.
        interface: String,
        /// Kernel interface index.
        ifindex: u32,
        /// From the kernel.
        #[source]
        source: io::Error,
    },
    /// `attach = "native"` cannot be had.
    #[error(
        "interface {interface} (index {ifindex}): {reason}; set attach = \"auto\" or attach = \"generic\", or lower \
         the MTU if it is above 3498"
    )]
    AttachNative {
        /// Its name as given.
        interface: String,
        /// Kernel interface index.
        ifindex: u32,
        /// What the driver said.
        reason: FallbackReason,
        /// From the kernel.
        #[source]
        source: io::Error,
    },
    /// Generic mode cannot be had either.
    #[error("interface {interface} (index {ifindex}): generic mode refused")]
    AttachGeneric {
        /// Its name as given.
        interface: String,
        /// Kernel interface index.
        ifindex: u32,
        /// From the kernel.
        #[source]
        source: io::Error,
    },
    /// Detaching failed.
    #[error("detaching from interface {interface} (index {ifindex}) failed")]
    Detach {
        /// Its name at the time of attaching.
        interface: String,
        /// Kernel interface index.
        ifindex: u32,
        /// From the kernel.
        #[source]
        source: io::Error,
    },
    /// The clsact filter.
    #[error("egress gate on {interface}: cannot {operation}")]
    EgressGate {
        /// Interface name.
        interface: String,
        /// What was asked.
        operation: &'static str,
        /// From the kernel.
        #[source]
        source: io::Error,
    },
    /// The tables asked for cannot be built; nothing was changed.
    #[error(transparent)]
    Tables(#[from] crate::tables::TablesError),
    /// Several steps of a teardown failed.
    #[error("{} steps failed, the first: {}", .0.len(), .0.first().map_or_else(String::new, ToString::to_string))]
    Several(Vec<Error>),
}

impl Error {
    /// Whether trying the same again later can succeed without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::MapAccess { source, .. } => matches!(
                source.as_ref(),
                MapError::SyscallError(e) if is_transient(&e.io_error)
            ),
            Self::Map { source, .. } | Self::Descriptor { source } | Self::Kernel { source, .. } => {
                is_transient(source)
            }
            Self::NoSuchInterface { .. } | Self::InterfaceTaken { .. } => true,
            _ => false,
        }
    }

    /// One error for the failures of a teardown that went on; `Ok` if there was none.
    pub(crate) fn gather(errors: Vec<Self>) -> Result<()> {
        let mut errors = errors;
        match errors.len() {
            0 => Ok(()),
            1 => errors.pop().map_or(Ok(()), Err),
            _ => Err(Self::Several(errors)),
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::EMFILE | libc::ENFILE)
    )
}
