//! Attaching the XDP program to a leg, natively where that works and generically with a reason where it does not.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::net::if_::if_indextoname;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::sys;

/// Largest MTU a native program that sees linear frames can serve, in bytes, on a machine with 4 KiB pages.
const LINEAR_MTU: u32 = 3_498;

/// How a leg wants the program attached (`attach` in `node.toml`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachMode {
    /// Native; generic where native cannot work.
    #[default]
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the kernel's stack.
    Generic,
}

/// How the program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachedMode {
    /// In the driver.
    Native,
    /// In the kernel's stack: works everywhere, costs more.
    Generic,
}

/// Why `auto` chose generic mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FallbackReason {
    /// The interface is one end of a veth pair: frames sent back natively vanish unless the far end runs a program too,
    /// and the far end cannot be inspected from here.
    Veth,
    /// The driver refused.
    Refused {
        /// Error number of the kernel.
        errno: i32,
        /// MTU of the interface in bytes, if it could be read.
        mtu: Option<u32>,
    },
}

impl fmt::Display for FallbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Veth => f.write_str(
                "veth: frames sent back natively are lost unless the far end runs an XDP program, which cannot be \
                 seen from here; set attach = \"native\" if it does",
            ),
            Self::Refused { errno, mtu } => {
                write!(f, "native mode refused: {}", std::io::Error::from_raw_os_error(*errno))?;
                match mtu {
                    Some(mtu) if *mtu > LINEAR_MTU => {
                        write!(
                            f,
                            " (MTU {mtu}; native mode may need at most {LINEAR_MTU}: ip link set INTERFACE mtu {LINEAR_MTU})"
                        )
                    }
                    _ if *errno == libc::EOPNOTSUPP => f.write_str(
                        " (where the driver has XDP, it may refuse receive offloads: ethtool -K INTERFACE lro off rx-gro-hw off)",
                    ),
                    _ => Ok(()),
                }
            }
        }
    }
}

/// A leg the program is to be attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegAttach {
    /// Kernel interface index.
    pub ifindex: u32,
    /// Interface name, for messages and to ask for the driver.
    pub name: String,
    /// Mode wanted.
    pub mode: AttachMode,
}

/// A leg the program is attached to.
#[derive(Debug)]
pub struct Attached {
    /// Kernel interface index.
    pub ifindex: u32,
    /// Interface name at the time of attaching.
    pub name: String,
    /// Mode in use.
    pub mode: AttachedMode,
    /// Set when `auto` could not have native mode; status shows it.
    pub reason: Option<FallbackReason>,
    link: OwnedFd,
}

impl Attached {
    /// Attaches `program` as wanted.
    pub(crate) fn new(program: BorrowedFd<'_>, leg: &LegAttach) -> Result<Self> {
        // Only the interface that is meant, also if it was renamed or made anew a moment ago. (The kernel answers EINVAL
        // for one that is not there: no reason to try generic mode. nix answers an empty name.)
        if !if_indextoname(leg.ifindex).is_ok_and(|name| name.as_bytes() == leg.name.as_bytes()) {
            return Err(Error::NoSuchInterface {
                interface: leg.name.clone(),
                ifindex: leg.ifindex,
            });
        }
        let (mode, reason) = match leg.mode {
            AttachMode::Generic => (AttachedMode::Generic, None),
            AttachMode::Native => (AttachedMode::Native, None),
            AttachMode::Auto if is_veth(&leg.name) => (AttachedMode::Generic, Some(FallbackReason::Veth)),
            AttachMode::Auto => match create(program, leg.ifindex, AttachedMode::Native) {
                Ok(link) => return Ok(Self::with(leg, AttachedMode::Native, None, link)),
                Err(error) if native_is_unsupported(&error) => {
                    let reason = FallbackReason::Refused {
                        errno: error.raw_os_error().unwrap_or_default(),
                        mtu: sys::mtu(&leg.name).ok(),
                    };
                    (AttachedMode::Generic, Some(reason))
                }
                Err(source) => return Err(refusal(leg, AttachedMode::Native, source)),
            },
        };
        let link = create(program, leg.ifindex, mode).map_err(|source| refusal(leg, mode, source))?;
        Ok(Self::with(leg, mode, reason, link))
    }

    fn with(leg: &LegAttach, mode: AttachedMode, reason: Option<FallbackReason>, link: OwnedFd) -> Self {
        Self {
            ifindex: leg.ifindex,
            name: leg.name.clone(),
            mode,
            reason,
            link,
        }
    }

