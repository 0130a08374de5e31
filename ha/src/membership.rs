//! Membership of the VRRP group, held by the *main* process.
//!
//! The HA process reads frames, not sockets of groups, and holds no membership (closing one waits for the kernel). A
//! NIC's filter and a snooping switch deliver 224.0.0.18 only to members, so the main process joins it on both nodes at
//! all times, before the HA process starts.

use std::num::NonZeroU32;

use nix::net::if_::if_nametoindex;
use socket2::{Domain, InterfaceIndexOrAddress, Socket, Type};

use crate::error::Error;
use crate::wire::advert::GROUP;

/// The membership on one leg; ends when dropped.
#[derive(Debug)]
pub struct Membership {
    socket: Socket,
    ifname: String,
    joined: Option<NonZeroU32>,
}

impl Membership {
    /// Joins 224.0.0.18 on `ifname`.
    ///
    /// # Errors
    /// [`Error::OpenLeg`], also while there is no such interface.
    pub fn join(ifname: &str) -> Result<Self, Error> {
        let socket =
            Socket::new(Domain::IPV4, Type::DGRAM.cloexec(), None).map_err(|source| Error::OpenLeg {
                ifname: ifname.to_owned(),
                source,
            })?;
        let mut membership = Self {
            socket,
            ifname: ifname.to_owned(),
            joined: None,
        };
        membership.refresh()?;
        Ok(membership)
    }

    /// Joins again if the interface of that name is another one by now (deleted and made anew). Cheap; to be called on
    /// link events.
    ///
    /// # Errors
    /// [`Error::OpenLeg`].
    pub fn refresh(&mut self) -> Result<(), Error> {
        let failed = |source| Error::OpenLeg {
            ifname: self.ifname.clone(),
            source,
        };
        let index = if_nametoindex(self.ifname.as_str()).map_err(|errno| failed(errno.into()))?;
        let index = NonZeroU32::new(index);
        if self.joined == index {
            return Ok(());
        }
        let on = |index: NonZeroU32| InterfaceIndexOrAddress::Index(index.get());
        if let Some(old) = self.joined.take() {
            // The membership went with the old interface; the kernel may still count it against this socket.
            self.socket.leave_multicast_v4_n(&GROUP, &on(old)).ok();
        }
        if let Some(new) = index {
            self.socket
                .join_multicast_v4_n(&GROUP, &on(new))
                .map_err(failed)?;
        }
        self.joined = index;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_interface_is_told_and_may_come_later() {
        let error = Membership::join("no-such-leg").unwrap_err();
        assert!(matches!(error, Error::OpenLeg { .. }) && error.is_transient());
    }
}
