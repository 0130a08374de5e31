//! What kernel this is, and what a refusal by it means (B141).

use std::fmt;
use std::io;

/// Release of the running kernel as `uname -r` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRelease(String);

impl KernelRelease {
    /// Asks the kernel.
    pub fn current() -> Self {
        Self(nix::sys::utsname::uname().map_or_else(
            |_| "of unknown release".to_owned(),
            |name| name.release().to_string_lossy().into_owned(),
        ))
    }
}

impl fmt::Display for KernelRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a refused program or map was missing, in words an operator can act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Feature {
    /// Capabilities `CAP_BPF`, `CAP_NET_ADMIN`, `CAP_PERFMON`, or `kernel.unprivileged_bpf_disabled`, or lockdown.
    Permission,
    /// Memory, or the limit of locked memory.
    Memory,
    /// A helper function of a newer kernel.
    Helper,
    /// Atomic operations with a result (Linux 5.12).
    Atomics,
    /// Loops (Linux 5.3) or calls the verifier cannot follow.
    Loops,
    /// The program is too large or branches too much for this kernel's verifier.
    Complexity,
    /// The verifier cannot prove an access to the packet safe.
    PacketAccess,
    /// The map type or flag, for instance mappable arrays (Linux 5.5).
    MapKind,
    /// Nothing known.
    Unknown,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Permission => {
                "not permitted: CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are needed, and no lockdown"
            }
            Self::Memory => "not enough memory, or LimitMEMLOCK too low",
            Self::Helper => "a helper function this kernel lacks; 6.1 or later is needed",
            Self::Atomics => "atomic instructions this kernel lacks; 6.1 or later is needed",
            Self::Loops => "a loop or call this kernel's verifier does not follow; 6.1 or later is needed",
            Self::Complexity => "too complex for this kernel's verifier",
            Self::PacketAccess => "a packet access this kernel's verifier does not accept",
            Self::MapKind => "a map type or flag this kernel lacks; 6.1 or later is needed",
            Self::Unknown => "reason unknown",
        })
    }
}

/// Lines of the verifier's log kept in an error.
const TAIL_LINES: usize = 24;

/// Judges a refused program by the error number and the verifier's log.
pub(crate) fn judge_program(error: &io::Error, log: &str) -> Feature {
    const SIGNS: [(&str, Feature); 13] = [
        ("unknown func", Feature::Helper),
        ("invalid func", Feature::Helper),
        ("program of this type cannot use helper", Feature::Helper),
        ("unknown opcode", Feature::Atomics),
        ("BPF_ATOMIC uses reserved fields", Feature::Atomics),
        ("back-edge", Feature::Loops),
        ("infinite loop detected", Feature::Loops),
        ("combined stack size", Feature::Loops),
        ("BPF program is too large", Feature::Complexity),
        ("too many states", Feature::Complexity),
        ("sequence of", Feature::Complexity),
        ("invalid access to packet", Feature::PacketAccess),
        ("math between pkt pointer", Feature::PacketAccess),
    ];
    if let Some((_, feature)) = SIGNS.iter().find(|(sign, _)| log.contains(sign)) {
        return *feature;
    }
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if log.is_empty() => Feature::Permission,
        Some(libc::ENOMEM) => Feature::Memory,
        Some(libc::E2BIG) => Feature::Complexity,
        _ => Feature::Unknown,
    }
}

/// Judges a refused map by the error number.
pub(crate) fn judge_map(error: &io::Error) -> Feature {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Feature::Permission,
        Some(libc::ENOMEM | libc::E2BIG) => Feature::Memory,
        Some(libc::EINVAL) => Feature::MapKind,
        _ => Feature::Unknown,
    }
}

/// The last lines of a log: that is where the verifier says what it did not like.
pub(crate) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.trim_end().lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::{Feature, judge_map, judge_program, tail};
    use std::io::Error;

    #[test]
    fn b141_a_refusal_names_the_feature() {
        let table = [
            (
                libc::EINVAL,
                "3: (85) call unknown#195\nunknown func unknown#195",
                Feature::Helper,
            ),
            (
                libc::EINVAL,
                "12: (db) r1 = atomic64_cmpxchg\nBPF_ATOMIC uses reserved fields",
                Feature::Atomics,
            ),
            (libc::EINVAL, "unknown opcode db", Feature::Atomics),
            (libc::EINVAL, "back-edge from insn 40 to 12", Feature::Loops),
            (
                libc::E2BIG,
                "BPF program is too large. Processed 1000001 insn",
                Feature::Complexity,
            ),
            (libc::E2BIG, "", Feature::Complexity),
            (
                libc::EACCES,
                "invalid access to packet, off=14 size=4, R3(id=0,off=14,r=14)",
                Feature::PacketAccess,
            ),
            (libc::EPERM, "", Feature::Permission),
            (libc::ENOMEM, "", Feature::Memory),
            (libc::EINVAL, "something new", Feature::Unknown),
            (libc::EACCES, "R1 type=scalar expected=fp", Feature::Unknown),
        ];
        for (errno, log, feature) in table {
            assert_eq!(
                judge_program(&Error::from_raw_os_error(errno), log),
                feature,
                "{errno} {log}"
            );
        }
        assert_eq!(
            judge_map(&Error::from_raw_os_error(libc::EINVAL)),
            Feature::MapKind
        );
        assert_eq!(
            judge_map(&Error::from_raw_os_error(libc::EPERM)),
            Feature::Permission
        );
        assert_eq!(
            judge_map(&Error::from_raw_os_error(libc::ENOMEM)),
            Feature::Memory
        );
    }

    #[test]
    fn b141_the_tail_of_the_log_is_kept() {
        let log = (0..100)
            .map(|n| format!("line {n}"))
            .collect::<Vec<_>>()
            .join("\n");
        let tail = tail(&log);
        assert!(
            tail.starts_with("line 76\n") && tail.ends_with("line 99"),
            "{tail}"
        );
        assert_eq!(super::tail(""), "");
    }
}