    /// A second descriptor of the link, closed on exec: the program stays attached while any process holds one.
    pub(crate) fn link_fd(&self) -> Result<OwnedFd> {
        sys::duplicate(&self.link).map_err(|source| Error::Descriptor { source })
    }

    /// Detaches at once, also if another process holds the link. An interface that is gone is no error.
    pub(crate) fn detach(self) -> Result<()> {
        match sys::link_detach(self.link.as_fd()) {
            Err(error) if !is_gone(&error) => Err(Error::Detach {
                interface: self.name,
                ifindex: self.ifindex,
                source: error,
            }),
            Err(_) | Ok(()) => Ok(()),
        }
    }
}

fn create(program: BorrowedFd<'_>, ifindex: u32, mode: AttachedMode) -> std::io::Result<OwnedFd> {
    let flags = match mode {
        AttachedMode::Native => sys::XDP_FLAGS_DRV_MODE,
        AttachedMode::Generic => sys::XDP_FLAGS_SKB_MODE,
    };
    sys::xdp_link_create(program, ifindex, flags)
}

fn is_veth(name: &str) -> bool {
    sys::driver(name).is_ok_and(|driver| driver == "veth")
}

fn is_gone(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENODEV | libc::ENOLINK | libc::ENOENT)
    )
}

/// What drivers answer when they have no XDP, or not for this MTU, queue layout or feature.
fn native_is_unsupported(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE | libc::ENOSPC | libc::E2BIG | libc::ENOMEM)
    )
}

fn refusal(leg: &LegAttach, mode: AttachedMode, source: std::io::Error) -> Error {
    let (interface, ifindex) = (leg.name.clone(), leg.ifindex);
    match source.raw_os_error() {
        Some(libc::ENODEV) => Error::NoSuchInterface { interface, ifindex },
        Some(libc::EEXIST | libc::EBUSY) => Error::InterfaceTaken {
            interface,
            ifindex,
            source,
        },
        _ if mode == AttachedMode::Native => {
            let reason = FallbackReason::Refused {
                errno: source.raw_os_error().unwrap_or_default(),
                mtu: sys::mtu(&leg.name).ok(),
            };
            Error::AttachNative {
                interface,
                ifindex,
                reason,
                source,
            }
        }
        _ => Error::AttachGeneric {
            interface,
            ifindex,
            source,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{FallbackReason, native_is_unsupported, refusal};
    use crate::attach::{AttachMode, AttachedMode, LegAttach};
    use crate::error::Error;
    use std::io;

    #[test]
    fn b137_a_refusal_for_the_mtu_falls_back_and_says_so() {
        for errno in [libc::EOPNOTSUPP, libc::EINVAL, libc::ERANGE] {
            assert!(native_is_unsupported(&io::Error::from_raw_os_error(errno)));
        }
        let text = FallbackReason::Refused {
            errno: libc::ERANGE,
            mtu: Some(9_000),
        }
        .to_string();
        assert!(
            text.contains("9000") && text.contains("ip link set INTERFACE mtu 3498"),
            "{text}"
        );
        let text = FallbackReason::Refused {
            errno: libc::EOPNOTSUPP,
            mtu: Some(1_500),
        }
        .to_string();
        assert!(
            !text.contains("MTU") && text.contains("ethtool -K INTERFACE lro off"),
            "{text}"
        );
    }

    #[test]
    fn a_foreign_program_or_missing_permission_is_not_hidden_by_a_fall_back() {
        for errno in [libc::EEXIST, libc::EBUSY, libc::EPERM, libc::ENODEV] {
            assert!(!native_is_unsupported(&io::Error::from_raw_os_error(errno)));
        }
    }

    #[test]
    fn refusals_are_typed() {
        let leg = LegAttach {
            ifindex: 7,
            name: "no-such-leg".into(),
            mode: AttachMode::Native,
        };
        let of = |errno, mode| refusal(&leg, mode, io::Error::from_raw_os_error(errno));
        assert!(matches!(
            of(libc::ENODEV, AttachedMode::Native),
            Error::NoSuchInterface { .. }
        ));
        assert!(matches!(
            of(libc::EBUSY, AttachedMode::Generic),
            Error::InterfaceTaken { .. }
        ));
        assert!(matches!(
            of(libc::EINVAL, AttachedMode::Generic),
            Error::AttachGeneric { .. }
        ));
        let native = of(libc::EOPNOTSUPP, AttachedMode::Native);
        assert!(native.to_string().contains("attach = \"generic\""), "{native}");
    }
}
