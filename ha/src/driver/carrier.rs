//! The carrier, without waiting for the lock all interfaces share.
//!
//! `ETHTOOL_GLINK` is right at once but takes the RTNL lock, which others hold for many milliseconds (11 ms measured
//! while namespaces come and go, more while an XDP program is attached): long enough to lose a lease. The kernel also
//! counts changes of the carrier, at the same moment, and sysfs shows the count without that lock (0.1 ms at most in the
//! same measurement). So the question is asked once; after that an unchanged count means an unchanged carrier, and a
//! changed one means that it was lost, if only for a moment.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;

use nix::net::if_::if_nametoindex;

use crate::sys;

/// What is known of one interface's carrier.
#[derive(Debug, Default)]
pub(super) struct Carrier {
    changes: Option<File>,
    /// The count that was read just before the kernel said that there is a carrier.
    confirmed: Option<u64>,
}

impl Carrier {
    /// Whether interface `name` has carrier. Any socket serves.
    ///
    /// # Errors
    /// `ENODEV` if there is no such interface.
    pub(super) fn look(&mut self, socket: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
        let count = self.count(socket, name);
        match (self.confirmed.take(), count) {
            (Some(confirmed), Some(now)) if confirmed == now => {
                self.confirmed = Some(confirmed);
                Ok(true)
            }
            // Lost, or the interface itself is gone; the next look asks.
            (Some(_), _) => {
                self.changes = None;
                Ok(false)
            }
            (None, count) => {
                let up = sys::carrier(socket, name)?;
                // The count is older than the answer: a change in between shows in the next look.
                self.confirmed = count.filter(|_| up);
                Ok(up)
            }
        }
    }

    /// Changes of the carrier since the interface was made; `None` where the kernel does not tell.
    fn count(&mut self, socket: BorrowedFd<'_>, name: &str) -> Option<u64> {
        if self.changes.is_none() {
            self.changes = open(socket, name);
        }
        let mut digits = [0; 24];
        let length = self.changes.as_ref()?.read_at(&mut digits, 0).ok()?;
        std::str::from_utf8(&digits[..length]).ok()?.trim().parse().ok()
    }
}

/// The interface's count of changes, if `/sys` shows this network namespace: it may be mounted for another one, where an
/// interface of the same name is somebody else's.
fn open(socket: BorrowedFd<'_>, name: &str) -> Option<File> {
    let folder = format!("/sys/class/net/{name}");
    let shown = |file: &str| std::fs::read_to_string(format!("{folder}/{file}")).ok();
    let is_ours = shown("ifindex")?.trim().parse().ok() == if_nametoindex(name).ok()
        && sys::mac(socket, name)
            .is_ok_and(|mac| shown("address").is_some_and(|text| text.trim() == mac.to_string()));
    is_ours
        .then(|| File::open(format!("{folder}/carrier_changes")).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    fn socket() -> std::net::UdpSocket {
        std::net::UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    #[test]
    fn an_unchanged_count_is_an_unchanged_carrier_and_a_changed_one_is_a_lost_one() {
        let (socket, file) = (socket(), tempfile::NamedTempFile::new().unwrap());
        let write = |count: &str| file.as_file().write_all_at(count.as_bytes(), 0).unwrap();
        write("7");
        let mut carrier = Carrier {
            changes: Some(file.reopen().unwrap()),
            confirmed: None,
        };
        assert!(carrier.look(socket.as_fd(), "lo").unwrap());
        assert_eq!(carrier.confirmed, Some(7));
        // Known by its count: nobody is asked about an interface that does not even exist.
        assert!(carrier.look(socket.as_fd(), "no-such-leg").unwrap());
        write("8");
        assert!(!carrier.look(socket.as_fd(), "lo").unwrap());
        assert!(carrier.look(socket.as_fd(), "lo").unwrap(), "asked again");
    }

    #[test]
    fn an_interface_that_is_not_shown_is_asked_every_time() {
        let (socket, mut carrier) = (socket(), Carrier::default());
        assert!(carrier.look(socket.as_fd(), "lo").unwrap());
        assert_eq!(carrier.confirmed, None, "the loopback is no Ethernet");
    }

    #[test]
    fn a_missing_interface_is_an_error() {
        let (socket, mut carrier) = (socket(), Carrier::default());
        assert!(carrier.look(socket.as_fd(), "no-such-leg").is_err());
    }
}
